"""Selection: candidate settings, fitted to folds of episodes and compared by their cost on the episodes left out.

Widths of the policy and demonstrator models are both candidates, the simplest first. The package knows neither methods
nor fits: the caller fits each candidate. Horizons of a rater are not candidates here, because their costs are of
different actions: `ileed.rating.signal` chooses among them by reliability.
"""

from ileed.model.parts import CANDIDATES
from ileed.selection.comparison import (
    CONTINUOUS_LADDER,
    LADDER,
    MODEL_FOLDS,
    MODEL_RESTARTS,
    WIDTH_RESTARTS,
    Candidate,
    Folds,
    ModelComparison,
    Tried,
    applicable,
    demonstrator_models,
    to_try,
    tried_by_workers,
    wider_than,
    widths,
)

__all__ = [
    "CANDIDATES",
    "CONTINUOUS_LADDER",
    "LADDER",
    "MODEL_FOLDS",
    "MODEL_RESTARTS",
    "WIDTH_RESTARTS",
    "Candidate",
    "Folds",
    "ModelComparison",
    "Tried",
    "applicable",
    "demonstrator_models",
    "to_try",
    "tried_by_workers",
    "wider_than",
    "widths",
]
