"""Hanabi for two: what is on the table before each move of a game, and what is known of each card by clues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from ileed import DemonstrationError
from ileed.data import Array

__all__ = ["COPIES", "Card", "Move", "Position", "positions"]

Card = tuple[int, int]
"""Colour, 0 to 4, and rank, 1 to 5."""
COPIES = np.tile([3, 2, 2, 2, 1], (5, 1))
"""(colour, rank - 1) how many of each card there are."""
CLUES, LIVES, HAND = 8, 3, 5


class Move(NamedTuple):
    """What a player does: clue "colour" or "rank" with its value, or "play" or "discard" a slot of the own hand."""

    player: int
    kind: str
    value: int

    @classmethod
    def of_log(cls, player: str, kind: str, slot: str, target: str, colour: str, rank: str) -> Move:
        """A line of a log: the kind of move, 0 to 3, says which other number is used."""
        name, value = (("colour", colour), ("rank", rank), ("play", slot), ("discard", slot))[int(kind)]
        if not value.isdigit():
            raise DemonstrationError(f"a move of kind {kind} names no {name}: the log is damaged; leave that file out")
        return cls(int(player), name, int(value))


@final
@dataclass(frozen=True, eq=False)
class Held:
    """A card in a hand, and what clues have said of it."""

    card: Card
    possible: Array
    """(colour, rank - 1) whether clues leave it possible that this is the card."""
    colour_clued: bool = False
    rank_clued: bool = False

    def after(self, kind: str, value: int) -> Held:
        """The same card after a clue to its hand, which says something of the cards that it does not touch, too."""
        named = np.zeros((5, 5), dtype=bool)
        named[value if kind == "colour" else slice(None), value - 1 if kind == "rank" else slice(None)] = True
        touched = self.card[kind == "rank"] == value
        return Held(
            self.card,
            self.possible & (named if touched else ~named),
            self.colour_clued or (touched and kind == "colour"),
            self.rank_clued or (touched and kind == "rank"),
        )


@final
@dataclass(frozen=True, eq=False)
class Position:
    """What is on the table before a move."""

    player: int
    """Who is to move."""
    hands: tuple[tuple[Held, ...], tuple[Held, ...]]
    """Oldest card first."""
    fireworks: tuple[int, ...]
    """The highest rank played of each colour."""
    discarded: Array
    """(colour, rank - 1) how many cards were discarded or misplayed."""
    clues: int
    lives: int
    deck: int
    """Cards left to draw."""
    last: Move | None
    """The partner's move before."""

    @property
    def playable(self) -> Array:
        """(colour, rank - 1) which cards can be played."""
        return np.arange(5) == np.array(self.fireworks)[:, None]

    @property
    def useless(self) -> Array:
        """(colour, rank - 1) which cards can never be played: played already, or a lower one is gone."""
        played = np.arange(5) < np.array(self.fireworks)[:, None]
        gone = (self.discarded == COPIES) & ~played
        return np.asarray(played | np.logical_or.accumulate(gone, axis=1))

    @property
    def critical(self) -> Array:
        """(colour, rank - 1) which cards are the last of their kind, and still of use."""
        return (COPIES - self.discarded == 1) & ~self.useless


def positions(deck: Sequence[Card], moves: Sequence[Move]) -> Iterator[tuple[Position, Move]]:
    """Each position of a game with the move made in it; player 0 has the first five cards of the deck."""
    unclued = np.ones((5, 5), dtype=bool)
    hands = [[Held(card, unclued) for card in deck[first : first + HAND]] for first in (0, HAND)]
    left, fireworks, discarded = list(deck[2 * HAND :]), [0] * 5, np.zeros((5, 5), dtype=np.int64)
    clues, lives = CLUES, LIVES
    last: Move | None = None
    for move in moves:
        both = (tuple(hands[0]), tuple(hands[1]))
        yield Position(move.player, both, tuple(fireworks), discarded.copy(), clues, lives, len(left), last), move
        last = move
        if move.kind in ("colour", "rank"):
            clues -= 1
            hands[1 - move.player] = [held.after(move.kind, move.value) for held in hands[1 - move.player]]
            continue
        if move.value >= len(hands[move.player]):
            raise DemonstrationError(f"a move names slot {move.value} of a hand of {len(hands[move.player])} cards")
        colour, rank = hands[move.player].pop(move.value).card
        succeeds = move.kind == "play" and fireworks[colour] == rank - 1
        if succeeds:
            fireworks[colour] = rank
        else:
            discarded[colour, rank - 1] += 1
            lives -= move.kind == "play"
        if move.kind == "discard" or (succeeds and rank == len(fireworks)):
            clues = min(clues + 1, CLUES)
        if left:
            hands[move.player].append(Held(left.pop(0), unclued))
