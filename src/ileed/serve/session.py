"""A session: a run, its episodes step by step, the marks that a user gives them, and where the result is written.

Marks are one file, which is written whole at every mark and is the only state. Whoever marks reads it, changes one
episode and writes it under a lock, so several windows and processes may mark at once: the last mark of an episode
counts, and marks of others are never lost. In an object store only the windows of one process are kept apart.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
from ileed.report.evidence import Plane, are_images, data_of_run, labels_of, png
from ileed.report.page import Live, Page
from ileed.report.sections import Content
from ileed.runs import stores

try:
    import fcntl
except ImportError:  # Windows: two processes that mark at the same moment are not kept apart there
    fcntl = None  # type: ignore[assignment]

Mark = Literal["keep", "drop"]
_HEAD = {"ileed": "marks of episodes"}  # the first entry of the file
_LARGEST = 64 << 20  # bytes
PART = 1_000
"""Steps that are sent at once; a longer episode is judged part by part, and a recurrent policy begins each anew."""
_LONGEST = 120  # characters of a name
_FEATURES = 12  # of an observation that are drawn
_CLOUD, _ENOUGH = 400, 20_000  # states behind a path, and states by which its plane is found
_HOME = Path(__file__).parent


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
    _alone: Lock = field(default_factory=Lock)

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
    with suppress(OSError):  # the writer reports a folder that cannot be written
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)


@final
@dataclass(frozen=True, eq=False)
class Playback:
    """Every episode of scored data, as JSON can hold it; text from the data is made harmless to read, not to HTML."""

    fitted: Fitted
    curated: Curated

    @cached_property
    def _data(self) -> Demonstrations:
        return self.fitted.policy.match(self.curated.data)

    @cached_property
    def _begins(self) -> Array:
        return self._data.episode_bounds

    def steps(self, episode: int) -> int:
        """How many steps an episode has."""
        return int(self._begins[episode + 1] - self._begins[episode])

    def listing(self) -> dict[str, Any]:
        """One row for each episode, by columns, and what all episodes share."""
        table = self.curated.episodes
        scores = {
            name: {part: _rounded(getattr(score, part)) for part in ("estimate", "low", "high")}
            for name, score in self.curated.scores.items()
        }
        return {
            "rule": printable(self.curated.sentence),
            "by": self.curated.rule.by,
            "key": [_label(key) for key in table["key"].to_pylist()],
            "person": [_label(name) for name in table["demonstrator"].to_pylist()],
            "steps": table["steps"].to_pylist(),
            "keep": table["keep"].to_pylist(),
            "scores": scores,
            "actions": [_label(name) for name in self.fitted.policy.action_names],
            "action_size": self._data.action_size,
            "cloud": [] if self._plane is None else _rounded(self._plane.at(self._some(_CLOUD))),
        }

    def part(self, episode: int, start: int) -> dict[str, Any]:
        """The steps of an episode from `start` on, `PART` at most."""
        first, end = self._begins[episode] + start, min(self._begins[episode] + start + PART, self._begins[episode + 1])
        steps = np.arange(first, end)
        within = np.zeros(len(self._data), dtype=bool)
        within[steps] = True
        part = self._data.select(within)
        is_image, plane = are_images(part.observations), self._plane
        return {
            "start": start,
            **_choices(self.fitted, part),
            "agreement": _rounded(agreement_of_steps(self.fitted, part)),
            "expected": self._expected(part),
            "stretches": self._stretches(steps),
            "rewards": None if part.rewards is None else _rounded(part.rewards),
            "features": [] if is_image else self._features(part),
            "feature_count": self._data.observation_size,
            "path": None if plane is None else _rounded(plane.at(part.observations)),
            "frames": is_image,
        }

    def frame(self, episode: int, step: int) -> bytes | None:
        """The image that was seen at a step, as PNG; None where observations are not images."""
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
        """The features of the observations that vary most in these steps, compared with all steps."""
        values = part.observations.reshape(len(part), -1).astype(np.float64)
        varies = np.ptp(values, axis=0) / np.where(self._deviation > 0, self._deviation, np.inf)
        chosen = np.sort(np.argsort(-varies, kind="stable")[:_FEATURES])
        encoding = self._data.encoding
        names = {k: f"observation[{k}]" if encoding is None else encoding.inputs[k] for k in chosen.tolist()}
        return [{"name": _label(name), "values": _rounded(values[:, k])} for k, name in names.items()]

    def _expected(self, part: Demonstrations) -> list[Any] | None:
        """The demonstrator's expertise at each state by the model, over its mean over demonstrators; None for none."""
        known, name = self.fitted.expertise, part.names[int(part.demonstrator[0])]
        if not self.fitted.estimates_expertise or name not in known.names or known.skill_names:
            return None
        mean = np.nanmean([*known.by_demonstrator().values()])
        return _rounded(known(part.observations, name) / mean)

    def _stretches(self, steps: Array) -> list[dict[str, Any]]:
        """The segments of these steps, with their expertise and interval; steps are counted within the episode."""
        cut, score = self.curated.stretches, self.curated.stretch_scores["expertise"]
        found = np.unique(cut.of_step[steps])
        columns = {
            "start": cut.start[found].tolist(),
            "end": (cut.start + cut.steps)[found].tolist(),
            "estimate": _rounded(score.estimate[found]),
            "low": _rounded(score.low[found]),
            "high": _rounded(score.high[found]),
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _choices(fitted: Fitted, part: Demonstrations) -> dict[str, Any]:
    """The action taken at each step and the policy's most likely one; if discrete, also their probabilities."""
    policy = fitted.policy
    if part.action_size:
        chosen = _in_turn(policy.predict, part, 1 if policy.recurrent else len(part))
        return {"taken": _rounded(part.actions), "chosen": _rounded(chosen)}
    if policy.recurrent:
        chances = _in_turn(lambda *seen: _probabilities(*policy.next_distribution(*seen)), part, 1)
    else:
        chances, _ = _probabilities(policy.distribution(part.observations, legal=part.legal), None)
    if part.legal is not None:
        chances = np.where(part.legal, chances, 0)
    rows, chosen = np.arange(len(part)), chances.argmax(1)
    return {
        "taken": part.actions.tolist(),
        "chosen": chosen.tolist(),
        "chosen_probability": _rounded(chances[rows, chosen]),
        "taken_probability": _rounded(chances[rows, part.actions]),
    }


def _probabilities(distribution: Any, state: Any) -> tuple[Array, Any]:
    return np.asarray(distribution.probs), state


def _in_turn(answer: Any, part: Demonstrations, at_once: int) -> Array:
    """(step, ...) the answers of a policy to some steps at a time; the hidden state is passed on."""
    state, found = None, []
    for first in range(0, len(part), at_once):
        rows, state = answer(part.observations[first : first + at_once], state)
        found.append(rows)
    return np.concatenate(found)


def _label(text: str) -> str:
    return printable(text, most=_LONGEST)


def _rounded(values: Any) -> list[Any]:
    """Numbers with five digits; None in place of what is not finite."""
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
    """Where the result is written and for which trainer, as `Curated.write` takes it."""

    out: Path
    format: str | None = None
    source: Path | None = None
    overwrite: bool = False


@final
@dataclass(frozen=True, eq=False)
class Session:
    """A run, its scored episodes, the marks that the user gives them, and where the result goes."""

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
        """The report of the run with the browser of episodes; without the data where they are not those of the run."""
        data: Demonstrations | None
        try:
            data = data_of_run(self.fitted, self.curated.data)
        except DemonstrationError:
            data = None
        title = f"Demonstrator report: {labels_of([stores.base_name(self.run)])[0]}"
        live = Live(*((_HOME / f"live.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")))
        return Content(self.fitted, {}, {}, data).page(title, live=live)

    def save(self, *, replace: bool | str = False) -> Mapping[str, Any]:
        """Write what is kept by the rule and the marks of this moment, as `ileed curate` does.

        A folder of curated episodes that exists is replaced if `replace` is True, or if it is still the version of
        that name, which an earlier call returned.
        """
        to = self.destination
        with self._saving:
            curated = self.curated.marked(self.marks.read().kept)
            replace = replace is True or replace == version(to.out)
            written = curated.write(to.out, format=to.format, source=to.source, overwrite=to.overwrite or replace)
            saved = version(to.out)
        files = [path.name for path in written]
        return {"sentence": curated.sentence, "folder": str(to.out), "files": files, "version": saved}
