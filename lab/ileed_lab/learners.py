"""Learners: what the experiments fit, whether a method of the library or a baseline, through one signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeGuard, final

import numpy as np

from ileed import CategoricalMLP, Demonstrations, Fitted, Ileed, ModelComparison
from ileed.fitted import Ensemble
from ileed.fitted.model_choice import CANDIDATES, Folds
from ileed.fitting import ProgressCallback
from ileed.width import LADDER, RESTARTS, Split, compare_widths

__all__ = [
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

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Fit:
        """Learn from demonstrations; `progress` is called with an `ileed.Progress` now and then."""
        ...


class FitsTogether(Learner, Protocol):
    """A learner that can fit several data sets together, each as it would be fitted alone but for rounding."""

    def fit_each(
        self,
        datasets: Sequence[Demonstrations],
        *,
        seeds: Sequence[int],
        device: str = "auto",
        progress: ProgressCallback | None = None,
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
    """Everybody's mean expertise over their own steps in `data`, for each label of a column of its skills."""
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
    """A method of the library with so many folds, each population fitted for itself."""

    method: Ileed
    folds: int = 5

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Fitted:
        method = replace(self.method, folds=self.folds)
        return method.fit(demonstrations, seed=seed, device=device, check_width=False, progress=progress)


@final
@dataclass(frozen=True)
class Told:
    """A method of the library that is told who is expert, each data set fitted for itself."""

    method: Ileed
    gold: tuple[str, ...] = ()

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Fitted:
        method = replace(self.method, folds=0)
        return method.fit(
            demonstrations, seed=seed, device=device, check_width=False, progress=progress, gold=list(self.gold) or None
        )


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
class Auto:
    """`Ileed(demonstrator="auto")` for several data sets side by side."""

    method: Ileed

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Chosen:
        return self.fit_each([demonstrations], seeds=[seed], device=device, progress=progress)[0]

    def fit_each(
        self,
        datasets: Sequence[Demonstrations],
        *,
        seeds: Sequence[int],
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> list[Chosen]:
        folds = [Folds.of(data, seed=seed) for data, seed in zip(datasets, seeds, strict=True)]
        models = [model for model in CANDIDATES if model.discrete]
        nats: list[list[Any]] = [[] for _ in folds]
        for model in models:
            method = replace(self.method, demonstrator=model, restarts=len(folds[0].weights))
            weights = [own.weights for own in folds]
            found = method.fit_each([own.data for own in folds], seeds=seeds, device=device, weights=weights)
            for costs, own, ensemble in zip(nats, folds, found, strict=True):
                costs.append(own.nats(ensemble))
        compared = [each.compared(models, costs) for each, costs in zip(folds, nats, strict=True)]
        chosen: dict[int, Chosen] = {}
        for number, model in enumerate(models):
            here = [index for index, found in enumerate(compared) if found.chosen == number]
            method = replace(self.method, demonstrator=model)
            fits = method.fit_each([datasets[i] for i in here], seeds=[seeds[i] for i in here], device=device)
            chosen |= {index: Chosen(fit, compared[index]) for index, fit in zip(here, fits, strict=True)}
        return [chosen[index] for index in range(len(datasets))]


@final
@dataclass(frozen=True)
class Widened:
    """A method whose width is chosen by held-out episodes, as `Ileed.fit` does, for several data sets side by side."""

    method: Ileed

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> Fitted:
        return likeliest(self.fit_each([demonstrations], seeds=[seed], device=device, progress=progress)[0])

    def fit_each(
        self,
        datasets: Sequence[Demonstrations],
        *,
        seeds: Sequence[int],
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> list[Ensemble]:
        splits = [Split.of(data, seed=seed) for data, seed in zip(datasets, seeds, strict=True)]
        policies = {hidden: CategoricalMLP(hidden=hidden) for hidden in LADDER}
        nats: list[dict[tuple[int, ...], Any]] = [{} for _ in splits]
        for hidden, policy in policies.items():
            method = replace(self.method, policy=policy, restarts=min(RESTARTS, self.method.restarts), ensemble=1)
            weights = [split.kept.astype(float) for split in splits]
            found = method.fit_each([split.data for split in splits], seeds=seeds, device=device, weights=weights)
            for costs, split, ensemble in zip(nats, splits, found, strict=True):
                costs[hidden] = ensemble.best().fitted().nats(split.held_out)
        pairs = zip(splits, nats, strict=True)
        chosen = [compare_widths(split, LADDER, costs.__getitem__).chosen for split, costs in pairs]
        fits: dict[int, Ensemble] = {}
        for hidden, policy in policies.items():
            here = [index for index, width in enumerate(chosen) if width == hidden]
            method = replace(self.method, policy=policy)
            found = method.fit_each([datasets[i] for i in here], seeds=[seeds[i] for i in here], device=device)
            fits |= dict(zip(here, found, strict=True))
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
