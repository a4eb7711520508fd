"""Expertise: how closely each demonstrator follows the policy, and where.

rho(s, i) = sigmoid(<f(s), w_i>), with f the embedding of an observation and w_i that of a demonstrator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from ileed._torch import Float
from ileed.checking import text, true_or_false, whole_number
from ileed.model.batch import Batch, Sizes
from ileed.model.policies import hidden_layers
from ileed.nets import MLP, uniform


class AbstractExpertise(ABC):
    """Settings of an expertise.

    Laws: expertise lies in [0, 1]; a module draws each member's parameters from that member's generator alone; its
    `embedding` is f, (member, dimension, unique observation), and calling it with that gives (member, count).
    """

    @abstractmethod
    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> ExpertiseNet:
        """The module that knows f and w."""


class ExpertiseNet(nn.Module, ABC):
    """f and w of every member; `skill` holds w, which is learned at a rate of its own."""

    skill: nn.Parameter

    @abstractmethod
    def embedding(self, batch: Batch) -> Tensor | None:
        """f of every unique observation, or nothing where expertise does not depend on the observation."""

    @abstractmethod
    def forward(self, embedding: Tensor | None, batch: Batch) -> Float[Tensor, "member count"]:
        """rho of every count."""


@final
@dataclass(frozen=True, kw_only=True)
class Perfect(AbstractExpertise):
    """Nobody ever errs: rho = 1. The joint model is then behaviour cloning."""

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> ExpertiseNet:
        return _Perfect(len(generators))


@final
@dataclass(frozen=True, kw_only=True)
class Constant(AbstractExpertise):
    """One number for each demonstrator, the same in all states (the paper's state-independent variant)."""

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> ExpertiseNet:
        return _Constant(sizes, generators)


@final
@dataclass(frozen=True, kw_only=True)
class Embedded(AbstractExpertise):
    """Expertise that depends on the state through an embedding in `dim` dimensions, learned with everything else.

    `shared=True` gives all demonstrators one w: the paper's demonstrator-independent ablation.
    """

    dim: int = 2
    hidden: tuple[int, ...] = (4, 4)
    shared: bool = False

    def __post_init__(self) -> None:
        dim = whole_number(
            "dim", self.dim, least=1, rule="an embedding needs a whole number of dimensions, one or more"
        )
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "hidden", hidden_layers(self.hidden))
        object.__setattr__(self, "shared", true_or_false("shared", self.shared))

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> ExpertiseNet:
        return _Embedded(self, sizes, generators)


@final
@dataclass(frozen=True)
class Skills(AbstractExpertise):
    """The embedding is known: a column of the data says which skills each step calls for.

    The column holds a label for each step (a phase, a task: one skill each), or a weight for each of several skills.
    This is the case in which the paper proves that the policy can be recovered.
    """

    column: str

    def __post_init__(self) -> None:
        text("column", self.column)

    def build(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> ExpertiseNet:
        return _Skilled(sizes, generators)


@final
class _Perfect(ExpertiseNet):
    def __init__(self, members: int) -> None:
        super().__init__()
        self.skill = nn.Parameter(torch.zeros(members, 0))

    def embedding(self, batch: Batch) -> None:
        return None

    def forward(self, embedding: Tensor | None, batch: Batch) -> Float[Tensor, "member count"]:
        return batch.observations.new_ones(len(self.skill), batch.observation_index.index.shape[-1])


@final
class _Constant(ExpertiseNet):
    def __init__(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.skill = nn.Parameter(uniform((sizes.demonstrators,), 1.0, generators))

    def embedding(self, batch: Batch) -> None:
        return None

    def forward(self, embedding: Tensor | None, batch: Batch) -> Float[Tensor, "member count"]:
        return batch.demonstrator(self.skill.sigmoid())


@final
class _Embedded(ExpertiseNet):
    def __init__(self, settings: Embedded, sizes: Sizes, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.shared = settings.shared
        self.body = MLP((sizes.inputs, *settings.hidden, settings.dim), generators=generators)
        people = 1 if settings.shared else sizes.demonstrators
        self.skill = nn.Parameter(uniform((settings.dim, people), 1.0, generators))

    def embedding(self, batch: Batch) -> Float[Tensor, "member dimension observation"]:
        features: Tensor = self.body(batch.observations)
        return features

    def forward(self, embedding: Tensor | None, batch: Batch) -> Float[Tensor, "member count"]:
        assert embedding is not None
        skill = self.skill if self.shared else batch.pairs.demonstrator(self.skill)
        return batch.pairs.pair_index((batch.pairs.observation_index(embedding) * skill).sum(-2).sigmoid())


@final
class _Skilled(ExpertiseNet):
    def __init__(self, sizes: Sizes, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.skill = nn.Parameter(uniform((sizes.skills, sizes.demonstrators), 1.0, generators))

    def embedding(self, batch: Batch) -> Float[Tensor, "*member skill observation"]:
        assert batch.skills is not None
        if batch.skills.ndim == 2:
            return batch.skills.unsqueeze(0)
        return batch.skills.repeat_interleave(len(self.skill) // len(batch.skills), dim=0)

    def forward(self, embedding: Tensor | None, batch: Batch) -> Float[Tensor, "member count"]:
        assert embedding is not None
        skill = batch.pairs.demonstrator(self.skill)
        return batch.pairs.pair_index((batch.pairs.observation_index(embedding) * skill).sum(-2).sigmoid())
