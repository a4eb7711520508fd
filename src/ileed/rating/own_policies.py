"""Policies of single demonstrators: how consistent each demonstrator is, and how different from the common policy.

Two indicators of continuous actions, by episode, for demonstrators with two episodes or more. With y the actions, each
dimension divided by its standard deviation (binary dimensions are left out, unless all are binary), f_i a policy
fitted to demonstrator i alone, and f the common policy, fitted to all demonstrators:

- `own_policy_residual`: the mean of |y - f_i(s)|^2 over the steps of the episode, divided by the variance of the
  demonstrator's own actions, so that the mean over episodes is the share of this variance that the own policy leaves
  unexplained: 0 for actions that are a function of the state, 1 for actions that are independent of it.
- `distance_from_common`: the mean of |f_i(s) - f(s)|^2 over the steps of the episode, divided by the variance of the
  actions of all demonstrators.

Both policies are fitted without the episode: the episodes of each demonstrator are dealt into five folds, or as many as
there are episodes, and each fold is held out in turn. A policy is a ridge regression on the standardised observations
and 256 random Fourier features of them (Rahimi and Recht 2007, "Random features for large-scale kernel machines"),
cos(w' s + b) with w ~ N(0, 1 / l^2). The lengths l are spread over a factor of eight around the square root of the
number of inputs. The penalty is the one of seven that predicts held-out episodes best, for each demonstrator and for
the common policy. Neither policy is recurrent or multimodal. With few steps, both indicators include the estimation
error of f_i, and are larger for that reason.

With more than 262,144 steps, evenly spaced steps are used; with more than 128 inputs, as many random projections.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import nan, pi
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ileed._numpy import default_errors
from ileed._torch import Float, default_modes, numpy_stream, stream, threads
from ileed.data import Array, Demonstrations
from ileed.errors import SettingsError

_FOLDS = 5
_FEATURES = 256
_MOST_INPUTS = 128
_PENALTIES = tuple(10.0**power for power in range(-5, 2))  # of the mean squared error
_OCTAVES = 1.5  # of lengths, to either side
_FARTHEST = 6.0  # standard deviations of an input, so that an extreme state does not extrapolate
_MOST_STEPS = 1 << 18
_NUMBERS_AT_ONCE = 1 << 23


@default_modes()
@default_errors()
@threads(1)
def own_policy_indicators(data: Demonstrations, *, seed: int = 0) -> dict[str, Array]:
    """(episode,) `own_policy_residual` and `distance_from_common`, NaN where a demonstrator has one episode.

    Args:
        data: The demonstrations, with continuous actions.
        seed: Of the folds and the random features.
    """
    if not data.action_size:
        raise SettingsError(
            "own_policies is True but actions are discrete: leave it out", code="own-policies-of-discrete-actions"
        )
    inputs, targets = _Inputs.of(data, seed), _Targets.of(data)
    fold, steps = _deal(data, seed), np.arange(0, len(data), 1 + len(data) // _MOST_STEPS)
    who = data.demonstrator[steps]
    ends = np.cumsum(np.bincount(who, minlength=len(data.names)))[:-1]
    of_each = np.split(steps[np.argsort(who, kind="stable")], ends)
    common, own = _Moments.none(inputs.width, targets.width), []
    for rows in of_each:
        moments = _Moments.none(inputs.width, targets.width)
        for part in inputs.parts(rows):
            moments.add(inputs(part), targets(part), fold[data.episode[part]])
        own.append(moments.policies())
        common.total.add_(moments.total)
    shared = common.policies()
    residual, apart, used = (np.zeros(data.episode_count) for _ in range(3))
    for rows, alone in zip(of_each, own, strict=True):
        for part in inputs.parts(rows):
            episode, features, actions = data.episode[part], inputs(part), targets(part)
            place = torch.from_numpy(fold[episode])
            by_own, by_all = (_predict(features, each, place) for each in (alone, shared))
            residual += _sums(episode, (actions - by_own).square(), data.episode_count)
            apart += _sums(episode, (by_own - by_all).square(), data.episode_count)
            used += np.bincount(episode, minlength=data.episode_count)
    count = np.where(used > 0, used, nan)
    of_own, of_all = _variances(data, targets, of_each, count)
    return {"own_policy_residual": residual / count / of_own, "distance_from_common": apart / count / of_all}


def _deal(data: Demonstrations, seed: int) -> Array:
    """(episode,) the fold of each, dealt at random within demonstrators."""
    order = numpy_stream(seed, "folds of own policies").permutation(data.episode_count)
    order = order[np.argsort(data.episode_demonstrator[order], kind="stable")]
    who = data.episode_demonstrator[order]
    fold = np.empty(data.episode_count, dtype=np.int64)
    fold[order] = (np.arange(len(order)) - np.searchsorted(who, who)) % _FOLDS
    return fold


class _Inputs(NamedTuple):
    """The features of steps: standardised observations, random Fourier features of them, and a one."""

    data: Demonstrations
    varying: Array
    centre: Tensor
    scale: Tensor
    projection: Tensor | None
    frequency: Tensor
    phase: Tensor

    @classmethod
    def of(cls, data: Demonstrations, seed: int) -> _Inputs:
        """Units come from evenly spaced steps, as many as are read at once."""
        width, random = int(np.prod(data.observations.shape[1:])), stream(seed, "features of own policies")
        rows = np.arange(0, len(data), 1 + len(data) * width // _NUMBERS_AT_ONCE)
        seen = _flat(data.observations[rows])
        scale = seen.std(0, correction=0)
        varying = (scale > 1e-9 * seen.abs().amax(0)).nonzero()[:, 0]
        size, projection = len(varying), None
        if size > _MOST_INPUTS:
            projection = torch.randn(size, _MOST_INPUTS, generator=random, dtype=torch.float64) / size**0.5
            size = _MOST_INPUTS
        octave = (2 * torch.rand(_FEATURES, generator=random, dtype=torch.float64) - 1) * _OCTAVES
        frequency = torch.randn(size, _FEATURES, generator=random, dtype=torch.float64)
        frequency = frequency / (max(1, size) ** 0.5 * 2**octave)
        phase = 2 * pi * torch.rand(_FEATURES, generator=random, dtype=torch.float64)
        return cls(data, varying.numpy(), seen.mean(0)[varying], scale[varying], projection, frequency, phase)

    @property
    def width(self) -> int:
        return len(self.frequency) + _FEATURES + 1

    def parts(self, rows: Array) -> Iterator[Array]:
        """Steps in parts whose observations and features fit into memory."""
        numbers = self.width + int(np.prod(self.data.observations.shape[1:]))
        each = max(1, _NUMBERS_AT_ONCE // numbers)
        return (rows[first : first + each] for first in range(0, len(rows), each))

    def __call__(self, rows: Array) -> Float[Tensor, "row feature"]:
        seen = (_flat(self.data.observations[rows])[:, self.varying] - self.centre) / self.scale
        seen = seen.clamp(-_FARTHEST, _FARTHEST)
        seen = seen if self.projection is None else seen @ self.projection
        waves = torch.addmm(self.phase, seen, self.frequency).cos_()
        return torch.cat([seen, waves, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)


def _flat(observations: Array) -> Float[Tensor, "row input"]:
    return torch.from_numpy(np.asarray(observations, dtype=np.float64).reshape(len(observations), -1))


class _Targets(NamedTuple):
    """The standardised actions that policies predict."""

    data: Demonstrations
    dimensions: Array
    centre: Array
    scale: Array

    @classmethod
    def of(cls, data: Demonstrations) -> _Targets:
        actions = data.actions[:: 1 + len(data) // _MOST_STEPS].astype(np.float64)
        used, scale = data.movement_dimensions, actions.std(axis=0)
        used = used[scale[used] > 1e-9 * np.abs(actions[:, used]).max(axis=0, initial=0)]
        return cls(data, used, actions.mean(axis=0)[used], scale[used])

    @property
    def width(self) -> int:
        return len(self.dimensions)

    def __call__(self, rows: Array) -> Float[Tensor, "row dimension"]:
        actions = self.data.actions[rows][:, self.dimensions].astype(np.float64)
        return torch.from_numpy((actions - self.centre) / self.scale)


class _Moments(NamedTuple):
    """Sums over steps of the products of features and actions, by fold: the sufficient statistics of a regression."""

    total: Float[Tensor, "fold column column"]
    features: int
    """The number of features, with the one, which is the last of them."""

    @classmethod
    def none(cls, features: int, targets: int) -> _Moments:
        return cls(torch.zeros(_FOLDS, features + targets, features + targets, dtype=torch.float64), features)

    def add(self, features: Tensor, targets: Tensor, fold: Array) -> None:
        both, place = torch.cat([features, targets], dim=1), torch.from_numpy(fold)
        for number in np.unique(fold).tolist():
            own = both[place == number]
            self.total[number].addmm_(own.T, own)

    def policies(self) -> Float[Tensor, "fold feature dimension"]:
        """The policy of each fold, fitted to all others, with the penalty of the least held-out error.

        NaN in folds that are empty, and if all steps are in one of them.
        """
        one = self.features - 1
        is_held_out = self.total[:, one, one] > 0
        found = torch.full((_FOLDS, self.features, self.total.shape[2] - self.features), nan, dtype=torch.float64)
        if is_held_out.sum() < 2:
            return found
        held_out, everything = self.total[is_held_out], self.total.sum(0)
        candidates = torch.stack([self._fit(everything - each) for each in held_out], dim=1)
        products, actions = held_out[:, : self.features, : self.features], held_out[:, : self.features, self.features :]
        error = (candidates * (products @ candidates - 2 * actions)).sum((1, 2, 3))
        found[is_held_out] = candidates[error.argmin()]
        return found

    def _fit(self, moments: Float[Tensor, "column column"]) -> Float[Tensor, "penalty feature dimension"]:
        """The ridge regressions by penalty, with an unpenalised intercept."""
        last = self.features - 1
        count, sums = moments[last, last], moments[last]
        centred = (moments - torch.outer(sums, sums) / count) / count
        values, axes = torch.linalg.eigh(centred[:last, :last])
        along = axes.T @ centred[:last, self.features :]
        found = []
        for penalty in _PENALTIES:
            weight = axes @ (along / (values.clamp_min(0) + penalty)[:, None])
            constant = (sums[self.features :] - sums[:last] @ weight) / count
            found.append(torch.cat([weight, constant[None]]))
        return torch.stack(found)


def _predict(features: Tensor, policies: Tensor, fold: Tensor) -> Float[Tensor, "row dimension"]:
    """The prediction of each row by the policy of its fold."""
    found = torch.empty(len(features), policies.shape[2], dtype=torch.float64)
    for number in range(_FOLDS):
        chosen = fold == number
        found[chosen] = features[chosen] @ policies[number]
    return found


def _sums(episode: Array, squares: Tensor, count: int) -> Array:
    return np.bincount(episode, squares.sum(1).numpy(), minlength=count)


def _variances(data: Demonstrations, targets: _Targets, of_each: list[Array], count: Array) -> tuple[Array, float]:
    """(episode,) the variance of the demonstrator's own actions, and that of all; NaN where it is zero.

    Each episode has the same weight, as in the mean over episodes.
    """
    own, every = np.full(data.episode_count, nan), np.zeros(data.episode_count)
    for number, rows in enumerate(of_each):
        actions, episode = targets(rows), data.episode[rows]
        every += _sums(episode, actions.square(), data.episode_count)
        if len(rows):
            spread = _sums(episode, (actions - actions.mean(0)).square(), data.episode_count) / count
            mine = data.episode_demonstrator == number
            mean = np.nanmean(spread[mine])
            own[mine] = mean if mean > 0 else nan
    whole = np.nanmean(every / count)
    return own, float(whole) if whole > 0 else nan
