"""Designs: simulated populations of demonstrators whose expertise is known, on which intervals are calibrated.

Every population draws its demonstrators, its expert and its states afresh from a seed. Coverage is measured on the
seeds from `FIRST_SEED`; whatever is tuned is tuned on the seeds from `DEVELOPMENT_SEED`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ileed import (
    BiasedMixture,
    Boltzmann,
    CategoricalMLP,
    Confusion,
    Constant,
    Demonstrations,
    Drift,
    Embedded,
    Ileed,
    MixtureLSTM,
    MixtureMLP,
    OneVersusRest,
    Persistent,
    SignalScaling,
    UniformMixture,
    VarianceScaling,
)
from ileed.model.demonstrators import AbstractDemonstratorModel

__all__ = [
    "DESIGNS",
    "DEVELOPMENT_SEED",
    "FIRST_SEED",
    "AbstractDesign",
    "Continuous",
    "Population",
    "Recurrent",
    "Tabular",
]

Array = npt.NDArray[Any]

FIRST_SEED = 1_000
"""Those before it were used up: coverage was measured on them before the choice of temperature changed."""
DEVELOPMENT_SEED = 100_000

LOWEST, HIGHEST = 0.1, 0.95
"""Between which a demonstrator's expertise is drawn uniformly."""
VARIATION = 0.7
"""Standard deviation of an episode's logit expertise, where it varies: 0.33 to 0.67 around 0.5."""
OTHER_EPISODES = 4_000
"""By which the variance of a signal is known, where the truth is that over all possible episodes."""
NEWCOMERS = (5, 5, 20, 20, 100, 100)
"""Steps of each newcomer."""


@final
@dataclass(frozen=True, eq=False)
class Population:
    """Demonstrations, and what is known of those who gave them."""

    data: Demonstrations
    """Of the demonstrators that a method is fitted to."""
    expertise: Array
    """(person,) true expertise, averaged over the demonstrator's own steps."""
    newcomers: Demonstrations
    """Of demonstrators with few steps, whom no fit has seen."""
    newcomers_expertise: Array
    """(newcomer,) true expertise, averaged over their own steps."""
    best_action: Array | None = None
    """(step,) the expert's most likely action at the steps of `data`, where actions are discrete."""
    change: Array | None = None
    """(person,) true expertise in the last episode minus that in the first, where demonstrators learn or tire."""

    @property
    def relative(self) -> Array:
        """(person,) true expertise divided by its mean over demonstrators."""
        return self.expertise / self.expertise.mean()


