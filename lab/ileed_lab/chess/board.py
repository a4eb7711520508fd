"""The board: the encoding of positions of kings and pawns for a network, and the list of its actions.

Positions are encoded from the mover's side: where Black moves, colours are swapped and ranks mirrored, so that the own
pawns always move up the board. Squares are numbered from a1 = 0, b1 = 1 to h8 = 63.

An observation is 264 numbers, each 0 or 1: four planes of 64 squares (own king, other king, own pawns, other pawns),
and for each file whether a pawn on it may be captured en passant.

The 158 actions are, in order: 8 steps of the king by compass direction (N, NE, E, SE, S, SW, W, NW); then the moves of
a pawn, by its origin square: 48 pushes, 8 double pushes, 35 captures to the left, 35 to the right; then the 24
promotions to anything but a queen. A push to the last rank promotes to a queen. There are no captures there, since no
pawn can be on that rank and kings are not captured. A capture on a square, en passant or not, is the same action: the
position determines which it is. Every legal move of every position of kings and pawns is one of these, no two are the
same, and each is legal in some position.

No sliding piece can be on the board, so nothing is ever pinned and a check can only be met by moving the king or by
capturing the pawn that gives it. So the legal moves of any number of positions are a few operations on arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from ileed import DemonstrationError
from ileed.data import Array

__all__ = [
    "ACTIONS",
    "ACTION_COUNT",
    "FEATURES",
    "Encoded",
    "actions_of",
    "encode",
    "mirror",
    "mirror_actions",
    "moves_of",
    "with_king_centred_planes",
]

_COMPASS = {"N": 8, "NE": 9, "E": 1, "SE": -7, "S": -8, "SW": -9, "W": -1, "NW": 7}
_FILES = "abcdefgh"


class _PawnMove(NamedTuple):
    """A pawn's move: its origin and target squares, and the piece it becomes ("" where it stays a pawn)."""

    origin: int
    target: int
    becomes: str

    def __str__(self) -> str:
        return f"{_name(self.origin)}{_name(self.target)}{self.becomes}"


def _name(square: int) -> str:
    return f"{_FILES[square % 8]}{square // 8 + 1}"


def _pawn_moves() -> tuple[_PawnMove, ...]:
    plain = [(origin, origin + 8) for origin in range(8, 56)]
    double = [(origin, origin + 16) for origin in range(8, 16)]
    left = [(origin, origin + 7) for origin in range(8, 48) if origin % 8 > 0]
    right = [(origin, origin + 9) for origin in range(8, 48) if origin % 8 < 7]
    usual = [_PawnMove(*step, "q" if step[1] >= 56 else "") for step in (*plain, *double, *left, *right)]
    lesser = [move._replace(becomes=piece) for piece in "rbn" for move in usual if move.becomes]
    return (*usual, *lesser)


_PAWN_MOVES = _pawn_moves()
_STEPS = len(_COMPASS)
ACTIONS = (*(f"king {point}" for point in _COMPASS), *map(str, _PAWN_MOVES))
"""Each action in words, from the mover's side: a step of the king, or a pawn's move in UCI."""
ACTION_COUNT = len(ACTIONS)
FEATURES = 4 * 64 + 8
"""Numbers in an observation."""

_ORIGIN = np.array([move.origin for move in _PAWN_MOVES])
_TARGET = np.array([move.target for move in _PAWN_MOVES])
_IS_CAPTURE = _ORIGIN % 8 != _TARGET % 8
_IS_DOUBLE = _TARGET - _ORIGIN == 16
_SQUARES = np.arange(64)


def _targets(steps: Sequence[int]) -> Array:
    """(64, step) the target square of each step, or 64 where it leaves the board."""
    target = _SQUARES[:, None] + np.array(steps)
    inside = (target >= 0) & (target < 64) & (np.abs(target % 8 - _SQUARES[:, None] % 8) <= 1)
    return np.where(inside, target, 64)


_KING_TARGET = _targets(list(_COMPASS.values()))
_ATTACKED_FROM = _targets([7, 9])  # squares from which the other side's pawns, which move down, attack a square

_ACTION_OF_PAWN = np.full((64, 64, 5), -1)  # by origin, target and index of _PIECES
_PIECES = ("", "q", "r", "b", "n")
for _number, _move in enumerate(_PAWN_MOVES):
    _ACTION_OF_PAWN[_move.origin, _move.target, _PIECES.index(_move.becomes)] = _STEPS + _number
_ACTION_OF_KING = np.full((64, 65), -1)  # by origin and target
for _number in range(_STEPS):
    _ACTION_OF_KING[_SQUARES, _KING_TARGET[:, _number]] = _number
