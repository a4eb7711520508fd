"""Outcomes of episodes as evidence of skill, beside actions: small-area estimation with an uncertain covariate.

The skill theta_i of a demonstrator is the expected outcome of an episode, oriented so that higher is better and
standardised over the episodes that have an outcome. Outcomes and actions are two sources of evidence about it:

    ybar_i = theta_i + e_i,             e_i ~ N(0, D_i)         the mean outcome of n_i episodes
    theta_i = a + b x_i + v_i,          v_i ~ N(0, tau^2)       x_i: standardised logit of expertise by actions
    x_i ~ N(m_i, u_i)                                           its posterior distribution by actions alone

This is the area-level model of Fay and Herriot (Journal of the American Statistical Association 74, 1979) with the
measurement error of Ybarra and Lohr (Biometrika 95, 2008). D_i is the variance within demonstrators divided by n_i,
partially pooled; that of a binary outcome is binomial. Given b and tau,

    theta_i | a, y ~ N((1 - k_i) (a + b m_i) + k_i ybar_i, (1 - k_i) U_i),
    U_i = b^2 u_i + tau^2,  k_i = U_i / (U_i + D_i),

and k_i = 0 without outcomes: such a demonstrator is placed by actions alone, as far as they predict the outcomes of the
others. a is integrated out analytically, b and tau on a grid. Priors: a ~ N(0, 1), b ~ N(0, 1/4), tau ~ |N(0, 1/4)|, so
that a priori actions and everything else explain skill equally. The weight b of the actions is thus learned, and near
zero where they say nothing about outcomes.

A newcomer is placed by the relation learned from the demonstrators of a fit: a, b and tau have their posterior
distribution given those demonstrators and the newcomer's own outcomes. Other newcomers do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from ileed._numpy import default_errors
from ileed._torch import product
from ileed.data import Array, Demonstrations, rules
from ileed.data.rules import listed
from ileed.errors import SettingsError, brief, counted, did_you_mean, number, one_of
from ileed.rating.learning_curves import encodable
from ileed.rating.posterior import cumulative, likely_nodes, logit, mean_and_interval, points_of, tails
from ileed.rating.ratings import RatedBy, Ratings, checked_level
from ileed.rating.step_likelihood import Units

# --- outcomes as a user passes them

Better = Literal["higher", "lower"]
Outcome = str | Mapping[Any, Any] | Sequence[Any] | npt.NDArray[Any]
"""How `outcome` may be passed: by name, by episode key, or one value for each episode."""
_RULE: Final = (
    'pass one number for each episode, a mapping from episode keys, "success", "reward", "duration" or a column'
)
_TRUTH: Final = {"true": 1.0, "false": 0.0, "success": 1.0, "failure": 0.0}


@final
@dataclass(frozen=True, eq=False)
class Spans:
    """The parts of a data set that have one outcome each: episodes, or the steps of an episode that share a label."""

    of_step: Array
    """(step,) the number of the span."""
    keys: list[Any]
    """The key of each episode, or pairs of it and a label."""
    by: str | None = None
    """The skill column that has the labels."""

    @classmethod
    def of(cls, data: Demonstrations, by: str | None) -> Spans:
        """Episodes, or with a skill column `by` the steps of each episode that share a label."""
        keys = data.episode_keys.tolist()
        if by is None:
            return cls(data.episode, keys)
        weights, labels = data.skill(by)
        pairs, of_step = np.unique(data.episode * len(labels) + weights.argmax(1), return_inverse=True)
        return cls(of_step, [(keys[pair // len(labels)], labels[pair % len(labels)]) for pair in pairs], by)

    @property
    def first_step(self) -> Array:
        """(span,) the first step of each."""
        return np.unique(self.of_step, return_index=True)[1]

    def values_of(self, outcome: Mapping[Any, Any]) -> list[Any]:
        """The value of each span in a mapping from keys, None where it has none; labels may be numbers or text."""
        given = dict(outcome)
        if self.by is not None:
            pairs = {key: isinstance(key, tuple) and len(key) == 2 for key in outcome}
            given = {(key[0], str(key[1])) if pairs[key] else key: value for key, value in outcome.items()}
        known = set(self.keys)
        if (stranger := next((key for key in given if key not in known), known)) is not known:
            what, how = "episode", "use the keys of data.episode_keys"
            if self.by is not None:
                what, how = f"episode and {self.by}", "pass pairs of a key of data.episode_keys and a label"
            raise SettingsError(
                f"outcome has {what} {brief(stranger)}, which the data do not have: {how} "
                f"(first: {brief(self.keys[0])})",
                code="outcome-unknown-episode",
            )
        return [given.get(key) for key in self.keys]

    def constant(self, name: str, values: Array) -> Array:
        """(span,) values (step,) that are constant within each; refuses others."""
        first = values[self.first_step]
        expected = first[self.of_step]
        same = (values == expected) | ((values != values) & (expected != expected))
        if varies := np.flatnonzero(~same).tolist():
            key = brief(self.keys[self.of_step[varies[0]]])
            what = "episode" if self.by is None else f"episode and {self.by}"
            raise SettingsError(
                f"{name} changes within {what} {key}: pass values that are constant there", code="outcome-varies"
            )
        return np.asarray(first)


@final
@dataclass(frozen=True, eq=False)
class EpisodeOutcomes:
    """The outcome of each episode, or of other spans, in the user's own units, and which direction is better."""

    values: Array
    """(episode,) or (span,), NaN where it is not known."""
    better: Better
    name: str = "outcome"

    @classmethod
    def of(
        cls,
        outcome: Outcome,
        better: str | None,
        data: Demonstrations,
        *,
        by: str | None = None,
        name: str = "outcome",
        allow_constant: bool = False,
    ) -> EpisodeOutcomes:
        """The outcomes that the arguments `outcome` and `better` state, of episodes or, with `by`, of their labels.

        "success" is whether any reward of an episode is above zero, "reward" their sum, and "duration" the number of
        steps, or seconds where the data have `fps`. Any other word names a skill column that is constant within
        episodes. `better` defaults to "higher", but is required with "duration": short is not always good.

        With a skill column `by`, each label of an episode has an outcome: an array has one value for each step,
        constant within an episode and label, and the keys of a mapping are pairs.
        """
        if better is not None:
            one_of("better", better, ("higher", "lower"))
        elif isinstance(outcome, str) and outcome == "duration":
            raise SettingsError(
                'outcome is "duration" and better is not given: pass better="lower" or better="higher"',
                code="better-missing",
            )
        name = outcome if isinstance(outcome, str) else name
        found = cls(_values(outcome, data, Spans.of(data, by)), "lower" if better == "lower" else "higher", name)
        known = found.values[found.is_known]
        if not len(known):
            raise SettingsError(
                f"outcome has no value for any of the {data.episode_count:,} episodes: {_RULE}", code="outcome-empty"
            )
        if found.is_constant and not allow_constant:
            raise SettingsError(
                f"outcome is {known[0]:g} in all {len(known):,} episodes that have one, so it cannot tell "
                "demonstrators apart: leave it out",
                code="outcome-constant",
            )
        return found

    @property
    def is_known(self) -> Array:
        """(episode,) whether the outcome is known."""
        return np.asarray(~np.isnan(self.values))

    @property
    def is_constant(self) -> bool:
        """Whether all known outcomes are equal, or none is known."""
        known = self.values[self.is_known]
        return bool((known == known[:1]).all())

    @property
    def is_binary(self) -> bool:
        """Whether there are no other values than 0 and 1."""
        return bool(np.isin(self.values[self.is_known], (0.0, 1.0)).all())

    def among(self, chosen: Array) -> EpisodeOutcomes:
        """The same with unknown outcomes outside of a mask (episode,)."""
        return replace(self, values=np.where(chosen, self.values, np.nan))


