"""Playback: what the page shows of an episode, step by step, sent when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from ileed.curation import Curated
from ileed.curation.scores import agreement_of_steps
from ileed.demonstrations import Array, Demonstrations
from ileed.fitted import Fitted
from ileed.report.sights import Plane, are_images, png
from ileed.wording import printable

PART = 1_000
"""Steps that are sent at once; a longer episode is judged part by part, and a recurrent policy begins each anew."""
_LONGEST = 120  # characters of a name
_FEATURES = 12  # of an observation that are drawn
_CLOUD, _ENOUGH = 400, 20_000  # states behind a path, and states by which its plane is found


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
        return np.searchsorted(self._data.episode, np.arange(self._data.episode_count + 1))

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
            "actions": self._action_names,
            "discrete": self._data.discrete,
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
            "taken": part.actions.tolist() if part.discrete else _rounded(part.actions),
            **_choices(self.fitted, part),
            "agreement": _rounded(agreement_of_steps(self.fitted, part)),
            "expected": self._expected(part),
            "stretches": self._stretches(steps),
            "rewards": None if part.rewards is None else _rounded(part.rewards),
            "features": [] if is_image else self._features(part),
            "feature_count": self._data.observation_size,
            "path": None if plane is None or is_image else _rounded(plane.at(part.observations)),
            "frames": is_image,
        }

    def frame(self, episode: int, step: int) -> bytes | None:
        """The image that was seen at a step, as PNG; None where observations are not images."""
        if not are_images(self._data.observations):
            return None
        return png(self._data.observations[self._begins[episode] + step])

    @property
    def _action_names(self) -> list[str]:
        encoding = self._data.encoding
        if self._data.discrete:
            labels: Sequence[object] = range(self._data.action_count) if encoding is None else encoding.labels
        else:
            size = self._data.actions.shape[1]
            labels = [f"action[{k}]" for k in range(size)] if encoding is None else encoding.action
        return [_label(str(label)) for label in labels]

    def _some(self, count: int) -> Array:
        return self._data.observations[:: max(1, len(self._data) // count)]

    @cached_property
    def _plane(self) -> Plane | None:
        if are_images(self._data.observations):
            return None
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
        """The person's expertise at each state by the model, by the mean over people; None where it has none."""
        known, name = self.fitted.expertise, part.names[int(part.demonstrator[0])]
        if not self.fitted.estimates_expertise or name not in known.names or known.skill_names:
            return None
        mean = np.nanmean([*known.by_demonstrator().values()])
        return _rounded(known(part.observations, name) / mean)

    def _stretches(self, steps: Array) -> list[dict[str, Any]]:
        """The stretches of these steps, with their expertise and interval; steps are counted within the episode."""
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
    """The policy's most likely action at each step; if discrete, also its probability and that of the one taken."""
    policy = fitted.policy
    if not part.discrete:
        return {"chosen": _rounded(_in_turn(policy.predict, part) if policy.recurrent else _at_once(fitted, part))}
    if policy.recurrent:
        chances = _in_turn(lambda *seen: _probabilities(*policy.next_distribution(*seen)), part)
    else:
        chances, _ = _probabilities(policy.distribution(part.observations, legal=part.legal), None)
    if part.legal is not None:
        chances = np.where(part.legal, chances, 0)
    rows, chosen = np.arange(len(part)), chances.argmax(1)
    return {
        "chosen": chosen.tolist(),
        "chosen_probability": _rounded(chances[rows, chosen]),
        "taken_probability": _rounded(chances[rows, part.actions]),
    }


def _at_once(fitted: Fitted, part: Demonstrations) -> Array:
    return fitted.policy.predict(part.observations)[0]


def _probabilities(distribution: Any, state: Any) -> tuple[Array, Any]:
    return np.asarray(distribution.probs), state


def _in_turn(answer: Any, part: Demonstrations) -> Array:
    """(step, ...) what a recurrent policy answers, one step after the other, with the hidden state handed on."""
    state, found = None, []
    for step in range(len(part)):
        row, state = answer(part.observations[step : step + 1], state)
        found.append(row[0])
    return np.stack(found)


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
