"""Evidence: what the data add to a report, the likelihood of every episode's steps in every kind of state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from ileed._torch import product
from ileed.demonstrations import Array, Demonstrations
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError, SettingsError
from ileed.fitted import Fitted
from ileed.fitted.judging import blocks_of_people
from ileed.fitted.likelihood import curves, dispersion
from ileed.fitted.posterior import GRID, INSIDE, Population, mean_and_interval, posterior
from ileed.report.states import Kinds, kinds_of

_BLOCK = 10  # steps that are taken together, to see how far those of one episode go together
_STEPS, _EPISODES = 60_000, 3_000  # of more than so many, some are looked at, spread evenly over people


class Estimate(NamedTuple):
    """Relative expertise with 95 % intervals; three arrays, and the population that they were drawn towards."""

    expertise: Array
    low: Array
    high: Array
    population: Population


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """The data, or a part of them where there are many, and the log-likelihood of each episode in each kind of state.

    The policy is the fit's own, which has seen these steps: people, episodes and kinds of state are rated by it alike.
    Estimates are divided by their mean over people, as those of the ranking are.
    """

    fitted: Fitted
    data: Demonstrations
    numbers: Array
    """(episode,) the number of each episode in the whole data."""
    kinds: Kinds
    episode: Array
    """(unit,) of the units that are an episode's steps in a kind of state."""
    kind: Array
    log_likelihood: Array
    """(unit, point) at the points of expertise of `GRID`, in nats."""
    within: float
    """How much more steps of one episode go together than independent ones would."""
    is_part: bool

    @classmethod
    def of(cls, fitted: Fitted, data: Demonstrations, shown: Sequence[str] = ()) -> Evidence | None:
        """None where the demonstrator model does not rate a person by one number.

        Of very many people a part has some, and all episodes of those who are `shown`.
        """
        if not fitted.estimates_expertise or fitted.joint.parts.demonstrator.defines_expertise:
            return None
        part, numbers = _part(data, shown)
        kinds = kinds_of(fitted, part)
        pairs, unit = np.unique(part.episode * len(kinds.names) + kinds.of_step, return_inverse=True)
        try:
            blocks = blocks_of_people(fitted, part)
        except SettingsError:
            return None
        found = curves(blocks, unit, len(pairs), temperature=_temperature(fitted))
        episode, kind = pairs // len(kinds.names), pairs % len(kinds.names)
        within = dispersion(blocks, _episodes_as_people(part), _temperature(fitted))
        return cls(fitted, part, numbers, kinds, episode, kind, found, within, len(part) < len(data))

    @cached_property
    def by_person(self) -> Estimate:
        """Everybody in the data, rated by the same policy and steps as episodes and kinds of state."""
        return self.rate(self.data.episode_demonstrator[self.episode], len(self.data.names))

    @cached_property
    def _reference(self) -> float:
        """The expertise that others are divided by: the mean over people."""
        owner, count = self.data.episode_demonstrator[self.episode], len(self.data.names)
        present = np.bincount(owner, minlength=count) > 0
        shares, _ = posterior(self._summed(owner, count) / _dispersion(self.fitted), None)
        return float(product(shares, INSIDE)[present].mean())

    def _summed(self, owner: Array, count: int) -> Array:
        summed = np.zeros((count, self.log_likelihood.shape[1]))
        np.add.at(summed, owner[owner >= 0], self.log_likelihood[owner >= 0])
        return summed

    def rate(self, owner: Array, count: int) -> Estimate:
        """Expertise of `count` owners of units, by (unit,) the owner of each; -1 for none."""
        return self.rate_curves(self._summed(owner, count), None)

    def rate_episodes(self) -> Estimate:
        """Expertise of each episode by its own steps."""
        summed = self._summed(self.episode, self.data.episode_count)
        return self.rate_curves(summed, None, spread=self.within)

    def rate_curves(
        self, log_likelihood: Array, population: Population | None, *, spread: float | None = None
    ) -> Estimate:
        """Expertise by log-likelihoods (row, point), drawn towards a population, or that of these rows.

        `spread` is the dispersion of steps; by default that of people, whose episodes differ from each other.
        """
        shares, population = posterior(log_likelihood / (spread or _dispersion(self.fitted)), population)
        found, scale = mean_and_interval(shares, 0.95), self._reference
        return Estimate(found.estimate / scale, found.low / scale, found.high / scale, population)

    def along(self, episodes: Array) -> list[Array]:
        """(step, point) log-likelihoods of some episodes, step by step."""
        chosen = self.data.select(np.isin(self.data.episode, episodes))
        blocks, steps = blocks_of_people(self.fitted, chosen), np.arange(len(chosen))
        found = curves(blocks, steps, len(steps), temperature=_temperature(self.fitted), points=GRID)
        each = np.split(found, np.flatnonzero(np.diff(chosen.episode)) + 1)
        place = {int(episode): k for k, episode in enumerate(np.sort(episodes))}
        return [each[place[int(episode)]] for episode in episodes]


def _episodes_as_people(data: Demonstrations) -> Demonstrations:
    """The same steps with episodes in the place of people, and ten steps of one in the place of an episode."""
    begins = np.searchsorted(data.episode, np.arange(data.episode_count))
    step = np.arange(len(data)) - begins[data.episode]
    blocks = np.unique(np.stack([data.episode, step // _BLOCK]), axis=1, return_inverse=True)[1].ravel()
    return replace(data.each_episode(), episode=blocks)


def data_of_run(fitted: Fitted, data: Demonstrations) -> Demonstrations:
    """Data with the columns of a fit (`Policy.match`); refuses other demonstrators than those of the fit."""
    known = set(fitted.expertise.names)
    if strangers := [name for name in data.names if name not in known]:
        raise DemonstrationError(
            f"the data have {strangers[0]!r}, who is not in this run, which has {listed(fitted.expertise.names)}: pass "
            "the data of the run"
        )
    return fitted.policy.match(data)


def _part(data: Demonstrations, shown: Sequence[str]) -> tuple[Demonstrations, Array]:
    """All episodes, or every so manieth of those in the order of people, and their numbers.

    Of very many people also all episodes of those who are shown; people who have none of these are left out.
    """
    every = int(np.ceil(max(len(data) / _STEPS, data.episode_count / _EPISODES)))
    if every <= 1:
        return data, np.arange(data.episode_count)
    numbers = np.sort(np.argsort(data.episode_demonstrator, kind="stable")[::every])
    chosen = np.zeros(data.episode_count, dtype=bool)
    chosen[numbers] = True
    if not data.has_many_people:
        return data.select(chosen[data.episode]), numbers
    known = set(data.names)
    chosen |= np.isin(data.episode_demonstrator, [data.index_of(name) for name in shown if name in known])
    part = data.select(chosen[data.episode])
    present, demonstrator = np.unique(part.demonstrator, return_inverse=True)
    names = tuple(data.names[who] for who in present)
    return replace(part, names=names, demonstrator=demonstrator), np.flatnonzero(chosen)


def _temperature(fitted: Fitted) -> float:
    return 1.0 if fitted.expertise.ratings is None else fitted.expertise.ratings.by.temperature


def _dispersion(fitted: Fitted) -> float:
    return 1.0 if fitted.expertise.ratings is None else fitted.expertise.ratings.by.dispersion
