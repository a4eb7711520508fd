"""Extraction: every position with kings and pawns alone, and the move made in it, from files of games.

The text is streamed in chunks; processes parse them, and their results are written in the order of the games. So the
table is the same, byte for byte, for any number of processes and after any interruption.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from ileed import RunError, SettingsError, runs
from ileed.errors import require
from ileed.parallel import AbstractExecutor, WorkerLostError
from ileed.parallel import executor as executor_of
from ileed_lab.chess.games import Extracted, extract_positions
from ileed_lab.chess.parts import (
    Checkpoint,
    assemble,
    finished_extraction,
    part_path,
    remove_parts,
    resume_parts,
    write_part,
)
from ileed_lab.chess.sources import Chunk, check, chunks, identity

__all__ = ["Extracted", "counts_of_source", "extract"]

_FORMAT = 1
_CHUNKS_IN_A_PART = 16
_WORTH_A_POOL = 16 << 20  # bytes of files; below, starting processes takes longer than parsing does
_PARSER = "rust-pgn-reader-python-binding"


def extract(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    workers: int | None = None,
    executor: str = "local",
    resume: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Extracted:
    """Write the table of positions of all games in some files (`ileed_lab.chess.positions` has the columns) as parquet.

    Files are PGN (.pgn, .pgn.gz, .pgn.zst) or tables of games (.csv, also .gz and .zst) with the columns of the public
    set of 20,000 lichess games. Damaged games are counted and do not stop the extraction. Games of other variants are
    left out, and so are unrated games, and rows of a table whose id came before. `clock` is the mover's time left after
    the move. A game without an id is named for its file and the byte it begins at.

    `workers` processes parse, by default as many as there are cores, or this one alone for small files; `executor`
    names another place for them (`ileed.parallel`). Finished parts are beside `out` until all are done; with `resume`
    an interrupted run continues from there, otherwise it starts again. `progress` is called with the bytes of the files
    read, and of all.
    """
    out = Path(out)
    if not (paths := [Path(source) for source in sources]):
        raise SettingsError("no file of games was given: name at least one", code="games-missing")
    for path in paths:
        check(path)
    if workers is not None and workers < 1:
        raise SettingsError(f"workers is {workers}, and must be at least 1", code="workers-invalid")
    require("rust_pgn_reader_python_binding", package="ileed-lab")
    sizes = [path.stat().st_size for path in paths]
    if workers is None:
        workers = (os.cpu_count() or 1) if sum(sizes) >= _WORTH_A_POOL else 1
    task = {
        "format": _FORMAT,
        "parser": f"{_PARSER} {metadata.version(_PARSER)}",
        "sources": [identity(path) for path in paths],
    }
    folder = out.with_name(out.name + ".parts")
    if resume and not folder.exists() and (done := finished_extraction(out, task)):
        return done
    if not resume:
        remove_parts(folder)  # of an extraction that was given up
    parts, reached = resume_parts(folder, task)
    found = reached.found
    numbered = (
        (index, chunk, paths[index].name)
        for index in range(reached.source, len(paths))
        for chunk in chunks(paths[index], start=reached.after if index == reached.source else 0)
    )
    with nullcontext() if executor == "local" and workers == 1 else executor_of(executor, workers) as pool:
        results = _with_progress(_parse_in_order(numbered, pool), sizes, progress)
        while batch := list(islice(results, _CHUNKS_IN_A_PART)):
            for index, chunk, _, counts in batch:
                found += counts + counts_of_source(chunk, paths[index].name)
            parts.append(part_path(folder, len(parts)))
            table = pa.concat_tables([table for _, _, table, _ in batch])
            write_part(parts[-1], table, {"task": task, "reached": asdict(Checkpoint(index, chunk.after, found))})
    assemble(parts, folder, out, {"task": task, "found": asdict(found), "made_with": _made_with()})
    remove_parts(folder)
    return found


def _with_progress(
    results: Iterator[_Result], sizes: Sequence[int], progress: Callable[[int, int], None] | None
) -> Iterator[_Result]:
    for index, chunk, table, counts in results:
        if progress is not None:
            progress(sum(sizes[:index]) + chunk.read, sum(sizes))
        yield index, chunk, table, counts


def counts_of_source(chunk: Chunk, name: str) -> Extracted:
    """The counts of a chunk that are known before its text is parsed."""
    return Extracted(
        games=sum(chunk.left_out.values()) + sum(chunk.damaged.values()),
        left_out=chunk.left_out,
        damaged=chunk.damaged,
        cut_short={} if chunk.cut_short is None else {name: chunk.cut_short},
    )


_Result = tuple[int, Chunk, Any, Extracted]
"""Index of the file, chunk of it (without its text), table of positions, and counts."""


def _parse_in_order(numbered: Iterator[tuple[int, Chunk, str]], pool: AbstractExecutor | None) -> Iterator[_Result]:
    """Results in the order of the chunks, from workers of the pool, or from this process where there is none."""
    if pool is None:
        for index, chunk, name in numbered:
            yield index, replace(chunk, text=b""), *extract_positions(chunk.text, name, chunk.start)
        return
    waiting: deque[tuple[int, Chunk, Future[tuple[Any, Extracted]]]] = deque()
    try:
        for index, chunk, name in numbered:
            future = pool.submit(extract_positions, chunk.text, name, chunk.start)
            waiting.append((index, replace(chunk, text=b""), future))
            if len(waiting) > pool.workers + 1:  # one ahead of those that are parsed, and no more in memory
                yield _await(waiting.popleft())
        while waiting:
            yield _await(waiting.popleft())
    except WorkerLostError as error:
        raise RunError(f"{error}; --resume continues from here") from error


def _await(waiting: tuple[int, Chunk, Future[tuple[Any, Extracted]]]) -> _Result:
    index, chunk, future = waiting
    return index, chunk, *future.result()


def _made_with() -> dict[str, Any]:
    """Versions, without date and machine: the same files give the same bytes."""
    provenance = runs.provenance()
    return {name: provenance[name] for name in ("ileed", "commit", "numpy")} | {"pyarrow": pa.__version__}
