"""The parts of a model by name: those of the library, and those that other packages contribute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, get_origin

from ileed import plugins
from ileed.checking import shown
from ileed.errors import IleedError
from ileed.model.demonstrators import (
    AbstractDemonstratorModel,
    Boltzmann,
    OneVersusRest,
    UniformMixture,
    VarianceScaling,
)
from ileed.model.dynamics import LatentDynamics
from ileed.model.expertise import AbstractExpertise, Constant, Embedded, Perfect, Skills
from ileed.model.policies import AbstractPolicyHead, CategoricalMLP, MixtureLSTM, MixtureMLP

OWN_PARTS = (
    *(CategoricalMLP, MixtureMLP, MixtureLSTM, UniformMixture, OneVersusRest, Boltzmann, VarianceScaling),
    *(Embedded, Constant, Perfect, Skills, LatentDynamics),
)
_ABSTRACT: tuple[type, ...] = (AbstractPolicyHead, AbstractDemonstratorModel, AbstractExpertise)


def check_part(name: str, found: Any) -> type:
    """A contributed part, or one sentence on why it cannot be one."""
    is_part = isinstance(found, type) and is_dataclass(found) and issubclass(found, _ABSTRACT)
    if not is_part or found.__name__ != name:
        raise IleedError(
            f"the entry point {name} of the group {plugins.PARTS} is {shown(found)}, but must be a frozen dataclass of "
            "that name: a policy head, a demonstrator model or an expertise"
        )
    return found


PARTS: plugins.Registry[type] = plugins.Registry(plugins.PARTS, {kind.__name__: kind for kind in OWN_PARTS}, check_part)


def parts_of_kind(annotation: Any) -> Sequence[type]:
    """The library's parts that a setting of this type takes."""
    kind = get_origin(annotation) or annotation
    return [part for part in OWN_PARTS if isinstance(kind, type) and issubclass(part, kind) and kind is not object]
