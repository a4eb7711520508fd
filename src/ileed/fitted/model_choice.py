"""Demonstrator models by held-out episodes: each is fitted to some episodes and judged by others.

The models of `CANDIDATES` stand in the order in which they are preferred where the data cannot tell them apart: the
simplest first. `OneVersusRest` is `UniformMixture` with expertise on another scale, but for people who do otherwise
than the policy more often than chance would, whom it alone describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from ileed._torch import threads
from ileed.checking import instance_of, list_of
from ileed.demonstrations import Array, Demonstrations
from ileed.demonstrations.streaming import held_in_memory
from ileed.errors import SettingsError
from ileed.fitted.comparison import ModelComparison
from ileed.fitted.crossfit import FoldPolicies, deal_episodes, fold_weights
from ileed.fitted.ensemble import Ensemble
from ileed.fitting.results import Progress
from ileed.fitting.stages import Stages
from ileed.model.batch import Sizes
from ileed.model.demonstrators import (
    AbstractDemonstratorModel,
    Boltzmann,
    OneVersusRest,
    UniformMixture,
)
from ileed.model.scaling import SignalScaling
from ileed.model.slips import BiasedMixture, Confusion, Persistent
from ileed.width import Split, standard_error

Model = AbstractDemonstratorModel[Any]
FitFolds = Callable[[Model, Demonstrations, Array, Stages], Ensemble]
"""A model fitted to data with (member, episode) weights."""

CANDIDATES: tuple[Model, ...] = (
    UniformMixture(),
    OneVersusRest(),
    Boltzmann(),
    BiasedMixture(shared=True),
    Persistent(),
    BiasedMixture(),
    Persistent(biased=True),
    Confusion(),
    SignalScaling(gain=False, per_dimension=False),
    SignalScaling(),
    SignalScaling(offset=True),
)
"""The models that are compared, as far as they describe the data; the simplest first."""
FOLDS, RESTARTS = 3, 6
"""Folds of the episodes, and restarts of each; the likeliest restart on the other folds judges a fold."""


@final
@dataclass(frozen=True, eq=False)
class Folds:
    """Episodes dealt into folds, and what the members of an optimisation learn from: all folds but one each."""

    data: Demonstrations  # whose episodes are cut into blocks where nobody has two
    fold: Array  # (episode,)
    weight: Array  # (episode,)
    weights: Array  # (fold x restart, episode)

    @classmethod
    def of(cls, data: Demonstrations, *, seed: int, weights: Array | None = None) -> Folds:
        """`weights` (*restart, episode) counts each episode that many times."""
        split = Split.of(data, seed=seed).data
        by_episode = np.ones(data.episode_count) if weights is None else np.atleast_2d(weights).mean(0)
        by_episode = by_episode[data.episode[np.unique(split.episode, return_index=True)[1]]]
        fold = deal_episodes(split, min(FOLDS, split.episode_count), seed=seed)
        return cls(split, fold, by_episode, fold_weights(split, fold, by_episode, members=RESTARTS, seed=seed))

    @property
    def steps(self) -> Array:
        """(episode,) steps, times the weight."""
        return self.weight * np.bincount(self.data.episode)

    def nats(self, found: Ensemble) -> Array:
        """(episode,) cost by the likeliest of the restarts that were not fitted to it, times its weight."""
        folds = int(self.fold.max()) + 1
        costs, nats = found.nats_per_action.reshape(folds, -1), np.empty(len(self.data))
        for number, own in enumerate(costs):
            steps = self.fold[self.data.episode] == number
            best = found.member(number * len(own) + int(own.argmin())).fitted()
            nats[steps] = best.nats(self.data.select(steps))
        return self.weight * np.bincount(self.data.episode, weights=nats)

    def compared(
        self, models: Sequence[Model], nats: Sequence[Array], expertise: Sequence[Sequence[float]] = ()
    ) -> ModelComparison:
        """The models by these costs of episodes."""
        steps = self.steps
        means = [float(cost.sum() / steps.sum()) for cost in nats]
        best = nats[int(np.argmin(means))]
        found = ModelComparison(
            models=tuple(map(_name, models)),
            nats_per_action=tuple(means),
            standard_errors=tuple(standard_error(cost - best, steps) for cost in nats),
            held_out_steps=len(self.data),
            demonstrators=self.data.names,
            expertise=tuple(tuple(own) for own in expertise) or ((),) * len(models),
            settings=tuple(models),
        )
        preferred = nats[found.chosen]
        return replace(found, errors_from_preferred=tuple(standard_error(cost - preferred, steps) for cost in nats))


def compare_models(
    data: Demonstrations,
    fit: FitFolds,
    candidates: Sequence[Model],
    stages: Stages,
    weights: Array | None = None,
) -> ModelComparison:
    """The candidates, fitted to the same folds of episodes and judged by the episodes left out.

    With an executor in `stages` each candidate is one call of it; the result is the same.
    """
    data, weights = held_in_memory(data, weights)
    folds = Folds.of(data, seed=stages.seed, weights=weights)
    if len(folds.fold) < 2:
        raise SettingsError("models are compared by held-out episodes, and there is one step alone: add episodes")
    labels = [f"trying {type(each).__name__} ({k} of {len(candidates)})" for k, each in enumerate(candidates, 1)]
    own = [stages.stage(label, f"model-{number}") for number, label in enumerate(labels)]
    if stages.executor is None:
        tried = [_try_model(folds, fit, model, stage) for model, stage in zip(candidates, own, strict=True)]
    else:
        alone = [replace(stage, progress=None, executor=None) for stage in own]
        calls = [stages.executor.submit(_try_model, folds, fit, *each) for each in zip(candidates, alone, strict=True)]
        tell, best = stages.progress or (lambda progress: None), math.nan
        tell(Progress(0, len(calls), best, unit="models"))
        for done, call in enumerate(as_completed(calls), 1):
            best = float(np.fmin(best, call.result()[0].sum() / folds.steps.sum()))
            tell(Progress(done, len(calls), best, unit="models"))
        tried = [call.result() for call in calls]
    return folds.compared(candidates, *zip(*tried, strict=True))


@threads(1)
def _try_model(folds: Folds, fit: FitFolds, model: Model, stage: Stages) -> tuple[Array, tuple[float, ...]]:
    """(episode,) costs of held-out episodes, and everybody's expertise where the model has any."""
    return judged(folds, fit(model, folds.data, folds.weights, stage), model, stage.counter("rating"))


