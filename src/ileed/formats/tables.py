"""Tables: one row for each decision, one column for each feature, from CSV, parquet, pandas, polars or Arrow.

The caller names the columns of the action and of the demonstrator; nothing is guessed from a column's name. Text and
categories are encoded here, and their names are kept in `Demonstrations.encoding`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ileed.data import Array, Demonstrations, Encoding, Source
from ileed.data.columns import Column, as_table, check_names
from ileed.data.encoding import Feature, Label
from ileed.data.rules import single_holds
from ileed.errors import DemonstrationError, brief, instance_of, one_of, path_of, printable, refuse_damage
from ileed.formats import core
from ileed.formats.core import AbstractFormat, Labeller, Option, by_column
from ileed.formats.files import ParquetFile
from ileed.runs import stores

_SUFFIXES = (".csv", ".tsv", ".parquet")
_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
_NUMBER = r"^[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"  # not a code such as 007
_TRUE_OR_FALSE = "(?i)^(true|false)$"
_MOST_CATEGORIES = 1000  # of a feature or an action: the one-hot matrix must fit in memory
_LEAVE_OUT = "leave it out by naming the others with features=[...]"
_FEW_CATEGORIES = 20  # this many are accepted however few rows there are


def from_table(
    table: Any,
    *,
    action: str | Sequence[str],
    demonstrator: str,
    episode: str | Sequence[str] | None = None,
    features: str | Sequence[str] | None = None,
    skills: str | Sequence[str] | None = None,
    missing: Literal["error", "category"] = "error",
    encoding: Encoding | None = None,
) -> Demonstrations:
    """Demonstrations from a table with one row for each step.

    Args:
        table: The path of a CSV or parquet file, a DataFrame of pandas or polars, an Arrow table, or a mapping of
            columns. The other arguments name its columns.
        action: Continuous if it holds fractions or is a list of columns; otherwise discrete, with the values as labels.
        demonstrator: Who acted.
        episode: One or several columns. Rows of one episode are brought together in the order of the table; None makes
            each row an episode, a decision independent of the others. The key of an episode is its label; several
            labels are joined by ", ", with a backslash before each comma and backslash inside a label.
        features: What was seen before acting; None takes every column without another role.
        skills: Labels for `Skills`.
        missing: Whether missing values of features are refused, or become a category or, in a column of numbers, the
            mean and a further input that marks them.
        encoding: That of an earlier table, such as `fitted.policy.encoding`, by which to encode this one.

    >>> table = {"age": [71, 30, 55, 42], "arrival": ["ambulance", "walk-in", "walk-in", "ambulance"],
    ...          "decision": ["admit", "discharge", "admit", "admit"], "nurse": ["ann", "ann", "bob", "bob"]}
    >>> data = from_table(table, action="decision", demonstrator="nurse")
    >>> data
    Demonstrations(4 episodes of one step each (independent decisions), 2 demonstrators (2-2 steps each),
                   features age, arrival (2 categories),
                   actions decision (admit, discharge), rewards absent)
    >>> data.encoding.inputs
    ('age', 'arrival = ambulance', 'arrival = walk-in')
    """
    one_of("missing", missing, ("error", "category"), error=DemonstrationError)
    rule = "pass that of an earlier table, as data.encoding or fitted.policy.encoding"
    instance_of("encoding", encoding, Encoding | None, rule=rule, error=DemonstrationError)
    if encoding is not None and features is not None:
        raise DemonstrationError("both features and an encoding are given: the encoding names the features already")
    named = {"action": action, "demonstrator": demonstrator, "episode": episode, "skill": skills, "feature": features}
    roles = {role: _as_names(role, names) for role, names in named.items()}
    if features is not None and not roles["feature"]:
        raise DemonstrationError("features names no column: name at least one, or leave it out to take all others")
    if len(roles["demonstrator"]) != 1 or not roles["action"]:
        found = f"demonstrator is {demonstrator!r} and action is {action!r}"
        raise DemonstrationError(f"{found}: name one column that says who acted, and what")
    copy = stores.local_copy(table)
    source = None
    if isinstance(copy, str | Path):
        copy = path_of("table", copy, error=DemonstrationError)
        columns = {"action": action, "demonstrator": demonstrator, "episode": episode, "features": features}
        source = Source.of(copy, from_table, **columns, skills=skills, missing=missing, encoding=encoding)
    others = tuple(name for role, names in roles.items() if role != "feature" for name in names)
    known = roles["feature"] if encoding is None else tuple(feature.name for feature in encoding.features)
    continuous = not isinstance(action, str)
    with stores.name_address_in_errors(table, copy):
        found = open_table(
            copy,
            wanted=(*others, *known) if known else None,
            as_text=tuple(name for name in others if name not in roles["action"]),
            infer=() if continuous else roles["action"],
        )
        by_role = _columns_of_roles(found, roles)
        names, who = _demonstrators(by_role["demonstrator"][0])
        labels, actions = _actions(by_role["action"], encoding, continuous=continuous)
        rows, number, keys = _order_of_rows(by_role["episode"], who)
        if encoding is None:
            chosen = by_role["feature"] or _features_left(found, set(others))
            encoded = [_feature(column, missing, named=bool(known)) for column in chosen]
            encoding = Encoding(tuple(encoded), roles["action"], labels)
        labelled = {column.name: _distinct(_labels(column, "a skill")) for column in by_role["skill"]}
        return Demonstrations(
            observations=encoding.encode(found)[rows],
            actions=actions[rows],
            demonstrator=who[rows],
            episode=number,
            source_episode=keys,
            names=names,
            skills={name: np.array(words)[index][rows] for name, (words, index) in labelled.items()},
            action_count=len(labels),
            encoding=encoding,
            source=source,
        )


def _as_names(role: str, names: Any) -> tuple[str, ...]:
    """The names given for a role as a tuple; one name may stand alone."""
    found = (names,) if isinstance(names, str) else () if names is None else names
    if not isinstance(found, Sequence) or not all(isinstance(name, str) for name in found):
        raise DemonstrationError(f"{role} is {brief(names)}: pass the name of a column, or a list of names")
    if repeated := [name for name in found if found.count(name) > 1]:
        raise DemonstrationError(f"{role} names the column {repeated[0]!r} twice: name each once")
    return tuple(found)


def open_table(table: Any, *, wanted: Sequence[str] | None, as_text: Sequence[str], infer: Sequence[str]) -> pa.Table:
    """A table as an Arrow table; only the `wanted` columns of a parquet file are read.

    In a CSV file, the columns `as_text` stay text, and those to `infer` become numbers where that loses nothing.
    """
    if not isinstance(table, str | Path):
        return as_table(table)
    path = path_of("table", table, rule="pass the path of a CSV or parquet file", error=DemonstrationError)
    if not os.path.isfile(path):
        raise DemonstrationError(f"there is no file {printable(str(path), 300)}: check the path")
    if path.suffix.lower() not in _SUFFIXES:
        raise DemonstrationError(f"{path.name} is of no known format of tables: there are {', '.join(_SUFFIXES)}")
    if path.suffix.lower() == ".parquet":
        file = ParquetFile(path)
        check_names(file.schema.names)
        names = [name for name in file.schema.names if wanted is None or name in wanted]
        return file.read(names) if names else file.schema.empty_table()
    found = _read_csv(path, as_text=(*as_text, *infer))
    for name in set(infer) & set(found.column_names):
        column = _infer_type(found.column(name))
        found = found.set_column(found.column_names.index(name), name, column)
    return found


def _read_csv(path: Path, *, as_text: Sequence[str]) -> pa.Table:
    """The columns of a CSV file, some `as_text`, so that "007" stays "007".

    The file is parsed as one block, so that all rows decide the type of a column, and not the first megabyte.
    """
    from pyarrow import csv

    advice = "save it as UTF-8, and give every row as many values as the header has names"
    with refuse_damage(path, "CSV", pa.ArrowException, advice=advice):
        with path.open("rb") as opened:
            head = opened.read(1 << 16)
        if b"\0" in head:
            raise ValueError("it holds zero bytes, as binary files and UTF-16 do")
        header = head.splitlines()[0] if head.strip() else b""
        separator = max(",", ";", "\t", key=lambda sign: header.count(sign.encode()))
        types = dict.fromkeys(as_text, pa.string())
        found = csv.read_csv(
            path,
            csv.ReadOptions(block_size=min(path.stat().st_size + 1, 2**31 - 1)),
            csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            csv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False),
        )
        if binary := [field.name for field in found.schema if pa.types.is_binary(field.type)]:
            raise ValueError(f"column {binary[0]!r} is not UTF-8")
        check_names(found.column_names)
        return found


def _infer_type(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A text column as integers, booleans or floating-point numbers, if all of its values are."""
    for pattern, kind in ((_WHOLE, pa.int64()), (_TRUE_OR_FALSE, pa.bool_()), (_NUMBER, pa.float64())):
        if pc.all(pc.match_substring_regex(column, pattern), min_count=1).as_py():
            return pc.cast(column, kind)
    return column


