"""Findings: thin, useless or suspicious parts of a data set, reported before it is fitted.

Most are facts to know. `serious` ones make the results of a fit wrong or meaningless, so a fit warns of them: features
that give away the action, the demonstrator or the time, names that differ only in spelling, repeated header rows, and
columns whose values preprocessing cannot tell apart. docs/decisions/findings.md gives the rules.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, final

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

_ENOUGH_STEPS = 400  # a share counted over n steps has a 95% CI of +-0.98 / sqrt(n): 0.05 at 400
_FEW_DEMONSTRATORS = 8  # up to this many have a line each
_NAMED = 3
_FIRST_STEPS = 1000  # within which most dimensions show more than two values
_SHORT_EPISODE = 10  # shorter ones may coincide by chance
_ENOUGH_ENDS = 20  # episodes needed to judge whether their first observation predicts the last
_MOST_ENDS = 1_000  # episodes used for that
_VARIED_END = 0.25  # least variance of a feature's last values, as a share of its variance over all steps
_LEAST_PREDICTED = 0.1  # cross-validated R^2
_RIDGES = (0.01, 0.1, 1.0, 10.0, 100.0)
_ENOUGH_TO_JUDGE = 100  # steps: a rule without an exception in fewer may be chance
_RARE = 10  # steps of the second most frequent action, and steps per value of an identifier
_MANY_EPISODES = 30  # whole numbers that differ in this many episodes are hardly measurements: ages would repeat
_MOST = 0.9  # of the steps
_MOST_FEATURES = 4_096  # a longer observation is an image, whose pixels are not features
_BLOCKS, _BLOCK_STEPS = 64, 64  # the sample on which a rule is tried before all steps
_COUNTED_AT_ONCE = 1 << 16
_NUMBERS_AT_ONCE = 1 << 21
_EXACT = 1e-9  # a correlation closer to 1 than this is that of a copy in other units
_EPOCH = 1e9, 2.2e9  # Unix seconds from 2001 to 2039
_PER_SECOND = 1, 10**3, 10**6, 10**9
_LEAKS = "check whether it was recorded after acting or restates the action, and leave it out of the features if so"


class Finding(NamedTuple):
    """Something worth knowing before a fit: its subject, a sentence, and whether a fit warns of it."""

    about: str
    says: str
    serious: bool = False


def findings(data: Demonstrations) -> list[Finding]:
    """All findings, the serious ones first."""
    collapsed = data.collapsed()
    found = [
        *suspicions(data),
        *lost_values(data, collapsed.varying, _preprocessing(data, collapsed)),
        *_check_demonstrators(data),
        *_check_observations(data, collapsed),
        *_check_actions(data),
    ]
    copies = np.flatnonzero(first_copies(data) != np.arange(data.episode_count)).tolist()
    if copies:
        says = f"{len(copies):,} are exact copies of others (first: episode {copies[0]}): drop them"
        found.append(Finding("episodes", says))
    return sorted(found, key=lambda finding: not finding.serious)


def _check_demonstrators(data: Demonstrations) -> Iterator[Finding]:
    if len(data.names) == 1:
        yield Finding("demonstrators", "there is one: nothing to compare, so only behaviour cloning applies")
    steps, episodes = data.steps_each, np.bincount(data.episode_demonstrator, minlength=len(data.names))

    def step_count(count: int) -> str:
        return counted(count, "step")

    yield from _about_some(data, steps == 0, steps, step_count, "have no steps", "their expertise cannot be known")
    thin, why = (steps > 0) & (steps < _ENOUGH_STEPS), "expertise will be poorly determined"
    if 0 < thin.sum() <= _FEW_DEMONSTRATORS:
        why += f", to within {0.98 * steps[thin].max() ** -0.5:.2f} at best"
    yield from _about_some(data, thin, steps, step_count, f"have fewer than {_ENOUGH_STEPS} steps each", why)
    single, why = (steps >= _ENOUGH_STEPS) & (episodes == 1), "no episode can be held out"
    yield from _about_some(data, single, episodes, lambda count: "1 episode", "have one episode each", why)


def _about_some(
    data: Demonstrations, who: Array, values: Array, show: Callable[[Any], str], many: str, why: str
) -> Iterator[Finding]:
    """A finding about some demonstrators, lowest value first: one for each of a few, or one about all of them."""
    chosen = np.flatnonzero(who)
    chosen = chosen[np.argsort(values[chosen], kind="stable")].tolist()
    if len(chosen) <= _FEW_DEMONSTRATORS:
        yield from (Finding(data.names[each], f"{show(values[each])}: {why}") for each in chosen)
        return
    fewest = ", ".join(f"{printable(data.names[each], 60)!r} {show(values[each])}" for each in chosen[:_NAMED])
    yield Finding("demonstrators", f"{len(chosen):,} of {len(data.names):,} {many}: {why} (fewest: {fewest})")


def _check_observations(data: Demonstrations, collapsed: Collapsed | Uncollapsed) -> Iterator[Finding]:
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
        many = "take less than half of their steps at observations that other demonstrators visit"
        yield from _about_some(
            data, alone, share, lambda one: f"{one:.0%} of the steps at shared observations", many, why
        )


def visited_by_several(demonstrator: Array, observation: Array) -> Array:
    """(step,) whether several demonstrators visit the unique observation of each step; both are (step,) indices."""
    count = int(demonstrator.max()) + 1
    pairs = np.unique(observation * count + demonstrator)
    return np.bincount(pairs // count)[observation] > 1


def _check_actions(data: Demonstrations) -> Iterator[Finding]:
    if data.action_count:
        taken = distinct_values(data, data.actions)
        first = np.arange(min(data.action_count, len(taken) + 8))  # enough to name eight that do not occur
        labels = first if data.encoding is None else data.encoding.labels
        if never := [printable(str(labels[action])) for action in np.setdiff1d(first, taken)[:8]]:
            yield Finding("actions", f"{', '.join(never)} of {data.action_count} never occur")
        return
    for axis in range(data.actions.shape[1]):
        if len(np.unique(data.actions[:_FIRST_STEPS, axis])) > 2:
            continue
        name, values = _action_name(data, axis), distinct_values(data, data.actions[:, axis])
        if len(values) == 1:
            yield Finding(name, f"always {values[0]:g}: leave this dimension out")
        elif len(values) == 2:
            found = f"two values only ({values[0]:g}, {values[1]:g}), like a gripper"
            yield Finding(name, f"{found}: estimates of expertise ignore its standard deviation")


def first_copies(data: Demonstrations) -> Array:
    """(episode,) the first episode with the same observations and actions; short episodes are their own."""
    bounds = data.episode_bounds
    found, seen = np.arange(data.episode_count), dict[bytes, int]()
    for number in np.flatnonzero(np.diff(bounds) >= _SHORT_EPISODE).tolist():
        steps = slice(*bounds[number : number + 2])
        content = hashlib.blake2b(np.ascontiguousarray(data.observations[steps]).data, digest_size=16)
        content.update(np.ascontiguousarray(data.actions[steps]).data)
        found[number] = seen.setdefault(content.digest(), number)
    return found


def unpredicted_ends(data: Demonstrations) -> str:
    """A sentence if episodes of continuous actions end in different states that their first observation cannot predict.

    Then something outside the observations, such as an object or a goal, decides where an episode leads. The last value
    of every feature is predicted by ridge regression from the first observation, and judged by its leave-one-out R^2.
    Empty if some feature is predicted, if all episodes end alike, or for fewer than 20 episodes.
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


