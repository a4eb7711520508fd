"""Figures of the MiniGrid experiments, drawn from the cells in a directory of results.

Filled marks are ours, hollow ones are published, bars and bands are 95% intervals of a mean over trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ileed import runs
from ileed.errors import require
from ileed_lab.comparison import Records
from ileed_lab.drawing import as_svg
from ileed_lab.minigrid.charts.beyond import how_much, wrong_model
from ileed_lab.minigrid.charts.calibration import calibration
from ileed_lab.minigrid.charts.gail import gail
from ileed_lab.minigrid.charts.populations import populations
from ileed_lab.minigrid.charts.restarts import restarts

__all__ = ["figures"]

_CHARTS: Mapping[str, Callable[[ModuleType, Records], Any]] = {
    "populations": populations,
    "restarts": restarts,
    "calibration": calibration,
    "how-much": how_much,
    "wrong-noise": wrong_model,
    "gail": gail,
}
"""From Altair and the records to a chart, or None where the cells are missing."""


def figures(results: Path, out: Path) -> dict[str, Path]:
    """Write every figure whose cells are in `results`, and return the path of each, by name.

    The names are "populations", "restarts", "calibration", "how-much", "wrong-noise" and "gail"; a file is called
    reproduction-NAME.svg. The figure of trajectories needs a fit: `ileed_lab.minigrid.trajectories` makes it.
    """
    alt = require("altair", package="ileed-lab")
    records, written = Records(results), {}
    for name, draw in _CHARTS.items():
        chart = draw(alt, records)
        if chart is not None:
            written[name] = out / f"reproduction-{name}.svg"
            runs.write_file(written[name], as_svg(chart))
    return written
