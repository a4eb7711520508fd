"""Episodes: how expert each is, which to look at or leave out, and where within them expertise falls."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from ileed._torch import product
from ileed.data import Array
from ileed.report.charts import Curve, Scale, interval_rows, lines, path, shade
from ileed.report.evidence import Estimate, Evidence, top_quarter
from ileed.report.page import (
    DEMONSTRATOR,
    NOTHING,
    Cell,
    Chart,
    Column,
    Table,
    decimals,
    escape,
    in_words,
    rated,
    say,
    short,
    whole,
    words,
)
from ileed.report.people import Person

_LISTED, _DRAWN = 20, 6  # episodes in the table of the page, and drawn step by step
_LONG = 10  # steps from which on an episode is drawn
_WINDOW = (5, 25)  # steps over which expertise along an episode is estimated, at least and at most
HALF = 0.5  # an episode may be left out if it is below this share of the top quartile with probability 0.975
_CLOUD = 400  # states of all episodes behind a path
_MANY_VALUES = 12  # a feature with more values than these is continuous
_FRAMES, _LARGEST = 4, 256  # frames of an episode, and pixels of their longer side


class Stretch(NamedTuple):
    """Steps of an episode, from the first to the last, over which its expertise is lowest."""

    first: int
    last: int


@final
@dataclass(frozen=True, eq=False)
class Episodes:
    """Every episode that was rated, with its demonstrator and expertise; all numbers of episodes are among these."""

    evidence: Evidence
    people: Sequence[Person]
    """Of each episode."""
    owner: Array
    """(episode,) the same, as the data number them."""
    found: Estimate
    good: float
    """Relative expertise of the top quartile of demonstrators."""

    @classmethod
    def of(cls, evidence: Evidence, people: Sequence[Person]) -> Episodes:
        by_name = {evidence.fitted.expertise.names[person.index]: person for person in people}
        owner = evidence.data.episode_demonstrator
        theirs = [by_name[evidence.data.names[who]] for who in owner.tolist()]
        good = top_quarter(evidence.by_person.expertise[np.unique(owner)])
        return cls(evidence, theirs, owner, evidence.rate_episodes(), good)

    @cached_property
    def order(self) -> list[int]:
        """All episodes, the lowest first."""
        return list(np.argsort(self.found.expertise, kind="stable").tolist())

    @cached_property
    def low_for_them(self) -> list[int]:
        """Episodes that lie below what their demonstrator does otherwise, the clearest first."""
        gap = self.evidence.by_person.low[self.owner] - self.found.high
        return [each for each in np.argsort(-gap, kind="stable").tolist() if gap[each] > 0]

    @property
    def to_drop(self) -> list[int]:
        """Episodes below half of the top quartile of demonstrators, with 97.5% probability; the lowest first."""
        return [each for each in self.order if self.found.high[each] < HALF * self.good]

    def number(self, episode: int) -> int:
        """Its number in the data, from 0 on."""
        return int(self.evidence.numbers[episode])

    def label(self, episode: int) -> str:
        return f"{self.number(episode)} ({short(self.people[episode].label)})"

    def steps(self, episode: int) -> slice:
        return slice(*self.evidence.data.episode_bounds[episode : episode + 2].tolist())

    @property
    def chosen(self) -> list[int]:
        """Episodes to draw: unusually low ones, the lowest of some demonstrators, and the highest of all."""
        long = set(np.flatnonzero(np.diff(self.evidence.data.episode_bounds) >= _LONG).tolist())
        low, order = ([each for each in some if each in long] for some in (self.low_for_them, self.order))
        lowest = {int(self.owner[each]): each for each in reversed(order)}.values()  # of each demonstrator
        chosen = list(dict.fromkeys([*low[:3], *sorted(lowest, key=order.index)]))[: _DRAWN - 1]
        return list(dict.fromkeys([*chosen, *order[-1:]]))

    def table(self) -> Table:
        """All episodes: those below what their demonstrator does first, then the lowest."""
        found, rewards = self.found, self.evidence.data.rewards
        first, low, drop = self.low_for_them[: _LISTED // 2], set(self.low_for_them), set(self.to_drop)
        order = list(dict.fromkeys([*first, *self.order]))
        columns = [
            Column("episode"),
            Column("expertise", ("expertise", "low", "high"), "relative to the mean over demonstrators; 95% interval"),
            DEMONSTRATOR,
            Column("steps"),
            *([Column("reward")] if rewards is not None else []),
            Column("note"),
        ]
        rows: list[list[Cell]] = []
        for each in order:
            steps = self.steps(each)
            note = ["low for this demonstrator"] * (each in low) + ["may be left out"] * (each in drop)
            total = [] if rewards is None else [decimals(float(rewards[steps].sum()))]
            name = Cell(str(self.number(each)), self.number(each), (self.number(each),))
            who, size = words(self.people[each].label), whole(steps.stop - steps.start)
            rows.append([name, rated(*found.row(each)), who, size, *total, words(", ".join(note) or NOTHING)])
        drawing = interval_rows(
            "episodes",
            "Expertise of episodes",
            [(self.label(each), found.row(each)) for each in order[:_LISTED]],
            reference=self.good * HALF,
            title="relative expertise (1 is the mean over demonstrators)",
            legend=[("one", "expertise with 95% interval"), ("reference", "half of the top quartile")],
        )
        shown = range(min(_LISTED, len(rows)))
        return Table("episodes", "Episodes, lowest first", columns, rows, drawing, shown)

    def along(self) -> list[Chart | Frames]:
        """Expertise step by step in a few episodes, the lowest segment marked, and what they looked like."""
        charts: list[Chart | Frames] = []
        chosen = self.chosen
        for episode, by_step in zip(chosen, self.evidence.along(np.array(chosen)) if chosen else [], strict=True):
            windows, expected = self.windows(by_step), float(self.evidence.by_person.expertise[self.owner[episode]])
            worst = worst_stretch(windows, expected)
            charts += [self._chart(episode, windows, expected, worst), *self._sight(episode, worst)]
        return charts

    def windows(self, by_step: Array) -> Estimate:
        """Expertise around each step: by the steps of a window, cut at the ends of the episode."""
        half = int(np.clip(len(by_step) // 8, *_WINDOW)) // 2
        summed = np.concatenate([np.zeros((1, by_step.shape[1])), np.cumsum(by_step, axis=0)])
        step = np.arange(len(by_step))
        windows = summed[np.minimum(step + half + 1, len(step))] - summed[np.maximum(step - half, 0)]
        return self.evidence.rate_curves(windows, self.found.population, spread=self.evidence.within)

    def _chart(self, episode: int, windows: Estimate, expected: float, worst: Stretch | None) -> Chart:
        count = len(windows.expertise)
        x, y = Scale(0, max(1, count - 1)), Scale.of([0.0, expected, *windows.high.tolist()])
        value, low, high = (list(enumerate(each.tolist())) for each in windows[:3])
        curves = [
            Curve([*high, *reversed(low)], "band"),
            Curve([(0, expected), (count - 1, expected)], "other"),
            Curve(value, "one"),
        ]
        marked = "" if worst is None else shade(x, worst.first - 0.5, worst.last + 0.5)
        where = "no segment is below" if worst is None else f"lowest in steps {worst.first} to {worst.last}"
        told = f"Episode {self.label(episode)}: {in_words(*self.found.row(episode))}; {where}"
        body = lines(curves, x, y, height=120, across="step of the episode", marked=marked)
        return Chart(f"episode-{self.number(episode)}", told, body, 166)

    @cached_property
    def plane(self) -> Array | None:
        """(step, 2) where the states lie in the plane in which they vary most; None where they have none."""
        observations = self.evidence.data.observations
        found = Plane.of(self.evidence.fitted.normaliser.kept.numpy(), observations)
        return None if found is None else found.at(observations)

    @property
    def has_sights(self) -> bool:
        """Whether an episode can be drawn."""
        return are_images(self.evidence.data.observations) or self.plane is not None

    def _sight(self, episode: int, stretch: Stretch | None) -> list[Chart | Frames]:
        """Frames of an episode, or its path, with the segment marked; empty where neither can be drawn."""
        observations, number, steps = self.evidence.data.observations, self.number(episode), self.steps(episode)
        if are_images(observations):
            first, last = stretch or (0, steps.stop - steps.start - 1)
            chosen = np.unique(np.linspace(first, last, _FRAMES).round().astype(int)).tolist()
            images = [(f"step {step}", png(observations[steps.start + step])) for step in chosen]
            return [Frames(say("frames", episode=number), images)]
        if (plane := self.plane) is None:
            return []
        x, y = (Scale.of(plane[:, k].tolist(), zero=False) for k in (0, 1))
        cloud = plane[:: max(1, len(plane) // _CLOUD)].tolist()
        body = path(cloud, plane[steps].tolist(), stretch, x, y, height=130)
        marks = [("dot-other", "states of all"), ("one", "this episode"), *([("two", "segment")] if stretch else [])]
        return [Chart(f"path-{number}", say("path", episode=number), body, 140, marks)]


def worst_stretch(windows: Estimate, expected: float) -> Stretch | None:
    """The segment in which most expertise is lost, compared with what is expected of the demonstrator; if any is."""
    below = np.concatenate([[False], windows.high < expected, [False]])
    first = np.flatnonzero(~below[:-1] & below[1:]).tolist()
    last = (np.flatnonzero(below[:-1] & ~below[1:]) - 1).tolist()
    runs = [Stretch(*each) for each in zip(first, last, strict=True)]
    lost = (expected - windows.expertise).tolist()
    return max(runs, key=lambda run: sum(lost[run.first : run.last + 1]), default=None)


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
    def figure(self) -> None:
        return None


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
        """The plane of (step, ...) observations, by the features that a fit reads.

        None for images, and where most features take few values.
        """
        if are_images(observations):
            return None
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
