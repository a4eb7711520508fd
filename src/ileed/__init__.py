"""ileed: who is good at what, in which states, and one policy learned from everybody's demonstrations."""

from ileed.demonstrations import Demonstrations
from ileed.errors import DemonstrationError, IleedError, RunError, SettingsError
from ileed.evaluation import Scores, evaluate, rank_loss
from ileed.fitting import Outcome, Progress
from ileed.methods import Ileed, bc, load
from ileed.model.demonstrators import Boltzmann, OneVersusRest, UniformMixture, VarianceScaling
from ileed.model.dynamics import LatentDynamics
from ileed.model.expertise import Constant, Embedded, Perfect, Skills
from ileed.model.policies import CategoricalMLP, MixtureMLP
from ileed.policy import Expertise, Fitted, Policy
from ileed.readers import by_column, read, read_parquet, shipped, write_parquet
from ileed.report import report
from ileed.simulation import demonstrate

__all__ = [
    "Boltzmann",
    "CategoricalMLP",
    "Constant",
    "DemonstrationError",
    "Demonstrations",
    "Embedded",
    "Expertise",
    "Fitted",
    "Ileed",
    "IleedError",
    "LatentDynamics",
    "MixtureMLP",
    "OneVersusRest",
    "Outcome",
    "Perfect",
    "Policy",
    "Progress",
    "RunError",
    "Scores",
    "SettingsError",
    "Skills",
    "UniformMixture",
    "VarianceScaling",
    "bc",
    "by_column",
    "demonstrate",
    "evaluate",
    "load",
    "rank_loss",
    "read",
    "read_parquet",
    "report",
    "shipped",
    "write_parquet",
]
__version__ = "0.1.0"
