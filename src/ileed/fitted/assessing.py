"""Ratings of new data by a fit: by actions, and by outcomes where there are any.

Newcomers of a fit with outcomes are placed by the relation of actions and outcomes that the fit learned. Outcomes of
segments, such as the time of a lap in each part of a track, need no such fit: the relation is learned from the data at
hand, separately for each label, since outcomes of different labels have different scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa

from ileed._numpy import default_errors
from ileed._torch import default_modes
from ileed.checking import text
from ileed.demonstrations import Array, Demonstrations, check_demonstrations
from ileed.demonstrations.outcomes import EpisodeOutcomes, Outcome, Spans
from ileed.errors import SettingsError, brief
from ileed.fitted import rating
from ileed.fitted.ensemble import Fitted
from ileed.fitted.evidence import SkillEvidence, combine_evidence, place_newcomers, with_shares
from ileed.fitted.ratings import Estimates, Ratings

LEAST_RATED = 3
"""Demonstrators with outcomes in a label, below which actions alone decide there."""


@default_modes()
def assess(
    fit: Fitted,
    data: Demonstrations,
    *,
    by: str,
    confidence_level: float,
    progress: Callable[[int, int], object] | None,
    outcome: Outcome | None,
    better: str | None,
) -> Ratings:
    """Ratings as `Fitted.assess` describes them."""
    check_demonstrations(data)
    text("by", by)
    if outcome is None and better is not None:
        raise SettingsError(f"better is {brief(better)} and there is no outcome: pass outcome= too")
    own = segments = None
    if outcome is not None and by == "demonstrator":
        own = _of_newcomers(fit, data, outcome, better)
    elif outcome is not None:
        segments = _Segments.of(data, by, outcome, better)
    found = rating.assess(fit, data, by=by, confidence_level=confidence_level, progress=progress)
    if by == "demonstrator" and fit.evidence is not None:
        return place_newcomers(fit.evidence, found, own, data.episode_demonstrator)
    return found if segments is None else segments.combine(found)


def _of_newcomers(fit: Fitted, data: Demonstrations, outcome: Outcome, better: str | None) -> EpisodeOutcomes:
    """Outcomes of new data in the terms of the fit's."""
    if fit.evidence is None:
        raise SettingsError(
            "outcome was passed, and this fit learned from none, so that there is no relation of actions and outcomes "
            "to rate by: fit with outcome= (at the command: --outcome), or leave it out"
        )
    known = fit.evidence.settings
    if better is not None and better != known.better:
        raise SettingsError(f"better is {brief(better)}, and {known.better!r} in the fit: leave it out")
    found = EpisodeOutcomes.read(outcome, known.better, data)
    if known.binary and not found.is_binary:
        other = next(value for value in found.values[found.is_known].tolist() if value not in (0, 1))
        raise SettingsError(
            f"outcome has {other:g}, and those of the fit are successes and failures: pass true and false, or 1 and 0"
        )
    return found


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


class _Segments(NamedTuple):
    """Outcomes of the steps of episodes that share a label."""

    outcomes: EpisodeOutcomes
    """Of each segment."""
    owner: Array
    """(segment,) the pair of demonstrator and label that each belongs to, as `Ratings` by this column number them."""

    @classmethod
    def of(cls, data: Demonstrations, by: str, outcome: Outcome, better: str | None) -> _Segments:
        if by == "episode":
            raise SettingsError('outcome was passed with by="episode": leave it out, or rate by a skill column')
        if data.mapping is not None:
            raise SettingsError("outcomes of segments need the steps in memory, not a folder: select episodes first")
        units = rating.units_of(data, by)
        assert units is not None
        spans = Spans.segments(data, by)
        outcomes = EpisodeOutcomes.read(outcome, better, data, spans=spans)
        return cls(outcomes, units.of_step[spans.first_step])

    @default_errors()
    def combine(self, actions: Ratings) -> Ratings:
        """Ratings by actions and outcomes, label by label."""
        people, labels = (np.array(column) for column in actions.parts.values())
        assert actions.shares is not None
        shares, found = actions.shares.copy(), {}
        rated = np.bincount(self.owner[self.outcomes.is_known], minlength=len(labels))
        for label in dict.fromkeys(sorted(labels.tolist())):
            units = np.flatnonzero(labels == label)
            chosen = np.isin(self.owner, units)
            own = replace(self.outcomes, values=self.outcomes.values[chosen])
            if (rated[units] > 0).sum() < LEAST_RATED or own.is_constant:
                continue
            alone = _of_label(actions, units, tuple(people[units].tolist()))
            found[label] = combine_evidence(alone, own, np.searchsorted(units, self.owner[chosen])).evidence
            shares[units] = found[label].both.shares
        combined = actions
        if found:
            by = replace(
                actions.by,
                outcomes=sum(int(each.rated.sum()) for each in found.values()),
                reliability=None,
                explained="",
            )
            combined = with_shares(actions, shares, by)
        return replace(combined, segments=SegmentEvidence(actions, found, rated))


def _of_label(ratings: Ratings, units: Array, names: tuple[str, ...]) -> Ratings:
    """The ratings of demonstrators at one label."""
    assert ratings.shares is not None

    def chosen(estimates: Estimates | None) -> Any:
        return estimates and Estimates(*(values[units] for values in vars(estimates).values()))

    return replace(
        ratings,
        names=names,
        steps=ratings.steps[units],
        episodes=ratings.episodes[units],
        alone=chosen(ratings.alone),
        pooled=chosen(ratings.pooled),
        shares=ratings.shares[units],
        parts={},
    )
