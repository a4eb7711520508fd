"""How the offline baselines learn: networks descend costs step by step, many side by side on a GPU."""

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
from ileed.tasks import Progress

__all__ = ["Lesson", "Point", "descend", "follow", "practise", "twin"]

POINTS = 50
"""How many points a training curve has."""

_Module = TypeVar("_Module", bound=nn.Module)
Costs = Mapping[str, Tensor]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Lesson:
    """What is to be practised, and how often."""

    step: Callable[[int], Costs]
    """Takes the step of that number, and says what it cost. All its chance comes from `generator`, and what it does may
    depend on the number in one way: whether it comes before `turn`."""
    steps: int
    generator: torch.Generator
    turn: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a training curve."""

    steps: int
    """Gradient steps so far."""
    costs: Mapping[str, float]
    """Mean of each cost since the point before."""
    seconds: float
    """Since the fit began."""


def descend(parameters: Iterable[nn.Parameter], learning_rate: float) -> Callable[[Tensor], None]:
    """A function that takes one Adam step down a cost, in these parameters alone."""
    own = list(parameters)
    optimiser = Adam([(own, learning_rate)])

    def step(cost: Tensor) -> None:
        # The gradient is asked for these parameters alone: a cost may pass through networks that must stay as they are.
        for parameter, gradient in zip(own, torch.autograd.grad(cost, own), strict=True):
            parameter.grad = gradient
        optimiser.step()

    return step


def twin(module: _Module) -> _Module:
    """A copy that only `follow` changes."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move every weight of `target` by `rate` of its way to `source`."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), rate)


def practise(lessons: Sequence[Lesson], *, progress: Progress | None) -> list[tuple[Point, ...]]:
    """Take every step of every lesson, and keep the mean of each one's costs at some fifty points.

    All take their first step, then all their second, and progress is told of the longest.
    """
    longest = max((lesson.steps for lesson in lessons), default=0)
    curves = [_Curve(lesson.steps) for lesson in lessons]
    turns = {edge for lesson in lessons for edge in (min(lesson.turn, lesson.steps), lesson.steps)}
    for first, end in pairwise(sorted({0} | turns)):
        going = [(lesson, curve) for lesson, curve in zip(lessons, curves, strict=True) if lesson.steps >= end]
        taken = _taken([lesson for lesson, _ in going], first, end)
        for number, each in enumerate(taken, start=first + 1):
            for (_, curve), costs in zip(going, each, strict=True):
                curve.add(number, costs)
            if progress is not None and (number % max(1, longest // POINTS) == 0 or number == longest):
                progress(number, longest)
    return [tuple(curve.points) for curve in curves]


@final
class _Curve:
    """Sums costs, and makes a point of their means now and then."""

    def __init__(self, steps: int) -> None:
        self.points: list[Point] = []
        self._began, self._steps, self._every = time.perf_counter(), steps, max(1, steps // POINTS)
        self._sums: dict[str, Tensor] = {}
        self._counted = 0

    def add(self, number: int, costs: Costs) -> None:
        for name, cost in costs.items():
            self._sums[name] = self._sums.get(name, 0) + cost.detach()
        self._counted += 1
        if number % self._every == 0 or number == self._steps:
            means = {name: float(total) / self._counted for name, total in self._sums.items()}
            self.points.append(Point(steps=number, costs=means, seconds=time.perf_counter() - self._began))
            self._sums, self._counted = {}, 0


def _taken(lessons: Sequence[Lesson], first: int, end: int) -> Iterator[list[Costs]]:
    """What each lesson's step costs, for one number after the other; no lesson ends or turns in between.

    On a GPU the steps of all lessons are recorded and launched as a whole: their kernels are small, and run at once.
    """
    if lessons[0].generator.device.type != "cuda":
        yield from ([lesson.step(number) for lesson in lessons] for number in range(first, end))
        return
    aside, *sides = (torch.cuda.Stream() for _ in range(len(lessons) + 1))
    plain = min(first + _BEFORE_RECORDING, end)
    yield from (_abreast(lessons, number, sides) for number in range(first, plain))
    if plain == end:
        return
    graph = torch.cuda.CUDAGraph()
    for lesson in lessons:
        graph.register_generator_state(lesson.generator)  # so that every replay draws anew
    with torch.cuda.graph(graph, stream=aside):
        recorded = _abreast(lessons, plain, sides)
    for _ in range(plain, end):
        graph.replay()
        yield recorded


_BEFORE_RECORDING = 3
"""Steps that choose kernels and allocate what a recording must find in place."""


def _abreast(lessons: Sequence[Lesson], number: int, sides: Sequence[torch.cuda.Stream]) -> list[Costs]:
    """A step of every lesson, each on a stream of its own; a recording would have to wait for what ran on the main."""
    main = torch.cuda.current_stream()
    each: list[Costs] = []
    for lesson, side in zip(lessons, sides, strict=True):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            each.append({name: cost.detach() for name, cost in lesson.step(number).items()})
    for side in sides:
        main.wait_stream(side)
    return each
