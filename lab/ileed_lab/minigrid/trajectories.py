"""The figure of trajectories: a learned policy and its demonstrators in every stage of the sequence of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import cos, sin
from typing import Any, final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from ileed import Policy, SettingsError
from ileed.envs.abstract_task import Actor, as_actor, episode_seed
from ileed.envs.minigrid import make_environment
from ileed.envs.simulation import demonstrator_actor
from ileed.errors import counted
from ileed.parallel.runtime import stream
from ileed_lab.minigrid.experiment import ManySkills
from ileed_lab.minigrid.sequence import experts, multi_skill, multi_skill_task, stage_seed
from ileed_lab.svg import add_element, add_text

__all__ = ["Thing", "Trajectory", "draw_trajectories", "figure", "learned_policy", "play_episode", "trajectories"]

_BETA = 0.1
"""Skill of the demonstrators outside their own stage."""
Cell = tuple[int, int]
"""Column and row of a cell of the grid, from the upper left."""


@final
@dataclass(frozen=True)
class Thing:
    """An object of the grid when the episode begins: a wall, lava, a goal, a key or a door."""

    kind: str
    colour: str
    cell: Cell


@final
@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One episode: the grid at its beginning, the agent's cell at every step, and the reward."""

    width: int
    height: int
    things: tuple[Thing, ...]
    cells: tuple[Cell, ...]
    """Before the first action and after each; as many as actions and one more."""
    direction: int
    """Of the agent at the end: 0 right, 1 down, 2 left, 3 up."""
    reward: float
    solved_share: float | None = None
    """Share of other episodes of the task that the same actor solved, from 0 to 1, where that is known."""

    @property
    def succeeded(self) -> bool:
        """These tasks reward success alone, and early success more."""
        return self.reward > 0


def play_episode(task: str, actor: Actor, *, reset_seed: int) -> Trajectory:
    """Let an actor play one episode of a MiniGrid task from a given initial state."""
    environment = make_environment(task)
    observation, _ = environment.reset(seed=reset_seed)
    grid = environment.grid
    things = tuple(
        Thing(thing.type, thing.color, (x, y))
        for y in range(grid.height)
        for x in range(grid.width)
        if (thing := grid.get(x, y)) is not None
    )
    cells, total, over = [_agent_cell(environment)], 0.0, False
    while not over:
        action = int(actor(observation[np.newaxis], np.array([len(cells) == 1]))[0])
        observation, reward, terminated, truncated, _ = environment.step(action)
        total, over = total + float(reward), terminated or truncated
        cells.append(_agent_cell(environment))
    direction = int(environment.agent_dir)
    environment.close()
    return Trajectory(
        width=grid.width, height=grid.height, things=things, cells=tuple(cells), direction=direction, reward=total
    )


def _agent_cell(environment: Any) -> Cell:
    x, y = environment.agent_pos
    return int(x), int(y)


def learned_policy(*, beta: float = _BETA, trial: int = 0) -> Policy:
    """The policy of ILEED in one trial of 'minigrid/skills', with the data and the settings of that experiment."""
    experiment, setting = ManySkills(), {"beta": beta}
    method = experiment.methods(setting)["ileed"]
    assert method is not None
    (data,) = experiment.demonstrations(setting, [trial])
    return method.fit(data, seed=trial, device="cpu", check_width=False).policy


def trajectories(policy: Any, *, beta: float, seed: int) -> dict[str, dict[str, Trajectory]]:
    """An episode of each stage of the sequence of tasks, by actor: the learned policy, then its demonstrators.

    All of them begin a stage in the same initial state. The share of solved episodes is estimated from more episodes.
    """
    task, policies = multi_skill_task(), experts(multi_skill_task())
    found: dict[str, dict[str, Trajectory]] = {}
    for stage in task.stages:
        reset_seed = episode_seed(stage_seed(task, stage, seed), 0)
        actors = {"learned policy": as_actor(policy)} | {
            name: demonstrator_actor(
                policies[stage.name],
                stage,
                skill=skill[stage.name],
                seed=stream(seed, "walk of", name, stage.name).initial_seed(),  # named as in the first figure
            )
            for name, skill in multi_skill(beta).items()
        }
        for name, actor in actors.items():
            one = play_episode(stage.name, actor, reset_seed=reset_seed)
            rewards = stage.score(actor, episodes=_EPISODES, seed=stage_seed(task, stage, seed))
            found.setdefault(name, {})[stage.name] = replace(one, solved_share=float((rewards > 0).mean()))
    return found


