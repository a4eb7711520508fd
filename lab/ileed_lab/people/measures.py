"""Rank correlation of an index of demonstrators with what is known of them, with intervals over demonstrators and over
games."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, final

import numpy as np

from ileed.data import Array
from ileed.parallel.runtime import stream
from ileed.rating.posterior import Population
from ileed.rating.ratings import Ratings
from ileed_lab.learners import Comparison
from ileed_lab.people.learners import Agreements, RatedGames, game_curves
from ileed_lab.ranking import rank_correlation
from ileed_lab.records import Measured

__all__ = ["AbstractIndex", "AgreementIndex", "ExpertiseIndex", "Outcomes", "Played", "correlations", "measure"]

DRAWS = 1_000
FEWEST_PEOPLE = 3
_THIN = 8  # of the points of expertise at which curves are known
FEW_GAMES = 5
"""Demonstrators with at least this many games are also measured separately."""


class Played(Protocol):
    """A game, and what is known of it."""

    @property
    def person(self) -> str: ...
    @property
    def partner(self) -> str:
        """With whom, or where: what changes the score for all demonstrators."""
        ...

    @property
    def seed(self) -> int:
        """Of what was drawn at random, as cards: games with the same seed are alike in it."""
        ...

    @property
    def score(self) -> int: ...
    @property
    def experience(self) -> int | None:
        """Of the demonstrator, in steps from 0."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Outcomes:
    """What is known of demonstrators and their games, and is never shown to a model."""

    games: Sequence[Played]
    names: Sequence[str]
    """Of demonstrators, in the order of the index."""

    @cached_property
    def person(self) -> Array:
        number = {name: k for k, name in enumerate(self.names)}
        return np.array([number[game.person] for game in self.games])

    @cached_property
    def score(self) -> Array:
        return np.array([game.score for game in self.games], dtype=np.float64)

    @cached_property
    def adjusted(self) -> Array:
        """(game,) the score minus the effects of partner and deck in a linear model with a term for each demonstrator.

        First games have one of five decks, later games almost always one of their own: these count as one deck, so
        that the effect of playing for the first time goes with that of the first decks.
        """
        partners = _indicators([game.partner for game in self.games])
        often = {seed for seed in {game.seed for game in self.games} if sum(g.seed == seed for g in self.games) >= 20}
        decks = _indicators([str(game.seed) if game.seed in often else "other" for game in self.games])
        nuisance = np.hstack([partners[:, 1:], decks[:, 1:]])
        people = np.eye(len(self.names))[self.person]
        effects = np.linalg.lstsq(np.hstack([nuisance, people]), self.score, rcond=None)[0][: nuisance.shape[1]]
        return self.score - (nuisance - nuisance.mean(0)) @ effects

    @cached_property
    def experience(self) -> Array:
        """(person,) as stated, greater for more; NaN where it is not known."""
        said = {game.person: game.experience for game in self.games}
        return np.array([np.nan if said[name] is None else said[name] for name in self.names], dtype=np.float64)

    @cached_property
    def count(self) -> Array:
        """(person,) games."""
        return np.bincount(self.person, minlength=len(self.names))

    @cached_property
    def indicators(self) -> Array:
        """(person, game) 1 where the game is the demonstrator's."""
        return np.eye(len(self.names))[self.person].T

    def mean(self, values: Array, counts: Array) -> Array:
        """(person,) of values of games that count so often; 0 where none of a demonstrator's games counts."""
        total = self.indicators @ counts
        return np.asarray(self.indicators @ (counts * values) / np.where(total, total, 1))


class AbstractIndex(ABC):
    """A number for each demonstrator that depends on which of their games count, and how often."""

    @abstractmethod
    def of(self, counts: Array) -> Array:
        """(person,) the index where each game counts so often, (game,)."""


@final
class ExpertiseIndex(AbstractIndex):
    """Expertise by cross-fitting: the posterior mean, with the population of all demonstrators as the prior.

    `games` are rated as episodes; those of the outcomes are the first.
    """

    def __init__(self, people: Ratings, games: Ratings, outcomes: Outcomes) -> None:
        assert people.population is not None
        order = np.argsort([int(label) for label in games.parts["episode"]])
        self._curves = game_curves(games)[order, ::_THIN][: len(outcomes.games)]
        self._outcomes = outcomes
        prior = people.population.share
        self._prior = np.log(np.maximum(prior, np.finfo(np.float64).tiny))[::_THIN]
        self._grid = np.array([Population(row).mean for row in np.eye(len(prior))[::_THIN]])

    def of(self, counts: Array) -> Array:
        curves = self._prior + self._outcomes.indicators @ (counts[:, None] * self._curves)
        shares = np.exp(curves - curves.max(1, keepdims=True))
        return np.asarray(shares @ self._grid / shares.sum(1))


