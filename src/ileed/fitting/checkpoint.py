"""Checkpoints, from which an interrupted optimisation resumes to the same bits."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import final

from torch import Tensor

from ileed import runs
from ileed.errors import RunError


@final
class Checkpoint:
    """A file from which an interrupted optimisation resumes, written every few seconds and at the end.

    Whoever saves the fit removes the file. `fingerprint` identifies settings, data and seed, so that an optimisation
    never resumes from another's file.
    """

    def __init__(self, path: Path, *, fingerprint: str, seconds: float = 5.0) -> None:
        self.path, self.fingerprint, self.seconds = path, fingerprint, seconds
        self._written = time.monotonic()
        self._failed = False

    def due(self) -> bool:
        return time.monotonic() - self._written >= self.seconds

    def write(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the file. If that fails, for example on a full disk, warn once and keep the last one."""
        notes = {"step": str(step), "fingerprint": self.fingerprint}
        try:
            runs.write_tensors(self.path, {name: value.detach().cpu() for name, value in tensors.items()}, notes)
            self._failed = False
        except RunError as error:
            if not self._failed:
                reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
                found = f"a checkpoint in {self.path.parent} cannot be written ({reason}): free some space"
                warnings.warn(f"{found}; the fit continues and will try again", RuntimeWarning, stacklevel=2)
            self._failed = True
        self._written = time.monotonic()

    def read(self) -> tuple[int, dict[str, Tensor]] | None:
        """The step and the tensors of the file, or None if there is none."""
        if not os.path.exists(self.path):
            return None
        tensors, notes = runs.read_tensors(self.path)
        if notes.get("fingerprint") != self.fingerprint:
            raise RunError(
                f"{self.path} belongs to a fit with other settings, data or seed: "
                "remove it to start again, or call the fit with its own arguments",
                code="checkpoint-of-another-fit",
            )
        try:
            step = int(notes["step"])
        except (KeyError, ValueError) as error:
            raise self._damaged("it does not state its step") from error
        if step < 1:
            raise self._damaged(f"its step is {step}")
        return step, tensors

    def check(self, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], step: int, recorded: list[int]) -> None:
        """Refuse a step or tensors that the optimisation with this state cannot have written."""
        if step not in recorded:
            raise self._damaged(f"this fit writes none at step {step} of {recorded[-1]}")
        for name, expected in state.items():
            found = tensors.get(name)
            if found is None or (found.shape, found.dtype) != (expected.shape, expected.dtype):
                raise self._damaged(f"its tensor {name!r} is not that of this fit")

    def _damaged(self, reason: str) -> RunError:
        return RunError(f"{self.path} is damaged ({reason}): remove it to start again", code="checkpoint-damaged")

    def remove_partial(self) -> None:
        """Remove temporary files of killed processes; only the process that writes the file may call it."""
        runs.remove_partial(self.path)

    def remove(self) -> None:
        """Remove the file, unless it cannot be read or belongs to another fit."""
        with suppress(RunError):
            self.read()
            runs.remove_file(self.path)
