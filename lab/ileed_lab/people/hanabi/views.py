"""What a player of Hanabi sees and knows before a move, as numbers, and the move as one of twenty actions.

Colours are interchangeable by the rules, so they are put in an order that depends on the position: first the colour
whose clue touches most cards that can be played and are not known to be, then that which touches fewest useless ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ileed.data import Array
from ileed_lab.people.hanabi.playing import CLUES, COPIES, HAND, LIVES, Held, Move, Position

__all__ = ["ACTIONS", "FEATURES", "View", "view"]

ACTIONS = tuple(f"{kind} {k + 1}" for kind in ("play", "discard", "clue colour", "clue rank") for k in range(5))
"""Play and discard name a slot of the own hand, oldest first; colours are in the order of the position."""
_OWN = ("held", "playable", "useless", "critical", "colour clued", "rank clued", "touched by the last move")
_PARTNER = ("held", "playable", "useless", "critical", "known playable", "colour clued", "rank clued")
_CLUE = ("touched", "touched, playable, not known", "touched, useless")
_TABLE = ("clues", "lives", "deck", "score", "partner played", "partner discarded", "partner clued")
FEATURES = (
    *_TABLE,
    *(f"firework {k + 1}" for k in range(5)),
    *(f"own {k + 1}: {name}" for k in range(HAND) for name in _OWN),
    *(f"partner {k + 1}: {name}" for k in range(HAND) for name in _PARTNER),
    *(f"{action}: {name}" for action in ACTIONS[10:] for name in _CLUE),
)
"""What each number of an observation is; of the own cards, probabilities given clues and the cards in sight."""


class View(NamedTuple):
    """A step: what was seen, what could be done and what was done."""

    observation: Array
    legal: Array
    action: int


def view(position: Position, move: Move) -> View:
    """A position as the player to move sees it, and the move."""
    own, others = position.hands[position.player], position.hands[1 - position.player]
    kinds = (position.playable, position.useless, position.critical)
    public = COPIES - position.discarded - (np.arange(5) < np.array(position.fireworks)[:, None])
    unseen = public.copy()
    for held in others:
        unseen[held.card[0], held.card[1] - 1] -= 1
    known = [_chances(held, public, kinds[:1])[0] for held in others]
    clues = _clue_features(others, known, kinds)
    order = np.lexsort((np.arange(5), -clues[:5, 0], clues[:5, 2], -clues[:5, 1]))
    last = position.last
    touched = _touched(own, last)
    own_rows = [
        (1, *_chances(held, unseen, kinds), held.colour_clued, held.rank_clued, touch)
        for held, touch in zip(own, touched, strict=True)
    ]
    other_rows = [
        (1, *(kind[held.card[0], held.card[1] - 1] for kind in kinds), sure, held.colour_clued, held.rank_clued)
        for held, sure in zip(others, known, strict=True)
    ]
    said = "" if last is None else last.kind
    table = [position.clues / CLUES, position.lives / LIVES, position.deck / 40, sum(position.fireworks) / 25]
    table += [said == "play", said == "discard", said in ("colour", "rank")]
    fireworks = np.array(position.fireworks)[order] / 5
    by_clue = np.concatenate([clues[:5][order], clues[5:]])
    parts = (table, fireworks, _padded(own_rows), _padded(other_rows), by_clue.ravel())
    in_hand = np.arange(HAND) < len(own)
    legal = np.concatenate([in_hand, in_hand, (by_clue[:, 0] > 0) & (position.clues > 0)])
    return View(np.concatenate([np.asarray(part, np.float32) for part in parts]), legal, _action(move, order))


def _action(move: Move, order: Array) -> int:
    if move.kind == "colour":
        return 10 + int(np.flatnonzero(order == move.value)[0])
    return {"play": 0, "discard": 5, "rank": 14}[move.kind] + move.value


def _chances(held: Held, count: Array, kinds: Iterable[Array]) -> list[float]:
    """The probability that a card is of each kind, for a demonstrator who cannot see it and counts the others."""
    weight = held.possible * count
    total = weight.sum()
    return [float((weight * kind).sum() / total) if total else 0.0 for kind in kinds]


def _clue_features(hand: tuple[Held, ...], known: list[float], kinds: tuple[Array, ...]) -> Array:
    """(clue, feature) shares of the hand that each clue touches, by colour and then by rank."""
    found = np.zeros((10, len(_CLUE)))
    for held, sure in zip(hand, known, strict=True):
        colour, rank = held.card[0], held.card[1] - 1
        found[[colour, 5 + rank]] += (1, kinds[0][colour, rank] and sure < 1, kinds[1][colour, rank])
    return found / HAND


def _touched(hand: tuple[Held, ...], last: Move | None) -> list[bool]:
    if last is None or last.kind not in ("colour", "rank"):
        return [False] * len(hand)
    return [held.card[last.kind == "rank"] == last.value for held in hand]


def _padded(rows: list[tuple[float, ...]]) -> Array:
    """Rows of a hand, with zeros for the cards that it lacks at the end of a game."""
    found = np.zeros((HAND, len(_OWN)), np.float32)
    found[: len(rows)] = rows
    return found.ravel()
