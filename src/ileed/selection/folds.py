"""Folds of episodes: which episodes members learn from, and which are held out from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from ileed._torch import numpy_stream
from ileed.data import Array, Demonstrations, rules
from ileed.data.collapsing import held_in_memory
from ileed.data.findings import first_copies

_HELD_OUT = 0.2  # share of each demonstrator's episodes
_MOST_STEPS = 100_000  # that are compared by
_STEPS_OF_MANY = 50_000  # the same where there are very many demonstrators
_BLOCKS = 5  # of each episode, where no demonstrator has two


@final
@dataclass(frozen=True, eq=False)
class Folds:
    """Episodes in folds, and what the members of an optimisation learn from: all folds but one each."""

    data: Demonstrations
    fold: Array
    """(episode,) the fold in which an episode is held out; -1 where it never is."""
    weight: Array
    """(episode,) how often an episode counts."""
    weights: Array
    """(fold x member, episode) what each member learns from; (episode,) where there is one fold."""
    members: int
    """Of each fold."""

    @classmethod
    def of(
        cls, data: Demonstrations, *, seed: int, members: int, count: int = 1, weights: Array | None = None
    ) -> Folds:
        """Folds of a sample of episodes; one fold holds out a fifth of each demonstrator's episodes, more hold out all.

        `weights` (*restart, episode) counts each episode that many times.
        """
        if count > 1:
            data, weights = held_in_memory(data, weights)
        by_episode = np.ones(data.episode_count) if weights is None else np.atleast_2d(weights).mean(0)
        data, held_out, source = sample_episodes(data, seed=seed)
        weight = by_episode[source]
        if count == 1:
            return cls(data, np.where(held_out, 0, -1), weight, weight * ~held_out, members)
        return cls.deal(data, min(count, data.episode_count), seed=seed, weight=weight, members=members)

    @classmethod
    def deal(cls, data: Demonstrations, count: int, *, seed: int, weight: Array, members: int) -> Folds:
        """All episodes, dealt into folds."""
        fold = deal_episodes(data, count, seed=seed)
        return cls(data, fold, weight, fold_weights(data, fold, weight, members=members, seed=seed), members)

    @property
    def count(self) -> int:
        """How many folds there are."""
        return int(self.fold.max()) + 1

    @property
    def is_complete(self) -> bool:
        """Whether every member has something to learn from, and something is held out."""
        return bool(np.atleast_2d(self.weights).any(1).all() and self.weight[self.fold >= 0].any())

    @property
    def held_out_steps(self) -> Array:
        """(held-out episode,) steps, times the weight."""
        return self._by_episode(np.ones(len(self.data)))

    def held_out_nats(self, found: Any) -> Array:
        """(held-out episode,) cost by the likeliest of the members that have not seen it, times its weight.

        `found` are the members, as an `ileed.methods.Ensemble`.
        """
        nats, own_fold = np.zeros(len(self.data)), self.fold[self.data.episode]
        for number, own in enumerate(found.nats_per_action.reshape(self.count, self.members)):
            steps = own_fold == number
            best = found.member(number * self.members + int(own.argmin()))
            nats[steps] = best.nats(self.data.select(steps))
        return self._by_episode(nats)

    def _by_episode(self, values: Array) -> Array:
        return (self.weight * np.bincount(self.data.episode, weights=values))[self.fold >= 0]


def sample_episodes(data: Demonstrations, *, seed: int) -> tuple[Demonstrations, Array, Array]:
    """Episodes to compare candidates by, (episode,) which of them to hold out, and (episode,) of `data` the source.

    Episodes are cut into blocks where no demonstrator has two. Of more than 100,000 steps, about that many are sampled
    in whole episodes; of more than 5,000 demonstrators, all steps of some who have about 50,000 together.
    """
    source = np.arange(data.episode_count)
    if data.has_many_people:
        chosen = _some_demonstrators(data, seed)
        source, data = source[np.isin(data.episode_demonstrator, chosen)], data.by(*(data.names[k] for k in chosen))
    if np.bincount(data.episode_demonstrator).max() < 2:
        data, _ = held_in_memory(data)  # which has an episode of each demonstrator
        blocks = _in_blocks(data)
        data, source = blocks, source[data.episode[np.unique(blocks.episode, return_index=True)[1]]]
    if np.bincount(data.episode_demonstrator).max() < 2:  # a step each: nothing can be held out
        return data, np.zeros(data.episode_count, dtype=bool), source
    kept, held_out = data.split(_HELD_OUT, generator=numpy_stream(seed, "width"))
    some = numpy_stream(seed, "width, some episodes").random(data.episode_count) < _MOST_STEPS / len(data)
    if len(data) <= _MOST_STEPS or not (kept & some).any() or not (held_out & some).any():
        return data, held_out, source
    return data.select(some[data.episode]), held_out[some], source[some]


def _some_demonstrators(data: Demonstrations, seed: int) -> Array:
    """Numbers of demonstrators drawn at random, at most 5,000 with about `_STEPS_OF_MANY` steps together."""
    order = numpy_stream(seed, "width, some people").permutation(np.flatnonzero(data.steps_each))
    enough = int(np.searchsorted(np.cumsum(data.steps_each[order]), _STEPS_OF_MANY)) + 1
    return np.sort(order[: min(enough, rules.MANY_PEOPLE)])


def _in_blocks(data: Demonstrations) -> Demonstrations:
    """The same steps; each episode is split into five blocks."""
    starts = np.searchsorted(data.episode, np.arange(data.episode_count + 1))
    lengths = np.diff(starts)[data.episode]
    block = (np.arange(len(data)) - starts[data.episode]) * _BLOCKS // lengths
    return replace(data, episode=data.episode * _BLOCKS + block)


def deal_episodes(data: Demonstrations, folds: int, *, seed: int) -> Array:
    """(episode,) the fold of each episode: each demonstrator's episodes are dealt evenly, in random order.

    With continuous actions, exact copies of an episode go to its fold: a policy of another fold would have seen it.
    """
    order = numpy_stream(seed, "folds").permutation(data.episode_count)
    by_person = order[np.argsort(data.episode_demonstrator[order], kind="stable")]
    first = np.arange(data.episode_count) if data.discrete else first_copies(data)
    own = by_person[first[by_person] == by_person]
    fold = np.empty(data.episode_count, dtype=np.int64)
    fold[own] = np.arange(len(own)) % folds
    return np.asarray(fold[first])


def fold_weights(data: Demonstrations, fold: Array, weights: Array, *, members: int, seed: int) -> Array:
    """(fold x member, episode) weights of episodes for so many members of each fold, which do not see it.

    Members for continuous actions are replicates of a Bayesian bootstrap (Rubin, 1981): how far they are apart tells
    the error of the policy, which would otherwise be laid to people, and to the best of them most.
    """
    others = np.repeat((fold[None] != np.arange(fold.max() + 1)[:, None]) * weights, members, axis=0)
    if data.discrete:
        return others
    return others * numpy_stream(seed, "replicates").exponential(size=others.shape)
