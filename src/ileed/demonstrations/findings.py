"""Findings: what a careful colleague would point out in a data set before anybody fits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ileed.demonstrations.rules import Array
from ileed.wording import counted, printable

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
    steps = data.steps_each
    episodes = np.bincount(data.episode_demonstrator, minlength=len(data.names))

    def few(person: int) -> str:
        return (
            f"{counted(int(steps[person]), 'step')} in {counted(int(episodes[person]), 'episode')}: expertise will be "
            f"poorly determined (give or take {0.98 * steps[person] ** -0.5:.2f} at best)"
        )

    thin = np.flatnonzero((steps > 0) & (steps < _ENOUGH_STEPS))
    yield from _of_people(
        data,
        np.flatnonzero(steps == 0),
        lambda person: "no steps at all: the name is known but expertise cannot be",
        lambda first: f"have no steps at all: the names are known but expertise cannot be (first: {first})",
        lambda person: "",
    )
    yield from _of_people(
        data,
        thin[np.argsort(steps[thin], kind="stable")] if len(thin) > _FEW_PEOPLE else thin,
        few,
        lambda first: (
            f"have fewer than {_ENOUGH_STEPS} steps each: expertise will be poorly determined (fewest: {first})"
        ),
        lambda person: " " + counted(int(steps[person]), "step"),
    )
    yield from _of_people(
        data,
        np.flatnonzero((steps >= _ENOUGH_STEPS) & (episodes == 1)),
        lambda person: "one episode: none of it can be held out",
        lambda first: f"have one episode each: none of it can be held out (first: {first})",
        lambda person: "",
    )


_FEW_PEOPLE = 8  # a line for each of so many; more are told in one
_NAMED = 3


def _of_people(
    data: Demonstrations,
    people: Array,
    one: Callable[[int], str],
    many: Callable[[str], str],
    detail: Callable[[int], str],
) -> Iterator[Finding]:
    """What holds for some demonstrators: `one` says it of each, or `many` of all, with the first of them by name.

    `detail` is what stands after such a name.
    """
    if len(people) <= _FEW_PEOPLE:
        yield from (Finding(data.names[person], one(person)) for person in people.tolist())
        return
    first = ", ".join(f"{shortened(data.names[person])!r}{detail(person)}" for person in people[:_NAMED].tolist())
    yield Finding("demonstrators", f"{len(people):,} of {len(data.names):,} {many(first)}")


def _observations_worth_a_look(data: Demonstrations) -> Iterator[Finding]:
    collapsed = data.collapse()
    constant = data.observation_size - len(collapsed.varying)
    if constant:
        yield Finding(
            "observations",
            f"{constant:,} of {data.observation_size:,} numbers never vary"
            f"{_names_of_constant(data, collapsed.varying)}; the fit leaves them out",
        )
    places = len(collapsed.observations)
    if 2 * places <= len(data):
        yield Finding(
            "observations", f"{places:,} are distinct among {len(data):,} steps: the fit counts them once each"
        )
        shared = visited_by_several(data.demonstrator, collapsed.step_observation_index)
        share = np.bincount(data.demonstrator, shared, len(data.names)) / np.maximum(data.steps_each, 1)
        alone = (
            np.flatnonzero((share < 0.5) & (data.steps_each > 0)) if len(data.names) > 1 else np.array([], dtype=int)
        )
        yield from _of_people(
            data,
            alone[np.argsort(share[alone], kind="stable")] if len(alone) > _FEW_PEOPLE else alone,
            lambda person: (
                f"{share[person]:.0%} of the steps are at observations that anybody else visits: the comparison rests "
                "on how the networks generalise"
            ),
            lambda first: (
                "take less than half of their steps at observations that anybody else visits: the comparison rests on "
                f"how the networks generalise (least: {first})"
            ),
            lambda person: f" {share[person]:.0%}",
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
        if never := [_label_of_action(data, int(action)) for action in np.setdiff1d(first, taken)[:8]]:
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


def _label_of_action(data: Demonstrations, action: int) -> str:
    return str(action) if data.encoding is None else printable(str(data.encoding.labels[action]))


def _names_of_constant(data: Demonstrations, varying: Array, most: int = 8) -> str:
    """Which inputs never vary, where they have names."""
    if data.encoding is None:
        return ""
    names = [printable(name) for place, name in enumerate(data.encoding.inputs) if place not in set(varying.tolist())]
    return f" ({', '.join(names[:most])}{f' and {len(names) - most} more' if len(names) > most else ''})"


def _copies(data: Demonstrations) -> Iterator[Finding]:
    starts = np.flatnonzero(np.append(True, data.episode[1:] != data.episode[:-1]))
    seen: dict[bytes, int] = {}
    copies = []
    stops = np.append(starts[1:], len(data))
    for number in np.flatnonzero(stops - starts >= 10).tolist():  # short episodes repeat by themselves
        first, last = starts[number], stops[number]
        content = data.observations[first:last].tobytes() + data.actions[first:last].tobytes()
        if seen.setdefault(content, number) != number:
            copies.append(number)
    if copies:
        yield Finding("episodes", f"{len(copies):,} are exact copies of others (first: episode {copies[0]}): drop them")


def shortened(name: str, most: int = 60) -> str:
    """A name that a sentence can hold."""
    return name if len(name) <= most else name[: most - 1] + "…"
