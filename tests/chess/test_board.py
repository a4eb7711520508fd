"""What a network sees of a position, and the list of moves, compared with python-chess on positions of every kind."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from refusals import refused

from ileed.errors import DemonstrationError
from ileed_lab.chess import board

chess = pytest.importorskip("chess", reason="python-chess is the oracle: pip install 'ileed[chess]'")


@st.composite
def positions(draw):
    """Any legal position of kings and pawns, half of them with a pawn that has just made two steps where one can."""
    found = chess.Board(None)
    squares = draw(st.lists(st.integers(0, 63), min_size=2, max_size=18, unique=True))
    colours = draw(st.lists(st.booleans(), min_size=len(squares), max_size=len(squares)))
    found.set_piece_at(squares[0], chess.Piece(chess.KING, chess.WHITE))
    found.set_piece_at(squares[1], chess.Piece(chess.KING, chess.BLACK))
    for square, colour in zip(squares[2:], colours[2:], strict=True):
        pawns = chess.popcount(found.pawns & found.occupied_co[colour])
        if 8 <= square < 56 and pawns < 8:
            found.set_piece_at(square, chess.Piece(chess.PAWN, colour))
    found.turn = draw(st.booleans())
    assume(found.is_valid())
    return _after_two_steps(found) if draw(st.booleans()) else found


def _after_two_steps(found):
    """The position after the first double push there is, or the same where there is none."""
    for move in found.legal_moves:
        if found.piece_type_at(move.from_square) == chess.PAWN and abs(move.to_square - move.from_square) == 16:
            after = found.copy()
            after.push(move)
            return after
    return found


def fen(position):
    return position.epd(en_passant="fen")


def legal_moves(text):
    (allowed,) = board.encode([text]).legal
    numbers = np.flatnonzero(allowed)
    return board.moves_of([text] * len(numbers), numbers)


EN_PASSANT = chess.Board("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1")
EN_PASSANT_MEETS_CHECK = chess.Board("8/8/8/2k5/3Pp3/8/8/4K3 b - d3 0 1")
CHECK_BY_A_PAWN_THAT_CANNOT_BE_TAKEN = chess.Board("4k3/8/8/8/4p3/3K4/P7/8 w - - 0 1")
PROMOTIONS = chess.Board("8/P6P/8/8/2k5/8/8/K7 w - - 0 1")
STALEMATE = chess.Board("8/8/8/8/8/4k3/4p3/4K3 w - - 0 1")


@settings(max_examples=200)
@given(positions())
@example(EN_PASSANT)
@example(EN_PASSANT_MEETS_CHECK)
@example(CHECK_BY_A_PAWN_THAT_CANNOT_BE_TAKEN)
@example(PROMOTIONS)
@example(STALEMATE)
def test_the_legal_moves_are_those_of_python_chess(position):
    assert sorted(legal_moves(fen(position))) == sorted(move.uci() for move in position.legal_moves)


@settings(max_examples=60)
@given(positions())
def test_a_move_and_its_number_name_each_other(position):
    moves = [move.uci() for move in position.legal_moves]
    numbers = board.actions_of([fen(position)] * len(moves), moves)
    assert len(set(numbers.tolist())) == len(moves)
    assert board.moves_of([fen(position)] * len(moves), numbers) == moves


@settings(max_examples=60)
@given(positions())
def test_both_colours_see_the_same_of_the_same_position(position):
    here, there = (board.encode([fen(seen)]) for seen in (position, position.mirror()))
    np.testing.assert_array_equal(here.observations, there.observations)
    np.testing.assert_array_equal(here.legal, there.legal)


def _left_and_right_exchanged(text):
    ranks, side, castling, passing = text.split()
    file = {"-": "-"} | dict(zip("abcdefgh", "hgfedcba", strict=True))
    return " ".join(["/".join(rank[::-1] for rank in ranks.split("/")), side, castling, file[passing[0]] + passing[1:]])


@settings(max_examples=60)
@given(positions())
def test_to_mirror_what_is_seen_is_to_see_the_mirrored_position(position):
    text = fen(position)
    image = board.encode([_left_and_right_exchanged(text)])
    ours = board.mirror(board.encode([text]))
    np.testing.assert_array_equal(ours.observations, image.observations)
    np.testing.assert_array_equal(ours.legal, image.legal)
    moves = legal_moves(text)
    swapped = [_exchanged(move) for move in moves]
    numbers = board.mirror_actions(board.actions_of([text] * len(moves), moves))
    np.testing.assert_array_equal(numbers, board.actions_of([_left_and_right_exchanged(text)] * len(moves), swapped))


def _exchanged(move):
    return "".join(
        "hgfedcba"["abcdefgh".index(letter)] if place in (0, 2) else letter for place, letter in enumerate(move)
    )


@settings(max_examples=60)
@given(positions())
def test_what_is_seen_is_where_everything_stands(position):
    """Whoever moves is white after `mirror`, so the planes must be python-chess's own lists of squares."""
    own = position if position.turn else position.mirror()
    (seen,) = board.encode([fen(position)]).observations
    planes = [own.pieces(kind, colour) for kind in (chess.KING, chess.PAWN) for colour in (chess.WHITE, chess.BLACK)]
    expected = np.zeros(board.FEATURES, dtype=np.uint8)
    for number, squares in enumerate(planes):
        expected[[64 * number + square for square in squares]] = 1
    if own.has_legal_en_passant():
        expected[256 + chess.square_file(own.ep_square)] = 1
    np.testing.assert_array_equal(seen, expected)


