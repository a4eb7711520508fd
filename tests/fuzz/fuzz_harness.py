"""Fuzzing: mutated files are read in processes of their own, and every reading must end in a value or in one sentence.

A file is determined by (reader, seed): the seed chooses one of a few valid files and what is changed in it. Most keep
to the format's structure (a column of another type, a link, a field of another kind), so that the format's own parser
accepts the file and our rules have to judge it; the others change bytes. Adding a reader is one entry of
`fuzz_readers.READERS`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import select
import shutil
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

VARIANTS = 6  # valid files of each reader that mutations begin from
STRUCTURAL = 0.75  # share of files whose structure is changed; the bytes of the others are
PROCESSOR_SECONDS = 10  # a reading that takes longer hangs
WALL_SECONDS = 60  # one that takes longer waits for something; a busy machine is no hang
ADDRESS_BYTES = 3 << 30  # what a reading may take beyond what the process had
OUTSIDE = "outside"  # a file beside the data, for links that leave it: changes could write to a file of the machine
BATCH = 100  # files that a process reads before the next is forked, which has to import what its reader needs


@dataclass(frozen=True)
class Reader:
    """A reader of users' files: how to make a valid file, change it, parse it with the format's own parser, read it.

    `make` writes a valid file (or directory) at the path, `mutators` change what lies there, `parses` raises where the
    format's own parser does, `read` reads and uses the value as a user would. `commands` are given to the real command,
    with FILE for the path and OUT for a place to write to.
    """

    name: str
    suffixes: Sequence[str]
    make: Callable[[Path, Random], None]
    mutators: Mapping[str, Callable[[Path, Random], None]]
    parses: Callable[[Path], object]
    read: Callable[[Path, Random], object]
    commands: Sequence[Sequence[str]] = ()
    command_every: int = 10
    """One file in so many goes through the command."""


@dataclass
class Tally:
    """What became of a reader's files."""

    files: int = 0
    parsed: int = 0
    read: int = 0
    refused: int = 0
    by_command: int = 0
    crashes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    largest_bytes: int = 0

    def plain(self) -> dict[str, Any]:
        return vars(self) | {
            "share_parsed": round(self.parsed / max(1, self.files), 3),
            "seconds": round(self.seconds, 1),
            "slowest_seconds": round(self.slowest_seconds, 2),
        }


def fuzz(
    readers: Iterable[Reader], files_each: int, *, seed: int, tell: Callable[[str], None] = lambda words: None
) -> dict[str, Tally]:
    """Read so many mutated files of each reader."""
    found: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for reader in readers:
            room = Path(folder) / reader.name
            room.mkdir()
            _in_child(lambda reader=reader, room=room: make_valid(reader, room))
            found[reader.name] = tally = Tally()
            seeds = [seed * 1_000_000 + number for number in range(files_each)]
            while seeds:
                seeds = seeds[_batch(reader, room, seeds[:BATCH], tally) :]
            tell(f"{reader.name}: {tally.plain()}")
    return found


def make_valid(reader: Reader, room: Path) -> None:
    """Write the valid files that mutations begin from."""
    for variant in range(VARIANTS):
        path = _valid(reader, room, variant)
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        reader.make(path, Random(f"{reader.name} {variant}"))
        reader.parses(path)
        copy = path.with_name(f"copy-{path.name}")
        (shutil.copytree if path.is_dir() else shutil.copy)(path, copy)
        reader.read(copy, Random(0))  # what is not changed is read


def _valid(reader: Reader, room: Path, variant: int) -> Path:
    return room / f"valid-{variant}" / f"file{reader.suffixes[variant % len(reader.suffixes)]}"


def mutated(reader: Reader, room: Path, seed: int, place: Path) -> tuple[Path, list[str]]:
    """The file of this seed, and the names of what was changed in it."""
    chance = Random(f"{reader.name} {seed}")
    valid = _valid(reader, room, chance.randrange(VARIANTS))
    path = place / valid.name
    (place / OUTSIDE).write_text("a file outside the data\n")
    if valid.is_dir():
        shutil.copytree(valid, path)
    else:
        shutil.copy(valid, path)
    changes: list[str] = []
    if chance.random() < STRUCTURAL:
        for name in chance.choices(list(reader.mutators), k=chance.choice([1, 1, 1, 2, 3])):
            changes.append(name)
            try:
                reader.mutators[name](path, chance)
            except Exception:  # a change may not apply after another one
                changes[-1] += " (not applied)"
    else:
        changes.append(change_bytes(path, chance))
    return path, changes


def change_bytes(path: Path, chance: Random) -> str:
    """Flip, cut, repeat or blank some bytes; in a directory, those of one of its files, or else of one below."""
    if path.is_dir():
        here, below = (
            sorted(item for item in items if item.is_file() and not item.is_symlink())
            for items in (path.iterdir(), path.rglob("*"))
        )
        path = chance.choice(here or below)
    content = bytearray(path.read_bytes())
    size = max(1, len(content))
    kind = chance.choice(["flips", "cut", "splice", "zeros", "noise", "number"])
    start = chance.randrange(size)
    length = min(chance.choice([1, 4, 16, 256]), size - start)
    if kind == "flips":
        for _ in range(chance.choice([1, 1, 2, 8])):
            place = chance.randrange(size)
            content[place : place + 1] = bytes([content[place] ^ (1 << chance.randrange(8))]) if content else b""
    elif kind == "cut":
        del content[start : None if chance.random() < 0.5 else start + length]
    elif kind == "splice":
        source = chance.randrange(size)
        content[start:start] = content[source : source + length]
    elif kind == "zeros":
        content[start : start + length] = bytes(length)
    elif kind == "noise":
        content[start : start + length] = chance.randbytes(length)
    else:
        number = chance.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1])
        content[start : start + 8] = struct.pack("<Q", number)
    path.write_bytes(content)
    return f"bytes: {kind}"


