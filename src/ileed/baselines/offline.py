"""What the offline baselines share: steps gathered on the device, networks, one training loop, one policy to play."""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log, pi
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ileed._torch import stream
from ileed.demonstrations import Array, Demonstrations
from ileed.errors import DemonstrationError, SettingsError
from ileed.fitting.adam import Adam
from ileed.tasks import Progress

__all__ = [
    "AbstractActor",
    "ConditionalSampler",
    "Critics",
    "FittedOffline",
    "OfflinePolicy",
    "Point",
    "RecurrentMixture",
    "Replay",
    "Transitions",
    "Units",
    "Windows",
    "at_least_one",
    "built",
    "chance",
    "descend",
    "follow",
    "network",
    "positive",
    "practise",
    "twin",
]

POINTS = 50
"""How many points a training curve has."""
SMALLEST_DEVIATION = 1e-2
"""Of a mixture's components, on the scale on which actions reach from -1 to 1."""

State = tuple[Tensor, ...]
_Module = TypeVar("_Module", bound=nn.Module)


# Data


@final
@dataclass(frozen=True, eq=False)
class Units:
    """The units in which networks see the data: observations in deviations from their mean, actions from -1 to 1.

    Minus one and one are the least and the greatest that anybody did on that axis, so a policy never leaves what was
    demonstrated. An observation that never varies is zero; an action that never varies is repeated as it is.
    """

    shape: tuple[int, ...]
    mean: Tensor
    deviation: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, demonstrations: Demonstrations) -> Units:
        seen = np.asarray(demonstrations.observations, dtype=np.float64).reshape(len(demonstrations), -1)
        deviation = seen.std(axis=0)
        varies = deviation > 1e-6 * np.maximum(1, np.abs(seen).max(axis=0))  # below that it is rounding
        done = np.asarray(demonstrations.actions, dtype=np.float32)
        return cls(
            shape=demonstrations.observations.shape[1:],
            mean=torch.tensor(seen.mean(axis=0), dtype=torch.float32),
            deviation=torch.tensor(np.where(varies, deviation, 1), dtype=torch.float32),
            low=torch.tensor(done.min(axis=0)),
            high=torch.tensor(done.max(axis=0)),
        )

    def seen(self, observations: Array) -> Tensor:
        """(row, input) what networks read of (row, *shape) observations."""
        flat = torch.from_numpy(np.array(observations, dtype=np.float32).reshape(len(observations), -1))
        return (flat - self.mean) / self.deviation

    def scaled(self, actions: Array) -> Tensor:
        """(row, dimension) actions from -1 to 1."""
        done = torch.from_numpy(np.array(actions, dtype=np.float32))
        reach = self.high - self.low
        return 2 * (done - self.low) / torch.where(reach > 0, reach, 1) - (reach > 0).float()

    def actions(self, scaled: Tensor) -> Tensor:
        """The inverse of `scaled`, never beyond what was demonstrated."""
        return torch.lerp(self.low, self.high, (scaled + 1) / 2).clamp(self.low, self.high)


class Transitions(NamedTuple):
    """Steps drawn at random, and what followed."""

    observations: Tensor
    """(row, input)."""
    actions: Tensor
    """(row, dimension)."""
    rewards: Tensor
    """(row,)."""
    goes_on: Tensor
    """(row,) 0 where the task ended with this step, else 1."""
    following: Tensor
    """(row, input) what was seen next."""


class Windows(NamedTuple):
    """Stretches of episodes, and where each led."""

    observations: Tensor
    """(row, time, input)."""
    actions: Tensor
    """(row, time, dimension)."""
    present: Tensor
    """(row, time) 0 after the episode's last step, which is repeated there, else 1."""
    subgoals: Tensor
    """(row, input) what was seen a horizon after the first step, or last in the episode."""


