"""What the records of pick and place say: expertise and success, what features change, and cloned policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt

from ileed.errors import counted
from ileed.parallel.runtime import stream
from ileed_lab.comparison import Estimate, Records, format_estimate, markdown_table
from ileed_lab.operators.pick_place import TOLERANCES
from ileed_lab.ranking import rank_correlation
from ileed_lab.records import Measured

__all__ = ["PICK_PLACE", "FoundPickPlace", "pick_place_conclusion", "pick_place_sections"]

PICK_PLACE = "operators/pick-place"
ESTIMATES = {
    "ileed": "**ILEED, default settings**",
    "ileed-outcome": "**ILEED with `outcome` success**",
    "ileed-without-task": "ILEED without object and goal",
}
SCORES = {
    "episode-length": "episode length, shorter is better",
    "spectral-arc-length": "spectral arc length of the controls (as RINSE)",
    "jerk-and-idle": "jerk and idle outliers (as lerobot 3761)",
    "bc-log-likelihood": "log-likelihood of a BC policy, cross-validated",
    "mutual-information": "mutual information (DemInf), single actions",
    "definition-precision": "plain regression: precision over 0.8 s",
    "definition-share": "plain regression: explained share of variance over 0.8 s",
    "definition-signal-dependent": "plain regression: signal-dependent noise over 0.8 s",
    "definition-direction": "plain regression: direction over 0.8 s",
    "random": "random",
}
POLICIES = {
    "bc-everything": "everything",
    "bc-curated": "`curate` with defaults",
    "bc-half": "`curate(keep=0.5)`",
    "bc-successes": "the successes alone",
    "bc-outcome": "with outcomes: advantage weights",
    "bc-outcome-curated": "with outcomes: `curate` with defaults",
    "ileed": "ILEED's own policy",
    "ileed-outcome": "with outcomes: ILEED's own policy",
}
_CORRELATIONS = {"correlation": "operators", "episode_correlation": "episodes", "within_correlation": "of one operator"}
_DRAWS = 2_000


@final
@dataclass(frozen=True)
class FoundPickPlace:
    """Means over trials, and differences between policies."""

    records: Records

    def trials(self, method: str, tolerance: str) -> Mapping[int, Measured]:
        """What each trial measured; none where the cell was not run."""
        return self.records.trials(PICK_PLACE, method, tolerance=tolerance)

    @cached_property
    def tolerances(self) -> list[str]:
        """Those of which there is a record of any method."""
        run = {cell["setting"]["tolerance"] for cell in self.records.cells(PICK_PLACE)}
        return [each for each in TOLERANCES if each in run]

    def were_run(self, names: Mapping[str, str]) -> list[str]:
        """The methods of which there is a record."""
        return [name for name in names if any(self.trials(name, each) for each in self.tolerances)]

    def estimate(self, method: str, tolerance: str, key: str = "correlation") -> Estimate | None:
        """The mean over trials of a number of a method; None where it was not run."""
        found = [trial.get(key) for trial in self.trials(method, tolerance).values()]
        return Estimate.over(each for each in found if each is not None)

    def score(self, name: str, tolerance: str, key: str = "correlation") -> Estimate | None:
        """The same of a score of data quality."""
        found = [trial["scores"].get(name, {}).get(key) for trial in self.trials("operators", tolerance).values()]
        return Estimate.over(each for each in found if each is not None)

    def agreement(self, tolerance: str) -> Estimate | None:
        """Rank correlation of expertise with that without the object and the goal, mean over trials."""
        one, other = (self.trials(each, tolerance) for each in ("ileed", "ileed-without-task"))
        pairs = [(one[trial]["expertise"], other[trial]["expertise"]) for trial in one.keys() & other.keys()]
        return Estimate.over(rank_correlation([*a.values()], [b[name] for name in a]) for a, b in pairs)

    def warned(self, method: str, tolerance: str) -> int:
        """How many trials warned, withheld the ranking, or had a sentence with a reservation."""
        trials = self.trials(method, tolerance).values()
        return sum(bool(each["warnings"]) or "; but " in (each["sentence"] or "") for each in trials)

    def difference(self, one: str, other: str) -> Estimate | None:
        """Success of one policy minus another's over all tolerances; bootstrap over trials and initial states."""
        gaps = []
        for tolerance in self.tolerances:
            first, second = (self.trials(each, tolerance) for each in (one, other))
            gaps += [_flags(first[trial]) - _flags(second[trial]) for trial in sorted(first.keys() & second.keys())]
        if not gaps:
            return None
        gap = np.stack(gaps)
        random = np.random.default_rng(stream(0, "policies").initial_seed())
        drawn = []
        for _ in range(_DRAWS):
            rows = random.integers(len(gap), size=len(gap))
            columns = random.integers(gap.shape[1], size=gap.shape)
            drawn.append(np.take_along_axis(gap[rows], columns, axis=1).mean())
        low, high = np.quantile(drawn, (0.025, 0.975))
        return Estimate(float(gap.mean()), float(low), float(high), len(gap))


