"""Loggers: the progress and the results of a fit in TensorBoard, Weights & Biases or trackio, by name.

    with logger("tensorboard", "runs/mine") as log:
        fitted = ileed.Ileed().fit(data, seed=0, progress=log)
        log.result(fitted)

The curve of each stage of the fit is `nats_per_action/STAGE`. The results are `nats_per_action` and, for each
demonstrator, `expertise/NAME` relative to the mean, and where the fit has intervals `expertise_low/NAME` and
`expertise_high/NAME`. Names are those of the data: fit to `data.anonymise()` where they must not leave the machine.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, final

from ileed.errors import (
    IleedError,
    RunError,
    SettingsError,
    brief,
    callable_or_none,
    did_you_mean,
    path_of,
    printable,
    require,
)
from ileed.fitting import Progress
from ileed.methods import Fitted

__all__ = ["Log", "check_logger", "logger"]

_MOST_PEOPLE = 1_000  # whose expertise is logged, best first
_LONGEST_NAME = 100
_PROJECT = "ileed"


class _Tracker(NamedTuple):
    """What logs metrics at a step, and is closed with whether all went well."""

    log: Callable[[Mapping[str, float], int], object]
    close: Callable[[bool], object]


def _tensorboard(run: Path, to: str | None, settings: Mapping[str, Any]) -> _Tracker:
    folder = to or str(run.with_name(f"{run.name}.tensorboard"))
    writer = require("tensorboardX", extra="tensorboard").SummaryWriter(folder, flush_secs=5)
    writer.add_text("settings", f"```json\n{json.dumps(settings, indent=2)}\n```", 0)

    def log(metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return _Tracker(log, lambda succeeded: writer.close())


def _wandb(run: Path, to: str | None, settings: Mapping[str, Any]) -> _Tracker:
    # With console="off" what is printed is not uploaded too, and progress bars work.
    found = require("wandb", extra="wandb").init(
        project=to or _PROJECT, name=run.name, config=dict(settings), settings={"console": "off"}
    )
    found.define_metric("step", hidden=True)  # wandb's own steps never decrease, and each stage begins at zero
    found.define_metric("*", step_metric="step")
    return _Tracker(
        lambda metrics, step: found.log({**metrics, "step": step}),
        lambda succeeded: found.finish(exit_code=0 if succeeded else 1),
    )


def _trackio(run: Path, to: str | None, settings: Mapping[str, Any]) -> _Tracker:
    trackio = require("trackio", extra="trackio")
    found = trackio.init(project=to or _PROJECT, name=run.name, config=dict(settings))
    return _Tracker(lambda metrics, step: found.log(dict(metrics), step=step), lambda succeeded: trackio.finish())


_TRACKERS = {
    "tensorboard": (_tensorboard, "tensorboardX", "choose a folder that can be written"),
    "wandb": (_wandb, "wandb", "run `wandb login`, or set WANDB_MODE=offline"),
    "trackio": (_trackio, "trackio", "choose another logger, or try trackio.init() by itself"),
}


def check_logger(name: str) -> None:
    """Refuse a name that is not a logger's, and a logger whose package is not installed."""
    if name not in _TRACKERS:
        raise SettingsError(
            f"there is no logger {brief(name)}{did_you_mean(str(name), _TRACKERS)}: "
            f"choose one of {', '.join(_TRACKERS)}"
        )
    require(_TRACKERS[name][1], extra=name)


@final
class Log:
    """The progress callback of a fit that logs; `logger` makes it."""

    def __init__(self, tracker: _Tracker, then: Callable[[Progress], object] | None) -> None:
        self._tracker, self._then, self._last = tracker, then, 0

    def __call__(self, progress: Progress) -> None:
        """Log where the fit is, and pass it on."""
        if math.isfinite(progress.nats_per_action):  # a stage without a cost counts other steps
            (stage,) = _tags([progress.stage])
            self._log({f"nats_per_action/{stage}": progress.nats_per_action}, progress.step)
            self._last = progress.step
        if self._then is not None:
            self._then(progress)

    def result(self, fitted: Fitted) -> None:
        """Log the cost of a fit and the expertise of each demonstrator."""
        self._log({"nats_per_action": fitted.nats_per_action, **_expertise(fitted)}, self._last)

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        with redirect_stdout(sys.stderr):  # what trackio prints does not belong in the output of a command
            self._tracker.log({name: value for name, value in metrics.items() if math.isfinite(value)}, step)


@contextmanager
def logger(
    name: str,
    run: str | Path,
    *,
    to: str | None = None,
    settings: Mapping[str, Any] | None = None,
    then: Callable[[Progress], object] | None = None,
) -> Iterator[Log]:
    """Log a fit to "tensorboard", "wandb" or "trackio": pass what this yields as `progress`, then call its `result`.

    `run` is the run directory, whose last part names the run there. `to` is the folder of TensorBoard's files, RUN with
    the ending .tensorboard by default, or the project, "ileed" by default. `settings` are logged as they are (JSON).
    `then` is another progress callback, which is called after each report.
    """
    check_logger(name)
    callable_or_none("then", then, rule="pass a function of a `Progress`, or None")
    place = path_of("run", run, rule="pass the path of a run directory; it need not exist yet").absolute()
    start, _, advice = _TRACKERS[name]
    try:
        with redirect_stdout(sys.stderr):
            tracker = start(place, to, settings or {})
    except IleedError:
        raise
    except Exception as error:  # each package has failures of its own
        raise RunError(f"{name} cannot be logged to ({brief(error)}): {advice}") from error
    succeeded = False
    try:
        yield Log(tracker, then)
        succeeded = True
    finally:
        with redirect_stdout(sys.stderr):
            tracker.close(succeeded)


def _expertise(fitted: Fitted) -> dict[str, float]:
    """The expertise of each demonstrator relative to the mean, with intervals where the fit has them."""
    if fitted.expertise.ratings is not None:
        rows = fitted.expertise.table().slice(0, _MOST_PEOPLE).to_pylist()
        tags = _tags([row["demonstrator"] for row in rows])
        columns = {"expertise": "expertise", "low": "expertise_low", "high": "expertise_high"}
        found = zip(tags, rows, strict=True)
        return {f"{shown}/{tag}": row[column] for tag, row in found for column, shown in columns.items()}
    if not fitted.estimates_expertise:
        return {}
    people = [(name, value) for name, value in fitted.expertise.ranking() if math.isfinite(value)]
    mean = sum(value for _, value in people) / max(1, len(people))
    tags = _tags([name for name, _ in people[:_MOST_PEOPLE]])
    return {f"expertise/{tag}": value / mean for tag, (_, value) in zip(tags, people, strict=False)}


def _tags(names: Sequence[str]) -> list[str]:
    """Names with letters, digits, dots and dashes alone, which is what TensorBoard keeps; distinct ones stay distinct.

    >>> _tags(["ann b", "ann/b", "zoë"])
    ['ann_b', 'ann_b_2', 'zoë']
    """
    found: dict[str, None] = {}
    for name in names:
        tag = base = re.sub(r"[^\w.-]", "_", printable(name, _LONGEST_NAME)) or "_"
        number = 1
        while tag in found:
            tag = f"{base}_{(number := number + 1)}"
        found[tag] = None
    return list(found)