def _columns_of_roles(table: pa.Table, roles: Mapping[str, Sequence[str]]) -> dict[str, list[Column]]:
    """The columns of each role; a column may have one role, except that a skill may also be a feature."""
    taken: dict[str, str] = {}
    for role, names in roles.items():
        for name in names:
            # the demonstrator may be part of what identifies an episode
            shared = role == "episode" and taken.get(name) == "demonstrator" and len(names) > 1
            if name in taken and not shared:
                raise DemonstrationError(f"column {name!r} is named as {taken[name]} and as {role}: give it one role")
            if role not in ("skill", "feature"):
                taken.setdefault(name, role)
    found = {role: [Column.of(table, name) for name in names] for role, names in roles.items()}
    if len(table) == 0:
        raise DemonstrationError("the table has no rows: pass at least one")
    return found


def _features_left(table: pa.Table, taken: set[str]) -> list[Column]:
    """Every column that has no other role; refuses one that only numbers the rows."""
    columns = [Column.of(table, name) for name in table.column_names if name not in taken]
    if not columns:
        raise DemonstrationError("no column is left for the features: the table needs what was seen before acting")
    for column in columns:
        counts = column.is_whole and not column.missing and len(table) > _FEW_CATEGORIES
        if counts and (np.diff(column.values.to_numpy()) == 1).all():  # such as an index saved with the table
            raise DemonstrationError(
                f"column {column.name!r} numbers the rows, which is no feature: pass it as episode=, or {_LEAVE_OUT}"
            )
    return columns


