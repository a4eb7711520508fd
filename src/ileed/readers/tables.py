"""Tables: one row a decision, one column a feature, from CSV, parquet, pandas, polars or Arrow.

The caller names the columns of the action and of the demonstrator; nothing is guessed from a column's name. Text and
categories are encoded here, and their names are kept in `Demonstrations.encoding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ileed.demonstrations import Demonstrations, Encoding, rules
from ileed.errors import DemonstrationError


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
    """Demonstrations from a table with one row for each step: who did what after seeing what.

    `table` is the path of a CSV or parquet file, a DataFrame of pandas or polars, an Arrow table, or a mapping of
    columns. Text, categorical and true-or-false features become one input for each category; other numbers become
    floating-point inputs. `features` names the columns that were seen before acting; None takes every column that has
    no other role.

    A column of text, categories, true and false or whole numbers holds a discrete `action`, and its values are kept as
    labels. A column of floating-point numbers, or a list of columns, holds a continuous one.

    `demonstrator` names the column that says who acted. `episode` names the column, or the columns that together, say
    which rows belong to one uninterrupted run. Its rows need not stand together: they are brought together in the
    order of the table, episodes in the order in which they first appear. None makes each row an episode of its own: the
    decisions are independent of each other.

    `skills` names columns of labels for `Skills`. A missing value is refused by the column's name; with
    `missing="category"` it becomes a category of its own in a column of categories, and in a column of numbers the mean
    takes its place and a further input says so. Actions, demonstrators, episodes and skills may never be missing.

    `encoding` encodes a further table as an earlier one was, for example with `fitted.policy.encoding`, so that
    `fitted.nats` can tell how well the fit explains it; the features are then those of the encoding.

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
    from ileed.readers import columns  # loads pyarrow.compute, which takes a while

    if missing not in ("error", "category"):
        raise DemonstrationError(f"missing is {missing!r}: pass 'error' or 'category'")
    acted, told, known = _listed("action", action), _listed("episode", episode), _listed("skills", skills)
    who = _listed("demonstrator", demonstrator)
    if len(who) != 1 or not acted:
        raise DemonstrationError(
            f"demonstrator is {demonstrator!r} and action is {action!r}: name one column that says who acted, and the "
            "column of the action"
        )
    if encoding is not None and features is not None:
        raise DemonstrationError("both features and an encoding are given: the encoding names the features already")
    seen = None if features is None else _listed("features", features)
    continuous = not isinstance(action, str)
    named = seen if encoding is None else tuple(item.name for item in encoding.features)
    wanted = None if named is None else (*acted, *who, *told, *known, *named)
    found = columns.open_table(table, labels=(*who, *told, *known), action=() if continuous else acted, wanted=wanted)
    columns.check_roles(found, {"action": acted, "demonstrator": who, "episode": told}, skills=known, features=seen)
    names, person = columns.people(who[0], found.column(who[0]))
    labels, actions = columns.actions(found, acted, encoding, continuous=continuous)
    rows, starts = columns.order_of_rows(found, told, person)
    if encoding is None:
        chosen = columns.feature_names(found, {*acted, *who, *told, *known}) if seen is None else seen
        encoded = [columns.feature(name, found.column(name), missing, named=seen is not None) for name in chosen]
        encoding = Encoding(tuple(encoded), acted, labels)
    return Demonstrations(
        observations=encoding.encode(found)[rows],
        actions=actions[rows],
        demonstrator=person[rows],
        episode=starts,
        names=names,
        skills={name: columns.skill(name, found.column(name))[rows] for name in known},
        action_count=len(labels),
        encoding=encoding,
    )


def read_table(path: str | Path, *, demonstrator: object = None) -> Demonstrations:
    """The answer to `read` for a file that does not say which of its columns is which."""
    from ileed.readers import columns

    raise flat_table(Path(path), columns.from_csv(Path(path), as_text=()).column_names)


def flat_table(path: Path, names: Sequence[str]) -> DemonstrationError:
    """The sentence for a flat table that was given without the roles of its columns."""
    return DemonstrationError(
        f"{path} is a flat table with the columns {rules.listed(names, most=20)}: say which is the action and which "
        "names the demonstrator, with --action and --demonstrator, or in Python with "
        "ileed.from_table(path, action=..., demonstrator=...)"
    )


def _listed(role: str, names: Any) -> tuple[str, ...]:
    """The names given for a role as a tuple; one name may stand alone."""
    found = (names,) if isinstance(names, str) else () if names is None else names
    if not isinstance(found, Sequence) or not all(isinstance(name, str) for name in found):
        raise DemonstrationError(f"{role} is {names!r}: pass the name of a column, or a list of names")
    if repeated := [name for name in found if found.count(name) > 1]:
        raise DemonstrationError(f"{role} names the column {repeated[0]!r} twice: name each once")
    return tuple(found)
