"""Square: a robot arm picks up a square nut by its handle and puts it over a peg, in robosuite's simulator.

>>> SquareTask().observation_size, SquareTask().action_size
(23, 7)
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from typing import Any, Literal, final, get_args

import numpy as np
import numpy.typing as npt
import torch

from ileed._torch import stream
from ileed.errors import IleedError, SettingsError, require
from ileed.tasks import (
    AbstractTask,
    Actor,
    Playthrough,
    Progress,
    World,
    _at_least_one,
    answered,
    as_actor,
    in_lockstep,
)

__all__ = ["ENV_ARGS", "LIMIT", "OBSERVATIONS", "PHASES", "Rollouts", "SquareTask", "SquareWorld"]

Array = npt.NDArray[np.float64]

OBSERVATIONS: Mapping[str, int] = {
    "object": 14,
    "robot0_eef_pos": 3,
    "robot0_eef_quat": 4,
    "robot0_gripper_qpos": 2,
}
"""What an observation holds, in this order, under robomimic's names: the numbers of each."""

LIMIT = 400
"""Control steps after which an episode without success ends; there are twenty a second."""

PHASES = ("reach", "grasp", "carry", "insert")
"""What an episode calls for by turns."""

Layout = Literal["robosuite-1.5", "robosuite-1.4"]
"""In which order `object` holds its four parts."""

_CONTROLLER: Mapping[str, Any] = {
    "type": "BASIC",
    "body_parts": {
        "right": {
            "type": "OSC_POSE",
            "input_max": 1,
            "input_min": -1,
            "output_max": [0.05, 0.05, 0.05, 0.5, 0.5, 0.5],
            "output_min": [-0.05, -0.05, -0.05, -0.5, -0.5, -0.5],
            "kp": 150,
            "damping_ratio": 1,
            "impedance_mode": "fixed",
            "kp_limits": [0, 300],
            "damping_ratio_limits": [0, 10],
            "position_limits": None,
            "orientation_limits": None,
            "uncouple_pos_ori": True,
            "input_type": "delta",
            "input_ref_frame": "world",
            "interpolation": None,
            "ramp_ratio": 0.2,
            "gripper": {"type": "GRIP"},
        }
    },
}

ENV_ARGS: Mapping[str, Any] = {
    "env_name": "NutAssemblySquare",
    "env_version": "1.5.2",
    "type": 1,
    "env_kwargs": {
        "has_renderer": False,
        "has_offscreen_renderer": False,
        "ignore_done": True,
        "use_object_obs": True,
        "use_camera_obs": False,
        "control_freq": 20,
        "controller_configs": _CONTROLLER,
        "robots": ["Panda"],
        "camera_depths": False,
        "camera_heights": 84,
        "camera_widths": 84,
        "lite_physics": True,
        "reward_shaping": False,
    },
}
"""What robomimic writes into a file to say which environment its demonstrations are from."""


@final
@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """How each of several episodes went, (episode,)."""

    success: npt.NDArray[np.bool_]
    """Whether the nut came to lie around the peg within the limit."""
    steps: npt.NDArray[np.int64]
    """Control steps until it did, or the limit."""
    phase: npt.NDArray[np.int64]
    """The furthest of `PHASES` that the episode came to, by its place there."""

    def __len__(self) -> int:
        return len(self.success)


