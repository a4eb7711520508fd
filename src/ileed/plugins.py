"""What other packages contribute: commands and tasks, which they name in their entry points.

A package adds a command by an entry point of the group `ileed.commands` whose value is an `ileed.cli.Command`, and a
task by one of the group `ileed.tasks` whose value, called without arguments, returns an `ileed.tasks.AbstractTask`. The
name of the entry point is what a user types. What the library brings itself goes before a contribution of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ileed.errors import IleedError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["COMMANDS", "TASKS", "contributed", "loaded", "refuse_without_lab"]

COMMANDS, TASKS = "ileed.commands", "ileed.tasks"

_LAB = {
    COMMANDS: ("demonstrate", "pretrain", "reproduce", "tables", "chess"),
    TASKS: ("minigrid/skills", "robot/reach", "robot/square"),
}


@cache
def contributed(group: str) -> Mapping[str, EntryPoint]:
    """Every entry point of a group by its name, of all packages that are installed; nothing is imported for it."""
    from importlib.metadata import entry_points  # takes a while, and most commands do not need it

    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}


def loaded(point: EntryPoint) -> Any:
    """What an entry point stands for, or one sentence on why it cannot be had."""
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist is not None else point.module
        raise IleedError(
            f"{point.name}, which the package {package} contributes, cannot be loaded ({error}): install {package} anew"
        ) from error


def refuse_without_lab(group: str, name: str) -> None:
    """Say what to install where `name` comes with the package ileed-lab, and that is absent."""
    if name in _LAB[group] and name not in contributed(group):
        what = f"the command `ileed {name}`" if group == COMMANDS else f"the task {name}"
        raise IleedError(
            f"{what} comes with the package ileed-lab, which is not installed: pip install ileed-lab, or from a "
            "checkout of the repository pip install ./lab"
        )
