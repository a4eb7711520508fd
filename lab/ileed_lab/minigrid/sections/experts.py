"""The section about the trained experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.comparison import Comparison, Records, count_verdicts, format_comparison, markdown_table
from ileed_lab.minigrid.sections import Paper, Section, expert_reward, task_title

__all__ = ["experts"]


def experts(records: Records, paper: Paper) -> Section:
    """Reward of the experts, published and ours."""
    uniform = {task: _by_beta(records, task, numbers, "uniform noise") for task, numbers in paper["experts"].items()}
    turning = _by_beta(records, "obstacles", paper["experts"]["obstacles"], "turning noise")
    rows = [[task_title(task), *map(format_comparison, cells)] for task, cells in uniform.items()]
    rows.append(["Obstacles, random turns alone", *map(format_comparison, turning)])
    everywhere = [cell for cells in uniform.values() for cell in cells]
    paragraphs = [
        "Mean episodic reward of a task's trained expert, which follows its policy with the probability in the "
        "column's heading and otherwise acts uniformly at random. Published over "
        f"{paper['episodes']['experts']:,} episodes, ours over "
        f"{EXPERIMENTS['minigrid/experts'].plan['episodes']:,}; our intervals are over episodes.",
        markdown_table(["task", *paper["experts"]["obstacles"]], rows),
        f"Uniform random actions: {count_verdicts(everywhere)}",
        _about_obstacles(uniform["obstacles"], turning),
    ]
    return Section("Experts", paragraphs, {"experts with uniform random actions": everywhere})


def _by_beta(records: Records, task: str, numbers: Mapping[str, float], method: str) -> list[Comparison]:
    return [
        Comparison(f"{task_title(task)} at {beta}", expert_reward(records, task, float(beta), method), number)
        for beta, number in numbers.items()
    ]


def _about_obstacles(uniform: Sequence[Comparison], turning: Sequence[Comparison]) -> str:
    farthest = [
        max((abs(each.ours.mean - each.published) for each in cells if each.ours is not None), default=None)
        for cells in (uniform, turning)
    ]
    if None in farthest:
        return ""
    return (
        "In Obstacles our expert with uniform random actions, as in the paper's text, differs from the published "
        f"numbers by up to {farthest[0]:.2f}; with random turns only, by up to {farthest[1]:.2f}. A random step "
        "forward into an obstacle or a wall ends the episode with a reward of -1, and the paper's "
        "demonstrators seem not to "
        "take such steps. Ours follow the text, so they earn less."
    )
