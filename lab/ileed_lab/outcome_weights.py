"""The weights of episodes by which a fit with outcomes learned its policy, for other trainers."""

from __future__ import annotations

import numpy as np

from ileed import Demonstrations, Fitted, SettingsError
from ileed.data import Array
from ileed.rating.outcomes import Better, EpisodeOutcomes, Outcome, combine_evidence

__all__ = ["outcome_weights"]

_NEGLIGIBLE = 1e-6  # of the largest weight


def outcome_weights(fitted: Fitted, data: Demonstrations, outcome: Outcome, better: Better = "higher") -> Array:
    """(episode,) the advantage weights of a fit with these outcomes; 0 where one is negligible.

    A fit keeps what outcomes say about demonstrators, not the weights: they follow from that and the outcomes again.
    """
    if fitted.evidence is None:
        raise SettingsError("fitted has no evidence from outcomes: fit with outcome=")
    outcomes = EpisodeOutcomes.of(outcome, better, data)
    weights = combine_evidence(fitted.evidence.actions, outcomes, data.episode_demonstrator).weights
    return np.where(weights > _NEGLIGIBLE * weights.max(), weights, 0.0)
