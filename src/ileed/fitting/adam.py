"""Adam, the optimiser, without its surroundings."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import final

import torch
from torch import Tensor, nn


@final
class Adam:
    """Adam (Kingma and Ba, 2015) with a learning rate for each group of parameters, by torch's fused kernel.

    `torch.optim.Adam` calls the same kernel, but importing what surrounds it takes seconds and each of its steps spends
    longer in Python than on the arithmetic of networks as small as ours. A test holds the two together. The kernel is
    not part of torch's public interface: where it is missing, or does not do what we expect of it, the same update is
    made by public functions, more slowly and equal but for rounding.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[nn.Parameter], float]]) -> None:
        self.groups = [(list(parameters), rate) for parameters, rate in groups]
        self.steps = torch.zeros((), device=self.groups[0][0][0].device)
        self.first = [[torch.zeros_like(parameter) for parameter in parameters] for parameters, _ in groups]
        self.second = [[torch.zeros_like(parameter) for parameter in parameters] for parameters, _ in groups]
        self._update = _fused if _is_fused_kernel_usable(self.steps.device) else _plain

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient, and forget the gradients."""
        self.steps += 1
        for (parameters, rate), first, second in zip(self.groups, self.first, self.second, strict=True):
            moved = [k for k, parameter in enumerate(parameters) if parameter.grad is not None]
            if not moved:
                continue
            self._update(
                [parameters[k] for k in moved],
                [gradient for k in moved if (gradient := parameters[k].grad) is not None],
                [first[k] for k in moved],
                [second[k] for k in moved],
                self.steps,
                rate,
            )
            for parameter in parameters:
                parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Everything the next step depends on beside the parameters, by name."""
        named = {"adam.steps": self.steps}
        for group, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            for k in range(len(first)):
                named |= {f"adam.{group}.{k}.first": first[k], f"adam.{group}.{k}.second": second[k]}
        return named


_FIRST_DECAY, _SECOND_DECAY, _EPSILON = 0.9, 0.999, 1e-8


def _fused(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    steps: Tensor,
    rate: float,
) -> None:
    """Adam's update in place, by the kernel."""
    torch._fused_adam_(
        list(parameters),
        list(gradients),
        list(first),
        list(second),
        [],
        [steps] * len(parameters),
        lr=rate,
        beta1=_FIRST_DECAY,
        beta2=_SECOND_DECAY,
        weight_decay=0.0,
        eps=_EPSILON,
        amsgrad=False,
        maximize=False,
    )


def _plain(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    steps: Tensor,
    rate: float,
) -> None:
    """Adam's update in place, by public functions that a CUDA graph can record."""
    # 1 - decay^steps; the difference itself would lose half of its digits in 32 bits
    first_correction, second_correction = (-torch.expm1(steps * log(decay)) for decay in (_FIRST_DECAY, _SECOND_DECAY))
    for parameter, gradient, mean, square in zip(parameters, gradients, first, second, strict=True):
        mean.lerp_(gradient, 1 - _FIRST_DECAY)
        square.mul_(_SECOND_DECAY).addcmul_(gradient, gradient, value=1 - _SECOND_DECAY)
        parameter.sub_(rate * (mean / first_correction) / ((square / second_correction).sqrt() + _EPSILON))


@torch.no_grad()
def _is_fused_kernel_usable(device: torch.device) -> bool:
    """Whether the kernel is there, takes our arguments, and makes the first step, which is the rate itself."""
    parameter, gradient, first, second, steps = torch.tensor(
        [[1.0], [1.0], [0.0], [0.0], [1.0]], device=device
    ).unbind()
    try:
        _fused([parameter], [gradient], [first], [second], steps[0], 0.25)
    except (AttributeError, TypeError, RuntimeError):
        return False
    return abs(float(parameter) - 0.75) < 1e-6
