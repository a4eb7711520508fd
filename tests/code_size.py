"""How large the library's code is: lines in all, lines of functions without docstrings, and parameters of functions.

The limits and what still exceeds them stand here, in one place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

LIBRARY = Path(__file__).parents[1] / "src" / "ileed"

LINES_IN_ALL = 32_500
"""Lower this with every reduction; the aim is 19,000."""
LINES_OF_A_FUNCTION = 60
PARAMETERS = 8

# What exceeds a limit today. An entry that is no longer needed fails the tests until it is removed.
LONG_FUNCTIONS: frozenset[str] = frozenset()
MANY_PARAMETERS: frozenset[str] = frozenset({"ileed/methods/ileed.py: Ileed.fit", "ileed/report/__init__.py: report"})
"""What a person passes by name."""


class Function(NamedTuple):
    """A function or method: its lines without the docstring, and its parameters without `self` and `cls`."""

    name: str
    lines: int
    parameters: int


def sources(library: Path = LIBRARY) -> dict[str, str]:
    """The text of every Python file, by its path below the package's parent."""
    return {path.relative_to(library.parent).as_posix(): path.read_text() for path in sorted(library.rglob("*.py"))}


def lines(text: str) -> int:
    return len(text.splitlines())


def long_functions(files: Mapping[str, str]) -> dict[str, int]:
    return {found.name: found.lines for found in functions(files) if found.lines > LINES_OF_A_FUNCTION}


def many_parameters(files: Mapping[str, str]) -> dict[str, int]:
    """Functions with too many parameters. The settings of a dataclass are fields, and so are not counted."""
    return {found.name: found.parameters for found in functions(files) if found.parameters > PARAMETERS}


def functions(files: Mapping[str, str]) -> Iterator[Function]:
    """Every function, also those inside others, as `package/file.py: Class.method`."""
    for path, text in files.items():
        yield from _functions(ast.parse(text), f"{path}: ", in_class=False)


def _functions(node: ast.AST, prefix: str, *, in_class: bool) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.", in_class=True)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{child.name}"
            length = _lines(child) - (_lines(child.body[0]) if ast.get_docstring(child) else 0)
            yield Function(name, length, _parameters(child, in_class=in_class))
            yield from _functions(child, f"{name}.", in_class=False)
        else:
            yield from _functions(child, prefix, in_class=in_class)


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef, *, in_class: bool) -> int:
    given = function.args
    static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in function.decorator_list)
    named = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - (in_class and not static)
    return named + (given.vararg is not None) + (given.kwarg is not None)


def summary(files: Mapping[str, str]) -> str:
    """The figures in four lines, with the worst first."""
    total = sum(map(lines, files.values()))
    state = "within" if total <= LINES_IN_ALL else "above"
    parts = [f"{total:,} lines of Python in {len(files)} files, {state} the limit of {LINES_IN_ALL:,}"]
    for what, limit, found in (
        ("functions", f"{LINES_OF_A_FUNCTION} lines", long_functions(files)),
        ("functions", f"{PARAMETERS} parameters", many_parameters(files)),
    ):
        worst = ", ".join(f"{name} ({size})" for name, size in sorted(found.items(), key=lambda item: -item[1]))
        parts.append(f"{len(found)} {what} of more than {limit}" + (f": {worst}" if worst else ""))
    return "\n".join(parts)
