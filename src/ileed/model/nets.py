"""Layers whose parameters have a leading `member` axis: many independent networks, one product each.

The last axis is the observation, (member, feature, observation): every member sees the same inputs, so the first layer
of all members is one matrix product. Where several data sets are learned from side by side, inputs and indices have a
leading `group` axis, and each group serves as many members in a row.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from ileed._torch import Float, Int
from ileed.model.recurrence import Recurrence, RecurrenceOfRows, apart

_Module = TypeVar("_Module", bound=nn.Module)

Generators = Sequence[torch.Generator]
"""One for each member, from which that member's parameters are drawn."""

_TABLE_AS_PRODUCT = 64  # a table this short is read fastest as a product with a one-hot matrix
_LARGEST_ONE_HOT = 1 << 25  # numbers in such a matrix, beyond which it would be what fills the memory
_SMALL_MATRIX, _LARGEST_SUM = 64, 1 << 23  # numbers in it, and in all products of which such matrices are sums
_LARGEST_DRAWN_ONE_HOT = 1 << 20  # the same for longer tables on a GPU, where it is made for one step alone


@final
class Linear(nn.Module):
    """One affine map for each member, drawn as `torch.nn.Linear` draws its own: uniform within 1/sqrt(inputs)."""

    def __init__(self, inputs: int, outputs: int, *, generators: Generators) -> None:
        super().__init__()
        bound = max(inputs, 1) ** -0.5
        self.weight = nn.Parameter(uniform((outputs, inputs), bound, generators))
        self.bias = nn.Parameter(uniform((outputs, 1), bound, generators))

    def forward(self, inputs: Tensor) -> Float[Tensor, "member output observation"]:
        """`inputs`: (input, observation) for all members, or (group, input, observation); a group may be one member."""
        return _affine(self.weight, self.bias, inputs)


def _affine(
    weight: Float[Tensor, "member output input"], bias: Float[Tensor, "member output 1"], inputs: Tensor
) -> Float[Tensor, "member output observation"]:
    """Each member's weight times the inputs, (input, observation) or (group, input, observation), plus its bias."""
    members, outputs, width = weight.shape
    if inputs.ndim == 2:
        return torch.addmm(bias.flatten(0, 1), weight.flatten(0, 1), inputs).view(members, outputs, -1)
    groups = len(inputs)
    return torch.baddbmm(bias.view(groups, -1, 1), weight.view(groups, -1, width), inputs).view(members, outputs, -1)


@final
class MLP(nn.Module):
    """Affine maps with rectifiers between them."""

    def __init__(self, sizes: Sequence[int], *, generators: Generators) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Linear(before, after, generators=generators) for before, after in pairwise(sizes))

    @property
    def last(self) -> Linear:
        """The layer whose outputs are the network's own."""
        layer: Any = self.layers[-1]
        return layer

    def forward(self, inputs: Tensor) -> Float[Tensor, "member output observation"]:
        parameters = list(self.parameters())
        if torch.is_grad_enabled():
            return _Layers.apply(inputs, *parameters)  # type: ignore[no-untyped-call]
        return _layer_outputs(inputs, parameters)[-1]


