"""Old names of settings: they work for one release with a warning, and files that hold them stay readable."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from ileed import Demonstrations, MixtureLSTM, MixtureMLP, VarianceScaling, runs
from ileed.deprecation import current_names, renamed_settings
from ileed.model.batch import Sizes
from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.grid import cells
from ileed_lab.records import read_cell

RESULTS = Path(__file__).parents[1] / "results"
RENAMED = {
    "deviation_floor": ("standard_deviation_floor", 0.1),
    "shared_deviations": ("shared_standard_deviations", True),
    "steady_deviation": ("fixed_standard_deviation", None),
}


@pytest.mark.parametrize("head", [MixtureMLP, MixtureLSTM])
@pytest.mark.parametrize("old", RENAMED)
def test_an_old_setting_works_with_a_warning_that_names_the_new_one(head, old):
    new, value = RENAMED[old]
    with pytest.warns(DeprecationWarning, match=f"{old} of {head.__name__} was renamed: use {new}"):
        made = head(**{old: value})
    assert made == head(**{new: value}) != head()
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(made, old) == value
    with pytest.warns(DeprecationWarning, match=new):
        assert replace(head(), **{old: value}) == made
    assert f" {old}=" not in repr(made)


@renamed_settings(width="units")
@dataclass(frozen=True)
class Layer:
    units: int = 4


def test_a_warning_points_at_the_line_that_used_the_old_name():
    with pytest.warns(DeprecationWarning, match="units") as when_made:
        Layer(width=3)
    with pytest.warns(DeprecationWarning, match="units") as when_read:
        assert Layer(3).width == 3
    assert when_made[0].filename == when_read[0].filename == __file__
    assert str(inspect.signature(Layer)) == "(units: 'int' = 4) -> None"


def test_an_old_value_of_a_setting_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="use scaled='standard_deviation'"):
        assert VarianceScaling(scaled="deviation") == VarianceScaling(scaled="standard_deviation")


def test_old_attributes_of_the_data_and_the_sizes_work_with_a_warning():
    data = Demonstrations(
        observations=np.eye(4), actions=np.array([[0.0], [1.0]] * 2), demonstrator=[0, 0, 1, 1], episode=[0, 0, 1, 1]
    )
    with pytest.warns(DeprecationWarning, match="binary_dimensions"):
        assert data.two_valued == data.binary_dimensions == (0,)
    with pytest.warns(DeprecationWarning, match="binary_dimensions"):
        sizes = Sizes(inputs=1, demonstrators=1, actions=1, discrete=False, two_valued=(0,))
    with pytest.warns(DeprecationWarning, match="binary_dimensions"):
        assert sizes.two_valued == (0,)


def test_settings_of_an_older_file_are_rebuilt_under_their_new_names_and_without_a_warning():
    written = {
        "kind": "MixtureMLP",
        "hidden": [3],
        "modes": 2,
        "deviation_floor": 0.5,
        "shared_deviations": True,
        "steady_deviation": None,
    }
    head = MixtureMLP(
        hidden=(3,),
        modes=2,
        standard_deviation_floor=0.5,
        shared_standard_deviations=True,
        fixed_standard_deviation=None,
    )
    assert runs.rebuilt(written, {"MixtureMLP": MixtureMLP}) == head
    assert current_names([{"kind": "VarianceScaling", "scaled": "deviation", "exempt": None}]) == [
        {"kind": "VarianceScaling", "scaled": "standard_deviation", "exempt": None}
    ]
    unchanged = {"kind": "Other", "deviation_floor": "deviation", "scaled": ["deviation"]}
    assert current_names(unchanged) == unchanged


def test_every_committed_record_of_robots_is_comparable_with_the_settings_of_today():
    """Records are never rewritten: each was made with the settings that its experiment has now, under older names."""
    found = 0
    for name in ("robot/square", "robot/scaling"):
        for cell in cells(EXPERIMENTS[name]):
            if cell.path(RESULTS).exists():
                written = read_cell(cell.path(RESULTS))["settings"]
                assert current_names(written) == current_names(cell.header()["settings"])
                found += '"deviation_floor"' in json.dumps(written)
    assert found > 50
