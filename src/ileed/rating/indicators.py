"""Indicators of how demonstrators act, without a model: smoothness, path length, idle steps, duration and speed.

They show what an estimate of expertise goes along with. None of them is a measure of skill.

**The signal.** Actions may be positions, velocities, joint targets or pedals, and the data do not say which. All
indicators of movement are therefore functions of the *change* of the action from one step to the next: they depend
neither on the origin nor on the unit of an action. Each dimension is divided by its standard deviation over the steps
whose action differs from the one before, so that a pause in a recording does not change the unit. Binary dimensions,
such as a gripper's, are events rather than movement and are left out, unless all dimensions are binary. With x_t the
standardised action at step t = 1, ..., T of an episode, v_t = |x_{t+1} - x_t| is the speed profile. If actions are
positions, v is the speed of the movement; if they are velocities, it is the size of the acceleration, and a constant
velocity is idle.

**The indicators** of continuous actions. In the formulas, the duration is T - 1 changes:

- `duration`: T, in seconds if the data state a rate (`Demonstrations.fps`), in steps otherwise.
- `path_length`: the sum of v, in standard deviations of the actions.
- `speed`: the mean of v, per second or per step: path length divided by duration.
- `idle_share`: the share of changes with v at most `IDLE` times the 95% quantile of all non-zero changes of the data.
- `spectral_arc_length`: minus the arc length of the magnitude spectrum V of v, normalised by V(0), up to the frequency
  w_c: - int_0^{w_c} sqrt((1/w_c)^2 + (dV/dw)^2) dw, where w_c is the last frequency with V >= 0.05, and at most 10 Hz,
  or half a cycle per step without a stated rate (Balasubramanian, Melendez-Calderon and Burdet 2012, "A robust and
  sensitive metric for quantifying movement smoothness"; with the adaptive w_c of Balasubramanian, Melendez-Calderon,
  Roby-Brami and Burdet 2015, "On the analysis of movement smoothness"). Closer to zero is smoother.
- `log_dimensionless_jerk`: - ln((T - 1)^3 sum_t |third difference of x|^2 / max v^2) (Hogan and Sternad 2009,
  "Sensitivity of smoothness measures to movement duration, amplitude, and arrests"; Balasubramanian et al. 2015). The
  jerk is that of the vector x: the second derivative of v has a spike wherever a movement turns back. A minimum-jerk
  movement has -ln 204.8 = -5.32, and higher is smoother.

Read the two measures of smoothness together. The spectral arc length is made for movements whose speed rises and falls
smoothly. White noise in the actions raises the mean of v, and with it V(0), more than the rest of the spectrum: a
demonstrator who trembles in every velocity command can have the arc length closest to zero. The jerk does not have this
weakness, but it falls with the duration of anything that is not one single movement.

Both are undefined (NaN) for episodes of fewer than four steps and for those without movement, the jerk also where it is
below the rounding of the actions (constant speed); `speed` and `idle_share` are undefined for an episode of one step.
Discrete actions have `duration` and `repeat_share`, the share of steps whose action is that of the step before.

With more than about a million steps, units and the idle threshold come from evenly spaced steps.

`indicators(data, own_policies=True)` adds two that need a small regression, `own_policy_residual` and
`distance_from_common`; `ileed.rating.own_policies` defines them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise
from math import nan
from typing import Any, Literal, NamedTuple, final

import numpy as np
import pyarrow as pa

from ileed._numpy import default_errors, random_stream
from ileed.data import Array, Demonstrations, check_demonstrations
from ileed.errors import SettingsError, brief, counted, did_you_mean, instance_of, printable, seed_of, true_or_false
from ileed.rating.ranks import centred_ranks, rank_correlation, rank_correlations, rank_correlations_of_each

__all__ = ["Explanation", "Indicators", "indicators"]

IDLE = 0.05
"""A change is idle if it is at most this share of the 95% quantile of all non-zero changes."""
MOSTLY_EXPLAINED = 0.5
"""A column is mostly explained by duration and speed if their R^2 with its ranks exceeds this, ..."""
MOSTLY_EXPLAINED_LOW = 0.25
"""... the lower end of the 95% interval of R^2 exceeds this, ..."""
CHANCE = 0.05
"""... and a column without any relation to them reaches such an R^2 with at most this probability."""
CLUSTERS = 8
"""From this number of demonstrators on, intervals of correlations resample demonstrators; below it, episodes."""

_NUISANCES = ("duration", "speed", "path_length")
_REGRESSORS = 2  # the first two: path length is their product
_ROW_COLUMNS = ("episode", "episodes", "key", "demonstrator", "steps")
_INTERVAL = (0.025, 0.975)
_TWO_SIDED_95 = 1.96  # standard errors
_RESAMPLES = 1_000
_PERMUTATIONS = 499
_COUNTS = 1 << 26  # of resampled rows at once: with more than 67,000 episodes there are fewer resamples
_MANY_EPISODES = 500  # of a demonstrator, from which on the mean is normal: nothing is resampled
_FEWEST_PAIRS = 3
_FEWEST_STEPS = 4  # a third difference
_ROUNDING = 4  # root-mean-square third difference of rounded numbers, in units of their precision, at most
_SPECTRUM_FLOOR = 0.05
_HIGHEST_HERTZ = 10.0
_ZERO_PADDING = 16  # at least, of a profile
_COLLINEAR = 1e-9
_SAMPLE = 1 << 20
_NUMBERS_AT_ONCE = 1 << 22

_DIRECTIONS = {  # which episodes score higher where the rank correlation is negative, and where it is positive
    "duration": ("shorter episodes", "longer episodes"),
    "speed": ("slower episodes", "faster episodes"),
    "path_length": ("episodes with a shorter path", "episodes with a longer path"),
}


@default_errors()
def indicators(
    data: Demonstrations,
    *,
    columns: Mapping[str, Array | Mapping[str, float]] | None = None,
    own_policies: bool = False,
    seed: int = 0,
) -> Indicators:
    """Indicators of every episode: smoothness, path length, share of idle steps, duration and speed.

    The module docstring defines each. Discrete actions only have a duration and a share of repeated actions.

    Args:
        data: The demonstrations.
        columns: Further columns by name: (episode,) values in the order of the data's episodes, or a mapping from the
            names of demonstrators, such as `{"expertise": fitted.expertise.by_demonstrator()}`; NaN where a value is
            missing. `Indicators.explained_by` reads `expertise` by default.
        own_policies: Whether to add `own_policy_residual` and `distance_from_common` for continuous actions. A policy
            is fitted to each demonstrator, which takes a few seconds for 100,000 steps.
        seed: Of the bootstrap intervals and of own policies.

    >>> data = Demonstrations(observations=np.zeros((8, 1)), actions=[[0.0], [1.0], [3.0], [4.0]] * 2,
    ...                       demonstrator=["ann"] * 4 + ["bob"] * 4, episode=[0] * 4 + [1] * 4, fps=2)
    >>> found = indicators(data)
    >>> found.episodes().select(["demonstrator", "duration", "idle_share"]).to_pylist()[0]
    {'demonstrator': 'ann', 'duration': 2.0, 'idle_share': 0.0}
    """
    check_demonstrations(data)
    seed = seed_of(seed)
    steps = np.diff(data.episode_bounds)
    computed = {"duration": steps / (data.fps or 1)} | (_of_repeats(data) if data.discrete else _of_movement(data))
    if true_or_false("own_policies", own_policies):
        # torch takes longer to import than the rest to compute
        from ileed.rating.own_policies import own_policy_indicators

        computed |= own_policy_indicators(data, seed=seed)
    values = computed | _checked_columns(columns, data, (*_ROW_COLUMNS, *computed))
    for each in values.values():
        each.setflags(write=False)
    return Indicators(
        values=values,
        names=data.names,
        demonstrator=data.episode_demonstrator,
        keys=tuple(map(str, data.episode_keys.tolist())),
        steps=steps,
        time_unit="step" if data.fps is None else "second",
        seed=seed,
    )


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Indicators:
    """Indicators by episode, their means by demonstrator, and their correlations."""

    values: Mapping[str, Array]
    """(episode,) each indicator, then each column of the caller; NaN where it is undefined or missing."""
    names: tuple[str, ...]
    """The demonstrators."""
    demonstrator: Array = field(repr=False)
    """(episode,) an index into `names`."""
    keys: tuple[str, ...] = field(repr=False)
    """The key of each episode in the source of the data."""
    steps: Array = field(repr=False)
    """(episode,) the number of steps."""
    time_unit: Literal["second", "step"]
    """The unit of `duration` and, inverted, of `speed`."""
    seed: int = 0

    def episodes(self) -> pa.Table:
        """One row for each episode: its number, key, demonstrator and steps, then every indicator."""
        who = [self.names[number] for number in self.demonstrator]
        rows = {"episode": np.arange(len(self.steps)), "key": pa.array(self.keys, pa.string())}
        return pa.table({**rows, "demonstrator": who, "steps": self.steps, **self.values})

    def demonstrators(self) -> pa.Table:
        """One row for each demonstrator: episodes and steps, then NAME, NAME_low and NAME_high of every indicator.

        NAME is the mean over the episodes in which the indicator is defined. The 95% interval is the percentile
        interval of the bootstrap over these episodes (of the normal distribution from 500 episodes on), and NaN with
        fewer than two. With fewer than about ten episodes it is too narrow. A column that is the same in all episodes
        of a demonstrator has an interval of length zero.
        """
        return pa.table({"demonstrator": pa.array(self.names, pa.string()), **self.demonstrator_columns()})

    @default_errors()
    def demonstrator_columns(self) -> dict[str, Array]:
        """The columns of `demonstrators()` after the name, as arrays in the order of `names`."""
        count = len(self.names)
        columns = {
            "episodes": np.bincount(self.demonstrator, minlength=count),
            "steps": np.bincount(self.demonstrator, self.steps, minlength=count).astype(np.int64),
        }
        values, random = np.column_stack([*self.values.values()]), random_stream(self.seed, "indicators")
        rows = _rows_of_each(self.demonstrator, count)
        low, high = np.stack([_mean_intervals(values[own], random) for own in rows], axis=2)
        for number, (name, mean) in enumerate(self.means.items()):
            columns |= {name: mean, f"{name}_low": low[number], f"{name}_high": high[number]}
        return columns

    @cached_property
    def means(self) -> Mapping[str, Array]:
        """(demonstrator,) the mean of each indicator over episodes; NaN where it is defined in none of them."""
        return {name: _group_means(each, self.demonstrator, len(self.names)) for name, each in self.values.items()}

    @default_errors()
    def correlations(self) -> pa.Table:
        """Spearman's rank correlation of each pair of indicators, over episodes and over demonstrators' means.

        NaN where fewer than three have both, or where one of the two is constant.
        """
        pairs = list(combinations(self.values, 2))
        found: dict[str, Any] = {
            "first": pa.array([first for first, _ in pairs], pa.string()),
            "second": pa.array([second for _, second in pairs], pa.string()),
        }
        for level, columns in (("over_episodes", self.values), ("over_demonstrators", self.means)):
            rounded = {name: _without_rounding(each) for name, each in columns.items()}
            found[level] = [_correlation(rounded[first], rounded[second]) for first, second in pairs]
        return pa.table(found)

    @default_errors()
    def explained_by(self, name: str = "expertise") -> Explanation:
        """Whether duration and speed mostly explain a column, such as expertise; see `Explanation`."""
        others = tuple(each for each in self.values if each not in _NUISANCES)
        if name not in others:
            there = ", ".join(map(repr, others)) or "no other column"
            raise SettingsError(
                f"name is {brief(name)}{did_you_mean(name, others)}: choose one of {there}, or pass it to "
                "ileed.indicators(data, columns={NAME: values})",
                code="indicator-unknown",
            )
        nuisances = tuple(each for each in _NUISANCES if np.isfinite(self.values.get(each, nan)).any())
        columns = np.stack([self.values[each] for each in (name, *nuisances)])
        complete = np.isfinite(columns).all(axis=0)
        _, who = np.unique(self.demonstrator[complete], return_inverse=True)
        return _explain(name, nuisances, _without_rounding(columns[:, complete]), who, self.seed)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """How far duration and speed explain the order of a column.

    R^2 is that of the linear regression of the column's ranks on the ranks of duration and speed. It is computed over
    demonstrators' means if the column is constant within each demonstrator, and over episodes otherwise (`level`); rows
    with undefined values are left out (`count` remain). The 95% interval is a percentile interval of the bootstrap over
    demonstrators, with all of their episodes, if there are eight or more; below that, over the episodes of each
    demonstrator. `chance` is the probability of such an R^2 if the column were unrelated to duration and speed, both
    between and within demonstrators: the means of the column are permuted over demonstrators, and the deviations from
    them over the episodes of each demonstrator. With few demonstrators a high R^2 is common, so this decides there;
    with four or fewer, a column that is constant within demonstrators is practically never reported as explained.
    """

    name: str
    level: Literal["demonstrators", "episodes"]
    count: int
    r_squared: float = nan
    low: float = nan
    high: float = nan
    chance: float = nan
    nuisances: tuple[str, ...] = ()
    correlations: Mapping[str, tuple[tuple[float, float, float], ...]] = field(default_factory=dict, repr=False)
    """By level: the rank correlation of each nuisance with the column, and its 95% interval."""

    @property
    def is_mostly_explained(self) -> bool:
        """Whether R^2 exceeds 0.5, the lower end of its interval exceeds 0.25, and chance is at most 0.05."""
        is_high = self.r_squared > MOSTLY_EXPLAINED and self.low > MOSTLY_EXPLAINED_LOW
        return is_high and self.chance <= CHANCE

    def table(self) -> pa.Table:
        """One row for each nuisance: its rank correlation with the column over demonstrators and over episodes."""
        columns: dict[str, Any] = {"indicator": pa.array(self.nuisances, pa.string())}
        for level in ("demonstrators", "episodes"):
            for end, suffix in enumerate(("", "_low", "_high")):
                of_level = self.correlations.get(level, ())
                columns[f"over_{level}{suffix}"] = pa.array([each[end] for each in of_level], pa.float64())
        return pa.table(columns)

    def sentence(self) -> str:
        """Which nuisance mostly explains the column, and in which direction; empty if none does."""
        if not self.is_mostly_explained:
            return ""
        found = {name: each[0] for name, each in zip(self.nuisances, self.correlations[self.level], strict=True)}
        best = max(found, key=lambda name: abs(np.nan_to_num(found[name])))
        column, over = printable(self.name, 100), counted(self.count, self.level.removesuffix("s"))
        if found[best] ** 2 <= MOSTLY_EXPLAINED:
            both = " and ".join(self.nuisances[:_REGRESSORS]).replace("_", " ")
            return f"{column} is mostly explained by {both} together (R^2 of ranks {self.r_squared:.2f} over {over})"
        cause, direction = best.replace("_", " "), _DIRECTIONS[best][int(found[best] > 0)]
        correlation = f"rank correlation {found[best]:.2f} over {over}"
        return f"{column} is mostly explained by {cause} ({correlation}); {direction} score higher"


# --- the caller's columns


def _checked_columns(columns: object, data: Demonstrations, taken: Sequence[str]) -> dict[str, Array]:
    """The columns of the caller as (episode,) arrays in double precision."""
    rule = f"pass a mapping from names to arrays with one number for each of the {data.episode_count:,} episodes"
    given = instance_of("columns", {} if columns is None else columns, Mapping, rule=rule)
    checked: dict[str, Array] = {}
    for name, values in given.items():
        if not isinstance(name, str) or not name or name in taken or name.endswith(("_low", "_high")):
            raise SettingsError(
                f"columns has the name {brief(name)}: pass text other than {', '.join(taken)}, and without the endings "
                "_low and _high, which name the ends of intervals",
                code="columns-name",
            )
        if isinstance(values, Mapping):
            if (missing := next((each for each in data.names if each not in values), None)) is not None:
                raise SettingsError(
                    f"columns[{name!r}] has no value for the demonstrator {brief(missing)}: pass one for each "
                    "demonstrator, NaN where it is missing",
                    code="columns-incomplete",
                )
            values = [values[data.names[number]] for number in data.episode_demonstrator]
        try:
            array = np.array(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"columns[{name!r}] is {brief(values)}: {rule}", code="columns-invalid") from error
        if array.shape != (data.episode_count,):
            raise SettingsError(f"columns[{name!r}] has shape {array.shape}: {rule}", code="columns-shape")
        if np.isinf(array).any():
            raise SettingsError(
                f"columns[{name!r}] has infinite values: pass NaN where a value is missing", code="columns-infinite"
            )
        checked[name] = array
    return checked


# --- by episode


def _of_repeats(data: Demonstrations) -> dict[str, Array]:
    """For discrete actions: the share of steps, from the second on, whose action is that of the step before."""
    repeated = np.append(False, data.actions[1:] == data.actions[:-1])
    bounds = data.episode_bounds
    repeated[bounds[:-1]] = False
    count = np.add.reduceat(repeated, bounds[:-1], dtype=np.int64)
    return {"repeat_share": _ratio(count, np.diff(bounds) - 1)}


def _of_movement(data: Demonstrations) -> dict[str, Array]:
    """For continuous actions: everything but the duration, computed for groups of consecutive episodes."""
    bounds, signal = data.episode_bounds, _Signal.of(data)
    highest = min(0.5, _HIGHEST_HERTZ / data.fps) if data.fps else 0.5
    steps = max(1, _NUMBERS_AT_ONCE // max(1, len(signal.scale)))
    cuts = np.flatnonzero(np.diff(bounds[:-1] // steps)) + 1
    parts = []
    for first, last in pairwise([0, *cuts.tolist(), len(bounds) - 1]):
        begin, end = bounds[first], bounds[last]
        parts.append(_movement_of(signal, data.actions[begin:end], bounds[first : last + 1] - begin, highest))
    movement = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return movement | {"speed": movement["speed"] * (data.fps or 1)}


class _Signal(NamedTuple):
    """The dimensions of actions that make the signal, their units, and the largest change that is idle."""

    dimensions: Array
    scale: Array
    idle: float

    @classmethod
    def of(cls, data: Demonstrations) -> _Signal:
        """Estimated from all steps, or from about a million evenly spaced ones."""
        steps, used = np.arange(0, len(data), 1 + len(data) // _SAMPLE), data.movement_dimensions
        actions, before = (data.actions[rows][:, used].astype(np.float64) for rows in (steps, np.maximum(steps - 1, 0)))
        is_first = np.isin(steps, data.episode_bounds[:-1], assume_unique=True)
        moved = (actions != before).any(axis=1)
        scale = actions[is_first | moved].std(axis=0)
        varying = scale > 0
        signal = cls(used[varying], scale[varying], 0.0)
        changes = _norms((actions - before)[moved & ~is_first][:, varying] / signal.scale)
        changes = changes[changes > 0]
        return signal._replace(idle=IDLE * float(np.quantile(changes, 0.95)) if len(changes) else 0.0)

    def __call__(self, actions: Array) -> Array:
        """(step, dimension) the standardised actions."""
        return np.asarray(actions[:, self.dimensions], dtype=np.float64) / self.scale


def _movement_of(signal: _Signal, actions: Array, bounds: Array, highest: float) -> dict[str, Array]:
    """The indicators of consecutive episodes; `highest` is the upper limit of frequencies, in cycles per step."""
    starts, lengths = bounds[:-1], np.diff(bounds)
    at = np.arange(len(actions)) - np.repeat(starts, lengths)
    x = signal(actions)
    change = np.diff(x, axis=0, prepend=x[:1])
    change[starts] = 0
    speed = _norms(change)
    third = np.diff(x, n=3, axis=0, prepend=x[[0, 0, 0]])
    third[at < _FEWEST_STEPS - 1] = 0
    path, peak = np.add.reduceat(speed, starts), np.maximum.reduceat(speed, starts)
    is_idle = (speed <= signal.idle) & (at > 0)
    enough = (lengths >= _FEWEST_STEPS) & (peak > 0)
    squares = np.add.reduceat(np.square(third).sum(axis=1), starts)
    rounding = np.maximum.reduceat(np.abs(x).max(axis=1, initial=0), starts) * _ROUNDING * np.finfo(actions.dtype).eps
    defined, jerk = enough & (squares > lengths * np.square(rounding)), np.full(len(lengths), nan)
    jerk[defined] = -3 * np.log(lengths[defined] - 1) - np.log(squares[defined] / np.square(peak[defined]))
    return {
        "path_length": path,
        "speed": _ratio(path, lengths - 1),
        "idle_share": _ratio(np.add.reduceat(is_idle, starts, dtype=np.int64), lengths - 1),
        "spectral_arc_length": _spectral_arc_lengths(speed, starts, np.where(enough, lengths - 1, 0), highest),
        "log_dimensionless_jerk": jerk,
    }


def _spectral_arc_lengths(speed: Array, starts: Array, changes: Array, highest: float) -> Array:
    """(episode,) of the speed profiles of (episode,) `changes` after `starts`; NaN for profiles without changes.

    Profiles that have the same number of changes, rounded up to a power of two, are transformed together.
    """
    result = np.full(len(starts), nan)
    widths = 2 ** np.ceil(np.log2(np.maximum(changes, 1))).astype(np.int64)
    for width in np.unique(widths[changes > 0]).tolist():
        chosen = np.flatnonzero((widths == width) & (changes > 0))
        size, at = width * _ZERO_PADDING, np.arange(width)
        for batch in np.array_split(chosen, 1 + len(chosen) * size // _NUMBERS_AT_ONCE):
            inside = at < changes[batch, None]
            profiles = np.zeros(inside.shape)
            profiles[inside] = speed[(starts[batch, None] + 1 + at)[inside]]
            result[batch] = _arc_lengths(np.abs(np.fft.rfft(profiles, size)), int(highest * size))
    return result


def _arc_lengths(spectra: Array, last: int) -> Array:
    """(profile,) minus the arc lengths of (profile, frequency) magnitudes up to their cut-offs, `last` at most."""
    spectra = spectra / spectra[:, :1]
    over = spectra >= _SPECTRUM_FLOOR
    cut = np.minimum(spectra.shape[1] - 1 - over[:, ::-1].argmax(axis=1), last)
    used = max(1, int(cut.max(initial=0)))
    width = 1 / np.maximum(cut, 1)[:, None]
    pieces = np.hypot(width, np.diff(spectra[:, : used + 1], axis=1)) * (np.arange(used) < cut[:, None])
    return np.where(cut > 0, -pieces.sum(axis=1), nan)


def _norms(vectors: Array) -> Array:
    return np.asarray(np.sqrt(np.square(vectors).sum(axis=-1)))


def _ratio(part: Array, whole: Array) -> Array:
    """`part / whole`, NaN where `whole` is zero."""
    return np.where(whole > 0, part / np.maximum(whole, 1), nan)


# --- by demonstrator


def _rows_of_each(who: Array, count: int) -> list[Array]:
    return np.split(np.argsort(who, kind="stable"), np.cumsum(np.bincount(who, minlength=count))[:-1])


def _group_means(values: Array, who: Array, count: int) -> Array:
    """(group,) means of the values that are not NaN."""
    known = ~np.isnan(values)
    return _ratio(np.bincount(who[known], values[known], minlength=count), np.bincount(who[known], minlength=count))


def _mean_intervals(values: Array, random: np.random.Generator) -> Array:
    """(end, column) 95% intervals of the means of (row, column) values over the rows in which a column is not NaN."""
    ends = np.full((2, values.shape[1]), nan)
    known, pattern = np.unique(~np.isnan(values), axis=1, return_inverse=True)
    for number, rows in enumerate(known.T):
        columns = np.flatnonzero(pattern.ravel() == number)
        chosen, count = values[rows][:, columns], int(rows.sum())
        if count >= _MANY_EPISODES:
            reach = _TWO_SIDED_95 * chosen.std(axis=0, ddof=1) / np.sqrt(count)
            ends[:, columns] = chosen.mean(axis=0) + np.stack([-reach, reach])
        elif count >= 2:
            drawn = np.einsum("rn,nk->rk", _draw(count, _RESAMPLES, random) / count, chosen)
            ends[:, columns] = np.quantile(drawn, _INTERVAL, axis=0)
    return ends


# --- correlations


def _without_rounding(values: Array) -> Array:
    """(..., column, row) to twelve digits of each column's largest value, so that rounding breaks no ties."""
    largest = np.nan_to_num(np.abs(values)).max(axis=-1, keepdims=True, initial=0)
    unit = np.where(largest > 0, largest, 1)
    return np.asarray(np.round(values / unit, 12) * unit)


