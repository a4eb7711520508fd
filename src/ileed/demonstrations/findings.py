"""Findings: what a careful colleague would point out in a data set before anybody fits it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ileed.demonstrations.collapsing import Collapsed
from ileed.demonstrations.rules import Array, listed
from ileed.demonstrations.streaming import distinct_values
from ileed.wording import counted, printable

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations

_ENOUGH_STEPS = 400  # a share counted over n steps is known to within 0.98 / sqrt(n): 0.05 at 400
_FEW_PEOPLE = 8  # a line for each of so many; more are told in one
_NAMED = 3
_FIRST_STEPS = 1000  # where most dimensions already show more than two values
_SHORT_EPISODE = 10  # shorter ones repeat by themselves


class Finding(NamedTuple):
    """Something worth knowing before a fit: what it is about, and what it says."""

    about: str
    says: str


def findings(data: Demonstrations) -> list[Finding]:
    """Thin, useless or suspicious parts of the data, in words."""
    return [*_of_demonstrators(data), *_of_observations(data), *_of_actions(data), *_of_copies(data)]


def _of_demonstrators(data: Demonstrations) -> Iterator[Finding]:
    if len(data.names) == 1:
        yield Finding("demonstrators", "there is one: nothing to compare, so only behaviour cloning applies")
    steps, episodes = data.steps_each, np.bincount(data.episode_demonstrator, minlength=len(data.names))

    def step_count(count: int) -> str:
        return counted(count, "step")

    yield from _of_some(data, steps == 0, steps, step_count, "have no steps", "their expertise cannot be known")

    thin, why = (steps > 0) & (steps < _ENOUGH_STEPS), "expertise will be poorly determined"
    if 0 < thin.sum() <= _FEW_PEOPLE:
        why += f", give or take {0.98 * steps[thin].max() ** -0.5:.2f} or more"
    yield from _of_some(data, thin, steps, step_count, f"have fewer than {_ENOUGH_STEPS} steps each", why)
    undivided, why = (steps >= _ENOUGH_STEPS) & (episodes == 1), "none of it can be held out"
    yield from _of_some(data, undivided, episodes, lambda count: "1 episode", "have one episode each", why)


def _of_some(
    data: Demonstrations, who: Array, values: Array, show: Callable[[Any], str], many: str, why: str
) -> Iterator[Finding]:
    """What holds for some demonstrators, lowest value first: a line for each of a few, or `many` of all together."""
    people = np.flatnonzero(who)
    people = people[np.argsort(values[people], kind="stable")].tolist()
    if len(people) <= _FEW_PEOPLE:
        yield from (Finding(data.names[person], f"{show(values[person])}: {why}") for person in people)
        return
    named = (f"{printable(data.names[person], 60)!r} {show(values[person])}" for person in people[:_NAMED])
    yield Finding("demonstrators", f"{len(people):,} of {len(data.names):,} {many}: {why} (fewest: {', '.join(named)})")


def _of_observations(data: Demonstrations) -> Iterator[Finding]:
    collapsed = data.collapse()
    if constant := data.observation_size - len(collapsed.varying):
        inputs = data.encoding.inputs if data.encoding is not None else ()
        fixed = np.delete(np.array(inputs), collapsed.varying).tolist() if inputs else ()
        named = f" ({listed(fixed, 8, show=printable)})" if fixed else ""
        counts = f"{constant:,} of {data.observation_size:,} numbers never vary"
        yield Finding("observations", f"{counts}{named}; the fit leaves them out")
    distinct = collapsed.unique_count
    if not isinstance(collapsed, Collapsed) or 2 * distinct > len(data):
        return
    yield Finding("observations", f"{distinct:,} are distinct among {len(data):,} steps: the fit counts them once each")
    if len(data.names) > 1:
        shared = visited_by_several(collapsed.demonstrator, collapsed.observation_index) * collapsed.count
        share = np.bincount(collapsed.demonstrator, shared, len(data.names)) / np.maximum(data.steps_each, 1)
        alone, why = (share < 0.5) & (data.steps_each > 0), "the comparison rests on how the networks generalise"
        many = "take less than half of their steps at observations that anybody else visits"
        yield from _of_some(data, alone, share, lambda one: f"{one:.0%} of the steps at shared observations", many, why)


def visited_by_several(demonstrator: Array, observation: Array) -> Array:
    """(step,) whether anybody else visits the unique observation of each step; both columns are indices, (step,)."""
    people = int(demonstrator.max()) + 1
    pairs = np.unique(observation * people + demonstrator)
    return np.bincount(pairs // people)[observation] > 1


def _of_actions(data: Demonstrations) -> Iterator[Finding]:
    if data.discrete:
        taken = distinct_values(data, data.actions)
        first = np.arange(min(data.action_count, len(taken) + 8))  # as many as must be looked through to name eight
        labels = first if data.encoding is None else data.encoding.labels
        if never := [printable(str(labels[action])) for action in np.setdiff1d(first, taken)[:8]]:
            yield Finding("actions", f"{', '.join(never)} of {data.action_count} never taken by anybody")
        return
    for axis in range(data.actions.shape[1]):
        name = f"actions[{axis}]" if data.encoding is None else printable(data.encoding.action[axis])
        if len(np.unique(data.actions[:_FIRST_STEPS, axis])) > 2:
            continue
        values = distinct_values(data, data.actions[:, axis])
        if len(values) == 1:
            yield Finding(name, f"always {values[0]:g}: leave this dimension out")
        elif len(values) == 2:
            found = f"two values only ({values[0]:g}, {values[1]:g}), like a gripper"
            yield Finding(name, f"{found}: its spread says nothing of expertise, so VarianceScaling leaves it unscaled")


def _of_copies(data: Demonstrations) -> Iterator[Finding]:
    bounds = data.episode_bounds
    seen: dict[bytes, int] = {}
    copies = []
    for number in np.flatnonzero(np.diff(bounds) >= _SHORT_EPISODE).tolist():
        steps = slice(*bounds[number : number + 2])
        content = hashlib.blake2b(np.ascontiguousarray(data.observations[steps]).data, digest_size=16)
        content.update(np.ascontiguousarray(data.actions[steps]).data)
        if seen.setdefault(content.digest(), number) != number:
            copies.append(number)
    if copies:
        yield Finding("episodes", f"{len(copies):,} are exact copies of others (first: episode {copies[0]}): drop them")
