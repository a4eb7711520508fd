"""Environments: tasks that can be played, rollouts of actors in them, and demonstrators of known skill.

`ileed.envs.evaluation` scores policies, `ileed.envs.simulation` simulates demonstrators.
"""

from ileed.envs.abstract_task import AbstractTask, Actor, Playthrough, Progress, as_actor
from ileed.envs.tasks import all_names, expert, names, task

__all__ = ["AbstractTask", "Actor", "Playthrough", "Progress", "all_names", "as_actor", "expert", "names", "task"]
