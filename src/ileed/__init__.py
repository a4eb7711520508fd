"""ileed: who is good at what, in which states, and one policy learned from everybody's demonstrations."""

import sys
from types import ModuleType

TYPE_CHECKING = False  # as in `typing`, whose import would take most of the time that this one takes

if TYPE_CHECKING:
    from ileed._names import *  # noqa: F403

__all__ = [  # noqa: F405
    "Boltzmann",
    "CategoricalMLP",
    "Constant",
    "DemonstrationError",
    "Demonstrations",
    "Embedded",
    "Expertise",
    "Fitted",
    "Ileed",
    "IleedError",
    "LatentDynamics",
    "MixtureLSTM",
    "MixtureMLP",
    "OneVersusRest",
    "Outcome",
    "Perfect",
    "Policy",
    "Progress",
    "RunError",
    "Scores",
    "SettingsError",
    "Skills",
    "UniformMixture",
    "VarianceScaling",
    "bc",
    "bc_rnn",
    "by_column",
    "by_mask",
    "by_one",
    "demonstrate",
    "evaluate",
    "from_table",
    "label_robomimic",
    "load",
    "rank_loss",
    "rate",
    "read",
    "read_parquet",
    "read_robomimic",
    "report",
    "shipped",
    "write_parquet",
    "write_robomimic",
]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would take this for a promise of any name at all

    def __getattr__(name: str) -> object:
        """The public names, all of them with the first that is used; or a module of the package."""
        from importlib import import_module
        from importlib.util import find_spec

        if name in __all__:
            loaded = import_module("ileed._names")
            globals().update({each: getattr(loaded, each) for each in __all__})
            return globals()[name]
        if not name.startswith("__") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps `ileed.report` the function, whichever is asked for first, that or the module of its name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
