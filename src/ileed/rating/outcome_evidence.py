"""What outcomes and actions say about the skill of demonstrators, each alone and both together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ileed._numpy import default_errors
from ileed._torch import product
from ileed.data import Array, Demonstrations, rules
from ileed.errors import SettingsError, counted, number
from ileed.rating.outcome_model import (
    Covariate,
    Means,
    SkillPosterior,
    advantage_weights,
    centre_and_spread,
    newcomer_posteriors,
    skill_posterior,
)
from ileed.rating.outcomes import EpisodeOutcomes, Outcome, Spans
from ileed.rating.posterior import Estimates, mean_and_interval, points_of, tails
from ileed.rating.ratings import RatedBy, Ratings, checked_level
from ileed.rating.step_likelihood import Units

LEAST_RATED = 3
"""Demonstrators with outcomes in a label, below which actions alone decide there."""
DISAGREEMENT = 0.95
"""Probability of deviations of opposite sign from the mean above which actions and outcomes are said to disagree."""
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
    """Of expertise e, the expected outcome is level + factor * logit(e)."""
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
            value = getattr(self, name)
            number(name, value, least=0, most=1 + 1e-9, rule="it is a share from 0 to 1")
        number("temperature", self.temperature, above=0, rule="it is a number above zero")
        if self.factor == 0 or not self.slope_low <= self.slope <= self.slope_high:
            raise SettingsError("factor must not be 0, and slope must lie between slope_low and slope_high")
        if self.scale == 0 or (self.scale < 0) != (self.better == "lower") or not self.within > 0:
            raise SettingsError("scale must be above 0, or below 0 where lower is better, and within above 0")


@final
@dataclass(frozen=True, eq=False)
class SkillEvidence:
    """Ratings by actions alone, by outcomes alone, and by both, on one scale of expertise.

    The model is that of `ileed.rating.outcome_model`: the weight of actions against outcomes is learned. The scale is
    that of the ratings by actions: the mean and the standard deviation of logit expertise over demonstrators are equal.
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
    """Of newcomers, the evidence of the fit by which they were placed."""

    @property
    def weight(self) -> ActionWeight:
        """How much actions say about outcomes: b with its 95% interval, and the share of variance they explain."""
        own = self.settings
        return ActionWeight(own.slope, own.slope_low, own.slope_high, own.explained)

    @property
    def disagreement(self) -> Array:
        """(demonstrator,) probability that deviations from the mean have opposite signs; NaN without outcomes.

        The mean is that over demonstrators with outcomes, of newcomers over those of the fit. Actions count as
        undecided where their ratings support no order of demonstrators (`Ratings.not_identified`).
        """
        fit, known = self.fit or self, self.rated > 0
        by_outcomes = _probability_above_mean(self.outcomes, fit.outcomes, fit.rated > 0)
        by_actions = _probability_above_mean(self.actions, fit.actions, fit.rated > 0)
        if self.actions.not_identified or fit.actions.not_identified:
            by_actions = np.full_like(by_actions, 0.5)
        found = by_actions * (1 - by_outcomes) + by_outcomes * (1 - by_actions)
        return np.where(known, found, np.nan)

    @property
    def disagrees(self) -> Array:
        """(demonstrator,) whether actions and outcomes disagree about a demonstrator."""
        return np.asarray(np.nan_to_num(self.disagreement) > DISAGREEMENT)

    def expected_outcome(self, ratings: Ratings, level: float) -> tuple[Array, Array, Array]:
        """(demonstrator,) the expected outcome in the user's units by some of these ratings, and its interval."""
        shares = _shares(ratings)
        points = points_of(shares.shape[1])
        outcome = self.settings.level + self.settings.factor * (np.log(points) - np.log1p(-points))
        outcome = np.clip(outcome, 0.0, 1.0) if self.settings.binary else outcome
        below = np.cumsum(shares, axis=1) - shares / 2
        ends = np.array([np.interp(tails(level), row, outcome) for row in below]).reshape(-1, 2)
        return product(shares, outcome), ends.min(1), ends.max(1)

    @default_errors()
    def table(self, *, confidence_level: float = 0.95) -> pa.Table:
        """One row for each demonstrator, best first: what actions, outcomes and both say, with intervals.

        `rated` is the number of episodes with an outcome and `outcome` their mean. `actions`, `outcomes` and `both` are
        expertise, as in `Ratings.table(relative=False)`; `outcomes` is null without any. `expected` is the outcome to
        expect of an episode, by both and in the units of the outcomes. `disagrees` says whether actions and outcomes
        put the demonstrator on opposite sides of the mean, with the probability `disagreement`.
        """
        level, known = checked_level(confidence_level), self.rated > 0
        columns: dict[str, Any] = {
            "demonstrator": [name.encode(errors="replace").decode() for name in self.both.names],
            "episodes": self.both.episodes,
            "rated": self.rated,
            "outcome": pa.array(np.nan_to_num(self.mean_outcome), mask=~known),
        }
        for kind in ("actions", "outcomes", "both"):
            mask = ~known if kind == "outcomes" else None
            found = mean_and_interval(_shares(getattr(self, kind)), level)
            for end, values in zip(("", "_low", "_high"), found, strict=True):
                columns[f"{kind}{end}"] = pa.array(values, mask=mask)
        expected = zip(("", "_low", "_high"), self.expected_outcome(self.both, level), strict=True)
        columns |= {f"expected{end}": values for end, values in expected}
        columns["disagreement"] = pa.array(np.nan_to_num(self.disagreement), mask=~known)
        columns["disagrees"] = pa.array(self.disagrees, mask=~known)
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
        """What actions and outcomes say alone, how much of skill actions explain, and where both disagree."""
        if not self.rated.any():
            return f"by actions alone, {self.actions.sentence()}; there are no outcomes"
        rated_at = np.flatnonzero(self.rated > 0)
        weight, rated = self.weight, counted(int(self.rated.sum()), "episode")
        known = _some(self.outcomes, rated_at, tuple(self.outcomes.names[person] for person in rated_at))
        each = f"by actions alone, {self.actions.sentence()}; by the outcomes of {rated} alone, "
        how = " in the opposite direction" if weight.high < 0 else ""
        said = f"Actions explain {100 * weight.explained:.0f}% of the variance of skill{how}"
        if not self.disagrees.any():
            return f"{each}{known.sentence()}. {said}, and no clear disagreement with outcomes remains"
        found = np.flatnonzero(self.disagrees)
        who = [self.both.names[person] for person in found[np.argsort(-self.disagreement[found], kind="stable")]]
        named = ", ".join(who[:_MOST_NAMED]) + (f" and {len(who) - _MOST_NAMED} more" if len(who) > _MOST_NAMED else "")
        return f"{each}{known.sentence()}. {said}, and disagree with outcomes about {named}"

    def renamed(self, names: Mapping[str, str]) -> SkillEvidence:
        """The same evidence with other names."""
        return replace(self, **{kind: getattr(self, kind).renamed(names) for kind in ("actions", "outcomes", "both")})

    def with_ratings(self, both: Ratings) -> SkillEvidence:
        """The same evidence, with what a fit adds to the ratings by both."""
        actions, outcomes = (replace(each, in_sample=both.in_sample) for each in (self.actions, self.outcomes))
        return replace(self, both=both, actions=actions, outcomes=outcomes)

    def tensors(self) -> dict[str, Tensor]:
        """What a run directory keeps, beside the settings and the ratings by both."""
        known = np.where(self.rated > 0, self.mean_outcome, 0.0)
        values = {"actions": _shares(self.actions), "outcomes": _shares(self.outcomes), "mean_outcome": known}
        values["variance"] = np.where(self.rated > 0, self.variance, 0.0)
        return {"rated": torch.tensor(self.rated)} | {name: torch.tensor(each) for name, each in values.items()}

    @staticmethod
    def empty_tensors(demonstrators: int, points: int) -> dict[str, Tensor]:
        """The shapes and types of what a run directory keeps, with shares at so many points."""
        shapes = {"actions": (demonstrators, points), "outcomes": (demonstrators, points)}
        floats = {name: torch.empty(shape, dtype=torch.float64) for name, shape in shapes.items()}
        floats |= {name: torch.empty(demonstrators, dtype=torch.float64) for name in ("mean_outcome", "variance")}
        return {"rated": torch.empty(demonstrators, dtype=torch.int64)} | floats

    @classmethod
    def of_tensors(cls, settings: EvidenceSettings, both: Ratings, own: Mapping[str, Tensor]) -> SkillEvidence:
        """Evidence as a run directory keeps it, beside the ratings by both."""
        rated = own["rated"].numpy()
        mean = np.where(rated > 0, own["mean_outcome"].numpy(), np.nan)
        variance = np.where(rated > 0, own["variance"].numpy(), np.inf)
        actions = with_shares(both, own["actions"].numpy(), settings.by_actions)
        outcomes = with_shares(both, own["outcomes"].numpy(), both.by)
        return cls(settings, actions, outcomes, both, rated, mean, variance)


