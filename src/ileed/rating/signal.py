"""Ratings of continuous actions: the share of the variance of a demonstrator's actions that the policy explains.

Let y be the mean action over the next H steps and m(s) its prediction by policies that have not seen the episode. With
c the mean action, g_i the demonstrator's gain and lambda_d the residual variance of dimension d over all demonstrators,

    R_e = sum over t, d of (y_td - c_d - g_id (m_d(s_t) - c_d))^2 / lambda_d,
    W_e = sum over t, d of (y_td - mean of y_d over the episode)^2 / lambda_d,
    rho_i = 1 - (sum over e of R_e) / (sum over e of W_e)

are the residual and the total sum of squares of episode e, and the expertise of demonstrator i: an R^2 within episodes.
The expected error of m, estimated by members that are bootstrap replicates, is subtracted from R. rho / (1 - rho) is
the signal-to-noise ratio, and -log(1 - rho) / 2 the mutual information of state and action under Gaussian noise. None
of them depends on the size of the actions, so hesitation is not rewarded (docs/decisions/real-operators.md).

Intervals come from the jackknife of log(1 - rho) over episodes, which are the units of replication (`LogNoise`).

The score of an episode has a likelihood instead. With q_t the terms of R_e divided by the variance within the episode,
shrunk towards that of the demonstrator's other episodes, Gaussian noise of variance 1 - rho gives

    log L(rho) = -(D / 2H) (n log(1 - rho) + (sum of q_t) / (1 - rho)),

where windows of H steps overlap, so that H steps count as one.

The horizon H is the one at which ratings are most reliable. Each fold rates the demonstrators by other policies and
other episodes. Folds are therefore replicates, and reliability is the share of the variance between demonstrators' mean
ratings that the variance between replicates does not explain (`reliability_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed.data import Array, Demonstrations
from ileed.model.batch import Sizes
from ileed.model.distributions import mixture_parts
from ileed.model.joint import Joint, Parts
from ileed.model.nets import members
from ileed.model.normaliser import Normaliser
from ileed.model.scaling import SignalScaling
from ileed.rating.answers import answers_at_steps
from ileed.rating.posterior import GRID
from ileed.rating.step_likelihood import Block, StepLikelihood, Units

# The longest horizon whose reliability is within this of the best is chosen: the farther ahead, the more an action is
# intent, and the less what the hand was already doing.
_AS_RELIABLE = 0.02
_LEAST_NOISE = 1e-6
_PRIOR_WINDOWS = 8  # by which the variance within an episode shrinks towards that of the demonstrator's other episodes
_LEAST_LEFT = 0.1  # share of squared residuals that remains at least when the error of the policy is subtracted
_PRIOR_FREEDOM = 4  # degrees of freedom by which a demonstrator's variance shrinks towards that of all demonstrators
_LEAST_SEGMENT = 20  # steps
_TINY = 1e-12


def actions_ahead(data: Demonstrations, horizons: Sequence[int]) -> Demonstrations:
    """The data with the mean actions over each horizon, (horizon x dimension); a horizon ends with its episode."""
    bounds = data.episode_bounds
    here, end = np.arange(len(data)), bounds[1:][data.episode]
    total = np.concatenate([np.zeros((1, data.actions.shape[1])), np.cumsum(data.actions, axis=0, dtype=np.float64)])
    found = []
    for horizon in horizons:
        last = np.minimum(here + horizon, end)
        found.append((total[last] - total[here]) / (last - here)[:, None])
    return data.with_columns(actions=np.concatenate(found, axis=1), encoding=None)


class Moments(NamedTuple):
    """Sums over the steps of each episode, (episode, dimension), of y - c, m - c and their products."""

    steps: Array  # (episode,)
    y: Array
    yy: Array
    mm: Array
    ym: Array
    error: Array
    """The expected squared error of m."""

    @classmethod
    def of(cls, starts: Array, y: Array, m: Array, error: Array) -> Moments:
        """From (step, dimension) y - c, m - c and its expected error; `starts` are the first steps of the episodes."""
        sums = (np.add.reduceat(each, starts, axis=0, dtype=np.float64) for each in (y, y * y, m * m, y * m, error))
        return cls(np.diff(np.append(starts, len(y))), *sums)


class SumsOfSquares(NamedTuple):
    """(episode,) R and W, and the share of the squared residuals that is not the error of the policy."""

    residual: Array
    total: Array
    left: Array


@final
@dataclass(frozen=True, eq=False)
class LogNoise:
    """(owner,) estimates of log(1 - rho), each with its variance and degrees of freedom.

    The variance is that of the delete-one jackknife over cells (episodes of a demonstrator), moderated as in Smyth
    (2004, "Linear models and empirical Bayes methods"): it shrinks towards the mean over owners, as if by four more
    cells. The variance of estimates between members, which are bootstrap replicates, is added: it is the error of a
    policy learned from other episodes.
    """

    estimate: Array
    variance: Array
    freedom: Array
    variation: float
    """The variance of log(1 - rho) times the number of steps, over all owners."""

    @classmethod
    def of(
        cls, cells: SumsOfSquares, steps: Array, owner: Array, count: int, *, policy: float, variation: float | None
    ) -> LogNoise:
        """From the sums of squares of cells, which are episodes or parts of them, with (cell,) steps and owners.

        `policy` is the variance of estimates between members. `variation` is that of other data; None estimates it from
        these. If no owner has two cells, each step counts as one independent number.
        """
        residual, total = (_sum_by(each, owner, count) for each in cells[:2])
        every, number = _sum_by(steps, owner, count), np.bincount(owner, minlength=count)
        without = _log_ratio(residual[owner] - cells.residual, total[owner] - cells.total)
        several = np.maximum(number, 1)
        centre = _sum_by(without, owner, count) / several
        spread = (number - 1) / several * _sum_by((without - centre[owner]) ** 2, owner, count) * every
        freedom = np.maximum(number - 1, 0)
        if variation is None:
            variation = float(freedom @ spread / freedom.sum()) if freedom.any() else 2.0
        spread = (_PRIOR_FREEDOM * variation + freedom * spread) / (_PRIOR_FREEDOM + freedom)
        variance = spread / np.maximum(every, 1) + policy
        return cls(_log_ratio(residual, total), np.maximum(variance, _TINY), _PRIOR_FREEDOM + freedom, variation)

    def curves(self, chosen: Array, points: Array) -> Array:
        """(chosen, point) log-likelihoods of rho at `points`, for some owners: Student's t about the estimate."""
        noise = np.log(np.maximum(1 - points, _LEAST_NOISE))
        freedom, variance = self.freedom[chosen, None], self.variance[chosen, None]
        squares = (noise - self.estimate[chosen, None]) ** 2 / (freedom * variance)
        return np.asarray(-(freedom + 1) / 2 * np.log1p(squares))


