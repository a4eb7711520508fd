"""A third-party package: a policy head, demonstrator models, an expertise, a reader, a command and a task.

It uses public names of the library alone, and is found by its entry points.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from ileed import DemonstrationError, Demonstrations, runs
from ileed.cli import Command
from ileed.envs.gymnasium import GymnasiumTask
from ileed.formats import AbstractFormat
from ileed.model.batch import Batch, Sizes
from ileed.model.demonstrators import NO_CONTEXT, AbstractDemonstratorModel, Context, categorical
from ileed.model.distributions import Choice
from ileed.model.expertise import AbstractExpertise, ExpertiseNet
from ileed.model.nets import LSTM, MLP, uniform
from ileed.model.policies import AbstractPolicyHead, CategoricalNet


@dataclass(frozen=True, kw_only=True)
class Habit(AbstractDemonstratorModel[Categorical]):
    """Slips follow a habit of each person's own: p(a | s, i) = rho pi(a | s) + (1 - rho) b_i(a), with b_i learned."""

    discrete = True

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> nn.Module:
        return nn.ParameterDict({"habit": uniform((sizes.actions, sizes.demonstrators), 0.1, generators)})

    def observed(self, policy: Categorical, expertise: Tensor, context: Context = NO_CONTEXT) -> Categorical:
        habit = context.own("habit").softmax(-1)
        return categorical(torch.lerp(habit, policy.probs, expertise.unsqueeze(-1)))


@dataclass(frozen=True, kw_only=True)
class Repeat(AbstractDemonstratorModel[Categorical]):
    """Slips repeat the previous action with one probability q for all demonstrators, and are uniform otherwise.

    p(a | s, a', i) = rho pi(a | s) + (1 - rho) (q [a = a'] + (1 - q) / |A|); uniform at the first step of an episode.
    """

    discrete = True
    context = ("previous_action",)

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> nn.Module:
        return nn.ParameterDict({"repeats": uniform((1,), 0.1, generators)})

    def observed(self, policy: Categorical, expertise: Tensor, context: Context = NO_CONTEXT) -> Categorical:
        actions = policy.probs.shape[-1]
        previous = context["previous_action"].unsqueeze(-1)
        repeats = context.parameter("repeats").sigmoid() * (previous[..., 0] >= 0)
        repeated = previous == torch.arange(actions, device=previous.device)
        slip = torch.lerp(torch.full_like(policy.probs, 1 / actions), repeated.to(policy.probs), repeats.unsqueeze(-1))
        return categorical(torch.lerp(slip, policy.probs, expertise.unsqueeze(-1)))


@dataclass(frozen=True, kw_only=True)
class Matrix(AbstractDemonstratorModel[Categorical]):
    """Each person takes one action for another: p(a | s, i) = sum over b of pi(b | s) M_i(b, a), with M_i learned.

    A person's expertise is the mean of the diagonal of M_i (Dawid and Skene, 1979).
    """

    discrete = True
    defines_expertise = True

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> nn.Module:
        drawn = uniform((sizes.actions, sizes.actions, sizes.demonstrators), 0.1, generators)
        return nn.ParameterDict({"logits": drawn + 2 * torch.eye(sizes.actions).unsqueeze(-1)})

    def observed(self, policy: Categorical, expertise: Tensor, context: Context = NO_CONTEXT) -> Categorical:
        confusion = context.own("logits").softmax(-1)
        return categorical((policy.probs.unsqueeze(-2) @ confusion).squeeze(-2))

    def expertise(self, batch: Batch, module: nn.Module) -> Tensor:
        confusion = module.get_parameter("logits").softmax(2)
        return batch.demonstrator(confusion.diagonal(dim1=1, dim2=2).mean(-1))


@dataclass(frozen=True, kw_only=True)
class AtLeast(AbstractExpertise):
    """One number for each demonstrator, above a floor: rho(i) = floor + (1 - floor) sigmoid(w_i)."""

    floor: float = 0.5
    depends_on_state = False

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> ExpertiseNet:
        return _AtLeast(self.floor, sizes, generators)