def _layer_outputs(inputs: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """What every affine map gives, rectified but for the last; each has a weight and a bias."""
    first, *rest = zip(parameters[::2], parameters[1::2], strict=True)
    found = [_affine(*first, inputs)]
    for weight, bias in rest:
        found.append(_affine(weight, bias, found[-1].relu_()))
    return found


class _Layers(torch.autograd.Function):
    """Affine maps with rectifiers between them; the products are those of torch's own gradient, to the same bits.

    Activations and their gradients are rectified in place: on a CPU these passes wait for memory, not for arithmetic.
    """

    @staticmethod
    def forward(context: Any, inputs: Tensor, *parameters: Tensor) -> Tensor:
        found = _layer_outputs(inputs, parameters)
        context.save_for_backward(inputs, *parameters[::2], *found[:-1])
        return found[-1]

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved, gradient = context.saved_tensors, gradients[0]
        count = len(saved) // 2
        weights, inputs = saved[1 : 1 + count], (saved[0], *saved[1 + count :])
        found: list[Tensor | None] = []
        for number in reversed(range(count)):
            weight, before = weights[number], inputs[number]
            # one product for inputs that all members share, else one for each group, as `_affine` does
            rows = weight.flatten(0, 1) if before.ndim == 2 else weight.view(len(before), -1, weight.shape[-1])
            here = gradient.reshape(*rows.shape[:-1], -1)
            found += [here.sum(-1).view(*weight.shape[:2], 1), _products(here, before).view_as(weight)]
            if number > 0 or context.needs_input_grad[0]:
                gradient = rows.mT @ here
            if number > 0:
                torch.ops.aten.threshold_backward.grad_input(gradient, before, 0, grad_input=gradient)
        to_inputs = gradient if context.needs_input_grad[0] else None
        return (to_inputs, *reversed(found))


def _products(
    rows: Float[Tensor, "*group row observation"], columns: Float[Tensor, "*group column observation"]
) -> Tensor:
    """`rows @ columns.mT`, summed over observations.

    Of few small matrices a GPU computes the products one by one and sums them: a matrix product would give each matrix
    to one multiprocessor, which adds up thousands of observations alone.
    """
    products = rows.numel() * columns.shape[-2]
    if (
        rows.is_cuda
        and rows.ndim == 3
        and rows.shape[1] * columns.shape[1] <= _SMALL_MATRIX
        and products <= _LARGEST_SUM
    ):
        return (rows.unsqueeze(-2) * columns.unsqueeze(-3)).sum(-1)
    return rows @ columns.mT


LSTMState = tuple[Tensor, Tensor]
"""The hidden values and the cells of a layer of long short-term memory, both (member, unit, row)."""


@final
class LSTM(nn.Module):
    """A layer of long short-term memory for each member, with the equations and initial draws of `torch.nn.LSTM`.

    Its two biases are one here. Gates stand in the order input, forget, output, candidate, so that one call of the
    logistic function serves three of them.
    """

    def __init__(self, inputs: int, units: int, *, generators: Generators) -> None:
        super().__init__()
        bound = units**-0.5
        self.units = units
        self.seen = nn.Parameter(uniform((4 * units, inputs), bound, generators))
        self.remembered = nn.Parameter(uniform((4 * units, units), bound, generators))
        biases = [uniform((4 * units, 1), bound, generators) for _ in range(2)]
        self.bias = nn.Parameter(biases[0] + biases[1])

    def forward(self, inputs: Tensor, length: int) -> Float[Tensor, "member unit observation"]:
        """Outputs of `length` time steps from a hidden state of zeros; the last axis is (time step, row)."""
        if inputs.is_cuda:
            return Recurrence.apply(inputs, self.seen, self.bias, self.remembered, length)  # type: ignore[no-untyped-call]
        parameters = zip(*map(apart, (self.seen, self.bias, self.remembered)), strict=True)
        rows = [inputs.T] if inputs.ndim == 2 else apart(inputs.mT)
        serves = len(self.seen) // len(rows)  # members in a row that see the same
        outputs = [
            RecurrenceOfRows.apply(rows[member // serves], *each, length)  # type: ignore[no-untyped-call]
            for member, each in enumerate(parameters)
        ]
        return (outputs[0].unsqueeze(0) if len(outputs) == 1 else torch.stack(outputs)).mT

    def step(self, inputs: Tensor, state: LSTMState) -> LSTMState:
        """One time step of every row: the next hidden state, whose hidden values are the outputs."""
        hidden, cell = state
        gates = torch.baddbmm(_affine(self.seen, self.bias, inputs), self.remembered, hidden)
        enter, forget, leave = gates[:, : 3 * self.units].sigmoid().split(self.units, dim=1)
        after = torch.addcmul(enter * gates[:, 3 * self.units :].tanh(), forget, cell)
        return leave * after.tanh(), after


@final
@dataclass(frozen=True, eq=False)
class Pick:
    """Reading a table at fixed indices, with a gradient that adds up in a fixed order on every device.

    `pick(table)` is `table[..., index]`; with indices of (group, read) each group reads the rows of its own members. On
    a GPU torch's own gradient adds in whatever order threads arrive; here each entry's summands are sorted first.
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
        if finite and entries <= _TABLE_AS_PRODUCT and entries * index.numel() <= _LARGEST_ONE_HOT:
            return cls(index, entries, one_hot=_one_hot(index, entries).contiguous())
        found = cls._in_order(index, entries)
        return replace(found, order=None) if bool((index[..., 1:] >= index[..., :-1]).all()) else found

    @classmethod
    def drawn(cls, index: Int[Tensor, "*group read"], entries: int, *, finite: bool = True) -> Pick:
        """Indices that are drawn for one step: made of what a CUDA graph can record, in memory that grows with them."""
        product_is_small = index.is_cuda and entries * index.numel() <= _LARGEST_DRAWN_ONE_HOT
        if finite and (entries <= _TABLE_AS_PRODUCT or product_is_small):
            one_hot = _one_hot(index, entries)
            return cls(index, entries, one_hot=one_hot.contiguous() if index.ndim == 1 else one_hot)
        return cls._in_order(index, entries)

    @classmethod
    def _in_order(cls, index: Int[Tensor, "*group read"], entries: int) -> Pick:
        if not index.is_cuda:  # a CPU adds one after the other as it is
            return cls(index, entries)
        ordered, order = index.sort(dim=-1, stable=True)
        positions = torch.arange(entries + 1, device=index.device).expand(*index.shape[:-1], -1).contiguous()
        return cls(index, entries, order=order, offsets=torch.searchsorted(ordered, positions))

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


def _one_hot(index: Int[Tensor, "*group read"], entries: int) -> Float[Tensor, "*group entry read"]:
    return (index.unsqueeze(-1) == torch.arange(entries, device=index.device)).float().mT


def _read(rows: Tensor, index: Int[Tensor, "*group read"]) -> Tensor:
    """`rows[..., index]`, or, with groups, the same for each group's rows (group, row, entry)."""
    if index.ndim == 1:  # torch reads along the last axis of a matrix four times as fast as of more axes
        return rows.reshape(-1, rows.shape[-1]).index_select(-1, index).view(*rows.shape[:-1], -1)
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


def uniform(shape: tuple[int, ...], bound: float, generators: Generators) -> Tensor:
    """(member, *shape) numbers within `bound` of zero, each member's from its own generator; without any, no memory."""
    if not generators:
        return torch.empty(0, *shape)
    drawn = torch.stack([torch.rand(shape, generator=generator) for generator in generators])
    return (2 * drawn - 1) * bound


def members(module: _Module, indices: Sequence[int]) -> _Module:
    """Some members taken out, in the order asked for, as a module of their own."""
    apart = copy.deepcopy(module)
    for parameter in apart.parameters():
        parameter.data = parameter.data[list(indices)].clone()
        parameter.grad = None
    return apart