_CELL, _GUTTER, _GAP, _EDGE = 26, 122, 22, 10  # in pixels
_INK, _WALL, _FLOOR, _LINES = "#1f2933", "#aeb7c0", "#ffffff", "#e6e9ec"
_SUCCESS, _FAILURE = "#00795a", "#8d4a3a"
_EARLY, _LATE = (158, 202, 225), (8, 48, 107)  # pale blue to navy
_EPISODES = 500
_SEED = 7
"""Chosen, at beta 0.1 and in trial 0, to be typical: an actor solves a stage here if it does so in three of four
episodes or more, and does not if it does so in half or fewer."""
_THINGS = {
    "red": "#d1495b",
    "green": "#009e73",
    "blue": "#0072b2",
    "purple": "#9467bd",
    "yellow": "#e3b505",
    "grey": "#8a949e",
}


def draw_trajectories(
    rows: Mapping[str, Mapping[str, Trajectory]], *, title: str, subtitle: Sequence[str], names: Mapping[str, str]
) -> bytes:
    """Trajectories as one SVG: a row for each actor, a column for each stage; `names` are the columns' headings.

    A frame marks success (solid, green, with a tick) or failure (dashed, brown, with a cross), the line darkens with
    time, a ring marks the start and an arrowhead the end.
    """
    first = next(iter(rows.values()))
    if any(row.keys() != first.keys() for row in rows.values()):
        raise SettingsError(
            "the rows of a figure of trajectories must have the same stages; give every actor a trajectory in each"
        )
    tallest = max(one.height for one in first.values()) * _CELL
    lefts, left = {}, _EDGE + _GUTTER
    for stage, one in first.items():
        lefts[stage], left = left, left + one.width * _CELL + _GAP
    top = 70 + 17 * len(subtitle)
    width, height = left - _GAP + _EDGE, top + len(rows) * (tallest + _GAP) + 26
    root = _canvas(width, height, title, subtitle)
    for stage, one in first.items():
        middle = lefts[stage] + one.width * _CELL / 2
        add_text(root, names[stage], middle, top - 12, font_weight="bold", text_anchor="middle")
    for number, (actor, row) in enumerate(rows.items()):
        upper = top + number * (tallest + _GAP)
        for below, words in enumerate(_two_lines(actor)):
            weight = "bold" if number == 0 else "normal"
            add_text(root, words, _EDGE, upper + tallest / 2 - 4 + 17 * below, font_weight=weight)
        for stage, one in row.items():
            position = f"translate({lefts[stage]},{upper + (tallest - one.height * _CELL) / 2:g})"
            panel = add_element(root, "g", transform=position, **{"class": "solved" if one.succeeded else "failed"})
            SubElement(panel, "title").text = f"{actor}, {names[stage]}: {_description(one)}"
            _panel(panel, one)
    _key(root, height - 16)
    ElementTree.indent(root, space=" ")
    return ElementTree.tostring(root, encoding="utf-8") + b"\n"


def _canvas(width: int, height: int, title: str, subtitle: Sequence[str]) -> Element:
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}", "role": "img"})
    root.attrib |= {"width": f"{width}", "height": f"{height}", "font-family": "sans-serif", "font-size": "13"}
    root.set("fill", _INK)
    SubElement(root, "title").text = title
    add_element(root, "rect", width=width, height=height, fill="white")
    add_text(root, title, _EDGE, 24, font_size=16, font_weight="bold")
    for number, line in enumerate(subtitle):
        add_text(root, line, _EDGE, 44 + 17 * number, font_size=12)
    return root