# --- data that cannot be right


def suspicions(data: Demonstrations) -> list[Finding]:
    """Names, rows and features that cannot be right, or that a policy should not read."""
    found = [*_check_spelling(data), *_check_headers(data)]
    if data.observation_size <= _MOST_FEATURES:
        found += _check_features(data)
    return [*found, *_check_lost_actions(data)]


def _check_spelling(data: Demonstrations) -> Iterator[Finding]:
    alike: dict[str, list[str]] = {}
    for name in data.names:
        alike.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    same = [" and ".join(map(ascii, names[:_NAMED])) for names in alike.values() if len(names) > 1]
    if same:
        why = "differ only by case, spaces or Unicode form: use one name if they are one demonstrator"
        yield Finding("demonstrators", f"{listed(same, _NAMED, show=str)} {why}", serious=True)


def _check_headers(data: Demonstrations) -> Iterator[Finding]:
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


def _check_features(data: Demonstrations) -> Iterator[Finding]:
    """Features that give away what a policy must not know; tried on a sample before all steps, or a million."""
    if data.encoding is None:
        columns = [(input_name(data, place), 1, False) for place in range(data.observation_size)]
    else:
        features = data.encoding.features
        columns = [(each.name, len(each.inputs), each.categories is not None) for each in features]
    first, few, every = 0, _some_steps(data, _BLOCKS, _BLOCK_STEPS), _some_steps(data, 1_024, 1_024)
    for name, width, is_category in columns:
        inputs, first = slice(first, first + width), first + width
        feature = _Feature(data, few, inputs, is_category)
        if feature.copies_action and _Feature(data, every, inputs, is_category).copies_action:
            yield Finding(printable(name), f"is a dimension of the action, up to its unit: {_LEAKS}", serious=True)
        elif feature.is_suspicious and (found := _Feature(data, every, inputs, is_category).finding(printable(name))):
            yield found