def _log_ratio(residual: Array, total: Array) -> Array:
    return np.log(np.maximum(residual, _TINY) / np.maximum(total, _TINY))


@final
@dataclass(frozen=True, eq=False)
class Scale:
    """The units of residuals at one horizon: settings of the demonstrator model, and moments of the data of the fit."""

    horizon: int
    centre: Array
    """(dimension,) c."""
    noise: Array
    """(dimension,) lambda; infinite where a dimension is exempt."""
    gain: bool
    shrinkage: float

    @classmethod
    def of(cls, moments: Moments, centre: Array, horizon: int, model: SignalScaling) -> Scale:
        """The units of the demonstrators of the fit, by held-out moments."""
        noise = np.maximum((moments.yy - 2 * moments.ym + moments.mm).sum(0) / moments.steps.sum(), _TINY)
        noise[list(model.exempt or ())] = np.inf
        return cls(horizon, centre, noise, model.gain, model.shrinkage)

    @property
    def dimensions(self) -> int:
        return int(np.isfinite(self.noise).sum())

    def gains(self, moments: Moments, owner: Array, count: int) -> Array:
        """(owner, dimension) the gain of each demonstrator: least squares, shrunk towards 1."""
        if not self.gain:
            return np.ones((count, len(self.noise)))
        mm, ym = (_sum_by(sums, owner, count) for sums in (moments.mm, moments.ym))
        prior = self.shrinkage * self.horizon * np.where(np.isfinite(self.noise), self.noise, 1.0) + _TINY
        return np.asarray(np.maximum((ym + prior) / (mm + prior), 0.0))

    def sums_of_squares(self, moments: Moments, gain: Array) -> SumsOfSquares:
        """Of (episode,) moments and (episode, dimension) gains."""
        squares = ((moments.yy - 2 * gain * moments.ym + gain**2 * moments.mm) / self.noise).sum(1)
        error = (gain**2 * moments.error / self.noise).sum(1)
        left = np.maximum(1 - error / np.maximum(squares, _TINY), _LEAST_LEFT)
        total = ((moments.yy - moments.y**2 / moments.steps[:, None]) / self.noise).sum(1)
        return SumsOfSquares(squares * left, np.maximum(total, 0.0), left)

    def log_noise(self, moments: Moments, owner: Array, count: int) -> Array:
        """(owner,) log(1 - rho) of owners of (episode,) moments; NaN for an owner without episodes."""
        cells = self.sums_of_squares(moments, self.gains(moments, owner, count)[owner])
        found = _log_ratio(*(_sum_by(each, owner, count) for each in cells[:2]))
        return np.where(np.bincount(owner, minlength=count) > 0, found, np.nan)

    def reliability(self, moments: Moments, data: Demonstrations, fold: Array) -> float:
        """The reliability of ratings by (episode,) folds; NaN if no demonstrator has episodes in two of them."""
        folds = int(fold.max()) + 1
        cell, count = data.episode_demonstrator * folds + fold, len(data.names) * folds
        # gains of each fold's own, or they would make folds of one demonstrator alike
        return reliability_of(-self.log_noise(moments, cell, count).reshape(-1, folds))


