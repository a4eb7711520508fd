"""Rendering of Square: an episode as a moving picture."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from ileed import IleedError
from ileed.envs.abstract_task import as_actor
from ileed.errors import require
from ileed_lab.square.world import SquareWorld

__all__ = ["render_episode"]

_SIZE = 320
_MILLISECONDS = 50  # a control step


def render_episode(policy: Any, path: str | Path, *, seed: int = 0, picture: str | Path | None = None) -> bool:
    """Render one episode of a policy or an actor as a .gif in real time, and one frame of it; returns its success.

    Rendering needs EGL or OSMesa, and says so where there is neither.
    """
    mujoco: Any = require("mujoco", package="ileed-lab")
    images: Any = require("PIL.Image", package="ileed-lab")
    context = _gl_context()
    try:
        world, actor = SquareWorld(), as_actor(policy)
        camera = _Camera(mujoco, images, world.model)
        observation, starts = world.reset(seed), np.ones(1, dtype=bool)
        frames, success, limit = [camera.frame(world.data)], False, False
        while not (success or limit):
            observation, _, success, limit, _ = world.step(actor(observation[None], starts)[0])
            starts = np.zeros(1, dtype=bool)
            frames.append(camera.frame(world.data))
    finally:
        context.free()
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=_MILLISECONDS, loop=0)
    if picture is not None:
        frames[2 * len(frames) // 3].save(picture)
    return bool(success)


def _gl_context() -> Any:
    for library in ("mujoco.egl", "mujoco.osmesa"):
        try:
            context = importlib.import_module(library).GLContext(_SIZE, _SIZE)
            context.make_current()
        except Exception:  # each library raises its own errors where it is missing
            continue
        return context
    raise IleedError("there is no EGL and no OSMesa to render with: apt-get install libegl1 libosmesa6")


class _Camera:
    """robosuite's view from the front."""

    def __init__(self, mujoco: Any, images: Any, model: Any) -> None:
        self._mujoco, self._images, self._model = mujoco, images, model
        self._scene, self._options = mujoco.MjvScene(model, maxgeom=1_000), mujoco.MjvOption()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        self._options.geomgroup[0] = 0  # what collides; group 1 is what is seen
        self._options.sitegroup[:] = 0
        self._view = mujoco.MjvCamera()
        self._view.type, self._view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, model.camera("agentview").id
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)

    def frame(self, data: Any) -> Any:
        pixels = np.empty((_SIZE, _SIZE, 3), dtype=np.uint8)
        everything = self._mujoco.mjtCatBit.mjCAT_ALL
        self._mujoco.mjv_updateScene(self._model, data, self._options, None, self._view, everything, self._scene)
        self._mujoco.mjr_render(self._mujoco.MjrRect(0, 0, _SIZE, _SIZE), self._scene, self._context)
        self._mujoco.mjr_readPixels(pixels, None, self._mujoco.MjrRect(0, 0, _SIZE, _SIZE), self._context)
        return self._images.fromarray(pixels[::-1])
