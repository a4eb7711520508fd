"""What a fit found: its members, the policy and expertise that they make, ratings, saving and exporting."""

from ileed.fitted.ensemble import Ensemble, Fitted, Restarts, Spread
from ileed.fitted.expertise import Expertise, ExpertiseSummary
from ileed.fitted.policy import Policy

__all__ = ["Ensemble", "Expertise", "ExpertiseSummary", "Fitted", "Policy", "Restarts", "Spread"]