def input_name(data: Demonstrations, place: int) -> str:
    """The name of one number of an observation, or its place."""
    if data.encoding is not None:
        return data.encoding.inputs[place]
    return f"observations[{', '.join(str(int(each)) for each in np.unravel_index(place, data.observations.shape[1:]))}]"


def _some_steps(data: Demonstrations, blocks: int, size: int) -> Array | slice:
    """Evenly spaced blocks of consecutive steps, or all steps."""
    if len(data) <= blocks * size:
        return slice(None)
    first = np.linspace(0, len(data) - size, blocks).astype(np.int64)
    return (first[:, None] + np.arange(size)).ravel()


def _partners(one: Array, other: Array) -> Array:
    """(value,) the number of distinct values of one column beside each value of another; both are indices."""
    radix = int(other.max()) + 1
    codes = one * radix + other
    if (int(one.max()) + 1) * radix > _COUNTED_AT_ONCE:
        return np.bincount(np.unique(codes) // radix)
    return np.bincount(np.flatnonzero(np.bincount(codes)) // radix)


def _determines(one: Array, other: Array) -> bool:
    """Whether each value of one column occurs with a single value of the other."""
    return bool(_partners(one, other).max() == 1)


@final
class _Feature:
    """A column of features at some steps, with the demonstrator, episode and action of each step."""

    def __init__(self, data: Demonstrations, rows: Array | slice, inputs: slice, is_category: bool) -> None:
        found = data.observations.reshape(len(data), -1)[:, inputs][rows]
        self.values = found.argmax(axis=1) if is_category else found[:, 0]
        self.demonstrator, self.episode, self.action = data.demonstrator[rows], data.episode[rows], data.actions[rows]
        self.inputs, self.is_category, self._data, self._rows = inputs, is_category, data, rows

    @cached_property
    def kind(self) -> Array:
        """(row,) the index of each value among the distinct ones."""
        return np.unique(self.values, return_inverse=True)[1]

    @property
    def copies_action(self) -> bool:
        """Whether it is a linear function of a dimension of continuous actions."""
        if self._data.discrete or self.is_category or len(self.values) < _ENOUGH_TO_JUDGE:
            return False
        axes = np.setdiff1d(np.arange(self._data.action_size), self._data.binary_dimensions)
        values, actions = self.values.astype(np.float64), self.action[:, axes].astype(np.float64)
        apart, moves = values - values.mean(), actions - actions.mean(axis=0)
        size = np.sqrt(np.square(apart).sum() * np.square(moves).sum(axis=0))
        return bool((np.abs(apart @ moves) > (1 - _EXACT) * np.maximum(size, np.finfo(np.float64).tiny)).any())

    @property
    def is_suspicious(self) -> bool:
        """Whether any of the rules below holds."""
        if not self.kind.any():
            return False
        return self.gives_away_action or self.names_demonstrator or self.names_episode or self.is_time or self.is_clock

    @property
    def repeats(self) -> bool:
        """Whether values recur often enough for a rule to be more than chance."""
        return len(self.kind) >= max(_ENOUGH_TO_JUDGE, _RARE * (int(self.kind.max()) + 1))

    @property
    def gives_away_action(self) -> bool:
        """Whether each value occurs with one action, also where several demonstrators meet it."""
        if not self._data.discrete or not self.repeats or not _determines(self.kind, self.action):
            return False
        shared = (_partners(self.kind, self.demonstrator) > 1)[self.kind]
        taken = np.sort(np.bincount(self.action[shared], minlength=2))
        return bool(2 * shared.sum() >= len(shared) and taken[-2] >= _RARE)

    @property
    def names_demonstrator(self) -> bool:
        """Whether each value belongs to one demonstrator, or it is a flag that only one demonstrator has.

        Values must recur in several episodes: one that is constant in an episode may be a parameter of the task.
        """
        if not self.repeats or self.demonstrator.min() == self.demonstrator.max():
            return False
        demonstrators, episodes = (_partners(self.kind, other) for other in (self.demonstrator, self.episode))
        if not (demonstrators == 1).any() or (episodes > 1)[self.kind].mean() < _MOST:
            return False
        return bool((demonstrators == 1).all()) or _determines(self.demonstrator, self.kind)

    @property
    def names_episode(self) -> bool:
        """Whether it is a category or a whole number, constant in each episode and different in all of them."""
        episodes = np.unique(self.episode, return_inverse=True)[1]
        count = int(episodes.max()) + 1
        if count < _MANY_EPISODES or len(episodes) < 2 * count or int(self.kind.max()) + 1 != count:
            return False
        is_label = self.is_category or bool((self.values == np.round(self.values)).all())
        return is_label and _determines(self.kind, episodes)

    @property
    def is_time(self) -> bool:
        """Whether it looks like Unix time: of its size, and never falling within an episode."""
        low, high = float(self.values.min()), float(self.values.max())
        is_epoch = any(_EPOCH[0] * unit <= low and high <= _EPOCH[1] * unit for unit in _PER_SECOND)
        return is_epoch and bool((self._changes >= 0).all())

    @property
    def is_clock(self) -> bool:
        """Whether it rises at every step of every episode."""
        changes = self._changes
        return len(changes) >= _ENOUGH_TO_JUDGE and 2 * len(changes) >= len(self.values) and bool((changes > 0).all())

    @cached_property
    def _changes(self) -> Array:
        """Differences between consecutive steps of an episode."""
        values = self.values if self.values.dtype.kind == "f" else self.values.astype(np.float64)
        return np.diff(values)[self.episode[1:] == self.episode[:-1]]

    def finding(self, about: str) -> Finding | None:
        """The most serious rule that holds, in words."""
        leave_out = "leave it out of the features"
        if self.is_time:
            low, high = float(self.values.min()), float(self.values.max())
            unit = next(unit for unit in _PER_SECOND if high <= _EPOCH[1] * unit)
            days = " to ".join(str(datetime.fromtimestamp(each / unit, UTC).date()) for each in (low, high))
            says = f"looks like Unix time, from {days}: a policy that reads it learns dates"
            return Finding(about, f"{says}; {leave_out}, or derive what matters, such as the hour", serious=True)
        if self.names_demonstrator:
            says = "identifies demonstrators, like a name: check whether it was known before acting and may matter"
            return Finding(about, f"{says}; {leave_out} otherwise", serious=True)
        if self.names_episode:
            says = "differs in every episode, like an identifier: a policy can memorise episodes"
            return Finding(about, f"{says}; {leave_out}", serious=True)
        if self.gives_away_action and not self._others_give_it_away:
            says = f"determines the action of every demonstrator without exception: {_LEAKS}"
            return Finding(about, says, serious=True)
        if self.is_clock:
            says = "rises at every step of every episode, like a clock: a policy can replay episodes by it"
            return Finding(about, f"{says}; check whether it should be a feature")
        return None

    @property
    def _others_give_it_away(self) -> bool:
        """Whether the other features determine the action too, or are constant: experts may be deterministic."""
        flat = self._data.observations[self._rows].reshape(-1, self._data.observation_size)
        first, kind = distinct_rows(np.delete(flat, self.inputs, axis=1))
        return len(first) == 1 or (2 * len(first) <= len(kind) and _determines(kind, self.action))


# --- values that preprocessing cannot tell apart


def lost_values(data: Demonstrations, varying: Array, preprocess: Callable[[Array], Array]) -> Iterator[Finding]:
    """Find columns that keep fewer than half of their distinct values in preprocessing, judged by up to 4,096 steps.

    Args:
        data: the demonstrations.
        varying: indices of the numbers of an observation that a fit reads.
        preprocess: converts (row, ...) observations to (row, varying) network inputs.
    """
    size = min(_BLOCK_STEPS, max(1, _NUMBERS_AT_ONCE // _BLOCKS // max(1, len(varying))))
    observations = data.observations[_some_steps(data, _BLOCKS, size)]
    given = observations.reshape(-1, data.observation_size)[:, varying]
    for place, counts in _lost(given, preprocess(observations)):
        name, values = printable(input_name(data, int(varying[place]))), given[:, place]
        ends = f"they lie between {values.min():.6g} and {values.max():.6g}"
        advice = "repair outliers and placeholders for missing values, or rescale the column"
        yield Finding(name, f"{counts} in preprocessing ({ends}): {advice}", serious=True)


def _check_lost_actions(data: Demonstrations) -> Iterator[Finding]:
    """Dimensions of continuous actions that keep fewer than half of their distinct values in single precision."""
    given = data.actions[_some_steps(data, _BLOCKS, _BLOCK_STEPS)]
    for axis, counts in _lost(given, given.astype(np.float32)) if data.action_size else ():
        says = f"{counts} in single precision: subtract a constant from this dimension"
        yield Finding(_action_name(data, axis), says, serious=True)


def _lost(given: Array, converted: Array) -> Iterator[tuple[int, str]]:
    """Columns that keep fewer than half of their distinct values, with both counts in words."""
    before, after = ((np.diff(np.sort(rows, axis=0), axis=0) != 0).sum(axis=0) + 1 for rows in (given, converted))
    for place in np.flatnonzero((2 * after < np.maximum(before, 3)) & (before > 1)).tolist():
        yield place, f"{before[place]:,} distinct values become {after[place]:,}"


def _action_name(data: Demonstrations, axis: int) -> str:
    return f"actions[{axis}]" if data.encoding is None else printable(data.encoding.action[axis])


def _preprocessing(data: Demonstrations, collapsed: Collapsed | Uncollapsed) -> Callable[[Array], Array]:
    """The preprocessing of a fit with default settings."""
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
