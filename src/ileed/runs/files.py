"""Content of files: safetensors, CSV, and bytes that are written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
from safetensors import SafetensorError

from ileed.errors import RunError, brief, cell_text
from ileed.runs import stores
from ileed.runs.replacing import atomic_write

if TYPE_CHECKING:  # torch takes most of a second to import, and data are read without it
    from torch import Tensor

_ATTEMPTS = 10
_DAMAGE = (ValueError, TypeError, RuntimeError, AttributeError, LookupError, AssertionError)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Write named tensors and notes as one safetensors file, atomically."""
    write_file(path, tensor_bytes(tensors, notes))


def tensor_bytes(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> bytes:
    """The content of a safetensors file with named tensors and notes."""
    from safetensors.torch import save

    return save({name: value.contiguous() for name, value in tensors.items()}, dict(notes))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and notes of a safetensors file, on the CPU."""
    try:
        with path.open("rb") as opened:
            return parse_tensors(path, opened)
    except FileNotFoundError as error:
        raise _no_tensors(path, error) from error
    except OSError as error:
        raise unreadable(path, error) from error


def parse_tensors(path: Path, opened: BinaryIO) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and notes of a safetensors file that is open; errors name its path."""
    from safetensors.torch import load

    try:
        content = opened.read()  # not by its path, which safetensors only takes in UTF-8
        tensors = {name: tensor.clone() for name, tensor in load(content).items()}  # aligned as tensors usually are
        notes = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__")
        return tensors, notes or {}
    except (OSError, MemoryError) as error:
        raise unreadable(path, error) from error
    except (SafetensorError, *_DAMAGE) as error:
        raise _no_tensors(path, error) from error


def _no_tensors(path: Path, error: Exception) -> RunError:
    return RunError(f"{path} cannot be read as safetensors ({brief(error)}): restore or remove it")


def unreadable(path: Path, error: OSError | MemoryError) -> RunError:
    """The error for a path that the operating system does not read at the moment; its content may be sound."""
    reason = getattr(error, "strerror", None) or brief(error)
    return RunError(f"{path} cannot be read ({reason}): try again, or check its permissions")


def read_head(path: Path) -> bytes:
    """The first 1,024 bytes of a file, here or in an object store; none where it is not there or cannot be read."""
    if stores.address_of(path):
        return stores.read_head(path, 1024)
    try:
        with path.open("rb") as opened:
            return opened.read(1024)
    except OSError:
        return b""


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically, here or in an object store: a reader sees the old content or the new."""
    if stores.address_of(path):
        stores.put(path, content)
        return
    for attempt in range(_ATTEMPTS):
        try:
            with atomic_write(path) as partial:
                partial.write_bytes(content)
            return
        except RunError as error:  # the folder was replaced by another one meanwhile, and the workspace moved with it
            if attempt == _ATTEMPTS - 1 or not isinstance(error.__cause__, FileNotFoundError):
                raise


def csv_bytes(table: pa.Table) -> bytes:
    """A table as CSV, the only writer of such files: text is printable and begins no formula of a spreadsheet."""
    from pyarrow import csv  # which takes a while to load

    content = pa.BufferOutputStream()
    for place, column in enumerate(table.schema):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            words = [None if word is None else cell_text(word) for word in table.column(place).to_pylist()]
            table = table.set_column(place, column.name, pa.array(words, pa.string()))
    csv.write_csv(table.rename_columns([cell_text(name) for name in table.column_names]), content)
    found: bytes = content.getvalue().to_pybytes()
    return found