def pick_place_conclusion(found: FoundPickPlace) -> list[str]:
    """A line for each question that pick and place answers, as far as it was run."""
    alone, told, length = (
        _over_tolerances(found, each) for each in (("ileed", None), ("ileed-outcome", None), (None, "episode-length"))
    )
    lines = []
    if alone:
        lines.append(
            f"- Pick and place: expertise by actions alone has a Spearman correlation of **{alone}** with the success "
            "of eight operators"
            + (f", with the success of every demonstration **{told}**" if told else "")
            + (f"; short episodes {length}." if length else ".")
        )
    for one, other, words in (
        ("ileed", "bc-everything", "ILEED's own policy, minus a policy cloned from everything"),
        ("ileed-outcome", "bc-successes", "ILEED's own policy with outcomes, minus one cloned from the successes"),
        ("bc-curated", "bc-everything", "`curate` with defaults, minus everything"),
        ("bc-outcome", "bc-successes", "Advantage weights of a fit with outcomes, minus the successes alone"),
    ):
        gap = found.difference(one, other)
        if gap is not None:
            lines.append(f"- {words}: success changes by {_signed(gap)}.")
    agreements = [(each, found.agreement(each)) for each in found.tolerances]
    each = [f"{agreement.mean:.2f} ({tolerance})" for tolerance, agreement in agreements if agreement is not None]
    if each:
        lines.append(
            "- Without the object and the goal in the observations, the rank correlation with the expertise that has "
            f"them is {', '.join(each)}, and {_warnings(found)}."
        )
    return lines


def pick_place_sections(found: FoundPickPlace) -> list[str]:
    """The sections about pick and place, as far as it was run."""
    if not found.tolerances:
        return []
    return ["## Pick and place", _PICK_PLACE, *_scores(found), *_features(found), *_policies(found)]


_PICK_PLACE = """Eight teleoperators move a gripper by velocity commands at 20 Hz, pick an object and put it on a goal,
at an easy and a hard tolerance. Failures are in the data. Success is that of 500 other episodes of each operator, which
no estimate sees. The operators were tuned on success rates alone, before any expertise was estimated. Fits have the
default settings at one width of the policy, that which the default chose for the first data. Where only ratings are
used, the policy that acts has earlier settings, which change no rating."""


def _scores(found: FoundPickPlace) -> list[str]:
    measured = [each for each in found.tolerances if found.trials("operators", each)]
    paragraphs = []
    if measured:
        each = [next(iter(found.trials("operators", tolerance).values()))["success"] for tolerance in measured]
        rows = [[name, *(f"{own[name]:.2f}" for own in each)] for name in each[0]]
        paragraphs.append(markdown_table(["operator", *(f"success, {tolerance}" for tolerance in measured)], rows))
    head = [f"{tolerance}, {words}" for tolerance in found.tolerances for words in _CORRELATIONS.values()]
    rows = [
        [
            ESTIMATES[name],
            *(_cell(found.estimate(name, tolerance, key)) for tolerance in found.tolerances for key in _CORRELATIONS),
        ]
        for name in found.were_run(ESTIMATES)
    ]
    if measured:
        rows += [
            [
                words,
                *(_cell(found.score(name, tolerance, key)) for tolerance in found.tolerances for key in _CORRELATIONS),
            ]
            for name, words in SCORES.items()
        ]
    return [
        *paragraphs,
        "Spearman correlation with success: of operators; of episodes, with whether each succeeded; and within the "
        f"episodes of one operator, mean over operators. Means over {_trial_count(found)}, with 95% intervals over "
        "them. The score of an operator is the mean over episodes where a method scores episodes alone.",
        markdown_table(["score", *head], rows),
    ]


