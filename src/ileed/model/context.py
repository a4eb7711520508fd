"""The context of an action: who took it, what came before it, and the demonstrator model's own parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from ileed._torch import Float
from ileed.demonstrations import Array
from ileed.errors import SettingsError
from ileed.model.batch import Batch, per_member
from ileed.nets import Pick


@final
@dataclass(frozen=True, eq=False)
class Context:
    """What a demonstrator model knows of each row beside the policy and the expertise, both of shape (member, row).

    `context["previous_action"]` is a column that the model declares, (row,) or (row, value), or with a leading member
    axis. `context.parameter("slip")` is a parameter of the module that its `build` returned, and `context.own("bias")`
    the part of one that belongs to each row's demonstrator.
    """

    module: nn.Module | None = None
    demonstrator: Pick | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Batch, members: int, module: nn.Module | None) -> Context:
        """The context of a batch's counts."""
        grouped = batch.demonstrator.index.ndim == 2
        columns = {}
        for name, column in batch.context.items():
            rows_first = column.mT if column.ndim == 2 + grouped else column
            columns[name] = per_member(rows_first, members) if grouped and len(column) > 1 else rows_first
        return cls(module, batch.demonstrator, columns)

    def __getitem__(self, name: str) -> Tensor:
        if name in self.columns:
            return self.columns[name]
        remedy = "declare it in the demonstrator model's `context`, and use the model where the steps before are known"
        raise SettingsError(f"there is no context {name!r} here: {remedy}")

    def parameter(self, name: str) -> nn.Parameter:
        """A parameter of the model's module."""
        if self.module is not None:
            return self.module.get_parameter(name)
        remedy = "return a module that has it from the model's `build`, and use the model where it was fitted"
        raise SettingsError(f"there is no parameter {name!r} here: {remedy}")

    def own(self, name: str) -> Float[Tensor, "member row *value"]:
        """The value of a (member, *value, demonstrator) parameter for each row's demonstrator."""
        parameter = self.parameter(name)
        assert self.demonstrator is not None  # whoever has a module knows who acted
        return self.demonstrator(parameter).movedim(-1, 1)


NO_CONTEXT = Context()


def context_of_rows(
    columns: Mapping[str, Array], rows: Array, features: Callable[[Array], Float[Tensor, "input row"]]
) -> dict[str, Tensor]:
    """The context of some rows of `step_context`, (row,) or (value, row), as a batch holds it.

    `features` gives the inputs of the previous observations, by their numbers; where there is none they are zeros.
    """
    found = {}
    for name, column in columns.items():
        values = torch.from_numpy(column[rows].T.copy())
        if name == "previous_observation":
            values = features(column[rows].clip(min=0)) * (values >= 0)
        found[name] = values.float() if values.is_floating_point() else values
    return found
