"""Sights: an episode as it can be drawn, its path through the states, or frames of it where observations are images."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from ileed._torch import product
from ileed.demonstrations import Array
from ileed.report.charts import Chart, Rows, Scale, path
from ileed.report.evidence import Evidence
from ileed.report.text import escape, say

_CLOUD = 400  # states of all episodes behind a path
_MANY_VALUES = 12  # a feature of more values than these is continuous
_FRAMES, _LARGEST = 4, 256  # frames of an episode, and pixels of their longer side


@final
@dataclass(frozen=True)
class Frames:
    """Frames of an episode: images as PNG, and what each is."""

    description: str
    images: Sequence[tuple[str, bytes]]

    def html(self) -> str:
        source = "data:image/png;base64,"
        shown = "".join(
            f'<li><img alt="observation at {escape(words)}" src="{source}{base64.b64encode(png).decode()}">'
            f"<span>{escape(words)}</span></li>"
            for words, png in self.images
        )
        return f'<figure><figcaption>{escape(self.description)}</figcaption><ul class="frames">{shown}</ul></figure>\n'

    @property
    def figure(self) -> Chart | Rows | None:
        return None


def sight_of(evidence: Evidence, episode: int, stretch: tuple[int, int] | None) -> Chart | Frames | None:
    """Frames of an episode, or its path, with the stretch marked; None where neither can be drawn."""
    steps = np.flatnonzero(evidence.data.episode == episode)
    number = int(evidence.numbers[episode])
    if are_images(evidence.data.observations):
        first, last = (0, len(steps) - 1) if stretch is None else stretch
        chosen = np.unique(np.linspace(first, last, _FRAMES).round().astype(int)).tolist()
        images = [(f"step {step}", png(evidence.data.observations[steps[step]])) for step in chosen]
        return Frames(say("frames", episode=number), images)
    found = Plane.of(evidence.fitted.normaliser.kept.numpy(), evidence.data.observations)
    if found is None:
        return None
    plane = found.at(evidence.data.observations)
    x, y = (Scale.of(plane[:, k].tolist(), zero=False) for k in (0, 1))
    cloud = plane[:: max(1, len(plane) // _CLOUD)].tolist()
    body = path(cloud, plane[steps].tolist(), stretch, x, y, height=130)
    marks = [("dot-other", "states of all"), ("one", "this episode"), *([("two", "stretch")] if stretch else [])]
    return Chart(f"path-{number}", say("path", episode=number), body, 140, marks)


def are_images(observations: Array) -> bool:
    """Whether each observation is an image: (step, height, width, channel)."""
    return observations.ndim == 4 and observations.shape[3] in (1, 3) and min(observations.shape[1:3]) >= 8


class Plane(NamedTuple):
    """The plane in which states vary most."""

    kept: Array
    mean: Array
    scale: Array
    axes: Array

    @classmethod
    def of(cls, kept: Array, observations: Array) -> Plane | None:
        """The plane of (step, ...) observations, by the features that a fit reads; None where most take few values."""
        values = _features(observations, kept)
        some = values[:: max(1, len(values) // 2000)]
        many = np.array([len(np.unique(column)) > _MANY_VALUES for column in some.T])
        if len(kept) < 2 or many.mean() <= 0.5:
            return None
        mean, scale = values.mean(0), np.where((deviation := values.std(0)) > 0, deviation, 1)
        scaled = (values - mean) / scale
        _, axes = np.linalg.eigh(product(scaled.T, scaled) / len(scaled))
        return cls(kept, mean, scale, axes[:, :-3:-1])

    def at(self, observations: Array) -> Array:
        """(step, 2) where states lie."""
        return product((_features(observations, self.kept) - self.mean) / self.scale, self.axes)


def _features(observations: Array, kept: Array) -> Array:
    return np.asarray(observations.reshape(len(observations), -1)[:, kept].astype(np.float64))


def png(image: Array) -> bytes:
    """An image (height, width, channel) as PNG, made smaller where it is large; numbers up to 1 are shares of white."""
    every = -(-max(image.shape[:2]) // _LARGEST)
    image = image[::every, ::every]
    if image.dtype != np.uint8:
        image = np.clip(image * (255 if image.max() <= 1 else 1), 0, 255).astype(np.uint8)
    height, width, channels = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(image))
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