def _feature(column: Column, missing: str, *, named: bool) -> Feature:
    """The encoding of a column of features; refuses a column that cannot be a feature."""
    name, kind = column.name, column.values.type
    if column.missing == len(column.values):
        raise DemonstrationError(f"column {name!r} has no values at all: {_LEAVE_OUT}")
    if not column.is_category and not column.is_number:
        holds = f"column {name!r} holds {kind}, which is neither a number nor a category"
        raise DemonstrationError(f"{holds}: turn it into numbers, such as the hour of a time, or {_LEAVE_OUT}")
    if missing == "error":
        column.check_present(otherwise=", leave the column out of features, or pass missing='category' to keep them")
    if not column.is_category:
        if not column.missing:
            return Feature(name)
        values = column.numbers()
        mean = np.nanmean(values)
        return Feature(name, fill=float(np.float32(mean) if single_holds(values[~np.isnan(values)]) else mean))
    rows, found = len(column.values), sorted(pc.unique(column.text().drop_null()).to_pylist())
    hardly_repeat = len(found) > max(rows // 2, _FEW_CATEGORIES) or (len(found) == rows and rows > 1)
    if (hardly_repeat and not named) or len(found) > _MOST_CATEGORIES:
        column.check_header()
        texts = f"{len(found):,} different texts in {rows:,} rows, like an identifier"
        raise DemonstrationError(f"column {name!r} has {texts}: group its values, or {_LEAVE_OUT}")
    if any("," in one for one in found) and all(re.fullmatch(r"[+-]?\d+(,\d+)?", one) for one in found):
        raise DemonstrationError(f"column {name!r} holds numbers with a decimal comma ({found[0]!r}): write a point")
    return Feature(name, (*found, None) if column.missing else tuple(found))


def _actions(columns: Sequence[Column], known: Encoding | None, *, continuous: bool) -> tuple[tuple[Label, ...], Array]:
    """The labels of a discrete action and each row's index into them; no labels and the values of a continuous one."""
    names = tuple(column.name for column in columns)
    if known is not None and known.action != names:
        raise DemonstrationError(f"action is {names} and the encoding's is {known.action}: name the same")
    for column in columns:
        column.check_present(role="the action")
    first, decide = columns[0], known is None and not continuous
    labels: tuple[Label, ...] = () if known is None else known.labels
    if decide and (first.categories is not None or first.is_whole or not first.is_number):
        labels = _labels_of_action(first)
    if labels:
        return labels, first.index_among(labels)
    values = np.stack([column.numbers() for column in columns], axis=1)
    if decide and (values == np.round(values)).all():
        found = f"the action column {names[0]!r} holds whole numbers such as {values[0, 0]:g} as floating-point ones"
        raise DemonstrationError(f"{found}: convert them to integers if they are labels, or pass action=[{names[0]!r}]")
    return (), values.astype(np.float32 if single_holds(values) else np.float64)


def _labels_of_action(column: Column) -> tuple[Label, ...]:
    """The labels that occur, or that a categorical column declares, sorted unless it declares an order."""
    if column.categories is not None:
        declared = Column(column.name, column.categories).text()
    else:
        declared = column.values if column.is_whole or pa.types.is_boolean(column.values.type) else column.text()
    labels = pc.unique(declared.drop_null()).to_pylist()
    if len(labels) < 2:
        raise DemonstrationError(f"the action column {column.name!r} is {labels[0]!r} in every row: there is no choice")
    if len(labels) > _MOST_CATEGORIES:
        found = f"the action column {column.name!r} has {len(labels):,} different values, above {_MOST_CATEGORIES:,}"
        raise DemonstrationError(f"{found}: group them, or pass action=[{column.name!r}] if it is a quantity")
    return tuple(labels if column.is_ordered else sorted(labels))


def _demonstrators(column: Column) -> tuple[tuple[str, ...], Array]:
    """The name of each demonstrator, and each row's index into them; numbers are sorted as numbers."""
    found, index = _distinct(_labels(column, "the demonstrator"))
    numbers = all(re.fullmatch(_WHOLE, name) for name in found)
    order = sorted(range(len(found)), key=lambda number: int(found[number]) if numbers else found[number])
    return tuple(found[number] for number in order), np.argsort(order)[index]


def _labels(column: Column, role: str) -> Any:
    """The labels in a column as text; none may be missing."""
    column.check_present(role=role)
    name, kind = column.name, column.values.type
    if column.is_number and not column.is_whole:
        raise DemonstrationError(f"column {name!r} holds {kind}, and {role} is text or a whole number: convert it")
    return pc.cast(column.values, pa.string()) if pa.types.is_temporal(kind) else column.text()


def _distinct(words: Any) -> tuple[list[str], Array]:
    """The distinct words in the order of their first appearance, and each row's index into them."""
    distinct = pc.unique(words)
    return distinct.to_pylist(), pc.index_in(words, value_set=distinct).to_numpy().astype(np.int64)


def _order_of_rows(columns: Sequence[Column], who: Array) -> tuple[Array, Array, Array]:
    """The rows sorted by the first appearance of their episode, and the number and the key of each row's episode.

    An episode that several columns identify has their labels, joined so that each can be recovered, as its key.
    """
    rows = np.arange(len(who))
    if not columns:
        return rows, rows, rows
    labels = [_labels(column, "the episode") for column in columns]
    if len(labels) > 1:
        escaped = [pc.replace_substring_regex(each, r"([\\,])", r"\\\1") for each in labels]
        labels = [pc.binary_join_element_wise(*escaped, ", ")]
    keys, number = _distinct(labels[0])
    rows = np.argsort(number, kind="stable")
    number = number[rows]
    changed = (number[1:] == number[:-1]) & (who[rows][1:] != who[rows][:-1])
    if changed.any():
        row = int(rows[int(changed.argmax())])
        label = ", ".join(f"{column.name} {column.values[row].as_py()!s}" for column in columns)
        rule = "if each demonstrator's are counted from one, name both columns: episode=[demonstrator, episode]"
        raise DemonstrationError(f"the episode of {label} has two demonstrators, and belongs to one: {rule}")
    return rows, number, np.array(keys, dtype=object)[number]


@final
class _Table(AbstractFormat):
    name, suffixes, title = "table", (".csv", ".tsv"), "tables"
    reading = (
        Option(
            "action",
            tuple[str, ...],
            "The column of the action, if the file is a table (CSV, parquet).",
            parse=lambda names: names[0] if len(names) == 1 else names,  # several columns are a continuous action
        ),
        Option("episode", tuple[str, ...], "The columns that identify an episode; by default each row is one."),
        Option("features", tuple[str, ...], "The columns of a table that are observations; all others by default."),
        Option("skills", tuple[str, ...], """Columns of a table with labels for --expertise "Skills('COLUMN')"."""),
        Option(
            "missing",
            Literal["error", "category"] | None,
            "Missing values in a table's features: an error, or a category of their own.",
        ),
    )

    def read(
        self,
        path: Path,
        *,
        demonstrator: Labeller | None = None,
        action: str | Sequence[str] | None = None,
        episode: str | Sequence[str] | None = None,
        features: str | Sequence[str] | None = None,
        skills: str | Sequence[str] | None = None,
        missing: Literal["error", "category"] | None = None,
        encoding: Encoding | None = None,
    ) -> Demonstrations:
        """Read a table; the keyword arguments name columns, as in `from_table`."""
        core.check_lookup(demonstrator, by_column, title="tables")
        columns: dict[str, Any] = {"episode": episode, "features": features, "skills": skills}
        if action is None and not any(columns.values()):
            raise core.flat_table(path, self.columns(path))
        for name, given in (("action", action), ("demonstrator", demonstrator)):
            if given is None:
                rule = f"add {name}= (at the command: --{name})"
                raise DemonstrationError(f"columns of a table are named, but not that of the {name}: {rule}")
        who = str(demonstrator and demonstrator.place)
        return from_table(
            path, action=action or (), demonstrator=who, missing=missing or "error", encoding=encoding, **columns
        )

    def columns(self, path: Path) -> Sequence[str]:
        return _read_csv(path, as_text=()).column_names

    def labeller(self, demonstrator: Labeller | str | None) -> Labeller | None:
        return by_column(demonstrator) if isinstance(demonstrator, str) else demonstrator

    def can_read_with(self, path: Path, options: Collection[str]) -> bool:
        """Whether a path is a table, by its suffix or because columns are named, which may be a parquet file's."""
        return self.can_read(path) or (not path.is_dir() and not {*self.options}.isdisjoint(options))


FORMAT = _Table()