@final
@dataclass(frozen=True, kw_only=True)
class RaterSettings:
    """What a run directory keeps of a `Rater`, beside its tensors; see there."""

    parts: Parts
    sizes: Sizes
    members: int
    horizons: tuple[int, ...]
    horizon: int
    gain: bool
    shrinkage: float
    fingerprint: str
    reliability: tuple[float | None, ...]
    variation: float | None = None


@final
@dataclass(frozen=True, eq=False)
class Rater:
    """Policies that predict the mean actions over several horizons, and rate demonstrators by one of them.

    Members are those of folds in turn, equally many of each. `fold` (episode,) is the fold of each episode of the data
    that they learned from, whose fingerprint is `fingerprint`; all members rate other data.
    """

    joint: Joint
    normaliser: Normaliser
    horizons: tuple[int, ...]
    scale: Scale
    fold: Array
    fingerprint: str
    reliability: tuple[float, ...]
    """At each horizon; NaN where too few demonstrators have episodes in two folds."""
    variation: float | None = None
    """That of the demonstrators' episodes (`LogNoise.variation`), where it was estimated."""

    @classmethod
    def of_tensors(cls, kept: RaterSettings, joint: Joint, normaliser: Normaliser, own: Mapping[str, Tensor]) -> Rater:
        """A rater as a run directory keeps it."""
        noise = own["noise"].numpy()
        noise = np.where(noise > 0, noise, np.inf)
        scale = Scale(kept.horizon, own["centre"].numpy(), noise, kept.gain, kept.shrinkage)
        reliability = tuple(np.nan if each is None else each for each in kept.reliability)
        return cls(
            joint, normaliser, kept.horizons, scale, own["fold"].numpy(), kept.fingerprint, reliability, kept.variation
        )

    @property
    def settings(self) -> RaterSettings:
        """What a run directory keeps, beside the parameters, the normaliser and `tensors`."""
        return RaterSettings(
            parts=self.joint.parts,
            sizes=self.joint.sizes,
            members=len(next(self.joint.parameters())),
            horizons=self.horizons,
            horizon=self.scale.horizon,
            gain=self.scale.gain,
            shrinkage=self.scale.shrinkage,
            fingerprint=self.fingerprint,
            reliability=tuple(None if np.isnan(each) else each for each in self.reliability),
            variation=self.variation,
        )

    def tensors(self) -> dict[str, Tensor]:
        """What a run directory keeps of the scale, with zero noise for exempt dimensions, and the folds."""
        noise = np.where(np.isfinite(self.scale.noise), self.scale.noise, 0.0)
        found = {"centre": self.scale.centre, "noise": noise, "fold": self.fold}
        return {name: torch.tensor(values) for name, values in found.items()}

    def judge(self, data: Demonstrations) -> JudgedSteps:
        """The steps with their predictions; those of the data of the fit by members that have not seen the episode."""
        ahead = actions_ahead(data, [self.scale.horizon])
        is_own = data.fingerprint == self.fingerprint and len(self.fold) == data.episode_count
        fold = self.fold if is_own else None
        members = len(next(self.joint.parameters())) // (1 if fold is None else int(fold.max()) + 1)
        each = np.empty((members, *ahead.actions.shape), dtype=np.float32)
        size = len(self.scale.noise)
        first = self.horizons.index(self.scale.horizon) * size
        for steps, found in predictions(self.joint, self.normaliser, ahead, fold):
            each[:, steps] = found[..., first : first + size]
        return JudgedSteps(data, self.scale, ahead.actions - self.scale.centre, each, self.variation)

    @property
    def rated(self) -> dict[str, Any]:
        """How demonstrators were rated, as `RatedBy` has it."""
        reliability = self.reliability[self.horizons.index(self.scale.horizon)]
        return {"horizon": self.scale.horizon, "reliability": None if np.isnan(reliability) else reliability}

    def likelihood(self, data: Demonstrations) -> StepLikelihood:
        """The likelihood of steps; the curves of demonstrators and units follow from the jackknife (`LogNoise`)."""
        return self.judge(data).likelihood(self.rated)