_ACTION_OF_KING[:, 64] = -1

_FLIPPED_SQUARES = _SQUARES ^ 7
_FLIPPED_FEATURES = np.concatenate(
    [*(64 * plane + _FLIPPED_SQUARES for plane in range(4)), 4 * 64 + np.arange(8)[::-1]]
)
_FLIPPED_ACTIONS = np.concatenate(
    [
        [0, 7, 6, 5, 4, 3, 2, 1],
        [_ACTION_OF_PAWN[move.origin ^ 7, move.target ^ 7, _PIECES.index(move.becomes)] for move in _PAWN_MOVES],
    ]
)


class Encoded(NamedTuple):
    """Positions as inputs of a network: `observations` (position, 264) of 0 and 1, `legal` (position, 158)."""

    observations: Array
    legal: Array


def encode(fens: Sequence[str]) -> Encoded:
    """The observation of each position, and its legal actions.

    A position is given by the first four fields of its FEN; others are ignored. It must be reachable in a game: whether
    the side that has moved is in check is not verified. An en-passant square counts only where such a capture is legal,
    so that the encoding of a position does not depend on how its FEN was written.

    >>> observations, legal = encode(["8/8/8/8/8/4k3/4p3/4K3 w - -"])
    >>> observations.shape, int(legal.sum())
    ((1, 264), 0)
    """
    boards = _Boards.read(fens)
    legal = boards.legal()
    return Encoded(boards.observations(legal), legal)


def actions_of(fens: Sequence[str], moves: Sequence[str]) -> Array:
    """The number of each UCI move in its position, (position,); an illegal move is refused.

    >>> ACTIONS[actions_of(["4k3/8/8/8/8/8/4P3/4K3 w - -"], ["e2e4"])[0]]
    'e2e4'
    """
    if len(fens) != len(moves):
        raise DemonstrationError(f"{len(fens):,} positions but {len(moves):,} moves: pass one move for each position")
    boards = _Boards.read(fens)
    actions = boards.actions(moves)
    row = np.arange(len(actions))
    illegal = (actions < 0) | ~boards.legal()[row, actions]
    if illegal.any():
        first = int(illegal.argmax())
        raise DemonstrationError(
            f"{illegal.sum():,} of {len(moves):,} moves are illegal (first: {moves[first]!r} in {fens[first]!r}): "
            "correct or drop them",
            code="moves-illegal",
        )
    return actions


def moves_of(fens: Sequence[str], actions: Sequence[int] | Array) -> list[str]:
    """The UCI move that each action is in its position; an illegal action is refused."""
    chosen = np.asarray(actions, dtype=np.int64)
    if chosen.shape != (len(fens),) or (len(chosen) and not 0 <= chosen.min() <= chosen.max() < ACTION_COUNT):
        raise DemonstrationError(
            f"actions of shape {chosen.shape} for {len(fens):,} positions: pass one for each, from 0 to "
            f"{ACTION_COUNT - 1}",
            code="actions-shape",
        )
    boards = _Boards.read(fens)
    illegal = ~boards.legal()[np.arange(len(chosen)), chosen]
    if illegal.any():
        first = int(illegal.argmax())
        raise DemonstrationError(
            f"{illegal.sum():,} of {len(chosen):,} actions are illegal (first: {ACTIONS[chosen[first]]!r} from the "
            f"mover's side in {fens[first]!r}): choose among those that encode() calls legal",
            code="actions-illegal",
        )
    return boards.moves(chosen)


def mirror(encoded: Encoded) -> Encoded:
    """The same positions with left and right exchanged, which are equivalent since castling is impossible."""
    return Encoded(encoded.observations[:, _FLIPPED_FEATURES], encoded.legal[:, _FLIPPED_ACTIONS])


def mirror_actions(actions: Array) -> Array:
    """Each action with left and right exchanged."""
    return _FLIPPED_ACTIONS[actions]


def with_king_centred_planes(observations: Array) -> Array:
    """The same observations with 675 more inputs: the squares relative to the own king.

    Three planes of 15 x 15 squares (other king, own pawns, other pawns), by their distance up and to the right of the
    king. The value of a king's step depends on the squares around it, wherever on the board, so that a network of dense
    layers need not learn it separately for every square.
    """
    if observations.ndim != 2 or observations.shape[1] != FEATURES:
        raise DemonstrationError(
            f"observations of shape {observations.shape} are not boards: pass (n, {FEATURES})",
            code="observations-shape",
        )
    king = observations[:, :64].argmax(1)
    around = np.zeros((len(observations), 3, 15, 15), dtype=observations.dtype)
    row, plane, square = np.nonzero(observations[:, 64:256].reshape(-1, 3, 64))
    up, right = square // 8 - king[row] // 8, square % 8 - king[row] % 8
    around[row, plane, up + 7, right + 7] = 1
    return np.concatenate([observations, around.reshape(len(observations), 675)], axis=1)


