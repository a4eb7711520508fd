"""The recurrence of an LSTM and its gradient: on a GPU all members at once, on a CPU one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ileed._torch import Float

_ALIGNED = 4  # numbers: products of rows that begin elsewhere are computed by slower kernels


class Recurrence(torch.autograd.Function):
    """An LSTM of all members at once on a GPU: a time step is one product, and one kernel of torch's own LSTM cell.

    The gradients of weights and bias are one product over all time steps. Rows of a time step lie one after the other,
    member by member, and gates stand in torch's order: input, forget, candidate, output.
    """

    @staticmethod
    def forward(
        context: Any, inputs: Tensor, seen: Tensor, bias: Tensor, remembered: Tensor, length: int
    ) -> Float[Tensor, "member unit observation"]:
        seen, bias, remembered = map(_exchange_gates, (seen, bias, remembered))
        (members, _, units), groups = remembered.shape, inputs if inputs.ndim == 3 else inputs.unsqueeze(0)
        serves = members // len(groups)  # members in a row that see the same
        each = seen.view(len(groups), -1, seen.shape[-1])
        if members == 1:  # the bias is added by the kernel of the product
            whole = torch.addmm(bias.flatten(), groups[0].T, seen[0].T)
        else:
            whole = torch.baddbmm(bias.view(len(groups), 1, -1), groups.mT, each.mT)
        whole = whole.view(len(groups), length, -1, serves, 4 * units).permute(1, 0, 3, 2, 4).flatten(1, 3)
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
        return _of_members(shown[1:], members).mT

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        groups, seen, remembered, shown, *each = context.saved_tensors
        length, (members, _, units) = len(shown) - 1, remembered.shape
        cells, kept = each[: length + 1], each[length + 1 :]
        to_shown = gradients[0].unflatten(-1, (length, -1)).permute(2, 0, 3, 1)
        to_shown = to_shown.clone(memory_format=torch.contiguous_format)  # time steps add to those before them
        cell, back = torch.zeros_like(cells[0]), list[Tensor]()
        for time in reversed(range(length)):
            hidden = to_shown[time].flatten(0, 1)
            now, cell = _lstm_cell_gradient(hidden, cell, cells[time], cells[time + 1], kept[time])
            back.append(now)
            if time:
                to_shown[time - 1].baddbmm_(now.view(members, -1, 4 * units), remembered)
        rows = _of_members(torch.stack(back[::-1]), members)
        serves = members // len(groups)
        entered = groups.mT.repeat_interleave(serves, dim=0) if serves > 1 else groups.mT
        sizes = [seen.shape[-1], units, 1]
        rest = rows.new_zeros(*rows.shape[:2], 1 + -sum(sizes) % _ALIGNED)
        rest[..., 0] = 1  # for the bias
        factors = torch.cat([entered, _of_members(shown[:-1], members), rest], dim=-1)  # one product instead of three
        to_seen, to_remembered, to_bias, _ = (rows.mT @ factors).split([*sizes, rest.shape[-1] - 1], dim=-1)
        to_inputs = None
        if context.needs_input_grad[0]:
            of_members = (rows @ seen).unflatten(0, (len(groups), serves))
            to_inputs = (of_members.sum(1) if serves > 1 else of_members.squeeze(1)).mT.reshape(context.shape)
        return (to_inputs, *map(_exchange_gates, (to_seen, to_bias, to_remembered)), None)


def _of_members(values: Float[Tensor, "time rows value"], members: int) -> Float[Tensor, "member observation value"]:
    return values.unflatten(1, (members, -1)).transpose(0, 1).flatten(1, 2)


def _exchange_gates(values: Float[Tensor, "member gate *rest"]) -> Float[Tensor, "member gate *rest"]:
    """The last two quarters of the gates exchanged: from our order of output and candidate to torch's, and back."""
    enter, forget, third, fourth = values.chunk(4, dim=1)
    return torch.cat([enter, forget, fourth, third], dim=1)


def _lstm_cell(entered: Tensor, recalled: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden values, cells and activated gates after a time step, whose gates are the sum of both, (row, 4 x unit)."""
    if entered.is_cuda:
        return torch.ops.aten._thnn_fused_lstm_cell(entered, recalled, cell)
    enter, forget, candidate, leave = (entered + recalled).chunk(4, dim=-1)
    gates = enter.sigmoid(), forget.sigmoid(), candidate.tanh(), leave.sigmoid()
    after = gates[1] * cell + gates[0] * gates[2]
    return gates[3] * after.tanh(), after, torch.cat(gates, -1)


def _lstm_cell_gradient(
    hidden: Tensor, cell: Tensor, before: Tensor, after: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates and of the cells before, from those of the hidden values and cells after a time step."""
    if gates.is_cuda:
        found = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(hidden, cell, before, after, gates, False)
        return found[0], found[1]
    enter, forget, candidate, leave = gates.chunk(4, dim=-1)
    bent = after.tanh()
    cell = cell + hidden * leave * (1 - bent * bent)
    slopes = enter * (1 - enter), forget * (1 - forget), 1 - candidate * candidate, leave * (1 - leave)
    each = cell * candidate, cell * before, cell * enter, hidden * bent
    return torch.cat([slope * own for slope, own in zip(slopes, each, strict=True)], -1), cell * forget


def apart(values: Tensor) -> Sequence[Tensor]:
    """Each entry of the first axis; of one alone a view, whose gradient is not copied."""
    return [values.squeeze(0)] if len(values) == 1 else values.unbind()


class RecurrenceOfRows(torch.autograd.Function):
    """An LSTM of one member on a CPU: `Recurrence`, where rows lie one after the other in memory.

    The rows of a time step are then a stretch of memory, of which nothing is copied or transposed, and what the zeros
    of the first hidden state would add is left out.
    """

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