class Combined(NamedTuple):
    """Skill by both sources, and the (episode,) advantage weights that follow from it."""

    evidence: SkillEvidence
    weights: Array


@default_errors()
def combine_evidence(actions: Ratings, outcomes: EpisodeOutcomes, owner: Array) -> Combined:
    """Outcomes of episodes, whose demonstrators are `owner` (episode,), combined with ratings by actions alone."""
    shares, count = _shares(actions), len(actions.names)
    means = Means.of(outcomes, owner, count)
    covariate = Covariate.of_shares(shares, points_of(shares.shape[1]))
    both, alone = skill_posterior(means, covariate), skill_posterior(means, None)
    skill, variance = both.moments()
    centre, spread = centre_and_spread(skill, variance)
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
    many = count > rules.MANY_PEOPLE
    grids = [_on_grid(each, level, factor, shares.shape[1], merge=many) for each in (both, alone)]
    placed = [with_shares(actions, grid, by) for grid in grids]
    evidence = SkillEvidence(settings, actions, placed[1], placed[0], means.rated, _outcome_of(means), means.variance)
    return Combined(evidence, weights.weights)


@default_errors()
def place_newcomers(fit: SkillEvidence, actions: Ratings, outcomes: EpisodeOutcomes | None, owner: Array) -> Ratings:
    """Ratings of newcomers by both, on the scale of a fit with outcomes.

    `actions` rates them by actions alone, and `outcomes` are those of their own episodes, if any is known, whose
    demonstrators are `owner` (episode,). `Ratings.evidence` has what each says alone.
    """
    shares, count, settings = _shares(actions), len(actions.names), fit.settings
    if outcomes is None:
        outcomes = EpisodeOutcomes(np.full(len(owner), np.nan), settings.better)
    known, known_shares = fit.means, _shares(fit.actions)
    known_actions = Covariate.of_shares(known_shares, points_of(known_shares.shape[1]))
    means = Means.of(outcomes, owner, count, like=known)
    covariate = Covariate.of_shares(shares, points_of(shares.shape[1]), like=known_actions)
    level, factor = (settings.level - settings.shift) / settings.scale, settings.factor / settings.scale
    by = replace(actions.by, outcomes=int(known.rated.sum() + means.rated.sum()), reliability=None, explained="")
    reference = float(fit.both.best.expertise.mean())

    def placed(posteriors: Iterator[SkillPosterior]) -> Ratings:
        each = [_on_grid(one, level, factor, shares.shape[1], merge=count > rules.MANY_PEOPLE) for one in posteriors]
        return replace(with_shares(actions, np.concatenate(each), by), reference=reference)

    both = placed(newcomer_posteriors(known, known_actions, means, covariate))
    alone = placed(newcomer_posteriors(known, None, means, None))
    evidence = SkillEvidence(settings, actions, alone, both, means.rated, _outcome_of(means), means.variance, fit)
    return replace(both, evidence=evidence)


