"""Width: how many units the hidden layers of a policy need, by the likelihood of held-out episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from ileed._torch import numpy_stream
from ileed.demonstrations import Array, Demonstrations, rules
from ileed.demonstrations.streaming import held_in_memory

Hidden = tuple[int, ...]

LADDER: tuple[Hidden, ...] = ((4, 4), (8, 8), (32, 32), (128, 128))
"""Hidden layers that are tried in this order; the last only where the one before it is better than all narrower."""
CONTINUOUS_LADDER = LADDER[1:]
"""The same for continuous actions, whose mixtures four units never suffice for."""

RESTARTS = 3
"""Restarts of each width in the comparison: enough for a narrow network not to be judged by one poor start."""

_HELD_OUT = 0.2  # share of everybody's episodes
_MOST_STEPS = 100_000  # that are compared by
_STEPS_OF_PEOPLE = 50_000  # the same where there are very many people
_BLOCKS = 5  # into which the episodes are cut where nobody has two


@final
@dataclass(frozen=True)
class WidthComparison:
    """The cost of held-out episodes under policies of several widths, each fitted to the other episodes.

    `standard_errors` are of each cost's difference from the least, over episodes.
    """

    hidden: tuple[Hidden, ...]
    nats_per_action: tuple[float, ...]
    standard_errors: tuple[float, ...]
    held_out_steps: int

    @property
    def chosen(self) -> Hidden:
        """The narrowest hidden layers whose cost is within one standard error of the least."""
        least = min(self.nats_per_action)
        near = zip(self.hidden, self.nats_per_action, self.standard_errors, strict=True)
        return min((hidden for hidden, cost, error in near if cost <= least + error), key=sum)

    def choice(self) -> str:
        """What was chosen and why, as a sentence."""
        costs = zip(self.hidden, self.nats_per_action, strict=True)
        listed = ", ".join(f"{_units(hidden)} {cost:.3f}" for hidden, cost in costs)
        return (
            f"the policy has {layers(self.chosen)}, the narrowest within one standard error of the best on "
            f"{self.held_out_steps:,} held-out steps (nats per action by units: {listed})"
        )

    def diagnosis(self, policy: str) -> str:
        """Whether a wider policy than the first explains people better, as a sentence; `policy` names its class."""
        given, chosen = self.hidden[0], self.chosen
        if chosen == given:
            return f"no wider policy explains held-out actions better than {layers(given)}"
        gain = self.nats_per_action[0] - self.nats_per_action[self.hidden.index(chosen)]
        return (
            f"a wider policy explains held-out actions better by {gain:.2g} nats each: "
            f"pass policy={policy}(hidden={chosen}) instead of hidden={given}"
        )


def wider_than(given: Hidden) -> tuple[Hidden, ...]:
    """The given hidden layers, and those of the ladder that have more units."""
    return (given, *(hidden for hidden in LADDER if sum(hidden) > sum(given)))


@final
@dataclass(frozen=True, eq=False)
class Split:
    """Episodes to fit and episodes held out; `data` are cut into blocks where nobody has two episodes.

    Of more than 100,000 steps, about so many are taken, in whole episodes that are drawn at random; of more than 5,000
    people, all steps of some people who have about 50,000 together.
    """

    data: Demonstrations
    kept: Array  # (episode,) of `data`, true where it is fitted
    source: Array  # (episode,) of `data`, the episode that it is or is a block of

    @classmethod
    def of(cls, data: Demonstrations, *, seed: int) -> Split:
        source = np.arange(data.episode_count)
        if data.has_many_people:
            chosen = _some_people(data, seed)
            source, data = source[np.isin(data.episode_demonstrator, chosen)], data.by(*(data.names[k] for k in chosen))
            blocked = cls.of(data, seed=seed)
            return cls(blocked.data, blocked.kept, source[blocked.source])
        if np.bincount(data.episode_demonstrator).max() < 2:
            data, _ = held_in_memory(data)  # everybody's episode is in it
            blocks = _in_blocks(data)
            data, source = blocks, data.episode[np.unique(blocks.episode, return_index=True)[1]]
        if np.bincount(data.episode_demonstrator).max() < 2:  # a step each: nothing can be held out
            return cls(data, np.ones(data.episode_count, dtype=bool), source)
        kept, held_out = data.split(_HELD_OUT, generator=numpy_stream(seed, "width"))
        some = numpy_stream(seed, "width, some episodes").random(data.episode_count) < _MOST_STEPS / len(data)
        if len(data) <= _MOST_STEPS or not (kept & some).any() or not (held_out & some).any():
            return cls(data, kept, source)
        return cls(data.select(some[data.episode]), kept[some], source[some])

    @property
    def held_out(self) -> Demonstrations:
        return self.data.select(~self.kept[self.data.episode])


def _some_people(data: Demonstrations, seed: int) -> Array:
    """Numbers of people drawn at random, at most 5,000 with about `_STEPS_OF_PEOPLE` steps together."""
    order = numpy_stream(seed, "width, some people").permutation(np.flatnonzero(data.steps_each))
    enough = int(np.searchsorted(np.cumsum(data.steps_each[order]), _STEPS_OF_PEOPLE)) + 1
    return np.sort(order[: min(enough, rules.MANY_PEOPLE)])


def _in_blocks(data: Demonstrations) -> Demonstrations:
    """The same steps with every episode cut into a few of its own length."""
    starts = np.searchsorted(data.episode, np.arange(data.episode_count + 1))
    lengths = np.diff(starts)[data.episode]
    block = (np.arange(len(data)) - starts[data.episode]) * _BLOCKS // lengths
    return replace(data, episode=data.episode * _BLOCKS + block)


def compare_widths(
    split: Split, candidates: Sequence[Hidden], cost: Callable[[Hidden], Array], weights: Array | None = None
) -> WidthComparison:
    """Compare hidden layers by `cost`, which gives the nats of every held-out step under one of them.

    Each candidate is tried in turn, and the widest only where the one before it would be chosen. `weights` (episode,)
    counts each held-out episode that many times.
    """
    held_out = split.held_out
    by_step = np.ones(len(held_out)) if weights is None else weights[~split.kept][held_out.episode]
    counts = np.bincount(held_out.episode, weights=by_step)
    sums: list[Array] = []

    def compared() -> WidthComparison:
        means = [float(each.sum() / counts.sum()) for each in sums]
        best = sums[int(np.argmin(means))]
        errors = tuple(standard_error(each - best, counts) for each in sums)
        return WidthComparison(tuple(candidates[: len(sums)]), tuple(means), errors, len(held_out))

    for number, hidden in enumerate(candidates):
        if 2 <= number == len(candidates) - 1 and compared().chosen != candidates[number - 1]:
            break
        sums.append(np.bincount(held_out.episode, weights=by_step * cost(hidden)))
    return compared()


def standard_error(sums: Array, counts: Array) -> float:
    """Of the ratio of summed costs to summed steps over episodes (a ratio estimator's, by linearisation)."""
    return float(np.sqrt(np.square(sums - counts * sums.sum() / counts.sum()).sum()) / counts.sum())


def layers(hidden: Hidden) -> str:
    """Hidden layers in words."""
    return f"hidden layers of {_units(hidden)} units" if hidden else "no hidden layer"


def _units(hidden: Hidden) -> str:
    return str(hidden[0]) if len(set(hidden)) == 1 else " and ".join(str(size) for size in hidden) or "no"
