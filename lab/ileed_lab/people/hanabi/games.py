"""Games of Hanabi that demonstrators played with computer players, read from the published archive.

Eger, Martens and Alfaro Cordoba, *An Intentional AI for Hanabi*, IEEE Conference on Computational Intelligence and
Games 2017; CC BY 4.0. Each game is a log; games of one demonstrator are chained by the `Old GID` of each, and the first
of them has answers to a survey.
"""

from __future__ import annotations

import csv
import io
import lzma
import random
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ileed import DemonstrationError
from ileed_lab.people.hanabi.playing import Card, Move

__all__ = ["EXPERIENCE", "Game", "dealt_deck", "first_games", "read_games"]

EXPERIENCE = ("new", "dabbling", "intermediate", "expert")
"""Answers to "how familiar are you with Hanabi?": never played, 1 to 10, 10 to 50, more than 50 games."""

_COPIES = (3, 2, 2, 2, 1)


@final
@dataclass(frozen=True)
class Game:
    """A finished game; player 0 is the computer and begins, player 1 is the demonstrator."""

    key: str
    """The log's own identifier."""
    person: str
    """The identifier of the demonstrator's first game."""
    partner: str
    """The computer player: full, intentional or outer."""
    seed: int
    """Of the deck: games with the same seed have the same cards."""
    deck: tuple[Card, ...]
    """All cards; the first five are dealt to player 0, the next five to player 1."""
    moves: tuple[Move, ...]
    score: int
    time: float
    """When it was played, in seconds since 1970."""
    experience: int | None
    """What the demonstrator answered, as a number in `EXPERIENCE`."""


def read_games(path: Path) -> list[Game]:
    """Every game of the archive, in the order in which they were played."""
    files = _files(path)
    logs = {name[4:-4]: text for name, text in files.items() if name.startswith("game") and name.endswith(".log")}
    if not logs or "games.csv" not in files:
        raise DemonstrationError(f"{path} holds no games of Hanabi: pass the archive with games.csv and log/game*.log")
    previous = {key: _previous(text) for key, text in logs.items()}
    times = _times(files["games.csv"])
    games = []
    for key, text in sorted(logs.items()):
        person = _first_game(key, previous)
        partner, seed, moves, score = _content(key, text)
        known = times.get((person, partner, seed, score), [])
        answer = re.search(r"^exp (\w+)", files.get(f"survey{person}.log", ""), re.MULTILINE)
        said = answer.group(1) if answer else None
        games.append(
            Game(
                key=key,
                person=person,
                partner=partner,
                seed=seed,
                deck=dealt_deck(seed),
                moves=moves,
                score=score,
                time=known.pop(0) if known else float("inf"),
                experience=EXPERIENCE.index(said) if said in EXPERIENCE else None,
            )
        )
    return sorted(games, key=lambda game: (game.time, game.key))


def first_games(games: Sequence[Game], most: int) -> list[Game]:
    """The first `most` games of each demonstrator."""
    kept: dict[str, int] = {}
    found = []
    for game in games:
        kept[game.person] = kept.get(game.person, 0) + 1
        if kept[game.person] <= most:
            found.append(game)
    return found


def dealt_deck(seed: int) -> tuple[Card, ...]:
    """The deck of a seed: 50 cards, shuffled as Python 2 did."""
    drawn, deck = random.Random(seed), [(c, r + 1) for c in range(5) for r in range(5) for _ in range(_COPIES[r])]
    for last in range(len(deck) - 1, 0, -1):
        other = int(drawn.random() * (last + 1))
        deck[last], deck[other] = deck[other], deck[last]
    return tuple(deck)


def _files(path: Path) -> dict[str, str]:
    """The text of every file of the archive, by name without its folder; nothing is written to disk."""
    try:
        with tarfile.open(fileobj=io.BytesIO(lzma.open(path).read())) as archive:
            return dict(_texts(archive))
    except (OSError, lzma.LZMAError, tarfile.TarError, EOFError, UnicodeDecodeError) as error:
        raise DemonstrationError(
            f"{path} cannot be read as an archive of games ({error}): pass hanabi.tar.xz"
        ) from error


def _texts(archive: tarfile.TarFile) -> Iterator[tuple[str, str]]:
    for member in archive:
        content = archive.extractfile(member) if member.isfile() else None
        if content is not None and member.name.endswith((".log", ".csv")):
            yield member.name.rsplit("/", 1)[-1], content.read().decode()


def _previous(text: str) -> str | None:
    found = re.match(r"Old GID: (\w+)", text)
    return found.group(1) if found else None


def _first_game(key: str, previous: Mapping[str, str | None]) -> str:
    seen = {key}
    while (before := previous.get(key)) is not None and before not in seen:
        key = before
        seen.add(key)
    return key


def _times(table: str) -> dict[tuple[str, str, int, int], list[float]]:
    """When the games of a demonstrator with a partner, deck and score were played, earliest first."""
    found: dict[tuple[str, str, int, int], list[float]] = {}
    for row in csv.DictReader(io.StringIO(table), skipinitialspace=True):
        found.setdefault((row["id"], row["ai"], int(row["deck"]), int(row["score"])), []).append(float(row["time"]))
    return {which: sorted(times) for which, times in found.items()}


def _content(key: str, text: str) -> tuple[str, int, tuple[Move, ...], int]:
    """The partner, the seed of the deck, the moves and the score of a log."""
    treatment = re.search(r"^Treatment: \('(\w+)', (\d+)\)", text, re.MULTILINE)
    score = re.search(r"^Score (\d+)", text, re.MULTILINE)
    lines = re.findall(r"^MOVE:(.*)$", text, re.MULTILINE)
    moves = [re.fullmatch(r"([01]) ([0-3]) (\d|None) (\d|None) (\d|None) (\d|None)", line.strip()) for line in lines]
    if treatment is None or score is None or not all(moves):
        raise DemonstrationError(
            f"the log of game {key} is damaged: it needs lines of Treatment, MOVE and Score; leave that file out"
        )
    found = [Move.of_log(*match.groups()) for match in moves if match is not None]
    return treatment.group(1), int(treatment.group(2)), tuple(found), int(score.group(1))
