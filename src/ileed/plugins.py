"""What other packages contribute: parts of a model, readers, commands and tasks, which they name in entry points.

| group | name | value |
|---|---|---|
| `ileed.parts` | the name of the class | a frozen dataclass: a policy head, a demonstrator model or an expertise |
| `ileed.readers` | the ending of the files, without the dot | a function of `(path, *, demonstrator, ...)` |
| `ileed.commands` | the word that a user types after `ileed` | an `ileed.cli.Command` |
| `ileed.tasks` | the name of the task | a function without arguments that returns an `ileed.tasks.AbstractTask` |

What the library brings itself goes before a contribution of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, final

from ileed.errors import IleedError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["COMMANDS", "PARTS", "READERS", "TASKS", "Registry", "contributed", "loaded", "refuse_without_lab"]

COMMANDS, TASKS, PARTS, READERS = "ileed.commands", "ileed.tasks", "ileed.parts", "ileed.readers"
_Thing = TypeVar("_Thing")

_LAB = {COMMANDS: ("demonstrate", "pretrain", "reproduce", "tables", "chess"), TASKS: ("robot/square",)}


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


@final
class Registry(Mapping[str, _Thing]):
    """Things by name: the library's own, and those that other packages contribute to a group, loaded when asked for."""

    def __init__(self, group: str, own: Mapping[str, _Thing], check: Callable[[str, Any], _Thing]) -> None:
        self._group, self._own, self._check = group, dict(own), check

    def add(self, name: str, thing: _Thing) -> None:
        """Add one of the library's own."""
        self._own[name] = thing

    def __getitem__(self, name: str) -> _Thing:
        if name in self._own:
            return self._own[name]
        return self._check(name, loaded(contributed(self._group)[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._own, *contributed(self._group))))

    def __len__(self) -> int:
        return len(tuple(iter(self)))
