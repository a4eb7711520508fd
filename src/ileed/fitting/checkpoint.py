"""Checkpoints: from which an interrupted climb goes on, to the same bits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import final

from torch import Tensor

from ileed import runs
from ileed.errors import RunError


@final
class Checkpoint:
    """A file that an interrupted climb goes on from, to the same bits; written every few seconds and at the end.

    It stays until what was fitted is saved: whoever saves it removes the file.
    `fingerprint` names the settings, data and seed, so that one climb never goes on from another's file.
    """

    def __init__(self, path: Path, *, fingerprint: str, seconds: float = 5.0) -> None:
        self.path, self.fingerprint, self.seconds = path, fingerprint, seconds
        self._written = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._written >= self.seconds

    def write(self, step: int, thread_count: int, tensors: Mapping[str, Tensor]) -> None:
        notes = {"step": str(step), "threads": str(thread_count), "fingerprint": self.fingerprint}
        runs.write_tensors(self.path, {name: value.detach().cpu() for name, value in tensors.items()}, notes)
        self._written = time.monotonic()

    def read(self) -> tuple[int, int, dict[str, Tensor]] | None:
        """The step reached, the threads in use and the tensors; nothing where no climb was interrupted."""
        if not self.path.exists():
            return None
        tensors, notes = runs.read_tensors(self.path)
        if notes.get("fingerprint") != self.fingerprint:
            raise RunError(
                f"{self.path} belongs to a fit with other settings, data or seed: "
                "remove it to start anew, or fit with what it was started with"
            )
        return int(notes["step"]), int(notes["threads"]), tensors

    def remove(self) -> None:
        """Remove the file, unless it cannot be read or holds another fit by now."""
        with suppress(RunError):
            self.read()
            runs.remove_file(self.path)
