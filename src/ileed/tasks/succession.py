"""Successions: tasks played one after the other, each calling for a skill of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt

from ileed._torch import stream
from ileed.errors import SettingsError
from ileed.tasks import AbstractTask, Actor, Playthrough, Progress, World, in_lockstep
from ileed.tasks.minigrid import MiniGridTask, episode_seed, make_environment

__all__ = ["SUCCESSIONS", "Succession", "part_seed", "parts_of"]

SUCCESSIONS: Mapping[str, tuple[str, ...]] = {
    "minigrid/skills": ("minigrid/unlock", "minigrid/lava", "minigrid/empty"),
}
"""The successions by name, with the tasks that each one is made of, in order; the paper's multi-skill task."""


@final
@dataclass(frozen=True)
class Succession(AbstractTask):
    """Several tasks in a row, on to the next after a failure as after a success; an episode is worth their mean.

    Nothing in an observation tells an actor which part it is in, other than what is seen there. The parts must look
    alike (as many numbers, as many actions) and have different names. Every part begins with `starts`, so that an
    actor with a memory does not carry it from one part into the next.
    """

    _name: str
    parts: tuple[MiniGridTask, ...]
    """What is played, in this order."""

    def __post_init__(self) -> None:
        if not self.parts:
            raise SettingsError(f"{self._name} has no parts; a succession needs at least one task")
        if len({part.name for part in self.parts}) < len(self.parts):
            raise SettingsError(f"{self} has the same part twice; skill is told by part, so each may occur once")
        for what in ("observation_size", "action_count"):
            found = {part.name: getattr(part, what) for part in self.parts}
            if len(set(found.values())) > 1:
                raise SettingsError(f"the parts of {self._name} differ in {what}, {found}; one actor must fit them all")

    def __repr__(self) -> str:
        return f"Succession({self._name!r}, {' > '.join(part.name for part in self.parts)})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def observation_size(self) -> int:
        return self.parts[0].observation_size

    @property
    def action_count(self) -> int:
        return self.parts[0].action_count

    def score(
        self, actor: Actor, *, episodes: int, seed: int, environments: int = 256, progress: Progress | None = None
    ) -> npt.NDArray[np.float64]:
        """Reward of each of exactly `episodes` episodes: the mean of what its parts earned.

        Progress counts the parts' episodes.
        """
        everything = self.score_parts(actor, episodes=episodes, seed=seed, environments=environments, progress=progress)
        return np.asarray(everything.mean(axis=0))

    def score_parts(
        self,
        actor: Actor,
        *,
        episodes: int,
        seed: int,
        environments: int = 256,
        progress: Progress | None = None,
    ) -> npt.NDArray[np.float64]:
        """Reward of every part of each of `episodes` episodes, (part, episode); their mean is `score`.

        A part's episodes do not depend on what went before, so each part is scored by itself, with a seed of its own.
        """
        return np.stack(
            [
                part.score(
                    actor,
                    episodes=episodes,
                    seed=part_seed(self, part, seed),
                    environments=environments,
                    progress=progress and _share(progress, number, len(self.parts)),
                )
                for number, part in enumerate(self.parts)
            ]
        )

    def play(self, actor: Actor, *, steps: int, seeds: Sequence[int], progress: Progress | None = None) -> Playthrough:
        """Play `steps` steps in each of `len(seeds)` environments at once, part after part, and keep them all.

        Here an episode is one part's: episode k of an environment is of part k modulo their number, so an actor can
        count `starts` to know where it is. `phase` says so of every step. The last episode is cut where the steps are
        spent.
        """
        worlds = [[make_environment(part.name) for part in self.parts] for _ in seeds]

        def begin(environment: int, episode: int) -> tuple[World, npt.NDArray[np.uint8]]:
            world = worlds[environment][episode % len(self.parts)]
            return world, world.reset(seed=episode_seed(seeds[environment], episode))[0]

        played = in_lockstep(self, actor, begin, steps=steps, environments=len(seeds), progress=progress)
        first_episode = played.episode.reshape(len(seeds), steps)[:, 0]
        return replace(played, phase=(played.episode - first_episode.repeat(steps)) % len(self.parts))


def parts_of(task: AbstractTask) -> tuple[AbstractTask, ...]:
    """The parts of a succession; any other task is its only part."""
    return task.parts if isinstance(task, Succession) else (task,)


def part_seed(task: AbstractTask, part: AbstractTask, seed: int) -> int:
    """The seed that `score` gives a part, so that chance in one part of a succession tells nothing about another."""
    return stream(seed, "part", part.name).initial_seed() if isinstance(task, Succession) else seed


def _share(progress: Progress, number: int, count: int) -> Progress:
    """Progress within one of `count` equal pieces of work, told as progress of the whole."""
    return lambda done, total: progress(number * total + done, count * total)
