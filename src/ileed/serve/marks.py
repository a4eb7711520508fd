"""Marks: episodes that somebody keeps or drops by hand, in one file that is written whole at every mark.

The file is the only state. Whoever marks reads it, changes one episode and writes it, one after the other, so that
windows and processes may mark at once: the last mark of an episode counts, and marks of others are never lost. In an
object store the windows of one process alone are kept apart.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, final

from ileed import runs, stores
from ileed.errors import RunError, brief

try:
    import fcntl
except ImportError:  # Windows: two processes that mark at the same moment are not kept apart there
    fcntl = None  # type: ignore[assignment]

Mark = Literal["keep", "drop"]
_HEAD = {"ileed": "marks of episodes"}  # the first entry of the file
_LARGEST = 64 << 20  # bytes


class Marked(NamedTuple):
    """Every mark by the number of its episode, and how many changes led to them."""

    version: int
    marks: Mapping[int, Mark]

    @property
    def kept(self) -> dict[int, bool]:
        """Whether each marked episode is kept."""
        return {episode: mark == "keep" for episode, mark in self.marks.items()}


@final
@dataclass(frozen=True, eq=False)
class Marks:
    """The marks of one data set in a file; `fingerprint` is that of the data, and other data have other files."""

    path: Path
    fingerprint: str
    episodes: int
    _alone: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, folder: Path, fingerprint: str, episodes: int) -> Marks:
        """The marks of data in a folder; a file there that cannot be read is refused at once."""
        marks = cls(folder / f"marks-{fingerprint[:12]}.json", fingerprint, episodes)
        marks.read()
        return marks

    def read(self) -> Marked:
        """The marks of this moment."""
        if not stores.exists(self.path):
            return Marked(0, {})
        stored = stores.read_head(self.path, _LARGEST + 1) if stores.address_of(self.path) else None
        try:
            if (self.path.stat().st_size if stored is None else len(stored)) > _LARGEST:
                raise ValueError("it is too large")
            content = self.path.read_bytes() if stored is None else stored
            return self._parse(json.loads(content.decode("utf-8")))
        except OSError as error:
            raise runs.unreadable(self.path, error) from error
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
            found = f"{stores.name_of(self.path)} holds no marks that can be read ({brief(error)})"
            raise RunError(f"{found}: move it away") from error

    def _parse(self, found: dict[str, object]) -> Marked:
        version, marks = found["version"], found["marks"]
        if found.get("ileed") != _HEAD["ileed"] or found["data"] != self.fingerprint or not runs.is_a(version, int):
            raise ValueError("it is not a file of marks of these data")
        assert isinstance(version, int)
        if not isinstance(marks, dict) or not all(mark in ("keep", "drop") for mark in marks.values()):
            raise ValueError("a mark is neither keep nor drop")
        by_number = {int(episode): mark for episode, mark in marks.items()}
        if any(not 0 <= episode < self.episodes for episode in by_number):
            raise ValueError("an episode is marked that the data do not have")
        return Marked(version, by_number)

    def put(self, episode: int, mark: Mark | None) -> Marked:
        """Mark one episode, or unmark it; on disk when this returns."""
        with self._alone, _locked(self.path):
            before = self.read()
            marks = {number: each for number, each in before.marks.items() if number != episode}
            after = Marked(before.version + 1, marks if mark is None else {**marks, episode: mark})
            content = {
                **_HEAD,
                "data": self.fingerprint,
                "version": after.version,
                "marks": {str(number): after.marks[number] for number in sorted(after.marks)},
            }
            runs.write_file(self.path, (json.dumps(content, indent=1) + "\n").encode())
        return after


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing the same file meanwhile, where the system can."""
    if fcntl is None:
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    handle = -1
    with suppress(OSError):  # that the folder cannot be written is said by who writes
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)
