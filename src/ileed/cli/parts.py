"""Parts of the model as they are written at the command."""

from __future__ import annotations

import ast
from typing import Any, get_args

import tyro

from ileed.errors import IleedError

__all__ = ["PARTS"]


PARTS = tyro.constructors.ConstructorRegistry()


@PARTS.primitive_rule
def _part(asked: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """A part of the model is written as in Python, `Embedded(dim=3)`, or by its name alone, `constant`."""
    offered = get_args(asked.type) or (asked.type,)
    kinds = [kind for kind in offered if isinstance(kind, type) and kind.__module__.startswith("ileed.model.")]
    if not kinds:
        return None
    by_name = {kind.__name__.lower(): kind for kind in kinds}
    spelled = "|".join(kind.__name__ for kind in kinds)

    def made(words: list[str]) -> Any:
        if words[0].lower() in ("auto", "none"):
            return None
        try:
            written = ast.parse(words[0], mode="eval").body
            call = written if isinstance(written, ast.Call) else ast.Call(written, [], [])
            if not isinstance(call.func, ast.Name):
                raise TypeError
            arguments = [ast.literal_eval(argument) for argument in call.args]
            options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            return by_name[call.func.id.lower()](*arguments, **options)
        except IleedError as error:
            raise ValueError(str(error)) from error
        except (SyntaxError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{words[0]!r} is not one of {spelled}, with options as in Embedded(dim=3)") from error

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="|".join(kind.__name__ for kind in kinds),
        instance_from_str=made,
        is_instance=lambda value: value is None or isinstance(value, tuple(kinds)),
        str_from_instance=lambda value: ["none" if value is None else repr(value)],
    )
