"""The section about Square on the page about curation, made from results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ileed.errors import counted
from ileed_lab.comparison import Estimate, Records, format_estimate, join_words, markdown_table, unique
from ileed_lab.curation.differences import Row, over_trials, paired, row_of_square
from ileed_lab.curation.square import CurationSquare
from ileed_lab.records import Measured

__all__ = ["SQUARE_NAMES", "percent", "square_section"]

SQUARE_NAMES = {
    "everything": "everything",
    "curated": "curated with defaults",
    "weighted": "everything, weighted",
    "half": "the best half",
    "half-random": "a random half",
    "half-oracle": "the oracle's half",
    "ileed": "ILEED's own policy",
}
"""What the page calls the selections in Square, in its order."""
_INTRODUCTION = """\
Six simulated operators of three tiers, 50 episodes each, put a nut over a peg with a robot arm ([Robots:
Square](robot.md)). Our recurrent BC learns from each selection; a policy is scored by its successes in the same 100
episodes of its trial. *Curated with defaults* is `ileed.curate(fitted, data).recommended()`."""
_METHOD = """\
The trainer is an LSTM of 2 x 100 units with shared standard deviations, trained for 4,000 steps.

- **Curated with defaults**: `ileed.curate(fitted, data).recommended()`, which keeps all episodes unless weights, the
  best 75% or the best half predict the expert component of held-out episodes better by the interval, and by 10% or
  more. `fitted` is `ileed.Ileed().fit(data, seed=0)` with default settings.
- **Weighted**, **the best half**: `ileed.curate(fitted, data, weight=True)` and `keep=0.5`, with their weights.
- **Random**, **oracle**: as many episodes as the best half, drawn at random in each trial, or those of the operators of
  the highest tier with random tie-breaking. Their episodes have equal weights.
- **ILEED's own policy**: `ileed.Ileed` with the trainer's network and steps on all episodes, without a selection.