def _panel(group: Element, one: Trajectory) -> None:
    width, height = one.width * _CELL, one.height * _CELL
    add_element(group, "rect", width=width, height=height, fill=_FLOOR)
    lines = [f"M{x * _CELL},0v{height}" for x in range(1, one.width)]
    lines += [f"M0,{y * _CELL}h{width}" for y in range(1, one.height)]
    add_element(group, "path", d="".join(lines), stroke=_LINES)
    walls = [thing.cell for thing in one.things if thing.kind == "wall"]
    add_element(
        group, "path", d="".join(f"M{x * _CELL},{y * _CELL}h{_CELL}v{_CELL}h-{_CELL}z" for x, y in walls), fill=_WALL
    )
    for thing in one.things:
        if thing.kind != "wall":
            _thing(group, thing)
    _path(group, one)
    _frame(group, 0, 0, width, height, solved=one.succeeded)
    _sign(group, width - 48, 8, solved=one.succeeded)
    add_text(group, f"{one.reward:.2f}", width - 8, 18, text_anchor="end", font_weight="bold")
    add_text(group, _steps(one), 8, height - 8, font_size=12)
    if one.solved_share is not None:
        share = f"{100 * one.solved_share:.0f} %"
        add_text(group, share, width - 8, height - 8, font_size=12, text_anchor="end")


def _path(group: Element, one: Trajectory) -> None:
    """The path from start to end; where it returns to a cell it is drawn a little beside itself, to be followed."""
    moves = [0] + [step for step in range(1, len(one.cells)) if one.cells[step] != one.cells[step - 1]]
    entered = [one.cells[step] for step in moves]
    points = [_point(cell, entered[:number].count(cell)) for number, cell in enumerate(entered)]
    for number in range(1, len(points)):
        (x, y), (to_x, to_y) = points[number - 1], points[number]
        colour = _at_time(moves[number] / (len(one.cells) - 1))
        d = f"M{x:g},{y:g}L{to_x:g},{to_y:g}"
        add_element(group, "path", d=d, stroke=colour, stroke_width=3, stroke_linecap="round")
    (x, y), (last_x, last_y) = points[0], points[-1]
    add_element(group, "circle", cx=x, cy=y, r=7, fill="none", stroke=_INK, stroke_width=2, **{"class": "start"})
    turned = f"translate({last_x:g},{last_y:g}) rotate({90 * one.direction})"
    arrow = {"fill": _at_time(1.0), "stroke": "white", "class": "end"}
    add_element(group, "path", d="M9,0L-6,6L-6,-6z", transform=turned, **arrow)


def _point(cell: Cell, before: int) -> tuple[float, float]:
    """The middle of a cell when it is entered first; later points are shifted a little, each to another side."""
    angle, far = before * 2.4, 0.24 * min(before, 1)  # in radians; about the golden angle, which does not repeat
    x, y = cell
    return round((x + 0.5 + far * cos(angle)) * _CELL, 1), round((y + 0.5 + far * sin(angle)) * _CELL, 1)