def _correlation(first: Array, second: Array) -> float:
    both = np.isfinite(first) & np.isfinite(second)
    return rank_correlation(first[both], second[both]) if both.sum() >= _FEWEST_PAIRS else nan


def _explain(name: str, nuisances: tuple[str, ...], columns: Array, who: Array, seed: int) -> Explanation:
    """Explain the first of (column, episode) values by the others; `who` numbers the demonstrators from 0 on."""
    count = int(who.max(initial=-1)) + 1
    means = _without_rounding(np.stack([_group_means(each, who, count) for each in columns]))
    of_each = [columns[0, rows] for rows in _rows_of_each(who, means.shape[1])]
    is_fixed = all((own == own[:1]).all() for own in of_each)
    level: Literal["demonstrators", "episodes"] = "demonstrators" if is_fixed else "episodes"
    values, groups = (means, np.arange(means.shape[1])) if is_fixed else (columns, who)
    count = values.shape[1]
    if count < _FEWEST_PAIRS:
        by_level = dict.fromkeys(("demonstrators", "episodes"), ((nan, nan, nan),) * len(nuisances))
        return Explanation(name=name, level=level, count=count, nuisances=nuisances, correlations=by_level)
    samples = {"demonstrators": means, "episodes": columns}
    found = {each: rank_correlations_of_each([rows])[0] for each, rows in samples.items()}
    drawn = _resampled(means, columns, who, seed)
    r_squared = float(_r_squared(found[level]))
    low, high = _quantiles(_r_squared(drawn[level]))
    correlations = {
        each: tuple((float(found[each][0, z]), *_quantiles(drawn[each][:, 0, z])) for z in range(1, len(columns)))
        for each in found
    }
    return Explanation(
        name=name,
        level=level,
        count=count,
        r_squared=r_squared,
        low=low,
        high=high,
        chance=_chance(values, groups, r_squared, seed),
        nuisances=nuisances,
        correlations=correlations,
    )


