"""Where demonstrations were read from, so that a writer can tell whether the file still holds them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from ileed.errors import IleedError
from ileed.pseudonyms import are_episode_pseudonyms, episode_pseudonyms

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations


_NOT_READ = ("videos", "images")  # which can hold very many files


class _FileState(NamedTuple):
    """What the file system says about a file; any write changes at least the time of change."""

    size: int
    modified_ns: int
    changed_ns: int
    inode: int


@final
@dataclass(frozen=True, eq=False)
class Source:
    """A file or folder as it was when demonstrations were read from it, and how to read it again."""

    path: Path
    read: Callable[..., Demonstrations]
    options: Mapping[str, Any]
    files: Mapping[Path, _FileState]

    @classmethod
    def of(cls, path: str | Path, read: Callable[..., Demonstrations], **options: Any) -> Source:
        """The state of a file or folder at this moment; call it before reading, with the reader and its options."""
        return cls(Path(path).absolute(), read, options, _states(Path(path)))

    def holds(self, data: Demonstrations, path: Path | None = None) -> bool:
        """Whether the source, or its copy at `path`, holds the episodes of `data` under the same keys.

        Files whose size, times and inode are unchanged are not read again. Otherwise lengths, observations and actions
        of all episodes are compared. A source that no longer exists contradicts nothing.
        """
        place = self.path if path is None else path
        if not place.exists():
            return True
        if place.resolve() == self.path.resolve() and _states(place) == self.files:
            return True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the first read has warned already
                found = self.read(place, **self.options)
        except IleedError:
            return False
        return _holds_episodes(found, data)


def _states(path: Path) -> dict[Path, _FileState]:
    """The state of a file, or of every file in a folder that a reader may open, by its path relative to `path`."""
    files = [] if os.path.isdir(path) else [path]
    for folder, inner, names in os.walk(path):
        inner[:] = [name for name in inner if name not in _NOT_READ]
        files += [Path(folder, name) for name in names]
    found = {}
    for file in files:
        try:
            state = file.stat()
        except (OSError, ValueError):  # a broken link, a file that was removed meanwhile, or no path at all
            continue
        found[file.relative_to(path)] = _FileState(state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
    return found


def _holds_episodes(found: Demonstrations, data: Demonstrations) -> bool:
    """Whether every episode of `data` has the same observations and actions in `found`, under the same key.

    Pseudonyms of episodes, which replace keys that contain names, number the episodes of the source.
    """
    keys = found.episode_keys.tolist()
    if are_episode_pseudonyms(data.episode_keys.tolist()):
        keys = episode_pseudonyms(len(keys))
    numbers = {key: number for number, key in enumerate(keys)}
    there, here = found.episode_bounds, data.episode_bounds
    for episode, key in enumerate(data.episode_keys.tolist()):
        if key not in numbers:
            return False
        one, other = (slice(*bounds[at : at + 2]) for bounds, at in ((there, numbers[key]), (here, episode)))
        if not np.array_equal(found.actions[one], data.actions[other]):
            return False
        if not np.array_equal(found.observations[one], data.observations[other]):
            return False
    return True
