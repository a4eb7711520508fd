"""Ratings of continuous actions: the share of the variance of a demonstrator's actions that the policy explains.

Let y be the mean action over the next H steps and m(s) its prediction by policies that have not seen the episode. With
c the mean action, g_i the demonstrator's gain and lambda_d the residual variance of dimension d over all demonstrators,

    q_t = (sum over d of (y_td - c_d - g_id (m_d(s_t) - c_d))^2 / lambda_d) / (sum over d of V_ed / lambda_d)

is the noise of step t relative to V_e, the variance of y within its episode, shrunk towards that of the demonstrator's
other episodes where an episode has few windows of H steps. The expected error of m, which members that are replicates
of a bootstrap tell, is left out of the numerator. Expertise rho_i = 1 - E[q_t] is the share of the variance that the
policy explains. rho / (1 - rho) is the signal-to-noise ratio, and -log(1 - rho) / 2 the
mutual information of state and action under Gaussian noise. Neither depends on the size of the actions, so that
hesitation earns nothing (docs/decisions/real-operators.md). Under Gaussian noise of variance 1 - rho the likelihood of
steps is a function of their number n and of the sum of q_t,

    log L(rho) = -(D / 2H) (n log(1 - rho) + (sum of q_t) / (1 - rho)),

where windows of H steps overlap, so that H steps count as one.

The horizon H is the one at which ratings are most reliable. Each fold rates the demonstrators by other policies and
other episodes, so that folds are replicates, and reliability is the share of the variance between demonstrators' mean
ratings that chance between replicates does not explain (`reliability_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed.demonstrations import Array, Demonstrations
from ileed.fitted.likelihood import Block
from ileed.fitted.steps import answers_at_steps
from ileed.model.batch import Sizes
from ileed.model.distributions import mixture_parts
from ileed.model.joint import Joint, Parts
from ileed.model.normaliser import Normaliser
from ileed.model.scaling import SignalScaling
from ileed.nets import members

_AS_RELIABLE = 0.02
"""Of horizons whose reliability is within this of the best, the longest is taken: the farther ahead, the more an action
is intent, and the less what the hand was already doing."""
_LEAST_NOISE = 1e-6
_PRIOR_WINDOWS = 8
"""Windows by which the variance within an episode is shrunk towards that of the demonstrator's other episodes."""
_LEAST_LEFT = 0.1
"""Share of squared residuals that is left at least when the error of the policy is left out."""
_TINY = 1e-12


def actions_ahead(data: Demonstrations, horizons: Sequence[int]) -> Demonstrations:
    """The data with the mean action over each horizon in turn, which ends with the episode; (horizon x dimension)."""
    bounds = data.episode_bounds
    here, end = np.arange(len(data)), bounds[1:][data.episode]
    total = np.concatenate([np.zeros((1, data.actions.shape[1])), np.cumsum(data.actions, axis=0, dtype=np.float64)])
    found = []
    for horizon in horizons:
        last = np.minimum(here + horizon, end)
        found.append((total[last] - total[here]) / (last - here)[:, None])
    return replace(data, actions=np.concatenate(found, axis=1), encoding=None)


class Moments(NamedTuple):
    """Sums over the steps of each episode, (episode, horizon, dimension), of y - c and m - c."""

    steps: Array  # (episode,)
    y: Array
    yy: Array
    mm: Array
    ym: Array
    error: Array
    """Of the expected squared error of m."""

    def at(self, horizon: int) -> Moments:
        """Those of one horizon, by its place; (episode, 1, dimension)."""
        return Moments(self.steps, *(sums[:, [horizon]] for sums in self[1:]))


class NoiseParts(NamedTuple):
    """(episode,) squared residuals without the policy's error, the share of them that is left, and V."""

    squares: Array
    left: Array
    variance: Array


