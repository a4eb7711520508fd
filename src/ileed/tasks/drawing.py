"""MiniGrid's view, drawn in a fraction of the time that minigrid takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ileed.errors import require

__all__ = ["OBSERVATION_SIZE", "flat_view"]

VIEW = 7
OBSERVATION_SIZE = VIEW * VIEW * 3


def flat_view(world: Any, environment: str) -> Callable[[], npt.NDArray[np.uint8]]:
    """A function that draws what `world` shows at that moment, as 147 numbers; the world must be bare of wrappers."""
    return partial(_drawn, world, _drawing(environment), world.gen_obs_grid)


@dataclass(frozen=True)
class _Drawing:
    """What it takes to draw the view of one task quickly: shared by all its environments, filled by use."""

    byte: dict[tuple[int, int, int], int]
    """Kind, colour and state of a thing, packed into one number below 256."""
    triple: npt.NDArray[np.uint8]
    """The same, unpacked, (byte, 3)."""
    outside: bytes
    """What lies beyond the grid."""
    cells: npt.NDArray[np.int64]
    """The grid cell at each place of the view, (direction, x, y, place); one past the last cell is outside."""
    hidden: dict[bytes, npt.NDArray[np.bool_]]
    """Which places cannot be seen, for every view met so far, where walls hide what is behind them."""


EMPTY = 1
UNDERFOOT = VIEW * (VIEW // 2) + VIEW - 1
"""The place in the view where the agent stands; it shows what is carried."""


def _drawn(world: Any, drawing: _Drawing, reference: Callable[[], Any]) -> npt.NDArray[np.uint8]:
    """What minigrid's `gen_obs()["image"].ravel()` gives, in a twentieth of the time.

    Nine tenths of minigrid's time go into drawing: it copies the grid, turns it and encodes it thing by thing. Here a
    cell is a byte and the view a lookup of 49 of them by position and direction. Which places are hidden is worked out
    by minigrid itself when such a view first occurs, then remembered.
    """
    byte = drawing.byte
    cells = bytes([EMPTY if thing is None else byte[thing.encode()] for thing in world.grid.grid])
    x, y = world.agent_pos
    view = np.frombuffer(cells + drawing.outside, dtype=np.uint8)[drawing.cells[world.agent_dir, x, y]]
    hidden = None
    if not world.see_through_walls:
        key = view.tobytes()
        if key not in drawing.hidden:
            drawing.hidden[key] = ~reference()[1].ravel()
        hidden = drawing.hidden[key]
    view[UNDERFOOT] = EMPTY if world.carrying is None else byte[world.carrying.encode()]
    image = drawing.triple[view]
    if hidden is not None:
        image[hidden] = 0
    return np.asarray(image.ravel())


@cache
def _drawing(environment: str) -> _Drawing:
    constants = require("minigrid.core.constants", extra="minigrid")
    kinds, colours, states = constants.OBJECT_TO_IDX, constants.COLOR_TO_IDX, constants.STATE_TO_IDX
    triples = [(k, c, s) for s in range(len(states)) for c in range(len(colours)) for k in range(len(kinds))]
    byte = {triple: number for number, triple in enumerate(triples)}
    assert len(triples) <= 256
    assert byte[(kinds["empty"], 0, 0)] == EMPTY
    return _Drawing(
        byte=byte,
        triple=np.array(triples, dtype=np.uint8),
        outside=bytes([byte[(kinds["wall"], colours["grey"], 0)]]),
        cells=_cells_in_view(environment),
        hidden={},
    )


def _cells_in_view(environment: str) -> npt.NDArray[np.int64]:
    """Found by letting minigrid cut and turn a grid whose cells hold their own numbers."""
    world = require("gymnasium", extra="minigrid").make(environment, disable_env_checker=True).unwrapped
    width, height = world.grid.width, world.grid.height
    numbered = type(world.grid)(width, height)
    numbered.grid = list(range(width * height))
    cells = np.empty((4, width, height, VIEW * VIEW), dtype=np.int64)
    for direction, x, y in np.ndindex(4, width, height):
        world.agent_pos, world.agent_dir = (x, y), direction
        left, top, _, _ = world.get_view_exts()
        view = numbered.slice(left, top, VIEW, VIEW)
        for _ in range(direction + 1):
            view = view.rotate_left()
        places = [view.get(i, j) for i in range(VIEW) for j in range(VIEW)]
        cells[direction, x, y] = [place if isinstance(place, int) else width * height for place in places]
    return cells