def _features(found: FoundPickPlace) -> list[str]:
    rows = [
        [
            tolerance,
            _cell(found.agreement(tolerance)),
            *(
                _cell(found.estimate(method, tolerance, key))
                for key in ("correlation", "mean_expertise", "reliability")
                for method in ("ileed", "ileed-without-task")
            ),
            f"{found.warned('ileed', tolerance)}, {found.warned('ileed-without-task', tolerance)}",
        ]
        for tolerance in found.tolerances
        if found.trials("ileed-without-task", tolerance)
    ]
    if not rows:
        return []
    head = ["tolerance", "agreement of both orders"]
    head += [f"{what}, {which}" for what in ("success", "expertise", "reliability") for which in ("with", "without")]
    return [
        "### Without the object and the goal",
        "The same fit with the object and the goal deleted from the observations, without which the task cannot be "
        "done. A score that is a measure of skill has to change or to warn. Agreement is the rank correlation of both "
        "orders of operators; success is the correlation with it; expertise is the mean over operators; the last "
        "column counts trials with a warning or a reservation in the sentence at the top of the report.",
        markdown_table([*head, "warnings"], rows),
    ]


def _policies(found: FoundPickPlace) -> list[str]:
    rows = [
        [
            POLICIES[name],
            *(_cell(found.estimate(name, tolerance, "success")) for tolerance in found.tolerances),
            *(_cell(found.estimate(name, tolerance, "episodes"), 0) for tolerance in found.tolerances),
            "" if name == "bc-everything" else _signed(found.difference(name, "bc-everything")),
        ]
        for name in found.were_run(POLICIES)
    ]
    if not rows:
        return []
    head = [f"{what}, {each}" for what in ("success", "episodes") for each in found.tolerances]
    return [
        "### Policies cloned from what is selected",
        "Success of policies in closed loop. All but ILEED's own are trained by the same regression on a selection of "
        "the episodes, with its weights; the regression was chosen before anything was curated. The difference from "
        "everything is over both tolerances, with a 95% interval of a paired bootstrap over trials and initial states.",
        markdown_table(["policy learned from", *head, "minus everything"], rows),
    ]


def _flags(trial: Measured) -> npt.NDArray[np.float64]:
    """(episode,) 1 for a success."""
    return np.array([float(each) for each in trial["successes"]])


def _over_tolerances(found: FoundPickPlace, which: tuple[str | None, str | None]) -> str:
    """The correlation with success at each tolerance, as '0.83 (easy) and 0.79 (hard)'; empty where not run."""
    method, score = which
    each = {
        tolerance: found.estimate(method, tolerance) if method else found.score(str(score), tolerance)
        for tolerance in found.tolerances
    }
    return " and ".join(f"{own.mean:.2f} ({tolerance})" for tolerance, own in each.items() if own is not None)


def _warnings(found: FoundPickPlace) -> str:
    counts = [len(found.trials("ileed-without-task", each)) for each in found.tolerances]
    warned = sum(found.warned("ileed-without-task", each) for each in found.tolerances)
    return f"{warned} of {counted(sum(counts), 'report')} {'warns' if warned == 1 else 'warn'}"


def _trial_count(found: FoundPickPlace) -> str:
    most = max(len(cell["trials"]) for cell in found.records.cells(PICK_PLACE))
    return counted(most, "trial")


def _cell(estimate: Estimate | None, digits: int = 2) -> str:
    return format_estimate(estimate, digits=digits) if estimate is not None else ""


def _signed(estimate: Estimate | None) -> str:
    return format_estimate(estimate, digits=3, signed=True) if estimate is not None else ""
