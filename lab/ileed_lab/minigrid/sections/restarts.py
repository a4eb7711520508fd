"""The section about restarts: how often the policy reaches the reward of its demonstrators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import final

from ileed.errors import counted
from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.comparison import (
    Comparison,
    Estimate,
    Records,
    Verdict,
    count_verdicts,
    format_comparison,
    format_estimate,
    join_words,
    markdown_table,
    verdict,
)
from ileed_lab.minigrid.experiment import WIDER
from ileed_lab.minigrid.sections import Paper, Section, Show, expert_reward, task_title
from ileed_lab.records import Measured

__all__ = ["restarts"]


@final
@dataclass(frozen=True)
class _Share:
    """How often the policy of a choice of restarts reaches the reward of the demonstrators, on average or at best."""

    task: str
    choice: str
    reference: str
    trials: Sequence[Measured]
    published: float

    @property
    def differences(self) -> list[float]:
        """The policy's reward minus the demonstrators', in each trial."""
        reference = fmean if self.reference == "mean" else max
        return [_reward(self.choice, trial) - reference(trial["demonstrators"]) for trial in self.trials]

    def comparison(self, *, strictly: bool = False) -> Comparison:
        hits = sum(each > 0 if strictly else each >= 0 for each in self.differences)
        where = f"{task_title(self.task)} {'p' if self.reference == 'mean' else 'p*'}"
        return Comparison(where, Estimate.share(hits, len(self.trials)) if self.trials else None, self.published)

    @property
    def ties(self) -> list[Measured]:
        return [trial for trial, each in zip(self.trials, self.differences, strict=True) if each == 0]


_ENSEMBLES = {"ensemble": "ileed", "wider ensemble": "wider"}
"""Choices that are not a number of restarts, with their methods."""


def _reward(choice: str, trial: Measured) -> float:
    return float(trial["ensemble"] if choice in _ENSEMBLES else trial["best_of"][choice])


def restarts(records: Records, paper: Paper, show: Show) -> Section:
    """The shares p and p* by restarts, published and ours."""
    experiment, most = EXPERIMENTS["minigrid/restarts"], list(paper["restarts"]["empty"])[-1]
    found = {
        (task, method): list(records.trials(experiment.name, method, task=f"minigrid/{task}").values())
        for task in paper["restarts"]
        for method in _ENSEMBLES.values()
    }
    shares = {
        (task, choice): [
            _Share(
                task,
                choice,
                reference,
                found[task, _ENSEMBLES.get(choice, "ileed")],
                numbers.get(choice, numbers[most])[reference],
            )
            for reference in ("mean", "best")
        ]
        for task, numbers in paper["restarts"].items()
        for choice in (*numbers, *_ENSEMBLES)
    }
    compared: dict[str, list[Comparison]] = {}
    rows = []
    for (task, choice), pair in shares.items():
        cells = [share.comparison() for share in pair]
        compared.setdefault(_choice_words(choice), []).extend(cells)
        ties = str(len(pair[1].ties)) if pair[1].trials else ""
        formatted = (format_comparison(cell, digits=2, planned=experiment.trials) for cell in cells)
        rows.append([task_title(task), choice, *formatted, ties])
    paragraphs = [
        _introduction(paper, most),
        show("restarts", "Share of trials that reach the mean and the best demonstrator, by restarts"),
        markdown_table(["task", "restarts", "p", "p*", "ties in p*"], rows),
        "\n".join(f"- {words}: {count_verdicts(cells)}" for words, cells in compared.items()),
        _about_ties([pair[1] for pair in shares.values()], most),
        "Mean reward of the demonstrators and of the policies:",
        markdown_table(
            ["task", "mean of demonstrators", "best demonstrator", f"ILEED, {most} restarts", "ensemble"],
            [
                [task_title(task), *_rewards(found[task, "ileed"], most, experiment.trials)]
                for task in paper["restarts"]
            ],
        ),
        _better_experts(records, paper),
    ]
    chosen = (_choice_words(most), "ensemble")
    conclusions = [
        f"Share of trials that reach the demonstrators' mean (p) or best (p*) reward, {words}: "
        f"{count_verdicts(compared[words])}"
        for words in chosen
    ]
    comparisons = {f"p and p*, {words}": cells for words, cells in compared.items()}
    return Section("Restarts", paragraphs, comparisons, conclusions)


def _introduction(paper: Paper, most: str) -> str:
    experiment = EXPERIMENTS["minigrid/restarts"]
    return (
        "Ten demonstrators, each with a probability of random actions drawn from 0 to 0.5, "
        f"{experiment.plan['steps']:,} steps each. p is the share of trials in which the policy earns at least the "
        "mean reward of the demonstrators, p* at least that of the best one, all in the same "
        f"{experiment.plan['episodes']} episodes. Published over {paper['trials']['restarts']} trials, ours over "
        f"{experiment.trials}, with Wilson's 95% intervals. Ensembles of the {experiment.plan['ensemble']} most "
        f"likely restarts, with the paper's policy and with a *wider* one of {' and '.join(map(str, WIDER.hidden))} "
        f"units, are compared with the published {most}."
    )


def _choice_words(choice: str) -> str:
    return choice if choice in _ENSEMBLES else counted(int(choice), "restart")


def _rewards(trials: Sequence[Measured], most: str, planned: int) -> list[str]:
    demonstrators = [trial["demonstrators"] for trial in trials]
    learned = ([_reward(choice, trial) for trial in trials] for choice in (most, "ensemble"))
    columns = ([fmean(rewards) for rewards in demonstrators], [max(rewards) for rewards in demonstrators], *learned)
    return [format_estimate(Estimate.over(column), planned=planned) for column in columns]


def _about_ties(shares: Sequence[_Share], most: str) -> str:
    sentences = ["The paper counts trials that exceed the best demonstrator; we count ties too, and show their number."]
    skills = {
        task_title(share.task): [max(trial["skills"]) for trial in share.ties]
        for share in shares
        if share.choice == most and share.ties
    }
    if skills:
        ranges = [
            f"{' to '.join(sorted({f'{min(tied):.4f}', f'{max(tied):.4f}'}))} in {task}"
            for task, tied in skills.items()
        ]
        sentences.append(
            "Ties occur when the best demonstrator hardly ever acts at random, or by chance; with "
            f"{most} restarts these demonstrators follow the expert with probability {join_words(ranges)}."
        )
    strict = [
        f"{without.where} with {_choice_words(share.choice)} would be {format_estimate(without.ours, digits=2)}, "
        f"{without.words}"
        for share in shares
        if (without := share.comparison(strictly=True)).verdict is not share.comparison().verdict
    ]
    sentences.append(f"Without ties {'; '.join(strict)}." if strict else "Without ties no verdict would change.")
    return " ".join(sentences)


def _better_experts(records: Records, paper: Paper) -> str:
    better = [
        f"In {task_title(task)} our expert earns {ours.mean:.2f} without random actions, the paper's "
        f"{numbers['1.0']:.2f}, so demonstrators simulated from ours are harder to beat."
        for task, numbers in paper["experts"].items()
        if (ours := expert_reward(records, task, 1.0, "uniform noise")) is not None
        and verdict(ours, numbers["1.0"]) is Verdict.ABOVE
    ]
    return " ".join(better)
