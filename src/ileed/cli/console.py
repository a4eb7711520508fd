"""Output of all commands: text, tables and JSON on standard output, and progress bars on standard error."""

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

from ileed.cli import is_silent
from ileed.errors import printable

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
    return escape(printable(text, most=_LONGEST_NAME))


def print_json(value: Mapping[str, Any]) -> None:
    """Print strict JSON; numbers that are not finite become null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    print(json.dumps(finite, indent=2))  # noqa: T201


@contextmanager
def fit_bar(words: str, *, quiet: bool = False) -> Iterator[ProgressCallback]:
    """The progress callback of a fit: a bar with the stage, the best cost so far, and the time left in the stage."""
    with bar(words, quiet=quiet) as advance:

        def progress(at: FitProgress) -> None:
            told = [
                *([] if at.stage == "fitting" else [at.stage]),
                *([] if at.unit == "steps" else [f"{at.unit}, {at.step:,} of {at.steps:,}"]),
                *([f"best {at.nats_per_action:.4f} nats"] if math.isfinite(at.nats_per_action) else []),
            ]
            advance(at.step, at.steps, f" {', '.join(told)}" if told else "")

        yield progress


@contextmanager
def bar(words: str, *, quiet: bool = False, late: bool = False) -> Iterator[Callable[..., None]]:
    """A progress callback that takes the number done, the total, and perhaps a note: a bar with the time left.

    It appears when work is reported or after a delay, so that errors before the work appear without a bar. A `late`
    bar appears after the delay alone, so that short work shows none.
    """
    start = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), TimeElapsedColumn())
    end = (TextColumn("{task.fields[left]}"), TimeRemainingColumn())
    bars = Progress(*start, *end, console=Console(stderr=True, quiet=quiet or is_silent()))
    task = bars.add_task(plain(words), total=None, done="", left="")  # how much is done is not known yet
    timer = threading.Timer(_BAR_DELAY, bars.start)
    timer.daemon = True
    timer.start()

    def advance(done: int, total: int, note: str = "") -> None:
        if not late:
            bars.start()
        now = bars.tasks[0]
        if done < now.completed:  # another stage: the time left is its own, the time elapsed goes on
            began = now.start_time
            bars.reset(task)
            now.start_time = began
        share = f"{100 * done / total if total else 0:>3.0f} %"
        bars.update(task, completed=done, total=total, done=f"{share}{note}", left="left")

    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        if bars.live.is_started:
            bars.stop()
