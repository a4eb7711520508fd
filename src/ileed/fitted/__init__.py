"""What a fit found: members, policy, expertise, ratings, and how they are saved and exported."""

from ileed.fitted.ensemble import Fitted, Restarts
from ileed.fitted.expertise import Expertise, ExpertiseSummary
from ileed.fitted.policy import Policy

__all__ = ["Expertise", "ExpertiseSummary", "Fitted", "Policy", "Restarts"]