@final
@dataclass(frozen=True, eq=False)
class Scale:
    """What residuals of one horizon are measured by: settings of the demonstrator model, and the data of the fit."""

    horizon: int
    centre: Array
    """(dimension,) c."""
    noise: Array
    """(dimension,) lambda; infinite where a dimension is exempt."""
    gain: bool
    shrinkage: float

    @property
    def dimensions(self) -> int:
        return int(np.isfinite(self.noise).sum())

    def gains(self, moments: Moments, owner: Array, count: int) -> Array:
        """(owner, dimension) the gain of each demonstrator: least squares, shrunk towards 1."""
        if not self.gain:
            return np.ones((count, len(self.noise)))
        mm, ym = (_sum_by(sums[:, 0], owner, count) for sums in (moments.mm, moments.ym))
        prior = self.shrinkage * self.horizon * np.where(np.isfinite(self.noise), self.noise, 1.0) + _TINY
        return np.asarray(np.maximum((ym + prior) / (mm + prior), 0.0))

    def parts(self, moments: Moments, gain: Array, owner: Array, count: int) -> NoiseParts:
        """Noise and variance of each episode; `gain` is (owner, dimension)."""
        own, steps = gain[owner][:, None], moments.steps
        squares = ((moments.yy - 2 * own * moments.ym + own**2 * moments.mm)[:, 0] / self.noise).sum(1)
        error = ((own**2 * moments.error)[:, 0] / self.noise).sum(1)
        left = np.maximum(1 - error / np.maximum(squares, _TINY), _LEAST_LEFT)
        within = ((moments.yy[:, 0] - moments.y[:, 0] ** 2 / steps[:, None]) / self.noise).sum(1)
        pooled = _sum_by(within, owner, count) / np.maximum(_sum_by(steps, owner, count), 1)
        prior = _PRIOR_WINDOWS * self.horizon
        variance = (within + prior * pooled[owner]) / (steps + prior)
        return NoiseParts(squares * left, left, np.maximum(variance, _TINY))

    def noise_shares(self, moments: Moments, owner: Array, count: int) -> Array:
        """(episode,) the sum of q over each episode's steps."""
        found = self.parts(moments, self.gains(moments, owner, count), owner, count)
        return np.asarray(found.squares / found.variance)


@final
@dataclass(frozen=True, kw_only=True)
class RaterSettings:
    """What a run directory keeps of a `Rater` beside its tensors."""

    parts: Parts
    sizes: Sizes
    members: int
    horizons: tuple[int, ...]
    horizon: int
    gain: bool
    shrinkage: float
    fingerprint: str
    reliability: tuple[float | None, ...]


@final
@dataclass(frozen=True, eq=False)
class Rater:
    """Policies over horizons, one after the other in the dimensions of their actions, that rate demonstrators.

    Members are those of folds in turn, as many of each. `fold` (episode,) is the fold of each episode of the data that
    they learned from, whose fingerprint is `fingerprint`; all members rate other data.
    """

    joint: Joint
    normaliser: Normaliser
    horizons: tuple[int, ...]
    scale: Scale
    fold: Array
    fingerprint: str
    reliability: tuple[float, ...]
    """At each horizon; NaN where too few demonstrators have episodes in both halves."""

    @classmethod
    def of_tensors(cls, kept: RaterSettings, joint: Joint, normaliser: Normaliser, own: Mapping[str, Tensor]) -> Rater:
        """A rater as a run directory keeps it."""
        noise = own["noise"].numpy()
        noise = np.where(noise > 0, noise, np.inf)
        scale = Scale(kept.horizon, own["centre"].numpy(), noise, kept.gain, kept.shrinkage)
        reliability = tuple(np.nan if each is None else each for each in kept.reliability)
        return cls(joint, normaliser, kept.horizons, scale, own["fold"].numpy(), kept.fingerprint, reliability)

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
        )

    def tensors(self) -> dict[str, Tensor]:
        """What a run directory keeps of the scale, with a noise of zero for exempt dimensions, and the folds."""
        noise = np.where(np.isfinite(self.scale.noise), self.scale.noise, 0.0)
        found = {"centre": self.scale.centre, "noise": noise, "fold": self.fold}
        return {name: torch.tensor(values) for name, values in found.items()}

    @property
    def place(self) -> int:
        """Of the horizon that was chosen."""
        return self.horizons.index(self.scale.horizon)

    def shares(self, data: Demonstrations) -> Array:
        """(step,) q: the noise of each step relative to the variance of its episode."""
        ahead = actions_ahead(data, [self.scale.horizon])
        owner, count = data.episode_demonstrator, len(data.names)
        means, errors = np.empty(ahead.actions.shape), np.empty(ahead.actions.shape)
        apart = data.fingerprint() == self.fingerprint and len(self.fold) == data.episode_count
        fold = self.fold if apart else None
        for steps, *found in predictions(self.joint, self.normaliser, ahead, fold, self._columns):
            means[steps], errors[steps] = found
        y, m = ahead.actions - self.scale.centre, means - self.scale.centre
        moments = _moments_of(data, y[:, None], m[:, None], errors[:, None])
        gain = self.scale.gains(moments, owner, count)
        noise = self.scale.parts(moments, gain, owner, count)
        squares = (y - gain[data.demonstrator] * m) ** 2 / self.scale.noise
        return np.asarray(squares.sum(1) * (noise.left / noise.variance)[data.episode])

    @property
    def rated(self) -> dict[str, Any]:
        """How demonstrators were rated, as `RatedBy` has it."""
        reliability = self.reliability[self.place]
        return {"horizon": self.scale.horizon, "reliability": None if np.isnan(reliability) else reliability}

    @property
    def _columns(self) -> slice:
        size = len(self.scale.noise)
        return slice(self.place * size, (self.place + 1) * size)

    def blocks(self, data: Demonstrations) -> list[Block]:
        """All steps of the data, with their likelihood as a function of expertise."""
        return [self.block(np.arange(len(data)), self.shares(data))]

    def block(self, steps: Array, shares: Array) -> Block:
        """Steps whose q are known."""
        return block_of(steps, shares, self.scale.dimensions / self.scale.horizon)


