"""Output of all commands: text, tables and JSON on standard output, and progress bars on standard error."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ileed.errors import SettingsError
from ileed.wording import printable

if TYPE_CHECKING:
    from ileed.fitting import Progress as FitProgress
    from ileed.fitting import ProgressCallback

_LONGEST_NAME = 200
_BAR_DELAY = 2.0  # seconds


class Output(Console):
    """Standard output for text, without highlighting."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet, highlight=False)

    def say(self, text: str) -> None:
        """Print lines unwrapped; markup and terminal escapes in them have no effect."""
        for each in text.split("\n"):
            self.print(printable(each), markup=False, soft_wrap=True)

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error, which `run` turns into an exit code, instead of ending the process."""
        raise BrokenPipeError


def plain(text: str) -> str:
    """Text from the data for a cell of a table: shortened, without markup or terminal escapes."""
    short = text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"
    return escape(printable(short))


def print_json(value: Mapping[str, Any]) -> None:
    """Print strict JSON; numbers that are not finite become null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    print(json.dumps(finite, indent=2))  # noqa: T201


def at_least_one(**settings: int | None) -> None:
    """Refuse counts below one before anything is read or imported."""
    for name, value in settings.items():
        if value is not None and value < 1:
            raise SettingsError(f"{name} is {value}: it must be one or more")


@contextmanager
def fit_bar(words: str) -> Iterator[ProgressCallback]:
    """The progress callback of a fit: a bar with the best cost so far and the time left in the stage."""
    with _delayed_bar(words, TextColumn("best {task.fields[cost]} nats"), cost="...") as (bars, task):
        stage = None

        def progress(progress: FitProgress) -> None:
            nonlocal stage
            bars.start()
            if stage != progress.stage:
                stage = progress.stage
                description = plain(words if stage == "fitting" else f"{words}: {stage}")
                bars.reset(task, total=progress.steps, description=description)
            bars.update(task, completed=progress.step, cost=f"{progress.nats_per_action:.4f}")

        yield progress


@contextmanager
def bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """A progress callback that takes the number done and the total: a bar with the time left."""
    with _delayed_bar(words) as (bars, task):

        def progress(done: int, total: int) -> None:
            bars.start()
            bars.update(task, completed=done, total=total)

        yield progress


@contextmanager
def _delayed_bar(words: str, *columns: TextColumn, **fields: Any) -> Iterator[tuple[Progress, TaskID]]:
    """A bar that appears when it is started or after a delay, so that errors before the work appear without a bar."""
    start = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    end = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    bars = Progress(*start, *columns, *end, console=Console(stderr=True))
    timer = threading.Timer(_BAR_DELAY, bars.start)
    timer.daemon = True
    timer.start()
    try:
        yield bars, bars.add_task(plain(words), total=None, **fields)
    finally:
        timer.cancel()
        timer.join()
        if bars.live.is_started:
            bars.stop()
