"""Adam, the optimiser, without its surroundings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn


@final
class Adam:
    """Adam (Kingma and Ba, 2015) with a learning rate for each group of parameters, by torch's fused kernel.

    `torch.optim.Adam` calls the same kernel, but importing what surrounds it takes seconds and each of its steps spends
    longer in Python than on the arithmetic of networks as small as ours. A test holds the two together.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[nn.Parameter], float]]) -> None:
        self.groups = [(list(parameters), rate) for parameters, rate in groups]
        self.steps = torch.zeros((), device=self.groups[0][0][0].device)
        self.first = [[torch.zeros_like(parameter) for parameter in parameters] for parameters, _ in groups]
        self.second = [[torch.zeros_like(parameter) for parameter in parameters] for parameters, _ in groups]

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient, and forget the gradients."""
        self.steps += 1
        for (parameters, rate), first, second in zip(self.groups, self.first, self.second, strict=True):
            moved = [k for k, parameter in enumerate(parameters) if parameter.grad is not None]
            if not moved:
                continue
            torch._fused_adam_(
                [parameters[k] for k in moved],
                [gradient for k in moved if (gradient := parameters[k].grad) is not None],
                [first[k] for k in moved],
                [second[k] for k in moved],
                [],
                [self.steps] * len(moved),
                lr=rate,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
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