def block_of(steps: Array, shares: Array, weight: float) -> Block:
    """Steps by their noise shares, with their number and its sum as statistics; each counts as so many numbers."""
    statistics = torch.from_numpy(np.stack([np.ones_like(shares), shares], axis=1))

    def basis(points: Tensor) -> Tensor:
        noise = (1 - points).clamp_min(_LEAST_NOISE)
        return -0.5 * weight * torch.stack([noise.log(), noise.reciprocal()])

    def at(points: Tensor, temperature: float) -> Tensor:
        return (statistics @ basis(points)).T

    return Block(steps, at, statistics=statistics, basis=basis)


@torch.no_grad()
def predictions(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, fold: Array | None, columns: slice | None = None
) -> Iterator[tuple[Array, Array, Array]]:
    """Steps, their (step, dimension) predicted actions, and the expected squared error of these.

    Predictions are means over members, of those that have not seen the episode. Members are replicates of a bootstrap:
    their variance estimates that of the policy about the truth, and their mean has 1 / members of it again.
    `fold` (episode,) is the fold of each episode, and None lets all members predict. Members that are not finite are
    left out. `columns` are those dimensions of the policy that are wanted.
    """
    count = len(next(joint.parameters()))
    parts = [(np.ones(len(data), dtype=bool), range(count))]
    if fold is not None:
        folds = int(fold.max()) + 1
        own = np.arange(count).reshape(folds, -1)
        parts = [(fold[data.episode] == number, own[number].tolist()) for number in range(folds)]
    nobody = np.zeros(len(data), dtype=np.int64)
    for chosen, numbers in parts:
        if not chosen.any():
            continue
        steps, own_joint = np.flatnonzero(chosen), members(joint, numbers)
        part = data if chosen.all() else data.select(chosen)
        for rows, inside, answer in answers_at_steps(own_joint, normaliser, part, nobody[: len(part)], ()):
            mean = _mean_action(answer.policy)[..., columns or slice(None)]
            here = torch.from_numpy(inside)
            found, error = (each[here].double().numpy() for each in _over_finite(mean))
            yield steps[rows[inside]], found, error


def _mean_action(policy: Any) -> Tensor:
    """(member, row, dimension) the mean of each member's mixture."""
    logits, means, _ = mixture_parts(policy)
    return (logits.softmax(-1).unsqueeze(-1) * means).sum(-2)