class _AtLeast(ExpertiseNet):
    def __init__(self, floor: float, sizes: Sizes, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.floor = floor
        self.skill = nn.Parameter(uniform((sizes.demonstrators,), 1.0, generators))

    def forward(self, embedding: Tensor | None, batch: Batch) -> Tensor:
        return batch.demonstrator(self.floor + (1 - self.floor) * self.skill.sigmoid())


@dataclass(frozen=True, kw_only=True)
class CategoricalLSTM(AbstractPolicyHead):
    """A recurrent policy over discrete actions: one layer of long short-term memory and a softmax."""

    units: int = 8
    length: int = 5
    discrete = True

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> CategoricalNet:
        return _CategoricalLSTMNet(self, sizes, generators)


class _CategoricalLSTMNet(CategoricalNet):
    def __init__(self, settings: CategoricalLSTM, sizes: Sizes, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.units, self.length = settings.units, settings.length
        self.layer = LSTM(sizes.inputs, settings.units, generators=generators)
        self.body = MLP((settings.units, sizes.actions), generators=generators)

    def forward(self, observations: Tensor, legal: Tensor | None = None) -> Choice:
        return self.read(self.body(self.layer(observations, self.length)), legal)

    def initial_state(self, rows: int) -> tuple[Tensor, ...]:
        weight = self.body.last.weight
        zeros = weight.new_zeros(rows, len(weight), self.units)
        return zeros, zeros, torch.zeros(rows, dtype=torch.long)

    def step(
        self, observations: Tensor, state: tuple[Tensor, ...], legal: Tensor | None = None
    ) -> tuple[Choice, tuple[Tensor, ...]]:
        *before, age = state
        hidden, cell = (each.permute(1, 2, 0) * (age % self.length > 0) for each in before)
        after = self.layer.step(observations, (hidden, cell))
        return self.read(self.body(after[0]), legal), (*(each.permute(2, 0, 1) for each in after), age + 1)


class Steps(AbstractFormat):
    """A text file with a line for each step: demonstrator, episode, observation, action."""

    name = "steps"
    suffixes = (".steps",)

    def read(self, path: Path, *, demonstrator: Any = None, delimiter: str | None = None) -> Demonstrations:
        try:
            rows = list(csv.reader(path.read_text().splitlines(), delimiter=delimiter or " "))
            who, episode, seen, done = zip(*rows, strict=True)
            observations, actions = [[json.loads(value)] for value in seen], [int(value) for value in done]
        except ValueError as error:
            raise DemonstrationError(f"{path} is damaged ({error}): restore it from a copy") from error
        return Demonstrations(observations=observations, actions=actions, demonstrator=list(who), episode=list(episode))

    def columns(self, path: Path) -> Sequence[str]:
        return ("who", "episode", "seen", "done")

    def write(self, data: Demonstrations, path: Path) -> None:
        seen, names = data.observations, data.names
        columns = (seen[..., 0].tolist(), data.actions.tolist())
        people = [names[number] for number in data.demonstrator]
        rows = zip(people, data.episode.tolist(), *columns, strict=True)
        lines = [f"{who} {episode} {one} {done}\n" for who, episode, one, done in rows]
        is_plain = data.discrete and seen.shape[1:] == (1,) and seen.dtype in (np.int64, np.float64)
        others = (data.rewards, data.terminals, data.legal, data.encoding, data.timestamps)
        if not is_plain or data.skills or any(each is not None for each in others):
            raise DemonstrationError("steps hold one number, a discrete action and no more: write parquet")
        if list(names) != sorted({*people}) or " " in "".join(names):
            raise DemonstrationError("steps hold words as names, in alphabetical order: rename demonstrators")
        runs.write_file(path, "".join(lines).encode())


STEPS = Steps()

TINY = Command("tiny_parts", "Tiny", "Say how many parts there are.")


@dataclass(frozen=True)
class Tiny:
    """Say how many parts there are."""

    def __call__(self) -> None:
        print("five parts")


def tiny_cart_pole() -> GymnasiumTask:
    """A task of the library's under a name of ours."""
    return GymnasiumTask("CartPole-v1")
