"""Model parts, formats, commands and tasks that other packages contribute through entry points.

| group | name | value |
|---|---|---|
| `ileed.parts` | the name of the class | a frozen dataclass: a policy head, a demonstrator model or an expertise |
| `ileed.formats` | the name of the format | an `ileed.formats.AbstractFormat` |
| `ileed.commands` | the word that a user types after `ileed` | an `ileed.cli.Command` |
| `ileed.tasks` | the name of the task | a function without arguments that returns an `ileed.envs.AbstractTask` |

The library's own objects take precedence over contributions of the same name.
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
_Object = TypeVar("_Object")

_LAB = {
    COMMANDS: ("demonstrate", "pretrain", "reproduce", "tables", "chess"),
    TASKS: ("minigrid/skills", "robot/reach", "robot/square"),
}


@cache
def contributed(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group in all installed packages, by name; nothing is imported."""
    from importlib.metadata import entry_points  # slow, and most commands do not need it

    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}


def loaded(point: EntryPoint) -> Any:
    """The object that an entry point names; an `IleedError` if it cannot be imported for any reason."""
    try:
        return point.load()
    except Exception as error:  # importing a module of another package may raise anything
        package = point.dist.name if point.dist is not None else point.module
        raise IleedError(
            f"{point.name}, which the package {package} contributes, cannot be loaded ({brief(error)}): reinstall, "
            f"update or uninstall {package}"
        ) from error


def refuse_without_lab(group: str, name: str) -> None:
    """Refuse a name that comes with the package ileed-lab if this is not installed."""
    if name in _LAB[group] and name not in contributed(group):
        what = f"the command `ileed {name}`" if group == COMMANDS else f"the task {name}"
        raise IleedError(
            f"{what} comes with the package ileed-lab, which is not installed: pip install ileed-lab, or pip install "
            "./lab in a checkout of the repository"
        )


@final
class Registry(Mapping[str, _Object]):
    """Objects by name: the library's own, and the contributions to a group, which are loaded on access."""

    def __init__(self, group: str, own: Mapping[str, _Object], check: Callable[[str, Any], _Object]) -> None:
        self._group, self._own, self._check = group, dict(own), check

    def __getitem__(self, name: str) -> _Object:
        if name in self._own:
            return self._own[name]
        return self._check(name, loaded(contributed(self._group)[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._own, *contributed(self._group))))

    def usable(self, broken: list[IleedError] | None = None) -> Iterator[tuple[str, _Object]]:
        """The names and objects that can be loaded; the errors of all others are added to `broken`.

        A broken package must not break calls that do not need it.
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
        return sum(1 for _ in self)