def block_of(steps: Array, shares: Array, weight: float) -> Block:
    """Steps by their noise shares, whose count and sum are the sufficient statistics; `weight` is D / H."""
    statistics = torch.from_numpy(np.stack([np.ones_like(shares), shares], axis=1))

    def basis(points: Tensor) -> Tensor:
        noise = (1 - points).clamp_min(_LEAST_NOISE)
        return -0.5 * weight * torch.stack([noise.log(), noise.reciprocal()])

    def at(points: Tensor, temperature: float) -> Tensor:
        return (statistics @ basis(points)).T

    return Block(steps, at, statistics=statistics, basis=basis)


@final
@dataclass(frozen=True, eq=False)
class JudgedSteps:
    """Mean actions over the horizon and their predictions at the steps of some data."""

    data: Demonstrations
    scale: Scale
    y: Array
    """(step, dimension) y - c."""
    each: Array
    """(member, step, dimension) predictions by the members, or by those of the step's fold."""
    variation: float | None

    @cached_property
    def _mean_and_error(self) -> tuple[Array, Array]:
        mean, error = over_finite(self.each)
        return mean - self.scale.centre, error

    @cached_property
    def _moments(self) -> Moments:
        return Moments.of(self.data.episode_bounds[:-1], self.y, *self._mean_and_error)

    @cached_property
    def _gain(self) -> Array:
        """(demonstrator, dimension)."""
        return self.scale.gains(self._moments, self.data.episode_demonstrator, len(self.data.names))

    @cached_property
    def _episodes(self) -> SumsOfSquares:
        return self.scale.sums_of_squares(self._moments, self._gain[self.data.episode_demonstrator])

    @cached_property
    def _shares(self) -> Array:
        """(step,) q: the noise of each step relative to the variance of its episode."""
        data, found, horizon = self.data, self._episodes, self.scale.horizon
        steps, owner, count = np.diff(data.episode_bounds), data.episode_demonstrator, len(data.names)
        pooled = _sum_by(found.total, owner, count) / np.maximum(_sum_by(steps, owner, count), 1)
        prior = _PRIOR_WINDOWS * horizon
        variance = np.maximum((found.total + prior * pooled[owner]) / (steps + prior), _TINY)
        squares = (self.y - self._gain[data.demonstrator] * self._mean_and_error[0]) ** 2 / self.scale.noise
        return np.asarray(squares.sum(1) * (found.left / variance)[data.episode])

    def likelihood(self, rated: Mapping[str, Any]) -> StepLikelihood:
        """The likelihood of the steps; `rated` is what `RatedBy` says about them."""

        def blocks(chosen: Array | None) -> list[Block]:
            steps = np.arange(len(self.data)) if chosen is None else np.flatnonzero(chosen)
            return [block_of(steps, self._shares[steps], self.scale.dimensions / self.scale.horizon)]

        def owner_curves(units: Units | None) -> Callable[[Array], Array]:
            noise = self.log_noise(None if units is None else units.of_step)
            return lambda chosen: noise.curves(chosen, GRID)

        return StepLikelihood(self.data, blocks, owner_curves=owner_curves, rated=rated)

    def log_noise(self, unit: Array | None = None) -> LogNoise:
        """The noise of demonstrators, or of units, each of one demonstrator, by (step,) the unit of each step.

        Cells are the episodes of a demonstrator, or parts of episodes in a unit; if each unit is within one episode,
        they are segments. The total sum of squares of a part is its share of the steps times that of the episode.
        """
        data = self.data
        owner = data.demonstrator if unit is None else unit
        key = owner * data.episode_count + data.episode
        if unit is not None and len(np.unique(key)) == len(np.unique(unit)):
            length = max(_LEAST_SEGMENT, 2 * self.scale.horizon)
            here = np.arange(len(data)) - data.episode_bounds[:-1][data.episode]
            key = key * (int(here.max()) // length + 1) + here // length
        order = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[order], prepend=-1))
        first, count = order[starts], int(owner.max()) + 1 if unit is not None else len(data.names)
        gain, mean_total = self._gain[data.demonstrator[first]], self._episodes.total / np.diff(data.episode_bounds)
        (m, error), y = self._mean_and_error, self.y[order]

        def cells(predicted: Array, expected_error: Array) -> SumsOfSquares:
            moments = Moments.of(starts, y, predicted[order], expected_error[order])
            found = self.scale.sums_of_squares(moments, gain)
            return found._replace(total=mean_total[data.episode[first]] * moments.steps)

        steps, whose = np.diff(np.append(starts, len(data))), owner[first]
        found = cells(m, error)
        total = _sum_by(found.total, whose, count)
        each = [cells(own - self.scale.centre, np.zeros_like(error)).residual for own in self.each]
        logs = [_log_ratio(_sum_by(residual, whose, count), total) for residual in each if np.isfinite(residual).all()]
        between = np.array(logs)[:, total > 0].var(axis=0, ddof=1) if len(logs) > 1 else np.zeros(1)
        policy = float(between.mean()) if between.size else 0.0
        known = self.variation if unit is None else None
        return LogNoise.of(found, steps, whose, count, policy=policy, variation=known)


