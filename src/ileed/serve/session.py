"""A session: a run, its episodes step by step, the marks that a user gives them, and where the result is written.

The only state is one file of marks, which is rewritten at every mark. A writer reads it, changes one episode and writes
it under a lock, so that several windows and processes may mark at once: the last mark of an episode counts, and no
other mark is lost. In an object store, this holds only for the windows of one process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, final

import numpy as np

from ileed import runs
from ileed.curation import Curated
from ileed.curation.outputs import version
from ileed.curation.scores import agreement_of_steps
from ileed.data import Array, Demonstrations
from ileed.errors import DemonstrationError, RunError, brief, printable
from ileed.methods import Fitted
from ileed.methods.policy import Policy
from ileed.report.evidence import Plane, are_images, data_of_run, labels_of, png
from ileed.report.page import Live, Page
from ileed.report.sections import Content
from ileed.runs import stores
from ileed.runs.files import locked

Mark = Literal["keep", "drop"]
_KIND = "marks of episodes"  # the first entry of the file says so
_LARGEST = 64 << 20  # bytes
PART = 1_000
"""Steps that are sent at once; a longer episode is rated in parts, and a recurrent policy is reset for each."""
_LONGEST = 120  # characters of a name
_FEATURES = 12  # observation features that are drawn
_CLOUD, _ENOUGH = 400, 20_000  # states drawn behind a path, and states from which its plane is computed


class Marked(NamedTuple):
    """Every mark by episode number, and how many changes were made so far."""

    version: int
    marks: Mapping[int, Mark]

    @property
    def kept(self) -> dict[int, bool]:
        """Whether each marked episode is kept."""
        return {episode: mark == "keep" for episode, mark in self.marks.items()}


@final
@dataclass(frozen=True, eq=False)
class Marks:
    """The marks of one data set in a file, whose name contains the fingerprint of the data."""

    path: Path
    fingerprint: str
    episodes: int
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, folder: Path, fingerprint: str, episodes: int) -> Marks:
        """The marks of a data set in a folder; an unreadable file is refused at once."""
        marks = cls(folder / f"marks-{fingerprint[:12]}.json", fingerprint, episodes)
        marks.read()
        return marks

    def read(self) -> Marked:
        """The current marks."""
        if not stores.exists(self.path):
            return Marked(0, {})
        try:
            content = stores.read_head(self.path, _LARGEST + 1)
            if len(content) > _LARGEST:
                raise ValueError("it is too large")
            return self._parse(json.loads(content.decode("utf-8")))
        except OSError as error:
            raise runs.unreadable(self.path, error) from error
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
            found = f"{stores.name_of(self.path)} is not a readable file of marks ({brief(error)})"
            raise RunError(f"{found}: move it away", code="marks-damaged") from error

    def _parse(self, found: dict[str, Any]) -> Marked:
        version, marks = found["version"], found["marks"]
        if found.get("ileed") != _KIND or found["data"] != self.fingerprint or type(version) is not int:
            raise ValueError("it belongs to other data")
        if not isinstance(marks, dict) or not all(mark in ("keep", "drop") for mark in marks.values()):
            raise ValueError("a mark is neither keep nor drop")
        by_number = {int(episode): mark for episode, mark in marks.items()}
        if any(not 0 <= episode < self.episodes for episode in by_number):
            raise ValueError("it marks an episode that does not exist")
        return Marked(version, by_number)

    def put(self, episode: int, mark: Mark | None) -> Marked:
        """Mark or unmark one episode; the mark is on disk when this returns."""
        with self._lock, locked(self.path.parent):
            before = self.read()
            marks = {number: each for number, each in before.marks.items() if number != episode}
            after = Marked(before.version + 1, marks if mark is None else {**marks, episode: mark})
            content = {
                "ileed": _KIND,
                "data": self.fingerprint,
                "version": after.version,
                "marks": {str(number): after.marks[number] for number in sorted(after.marks)},
            }
            runs.write_file(self.path, (json.dumps(content, indent=1) + "\n").encode())
        return after


@final
@dataclass(frozen=True, eq=False)
class Playback:
    """The episodes of scored data as JSON values; text from the data is printable, but not escaped for HTML."""

    fitted: Fitted
    curated: Curated

    @cached_property
    def _data(self) -> Demonstrations:
        return self.fitted.policy.match(self.curated.data)

    @cached_property
    def _begins(self) -> Array:
        return self._data.episode_bounds

    def steps(self, episode: int) -> int:
        """The number of steps of an episode."""
        return int(self._begins[episode + 1] - self._begins[episode])

    def listing(self) -> dict[str, Any]:
        """Columns with one value per episode, and what all episodes share."""
        table = self.curated.episodes
        scores = {
            name: {part: _rounded(getattr(score, part)) for part in ("estimate", "low", "high")}
            for name, score in self.curated.scores.items()
        }
        return {
            "rule": printable(self.curated.sentence),
            "by": self.curated.rule.by,
            "key": [_label(key) for key in table["key"].to_pylist()],
            "demonstrator": [_label(name) for name in table["demonstrator"].to_pylist()],
            "steps": table["steps"].to_pylist(),
            "keep": table["keep"].to_pylist(),
            "scores": scores,
            "actions": [_label(name) for name in self.fitted.policy.action_names],
            "action_size": self._data.action_size,
            "cloud": [] if self._plane is None else _rounded(self._plane.at(self._some(_CLOUD))),
        }

    def part(self, episode: int, start: int) -> dict[str, Any]:
        """The steps of an episode from `start` on, at most `PART` of them."""
        first, end = self._begins[episode] + start, min(self._begins[episode] + start + PART, self._begins[episode + 1])
        every = np.arange(len(self._data))
        part = self._data.select((first <= every) & (every < end))
        is_image, plane = are_images(part.observations), self._plane
        return {
            "start": start,
            **_choices(self.fitted.policy, part),
            "agreement": _rounded(agreement_of_steps(self.fitted, part)),
            "expected": self._expected(part),
            "stretches": self._segments(np.arange(first, end)),
            "rewards": None if part.rewards is None else _rounded(part.rewards),
            "features": [] if is_image else self._features(part),
            "feature_count": self._data.observation_size,
            "path": None if plane is None else _rounded(plane.at(part.observations)),
            "frames": is_image,
        }

    def frame(self, episode: int, step: int) -> bytes | None:
        """The observed image at a step as PNG; None if observations are not images."""
        if not are_images(self._data.observations):
            return None
        return png(self._data.observations[self._begins[episode] + step])

    def _some(self, count: int) -> Array:
        return self._data.observations[:: max(1, len(self._data) // count)]

    @cached_property
    def _plane(self) -> Plane | None:
        return Plane.of(self.fitted.normaliser.kept.numpy(), self._some(_ENOUGH))

    @cached_property
    def _deviation(self) -> Array:
        some = self._some(_ENOUGH)
        return np.asarray(some.reshape(len(some), -1).astype(np.float64).std(0))

    def _features(self, part: Demonstrations) -> list[dict[str, Any]]:
        """The observation features that vary most within these steps, relative to their variation in all steps."""
        values = part.observations.reshape(len(part), -1).astype(np.float64)
        varies = np.ptp(values, axis=0) / np.where(self._deviation > 0, self._deviation, np.inf)
        chosen = np.sort(np.argsort(-varies, kind="stable")[:_FEATURES])
        encoding = self._data.encoding
        names = {k: f"observation[{k}]" if encoding is None else encoding.inputs[k] for k in chosen.tolist()}
        return [{"name": _label(name), "values": _rounded(values[:, k])} for k, name in names.items()]

    def _expected(self, part: Demonstrations) -> list[Any] | None:
        """The modelled expertise of the demonstrator at each state, relative to the mean over demonstrators, if any."""
        expertise, name = self.fitted.expertise, part.names[int(part.demonstrator[0])]
        if not self.fitted.estimates_expertise or name not in expertise.names or expertise.skill_names:
            return None
        mean = np.nanmean([*expertise.by_demonstrator().values()])
        return _rounded(expertise(part.observations, name) / mean)

    def _segments(self, steps: Array) -> list[dict[str, Any]]:
        """The segments that contain these steps, with their expertise and interval; numbered within the episode."""
        segments, score = self.curated.stretches, self.curated.stretch_scores["expertise"]
        found = np.unique(segments.of_step[steps])
        columns = {
            "start": segments.start[found].tolist(),
            "end": (segments.start + segments.steps)[found].tolist(),
            "estimate": _rounded(score.estimate[found]),
            "low": _rounded(score.low[found]),
            "high": _rounded(score.high[found]),
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _choices(policy: Policy, part: Demonstrations) -> dict[str, Any]:
    """The action taken at each step and the policy's most likely one; with probabilities if actions are discrete."""
    if part.action_size:
        chosen = _in_turn(policy.predict, part, 1 if policy.recurrent else len(part))
        return {"taken": _rounded(part.actions), "chosen": _rounded(chosen)}

    def probabilities(observations: Array, state: Any) -> tuple[Array, Any]:
        distribution: Any
        distribution, after = policy.next_distribution(observations, state)
        return np.asarray(distribution.probs), after

    if policy.recurrent:
        chances = _in_turn(probabilities, part, 1)
        chances = chances if part.legal is None else np.where(part.legal, chances, 0)
    else:
        distribution: Any = policy.distribution(part.observations, legal=part.legal)
        chances = np.asarray(distribution.probs)
    rows, chosen = np.arange(len(part)), chances.argmax(1)
    return {
        "taken": part.actions.tolist(),
        "chosen": chosen.tolist(),
        "chosen_probability": _rounded(chances[rows, chosen]),
        "taken_probability": _rounded(chances[rows, part.actions]),
    }


