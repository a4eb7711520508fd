"""The training loop of the offline baselines: optimisation steps of several trainers, side by side on a GPU."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar, final

import torch
from torch import Tensor, nn

from ileed.fitting.adam import Adam
from ileed.parallel.runtime import record_cuda_graph

__all__ = ["Trainer", "TrainingPoint", "minimiser", "target_copy", "train", "update_target"]

POINTS = 50
"""How many points a training curve has."""

_Module = TypeVar("_Module", bound=nn.Module)
Losses = Mapping[str, Tensor]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Trainer:
    """Networks that are optimised together: their optimisation step, and the number of steps."""

    step: Callable[[int], Losses]
    """Takes the optimisation step of that number and returns its losses.

    All random numbers come from `generator`. The step may depend on its number only through `number < switch`, so that
    the steps on either side of `switch` can be recorded as one CUDA graph each."""
    steps: int
    generator: torch.Generator
    switch: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class TrainingPoint:
    """One point of a training curve."""

    steps: int
    """Optimisation steps so far."""
    losses: Mapping[str, float]
    """Mean of each loss since the previous point."""
    seconds: float
    """Since the start of the fit."""


def minimiser(parameters: Iterable[nn.Parameter], learning_rate: float) -> Callable[[Tensor], None]:
    """A function that takes one Adam step on a loss, with respect to these parameters alone."""
    own = list(parameters)
    optimiser = Adam([(own, learning_rate)])

    def minimise(loss: Tensor) -> None:
        # The gradient is taken for these parameters alone: a loss may depend on networks that must not change.
        for parameter, gradient in zip(own, torch.autograd.grad(loss, own), strict=True):
            parameter.grad = gradient
        optimiser.step()

    return minimise


def target_copy(module: _Module) -> _Module:
    """A target network: a copy that only `update_target` changes."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def update_target(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Exponential moving average: target <- (1 - rate) * target + rate * source."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), rate)


def train(trainers: Sequence[Trainer]) -> list[tuple[TrainingPoint, ...]]:
    """Take every step of every trainer; returns each one's training curve, of about fifty points.

    All trainers take their first step, then all their second, and so on.
    """
    curves = [_Curve(trainer.steps) for trainer in trainers]
    edges = {edge for trainer in trainers for edge in (min(trainer.switch, trainer.steps), trainer.steps)}
    for first, end in pairwise(sorted({0} | edges)):
        active = [(trainer, curve) for trainer, curve in zip(trainers, curves, strict=True) if trainer.steps >= end]
        losses = _losses_by_step([trainer for trainer, _ in active], first, end)
        for number, each in enumerate(losses, start=first + 1):
            for (_, curve), own in zip(active, each, strict=True):
                curve.add(number, own)
    return [tuple(curve.points) for curve in curves]


@final
class _Curve:
    """Sums losses, and adds a point with their means every few steps."""

    def __init__(self, steps: int) -> None:
        self.points: list[TrainingPoint] = []
        self._began, self._steps, self._every = time.perf_counter(), steps, max(1, steps // POINTS)
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, number: int, losses: Losses) -> None:
        for name, loss in losses.items():
            self._sums[name] = self._sums.get(name, 0) + loss.detach()
        self._count += 1
        if number % self._every == 0 or number == self._steps:
            means = {name: float(total) / self._count for name, total in self._sums.items()}
            self.points.append(TrainingPoint(steps=number, losses=means, seconds=time.perf_counter() - self._began))
            self._sums, self._count = {}, 0


def _losses_by_step(trainers: Sequence[Trainer], first: int, end: int) -> Iterator[list[Losses]]:
    """The losses of each trainer, step by step; no trainer ends or switches within these steps.

    On a GPU the steps of all trainers are recorded as one CUDA graph: their kernels are small and run concurrently.
    """
    if trainers[0].generator.device.type != "cuda":
        yield from ([trainer.step(number) for trainer in trainers] for number in range(first, end))
        return
    streams = [torch.cuda.Stream() for _ in trainers]
    eager = min(first + _STEPS_BEFORE_RECORDING, end)
    yield from (_concurrent_steps(trainers, number, streams) for number in range(first, eager))
    if eager == end:
        return
    replay = record_cuda_graph(
        lambda: _concurrent_steps(trainers, eager, streams),
        generators=[trainer.generator for trainer in trainers],
        warm_up=0,
    )
    yield from (replay() for _ in range(eager, end))


_STEPS_BEFORE_RECORDING = 3
"""Steps that choose kernels and allocate the memory that a recording needs."""


def _concurrent_steps(trainers: Sequence[Trainer], number: int, streams: Sequence[torch.cuda.Stream]) -> list[Losses]:
    """One step of every trainer, each on a stream of its own, which waits for the main stream and is waited for."""
    main = torch.cuda.current_stream()
    each: list[Losses] = []
    for trainer, stream in zip(trainers, streams, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            each.append({name: loss.detach() for name, loss in trainer.step(number).items()})
    for stream in streams:
        main.wait_stream(stream)
    return each
