"""The section about Square on the page about curation, made from results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ileed_lab.comparison import Estimate, Records, format_estimate, join_words, markdown_table
from ileed_lab.curation.differences import Row, over_trials, paired, rows_of_square
from ileed_lab.curation.square import OTHERS
from ileed_lab.curation.subsets import RULES

__all__ = ["SQUARE_NAMES", "percent", "square_section"]

SQUARE_NAMES = {"bc-rnn": "BC-RNN of ours", "robomimic-bc-rnn": "robomimic's BC-RNN"}
"""What the page calls the trainers in Square."""
_RULES = {"above": "above the mean", "half": "the best half"}
_WORDS = {"length": "short", "ileed": "ILEED's own policy"}
_INTRODUCTION = """\
A robot arm puts a nut over a peg; six simulated operators of three tiers, 50 episodes each, are those of [Robots:
Square](robot.md). Our recurrent BC (an LSTM of 2 x 100 units with shared standard deviations, 4,000 steps) and
robomimic's BC-RNN learn from the selections above, and each policy is scored by its successes in the same 50
episodes of its trial. `fitted` is the recurrent ILEED of that page with five folds, by which operators are rated;
episodes are judged by a policy that has seen them (`cross_fit=False`). The oracle knows the tier of the operator.
Every demonstration succeeds with the same reward, so there is nothing to choose by reward. All trials have the same
demonstrations and one curation of them, and differ in the seed of every policy's fit and in the initial states:
intervals, Student's over trials, cover these, and neither the chance in the demonstrations nor that in the curation.
The best operators succeed in all their attempts ([the task](decisions/robot-task.md)). lerobot's ACT was not tried
here. Settings and trials were committed before anything was run on these trials, but for two choices: robomimic's
number of batches and the scaling of its observations, by three fits to everything with another seed; and, for their
time, one curation in place of five, half of the steps and of the episodes, and fewer selections, after robomimic's fits
to everything had been scored and before any other."""


_EXPLANATION = """\
Here every demonstration succeeds, and operators differ mostly in noise around the same intended motion, which a policy
averages out. What is dropped may have shown it states that precise operators never visit: random subsets are below
everything in the mean too, and on the page on robots the better operators alone are below all together. ILEED's own
policy keeps these states, as it widens the standard deviation of imprecise people and drops nothing. This explanation
was not tested by itself. In practice: curate where bad episodes show wrong actions, as in MiniGrid; where all episodes
succeed and there are few, keep them all, and learn by ILEED."""


def square_section(records: Records) -> list[str]:
    """The paragraphs of the section, in which cells that were not run say so; none where nothing was."""
    rows = rows_of_square(records)
    if not any(row.was_run for row in rows):
        return []
    return [
        "## Square: a robot arm",
        _INTRODUCTION,
        *_outcome(rows),
        _EXPLANATION,
        "![Success of policies in Square by selection of episodes and trainer](images/curation-square.svg)",
        "Percent of episodes that succeeded, mean over trials, with 95 % intervals.",
        *(_successes(rows, rule) for rule in RULES),
        "Differences in percentage points, paired by episode and trial: learned from what the rule keeps, less learned "
        "from other selections, and less ILEED's own policy. In bold: told apart from zero.",
        *(_differences(rows, rule) for rule in RULES),
        "Episodes and steps that policies learned from, mean over trials, with the mean tier over steps (0 is worse, 1 "
        "okay, 2 better).",
        _kept(rows),
        *_judged(rows),
    ]


def _outcome(rows: Iterable[Row]) -> list[str]:
    """For every trainer and rule, a sentence on what came out."""
    sentences = []
    for row in rows:
        for rule in RULES:
            if rule not in row.selections or not row.rewards(rule):
                continue
            against = {"everything": "everything", f"{rule}-random": "as many random episodes"}
            said = [_verdict(row, rule, other, words) for other, words in against.items()]
            sentences.append(f"- {SQUARE_NAMES[row.trainer]}, {_RULES[rule]}: {join_words(said)}.")
    return ["\n".join(sentences)] if sentences else []


def _verdict(row: Row, one: str, other: str, words: str) -> str:
    found, word = paired(row.rewards(one), row.rewards(other)), row.verdict(one, other)
    than = {"better": "**better than**", "worse": "**worse than**", "not told apart": "not told apart from"}
    points = f" ({_signed(found)} points)" if found is not None else ""
    return f"{than.get(word, f'{word}, against')} {words}{points}"


def percent(found: Estimate | None) -> Estimate | None:
    """An estimate of a share, in percent; of a difference of shares, in percentage points."""
    if found is None:
        return None
    return Estimate(100 * found.mean, 100 * found.low, 100 * found.high, found.trials)


def _signed(found: Estimate | None) -> str:
    return format_estimate(percent(found), digits=1, signed=True)


def _bold(found: Estimate | None) -> str:
    told = found is not None and not found.low <= 0 <= found.high
    return f"**{_signed(found)}**" if told else _signed(found)


def _cell(row: Row, name: str, words: str) -> str:
    """What a selection of a row says; a trainer that was not meant to learn from it says so."""
    if name == "ileed" or name in row.selections:
        return words
    return "takes none" if name == "weighted" else "left out"


def _successes(rows: Sequence[Row], rule: str) -> str:
    names = ["everything", "weighted", rule, *(f"{rule}-{other}" for other in OTHERS), "ileed"]
    lines = [
        [
            SQUARE_NAMES[row.trainer],
            "Square",
            _trials(row, rule),
            *(_cell(row, name, format_estimate(percent(over_trials(row.rewards(name))), digits=1)) for name in names),
        ]
        for row in rows
    ]
    return markdown_table(["trainer", "task", "trials", *_headings(names)], lines)


def _differences(rows: Sequence[Row], rule: str) -> str:
    against = ["everything", *(f"{rule}-{other}" for other in OTHERS), "ileed"]
    lines = [
        [
            SQUARE_NAMES[row.trainer],
            _RULES[rule],
            _trials(row, rule),
            *(_cell(row, name, _bold(paired(row.rewards(rule), row.rewards(name)))) for name in against),
        ]
        for row in rows
    ]
    return markdown_table(["trainer", "rule", "trials", *(f"less {name}" for name in _headings(against))], lines)


def _trials(row: Row, rule: str) -> str:
    return str(len(row.rewards(rule))) if row.rewards(rule) else "not run"


def _headings(names: Iterable[str]) -> list[str]:
    ends = [name.partition("-")[2] or name for name in names]
    return [_RULES.get(end, _WORDS.get(end, end)) for end in ends]


def _kept(rows: Sequence[Row]) -> str:
    """Of our trainer, since all learn from the same episodes."""
    (ours,) = [row for row in rows if row.trainer == "bc-rnn"]
    lines = []
    for name, trials in ours.selections.items():
        told = [_mean(trials, field) for field in ("episodes", "steps", "skill")] if trials else []
        words = [f"{told[0]:,.0f}", f"{told[1]:,.0f}", f"{told[2]:.2f}"] if told else ["not run"] * 3
        rule, _, other = name.partition("-")
        lines.append(
            [f"{_WORDS.get(other, other)}, as many as {_RULES[rule]}" if other else _RULES.get(name, name), *words]
        )
    return markdown_table(["selection", "episodes", "steps", "tier"], lines)


def _mean(trials: Mapping[int, Mapping[str, float]], field: str) -> float:
    return sum(trial[field] for trial in trials.values()) / len(trials)


def _judged(rows: Sequence[Row]) -> list[str]:
    """The estimated expertise of the operators, and the score's correlation with length."""
    trials = rows[0].ileed
    if not trials:
        return []
    names = next(iter(trials.values()))["expertise"]
    rated = [f"{name} {sum(trial['expertise'][name] for trial in trials.values()) / len(trials):.2f}" for name in names]
    lengths = {
        number: trial["length_correlation"]
        for number, trial in trials.items()
        if trial["length_correlation"] is not None
    }
    correlation = format_estimate(over_trials(lengths), digits=2, signed=True)
    return [
        f"Estimated expertise, mean over trials: {join_words(rated)}. Spearman's correlation of the score that "
        f"decides, expertise, with the length of episodes: {correlation}."
    ]
