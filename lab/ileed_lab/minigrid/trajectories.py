"""The figure of trajectories: how a learned policy and its demonstrators walk through the multi-skill task.

python -m ileed_lab.minigrid.trajectories --out docs/images/reproduction-trajectories.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import cos, sin
from pathlib import Path
from typing import Any, final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from ileed import runs
from ileed.errors import SettingsError
from ileed.fitted import Policy
from ileed.runtime import stream
from ileed.simulation import demonstrator_actor
from ileed.tasks import Actor, as_actor
from ileed.tasks.minigrid import make_environment
from ileed.tasks.rollout import episode_seed
from ileed_lab.minigrid.experiment import ManySkills
from ileed_lab.minigrid.sequence import experts, multi_skill, multi_skill_task, stage_seed

__all__ = ["Thing", "Walk", "drawn", "learned_policy", "walks"]

Place = tuple[int, int]
"""Column and row of a cell of the grid, from the upper left."""


@final
@dataclass(frozen=True)
class Thing:
    """What lies in a cell when the episode begins: a wall, lava, a goal, a key or a door."""

    kind: str
    colour: str
    place: Place


@final
@dataclass(frozen=True, kw_only=True)
class Walk:
    """One episode: the grid at its beginning, every place where the agent stood, and what it earned."""

    width: int
    height: int
    things: tuple[Thing, ...]
    places: tuple[Place, ...]
    """Before the first action and after each; as many as actions and one more."""
    heading: int
    """Where the agent looks at the end: 0 right, 1 down, 2 left, 3 up."""
    reward: float
    solved_share: float | None = None
    """How often the same actor solved other episodes of the task, from 0 to 1, where that is known."""

    @property
    def succeeded(self) -> bool:
        """These tasks pay for success alone, the more the sooner it comes."""
        return self.reward > 0


def walked(part: str, actor: Actor, *, reset_seed: int) -> Walk:
    """Let an actor play one episode of a MiniGrid task from a given beginning."""
    world = make_environment(part)
    seen, _ = world.reset(seed=reset_seed)
    grid = world.grid
    things = tuple(
        Thing(thing.type, thing.color, (x, y))
        for y in range(grid.height)
        for x in range(grid.width)
        if (thing := grid.get(x, y)) is not None
    )
    places, reward, over = [_place(world)], 0.0, False
    while not over:
        action = int(actor(seen[np.newaxis], np.array([len(places) == 1]))[0])
        seen, earned, terminated, truncated, _ = world.step(action)
        reward, over = reward + float(earned), terminated or truncated
        places.append(_place(world))
    heading = int(world.agent_dir)
    world.close()
    return Walk(
        width=grid.width, height=grid.height, things=things, places=tuple(places), heading=heading, reward=reward
    )


def _place(world: Any) -> Place:
    x, y = world.agent_pos
    return int(x), int(y)


def learned_policy(*, beta: float, trial: int, restarts: int | None = None) -> Policy:
    """What ILEED learns in one trial of 'minigrid/skills', from the data and with the settings of that experiment."""
    experiment, setting = ManySkills(), {"beta": beta}
    method = experiment.methods(setting)["ileed"]
    assert method is not None
    if restarts is not None:
        method = replace(method, restarts=restarts)
    (data,) = experiment.demonstrations(setting, [trial])
    return method.fit(data, seed=trial, device="cpu", check_width=False).policy


def walks(policy: Any, *, beta: float, seed: int) -> dict[str, dict[str, Walk]]:
    """An episode of each part of the multi-skill task, by who played it: the learned policy, then its demonstrators.

    All of them begin a part in the same place of the same grid. How often each solves it is found in more episodes.
    """
    task, policies = multi_skill_task(), experts(multi_skill_task())
    found: dict[str, dict[str, Walk]] = {}
    for part in task.stages:
        beginning = episode_seed(stage_seed(task, part, seed), 0)
        actors = {"learned policy": as_actor(policy)} | {
            name: demonstrator_actor(
                policies[part.name],
                part,
                skill=skill[part.name],
                seed=stream(seed, "walk of", name, part.name).initial_seed(),
            )
            for name, skill in multi_skill(beta).items()
        }
        for name, actor in actors.items():
            walk = walked(part.name, actor, reset_seed=beginning)
            rewards = part.score(actor, episodes=_EPISODES, seed=stage_seed(task, part, seed))
            found.setdefault(name, {})[part.name] = replace(walk, solved_share=float((rewards > 0).mean()))
    return found


_CELL, _GUTTER, _GAP, _EDGE = 26, 122, 22, 10  # in pixels
_INK, _WALL, _FLOOR, _LINES = "#1f2933", "#aeb7c0", "#ffffff", "#e6e9ec"
_SUCCESS, _FAILURE = "#00795a", "#8d4a3a"
_EARLY, _LATE = (158, 202, 225), (8, 48, 107)  # pale blue to navy
_EPISODES = 500
_SEED = 7
"""Chosen, at beta 0.1 and in trial 0, to be ordinary: who solves a part in three of four episodes or more does so here,
and who solves it in about half or fewer does not."""
_THINGS = {
    "red": "#d1495b",
    "green": "#009e73",
    "blue": "#0072b2",
    "purple": "#9467bd",
    "yellow": "#e3b505",
    "grey": "#8a949e",
}


def drawn(
    rows: Mapping[str, Mapping[str, Walk]], *, title: str, subtitle: Sequence[str], names: Mapping[str, str]
) -> bytes:
    """Walks as one SVG: a row for everybody who walked, a column for every part; `names` are the columns' headings.

    A frame tells success (solid, green, with a tick) from failure (dashed, brown, with a cross), the line darkens with
    time, a ring marks the start and an arrowhead the end.
    """
    first = next(iter(rows.values()))
    if any(row.keys() != first.keys() for row in rows.values()):
        raise SettingsError("the rows of a figure of walks must have the same parts; give everybody a walk in each")
    tallest = max(walk.height for walk in first.values()) * _CELL
    lefts, left = {}, _EDGE + _GUTTER
    for part, walk in first.items():
        lefts[part], left = left, left + walk.width * _CELL + _GAP
    top = 70 + 17 * len(subtitle)
    width, height = left - _GAP + _EDGE, top + len(rows) * (tallest + _GAP) + 26
    root = _canvas(width, height, title, subtitle)
    for part, walk in first.items():
        middle = lefts[part] + walk.width * _CELL / 2
        _write(root, names[part], middle, top - 12, font_weight="bold", text_anchor="middle")
    for number, (who, row) in enumerate(rows.items()):
        upper = top + number * (tallest + _GAP)
        for below, words in enumerate(_folded(who)):
            weight = "bold" if number == 0 else "normal"
            _write(root, words, _EDGE, upper + tallest / 2 - 4 + 17 * below, font_weight=weight)
        for part, walk in row.items():
            place = f"translate({lefts[part]},{upper + (tallest - walk.height * _CELL) / 2:g})"
            panel = _add(root, "g", transform=place, **{"class": "solved" if walk.succeeded else "failed"})
            SubElement(panel, "title").text = f"{who}, {names[part]}: {_told(walk)}"
            _panel(panel, walk)
    _key(root, height - 16)
    ElementTree.indent(root, space=" ")
    return ElementTree.tostring(root, encoding="utf-8") + b"\n"


def _canvas(width: int, height: int, title: str, subtitle: Sequence[str]) -> Element:
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}", "role": "img"})
    root.attrib |= {"width": f"{width}", "height": f"{height}", "font-family": "sans-serif", "font-size": "13"}
    root.set("fill", _INK)
    SubElement(root, "title").text = title
    _add(root, "rect", width=width, height=height, fill="white")
    _write(root, title, _EDGE, 24, font_size=16, font_weight="bold")
    for number, line in enumerate(subtitle):
        _write(root, line, _EDGE, 44 + 17 * number, font_size=12)
    return root


def _panel(group: Element, walk: Walk) -> None:
    width, height = walk.width * _CELL, walk.height * _CELL
    _add(group, "rect", width=width, height=height, fill=_FLOOR)
    lines = [f"M{x * _CELL},0v{height}" for x in range(1, walk.width)]
    lines += [f"M0,{y * _CELL}h{width}" for y in range(1, walk.height)]
    _add(group, "path", d="".join(lines), stroke=_LINES)
    walls = [thing.place for thing in walk.things if thing.kind == "wall"]
    _add(group, "path", d="".join(f"M{x * _CELL},{y * _CELL}h{_CELL}v{_CELL}h-{_CELL}z" for x, y in walls), fill=_WALL)
    for thing in walk.things:
        if thing.kind != "wall":
            _thing(group, thing)
    _path(group, walk)
    _frame(group, 0, 0, width, height, solved=walk.succeeded)
    _sign(group, width - 48, 8, solved=walk.succeeded)
    _write(group, f"{walk.reward:.2f}", width - 8, 18, text_anchor="end", font_weight="bold")
    _write(group, _steps(walk), 8, height - 8, font_size=12)
    if walk.solved_share is not None:
        share = f"{100 * walk.solved_share:.0f} %"
        _write(group, share, width - 8, height - 8, font_size=12, text_anchor="end")


def _path(group: Element, walk: Walk) -> None:
    """The way from start to end; where it returns, it runs a little beside itself, so that it can be followed."""
    moves = [0] + [step for step in range(1, len(walk.places)) if walk.places[step] != walk.places[step - 1]]
    visited = [walk.places[step] for step in moves]
    points = [_beside(place, visited[:number].count(place)) for number, place in enumerate(visited)]
    for number in range(1, len(points)):
        (x, y), (to_x, to_y) = points[number - 1], points[number]
        colour = _at_time(moves[number] / (len(walk.places) - 1))
        d = f"M{x:g},{y:g}L{to_x:g},{to_y:g}"
        _add(group, "path", d=d, stroke=colour, stroke_width=3, stroke_linecap="round")
    (x, y), (last_x, last_y) = points[0], points[-1]
    _add(group, "circle", cx=x, cy=y, r=7, fill="none", stroke=_INK, stroke_width=2, **{"class": "start"})
    turned = f"translate({last_x:g},{last_y:g}) rotate({90 * walk.heading})"
    arrow = {"fill": _at_time(1.0), "stroke": "white", "class": "end"}
    _add(group, "path", d="M9,0L-6,6L-6,-6z", transform=turned, **arrow)


def _beside(place: Place, visits: int) -> tuple[float, float]:
    """The middle of a cell at the first visit; later ones are moved a little, each to another side."""
    angle, far = visits * 2.4, 0.24 * min(visits, 1)  # in radians; the golden angle, which never comes round
    x, y = place
    return round((x + 0.5 + far * cos(angle)) * _CELL, 1), round((y + 0.5 + far * sin(angle)) * _CELL, 1)


def _at_time(share: float) -> str:
    mixed = (round(early + (late - early) * share) for early, late in zip(_EARLY, _LATE, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _thing(group: Element, thing: Thing) -> None:
    """Each kind by its shape as well as its colour."""
    x, y = (at * _CELL for at in thing.place)
    at = _add(group, "g", transform=f"translate({x},{y})", **{"class": thing.kind})
    colour = _THINGS.get(thing.colour, _INK)
    if thing.kind == "lava":
        _add(at, "rect", width=_CELL, height=_CELL, fill="#f4a259")
        waves = "".join(f"M3,{row}q5,-5,10,0t10,0" for row in (8, 14, 20))
        _add(at, "path", d=waves, stroke="#b5482a", stroke_width=1.5, fill="none")
    elif thing.kind == "goal":
        _add(at, "rect", width=_CELL, height=_CELL, fill="#bfe5d3")
        _add(at, "path", d="M9,22V5l10,4l-10,4", fill="#00795a", stroke="#00795a", stroke_width=1.5)
    elif thing.kind == "door":
        _add(at, "rect", width=_CELL, height=_CELL, fill=colour)
        _add(at, "rect", x=4, y=4, width=_CELL - 8, height=_CELL - 8, fill="none", stroke="white", stroke_width=1.5)
        _add(at, "circle", cx=_CELL - 9, cy=_CELL / 2, r=2, fill="white")
    elif thing.kind == "key":
        _add(at, "circle", cx=13, cy=7.5, r=4, fill="none", stroke=colour, stroke_width=3)
        _add(at, "path", d="M13,11.5V22M13,17h4M13,21h4", stroke=colour, stroke_width=3, fill="none")
    else:
        _add(at, "circle", cx=_CELL / 2, cy=_CELL / 2, r=_CELL / 3, fill=colour)


def _key(root: Element, y: float) -> None:
    """What the marks mean, in a line under the panels."""
    at = _add(root, "g", transform=f"translate({_EDGE},{y:g})")
    _add(at, "circle", cx=7, cy=-4, r=6, fill="none", stroke=_INK, stroke_width=2)
    _write(at, "start", 20, 0)
    for step in range(8):
        _add(at, "path", d=f"M{66 + 5 * step},-4h5", stroke=_at_time(step / 7), stroke_width=3)
    _write(at, "early to late", 112, 0)
    _add(at, "path", d="M9,0L-6,6L-6,-6z", transform="translate(212,-4)", fill=_at_time(1.0))
    _write(at, "end", 227, 0)
    _frame(at, 266, -13, 22, 16, solved=True)
    _sign(at, 298, -10, solved=True)
    _write(at, "solved", 314, 0)
    _frame(at, 376, -13, 22, 16, solved=False)
    _sign(at, 408, -10, solved=False)
    _write(at, "not solved", 424, 0)
    _write(at, f"%: share of {_EPISODES} episodes solved", 502, 0)


def _frame(group: Element, x: int, y: int, width: int, height: int, *, solved: bool) -> None:
    look: dict[str, Any] = {"stroke": _FAILURE, "stroke_width": 2.5, "stroke_dasharray": "7 5"}
    if solved:
        look = {"stroke": _SUCCESS, "stroke_width": 4}
    _add(group, "rect", x=x, y=y, width=width, height=height, rx=2, fill="none", **look, **{"class": "frame"})


def _sign(group: Element, x: float, y: float, *, solved: bool) -> None:
    """A tick or a cross, drawn, since not every font has them."""
    d = "M1,6l3,4l6,-9" if solved else "M1,1l9,9M10,1l-9,9"
    colour = _SUCCESS if solved else _FAILURE
    _add(group, "path", d=d, transform=f"translate({x:g},{y:g})", stroke=colour, stroke_width=2.5, fill="none")


def _told(walk: Walk) -> str:
    outcome = "solved" if walk.succeeded else "not solved"
    return f"{outcome}, reward {walk.reward:.2f}, {_steps(walk)}"


def _steps(walk: Walk) -> str:
    count = len(walk.places) - 1
    return f"{count} step{'' if count == 1 else 's'}"


def _folded(words: str) -> list[str]:
    """A name in two lines, the last word in the second: it is what tells one demonstrator from another."""
    before, _, last = words.rpartition(" ")
    return [before, last] if before else [last]


def _add(parent: Element, tag: str, **attributes: Any) -> Element:
    """A child element; numbers are written short, and underscores in names become hyphens."""
    written = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in attributes.items()}
    return SubElement(parent, tag, {name.replace("_", "-"): value for name, value in written.items()})


def _write(parent: Element, words: str, x: float, y: float, **attributes: Any) -> None:
    _add(parent, "text", x=float(x), y=float(y), **attributes).text = words


def figure(policy: Any, *, beta: float, seed: int) -> bytes:
    """What `policy` and the demonstrators of that `beta` do, drawn."""
    return drawn(
        walks(policy, beta=beta, seed=seed),
        title="Does one learned policy have all the skills of its demonstrators?",
        subtitle=[
            f"Each demonstrator is perfect in one part and elsewhere follows the expert with probability {beta:g}, "
            "else acts at random.",
            "ILEED is told who did what, not who is good at what. One episode of each part, the same beginning for all "
            f"(seed {seed}).",
        ],
        names={
            "minigrid/unlock": "Unlock: open the door",
            "minigrid/lava": "Lava: to the flag",
            "minigrid/empty": "Empty: to the flag",
        },
    )


def main() -> None:
    """Draw the figure and write it to a file."""
    reader = argparse.ArgumentParser(description="Draw how a learned policy and its demonstrators walk.")
    reader.add_argument("--out", type=Path, default=Path("docs/images/reproduction-trajectories.svg"))
    reader.add_argument("--beta", type=float, default=0.1, help="skill of the demonstrators outside their own part")
    reader.add_argument("--trial", type=int, default=0, help="which trial's data, as in minigrid/skills")
    reader.add_argument("--seed", type=int, default=_SEED, help="of the episodes that are drawn")
    reader.add_argument("--restarts", type=int, default=None, help="fewer restarts than the experiment's, to be faster")
    asked = reader.parse_args()
    policy = learned_policy(beta=asked.beta, trial=asked.trial, restarts=asked.restarts)
    runs.write_file(asked.out, figure(policy, beta=asked.beta, seed=asked.seed))


if __name__ == "__main__":
    main()
