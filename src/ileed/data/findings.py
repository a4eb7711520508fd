"""Findings: what a careful colleague would point out in a data set before it is fitted.

Most are facts to know. Those that are `serious` make the results of a fit wrong or meaningless, so that a fit warns of
them: features that give away the action, the demonstrator or the time, names that differ only in spelling, repeated
header rows, and columns whose values preprocessing cannot tell apart. docs/decisions/findings.md gives the rules.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ileed.data.collapsing import (
    Collapsed,
    Uncollapsed,
    distinct_rows,
    distinct_values,
    input_moments_of,
    moments,
    unscaled_inputs,
)
from ileed.data.rules import Array, listed
from ileed.errors import counted, printable

if TYPE_CHECKING:
    from ileed.data import Demonstrations

_ENOUGH_STEPS = 400  # a share counted over n steps is known to within 0.98 / sqrt(n): 0.05 at 400
_FEW_PEOPLE = 8  # a line for each of so many; more are told in one
_NAMED = 3
_FIRST_STEPS = 1000  # where most dimensions already show more than two values
_SHORT_EPISODE = 10  # shorter ones repeat by themselves
_ENOUGH_ENDS = 20  # episodes by which it is known whether their first observation predicts the last
_MOST_ENDS = 1_000  # episodes that are looked at
_VARIED_END = 0.25  # of a feature's variance over all steps, that its last values have at least to count as different
_LEAST_PREDICTED = 0.1  # cross-validated R^2
_RIDGES = (0.01, 0.1, 1.0, 10.0, 100.0)


class Finding(NamedTuple):
    """Something worth knowing before a fit: what it is about, what it says, and whether a fit warns of it."""

    about: str
    says: str
    serious: bool = False


def findings(data: Demonstrations) -> list[Finding]:
    """Thin, useless or suspicious parts of the data, in words; the serious ones first."""
    collapsed = data.collapsed()
    facts = (_of_demonstrators(data), _of_observations(data, collapsed), _of_actions(data), _of_copies(data))
    lost = lost_values(data, collapsed.varying, _preprocessing(data, collapsed))
    found = [*suspicions(data), *lost, *(finding for each in facts for finding in each)]
    return sorted(found, key=lambda finding: not finding.serious)


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


def _of_observations(data: Demonstrations, collapsed: Collapsed | Uncollapsed) -> Iterator[Finding]:
    if says := unpredicted_ends(data):
        yield Finding("observations", says)
    if constant := data.observation_size - len(collapsed.varying):
        inputs = data.encoding.inputs if data.encoding is not None else ()
        fixed = np.delete(np.array(inputs), collapsed.varying).tolist() if inputs else ()
        named = f" ({listed(fixed, 8, show=printable)})" if fixed else ""
        counts = f"{constant:,} of {data.observation_size:,} numbers never vary"
        yield Finding("observations", f"{counts}{named}; the fit leaves them out")
    distinct = collapsed.unique_count
    if not collapsed.repeats or 2 * distinct > len(data):
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
    if data.action_count:
        taken = distinct_values(data, data.actions)
        first = np.arange(min(data.action_count, len(taken) + 8))  # as many as must be looked through to name eight
        labels = first if data.encoding is None else data.encoding.labels
        if never := [printable(str(labels[action])) for action in np.setdiff1d(first, taken)[:8]]:
            yield Finding("actions", f"{', '.join(never)} of {data.action_count} never taken by anybody")
        return
    for axis in range(data.actions.shape[1]):
        name = _action_name(data, axis)
        if len(np.unique(data.actions[:_FIRST_STEPS, axis])) > 2:
            continue
        values = distinct_values(data, data.actions[:, axis])
        if len(values) == 1:
            yield Finding(name, f"always {values[0]:g}: leave this dimension out")
        elif len(values) == 2:
            found = f"two values only ({values[0]:g}, {values[1]:g}), like a gripper"
            yield Finding(name, f"{found}: its spread says nothing of expertise, which leaves it out")


def first_copies(data: Demonstrations) -> Array:
    """(episode,) the number of the first episode with the same observations and actions; short episodes stand alone."""
    bounds = data.episode_bounds
    found, seen = np.arange(data.episode_count), dict[bytes, int]()
    for number in np.flatnonzero(np.diff(bounds) >= _SHORT_EPISODE).tolist():
        steps = slice(*bounds[number : number + 2])
        content = hashlib.blake2b(np.ascontiguousarray(data.observations[steps]).data, digest_size=16)
        content.update(np.ascontiguousarray(data.actions[steps]).data)
        found[number] = seen.setdefault(content.digest(), number)
    return found


def unpredicted_ends(data: Demonstrations) -> str:
    """Whether episodes of continuous actions end in different states that nothing at their beginning predicts.

    Then something that the observations do not show, such as an object or a goal, decides where an episode leads. A
    ridge regression predicts the last value of every feature from the first observation, and its leave-one-out R^2 is
    compared. Empty where the end of some feature is predicted, where all episodes end alike, or for fewer than 20.
    """
    if data.discrete or data.episode_count < _ENOUGH_ENDS:
        return ""
    some = np.unique(np.linspace(0, data.episode_count - 1, _MOST_ENDS).astype(np.int64))
    starts, stops = data.episode_bounds[some], data.episode_bounds[some + 1] - 1
    first, last = (np.asarray(data.observations[rows], np.float64) for rows in (starts, stops))
    first, last = (each.reshape(len(each), -1) for each in (first, last))
    _, deviation = moments([np.asarray(data.observations[_some_steps(data, 64, 1024)]).reshape(-1, first.shape[1])])
    varied = last.var(0) > _VARIED_END * np.square(deviation)
    spread = first.std(0)
    if not varied.any() or not np.isfinite(first).all() or not np.isfinite(last).all():
        return ""
    known = (first - first.mean(0))[:, spread > 0] / spread[spread > 0]
    ends = (last - last.mean(0))[:, varied]
    axes, sizes, _ = np.linalg.svd(known, full_matrices=False)
    best = -np.inf
    for ridge in _RIDGES:
        kept = np.square(sizes) / (np.square(sizes) + ridge * len(known))
        leverage = (np.square(axes) * kept).sum(1) + 1 / len(known)
        left = (ends - axes @ (kept[:, None] * (axes.T @ ends))) / (1 - leverage)[:, None]
        best = max(best, float((1 - np.square(left).sum(0) / np.square(ends).sum(0)).max()))
    if best >= _LEAST_PREDICTED:
        return ""
    return (
        f"episodes end in different states, and their first observation predicts none of them (R^2 "
        f"{max(best, 0):.2f}): if an object or a goal is missing there, expertise measures regularity rather than skill"
    )


def _of_copies(data: Demonstrations) -> Iterator[Finding]:
    copies = np.flatnonzero(first_copies(data) != np.arange(data.episode_count)).tolist()
    if copies:
        yield Finding("episodes", f"{len(copies):,} are exact copies of others (first: episode {copies[0]}): drop them")


# --- data that cannot be right

_ENOUGH_TO_JUDGE = 100  # steps: a rule without an exception in fewer may be chance
_RARE = 10  # steps of the second most frequent action, and steps for each value of an identifier
_MANY_EPISODES = 30  # whole numbers that differ in as many episodes are hardly measurements: ages would repeat
_MOST = 0.9  # of the steps
_MOST_FEATURES = 4_096  # an observation of more numbers is an image, none of whose pixels is a feature by itself
_BLOCKS, _BLOCK_STEPS = 64, 64  # steps that are looked at first; a rule must hold there before it is tried on all
_COUNTED_AT_ONCE = 1 << 16
_NUMBERS_AT_ONCE = 1 << 21
_EXACT = 1e-9  # a correlation nearer to 1 than this is that of a copy, in any units
_EPOCH = 1e9, 2.2e9  # Unix seconds from 2001 to 2039
_PER_SECOND = 1, 10**3, 10**6, 10**9
_LEAKS = "check whether it was recorded after acting or restates the action, and leave it out of the features if so"


def suspicions(data: Demonstrations) -> list[Finding]:
    """Names, rows and features that cannot be right, or that a policy should not read."""
    return [*_of_spelling(data), *_of_headers(data), *_of_features(data), *_of_lost_actions(data)]


def _of_spelling(data: Demonstrations) -> Iterator[Finding]:
    alike: dict[str, list[str]] = {}
    for name in data.names:
        alike.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    same = [" and ".join(map(ascii, names[:_NAMED])) for names in alike.values() if len(names) > 1]
    if same:
        why = "differ only by case, spaces or Unicode form: use one name where they are one demonstrator"
        yield Finding("demonstrators", f"{listed(same, _NAMED, show=str)} {why}", serious=True)


def _of_headers(data: Demonstrations) -> Iterator[Finding]:
    """Rows of a table that hold the names of its columns, as `cat a.csv b.csv` leaves them."""
    encoding = data.encoding
    if encoding is None:
        return
    repeated = {
        encoding.inputs.index(f"{feature.name} = {feature.name}"): feature.name
        for feature in encoding.features
        if feature.categories is not None and feature.name in feature.categories
    }
    rows, names = 0, list(repeated.values())
    if repeated:
        rows = int(data.observations[:, list(repeated)].any(axis=1).sum())
    if encoding.action[0] in encoding.labels:
        names.append(encoding.action[0])
        rows = max(rows, int((data.actions == encoding.labels.index(encoding.action[0])).sum()))
    if rows:
        holds = f"{counted(rows, 'row')} with the column's own name, like the header of a second file"
        says = f"{holds}: delete every such row and read the file again"
        yield Finding(listed(names, show=printable), says, serious=True)


class _Feature(NamedTuple):
    """A column of features: its name, its inputs, and whether it holds categories."""

    name: str
    inputs: slice
    is_category: bool

    def values(self, data: Demonstrations, rows: Array | slice) -> Array:
        """(row,) numbers, or the number of the category."""
        found = data.observations.reshape(len(data), -1)[:, self.inputs][rows]
        return found.argmax(axis=1) if self.is_category else found[:, 0]


def _features(data: Demonstrations) -> Iterator[_Feature]:
    if data.encoding is None:
        for place in range(data.observation_size):
            yield _Feature(input_name(data, place), slice(place, place + 1), is_category=False)
        return
    first = 0
    for feature in data.encoding.features:
        yield _Feature(feature.name, slice(first, first + len(feature.inputs)), feature.categories is not None)
        first += len(feature.inputs)


def input_name(data: Demonstrations, place: int) -> str:
    """The name of one number of an observation: that of a table's column, or its place."""
    if data.encoding is not None:
        return data.encoding.inputs[place]
    return f"observations[{', '.join(str(int(each)) for each in np.unravel_index(place, data.observations.shape[1:]))}]"


