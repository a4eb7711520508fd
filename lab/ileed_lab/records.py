"""Records: the files of results, one for each cell of an experiment, and the names that they keep.

A record outlives the code that wrote it, so the names in its header and its trials never change, also where the code
has found a better word since. This module alone knows both: elsewhere only today's names are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ileed import RunError, runs

__all__ = ["Measured", "read_cell", "recorded_plan", "recorded_settings", "recorded_trial"]

Measured = dict[str, Any]
"""What one trial of one cell measured, as JSON holds it."""

_TRIAL = {
    "ensemble": "committee",
    "ensemble_reward": "committee_reward",
    "ensemble_stages": "committee_parts",
    "stages": "parts",
    "action_error": "error_of_aim",
}
"""Fields of a trial: today's name, and that of the records."""
_PLAN = {"ensemble": "committee", "folds": "parts"}
"""Entries of an experiment's plan."""
_SETTINGS = {
    "ensemble": "committee",
    "standard_deviation_floor": "deviation_floor",
    "shared_standard_deviations": "shared_deviations",
    "fixed_standard_deviation": "steady_deviation",
}
"""Settings of a method and of its parts."""
_VALUES = {"scaled": {"standard_deviation": "deviation"}}
"""Values of settings."""
_NOT_RECORDED = {"Curator": ("seed",), "Gail": ("task",), "Ileed": ("folds", "member_block", "temperature")}
"""Settings that are not in the header: the cell's own setting names the task, the plan the seed of a
curation, and trials are fitted without folds."""
_ADDED: Mapping[str, Mapping[str, Any]] = {
    "Difficulty": {"easiness": True},
    "Ileed": {"decay": False},
    "SignalScaling": {"importance": None},
}
"""Settings that are younger than the first records of their kind, with the value of those records: it is left out."""

_DISCRETE = {"restarts": 20, "steps": 2000, "learning_rate": 1e-3, "decay": False}
"""What None stands for where actions are discrete or a policy is recurrent: records state it."""


def recorded_settings(learner: Any, *, continuous: bool = False) -> Any:
    """The settings of a learner as the header of a record holds them."""
    return _with_recorded_names(json.loads(json.dumps(runs.plain(learner))), continuous)


def _with_recorded_names(settings: Any, continuous: bool) -> Any:
    if isinstance(settings, list):
        return [_with_recorded_names(item, continuous) for item in settings]
    if not isinstance(settings, dict):
        return settings
    kind = str(settings.get("kind"))
    if kind == "Ileed" and not (continuous and (settings["policy"] or {}).get("kind") != "MixtureLSTM"):
        settings = settings | {name: value for name, value in _DISCRETE.items() if settings[name] is None}
    added = _ADDED.get(kind, {})
    left_out = {*_NOT_RECORDED.get(kind, ()), *(name for name in added if settings.get(name) == added[name])}
    return {
        _SETTINGS.get(name, name): _with_recorded_names(_recorded_value(name, value), continuous)
        for name, value in settings.items()
        if name not in left_out
    }


def _recorded_value(name: str, value: Any) -> Any:
    return _VALUES[name].get(value, value) if name in _VALUES else value


def recorded_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of an experiment as the header of a record holds it."""
    return {_PLAN.get(name, name): json.loads(json.dumps(value)) for name, value in plan.items()}


def recorded_trial(trial: Measured) -> Measured:
    """A trial as its record holds it: numbers to six places, which is finer than any interval here."""
    return {_TRIAL.get(name, name): _round(value) for name, value in trial.items()}


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {name: _round(item) for name, item in value.items()}
    return [_round(item) for item in value] if isinstance(value, list | tuple) else value


def read_cell(path: Path) -> dict[str, Any]:
    """The content of a cell's file: the header as it was written, and the trials under today's names."""
    try:
        content = json.loads(path.read_text())
        trials = [_with_present_names(trial) for trial in content["trials"]]
        return dict(content) | {"trials": trials, "made": list(content["made"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is not a cell of results ({error}): restore or remove it") from error


_PRESENT = {recorded: present for present, recorded in _TRIAL.items()}


def _with_present_names(trial: Mapping[str, Any]) -> Measured:
    return {_PRESENT.get(name, name): value for name, value in trial.items()}