def _over_finite(values: Tensor) -> tuple[Tensor, Tensor]:
    """(row, dimension) mean over the members whose values are finite, and its expected squared error."""
    finite = values[values.isfinite().flatten(1).all(1)]
    mean, count = finite.mean(0), len(finite)
    return mean, (1 + 1 / count) * finite.var(0) if count > 1 else torch.zeros_like(mean)


@final
@dataclass(frozen=True, eq=False)
class HeldOutMoments:
    """Moments of all episodes at several horizons, by policies that have not seen them (`fold`, (episode,))."""

    data: Demonstrations
    horizons: tuple[int, ...]
    fold: Array
    centre: Array
    """(horizon, dimension) the mean of y."""
    moments: Moments
    model: SignalScaling

    @classmethod
    def of(
        cls,
        joint: Joint,
        normaliser: Normaliser,
        data: Demonstrations,
        *,
        fold: Array,
        horizons: tuple[int, ...],
        model: SignalScaling,
    ) -> HeldOutMoments:
        """By the members of a joint model, as many of each fold, whose actions are those of all horizons."""
        ahead = actions_ahead(data, horizons)
        means, errors = (np.empty(ahead.actions.shape, dtype=np.float32) for _ in range(2))
        for steps, *found in predictions(joint, normaliser, ahead, fold):
            means[steps], errors[steps] = found
        shape = (len(data), len(horizons), -1)
        y = ahead.actions.reshape(shape)
        centre = y.mean(0)
        moments = _moments_of(data, y - centre, means.reshape(shape) - centre, errors.reshape(shape))
        return cls(data, horizons, fold, centre, moments, model)

    def scale(self, place: int) -> Scale:
        """By what residuals of a horizon are measured, by its place."""
        own, steps = self.moments.at(place), self.moments.steps.sum()
        noise = np.maximum((own.yy - 2 * own.ym + own.mm).sum((0, 1)) / steps, _TINY)
        noise[list(self.model.exempt or ())] = np.inf
        return Scale(self.horizons[place], self.centre[place], noise, self.model.gain, self.model.shrinkage)

    def reliability(self, place: int) -> float:
        """Of ratings at a horizon, by its place; NaN where no demonstrator has episodes in two folds."""
        folds = int(self.fold.max()) + 1
        cell, count = self.data.episode_demonstrator * folds + self.fold, len(self.data.names) * folds
        # gains and variances of each fold's own, or they would make folds of one demonstrator alike
        shares = self.scale(place).noise_shares(self.moments.at(place), cell, count)
        steps = _sum_by(self.moments.steps, cell, count)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratings = -np.log(np.maximum(_sum_by(shares, cell, count) / steps, _TINY))
        return reliability_of(ratings.reshape(-1, folds))


def reliability_of(ratings: Array) -> float:
    """Reliability of the mean rating of demonstrators, from (demonstrator, replicate) ratings; NaN for none.

    The intraclass correlation ICC(1, k) of Shrout and Fleiss (Psychological Bulletin 86, 1979): one minus the variance
    within demonstrators by that between their means. It is what the correlation of random halves, stepped up by the
    formula of Spearman and Brown, estimates. Zero where means differ less than chance would make them.
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
    """The place of the longest horizon about as reliable as the best; the first where none is known."""
    known = np.nan_to_num(np.asarray(reliability), nan=-1.0)
    return int(np.flatnonzero(known >= known.max() - _AS_RELIABLE)[-1]) if known.max() >= 0 else 0


def _moments_of(data: Demonstrations, y: Array, m: Array, error: Array) -> Moments:
    """Sums over episodes of (step, horizon, dimension) y - c, m - c and the expected squared error of m."""
    starts = data.episode_bounds[:-1]

    def summed(values: Array) -> Array:
        return np.asarray(np.add.reduceat(values, starts, axis=0, dtype=np.float64))

    sums = (summed(values) for values in (y, y * y, m * m, y * m, error))
    return Moments(np.diff(data.episode_bounds), *sums)


def _sum_by(values: Array, owner: Array, count: int) -> Array:
    """(owner, ...) sums of (episode, ...) values."""
    found = np.zeros((count, *values.shape[1:]))
    np.add.at(found, owner, values)
    return found
