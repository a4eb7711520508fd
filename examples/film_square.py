"""Film the scripted controller, or one of the stand-in operators, as it puts the square nut on its peg.

    python examples/film_square.py square.gif --operator worse_operator_1 --picture square.png

Drawing needs EGL or OSMesa (Debian: apt-get install libegl1 libosmesa6); without either it says so and ends.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

import mujoco
import numpy as np
from PIL import Image

from ileed.tasks.operators import OPERATORS, Operator, SquareExpert
from ileed.tasks.square import SquareWorld

SIZE = 320


def context() -> Any:
    for library in ("mujoco.egl", "mujoco.osmesa"):
        try:
            made = importlib.import_module(library).GLContext(SIZE, SIZE)
            made.make_current()
        except Exception:  # each library fails in its own way where there is nothing to draw with
            continue
        return made
    return None


class Camera:
    def __init__(self, model: Any) -> None:
        self._model, self._scene = model, mujoco.MjvScene(model, maxgeom=1_000)
        self._to, self._options = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100), mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # what collides; group 1 is what is seen
        self._options.sitegroup[:] = 0
        self._view = mujoco.MjvCamera()
        self._view.type, self._view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, model.camera("agentview").id
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._to)

    def picture(self, data: Any) -> Image.Image:
        pixels, frame = np.empty((SIZE, SIZE, 3), dtype=np.uint8), mujoco.MjrRect(0, 0, SIZE, SIZE)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._options, None, self._view, everything, self._scene)
        mujoco.mjr_render(frame, self._scene, self._to)
        mujoco.mjr_readPixels(pixels, None, frame, self._to)
        return Image.fromarray(pixels[::-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("film", help="where to write the film, as a .gif of twenty steps a second")
    parser.add_argument("--picture", help="where to write its middle as a .png")
    parser.add_argument("--operator", choices=[operator.name for operator in OPERATORS])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if (drawing := context()) is None:
        print("there is no EGL and no OSMesa here, so nothing is drawn: apt-get install libegl1 libosmesa6")
        return 0
    chosen = {operator.name: operator for operator in OPERATORS}.get(options.operator, Operator(name="controller"))
    expert, world = SquareExpert(chosen), SquareWorld()
    seen, over, frames, steps = world.reset(options.seed), False, [], 0
    camera = Camera(world.model)
    while not over:
        frames.append(camera.picture(world.data))
        seen, _, success, limit, _ = world.step(expert(seen[None], np.array([steps == 0]))[0])
        over, steps = success or limit, steps + 1
    frames.append(camera.picture(world.data))
    frames[0].save(options.film, save_all=True, append_images=frames[1:], duration=50, loop=0)
    if options.picture:
        frames[2 * len(frames) // 3].save(options.picture)
    print(f"{chosen.name} {'succeeded' if success else 'failed'} after {steps} steps: {options.film}")
    drawing.free()
    return 0


if __name__ == "__main__":
    sys.exit(main())