def _resampled(means: Array, columns: Array, who: Array, seed: int) -> dict[str, Array]:
    """(resample, column, column) rank correlations by level; resamples demonstrators or, if these are few, episodes."""
    random, count = random_stream(seed, "indicators", "correlations"), means.shape[1]
    resamples = min(_RESAMPLES, max(100, _COUNTS // len(who)))
    if count >= CLUSTERS:
        drawn = _draw(count, resamples, random)
        return {"demonstrators": rank_correlations(means, drawn), "episodes": rank_correlations(columns, drawn[:, who])}
    drawn = np.zeros((resamples, len(who)), dtype=np.int32)
    each = np.zeros((resamples, *means.shape))
    for number, rows in enumerate(_rows_of_each(who, count)):
        drawn[:, rows] = _draw(len(rows), resamples, random)
        each[:, :, number] = np.einsum("rn,kn->rk", drawn[:, rows] / len(rows), columns[:, rows])
    of_means = rank_correlations_of_each(_without_rounding(each))
    return {"demonstrators": of_means, "episodes": rank_correlations(columns, drawn)}


def _draw(count: int, resamples: int, random: np.random.Generator) -> Array:
    """(resample, row) how often each of `count` rows is drawn, with replacement."""
    return random.multinomial(count, np.full(count, 1 / count), resamples).astype(np.int32)


def _r_squared(correlations: Array) -> Array:
    """R^2 of the first of (..., column, column) by the next two; NaN where the first is constant."""
    r_squared = _joint_r_squared(correlations[..., 0, 1 : 1 + _REGRESSORS], correlations[..., 1:, 1:])
    return np.where(np.isnan(correlations[..., 0, 0]), nan, r_squared)


def _joint_r_squared(with_column: Array, among: Array) -> Array:
    """R^2 by one or two regressors from their correlations with the column and each other; a constant adds nothing."""
    r = np.nan_to_num(with_column)
    single = np.square(r).max(axis=-1, initial=0)
    if r.shape[-1] < _REGRESSORS:
        return np.asarray(single)
    shared = np.nan_to_num(among[..., 0, 1])
    apart = 1 - np.square(shared)
    joint = np.square(r).sum(axis=-1) - 2 * r[..., 0] * r[..., 1] * shared
    return np.clip(np.where(apart > _COLLINEAR, joint / np.maximum(apart, _COLLINEAR), single), 0, 1)


def _chance(values: Array, who: Array, r_squared: float, seed: int) -> float:
    """The share of permutations of the first of (column, row) values, itself included, with at least this R^2."""
    if not np.isfinite(r_squared):
        return nan
    random, count = random_stream(seed, "indicators", "permutations"), int(who.max()) + 1
    regressors = values[1 : 1 + _REGRESSORS]
    ranks, among = np.stack([centred_ranks(each) for each in regressors]), rank_correlations_of_each([regressors])[0]
    mean, in_groups = _group_means(values[0], who, count), np.argsort(who, kind="stable")
    deviation = values[0] - mean[who]
    permutations, reached = min(_PERMUTATIONS, max(99, _COUNTS // 8 // len(who))), 1
    for _ in range(permutations):
        shuffled = np.empty_like(deviation)
        shuffled[in_groups] = deviation[np.lexsort((random.random(len(who)), who))]
        permuted = centred_ranks(_without_rounding(random.permutation(mean)[who] + shuffled))
        scale = _norms(ranks) * _norms(permuted)
        r = np.einsum("kn,n->k", ranks, permuted) / np.where(scale > 0, scale, nan)
        reached += bool(_joint_r_squared(r, among) >= r_squared - _COLLINEAR)
    return reached / (permutations + 1)


def _quantiles(values: Array) -> tuple[float, float]:
    """The ends of the 95% interval of the values that are defined; NaN where no more than half of them are."""
    known = values[np.isfinite(values)]
    if 2 * len(known) <= len(values):
        return nan, nan
    low, high = np.quantile(known, _INTERVAL)
    return float(low), float(high)
