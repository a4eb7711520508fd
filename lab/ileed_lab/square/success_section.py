"""The section about success in Square: which method learns what from which operators."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from statistics import fmean

from ileed.errors import counted
from ileed_lab.comparison import Estimate, Records, format_estimate, join_words, markdown_table
from ileed_lab.records import Measured
from ileed_lab.square.experiment import (
    BASELINES,
    CHECKPOINTS,
    ROLLOUTS,
    ROLLOUTS_OF_OTHERS,
    STEPS,
    SUBSETS,
    Square,
    checkpoint,
)

__all__ = [
    "METHOD_NAMES",
    "Done",
    "format_points",
    "format_success",
    "paired_estimate",
    "pool_differences",
    "published_square",
    "success_section",
]

_METHODS = {
    "bc-rnn": "BC-RNN",
    "bc-rnn-shared": "BC-RNN, shared",
    "ileed": "ILEED",
    "ileed-by-state": "ILEED by state",
    "ileed-no-memory": "ILEED, not recurrent",
}
_LARGE = {"bc-rnn-large": "BC-RNN", "ileed-large": "ILEED"}
METHOD_NAMES: Mapping[str, str] = _METHODS | {method: baseline.title for method, baseline in BASELINES.items()}
"""What the page calls each method."""

Published = Mapping[str, Mapping[str, Sequence[float]]]
"""Success in percent and its standard deviation over trials, by subset and method."""
Done = Mapping[str, Mapping[str, Mapping[int, Measured]]]
"""What was measured, by subset, method and trial."""


def published_square() -> Published:
    """The published numbers about Square."""
    return tomllib.loads(files("ileed_lab.square").joinpath("published.toml").read_text())


def success_section(records: Records) -> tuple[list[str], list[str]]:
    """The conclusions, and the method with its tables."""
    paper = published_square()
    done = {
        subset: {
            method: records.trials("robot/square", method, operators=subset)
            for method in Square().methods({"operators": subset})
        }
        for subset in SUBSETS
    }
    methods = [method for method in _METHODS if any(done[subset][method] for subset in SUBSETS)] or ["bc-rnn", "ileed"]
    rows = [
        [subset, *(_success_cell(done[subset][method], paper, subset, method) for method in methods)]
        for subset in SUBSETS
    ]
    table, verdicts = _differences(done)
    baselines, compared = _baselines(done, paper)
    return [*verdicts, *compared], [
        f"Percent of {ROLLOUTS} episodes in each of {counted(Square().trials, 'trial')}, pooled, with Wilson's 95% "
        "interval; below it the percentage of each trial and the number published for human data. Policies are "
        f"LSTMs of 2 x 100 units, trained for {STEPS:,} steps; the last checkpoint is scored. ILEED has one standard "
        "deviation for each mode; BC-RNN has standard deviations that depend on the state, as usual, and *shared* one "
        "for all states. Expertise is one number for each operator or, *by state*, an embedding of states. *Not "
        "recurrent*: an MLP of 2 x 100 units.",
        markdown_table(["operators", *(_METHODS[method] for method in methods)], rows),
        "The policies of a trial are scored from the same initial states, so differences are paired by episode, in "
        "percentage points. Their intervals cover chance in the episodes, not in the fits: for that compare the "
        "trials.",
        *table,
        *_checkpoints(done),
        *_large_networks(done, paper),
        *baselines,
    ]


_COMPARED = (
    ("ileed", "bc-rnn"),
    ("bc-rnn-shared", "bc-rnn"),
    ("ileed", "bc-rnn-shared"),
    ("ileed-by-state", "ileed"),
    ("ileed-no-memory", "ileed"),
)
"""The whole difference, the part of shared standard deviations, that of expertise, and two other forms of ILEED."""


def _differences(done: Done) -> tuple[list[str], list[str]]:
    run = [
        (one, other)
        for one, other in _COMPARED
        if any(paired_differences(done[subset][one], done[subset][other]) for subset in SUBSETS)
    ]
    head = ["operators", *(f"{_METHODS[one]} minus {_METHODS[other]}" for one, other in run)]
    rows = [
        [subset, *(format_points(paired_estimate(done[subset][one], done[subset][other])) for one, other in run)]
        for subset in SUBSETS
    ]
    rows.append(
        ["all of these", *(format_points(Estimate.over(pool_differences(done, one, other))) for one, other in run)]
    )
    return ([markdown_table(head, rows)] if run else []), [_verdict(one, other, done) for one, other in run]


def pool_differences(done: Done, one: str, other: str) -> list[float]:
    """The paired differences of all subsets in which both were run."""
    return [pair for each in done.values() for pair in paired_differences(each[one], each[other])]


def _checkpoints(done: Done) -> list[str]:
    """Success at the best of several checkpoints, as robomimic reports it."""
    rows = []
    for subset in SUBSETS:
        scores = {method: _checkpoint_scores(done[subset], method) for method in ("bc-rnn", "ileed")}
        if all(scores.values()):
            rows.append([subset, *(cell for each in scores.values() for cell in _best_and_last(each))])
    if not rows:
        return []
    every = join_words([f"{steps:,}" for steps in (*CHECKPOINTS, STEPS)])
    return [
        f"The best and the last checkpoint: {ROLLOUTS_OF_OTHERS} episodes after {every} steps, mean over trials. "
        "robomimic reports the best checkpoint, which is biased upwards: the maximum of several noisy numbers exceeds "
        "their expected values.",
        markdown_table(["operators", "BC-RNN, best", "BC-RNN, last", "ILEED, best", "ILEED, last"], rows),
    ]


def _checkpoint_scores(done: Mapping[str, Mapping[int, Measured]], method: str) -> list[list[float]]:
    """Success in each trial at every checkpoint, the last one last; over equally many episodes each."""
    earlier = [done[checkpoint(method, steps)] for steps in CHECKPOINTS]
    trials = sorted(set(done[method]).intersection(*earlier))
    return [
        [
            *(each[trial]["success"] for each in earlier),
            done[method][trial]["successes"][:ROLLOUTS_OF_OTHERS].count("1") / ROLLOUTS_OF_OTHERS,
        ]
        for trial in trials
    ]


def _best_and_last(scores: Sequence[Sequence[float]]) -> tuple[str, str]:
    return f"{100 * fmean(max(each) for each in scores):.1f}", f"{100 * fmean(each[-1] for each in scores):.1f}"


def _large_networks(done: Done, paper: Published) -> list[str]:
    rows = [
        [
            subset,
            *(_success_cell(done[subset][method], paper, subset, method.removesuffix("-large")) for method in _LARGE),
            format_points(paired_estimate(done[subset]["ileed-large"], done[subset]["bc-rnn-large"])),
        ]
        for subset in SUBSETS
        if any(done[subset][method] for method in _LARGE)
    ]
    if not rows:
        return []
    return [
        "With the paper's networks, LSTMs of 2 x 400 units, where they were run:",
        markdown_table(["operators", *_LARGE.values(), "ILEED minus BC-RNN"], rows),
    ]


def _success_cell(trials: Mapping[int, Measured], paper: Published, subset: str, method: str) -> str:
    number = ""
    if method in paper[subset]:
        mean, standard_deviation = paper[subset][method]
        number = f"<br>published {mean:.1f} ± {standard_deviation:.1f}"
    return format_success(trials) + number


def format_success(trials: Mapping[int, Measured]) -> str:
    """Percent of the episodes of all trials, with Wilson's 95% interval, and on the next line that of each trial."""
    if not trials:
        return "not run"
    outcomes = "".join(trial["successes"] for trial in trials.values())
    pooled = Estimate.share(outcomes.count("1"), len(outcomes))
    alone = ", ".join(f"{100 * trial['success']:.1f}" for trial in trials.values())
    return f"{100 * pooled.mean:.1f} ({100 * pooled.low:.1f} to {100 * pooled.high:.1f})<br>{alone}"


