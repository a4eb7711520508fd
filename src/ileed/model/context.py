"""The context of an action: who took it, what came before it, and the demonstrator model's own parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from torch import Tensor, nn

from ileed._torch import Float
from ileed.errors import SettingsError
from ileed.model.batch import Batch, per_member
from ileed.model.nets import Pick


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
        self.parameter(name)
        return self.own_value(lambda module: module.get_parameter(name))

    def own_value(self, of: Callable[[nn.Module], Tensor]) -> Float[Tensor, "member row *value"]:
        """The same for a (member, *value, demonstrator) function of the module; (member, *value, 1) if it is shared."""
        assert self.module is not None
        assert self.demonstrator is not None  # whoever has a module knows who acted
        found = of(self.module)
        shared = found.shape[-1] == 1 < self.demonstrator.entries
        return (found if shared else self.demonstrator(found)).movedim(-1, 1)


NO_CONTEXT = Context()