@final
class Replay:
    """All steps as contiguous tensors on one device, from which batches are gathered there.

    The step after which an episode was cut has no known successor and takes no part in transitions.
    """

    def __init__(
        self, demonstrations: Demonstrations, *, method: str, with_rewards: bool, device: torch.device
    ) -> None:
        _check(demonstrations, method, with_rewards)
        self.units, self.device = Units.of(demonstrations), device
        self._observations = self.units.seen(demonstrations.observations).to(device)
        self._actions = self.units.scaled(demonstrations.actions).to(device)
        lengths = np.bincount(demonstrations.episode)
        last = np.repeat(np.cumsum(lengths) - 1, lengths)
        self._last = torch.from_numpy(last).to(device)
        if demonstrations.rewards is not None and demonstrations.terminals is not None:
            ended = demonstrations.terminals
            known = np.flatnonzero(ended | (np.arange(len(last)) < last))
            self._rewards = torch.from_numpy(demonstrations.rewards.copy()).to(device)
            self._goes_on = torch.from_numpy((~ended).astype(np.float32)).to(device)
            self._known = torch.from_numpy(known).to(device)

    @property
    def inputs(self) -> int:
        return self._observations.shape[1]

    @property
    def dimensions(self) -> int:
        return self._actions.shape[1]

    def transitions(self, count: int, generator: torch.Generator) -> Transitions:
        step = self._known[torch.randint(len(self._known), (count,), generator=generator, device=self.device)]
        following = torch.minimum(step + 1, self._last[step])
        return Transitions(
            self._observations[step],
            self._actions[step],
            self._rewards[step],
            self._goes_on[step],
            self._observations[following],
        )

    def windows(self, count: int, *, length: int, horizon: int, generator: torch.Generator) -> Windows:
        begin = torch.randint(len(self._last), (count, 1), generator=generator, device=self.device)
        last = self._last[begin]
        step = begin + torch.arange(length, device=self.device)
        index = torch.minimum(step, last)
        return Windows(
            self._observations[index],
            self._actions[index],
            (step <= last).float(),
            self._observations[torch.minimum(begin + horizon, last)[:, 0]],
        )


def _check(demonstrations: Demonstrations, method: str, with_rewards: bool) -> None:
    if demonstrations.discrete:
        raise DemonstrationError(
            f"these demonstrations choose among {demonstrations.action_count} discrete actions, but {method} learns "
            "continuous ones; pass actions of shape (steps, dimensions), or use ileed.bc() or ileed.Ileed()"
        )
    if not with_rewards:
        return
    for name in ("rewards", "terminals"):
        if getattr(demonstrations, name) is None:
            raise DemonstrationError(
                f"these demonstrations have no {name}, but {method} learns from rewards up to the task's own ends; "
                f"pass {name}, or choose a method that uses no rewards, such as Hbc"
            )
    if demonstrations.rewards is not None and not demonstrations.rewards.any():
        raise DemonstrationError(
            f"every reward is zero, so {method} cannot tell good from bad; pass the rewards of the task, or choose a "
            "method that uses none, such as Hbc"
        )


# Settings


def at_least_one(settings: Any, *names: str) -> None:
    """Refuse counts below one."""
    for name in names:
        value = getattr(settings, name)
        if value != int(value) or value < 1:
            raise SettingsError(f"{name} is {value}: it must be a whole number, one or more")


def positive(settings: Any, *names: str) -> None:
    """Refuse numbers that are not above zero."""
    for name in names:
        value = getattr(settings, name)
        if not 0 < value < float("inf"):
            raise SettingsError(f"{name} is {value}: it must be a number above zero")


# Networks


def chance(seed: int, *purpose: object, device: torch.device) -> torch.Generator:
    """The named stream, on a device: there is one sequence for a CPU and another for a GPU."""
    return torch.Generator(device).manual_seed(stream(seed, *purpose).initial_seed())


def built(make: Callable[[], _Module], generator: torch.Generator, device: torch.device) -> _Module:
    """A module whose weights come from `generator`, uniform within one over the root of what a unit reads."""
    with torch.device("meta"):  # there torch's own initialisation draws nothing
        module = make()
    module.to_empty(device="cpu")
    with torch.no_grad():
        for part in module.modules():
            reads = getattr(part, "in_features", None) or getattr(part, "hidden_size", None)
            for parameter in part.parameters(recurse=False):
                bound = 0.0 if reads is None else reads**-0.5
                parameter.uniform_(-bound, bound, generator=generator)
    return module.to(device)


