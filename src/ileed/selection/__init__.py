"""Selection: candidate settings, fitted to folds of episodes and compared by their cost on the episodes left out.

Widths of the policy and demonstrator models are candidates alike, the simplest first. The package knows neither methods
nor fits: whoever compares fits each candidate. Horizons of a rater are not candidates here, since
their costs are of different actions: `ileed.rating.signal` chooses among them by reliability.
"""

from ileed.model.parts import CANDIDATES
from ileed.selection.candidates import Candidate
from ileed.selection.comparison import ModelComparison, to_try, tried_by_workers
from ileed.selection.folds import Folds

__all__ = ["CANDIDATES", "Candidate", "Folds", "ModelComparison", "to_try", "tried_by_workers"]
