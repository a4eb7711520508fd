"""What other packages contribute: parts of a model, formats, commands and tasks, which they name in entry points.

| group | name | value |
|---|---|---|
| `ileed.parts` | the name of the class | a frozen dataclass: a policy head, a demonstrator model or an expertise |
| `ileed.formats` | the name of the format | an `ileed.formats.AbstractFormat` |
| `ileed.commands` | the word that a user types after `ileed` | an `ileed.cli.Command` |
| `ileed.tasks` | the name of the task | a function without arguments that returns an `ileed.envs.AbstractTask` |

What the library brings itself goes before a contribution of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, final

from ileed.errors import IleedError, brief

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["COMMANDS", "FORMATS", "PARTS", "TASKS", "Registry", "contributed", "loaded", "refuse_without_lab"]

COMMANDS, TASKS, PARTS, FORMATS = "ileed.commands", "ileed.tasks", "ileed.parts", "ileed.formats"
_Thing = TypeVar("_Thing")

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
    """The object that an entry point names; an `IleedError` where it cannot be imported, for whatever reason."""
    try:
        return point.load()
    except Exception as error:  # the module of another package may raise anything when it is imported
        package = point.dist.name if point.dist is not None else point.module
        raise IleedError(
            f"{point.name}, which the package {package} contributes, cannot be loaded ({brief(error)}): reinstall or "
            f"update {package}, or uninstall it"
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

    def __getitem__(self, name: str) -> _Thing:
        if name in self._own:
            return self._own[name]
        return self._check(name, loaded(contributed(self._group)[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._own, *contributed(self._group))))

    def usable(self, broken: list[IleedError] | None = None) -> Iterator[tuple[str, _Thing]]:
        """Every name with its thing, loaded one by one; errors of contributions are added to `broken`.

        One broken package must not break calls that do not need it.
        """
        for name in self:
            try:
                found = self[name]
            except IleedError as error:
                if broken is not None:
                    broken.append(error)
            else:
                yield name, found

    def __len__(self) -> int:
        return len(tuple(iter(self)))
