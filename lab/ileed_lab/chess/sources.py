"""Games as a stream: chunks of PGN text split between games, from PGN plain or compressed and from tables of games.

A file that ends in the middle, or whose compression is damaged, yields everything before that, and a description of it.
"""

from __future__ import annotations

import csv
import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from ileed import DemonstrationError
from ileed.errors import require

CHUNK_BYTES = 4 << 20
"""Text that a process parses at a time: some thousands of games."""

SUFFIXES = (".pgn", ".pgn.gz", ".pgn.zst", ".csv", ".csv.gz", ".csv.zst")
COLUMNS = ("id", "moves", "white_id", "black_id", "white_rating", "black_rating")
"""The required columns of a table of games; `rated`, `winner`, `increment_code` and `created_at` are optional."""

BLANK_LINE = re.compile(rb"\n\s*\n")
HEADER = re.compile(rb"\[[A-Za-z]")
_MAGIC = {".zst": (rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", "zstd"), ".gz": (rb"\x1f\x8b", "gzip")}
_PACKED_BYTES = 4 << 10  # few, since the uncompressed bytes are held in memory and lost where they are damaged
_PLAIN_BYTES = 1 << 18
_LINE_BYTES = (
    1 << 20
)  # a longer line of a table is split: no game is that long, and a decompression bomb is one endless line
_RESULTS = {"white": "1-0", "black": "0-1", "draw": "1/2-1/2"}


@final
@dataclass(frozen=True)
class Chunk:
    """Some consecutive games of a file, as PGN text, and where the next chunk begins."""

    text: bytes
    start: int
    """Where the text begins: bytes of the uncompressed PGN, or rows of a table."""
    after: int
    """Where the next chunk begins, in bytes or rows."""
    read: int
    """Bytes of the file on disk that were read so far."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Undamaged games of a table that are not in the text, by reason."""
    damaged: Mapping[str, int] = field(default_factory=dict)
    """Rows of a table that cannot be read, by reason."""
    cut_short: str | None = None
    """The damage of the file after this chunk."""


def check(path: Path) -> None:
    """Refuse a file that is not a source of games, before anything is read."""
    if not path.is_file():
        raise DemonstrationError(
            f"{path} is not a file: give the path of a file of games ({', '.join(SUFFIXES)})", code="games-missing"
        )
    if not path.name.lower().endswith(SUFFIXES):
        raise DemonstrationError(
            f"{path} does not end in one of {', '.join(SUFFIXES)}: rename it for what it is, or convert it to PGN",
            code="games-format",
        )
    with path.open("rb") as file:
        head = file.read(4)
    if not head:
        raise DemonstrationError(f"{path} is empty: download or export the games again", code="games-empty")
    pattern, name = _MAGIC.get(path.suffix.lower(), (b"", ""))
    if not re.match(pattern, head, flags=re.DOTALL):
        raise DemonstrationError(
            f"{path} is not compressed with {name}: rename it for what it is, or download it again",
            code="games-compression",
        )
    if _is_table(path):
        try:
            given = next(csv.reader(_lines(_blocks(path))), [])
        except csv.Error:
            given = []
        if missing := [name for name in COLUMNS if name not in given]:
            raise DemonstrationError(
                f"{path} has no column {missing[0]!r}: a table of games has {', '.join(COLUMNS)}; rename its columns, "
                "or give the games as PGN",
                code="column-missing",
            )


def identity(path: Path) -> dict[str, Any]:
    """Name, size and a digest of both ends: enough to recognise a file without reading all of it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        ends = file.read(1 << 20)
        file.seek(max(0, size - (1 << 20)))
        ends += file.read(1 << 20)
    return {"name": path.name, "bytes": size, "ends": hashlib.blake2b(ends, digest_size=16).hexdigest()}


def chunks(path: Path, *, start: int = 0) -> Iterator[Chunk]:
    """A file's games from `start` on, in bounded memory; a chunk begins at a game."""
    return _of_table(path, start) if _is_table(path) else _of_pgn(path, start)


def _is_table(path: Path) -> bool:
    return ".csv" in path.suffixes[-2:]


def _of_pgn(path: Path, start: int) -> Iterator[Chunk]:
    buffer, begin, ahead, wanted = bytearray(), start, start, CHUNK_BYTES
    block = _Block(b"", 0)
    for block in _blocks(path):
        content = block.content
        skipped = min(ahead, len(content))
        ahead -= skipped
        buffer += content[skipped:]
        while len(buffer) >= wanted:
            cut = _last_split(buffer, wanted)
            if cut is None and wanted < 4 * CHUNK_BYTES:
                wanted *= 2  # no game ends here: read more
                continue
            cut = cut or wanted
            yield Chunk(bytes(buffer[:cut]), begin, begin + cut, block.read)
            del buffer[:cut]
            begin, wanted = begin + cut, CHUNK_BYTES
    if buffer or block.damage:
        yield Chunk(bytes(buffer), begin, begin + len(buffer), block.read, cut_short=block.damage)


def _last_split(buffer: bytearray, end: int) -> int | None:
    """Where the last game before `end` begins, or None where it is the first."""
    for window in (1 << 16, end):
        blanks = (found.end() for found in BLANK_LINE.finditer(buffer, max(0, end - window), end))
        if ends := [after for after in blanks if HEADER.match(buffer, after, end)]:
            return ends[-1]
    return None


def _of_table(path: Path, start: int) -> Iterator[Chunk]:
    """Rows as PGN; a repeated id is the same game, and unrated games are left out."""
    last = _Block(b"", 0)

    def remember_last() -> Iterator[_Block]:
        nonlocal last
        for block in _blocks(path):
            last = block
            yield block

    rows = csv.reader(_lines(remember_last()))
    columns = next(rows)
    seen: set[str] = set()
    games: list[str] = []
    left_out: Counter[str] = Counter()
    damaged: Counter[str] = Counter()
    size, begin, count = 0, start, 0

    def chunk() -> Chunk:
        text = "\n\n".join(games).encode()
        return Chunk(text, begin, count, last.read, dict(left_out), dict(damaged), last.damage)

    while True:
        try:
            values = next(rows)
        except StopIteration:
            break
        except csv.Error:
            values = []
        count += 1
        row = dict(zip(columns, values, strict=False))
        repeated = row.get("id", "") in seen
        rated = row.get("rated", "true").lower() != "false"
        if rated and row.keys() >= set(COLUMNS):
            seen.add(row["id"])
        if count <= start:
            continue
        if not row.keys() >= set(COLUMNS):
            damaged["a row that cannot be read"] += 1
        elif not rated:
            left_out["not rated"] += 1
        elif repeated:
            left_out["the same game again"] += 1
        else:
            games.append(_as_pgn(row, whole=len(values) == len(columns)))
            size += len(games[-1])
        if size >= CHUNK_BYTES:
            yield chunk()
            games, left_out, damaged = [], Counter(), Counter()
            size, begin = 0, count
    if count > begin or last.damage:
        yield chunk()


def _as_pgn(row: Mapping[str, str], *, whole: bool) -> str:
    """A row of a table as PGN; without a result at its end where the row is truncated."""
    result = _RESULTS.get(row.get("winner", ""), "*")
    headers = {
        "GameId": row["id"],
        "White": row["white_id"],
        "Black": row["black_id"],
        "WhiteElo": row["white_rating"],
        "BlackElo": row["black_rating"],
        "TimeControl": row.get("increment_code", "?"),
        "UTCDate": _date(row.get("created_at", "")),
        "Result": result,
    }
    lines = [f'[{name} "{_within_quotes(value)}"]' for name, value in headers.items()]
    return "\n".join([*lines, "", " ".join([*row["moves"].split(), result] if whole else row["moves"].split())])


def _within_quotes(value: str) -> str:
    return " ".join(value.replace('"', "'").replace("\\", "/").split())


def _date(milliseconds: str) -> str:
    try:
        return datetime.fromtimestamp(float(milliseconds) / 1000, UTC).strftime("%Y.%m.%d")
    except (ValueError, OverflowError, OSError):
        return "????.??.??"


@final
@dataclass(frozen=True)
class _Block:
    """Uncompressed bytes, the bytes of the file read so far, and the damage that ends the file if there is any."""

    content: bytes
    read: int
    damage: str | None = None


def _lines(blocks: Iterator[_Block]) -> Iterator[str]:
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block.content).split(b"\n")
        while len(rest) > _LINE_BYTES:
            lines.append(rest[:_LINE_BYTES])
            rest = rest[_LINE_BYTES:]
        yield from (line.decode("utf-8-sig", "replace") + "\n" for line in lines if line.strip())
    if rest.strip():
        yield rest.decode("utf-8-sig", "replace")


def _blocks(path: Path) -> Iterator[_Block]:
    suffix = path.suffix.lower()
    with path.open("rb") as file:
        if suffix == ".zst":
            zstandard = require("zstandard", package="ileed-lab")
            yield from _decompress(
                file, lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(), zstandard.ZstdError
            )
        elif suffix == ".gz":
            yield from _decompress(file, lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), zlib.error)
        else:
            while content := file.read(_PLAIN_BYTES):
                yield _Block(content, file.tell())


def _decompress(file: Any, new_frame: Callable[[], Any], failure: type[Exception]) -> Iterator[_Block]:
    """All frames of a compressed file, one after another."""
    frame = new_frame()
    while packed := file.read(_PACKED_BYTES):
        while packed:
            if frame.eof:
                frame = new_frame()
            try:
                content = frame.decompress(packed)
            except failure as error:
                reason = " ".join(str(error).split())
                yield _Block(b"", file.tell(), f"compressed data are damaged before byte {file.tell():,} ({reason})")
                return
            packed = frame.unused_data.lstrip(b"\0") if frame.eof else b""  # gzip files may be padded with zeros
            if content:
                yield _Block(content, file.tell())
    if not frame.eof:
        yield _Block(b"", file.tell(), f"ends at byte {file.tell():,} in the middle of compressed data")
