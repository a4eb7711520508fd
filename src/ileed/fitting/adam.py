"""The optimiser Adam on torch's fused kernel, also for a few columns of large tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi
from typing import Any, cast, final

import torch
from torch import Tensor, nn


@final
class Adam:
    """Adam (Kingma and Ba, 2015) with a learning rate per group of parameters, by torch's fused kernel.

    `torch.optim.Adam` calls the same kernel, but takes seconds to import, and its Python code takes longer than the
    arithmetic of networks as small as ours. The kernel is not public: if a version of torch does not have it, or it
    does not do what we expect, public functions make the same update, more slowly and equal up to rounding. With
    `decay_steps` the learning rates fall to zero along half a cosine.
    """

    def __init__(
        self, groups: Sequence[tuple[Sequence[nn.Parameter], float]], *, decay_steps: int | None = None
    ) -> None:
        self.groups = [
            (rate, [(parameter, torch.zeros_like(parameter), torch.zeros_like(parameter)) for parameter in parameters])
            for parameters, rate in groups
        ]
        self.steps = torch.zeros((), device=groups[0][0][0].device)
        self._decay_steps = decay_steps
        self._update = _fused if _is_fused_kernel_usable(self.steps.device) else _plain

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient, and reset the gradients."""
        factor: float | Tensor = 1.0
        if self._decay_steps is not None:  # a tensor, so that a CUDA graph recomputes it
            factor = (1 + torch.cos(self.steps * (pi / self._decay_steps))) / 2
        self.steps += 1
        for rate, group in self.groups:
            moved = [(each, each.grad, first, second) for each, first, second in group if each.grad is not None]
            if moved:
                self._update(moved, self.steps, rate * factor)
            for parameter, *_ in moved:
                parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """The state of the optimiser, by name."""
        named = {"adam.steps": self.steps}
        for group, (_, moments) in enumerate(self.groups):
            for k, (_, first, second) in enumerate(moments):
                named |= {f"adam.{group}.{k}.first": first, f"adam.{group}.{k}.second": second}
        return named


@final
class LazyAdam:
    """Adam for tables of which a step updates some columns; values and moments of the others do not change.

    The bias correction of a column counts the column's own steps.
    """

    def __init__(self, tables: Sequence[Tensor], rate: float) -> None:
        self.rate = rate
        self._tables = [
            (table.detach(), torch.zeros_like(table, requires_grad=False), torch.zeros_like(table, requires_grad=False))
            for table in tables
        ]
        self._update = _fused if not tables or _is_fused_kernel_usable(tables[0].device) else _plain

    @torch.no_grad()
    def step(self, columns: Tensor, moved: Sequence[nn.Parameter], steps: int) -> None:
        """Update these columns, given their values and gradients in `moved`; `steps` counts their own steps."""
        for part, (table, first, second) in zip(moved, self._tables, strict=True):
            if part.grad is None:
                continue
            own_first, own_second = first.index_select(-1, columns), second.index_select(-1, columns)
            count = torch.full((), float(steps), device=table.device)
            self._update([(part, part.grad, own_first, own_second)], count, self.rate)
            for whole, own in ((table, part), (first, own_first), (second, own_second)):
                whole.index_copy_(-1, columns, own)
            part.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """The state of the optimiser, by name."""
        named: dict[str, Tensor] = {}
        for k, (_, first, second) in enumerate(self._tables):
            named |= {f"adam.people.{k}.first": first, f"adam.people.{k}.second": second}
        return named


_FIRST_DECAY, _SECOND_DECAY, _EPSILON = 0.9, 0.999, 1e-8
_Moved = Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]  # parameter, gradient, first and second moment


def _fused(moved: _Moved, steps: Tensor, rate: float | Tensor) -> None:
    """Adam's update in place by the kernel."""
    options = {"lr": rate, "beta1": _FIRST_DECAY, "beta2": _SECOND_DECAY, "weight_decay": 0.0, "eps": _EPSILON}
    lists, kernel = map(list, zip(*moved, strict=True)), cast(Any, torch._fused_adam_)
    kernel(*lists, [], [steps] * len(moved), **options, amsgrad=False, maximize=False)


def _plain(moved: _Moved, steps: Tensor, rate: float | Tensor) -> None:
    """Adam's update in place by public functions, which a CUDA graph can record."""
    # 1 - decay^steps; the plain difference would lose half of its digits in single precision
    first_correction, second_correction = (-torch.expm1(steps * log(decay)) for decay in (_FIRST_DECAY, _SECOND_DECAY))
    for parameter, gradient, mean, square in moved:
        mean.lerp_(gradient, 1 - _FIRST_DECAY)
        square.mul_(_SECOND_DECAY).addcmul_(gradient, gradient, value=1 - _SECOND_DECAY)
        parameter.sub_(rate * (mean / first_correction) / ((square / second_correction).sqrt() + _EPSILON))


@torch.no_grad()
def _is_fused_kernel_usable(device: torch.device) -> bool:
    """Whether the kernel exists, takes our arguments, and makes the first step, whose size is the learning rate."""
    for rate in (0.25, torch.full((), 0.25, device=device)):
        parameter, gradient, first, second, steps = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0], device=device).unbind()
        try:
            _fused([(parameter, gradient, first, second)], steps, rate)
        except (AttributeError, TypeError, RuntimeError):
            return False
        if not abs(float(parameter) - 0.75) < 1e-6:
            return False
    return True
