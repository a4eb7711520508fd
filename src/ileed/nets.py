"""Layers whose parameters have a leading `member` axis: many independent networks, one product each.

Places come last, (member, feature, place): every member sees the same inputs, so the first layer of all of them is one
matrix product, and what follows works along contiguous places. Where several data sets are learned from side by side,
inputs and indices have a leading `group` axis, and each group serves as many members in a row.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from ileed._torch import Float, Int

_Module = TypeVar("_Module", bound=nn.Module)

_TABLE_AS_PRODUCT = 64  # a table this short is read fastest as a product with a one-hot matrix


@final
class Linear(nn.Module):
    """One affine map for each member, drawn as `torch.nn.Linear` draws its own: uniform within 1/sqrt(inputs)."""

    def __init__(self, inputs: int, outputs: int, *, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        bound = max(inputs, 1) ** -0.5
        self.weight = nn.Parameter(uniform((outputs, inputs), bound, generators))
        self.bias = nn.Parameter(uniform((outputs, 1), bound, generators))

    def forward(self, inputs: Tensor) -> Float[Tensor, "member output place"]:
        """`inputs` is (input, place), shared by all members, or (group, input, place); a group may be one member."""
        return _affine(self.weight, self.bias, inputs)


def _affine(
    weight: Float[Tensor, "member output input"], bias: Float[Tensor, "member output 1"], inputs: Tensor
) -> Float[Tensor, "member output place"]:
    """Each member's weight times the inputs, (input, place) or (group, input, place), plus its bias."""
    members, outputs, width = weight.shape
    if inputs.ndim == 2:
        return torch.addmm(bias.flatten(0, 1), weight.flatten(0, 1), inputs).view(members, outputs, -1)
    groups = len(inputs)
    return torch.baddbmm(bias.view(groups, -1, 1), weight.view(groups, -1, width), inputs).view(members, outputs, -1)


@final
class MLP(nn.Module):
    """Affine maps with rectifiers between them."""

    def __init__(self, sizes: Sequence[int], *, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Linear(before, after, generators=generators) for before, after in pairwise(sizes))

    @property
    def last(self) -> Linear:
        """The layer whose outputs are the network's own."""
        layer = self.layers[-1]
        assert isinstance(layer, Linear)
        return layer

    def forward(self, inputs: Tensor) -> Float[Tensor, "member output place"]:
        first, *rest = self.layers
        outputs: Tensor = first(inputs)
        for layer in rest:
            outputs = layer(outputs.relu())
        return outputs


Memory = tuple[Tensor, Tensor]
"""What a recurrent layer remembers of each row: hidden values and cells, both (member, unit, row)."""


