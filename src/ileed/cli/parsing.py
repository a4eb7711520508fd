"""Parsing: from the words of a command line to an instance of the command's class, or one sentence about an error."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry
from tyro.constructors import PrimitiveConstructorSpec as OptionSpec
from tyro.constructors import PrimitiveTypeInfo as OptionType

from ileed.errors import IleedError, SettingsError, did_you_mean

RunPath = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help="A run directory of `ileed fit`.")]
"""The argument of a command that takes a run."""

_REGISTRY = ConstructorRegistry()
_PHRASES = {  # of tyro, and our wording
    r"^Error parsing ": "",
    r"^Missing value for argument '(\S+)'.*": r"\1 needs a value",
    r"^Missing from ([^:]+): ((?:--\S+ )?[A-Z]+\S*) (.*)$": r"`\1` needs \2 (\3)",
    r"^Unrecognized options: (--?[a-z][^\s=,]*).*": r"there is no option \1",
    r"^Unrecognized options: (.*?)(, .*)?$": r"'\1' is one word too many",
}


def parse(kind: type, program: str, words: Sequence[str]) -> Any:
    """An instance of `kind` with the given options; for --help, print the help and return None."""
    message, config = io.StringIO(), (tyro.conf.FlagCreatePairsOff,)
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(kind, prog=program, args=_with_addresses(words), config=config, registry=_REGISTRY)
    except SystemExit as stopped:
        if not stopped.code:
            return None
        if (error := _cause_of_ours(stopped)) is not None:
            raise error from None
    raise SettingsError(f"{_sentence(message.getvalue())}: see {program} --help")


def _with_addresses(words: Sequence[str]) -> list[str]:
    """The words with `--repo-id OWNER/NAME` replaced by the address of that data set, in place of a path."""
    text = "\0".join(words)  # which no word can hold
    return re.sub(r"(?<![^\0])--repo-id[\0=]([^\0]*)", r"hf://datasets/\1", text).split("\0") if words else []


def _cause_of_ours(error: BaseException | None) -> IleedError | None:
    """The first IleedError in a chain of causes, raised by a setting that refused its value."""
    while error is not None and not isinstance(error, IleedError):
        error = error.__cause__ or error.__context__
    return error


def _sentence(message: str) -> str:
    """The first paragraph of tyro's framed message, in our wording, and the option that it suggests."""
    _, *lines = re.sub(r"\x1b\[[0-9;]*m", "", message).splitlines()  # the first is a title
    words = " ".join(line.strip("│ ") for line in lines).split()
    text, *others = filter(None, re.split(r" ?[─-]{3,} ?", " ".join(words)))
    text = re.sub(r"\.? ?\(required\)", "", text).rstrip(".: ")
    if found := re.fullmatch(r"invalid choice '(.*)' for argument '(.*)'. Expected one of \((.*?),?\)", text):
        value, option, choices = found[1], found[2], re.findall(r"'([^']*)'", found[3])
        return f"{option} is {value!r}{did_you_mean(value, choices)}: it must be one of {', '.join(choices)}"
    for pattern, replacement in _PHRASES.items():
        text = re.sub(pattern, replacement, text)
    meant = re.match(r"Perhaps you meant: (--[\w-]+)", " ".join(others))
    return f"{text} (did you mean {meant[1]!r}?)" if meant else text


@_REGISTRY.primitive_rule
def _text_or_none(info: OptionType) -> OptionSpec[Any] | None:
    """An option that takes text or a path and is None if it is left out; there is no word for None."""
    for kind, metavar in ((str, "TEXT"), (Path, "PATH")):
        if get_args(info.type) == (kind, NoneType):
            return _option_of_one_word(kind, metavar, kind)
    return None


@_REGISTRY.primitive_rule
def _number(info: OptionType) -> OptionSpec[Any] | None:
    """An option that takes a number, or the word none if it may be None."""
    kind, *others = get_args(info.type) or (info.type,)
    if kind not in (int, float) or others not in ([], [NoneType]):
        return None
    rule = ("a whole number" if kind is int else "a number") + (", nor none" if others else "")

    def number(word: str) -> int | float | None:
        if others and word.lower() == "none":
            return None
        try:
            return kind(word)
        except ValueError:
            raise ValueError(f"{word!r} is not {rule}") from None

    return _option_of_one_word(number, kind.__name__.upper() + ("|none" if others else ""), kind)


@_REGISTRY.primitive_rule
def _model_part(info: OptionType) -> OptionSpec[Any] | None:
    """An option that takes a part of the model: as in Python, `Embedded(dim=3)`, or by name, `constant`."""
    given = get_args(info.type) or (info.type,)
    words = tuple(word for kind in given if get_origin(kind) is Literal for word in get_args(kind))
    bases = tuple(get_origin(kind) or kind for kind in given if get_origin(kind) is not Literal)
    if not any(getattr(base, "__module__", "").startswith("ileed.model.") for base in bases):
        return None
    from ileed.model.parts import PARTS, parts_of_kind  # imports torch, which other commands do not need

    own = [part.__name__ for base in bases for part in parts_of_kind(base)]

    def part(word: str) -> Any:
        if word.lower() in words:
            return word.lower()
        if word.lower() in ("auto", "none"):
            return None
        name = word.partition("(")[0].strip()
        kind = PARTS.get(next((each for each in PARTS if each.lower() == name.lower()), ""))
        if kind is None or not issubclass(kind, bases):
            rule = f"one of {', '.join(own)}, with settings as in Embedded(dim=3)"
            raise ValueError(f"{word!r} is not {rule}{did_you_mean(name, own)}")
        return _instance(kind, word)

    return _option_of_one_word(part, "|".join([*own, *words]), *bases, words=words)


def _instance(kind: type, word: str) -> Any:
    """An instance of the class from a call with literal arguments, or from its name alone."""
    try:
        call = ast.parse(word if "(" in word else f"{word}()", mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise TypeError
        arguments = [ast.literal_eval(argument) for argument in call.args]
        return kind(*arguments, **{str(each.arg): ast.literal_eval(each.value) for each in call.keywords})
    except IleedError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        known = list(getattr(kind, "__dataclass_fields__", ()))
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        meant = did_you_mean(unknown[1], known) if unknown else ""
        takes = f"{kind.__name__} takes {', '.join(known) or 'nothing'}"
        raise ValueError(f"{word!r} cannot be parsed{meant}: {takes}, written as in Embedded(dim=3)") from None


def _option_of_one_word(
    value: Callable[[str], Any], metavar: str, *kinds: type, words: tuple[str, ...] = ()
) -> OptionSpec[Any]:
    """An option whose value is parsed from one word: an instance of one of `kinds`, None, or one of `words`."""

    def shown(found: Any) -> list[str]:
        is_text = found in words or isinstance(found, str | Path)
        return ["none" if found is None else str(found) if is_text else repr(found)]

    return OptionSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: value(words[0]),
        is_instance=lambda found: found is None or found in words or isinstance(found, kinds),
        str_from_instance=shown,
    )