Every demonstration succeeds, so there is no selection by reward. All trials share the demonstrations and one curation;
they differ in the seeds of the fits and in the initial states. Differences are paired by episode within trials. Their
95% CI (Student's over trials) covers chance in fits and episodes, not in the demonstrations or the curation. Selections
with the same episodes and weights share their policies. Settings, trials and selections were committed before any
policy was scored on these trials with this curation. The threshold of 10% was set after two trials of all episodes with
and without weights."""
_PICTURE = "![Success of policies in Square by selection of episodes](images/curation-square.svg)"
_COLUMNS = (
    "Success in percent of episodes, mean over trials, and differences in percentage points with 95% CI, bold where "
    "the interval excludes zero. Episodes and steps are those of the training set, mean over trials, with the mean "
    "tier over steps (0 is worse, 1 okay, 2 better)."
)
_AGAINST = (("curated", "everything"), ("weighted", "everything"), ("curated", "half-random"), ("half", "everything"))


def square_section(records: Records) -> tuple[list[str], list[str]]:
    """The conclusion, and the details; both empty if nothing was run."""
    row = row_of_square(records)
    judged = _judged(records.trials(CurationSquare().name, "judge", trainer=row.trainer))
    if not (row.was_run or judged):
        return [], []
    conclusion = [*_outcome(row), _PICTURE] if row.was_run else []
    table = [_COLUMNS, _table(row)] if row.was_run else []
    heading = "## Square: a robot arm"
    return [heading, _INTRODUCTION, *conclusion], [heading, _METHOD, *table, *judged]


def _outcome(row: Row) -> list[str]:
    """A line for each comparison that was measured."""
    lines = []
    for one, other in _AGAINST:
        found, word = paired(row.rewards(one), row.rewards(other)), row.verdict(one, other)
        if found is not None:
            verdict = {"better": "**above**", "worse": "**below**"}.get(word, "not distinguishable from")
            same = "the same policies as" if other in _equals(row, one) else verdict
            points = f" ({_signed(found)} points, {counted(found.trials, 'trial')})"
            lines.append(f"- {SQUARE_NAMES[one].capitalize()}: {same} {SQUARE_NAMES[other]}{points}.")
    return ["\n".join(lines)] if lines else []


def _equals(row: Row, selection: str) -> list[str]:
    """The selections whose policies a selection shares, since it has the same episodes and weights."""
    return unique(trial["same_as"] for trial in row.selections.get(selection, {}).values() if "same_as" in trial)


def percent(found: Estimate | None) -> Estimate | None:
    """An estimate of a share, in percent; of a difference of shares, in percentage points."""
    if found is None:
        return None
    return Estimate(100 * found.mean, 100 * found.low, 100 * found.high, found.trials)


def _signed(found: Estimate | None) -> str:
    return format_estimate(percent(found), digits=1, signed=True)


def _bold(found: Estimate | None) -> str:
    is_clear = found is not None and not found.low <= 0 <= found.high
    return f"**{_signed(found)}**" if is_clear else _signed(found)


def _table(row: Row) -> str:
    lines = []
    for name, words in SQUARE_NAMES.items():
        trials = row.selections["everything" if name == "ileed" else name]
        kept = [_mean(trials.values(), field) for field in ("episodes", "steps", "skill")] if trials else []
        sizes = [f"{kept[0]:,.0f}", f"{kept[1]:,.0f}", f"{kept[2]:.2f}"] if kept else ["not run"] * 3
        same = "".join(f", the same as {SQUARE_NAMES[other]}" for other in _equals(row, name))
        success = format_estimate(percent(over_trials(row.rewards(name))), digits=1)
        less = ["" if name == other else _bold(paired(row.rewards(name), row.rewards(other))) for other in _OTHERS]
        lines.append([words + same, str(len(row.rewards(name))), *sizes, success, *less])
    head = ["selection", "trials", "episodes", "steps", "tier", "success"]
    return markdown_table([*head, *(f"minus {SQUARE_NAMES[other]}" for other in _OTHERS)], lines)


_OTHERS = ("everything", "half-random")


def _mean(trials: Iterable[Mapping[str, float]], field: str) -> float:
    each = [trial[field] for trial in trials]
    return sum(each) / len(each)


def _judged(trials: Mapping[int, Measured]) -> list[str]:
    """The expertise that default fits find and the curation that they recommend, by seed."""
    if not trials:
        return []
    ordered = sum(trial["tiers_in_order"] for trial in trials.values())
    names = next(iter(trials.values()))["expertise"]
    ratings = [[name, *(f"{trial['expertise'][name]:.3f}" for trial in trials.values())] for name in names]
    lines = [
        *ratings,
        ["horizon, steps", *(str(trial["horizon"]) for trial in trials.values())],
        ["split-half reliability", *(f"{trial['reliability']:.2f}" for trial in trials.values())],
        *(
            [f"gain of {first['name']}", *(_gain(trial["comparisons"][place]) for trial in trials.values())]
            for place, first in enumerate(next(iter(trials.values()))["comparisons"])
        ),
        ["recommended", *(trial["recommended"] for trial in trials.values())],
        ["correlation of scores with length", *(f"{trial['length_correlation']:+.2f}" for trial in trials.values())],
    ]
    sentences = unique(trial["sentence"] for trial in trials.values())
    return [
        "### The default fit",
        f"The three tiers are in order in {ordered} of {counted(len(trials), 'fit')}: every better operator is rated "
        "above every okay one, and these above every worse one. Gains are those of the cross-validation behind "
        "`recommended()`: the reduction of the held-out loss relative to training on all episodes, with simultaneous "
        "intervals. The fit with seed 0 curates for all trials.",
        markdown_table(["", *(f"seed {seed}" for seed in trials)], lines),
        f"Its summary: {join_words([f'“{each}”' for each in sentences])}.",
    ]


def _gain(comparison: Mapping[str, float]) -> str:
    return f"{comparison['gain']:+.1%} [{comparison['low']:+.1%}, {comparison['high']:+.1%}]"
