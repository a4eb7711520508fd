"""Cross-fitting in chess: expertise of bins of players, by policies that have not seen their games and no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from ileed import Demonstrations, Fitted
from ileed_lab.chess.experiment import LARGE, AbstractConsulted, ChessExpertise
from ileed_lab.grid import Setting
from ileed_lab.learners import Learner, Rated
from ileed_lab.records import Measured

__all__ = ["ChessCrossFitting"]


@final
@dataclass(frozen=True)
class ChessCrossFitting(AbstractConsulted):
    """Can bins of players be distinguished where the policy has not seen their games? Human players alone, on all
    games."""

    name: str = "chess/crossfitting"
    trials: int = 1

    def settings(self) -> Sequence[Setting]:
        return [{"bins": "rating"}, {"bins": "shuffled"}]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        return {"cross-fitted": Rated(LARGE)}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return ChessExpertise(self.data).demonstrations({**setting, "engine": 0}, trials)

    def measure(self, setting: Setting, method: str, trial: int, fit: Fitted) -> Measured:
        ratings = fit.expertise.ratings
        assert ratings is not None
        columns = ["demonstrator", "steps", "expertise", "low", "high", "in_sample"]
        rows = ratings.table(relative=False).select(columns).to_pylist()
        return {
            "bins": sorted(rows, key=lambda row: row["demonstrator"]),
            "sentence": ratings.sentence(),
            "temperature": ratings.by.temperature,
            "dispersion": ratings.by.dispersion,
        }
