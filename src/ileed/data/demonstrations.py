"""Demonstrations: observations, actions, demonstrators and episodes, validated when they are made."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, final

import numpy as np

from ileed._numpy import default_errors
from ileed.data import rules
from ileed.data.collapsing import Collapsed, Uncollapsed, collapse, skill_rows
from ileed.data.encoding import Arrays, Encoding, check_arrays, join_arrays, join_episodes, split_arrays
from ileed.data.findings import Finding, findings
from ileed.data.rules import Array
from ileed.data.source import (
    IN_MEMORY,
    Source,
    Store,
    are_pseudonyms,
    episode_pseudonyms,
    is_named,
    pseudonyms,
    refuse_names,
)
from ileed.errors import DemonstrationError, brief, counted, did_you_mean, instance_of


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Demonstrations:
    """Steps of several demonstrators, grouped in episodes, as frozen columns of equal length.

    All columns are checked here and nowhere else. Large arrays are not copied, so do not write to them afterwards.

    Args:
        observations: (step, ...) numbers, or a mapping from names to such arrays, as in
            `{"state": X, "image.wrist": frames}`. Several arrays are stored side by side in one matrix of one type, so
            pass a float32 state beside uint8 frames. `arrays` describes them; `named_observations` returns them.
        actions: (step,) whole numbers 0, 1, ... for discrete actions, or (step, dimension) floating-point numbers.
        demonstrator: a name or number for every step.
        episode: a label for every step.
        names: the demonstrators in a fixed order, which `demonstrator` may then index.
        action_count: the number of discrete actions, if the data may not contain all of them.
        encoding: names of features and actions, from the columns of a table or the keys of a file format.
        source_episode: the label of each step's episode in its source, by default `episode`.
        episode_number: the number of each step's episode among the demonstrator's own, if it is not their order here.
        fps: steps per second; formats with a clock, such as LeRobot, use it.
        timestamps: the time of each step in seconds.
        source: the file that the data were read from.

    The last three affect neither a fit nor equality nor the fingerprint. `select` and `by` renumber episodes from zero
    and keep `source_episode` and `episode_number`.

    >>> data = Demonstrations(observations=np.eye(4), actions=[0, 1, 1, 0],
    ...                       demonstrator=["ann", "ann", "bob", "bob"], episode=[0, 0, 1, 1])
    >>> data
    Demonstrations(2 episodes, 4 steps, 2 demonstrators (2-2 steps each),
                   observations (4,) float64, actions discrete (2), rewards absent)
    >>> data.by("bob").actions.tolist()
    [1, 0]
    """

    observations: Any
    actions: Array
    demonstrator: Array
    episode: Array
    names: tuple[str, ...] = ()
    rewards: Array | None = None
    terminals: Array | None = None
    legal: Array | None = None
    skills: Mapping[str, Array] = field(default_factory=dict)
    action_count: int = 0
    encoding: Encoding | None = None
    source_episode: Array | None = None
    episode_number: Array | None = None
    fps: float | None = None
    timestamps: Array | None = None
    source: Source | None = None
    store: Store = IN_MEMORY
    """Where the columns are kept: in memory, or on disk for a folder, which its reader checks block by block."""
    anonymised: bool = False
    """Whether `names` are the pseudonyms of `anonymise`."""
    arrays: Arrays = ()
    """Name, shape and type of each array of observations; empty for a single array."""

    @default_errors()
    def __post_init__(self) -> None:
        if self.store.is_on_disk:
            return
        observations, arrays = self.observations, self.arrays
        if isinstance(observations, Mapping):
            observations, arrays = join_arrays(observations)
        observations = rules.observations(observations)
        steps = len(observations)
        actions = rules.actions(self.actions, steps)
        discrete = actions.ndim == 1
        action_count = rules.action_count(actions, self.action_count) if discrete else 0
        names, demonstrator = rules.demonstrator(self.demonstrator, self.names, steps)
        labels = self.episode if self.source_episode is None else self.source_episode
        episode = rules.episode(self.episode, demonstrator, names)
        columns: dict[str, Any] = {
            "observations": observations,
            "arrays": check_arrays(arrays, observations[0].size),
            "actions": actions,
            "names": names,
            "demonstrator": demonstrator,
            "episode": episode,
            "rewards": rules.optional(rules.rewards, self.rewards, steps),
            "terminals": rules.optional(rules.terminals, self.terminals, steps),
            "legal": rules.optional(rules.legal, self.legal, actions, action_count),
            "skills": rules.skills(self.skills, steps),
            "action_count": action_count,
            "encoding": rules.optional(rules.encoding, self.encoding, observations, actions, action_count),
            "source_episode": rules.source_labels(labels, steps),
            "episode_number": rules.optional(rules.episode_number, self.episode_number, episode),
            "fps": rules.optional(rules.fps, self.fps),
            "timestamps": rules.optional(rules.timestamps, self.timestamps, steps, self.fps),
        }
        for name, value in columns.items():
            object.__setattr__(self, name, rules.read_only(value))

    @classmethod
    def from_episodes(
        cls,
        episodes: Iterable[Any],
        *,
        demonstrator: Sequence[str | int],
        names: Sequence[str] = (),
        action_count: int = 0,
    ) -> Demonstrations:
        """Join recorded episodes, with the demonstrator of each.

        An episode is a mapping or an object with `observations` (or `obs`), `actions` (or `acts`), and optionally
        `rewards` (or `rews`) and `terminations`, such as Minari's episodes and imitation's trajectories. A final
        observation without an action is dropped. Mappings of numeric observations (gymnasium's Dict) are flattened in
        the order of their sorted names, which `encoding` keeps.
        """
        columns = join_episodes(episodes, demonstrator, action_count=action_count)
        return cls(**columns, names=names, action_count=action_count)  # type: ignore[arg-type]  # made a tuple there

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def discrete(self) -> bool:
        """Whether actions are discrete."""
        return self.actions.ndim == 1

    @property
    def action_size(self) -> int:
        """The number of dimensions of a continuous action; 0 for discrete actions."""
        return 0 if self.discrete else int(self.actions.shape[1])

    @property
    def observation_size(self) -> int:
        """The number of values in one observation."""
        return int(np.prod(self.observations.shape[1:]))

    @property
    def named_observations(self) -> dict[str, Array]:
        """Each array of observations by name, (step, *shape); empty for a single array without a name."""
        return split_arrays(self.observations, self.arrays) if self.arrays else {}

    @property
    def episode_count(self) -> int:
        return int(self.episode[-1]) + 1

    @property
    def episode_keys(self) -> Array:
        """(episode,) label or number of each episode in the source of the data."""
        assert self.source_episode is not None
        keys = self.source_episode[self.episode_bounds[:-1]]
        return keys.astype(np.str_) if keys.dtype == object else keys

    @property
    def steps_each(self) -> Array:
        """(demonstrator,) the number of steps of each."""
        return np.bincount(self.demonstrator, minlength=len(self.names))

    @property
    def episode_demonstrator(self) -> Array:
        """(episode,) the demonstrator, as an index into `names`."""
        return self.demonstrator[self.episode_bounds[:-1]]

    @property
    def episode_bounds(self) -> Array:
        """(episode + 1,) the first step of each episode, followed by the number of steps."""
        return np.searchsorted(self.episode, np.arange(self.episode_count + 1))

    @property
    def own_episode_number(self) -> Array:
        """(step,) the number of the episode among the demonstrator's own: as stated, or by order of appearance."""
        return self.episode_numbers[self.episode] if self.episode_number is None else self.episode_number

    @property
    def episode_numbers(self) -> Array:
        """(episode,) the same for each episode."""
        if self.episode_number is not None:
            return self.episode_number[self.episode_bounds[:-1]]
        return rules.numbers_of(self.episode_demonstrator)

    @cached_property
    def binary_dimensions(self) -> tuple[int, ...]:
        """Dimensions of continuous actions that take two values, like a gripper's, or a single one.

        In such a dimension 95% of values lie within 5% of the range from one of its ends. The range is that from the
        1% to the 99% quantile. Beyond a million steps, an evenly spaced sample of that size is used.
        """
        if not self.action_size:
            return ()
        actions = self.actions[:: 1 + len(self) // (1 << 20)]
        low, high = np.quantile(actions, (0.01, 0.99), axis=0)
        margin = (high - low) / 20
        at_an_end = (actions <= low + margin) | (actions >= high - margin)
        return tuple(np.flatnonzero(at_an_end.mean(axis=0) >= 0.95).tolist())

    @property
    def movement_dimensions(self) -> Array:
        """The dimensions of continuous actions that are not binary; all if all are."""
        every = np.arange(self.action_size)
        movement = np.setdiff1d(every, self.binary_dimensions)
        return movement if len(movement) else every

    def select(self, steps: Array) -> Demonstrations:
        """Select steps by a boolean mask; `names`, `action_count` and numbers of episodes are kept."""
        rule = f"pass true or false for each of the {len(self):,} steps"
        if not isinstance(steps, np.ndarray) or steps.dtype != bool or steps.shape != (len(self),):
            found = f"{steps.dtype} of shape {steps.shape}" if isinstance(steps, np.ndarray) else brief(steps)
            raise DemonstrationError(f"steps is {found}: {rule}")
        if not steps.any():
            raise DemonstrationError("no step is left by this selection: widen it")
        columns: dict[str, Any] = {
            item.name: values[steps]
            for item in fields(self)
            if isinstance(values := getattr(self, item.name), np.ndarray)
        }
        number, episode = self.episode_numbers[columns["episode"]], columns["episode"]
        columns["episode"] = np.cumsum(np.append(False, episode[1:] != episode[:-1]), dtype=np.int64)
        skills = {name: rules.read_only(values[steps]) for name, values in self.skills.items()}
        selected = self.with_columns(**columns | {"episode_number": None}, skills=skills, store=IN_MEMORY)
        is_ordered = np.array_equal(number, selected.own_episode_number)
        return selected if is_ordered else selected.with_columns(episode_number=number)

    def with_columns(self, **columns: Any) -> Demonstrations:
        """The same data with other columns, which are not checked again."""
        found = object.__new__(Demonstrations)
        for item in fields(self):
            value = columns.get(item.name, getattr(self, item.name))
            object.__setattr__(found, item.name, rules.read_only(value))
        return found

    def by(self, *names: str) -> Demonstrations:
        """Select the steps of one or more demonstrators."""
        number = np.full(len(self.names), -1)
        number[[self.index_of(name) for name in names]] = np.arange(len(names))
        theirs = self.select(number[self.demonstrator] >= 0)
        return theirs.with_columns(names=names, demonstrator=number[theirs.demonstrator])

    def each_episode(self) -> Demonstrations:
        """Treat each episode as a demonstrator of its own, for data without demonstrators."""
        names = tuple(f"episode {number + 1}" for number in range(self.episode_count))
        return self.with_columns(names=names, demonstrator=self.episode, episode_number=None)

    def pseudonyms(self) -> dict[str, str]:
        """The pseudonym of each demonstrator by name; keep this mapping to undo `anonymise`."""
        if self.has_pseudonyms:
            return {name: name for name in self.names}
        return pseudonyms(self.names, key=self.fingerprint)

    def anonymise(self) -> Demonstrations:
        """Replace every name by a pseudonym, `person 01` and on; a fit to the result is the same to the bit.

        If the key of any episode contains a name, all episodes are renamed `episode 0` and on. Features, actions and
        skills whose names or labels contain one are refused. Anonymised data are returned unchanged.
        """
        if self.has_pseudonyms:
            return self
        labels = {name: np.unique(values).tolist() for name, values in self.skills.items() if values.dtype.kind == "U"}
        skills = {f"the skill column {name!r}": [name, *labels.get(name, ())] for name in self.skills}
        skills |= {f"the observation {each.name!r}": [each.name] for each in self.arrays}
        refuse_names(skills | ({} if self.encoding is None else self.encoding.words), self.names)
        names, keys = self.pseudonyms(), self.source_episode
        if self._keys_name_demonstrators:
            keys = self.store.derived(self.episode, np.array(episode_pseudonyms(self.episode_count)).__getitem__)
        hidden = tuple(names[name] for name in self.names)
        return self.with_columns(names=hidden, source_episode=keys, anonymised=True)

    @property
    def has_pseudonyms(self) -> bool:
        """Whether these data were anonymised and not renamed since."""
        return self.anonymised and are_pseudonyms(self.names)

    @property
    def _keys_name_demonstrators(self) -> bool:
        """Whether any episode key contains a name, or all of them the number that names their demonstrator."""
        keys = self.episode_keys.tolist()
        if is_named([key for key in keys if isinstance(key, str)], self.names):
            return True
        own = (self.names[number] for number in self.episode_demonstrator)
        return all(
            name.isdecimal() and name in re.findall(r"\d+", str(key)) for name, key in zip(own, keys, strict=True)
        )

    def index_of(self, name: str) -> int:
        """The index of `name` in `names`."""
        if not isinstance(name, str) or name not in self._numbers:
            meant = did_you_mean(name, self.names)
            known = rules.listed(self.names)
            raise DemonstrationError(f"there is no demonstrator {name!r}{meant}: the data know {known}")
        return self._numbers[name]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @property
    def has_many_demonstrators(self) -> bool:
        """Whether demonstrators are so many that they are fitted and ranked in batches."""
        return len(self.names) > rules.MANY_DEMONSTRATORS

    def split(self, held_out: float, *, generator: np.random.Generator) -> tuple[Array, Array]:
        """Boolean masks over episodes, (kept, held out), stratified over demonstrators with two or more episodes."""
        out = np.zeros(self.episode_count, dtype=bool)
        owner = self.episode_demonstrator
        ends = np.cumsum(np.bincount(owner, minlength=len(self.names)))
        for theirs in np.split(np.argsort(owner, kind="stable"), ends[:-1]):
            count = min(max(1, round(held_out * len(theirs))), len(theirs) - 1)
            if count > 0:
                out[generator.permutation(theirs)[:count]] = True
        if not out.any():
            raise DemonstrationError("no demonstrator has two episodes: pass held_out=0 (at the command: --held-out 0)")
        return ~out, out

    def collapsed(
        self, skill: str | None = None, context: Sequence[str] = (), *, by_step: bool = False
    ) -> Collapsed | Uncollapsed:
        """Counts of distinct (observation, demonstrator, action), which determine the likelihood; computed once.

        Constant inputs are left out. Columns on disk are not counted (`Uncollapsed`) if their observations hardly
        repeat, if the counts would exceed the memory limit, or for a fit `by_step`.

        Args:
            skill: the column of `skills` that expertise depends on.
            context: what a demonstrator model declares to depend on besides the observation; see `CONTEXT`.
            by_step: whether the fit needs steps in their order.
        """
        key = skill, tuple(context), by_step
        if key not in self._collapsed:
            self._collapsed[key] = collapse(self, skill, key[1], by_step=by_step)
        return self._collapsed[key]

    @cached_property
    def _collapsed(self) -> dict[tuple[str | None, tuple[str, ...], bool], Collapsed | Uncollapsed]:
        return {}

    def skill(self, column: str) -> tuple[Array, tuple[str, ...]]:
        """(step, skill) weights from a column of `skills`, and the names of the skills."""
        names, weights_at = skill_rows(self, column)
        return weights_at(slice(None)), names

    def check(self) -> list[Finding]:
        """List thin, useless or suspicious parts of the data, serious findings first."""
        return findings(self)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all values that a fit could depend on."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.names, self.action_count, sorted(self.skills))).encode())
        columns = (self.observations, self.actions, self.demonstrator, self.episode, self.legal, self.episode_number)
        for column in columns:
            if column is not None:
                digest.update(repr((column.shape, column.dtype.str)).encode())
                digest.update(np.ascontiguousarray(column).data)
        for name in sorted(self.skills):
            digest.update(np.ascontiguousarray(self.skills[name]).view(np.uint8).data)
        for names in (self.encoding, self.arrays):
            if names:
                digest.update(repr(names).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        counts = self.steps_each
        demonstrators = counted(len(self.names), "demonstrator")
        if len(self.names) > 1:
            demonstrators += f" ({counts.min():,}-{counts.max():,} steps each)"
        episodes = f"{counted(self.episode_count, 'episode')}, {counted(len(self), 'step')}"
        if self.encoding is not None:
            if self.episode_count == len(self):
                episodes = f"{counted(len(self), 'episode')} of one step each (independent decisions)"
            seen, acted = f"features {self.encoding.describe_features()},\n", self.encoding.describe_actions()
        else:
            arrays = [f"{each.name} {each.shape} {each.dtype}" for each in self.arrays]
            found = rules.listed(arrays, show=str) or f"{self.observations.shape[1:]} {self.observations.dtype}"
            seen = f"observations {found}, " if not arrays else f"observations {found},\n"
            acted = f"discrete ({self.action_count})" if self.action_count else f"{self.actions.shape[1:]} continuous"
        rewards = "absent" if self.rewards is None else "present"
        text = f"Demonstrations({episodes}, {demonstrators},\n{seen}actions {acted}, rewards {rewards})"
        return text.replace("\n", "\n" + " " * len("Demonstrations("))

    def equals(self, other: Demonstrations) -> bool:
        """Whether both have the same values and types, apart from episode labels and numbers, time and source."""
        apart = ("source_episode", "episode_number", "fps", "timestamps", "source", "store", "anonymised")
        names = [item.name for item in fields(self) if item.name not in apart]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)


def check_demonstrations(value: object) -> None:
    """Refuse values of other types, such as the path of a file."""
    rule = "pass what ileed.read(path) makes of a file, or ileed.Demonstrations(observations=..., ...) of arrays"
    instance_of("demonstrations", value, Demonstrations, rule=rule, error=DemonstrationError)


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other
