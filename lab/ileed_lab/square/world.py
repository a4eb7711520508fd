"""The simulated table of Square: an arm, a nut and a peg, stepped by MuJoCo under robosuite's control law."""

from __future__ import annotations

import importlib
import logging
import os
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from ileed.errors import IleedError, require

__all__ = ["ENV_ARGS", "LIMIT", "OBSERVATIONS", "PEG", "PHASES", "TABLE", "Layout", "SquareWorld", "built_scene"]

Array = npt.NDArray[np.float64]

OBSERVATIONS: Mapping[str, int] = {
    "object": 14,
    "robot0_eef_pos": 3,
    "robot0_eef_quat": 4,
    "robot0_gripper_qpos": 2,
}
"""The parts of an observation in their order, by robomimic's names, and the size of each."""

LIMIT = 400
"""Control steps after which an episode without success is truncated; there are twenty a second."""

PHASES = ("reach", "grasp", "carry", "insert")
"""The phases of an episode."""

Layout = Literal["robosuite-1.5", "robosuite-1.4"]
"""The order of the four parts of `object`."""

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
"""The description of the environment in robomimic's files."""


PEG = np.array([0.23, 0.10])
"""Position of the peg on the table, in metres."""
TABLE = 0.82
"""Height of the table's top, in metres."""

_SUBSTEPS = 25
"""MuJoCo's steps of 2 ms in a control step of 50 ms."""

_ROUND_NUT = (10.0, 10.0, 10.0, 1.0, 0.0, 0.0, 0.0)
"""Position and rotation of the nut that this task does not use."""


@final
class SquareWorld:
    """One simulated table with arm, nut and peg, stepped as gymnasium steps it.

    robosuite builds the scene and samples the initial state. From then on the physics is MuJoCo's, the control law is
    robosuite's operational-space control, and the round nut, which in robosuite lies far away, is left out: it would
    take a third of the time.
    """

    def __init__(self, *, layout: Layout = "robosuite-1.5") -> None:
        self._scene = built_scene()
        self._layout: Layout = layout
        self._mujoco: Any = require("mujoco", package="ileed-lab")
        self._transform: Any = require("robosuite.utils.transform_utils", package="ileed-lab")
        self._torques = _compiled_torques()
        self._model: Any = self._scene.model
        self._data: Any = self._mujoco.MjData(self._model)
        data, scene = self._data, self._scene
        # Views of MuJoCo's memory, taken once: taking them at every step costs as much as the arithmetic.
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
        """Sample an initial state as robosuite does; the first observation, (feature,)."""
        qpos, self._home, observation = self._scene.initial_state(seed)
        self._mujoco.mj_resetData(self._model, self._data)
        self._qpos[:] = qpos[: self._model.nq]
        self._mujoco.mj_forward(self._model, self._data)
        self._grip, self.steps = np.zeros(2), 0
        self._nut_before = self._nut()
        if self._layout == "robosuite-1.4":
            return self._observation()
        return observation

    def step(self, action: Any, /) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One control step: observation, reward, success, whether the limit was reached, and an empty dictionary."""
        mujoco, model, data = self._mujoco, self._model, self._data
        command = np.clip(np.asarray(action, dtype=np.float64), -1, 1)
        # The fingers take ten steps from open to closed.
        self._grip = np.clip(self._grip + np.array([-0.2, 0.2]) * np.sign(command[6]), -1, 1)
        turned = self._transform.quat2mat(self._transform.axisangle2quat(0.5 * command[3:6])).astype(np.float64)
        self._ctrl[7:9] = self._scene.grip_centre + self._scene.grip_reach * self._grip
        for substep in range(_SUBSTEPS):
            mujoco.mj_step1(model, data)
            mujoco.mj_jacSite(model, data, self._shift, self._turn, self._scene.hand_site)
            mujoco.mj_fullM(model, self._inertia, self._inertia_packed)
            if substep == 0:
                goal = self._hand_position + 0.05 * command[:3]
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
        return self._observation(), float(success), success, self.steps >= LIMIT and not success, {}

    @property
    def state(self) -> Array:
        """Time, positions and velocities as robosuite flattens them, the absent round nut's included."""
        return np.concatenate([[self._data.time], self._qpos, _ROUND_NUT, self._qvel, np.zeros(6)])

    @property
    def model(self) -> Any:
        """MuJoCo's model, for rendering."""
        return self._model

    @property
    def data(self) -> Any:
        """MuJoCo's data, which every step overwrites."""
        return self._data

    def _success(self) -> bool:
        """robosuite's rule: the nut is low enough around the peg, and the hand is away from its centre."""
        nut = self._nut_position
        placed = abs(nut[0] - PEG[0]) < 0.03 and abs(nut[1] - PEG[1]) < 0.03 and nut[2] < TABLE + 0.05
        return bool(placed and 1 - np.tanh(10 * np.linalg.norm(self._hand_position - nut)) < 0.6)

    def _nut(self) -> Array:
        """Position and (x, y, z, w) quaternion."""
        return np.concatenate([self._nut_position, self._nut_quaternion[[1, 2, 3, 0]]])

    def _observation(self) -> Array:
        transform, nut = self._transform, self._nut()
        hand = self._hand_position, self._hand_quaternion[[1, 2, 3, 0]]
        nut_seen = self._nut_before if self._layout == "robosuite-1.5" else nut
        from_hand = transform.pose_inv(transform.pose2mat(hand)) @ transform.pose2mat((nut_seen[:3], nut_seen[3:]))
        relative = [from_hand[:3, 3], transform.mat2quat(from_hand[:3, :3])]
        self._nut_before = nut
        parts = [*relative, nut] if self._layout == "robosuite-1.5" else [nut, *relative]
        return np.concatenate([*parts, *hand, self._qpos[7:9]])


