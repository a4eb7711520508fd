"""Settings and provenance of a run, as the last section of a page: how to make it again, and what made it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ileed.fitted import Fitted
from ileed.report.text import escape

_ABSOLUTE = re.compile(r"""(?<![\w./\\:-])(?:~|[A-Za-z]:)?[\\/](?:[^\s'"\\/]+[\\/])*([^\s'"\\/]*)""")


def settings_of(fitted: Fitted, command: str | None) -> str:
    """The call that makes the method again, and all settings, as HTML; paths are cut to their last part."""
    call = f"{_constructor_call(fitted.method)}.fit(demonstrations, seed={fitted.provenance['seed']})"
    entries = [*([("command", command)] if command else []), ("in Python", call)]
    settings = vars(fitted.method) | vars(fitted.joint.parts)
    lists = {"Settings": _entries(settings), "Provenance": _entries(fitted.provenance)}
    if (table := fitted.policy.encoding) is not None:
        features = [(each.name, _join(each.categories) if each.categories else "number") for each in table.features]
        actions = [(", ".join(table.action), _join(table.labels) or "continuous")]
        lists = {"Actions": actions, "Features": features} | lists
    headed = "".join(
        f"<details><summary>{heading}</summary>{_definitions(each)}</details>\n" for heading, each in lists.items()
    )
    return f"{_definitions(entries, code=True)}\n{headed}"


def _join(values: Sequence[Any], most: int = 40) -> str:
    """Labels or categories, and how many more there are."""
    more = [f"and {len(values) - most:,} more"] if len(values) > most else []
    return ", ".join([*("missing" if value is None else str(value) for value in values[:most]), *more])


def _constructor_call(value: Any) -> str:
    """The Python call that makes these settings; fields with their default values are left out."""
    if not is_dataclass(value):
        return repr(value)
    changed = [item.name for item in fields(value) if getattr(value, item.name) != item.default]
    arguments = ", ".join(f"{name}={_constructor_call(getattr(value, name))}" for name in changed)
    return f"ileed.{type(value).__name__}({arguments})"


def _entries(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Labels and values in words; the entries of a nested mapping follow its name."""
    entries: list[tuple[str, str]] = []
    for name, value in values.items():
        label = f"{before}{'unique observations' if name == 'places' else name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            entries += _entries(value, f"{label}: ")
            continue
        default = "chosen from the data" if name in ("batch_size", "normalise") else "none"
        text = f"{value:,}" if type(value) is int and name != "seed" else str(value)
        entries.append((label, default if value is None else text))
    return entries


def _definitions(entries: Sequence[tuple[str, str]], *, code: bool = False) -> str:
    """Entries as a list of definitions; absolute paths are cut to their last part, since they are private."""
    texts = [(escape(name), escape(_ABSOLUTE.sub(r"\1", value))) for name, value in entries]
    cells = (f"<dt>{name}</dt><dd>{f'<code>{value}</code>' if code else value}</dd>" for name, value in texts)
    return f"<dl class=settings>{''.join(cells)}</dl>"


def differing_settings(one: Fitted, other: Fitted) -> list[tuple[str, str, str]]:
    """Settings and provenance of two runs that are not the same: the name, and the value in each."""
    both = [dict(_entries(vars(each.method) | vars(each.joint.parts) | dict(each.provenance))) for each in (one, other)]
    names = dict.fromkeys([*both[0], *both[1]])
    rows = [(name, *(_ABSOLUTE.sub(r"\1", each.get(name, "none")) for each in both)) for name in names]
    return [(name, first, second) for name, first, second in rows if first != second]