@final
@dataclass(frozen=True)
class SquareTask(AbstractTask):
    """robosuite's NutAssemblySquare with a Panda arm, as robomimic's Square data have it.

    Twenty times a second the actor gives seven numbers in [-1, 1]: how far to move the hand (1 is 5 cm) and to turn it
    (1 is half a radian) along and about the world's axes, and whether to close the fingers (positive) or open them.
    What lies beyond is cut to those bounds. An episode ends with a reward of 1 when the nut is around the peg, and
    after 400 steps with none. Playing needs the extra `robot`.

    Dynamics, initial states and success are robosuite's; the loop around MuJoCo's steps is ours, since robosuite's own
    takes most of the time (`docs/decisions/robot-task.md`).
    """

    layout: Layout = field(default="robosuite-1.5", kw_only=True)
    """Order of the parts of `object`: robosuite 1.5 puts the nut as seen from the hand first, one step old, and 1.4 and
    older put it last. Choose the one that wrote the data that a policy learned from."""

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise SettingsError(f"there is no layout {self.layout!r}; choose one of {', '.join(get_args(Layout))}")

    @property
    def name(self) -> str:
        return "robot/square"

    @property
    def observation_size(self) -> int:
        return sum(OBSERVATIONS.values())

    @property
    def action_count(self) -> int:
        return 0

    @property
    def action_size(self) -> int:
        return 7

    @property
    def phases(self) -> tuple[str, ...]:
        return PHASES

    def phase(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Which of the `phases` each of (step, feature) observations belongs to, (step,).

        Told from where hand and nut are: grasping begins less than 5 cm above the handle, carrying when the nut is off
        the table with its handle in the hand, inserting when it is above the peg.
        """
        seen = np.asarray(observations, dtype=np.float64)
        nut = seen[:, 7:14] if self.layout == "robosuite-1.5" else seen[:, :7]
        hand = seen[:, 14:17]
        handle = nut[:, :3] + _HANDLE * _first_axis(nut[:, 3:])
        near = (np.linalg.norm((hand - handle)[:, :2], axis=1) < 0.03) & (hand[:, 2] - handle[:, 2] < 0.05)
        # At first the nut falls on the table: it is carried where the hand has it.
        lifted = nut[:, 2] > _TABLE + 0.03
        carried = lifted & (np.linalg.norm(hand - handle, axis=1) < 0.05)
        above = lifted & (np.linalg.norm(nut[:, :2] - _PEG, axis=1) < 0.03)
        return np.select([above, carried, near], [3, 2, 1], default=0).astype(np.int64)

    def score(
        self,
        actor: Actor,
        *,
        episodes: int,
        seed: int,
        environments: int = 1,
        progress: Progress | None = None,
        workers: int = 1,
    ) -> npt.NDArray[np.float64]:
        """1.0 for each of exactly `episodes` episodes that succeeded and 0.0 for the others; see `rollouts`."""
        found = self.rollouts(
            actor, episodes=episodes, seed=seed, environments=environments, progress=progress, workers=workers
        )
        return found.success.astype(np.float64)

    def rollouts(
        self,
        policy: Any,
        *,
        episodes: int,
        seed: int,
        environments: int = 1,
        progress: Progress | None = None,
        workers: int = 1,
    ) -> Rollouts:
        """Let a policy or an actor play `episodes` episodes, and say how each of them went.

        Episode k starts from a state drawn for `(seed, k)`, so that policies can be compared start by start. A policy
        with `reset(seed)` has it called before each episode with a seed of `(seed, k)`, and an actor is made of it
        anew: what it draws depends on the episode alone. With more than one of `environments`, stepped side by side in
        each process to save time in the policy, it is called once for several, and draws depend on the neighbours.

        `workers` processes share the episodes, and the policy must be picklable if they are more than one: pass the
        policy itself rather than `as_actor` of it.
        """
        _at_least_one(episodes=episodes, environments=environments, workers=workers)
        everything = list(range(episodes))
        tell = progress or (lambda done, total: None)
        if workers == 1:
            played = []
            for share in _shares(everything, environments):
                played += _play(self, policy, share, seed, environments)
                tell(len(played), episodes)
        else:
            played = self._in_processes(policy, everything, seed, environments, min(workers, episodes), tell)
        success, steps, phase = (np.array(column) for column in zip(*played, strict=True))
        return Rollouts(success=success, steps=steps, phase=phase)

    def _in_processes(
        self, policy: Any, everything: Sequence[int], seed: int, environments: int, workers: int, tell: Progress
    ) -> list[_Outcome]:
        try:
            packed = pickle.dumps((self, policy))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise SettingsError(
                f"{type(policy).__name__} cannot be sent to {workers} processes ({error}); pass the policy itself, or "
                "workers=1"
            ) from error
        played: list[_Outcome] = []
        with _pool(workers, packed) as pool:
            shares = _shares(everything, environments)
            for share in pool.map(_play_here, shares, [seed] * len(shares), [environments] * len(shares)):
                played += share
                tell(len(played), len(everything))
        return played

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Play `steps` steps in each of `len(seeds)` environments at once, episode after episode, and keep them all.

        Episode k of environment e starts from the state drawn for `(seeds[e], k)`. The last episode of an environment
        is cut where its steps are spent.
        """
        worlds = [SquareWorld(layout=self.layout) for _ in seeds]

        def begin(environment: int, episode: int) -> tuple[World, Array]:
            world = worlds[environment]
            return world, world.reset(_reset_seed(seeds[environment], episode))

        return in_lockstep(self, actor, begin, steps=steps, environments=len(seeds), progress=progress)


_Outcome = tuple[bool, int, int]
"""Success, steps, and furthest phase of an episode."""


def _shares(episodes: Sequence[int], environments: int) -> list[Sequence[int]]:
    """What a process takes at a time; several rounds of environments, so that few stand idle at the end."""
    size = 1 if environments == 1 else 4 * environments
    return [episodes[start : start + size] for start in range(0, len(episodes), size)]


@contextmanager
def _pool(workers: int, packed: bytes) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(workers, mp_context=get_context("forkserver"), initializer=_receive, initargs=(packed,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_received: dict[str, Any] = {}


def _receive(packed: bytes) -> None:
    torch.set_num_threads(1)
    _received["task"], _received["policy"] = pickle.loads(packed)  # packed by the process that asks, never a file


def _play_here(episodes: Sequence[int], seed: int, environments: int) -> list[_Outcome]:
    return _play(_received["task"], _received["policy"], episodes, seed, environments)


def _play(task: SquareTask, policy: Any, episodes: Sequence[int], seed: int, environments: int) -> list[_Outcome]:
    """How each of some episodes went, in their order, played in one process."""
    if environments == 1:
        return [_played_together(task, policy, [episode], seed, 1)[0] for episode in episodes]
    return _played_together(task, policy, episodes, seed, environments)


def _played_together(
    task: SquareTask, policy: Any, episodes: Sequence[int], seed: int, environments: int
) -> list[_Outcome]:
    if hasattr(policy, "reset"):
        policy.reset(stream(seed, "act", episodes[0]).initial_seed())
    actor = as_actor(policy)
    waiting = list(enumerate(episodes))[::-1]
    outcomes: dict[int, _Outcome] = {}
    worlds = _worlds(min(environments, len(episodes)), task.layout)
    place = np.full(len(worlds), -1)
    seen = np.zeros((len(worlds), task.observation_size))
    starts = np.zeros(len(worlds), dtype=bool)
    furthest = np.zeros(len(worlds), dtype=np.int64)

    def begin(row: int) -> None:
        place[row] = -1
        if waiting:
            place[row], episode = waiting.pop()
            seen[row], starts[row], furthest[row] = worlds[row].reset(_reset_seed(seed, episode)), True, 0

    for row in range(len(worlds)):
        begin(row)
    while (place >= 0).any():
        furthest = np.maximum(furthest, task.phase(seen))
        actions = answered(actor, task, seen, starts)
        starts[:] = False
        for row in np.flatnonzero(place >= 0).tolist():
            seen[row], _, success, limit, _ = worlds[row].step(actions[row])
            if success or limit:
                outcomes[int(place[row])] = success, worlds[row].steps, int(furthest[row])
                begin(row)
    return [outcomes[number] for number in range(len(episodes))]


def _reset_seed(seed: int, episode: int) -> int:
    return stream(seed, "episode", episode).initial_seed()


@cache
def _world(number: int, layout: Layout) -> SquareWorld:
    return SquareWorld(layout=layout)


def _worlds(count: int, layout: Layout) -> list[SquareWorld]:
    """Worlds of this process: they take a while to build, and forget everything when they are reset."""
    return [_world(number, layout) for number in range(count)]


_PEG = np.array([0.23, 0.10])
_TABLE = 0.82
_HANDLE = 0.054
"""From the nut's centre to its handle's, along its first axis, in metres."""

_SUBSTEPS = 25
"""MuJoCo's steps of 2 ms in a control step of 50 ms."""

_ROUND_NUT = (10.0, 10.0, 10.0, 1.0, 0.0, 0.0, 0.0)
"""Where robosuite keeps the nut that this task does not use."""


@final
class SquareWorld:
    """One simulated table with arm, nut and peg, stepped as gymnasium steps it.

    robosuite builds the scene and draws the initial state. From then on the physics is MuJoCo's, the control law is
    robosuite's operational-space control, and the round nut, which robosuite keeps lying on the floor far away, is left
    out: it costs a third of the time.
    """

    def __init__(self, *, layout: Layout = "robosuite-1.5") -> None:
        self._scene = _scene()
        self._layout: Layout = layout
        self._mujoco: Any = require("mujoco", extra="robot")
        self._transform: Any = require("robosuite.utils.transform_utils", extra="robot")
        self._torques = _compiled()
        self._model: Any = self._scene.model
        self._data: Any = self._mujoco.MjData(self._model)
        data, scene = self._data, self._scene
        # Views of MuJoCo's memory, taken once: to ask for them anew costs as much as the arithmetic.
        self._qpos, self._qvel, self._ctrl, self._bias = data.qpos, data.qvel, data.ctrl, data.qfrc_bias
        self._inertia_packed = data.qM
        self._hand_position, self._hand_turn = data.site_xpos[scene.hand_site], data.site_xmat[scene.hand_site]
        self._hand_quaternion = data.xquat[scene.hand_body]
        self._nut_position, self._nut_quaternion = data.xpos[scene.nut_body], data.xquat[scene.nut_body]
        size = self._model.nv
        self._inertia = np.zeros((size, size))
        self._shift, self._turn = np.zeros((3, size)), np.zeros((3, size))
        self._home = np.zeros(7)
        self._grip = np.zeros(2)
        self._nut_before = np.zeros(7)
        self.steps = 0

    def reset(self, seed: int) -> Array:
        """Draw an initial state as robosuite draws it; what is seen there first, (feature,)."""
        qpos, self._home, seen = self._scene.drawn(seed)
        self._mujoco.mj_resetData(self._model, self._data)
        self._qpos[:] = qpos[: self._model.nq]
        self._mujoco.mj_forward(self._model, self._data)
        self._grip, self.steps = np.zeros(2), 0
        self._nut_before = self._nut()
        if self._layout == "robosuite-1.4":
            return self._seen()
        return seen

    def step(self, action: Any, /) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One control step; what is seen next, the reward, success, whether the limit was reached, and nothing else."""
        mujoco, model, data = self._mujoco, self._model, self._data
        told = np.clip(np.asarray(action, dtype=np.float64), -1, 1)
        # The fingers take ten steps from open to closed.
        self._grip = np.clip(self._grip + np.array([-0.2, 0.2]) * np.sign(told[6]), -1, 1)
        turned = self._transform.quat2mat(self._transform.axisangle2quat(0.5 * told[3:6])).astype(np.float64)
        self._ctrl[7:9] = self._scene.grip_centre + self._scene.grip_reach * self._grip
        for substep in range(_SUBSTEPS):
            mujoco.mj_step1(model, data)
            mujoco.mj_jacSite(model, data, self._shift, self._turn, self._scene.hand_site)
            mujoco.mj_fullM(model, self._inertia, self._inertia_packed)
            if substep == 0:
                goal = self._hand_position + 0.05 * told[:3]
                goal_turn = turned @ self._hand_turn.reshape(3, 3)
            self._ctrl[:7] = self._torques(
                self._qpos,
                self._qvel,
                self._hand_position,
                self._hand_turn,
                self._shift,
                self._turn,
                self._inertia,
                self._bias,
                goal,
                goal_turn,
                self._home,
                self._scene.strength,
            )
            mujoco.mj_step2(model, data)
        self.steps += 1
        success = self._success()
        return self._seen(), float(success), success, self.steps >= LIMIT and not success, {}

    @property
    def state(self) -> Array:
        """Time, positions and velocities as robosuite flattens them, the absent round nut's included."""
        return np.concatenate([[self._data.time], self._qpos, _ROUND_NUT, self._qvel, np.zeros(6)])

    @property
    def model(self) -> Any:
        """MuJoCo's model, to draw from."""
        return self._model

    @property
    def data(self) -> Any:
        """MuJoCo's data, which every step writes anew."""
        return self._data

    def _success(self) -> bool:
        """robosuite's rule: the nut is low enough around the peg, and its centre is not in the hand."""
        nut = self._nut_position
        placed = abs(nut[0] - _PEG[0]) < 0.03 and abs(nut[1] - _PEG[1]) < 0.03 and nut[2] < _TABLE + 0.05
        return bool(placed and 1 - np.tanh(10 * np.linalg.norm(self._hand_position - nut)) < 0.6)

    def _nut(self) -> Array:
        """Position and (x, y, z, w) quaternion."""
        return np.concatenate([self._nut_position, self._nut_quaternion[[1, 2, 3, 0]]])

    def _seen(self) -> Array:
        transform, nut = self._transform, self._nut()
        hand = self._hand_position, self._hand_quaternion[[1, 2, 3, 0]]
        known = self._nut_before if self._layout == "robosuite-1.5" else nut
        from_hand = transform.pose_inv(transform.pose2mat(hand)) @ transform.pose2mat((known[:3], known[3:]))
        relative = [from_hand[:3, 3], transform.mat2quat(from_hand[:3, :3])]
        self._nut_before = nut
        parts = [*relative, nut] if self._layout == "robosuite-1.5" else [nut, *relative]
        return np.concatenate([*parts, *hand, self._qpos[7:9]])


@final
class _Scene:
    """What all worlds of a process share: robosuite's environment, and a model of it without the round nut."""

    def __init__(self) -> None:
        mujoco: Any = require("mujoco", extra="robot")
        robosuite = _quiet_robosuite()
        kwargs = ENV_ARGS["env_kwargs"] | {"renderer": "mujoco", "hard_reset": False, "seed": 0}
        self.environment: Any = robosuite.make(ENV_ARGS["env_name"], **kwargs)
        robot = self.environment.robots[0]
        text = self.environment.edit_model_xml(self.environment.model.get_xml())
        self.xml = str(text)
        self.model: Any = mujoco.MjModel.from_xml_string(_without(text, "RoundNut_main"))
        # Forces at the wrist, which nobody asks for.
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SENSOR
        self.hand_site = self.model.site("gripper0_right_grip_site").id
        self.hand_body = self.model.body(robot.robot_model.eef_name["right"]).id
        self.nut_body = self.model.body("SquareNut_main").id
        low, high = self.model.actuator_ctrlrange.T
        self.strength = high[:7].copy()
        self.grip_centre, self.grip_reach = (high + low)[7:9] / 2, (high - low)[7:9] / 2

    @property
    def portable_xml(self) -> str:
        """The scene without a word on where robosuite is installed."""
        return re.sub(r'file="[^"]*/(robosuite/models/)', r'file="\1', self.xml)

    def drawn(self, seed: int) -> tuple[Array, Array, Array]:
        """Positions of an initial state, the arm's as its controller remembers them, and what is seen there first."""
        environment = self.environment
        environment.rng = np.random.default_rng(seed)
        for sampler in environment.placement_initializer.samplers.values():
            sampler.rng = environment.rng
        seen = environment.reset()
        observation = np.concatenate([seen["object-state"], *(seen[name] for name in list(OBSERVATIONS)[1:])])
        home = environment.robots[0].part_controllers["right"].initial_joint
        return environment.sim.data.qpos.copy(), np.array(home), observation


@cache
def _scene() -> _Scene:
    return _Scene()


def _quiet_robosuite() -> Any:
    """robosuite, without what it says at import of robots and settings that are not used here."""
    logging.getLogger("robosuite_logs").addFilter(_only_errors)
    before = os.environ.get("MUJOCO_GL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its own text: backslashes in a picture made of letters
            return importlib.import_module("robosuite")
    except ImportError as error:
        raise IleedError(
            "this needs the package 'robosuite', which is not installed: pip install 'ileed[robot]', and then "
            "pip install --no-deps robosuite==1.5.2, since one of its dependencies holds numpy below 2"
        ) from error
    finally:
        # It chooses a way to draw for the whole process.
        if before is None:
            os.environ.pop("MUJOCO_GL", None)
        else:
            os.environ["MUJOCO_GL"] = before


def _only_errors(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _without(xml: str, name: str) -> str:
    root = ElementTree.fromstring(xml)
    bodies = root.find("worldbody")
    assert bodies is not None
    for body in bodies.findall("body"):
        if body.get("name") == name:
            bodies.remove(body)
    return ElementTree.tostring(root, encoding="unicode")


def _first_axis(quaternions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The first column of each rotation, from (step, 4) quaternions (x, y, z, w)."""
    x, y, z, w = quaternions.T
    return np.stack([1 - 2 * (y * y + z * z), 2 * (x * y + z * w), 2 * (x * z - y * w)], axis=-1)


@cache
def _compiled() -> Any:
    return require("numba", extra="robot").njit(cache=True)(_arm_torques)


def _arm_torques(  # type: ignore[no-untyped-def]  # numba finds the types, and annotations would only be in its way
    qpos, qvel, position, turn, shift_by, turn_by, inertia, bias, goal, goal_turn, home, strength
):  # pragma: no cover
    """Torques of the seven joints by operational-space control with position and rotation uncoupled.

    With Jacobian J (its rows for position P and rotation R) and inertia M: f = (P M⁻¹ Pᵀ)⁻¹ (150 error - 24.5 speed),
    likewise for rotation; torque = Jᵀ (f, t) + gravity and Coriolis + (I - Jᵀ (J M⁻¹ Jᵀ)⁻¹ J M⁻¹) M (10 (home - q) -
    6.3 q'), whose last term draws the elbow home without moving the hand.
    """
    stiffness, damping = 150.0, 2.0 * np.sqrt(150.0)
    current = turn.reshape(3, 3)
    error = np.zeros(6)
    for axis in range(3):
        error[axis] = goal[axis] - position[axis]
    for column in range(3):
        a, b = current[:, column], goal_turn[:, column]
        error[3] += 0.5 * (a[1] * b[2] - a[2] * b[1])
        error[4] += 0.5 * (a[2] * b[0] - a[0] * b[2])
        error[5] += 0.5 * (a[0] * b[1] - a[1] * b[0])
    jacobian = np.zeros((6, 7))
    wanted = np.zeros(6)
    for axis in range(3):
        speed, spin = 0.0, 0.0
        for joint in range(qvel.shape[0]):
            speed += shift_by[axis, joint] * qvel[joint]
            spin += turn_by[axis, joint] * qvel[joint]
        for joint in range(7):
            jacobian[axis, joint] = shift_by[axis, joint]
            jacobian[3 + axis, joint] = turn_by[axis, joint]
        wanted[axis] = stiffness * error[axis] - damping * speed
        wanted[3 + axis] = stiffness * error[3 + axis] - damping * spin
    arm = np.ascontiguousarray(inertia[:7, :7])
    eased = np.linalg.solve(arm, np.ascontiguousarray(jacobian.T))
    mobility = jacobian @ eased
    wrench = np.zeros(6)
    wrench[:3] = np.linalg.solve(np.ascontiguousarray(mobility[:3, :3]), wanted[:3])
    wrench[3:] = np.linalg.solve(np.ascontiguousarray(mobility[3:, 3:]), wanted[3:])
    homing = arm @ (10.0 * (home - qpos[:7]) - 2.0 * np.sqrt(10.0) * qvel[:7])
    wrench -= np.linalg.solve(mobility, np.ascontiguousarray(eased.T) @ homing)
    torques = np.ascontiguousarray(jacobian.T) @ wrench + bias[:7] + homing
    return np.minimum(np.maximum(torques, -strength), strength)
