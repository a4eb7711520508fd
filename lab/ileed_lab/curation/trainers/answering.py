"""What the trainers share: train on a folder, say so in one line of JSON, and then answer observations with actions.

A frame is its length (8 bytes, the lowest first) and an array as numpy saves it. A request is two of them: observations
(row, number) and whether each row begins an episode (row,). The answer is one: actions (row, dimension), or (row,) of
numbers. The end of the input ends the program. Whatever the project prints goes to standard error.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Lesson", "Trained", "answer", "read_array", "write_array"]

Array = npt.NDArray[Any]
_LENGTH = 8


class Lesson(NamedTuple):
    """What is to be learned: the folder that the demonstrations lie in, and how."""

    folder: Path
    seed: int
    action_count: int
    """How many actions there are, where they are numbered; 0 where they are continuous."""
    weights: Array | None
    """(episode,) how often the steps of each are drawn, relative to others; None: all alike."""

    @property
    def data(self) -> Path:
        """The demonstrations, in the project's own format."""
        return next(self.folder.glob("data*"))


class Trained(NamedTuple):
    """What was learned: an actor of (observations, starts), the project's release, and the settings that were used."""

    act: Callable[[Array, Array], Array]
    release: str
    settings: Mapping[str, Any]


def answer(train: Callable[[Lesson], Trained]) -> None:
    """Train as the command line says, and answer until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    asked = parser.parse_args()
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    about = json.loads((asked.folder / "about.json").read_text())
    weights = None if about["weights"] is None else np.array(about["weights"])
    begun = time.perf_counter()
    found = train(Lesson(asked.folder, asked.seed, about["action_count"], weights))
    message = {"release": found.release, "settings": found.settings, "seconds": time.perf_counter() - begun}
    answers.write(json.dumps(message).encode() + b"\n")
    answers.flush()
    while (observations := read_array(requests)) is not None:
        starts = read_array(requests)
        assert starts is not None
        write_array(answers, found.act(observations, starts))


def read_array(source: IO[bytes]) -> Array | None:
    """The next frame; None at the end of the input."""
    head = source.read(_LENGTH)
    content = source.read(int.from_bytes(head, "little")) if len(head) == _LENGTH else b""
    return np.load(io.BytesIO(content), allow_pickle=False) if content else None


def write_array(target: IO[bytes], array: Array) -> None:
    """Write one frame, and pass it on at once."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    target.write(content.tell().to_bytes(_LENGTH, "little") + content.getvalue())
    target.flush()