@settings(max_examples=60)
@given(positions())
def test_squares_around_the_king_are_encoded_by_distance(position):
    """Every piece but the mover's king once, by ranks and files from it, counted with python-chess's squares."""
    own = position if position.turn else position.mirror()
    (seen,) = board.with_king_centred_planes(board.encode([fen(position)]).observations)
    king = own.king(chess.WHITE)
    kinds = {(chess.KING, chess.BLACK): 0, (chess.PAWN, chess.WHITE): 1, (chess.PAWN, chess.BLACK): 2}
    expected = np.zeros((3, 15, 15), dtype=np.uint8)
    for square, piece in own.piece_map().items():
        if square != king:
            up = chess.square_rank(square) - chess.square_rank(king)
            right = chess.square_file(square) - chess.square_file(king)
            expected[kinds[piece.piece_type, piece.color], up + 7, right + 7] = 1
    np.testing.assert_array_equal(seen[:264], board.encode([fen(position)]).observations[0])
    np.testing.assert_array_equal(seen[264:].reshape(3, 15, 15), expected)


def test_what_is_no_board_is_not_centred():
    with refused("observations-shape", DemonstrationError):
        board.with_king_centred_planes(np.zeros((2, 100), dtype=np.uint8))


def test_an_en_passant_square_without_a_legal_capture_is_not_encoded():
    told, untold = board.encode(["4k3/8/8/8/3P4/8/8/4K3 b - d3", "4k3/8/8/8/3P4/8/8/4K3 b - -"]).observations
    np.testing.assert_array_equal(told, untold)


def test_many_positions_at_once_are_each_as_they_would_be_alone():
    """More than are worked out together, so that the seam between blocks is crossed."""
    texts = [fen(each) for each in (EN_PASSANT, EN_PASSANT_MEETS_CHECK, PROMOTIONS, STALEMATE)]
    alone = [board.encode([text]) for text in texts]
    many = board.encode(texts * 1_500)
    for number in range(len(texts) * 1_500):
        np.testing.assert_array_equal(many.observations[number], alone[number % 4].observations[0])
        np.testing.assert_array_equal(many.legal[number], alone[number % 4].legal[0])


def test_no_position_at_all_is_an_answer_too():
    observations, legal = board.encode([])
    assert (observations.shape, legal.shape) == ((0, board.FEATURES), (0, board.ACTION_COUNT))
    assert board.actions_of([], []).shape == (0,)


KINGS = "4k3/8/8/8/8/8/4P3/4K3 w - -"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("4k3/8/8/8/8/8/4Q3/4K3 w - -", "position-pieces"),
        ("8/8/8/8/8/8/4P3/4K3 w - -", "position-pieces"),
        ("4k2P/8/8/8/8/8/8/4K3 w - -", "position-pieces"),
        ("4k3/8/8/8/8/8/4K3 w - -", "position-squares"),
        ("4k3/8/8/8/8/8/4P3/4K3 w", "position-fields"),
        ("4k3/8/8/8/8/8/4P3/4K3 w KQ -", "position-fields"),
        ("4k3/8/8/8/8/8/4P3/4K3 w - e6", "position-en-passant"),
        ("4k3/8/8/4p3/8/8/4P3/4K3 w - e3", "position-en-passant"),
        ("4k3/8/8/8/8/8/4é3/4K3 w - -", "position-pieces"),
    ],
)
def test_what_is_not_a_position_of_kings_and_pawns_is_refused_by_its_number(text, code):
    with refused(code, DemonstrationError):
        board.encode([KINGS, text])


@pytest.mark.parametrize("move", ["e2e5", "e1e2", "e8e7", "e2e4q", "a1b1", "", "e2", "e2e4qq", "z9z9", "0000", "é2e4"])
def test_a_move_that_the_rules_do_not_allow_is_refused(move):
    with refused("moves-illegal", DemonstrationError):
        board.actions_of([KINGS, KINGS], ["e2e4", move])


def test_an_action_that_the_rules_do_not_allow_is_refused():
    with refused("actions-illegal", DemonstrationError):
        board.moves_of([KINGS], [board.ACTIONS.index("king N")])
    with refused("actions-shape", DemonstrationError):
        board.moves_of([KINGS], [158])


def test_every_action_is_legal_somewhere_and_no_two_have_one_name():
    """There is no dead entry: a pawn alone, or beside something to take, makes every move on the list somewhere."""
    assert len(set(board.ACTIONS)) == board.ACTION_COUNT == 158
    reached = np.zeros(board.ACTION_COUNT, dtype=bool)
    for origin in range(8, 56):
        for kings in ("a1h1", "a8h8", "a1h8", "c5g5", "c2g2", "a1h5", "h1a5"):
            position = chess.Board(None)
            position.turn = chess.WHITE
            for target in (origin + 7, origin + 9):
                if target < 56 and abs(target % 8 - origin % 8) == 1:
                    position.set_piece_at(target, chess.Piece(chess.PAWN, chess.BLACK))
            position.set_piece_at(origin, chess.Piece(chess.PAWN, chess.WHITE))
            position.set_piece_at(chess.parse_square(kings[:2]), chess.Piece(chess.KING, chess.WHITE))
            position.set_piece_at(chess.parse_square(kings[2:]), chess.Piece(chess.KING, chess.BLACK))
            if position.is_valid():
                reached |= board.encode([fen(position)]).legal[0]
    assert [name for name, found in zip(board.ACTIONS, reached, strict=True) if not found] == []
