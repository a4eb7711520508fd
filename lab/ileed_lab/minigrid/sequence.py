"""Sequences of tasks: stages played one after the other, each calling for a skill of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed.envs import expert
from ileed.envs.abstract_task import (
    AbstractTask,
    Actor,
    Array,
    Numbers,
    Playthrough,
    Progress,
    SeparateEnvironments,
    actions_of,
    as_actor,
    episode_seed,
    play_rows,
)
from ileed.envs.minigrid import Expert, MiniGridTask, make_environment
from ileed.envs.simulation import Noise, Skill, demonstrator_actor
from ileed.errors import SettingsError
from ileed.parallel.runtime import stream

__all__ = [
    "STAGES",
    "TaskSequence",
    "actor_by_stage",
    "demonstrator_rewards",
    "experts",
    "multi_skill",
    "multi_skill_task",
    "stage_seed",
    "stages_of",
]

STAGES = ("minigrid/unlock", "minigrid/lava", "minigrid/empty")
"""The tasks that the paper's multi-skill task, 'minigrid/skills', is made of, in order."""


@final
@dataclass(frozen=True)
class TaskSequence(AbstractTask):
    """Several tasks in a row, on to the next after a failure as after a success; an episode is worth their mean.

    Nothing in an observation tells an actor which stage it is in, other than what is seen there. The stages must look
    alike (as many numbers, as many actions) and have different names. Every stage begins with `starts`, so that a
    recurrent actor does not carry its hidden state from one stage into the next.
    """

    name: str
    stages: tuple[MiniGridTask, ...]
    """What is played, in this order."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise SettingsError(f"{self.name} has no stages; a sequence needs at least one task")
        if len({stage.name for stage in self.stages}) < len(self.stages):
            raise SettingsError(f"{self} has the same stage twice; skill is given by stage, so each may occur once")
        for what in ("observation_size", "action_count"):
            found = {stage.name: getattr(stage, what) for stage in self.stages}
            if len(set(found.values())) > 1:
                raise SettingsError(f"the stages of {self.name} differ in {what}, {found}; one actor must fit them all")
            object.__setattr__(self, what, found[self.stages[0].name])
        object.__setattr__(self, "phases", tuple(stage.name for stage in self.stages))  # what skill differs between

    def __repr__(self) -> str:
        return f"TaskSequence({self.name!r}, {' > '.join(stage.name for stage in self.stages)})"

    def phase(self, observations: Array, episodes: Numbers | None = None) -> Numbers:
        """The stage of each step of `play`, by the number of its episode in its environment."""
        if episodes is None:
            raise SettingsError(
                f"an observation of {self.name} does not show the stage, so an actor cannot have a skill for each; "
                "demonstrator_rewards scores a demonstrator stage by stage"
            )
        return episodes % len(self.stages)

    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 256, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        """Reward of each of exactly `episodes` episodes: the mean of what its stages earned.

        Progress counts the stages' episodes.
        """
        found = self.score_stages(actor, episodes=episodes, seed=seed, environments=environments, progress=progress)
        return np.asarray(found.mean(axis=0))

    def score_stages(
        self,
        actor: Actor,
        *,
        episodes: int,
        seed: int,
        environments: int = 256,
        progress: Progress | None = None,
    ) -> npt.NDArray[np.float64]:
        """Reward of every stage of each of `episodes` episodes, (stage, episode); their mean is `score`.

        A stage's episodes do not depend on what went before, so each stage is scored by itself, with its own seed.
        """
        return np.stack(
            [
                stage.score(
                    actor,
                    episodes=episodes,
                    seed=stage_seed(self, stage, seed),
                    environments=environments,
                    progress=progress and _share(progress, number, len(self.stages)),
                )
                for number, stage in enumerate(self.stages)
            ]
        )

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Play `steps` steps in each of `len(seeds)` environments at once, stage after stage, and keep them all.

        Here an episode is one stage's: episode k of an environment is of stage k modulo their number, so an actor can
        count `starts` to know where it is. `phase` says so of every step. The last episode is cut where the steps are
        spent.
        """
        worlds = [[make_environment(stage.name) for stage in self.stages] for _ in seeds]

        def begin(row: int, episode: int) -> tuple[Any, npt.NDArray[np.uint8]]:
            world = worlds[row][episode % len(self.stages)]
            return world, world.reset(seed=episode_seed(seeds[row], episode))[0]

        return play_rows(self, actor, SeparateEnvironments(begin), steps, len(seeds), progress)


