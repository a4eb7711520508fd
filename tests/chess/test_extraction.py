"""Extraction: python-chess finds the same positions; damage, interruption and processes change nothing of that."""

import csv
import gzip
import io
import multiprocessing
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import chess
import chess.pgn
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refused

from ileed import cli
from ileed.errors import IleedError
from ileed_lab.chess import extraction, parts, sources
from ileed_lab.chess.extraction import Extracted, extract
from ileed_lab.chess.positions import SCHEMA

DATA = Path(__file__).parents[3] / "shared" / "data" / "chess"
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["ileed.methods"])


def starting(chance: random.Random) -> chess.Board:
    """The usual start; or kings and pawns on random squares, where pawns race and capture in passing."""
    if chance.random() < 0.3:
        return chess.Board()
    board = chess.Board(None)
    while not board.is_valid() or board.is_check():
        board.clear_board()
        ranks = chance.choice([(1, 4), (1, 2, 3, 4, 5, 6)])  # at home and where they capture in passing; or anywhere
        for colour in chess.COLORS:
            for _ in range(chance.randint(1, 6)):
                rank = chance.choice(ranks)
                square = chess.square(chance.randrange(8), rank if colour else 7 - rank)
                board.set_piece_at(square, chess.Piece(chess.PAWN, colour))
            board.set_piece_at(chance.randrange(64), chess.Piece(chess.KING, colour))
        board.turn = chance.random() < 0.5
    return board


def steps_or_takes_in_passing(board: chess.Board, move: chess.Move) -> bool:
    two_squares = abs(move.from_square - move.to_square) == 16
    return board.is_en_passant(move) or (board.piece_type_at(move.from_square) == chess.PAWN and two_squares)


def game(chance: random.Random, *, plies: int = 160) -> chess.pgn.Game:
    """A random legal game, in which pieces like to be captured, with all that a PGN file may hold."""
    written = chess.pgn.Game()
    written.setup(board := starting(chance))
    for name, value in {
        "Event": "Rated Blitz game",
        "Site": f"https://lichess.org/{chance.randrange(16**8):08x}",
        "White": chance.choice(["ann", "Bo-b_1", "Zoë", "?"]),
        "Black": "cy",
        "WhiteElo": chance.choice(["1500", "?", "987"]),
        "TimeControl": "300+3",
        "UTCDate": "2020.02.29",
    }.items():
        written.headers[name] = value
    node: chess.pgn.GameNode = written
    for _ in range(plies):
        legal = list(board.legal_moves)
        if not legal:
            break
        takes = [move for move in legal if board.piece_type_at(move.to_square) not in (None, chess.PAWN)]
        special = [
            move
            for move in legal
            if move.promotion or board.is_castling(move) or steps_or_takes_in_passing(board, move)
        ]
        node = node.add_variation(chance.choice(takes or special or legal))
        if chance.random() < 0.1 and len(legal) > 1:
            aside = node.parent.add_variation(chance.choice([move for move in legal if move != node.move]))
            aside.set_clock(7.0)
        if chance.random() < 0.5:
            node.set_clock(chance.randrange(36000) / chance.choice([1, 10]))
        if chance.random() < 0.1:
            node.comment += chance.choice([" good (or not) 1. e4", " [%eval -0.31]", " Zoë; [Event"])
        if chance.random() < 0.1:
            node.nags.add(chance.randrange(1, 140))
        board.push(node.move)
    written.headers["Result"] = chance.choice(["1-0", "0-1", "1/2-1/2", "*"])
    return written