def _outcome_of(means: Means) -> Array:
    """(demonstrator,) mean outcomes in the user's units; NaN without any."""
    return np.where(means.rated > 0, means.shift + means.scale * means.mean, np.nan)


def _on_grid(skill: SkillPosterior, level: float, factor: float, points: int, *, merge: bool) -> Array:
    """(demonstrator, point) shares at points of expertise e, where theta = level + factor * logit(e).

    `merge` takes one Gaussian distribution for each demonstrator, which is faster for very many.
    """
    skill = skill.merged() if merge else skill
    edges = 2 * np.log(np.tan(np.arange(1, points) * (np.pi / 2 / points)))
    below = np.pad(skill.below(level + factor * edges), ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
    shares = np.maximum(np.diff(below, axis=1), 0.0)
    return np.asarray(shares / shares.sum(1, keepdims=True))


def with_shares(ratings: Ratings, shares: Array, by: RatedBy) -> Ratings:
    """Ratings with other posterior distributions of expertise."""
    return replace(ratings, shares=shares, by=by, pooled=mean_and_interval(shares, by.confidence_level))


def _some(ratings: Ratings, chosen: Array, names: tuple[str, ...]) -> Ratings:
    """The ratings of some demonstrators or units by their numbers, under these names."""
    alone, pooled = (
        each and Estimates(*(values[chosen] for values in each)) for each in (ratings.alone, ratings.pooled)
    )
    assert alone is not None
    return replace(
        ratings,
        names=names,
        steps=ratings.steps[chosen],
        episodes=ratings.episodes[chosen],
        alone=alone,
        pooled=pooled,
        shares=_shares(ratings)[chosen],
        parts={},
    )


def _shares(ratings: Ratings) -> Array:
    assert ratings.shares is not None  # ratings of a fit are pooled
    return ratings.shares


def _probability_above_mean(ratings: Ratings, others: Ratings, among: Array) -> Array:
    """(demonstrator,) the probability that logit expertise is above its mean over some of other demonstrators."""
    mean = float(product(_shares(others)[among], _logit(others)).mean())
    shares, logit = _shares(ratings), _logit(ratings)
    return 1 - np.array([np.interp(mean, logit, row) for row in np.cumsum(shares, axis=1) - shares / 2])


def _logit(ratings: Ratings) -> Array:
    """(point,) the logit of expertise."""
    points = points_of(_shares(ratings).shape[1])
    return np.asarray(np.log(points) - np.log1p(-points))


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
        _, labels = self.actions.parts.values()
        return np.array([label in self.labels for label in labels])

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
        if by == "episode":
            raise SettingsError('outcome was passed with by="episode": leave it out, or rate by a skill column')
        data.store.check_in_memory("outcomes of segments need the steps in memory, not a folder: select episodes first")
        units = Units.of(data, by)
        assert units is not None
        spans = Spans.segments(data, by)
        outcomes = EpisodeOutcomes.read(outcome, better, data, spans=spans)
        return cls(outcomes, units.of_step[spans.first_step])

    @default_errors()
    def combine(self, actions: Ratings) -> Ratings:
        """Ratings by actions and outcomes, label by label."""
        people, labels = (np.array(column) for column in actions.parts.values())
        shares, found = _shares(actions).copy(), {}
        rated = np.bincount(self.owner[self.outcomes.is_known], minlength=len(labels))
        for label in dict.fromkeys(sorted(labels.tolist())):
            units = np.flatnonzero(labels == label)
            chosen = np.isin(self.owner, units)
            own = replace(self.outcomes, values=self.outcomes.values[chosen])
            if (rated[units] > 0).sum() < LEAST_RATED or own.is_constant:
                continue
            alone = _some(actions, units, tuple(people[units].tolist()))
            found[label] = combine_evidence(alone, own, np.searchsorted(units, self.owner[chosen])).evidence
            shares[units] = found[label].both.shares
        combined = actions
        if found:
            outcomes = sum(int(each.rated.sum()) for each in found.values())
            by = replace(actions.by, outcomes=outcomes, reliability=None, explained="")
            combined = with_shares(actions, shares, by)
        return replace(combined, segments=SegmentEvidence(actions, found, rated))