def _at_time(share: float) -> str:
    mixed = (round(early + (late - early) * share) for early, late in zip(_EARLY, _LATE, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _thing(group: Element, thing: Thing) -> None:
    """Each kind of object has its own shape as well as its colour."""
    x, y = (at * _CELL for at in thing.cell)
    at = add_element(group, "g", transform=f"translate({x},{y})", **{"class": thing.kind})
    colour = _THINGS.get(thing.colour, _INK)
    if thing.kind == "lava":
        add_element(at, "rect", width=_CELL, height=_CELL, fill="#f4a259")
        waves = "".join(f"M3,{row}q5,-5,10,0t10,0" for row in (8, 14, 20))
        add_element(at, "path", d=waves, stroke="#b5482a", stroke_width=1.5, fill="none")
    elif thing.kind == "goal":
        add_element(at, "rect", width=_CELL, height=_CELL, fill="#bfe5d3")
        add_element(at, "path", d="M9,22V5l10,4l-10,4", fill="#00795a", stroke="#00795a", stroke_width=1.5)
    elif thing.kind == "door":
        add_element(at, "rect", width=_CELL, height=_CELL, fill=colour)
        add_element(
            at, "rect", x=4, y=4, width=_CELL - 8, height=_CELL - 8, fill="none", stroke="white", stroke_width=1.5
        )
        add_element(at, "circle", cx=_CELL - 9, cy=_CELL / 2, r=2, fill="white")
    elif thing.kind == "key":
        add_element(at, "circle", cx=13, cy=7.5, r=4, fill="none", stroke=colour, stroke_width=3)
        add_element(at, "path", d="M13,11.5V22M13,17h4M13,21h4", stroke=colour, stroke_width=3, fill="none")
    else:
        add_element(at, "circle", cx=_CELL / 2, cy=_CELL / 2, r=_CELL / 3, fill=colour)


def _key(root: Element, y: float) -> None:
    """The legend, in a line under the panels."""
    at = add_element(root, "g", transform=f"translate({_EDGE},{y:g})")
    add_element(at, "circle", cx=7, cy=-4, r=6, fill="none", stroke=_INK, stroke_width=2)
    add_text(at, "start", 20, 0)
    for step in range(8):
        add_element(at, "path", d=f"M{66 + 5 * step},-4h5", stroke=_at_time(step / 7), stroke_width=3)
    add_text(at, "early to late", 112, 0)
    add_element(at, "path", d="M9,0L-6,6L-6,-6z", transform="translate(212,-4)", fill=_at_time(1.0))
    add_text(at, "end", 227, 0)
    _frame(at, 266, -13, 22, 16, solved=True)
    _sign(at, 298, -10, solved=True)
    add_text(at, "solved", 314, 0)
    _frame(at, 376, -13, 22, 16, solved=False)
    _sign(at, 408, -10, solved=False)
    add_text(at, "not solved", 424, 0)
    add_text(at, f"%: share of {_EPISODES} episodes solved", 502, 0)


def _frame(group: Element, x: int, y: int, width: int, height: int, *, solved: bool) -> None:
    look: dict[str, Any] = {"stroke": _FAILURE, "stroke_width": 2.5, "stroke_dasharray": "7 5"}
    if solved:
        look = {"stroke": _SUCCESS, "stroke_width": 4}
    add_element(group, "rect", x=x, y=y, width=width, height=height, rx=2, fill="none", **look, **{"class": "frame"})


def _sign(group: Element, x: float, y: float, *, solved: bool) -> None:
    """A tick or a cross, as a path, since not every font has them."""
    d = "M1,6l3,4l6,-9" if solved else "M1,1l9,9M10,1l-9,9"
    colour = _SUCCESS if solved else _FAILURE
    add_element(group, "path", d=d, transform=f"translate({x:g},{y:g})", stroke=colour, stroke_width=2.5, fill="none")


def _description(one: Trajectory) -> str:
    outcome = "solved" if one.succeeded else "not solved"
    return f"{outcome}, reward {one.reward:.2f}, {_steps(one)}"


def _steps(one: Trajectory) -> str:
    return counted(len(one.cells) - 1, "step")


def _two_lines(words: str) -> list[str]:
    """A name in two lines, the last word in the second: demonstrators differ in that word."""
    before, _, last = words.rpartition(" ")
    return [before, last] if before else [last]


def figure(policy: Any, *, beta: float = _BETA, seed: int = _SEED) -> bytes:
    """The figure of a policy and of the demonstrators of that `beta`."""
    return draw_trajectories(
        trajectories(policy, beta=beta, seed=seed),
        title="Does one learned policy have all the skills of its demonstrators?",
        subtitle=[
            "Each demonstrator is perfect in one stage and in the others follows the expert with probability "
            f"{beta:g}, otherwise acts at random.",
            "ILEED knows the demonstrators' identities, not their skills. One episode of each stage from the same "
            f"initial state for all (seed {seed}).",
        ],
        names={
            "minigrid/unlock": "Unlock: open the door",
            "minigrid/lava": "Lava: to the flag",
            "minigrid/empty": "Empty: to the flag",
        },
    )
