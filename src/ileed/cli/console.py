"""What all commands print with: lines, tables and JSON on standard output, and bars on standard error."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ileed.errors import SettingsError
from ileed.wording import printable

if TYPE_CHECKING:
    from ileed.fitting import Progress as FitProgress
    from ileed.fitting import ProgressCallback

__all__ = ["Output", "at_least_one", "bar", "fit_bar", "plain", "print_json"]

_LONGEST_NAME = 200


class Output(Console):
    """Standard output, for a person: lines are neither wrapped nor coloured by what stands in them."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet, highlight=False)

    def say(self, text: str) -> None:
        """One line, or several; nothing in it is taken for markup or for a terminal's orders."""
        for each in text.split("\n"):
            self.print(printable(each), markup=False, soft_wrap=True)

    def on_broken_pipe(self) -> NoReturn:
        """Nobody reads any more: `run` knows what to do."""
        raise BrokenPipeError


def plain(text: str) -> str:
    """Text from the data for a cell of a table, with nothing in it taken for markup or for a terminal's orders."""
    short = text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"
    return escape(printable(short))


def print_json(value: Mapping[str, Any]) -> None:
    """For scripts, on standard output; what is not a finite number becomes null, since JSON has no word for it."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))  # noqa: T201


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def at_least_one(**settings: int | None) -> None:
    """Refuse counts below one, before anything is read or imported for them."""
    for name, value in settings.items():
        if value is not None and value < 1:
            raise SettingsError(f"{name} is {value}: it must be one or more")


@contextmanager
def fit_bar(words: str) -> Iterator[ProgressCallback]:
    """A bar on standard error with the best cost so far and the time left."""
    with _shown(TextColumn("best {task.fields[cost]} nats")) as shown:
        task = shown.add_task(plain(words), total=None, cost="...")
        stages: list[str] = []

        def progress(progress: FitProgress) -> None:
            shown.start()
            if stages[-1:] != [progress.stage]:  # each stage has a time of its own
                stages.append(progress.stage)
                told = words if progress.stage == "fitting" else f"{words}: {progress.stage}"
                shown.reset(task, total=progress.steps, description=plain(told))
            shown.update(task, completed=progress.step, cost=f"{progress.nats_per_action:.4f}")

        yield progress


@contextmanager
def bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error that counts up to a total."""
    with _shown() as shown:
        task = shown.add_task(plain(words), total=None)

        def advance(done: int, total: int) -> None:
            shown.start()
            shown.update(task, completed=done, total=total)

        yield advance


_PATIENCE = 2.0  # seconds: what is refused is refused sooner, and whoever waits longer wants to see something


@contextmanager
def _shown(*columns: Any) -> Iterator[Progress]:
    """A bar that appears with the first progress or after a while, so that a refusal comes without one."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        *columns,
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    later = threading.Timer(_PATIENCE, progress.start)
    later.daemon = True
    later.start()
    try:
        yield progress
    finally:
        later.cancel()
        later.join()
        if progress.live.is_started:
            progress.stop()