@final
class LSTM(nn.Module):
    """A layer of long short-term memory for each member, with the equations and initial draws of `torch.nn.LSTM`.

    Its two biases are one here. Gates stand in the order input, forget, output, candidate, so that one call of the
    logistic function serves three of them.
    """

    def __init__(self, inputs: int, units: int, *, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        bound = units**-0.5
        self.units = units
        self.seen = nn.Parameter(uniform((4 * units, inputs), bound, generators))
        self.remembered = nn.Parameter(uniform((4 * units, units), bound, generators))
        self.bias = nn.Parameter(
            uniform((4 * units, 1), bound, generators) + uniform((4 * units, 1), bound, generators)
        )

    def forward(
        self, inputs: Tensor, length: int, memory: Memory | None = None
    ) -> tuple[Float[Tensor, "member unit place"], Memory]:
        """Walk along `length` moments from `memory`, or from nothing; a place is (moment, row), moments first."""
        whole = _affine(self.seen, self.bias, inputs)
        moments = whole.unflatten(-1, (length, -1)).unbind(-2)
        hidden, cell = memory if memory is not None else (None, None)
        walked = []
        for gates in moments:
            if hidden is not None:
                gates = torch.baddbmm(gates, self.remembered, hidden)
            keep, candidate = gates.split([3 * self.units, self.units], dim=1)
            enter, forget, leave = keep.sigmoid().split(self.units, dim=1)
            fresh = enter * candidate.tanh()
            cell = fresh if cell is None else torch.addcmul(fresh, forget, cell)
            hidden = leave * cell.tanh()
            walked.append(hidden)
        assert hidden is not None
        assert cell is not None  # there is one moment or more
        return torch.cat(walked, dim=-1), (hidden, cell)


@final
@dataclass(frozen=True, eq=False)
class Pick:
    """Reading a table at fixed indices, with a gradient that adds up in a fixed order on every device.

    `pick(table)` is `table[..., index]`; with indices of (group, read) each group reads the rows of its own members. On
    a GPU torch's own gradient for that adds in whatever order threads arrive, so two runs differ; here the summands of
    each entry are brought together first and added one after the other.
    """

    index: Int[Tensor, "*group read"]
    entries: int
    identity: bool = False
    one_hot: Float[Tensor, "*group entry read"] | None = None
    order: Int[Tensor, "*group read"] | None = None  # sorts `index`; nothing where it is sorted
    offsets: Int[Tensor, "*group offset"] | None = None  # where each entry's reads begin in that order, and the end

    @classmethod
    def of(cls, index: Int[Tensor, "*group read"], entries: int, *, finite: bool = True) -> Pick:
        """Work out the fastest exact way to read these indices; a table may hold infinities if `finite` is False."""
        if entries == index.shape[-1] and bool((index == torch.arange(entries, device=index.device)).all()):
            return cls(index, entries, identity=True)
        if finite and entries <= _TABLE_AS_PRODUCT:
            return cls(index, entries, one_hot=torch.nn.functional.one_hot(index, entries).mT.float().contiguous())
        if not index.is_cuda:
            return cls(index, entries)
        is_sorted = bool((index[..., 1:] >= index[..., :-1]).all())
        counts = index.new_zeros(*index.shape[:-1], entries).scatter_add_(-1, index, torch.ones_like(index))
        return cls(
            index,
            entries,
            order=None if is_sorted else torch.argsort(index, dim=-1, stable=True),
            offsets=torch.nn.functional.pad(counts.cumsum(-1), (1, 0)),
        )

    def __call__(self, table: Float[Tensor, "*row entry"]) -> Float[Tensor, "*row read"]:
        if self.identity:
            return table
        rows = table if self.index.ndim == 1 else table.reshape(len(self.index), -1, self.entries)
        if self.one_hot is not None:
            read = rows @ self.one_hot.to(table.dtype)
        elif self.offsets is None:  # one after the other on a CPU, or each entry read once
            read = _read(rows, self.index)
        else:
            read = _PickRows.apply(rows.reshape(*self.index.shape[:-1], -1, self.entries), self)  # type: ignore[no-untyped-call]
        return read.reshape(*table.shape[:-1], -1)


def _read(rows: Tensor, index: Int[Tensor, "*group read"]) -> Tensor:
    """`rows[..., index]`, or, with groups, the same for each group's rows (group, row, entry)."""
    if index.ndim == 1:
        return rows.index_select(-1, index)
    return rows.gather(-1, index.unsqueeze(1).expand(-1, rows.shape[1], -1))


class _PickRows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, pick: Pick) -> Tensor:
        context.pick = pick
        return _read(rows, pick.index)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        pick, gradient = context.pick, gradients[0]
        together = gradient if pick.order is None else _read(gradient, pick.order)
        offsets = pick.offsets.unsqueeze(-2).expand(*gradient.shape[:-1], -1).flatten(0, -2).contiguous()
        sums = torch.segment_reduce(together.flatten(0, -2).contiguous(), "sum", offsets=offsets, axis=1, unsafe=True)
        return sums.view(*gradient.shape[:-1], pick.entries), None


def uniform(shape: tuple[int, ...], bound: float, generators: Sequence[torch.Generator]) -> Tensor:
    """(member, *shape) numbers within `bound` of zero, each member's from its own generator."""
    drawn = torch.stack([torch.rand(shape, generator=generator) for generator in generators])
    return (2 * drawn - 1) * bound


def members(module: _Module, indices: Sequence[int]) -> _Module:
    """Some members taken out, in the order asked for, as a module of their own."""
    apart = copy.deepcopy(module)
    for parameter in apart.parameters():
        parameter.data = parameter.data[list(indices)].clone()
        parameter.grad = None
    return apart


def member(module: _Module, index: int) -> _Module:
    """One member taken out as a module of its own, whose member axis has length one."""
    return members(module, [index])
