"""Demonstrations: who did what after seeing what, step by step, validated once and then trusted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from ileed._numpy import default_errors
from ileed.data import rules
from ileed.data.collapsing import Collapsed, Uncollapsed, collapse, skill_rows
from ileed.data.encoding import Arrays, Encoding, check_arrays, join_arrays, join_episodes, split_arrays
from ileed.data.findings import Finding, findings
from ileed.data.rules import Array
from ileed.data.source import Source, are_pseudonyms, episode_pseudonyms, is_named, pseudonyms, refuse_names
from ileed.data.store import IN_MEMORY, Store
from ileed.errors import DemonstrationError, brief, counted, did_you_mean, instance_of

__all__ = ["Array", "Collapsed", "Demonstrations", "Encoding", "Finding", "Source", "check_demonstrations"]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Demonstrations:
    """Steps of several demonstrators, grouped in episodes, as frozen columns of equal length.

    `observations` is (step, ...) and numeric, or a mapping from names to such arrays, as in
    `{"state": X, "image.wrist": frames}`. Several arrays are kept side by side as one matrix of one type, so pass a
    float32 state beside uint8 frames. `arrays` says what each of them is, and `named_observations` gives them back.

    `actions` is (step,) of whole numbers 0, 1, ... where the actions are
    discrete, or (step, dimension) of floating-point numbers where they are continuous. `demonstrator` holds a name
    or a number for every step; `episode` a label. `names` fixes the order of the demonstrators and then
    `demonstrator` may index it. `action_count` says how many discrete actions there are when the data may not show
    them all. `encoding` holds the names of features and actions where the source has them: the columns of a table
    (`from_table`), or the keys of a format or mapping.

    Episodes are numbered from zero; `source_episode` keeps what each is called where the data came from, by default the
    label in `episode`, through `select` and `by`. `episode_number` says which of the demonstrator's own episodes each
    is, from 0 on, where that is not their order here; `select` and `by` keep it (`own_episode_number`).

    `fps` is the number of steps per second and `timestamps` the time of each step in seconds, where the source states
    them; formats that have a clock, such as LeRobot, are written with these. `source` is the file that the data were
    read from. Neither affects a fit, equality or the fingerprint.

    Everything is checked here, so whatever holds a `Demonstrations` need not check again. Large arrays are not copied:
    do not write to yours afterwards.

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
    """Where the columns are: in memory, or on disk where they were read from a folder, and checked block by block."""
    anonymised: bool = False
    """Whether `names` are the pseudonyms of `anonymise`."""
    arrays: Arrays = ()
    """Name, shape and type of each observation, where `observations` was a mapping; none for a single array."""

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
        """Join episodes as gymnasium programs record them, one demonstrator's name for each.

        An episode is a mapping or an object with `observations` (or `obs`), `actions` (or `acts`), and optionally
        `rewards` (or `rews`) and `terminations`: Minari's episodes and imitation's trajectories are such objects. An
        observation after the last action is left out, since nobody acted on it. Observations that are a mapping of
        arrays (gymnasium's Dict) are flattened in the order of their sorted names, which `encoding` keeps; they must
        all be numbers.
        """
        columns = join_episodes(episodes, demonstrator, action_count=action_count)
        return cls(**columns, names=names, action_count=action_count)  # type: ignore[arg-type]  # made a tuple there

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def discrete(self) -> bool:
        """Whether actions are chosen from a list rather than measured on axes."""
        return self.actions.ndim == 1

    @property
    def action_size(self) -> int:
        """How many numbers a continuous action has; 0 where actions are discrete."""
        return 0 if self.discrete else int(self.actions.shape[1])

    @property
    def observation_size(self) -> int:
        """How many numbers one observation holds, whatever its shape."""
        return int(np.prod(self.observations.shape[1:]))

    @property
    def named_observations(self) -> dict[str, Array]:
        """Each observation by its name, (step, *shape); empty where there is a single array without a name."""
        return split_arrays(self.observations, self.arrays) if self.arrays else {}

    @property
    def episode_count(self) -> int:
        return int(self.episode[-1]) + 1

    @property
    def episode_keys(self) -> Array:
        """(episode,) what each episode is called where the data came from: a label or a number."""
        assert self.source_episode is not None
        keys = self.source_episode[self.episode_bounds[:-1]]
        return keys.astype(np.str_) if keys.dtype == object else keys

    @property
    def steps_each(self) -> Array:
        """How many steps each demonstrator took, in the order of `names`."""
        return np.bincount(self.demonstrator, minlength=len(self.names))

    @property
    def episode_demonstrator(self) -> Array:
        """The demonstrator of each episode, as an index into `names`."""
        return self.demonstrator[self.episode_bounds[:-1]]

    @property
    def episode_bounds(self) -> Array:
        """(episode + 1,) the first step of each episode, and the number of steps."""
        return np.searchsorted(self.episode, np.arange(self.episode_count + 1))

    @property
    def own_episode_number(self) -> Array:
        """(step,) which of the demonstrator's own episodes each is, from 0 on: as stated, or by their order here."""
        return self.episode_numbers[self.episode] if self.episode_number is None else self.episode_number

    @property
    def episode_numbers(self) -> Array:
        """(episode,) the same, of each episode."""
        if self.episode_number is not None:
            return self.episode_number[self.episode_bounds[:-1]]
        return rules.numbers_of(self.episode_demonstrator)

    @cached_property
    def binary_dimensions(self) -> tuple[int, ...]:
        """Dimensions of continuous actions that are hardly ever off the ends of their range, like a gripper's.

        A dimension counts where 19 in 20 of its values lie within a twentieth of the range from either end, and where
        it never changes at all. The range is that of all values but the outermost hundredth at each end. Of more than
        a million steps, about as many at even distances tell.
        """
        if not self.action_size:
            return ()
        actions = self.actions[:: 1 + len(self) // (1 << 20)]
        low, high = np.quantile(actions, (0.01, 0.99), axis=0)
        margin = (high - low) / 20
        at_an_end = (actions <= low + margin) | (actions >= high - margin)
        return tuple(np.flatnonzero(at_an_end.mean(axis=0) >= 0.95).tolist())

    def select(self, steps: Array) -> Demonstrations:
        """The steps of a boolean mask, as a data set of its own; names, `action_count` and numbers of episodes stay."""
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
        if not np.array_equal(number, rules.own_numbers(columns["episode"], columns["demonstrator"])):
            columns["episode_number"] = number
        skills = {name: rules.read_only(values[steps]) for name, values in self.skills.items()}
        return self.with_columns(**columns, skills=skills, store=IN_MEMORY)

    def with_columns(self, **columns: Any) -> Demonstrations:
        """The same data with other columns, made of checked ones: nothing is checked again."""
        found = object.__new__(Demonstrations)
        for item in fields(self):
            value = columns.get(item.name, getattr(self, item.name))
            object.__setattr__(found, item.name, rules.read_only(value))
        return found

    def by(self, *names: str) -> Demonstrations:
        """The steps of one demonstrator, or of several, alone."""
        observation_index = np.full(len(self.names), -1)
        observation_index[[self.index_of(name) for name in names]] = np.arange(len(names))
        theirs = self.select(observation_index[self.demonstrator] >= 0)
        return theirs.with_columns(names=names, demonstrator=observation_index[theirs.demonstrator])

    def each_episode(self) -> Demonstrations:
        """The same steps with each episode a person of its own, for data that do not say who acted."""
        names = tuple(f"episode {number + 1}" for number in range(self.episode_count))
        return self.with_columns(names=names, demonstrator=self.episode, episode_number=None)

    def pseudonyms(self) -> dict[str, str]:
        """The pseudonym of each demonstrator, by name; keep this mapping to undo `anonymise`."""
        if self.has_pseudonyms:
            return {name: name for name in self.names}
        return pseudonyms(self.names, key=self.fingerprint)

    def anonymise(self) -> Demonstrations:
        """The same data with a pseudonym, `person 01` and on, for every name; a fit to them is the same, bit by bit.

        If the key of any episode contains a name, all episodes are called `episode 0` and on instead. Features, actions
        and skills whose names or labels contain one are refused. Anonymised data are returned as they are.
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
        """Whether these data were anonymised, and not renamed since."""
        return self.anonymised and are_pseudonyms(self.names)

    @property
    def _keys_name_demonstrators(self) -> bool:
        """Whether the key of any episode contains a name, or that of every episode the number of its demonstrator."""
        keys = self.episode_keys.tolist()
        if is_named([key for key in keys if isinstance(key, str)], self.names):
            return True
        own = (self.names[person] for person in self.episode_demonstrator)
        return all(
            name.isdecimal() and name in re.findall(r"\d+", str(key)) for name, key in zip(own, keys, strict=True)
        )

    def index_of(self, name: str) -> int:
        """Where `name` stands in `names`."""
        if not isinstance(name, str) or name not in self._numbers:
            meant = did_you_mean(name, self.names)
            known = rules.listed(self.names)
            raise DemonstrationError(f"there is no demonstrator {name!r}{meant}: the data know {known}")
        return self._numbers[name]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @property
    def has_many_people(self) -> bool:
        """Whether there are so many demonstrators that they are learned from and placed in parts."""
        return len(self.names) > rules.MANY_PEOPLE

    def split(self, held_out: float, *, generator: np.random.Generator) -> tuple[Array, Array]:
        """Two boolean masks over episodes, (kept, held out): some episodes of everybody who has two or more."""
        out = np.zeros(self.episode_count, dtype=bool)
        owner = self.episode_demonstrator
        ends = np.cumsum(np.bincount(owner, minlength=len(self.names)))
        for theirs in np.split(np.argsort(owner, kind="stable"), ends[:-1]):
            count = min(max(1, round(held_out * len(theirs))), len(theirs) - 1)
            if count > 0:
                out[generator.permutation(theirs)[:count]] = True
        if not out.any():
            raise DemonstrationError("nobody has two episodes: pass held_out=0 (at the command: --held-out 0)")
        return ~out, out

    def collapsed(
        self, skill: str | None = None, context: Sequence[str] = (), *, by_step: bool = False
    ) -> Collapsed | Uncollapsed:
        """Counted distinct (observation, demonstrator, action): all that the likelihood depends on; computed once.

        Inputs that never vary are left out. `skill` names the column of `skills` to carry along, `context` what came
        before a step, as a demonstrator model declares it. Columns on disk stay as they are (`Uncollapsed`) where their
        observations hardly repeat, where the counts would take more memory than they may, or for a fit `by_step`.
        """
        key = skill, tuple(context), by_step
        if key not in self._collapsed:
            self._collapsed[key] = collapse(self, skill, key[1], by_step=by_step)
        return self._collapsed[key]

    @cached_property
    def _collapsed(self) -> dict[tuple[str | None, tuple[str, ...], bool], Collapsed | Uncollapsed]:
        return {}

    def skill(self, column: str) -> Skill:
        """A column of `skills` as weights: one skill for each of its labels, or each of the weights that it holds."""
        names, weights_at = skill_rows(self, column)
        return Skill(weights_at(slice(None)), names)

    def check(self) -> list[Finding]:
        """What a careful colleague would point out: thin, useless or suspicious parts of the data, in words."""
        return findings(self)

    @cached_property
    def fingerprint(self) -> str:
        """A digest that changes with any value that a fit could depend on."""
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
        people = counted(len(self.names), "demonstrator")
        if len(self.names) > 1:
            people += f" ({counts.min():,}-{counts.max():,} steps each)"
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
        told = f"Demonstrations({episodes}, {people},\n{seen}actions {acted}, rewards {rewards})"
        return told.replace("\n", "\n" + " " * len("Demonstrations("))

    def equals(self, other: Demonstrations) -> bool:
        """Whether both hold the same values and types in every column that a fit could depend on.

        `source_episode`, `episode_number` and what is known about time and the source are not compared.
        """
        apart = ("source_episode", "episode_number", "fps", "timestamps", "source", "store", "anonymised")
        names = [item.name for item in fields(self) if item.name not in apart]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)


def check_demonstrations(value: object) -> None:
    """Refuse anything else where demonstrations are asked for, a file above all."""
    rule = "pass what ileed.read(path) makes of a file, or ileed.Demonstrations(observations=..., ...) of arrays"
    instance_of("demonstrations", value, Demonstrations, rule=rule, error=DemonstrationError)


class Skill(NamedTuple):
    """A skill column as (step, skill) weights: how much of each named skill a step calls for."""

    weights: Array
    names: tuple[str, ...]


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other
