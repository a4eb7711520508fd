"""Curation: keep, drop or weight episodes for any trainer, by scores of each episode and a rule.

`curate` scores every episode, and every segment within it, and applies a rule. `Curated` holds the result, compares
training on it with training on everything, and writes files for trainers; it never changes the data. The package knows
fits and ratings, but no trainer, task, report or command.
"""

from ileed.curation.curated import Correlation, Curated, curate
from ileed.curation.rules import Rule
from ileed.curation.validation import Comparison, Recommendation

__all__ = ["Comparison", "Correlation", "Curated", "Recommendation", "Rule", "curate"]
