"""The experiment: does expertise in Hanabi correlate with scores and experience, which no model sees?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from ileed import (
    BiasedMixture,
    Boltzmann,
    Confusion,
    Demonstrations,
    Perfect,
    Persistent,
    UniformMixture,
)
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed_lab.grid import AbstractFileExperiment, Setting
from ileed_lab.learners import Learner
from ileed_lab.people.hanabi.games import Game, first_games, read_games
from ileed_lab.people.hanabi.playing import positions
from ileed_lab.people.hanabi.views import ACTIONS, View, view
from ileed_lab.people.learners import METHOD, Agreement, Alone, Compared, CrossFitted
from ileed_lab.people.measures import Outcomes, measure
from ileed_lab.records import Measured

__all__ = ["CAP", "Hanabi", "demonstrations"]

CAP = 20
"""Games of a demonstrator that count, the first ones: two demonstrators hold more than half of all games."""
MANY = 100
"""Games of each of those who are cloned alone."""
PERSON, PARTNER = 1, 0
MODELS: Mapping[str, AbstractDemonstratorModel[Any]] = {
    "uniform": UniformMixture(),
    "boltzmann": Boltzmann(),
    "shared-habit": BiasedMixture(shared=True),
    "persistent": Persistent(),
    "biased": BiasedMixture(),
    "persistent-biased": Persistent(biased=True),
    "confusion": Confusion(),
}
COMPARED = (UniformMixture(), BiasedMixture(shared=True), Persistent(), BiasedMixture())
"""Of these models the cost of held-out games is compared; the others are slow with this many demonstrators."""


@final
@dataclass(frozen=True)
class Hanabi(AbstractFileExperiment):
    """Demonstrators who played with one of three computer players; trials differ in the seeds of fits, folds and
    resampling.

    In "people" legal moves are not given, since most models cannot use them; "legal" is the same with it. In
    "partners" the computer players are demonstrators like all others, with as many games as a demonstrator may
    have. In "alone" the three of them and the two demonstrators with most games are cloned, each alone.
    """

    name: str = "people/hanabi"
    trials: int = 2
    block: ClassVar[int] = 1
    data_file: ClassVar[str] = "hanabi.tar.xz"
    source: ClassVar[str] = (
        "published games: pass --data hanabi.tar.xz, an archive with games.csv and log/ of "
        "https://github.com/yawgmoth/HanabiData"
    )

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {"cap": CAP, "alone": MANY}

    def fingerprint(self) -> str:
        return _fingerprint(self.file)

    def settings(self) -> Sequence[Setting]:
        return [{"demonstrators": each} for each in ("people", "legal", "partners", "alone")]

    def methods(self, setting: Setting) -> Mapping[str, Learner]:
        models = {name: CrossFitted(replace(METHOD, demonstrator=model)) for name, model in MODELS.items()}
        cloning = replace(METHOD, expertise=Perfect(), restarts=1)
        if setting["demonstrators"] == "people":
            return {
                **models,
                "agreement": Agreement(cloning),
                "compare": Compared(replace(METHOD, steps=1_000), COMPARED),
            }
        if setting["demonstrators"] == "alone":
            return {"cloned": Alone(replace(cloning, held_out=0.2))}  # few games: it stops early
        return {"uniform": models["uniform"]}

    def demonstrations(self, setting: Setting, trials: Sequence[int]) -> Sequence[Demonstrations]:
        return [_data(self.file, setting["demonstrators"])] * len(trials)

    def measure(self, setting: Setting, method: str, trial: int, fit: Any) -> Measured:
        if method == "cloned":
            return {"rows": fit.rows}
        games = first_games(_games(self.file), CAP)
        outcomes = Outcomes(games, list(dict.fromkeys(game.person for game in games)))
        return measure(method)(fit, outcomes, trial)


def demonstrations(
    played: Iterable[tuple[Game, int, str]], *, names: Sequence[str] = (), legal: bool = False
) -> Demonstrations:
    """The moves of games: of each, those of one of the two players, under a demonstrator's name."""
    views: list[View] = []
    who: list[str] = []
    episode: list[str] = []
    for game, player, name in played:
        own = [view(position, move) for position, move in positions(game.deck, game.moves) if move.player == player]
        views += own
        who += [name] * len(own)
        episode += [f"{game.key} {player}"] * len(own)
    return Demonstrations(
        observations=np.stack([each.observation for each in views]),
        actions=np.array([each.action for each in views]),
        demonstrator=np.array(who),
        episode=np.array(episode),
        names=tuple(names),
        legal=np.stack([each.legal for each in views]) if legal else None,
        action_count=len(ACTIONS),
    )


@cache
def _games(path: Path) -> list[Game]:
    return read_games(path)


@cache
def _fingerprint(path: Path) -> str:
    return _data(path, "people").fingerprint


@cache
def _data(path: Path, demonstrators: str) -> Demonstrations:
    games = _games(path)
    kept = first_games(games, CAP)
    names = list(dict.fromkeys(game.person for game in kept))
    people = [(game, PERSON, game.person) for game in kept]
    if demonstrators == "people":
        return demonstrations(people, names=names)
    if demonstrators == "legal":
        return demonstrations(people, names=names, legal=True)
    partners = sorted({game.partner for game in games})
    if demonstrators == "partners":
        theirs = [each for partner in partners for each in _of_partner(kept, partner, CAP)]
        return demonstrations([*people, *theirs], names=[*names, *map(_partner_name, partners)])
    most = sorted(names, key=lambda name: -sum(game.person == name for game in games))[:2]
    alone = [each for partner in partners for each in _of_partner(games, partner, MANY)]
    for number, name in enumerate(most):
        alone += [(game, PERSON, f"person {number + 1}") for game in games if game.person == name][:MANY]
    return demonstrations(alone)


def _of_partner(games: Sequence[Game], partner: str, most: int) -> list[tuple[Game, int, str]]:
    return [(game, PARTNER, _partner_name(partner)) for game in games if game.partner == partner][:most]


def _partner_name(partner: str) -> str:
    return f"computer, {partner}"