@final
class AgreementIndex(AbstractIndex):
    """The share of steps in which a demonstrator does what a policy of others would do."""

    def __init__(self, found: Agreements, outcomes: Outcomes) -> None:
        self._found, self._outcomes = found, outcomes

    def of(self, counts: Array) -> Array:
        return self._outcomes.mean(self._found.agreeing / self._found.steps, counts * self._found.steps)


def correlations(index: AbstractIndex, outcomes: Outcomes, seed: int) -> dict[str, Measured]:
    """The rank correlation with each outcome, over all demonstrators who have it and over those with several games."""
    random = np.random.default_rng(stream(seed, "games").initial_seed())
    counts = [np.ones(len(outcomes.games)), *(_resampled(outcomes, random) for _ in range(DRAWS))]
    own = np.array([index.of(each) for each in counts])  # (draw, demonstrator): all games, then resampled ones
    score, adjusted = (
        np.array([outcomes.mean(values, each) for each in counts]) for values in (outcomes.score, outcomes.adjusted)
    )
    stated = np.tile(outcomes.experience, (len(counts), 1))
    several = outcomes.count >= FEW_GAMES
    found: dict[str, Measured] = {}
    for name, theirs in (("score", score), ("adjusted score", adjusted), ("experience", stated)):
        known = np.isfinite(theirs[0])
        for suffix, who in (("", known), (", several games", known & several)):
            if who.sum() < FEWEST_PEOPLE:
                continue
            chance = np.random.default_rng(stream(seed, name, suffix).initial_seed())
            found[name + suffix] = _correlation(own[:, who], theirs[:, who], chance)
    # one computer player at a time: a partner changes both what a demonstrator does and the score
    for partner in sorted({game.partner for game in outcomes.games}):
        with_it = np.array([float(game.partner == partner) for game in outcomes.games])
        who = outcomes.indicators @ with_it > 0
        found[f"score with {partner}"] = {
            "people": int(who.sum()),
            "correlation": rank_correlation(index.of(with_it)[who], outcomes.mean(outcomes.score, with_it)[who]),
        }
    found["other games"] = _other_games(index, outcomes, outcomes.adjusted, seed)
    known = np.isfinite(outcomes.experience)
    if known.any():
        found["experience and adjusted score"] = {
            "people": int(known.sum()),
            "correlation": rank_correlation(outcomes.experience[known], adjusted[0, known]),
        }
    return found


def _correlation(own: Array, theirs: Array, random: np.random.Generator) -> Measured:
    """With intervals from resampled demonstrators, from resampled demonstrators and games, and of outcomes permuted
    over demonstrators.

    Both are (draw, demonstrator), by all games first and then by resampled ones.
    """
    people = own.shape[1]
    observed = rank_correlation(own[0], theirs[0])
    over_people, over_games, permuted = [], [], []
    for mine, other in zip(own[1:], theirs[1:], strict=True):
        drawn = random.integers(people, size=people)
        over_people.append(rank_correlation(own[0, drawn], theirs[0, drawn]))
        over_games.append(rank_correlation(mine[drawn], other[drawn]))
        permuted.append(rank_correlation(own[0], random.permutation(theirs[0])))
    return {
        "people": people,
        "correlation": observed,
        "over_people": _interval(over_people),
        "over_games": _interval(over_games),
        "permuted": _interval(permuted),
        "permuted_beyond": float((np.abs(permuted) >= abs(observed)).mean()),
    }


def _other_games(index: AbstractIndex, outcomes: Outcomes, values: Array, seed: int) -> Measured:
    """The index by one half of a demonstrator's games and the score of the other half, with resampled demonstrators."""
    random = np.random.default_rng(stream(seed, "halves").initial_seed())
    people = np.flatnonzero(outcomes.count >= 2)
    found, drawn_again, score_alone = [], [], []
    for _ in range(DRAWS):
        half = _half(outcomes, random)
        own, theirs = index.of(half)[people], outcomes.mean(values, 1 - half)[people]
        drawn = random.integers(len(people), size=len(people))
        found.append(rank_correlation(own, theirs))
        drawn_again.append(rank_correlation(own[drawn], theirs[drawn]))
        score_alone.append(rank_correlation(outcomes.mean(values, half)[people], theirs))
    return {
        "people": len(people),
        "correlation": float(np.mean(found)),
        "over_people": _interval(drawn_again),
        "score_with_itself": float(np.mean(score_alone)),
    }


