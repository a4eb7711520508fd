"""Registry of the parts of a model: those of the library, and those of other packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, get_origin

from ileed import plugins
from ileed.errors import IleedError, brief
from ileed.model import demonstrators as models
from ileed.model import expertise, policies, scaling, slips

_ABSTRACT = (policies.AbstractPolicyHead, models.AbstractDemonstratorModel, expertise.AbstractExpertise)
_KINDS = (*_ABSTRACT, expertise.LatentDynamics)
OWN_PARTS: tuple[type, ...] = tuple(
    found
    for module in (policies, models, slips, scaling, expertise)
    for name, found in vars(module).items()
    if isinstance(found, type) and is_dataclass(found) and not name.startswith(("_", "Abstract"))
    if found.__module__ == module.__name__ and issubclass(found, _KINDS)
)
"""Every part that these modules define, in order."""


def check_part(name: str, found: Any) -> type:
    """A contributed part; anything else is refused."""
    is_part = isinstance(found, type) and is_dataclass(found) and issubclass(found, _ABSTRACT)
    if not is_part or found.__name__ != name:
        raise IleedError(
            f"the entry point {name} of the group {plugins.PARTS} is {brief(found)}, but must be a frozen dataclass of "
            "that name: a policy head, a demonstrator model or an expertise"
        )
    return found


PARTS: plugins.Registry[type] = plugins.Registry(plugins.PARTS, {kind.__name__: kind for kind in OWN_PARTS}, check_part)


def parts_of_kind(annotation: Any) -> Sequence[Any]:
    """The library's parts that a setting with this annotation accepts."""
    kind = get_origin(annotation) or annotation
    return [part for part in OWN_PARTS if isinstance(kind, type) and issubclass(part, kind) and kind is not object]


_CANDIDATES = [each for part in parts_of_kind(models.AbstractDemonstratorModel) for each in part.candidates().items()]
CANDIDATES: tuple[models.AbstractDemonstratorModel[Any], ...]
CANDIDATES = tuple(model for _, model in sorted(_CANDIDATES, key=lambda each: each[0]))
"""The demonstrator models that `ileed.compare` tries if they describe the data, the simplest first."""
