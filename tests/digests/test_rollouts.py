"""Simulated demonstrators and rollouts keep their bits: records in `results/` and data that ship depend on them.

A digest is of every column of a rollout, or of every episode's reward. Continuous numbers are rounded to 6 digits after
the point, since tanh and the quantiles of a Gaussian differ in the last bit between builds of torch and numpy. The
digests belong to the versions of minigrid, gymnasium, EnvPool and MuJoCo in `constraints.txt`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ileed.envs import expert, names, task
from ileed.envs.gymnasium import GymnasiumTask
from ileed.envs.minigrid import MiniGridTask
from ileed.envs.simulation import POPULATIONS, demonstrate, demonstrator_actor
from ileed.model.demonstrators import Boltzmann, OneVersusRest, VarianceScaling
from ileed_lab.minigrid.noise import Biased, Persistent
from ileed_lab.minigrid.sequence import actor_by_stage, demonstrator_rewards, experts, multi_skill, multi_skill_task
from ileed_lab.reach import ReachExpert, ReachTask
from ileed_lab.square.task import SquareTask

pytest.importorskip("gymnasium", reason="playing needs gymnasium")
pytest.importorskip("minigrid", reason="playing needs the extra 'minigrid'")

DIGITS = 6


def digest(*columns):
    found = hashlib.sha256()
    for column in columns:
        values = np.asarray(column)
        if values.dtype.kind == "f":
            values = values.astype(np.float64).round(DIGITS) + 0.0  # no negative zero
        found.update(repr((values.shape, values.dtype.str)).encode() + np.ascontiguousarray(values).tobytes())
    return found.hexdigest()[:16]


def demonstrations(*arguments, **settings):
    data = demonstrate(*arguments, **settings)
    phase = [data.skills["phase"].astype("U20")] if "phase" in data.skills else []
    columns = (data.observations, data.actions, data.demonstrator, data.episode, data.rewards, data.terminals)
    return digest(*columns, *phase)


def play(world, actor, *, steps):
    played = world.play(actor, steps=steps, seeds=[1, 2])
    columns = (played.observations, played.actions, played.rewards, played.terminals, played.episode)
    return digest(*columns, played.environment)


def score(world, policy, *, skill, episodes=60, environments=16, seed=6):
    """Of a demonstrator, whose chance is drawn for all rows of a batch together, and so shows the order of the rows."""
    actor = demonstrator_actor(policy, world, skill=skill, seed=seed)
    return digest(world.score(actor, episodes=episodes, seed=seed, environments=environments))


def by_view(count):
    """An actor without a hidden state or chance that uses every action."""
    return lambda observations, starts: (observations.astype(np.int64) @ np.arange(1, 148)) % count


def push(observations, starts):
    """Push the cart to the side to which the pole falls."""
    return (observations @ np.array([0.1, 0.3, 3.0, 1.0]) > 0).astype(np.int64)


def steer(size):
    """A continuous actor that depends on the first numbers that it sees."""
    return lambda observations, starts: np.tanh(observations[:, :size].astype(np.float64))


def reach(**settings):
    skill = {"ann": {"far": 0.2, "near": 0.9}, "bob": 0.5}
    return demonstrations(ReachTask(), ReachExpert(), skill=skill, steps=200, seed=2, **settings)


def cartpole():
    return GymnasiumTask("CartPole-v1")


def pendulum():
    return GymnasiumTask("Pendulum-v1", max_steps=50)


def square():
    """Rounded to 3 digits after the point: MuJoCo's steps add up what differs between processors."""
    pytest.importorskip("robosuite", reason="Square needs robosuite")
    played = SquareTask().play(steer(7), steps=30, seeds=[1, 2])
    return digest(played.observations.round(3), played.actions.round(3), played.rewards, played.episode)


def skills(policy, skill):
    return demonstrations(multi_skill_task(), policy, skill=skill, steps=700, seed=1)


def reward(world, policy, skill, **settings):
    """What a demonstrator earns in each stage; tasks are scored in EnvPool where it is installed."""
    pytest.importorskip("envpool.minigrid", reason="fast scoring needs the extra 'fast'")
    return digest(demonstrator_rewards(world, policy, skill=skill, episodes=30, seed=3, **settings))


