"""Scores of data quality by other methods, as their users would run them; they know nothing of demonstrators' names.

Each is a frozen dataclass with one method, `scores(data, seed=)`: one number per episode, higher is better.
"""

from ileed_lab.quality.cloning import CloningLoss
from ileed_lab.quality.definitions import DEFINITIONS, Definition
from ileed_lab.quality.motion import EpisodeLength, JerkAndIdle, Random, SpectralArcLength
from ileed_lab.quality.mutual_information import MutualInformation
from ileed_lab.quality.score import AbstractQuality

__all__ = [
    "DEFINITIONS",
    "AbstractQuality",
    "CloningLoss",
    "Definition",
    "EpisodeLength",
    "JerkAndIdle",
    "MutualInformation",
    "Random",
    "SpectralArcLength",
]
