"""Parts: the files of an unfinished extraction, from which it can be resumed, and the table made of them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import pyarrow as pa
import pyarrow.parquet as pq

from ileed import RunError, runs
from ileed_lab.chess.games import Extracted
from ileed_lab.chess.positions import SCHEMA

__all__ = ["Checkpoint", "assemble", "finished_extraction", "part_path", "remove_parts", "resume_parts", "write_part"]

_ROWS_IN_A_GROUP = 1 << 15


@final
@dataclass(frozen=True)
class Checkpoint:
    """How far an extraction is after a part: the file, where in it the next chunk begins, and the counts so far."""

    source: int = 0
    after: int = 0
    found: Extracted = field(default_factory=Extracted)


def part_path(folder: Path, number: int) -> Path:
    """The file of a part."""
    return folder / f"part-{number:06d}.parquet"


def write_part(path: Path, table: Any, notes: Mapping[str, Any]) -> None:
    """Write a part, whole or not at all."""
    content = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"ileed": json.dumps(notes)}), content, compression="zstd")
    runs.write_file(path, content.getvalue())


def resume_parts(folder: Path, task: Mapping[str, Any]) -> tuple[list[Path], Checkpoint]:
    """The parts of an interrupted run, and how far it was."""
    parts = sorted(folder.glob("part-*.parquet"))
    if not parts:
        return [], Checkpoint()
    notes = _notes(parts[-1])
    if notes is None or parts != [part_path(folder, number) for number in range(len(parts))]:
        raise RunError(f"{folder} is damaged: extract again, without resume")
    if notes["task"] != task:
        raise RunError(
            f"{folder} holds parts of an extraction from other files, or by another version: give the files that it "
            "was begun with, or extract again, without resume",
            code="parts-of-other-files",
        )
    reached = notes["reached"]
    return parts, Checkpoint(reached["source"], reached["after"], Extracted(**reached["found"]))


def finished_extraction(out: Path, task: Mapping[str, Any]) -> Extracted | None:
    """The counts of a table that was made from the same files already."""
    notes = _notes(out) if out.is_file() else None
    return Extracted(**notes["found"]) if notes and notes.get("task") == task else None


def _notes(path: Path) -> dict[str, Any] | None:
    try:
        notes = json.loads((pq.read_schema(path).metadata or {})[b"ileed"])
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return None
    return notes if isinstance(notes, dict) and "task" in notes else None


def assemble(parts: Sequence[Path], folder: Path, out: Path, notes: Mapping[str, Any]) -> None:
    """Join the parts into one file of equal row groups, a few at a time, and rename it when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "whole.parquet"
    schema = SCHEMA.with_metadata({"ileed": json.dumps(notes)})
    with whole.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for rows in _row_groups(pq.read_table(part, use_threads=False) for part in parts):
                writer.write_table(rows.replace_schema_metadata(schema.metadata))
        file.flush()
        os.fsync(file.fileno())
    os.replace(whole, out)


def _row_groups(tables: Iterator[Any]) -> Iterator[Any]:
    pending = SCHEMA.empty_table()
    for table in tables:
        pending = pa.concat_tables([pending, table.replace_schema_metadata(None)])
        while len(pending) >= _ROWS_IN_A_GROUP:
            yield pending[:_ROWS_IN_A_GROUP].combine_chunks()
            pending = pending[_ROWS_IN_A_GROUP:]
    yield pending.combine_chunks()


def remove_parts(folder: Path) -> None:
    """Remove our parts, and the folder if nothing else is in it."""
    for part in (*folder.glob("part-*.parquet"), folder / "whole.parquet"):
        runs.remove_file(part)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