def _of_features(data: Demonstrations) -> Iterator[Finding]:
    """Features that give away what a policy must not know; those of a few steps are tried on all, or on a million."""
    if data.observation_size > _MOST_FEATURES:
        return
    few = _some_steps(data, _BLOCKS, _BLOCK_STEPS)
    every = _some_steps(data, 1_024, 1_024)
    for feature in _features(data):
        if data.action_size and _copies_action(data, feature, few) and _copies_action(data, feature, every):
            says = f"is a dimension of the action, up to its unit: {_LEAKS}"
            yield Finding(printable(feature.name), says, serious=True)
        elif _Suspect.of(data, feature, few).is_suspicious:
            yield from _Suspect.of(data, feature, every).findings(data, every)


def _copies_action(data: Demonstrations, feature: _Feature, rows: Array | slice) -> bool:
    """Whether a number is one of the dimensions of a continuous action, or a linear function of it."""
    others = [axis for axis in range(data.actions.shape[1]) if axis not in data.binary_dimensions]
    values, actions = feature.values(data, rows).astype(np.float64), data.actions[rows][:, others].astype(np.float64)
    if feature.is_category or len(values) < _ENOUGH_TO_JUDGE:
        return False
    apart, moves = values - values.mean(), actions - actions.mean(axis=0)
    size = np.sqrt(np.square(apart).sum() * np.square(moves).sum(axis=0))
    return bool((np.abs(apart @ moves) > (1 - _EXACT) * np.maximum(size, np.finfo(np.float64).tiny)).any())