# --- processes


def _in_child(work: Callable[[], object]) -> None:
    """Do something in a process of its own, so that no thread that it starts is there when others are forked."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the valid files could not be made")


def _batch(reader: Reader, room: Path, seeds: Sequence[int], tally: Tally) -> int:
    """Read some files in one forked process; returns how many were dealt with."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        try:
            for seed in seeds:
                _report(sending, {"begun": seed})
                _report(sending, {"ended": seed} | read_one(reader, room, seed))
        finally:
            os._exit(0)
    os.close(sending)
    done, current, waiting = 0, "", time.monotonic()
    buffer = b""
    while True:
        ready, _, _ = select.select([receiving], [], [], 1.0)
        content = os.read(receiving, 1 << 16) if ready else None
        if content == b"":
            break
        if content is None:
            if time.monotonic() - waiting > WALL_SECONDS:
                os.kill(child, signal.SIGKILL)
            continue
        buffer += content
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            told = json.loads(line)
            waiting = time.monotonic()
            if "begun" in told:
                current = f"{reader.name} {told['begun']}"
            else:
                done += 1
                current = ""
                _count(tally, told)
    os.close(receiving)
    status = os.waitpid(child, 0)[1]
    if current:  # it ended in the middle of a file
        done += 1
        tally.files += 1
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "exit"
        hung = how in ("SIGXCPU", "SIGKILL")
        (tally.hangs if hung else tally.crashes).append(f"{current}: {how}")
    return done


def _report(pipe: int, told: Mapping[str, Any]) -> None:
    os.write(pipe, json.dumps(told).encode() + b"\n")


def _count(tally: Tally, told: Mapping[str, Any]) -> None:
    tally.files += 1
    tally.parsed += told["parsed"]
    tally.read += told["how"] == "read"
    tally.refused += told["how"] == "refused"
    tally.by_command += told["command"]
    tally.seconds += told["seconds"]
    tally.slowest_seconds = max(tally.slowest_seconds, told["seconds"])
    tally.largest_bytes = max(tally.largest_bytes, told["bytes"])
    if told["how"] not in ("read", "refused"):
        tally.tracebacks.append(f"{told['ended']} {told['changes']}: {told['how']}")


def read_one(reader: Reader, room: Path, seed: int, *, bounded: bool = True) -> dict[str, Any]:
    """Make the file of this seed and read it; `how` is "read", "refused", or what went wrong."""
    with tempfile.TemporaryDirectory(dir=room) as folder:
        path, changes = mutated(reader, room, seed, Path(folder))
        parsed = _accepted(reader, path)
        by_command = bool(reader.commands) and seed % reader.command_every == 0
        before = resource.getrusage(resource.RUSAGE_SELF)
        if bounded:
            _bound(addresses=not by_command)  # what draws charts asks for far more addresses than it uses
        if by_command:
            chance = Random(seed)
            how = _commanded(chance.choice(reader.commands), path, Path(folder) / "work")
        else:
            how = _read(reader, path, Random(seed))
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {
            "parsed": parsed,
            "how": how,
            "command": by_command,
            "seconds": used,
            "bytes": after.ru_maxrss * 1024,
            "changes": ", ".join(changes),
        }


def _bound(*, addresses: bool) -> None:
    """Limit what follows: seconds of the processor, and memory."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(now.ru_utime + now.ru_stime) + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (spent + PROCESSOR_SECONDS, hard))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_BYTES if addresses else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _accepted(reader: Reader, path: Path) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            reader.parses(path)
    except Exception:
        return False
    return True


def _read(reader: Reader, path: Path, chance: Random) -> str:
    from ileed.errors import IleedError

    try:
        with warnings.catch_warnings(action="ignore"):
            reader.read(path, chance)
    except IleedError as error:
        return "refused" if len(str(error).splitlines()) == 1 else f"not one line: {str(error)!r}"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/ileed/" in frame.filename][-1:]
        where = "; ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in (*ours, last))
        return f"{type(error).__name__} {str(error)[:200]!r} at {where}"
    return "read"


def _commanded(words: Sequence[str], path: Path, work: Path) -> str:
    """The real command: it ends well or with one sentence, and a refusal leaves no file behind."""
    from ileed.cli import run

    work.mkdir()
    arguments = [word.replace("FILE", str(path)).replace("OUT", str(work / "out")) for word in words]
    shown, told = io.StringIO(), io.StringIO()
    before = {str(item) for item in path.parent.rglob("*")}
    home = Path.cwd()
    os.chdir(work)
    try:
        with (
            contextlib.redirect_stdout(shown),
            contextlib.redirect_stderr(told),
            warnings.catch_warnings(action="ignore"),
        ):
            code = run(arguments)
    except SystemExit as error:
        code = int(error.code or 0) if isinstance(error.code, int) else 1
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{words[0]}: {type(error).__name__} {str(error)[:200]!r} at {Path(last.filename).name}:{last.lineno}"
    finally:
        os.chdir(home)
    left = {str(item) for item in path.parent.rglob("*")} - before
    if code == 0:
        return "read"
    sentences = [line for line in told.getvalue().splitlines() if line.startswith("ileed: ")]
    if code != 2 or len(sentences) != 1 or "Traceback" in told.getvalue():
        return f"{words[0]}: exit {code} with {told.getvalue()[-300:]!r}"
    return f"{words[0]}: refused but left {sorted(left)}" if left else "refused"
