"""Findings: what a careful colleague would point out in a data set before anybody fits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ileed.demonstrations.rules import Array, listed
from ileed.wording import counted, printable

if TYPE_CHECKING:
    from ileed.demonstrations import Demonstrations

_ENOUGH_STEPS = 400  # a share counted over n steps is known to within 0.98 / sqrt(n): 0.05 at 400
_FEW_PEOPLE = 8  # a line for each of so many; more are told in one
_NAMED = 3
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
    steps = data.steps_each
    episodes = np.bincount(data.episode_demonstrator, minlength=len(data.names))
    unknown, poorly = "known but expertise cannot be", "expertise will be poorly determined"
    whole = "none of it can be held out"

    def few(person: int) -> str:
        told = f"{counted(int(steps[person]), 'step')} in {counted(int(episodes[person]), 'episode')}"
        return f"{told}: {poorly} (give or take {0.98 * steps[person] ** -0.5:.2f} at best)"

    one, many = f"no steps at all: the name is {unknown}", f"have no steps at all: the names are {unknown}"
    yield from _of_some(data, steps == 0, lambda person: one, f"{many} (first: ")
    many = f"have fewer than {_ENOUGH_STEPS} steps each: {poorly} (fewest: "
    thin = (steps > 0) & (steps < _ENOUGH_STEPS)
    yield from _of_some(data, thin, few, many, steps, lambda person: f" {counted(int(steps[person]), 'step')}")
    undivided = (steps >= _ENOUGH_STEPS) & (episodes == 1)
    many = f"have one episode each: {whole} (first: "
    yield from _of_some(data, undivided, lambda person: f"one episode: {whole}", many)


def _of_some(
    data: Demonstrations,
    who: Array,
    one: Callable[[int], str],
    many: str,
    order: Array | None = None,
    detail: Callable[[int], str] = lambda person: "",
) -> Iterator[Finding]:
    """What holds for some demonstrators: `one` says it of each, or `many` of all, with the first of them in `order`.

    `detail` is what follows such a name.
    """
    people = np.flatnonzero(who)
    if len(people) <= _FEW_PEOPLE:
        yield from (Finding(data.names[person], one(person)) for person in people.tolist())
        return
    first = people if order is None else people[np.argsort(order[people], kind="stable")]
    named = ", ".join(f"{printable(data.names[person], 60)!r}{detail(person)}" for person in first[:_NAMED].tolist())
    yield Finding("demonstrators", f"{len(people):,} of {len(data.names):,} {many}{named})")


def _of_observations(data: Demonstrations) -> Iterator[Finding]:
    collapsed = data.collapse()
    if constant := data.observation_size - len(collapsed.varying):
        varying = set(collapsed.varying.tolist())
        inputs = data.encoding.inputs if data.encoding is not None else ()
        fixed = [name for number, name in enumerate(inputs) if number not in varying]
        named = f" ({listed(fixed, 8, show=printable)})" if fixed else ""
        yield Finding(
            "observations",
            f"{constant:,} of {data.observation_size:,} numbers never vary{named}; the fit leaves them out",
        )
    distinct = len(collapsed.observations)
    if 2 * distinct > len(data):
        return
    yield Finding("observations", f"{distinct:,} are distinct among {len(data):,} steps: the fit counts them once each")
    if len(data.names) > 1:
        shared = visited_by_several(data.demonstrator, collapsed.step_observation_index)
        share = np.bincount(data.demonstrator, shared, len(data.names)) / np.maximum(data.steps_each, 1)
        alone = (share < 0.5) & (data.steps_each > 0)
        where = "at observations that anybody else visits: the comparison rests on how the networks generalise"
        many = f"take less than half of their steps {where} (least: "

        def told(person: int) -> str:
            return f"{share[person]:.0%} of the steps are {where}"

        yield from _of_some(data, alone, told, many, share, lambda person: f" {share[person]:.0%}")


def visited_by_several(demonstrator: Array, observation: Array) -> Array:
    """(step,) whether anybody else visits the unique observation of each step; both columns are indices, (step,)."""
    people = int(demonstrator.max()) + 1
    pairs = np.unique(observation * people + demonstrator)
    return np.bincount(pairs // people)[observation] > 1


def _of_actions(data: Demonstrations) -> Iterator[Finding]:
    if data.discrete:
        taken = np.unique(data.actions)
        first = np.arange(min(data.action_count, len(taken) + 8))  # as many as must be looked through to name eight
        labels = first if data.encoding is None else data.encoding.labels
        if never := [printable(str(labels[action])) for action in np.setdiff1d(first, taken)[:8]]:
            yield Finding("actions", f"{', '.join(never)} of {data.action_count} never taken by anybody")
        return
    for axis in range(data.actions.shape[1]):
        name = f"actions[{axis}]" if data.encoding is None else printable(data.encoding.action[axis])
        values = np.unique(data.actions[:, axis])
        if len(values) == 1:
            yield Finding(name, f"always {values[0]:g}: leave this dimension out")
        elif len(values) == 2:
            yield Finding(
                name,
                f"two values only ({values[0]:g}, {values[1]:g}), like a gripper: its spread says nothing of "
                "expertise, so VarianceScaling leaves it unscaled",
            )


def _of_copies(data: Demonstrations) -> Iterator[Finding]:
    bounds = np.searchsorted(data.episode, np.arange(data.episode_count + 1))
    seen: dict[bytes, int] = {}
    copies = []
    for number in np.flatnonzero(np.diff(bounds) >= _SHORT_EPISODE).tolist():
        steps = slice(*bounds[number : number + 2])
        content = data.observations[steps].tobytes() + data.actions[steps].tobytes()
        if seen.setdefault(content, number) != number:
            copies.append(number)
    if copies:
        yield Finding("episodes", f"{len(copies):,} are exact copies of others (first: episode {copies[0]}): drop them")
