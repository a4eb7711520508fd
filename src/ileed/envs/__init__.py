"""Environments: tasks that can be played, rollouts of actors in them, and demonstrators of known skill.

`ileed.envs.evaluation` scores policies, `ileed.envs.simulation` simulates demonstrators. Knows nothing of curation,
reports or commands.

>>> task("minigrid/obstacles")
MiniGridTask(name='minigrid/obstacles')
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ileed import plugins
from ileed.envs.abstract_task import AbstractTask, Actor, Playthrough, Progress, as_actor
from ileed.errors import SettingsError, did_you_mean, text

if TYPE_CHECKING:
    from ileed.envs.minigrid import Expert

__all__ = ["AbstractTask", "Actor", "Playthrough", "Progress", "all_names", "as_actor", "expert", "names", "task"]


def task(name: str) -> AbstractTask:
    """The task of that name: one of `names()`, or one that another package contributes.

    Packages contribute tasks by entry points of the group `ileed.tasks`; ileed-lab has minigrid/skills, robot/reach and
    robot/square.

    >>> task("minigrid/lava").action_count
    7
    """
    from ileed.envs.minigrid import MiniGridTask

    _check_known(name)
    if name in names():
        return MiniGridTask(name)
    return cast(AbstractTask, plugins.loaded(plugins.contributed(plugins.TASKS)[name])())


def expert(name: str) -> Expert:
    """The trained policy that ships for a task; it needs no other package.

    >>> expert("minigrid/empty").action_count
    7
    """
    from ileed.envs.minigrid import shipped_expert

    _check_known(name)
    if name not in names():
        raise SettingsError(f"no trained expert ships for {name}: those that ship are for {', '.join(names())}")
    return shipped_expert(name)


def names() -> tuple[str, ...]:
    """The tasks for which a trained `expert` ships."""
    from ileed.envs.minigrid import ENVIRONMENTS

    return tuple(ENVIRONMENTS)


def all_names() -> tuple[str, ...]:
    """All names that `task` accepts."""
    return tuple(dict.fromkeys((*names(), *plugins.contributed(plugins.TASKS))))


def _check_known(name: str) -> None:
    text("the name of a task", name)
    plugins.refuse_without_lab(plugins.TASKS, name)
    if name not in (known := all_names()):
        raise SettingsError(f"there is no task {name!r}{did_you_mean(name, known)}; the tasks are {', '.join(known)}")
