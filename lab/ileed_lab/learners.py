"""Learners: what the experiments fit, whether a method of the library or a baseline, through one signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeGuard, final

import numpy as np
import torch

from ileed import CategoricalMLP, Demonstrations, Fitted, Ileed, ModelComparison, selection
from ileed.fitting.stages import Stages
from ileed.methods import Ensemble
from ileed.selection import CANDIDATES, Candidate, Folds, to_try
from ileed_lab.in_turn import AbstractSideBySide

__all__ = [
    "PAPERS_STEPS",
    "Auto",
    "Chosen",
    "Comparison",
    "Ensemble",
    "Fit",
    "FitsTogether",
    "Learner",
    "Rated",
    "Told",
    "Widened",
    "fit_one",
    "fit_seconds",
    "fits_together",
    "likeliest",
    "runs_on",
]

PAPERS_STEPS: Mapping[str, Any] = {"steps": 2_000, "learning_rate": 1e-3, "decay": False, "batch_size": 256}
"""How `Ileed` optimises with discrete actions, for fits of continuous ones that were recorded with it."""


class Fit(Protocol):
    """What every fit has: a policy to act with."""

    @property
    def policy(self) -> Any: ...


class Learner(Protocol):
    """A method with frozen settings.

    Laws: the fit depends on the settings, the demonstrations and the seed alone. A learner that cannot run on every
    kind of device lists those that it can in an attribute `devices`. One that fits several data sets faster together
    than one after the other also has `fit_each`; see `FitsTogether`.
    """

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Fit:
        """Learn from demonstrations."""
        ...


class FitsTogether(Learner, Protocol):
    """A learner that can fit several data sets together, each as it would be fitted alone but for rounding."""

    def fit_each(
        self, datasets: Sequence[Demonstrations], *, seeds: Sequence[int], device: str = "auto"
    ) -> Sequence[Any]:
        """A fit of each data set with its seed; of several restarts all of them, as an `Ensemble`."""
        ...


def fits_together(learner: Learner) -> TypeGuard[FitsTogether]:
    """Whether the learner has `fit_each`."""
    return hasattr(learner, "fit_each")


def runs_on(learner: Learner, device: str) -> bool:
    """Whether the learner can be fitted on a kind of device, "cpu" or "cuda"."""
    return device in getattr(learner, "devices", ("cpu", "cuda"))


def fit_one(learner: Learner, demonstrations: Demonstrations, *, seed: int, device: str) -> Any:
    """A fit to one data set; of several restarts all of them, as an `Ensemble`."""
    if fits_together(learner):
        return learner.fit_each([demonstrations], seeds=[seed], device=device)[0]
    return learner.fit(demonstrations, seed=seed, device=device)


def fit_seconds(fit: Any) -> float:
    """Seconds that a fit took: stated by a baseline, in the provenance of an ensemble; 0 where nothing was fitted."""
    if fit is None:
        return 0.0
    return float(fit.seconds if hasattr(fit, "seconds") else fit.provenance["seconds"])


def expertise_by_label(fitted: Fitted, data: Demonstrations, column: str) -> dict[str, dict[str, float]]:
    """Every demonstrator's mean expertise over their own steps in `data`, for each label of a column of its skills."""
    if fitted.expertise.skill_names:
        return fitted.expertise.by_skill()
    labels = np.asarray(data.skills[column])
    found: dict[str, dict[str, float]] = {}
    for person, name in enumerate(data.names):
        own = data.demonstrator == person
        expertise = fitted.expertise(data.observations[own], name)
        found[name] = {str(label): float(expertise[labels[own] == label].mean()) for label in np.unique(labels[own])}
    return found


def likeliest(found: Ensemble, *, among: int | None = None, count: int = 1) -> Fitted:
    """The `count` likeliest of the first `among` restarts, or of all of them; several act as an ensemble."""
    return (found if among is None else found.first(among)).top(count).fitted()


@final
@dataclass(frozen=True)
class Rated:
    """A method of the library with a given number of folds; each population is fitted separately."""

    method: Ileed
    folds: int = 5

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Fitted:
        method = replace(self.method, folds=self.folds)
        return method.fit(demonstrations, seed=seed, device=device, check_width=False)


