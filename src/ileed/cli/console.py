"""What all commands print with: bars on standard error, and text from the data that is not taken for markup."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ileed.fitting import Progress as ClimbProgress
from ileed.fitting import Watcher

__all__ = ["bar", "climbing", "plain", "print_json"]


def plain(text: str) -> str:
    """Text from the data, with nothing in it taken for markup."""
    return text.replace("[", "\\[")


def print_json(value: Mapping[str, Any]) -> None:
    """For scripts, on standard output."""
    print(json.dumps(value, indent=2))  # noqa: T201


@contextmanager
def climbing(words: str) -> Iterator[Watcher]:
    """A bar on standard error with the best cost so far and the time left."""
    with _progress(TextColumn("best {task.fields[cost]} nats")) as shown:
        task = shown.add_task(words, total=None, cost="...")

        def watch(progress: ClimbProgress) -> None:
            shown.update(
                task,
                description=words if progress.stage == "fitting" else f"{words}: {progress.stage}",
                completed=progress.step,
                total=progress.steps,
                cost=f"{progress.nats_per_action:.4f}",
            )

        yield watch


@contextmanager
def bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error that counts up to a total."""
    with _progress() as shown:
        task = shown.add_task(words, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _progress(*columns: Any) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        *columns,
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
