"""Subsets: the episodes that a policy is learned from, chosen by curation, chance, simple measures or an oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from ileed import Curated, Demonstrations, Embedded, Fitted, Ileed, SettingsError, curate
from ileed.parallel.runtime import stream

__all__ = ["OTHERS", "RULES", "SELECTIONS", "Curation", "Curator", "Subset", "best_episodes", "select"]

Array = npt.NDArray[Any]

RULES: Mapping[str, Mapping[str, Any]] = {
    "above": {"above": 1.0, "probability": 0.9, "at_least": 5},
    "half": {"keep": 0.5, "at_least": 5},
}
"""Two rules of `ileed.curate`, fixed before any of them was tried in these populations.

The first follows the data: an episode is kept where its expertise is above the mean over demonstrators with probability
0.9. The second is a stated share. Both keep at least five episodes of each of eight state clusters."""
OTHERS = ("random", "length", "reward", "oracle")
"""Ways to choose as many episodes as a rule keeps, without a fit."""
SELECTIONS = ("everything", "weighted", *(name for rule in RULES for name in (rule, *(f"{rule}-{o}" for o in OTHERS))))
"""What a policy is learned from: everything, all of it weighted by expertise, what a rule keeps, as many others."""


@final
@dataclass(frozen=True, eq=False)
class Subset:
    """Some episodes of a data set, and the weight of each where they have any."""

    kept: Array
    """(episode,) whether each is kept."""
    weights: Array | None = None
    """(kept episode,)."""

    def of(self, data: Demonstrations) -> Demonstrations:
        """What is kept; every demonstrator's name stays."""
        return data.select(self.kept[data.episode])

    def summary(self, data: Demonstrations, skills: Sequence[float]) -> dict[str, Any]:
        """How much is kept, and the mean true skill over its steps."""
        steps = self.kept[data.episode]
        skill = np.asarray(skills)[data.demonstrator[steps]]
        return {"episodes": int(self.kept.sum()), "steps": int(steps.sum()), "skill": float(skill.mean())}


@final
@dataclass(frozen=True, eq=False)
class Curation:
    """A fit, and what the rules keep by it; where one of them finds nothing to keep, that is everything."""

    fitted: Fitted
    subsets: Mapping[str, Subset]
    sentences: Mapping[str, str]
    """The rules in words, with what they kept, or why they refused."""
    length_correlation: float
    """Spearman's, of the score that decides with the length of episodes; NaN where it is not defined."""


@final
@dataclass(frozen=True)
class Curator:
    """Curates a data set by the method's fit to the same data."""

    method: Ileed = Ileed(expertise=Embedded())  # noqa: RUF009 (frozen)
    seed: int | None = None
    """Of the fit and of what the rules draw; that of each call by default."""

    def __call__(self, data: Demonstrations, *, seed: int, device: str) -> Curation:
        """The fit and what the rules keep; the last few are remembered, since several selections need the same."""
        seed = seed if self.seed is None else self.seed
        key = self, data.fingerprint, seed, device
        if key not in _REMEMBERED:
            while len(_REMEMBERED) >= _MOST_REMEMBERED:
                del _REMEMBERED[next(iter(_REMEMBERED))]
            _REMEMBERED[key] = _curated(self.method.fit(data, seed=seed, device=device), data, seed)
        return _REMEMBERED[key]


_REMEMBERED: dict[tuple[Curator, str, int, str], Curation] = {}
_MOST_REMEMBERED = 20


def _curated(fitted: Fitted, data: Demonstrations, seed: int) -> Curation:
    weighted = curate(fitted, data, seed=seed, weight=True)
    subsets = {"weighted": Subset(weighted.kept, weighted.weights)}
    sentences = {"weighted": weighted.sentence}
    for name, rule in RULES.items():
        try:
            found: Curated | None = curate(fitted, data, seed=seed, **rule)
        except SettingsError as error:  # no episode is above the bound
            found, sentences[name] = None, str(error)
        if found is None:
            subsets[name] = Subset(np.ones(data.episode_count, dtype=bool))
        else:
            subsets[name], sentences[name] = Subset(found.kept), found.sentence
    return Curation(fitted, subsets, sentences, weighted.length_correlation.value)


def select(
    selection: str, data: Demonstrations, *, curation: Curation | None, skills: Sequence[float], seed: int
) -> Subset:
    """The episodes of a selection; `skills`, of the demonstrators in their order, are seen by the oracle alone."""
    if selection == "everything":
        return Subset(np.ones(data.episode_count, dtype=bool))
    if curation is None:
        raise SettingsError(f"{selection} needs a curation: pass what a Curator returns")
    if selection in curation.subsets:
        return curation.subsets[selection]
    rule, _, other = selection.partition("-")
    if rule not in RULES or other not in OTHERS:
        raise SettingsError(f"there is no selection {selection!r}; the selections are {', '.join(SELECTIONS)}")
    score = _SCORES[other](data, skills)
    return Subset(best_episodes(score, int(curation.subsets[rule].kept.sum()), seed=seed))


_SCORES: Mapping[str, Callable[[Demonstrations, Sequence[float]], Array]] = {
    "random": lambda data, _: np.zeros(data.episode_count),
    "length": lambda data, _: -np.bincount(data.episode),
    "reward": lambda data, _: _returns(data),
    "oracle": lambda data, skills: np.asarray(skills, dtype=np.float64)[data.episode_demonstrator],
}


def _returns(data: Demonstrations) -> Array:
    """(episode,) the sum of rewards."""
    if data.rewards is None:
        raise SettingsError("the data have no rewards to choose episodes by: leave this selection out")
    return np.bincount(data.episode, data.rewards)


def best_episodes(score: Array, size: int, *, seed: int) -> Array:
    """(episode,) whether each is among the `size` of the highest score; of equals, chance decides."""
    chance = torch.randperm(len(score), generator=stream(seed, "subset of episodes")).numpy()
    kept = np.zeros(len(score), dtype=bool)
    kept[np.lexsort([chance, -np.asarray(score, dtype=np.float64)])[:size]] = True
    return kept