@torch.no_grad()
def predictions(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, fold: Array | None
) -> Iterator[tuple[Array, Array]]:
    """Blocks of steps, and their (member, step, dimension) predicted actions: the means of the members' mixtures.

    The members of the fold of an episode, by `fold` (episode,), predict it; None lets all members predict.
    """
    count = len(next(joint.parameters()))
    parts = [(np.ones(len(data), dtype=bool), range(count))]
    if fold is not None:
        folds = int(fold.max()) + 1
        own = np.arange(count).reshape(folds, -1)
        parts = [(fold[data.episode] == number, own[number].tolist()) for number in range(folds)]
    for chosen, numbers in parts:
        if not chosen.any():
            continue
        steps, own_joint = np.flatnonzero(chosen), members(joint, numbers)
        part = data if chosen.all() else data.select(chosen)
        any_demonstrator = np.zeros(len(part), dtype=np.int64)  # the policy is the same for all
        for rows, inside, answer in answers_at_steps(own_joint, normaliser, part, any_demonstrator, ()):
            logits, means, _ = mixture_parts(answer.policy)
            mean = (logits.softmax(-1).unsqueeze(-1) * means).sum(-2)
            yield steps[rows[inside]], mean[:, torch.from_numpy(inside)].numpy()


def over_finite(values: Array) -> tuple[Array, Array]:
    """(step, dimension) mean over the members whose values are finite at a step, and its expected squared error.

    Members are bootstrap replicates: their variance estimates that of a policy about the truth, and their mean adds
    another 1 / members of it.
    """
    finite = np.asarray(np.isfinite(values).all(2))
    count = finite.sum(0)[:, None]
    mean = np.where(finite[..., None], values, 0.0).sum(0, dtype=np.float64) / np.maximum(count, 1)
    squares = np.where(finite[..., None], (values - mean) ** 2, 0.0).sum(0, dtype=np.float64)
    return mean, squares / np.maximum(count - 1, 1) * (1 + 1 / np.maximum(count, 1))


