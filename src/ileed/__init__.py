"""Estimate how good each demonstrator is in which states, and learn one policy from all demonstrations."""

import sys
from types import ModuleType

TYPE_CHECKING = False  # as in `typing`, which would take most of the import time of this module

if TYPE_CHECKING:
    from ileed._names import *  # noqa: F403

__version__ = "0.1.0"
_FUNCTIONS = ("report",)  # public functions with the name of their module


def __dir__() -> list[str]:
    _load_names()
    return sorted(globals())


def _load_names() -> None:
    from importlib import import_module

    found = vars(import_module("ileed._names")).items()
    names = {name: value for name, value in found if not name.startswith("_")}
    globals().update(names, __all__=sorted(names))


if not TYPE_CHECKING:  # a type checker would conclude that every name exists

    def __getattr__(name: str) -> object:
        """A module of the package, or a public name; the first one imports them all."""
        from importlib import import_module
        from importlib.util import find_spec

        if name not in _FUNCTIONS and not name.startswith("__") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        if name == "__all__" or not name.startswith("__"):
            _load_names()
        if name in globals():
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps `ileed.report` a function when the module of this name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _FUNCTIONS or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
