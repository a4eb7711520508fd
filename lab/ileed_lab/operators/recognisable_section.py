"""What the records of recognisable operators say: who is ranked where, and which orders are wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import final

import numpy as np

from ileed.errors import counted
from ileed_lab.comparison import Estimate, Records, format_estimate, join_words, markdown_table
from ileed_lab.operators.recognisable import SPEEDS, Skill
from ileed_lab.records import Measured

__all__ = ["RECOGNISABLE", "FoundRecognisable", "misordered_pairs", "recognisable_conclusion", "recognisable_section"]

RECOGNISABLE = "operators/recognisable"
MODELS = {"default": "**default**", "outcome": "**with outcomes**", "variance-scaling": "the paper's"}
_MOST = 12  # pairs in a table


@final
@dataclass(frozen=True)
class FoundRecognisable:
    """Ranks and wrong orders over populations."""

    records: Records

    def trials(self, method: str, speeds: str) -> Mapping[int, Measured]:
        """What each population measured; none where the cell was not run."""
        return self.records.trials(RECOGNISABLE, method, speeds=speeds)

    @cached_property
    def models(self) -> list[str]:
        """The models of which there is a record."""
        return [name for name in MODELS if any(self.trials(name, each) for each in SPEEDS)]

    def skills(self, speeds: str, trial: int) -> Mapping[str, Skill] | None:
        """The measured skill of each operator of a population."""
        found = self.trials("operators", speeds).get(trial)
        if found is None:
            return None
        names = ("success", "error", "seconds", "episodes")
        return {each["name"]: Skill(**{name: each[name] for name in names}) for each in found["operators"]}

    def populations(self, model: str) -> Iterator[tuple[Measured, Mapping[str, Skill]]]:
        """What a model measured in each population, and the skill of its operators."""
        for speeds in SPEEDS:
            for trial, measured in self.trials(model, speeds).items():
                if (skills := self.skills(speeds, trial)) is not None:
                    yield measured, skills

    def share_contradicted(self, model: str) -> Estimate | None:
        """The share of populations in which success clearly contradicts the order of a pair."""
        return self._share(model, "wrong")

    def share_wrong(self, model: str) -> Estimate | None:
        """The share of populations whose sentence is wrong: of skill where it claims skill, and else of agreement."""
        each = [trial for speeds in SPEEDS for trial in self.trials(model, speeds).values()]
        wrong = [bool(trial.get("wrong" if trial.get("claims_skill", True) else "reversed")) for trial in each]
        return Estimate.share(sum(wrong), len(wrong)) if wrong else None

    def _share(self, model: str, name: str) -> Estimate | None:
        found = [bool(trial.get(name)) for speeds in SPEEDS for trial in self.trials(model, speeds).values()]
        return Estimate.share(sum(found), len(found)) if found else None

    def reserved(self, model: str) -> tuple[int, int]:
        """How many sentences have a reservation, and how many of the wrong ones."""
        each = [trial for speeds in SPEEDS for trial in self.trials(model, speeds).values()]
        found = [trial for trial in each if "; but " in (trial.get("sentence") or "")]
        return len(found), sum(bool(trial.get("wrong")) for trial in found)

    def claims(self, model: str) -> tuple[int, int]:
        """Pairs that sentences put in order, and how many of them are wrong."""
        each = [trial for speeds in SPEEDS for trial in self.trials(model, speeds).values()]
        return sum(trial.get("claims", 0) for trial in each), sum(len(trial.get("wrong", [])) for trial in each)

    def correlation(self, model: str, speeds: str) -> Estimate | None:
        """Spearman correlation of expertise with success, mean over populations."""
        return Estimate.over(trial["correlation"] for trial in self.trials(model, speeds).values())

    def mean_ranks(self, speeds: str) -> dict[str, dict[str, float]]:
        """The mean rank of each kind of operator by success and by each model, best first by success."""
        found: dict[str, dict[str, list[float]]] = {}
        for trial in self.trials("operators", speeds):
            skills = self.skills(speeds, trial) or {}
            success = [each.success for each in skills.values()]
            ranks = {name: sum(other > own.success for other in success) + 1 for name, own in skills.items()}
            _add(found, "success", ranks)
        for model in self.models:
            for measured in self.trials(model, speeds).values():
                _add(found, model, measured["rank"])
        means = {kind: {by: float(np.mean(ranks)) for by, ranks in own.items()} for kind, own in found.items()}
        return dict(sorted(means.items(), key=lambda item: item[1].get("success", np.inf)))

    def misordered(self, model: str) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
        """How often a kind is ranked above another of clearly greater success, and how often a sentence says so."""
        ranked, claimed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for measured, skills in self.populations(model):
            ranked.update(_misordered(measured["rank"], skills))
            claimed.update({(_kind(one), _kind(other)) for one, other in measured.get("wrong", [])})
        return ranked, claimed

    def overrated(self, model: str) -> Counter[str]:
        """In how many populations each kind is ranked above an operator of clearly greater success."""
        each = (_misordered(measured["rank"], skills) for measured, skills in self.populations(model))
        return Counter(kind for pairs in each for kind in {one for one, _ in pairs})


def recognisable_conclusion(found: FoundRecognisable) -> list[str]:
    """A line with the share of wrong sentences, and one with the operators that actions alone overrate."""
    lines = []
    shares = [(MODELS[model], found.share_wrong(model)) for model in found.models]
    each = [f"{_percent(share)} ({words.strip('*')})" for words, share in shares if share is not None]
    if each:
        count = next(share.trials for _, share in shares if share is not None)
        lines.append(
            f"- Operators that a novice would recognise: the sentence at the top of a report is wrong in "
            f"{join_words(each)} of {counted(count, 'population')}."
        )
    against = found.share_contradicted("default") if "default" in found.models else None
    if against is not None:
        lines.append(
            "- Without outcomes that sentence claims agreement with the common policy, not skill. Taken as an order of "
            f"skill, success would clearly contradict it somewhere in {_percent(against)} of these populations."
        )
    if "default" in found.models:
        total = sum(1 for _ in found.populations("default"))
        counts = sorted(found.overrated("default").items(), key=lambda item: (-item[1], item[0]))
        often = [f"{kind} operators" for kind, count in counts if count > total / 4]
        if often:
            lines.append(
                f"- Actions alone cannot tell that {join_words(often)} succeed less often than operators below them: "
                "in more than a quarter of the populations they are ranked too high."
            )
    return lines


def recognisable_section(found: FoundRecognisable) -> list[str]:
    """The section about recognisable operators, as far as it was run."""
    if not found.models:
        return []
    return [
        "## Operators that a novice would recognise",
        _RECOGNISABLE,
        _wrong_table(found),
        *(part for speeds in SPEEDS for part in _rank_table(found, speeds)),
    ]


_RECOGNISABLE = """Populations of six to eight operators bring a hand to a target and hold it there: precise, hesitant,
jittery, systematically offset, delayed, overshooting and ordinary ones, at equal and at unequal speeds. The size of
each trait is drawn for each population. Success is that of 500 other episodes. With outcomes, and by the paper's model,
the sentence at the top says who is better: it is wrong if it puts a pair of operators in an order that success
contradicts by more than three standard errors. Without outcomes, the default says who follows the common policy more
closely: that is wrong if ratings of 30 other episodes of each operator say the opposite with probability 0.95. The
third column counts contradictions by success for all models alike. The wording of that sentence, and with it what
counts as wrong, was changed after eight populations of development, in nearly all of which an order of skill was
wrong. A reservation says that expertise is mostly explained by speed or duration."""


def _wrong_table(found: FoundRecognisable) -> str:
    rows = []
    for model in found.models:
        claims, wrong = found.claims(model)
        rows.append(
            [
                MODELS[model],
                _percent(found.share_wrong(model)),
                _percent(found.share_contradicted(model)),
                f"{wrong} of {claims}",
                "{} ({})".format(*found.reserved(model)),
                *(_cell(found.correlation(model, each)) for each in SPEEDS),
            ]
        )
    head = ["demonstrator model", "populations with a wrong sentence", "populations that success contradicts"]
    head += ["contradicted pairs of those ordered", "sentences with a reservation (contradicted ones)"]
    return markdown_table([*head, *(f"correlation with success, {each} speeds" for each in SPEEDS)], rows)


def _rank_table(found: FoundRecognisable, speeds: str) -> list[str]:
    ranks = found.mean_ranks(speeds)
    if not ranks:
        return []
    columns = {"success": "by success"} | {model: MODELS[model] for model in found.models}
    rows = [[kind, *(f"{own[by]:.1f}" if by in own else "" for by in columns)] for kind, own in ranks.items()]
    return [
        f"Mean rank over populations at {speeds} speeds, 1 is the best:",
        markdown_table(["operator", *columns.values()], rows),
    ]


def misordered_pairs(found: FoundRecognisable) -> list[str]:
    """The section on pairs of operators that the default ranks against a clear difference in success."""
    if "default" not in found.models:
        return []
    ranked, claimed = found.misordered("default")
    total = sum(1 for _ in found.populations("default"))
    if not ranked:
        return ["No pair was ranked against a clear difference in success by the default."] if total else []
    rows = [
        [one, other, f"{count} of {total}", str(claimed[one, other])]
        for (one, other), count in sorted(ranked.items(), key=lambda item: (-item[1], item[0]))[:_MOST]
    ]
    return [
        "## What actions alone cannot tell",
        "Pairs that the default ranks against a clear difference in success: in how many populations, and in how many "
        "of these the sentence at the top says so. An operator who is always beside the target, or always late, acts "
        "as predictably as an exact one. `outcome=` distinguishes the two ([how](howto/outcomes.md)).",
        markdown_table(["ranked above", "more successful", "populations", "of which in the sentence"], rows),
    ]


def _misordered(rank: Mapping[str, int], skills: Mapping[str, Skill]) -> set[tuple[str, str]]:
    """Pairs of kinds of which the first is ranked above the second, whose success is clearly greater."""
    return {
        (_kind(one), _kind(other))
        for one, other in permutations(skills, 2)
        if rank[one] < rank[other] and skills[other].is_clearly_above(skills[one])
    }


def _add(found: dict[str, dict[str, list[float]]], by: str, ranks: Mapping[str, float]) -> None:
    for name, rank in ranks.items():
        found.setdefault(_kind(name), {}).setdefault(by, []).append(rank)


def _kind(name: str) -> str:
    """The name of an operator without its number."""
    return re.sub(r" \d+$", "", name)


def _percent(share: Estimate | None) -> str:
    return "" if share is None else f"{share.mean:.0%} [{share.low:.0%}, {share.high:.0%}]"


def _cell(estimate: Estimate | None) -> str:
    return "" if estimate is None else format_estimate(estimate, digits=2)
