"""The command `ileed`: a thin layer of words, bars and tables over the library.

This file knows the commands by name alone, so that help and refusals need not wait for torch; the module of a command
is imported when that command is given. Other packages contribute commands by entry points of the group
`ileed.commands`, each a `Command` in a module that is quick to import.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import ileed
from ileed import plugins
from ileed.errors import IleedError, SettingsError, brief
from ileed.wording import did_you_mean, printable

__all__ = ["COMMANDS", "Command", "commands", "run"]

_GOOD, _REFUSED, _INTERRUPTED, _NOBODY_READS = 0, 2, 130, 141
_PURPOSE = "Who is good at what, in which states; and one policy learned from everybody."
_EXIT_CODES = (
    "exit codes: 0 done, 2 refused (one sentence says why), 130 interrupted (run it again to go on), 141 nobody reads "
    "the output any more"
)


class Command(NamedTuple):
    """A command: the module and class that carry it out, and what it does, in the first sentence of that class.

    The class is a frozen dataclass whose fields are the options, and is called to do the work. A command that only
    holds others has no class, but those others by their names.
    """

    module: str
    kind: str
    summary: str
    others: Mapping[str, Command] = {}


COMMANDS: Mapping[str, Command] = {
    "demo": Command(
        "ileed.cli.play",
        "Demo",
        "Show the whole job on data that ship with the package: ten demonstrators, of whom one is competent.",
    ),
    "inspect": Command("ileed.cli.data", "Inspect", "Say what a data set holds, and what in it is wrong or thin."),
    "fit": Command(
        "ileed.cli.fitting",
        "Fit",
        "Learn one policy and everybody's expertise from a data set, and save the run.",
    ),
    "evaluate": Command(
        "ileed.cli.play",
        "Evaluate",
        "Let a fitted policy play a task or a gymnasium environment and say how well it does, with a 95 % interval.",
    ),
    "report": Command("ileed.cli.reporting", "Report", "Draw a run as one self-contained page to read in a browser."),
}


def commands() -> Mapping[str, Command]:
    """Every command by its name: the library's own, and what other packages contribute and can be loaded."""
    found = dict(COMMANDS)
    for name in plugins.contributed(plugins.COMMANDS):
        if name not in COMMANDS:
            with suppress(IleedError):  # whoever asks for it by name is told
                found[name] = _contributed(name)
    return found


def _contributed(name: str) -> Command:
    """The command that another package contributes, or one sentence on why it cannot be had."""
    found = plugins.loaded(plugins.contributed(plugins.COMMANDS)[name])
    if not isinstance(found, Command):
        raise IleedError(
            f"the entry point {name} of the group {plugins.COMMANDS} is {brief(found)}, but must be an "
            "ileed.cli.Command: tell whoever made the package"
        )
    return found


def run(arguments: Sequence[str], *, at_work: Callable[[], None] = lambda: None) -> int:
    """Carry out one command; returns its exit code.

    `at_work` is called once the command is understood and all that it needs is imported.
    """
    command: Any = None
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            command = _understood(list(arguments))
            if command is not None:
                import_module("ileed._names")  # what takes long, and every command needs
                at_work()
                command()
        _flush()
    except IleedError as error:
        return _refused(str(error))
    except BrokenPipeError:
        _forget_output()
        return _NOBODY_READS
    except OSError as error:
        return _refused(f"{error.strerror or error} ({error.filename or 'a file'})")
    except KeyboardInterrupt:
        _say(f"interrupted; {_after(command)}")
        return _INTERRUPTED
    return _GOOD


def _understood(words: list[str]) -> Any:
    """The command that these words ask for; nothing where help or the version was asked for, and given."""
    program, known = "ileed", COMMANDS
    while True:
        name, rest = (words[0], words[1:]) if words else ("", [])
        if program == "ileed" and name == "--version":
            print(f"ileed {ileed.__version__}")  # noqa: T201
            return None
        if program == "ileed" and name not in COMMANDS:
            plugins.refuse_without_lab(plugins.COMMANDS, name)
            known = {name: _contributed(name)} if name in plugins.contributed(plugins.COMMANDS) else commands()
        if name in ("--help", "-h"):
            print(_help(program, {each: command.summary for each, command in known.items()}))  # noqa: T201
            return None
        command = _known(name, known, program)
        program, words = f"{program} {name}", rest
        if not command.others:
            break
        known = command.others
    try:
        from ileed.cli.parsing import parse
    except ModuleNotFoundError as error:
        raise IleedError(f"the command needs rich and tyro ({error}): pip install rich tyro") from error
    return parse(_kind(command), program, words)


def _known(name: str, known: Mapping[str, Command], program: str) -> Command:
    if not name:
        raise SettingsError(f"no command was given: `{program} --help` explains {', '.join(known)}")
    if name not in known:
        raise SettingsError(
            f"there is no {'option' if name.startswith('-') else 'command'} {name!r} of `{program}`"
            f"{did_you_mean(name, [*known, '--help', '--version'])}: the commands are {', '.join(known)}"
        )
    return known[name]


def _kind(command: Command) -> type:
    found: type = getattr(import_module(command.module), command.kind)
    return found


def _help(program: str, summaries: Mapping[str, str]) -> str:
    """What the command can do, without anything that takes time to import."""
    width = max(40, min(shutil.get_terminal_size().columns, 100))
    margin = max(map(len, summaries)) + 4
    version = "" if program != "ileed" else " [--version]"
    lines = [
        f"usage: {program} [-h]{version} COMMAND ...",
        "",
        *textwrap.wrap(_PURPOSE, width),
        "",
        "commands:",
    ]
    for name, summary in summaries.items():
        lines += textwrap.wrap(summary, width, initial_indent=f"  {name:<{margin - 2}}", subsequent_indent=" " * margin)
    about = f"`{program} COMMAND --help` explains a command and its options. {_EXIT_CODES}"
    return "\n".join([*lines, "", *textwrap.wrap(about, width)])


def _after(command: Any) -> str:
    """What is left of a command that was interrupted."""
    if hasattr(command, "after_an_interrupt"):
        words: str = command.after_an_interrupt()
        return words
    if hasattr(command, "resume"):
        return "the same command with --resume goes on where it stopped"
    return "no file is left half written"


def _flush() -> None:
    """What was printed is written now, while somebody can still be told that it cannot be."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _forget_output()
        raise IleedError(f"standard output cannot be written ({error.strerror}): send it elsewhere") from error


def _forget_output() -> None:
    """What is left to print has nowhere to go, and the interpreter shall not try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(sentence: str) -> int:
    _say(sentence)
    return _REFUSED


def _warned(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(f"take note: {message}")


def _say(sentence: str) -> None:
    """One line on standard error, whatever names and paths it holds."""
    print(f"ileed: {printable(' '.join(sentence.split()))}", file=sys.stderr)  # noqa: T201