@final
@dataclass(frozen=True)
class Told:
    """A method of the library with gold demonstrators; each data set is fitted separately."""

    method: Ileed
    gold: tuple[str, ...] = ()

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Fitted:
        method = replace(self.method, folds=0)
        return method.fit(demonstrations, seed=seed, device=device, check_width=False, gold=list(self.gold) or None)


@final
@dataclass(frozen=True)
class Chosen:
    """The restarts of a fit, and the comparison of demonstrator models before it."""

    ensemble: Ensemble
    comparison: ModelComparison

    @property
    def policy(self) -> Any:
        return likeliest(self.ensemble).policy

    @property
    def seconds(self) -> float:
        return fit_seconds(self.ensemble)


@final
@dataclass(frozen=True)
class Auto(AbstractSideBySide):
    """`Ileed(demonstrator="auto")` for several data sets side by side."""

    method: Ileed

    def fit_each(
        self, datasets: Sequence[Demonstrations], *, seeds: Sequence[int], device: str = "auto"
    ) -> list[Chosen]:
        models = [model for model in CANDIDATES if model.discrete]
        tried = selection.demonstrator_models(models)
        members, count = selection.MODEL_RESTARTS, selection.MODEL_FOLDS
        pairs = zip(datasets, seeds, strict=True)
        folds = [Folds.of(data, seed=seed, members=members, count=count) for data, seed in pairs]
        return _fit_chosen(self.method, datasets, folds, tried, seeds, device)


@final
@dataclass(frozen=True)
class Widened:
    """A method whose width is chosen by held-out episodes, as `Ileed.fit` does, for several data sets side by side."""

    method: Ileed

    def fit(self, demonstrations: Demonstrations, *, seed: int, device: str = "auto") -> Fitted:
        return likeliest(self.fit_each([demonstrations], seeds=[seed], device=device)[0])

    def fit_each(
        self, datasets: Sequence[Demonstrations], *, seeds: Sequence[int], device: str = "auto"
    ) -> list[Ensemble]:
        tried = selection.widths(CategoricalMLP(), selection.LADDER)
        members = min(selection.WIDTH_RESTARTS, self.method.usual_restarts)
        folds = [Folds.of(data, seed=seed, members=members) for data, seed in zip(datasets, seeds, strict=True)]
        return [found.ensemble for found in _fit_chosen(self.method, datasets, folds, tried, seeds, device)]


def _fit_chosen(
    method: Ileed,
    datasets: Sequence[Demonstrations],
    folds: Sequence[Folds],
    tried: Sequence[Candidate],
    seeds: Sequence[int],
    device: str,
) -> list[Chosen]:
    """The fit to each data set with the settings that its own folds prefer; each candidate is fitted side by side."""
    nats: list[dict[str, Any]] = [{} for _ in folds]
    for candidate in tried:
        restarts = folds[0].members * folds[0].count
        own = replace(method, **candidate.settings, restarts=restarts, ensemble=1)
        weights = [each.weights for each in folds]
        found = own.fit_each([each.data for each in folds], seeds=seeds, device=device, weights=weights)
        for costs, each, ensemble in zip(nats, folds, found, strict=True):
            costs[candidate.name] = each.held_out_nats(ensemble)
    compared = []
    for own_folds, known in zip(folds, nats, strict=True):
        judged: list[Any] = []
        for candidate, _ in to_try(own_folds, tried, judged, Stages(0, torch.device("cpu")), name=""):
            judged.append((known[candidate.name], ()))
        compared.append(ModelComparison.of(own_folds, tried, judged))
    fits: dict[int, Chosen] = {}
    for number, candidate in enumerate(tried):
        here = [index for index, found in enumerate(compared) if found.chosen == number]
        data, own_seeds = [datasets[index] for index in here], [seeds[index] for index in here]
        ensembles = replace(method, **candidate.settings).fit_each(data, seeds=own_seeds, device=device)
        fits |= {index: Chosen(fit, compared[index]) for index, fit in zip(here, ensembles, strict=True)}
    return [fits[index] for index in range(len(datasets))]


@final
@dataclass(frozen=True)
class Comparison:
    """What `ileed.compare` found."""

    found: ModelComparison
    seconds: float

    def measured(self) -> dict[str, Any]:
        """What is recorded of it."""
        found = self.found
        return {"sentence": found.sentence(), "preferred": found.preferred, "models": found.table().to_pylist()}