def judged(
    folds: Folds, found: Ensemble, model: Model, progress: Callable[[int, int], object] | None = None
) -> tuple[Array, tuple[float, ...]]:
    """(episode,) costs by what was fitted to the other folds, and everybody's expertise; none without one number."""
    costs = folds.nats(found)
    by_folds = FoldPolicies(found, folds.fold)
    rated = None if model.defines_expertise else by_folds.rate(temperature=None, progress=progress)
    return costs, () if rated is None else tuple(rated.best.expertise.tolist())


def applicable(models: Sequence[Model] | None, sizes: Sizes) -> list[Model]:
    """The candidates that describe data of these sizes; those that a user names must."""
    if models is None:
        return [model for model in CANDIDATES if _describes(model, sizes)]
    models = list_of("models", models)
    for model in models:
        instance_of("models", model, AbstractDemonstratorModel, rule="pass demonstrator models, or None for all")
        model.check(sizes)
    if not models:
        raise SettingsError("models names none: pass demonstrator models, or None for all")
    return models


def _describes(model: Model, sizes: Sizes) -> bool:
    try:
        model.check(sizes)
    except SettingsError:
        return False
    return True


def _name(model: Model) -> str:
    """A model with the settings that are not its defaults."""
    usual = type(model)()
    own = {name: value for name, value in vars(model).items() if value != getattr(usual, name)}
    return f"{type(model).__name__}({', '.join(f'{name}={value!r}' for name, value in own.items())})"
