"""What one player of Overcooked sees, as numbers, and what they do: a step in one of four directions, or interact."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ileed.data import Array
from ileed_lab.people.overcooked.trials import Trial

__all__ = ["ACTIONS", "steps", "view"]

ACTIONS = ("up", "down", "left", "right", "interact")
_DIRECTIONS = ((0, -1), (0, 1), (-1, 0), (1, 0))
_KITCHENS = ("asymmetric_advantages", "coordination_ring", "cramped_room", "random0", "random3")
_HELD = (None, "onion", "dish", "soup")
_COOKED = 20  # steps that a soup of three onions takes
_FULL = 3

Cell = tuple[int, int]
Tiles = tuple[str, ...]


def steps(trial: Trial) -> Iterator[tuple[Array, int]]:
    """What a player sees and does, wherever they do something: all steps of one player, then all of the other."""
    states, made = ([ast.literal_eval(text) for text in each] for each in (trial.states, trial.actions))
    for player in range(2):
        for state, joint in zip(states, made, strict=True):
            action = joint[player]
            if action != [0, 0]:
                number = 4 if action == "INTERACT" else _DIRECTIONS.index(tuple(action))
                yield view(trial, state, player), number


def view(trial: Trial, state: Mapping[str, Any], player: int) -> Array:
    """The kitchen, the two players, the four cells around, and the way to whatever may be of use."""
    own, other = state["players"][player], state["players"][1 - player]
    here, there = _cell(own), _cell(other)
    soups = {_cell(each): each["state"] for each in state["objects"].values() if each["name"] == "soup"}
    loose = {_cell(each): each["name"] for each in state["objects"].values() if each["name"] != "soup"}
    pots = _where(trial.tiles, "P")
    fillable = [pot for pot in pots if soups.get(pot, ("", 0, 0))[1] < _FULL]
    cooking = [pot for pot in pots if soups.get(pot, ("", 0, 0))[1] >= _FULL]
    ready = [pot for pot in cooking if soups[pot][2] >= _COOKED]
    targets: list[Sequence[Cell]] = [_where(trial.tiles, kind) for kind in "ODS"]
    targets += [fillable, cooking, ready]
    targets += [[cell for cell, name in loose.items() if name == kind] for kind in ("onion", "dish")]
    around = [_kind(trial.tiles, (here[0] + dx, here[1] + dy), there, loose) for dx, dy in _DIRECTIONS]
    facing = _kind(trial.tiles, (here[0] + own["orientation"][0], here[1] + own["orientation"][1]), there, loose)
    parts = [
        _one_of(_KITCHENS, trial.partner),
        _one_of(_DIRECTIONS, tuple(own["orientation"])),
        _one_of(_HELD, own.get("held_object", {}).get("name")),
        _one_of(_HELD, other.get("held_object", {}).get("name")),
        [(there[0] - here[0]) / 5, (there[1] - here[1]) / 5],
        *(_one_of(_KINDS, kind) for kind in (*around, facing)),
        *(_way(trial.tiles, here, tuple(cells)) for cells in targets),
        [max([soups.get(pot, ("", 0, 0))[1] for pot in pots], default=0) / _FULL, len(ready) > 0],
    ]
    return np.concatenate([np.asarray(part, dtype=np.float32) for part in parts])


_KINDS = ("floor", "player", "X", "O", "D", "P", "S", "object")


def _cell(thing: Mapping[str, Any]) -> Cell:
    x, y = thing["position"]
    return x, y


def _kind(tiles: Tiles, cell: Cell, other: Cell, loose: Mapping[Cell, str]) -> str:
    if cell == other:
        return "player"
    if cell in loose:
        return "object"
    return tile if (tile := tiles[cell[1]][cell[0]]) in _KINDS else "floor"


def _one_of(known: Sequence[Any], value: Any) -> list[bool]:
    return [value == each for each in known]


@cache
def _where(tiles: Tiles, kind: str) -> tuple[Cell, ...]:
    return tuple((x, y) for y, row in enumerate(tiles) for x, tile in enumerate(row) if tile == kind)


@cache
def _way(tiles: Tiles, here: Cell, cells: tuple[Cell, ...]) -> list[float]:
    """In which directions to go to the nearest of some cells, and how far it is; zeros where none can be reached."""
    ways = [_distances(tiles, cell) for cell in cells]
    reached = [way for way in ways if here in way]
    if not reached:
        return [0.0] * 5
    way = min(reached, key=lambda each: each[here])
    near = [way.get((here[0] + dx, here[1] + dy), np.inf) for dx, dy in _DIRECTIONS]
    return [*(float(each == min(near)) for each in near), way[here] / 10]


@cache
def _distances(tiles: Tiles, goal: Cell) -> dict[Cell, int]:
    """From every floor cell, the steps to a cell beside which one can stand; the goal itself is at 0."""
    found, waiting = {goal: 0}, deque([goal])
    while waiting:
        cell = waiting.popleft()
        for dx, dy in _DIRECTIONS:
            x, y = cell[0] + dx, cell[1] + dy
            inside = 0 <= y < len(tiles) and 0 <= x < len(tiles[y])
            if inside and tiles[y][x] not in "XODPS" and (x, y) not in found:
                found[x, y] = found[cell] + 1
                waiting.append((x, y))
    return found
