"""Draw the figures of the result pages: python -m ileed_lab.figures [--data consulted.parquet] [--trajectories].

Two figures need a fit: the chess positions where strong and weak players differ most, learned from the table `--data`,
and the trajectories of a learned policy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from ileed import runs
from ileed_lab.calibration.figures import coverage_figure
from ileed_lab.chess.figures import calibration, draw_boards, greatest_differences
from ileed_lab.curation.figures import differences_figure, rewards_figure, square_figure
from ileed_lab.minigrid.figures import figures
from ileed_lab.minigrid.trajectories import figure, learned_policy
from ileed_lab.operators.figures import scores_figure
from ileed_lab.people.racing.figures import drivers_figure
from ileed_lab.square.figures import skills, success

__all__: list[str] = []

_DRAW: Mapping[str, Callable[[Path], bytes]] = {
    "robot-success": success,
    "robot-skills": skills,
    "chess-calibration": calibration,
    "calibration-coverage": coverage_figure,
    "curation-differences": differences_figure,
    "curation-rewards": rewards_figure,
    "curation-square": square_figure,
    "real-operators": drivers_figure,
    "operators": scores_figure,
}


def main() -> None:
    """Write every figure to a folder of images."""
    parser = argparse.ArgumentParser(prog="python -m ileed_lab.figures", description=main.__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="the directory of results")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="the folder of images")
    parser.add_argument("--data", type=Path, help="a table of positions with an engine's moves, for the chess boards")
    parser.add_argument("--trajectories", action="store_true", help="also fit and draw the policy of many skills")
    given = parser.parse_args()
    figures(given.results, given.out)
    for name, draw in _DRAW.items():
        runs.write_file(given.out / f"{name}.svg", draw(given.results))
    if given.data is not None:
        runs.write_file(given.out / "chess-boards.svg", draw_boards(greatest_differences(given.data)))
    if given.trajectories:
        runs.write_file(given.out / "reproduction-trajectories.svg", figure(learned_policy()))


if __name__ == "__main__":
    main()