def _values(outcome: Outcome, data: Demonstrations, spans: Spans) -> Array:
    """(span,) outcomes; NaN where they are missing."""
    if isinstance(outcome, str):
        return _named(outcome, data, spans)
    if isinstance(outcome, Mapping):
        return _numbers(spans.values_of(outcome))
    found, count = _numbers(outcome), data.episode_count if spans.by is None else len(data)
    if found.shape != (count,):
        rule = f"pass one for each of the {count:,} episodes"
        if spans.by is not None:
            rule = f"pass one for each of the {count:,} steps, or a mapping from (episode key, {spans.by})"
        raise SettingsError(f"outcome has shape {found.shape}: {rule}", code="outcome-shape")
    return found if spans.by is None else spans.constant("outcome", found)


def _numbers(values: Any) -> Array:
    """Numbers in double precision, NaN for None and masked values; refuses text and infinite ones."""
    if np.ma.isMaskedArray(values):
        values, masked = np.ma.getdata(values).astype(object), np.ma.getmaskarray(values)
        values[masked] = None
    try:
        array = np.asarray(values)
        each = [np.nan if value is None else value for value in array.ravel().tolist()]
        if array.dtype.kind not in "biufO" or any(isinstance(value, str | bytes) for value in each):
            raise TypeError
        found = np.array(each, dtype=np.float64).reshape(array.shape)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise SettingsError(f"outcome is {brief(values)}: {_RULE}", code="outcome-invalid") from None
    if np.isinf(found).any():
        raise SettingsError(
            f"outcome is infinite in {np.isinf(found).sum():,} episodes: pass NaN where it is not known",
            code="outcome-infinite",
        )
    return found


def _named(name: str, data: Demonstrations, spans: Spans) -> Array:
    """(span,) success, reward, duration, or a skill column of numbers or words."""
    if name == "duration":
        return np.asarray(np.bincount(spans.of_step) / (data.fps or 1.0))
    if name in ("success", "reward"):
        if data.rewards is None:
            raise SettingsError(
                f"outcome is {name!r}, and the data have no rewards: pass one value for each episode",
                code="outcome-without-rewards",
            )
        rewards = np.asarray(data.rewards, dtype=np.float64)
        if name == "reward":
            return np.bincount(spans.of_step, rewards)
        return np.asarray(np.bincount(spans.of_step, rewards > 0) > 0, dtype=np.float64)
    if name not in data.skills:
        known = ["success", "reward", "duration", *data.skills]
        raise SettingsError(
            f"outcome {brief(name)} is no column of the data{did_you_mean(name, known)}: {_RULE}",
            code="outcome-unknown-column",
        )
    column = np.asarray(data.skills[name])
    if column.ndim == 2 and column.shape[1] != 1:
        raise SettingsError(
            f"outcome {brief(name)} has {column.shape[1]} numbers for each step: name a column with one",
            code="outcome-shape",
        )
    first = spans.constant(f"outcome {brief(name)}", column.reshape(len(data)))
    if column.dtype.kind != "U":
        return np.asarray(first, dtype=np.float64)
    return np.array([_number_of(name, word) for word in first.tolist()])


