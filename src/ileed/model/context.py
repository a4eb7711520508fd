"""The context of an action: who took it, what came before it, and the demonstrator model's own parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from ileed._torch import Float, Int
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
    the part of one that belongs to each row's demonstrator. `context.previous_policy` is the policy's distribution at
    the observation before each row's, where the model declares "previous_policy"; of no meaning at first steps.
    """

    module: nn.Module | None = None
    demonstrator: Pick | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    policy: Any = None
    before: Pick | None = None

    @classmethod
    def of(cls, batch: Batch, members: int, module: nn.Module | None, policy: Any = None) -> Context:
        """The context of a batch's counts; `policy` is of its unique observations."""
        grouped = batch.demonstrator.index.ndim == 2
        columns = {}
        for name, column in batch.context.items():
            rows_first = column.mT if column.ndim == 2 + grouped else column
            columns[name] = per_member(rows_first, members) if grouped and len(column) > 1 else rows_first
        before = None
        if (number := batch.context.get("previous_policy")) is not None:
            assert len(number) == 1 or number.ndim == 1  # `Joint.can_stand_beside`: one data set alone
            before = Pick(number.flatten().clamp_min(0), batch.observations.shape[-1])
        return cls(module, batch.demonstrator, columns, policy, before)

    def __getitem__(self, name: str) -> Tensor:
        if name in self.columns:
            return self.columns[name]
        remedy = "declare it in the demonstrator model's `context`, and use the model where the steps before are known"
        raise SettingsError(f"there is no context {name!r} here: {remedy}")

    @property
    def previous_policy(self) -> Any:
        """The policy's distribution at the observation before each row's."""
        assert self.before is not None  # "previous_policy" is declared
        return self.policy.at(self.before)

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


def before_in_window(number: Int[Tensor, "*group row"], windows: int) -> Int[Tensor, "*group row"]:
    """Where the step before is among rows of (time step, window), and -1 where it is in no row of the window.

    `number` is any number of the step before, and -1 where there is none.
    """
    here = torch.arange(number.shape[-1], device=number.device)
    return torch.where((number >= 0) & (here >= windows), here - windows, -1)


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