def _half(outcomes: Outcomes, random: np.random.Generator) -> Array:
    """(game,) 1 for one half of every demonstrator's games, at random; of one game, or an odd number, the larger
    part."""
    order = random.permutation(len(outcomes.games))
    order = order[np.argsort(outcomes.person[order], kind="stable")]
    first = np.concatenate([[0], np.cumsum(outcomes.count)])
    half = np.zeros(len(outcomes.games))
    half[order] = (
        np.arange(len(order)) - first[outcomes.person[order]] < (outcomes.count[outcomes.person[order]] + 1) // 2
    )
    return half


def _resampled(outcomes: Outcomes, random: np.random.Generator) -> Array:
    """(game,) how often each game counts where every demonstrator's games are resampled with replacement."""
    order = np.argsort(outcomes.person, kind="stable")
    first = np.concatenate([[0], np.cumsum(outcomes.count)])
    own = outcomes.person[order]
    drawn = order[first[own] + (random.random(len(own)) * outcomes.count[own]).astype(np.int64)]
    return np.bincount(drawn, minlength=len(own)).astype(np.float64)


def _interval(values: Sequence[float]) -> list[float]:
    return np.quantile(values, (0.025, 0.975)).tolist()


def _indicators(labels: Sequence[str]) -> Array:
    names, number = np.unique(labels, return_inverse=True)
    return np.eye(len(names))[number]


def measure(method: str) -> Callable[[Any, Outcomes, int], Measured]:
    """What is recorded of a fit by a method of that name, given the outcomes and the trial."""
    kinds: dict[str, Callable[[Any, Outcomes, int], Measured]] = {
        "agreement": _measure_agreement,
        "compare": _measure_comparison,
    }
    return kinds.get(method, _measure_expertise)


def _measure_comparison(fit: Comparison, outcomes: Outcomes, trial: int) -> Measured:
    return fit.measured()


def _measure_agreement(fit: Agreements, outcomes: Outcomes, trial: int) -> Measured:
    index = AgreementIndex(fit, outcomes)
    return {
        "correlations": correlations(index, outcomes, trial),
        "people": _people(outcomes, {"expertise": index.of(np.ones(len(outcomes.games)))}),
        "nats_per_action": fit.nats_per_action,
    }


def _measure_expertise(fit: RatedGames, outcomes: Outcomes, trial: int) -> Measured:
    """Every demonstrator's expertise and its correlations with outcomes, which computer players have no part in."""
    names, best, people = fit.people.names, fit.people.best, len(outcomes.names)
    index = ExpertiseIndex(fit.people, fit.games, outcomes)
    columns = {"expertise": best.expertise, "low": best.low, "high": best.high}
    computers = [
        {"demonstrator": names[k], "rank": int((best.expertise > best.expertise[k]).sum()) + 1, "of": len(names)}
        | {name: float(column[k]) for name, column in columns.items()}
        for k in range(people, len(names))
    ]
    by_games = index.of(np.ones(len(outcomes.games)))
    return {
        "correlations": correlations(index, outcomes, trial),
        "people": _people(outcomes, {name: column[:people] for name, column in columns.items()}),
        "computers": computers,
        "sentence": fit.people.sentence(),
        "identification": fit.people.by.identification,
        "temperature": fit.people.by.temperature,
        "dispersion": fit.people.by.dispersion,
        "spread": None if fit.people.population is None else fit.people.population.spread,
        "by_games_minus_by_people": float(np.abs(by_games - best.expertise[:people]).max()),
    }


def _people(outcomes: Outcomes, columns: Mapping[str, Array]) -> list[Measured]:
    """One row for each demonstrator, by number, in the order of their first games."""
    one = np.ones(len(outcomes.games))
    score, adjusted = (outcomes.mean(values, one) for values in (outcomes.score, outcomes.adjusted))
    return [
        {
            "games": int(outcomes.count[k]),
            "score": float(score[k]),
            "adjusted": float(adjusted[k]),
            "experience": None if np.isnan(outcomes.experience[k]) else int(outcomes.experience[k]),
        }
        | {name: float(column[k]) for name, column in columns.items()}
        for k in range(len(outcomes.names))
    ]
