"""Parsing: the words of a command become its settings, or one sentence about what is wrong with them."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Any, get_args, get_origin

import tyro

from ileed.errors import IleedError, SettingsError
from ileed.wording import did_you_mean

__all__ = ["SHAPES", "parse"]

SHAPES = tyro.constructors.ConstructorRegistry()


def parse(kind: type, program: str, words: Sequence[str]) -> Any:
    """An instance of `kind` with the settings that the words give; prints help and returns None where that is asked."""
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            command, unknown = _parsed(kind, program, words)
    except SystemExit as stopped:
        if not stopped.code:
            return None
        if (error := _innermost(stopped)) is not None:
            raise error from None
        unknown, command = list(words), None
    if command is not None and not unknown:
        return command
    options = _options(kind, program)
    for word in unknown:
        option = word.partition("=")[0].replace("_", "-")
        if re.match(r"--?[a-z]", option) and option not in options:
            raise SettingsError(
                f"`{program}` has no option {option}{did_you_mean(option, options)}: see {program} --help"
            )
    if command is None:
        raise SettingsError(f"{_unboxed(heard.getvalue())}: see {program} --help")
    raise SettingsError(f"{unknown[0]!r} is one word too many: see {program} --help")


def _parsed(kind: type, program: str, words: Sequence[str]) -> Any:
    return tyro.cli(
        kind,
        prog=program,
        args=list(words),
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
        registry=SHAPES,
    )


def _options(kind: type, program: str) -> list[str]:
    """Every option, as the help lists them."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        _parsed(kind, program, ["--help"])
    listed = [re.match(r"[^\w-]{1,3}(-\S.*)", line) for line in _uncoloured(shown.getvalue())]
    return [option for line in listed if line for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", line.group(1))]


def _uncoloured(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def _innermost(stopped: BaseException | None) -> IleedError | None:
    """Our own sentence, where a setting was refused by what it was meant for."""
    while stopped is not None:
        if isinstance(stopped, IleedError):
            return stopped
        stopped = stopped.__cause__ or stopped.__context__
    return None


def _unboxed(heard: str) -> str:
    """The first paragraph of a framed message, as a sentence."""
    lines = [line.strip("│ ") for line in _uncoloured(heard)[1:]]  # the first is a title
    whole = dropwhile(_is_rule, lines)
    kept = takewhile(lambda line: not _is_rule(line), whole)
    said = re.sub(r"\.? ?\(required\)", "", " ".join(" ".join(kept).split())).rstrip(".:")
    if found := re.fullmatch(r"invalid choice '(.*)' for argument '(.*)'. Expected one of \((.*?),?\)", said):
        value, option, choices = found.group(1), found.group(2), re.findall(r"'([^']*)'", found.group(3))
        return f"{option} is {value!r}{did_you_mean(value, choices)}: it must be one of {', '.join(choices)}"
    for pattern, instead in _PHRASES.items():
        said = re.sub(pattern, instead, said)
    return said


def _is_rule(line: str) -> bool:
    return bool(line) and not line.strip("─-╰╯")


_PHRASES = {
    r"^Error parsing ": "",
    r"^Missing value for argument '(\S+)'.*": r"\1 needs a value",
    r"^Missing from ([^:]+): ((?:--\S+ )?[A-Z]+\S*) (.*)$": r"`\1` needs \2 (\3)",
}


@SHAPES.primitive_rule
def _number(asked: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """A number, with a refusal in words."""
    offered = get_args(asked.type) or (asked.type,)
    kinds = [kind for kind in offered if kind is not type(None)]
    if kinds not in ([int], [float]):
        return None
    optional = len(offered) > len(kinds)
    kind, words = (int, "a whole number") if kinds == [int] else (float, "a number")

    def made(given: list[str]) -> int | float | None:
        if optional and given[0].lower() == "none":
            return None
        try:
            return kind(given[0])
        except ValueError:
            raise ValueError(f"{given[0]!r} is not {words}{', nor none' if optional else ''}") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper() + ("|none" if optional else ""),
        instance_from_str=made,
        is_instance=lambda value: isinstance(value, kind) or (optional and value is None),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


@SHAPES.primitive_rule
def _part(asked: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """A part of the model is written as in Python, `Embedded(dim=3)`, or by its name alone, `constant`."""
    offered = get_args(asked.type) or (asked.type,)
    bases = tuple(get_origin(kind) or kind for kind in offered)
    if not any(base.__module__.startswith("ileed.model.") for base in bases if isinstance(base, type)):
        return None
    from ileed.model.parts import parts_of_kind  # torch is loaded where a setting is a part, and not elsewhere

    kinds = [part for kind in offered for part in parts_of_kind(kind)]
    by_name = {kind.__name__.lower(): kind for kind in kinds}
    spelled = "|".join(kind.__name__ for kind in kinds)

    def made(words: list[str]) -> Any:
        if words[0].lower() in ("auto", "none"):
            return None
        name = words[0].partition("(")[0].strip()
        try:
            written = ast.parse(words[0], mode="eval").body
            call = written if isinstance(written, ast.Call) else ast.Call(written, [], [])
            if not isinstance(call.func, ast.Name):
                raise TypeError
            arguments = [ast.literal_eval(argument) for argument in call.args]
            options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            return _kind_of(call.func.id, by_name, bases)(*arguments, **options)
        except IleedError:
            raise
        except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
            if name.lower() in by_name:
                raise ValueError(_not_an_option(words[0], by_name[name.lower()], error)) from None
            meant = did_you_mean(name, [kind.__name__ for kind in kinds])
            raise ValueError(
                f"{words[0]!r} is not one of {spelled}, with options as in Embedded(dim=3){meant}"
            ) from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="|".join(kind.__name__ for kind in kinds),
        instance_from_str=made,
        is_instance=lambda value: value is None or isinstance(value, bases),
        str_from_instance=lambda value: ["none" if value is None else repr(value)],
    )


def _kind_of(name: str, own: Mapping[str, type], bases: tuple[type, ...]) -> type:
    """The library's part of that name, or another package's; written in capitals or not."""
    from ileed.model.parts import PARTS

    if name.lower() in own:
        return own[name.lower()]
    found = PARTS[next((each for each in PARTS if each.lower() == name.lower()), name)]
    if not issubclass(found, bases):
        raise KeyError(name)
    return found


def _not_an_option(written: str, kind: type, error: Exception) -> str:
    """What is wrong with the options of a part that itself is known."""
    known = list(getattr(kind, "__dataclass_fields__", ()))
    asked = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    meant = did_you_mean(asked.group(1), known) if asked else ""
    takes = f"{kind.__name__} takes {', '.join(known)}" if known else f"{kind.__name__} takes nothing"
    return f"{written!r} cannot be understood{meant}: {takes}, written as in Embedded(dim=3)"
