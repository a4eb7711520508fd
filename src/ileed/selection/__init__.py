"""Selection: candidate settings, fitted to folds of episodes and compared by their cost on the episodes left out.

Widths of the policy and demonstrator models are both candidates. Where the data cannot tell candidates apart, the first
is preferred: the narrowest, or the simplest. The package knows neither methods nor fits: the caller fits each
candidate. Horizons of a rater are not candidates here, because their costs are of different actions:
`ileed.rating.signal` chooses among them by reliability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field, replace
from math import isnan, nan
from typing import Any, final

import numpy as np
import pyarrow as pa

from ileed._torch import numpy_stream
from ileed.data import Array, Demonstrations, rules
from ileed.data.collapsing import held_in_memory
from ileed.data.findings import first_copies
from ileed.errors import SettingsError, instance_of, list_of
from ileed.fitting.results import Progress
from ileed.fitting.stages import Stages
from ileed.model.batch import Sizes
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.parts import CANDIDATES
from ileed.model.policies import AbstractPolicyHead
from ileed.rating.ranks import orders_alike, rank_correlation

__all__ = [
    "CANDIDATES",
    "CONTINUOUS_LADDER",
    "LADDER",
    "Candidate",
    "Folds",
    "ModelComparison",
    "Tried",
    "to_try",
    "tried_by_workers",
]

MODEL_FOLDS, MODEL_RESTARTS = 3, 6
"""Folds of the episodes, and restarts of each, for demonstrator models."""
LADDER: tuple[tuple[int, ...], ...] = ((4, 4), (8, 8), (32, 32), (128, 128))
"""Hidden layers that are compared for discrete actions."""
CONTINUOUS_LADDER = LADDER[1:]
"""The same for continuous actions, whose mixtures four units never suffice for."""
WIDTH_RESTARTS = 3
"""Restarts of each width: enough for a narrow network not to be judged by one poor start."""
_HELD_OUT = 0.2  # share of each demonstrator's episodes
_MOST_STEPS = 100_000  # that are compared by
_STEPS_OF_MANY = 50_000  # the same where there are very many demonstrators
_BLOCKS = 5  # of each episode, where no demonstrator has two
_TWO_SIDED_95 = 1.96  # standard errors

# --- candidates


@final
@dataclass(frozen=True)
class Candidate:
    """Settings in which a method differs from others that it is compared with, by name."""

    name: str
    settings: Mapping[str, Any]
    costly: bool = False
    """Whether it is tried only where the candidate before it is preferred to all earlier ones."""


def widths(policy: AbstractPolicyHead, ladder: Sequence[tuple[int, ...]]) -> list[Candidate]:
    """The policy with each of these hidden layers, of which the last is costly after two others."""
    names = [f"{type(policy).__name__}(hidden={hidden})" for hidden in ladder]
    return [
        Candidate(name, {"policy": policy.resized(hidden)}, costly=2 <= number == len(ladder) - 1)
        for number, (name, hidden) in enumerate(zip(names, ladder, strict=True))
    ]


def wider_than(given: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The given hidden layers, and those of the ladder that have more units."""
    return (given, *(hidden for hidden in LADDER if sum(hidden) > sum(given)))


def applicable(
    models: Sequence[AbstractDemonstratorModel[Any]] | None, sizes: Sizes
) -> list[AbstractDemonstratorModel[Any]]:
    """The demonstrator models that can describe data of these sizes; refuses models that a user names and cannot."""
    if models is None:
        return [model for model in CANDIDATES if _describes(model, sizes)]
    models, rule = list_of("models", models), "pass demonstrator models, or None for all"
    for model in models:
        instance_of("models", model, AbstractDemonstratorModel, rule=rule)
        model.check(sizes)
    if not models:
        raise SettingsError(f"models is empty: {rule}", code="models-empty")
    return models


def _describes(model: AbstractDemonstratorModel[Any], sizes: Sizes) -> bool:
    try:
        model.check(sizes)
    except SettingsError:
        return False
    return True


def demonstrator_models(models: Sequence[AbstractDemonstratorModel[Any]]) -> list[Candidate]:
    """Demonstrator models as candidates, named by the settings that are not their defaults."""
    found = []
    for model in models:
        usual = type(model)()
        own = {name: value for name, value in vars(model).items() if value != getattr(usual, name)}
        name = f"{type(model).__name__}({', '.join(f'{name}={value!r}' for name, value in own.items())})"
        found.append(Candidate(name, {"demonstrator": model}))
    return found


