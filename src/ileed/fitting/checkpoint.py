"""Checkpoints: from which an interrupted optimisation goes on, to the same bits."""

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
    """A file that an interrupted optimisation goes on from, to the same bits; written every few seconds and at the end.

    Whoever saves what was fitted removes the file. `fingerprint` names the settings, data and seed, so that one
    optimisation never goes on from another's file.
    """

    def __init__(self, path: Path, *, fingerprint: str, seconds: float = 5.0) -> None:
        self.path, self.fingerprint, self.seconds = path, fingerprint, seconds
        self._written = time.monotonic()
        self._failed = False

    def due(self) -> bool:
        return time.monotonic() - self._written >= self.seconds

    def write(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the file; on a full disk, say, warn once and keep the last one, since the fit itself can go on."""
        notes = {"step": str(step), "fingerprint": self.fingerprint}
        try:
            runs.write_tensors(self.path, {name: value.detach().cpu() for name, value in tensors.items()}, notes)
            self._failed = False
        except RunError as error:
            if not self._failed:
                reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
                found = f"a checkpoint in {self.path.parent} cannot be written ({reason}): free some space"
                warnings.warn(f"{found}; the fit goes on and will try again", RuntimeWarning, stacklevel=2)
            self._failed = True
        self._written = time.monotonic()

    def read(self) -> tuple[int, dict[str, Tensor]] | None:
        """The step reached and the tensors, or None where no optimisation was interrupted."""
        if not os.path.exists(self.path):
            return None
        tensors, notes = runs.read_tensors(self.path)
        if notes.get("fingerprint") != self.fingerprint:
            raise RunError(
                f"{self.path} belongs to a fit with other settings, data or seed: "
                "remove it to start anew, or fit with what it was started with"
            )
        try:
            step = int(notes["step"])
        except (KeyError, ValueError) as error:
            raise self._damaged("it does not say which step it was written at") from error
        if step < 1:
            raise self._damaged(f"it was written at step {step}, which cannot be")
        return step, tensors

    def check(self, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], step: int, recorded: list[int]) -> None:
        """Refuse tensors that cannot be those of the optimisation with this state, at one of its recorded steps."""
        if step not in recorded:
            raise self._damaged(f"this fit writes none at step {step} of {recorded[-1]}")
        for name, expected in state.items():
            found = tensors.get(name)
            if found is None or (found.shape, found.dtype) != (expected.shape, expected.dtype):
                raise self._damaged(f"its tensor {name!r} is not that of this fit")

    def _damaged(self, reason: str) -> RunError:
        return RunError(f"{self.path} is damaged ({reason}): remove it to start anew")

    def remove_partial(self) -> None:
        """Remove what killed processes left of attempts to write the file; for the one process that writes it."""
        runs.remove_partial(self.path)

    def remove(self) -> None:
        """Remove the file, unless it cannot be read or holds another fit by now."""
        with suppress(RunError):
            self.read()
            runs.remove_file(self.path)
