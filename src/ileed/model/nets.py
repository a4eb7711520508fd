"""Layers whose parameters have a leading `member` axis: many independent networks, computed by one product each.

The last axis is the observation: activations are (member, feature, observation). All members see the same inputs, so
the first layer of all members is one matrix product. Where several data sets are learned side by side, inputs and
indices have a leading `group` axis, and each group belongs to the same number of consecutive members.
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

_Module = TypeVar("_Module", bound=nn.Module)

Generators = Sequence[torch.Generator]
"""One generator per member, from which that member's parameters are drawn."""

_TABLE_AS_PRODUCT = 64  # entries; a table this short is read fastest as a product with a one-hot matrix
_LARGEST_ONE_HOT = 1 << 25  # numbers in such a matrix, so that it does not fill the memory
_LARGEST_DRAWN_ONE_HOT = 1 << 20  # the same on a GPU, where the matrix is made for a single step
_SMALL_MATRIX, _LARGEST_SUM = 64, 1 << 23  # numbers in one matrix, and in all summed products: see `_products`
_ALIGNED = 4  # numbers; products of rows that begin elsewhere use slower kernels


@final
class Linear(nn.Module):
    """One affine map per member, initialised like `torch.nn.Linear`: uniform within 1/sqrt(inputs)."""

    def __init__(self, inputs: int, outputs: int, *, generators: Generators) -> None:
        super().__init__()
        bound = max(inputs, 1) ** -0.5
        self.weight = nn.Parameter(uniform((outputs, inputs), bound, generators))
        self.bias = nn.Parameter(uniform((outputs, 1), bound, generators))

    def forward(self, inputs: Tensor) -> Float[Tensor, "member output observation"]:
        """`inputs` are (input, observation) for all members, or (group, input, observation)."""
        return _affine(self.weight, self.bias, inputs)


def _affine(
    weight: Float[Tensor, "member output input"], bias: Float[Tensor, "member output 1"], inputs: Tensor
) -> Float[Tensor, "member output observation"]:
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
        """The output layer."""
        layer: Any = self.layers[-1]
        return layer

    def forward(self, inputs: Tensor) -> Float[Tensor, "member output observation"]:
        parameters = list(self.parameters())
        if torch.is_grad_enabled():
            return _Layers.apply(inputs, *parameters)  # type: ignore[no-untyped-call]
        return _layer_outputs(inputs, parameters)[-1]