NOISE = {
    "one versus rest": {"demonstrator": OneVersusRest()},
    "Boltzmann": {"demonstrator": Boltzmann(), "temperature": 3.0},
    "sampled": {"temperature": 1.0},
    "persistent": {"demonstrator": Persistent()},
    "biased": {"demonstrator": Biased((2,))},
}
CASES = {
    **{
        f"{name}, demonstrations": lambda name=name: demonstrations(
            task(name), expert(name), skill=POPULATIONS["unif"], steps=200, seed=3
        )
        for name in names()
    },
    **{
        f"{name}, play": lambda name=name: play(task(name), by_view(task(name).action_count), steps=300)
        for name in names()
    },
    **{
        f"{name}, score in {engine}": lambda name=name, engine=engine: score(
            MiniGridTask(name, engine=engine), expert(name), skill=0.7
        )
        for name in names()
        for engine in ("minigrid", "envpool")
    },
    **{
        f"minigrid/unlock, {noise}": lambda settings=settings: demonstrations(
            task("minigrid/unlock"),
            expert("minigrid/unlock"),
            **settings,
            skill={"ann": 0.3, "bob": 0.8},
            steps=300,
            seed=5,
        )
        for noise, settings in NOISE.items()
    },
    "minigrid/empty, score in several blocks of EnvPool": lambda: score(
        MiniGridTask("minigrid/empty", engine="envpool"),
        expert("minigrid/empty"),
        skill=0.9,
        episodes=3_000,
        environments=256,
    ),
    "minigrid/lava, rewards of a demonstrator": lambda: reward(
        task("minigrid/lava"), expert("minigrid/lava"), 0.6, demonstrator=Biased((0, 1))
    ),
    "minigrid/skills, demonstrations": lambda: skills(
        actor_by_stage(experts(multi_skill_task()), multi_skill_task()), multi_skill(0.2)
    ),
    "minigrid/skills, demonstrations of one policy": lambda: skills(by_view(7), [0.5]),
    "minigrid/skills, play": lambda: play(multi_skill_task(), by_view(7), steps=700),
    "minigrid/skills, score in EnvPool": lambda: digest(
        multi_skill_task().score(expert("minigrid/empty"), episodes=30, seed=3)
    ),
    "minigrid/skills, rewards of a demonstrator": lambda: reward(
        multi_skill_task(), experts(multi_skill_task()), multi_skill(0.1)["skilled in lava"]
    ),
    "robot/reach, demonstrations": reach,
    "robot/reach, demonstrations with a gripper": lambda: reach(
        demonstrator=VarianceScaling(scaled="standard_deviation", exempt=(2,))
    ),
    "robot/reach, play": lambda: play(ReachTask(), steer(3), steps=120),
    "robot/reach, score": lambda: score(
        ReachTask(), ReachExpert(), skill={"far": 0.01, "near": 0.005}, episodes=90, environments=32
    ),
    "robot/square, play": square,
    "CartPole-v1, demonstrations": lambda: demonstrations(cartpole(), push, skill=(0.2, 0.9), steps=300, seed=4),
    "CartPole-v1, play": lambda: play(cartpole(), push, steps=600),
    "CartPole-v1, score": lambda: score(cartpole(), push, skill=0.3),
    "Pendulum-v1, play": lambda: play(pendulum(), steer(1), steps=120),
    "Pendulum-v1, score": lambda: digest(pendulum().score(steer(1), episodes=5, seed=2)),
}
DIGESTS = {
    "minigrid/empty, demonstrations": "90fcf65f44592581",
    "minigrid/obstacles, demonstrations": "3d5e93d87928c632",
    "minigrid/lava, demonstrations": "37715941216d8631",
    "minigrid/unlock, demonstrations": "600b4bc485f1df7b",
    "minigrid/empty, play": "1b9e4088b42d4f06",
    "minigrid/obstacles, play": "0da1fde86dba9956",
    "minigrid/lava, play": "1a69e3a623e1b86f",
    "minigrid/unlock, play": "4d30eb05711ab89a",
    "minigrid/empty, score in minigrid": "b97b477e119100fe",
    "minigrid/empty, score in envpool": "73b6f7b126ccfdaa",
    "minigrid/obstacles, score in minigrid": "e49d240987531e13",
    "minigrid/obstacles, score in envpool": "c1c6c779ffb70382",
    "minigrid/lava, score in minigrid": "1cb8750a8c3be8a1",
    "minigrid/lava, score in envpool": "b7af3d40596b6ce7",
    "minigrid/unlock, score in minigrid": "ce131ccfda1b5456",
    "minigrid/unlock, score in envpool": "4763ca3a53dfc8ea",
    "minigrid/unlock, one versus rest": "c6dfbb6883b22d96",
    "minigrid/unlock, Boltzmann": "e7ec507d4f2a23cc",
    "minigrid/unlock, sampled": "6c163df54f48c618",
    "minigrid/unlock, persistent": "6de76e64604bf941",
    "minigrid/unlock, biased": "a686158306ac3e7e",
    "minigrid/empty, score in several blocks of EnvPool": "091fdf055bc12f68",
    "minigrid/lava, rewards of a demonstrator": "abe2a64ee8f111cd",
    "minigrid/skills, demonstrations": "a658f622d7cfac40",
    "minigrid/skills, demonstrations of one policy": "902bf527fd26e511",
    "minigrid/skills, play": "b6818647604ed01f",
    "minigrid/skills, score in EnvPool": "b8dc87cd3b64b12b",
    "minigrid/skills, rewards of a demonstrator": "da70511643f8fe93",
    "robot/reach, demonstrations": "13bdd6aeec9863ce",
    "robot/reach, demonstrations with a gripper": "87c6c2f2acae760b",
    "robot/reach, play": "337e88ba43b5b8f7",
    "robot/reach, score": "b509ae72750494b0",
    "robot/square, play": "5a562f02ecbca6f5",
    "CartPole-v1, demonstrations": "16b6c9c4675ee011",
    "CartPole-v1, play": "f9352c1cfdb458e2",
    "CartPole-v1, score": "fb31585f3d42be1d",
    "Pendulum-v1, play": "c5551dc05257c430",
    "Pendulum-v1, score": "a752bafef8dd2bc7",
}


LONG = {"robot/square, play": pytest.mark.campaign}


@pytest.mark.parametrize("case", [pytest.param(case, marks=LONG.get(case, ())) for case in CASES])
def test_bits_are_those_that_were_recorded(case):
    if "EnvPool" in case or "envpool" in case:
        pytest.importorskip("envpool.minigrid", reason="fast scoring needs the extra 'fast'")
    assert CASES[case]() == DIGESTS[case]