def multi_skill_task() -> TaskSequence:
    """The paper's multi-skill task.

    >>> multi_skill_task()
    TaskSequence('minigrid/skills', minigrid/unlock > minigrid/lava > minigrid/empty)
    """
    return TaskSequence("minigrid/skills", tuple(MiniGridTask(stage) for stage in STAGES))


def multi_skill(beta: float) -> dict[str, dict[str, float]]:
    """The skills of the paper's three demonstrators in 'minigrid/skills': perfect in one stage, `beta` in the others.

    >>> multi_skill(0.1)["skilled in lava"]
    {'minigrid/unlock': 0.1, 'minigrid/lava': 1.0, 'minigrid/empty': 0.1}
    """
    return {
        f"skilled in {own.removeprefix('minigrid/')}": {stage: 1.0 if stage == own else beta for stage in STAGES}
        for own in STAGES
    }


def stages_of(task: AbstractTask) -> tuple[AbstractTask, ...]:
    """The stages of a sequence of tasks; any other task is its only stage."""
    return task.stages if isinstance(task, TaskSequence) else (task,)


def stage_seed(task: AbstractTask, stage: AbstractTask, seed: int) -> int:
    """The seed that `score` gives a stage, so that random numbers of different stages are independent."""
    # The records were scored with streams of this name.
    return stream(seed, "part", stage.name).initial_seed() if isinstance(task, TaskSequence) else seed


def experts(task: AbstractTask) -> dict[str, Expert]:
    """The trained policy that ships for each stage of a task, by the stage's name.

    >>> list(experts(multi_skill_task()))
    ['minigrid/unlock', 'minigrid/lava', 'minigrid/empty']
    """
    return {stage.name: expert(stage.name) for stage in stages_of(task)}


def actor_by_stage(policies: Mapping[str, Any], task: AbstractTask) -> Actor:
    """An actor for one rollout of `play` that follows, in each stage of a task, the policy of that stage's name.

    It knows the stage by counting starts. Each policy is shown all environments, and its actions are taken in those
    that are in its own stage.
    """
    stages = [stage.name for stage in stages_of(task)]
    if sorted(policies) != sorted(stages):
        raise SettingsError(
            f"the policies are for {', '.join(policies) or 'no stage'}; give one for each stage of {task.name}: "
            f"{', '.join(stages)}"
        )
    actors = [as_actor(policies[stage]) for stage in stages]
    episodes = np.empty(0, dtype=np.int64)

    def act(observations: npt.NDArray[Any], starts: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        nonlocal episodes
        rows = np.arange(len(starts))
        episodes = starts + (episodes if len(episodes) == len(rows) else np.full(len(rows), -1))
        actions = np.stack([actions_of(actor, task, observations, starts) for actor in actors])
        return np.asarray(actions[episodes % len(actors), rows])

    return act


def demonstrator_rewards(
    task: AbstractTask,
    policy: Any,
    *,
    skill: Skill,
    episodes: int,
    seed: int,
    demonstrator: Noise | None = None,
) -> npt.NDArray[np.float64]:
    """What a demonstrator of that skill earns in every stage of each of `episodes` episodes, (stage, episode).

    The mean over stages is an episode's reward; a task that is no sequence has one stage. In a sequence `policy` and
    `skill` may hold one for each stage, by name. Other settings are those of `ileed.envs.simulation.demonstrate`. A
    policy that is scored with the same seed meets the same beginnings.
    """
    sequence = isinstance(task, TaskSequence)

    def of(given: Any, stage: AbstractTask) -> Any:
        return given[stage.name] if sequence and isinstance(given, Mapping) else given

    return np.stack(
        [
            stage.score(
                demonstrator_actor(
                    of(policy, stage),
                    stage,
                    skill=of(skill, stage),
                    seed=stage_seed(task, stage, seed),
                    demonstrator=demonstrator,
                ),
                episodes=episodes,
                seed=stage_seed(task, stage, seed),
            )
            for stage in stages_of(task)
        ]
    )


def _share(progress: Progress, number: int, count: int) -> Progress:
    """Progress within one of `count` equal pieces of work, reported as progress of the whole."""
    return lambda done, total: progress(number * total + done, count * total)