def _layer_outputs(inputs: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The output of every affine map, rectified except for the last; `parameters` alternate weights and biases."""
    first, *rest = zip(parameters[::2], parameters[1::2], strict=True)
    found = [_affine(*first, inputs)]
    for weight, bias in rest:
        found.append(_affine(weight, bias, found[-1].relu_()))
    return found


class _Layers(torch.autograd.Function):
    """The layers of an MLP, with the matrix products of torch's own gradient and the same bits.

    Rectifiers work in place, and small gradients on a GPU are sums (`_products`).
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
            # one product where all members share the inputs, otherwise one per group, as in `_affine`
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
    """`rows @ columns.mT`; a few small matrices on a GPU are multiplied element-wise and summed.

    A batched matrix product would give each small matrix to one multiprocessor, which would sum over thousands of
    observations alone.
    """
    products = rows.numel() * columns.shape[-2]
    is_small = rows.ndim == 3 and rows.shape[1] * columns.shape[1] <= _SMALL_MATRIX and products <= _LARGEST_SUM
    if rows.is_cuda and is_small:
        return (rows.unsqueeze(-2) * columns.unsqueeze(-3)).sum(-1)
    return rows @ columns.mT


LSTMState = tuple[Tensor, Tensor]
"""Hidden values and cells of an LSTM layer, both (member, unit, row)."""


@final
class LSTM(nn.Module):
    """One LSTM layer per member, with the equations and initialisation of `torch.nn.LSTM` and one bias instead of two.

    Gates are in the order input, forget, output, candidate, so that one call of the logistic function serves three.
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
        """Outputs of `length` time steps from a zero hidden state; the last axis is (time step, row)."""
        if inputs.is_cuda:
            return Recurrence.apply(inputs, self.seen, self.bias, self.remembered, length)  # type: ignore[no-untyped-call]
        parameters = zip(*map(_apart, (self.seen, self.bias, self.remembered)), strict=True)
        rows = [inputs.T] if inputs.ndim == 2 else _apart(inputs.mT)
        per_group = len(self.seen) // len(rows)
        outputs = [
            _RecurrenceOfRows.apply(rows[member // per_group], *each, length)  # type: ignore[no-untyped-call]
            for member, each in enumerate(parameters)
        ]
        return (outputs[0].unsqueeze(0) if len(outputs) == 1 else torch.stack(outputs)).mT

    def step(self, inputs: Tensor, state: LSTMState) -> LSTMState:
        """The next hidden state of every row; its hidden values are the outputs."""
        hidden, cell = state
        gates = torch.baddbmm(_affine(self.seen, self.bias, inputs), self.remembered, hidden)
        enter, forget, leave = gates[:, : 3 * self.units].sigmoid().split(self.units, dim=1)
        after = torch.addcmul(enter * gates[:, 3 * self.units :].tanh(), forget, cell)
        return leave * after.tanh(), after


def _apart(values: Tensor) -> Sequence[Tensor]:
    """The entries of the first axis; a single entry is a view, whose gradient needs no copy."""
    return [values.squeeze(0)] if len(values) == 1 else values.unbind()


class Recurrence(torch.autograd.Function):
    """An LSTM layer of all members at once, for a GPU: one product and one LSTM cell kernel of torch per time step.

    The gradients of weights and bias are one product over all time steps. Within a time step, rows are ordered by
    member; gates are in torch's order: input, forget, candidate, output.
    """

    @staticmethod
    def forward(
        context: Any, inputs: Tensor, seen: Tensor, bias: Tensor, remembered: Tensor, length: int
    ) -> Float[Tensor, "member unit observation"]:
        seen, bias, remembered = map(_exchange_gates, (seen, bias, remembered))
        (members, _, units), groups = remembered.shape, inputs if inputs.ndim == 3 else inputs.unsqueeze(0)
        per_group = members // len(groups)
        each = seen.view(len(groups), -1, seen.shape[-1])
        if members == 1:  # addmm fuses the bias into the product
            whole = torch.addmm(bias.flatten(), groups[0].T, seen[0].T)
        else:
            whole = torch.baddbmm(bias.view(len(groups), 1, -1), groups.mT, each.mT)
        whole = whole.view(len(groups), length, -1, per_group, 4 * units).permute(1, 0, 3, 2, 4).flatten(1, 3)
        recalled = torch.zeros_like(whole[0])
        hiddens = [whole.new_zeros(len(recalled), units)]
        cells, kept = hiddens[:], list[Tensor]()
        for time, now in enumerate(whole):
            if time:
                recalled = (hiddens[-1].view(members, -1, units) @ remembered.mT).flatten(0, 1)
            hidden, cell, gates = _lstm_cell(now, recalled, cells[-1])
            hiddens.append(hidden)
            cells.append(cell)
            kept.append(gates)
        shown = torch.stack(hiddens)
        context.save_for_backward(groups, seen, remembered, shown, *cells, *kept)
        context.shape = inputs.shape
        return _by_member(shown[1:], members).mT

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        groups, seen, remembered, shown, *each = context.saved_tensors
        length, (members, _, units) = len(shown) - 1, remembered.shape
        cells, kept = each[: length + 1], each[length + 1 :]
        to_shown = gradients[0].unflatten(-1, (length, -1)).permute(2, 0, 3, 1)
        to_shown = to_shown.clone(memory_format=torch.contiguous_format)  # each time step adds to the one before
        cell, back = torch.zeros_like(cells[0]), list[Tensor]()
        for time in reversed(range(length)):
            hidden = to_shown[time].flatten(0, 1)
            now, cell = _lstm_cell_gradient(hidden, cell, cells[time], cells[time + 1], kept[time])
            back.append(now)
            if time:
                to_shown[time - 1].baddbmm_(now.view(members, -1, 4 * units), remembered)
        rows = _by_member(torch.stack(back[::-1]), members)
        per_group = members // len(groups)
        entered = groups.mT.repeat_interleave(per_group, dim=0) if per_group > 1 else groups.mT
        sizes = [seen.shape[-1], units, 1]
        rest = rows.new_zeros(*rows.shape[:2], 1 + -sum(sizes) % _ALIGNED)
        rest[..., 0] = 1  # for the bias
        factors = torch.cat([entered, _by_member(shown[:-1], members), rest], dim=-1)  # one product instead of three
        to_seen, to_remembered, to_bias, _ = (rows.mT @ factors).split([*sizes, rest.shape[-1] - 1], dim=-1)
        to_inputs = None
        if context.needs_input_grad[0]:
            of_members = (rows @ seen).unflatten(0, (len(groups), per_group))
            to_inputs = (of_members.sum(1) if per_group > 1 else of_members.squeeze(1)).mT.reshape(context.shape)
        return (to_inputs, *map(_exchange_gates, (to_seen, to_bias, to_remembered)), None)


def _by_member(values: Float[Tensor, "time rows value"], members: int) -> Float[Tensor, "member observation value"]:
    return values.unflatten(1, (members, -1)).transpose(0, 1).flatten(1, 2)


def _exchange_gates(values: Float[Tensor, "member gate *rest"]) -> Float[Tensor, "member gate *rest"]:
    """Exchange output and candidate gate, which converts from our order to torch's and back."""
    enter, forget, third, fourth = values.chunk(4, dim=1)
    return torch.cat([enter, forget, fourth, third], dim=1)


def _lstm_cell(entered: Tensor, recalled: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden values, cells and activated gates after a time step; the gates' inputs are the sum of both arguments."""
    if entered.is_cuda:
        return torch.ops.aten._thnn_fused_lstm_cell(entered, recalled, cell)
    enter, forget, candidate, leave = (entered + recalled).chunk(4, dim=-1)
    gates = enter.sigmoid(), forget.sigmoid(), candidate.tanh(), leave.sigmoid()
    after = gates[1] * cell + gates[0] * gates[2]
    return gates[3] * after.tanh(), after, torch.cat(gates, -1)


def _lstm_cell_gradient(
    hidden: Tensor, cell: Tensor, before: Tensor, after: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates and of the cells before, given those of the hidden values and the cells after."""
    if gates.is_cuda:
        found = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(hidden, cell, before, after, gates, False)
        return found[0], found[1]
    enter, forget, candidate, leave = gates.chunk(4, dim=-1)
    bent = after.tanh()
    cell = cell + hidden * leave * (1 - bent * bent)
    slopes = enter * (1 - enter), forget * (1 - forget), 1 - candidate * candidate, leave * (1 - leave)
    each = cell * candidate, cell * before, cell * enter, hidden * bent
    return torch.cat([slope * own for slope, own in zip(slopes, each, strict=True)], -1), cell * forget


class _RecurrenceOfRows(torch.autograd.Function):
    """An LSTM layer of one member, for a CPU: (row, feature) layout, in which a time step is contiguous memory."""

    @staticmethod
    def forward(
        context: Any, inputs: Tensor, seen: Tensor, bias: Tensor, remembered: Tensor, length: int
    ) -> Float[Tensor, "row unit"]:
        count, units = len(inputs) // length, remembered.shape[-1]
        gates = torch.addmm(bias.T, inputs, seen.T)
        hiddens, cells, bent = (gates.new_empty(length, count, units) for _ in range(3))
        for time, now in enumerate(gates.view(length, count, -1)):
            if time:
                now.addmm_(hiddens[time - 1], remembered.T)
            enter, forget, leave = now[:, : 3 * units].sigmoid_().split(units, dim=1)
            after = torch.mul(enter, now[:, 3 * units :].tanh_(), out=cells[time])
            if time:
                after.addcmul_(forget, cells[time - 1])
            torch.mul(leave, torch.tanh(after, out=bent[time]), out=hiddens[time])
        context.save_for_backward(inputs, seen, remembered, gates, hiddens, cells, bent)
        return hiddens.flatten(0, 1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, seen, remembered, gates, hiddens, cells, bent = context.saved_tensors
        (length, count, units), shown = hiddens.shape, gradients[0].contiguous().view_as(hiddens)
        back, kept = torch.empty_like(gates), gates[:, : 3 * units]
        slopes = torch.addcmul(kept, kept, kept, value=-1).view(length, count, -1)  # of the logistic function
        hidden, cell = shown[-1], torch.zeros_like(shown[-1])
        for time in reversed(range(length)):
            enter, forget, leave, candidate = gates.view(length, count, -1)[time].split(units, dim=1)
            now, tip = back.view(length, count, -1)[time], bent[time]
            to_enter, to_forget, to_leave, to_candidate = now.split(units, dim=1)
            past = hidden * leave
            cell.add_(past).addcmul_(past * tip, tip, value=-1)
            torch.mul(cell, candidate, out=to_enter)
            torch.mul(hidden, tip, out=to_leave)
            torch.mul(cell, cells[time - 1], out=to_forget) if time else to_forget.zero_()
            now[:, : 3 * units].mul_(slopes[time])
            torch.mul(cell, enter, out=to_candidate).addcmul_(to_candidate * candidate, candidate, value=-1)
            if time:
                hidden = torch.addmm(shown[time - 1], now, remembered)
                cell.mul_(forget)
        to_inputs = back @ seen if context.needs_input_grad[0] else None
        to_remembered = back[count:].T @ hiddens[:-1].flatten(0, 1)
        return to_inputs, back.T @ inputs, back.sum(0)[:, None], to_remembered, None


@final
@dataclass(frozen=True, eq=False)
class Pick:
    """Indexed reads from a table, whose gradient is summed in a fixed order on every device.

    `pick(table)` is `table[..., index]`. With (group, read) indices, each group reads from the rows of its own members.
    On a GPU, torch's own gradient is summed in the order in which threads arrive; here, equal indices are sorted first.
    """

    index: Int[Tensor, "*group read"]
    entries: int
    identity: bool = False
    one_hot: Float[Tensor, "*group entry read"] | None = None
    order: Int[Tensor, "*group read"] | None = None  # sorts `index`; None where it is sorted
    offsets: Int[Tensor, "*group offset"] | None = None  # where each entry's reads begin in that order, and the end

    @classmethod
    def of(cls, index: Int[Tensor, "*group read"], entries: int, *, finite: bool = True) -> Pick:
        """Choose the fastest exact way to read these indices; pass `finite=False` if the table may hold infinities."""
        if entries == index.shape[-1] and bool((index == torch.arange(entries, device=index.device)).all()):
            return cls(index, entries, identity=True)
        if finite and entries <= _TABLE_AS_PRODUCT and entries * index.numel() <= _LARGEST_ONE_HOT:
            return cls(index, entries, one_hot=_one_hot(index, entries).contiguous())
        found = cls._in_order(index, entries)
        return replace(found, order=None) if bool((index[..., 1:] >= index[..., :-1]).all()) else found

    @classmethod
    def drawn(cls, index: Int[Tensor, "*group read"], entries: int, *, finite: bool = True) -> Pick:
        """Indices of a single step: only operations that a CUDA graph can record, and memory linear in their number."""
        product_is_small = index.is_cuda and entries * index.numel() <= _LARGEST_DRAWN_ONE_HOT
        if finite and (entries <= _TABLE_AS_PRODUCT or product_is_small):
            one_hot = _one_hot(index, entries)
            return cls(index, entries, one_hot=one_hot.contiguous() if index.ndim == 1 else one_hot)
        return cls._in_order(index, entries)

    @classmethod
    def _in_order(cls, index: Int[Tensor, "*group read"], entries: int) -> Pick:
        if not index.is_cuda:  # a CPU sums in order anyway
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
        elif self.offsets is None:
            read = _read(rows, self.index)
        else:
            read = _PickRows.apply(rows.reshape(*self.index.shape[:-1], -1, self.entries), self)  # type: ignore[no-untyped-call]
        return read.reshape(*table.shape[:-1], -1)


def _one_hot(index: Int[Tensor, "*group read"], entries: int) -> Float[Tensor, "*group entry read"]:
    return (index.unsqueeze(-1) == torch.arange(entries, device=index.device)).float().mT


def _read(rows: Tensor, index: Int[Tensor, "*group read"]) -> Tensor:
    """`rows[..., index]`, or with groups the same for each group's rows (group, row, entry)."""
    if index.ndim == 1:  # torch reads the last axis of a matrix four times as fast as that of a larger tensor
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
    """(member, *shape) numbers uniform within `bound` of zero, each member's from its own generator."""
    if not generators:
        return torch.empty(0, *shape)
    drawn = torch.stack([torch.rand(shape, generator=generator) for generator in generators])
    return (2 * drawn - 1) * bound


def members(module: _Module, indices: Sequence[int]) -> _Module:
    """A copy of a module with only these members, in this order."""
    apart = copy.deepcopy(module)
    for parameter in apart.parameters():
        parameter.data = parameter.data[list(indices)].clone()
        parameter.grad = None
    return apart
