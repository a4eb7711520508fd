"""Loggers: the progress and results of a fit in TensorBoard, Weights & Biases or trackio.

    with logger("tensorboard", "runs/mine") as log:
        fitted = ileed.Ileed().fit(data, seed=0, progress=log)
        log.result(fitted)

The curve of each stage of the fit is logged as `nats_per_action/STAGE`. The results are `nats_per_action` and, for each
demonstrator, `expertise/NAME` relative to the mean, with the interval from `expertise_low/NAME` to
`expertise_high/NAME` if the fit has intervals. Names are those of the data: if they must not leave the machine, fit to
`data.anonymise()`.
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

_MOST_DEMONSTRATORS = 1_000  # whose expertise is logged, best first
_PROJECT = "ileed"


class _Tracker(NamedTuple):
    """Functions of a logger: one logs metrics at a step, the other ends the run and is told whether it succeeded."""

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
    # with console="off", printed text is not uploaded, and progress bars work
    found = require("wandb", extra="wandb").init(
        project=to or _PROJECT, name=run.name, config=dict(settings), settings={"console": "off"}
    )
    found.define_metric("step", hidden=True)  # wandb's own steps cannot decrease, and each stage starts at zero
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
    "tensorboard": (_tensorboard, "tensorboardX", "choose a writable folder"),
    "wandb": (_wandb, "wandb", "run `wandb login`, or set WANDB_MODE=offline"),
    "trackio": (_trackio, "trackio", "choose another logger, or try trackio.init() by itself"),
}


def check_logger(name: str) -> None:
    """Refuse an unknown logger, and one whose package is not installed."""
    if name not in _TRACKERS:
        raise SettingsError(
            f"there is no logger {brief(name)}{did_you_mean(str(name), _TRACKERS)}: "
            f"choose one of {', '.join(_TRACKERS)}"
        )
    require(_TRACKERS[name][1], extra=name)


@final
class Log:
    """A progress callback that logs; `logger` creates it."""

    def __init__(self, tracker: _Tracker, then: Callable[[Progress], object] | None) -> None:
        self._tracker, self._then, self._last = tracker, then, 0

    def __call__(self, progress: Progress) -> None:
        """Log the progress, and pass it on to the next callback."""
        if math.isfinite(progress.nats_per_action):  # a stage without a cost has other steps
            (stage,) = _tags([progress.stage])
            self._log({f"nats_per_action/{stage}": progress.nats_per_action}, progress.step)
            self._last = progress.step
        if self._then is not None:
            self._then(progress)

    def result(self, fitted: Fitted) -> None:
        """Log the cost of a fit and the expertise of each demonstrator."""
        self._log({"nats_per_action": fitted.nats_per_action, **_expertise(fitted)}, self._last)

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        with redirect_stdout(sys.stderr):  # trackio prints messages that do not belong in the output of a command
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
    """Log a fit to "tensorboard", "wandb" or "trackio".

    Pass the yielded object to `fit` as `progress`, and call its `result` with the fit.

    Args:
        name: The logger.
        run: The run directory; its last component names the run in the logger.
        to: The folder for TensorBoard's files (RUN.tensorboard by default), or the project ("ileed" by default).
        settings: Settings to log, as JSON values.
        then: Another progress callback, called after each report.
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
    except Exception as error:  # each package raises its own exceptions
        raise RunError(f"{name} cannot be used ({brief(error)}): {advice}") from error
    succeeded = False
    try:
        yield Log(tracker, then)
        succeeded = True
    finally:
        with redirect_stdout(sys.stderr):
            tracker.close(succeeded)


def _expertise(fitted: Fitted) -> dict[str, float]:
    """The expertise of each demonstrator relative to the mean, with intervals if the fit has them."""
    if fitted.expertise.ratings is not None:
        rows = fitted.expertise.table().slice(0, _MOST_DEMONSTRATORS).to_pylist()
        tagged = zip(_tags([row["demonstrator"] for row in rows]), rows, strict=True)
        columns = {"expertise": "expertise", "low": "expertise_low", "high": "expertise_high"}
        return {f"{shown}/{tag}": row[column] for tag, row in tagged for column, shown in columns.items()}
    if not fitted.estimates_expertise:
        return {}
    ranking = [(name, value) for name, value in fitted.expertise.ranking() if math.isfinite(value)]
    mean = sum(value for _, value in ranking) / max(1, len(ranking))
    tags = _tags([name for name, _ in ranking[:_MOST_DEMONSTRATORS]])
    return {f"expertise/{tag}": value / mean for tag, (_, value) in zip(tags, ranking, strict=False)}


def _tags(names: Sequence[str]) -> list[str]:
    """Distinct tags for names, of letters, digits, dots, dashes and underscores, which TensorBoard leaves unchanged.

    >>> _tags(["ann b", "ann/b", "zoë"])
    ['ann_b', 'ann_b_2', 'zoë']
    """
    found: dict[str, None] = {}
    for name in names:
        tag = base = re.sub(r"[^\w.-]", "_", printable(name, most=100)) or "_"
        number = 1
        while tag in found:
            tag = f"{base}_{(number := number + 1)}"
        found[tag] = None
    return list(found)
