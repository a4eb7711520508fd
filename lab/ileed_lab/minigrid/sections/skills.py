"""The section about many skills: a sequence of tasks in which each demonstrator is skilled in one stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.comparison import (
    Comparison,
    Estimate,
    Records,
    count_verdicts,
    difference,
    format_comparison,
    format_estimate,
    join_words,
    markdown_table,
)
from ileed_lab.minigrid.experiment import WIDER
from ileed_lab.minigrid.sections import Paper, Section, Show, task_title
from ileed_lab.minigrid.sequence import multi_skill

__all__ = ["skills"]

_COLUMNS = {
    "all": "all demonstrators",
    "best": "best demonstrator",
    "ileed": "ILEED",
    "ensemble": "ensemble",
    "wider": "wider ILEED",
    "wider ensemble": "wider ensemble",
}
_OURS = ("ILEED", "ensemble", "wider ILEED", "wider ensemble")
_ABLATION = {"best": "best demonstrator", "bc": "BC", "constant": "SInd", "shared": "DInd", "ileed": "ILEED"}


def skills(records: Records, paper: Paper, show: Show) -> Section:
    """Reward in the sequence of tasks and the ablation, published and ours."""
    experiment = EXPERIMENTS["minigrid/skills"]
    planned, stages = experiment.trials, list(next(iter(multi_skill(0.5).values())))
    compared: dict[str, list[Comparison]] = {column: [] for column in _COLUMNS.values()}
    ablated: dict[str, list[Comparison]] = {column: [] for column in _ABLATION.values()}
    gains: dict[str, Estimate | None] = {}
    for beta, numbers in paper["skills"].items():
        rewards = _rewards(records, float(beta))
        gains[beta] = difference(rewards["ileed"], rewards["best"])
        for name, column in _COLUMNS.items():
            number = numbers[name if name in numbers else "ileed"]
            ours = Estimate.over(rewards[name].values())
            compared[column].append(Comparison(f"beta {beta}", ours, number["mean"], number["standard_deviation"]))
        for name, number in paper["ablation"].get(beta, {}).items():
            ablated[_ABLATION[name]].append(Comparison(f"beta {beta}", Estimate.over(rewards[name].values()), number))
    by_stage = [
        [
            beta,
            *(
                format_estimate(Estimate.over(trial["stages"][stage] for trial in trials), planned=planned)
                for stage in stages
            ),
        ]
        for beta in paper["skills"]
        for trials in [records.trials(experiment.name, "ileed", beta=float(beta)).values()]
    ]
    formatted_gains = {beta: format_estimate(gain, signed=True) for beta, gain in gains.items()}
    paragraphs = [
        _introduction(paper),
        markdown_table(
            ["beta", *_COLUMNS.values(), "ILEED minus our best demonstrator"],
            _by_beta(compared, planned, formatted_gains),
        ),
        "\n".join([*(f"- {name}: {count_verdicts(compared[name])}" for name in _OURS), f"- {_minus_best(gains)}"]),
        show("trajectories", "Trajectories of the learned policy and of the demonstrators, successes framed"),
        "### Ablation",
        "SInd has one number of expertise for each demonstrator (our `Constant()`), DInd an embedding of states "
        f"without identities (our `Embedded(shared=True)`). Published over {paper['trials']['ablation']} "
        "trials, ours over "
        f"{planned}.",
        markdown_table(["beta", *_ABLATION.values()], _by_beta(ablated, planned)),
        "\n".join(f"- {name}: {count_verdicts(ablated[name])}" for name in ("BC", "SInd", "DInd")),
        "### ILEED by stage",
        markdown_table(["beta", *map(task_title, stages)], by_stage),
    ]
    conclusions = [
        f"Expertise by state in a sequence of tasks, ILEED: {count_verdicts(compared['ILEED'])}",
        _minus_best(gains),
    ]
    ablations = {f"ablation, {name}": ablated[name] for name in ("BC", "SInd", "DInd")}
    return Section("Many skills", paragraphs, compared | ablations, conclusions)


def _introduction(paper: Paper) -> str:
    experiment = EXPERIMENTS["minigrid/skills"]
    return (
        "A sequence of three tasks, Unlock, Lava and Empty, whose rewards are averaged; three demonstrators, each "
        "perfect in one task and following the expert with probability beta in the others, "
        f"{experiment.plan['steps']:,} steps each. ILEED has embedded expertise. Mean ± standard deviation over "
        f"trials, published over {paper['trials']['skills']}, ours over {experiment.trials} with "
        f"{experiment.plan['episodes']} episodes each unless a cell says otherwise. An ensemble of the most likely "
        f"restarts, and a *wider* policy with layers of {' and '.join(map(str, WIDER.hidden))} units, are compared "
        "with the published ILEED."
    )


def _rewards(records: Records, beta: float) -> dict[str, dict[int, float]]:
    """Rewards by trial of each method, of the mean demonstrator, and of the best demonstrator over all trials."""
    found = {
        method: records.trials("minigrid/skills", method, beta=beta)
        for method in ("demonstrators", "ileed", "wider", "bc", "constant", "shared")
    }
    by_trial = {trial: measured["demonstrators"] for trial, measured in found.pop("demonstrators").items()}
    names: Iterable[str] = next(iter(by_trial.values()), {})
    each = [{trial: rewards[name] for trial, rewards in by_trial.items()} for name in names]
    return {
        "all": {trial: fmean(rewards.values()) for trial, rewards in by_trial.items()},
        "best": max(each, key=lambda rewards: fmean(rewards.values()), default={}),
        "ensemble": {trial: measured["ensemble_reward"] for trial, measured in found["ileed"].items()},
        "wider ensemble": {trial: measured["ensemble_reward"] for trial, measured in found["wider"].items()},
    } | {method: {trial: measured["reward"] for trial, measured in trials.items()} for method, trials in found.items()}


def _by_beta(
    columns: Mapping[str, Sequence[Comparison]], planned: int, more: Mapping[str, str] | None = None
) -> list[list[str]]:
    rows = []
    for cells in zip(*columns.values(), strict=True):
        beta = cells[0].where.removeprefix("beta ")
        formatted = (format_comparison(cell, planned=planned) for cell in cells)
        rows.append([beta, *formatted, *([more[beta]] if more else [])])
    return rows


def _minus_best(gains: Mapping[str, Estimate | None]) -> str:
    known = {beta: gain for beta, gain in gains.items() if gain is not None}
    sides = {
        "above": [beta for beta, gain in known.items() if gain.low > 0],
        "equal": [beta for beta, gain in known.items() if gain.low <= 0 <= gain.high],
        "**below**": [beta for beta, gain in known.items() if gain.high < 0],
    }
    words = [f"{side} at beta {join_words(betas)}" for side, betas in sides.items() if betas]
    return f"ILEED compared with our own best demonstrator: {'; '.join(words) or 'not run'}."