@dataclass(frozen=True, kw_only=True)
class AbstractDesign(ABC):
    """How a population is simulated, and the method that is fitted to it. A population depends on its seed alone."""

    people: int = 8
    episodes: tuple[int, int] = (10, 10)
    """Fewest and most episodes of a demonstrator; the number is drawn uniformly."""
    length: int = 50
    """Steps of an episode."""

    @property
    @abstractmethod
    def method(self) -> Ileed:
        """The model that is fitted."""

    @abstractmethod
    def population(self, seed: int) -> Population:
        """Demonstrators, expert and states drawn from a seed."""

    @property
    def count(self) -> int:
        """Demonstrators and newcomers."""
        return self.people + len(NEWCOMERS)

    def _episodes(self, chance: np.random.Generator) -> tuple[Array, Array]:
        """(step,) demonstrator and episode of every step; episodes of one demonstrator follow each other."""
        counts = chance.integers(self.episodes[0], self.episodes[1] + 1, size=self.count)
        counts[self.people :] = -(-np.array(NEWCOMERS) // self.length)
        owner = np.repeat(np.arange(self.count), counts)
        return np.repeat(owner, self.length), np.repeat(np.arange(len(owner)), self.length)

    def _population(
        self, expertise: Array, best_action: Array | None = None, *, action_count: int = 0, **columns: Array
    ) -> Population:
        """Demonstrators and newcomers apart, from columns of every demonstrator's steps; newcomers keep their first
        steps alone."""
        who = columns.pop("demonstrator")
        place = np.arange(len(who)) - np.searchsorted(who, who)
        allowed = np.array([len(who)] * self.people + list(NEWCOMERS))
        known, new = who < self.people, (who >= self.people) & (place < allowed[who])

        def part(steps: Array, name: str) -> tuple[Demonstrations, Array]:
            own: dict[str, Any] = {each: values[steps] for each, values in columns.items()}
            names = np.array([f"{name} {number + 1:02d}" for number in who[steps]])
            counts = np.bincount(who[steps])
            mean = np.bincount(who[steps], weights=expertise[steps])[counts > 0] / counts[counts > 0]
            return Demonstrations(demonstrator=names, action_count=action_count, **own), mean

        (data, truth), (newcomers, of_newcomers) = part(known, "person"), part(new, "newcomer")
        best = None if best_action is None else best_action[known]
        return Population(data, truth, newcomers, of_newcomers, best)


@final
@dataclass(frozen=True, kw_only=True)
class Tabular(AbstractDesign):
    """States with random features, of which each step draws one uniformly, and one of 7 actions that is best in each.

    With `stochastic`, the expert draws from a softmax of Gaussian preferences with standard deviation 2 instead. With
    `by_state`, the expertise of a demonstrator is sigma(u_i + v_i f(s)), f a standard Gaussian feature of the state and
    v_i standard Gaussian. With `persistence` and `bias`, demonstrators do not err uniformly: an error repeats the
    demonstrator's last action with probability `persistence`, and is otherwise the demonstrator's favourite action with
    probability `bias`. With `mistakes`, an error is one action for each demonstrator and best action with that
    probability. With `drift`, the logit of expertise changes over a demonstrator's episodes as `Drift` describes it,
    altogether by a Gaussian number of mean one half of `drift` and standard deviation `drift`. With `variation`, the
    logit of expertise differs between the episodes of a demonstrator by Gaussian noise of this standard deviation; the
    truth is the demonstrator's mean over all episodes that they might have recorded.

    Demonstrators act as `demonstrator` says: they err uniformly, or by any action but the expert's (`OneVersusRest`),
    or draw from the expert's softmax to the power of their expertise (`Boltzmann`).
    """

    states: int = 50
    features: int = 10
    actions: int = 7
    stochastic: bool = False
    by_state: bool = False
    persistence: float = 0.0
    bias: float = 0.0
    mistakes: float = 0.0
    drift: float = 0.0
    variation: float = 0.0
    demonstrator: AbstractDemonstratorModel[Any] = field(default_factory=UniformMixture)

    @property
    def method(self) -> Ileed:
        return Ileed(
            policy=CategoricalMLP(hidden=(64,)),
            demonstrator=self.demonstrator,
            expertise=Embedded() if self.by_state else Drift() if self.drift else Constant(),
            restarts=4,
            steps=1000,
        )

    def population(self, seed: int) -> Population:
        chance = np.random.default_rng(seed)
        who, episode = self._episodes(chance)
        features = chance.normal(size=(self.states, self.features)).astype(np.float32)
        preferences = chance.normal(size=(self.states, self.actions)) * 2
        level = chance.uniform(LOWEST, HIGHEST, size=self.count)
        slope = chance.normal(size=self.count) * self.by_state
        state = chance.integers(self.states, size=len(who))
        logit = np.log(level / (1 - level))[who] + slope[who] * features[state, 0]
        if self.drift:
            change = self.drift * chance.normal(0.5, 1, size=self.count)
            logit += change[who] * np.log1p(_own_number(who, episode)) / np.log(self.episodes[1])
        expertise = true = 1 / (1 + np.exp(-logit))
        if self.variation:
            nodes, weights = np.polynomial.hermite_e.hermegauss(61)
            true = (1 / (1 + np.exp(-logit[:, None] - self.variation * nodes))) @ weights / weights.sum()
            logit += self.variation * chance.normal(size=int(episode[-1]) + 1)[episode]
            expertise = 1 / (1 + np.exp(-logit))
        best = preferences.argmax(1)[state]
        # the largest of preferences plus Gumbel noise is a draw from their softmax
        noise = chance.gumbel(size=(len(who), self.actions))
        drawn = (preferences[state] + noise).argmax(1) if self.stochastic else best
        errs = chance.random(len(who)) >= expertise
        action = np.where(errs, self._errors(chance, who), drawn)
        if self.demonstrator == OneVersusRest():
            action = np.where(errs, (best + chance.integers(1, self.actions, size=len(who))) % self.actions, best)
        if self.demonstrator == Boltzmann():
            action = (expertise[:, None] * preferences[state] + noise).argmax(1)
        if self.mistakes:
            action = np.where(errs, self._mistakes(chance, who, best), best)
        if self.persistence:
            action = _repeated(action, episode, errs & (chance.random(len(who)) < self.persistence))
        found = self._population(
            true,
            None if self.demonstrator == Boltzmann() else best,
            observations=features[state],
            actions=action,
            demonstrator=who,
            episode=episode,
            action_count=self.actions,
        )
        ends = np.searchsorted(who, np.arange(self.people + 1))
        change = expertise[ends[1:] - 1] - expertise[ends[:-1]]
        return replace(found, change=change) if self.drift else found

    def _errors(self, chance: np.random.Generator, who: Array) -> Array:
        """(step,) what each step's demonstrator does when they err."""
        uniform = chance.integers(self.actions, size=len(who))
        favourite = chance.integers(self.actions, size=self.count)[who]
        return np.where(chance.random(len(who)) < self.bias, favourite, uniform)

    def _mistakes(self, chance: np.random.Generator, who: Array, best: Array) -> Array:
        """(step,) another action than the best: one of the demonstrator's own for it, or any."""
        own = chance.integers(1, self.actions, size=(self.count, self.actions))[who, best]
        other = chance.integers(1, self.actions, size=len(who))
        return (best + np.where(chance.random(len(who)) < self.mistakes, own, other)) % self.actions


def _own_number(who: Array, episode: Array) -> Array:
    """(step,) which of the demonstrator's own episodes it is, from 0 on."""
    return np.asarray(episode - episode[np.searchsorted(who, who)])


def _repeated(action: Array, episode: Array, repeats: Array) -> Array:
    """Actions, where a step that `repeats` has the action of the step before it in its episode."""
    inside = np.append(False, episode[1:] == episode[:-1])
    steps = np.arange(len(action))
    return action[np.maximum.accumulate(np.where(repeats & inside, 0, steps))]


@final
@dataclass(frozen=True, kw_only=True)
class Continuous(AbstractDesign):
    """Uniform observations, and an expert that chooses between two smooth functions of them, with Gaussian noise.

    A demonstrator's variance is the expert's divided by their expertise, as `VarianceScaling` supposes. `offset` and
    `gain` are standard deviations, over demonstrators and dimensions, of Gaussian offsets and logarithms of gains;
    `correlation` is that of noise with the step before.
    """

    observations: int = 4
    actions: int = 2
    standard_deviation: float = 0.2
    offset: float = 0.0
    gain: float = 0.0
    correlation: float = 0.0
    demonstrator: AbstractDemonstratorModel[Any] = VarianceScaling()  # noqa: RUF009 (frozen)

    @property
    def method(self) -> Ileed:
        policy = MixtureMLP(hidden=(32,), modes=2, shared_standard_deviations=True)
        settings: dict[str, Any] = {"restarts": 4, "steps": 1000, "batch_size": 512, "learning_rate": 1e-3}
        return Ileed(policy=policy, demonstrator=self.demonstrator, expertise=Constant(), **settings)

    def population(self, seed: int) -> Population:
        chance = np.random.default_rng(seed)
        who, episode = self._episodes(chance)
        seen = chance.uniform(-1, 1, size=(len(who), self.observations)).astype(np.float32)
        slopes = chance.normal(size=(2, self.observations, self.actions))
        offset = chance.normal(size=(1, self.actions))
        first, second = np.tanh(seen @ slopes[0] + offset), np.tanh(seen @ slopes[1] - offset)
        chosen = np.where(chance.random((len(who), 1)) < 0.5, first, second)
        level = chance.uniform(LOWEST, HIGHEST, size=self.count)
        deviation = self.standard_deviation / np.sqrt(level[who])[:, None]
        noise = _lasting(chance.normal(size=chosen.shape), episode, self.correlation)
        gain, offset = (chance.normal(size=(self.count, self.actions)) * size for size in (self.gain, self.offset))
        action = np.exp(gain[who]) * chosen + offset[who] + deviation * noise
        return self._population(
            level[who], observations=seen, actions=action.astype(np.float32), demonstrator=who, episode=episode
        )


def _lasting(noise: Array, episode: Array, correlation: float) -> Array:
    """(step, dimension) autocorrelated noise of variance one from independent noise, episode by episode."""
    found = noise.copy()
    for step in np.flatnonzero(episode[1:] == episode[:-1]) + 1 if correlation else ():
        found[step] = correlation * found[step - 1] + np.sqrt(1 - correlation**2) * noise[step]
    return found


@final
@dataclass(frozen=True, kw_only=True)
class Recurrent(AbstractDesign):
    """As `Continuous` with one function of the observation, whose sign a cue in an episode's first observation decides.

    A policy without a hidden state cannot know the sign.
    """

    length: int = 10
    episodes: tuple[int, int] = (30, 30)
    observations: int = 3
    standard_deviation: float = 0.2

    @property
    def method(self) -> Ileed:
        policy = MixtureLSTM(hidden=(16,), length=self.length, modes=1, shared_standard_deviations=True)
        return Ileed(
            policy=policy,
            demonstrator=VarianceScaling(),
            expertise=Constant(),
            restarts=4,
            steps=1000,
            batch_size=64,
        )

    def population(self, seed: int) -> Population:
        chance = np.random.default_rng(seed)
        who, episode = self._episodes(chance)
        seen = chance.uniform(-1, 1, size=(len(who), self.observations)).astype(np.float32)
        cue = chance.choice([-1.0, 1.0], size=int(episode[-1]) + 1)
        seen[:, 0] = np.where(np.arange(len(who)) % self.length == 0, cue[episode], 0)
        slope = chance.normal(size=self.observations - 1)
        mean = cue[episode] * np.tanh(seen[:, 1:] @ slope)
        level = chance.uniform(LOWEST, HIGHEST, size=self.count)
        action = mean + self.standard_deviation / np.sqrt(level[who]) * chance.normal(size=len(who))
        actions = action[:, None].astype(np.float32)
        return self._population(level[who], observations=seen, actions=actions, demonstrator=who, episode=episode)


@final
@dataclass(frozen=True, kw_only=True)
class Signal(AbstractDesign):
    """Positions that move at constant velocity, and a smooth policy with a gain and a noise for each demonstrator.

    Log gains are Gaussian with standard deviation `gain`, noise scales with the gain, and the log of its standard
    deviation differs between the episodes of a demonstrator by Gaussian noise of `variation`. Expertise is the share of
    the variance of the mean action over `horizon` steps, within episodes, that the policy explains. Noise is drawn so
    that this share is uniform from 0.3 to 0.95 in episodes of average signal; the truth is that over all episodes that
    the demonstrator might have recorded.
    """

    observations: int = 1
    actions: int = 2
    gain: float = 0.3
    variation: float = 0.0
    horizon: int = 4
    episodes: tuple[int, int] = (20, 20)

    @property
    def method(self) -> Ileed:
        settings: dict[str, Any] = {"restarts": 4, "steps": 1000, "batch_size": 512, "learning_rate": 3e-3}
        model = SignalScaling(horizon=self.horizon)
        return Ileed(policy=MixtureMLP(hidden=(32, 32), modes=1), demonstrator=model, **settings)

    def population(self, seed: int) -> Population:
        chance = np.random.default_rng(seed)
        who, episode = self._episodes(chance)
        count = int(episode[-1]) + 1
        velocity = np.repeat(chance.normal(size=(count, 1, self.observations)) * 0.06, self.length, axis=1)
        state = np.cumsum(velocity, axis=1) + chance.normal(size=(count, 1, self.observations))
        slopes = chance.normal(size=(self.observations, self.actions)) / np.sqrt(self.observations)
        mean = np.sin(state @ slopes)
        signal = float(self._signal(mean).mean())
        level = chance.uniform(0.3, HIGHEST, size=self.count)
        # independent noise of variance v has v / horizon over a horizon
        noise = np.sqrt(signal * (1 - level) / level * self.horizon)
        own = np.exp(chance.normal(size=(count, 1, 1)) * self.variation)
        by_episode = who[np.searchsorted(episode, np.arange(count))]
        gain = np.exp(chance.normal(size=(self.count, self.actions)) * self.gain)
        drawn = noise[by_episode][:, None, None] * own * chance.normal(size=mean.shape)
        action = gain[by_episode][:, None] * (mean + drawn)
        other = chance.normal(size=(2, OTHER_EPISODES, 1, self.observations))
        other = other[0] + 0.06 * np.arange(1, self.length + 1)[:, None] * other[1]
        true = self._share(self._signal(np.sin(other @ slopes)), noise**2 * np.exp(2 * self.variation**2), gain)
        return self._population(
            true[who],
            observations=np.concatenate([state, velocity], axis=2).reshape(len(who), -1).astype(np.float32),
            actions=action.reshape(-1, self.actions).astype(np.float32),
            demonstrator=who,
            episode=episode,
        )

    def _signal(self, mean: Array) -> Array:
        """(dimension,) the variance of the mean over the horizon within episodes, (episode, step, dimension)."""
        ahead = np.stack([mean[:, t : t + self.horizon].mean(1) for t in range(self.length)], axis=1)
        return np.asarray(ahead.var(1).mean(0))

    def _share(self, signal: Array, noise: Array, gain: Array) -> Array:
        """(person,) the share of variance that the true policy explains, from (dimension,) variances of the signal.

        `noise` is (person,) the variance of a step's noise. Windows at the end of an episode are shorter, and the mean
        of an episode's noise is no part of the variance within it.
        """
        windows = np.minimum(self.horizon, self.length - np.arange(self.length))
        over_window = (1 / windows).mean() * noise[:, None]
        residual = (gain**2 * over_window)[: self.people].mean(0)
        variance = signal + over_window - noise[:, None] / self.length
        return np.asarray(1 - (gain**2 * over_window / residual).sum(1) / (gain**2 * variance / residual).sum(1))


DESIGNS: dict[str, AbstractDesign] = {
    "constant": Tabular(),
    "by state": Tabular(by_state=True),
    "Gaussian mixture": Continuous(),
    "recurrent": Recurrent(),
    "few episodes": Tabular(stochastic=True, episodes=(2, 4)),
    "wrong noise": Tabular(persistence=0.5, bias=0.5),
    "250 steps": Tabular(episodes=(5, 5)),
    "1000 steps": Tabular(episodes=(20, 20)),
    "one versus rest": Tabular(demonstrator=OneVersusRest()),
    "Boltzmann": Tabular(demonstrator=Boltzmann()),
    "habits": Tabular(bias=0.5, demonstrator=BiasedMixture()),
    "persistent": Tabular(persistence=0.5, demonstrator=Persistent()),
    "confusion": Tabular(mistakes=0.5, demonstrator=Confusion()),
    "signal and noise": Signal(),
    "signal, varying episodes": Signal(variation=0.3),
    "drift": Tabular(drift=1.0, episodes=(20, 20), length=25),
    "2 varying episodes": Tabular(variation=VARIATION, episodes=(2, 2)),
    "3 varying episodes": Tabular(variation=VARIATION, episodes=(3, 3)),
    "5 varying episodes": Tabular(variation=VARIATION, episodes=(5, 5)),
}
"""Six designs, of which the experts of the third, fourth and fifth are stochastic; the first with other numbers of
steps a demonstrator; the other demonstrator models, of continuous actions too, each with demonstrators as it describes
them; demonstrators who learn or tire; and few episodes of demonstrators whose expertise differs from episode to
episode."""