def network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Linear layers with rectifiers between."""
    sizes = (inputs, *hidden)
    layers = [nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(sizes)]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


@final
class Critics(nn.Module):
    """Two independent estimates of what an action is worth, computed together."""

    count = 2

    def __init__(self, inputs: int, dimensions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        sizes = (inputs + dimensions, *hidden, 1)
        self._layers = nn.ModuleList(_Stacked(*pair) for pair in pairwise(sizes))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(critic, row, ...) from observations (row, input) and actions (row, ..., dimension)."""
        rows, *more, _ = actions.shape
        seen = observations.view(rows, *[1] * len(more), -1).expand(rows, *more, -1)
        values = torch.cat([seen, actions], dim=-1).flatten(0, -2).expand(self.count, -1, -1)
        for number, layer in enumerate(self._layers):
            values = layer(values.relu() if number else values)
        return values.view(self.count, rows, *more)


class _Stacked(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features = inputs
        self.weight = nn.Parameter(torch.empty(Critics.count, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(Critics.count, 1, outputs))

    def forward(self, values: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, values, self.weight)


@final
class ConditionalSampler(nn.Module):
    """A conditional variational autoencoder: draws x given c by decoding a latent z.

    Its cost is the squared error of x, averaged over axes, plus `divergence_weight` times KL(q(z | x, c) || p(z | c)).
    The prior p(z | c) is a learned mixture of `prior_modes` Gaussians, or the standard normal if that is 0. `bounded`
    keeps x within -1 and 1.
    """

    def __init__(
        self,
        condition: int,
        size: int,
        *,
        latent: int,
        hidden: tuple[int, ...],
        divergence_weight: float,
        prior_modes: int,
        bounded: bool,
    ) -> None:
        super().__init__()
        self.latent, self._divergence_weight, self._modes, self._bounded = (
            latent,
            divergence_weight,
            prior_modes,
            bounded,
        )
        self._encoder = network(condition + size, hidden, 2 * latent)
        self._decoder = network(condition + latent, hidden, size)
        if prior_modes:
            self._prior = network(condition, hidden, prior_modes * (1 + 2 * latent))

    def cost(self, condition: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """The mean over rows, by one draw of z for each."""
        mean, log_deviation = self._encoder(torch.cat([condition, x], dim=-1)).chunk(2, dim=-1)
        log_deviation = log_deviation.clamp(-6, 3)
        noise = _normal(mean.shape, generator)
        z = mean + log_deviation.exp() * noise
        error = (self._decoded(condition, z) - x).square().mean()
        return error + self._divergence_weight * self._divergence(condition, mean, log_deviation, z, noise).mean()

    def draws(self, condition: Tensor, uniform: Tensor, noise: Tensor) -> Tensor:
        """(row, draw, size) from `uniform` (1 or row, draw) and `noise` (1 or row, draw, latent)."""
        rows = len(condition)
        if self._modes:
            log_weights, means, log_deviations = self._mixture(condition)
            passed = uniform[..., None] > log_weights.exp().cumsum(-1)[:, None, :-1]
            mode = passed.sum(-1, keepdim=True).expand(-1, -1, self.latent)
            z = means.gather(1, mode) + log_deviations.gather(1, mode).exp() * noise
        else:
            z = noise.expand(rows, -1, -1)
        return self._decoded(condition[:, None].expand(-1, z.shape[1], -1), z)

    def likeliest(self, condition: Tensor) -> Tensor:
        """(row, size) decoded from the centre of the prior's heaviest mode."""
        if not self._modes:
            return self._decoded(condition, condition.new_zeros(len(condition), self.latent))
        log_weights, means, _ = self._mixture(condition)
        return self._decoded(condition, means[torch.arange(len(means), device=means.device), log_weights.argmax(-1)])

    def _decoded(self, condition: Tensor, z: Tensor) -> Tensor:
        x: Tensor = self._decoder(torch.cat([condition, z], dim=-1))
        return x.tanh() if self._bounded else x

    def _mixture(self, condition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (row, mode), means and log deviations (row, mode, latent)."""
        logits, places = self._prior(condition).split([self._modes, 2 * self._modes * self.latent], dim=-1)
        means, log_deviations = places.unflatten(-1, (self._modes, 2 * self.latent)).chunk(2, dim=-1)
        return logits.log_softmax(-1), means, log_deviations.clamp(-6, 3)

    def _divergence(self, condition: Tensor, mean: Tensor, log_deviation: Tensor, z: Tensor, noise: Tensor) -> Tensor:
        """(row,) exact under the standard normal, by the draw z under a mixture."""
        if not self._modes:
            return 0.5 * (mean.square() + (2 * log_deviation).exp() - 1 - 2 * log_deviation).sum(-1)
        log_weights, means, log_deviations = self._mixture(condition)
        prior = log_normal((z[:, None] - means) / log_deviations.exp(), log_deviations)
        return log_normal(noise, log_deviation) - (log_weights + prior).logsumexp(-1)


@final
class RecurrentMixture(nn.Module):
    """A mixture of Gaussians over actions, given everything since the last (observation, subgoal) after a reset."""

    def __init__(self, inputs: int, dimensions: int, *, hidden: int, layers: int, modes: int) -> None:
        super().__init__()
        self.hidden, self.layers, self._modes, self._dimensions = hidden, layers, modes, dimensions
        self._memory = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True)
        self._head = nn.Linear(hidden, modes * (1 + 2 * dimensions))

    def forward(self, inputs: Tensor, memory: tuple[Tensor, Tensor] | None = None) -> tuple[tuple[Tensor, ...], Any]:
        """Log weights (row, time, mode), means and deviations (row, time, mode, dimension), and the memory after."""
        remembered, memory = self._memory(inputs, memory)
        size = self._modes * self._dimensions
        logits, means, spreads = self._head(remembered).split([self._modes, size, size], dim=-1)
        means, spreads = (part.unflatten(-1, (self._modes, self._dimensions)) for part in (means, spreads))
        return (logits.log_softmax(-1), means.tanh(), functional.softplus(spreads) + SMALLEST_DEVIATION), memory

    def cost(self, windows: Windows) -> Tensor:
        """Mean negative log-likelihood of an action, in nats on the scale from -1 to 1."""
        goals = windows.subgoals[:, None].expand(-1, windows.observations.shape[1], -1)
        (log_weights, means, deviations), _ = self(torch.cat([windows.observations, goals], dim=-1))
        each = log_normal((windows.actions[..., None, :] - means) / deviations, deviations.log())
        return -((log_weights + each).logsumexp(-1) * windows.present).sum() / windows.present.sum()


def log_normal(standardised: Tensor, log_deviation: Tensor) -> Tensor:
    """Log density of a diagonal Gaussian, summed over the last axis."""
    return -(0.5 * standardised.square() + log_deviation + 0.5 * log(2 * pi)).sum(-1)


def _normal(shape: Iterable[int], generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, device=generator.device)


# Training


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a training curve."""

    steps: int
    """Gradient steps so far."""
    costs: Mapping[str, float]
    """Mean of each cost since the point before."""
    seconds: float
    """Since this part of the fit began."""


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
    for behind, ahead in zip(target.parameters(), source.parameters(), strict=True):
        behind.lerp_(ahead, rate)


def practise(
    step: Callable[[int], Mapping[str, Tensor]],
    *,
    steps: int,
    generator: torch.Generator,
    progress: Progress | None,
    turn: int = 0,
) -> tuple[Point, ...]:
    """Take every step, and keep the mean of its costs at some fifty points.

    All chance must come from `generator`. What a step does may depend on its number in one way: whether it comes before
    `turn`.
    """
    began, every = time.perf_counter(), max(1, steps // POINTS)
    curve: list[Point] = []
    sums: dict[str, Tensor] = {}
    counted = 0
    for number, costs in enumerate(_taken(step, steps=steps, turn=turn, generator=generator), start=1):
        for name, cost in costs.items():
            sums[name] = sums.get(name, 0) + cost.detach()
        counted += 1
        if number % every == 0 or number == steps:
            means = {name: float(total) / counted for name, total in sums.items()}
            curve.append(Point(steps=number, costs=means, seconds=time.perf_counter() - began))
            sums, counted = {}, 0
            if progress is not None:
                progress(number, steps)
    return tuple(curve)


def _taken(
    step: Callable[[int], Mapping[str, Tensor]], *, steps: int, turn: int, generator: torch.Generator
) -> Iterator[Mapping[str, Tensor]]:
    """The costs of every step; on a GPU steps are recorded and launched as a whole, which is many times faster."""
    for first, end in ((0, min(turn, steps)), (min(turn, steps), steps)):
        if generator.device.type != "cuda":
            yield from (step(number) for number in range(first, end))
            continue
        plain = min(first + _BEFORE_RECORDING, end)
        yield from (_aside(step, number) for number in range(first, plain))
        if plain < end:
            replay = _recorded(step, plain, generator)
            yield from (replay() for _ in range(plain, end))


_BEFORE_RECORDING = 3
"""Steps that choose kernels and allocate what a recording must find in place."""


def _aside(step: Callable[[int], Mapping[str, Tensor]], number: int) -> Mapping[str, Tensor]:
    """A step on a stream of its own: what the main one holds of a step, a recording would have to wait for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        costs = {name: cost.detach() for name, cost in step(number).items()}
    torch.cuda.current_stream().wait_stream(side)
    return costs


def _recorded(
    step: Callable[[int], Mapping[str, Tensor]], number: int, generator: torch.Generator
) -> Callable[[], Mapping[str, Tensor]]:
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)  # so that every replay draws anew
    with torch.cuda.graph(graph):
        costs = {name: cost.detach() for name, cost in step(number).items()}

    def replay() -> Mapping[str, Tensor]:
        graph.replay()
        return costs

    return replay


# Playing


class AbstractActor(nn.Module, ABC):
    """What a policy plays with: networks that see and act in the data's `Units`.

    Laws: row r of the answer depends on row r of what is given, and without a generator on nothing else.
    """

    @abstractmethod
    def begin(self, rows: int) -> State:
        """The state of rows in which nothing has happened yet: zeros, the first axis of each part being the row."""

    @abstractmethod
    def act(self, observations: Tensor, state: State, generator: torch.Generator | None) -> tuple[Tensor, State]:
        """Actions (row, dimension) and the state after; drawn with a generator, the preferred ones without."""


@final
class OfflinePolicy:
    """A learned policy for continuous actions: takes observations and gives actions in their own units.

    Has stable-baselines3's `predict`. A state is a tuple of arrays whose first axis is the row, so that many
    environments may be played at once, each with its own memory. Draws, where asked for, come from a stream of the
    policy's own, which `reset(seed)` starts anew.
    """

    def __init__(self, actor: AbstractActor, units: Units) -> None:
        self._actor, self._units = actor.cpu().eval().requires_grad_(False), units
        self._generator = stream(0, "act")

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self._units.shape

    def reset(self, seed: int = 0) -> None:
        """Start the stream of drawn actions anew; an episode's memory is the caller's, in `state`."""
        self._generator = stream(seed, "act")

    @torch.no_grad()
    def predict(
        self,
        observation: Array,
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, tuple[Array, ...] | None]:
        """The preferred action, or one drawn, for one observation or a batch of them, and the state to pass next."""
        single = np.shape(observation) == self._units.shape
        rows = np.asarray(observation)[None] if single else np.asarray(observation)
        if rows.shape[1:] != self._units.shape:
            raise DemonstrationError(
                f"observations have shape {rows.shape}: this policy learned from observations of shape "
                f"{self._units.shape}, so pass (number of observations, {', '.join(map(str, self._units.shape))})"
            )
        actions, after = self._actor.act(
            self._units.seen(rows),
            self._remembered(len(rows), state, episode_start),
            None if deterministic else self._generator,
        )
        done = self._units.actions(actions).numpy()
        return (done[0] if single else done), (tuple(part.numpy() for part in after) or None)

    def _remembered(self, rows: int, state: tuple[Array, ...] | None, starts: Array | None) -> State:
        fresh = self._actor.begin(rows)
        if state is None:
            return fresh
        kept = tuple(torch.from_numpy(np.array(part)) for part in state)
        if [part.shape for part in kept] != [part.shape for part in fresh]:
            raise SettingsError(
                f"the state is of {len(kept[0]) if kept else 0} rows of another kind: pass what predict returned for "
                f"these {rows} rows, or None where all episodes begin"
            )
        if starts is None:
            return kept
        begins = torch.from_numpy(np.array(starts, dtype=bool)).reshape(rows)
        return tuple(
            torch.where(begins.view(rows, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(fresh, kept, strict=True)
        )


@final
@dataclass(frozen=True, eq=False)
class FittedOffline:
    """A fit: `policy` to act with, and `history`, the training curve of each part, to judge it by."""

    policy: OfflinePolicy
    history: Mapping[str, tuple[Point, ...]]
    method: Any

    @property
    def seconds(self) -> float:
        """How long the training took."""
        return sum(curve[-1].seconds for curve in self.history.values())

    def __repr__(self) -> str:
        steps = sum(curve[-1].steps for curve in self.history.values())
        return f"FittedOffline({type(self.method).__name__}, {steps:,} gradient steps in {self.seconds:.0f} s)"