@final
class _Scene:
    """Shared by all worlds of a process: robosuite's environment, and a model of it without the round nut."""

    def __init__(self) -> None:
        mujoco: Any = require("mujoco", package="ileed-lab")
        robosuite = _quiet_robosuite()
        kwargs = ENV_ARGS["env_kwargs"] | {"renderer": "mujoco", "hard_reset": False, "seed": 0}
        self.environment: Any = robosuite.make(ENV_ARGS["env_name"], **kwargs)
        robot = self.environment.robots[0]
        text = self.environment.edit_model_xml(self.environment.model.get_xml())
        self.xml = str(text)
        self.model: Any = mujoco.MjModel.from_xml_string(_remove_body(text, "RoundNut_main"))
        # Forces at the wrist, which are not needed.
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SENSOR
        self.hand_site = self.model.site("gripper0_right_grip_site").id
        self.hand_body = self.model.body(robot.robot_model.eef_name["right"]).id
        self.nut_body = self.model.body("SquareNut_main").id
        low, high = self.model.actuator_ctrlrange.T
        self.strength = high[:7].copy()
        self.grip_centre, self.grip_reach = (high + low)[7:9] / 2, (high - low)[7:9] / 2

    @property
    def portable_xml(self) -> str:
        """The scene, with paths relative to robosuite's folder."""
        return re.sub(r'file="[^"]*/(robosuite/models/)', r'file="\1', self.xml)

    def initial_state(self, seed: int) -> tuple[Array, Array, Array]:
        """Positions of an initial state, the arm's home position of its controller, and the first observation."""
        environment = self.environment
        environment.rng = np.random.default_rng(seed)
        for sampler in environment.placement_initializer.samplers.values():
            sampler.rng = environment.rng
        parts = environment.reset()
        observation = np.concatenate([parts["object-state"], *(parts[name] for name in list(OBSERVATIONS)[1:])])
        home = environment.robots[0].part_controllers["right"].initial_joint
        return environment.sim.data.qpos.copy(), np.array(home), observation


@cache
def built_scene() -> _Scene:
    """The scene of this process, built once: that takes seconds."""
    return _Scene()


def _quiet_robosuite() -> Any:
    """robosuite, without its messages at import about robots and settings that are not used here."""
    logging.getLogger("robosuite_logs").addFilter(_only_errors)
    before = os.environ.get("MUJOCO_GL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about backslashes in its own text
            return importlib.import_module("robosuite")
    except ImportError as error:
        raise IleedError(
            "this needs the package 'robosuite', which is not installed: pip install ileed-lab, and then "
            "pip install --no-deps robosuite==1.5.2, since one of its dependencies holds numpy below 2"
        ) from error
    finally:
        # It chooses a renderer for the whole process.
        if before is None:
            os.environ.pop("MUJOCO_GL", None)
        else:
            os.environ["MUJOCO_GL"] = before


def _only_errors(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _remove_body(xml: str, name: str) -> str:
    root = ElementTree.fromstring(xml)
    bodies = root.find("worldbody")
    assert bodies is not None
    for body in bodies.findall("body"):
        if body.get("name") == name:
            bodies.remove(body)
    return ElementTree.tostring(root, encoding="unicode")


@cache
def _compiled_torques() -> Any:
    return require("numba", package="ileed-lab").njit(cache=True)(_arm_torques)


def _arm_torques(  # type: ignore[no-untyped-def]  # numba infers the types
    qpos, qvel, position, turn, shift_by, turn_by, inertia, bias, goal, goal_turn, home, strength
):  # pragma: no cover
    """Torques of the seven joints by operational-space control with position and rotation uncoupled.

    With Jacobian J (its rows for position P and rotation R) and inertia M: f = (P M⁻¹ Pᵀ)⁻¹ (150 error - 24.5 speed),
    likewise for rotation; torque = Jᵀ (f, t) + gravity and Coriolis + (I - Jᵀ (J M⁻¹ Jᵀ)⁻¹ J M⁻¹) M (10 (home - q) -
    6.3 q'), whose last term moves the elbow to its home position without moving the hand.
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
