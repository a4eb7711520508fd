"""Cross-fitting: demonstrators rated by policies that have not seen their episodes.

A flexible policy memorises actions and then rates every demonstrator as perfect. Episodes are therefore dealt into
folds: members of one optimisation learn from all folds but one each, and rate that one (Chernozhukov et al., 2018,
"Double/debiased machine learning", describe the general principle).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import final

import numpy as np

from ileed._torch import product
from ileed.data import Array, Demonstrations
from ileed.data.findings import unpredicted_ends
from ileed.methods.fitted import Ensemble
from ileed.model.scaling import SignalScaling
from ileed.rating.answers import blocks_by_kind, blocks_of_folds
from ileed.rating.indicators import indicators
from ileed.rating.ratings import Ratings, estimate, some_of, with_learning_curves, work_of
from ileed.rating.signal import Rater, rater_of_folds
from ileed.rating.step_likelihood import (
    COARSE_POINTS,
    PROFILE_POINTS,
    Block,
    StepLikelihood,
    Units,
    Work,
    free_scales,
    likely_levels,
)

RESTARTS = 4
"""Members of each fold."""
MANY_STEPS, SOME_STEPS = 100_000, 10_000
"""With continuous actions and more steps than the first number, about the second number of steps choose the
temperature, and likelihoods are interpolated."""


@final
@dataclass(frozen=True, eq=False)
class FoldPolicies:
    """Members that learned from all folds but one each, and rate the steps of that one.

    There are no ratings if all members of some fold became NaN or infinite.
    """

    ensemble: Ensemble
    fold: Array
    """(episode,) the fold of each episode."""
    assumed: Array | None = None
    """(step,) steps that follow the policy and are assumed for each step of gold demonstrators (`Known`)."""
    rater = None  # these members judge single steps, without a horizon

    @property
    def count(self) -> int:
        return int(self.fold.max()) + 1

    @property
    def _finite(self) -> Array:
        """(fold, member) whether each member is finite."""
        return np.isfinite(self.ensemble.nats_per_action).reshape(self.count, -1)

    @cached_property
    def judge(self) -> Callable[[Array | None], Iterator[Block]]:
        """From a mask (step,), or None for all, to the steps judged by the finite members that have not seen them."""
        ensemble, kept = self.ensemble, []
        for number, own in enumerate(self._finite):
            kept.append((number * len(own) + np.flatnonzero(own)).tolist())
            if ensemble.joint.parts.demonstrator.actions_can_be_exchanged:  # averages of such members mean nothing
                kept[-1] = ensemble.likeliest_first(kept[-1])[:1]
        names = ensemble.collapsed.skill_names
        return partial(blocks_of_folds, ensemble.joint, ensemble.normaliser, ensemble.data, names, kept, self.fold)

    @property
    def _judge_by_kind(self) -> Callable[[Array | None], Iterator[Block]]:
        """The same, with one likelihood for each distinct (observation, action).

        It depends on nothing else unless the demonstrator model has a context or parameters of demonstrators, or
        actions are continuous.
        """
        data, joint, collapsed = self.ensemble.data, self.ensemble.joint, self.ensemble.collapsed
        if not data.action_count or joint.demonstrator is not None or joint.parts.policy.length > 1:
            return self.judge
        assert collapsed.repeats  # folds have data in memory
        key = collapsed.step_observation_index * data.action_count + data.actions
        return partial(blocks_by_kind, self.judge, key * self.count + self.fold[data.episode])

    def rate(
        self,
        *,
        temperature: float | None,
        by: str = "demonstrator",
        progress: Callable[[int, int], object] | None = None,
    ) -> Ratings | None:
        """Rate demonstrators, or each unit of `by`, by the mean likelihood of the members of each fold.

        Args:
            temperature: That of the policies; None takes the one at which held-out episodes are likeliest.
            by: "demonstrator", "episode" or a skill column.
            progress: Called with the number of steps done and their total.
        """
        if not self._finite.any(1).all():
            return None
        data, practice = self.ensemble.data, self.ensemble.joint.parts.expertise.practice_episodes
        units, some = Units.of(data, by), None
        by_kind = units is None and data.has_many_demonstrators
        many = not data.discrete and len(data) > MANY_STEPS and not by_kind
        if by_kind:
            some = np.isin(data.demonstrator, some_of(len(data.names)))
        elif many:
            some = _some_episodes(data, self.fold)
        likelihood = StepLikelihood(data, self._judge_by_kind if by_kind else self.judge, assumed=self.assumed)
        beforehand = (PROFILE_POINTS + len(COARSE_POINTS)) * (len(data) if some is None else int(some.sum()))
        work = work_of(likelihood, units, practice, progress, beforehand)
        likelihood, found = likelihood.counted(work).calibrated(some, temperature)
        if many:
            likelihood = likelihood.tabulated(units)
        ratings = estimate(likelihood, units=units)
        # expertise that divides a variance shares its scale with the policy's, whatever its temperature
        levels = likely_levels(found) if data.discrete else (0.0, 1.0)
        free = _free_scales(self.ensemble, int(np.flatnonzero(self._finite.ravel())[0]))
        ratings = replace(ratings, by=replace(ratings.by, folds=self.count, levels=levels, free_scales=free))
        ratings = with_learning_curves(ratings, likelihood, practice)
        work.finish()
        return ratings

    def step_likelihood(self, ratings: Ratings) -> StepLikelihood:
        """The likelihood of held-out steps at the temperature of these ratings."""
        return StepLikelihood(self.ensemble.data, self.judge, ratings.by.temperature, ratings.by.dispersion)


@final
@dataclass(frozen=True, eq=False)
class SignalFolds:
    """Members that learned from all folds but one each to predict mean actions over several horizons.

    Demonstrators of continuous actions are rated by the share of variance that these explain (`ileed.rating.signal`).
    """

    ensemble: Ensemble
    data: Demonstrations
    """The demonstrations with their own actions; those of `ensemble` have the mean actions of all horizons."""
    fold: Array
    """(episode,) the fold of each episode."""
    horizons: tuple[int, ...]
    model: SignalScaling
    practice_episodes: int | None = None
    """Of the expertise of the fit, where that changes between episodes."""
    assumed: Array | None = None
    """As in `FoldPolicies`."""

    @property
    def count(self) -> int:
        return int(self.fold.max()) + 1

    @cached_property
    def rater(self) -> Rater | None:
        """The rater at the most reliable horizon; None if no member of some fold is finite."""
        return self._rated and self._rated[0]

    @cached_property
    def _rated(self) -> tuple[Rater, StepLikelihood] | None:
        if not np.isfinite(self.ensemble.nats_per_action).reshape(self.count, -1).any(1).all():
            return None
        joint, normaliser = self.ensemble.joint, self.ensemble.normaliser
        return rater_of_folds(joint, normaliser, self.data, fold=self.fold, horizons=self.horizons, model=self.model)

    def step_likelihood(self, ratings: Ratings) -> StepLikelihood:
        """The likelihood of held-out steps; it has no temperature."""
        assert self._rated is not None
        return self._rated[1]

    def rate(
        self,
        *,
        temperature: float | None = None,
        by: str = "demonstrator",
        progress: Callable[[int, int], object] | None = None,
    ) -> Ratings | None:
        """Rate demonstrators, or each unit of `by`, as `FoldPolicies.rate`; there is no temperature to choose."""
        data, units = self.data, Units.of(self.data, by)
        work = Work(progress, len(data), 1)
        if self._rated is None:
            return None
        _, likelihood = self._rated
        likelihood = replace(likelihood, assumed=self.assumed if units is None else None)
        ratings = with_learning_curves(estimate(likelihood, units=units), likelihood, self.practice_episodes)
        work.finish()
        explained = _explanation(data, ratings) if units is None else ""
        return replace(ratings, by=replace(ratings.by, folds=self.count, explained=explained))


def _explanation(data: Demonstrations, ratings: Ratings) -> str:
    """What may explain the order of demonstrators other than skill, in words; empty where nothing is suspected."""
    columns = {"expertise": ratings.best.expertise[data.episode_demonstrator]}
    found = indicators(data, columns=columns).explained_by("expertise").sentence(), unpredicted_ends(data)
    return "; ".join(each for each in found if each)


def _some_episodes(data: Demonstrations, fold: Array) -> Array:
    """(step,) about `SOME_STEPS` steps in whole episodes, of all demonstrators and folds alike."""
    order = np.lexsort((fold, data.episode_demonstrator))
    chosen = np.zeros(data.episode_count, dtype=bool)
    chosen[order[:: -(-len(data) // SOME_STEPS)]] = True
    return chosen[data.episode]


def _free_scales(ensemble: Ensemble, member: int) -> int | None:
    """The number of free scales of expertise at one member; None where the embedding is learned."""
    if not ensemble.joint.parts.expertise.depends_on_state:
        return 1
    if (embedding := ensemble.collapsed.some.skills) is None:
        return None
    skill = ensemble.joint.expertise.skill[member].double().numpy()  # (skill, demonstrator)
    return free_scales(embedding, 1 / (1 + np.exp(-product(embedding, skill).T)))