def _some_steps(data: Demonstrations, blocks: int, size: int) -> Array | slice:
    """Blocks of consecutive steps at even distances, or all steps."""
    if len(data) <= blocks * size:
        return slice(None)
    first = np.linspace(0, len(data) - size, blocks).astype(np.int64)
    return (first[:, None] + np.arange(size)).ravel()


def _pairs(one: Array, other: Array) -> Array:
    """The first of each distinct pair of values of two columns, both of whole numbers from 0 on, sorted."""
    radix = int(other.max()) + 1
    codes = one * radix + other
    if (int(one.max()) + 1) * radix > _COUNTED_AT_ONCE:
        return np.asarray(np.unique(codes) // radix)
    return np.asarray(np.flatnonzero(np.bincount(codes)) // radix)


def _determines(one: Array, other: Array) -> bool:
    """Whether each value of one column goes with one value of the other."""
    return bool(np.bincount(_pairs(one, other)).max() == 1)


class _Suspect(NamedTuple):
    """A feature at some steps, beside who acted, in which episode, and how."""

    feature: _Feature
    values: Array
    kind: Array  # (row,) the number of the value among the distinct ones
    demonstrator: Array
    episode: Array
    action: Array | None  # of discrete actions

    @classmethod
    def of(cls, data: Demonstrations, feature: _Feature, rows: Array | slice) -> _Suspect:
        values = feature.values(data, rows)
        kind = np.unique(values, return_inverse=True)[1]
        action = data.actions[rows] if data.discrete else None
        return cls(feature, values, kind, data.demonstrator[rows], data.episode[rows], action)

    @property
    def is_suspicious(self) -> bool:
        if not self.kind.any():
            return False
        return self.gives_away_action or self.names_demonstrator or self.names_episode or self.is_time or self.is_clock

    @property
    def repeats(self) -> bool:
        """Whether values recur enough for a rule about them to be more than chance."""
        return len(self.kind) >= max(_ENOUGH_TO_JUDGE, _RARE * (int(self.kind.max()) + 1))

    @property
    def gives_away_action(self) -> bool:
        """Whether each value goes with one action, whoever of several demonstrators meets it."""
        if self.action is None or not self.repeats or not _determines(self.kind, self.action):
            return False
        shared = (np.bincount(_pairs(self.kind, self.demonstrator)) > 1)[self.kind]
        taken = np.sort(np.bincount(self.action[shared], minlength=2))
        return bool(2 * shared.sum() >= len(shared) and taken[-2] >= _RARE)

    @property
    def names_demonstrator(self) -> bool:
        """Whether each value is of one demonstrator alone, or the feature is a flag that one demonstrator alone has.

        A value must recur in several episodes: one that is constant in an episode may be a parameter of the task.
        """
        if not self.repeats or self.demonstrator.min() == self.demonstrator.max():
            return False
        people, episodes = (np.bincount(_pairs(self.kind, other)) for other in (self.demonstrator, self.episode))
        if not (people == 1).any() or (episodes > 1)[self.kind].mean() < _MOST:
            return False
        return bool((people == 1).all()) or _determines(self.demonstrator, self.kind)

    @property
    def names_episode(self) -> bool:
        """Whether it is a category or a whole number that is constant in each episode, and another in each."""
        episodes = np.unique(self.episode, return_inverse=True)[1]
        count = int(episodes.max()) + 1
        if count < _MANY_EPISODES or len(episodes) < 2 * count or int(self.kind.max()) + 1 != count:
            return False
        is_label = self.feature.is_category or bool((self.values == np.round(self.values)).all())
        return is_label and _determines(self.kind, episodes)

    @property
    def is_time(self) -> bool:
        """Whether it looks like Unix time: values of its size that never fall within an episode."""
        low, high = float(self.values.min()), float(self.values.max())
        is_epoch = any(_EPOCH[0] * unit <= low and high <= _EPOCH[1] * unit for unit in _PER_SECOND)
        return is_epoch and bool((self._changes() >= 0).all())

    @property
    def is_clock(self) -> bool:
        """Whether it rises at every step of every episode."""
        changes = self._changes()
        return len(changes) >= _ENOUGH_TO_JUDGE and 2 * len(changes) >= len(self.values) and bool((changes > 0).all())

    def _changes(self) -> Array:
        """From each step to the next of its episode."""
        values = self.values if self.values.dtype.kind == "f" else self.values.astype(np.float64)
        return np.diff(values)[self.episode[1:] == self.episode[:-1]]

    def findings(self, data: Demonstrations, rows: Array | slice) -> Iterator[Finding]:
        """What holds of the feature at all steps, in words; the first thing is enough."""
        about, leave_out = printable(self.feature.name), "leave it out of the features"
        if self.is_time:
            low, high = float(self.values.min()), float(self.values.max())
            unit = next(unit for unit in _PER_SECOND if high <= _EPOCH[1] * unit)
            days = " to ".join(str(datetime.fromtimestamp(each / unit, UTC).date()) for each in (low, high))
            says = f"looks like Unix time, from {days}: a policy that reads it learns dates"
            yield Finding(about, f"{says}; {leave_out}, or derive what matters, such as the hour", serious=True)
        elif self.names_demonstrator:
            says = "tells demonstrators apart by itself, like a name or an identifier: check whether it was seen before"
            yield Finding(about, f"{says} acting and may matter; {leave_out} otherwise", serious=True)
        elif self.names_episode:
            says = "has a value of its own in each episode, like an identifier: a policy can learn episodes by heart"
            yield Finding(about, f"{says}; {leave_out}", serious=True)
        elif self.gives_away_action and not self._others_do_too(data, rows):
            says = f"determines the action of every demonstrator without an exception: {_LEAKS}"
            yield Finding(about, says, serious=True)
        elif self.is_clock:
            says = "rises at every step of every episode, like a clock: a policy can replay episodes by it"
            yield Finding(about, f"{says}; check whether it should be a feature")

    def _others_do_too(self, data: Demonstrations, rows: Array | slice) -> bool:
        """Whether the rest of the observation determines the action too, or is constant: experts are deterministic."""
        assert self.action is not None
        flat = data.observations[rows].reshape(-1, data.observation_size)
        others = np.delete(flat, np.arange(self.feature.inputs.start, self.feature.inputs.stop), axis=1)
        first, kind = distinct_rows(others)
        return len(first) == 1 or (2 * len(first) <= len(kind) and _determines(kind, self.action))


# --- values that preprocessing cannot tell apart


def lost_values(data: Demonstrations, varying: Array, preprocess: Callable[[Array], Array]) -> Iterator[Finding]:
    """Columns of which fewer than half the distinct values are left once they are preprocessed.

    `varying` indexes the numbers of an observation that a fit reads, and `preprocess` makes (row, varying) network
    inputs of (row, ...) observations. Judged by up to 4,096 steps.
    """
    size = min(_BLOCK_STEPS, max(1, _NUMBERS_AT_ONCE // _BLOCKS // max(1, len(varying))))
    steps = _some_steps(data, _BLOCKS, size)
    observations = data.observations[steps]
    given = observations.reshape(-1, data.observation_size)[:, varying]
    before, after = _distinct_counts(given), _distinct_counts(preprocess(observations))
    for place in np.flatnonzero(2 * after < np.maximum(before, 3)).tolist():
        values = given[:, place]
        if before[place] < 2:
            continue
        says = f"{before[place]:,} distinct values become {after[place]:,} in preprocessing"
        ends = f"they lie between {values.min():.6g} and {values.max():.6g}"
        advice = "repair outliers and placeholders for missing values, or rescale the column"
        yield Finding(printable(input_name(data, int(varying[place]))), f"{says} ({ends}): {advice}", serious=True)


def _of_lost_actions(data: Demonstrations) -> Iterator[Finding]:
    """Dimensions of continuous actions of which single precision keeps fewer than half the distinct values apart."""
    if not data.action_size:
        return
    given = data.actions[_some_steps(data, _BLOCKS, _BLOCK_STEPS)]
    before, after = _distinct_counts(given), _distinct_counts(given.astype(np.float32))
    for axis in np.flatnonzero(2 * after < before).tolist():
        says = f"{before[axis]:,} distinct values become {after[axis]:,} in single precision"
        yield Finding(_action_name(data, axis), f"{says}: subtract a constant from this dimension", serious=True)


def _action_name(data: Demonstrations, axis: int) -> str:
    return f"actions[{axis}]" if data.encoding is None else printable(data.encoding.action[axis])


def _distinct_counts(rows: Array) -> Array:
    """(column,) how many distinct values each column of (row, column) has."""
    return np.asarray((np.diff(np.sort(rows, axis=0), axis=0) != 0).sum(axis=0) + 1)


def _preprocessing(data: Demonstrations, collapsed: Collapsed | Uncollapsed) -> Callable[[Array], Array]:
    """What a fit with the usual settings makes of observations."""
    unscaled = unscaled_inputs(data, collapsed)
    if collapsed.repeats:
        weight = np.bincount(collapsed.observation_index, collapsed.count, minlength=collapsed.unique_count)
        rows, share = collapsed.observations.astype(np.float64), weight / weight.sum()
        mean = share @ rows
        deviation = np.sqrt(share @ (rows - mean) ** 2)
    else:
        mean, deviation = input_moments_of(collapsed)
    shift = np.where(unscaled, 0, mean)
    scale = np.where(unscaled | (deviation == 0), 1, deviation)

    def preprocess(observations: Array) -> Array:
        seen = observations.reshape(len(observations), -1)[:, collapsed.varying].astype(collapsed.dtype)
        return np.asarray(((seen - shift) / scale).astype(np.float32))

    return preprocess
