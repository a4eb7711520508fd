"""Candidates: widths of the policy and demonstrator models, in the order in which they are preferred.

Where the data cannot tell candidates apart, the first is preferred: the narrowest, or the simplest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from ileed.errors import SettingsError, instance_of, list_of
from ileed.model.batch import Sizes
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.parts import CANDIDATES
from ileed.model.policies import AbstractPolicyHead

Model = AbstractDemonstratorModel[Any]
Hidden = tuple[int, ...]

MODEL_FOLDS, MODEL_RESTARTS = 3, 6
"""Folds of the episodes, and restarts of each, for demonstrator models."""

LADDER: tuple[Hidden, ...] = ((4, 4), (8, 8), (32, 32), (128, 128))
"""Hidden layers that are compared."""
CONTINUOUS_LADDER = LADDER[1:]
"""The same for continuous actions, whose mixtures four units never suffice for."""
WIDTH_RESTARTS = 3
"""Restarts of each width: enough for a narrow network not to be judged by one poor start."""


@final
@dataclass(frozen=True)
class Candidate:
    """Settings in which a method differs from others that it is compared with, by name."""

    name: str
    settings: Mapping[str, Any]
    costly: bool = False
    """Whether it is tried only where the candidate before it is preferred to all earlier ones."""


def widths(policy: AbstractPolicyHead, ladder: Sequence[Hidden]) -> list[Candidate]:
    """The policy with each of these hidden layers, of which the last is costly after two others."""
    names = [f"{type(policy).__name__}(hidden={hidden})" for hidden in ladder]
    return [
        Candidate(name, {"policy": policy.resized(hidden)}, costly=2 <= number == len(ladder) - 1)
        for number, (name, hidden) in enumerate(zip(names, ladder, strict=True))
    ]


def wider_than(given: Hidden) -> tuple[Hidden, ...]:
    """The given hidden layers, and those of the ladder that have more units."""
    return (given, *(hidden for hidden in LADDER if sum(hidden) > sum(given)))


def applicable(models: Sequence[Model] | None, sizes: Sizes) -> list[Model]:
    """The demonstrator models that describe data of these sizes; those that a user names must."""
    if models is None:
        return [model for model in CANDIDATES if _describes(model, sizes)]
    models = list_of("models", models)
    for model in models:
        instance_of("models", model, AbstractDemonstratorModel, rule="pass demonstrator models, or None for all")
        model.check(sizes)
    if not models:
        raise SettingsError("models names none: pass demonstrator models, or None for all")
    return models


def demonstrator_models(models: Sequence[Model]) -> list[Candidate]:
    """These demonstrator models."""
    return [Candidate(_name(model), {"demonstrator": model}) for model in models]


def _describes(model: Model, sizes: Sizes) -> bool:
    try:
        model.check(sizes)
    except SettingsError:
        return False
    return True


def _name(model: Model) -> str:
    """A model with the settings that are not its defaults."""
    usual = type(model)()
    own = {name: value for name, value in vars(model).items() if value != getattr(usual, name)}
    return f"{type(model).__name__}({', '.join(f'{name}={value!r}' for name, value in own.items())})"