def rater_of_folds(
    joint: Joint,
    normaliser: Normaliser,
    data: Demonstrations,
    *,
    fold: Array,
    horizons: tuple[int, ...],
    model: SignalScaling,
) -> tuple[Rater, StepLikelihood]:
    """The rater at the most reliable horizon, and the likelihood of held-out steps by it.

    The members of the joint model, equally many of each fold, predict the actions of all horizons.
    """
    ahead = actions_ahead(data, horizons)
    means, errors = (np.empty(ahead.actions.shape, dtype=np.float32) for _ in range(2))
    for steps, found in predictions(joint, normaliser, ahead, fold):
        means[steps], errors[steps] = over_finite(found)
    centres = ahead.actions.mean(0)
    scales, reliability = [], []
    for own, horizon in zip(np.split(np.arange(len(centres)), len(horizons)), horizons, strict=True):
        y, m = (each[:, own] - centres[own] for each in (ahead.actions, means))
        moments = Moments.of(data.episode_bounds[:-1], y, m, errors[:, own])
        scales.append(Scale.of(moments, centres[own], horizon, model))
        reliability.append(scales[-1].reliability(moments, data, fold))
    scale = scales[chosen_horizon(reliability)]
    rater = Rater(joint, normaliser, horizons, scale, fold, data.fingerprint, tuple(reliability))
    judged = rater.judge(data)
    return replace(rater, variation=judged.log_noise().variation), judged.likelihood(rater.rated)


def reliability_of(ratings: Array) -> float:
    """Reliability of the mean rating of demonstrators, from (demonstrator, replicate) ratings; NaN for none.

    The intraclass correlation ICC(1, k) of Shrout and Fleiss (Psychological Bulletin 86, 1979): one minus the ratio of
    the variance within demonstrators to that between their means. The correlation of random halves with the
    Spearman-Brown correction estimates the same. Zero where means differ less than by chance.
    """
    known = np.isfinite(ratings)
    count = known.sum(1)
    present = count > 0
    freedom = int(count.sum() - present.sum())
    if present.sum() < 3 or freedom < 1:
        return np.nan
    each = np.where(known, ratings, 0.0)[present]
    mean = each.sum(1) / count[present]
    within = float((((each - mean[:, None]) ** 2) * known[present]).sum() / freedom)
    between = float((count[present] * (mean - np.average(mean, weights=count[present])) ** 2).sum())
    between /= present.sum() - 1
    return float(max(0.0, 1 - within / between)) if between > 0 else 0.0


def chosen_horizon(reliability: Sequence[float]) -> int:
    """The place of the longest horizon about as reliable as the best; the first if no reliability is known."""
    known = np.nan_to_num(np.asarray(reliability), nan=-1.0)
    return int(np.flatnonzero(known >= known.max() - _AS_RELIABLE)[-1]) if known.max() >= 0 else 0


def _sum_by(values: Array, owner: Array, count: int) -> Array:
    """(owner, ...) sums of (episode, ...) values."""
    found = np.zeros((count, *values.shape[1:]))
    np.add.at(found, owner, values)
    return found
