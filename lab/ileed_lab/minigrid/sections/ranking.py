"""The section about ranking: the order of the demonstrators by estimated expertise."""

from __future__ import annotations

from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.comparison import (
    Comparison,
    Estimate,
    Records,
    count_verdicts,
    format_comparison,
    format_estimate,
    markdown_table,
)
from ileed_lab.minigrid.sections import Paper, Section

__all__ = ["ranking"]


def ranking(records: Records, paper: Paper) -> Section:
    """Reward and rank loss in Obstacles, published and ours."""
    planned = EXPERIMENTS["minigrid/ranking"].trials
    rewards, losses, rows = [], [], []
    for spread, numbers in paper["ranking"].items():
        cloned, learned = (
            records.trials("minigrid/ranking", method, task="minigrid/obstacles", range=spread).values()
            for method in ("bc", "ileed")
        )
        reward, ensemble, loss = (
            Estimate.over(trial[field] for trial in learned) for field in ("reward", "ensemble_reward", "rank_loss")
        )
        where = f"{spread} range"
        rewards.append(Comparison(where, reward, numbers["reward"]))
        losses.append(Comparison(where, loss, numbers["rank_loss"], lower_is_better=True))
        cells = (rewards[-1], losses[-1], Comparison(where, ensemble, numbers["reward"]))
        of_cloned = format_estimate(Estimate.over(trial["reward"] for trial in cloned), planned=planned)
        rows.append([spread, *(format_comparison(cell, planned=planned) for cell in cells), of_cloned])
    paragraphs = [
        "Ten demonstrators in Obstacles, whose skills lie between 0.15 and 0.85 (low range) or between 0.05 and 0.95 "
        "(high range), with the same mean. Rank loss is the share of pairs of demonstrators in the wrong order: 0 is "
        f"perfect, 0.5 is chance. Ours over {planned} trials; the paper does not say over how "
        "many.",
        markdown_table(["range", "ILEED, reward", "ILEED, rank loss", "ensemble, reward", "BC, reward"], rows),
        f"Reward: {count_verdicts(rewards)} Rank loss (lower is better): {count_verdicts(losses)}",
    ]
    conclusions = [f"Rank loss of estimated expertise in Obstacles (lower is better): {count_verdicts(losses)}"]
    compared = {"reward": rewards, "rank loss (below is better)": losses}
    return Section("Ranking", paragraphs, compared, conclusions)
