"""Cross-fitting: everybody's episodes rated by policies that have not seen them.

A flexible policy remembers what was done, and then finds everybody perfect. Episodes are therefore dealt into folds;
members of one optimisation learn from all folds but one each, and that one is rated by them (Chernozhukov et al., 2018,
"Double/debiased machine learning", is the general principle).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np

from ileed._torch import numpy_stream, product
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.demonstrations.findings import first_copies, unpredicted_ends
from ileed.fitted.ensemble import Ensemble
from ileed.fitted.identification import free_scales
from ileed.fitted.likelihood import (
    COARSE_POINTS,
    PROFILE_POINTS,
    TABULATED_POINTS,
    Block,
    Profile,
    Work,
    blocks_of_assumed,
    blocks_of_fit,
    dispersion,
    likeliest_temperature,
    likely_levels,
    profiles,
    tabulated,
)
from ileed.fitted.posterior import GRID
from ileed.fitted.rated_by import RatedBy
from ileed.fitted.rating import (
    episode_points,
    learning_points,
    rate_blocks,
    rate_in_parts,
    rate_noise,
    units_of,
    with_learning_curves,
)
from ileed.fitted.ratings import Ratings
from ileed.fitted.signal import HeldOutMoments, JudgedSteps, Rater, chosen_horizon
from ileed.indicators import indicators
from ileed.model.scaling import SignalScaling
from ileed.nets import members

RESTARTS = 4
"""Members of each fold."""
MANY_STEPS, SOME_STEPS = 100_000, 10_000
"""Of continuous actions: beyond so many, so many choose the temperature, and likelihoods are interpolated."""


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


@final
@dataclass(frozen=True, eq=False)
class FoldPolicies:
    """Members that have learned from all folds but one each, and (episode,) the fold of each episode.

    All members of some fold may have become non-finite: `judge_every_episode` is false then.
    """

    ensemble: Ensemble
    fold: Array
    assumed: Array | None = None
    """(step,) steps that follow the policy and are assumed for each step of gold demonstrators (`Known`)."""

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.fold.max()) + 1

    rater = None  # which judges at a horizon; these members judge single steps

    @property
    def _finite(self) -> Array:
        """(fold, member) whether each member is finite."""
        return np.isfinite(self.ensemble.nats_per_action).reshape(self.count, -1)

    @property
    def judge_every_episode(self) -> bool:
        """Whether each fold has a member that stayed finite."""
        return bool(self._finite.any(1).all())

    def judged(self, chosen: Array | None = None) -> Iterator[Block]:
        """All steps, or those of a mask (step,), judged by the finite members that have not seen them."""
        data, names = self.ensemble.data, self.ensemble.collapsed.skill_names
        for number, own in enumerate(self._finite):
            held_out = self.fold[data.episode] == number
            held_out = held_out if chosen is None else held_out & chosen
            if not held_out.any():
                continue
            kept = (number * len(own) + np.flatnonzero(own)).tolist()
            if self.ensemble.joint.parts.demonstrator.actions_can_be_exchanged:  # such members are not to be averaged
                kept = self.ensemble.likeliest_first(kept)[:1]
            joint = members(self.ensemble.joint, kept)
            steps, part = np.flatnonzero(held_out), data.select(held_out)
            for block in blocks_of_fit(joint, self.ensemble.normaliser, part, part.demonstrator, names):
                yield replace(block, steps=steps[block.steps])

    def judged_by_kind(self, chosen: Array) -> Iterator[Block]:
        """The same, with the likelihood of each distinct (observation, action) in place of each step.

        That is all it depends on, unless the demonstrator model has a context or parameters of people; then, and where
        actions are continuous, blocks are those of `judged`.
        """
        data, joint = self.ensemble.data, self.ensemble.joint
        if not data.discrete or joint.demonstrator is not None or joint.parts.policy.length > 1:
            yield from self.judged(chosen)
            return
        collapsed = self.ensemble.collapsed
        assert collapsed.repeats  # folds have data that memory holds
        key = collapsed.step_observation_index * data.action_count + data.actions  # type: ignore[union-attr]
        key = key * self.count + self.fold[data.episode]
        steps = np.flatnonzero(chosen)
        _, first, kind = np.unique(key[steps], return_index=True, return_inverse=True)
        one_each = np.zeros(len(data), dtype=bool)
        one_each[steps[first]] = True
        order = np.argsort(kind, kind="stable")  # steps of one kind after those of another
        place = np.full(len(data), -1)
        place[steps[first]] = np.arange(len(first))
        starts = np.append(np.searchsorted(kind[order], np.arange(len(first))), len(kind))
        for block in self.judged(one_each):
            kinds = place[block.steps]
            own = np.concatenate([order[starts[each] : starts[each + 1]] for each in kinds])
            local = np.repeat(np.arange(len(kinds)), starts[kinds + 1] - starts[kinds])
            yield replace(block, steps=steps[own], kind=local)

    def rate(
        self,
        *,
        temperature: float | None,
        by: str = "demonstrator",
        progress: Callable[[int, int], object] | None = None,
    ) -> Ratings | None:
        """Everybody, or each unit of `by`, rated by the mean likelihood of the members of each fold, on its episodes.

        The temperature of the policies is that at which the held-out episodes are likeliest, unless one is assumed.
        There are no ratings where all members of a fold became non-finite. `progress` is called with the number of
        steps done and their total.
        """
        if not self.judge_every_episode:
            return None
        data = self.ensemble.data
        units = units_of(data, by)
        if units is None and data.has_many_people:
            ratings, found = rate_in_parts(
                self.judged_by_kind, data, temperature=temperature, assumed=self.assumed, progress=progress
            )
            return self._with_levels(ratings, found)
        many = not data.discrete and len(data) > MANY_STEPS
        some = _some_episodes(data, self.fold) if many else np.ones(len(data), dtype=bool)
        points = len(GRID) + len(COARSE_POINTS)
        if units is None:
            points += episode_points(data) + learning_points(self.ensemble.joint)
        likelihoods = int(some.sum()) * PROFILE_POINTS + len(data) * (TABULATED_POINTS if many else points)
        work = Work(progress, len(data), likelihoods)
        blocks = list(work.over(self.judged(some if many else None)))
        found = profiles(blocks, data.demonstrator, len(data.names))
        chosen = likeliest_temperature(found) if temperature is None else temperature
        if many:
            owner = data.demonstrator if units is None else units.of_step
            group = np.unique(owner * data.episode_count + data.episode, return_inverse=True)[1]
            blocks = [tabulated(block, group, chosen) for block in work.over(self.judged())]
        spread, told = dispersion(blocks, data, chosen), blocks_of_assumed(self.assumed, np.arange(len(data)))
        ratings = rate_blocks([*blocks, *told], data, temperature=chosen, spread=spread, units=units)
        ratings = self._with_levels(ratings, found)
        if units is not None:
            return ratings
        return with_learning_curves(ratings, blocks, data, self.ensemble.joint.parts.expertise.practice_episodes)

    def _with_levels(self, ratings: Ratings, found: Sequence[Profile]) -> Ratings:
        """The same ratings, with what the profiles fix of the level of expertise."""
        free = _free_scales(self.ensemble, int(np.flatnonzero(self._finite.ravel())[0]))
        # expertise that divides a variance shares its scale with the policy's, whatever its temperature
        levels = likely_levels(found) if self.ensemble.data.discrete else (0.0, 1.0)
        return replace(ratings, by=replace(ratings.by, folds=self.count, levels=levels, free_scales=free))


@final
@dataclass(frozen=True, eq=False)
class SignalFolds:
    """Members that learned from all folds but one each to predict the mean actions over several horizons.

    Demonstrators of continuous actions are rated by the share of variance that they explain (`ileed.fitted.signal`).
    """

    ensemble: Ensemble
    data: Demonstrations
    """The demonstrations with their own actions; those of `ensemble` have the mean actions of all horizons."""
    fold: Array
    horizons: tuple[int, ...]
    model: SignalScaling
    practice_episodes: int | None = None
    """Of the expertise of the fit, where that changes between episodes."""
    assumed: Array | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.fold.max()) + 1

    @cached_property
    def rater(self) -> Rater | None:
        """What rates by these members, at the most reliable horizon; None where no member of some fold is finite."""
        return self._rated and self._rated[0]

    @cached_property
    def _rated(self) -> tuple[Rater, JudgedSteps] | None:
        if not np.isfinite(self.ensemble.nats_per_action).reshape(self.count, -1).any(1).all():
            return None
        joint, normaliser, data = self.ensemble.joint, self.ensemble.normaliser, self.data
        found = HeldOutMoments.of(joint, normaliser, data, fold=self.fold, horizons=self.horizons, model=self.model)
        reliability = tuple(found.reliability(place) for place in range(len(self.horizons)))
        scale = found.scale(chosen_horizon(reliability))
        rater = Rater(joint, normaliser, self.horizons, scale, self.fold, data.fingerprint(), reliability)
        judged = rater.judge(data)
        return replace(rater, variation=judged.log_noise().variation), judged

    def rate(
        self,
        *,
        temperature: float | None = None,
        by: str = "demonstrator",
        progress: Callable[[int, int], object] | None = None,
    ) -> Ratings | None:
        """Demonstrators, or each unit of `by`, as `FoldPolicies.rate`; there is no temperature to choose."""
        data, units, tell = self.data, units_of(self.data, by), progress or (lambda done, total: None)
        tell(0, len(data))
        if self._rated is None:
            return None
        rater, judged = self._rated
        noise = judged.log_noise(None if units is None else units.of_step)
        ratings = rate_noise(noise, data, units=units, assumed=self.assumed if units is None else None)
        if units is None and self.practice_episodes is not None:
            blocks = [rater.block(np.arange(len(data)), judged.shares())]
            ratings = with_learning_curves(ratings, blocks, data, self.practice_episodes)
        tell(len(data), len(data))
        rated = RatedBy(folds=self.count, practice=ratings.by.practice, **rater.rated)
        return replace(ratings, by=replace(rated, explained=_explanation(data, ratings) if units is None else ""))


def _explanation(data: Demonstrations, ratings: Ratings) -> str:
    """What else than skill may explain the order of demonstrators, in words; empty where nothing is suspected."""
    expertise = ratings.best.expertise[data.episode_demonstrator]
    found = (
        indicators(data, columns={"expertise": expertise}).explained_by("expertise").sentence(),
        unpredicted_ends(data),
    )
    return "; ".join(each for each in found if each)


def _some_episodes(data: Demonstrations, fold: Array) -> Array:
    """(step,) whether a step is in one of about `SOME_STEPS` in whole episodes, of all people and folds alike."""
    order = np.lexsort((fold, data.episode_demonstrator))
    chosen = np.zeros(data.episode_count, dtype=bool)
    chosen[order[:: -(-len(data) // SOME_STEPS)]] = True
    return chosen[data.episode]


def _free_scales(ensemble: Ensemble, member: int) -> int | None:
    """How many scales of expertise are free at one member; None where the embedding is learned."""
    if not ensemble.joint.parts.expertise.depends_on_state:
        return 1
    counts = ensemble.collapsed if isinstance(ensemble.collapsed, Collapsed) else ensemble.collapsed.some
    if (embedding := counts.skills) is None:
        return None
    skill = ensemble.joint.expertise.skill[member].double().numpy()  # (skill, demonstrator)
    return free_scales(embedding, 1 / (1 + np.exp(-product(embedding, skill).T)))
