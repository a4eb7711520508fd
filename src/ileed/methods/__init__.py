"""Methods and their results: `Ileed` has the settings, `Ileed.fit(data, seed=0)` returns a `Fitted`.

A fit has a policy, which acts, and the expertise of its demonstrators. The package knows how to fit, rate, save and
load; it knows nothing about curation, tasks, reports or the command.
"""

from ileed.methods.expertise import Expertise, ExpertiseSummary
from ileed.methods.fitted import Ensemble, Fitted, Restarts, rate
from ileed.methods.ileed import Ileed, bc, bc_rnn, compare, load
from ileed.methods.policy import Policy

__all__ = [
    "Ensemble",
    "Expertise",
    "ExpertiseSummary",
    "Fitted",
    "Ileed",
    "Policy",
    "Restarts",
    "bc",
    "bc_rnn",
    "compare",
    "load",
    "rate",
]
