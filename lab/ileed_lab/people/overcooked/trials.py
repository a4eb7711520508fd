"""Trials of pairs in Overcooked, read from the source package of overcooked-ai 1.1.0.

Carroll et al., *On the Utility of Learning about Humans for Human-AI Coordination*, NeurIPS 2019. The package holds the
trials as pickles of pandas, and does not state a licence: nothing of it is part of this repository. Only the few names
that such a table needs are allowed in a pickle, and pandas is not among them: ours stand in for its classes.
"""

from __future__ import annotations

import ast
import io
import pickle
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from ileed import DemonstrationError
from ileed.data import Array

__all__ = ["Trial", "read_table", "read_trials"]

_FILES = ("clean_train_trials.pickle", "clean_test_trials.pickle")


@final
@dataclass(frozen=True)
class Trial:
    """A pair in a kitchen, for some three minutes."""

    person: str
    """The pair."""
    partner: str
    """The kitchen: it changes the score for all demonstrators."""
    tiles: tuple[str, ...]
    """Its map: X counter, O onions, D dishes, P pot, S serving, anything else floor."""
    states: tuple[str, ...]
    """Before each step, as text."""
    actions: tuple[str, ...]
    """Of both players in each step, as text."""
    score: int
    seed: int = 0
    experience: int | None = None


def read_trials(path: Path) -> list[Trial]:
    """Every trial of the source package."""
    try:
        with tarfile.open(path) as archive:
            found = {each.name.rsplit("/", 1)[-1]: archive.extractfile(each) for each in archive if each.isfile()}
            tables = [read_table(content.read()) for name in _FILES if (content := found.get(name)) is not None]
    except (OSError, tarfile.TarError, EOFError) as error:
        raise DemonstrationError(
            f"{path} cannot be read as a source package ({error}): pass overcooked_ai-1.1.0.tar.gz"
        ) from error
    if not tables:
        raise DemonstrationError(
            f"{path} holds no trials of people: pass the source package overcooked_ai-1.1.0.tar.gz"
        )
    return [trial for table in tables for trial in _trials(table)]


def _trials(table: Mapping[str, Array]) -> list[Trial]:
    pairs, kitchens = table["workerid_num"].astype(int), table["layout_name"].astype(str)
    found = []
    for pair, kitchen in sorted(set(zip(pairs.tolist(), kitchens.tolist(), strict=True))):
        rows = np.flatnonzero((pairs == pair) & (kitchens == kitchen))
        rows = rows[np.argsort(table["cur_gameloop"][rows], kind="stable")]
        found.append(
            Trial(
                person=f"pair {pair}",
                partner=kitchen,
                tiles=tuple(ast.literal_eval(table["layout"][rows[0]])),
                states=tuple(table["state"][rows].tolist()),
                actions=tuple(table["joint_action"][rows].tolist()),
                score=int(table["score"][rows].max()),
            )
        )
    return found


class _Frame:
    """What stands in for a pandas object: it keeps the state that the pickle gives it."""

    state: Any = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _index(_: object, about: Mapping[str, Any]) -> Array:
    return np.asarray(about["data"])


_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("pandas.core.frame", "DataFrame"): _Frame,
    ("pandas.core.internals.managers", "BlockManager"): _Frame,
    ("pandas.core.indexes.base", "_new_Index"): _index,
    ("pandas.core.indexes.base", "Index"): _Frame,
    ("pandas.core.indexes.numeric", "Int64Index"): _Frame,
    ("numpy.core.multiarray", "_reconstruct"): np.ndarray((0,)).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a table")
        return _ALLOWED[module, name]


def read_table(content: bytes) -> dict[str, Array]:
    """The columns of a pickled table of pandas; a pickle that asks for anything else is refused."""
    try:
        frame = _Restricted(io.BytesIO(content)).load()
        state = frame.state["_data"].state[3]["0.14.1"]
        names = state["axes"][0]
        columns = {}
        for block in state["blocks"]:
            for row, number in enumerate(np.arange(len(names))[block["mgr_locs"]]):
                columns[str(names[number])] = block["values"][row]
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise DemonstrationError(f"this is no pickled table of trials ({error}): pass the published package") from error
    return columns