def _number_of(column: str, word: str) -> float:
    """A number or a word for success or failure, as text; NaN for an empty one."""
    text = word.strip().lower()
    if text in ("", "none", "null", "na"):
        return np.nan
    try:
        found = _TRUTH[text] if text in _TRUTH else float(text)
    except ValueError:
        found = np.inf
    if np.isinf(found):
        raise SettingsError(
            f"outcome {brief(column)} holds {brief(word)}: use finite numbers, {listed(tuple(_TRUTH))}, or no text",
            code="outcome-word-unknown",
        )
    return found


# --- the model

_LEVEL_SD, _SLOPE_SD, _SPREAD_SD = 1.0, 0.5, 0.5
_PLACES = np.arange(33) + 0.5  # of nodes, for b and for tau
_REACH = 5.0  # of both, in standard deviations of their priors
_FALL = 14.0  # nats below the top of the posterior density of b and tau, beyond which nothing of it is left
_LEAST_WEIGHT = 1e-6  # of a node, relative to the largest
_OWN_VARIANCE = 4.0  # degrees of freedom that the pooled variance counts for in that of a demonstrator
_PRIOR_EPISODES = 2.0  # at the success rate of all, added to those of a demonstrator
_AT_ONCE = 1 << 22  # numbers


class Means(NamedTuple):
    """Outcomes by demonstrator, standardised so that higher is better."""

    rated: Array
    """(demonstrator,) the number of episodes that have an outcome."""
    mean: Array
    """(demonstrator,) ybar; 0 without outcomes."""
    variance: Array
    """(demonstrator,) D; infinite without outcomes."""
    shift: float
    """The mean outcome of all these episodes, in the user's units."""
    scale: float
    """Their standard deviation; negative where lower is better."""
    within: float = 1.0
    """The variance within demonstrators, pooled over all."""
    binary: bool = False
    """Whether outcomes are successes and failures, whose variance follows from their rate."""

    @classmethod
    def of(cls, outcomes: EpisodeOutcomes, owner: Array, demonstrators: int, *, like: Means | None = None) -> Means:
        """Those of episodes whose demonstrators are `owner` (episode,); of newcomers, in the units of `like`."""
        known = outcomes.is_known
        values, who = outcomes.values[known], owner[known]
        if like is None:
            shift, binary = float(values.mean()), outcomes.is_binary
            scale = float(values.std()) * (1.0 if outcomes.better == "higher" else -1.0)
        else:
            shift, scale, binary = like.shift, like.scale, like.binary
        standard = (values - shift) / scale
        count = np.bincount(who, minlength=demonstrators)
        mean = np.bincount(who, standard, minlength=demonstrators) / np.maximum(count, 1)
        squares = np.bincount(who, (standard - mean[who]) ** 2, minlength=demonstrators)
        freedom = np.maximum(count - 1, 0)
        # one degree of freedom of the variance of all
        pooled = float((1.0 + squares.sum()) / (1.0 + freedom.sum())) if like is None else like.within
        if binary:
            successes = np.bincount(who, values, minlength=demonstrators)
            rate = (successes + _PRIOR_EPISODES * shift) / (count + _PRIOR_EPISODES)
            within = rate * (1 - rate) / scale**2
        else:
            within = (_OWN_VARIANCE * pooled + squares) / (_OWN_VARIANCE + freedom)
        with np.errstate(divide="ignore"):
            return cls(count, mean, within / count, shift, scale, pooled, binary)

    @property
    def outcomes(self) -> Array:
        """(demonstrator,) mean outcomes in the user's units; NaN without any."""
        return np.where(self.rated > 0, self.shift + self.scale * self.mean, np.nan)


class Covariate(NamedTuple):
    """(demonstrator,) mean m and variance u of what actions say, standardised over demonstrators."""

    mean: Array
    variance: Array
    shift: float
    scale: float

    @classmethod
    def of_shares(cls, shares: Array, *, like: Covariate | None = None) -> Covariate:
        """The logit of expertise by its posterior distributions (demonstrator, point); in the units of `like`."""
        logits = logit(points_of(shares.shape[1]))
        mean = product(shares, logits)
        variance = np.maximum(product(shares, logits**2) - mean**2, 0.0)
        shift, scale = _centre_and_spread(mean, variance) if like is None else (like.shift, like.scale)
        return cls((mean - shift) / scale, variance / scale**2, shift, scale)

    @classmethod
    def uninformative(cls, means: Means) -> Covariate:
        """Actions that say nothing."""
        zero = np.zeros(len(means.mean))
        return cls(zero, zero, 0.0, 1.0)


def _centre_and_spread(mean: Array, variance: Array) -> tuple[float, float]:
    """Mean and standard deviation over demonstrators of a quantity that is known by its mean and variance for each."""
    return float(mean.mean()), float(np.sqrt(max(mean.var() + variance.mean(), 1e-12)))


