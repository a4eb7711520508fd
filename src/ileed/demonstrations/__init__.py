"""Demonstrations: who did what after seeing what, step by step, validated once and then trusted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from ileed._numpy import default_errors
from ileed.checking import instance_of, whole_number
from ileed.demonstrations import rules
from ileed.demonstrations.collapsing import Collapsed, Uncollapsed, collapse
from ileed.demonstrations.encoding import Encoding
from ileed.demonstrations.episodes import join_episodes
from ileed.demonstrations.findings import Finding, findings
from ileed.demonstrations.mapping import Mapping as ColumnMapping
from ileed.demonstrations.rules import Array
from ileed.demonstrations.source import Source
from ileed.deprecation import renamed_property
from ileed.errors import DemonstrationError, brief
from ileed.pseudonyms import are_pseudonyms, episode_pseudonyms, is_named, pseudonyms, refuse_names
from ileed.wording import counted, did_you_mean

__all__ = ["Array", "Collapsed", "Demonstrations", "Encoding", "Finding", "Source", "check_demonstrations"]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Demonstrations:
    """Steps of several demonstrators, grouped in episodes, as frozen columns of equal length.

    `observations` is (step, ...) and numeric. `actions` is (step,) of whole numbers 0, 1, ... where the actions are
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

    observations: Array
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
    mapping: ColumnMapping | None = None
    """Where the columns are mapped from, of data that were read from a folder, and checked block by block there."""
    anonymised: bool = False
    """Whether `names` are the pseudonyms of `anonymise`."""

    @default_errors()
    def __post_init__(self) -> None:
        if self.mapping is not None:
            return
        observations = rules.observations(self.observations)
        steps = len(observations)
        actions = rules.actions(self.actions, steps)
        discrete = actions.ndim == 1
        action_count = rules.action_count(actions, self.action_count) if discrete else 0
        names, demonstrator = rules.demonstrator(self.demonstrator, self.names, steps)
        labels = self.episode if self.source_episode is None else self.source_episode
        episode = rules.episode(self.episode, demonstrator, names)
        columns: dict[str, Any] = {
            "observations": observations,
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
    def observation_size(self) -> int:
        """How many numbers one observation holds, whatever its shape."""
        return int(np.prod(self.observations.shape[1:]))

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
        it never changes at all. The range is that of all values but the outermost hundredth at each end. Of mapped
        columns, about a million steps at even distances tell.
        """
        if self.discrete:
            return ()
        actions = self.actions if self.mapping is None else self.actions[:: 1 + len(self) // (1 << 20)]
        low, high = np.quantile(actions, (0.01, 0.99), axis=0)
        margin = (high - low) / 20
        at_an_end = (actions <= low + margin) | (actions >= high - margin)
        return tuple(np.flatnonzero(at_an_end.mean(axis=0) >= 0.95).tolist())

    two_valued = renamed_property("the attribute two_valued of Demonstrations", "binary_dimensions")

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
        number = self.episode_numbers[columns["episode"]]
        if not np.array_equal(number, rules.own_numbers(columns["episode"], columns["demonstrator"])):
            columns["episode_number"] = number
        skills = {name: values[steps] for name, values in self.skills.items()}
        return replace(self, **columns, skills=skills, mapping=None)

    def by(self, *names: str) -> Demonstrations:
        """The steps of one demonstrator, or of several, alone."""
        observation_index = np.full(len(self.names), -1)
        observation_index[[self.index_of(name) for name in names]] = np.arange(len(names))
        theirs = self.select(observation_index[self.demonstrator] >= 0)
        return replace(theirs, names=names, demonstrator=observation_index[theirs.demonstrator])

    def delayed(self, steps: int | Mapping[str, int]) -> Demonstrations:
        """The same actions, each after what was seen so many steps before: how people act who react late.

        The observation and the skills of a step become those of `steps` steps before in its episode, or of the
        episode's first; all else stays, so that costs of the same actions can be compared. `steps` may say how many for
        each demonstrator, and none for those left out. `ileed.compare_delays` finds the number.
        """
        if self.mapping is not None:
            raise DemonstrationError("a delay needs the steps in memory, not a folder: select episodes first")
        rule = "a delay is a whole number of steps, zero or more"
        late = np.zeros(len(self.names), dtype=np.int64)
        for name in self.names if not isinstance(steps, Mapping) else steps:
            own = steps[name] if isinstance(steps, Mapping) else steps
            late[self.index_of(name)] = whole_number("the delay", own, least=0, rule=rule, error=DemonstrationError)
        first = np.searchsorted(self.episode, self.episode)
        seen = np.maximum(np.arange(len(self)) - late[self.demonstrator], first)
        skills = {name: values[seen] for name, values in self.skills.items()}
        return replace(self, observations=self.observations[seen], skills=skills)

    def each_episode(self) -> Demonstrations:
        """The same steps with each episode a person of its own, for data that do not say who acted."""
        names = tuple(f"episode {number + 1}" for number in range(self.episode_count))
        return replace(self, names=names, demonstrator=self.episode, episode_number=None)

    def pseudonyms(self) -> dict[str, str]:
        """The pseudonym of each demonstrator, by name; keep this mapping to undo `anonymise`."""
        if self.has_pseudonyms:
            return {name: name for name in self.names}
        return pseudonyms(self.names, key=self.fingerprint())

    def anonymise(self) -> Demonstrations:
        """The same data with a pseudonym, `person 01` and on, for every name; a fit to them is the same, bit by bit.

        If the key of any episode contains a name, all episodes are called `episode 0` and on instead. Features, actions
        and skills whose names or labels contain one are refused. Anonymised data are returned as they are.
        """
        if self.has_pseudonyms:
            return self
        labels = {name: np.unique(values).tolist() for name, values in self.skills.items() if values.dtype.kind == "U"}
        skills = {f"the skill column {name!r}": [name, *labels.get(name, ())] for name in self.skills}
        refuse_names(skills | ({} if self.encoding is None else self.encoding.words), self.names)
        names, keys = self.pseudonyms(), self.source_episode
        if self._keys_name_demonstrators:
            each, on = np.array(episode_pseudonyms(self.episode_count)), self.mapping
            keys = each[self.episode] if on is None else on.derived(self.episode, each.__getitem__, each.dtype)
        return replace(self, names=tuple(names[name] for name in self.names), source_episode=keys, anonymised=True)

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

    def collapse(self, skill: str | None = None, context: Sequence[str] = ()) -> Collapsed | Uncollapsed:
        """Counted distinct (observation, demonstrator, action): all that the likelihood depends on.

        Inputs that never vary are left out. `skill` names the column of `skills` to carry along, `context` what came
        before a step, as a demonstrator model declares it. Columns that are mapped stay as they are (`Uncollapsed`)
        where their observations hardly repeat, or the counts would take more memory than they may.
        """
        return collapse(self, skill, context)

    def skill(self, column: str) -> Skill:
        """A column of `skills` as weights: one skill for each of its labels, or each of the weights that it holds."""
        if not isinstance(column, str) or column not in self.skills:
            found = f"there is no skill column {brief(column)}{did_you_mean(column, self.skills)}"
            there = rules.listed(tuple(self.skills)) or "none"
            raise DemonstrationError(f"{found}: the data have {there}; pass skills=, or add skill.NAME to the file")
        values = self.skills[column]
        if values.ndim == 2:
            return Skill(values.astype(np.float32), tuple(f"{column} {k + 1}" for k in range(values.shape[1])))
        labels, index = np.unique(values, return_inverse=True)
        return Skill(np.eye(len(labels), dtype=np.float32)[index], tuple(str(label) for label in labels))

    def check(self) -> list[Finding]:
        """What a careful colleague would point out: thin, useless or suspicious parts of the data, in words."""
        return findings(self)

    def fingerprint(self) -> str:
        """A digest that changes with any value that a fit could depend on; computed once."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.names, self.action_count, sorted(self.skills))).encode())
        columns = (self.observations, self.actions, self.demonstrator, self.episode, self.legal, self.episode_number)
        for column in columns:
            if column is not None:
                digest.update(repr((column.shape, column.dtype.str)).encode())
                digest.update(np.ascontiguousarray(column).data)
        for name in sorted(self.skills):
            digest.update(np.ascontiguousarray(self.skills[name]).view(np.uint8).data)
        if self.encoding is not None:
            digest.update(repr(self.encoding).encode())
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
            seen = f"observations {self.observations.shape[1:]} {self.observations.dtype}, "
            acted = f"discrete ({self.action_count})" if self.discrete else f"{self.actions.shape[1:]} continuous"
        rewards = "absent" if self.rewards is None else "present"
        told = f"Demonstrations({episodes}, {people},\n{seen}actions {acted}, rewards {rewards})"
        return told.replace("\n", "\n" + " " * len("Demonstrations("))

    def equals(self, other: Demonstrations) -> bool:
        """Whether both hold the same values and types in every column that a fit could depend on.

        `source_episode`, `episode_number` and what is known about time and the source are not compared.
        """
        apart = ("source_episode", "episode_number", "fps", "timestamps", "source", "mapping", "anonymised")
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