@final
@dataclass(frozen=True, eq=False)
class _Boards:
    """Positions from the mover's side: the kings' squares, and (position, square) whether there is a pawn."""

    king: Array
    other_king: Array
    pawns: Array
    other_pawns: Array
    passing: Array  # (position,) the square behind a pawn that has just made a double push, or 64
    black: Array  # (position,) whether black moves

    @classmethod
    def read(cls, fens: Sequence[str]) -> _Boards:
        """From FEN, refusing what is not a position of two kings and pawns."""
        rows, sides, passed = [], [], []
        for number, fen in enumerate(fens):
            fields = fen.split(maxsplit=4)
            if len(fields) < 4 or fields[1] not in ("w", "b") or fields[2] != "-":
                raise _refusal(
                    number, fen, "is not the board, side, '-' and en-passant square of a FEN", code="position-fields"
                )
            squares = fields[0].translate(_EXPANDED)
            if fields[0].count("/") != 7 or len(squares) != 64:
                raise _refusal(number, fen, "does not describe eight ranks of eight squares", code="position-squares")
            rows.append(squares)
            sides.append(fields[1] == "b")
            passed.append(fields[3])
        text = np.frombuffer("".join(rows).encode("ascii", "replace"), dtype=np.uint8).reshape(-1, 64)
        _check(text, fens)
        black = np.array(sides, dtype=bool)
        # A FEN begins with the eighth rank, so its text is the board from Black's side.
        pieces = np.where(black[:, None], text ^ _OTHER_CASE * (text != _EMPTY), text[:, _SQUARES ^ 56])
        return cls(
            king=(pieces == ord("K")).argmax(1),
            other_king=(pieces == ord("k")).argmax(1),
            pawns=pieces == ord("P"),
            other_pawns=pieces == ord("p"),
            passing=_passing(passed, black, pieces, fens),
            black=black,
        )

    def observations(self, legal: Array) -> Array:
        found = np.zeros((len(self.king), FEATURES), dtype=np.uint8)
        row = np.arange(len(found))
        found[row, self.king] = 1
        found[row, 64 + self.other_king] = 1
        found[:, 128:192] = self.pawns
        found[:, 192:256] = self.other_pawns
        captured = (legal[:, _STEPS:] & _IS_CAPTURE & (self.passing[:, None] == _TARGET)).any(1)
        found[row[captured], 256 + self.passing[captured] % 8] = 1
        return found

    def legal(self) -> Array:
        """(position, action) whether it is legal."""
        found = np.empty((len(self.king), ACTION_COUNT), dtype=bool)
        for first in range(0, len(found), _AT_ONCE):
            block = slice(first, first + _AT_ONCE)
            some = _Boards(**{name: column[block] for name, column in vars(self).items()})
            found[block, :_STEPS], found[block, _STEPS:] = some._king_steps(), some._pawn_moves()
        return found

    def _king_steps(self) -> Array:
        """To a square on the board, without an own pawn, and attacked neither by a pawn nor by the other king."""
        count = len(self.king)
        row = np.arange(count)[:, None]
        beyond = np.zeros((count, 1), dtype=bool)
        other_pawns = np.concatenate([self.other_pawns, beyond], axis=1)
        closed = other_pawns[:, _ATTACKED_FROM].any(2) | self.pawns
        closed[row, self.other_king[:, None]] = True
        closed = np.concatenate([closed, ~beyond], axis=1)
        closed[row, _KING_TARGET[self.other_king]] = True
        return ~closed[row, _KING_TARGET[self.king]]

    def _pawn_moves(self) -> Array:
        row = np.arange(len(self.king))[:, None]
        full = self.pawns | self.other_pawns
        full[row, self.king[:, None]] = True
        full[row, self.other_king[:, None]] = True
        passing = self.passing[:, None] == _TARGET
        taken = self.other_pawns[:, _TARGET] | passing
        between = full[:, np.minimum(_ORIGIN + 8, 63)]
        free = ~full[:, _TARGET] & ~(between & _IS_DOUBLE)
        possible = self.pawns[:, _ORIGIN] & np.where(_IS_CAPTURE, taken, free)
        giving_check = _ATTACKED_FROM[self.king]
        giving = np.concatenate([self.other_pawns, np.zeros((len(row), 1), dtype=bool)], axis=1)[row, giving_check]
        checks = giving.sum(1)
        checker = np.where(giving, giving_check, 0).max(1)
        victim = np.where(passing, _TARGET - 8, _TARGET)
        meets_check = _IS_CAPTURE & (victim == checker[:, None]) & (checks == 1)[:, None]
        return possible & (meets_check | (checks == 0)[:, None])

    def actions(self, moves: Sequence[str]) -> Array:
        """The number of each move, or -1 where it is not a move of the mover's king or pawns."""
        text = np.array([move.encode("ascii", "replace") for move in moves], dtype="S6")
        letters = text.view(np.uint8).reshape(-1, 6).astype(np.int64)
        file, rank = letters[:, [0, 2]] - ord("a"), letters[:, [1, 3]] - ord("1")
        squares = rank * 8 + file
        sound = ((file >= 0) & (file < 8) & (rank >= 0) & (rank < 8)).all(1) & (letters[:, 5] == 0)
        squares = np.where(sound[:, None], np.where(self.black[:, None], squares ^ 56, squares), 0)
        piece = _PIECE_OF_LETTER[letters[:, 4]]
        origin, target = squares.T
        of_king = np.where(piece == 0, _ACTION_OF_KING[origin, target], -1)
        of_pawn = np.where(piece >= 0, _ACTION_OF_PAWN[origin, target, piece], -1)
        return np.where(sound, np.where(origin == self.king, of_king, of_pawn), -1)

    def moves(self, actions: Array) -> list[str]:
        step = actions < _STEPS
        pawn = np.where(step, 0, actions - _STEPS)
        offset = np.array([*_COMPASS.values(), 0])[np.where(step, actions, _STEPS)]
        origin = np.where(step, self.king, _ORIGIN[pawn])
        target = np.where(step, (self.king + offset) % 64, _TARGET[pawn])
        turn = np.where(self.black, 56, 0)
        squares = zip((origin ^ turn).tolist(), (target ^ turn).tolist(), actions.tolist(), strict=True)
        return [f"{_name(a)}{_name(b)}{_promotion(action)}" for a, b, action in squares]


