"""Mini-batches of people: all counts of some demonstrators at once, whose own numbers alone are then moved.

Where there are very many people, a step of all data takes long, and a mini-batch of steps shows one step of a person
and moves the numbers of everybody. Here a batch has all steps of some people: time and memory of an optimisation step
do not depend on how many people there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache, partial
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from ileed._torch import Int, stream
from ileed.data import Array, rules
from ileed.errors import SettingsError
from ileed.fitting.adam import LazyAdam
from ileed.fitting.batches import Sampler, TrainingData, tensor
from ileed.model.batch import Batch, Pairs, Sizes
from ileed.model.joint import Joint
from ileed.model.nets import Pick

_COUNTS_AT_ONCE = 1 << 16  # in a batch, on average
_STEPS_AT_ONCE = 1 << 12  # the same where observations do not repeat, so that each takes a pass through the networks
_GREATEST_RATE = 0.1  # of people's own numbers


@final
class PeopleBatches(Sampler):
    """Mini-batches of people: everybody once an epoch, in an order drawn for that epoch alone.

    The last batch of an epoch is filled with people whom the epoch has shown before.
    """

    def __init__(self, training_data: TrainingData, *, repeats: bool) -> None:
        collapsed, device = training_data.counts, training_data.seen.device
        order = np.argsort(collapsed.demonstrator, kind="stable")
        length = np.bincount(collapsed.demonstrator, minlength=training_data.sizes.demonstrators)
        self._length, self._first = tensor(length, device), tensor(np.cumsum(length) - length, device)
        self._sizes, self._seen, self._device = training_data.sizes, training_data.seen, device
        self._observation_index = tensor(collapsed.observation_index[order], device)
        self._demonstrator = tensor(collapsed.demonstrator[order], device)
        self._action = tensor(collapsed.action[order], device)
        self._legal = None if collapsed.legal is None else tensor(collapsed.legal.T, device)
        self._skills = None if collapsed.skills is None else tensor(collapsed.skills.T, device)
        self._context = {name: tensor(column[order].T, device) for name, column in collapsed.context.items()}

        def by_count(episode_weight: Array) -> Tensor:
            rows = episode_weight.reshape(-1, episode_weight.shape[-1])
            each = [collapsed.weights(training_data.data, row)[order] for row in rows]
            return torch.stack([tensor(row, device) for row in each]).reshape(*episode_weight.shape[:-1], -1)

        held_out = training_data.held_out_episodes
        self._weight = by_count(training_data.episode_weight)
        self._held_out = None if held_out is None else by_count(held_out)
        items, seed = torch.from_numpy(np.flatnonzero(length)), training_data.seed
        at_once = (_COUNTS_AT_ONCE if repeats else _STEPS_AT_ONCE) * len(items) // len(order)
        self._size = self.people_at_once = min(max(1, at_once), len(items))
        self.epoch = -(-len(items) // self._size)

        def shuffled(epoch: int) -> Tensor:
            return items[torch.randperm(len(items), generator=stream(seed, "order of people", epoch))].to(device)

        self._items, self._shuffled = items.to(device), lru_cache(maxsize=2)(shuffled)
        self.load(0)

    def load(self, step: int) -> None:
        epoch, number = divmod(step, self.epoch)
        order, size = self._shuffled(epoch), self._size
        first = min(number * size, len(order) - size)
        self.people, self.visits = order[first : first + size], epoch + 1

    def batch(self) -> Batch:
        return self._of(self.people, self._weight, of_part=True)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        weight = self._held_out if held_out and self._held_out is not None else self._weight
        for people in self._items.split(self._size):
            yield self._of(people, weight, of_part=False)

    def _of(self, people: Int[Tensor, " person"], weight: Tensor, *, of_part: bool) -> Batch:
        """The batch of these people's counts, by their places among them where it is for a model of a part."""
        length = self._length[people]
        place = torch.repeat_interleave(torch.arange(len(people), device=self._device), length)
        rows = (self._first[people] - length.cumsum(0) + length)[place] + torch.arange(len(place), device=self._device)
        index, seen, legal, skills = self._observation_index[rows], self._seen, self._legal, self._skills
        if seen.shape[1] > len(rows):
            used, index = torch.unique(index, return_inverse=True)
            seen = seen.index_select(1, used)
            legal, skills = (None if each is None else each.index_select(1, used) for each in (legal, skills))
        finite, unique_count = legal is None, seen.shape[1]
        at = Pick.drawn(index, unique_count, finite=finite)
        by = Pick.drawn(place, len(people)) if of_part else Pick.drawn(people[place], self._sizes.demonstrators)
        action = self._action[rows]
        context = {name: column[..., rows] for name, column in self._context.items()}
        return Batch(
            observations=seen,
            observation_index=at,
            demonstrator=by,
            pairs=Pairs(at, by, Pick(torch.arange(len(rows), device=self._device), len(rows), identity=True)),
            action=action,
            weight=weight[..., rows],
            taken=self._sizes.taken(action, index, unique_count, partial(Pick.drawn, finite=finite)),
            legal=legal,
            skills=skills,
            context=context,
        )


@final
class PartOfPeople:
    """A joint model of some of the people of another, which shares all parameters but people's own with it.

    Laws: what a step learns of the people of its batch is what Adam would learn of them alone; nothing of the others
    changes. A prior of people's own numbers is that of the batch's people.
    """

    def __init__(self, joint: Joint, size: int, rate: float, epoch: int) -> None:
        names = people_parameters(joint)
        self.tables = [joint.get_parameter(name) for name in names]
        self.adam = LazyAdam(self.tables, max(rate, min(_GREATEST_RATE, rate * epoch)))
        self._own = [nn.Parameter(table.detach()[..., :size].clone()) for table in self.tables]
        shared = {id(parameter): parameter for parameter in joint.parameters()}
        own = {id(table): part for table, part in zip(self.tables, self._own, strict=True)}
        self.joint = deepcopy(joint, shared | own)
        self.joint.sizes = replace(joint.sizes, demonstrators=size)
        self._knowledge = joint.knowledge
        if joint.knowledge is not None and (answers := joint.knowledge.answers) is not None:
            answers = replace(answers, weight=answers.weight / epoch)  # of which a batch has its part
            self._knowledge = replace(joint.knowledge, answers=answers)
        if joint.knowledge is not None and len(joint.knowledge.better):
            found = f"there are {joint.sizes.demonstrators:,} demonstrators and pairs of whom is better"
            raise SettingsError(
                f"{found}: pairs are for {rules.MANY_PEOPLE:,} people or fewer; name gold people instead"
            )

    @torch.no_grad()
    def load(self, people: Int[Tensor, " person"]) -> None:
        """Take the numbers of these people out of the tables."""
        for table, part in zip(self.tables, self._own, strict=True):
            part.copy_(table.index_select(-1, people))
        if self._knowledge is not None:
            self.joint.knowledge = replace(self._knowledge, gold=self._knowledge.gold[people])

    def step(self, people: Int[Tensor, " person"], visits: int) -> None:
        """Move the numbers of these people by their gradients; `visits` counts how often they were moved, with this."""
        self.adam.step(people, self._own, visits)


def people_parameters(joint: Joint) -> list[str]:
    """Names of the parameters with a value for each person, on the last axis: longer ones for one more person."""
    sizes: Sizes = replace(joint.sizes, demonstrators=joint.sizes.demonstrators + 1)
    more = dict(Joint(joint.parts, sizes, []).named_parameters())
    return [name for name, each in joint.named_parameters() if each.shape[1:] != more[name].shape[1:]]