def _in_turn(answer: Any, part: Demonstrations, at_once: int) -> Array:
    """(step, ...) what a policy answers to `at_once` steps at a time, passing on its hidden state."""
    state, found = None, []
    for first in range(0, len(part), at_once):
        rows, state = answer(part.observations[first : first + at_once], state)
        found.append(rows)
    return np.concatenate(found)


def _label(text: str) -> str:
    return printable(text, most=_LONGEST)


def _rounded(values: Any) -> list[Any]:
    """Numbers with five significant digits; None for those that are not finite."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(np.isfinite(array) & (array != 0), np.floor(np.log10(np.abs(array))), 0)
    digits = 10.0 ** np.clip(4 - size, -12, 12)
    found = (np.round(array * digits) / digits).astype(object)
    found[~np.isfinite(array)] = None
    return list(found.tolist())


@final
@dataclass(frozen=True)
class Destination:
    """Where the result is written and in which format: the arguments of `Curated.write`."""

    out: Path
    format: str | None = None
    source: Path | None = None
    overwrite: bool = False


@final
@dataclass(frozen=True, eq=False)
class Session:
    """A run, its scored episodes, their marks, and where the result is written."""

    run: Path
    fitted: Fitted
    curated: Curated
    marks: Marks
    destination: Destination
    _saving: Lock = field(default_factory=Lock)

    @cached_property
    def playback(self) -> Playback:
        """The episodes, step by step."""
        return Playback(self.fitted, self.curated)

    def page(self) -> Page:
        """The report of the run with the episode browser; it uses the data only if the run was fitted to them."""
        data: Demonstrations | None
        try:
            data = data_of_run(self.fitted, self.curated.data)
        except DemonstrationError:
            data = None
        title = f"Demonstrator report: {labels_of([stores.base_name(self.run)])[0]}"
        home = Path(__file__).parent
        live = Live(*((home / f"live.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")))
        return Content(self.fitted, {}, {}, data).page(title, live=live)

    def save(self, *, replace: bool | str = False) -> Mapping[str, Any]:
        """Write the episodes that the rule and the current marks keep, as `ileed curate` does.

        An existing folder of curated episodes is replaced if `replace` is True, or if its content is still the
        version `replace` that an earlier call returned.
        """
        to = self.destination
        with self._saving:
            curated = self.curated.marked(self.marks.read().kept)
            replace = replace is True or replace == version(to.out)
            written = curated.write(to.out, format=to.format, source=to.source, overwrite=to.overwrite or replace)
            saved = version(to.out)
        files = [path.name for path in written]
        return {"sentence": curated.sentence, "folder": str(to.out), "files": files, "version": saved}
