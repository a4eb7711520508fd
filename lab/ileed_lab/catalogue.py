"""Every experiment by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ileed import SettingsError
from ileed.errors import did_you_mean
from ileed_lab.calibration.experiment import Coverage
from ileed_lab.chess.crossfitting import ChessCrossFitting
from ileed_lab.chess.experiment import ChessEngines, ChessExpertise, ChessPolicy
from ileed_lab.chess.gold import ChessGold
from ileed_lab.chess.rating import ChessRating
from ileed_lab.crowd.experiment import CrowdLabels, CrowdSimulated
from ileed_lab.curation.experiment import CurationMiniGrid
from ileed_lab.curation.others import CurationTrainers
from ileed_lab.curation.square import CurationSquare
from ileed_lab.grid import AbstractExperiment
from ileed_lab.minigrid.baseline_experiment import Baselines, Gaps
from ileed_lab.minigrid.experiment import MINIGRID
from ileed_lab.operators.pick_place_experiment import PickPlace
from ileed_lab.operators.recognisable_experiment import Recognisable
from ileed_lab.people.hanabi.experiment import Hanabi
from ileed_lab.people.overcooked.experiment import Overcooked
from ileed_lab.people.overcooked.policies import OvercookedPolicies
from ileed_lab.people.racing.experiment import Racing
from ileed_lab.people.racing.policies import RacingPolicies
from ileed_lab.square.experiment import Scaling, Square

_CHESS = (ChessExpertise(), ChessCrossFitting(), ChessGold(), ChessEngines(), ChessPolicy(), ChessRating())
_CURATION = (CurationMiniGrid(), CurationTrainers(), CurationSquare())
_PEOPLE = (Hanabi(), Overcooked(), OvercookedPolicies(), Racing(), RacingPolicies())
_OPERATORS = (PickPlace(), Recognisable())
_MINIGRID = (*MINIGRID, Baselines(), Gaps())
_CROWD = (CrowdLabels(), CrowdSimulated())
_EVERY = (*_MINIGRID, Square(), Scaling(), *_CHESS, Coverage(), *_CROWD, *_CURATION, *_PEOPLE, *_OPERATORS)
EXPERIMENTS: Mapping[str, AbstractExperiment] = {each.name: each for each in _EVERY}
"""Those that learn from a file are listed without one."""


def experiment(name: str, *, data: Path | None = None) -> AbstractExperiment:
    """The experiment of that name, on the file of demonstrations that it learns from where it needs one."""
    if name not in EXPERIMENTS:
        raise SettingsError(
            f"there is no experiment {name!r}{did_you_mean(name, EXPERIMENTS)}; "
            f"the experiments are {', '.join(EXPERIMENTS)}"
        )
    return EXPERIMENTS[name].with_data(data)