# --- folds


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

    Each episode is split into blocks where no demonstrator has two. Of more than 100,000 steps, about that many are
    sampled in whole episodes; of more than 5,000 demonstrators, all steps of some who have about 50,000 together.
    """
    source = np.arange(data.episode_count)
    if data.has_many_demonstrators:
        order = numpy_stream(seed, "width, some people").permutation(np.flatnonzero(data.steps_each))
        enough = int(np.searchsorted(np.cumsum(data.steps_each[order]), _STEPS_OF_MANY)) + 1
        chosen = np.sort(order[: min(enough, rules.MANY_DEMONSTRATORS)])
        source, data = source[np.isin(data.episode_demonstrator, chosen)], data.by(*(data.names[k] for k in chosen))
    if np.bincount(data.episode_demonstrator).max() < 2:
        data, _ = held_in_memory(data)  # which has an episode of each demonstrator
        bounds = data.episode_bounds
        within = np.arange(len(data)) - bounds[data.episode]
        block = data.episode * _BLOCKS + within * _BLOCKS // np.diff(bounds)[data.episode]
        source = source[data.episode[np.unique(block, return_index=True)[1]]]
        data = replace(data, episode=block)
    if np.bincount(data.episode_demonstrator).max() < 2:  # a step each: nothing can be held out
        return data, np.zeros(data.episode_count, dtype=bool), source
    kept, held_out = data.split(_HELD_OUT, generator=numpy_stream(seed, "width"))
    some = numpy_stream(seed, "width, some episodes").random(data.episode_count) < _MOST_STEPS / len(data)
    if len(data) <= _MOST_STEPS or not (kept & some).any() or not (held_out & some).any():
        return data, held_out, source
    return data.select(some[data.episode]), held_out[some], source[some]


def deal_episodes(data: Demonstrations, folds: int, *, seed: int) -> Array:
    """(episode,) the fold of each episode: each demonstrator's episodes are dealt evenly, in random order.

    With continuous actions, exact copies of an episode go to its fold: a policy of another fold would have seen it.
    """
    order = numpy_stream(seed, "folds").permutation(data.episode_count)
    order = order[np.argsort(data.episode_demonstrator[order], kind="stable")]
    first = np.arange(data.episode_count) if data.discrete else first_copies(data)
    own = order[first[order] == order]
    fold = np.empty(data.episode_count, dtype=np.int64)
    fold[own] = np.arange(len(own)) % folds
    return np.asarray(fold[first])


def fold_weights(data: Demonstrations, fold: Array, weights: Array, *, members: int, seed: int) -> Array:
    """(fold x member, episode) weights of episodes for the members of each fold, which do not see it.

    Members for continuous actions are replicates of a Bayesian bootstrap (Rubin, 1981): their spread estimates the
    error of the policy, which would otherwise be attributed to demonstrators, and to the best of them most.
    """
    others = np.repeat((fold[None] != np.arange(fold.max() + 1)[:, None]) * weights, members, axis=0)
    return others if data.discrete else others * numpy_stream(seed, "replicates").exponential(size=others.shape)


# --- comparison

Tried = tuple[Array, tuple[float, ...]]
"""(held-out episode,) cost of a candidate, times the weight; expertise of demonstrators by it, if it is one number."""


@final
@dataclass(frozen=True)
class ModelComparison:
    """Models by the cost of episodes that they were not fitted to; the simplest first.

    `standard_errors` are of each cost's difference from the least, over episodes, and choose; `errors_from_preferred`
    are of its difference from the cost of the model that is chosen. `expertise` is that of demonstrators by each model,
    cross-fitted; empty where a model does not rate them by one number.
    """

    models: tuple[str, ...]
    nats_per_action: tuple[float, ...]
    standard_errors: tuple[float, ...]
    held_out_steps: int
    expertise: tuple[tuple[float, ...], ...]
    settings: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, compare=False)
    """The settings of each model, by the names that `Ileed` has; none where a comparison was loaded with a run."""
    errors_from_preferred: tuple[float, ...] = ()
    """None in runs of versions that did not have them."""

    @classmethod
    def of(cls, folds: Folds, candidates: Sequence[Candidate], tried: Sequence[Tried]) -> ModelComparison:
        """The comparison of the first candidates, as many as were tried."""
        costs, steps = [cost for cost, _ in tried], folds.held_out_steps
        candidates = candidates[: len(costs)]
        means = [float(cost.sum() / steps.sum()) for cost in costs]

        def errors_from(base: Array) -> tuple[float, ...]:
            """Standard errors of differences in cost per step (a ratio estimator's, by linearisation)."""
            apart = (cost - base for cost in costs)
            return tuple(
                float(np.sqrt(np.square(d - steps * d.sum() / steps.sum()).sum()) / steps.sum()) for d in apart
            )

        found = cls(
            models=tuple(each.name for each in candidates),
            nats_per_action=tuple(means),
            standard_errors=errors_from(costs[int(np.argmin(means))]),
            held_out_steps=int((folds.fold[folds.data.episode] >= 0).sum()),
            expertise=tuple(expertise for _, expertise in tried),
            settings=tuple(each.settings for each in candidates),
        )
        return replace(found, errors_from_preferred=errors_from(costs[found.chosen]))

    @property
    def chosen(self) -> int:
        """The number of the simplest model within one standard error of the best."""
        least = min(self.nats_per_action)
        near = zip(self.nats_per_action, self.standard_errors, strict=True)
        return next(number for number, (cost, error) in enumerate(near) if cost <= least + error)

    @property
    def preferred(self) -> str:
        """The name of the model that is chosen."""
        return self.models[self.chosen]

    @property
    def rank_correlations(self) -> tuple[float, ...]:
        """Rank correlation of demonstrators' expertise by each model with that by the chosen one.

        NaN where a model does not rate demonstrators by one number, or gives all of them the same.
        """
        chosen = self.expertise[self.chosen]
        return tuple(rank_correlation(own, chosen) if own and chosen else nan for own in self.expertise)

    def table(self) -> pa.Table:
        """One row for each model: its cost, the difference from the preferred with a 95% interval, and the order."""
        more = np.array(self.nats_per_action) - self.nats_per_action[self.chosen]
        errors = np.array(self.errors_from_preferred or (nan,) * len(more))
        return pa.table(
            {
                "model": self.models,
                "nats_per_action": self.nats_per_action,
                "more_than_preferred": more,
                "standard_error": errors,
                "low": more - _TWO_SIDED_95 * errors,
                "high": more + _TWO_SIDED_95 * errors,
                "rank_correlation": self.rank_correlations,
                "preferred": [number == self.chosen for number in range(len(self.models))],
            }
        )

    def sentence(self) -> str:
        """Which model is preferred, by how much, and whether the ranking of demonstrators depends on the choice."""
        chosen, costs = self.chosen, self.nats_per_action
        words, least = f"{self.preferred} is preferred", int(np.argmin(costs))
        if chosen > 0:
            other = int(np.argmin(costs[:chosen]))
            errors = self.errors_from_preferred
            error = f" (standard error {errors[other]:.3f})" if errors else ""
            less = f"{costs[other] - costs[chosen]:.3f} nats per held-out action below {self.models[other]}"
            words += f": {less}, the best of the simpler models{error}"
        if least != chosen:
            words += f"{', and' if chosen else ':'} {self.models[least]} costs less, within one standard error"
        elif chosen == 0 and len(costs) > 1:
            words += ": no model explains held-out actions better"
        return f"{words}; {self._order()}" if any(self.expertise) else words

    def _order(self) -> str:
        """Whether the models rank demonstrators alike."""
        chosen = self.expertise[self.chosen]
        others = [own for number, own in enumerate(self.expertise) if number != self.chosen and own]
        if not (chosen and others):
            return "only one model ranks demonstrators"
        alike = all(orders_alike(own, chosen) for own in others)
        known = [each for own in others if not isnan(each := rank_correlation(own, chosen))]
        if not known:
            return "no model tells demonstrators apart" if alike else "telling demonstrators apart depends on the model"
        if alike:
            return f"all models rank demonstrators alike (rank correlations of {min(known):.2f} and more)"
        return f"the ranking of demonstrators depends on the model (rank correlations from {min(known):.2f} on)"


def to_try(
    folds: Folds, candidates: Sequence[Candidate], tried: Sequence[Tried], stages: Stages, *, name: str
) -> Iterator[tuple[Candidate, Stages]]:
    """The candidates in their order, each with its stage, whose checkpoint has this name; a costly one may be left out.

    The caller adds what it found for each candidate to `tried` before it takes the next.
    """
    for number, candidate in enumerate(candidates, 1):
        if candidate.costly and ModelComparison.of(folds, candidates, tried).chosen != len(tried) - 1:
            return
        yield candidate, stages.stage(f"trying {candidate.name} ({number} of {len(candidates)})", f"{name}-{number}")


def tried_by_workers(
    folds: Folds,
    candidates: Sequence[Candidate],
    attempt: Callable[[Candidate, Folds, Stages], Tried],
    stages: Stages,
    executor: Executor,
) -> list[Tried]:
    """What `attempt` finds for each candidate, in a call of the executor each."""
    alone = replace(stages, progress=None, executor=None)
    calls = [executor.submit(attempt, candidate, folds, alone) for candidate in candidates]
    report, best, steps = stages.progress or (lambda progress: None), math.nan, folds.held_out_steps.sum()
    report(Progress(0, len(calls), best, unit="models"))
    for done, call in enumerate(as_completed(calls), 1):
        best = float(np.fmin(best, call.result()[0].sum() / steps))
        report(Progress(done, len(calls), best, unit="models"))
    return [call.result() for call in calls]
