"""The command `ileed`: a thin layer of words, bars and tables over the library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tyro

from ileed.cli import chess
from ileed.cli.data import Inspect
from ileed.cli.fitting import Fit, Report
from ileed.cli.laboratory import Pretrain, Reproduce, Tables
from ileed.cli.parts import PARTS
from ileed.cli.play import Demo, Demonstrate, Evaluate
from ileed.errors import IleedError

_GOOD, _REFUSED, _INTERRUPTED = 0, 2, 130
_EXIT_CODES = "exit codes: 0 done, 2 refused (one sentence says why), 130 interrupted (run it again to go on)"


@dataclass(frozen=True)
class Chess:
    """King-and-pawn endgames of rated players; `ileed chess --help` lists what can be done."""


_COMMANDS: Mapping[str, Callable[..., Any]] = {
    "demo": Demo,
    "inspect": Inspect,
    "fit": Fit,
    "evaluate": Evaluate,
    "report": Report,
    "demonstrate": Demonstrate,
    "pretrain": Pretrain,
    "reproduce": Reproduce,
    "tables": Tables,
    "chess": Chess,
}


def run(arguments: Sequence[str]) -> int:
    """Carry out one command; returns its exit code."""
    of_chess = list(arguments[:1]) == ["chess"]
    command: Any = None
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            dict(chess.COMMANDS if of_chess else _COMMANDS),
            prog="ileed chess" if of_chess else "ileed",
            description="Who is good at what, in which states; and one policy learned from everybody. " + _EXIT_CODES,
            args=list(arguments[1:] if of_chess else arguments),
            config=(tyro.conf.FlagCreatePairsOff,),
            registry=PARTS,
        )
        command()
    except IleedError as error:
        print(f"ileed: {error}", file=sys.stderr)  # noqa: T201
        return _REFUSED
    except OSError as error:
        print(f"ileed: {error.strerror or error} ({error.filename or 'a file'})", file=sys.stderr)  # noqa: T201
        return _REFUSED
    except KeyboardInterrupt:
        print(f"ileed: interrupted; {_after(command)}", file=sys.stderr)  # noqa: T201
        return _INTERRUPTED
    return _GOOD


def _after(command: Any) -> str:
    """What is left of a command that was interrupted."""
    if isinstance(command, Fit):
        return "the same command goes on from the last checkpoint"
    if hasattr(command, "resume"):
        return "the same command with --resume goes on where it stopped"
    return "no file is left half written"
