"""Parsing: the words of a command line become an instance of the command's class, or one sentence about an error."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import dropwhile, takewhile
from typing import Any, get_args

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo
from tyro.constructors import PrimitiveConstructorSpec as OptionSpec
from tyro.constructors import PrimitiveTypeInfo as OptionType

from ileed.errors import IleedError, SettingsError
from ileed.wording import did_you_mean

_REGISTRY = ConstructorRegistry()


def parse(kind: type, program: str, words: Sequence[str]) -> Any:
    """An instance of `kind` with the options that the words give; prints the help and returns None for --help."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            command, unknown = _parse_known(kind, program, words)
    except SystemExit as stopped:
        if not stopped.code:
            return None
        if (error := _cause_of_ours(stopped)) is not None:
            raise error from None
        unknown, command = list(words), None
    if command is not None and not unknown:
        return command
    advice, options = f"see {program} --help", _options(kind, program)
    for word in unknown:
        option = word.partition("=")[0].replace("_", "-")
        if re.match(r"--?[a-z]", option) and option not in options:
            raise SettingsError(f"`{program}` has no option {option}{did_you_mean(option, options)}: {advice}")
    if command is None:
        raise SettingsError(f"{_first_paragraph(message.getvalue())}: {advice}")
    raise SettingsError(f"{unknown[0]!r} is one word too many: {advice}")


def _parse_known(kind: type, program: str, words: Sequence[str]) -> Any:
    """The command, and the words that are none of its options."""
    config = (tyro.conf.FlagCreatePairsOff,)
    return tyro.cli(kind, prog=program, args=list(words), return_unknown_args=True, config=config, registry=_REGISTRY)


def _options(kind: type, program: str) -> list[str]:
    """Every option that the help lists."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        _parse_known(kind, program, ["--help"])
    listed = [re.match(r"[^\w-]{1,3}(-\S.*)", line) for line in _lines_without_colour(printed.getvalue())]
    return [option for line in listed if line for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", line.group(1))]


def _lines_without_colour(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def _cause_of_ours(error: BaseException | None) -> IleedError | None:
    """The first IleedError in a chain of causes: raised by a setting that refuses its value."""
    while error is not None and not isinstance(error, IleedError):
        error = error.__cause__ or error.__context__
    return error


def _first_paragraph(message: str) -> str:
    """The first paragraph of a message that tyro has framed, as a sentence of ours."""
    lines = [line.strip("│ ") for line in _lines_without_colour(message)[1:]]  # the first is a title
    paragraph = takewhile(lambda line: not _is_rule(line), dropwhile(_is_rule, lines))
    text = re.sub(r"\.? ?\(required\)", "", " ".join(" ".join(paragraph).split())).rstrip(".:")
    if found := re.fullmatch(r"invalid choice '(.*)' for argument '(.*)'. Expected one of \((.*?),?\)", text):
        value, option, choices = found.group(1), found.group(2), re.findall(r"'([^']*)'", found.group(3))
        return f"{option} is {value!r}{did_you_mean(value, choices)}: it must be one of {', '.join(choices)}"
    for pattern, replacement in _PHRASES.items():
        text = re.sub(pattern, replacement, text)
    return text


def _is_rule(line: str) -> bool:
    return bool(line) and not line.strip("─-╰╯")


_PHRASES = {
    r"^Error parsing ": "",
    r"^Missing value for argument '(\S+)'.*": r"\1 needs a value",
    r"^Missing from ([^:]+): ((?:--\S+ )?[A-Z]+\S*) (.*)$": r"`\1` needs \2 (\3)",
}


def rename_option(kind: type, field: str, name: str) -> None:
    """Give a field of a class of settings another name on the command line."""
    in_use = False

    @_REGISTRY.struct_rule
    def rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        nonlocal in_use
        if info.type is not kind or in_use:
            return None
        in_use = True
        try:
            found = ConstructorRegistry.get_struct_spec(info)  # by the other rules
        finally:
            in_use = False
        if not isinstance(found, StructConstructorSpec):
            return None
        fields = tuple(replace(item, name=name) if item.name == field else item for item in found.fields)

        def instantiate(**values: Any) -> Any:
            return found.instantiate(**{field if each == name else each: value for each, value in values.items()})

        return StructConstructorSpec(instantiate, fields)


@_REGISTRY.primitive_rule
def _number(info: OptionType) -> OptionSpec[Any] | None:
    """An option that takes a number, or none where that is a choice."""
    offered = get_args(info.type) or (info.type,)
    kinds = [kind for kind in offered if kind is not type(None)]
    if kinds not in ([int], [float]):
        return None
    optional = len(offered) > len(kinds)
    kind, rule = (int, "a whole number") if kinds == [int] else (float, "a number")

    def number(word: str) -> int | float | None:
        if optional and word.lower() == "none":
            return None
        try:
            return kind(word)
        except ValueError:
            raise ValueError(f"{word!r} is not {rule}{', nor none' if optional else ''}") from None

    return _option_of_one_word(number, kind.__name__.upper() + ("|none" if optional else ""), kind)


@_REGISTRY.primitive_rule
def _model_part(info: OptionType) -> OptionSpec[Any] | None:
    """An option that takes a part of the model, as in Python, `Embedded(dim=3)`, or by its name, `constant`."""
    offered = get_args(info.type) or (info.type,)
    kinds = [kind for kind in offered if isinstance(kind, type) and kind.__module__.startswith("ileed.model.")]
    if not kinds:
        return None
    by_name, names = {kind.__name__.lower(): kind for kind in kinds}, [kind.__name__ for kind in kinds]

    def part(word: str) -> Any:
        if word.lower() in ("auto", "none"):
            return None
        name = word.partition("(")[0].strip()
        try:
            return _instance(word, by_name)
        except IleedError:
            raise
        except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
            if name.lower() in by_name:
                raise ValueError(_wrong_settings(word, by_name[name.lower()], error)) from None
            rule = f"one of {'|'.join(names)}, with settings as in Embedded(dim=3)"
            raise ValueError(f"{word!r} is not {rule}{did_you_mean(name, names)}") from None

    return _option_of_one_word(part, "|".join(names), *kinds)


def _instance(word: str, by_name: dict[str, type]) -> Any:
    """An instance of one of these classes from a call, whose arguments are literals, or from a name alone."""
    written = ast.parse(word, mode="eval").body
    call = written if isinstance(written, ast.Call) else ast.Call(written, [], [])
    if not isinstance(call.func, ast.Name):
        raise TypeError
    arguments = [ast.literal_eval(argument) for argument in call.args]
    settings = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return by_name[call.func.id.lower()](*arguments, **settings)


def _wrong_settings(word: str, kind: type, error: Exception) -> str:
    known = list(getattr(kind, "__dataclass_fields__", ()))
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    meant = did_you_mean(unknown.group(1), known) if unknown else ""
    takes = f"{kind.__name__} takes {', '.join(known) or 'nothing'}"
    return f"{word!r} cannot be parsed{meant}: {takes}, written as in Embedded(dim=3)"


def _option_of_one_word(value: Callable[[str], Any], metavar: str, *kinds: type) -> OptionSpec[Any]:
    """An option whose value is made from one word: an instance of one of these kinds, or None."""
    return OptionSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: value(words[0]),
        is_instance=lambda found: found is None or isinstance(found, kinds),
        str_from_instance=lambda found: ["none" if found is None else repr(found)],
    )