@final
@dataclass(frozen=True, eq=False)
class SkillPosterior:
    """The posterior distribution of skill: a mixture of Gaussian distributions over nodes of b and tau."""

    slope: Array
    """(node,) b."""
    spread: Array
    """(node,) tau."""
    weight: Array
    """(node,) the posterior probability of each node."""
    mean: Array
    """(node, demonstrator) of theta."""
    variance: Array
    """(node, demonstrator) of theta."""

    def moments(self) -> tuple[Array, Array]:
        """(demonstrator,) mean and variance of theta."""
        mean = product(self.weight, self.mean)
        return mean, product(self.weight, self.variance + (self.mean - mean) ** 2)

    def slope_interval(self, level: float) -> tuple[float, float, float]:
        """Mean and equal-tailed interval of b."""
        slopes, place = np.unique(self.slope, return_inverse=True)
        share = np.bincount(place, self.weight)
        low, high = np.interp(tails(level), cumulative(share[None])[0], slopes)
        return float(product(slopes, share)), float(low), float(high)

    def explained(self) -> float:
        """The share of the variance of skill between demonstrators that actions explain: E[b^2 / (b^2 + tau^2)]."""
        return float(product(self.weight, self.slope**2 / (self.slope**2 + self.spread**2)))

    def on_grid(self, level: float, factor: float, points: int, *, merge: bool) -> Array:
        """(demonstrator, point) shares at points of expertise e, where theta = level + factor * logit(e).

        `merge` takes one Gaussian distribution for each demonstrator, which is faster for very many.
        """
        weight, means, variances = self.weight, self.mean, self.variance
        if merge:
            weight, (means, variances) = np.ones(1), (each[None] for each in self.moments())
        edges = level + factor * (2 * np.log(np.tan(np.arange(1, points) * (np.pi / 2 / points))))
        below = np.zeros((means.shape[1], points + 1))
        below[:, -1] = 1
        share, at = torch.from_numpy(weight), torch.from_numpy(edges)
        for who in range(len(below)):
            mean, deviation = (torch.from_numpy(each[:, who].copy()) for each in (means, variances**0.5))
            below[who, 1:-1] = (share @ torch.special.ndtr((at - mean[:, None]) / deviation[:, None])).numpy()
        shares = np.maximum(np.diff(below, axis=1), 0.0)
        return np.asarray(shares / shares.sum(1, keepdims=True))


def skill_posterior(means: Means, actions: Covariate | None) -> SkillPosterior:
    """The posterior distribution of theta by outcomes and actions, or by outcomes alone (b = 0)."""
    slope, spread, weight = _nodes(means, actions)
    actions = actions or Covariate.uninformative(means)
    mean, variance = (np.empty((len(slope), len(means.mean))) for _ in range(2))
    for part in _parts(*mean.shape):
        total, residual = _residuals(means, actions, slope[part], spread[part])
        level, precision = _level(total, np.where(means.rated > 0, residual, 0.0))
        skill = slope[part, None] ** 2 * actions.variance + spread[part, None] ** 2
        rest = 1 - skill / total  # 1 - k, 1 without outcomes
        predicted = level[:, None] + slope[part, None] * actions.mean
        mean[part] = rest * predicted + (1 - rest) * means.mean
        variance[part] = rest * skill + rest**2 / precision[:, None]
    return SkillPosterior(slope, spread, weight, mean, variance)


def newcomer_posteriors(
    known: Means, known_actions: Covariate | None, means: Means, actions: Covariate | None
) -> Iterator[SkillPosterior]:
    """The posterior distribution of theta of each newcomer, given the demonstrators that are known.

    Each is what `skill_posterior` finds for a newcomer who joins those demonstrators alone.
    """
    slope, spread, weight = _nodes(known, known_actions)
    known_actions = known_actions or Covariate.uninformative(known)
    level, precision = _level(*_residuals(*_rated(known, known_actions), slope, spread))
    actions = actions or Covariate.uninformative(means)
    for who in range(len(means.mean)):
        predicted = level + slope * actions.mean[who]
        skill = slope**2 * actions.variance[who] + spread**2 + 1 / precision  # the variance of theta - predicted
        total, residual, own = skill + means.variance[who], means.mean[who] - predicted, weight
        if means.rated[who]:
            density = np.log(weight) - 0.5 * (np.log(total) + residual**2 / total)
            own = np.exp(density - density.max())
            own = own / own.sum()
        share = skill / total  # k, 0 without outcomes
        mean, variance = predicted + share * residual, (1 - share) * skill
        yield SkillPosterior(slope, spread, own, mean[:, None], variance[:, None])


def _nodes(means: Means, actions: Covariate | None) -> tuple[Array, Array, Array]:
    """(node,) b, tau and their posterior probability; b = 0 without actions."""
    reach = 0.0 if actions is None else _REACH * _SLOPE_SD
    rated = _rated(means, actions or Covariate.uninformative(means))

    def log_density(slopes: Array, spreads: Array) -> Array:
        """(slope, spread) log of the posterior density, with a and theta integrated out, up to a constant."""
        slope, spread = np.repeat(slopes, len(spreads)), np.tile(spreads, len(slopes))
        found = np.empty(len(slope))
        for part in _parts(len(slope), len(rated[0].mean)):
            total, residual = _residuals(*rated, slope[part], spread[part])
            level, precision = _level(total, residual)
            squares = (residual**2 / total).sum(1) - precision * level**2
            found[part] = -0.5 * (np.log(total).sum(1) + np.log(precision) + squares)
        prior = -0.5 * ((slope / _SLOPE_SD) ** 2 + (spread / _SPREAD_SD) ** 2)
        return (prior + found).reshape(len(slopes), len(spreads))

    ends = [(-reach, reach), (0.0, _REACH * _SPREAD_SD)]
    slopes, spreads, density = likely_nodes(log_density, ends, _PLACES, fall=_FALL)
    weight = np.exp(density - density.max()).ravel()
    chosen = weight > _LEAST_WEIGHT
    slope, spread = np.repeat(slopes, len(spreads))[chosen], np.tile(spreads, len(slopes))[chosen]
    return slope, spread, weight[chosen] / weight[chosen].sum()