def games(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [str(game(chance)) for _ in range(count)]


class Visitor(chess.pgn.BaseVisitor[list[dict[str, object]]]):
    """What python-chess says of a game."""

    def begin_game(self):
        self.headers, self.rows, self.ply, self.depth = {}, [], 0, 0
        self.last = None

    def visit_header(self, name, value):
        self.headers[name] = value

    def begin_variation(self):
        return chess.pgn.SKIP

    def visit_move(self, board, move):
        self.last = None
        if not board.knights | board.bishops | board.rooks | board.queens:
            sides = ("White", "Black") if board.turn else ("Black", "White")
            ratings = [self.headers.get(f"{side}Elo", "?") for side in sides]
            self.last = {
                "game_id": self.headers["Site"].rpartition("/")[2],
                "ply": self.ply,
                "fen": board.fen().rsplit(" ", 2)[0],
                "move": move.uci(),
                "mover_rating": None if ratings[0] == "?" else int(ratings[0]),
                "opponent_rating": None if ratings[1] == "?" else int(ratings[1]),
                "player": self.headers[sides[0]],
                "clock": None,
                "time_control": self.headers["TimeControl"],
                "date": self.headers["UTCDate"],
                "result": self.headers["Result"],
            }
            self.rows.append(self.last)
        self.ply += 1

    def visit_comment(self, comment):
        if self.last is not None and (clock := re.search(r"\[%clk (\d+):(\d+):(\d+(?:\.\d+)?)\]", comment)):
            hours, minutes, seconds = map(float, clock.groups())
            self.last["clock"] = float(np.float32(3600 * hours + 60 * minutes + seconds))

    def result(self):
        return self.rows


def visited(text: str) -> list[dict[str, object]]:
    handle, rows = io.StringIO(text), []
    while (found := chess.pgn.read_game(handle, Visitor=Visitor)) is not None:
        rows += found
    return rows


def extracted(
    folder: Path, content: bytes | str, *, name: str = "games.pgn", **options
) -> tuple[list[dict], Extracted]:
    """The rows and counts of some file content."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    found = extract([folder / name], folder / "positions.parquet", workers=1, **options)
    return pq.read_table(folder / "positions.parquet").to_pylist(), found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One place for all examples of a law; every extraction replaces what the last one left."""
    return tmp_path_factory.mktemp("extraction")


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few games and parts of two chunks, so that small files have many."""
    monkeypatch.setattr(sources, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(extraction, "_CHUNKS_IN_A_PART", 2)


@given(st.integers(0, 2**32))
def test_python_chess_finds_the_same_positions_moves_and_facts(folder, seed):
    text = "\n\n".join(games(4, seed)) + "\n"
    rows, found = extracted(folder, text)
    assert rows == visited(text)
    assert (found.games, found.positions, found.damaged) == (4, len(rows), {})
    assert found.kept == len({row["game_id"] for row in rows})


def test_the_random_games_hold_what_they_are_meant_to():
    rows = visited("\n\n".join(games(40, seed=0)))
    assert sum(not row["fen"].endswith("-") for row in rows) > 10, "squares in passing"
    assert sum(len(row["move"]) == 5 for row in rows) > 10, "promotions"
    assert any(row["clock"] is not None for row in rows)
    assert any(row["ply"] > 60 for row in rows), "endings of whole games"


@pytest.mark.skipif(not DATA.exists(), reason="the lichess games of shared/data/chess are not here")
def test_the_public_games_give_the_positions_that_python_chess_found_in_them(tmp_path):
    found = extract([DATA / "kaggle_games.csv.gz"], tmp_path / "positions.parquet")
    table = pq.read_table(tmp_path / "positions.parquet").drop_columns("clock")
    with gzip.open(DATA / "kp_kaggle_cc0.csv.gz", "rt") as file:
        expected = [tuple(row) for row in csv.reader(file)][1:]
    assert [tuple(map(str, row.values())) for row in table.to_pylist()] == expected
    assert (found.games, found.kept, found.positions) == (20_058, 659, 10_934)
    assert found.left_out == {"not rated": 3903, "the same game again": 688}
    assert found.damaged == {}


def test_line_ends_and_a_byte_order_mark_change_nothing(tmp_path):
    text = "\n\n".join(games(5, seed=1)) + "\n"
    rows, found = extracted(tmp_path, text)
    assert extracted(tmp_path, text.replace("\n", "\r\n")) == (rows, found)
    assert extracted(tmp_path, b"\xef\xbb\xbf" + text.encode()) == (rows, found)
    assert extracted(tmp_path, "\n" + text.replace("\n\n", "\n \n\n")) == (rows, found)


def test_games_without_headers_are_found_and_named_for_where_they_begin(tmp_path):
    moves = "1. e4 e5 2. Nf3 *"
    ending = '[FEN "8/8/4k3/8/8/4K3/4P3/8 w - - 0 1"]\n\n1. Kd4 Kd6 1/2-1/2'
    rows, found = extracted(tmp_path, "\n\n".join([moves, moves, ending]))
    assert found.damaged == {"no headers": 2}
    assert found.games == 3
    assert [(row["game_id"], row["player"], row["result"]) for row in rows] == [("games.pgn@38", "?", "1/2-1/2")] * 2


SOUND = '[Event "a"]\n[Result "*"]\n\n1. e4 e5 *'
START = '[FEN "8/8/4k3/8/8/4K3/4P3/8 w - - 0 1"]\n'
DAMAGED = {
    "an illegal move": START + "\n1. Kd4 Kd6 2. Kd6 *",
    "a move that cannot be read": START + "\n1. Kd4 Kd6 2. junk *",
    "no result at the end": START + "\n1. Kd4 Kd6 { and then",
    "bytes that are not UTF-8": START + '[White "Zo\udcff"]\n\n1. Kd4 Kd6 *',
    "a starting position that cannot be": '[FEN "8/8/8/8/8/2k5/1P1P4/K7 b - - 0 1"]\n\n1... Kc4 *',
    "a starting position that cannot be read": '[FEN "what"]\n\n1. Kd4 Kd6 *',
}


@pytest.mark.parametrize("reason", DAMAGED)
def test_a_damaged_game_is_counted_and_keeps_what_came_before_the_damage(tmp_path, reason):
    text = "\n\n".join([SOUND, DAMAGED[reason], START + "\n1. Kf4 *"])
    rows, found = extracted(tmp_path, text.encode(errors="surrogateescape"))
    assert (found.games, found.damaged) == (3, {reason: 1})
    before = [] if "starting" in reason else ["e3d4", "e6d6"]
    assert [row["move"] for row in rows] == [*before, "e3f4"]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ('[Variant "Chess960"]', "not standard chess"),
        ('[Variant "Atomic"]', "not standard chess"),
        ('[Event "Casual Blitz game"]', "not rated"),
        ('[Variant "Standard"]', None),
        ('[Variant "From Position"]', None),
        ('[Event "Casually played"]', None),
    ],
)
def test_other_variants_and_unrated_games_are_left_out_and_counted(tmp_path, header, reason):
    rows, found = extracted(tmp_path, f"{SOUND}\n\n{header}\n{START}\n1. Kd4 *\n\n{SOUND}")
    assert found.games == 3
    assert (found.left_out, len(rows)) == (({}, 1) if reason is None else ({reason: 1}, 0))


@st.composite
def damage(draw) -> tuple[bytes, bytes, int]:
    """Sound text, the same text damaged, and the byte where the damage begins."""
    text = "\n\n".join(games(4, draw(st.integers(0, 20)))).encode() + b"\n"
    place = draw(st.integers(0, len(text)))
    junk = draw(st.one_of(st.binary(max_size=40), st.text('{}()[]"\n;%$*@\\ 1.', max_size=20).map(str.encode)))
    return text, text[:place] + junk + text[place + draw(st.integers(0, 300)) :], place


@given(damage())
def test_damage_never_crashes_and_takes_nothing_before_it(folder, texts):
    sound, spoiled, place = texts
    whole = b"".join(sound[:place].rpartition(b"\n\n[Event")[:1])
    rows, found = extracted(folder, spoiled)
    before = visited(whole.decode())
    assert rows[: len(before)] == before
    assert found.positions == len(rows)
    assert all(chess.Board(row["fen"] + " 0 1").is_legal(chess.Move.from_uci(row["move"])) for row in rows)


@given(st.integers(0, 20), st.floats(0, 1))
def test_text_that_ends_anywhere_gives_the_beginning_of_its_rows(folder, seed, share):
    text = "\n\n".join(games(3, seed)).encode() + b"\n"
    every = visited(text.decode())
    rows, _ = extracted(folder, text[: 1 + int(share * (len(text) - 1))])
    if rows:  # the clock of the last move may stand behind the cut
        rows[-1]["clock"] = every[len(rows) - 1]["clock"]
    assert rows == every[: len(rows)]


@given(st.binary(min_size=1, max_size=3000))
@example(b"\xef\xbb\xbf")
@example(b"\n\n\n")
@example(b"[Event\n\n[Event\n\n1.\n\n1.\n\n")
def test_any_bytes_can_be_read(folder, content):
    for name in ("any.pgn", "any.csv"):
        head = b"" if name == "any.pgn" else (",".join(sources.COLUMNS) + "\n").encode()
        rows, found = extracted(folder, head + content, name=name)
        assert (rows, found.positions) == ([], 0)


def packed(text: bytes, *, frames: int) -> bytes:
    """Text as several zstd frames, each after a frame to skip, as parallel compressors write it."""
    size = -(-len(text) // frames)
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    return b"".join(skipped + compressor.compress(text[start : start + size]) for start in range(0, len(text), size))


def readable(content: bytes) -> bytes:
    """What another reader of the same library gets out of a file that may be cut short."""
    text = b""
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content), read_across_frames=True) as reader:
        while block := reader.read(1):
            text += block
    return text


@given(seed=st.integers(0, 5), frames=st.integers(1, 4), share=st.floats(0.01, 1))
@example(seed=0, frames=3, share=1.0)
def test_of_a_zstd_file_that_ends_too_early_all_that_can_be_read_is_used(folder, seed, frames, share):
    content = packed("\n\n".join(games(6, seed)).encode(), frames=frames)
    cut = content[: max(4, int(share * len(content)))]
    rows, found = extracted(folder, cut, name="games.pgn.zst")
    assert [row | {"game_id": ""} for row in rows] == [
        row | {"game_id": ""} for row in extracted(folder, readable(cut) or b" ")[0]
    ]
    if cut == content:
        assert (found.cut_short, found.games, found.damaged) == ({}, 6, {})
    else:
        assert all("middle of compressed data" in fault for fault in found.cut_short.values())
        assert found.cut_short or share > 1 / frames / 2, "a cut within the first frame is reported"


def test_what_stands_before_damaged_compression_is_used_and_the_damage_reported(tmp_path):
    text = "\n\n".join(games(60, seed=0)).encode()
    every = visited(text.decode())
    first, second = packed(text[: len(text) // 2], frames=1), packed(text[len(text) // 2 :], frames=1)
    rows, found = extracted(tmp_path, first + b"nothing that zstd wrote" + second, name="games.pgn.zst")
    assert rows[:-1] == every[: len(rows) - 1]
    assert len(rows) > len(every) / 3
    assert "damaged before byte" in found.cut_short["games.pgn.zst"]


@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
def test_gzip_is_read_as_far_as_it_goes(tmp_path, share):
    text = "\n\n".join(games(20, seed=3)).encode()
    content = gzip.compress(text[:5000]) + gzip.compress(text[5000:])
    rows, found = extracted(tmp_path, content[: int(share * len(content))], name="games.pgn.gz")
    every = visited(text.decode())
    assert rows[:-1] == every[: max(0, len(rows) - 1)]
    assert (len(rows) == len(every), bool(found.cut_short)) == ((True, False) if share == 1 else (False, True))


TABLE = """id,rated,winner,increment_code,white_id,white_rating,black_id,black_rating,moves,opening
one,TRUE,white,5+0,ann,1500,"b,o",1400,e4 e5 Nf3,"Open, so"
two,False,draw,5+0,ann,1500,bob,1400,e4 e5,x
one,TRUE,white,5+0,ann,1500,bob,1400,e4 e5 Nf3,x
six,true,black,5+0,ann,1500,bob,1400,e4 Ke4,x
ten,true,draw,5+0,ann,15"""


def test_rows_of_a_table_are_counted_by_what_became_of_them(tmp_path):
    _, found = extracted(tmp_path, TABLE, name="games.csv")
    assert found.games == 5
    assert found.left_out == {"not rated": 1, "the same game again": 1}
    assert found.damaged == {"a row that cannot be read": 1, "an illegal move": 1}


def test_the_size_of_chunks_changes_nothing(tmp_path, monkeypatch):
    text = "\n\n".join(games(30, seed=2)) + "\n"
    rows, found = extracted(tmp_path, text)
    longest = max(map(len, text.split("\n\n[Event")))  # a game longer than four chunks would be cut
    for size in (longest // 3, longest, 5 * longest):
        monkeypatch.setattr(sources, "CHUNK_BYTES", size)
        assert extracted(tmp_path, text) == (rows, found)


@pytest.mark.usefixtures("small_chunks")
def test_neither_interruption_nor_several_files_change_a_byte(tmp_path, monkeypatch):
    content = packed("\n\n".join(games(40, seed=4)).encode(), frames=2)
    files = [tmp_path / "first.pgn.zst", tmp_path / "second.csv"]
    files[0].write_bytes(content[:-20])
    files[1].write_text(TABLE + "\n" + "\n".join(f"n{n},true,draw,5+0,ann,1,bob,2,{'e4 ' * 50},x" for n in range(90)))
    whole, stopped = tmp_path / "whole.parquet", tmp_path / "stopped.parquet"
    told: list[tuple[int, int]] = []
    found = extract(files, whole, workers=1, progress=lambda *done: told.append(done))
    assert told == sorted(told)
    assert told[-1] == (sum(path.stat().st_size for path in files),) * 2

    parsed: list[tuple[str, int]] = []
    positions = extraction.extract_positions
    monkeypatch.setattr(
        extraction, "extract_positions", lambda text, *place: (parsed.append(place), positions(text, *place))[1]
    )

    def stop(*done: int) -> None:
        if len(parsed) % 5 == 0:
            raise KeyboardInterrupt

    interruptions = 0
    while True:
        try:
            assert extract(files, stopped, workers=1, resume=True, progress=stop) == found
            break
        except KeyboardInterrupt:
            interruptions += 1
            assert not stopped.exists()
    assert interruptions > 2
    assert len(parsed) <= len(told) + 2 * interruptions, "at most a part is parsed again"
    assert stopped.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.parts"))
    parsed.clear()
    assert extract(files, stopped, workers=1, resume=True) == found
    assert not parsed, "what is whole is not made again"


@pytest.mark.usefixtures("small_chunks")
def test_parts_of_other_files_are_refused_and_given_up_when_started_again(tmp_path):
    text = "\n\n".join(games(30, seed=5))

    calls: list[int] = []

    def stop(done: int, _total: int) -> None:
        calls.append(done)
        if len(calls) > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extracted(tmp_path, text, progress=stop)
    with refused("parts-of-other-files", IleedError):
        extracted(tmp_path, text + "\n", resume=True)
    assert extracted(tmp_path, text + "\n")[0] == visited(text)


def extract_slowly(folder: Path, told: Connection) -> None:
    """An extraction with two processes that tells how far it is, run as a process so that it can be killed."""
    sources.CHUNK_BYTES, extraction._CHUNKS_IN_A_PART = 3000, 2

    def tell(done: int, _total: int) -> None:
        told.send(done)
        time.sleep(0.02)

    extract([folder / "many.pgn"], folder / "killed.parquet", workers=2, progress=tell)


def messages(hearing: Connection) -> Iterator[int]:
    while True:
        try:
            yield hearing.recv()
        except EOFError:
            return


def descendants(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").glob("*/children")
    children = [child for thread in threads for child in thread.read_text().split()]
    return [one for child in map(int, children) for one in (child, *descendants(child))]


@pytest.mark.usefixtures("small_chunks")
def test_killed_with_its_processes_at_work_it_goes_on_to_the_same_bytes(tmp_path):
    games_file, killed, whole = tmp_path / "many.pgn", tmp_path / "killed.parquet", tmp_path / "whole.parquet"
    games_file.write_text("\n\n".join(games(150, seed=6)))
    hearing, telling = processes.Pipe(duplex=False)
    process = processes.Process(target=extract_slowly, args=(tmp_path, telling))
    process.start()
    telling.close()
    heard = [done for done, _ in zip(messages(hearing), range(20), strict=False)]
    assert process.pid is not None
    started = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not killed.exists()

    again: list[int] = []
    found = extract([games_file], killed, workers=1, resume=True, progress=lambda done, _: again.append(done))
    assert len(heard) == 20
    assert len(again) > 20
    assert len(again) + 18 <= extracted_chunks(games_file), "what was put down is not parsed again"
    assert extract([games_file], whole, workers=2) == found
    assert killed.read_bytes() == whole.read_bytes()
    assert started
    assert not [one for one in started if "python" in commanded(one)], "the processes ended with their parent"


def extracted_chunks(path: Path) -> int:
    return len(list(sources.chunks(path)))


def commanded(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


BAD = {
    "absent": ("nowhere.pgn", None, "games-missing"),
    "of another kind": ("games.txt", b"x", "games-format"),
    "empty": ("games.pgn", b"", "games-empty"),
    "not zstd": ("games.pgn.zst", b"[Event]", "games-compression"),
    "not gzip": ("games.csv.gz", b"id,moves", "games-compression"),
    "without a column": ("games.csv", b"id,moves,white_id\n", "column-missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_a_source_is_refused_in_one_sentence(tmp_path, name):
    path, content, code = BAD[name]
    if content is not None:
        (tmp_path / path).write_bytes(content)
    with refused(code, IleedError) as caught:
        extract([tmp_path / path], tmp_path / "positions.parquet")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "positions.parquet").exists()


def test_no_files_and_no_workers_are_refused(tmp_path):
    with refused("games-missing", IleedError):
        extract([], tmp_path / "positions.parquet")
    (tmp_path / "games.pgn").write_text(SOUND)
    with refused("workers-invalid", IleedError):
        extract([tmp_path / "games.pgn"], tmp_path / "positions.parquet", workers=0)


def test_a_file_without_endings_gives_an_empty_table_of_the_same_columns(tmp_path):
    extracted(tmp_path, SOUND)
    table = pq.read_table(tmp_path / "positions.parquet")
    assert table.schema.equals(SCHEMA, check_metadata=False)
    assert len(table) == 0


def test_groups_of_rows_are_equal_however_the_rows_came(monkeypatch):
    monkeypatch.setattr(parts, "_ROWS_IN_A_GROUP", 10)
    rows = pa.table({name: pa.nulls(35, SCHEMA.field(name).type) for name in SCHEMA.names})
    for sizes in ([35], [1] * 35, [12, 0, 23]):
        ends = np.cumsum(sizes)
        tables = (rows[end - size : end] for size, end in zip(sizes, ends.tolist(), strict=True))
        assert [len(group) for group in parts._row_groups(tables)] == [10, 10, 10, 5]


def test_the_command_says_what_it_found(tmp_path, capsys):
    (tmp_path / "games.pgn").write_text("\n\n".join([SOUND, *DAMAGED.values()]), errors="surrogateescape")
    out = tmp_path / "positions.parquet"
    assert cli.run(["chess", "extract", str(tmp_path / "games.pgn"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "7 games read, 6 of them damaged" in said
    assert all(reason in said for reason in DAMAGED)
    assert cli.run(["chess", "extract", str(tmp_path / "absent.pgn"), "--out", str(out)]) == 2
