"""Findings: what a careful colleague would point out in a data set before anybody fits it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ileed.demonstrations.rules import Array

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations


class Finding(NamedTuple):
    """Something worth knowing before a fit: what it is about, and what it says."""

    about: str
    says: str


def findings(data: Demonstrations) -> list[Finding]:
    """Thin, useless or suspicious parts of the data, in words."""
    return [*_thin(data), *_observations_worth_a_look(data), *_actions_worth_a_look(data), *_copies(data)]


_ENOUGH_STEPS = 400  # a share counted over n steps is known to within 0.98 / sqrt(n): 0.05 at 400


def _thin(data: Demonstrations) -> Iterator[Finding]:
    if len(data.names) == 1:
        yield Finding("demonstrators", "there is one: nothing to compare, so only behaviour cloning applies")
    episodes = np.bincount(data.episode_demonstrator, minlength=len(data.names))
    for name, steps, count in zip(data.names, data.steps_each, episodes, strict=True):
        if steps == 0:
            yield Finding(name, "no steps at all: the name is known but expertise cannot be")
        elif steps < _ENOUGH_STEPS:
            yield Finding(
                name,
                f"{counted(int(steps), 'step')} in {counted(int(count), 'episode')}: expertise will be poorly "
                f"determined (give or take {0.98 * steps**-0.5:.2f} at best)",
            )
        elif count == 1:
            yield Finding(name, "one episode: none of it can be held out")


def _observations_worth_a_look(data: Demonstrations) -> Iterator[Finding]:
    collapsed = data.collapse()
    constant = data.observation_size - len(collapsed.varying)
    if constant:
        yield Finding(
            "observations", f"{constant:,} of {data.observation_size:,} numbers never vary; the fit leaves them out"
        )
    places = len(collapsed.observations)
    if 2 * places <= len(data):
        yield Finding(
            "observations", f"{places:,} are distinct among {len(data):,} steps: the fit counts them once each"
        )
        shared = visited_by_several(data.demonstrator, collapsed.step_place)
        shared_each = np.bincount(data.demonstrator, weights=shared, minlength=len(data.names))
        steps_each = data.steps_each
        for person in np.flatnonzero(steps_each):
            share = shared_each[person] / steps_each[person]
            if len(data.names) > 1 and share < 0.5:
                yield Finding(
                    data.names[person],
                    f"{share:.0%} of the steps are at observations that anybody else visits: the comparison rests on "
                    "how the networks generalise",
                )


def visited_by_several(demonstrator: Array, place: Array) -> Array:
    """Whether anybody else visits the place of each step, (step,); both columns are indices, (step,)."""
    people = int(demonstrator.max()) + 1
    pairs = np.unique(place * people + demonstrator)
    return np.bincount(pairs // people)[place] > 1


def _actions_worth_a_look(data: Demonstrations) -> Iterator[Finding]:
    if data.discrete:
        taken = np.unique(data.actions)
        first = np.arange(min(data.action_count, len(taken) + 8))  # as many as must be looked through to name eight
        if never := [str(action) for action in np.setdiff1d(first, taken)[:8]]:
            yield Finding("actions", f"{', '.join(never)} of {data.action_count} never taken by anybody")
        return
    for axis in range(data.actions.shape[1]):
        values = np.unique(data.actions[:, axis])
        if len(values) == 1:
            yield Finding(f"actions[{axis}]", f"always {values[0]:g}: leave this dimension out")
        elif len(values) == 2:
            yield Finding(
                f"actions[{axis}]",
                f"two values only ({values[0]:g}, {values[1]:g}), like a gripper: its spread says nothing of "
                "expertise, so VarianceScaling leaves it unscaled",
            )


def _copies(data: Demonstrations) -> Iterator[Finding]:
    starts = np.flatnonzero(np.append(True, data.episode[1:] != data.episode[:-1]))
    seen: dict[bytes, int] = {}
    copies = []
    for number, (first, last) in enumerate(zip(starts, np.append(starts[1:], len(data)), strict=True)):
        if last - first >= 10:  # short episodes repeat by themselves
            content = data.observations[first:last].tobytes() + data.actions[first:last].tobytes()
            if seen.setdefault(content, number) != number:
                copies.append(number)
    if copies:
        yield Finding("episodes", f"{len(copies):,} are exact copies of others (first: episode {copies[0]}): drop them")


def counted(count: int, noun: str) -> str:
    """A number with its noun, as in "1 step" and "2 steps"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