def _rated(means: Means, actions: Covariate) -> tuple[Means, Covariate]:
    """Those of demonstrators with outcomes."""
    known = means.rated > 0
    own = means._replace(rated=means.rated[known], mean=means.mean[known], variance=means.variance[known])
    return own, actions._replace(mean=actions.mean[known], variance=actions.variance[known])


def _residuals(means: Means, actions: Covariate, slope: Array, spread: Array) -> tuple[Array, Array]:
    """(node, demonstrator) the variance of ybar - b m, U + D, and ybar - b m itself."""
    skill = slope[:, None] ** 2 * actions.variance + spread[:, None] ** 2
    return skill + means.variance, means.mean - slope[:, None] * actions.mean


def _level(total: Array, residual: Array) -> tuple[Array, Array]:
    """(node,) mean and precision of a."""
    precision = _LEVEL_SD**-2 + (1 / total).sum(1)
    return (residual / total).sum(1) / precision, precision


def _parts(nodes: int, demonstrators: int) -> Iterator[slice]:
    """Nodes in parts whose numbers of all demonstrators are in memory together."""
    count = max(1, _AT_ONCE // max(1, demonstrators))
    return (slice(first, first + count) for first in range(0, nodes, count))


# --- weights for learning a policy

LEAST_SHARE = 1 / 3
"""Of the episodes that the effective sample size stays above."""
_LARGEST = 20.0  # inverse temperature, by standard deviations of the outcome: beyond it weights hardly change
_HALVINGS = 60


class AdvantageWeights(NamedTuple):
    """(episode,) weights with a mean of 1, their temperature, and the effective share of the episodes."""

    weights: Array
    temperature: float
    effective_share: float


def advantage_weights(advantage: Array, least_share: float = LEAST_SHARE) -> AdvantageWeights:
    """Weights by (episode,) advantages at the lowest temperature that keeps an effective share of the episodes."""

    def weights(inverse_temperature: float) -> Array:
        found = np.exp(inverse_temperature * (advantage - advantage.max()))
        return np.asarray(found / found.mean())

    low, high = 0.0, _LARGEST
    if effective_share(weights(high)) >= least_share:
        low = high
    for _ in range(_HALVINGS):  # the share falls as the inverse temperature rises
        middle = (low + high) / 2
        low, high = (middle, high) if effective_share(weights(middle)) >= least_share else (low, middle)
    found = weights(low)
    return AdvantageWeights(found, 1 / low, effective_share(found))


def effective_share(weights: Array) -> float:
    """The effective sample size of (episode,) weights, relative to the number of episodes."""
    return float(weights.sum() ** 2 / (weights**2).sum() / len(weights))


# --- what actions and outcomes say

LEAST_RATED = 3
"""Demonstrators with outcomes in a label, below which actions alone decide there."""
DISAGREEMENT = 0.95
"""Probability of deviations of opposite sign from the mean, above which actions and outcomes disagree."""
_MOST_NAMED = 5  # demonstrators in a sentence


class ActionWeight(NamedTuple):
    """How much actions say about outcomes."""

    slope: float
    """b: standard deviations of the outcome by which skill rises for one of the logit of expertise by actions."""
    low: float
    high: float
    explained: float
    """The share of the variance of skill between demonstrators that actions explain."""


@final
@dataclass(frozen=True, kw_only=True)
class EvidenceSettings:
    """What a run directory keeps of `SkillEvidence` beside its tensors."""

    outcome: str
    """The name under which outcomes were passed."""
    better: Literal["higher", "lower"]
    binary: bool
    """Whether outcomes are successes and failures, so that expected ones are rates."""
    slope: float
    slope_low: float
    slope_high: float
    explained: float
    level: float
    """The expected outcome at expertise e is level + factor * logit(e)."""
    factor: float
    shift: float
    """The mean outcome of the episodes that have one."""
    scale: float
    """Their standard deviation; negative where lower is better."""
    within: float
    """The variance of outcomes within demonstrators, in units of the squared scale."""
    temperature: float
    """Of the advantage weights by which the policy was learned, in standard deviations of the outcome."""
    effective_share: float
    """The effective sample size of these weights, relative to the number of episodes."""
    by_actions: RatedBy
    """How demonstrators were rated by actions alone."""

    def __post_init__(self) -> None:
        for name in ("explained", "effective_share"):
            number(name, getattr(self, name), least=0, most=1 + 1e-9, rule="it must be a share from 0 to 1")
        number("temperature", self.temperature, above=0, rule="it must be a number above zero")
        if self.factor == 0 or not self.slope_low <= self.slope <= self.slope_high:
            raise SettingsError("factor must not be 0, and slope must lie between slope_low and slope_high")
        if self.scale == 0 or (self.scale < 0) != (self.better == "lower") or not self.within > 0:
            raise SettingsError("scale must be above 0, or below 0 where lower is better, and within above 0")


@final
@dataclass(frozen=True, eq=False)
class SkillEvidence:
    """Ratings by actions alone, by outcomes alone, and by both, on one scale of expertise.

    The weight of actions against outcomes is learned by the model of this module. The scale is that of the ratings by
    actions: the mean and the standard deviation of logit expertise over demonstrators are equal.
    """

    settings: EvidenceSettings
    actions: Ratings
    """By actions alone."""
    outcomes: Ratings
    """By outcomes alone; without any outcome, what is known of demonstrators in general."""
    both: Ratings
    """By both: what `Fitted.expertise` has."""
    rated: Array
    """(demonstrator,) the number of episodes that have an outcome."""
    mean_outcome: Array
    """(demonstrator,) in the user's units; NaN without outcomes."""
    variance: Array
    """(demonstrator,) of the mean outcome around skill, in units of the squared scale; infinite without outcomes."""
    fit: SkillEvidence | None = None
    """For newcomers, the evidence of the fit by which they were placed."""

    @property
    def weight(self) -> ActionWeight:
        """How much actions say about outcomes: b with its 95% interval, and the share of variance they explain."""
        own = self.settings
        return ActionWeight(own.slope, own.slope_low, own.slope_high, own.explained)

    @property
    def disagreement(self) -> Array:
        """(demonstrator,) probability that deviations from the mean have opposite signs; NaN without outcomes.

        The mean is that over the demonstrators of the fit who have outcomes. Actions count as undecided where their
        ratings support no order of demonstrators (`Ratings.not_identified`).
        """
        fit = self.fit or self
        by_outcomes = _probability_above_mean(self.outcomes, fit.outcomes, fit.rated > 0)
        by_actions = _probability_above_mean(self.actions, fit.actions, fit.rated > 0)
        if self.actions.not_identified or fit.actions.not_identified:
            by_actions = np.full_like(by_actions, 0.5)
        found = by_actions * (1 - by_outcomes) + by_outcomes * (1 - by_actions)
        return np.where(self.rated > 0, found, np.nan)

    @property
    def disagrees(self) -> Array:
        """(demonstrator,) whether actions and outcomes disagree about a demonstrator."""
        return np.asarray(np.nan_to_num(self.disagreement) > DISAGREEMENT)

    def expected_outcome(self, ratings: Ratings, level: float) -> tuple[Array, Array, Array]:
        """(demonstrator,) the expected outcome in the user's units by some of these ratings, and its interval."""
        shares = ratings.posterior
        outcome = self.settings.level + self.settings.factor * logit(points_of(shares.shape[1]))
        outcome = np.clip(outcome, 0.0, 1.0) if self.settings.binary else outcome
        ends = np.array([np.interp(tails(level), row, outcome) for row in cumulative(shares)]).reshape(-1, 2)
        return product(shares, outcome), ends.min(1), ends.max(1)

    @default_errors()
    def table(self, *, confidence_level: float = 0.95) -> pa.Table:
        """One row for each demonstrator, best first: what actions, outcomes and both say, with intervals.

        `rated` is the number of episodes with an outcome and `outcome` their mean. `actions`, `outcomes` and `both` are
        expertise, as in `Ratings.table(relative=False)`; `outcomes` is null without any. `expected` is the expected
        outcome of an episode, by both and in the units of the outcomes. `disagrees` says whether actions and outcomes
        put the demonstrator on opposite sides of the mean, with the probability `disagreement`.
        """
        level, unknown = checked_level(confidence_level), self.rated == 0
        columns: dict[str, Any] = {
            "demonstrator": encodable(self.both.names),
            "episodes": self.both.episodes,
            "rated": self.rated,
            "outcome": pa.array(np.nan_to_num(self.mean_outcome), mask=unknown),
        }
        ratings = {"actions": self.actions, "outcomes": self.outcomes, "both": self.both}
        found = {kind: mean_and_interval(each.posterior, level) for kind, each in ratings.items()}
        for kind, values in (found | {"expected": self.expected_outcome(self.both, level)}).items():
            for end, each in zip(("", "_low", "_high"), values, strict=True):
                columns[f"{kind}{end}"] = pa.array(each, mask=unknown if kind == "outcomes" else None)
        columns["disagreement"] = pa.array(np.nan_to_num(self.disagreement), mask=unknown)
        columns["disagrees"] = pa.array(self.disagrees, mask=unknown)
        return pa.table(columns).take(self.both.order)

    def columns(self) -> dict[str, Array]:
        """What a table of the ratings adds: the number of episodes with an outcome."""
        return {"rated": self.rated}

    @property
    def means(self) -> Means:
        """Outcomes by demonstrator as the model takes them."""
        own, known = self.settings, self.rated > 0
        mean = np.where(known, (np.where(known, self.mean_outcome, 0.0) - own.shift) / own.scale, 0.0)
        return Means(self.rated, mean, self.variance, own.shift, own.scale, own.within, own.binary)

    @default_errors()
    def sentence(self) -> str:
        """What actions and outcomes say alone, how much of skill actions explain, and where they disagree."""
        if not self.rated.any():
            return f"by actions alone, {self.actions.sentence()}; there are no outcomes"
        at = np.flatnonzero(self.rated > 0)
        known = self.outcomes.select(at, tuple(self.outcomes.names[who] for who in at))
        rated = counted(int(self.rated.sum()), "episode")
        how = " in the opposite direction" if self.weight.high < 0 else ""
        said = (
            f"by actions alone, {self.actions.sentence()}; by the outcomes of {rated} alone, {known.sentence()}. "
            f"Actions explain {100 * self.weight.explained:.0f}% of the variance of skill{how}"
        )
        if not self.disagrees.any():
            return f"{said}, and no clear disagreement with outcomes remains"
        found = np.flatnonzero(self.disagrees)
        who = [self.both.names[each] for each in found[np.argsort(-self.disagreement[found], kind="stable")]]
        named = ", ".join(who[:_MOST_NAMED]) + (f" and {len(who) - _MOST_NAMED} more" if len(who) > _MOST_NAMED else "")
        return f"{said}, and disagree with outcomes about {named}"

    def renamed(self, names: Mapping[str, str]) -> SkillEvidence:
        """The same evidence with other names."""
        return replace(self, **{kind: getattr(self, kind).renamed(names) for kind in ("actions", "outcomes", "both")})

    def with_ratings(self, both: Ratings) -> SkillEvidence:
        """The same evidence, with what a fit adds to the ratings by both."""
        actions, outcomes = (replace(each, in_sample=both.in_sample) for each in (self.actions, self.outcomes))
        return replace(self, both=both, actions=actions, outcomes=outcomes)

    def tensors(self) -> dict[str, Tensor]:
        """What a run directory keeps, beside the settings and the ratings by both."""
        known = self.rated > 0
        values = {
            "rated": self.rated,
            "actions": self.actions.posterior,
            "outcomes": self.outcomes.posterior,
            "mean_outcome": np.where(known, self.mean_outcome, 0.0),
            "variance": np.where(known, self.variance, 0.0),
        }
        return {name: torch.tensor(each) for name, each in values.items()}

    @staticmethod
    def empty_tensors(demonstrators: int, points: int) -> dict[str, Tensor]:
        """The shapes and types of what a run directory keeps, with shares at this many points."""
        found = {"rated": torch.empty(demonstrators, dtype=torch.int64)}
        found |= {name: torch.empty(demonstrators, points, dtype=torch.float64) for name in ("actions", "outcomes")}
        return found | {name: torch.empty(demonstrators, dtype=torch.float64) for name in ("mean_outcome", "variance")}

    @classmethod
    def of_tensors(cls, settings: EvidenceSettings, both: Ratings, own: Mapping[str, Tensor]) -> SkillEvidence:
        """Evidence as a run directory keeps it, beside the ratings by both."""
        rated = own["rated"].numpy()
        mean = np.where(rated > 0, own["mean_outcome"].numpy(), np.nan)
        variance = np.where(rated > 0, own["variance"].numpy(), np.inf)
        actions = both.with_shares(own["actions"].numpy(), settings.by_actions)
        return cls(settings, actions, both.with_shares(own["outcomes"].numpy(), both.by), both, rated, mean, variance)


def _probability_above_mean(ratings: Ratings, others: Ratings, among: Array) -> Array:
    """(demonstrator,) the probability that logit expertise is above its mean over some other demonstrators."""
    known, shares = others.posterior, ratings.posterior
    mean = float(product(known[among], logit(points_of(known.shape[1]))).mean())
    logits = logit(points_of(shares.shape[1]))
    return 1 - np.array([np.interp(mean, logits, row) for row in cumulative(shares)])


class Combined(NamedTuple):
    """Skill by both sources, and the (episode,) advantage weights that follow from it."""

    evidence: SkillEvidence
    weights: Array


@default_errors()
def combine_evidence(actions: Ratings, outcomes: EpisodeOutcomes, owner: Array) -> Combined:
    """Combine outcomes of episodes, whose demonstrators are `owner` (episode,), with ratings by actions alone."""
    shares, count = actions.posterior, len(actions.names)
    means, covariate = Means.of(outcomes, owner, count), Covariate.of_shares(shares)
    both, alone = skill_posterior(means, covariate), skill_posterior(means, None)
    skill, variance = both.moments()
    centre, spread = _centre_and_spread(skill, variance)
    factor = spread / covariate.scale  # of theta, by the logit of expertise
    level = centre - factor * covariate.shift
    reliability = float(np.clip(1 - variance.mean() / spread**2, 0.0, 1.0))
    by = replace(actions.by, outcomes=int(means.rated.sum()), reliability=reliability, explained="")
    known = outcomes.is_known
    advantage = skill[owner]
    advantage[known] = (outcomes.values[known] - means.shift) / means.scale
    weights = advantage_weights(advantage)
    slope, low, high = both.slope_interval(0.95)
    settings = EvidenceSettings(
        outcome=outcomes.name,
        better=outcomes.better,
        binary=outcomes.is_binary,
        slope=slope,
        slope_low=min(low, slope),
        slope_high=max(high, slope),
        explained=both.explained(),
        level=means.shift + means.scale * level,
        factor=means.scale * factor,
        shift=means.shift,
        scale=means.scale,
        within=means.within,
        temperature=weights.temperature,
        effective_share=weights.effective_share,
        by_actions=actions.by,
    )
    merge = count > rules.MANY_DEMONSTRATORS
    grids = (each.on_grid(level, factor, shares.shape[1], merge=merge) for each in (both, alone))
    by_both, by_outcomes = (actions.with_shares(grid, by) for grid in grids)
    evidence = SkillEvidence(settings, actions, by_outcomes, by_both, means.rated, means.outcomes, means.variance)
    return Combined(evidence, weights.weights)


@default_errors()
def place_newcomers(fit: SkillEvidence, actions: Ratings, outcomes: EpisodeOutcomes | None, owner: Array) -> Ratings:
    """Ratings of newcomers by both, on the scale of a fit with outcomes.

    `actions` rates them by actions alone, and `outcomes` are those of their own episodes, if any is known, whose
    demonstrators are `owner` (episode,). `Ratings.evidence` has what each says alone.
    """
    shares, count, settings = actions.posterior, len(actions.names), fit.settings
    if outcomes is None:
        outcomes = EpisodeOutcomes(np.full(len(owner), np.nan), settings.better)
    known, known_actions = fit.means, Covariate.of_shares(fit.actions.posterior)
    means = Means.of(outcomes, owner, count, like=known)
    covariate = Covariate.of_shares(shares, like=known_actions)
    level, factor = (settings.level - settings.shift) / settings.scale, settings.factor / settings.scale
    by = replace(actions.by, outcomes=int(known.rated.sum() + means.rated.sum()), reliability=None, explained="")
    reference = float(fit.both.best.expertise.mean())

    def placed(posteriors: Iterator[SkillPosterior]) -> Ratings:
        merge = count > rules.MANY_DEMONSTRATORS
        grids = [one.on_grid(level, factor, shares.shape[1], merge=merge) for one in posteriors]
        return replace(actions.with_shares(np.concatenate(grids), by), reference=reference)

    both = placed(newcomer_posteriors(known, known_actions, means, covariate))
    alone = placed(newcomer_posteriors(known, None, means, None))
    evidence = SkillEvidence(settings, actions, alone, both, means.rated, means.outcomes, means.variance, fit)
    return replace(both, evidence=evidence)


# --- label by label


@final
@dataclass(frozen=True, eq=False)
class SegmentEvidence:
    """What actions and outcomes say about demonstrators at each label of a skill column, each alone and both."""

    actions: Ratings
    """Of all pairs of demonstrator and label, by actions alone."""
    labels: Mapping[str, SkillEvidence]
    """The evidence of each label at which both were combined."""
    rated: Array
    """(pair,) the number of outcomes."""

    @property
    def combined(self) -> Array:
        """(pair,) whether actions and outcomes are combined at its label; otherwise actions alone decide."""
        return np.array([label in self.labels for label in self.actions.parts[self.by]])

    def columns(self) -> dict[str, Array]:
        """What a table of the ratings adds: the number of outcomes, and whether they were combined with actions."""
        return {"rated": self.rated, "combined": self.combined}

    @default_errors()
    def table(self, *, confidence_level: float = 0.95) -> pa.Table:
        """The rows of `SkillEvidence.table` for each label at which both were combined, labels in their order."""
        tables = []
        for label, each in self.labels.items():
            own = each.table(confidence_level=confidence_level)
            tables.append(own.add_column(1, self.by, pa.array([label] * own.num_rows)))
        return pa.concat_tables(tables) if tables else pa.table({"demonstrator": [], self.by: []})

    @default_errors()
    def weights(self) -> pa.Table:
        """How much actions say about outcomes at each label at which both were combined, as `SkillEvidence.weight`."""
        rows = [{self.by: label, **each.weight._asdict()} for label, each in self.labels.items()]
        return pa.Table.from_pylist(rows) if rows else pa.table({self.by: []})

    @property
    def by(self) -> str:
        """The skill column."""
        _, by = self.actions.parts
        return by


class Segments(NamedTuple):
    """Outcomes of the steps of episodes that share a label."""

    outcomes: EpisodeOutcomes
    """Of each segment."""
    owner: Array
    """(segment,) the pair of demonstrator and label that each belongs to, as `Ratings` by this column number them."""

    @classmethod
    def of(cls, data: Demonstrations, by: str, outcome: Outcome, better: str | None) -> Segments:
        """The outcomes that the arguments `outcome` and `better` of `assess` state, by a skill column."""
        if by == "episode":
            raise SettingsError(
                'outcome was passed with by="episode": leave it out, or rate by a skill column',
                code="outcome-by-episode",
            )
        data.store.check_in_memory("outcomes of segments need the steps in memory, not a folder: select episodes first")
        units = Units.of(data, by)
        assert units is not None
        outcomes = EpisodeOutcomes.of(outcome, better, data, by=by, allow_constant=True)
        return cls(outcomes, units.of_step[Spans.of(data, by).first_step])

    @default_errors()
    def combine(self, actions: Ratings) -> Ratings:
        """Ratings by actions and outcomes, label by label."""
        owners, labels = (np.array(column) for column in actions.parts.values())
        shares, found = actions.posterior.copy(), {}
        rated = np.bincount(self.owner[self.outcomes.is_known], minlength=len(labels))
        for label in np.unique(labels).tolist():
            units = np.flatnonzero(labels == label)
            chosen = np.isin(self.owner, units)
            own = replace(self.outcomes, values=self.outcomes.values[chosen])
            if (rated[units] > 0).sum() < LEAST_RATED or own.is_constant:
                continue
            alone = actions.select(units, tuple(owners[units].tolist()))
            found[label] = combine_evidence(alone, own, np.searchsorted(units, self.owner[chosen])).evidence
            shares[units] = found[label].both.posterior
        combined = actions
        if found:
            outcomes = sum(int(each.rated.sum()) for each in found.values())
            combined = actions.with_shares(
                shares, replace(actions.by, outcomes=outcomes, reliability=None, explained="")
            )
        return replace(combined, segments=SegmentEvidence(actions, found, rated))