def paired_differences(one: Mapping[int, Measured], other: Mapping[int, Measured]) -> list[float]:
    """Success of one minus that of the other, episode by episode from the same initial states."""
    return [
        float(int(ours) - int(theirs))
        for trial in sorted(one.keys() & other.keys())
        for ours, theirs in zip(one[trial]["successes"], other[trial]["successes"], strict=False)
    ]


def paired_estimate(one: Mapping[int, Measured], other: Mapping[int, Measured]) -> Estimate | None:
    """The mean of the paired differences, with a 95% bootstrap interval; None if no trial has both."""
    return Estimate.over(paired_differences(one, other))


def format_points(difference: Estimate | None) -> str:
    """A difference in percentage points."""
    if difference is None:
        return "not run"
    scaled = Estimate(100 * difference.mean, 100 * difference.low, 100 * difference.high, difference.trials)
    return format_estimate(scaled, digits=1, signed=True)


def _verdict(one: str, other: str, done: Done) -> str:
    differences = {subset: paired_estimate(done[subset][one], done[subset][other]) for subset in SUBSETS}
    known = {subset: each for subset, each in differences.items() if each is not None}
    at_least = [subset for subset, each in known.items() if each.mean >= 0]
    above = [subset for subset, each in known.items() if each.low > 0]
    below = [subset for subset, each in known.items() if each.high < 0]
    pooled = format_points(Estimate.over(pool_differences(done, one, other)))
    words = [
        f"{METHOD_NAMES[one]} minus {METHOD_NAMES[other]}: {pooled} points; at or above in {len(at_least)} of "
        f"{counted(len(known), 'subset')}, above by the interval in {len(above)}"
    ]
    if below:
        words.append(f"**below by the interval in {join_words(below)}**")
    return "; ".join(words) + "."


def _baselines(done: Done, paper: Published) -> tuple[list[str], list[str]]:
    rewards = {True: ", uses rewards", False: ""}
    head = ["operators", *(each.title + rewards[each.uses_rewards] for each in BASELINES.values())]
    rows = [
        [subset, *(_success_cell(done[subset][method], paper, subset, method) for method in BASELINES)]
        for subset in SUBSETS
    ]
    run = [method for method in BASELINES if pool_differences(done, "ileed", method)]
    return [
        f"Other baselines, {ROLLOUTS_OF_OTHERS} episodes in each trial. Those that use rewards see which steps "
        "succeed; the others do not. They are our implementations, with a tenth of robomimic's steps and smaller "
        "networks ([decisions/offline-baselines.md](decisions/offline-baselines.md)), and none was tuned by success in "
        "this task. Mixture policies act by the mean of the component of greatest weight, BC-RNN and ILEED by that of "
        "a sampled component. Differences from ILEED are over the episodes that both played.",
        markdown_table(head, rows),
    ], [f"{_verdict('ileed', method, done)}{_without_success(done, method)}" for method in run]


def _without_success(done: Done, method: str) -> str:
    """A sentence about a baseline that never succeeded, or nothing."""
    trials = [trial for subset in SUBSETS for trial in done[subset][method].values()]
    if any(trial["success"] for trial in trials):
        return ""
    carried = sum(sum(trial["furthest_phase"][2:]) for trial in trials)
    played = sum(len(trial["successes"]) for trial in trials)
    name = METHOD_NAMES[method]
    return f" {name} lifted the nut in {carried} of {played:,} episodes and put it on the peg in none."