def _promotion(action: int) -> str:
    return "" if action < _STEPS else _PAWN_MOVES[action - _STEPS].becomes


_AT_ONCE = 4096  # positions whose moves are computed together, so that they fit in the cache
_EMPTY = ord(".")
_OTHER_CASE = np.uint8(ord("a") ^ ord("A"))
_EXPANDED = {ord("/"): None} | {ord(str(count)): "." * count for count in range(1, 9)}
_PIECE_OF_LETTER = np.full(256, -1)
_PIECE_OF_LETTER[[0, *map(ord, "qrbn")]] = np.arange(5)


def _check(text: Array, fens: Sequence[str]) -> None:
    """Refuse boards with anything but one king a side, and pawns where pawns can be."""
    strange = ~np.isin(text, np.frombuffer(b".KkPp", dtype=np.uint8))
    kings = ((text == ord("K")).sum(1) == 1) & ((text == ord("k")).sum(1) == 1)
    ends = np.isin(text[:, [*range(8), *range(56, 64)]], np.frombuffer(b"Pp", dtype=np.uint8)).any(1)
    for wrong, rule in (
        (strange.any(1), "holds more than kings and pawns"),
        (~kings, "does not have one king of each side"),
        (ends, "has a pawn on the first or last rank"),
    ):
        if wrong.any():
            first = int(wrong.argmax())
            raise _refusal(first, fens[first], rule, code="position-pieces")


def _passing(names: Sequence[str], black: Array, pieces: Array, fens: Sequence[str]) -> Array:
    """The square behind a pawn that has just made a double push, on the mover's sixth rank; 64 for "-"."""
    squares = np.full(len(names), 64)
    for number, name in enumerate(names):
        if name == "-":
            continue
        square = 40 + _FILES.find(name[0])
        rank = "3" if black[number] else "6"
        valid = len(name) == 2 and name[0] in _FILES and name[1] == rank
        if not valid or pieces[number, square - 8] != ord("p") or pieces[number, square] != _EMPTY:
            raise _refusal(
                number,
                fens[number],
                f"has {name!r} for an en-passant square, behind which there is no pawn",
                code="position-en-passant",
            )
        squares[number] = square
    return squares


def _refusal(number: int, fen: str, rule: str, *, code: str) -> DemonstrationError:
    return DemonstrationError(f"position {number:,} ({fen!r}) {rule}: correct it or leave it out", code=code)
