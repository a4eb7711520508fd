"""The command `ileed`: finds and runs a command by name; help, messages and exit codes.

Help and error messages must not wait for torch, so the module of a command is imported only when that command runs.
Other packages add commands through entry points of the group `ileed.commands`: a `Command` in a module that is quick
to import.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import ileed
from ileed import plugins
from ileed.errors import IleedError, SettingsError, did_you_mean, instance_of, printable

__all__ = ["COMMANDS", "Command", "commands", "run"]

_TORCHRUN = "TORCHELASTIC_RUN_ID"  # set by `torchrun` in the environment of its processes
_SUCCESS, _ERROR, _INTERRUPTED, _OUTPUT_CLOSED = 0, 2, 130, 141
_PURPOSE = "Estimate the expertise of each demonstrator, state by state, and learn one policy from all demonstrations."
_EXIT_CODES = (
    "exit codes: 0 success, 2 error (explained in one sentence), 130 interrupted (the message says how to continue), "
    "141 output closed by its reader"
)


class Command(NamedTuple):
    """A command: its module, the name of its class, and the first sentence of the class docstring.

    The class is a frozen dataclass whose fields are the options; calling an instance does the work. A command that only
    groups `others` by name has no class.
    """

    module: str
    kind: str
    summary: str
    others: Mapping[str, Command] = {}


_SUMMARIES = {
    "demo": "Fit, evaluate and report on the example data of the package: ten demonstrators, one of them skilled.",
    "inspect": "Describe a data set and list its problems.",
    "convert": "Convert a data set to another format, including the names of demonstrators.",
    "fit": "Fit a policy and the expertise of every demonstrator to a data set, and save the run.",
    "compare": "Compare demonstrator models by held-out log-likelihood.",
    "rate": "Rate demonstrators, including new ones, by the policy of a run, with intervals.",
    "curate": "Score every episode of a data set by a run, keep some by a rule, and write files for trainers.",
    "label": "Estimate the true label of every task and the expertise of every worker from a table of answers.",
    "serve": "Serve the report with all episodes, to play, mark and curate them in a browser.",
    "card": "Print the model card of a run, in Markdown.",
    "evaluate": "Evaluate a fitted policy in a task or a gymnasium environment: mean reward with a 95% interval.",
    "report": "Write the report of a run, or a comparison of two runs, as one HTML page.",
}
COMMANDS: Mapping[str, Command] = {
    name: Command(f"ileed.cli.{name}", name.title(), summary) for name, summary in _SUMMARIES.items()
}


def _check_command(name: str, found: Any) -> Command:
    rule = "it must be an ileed.cli.Command: report this to the author of the package"
    where = f"the entry point {name} of the group {plugins.COMMANDS}"
    checked: Command = instance_of(where, found, Command, rule=rule, error=IleedError)
    return checked


_ALL = plugins.Registry(plugins.COMMANDS, COMMANDS, _check_command)


def commands() -> Mapping[str, Command]:
    """All commands by name: those of the library, and those of other packages that can be loaded."""
    return dict(_ALL.usable())


def run(arguments: Sequence[str], *, at_work: Callable[[], object] = lambda: None) -> int:
    """Run one command and return its exit code.

    `at_work` is called after the command is parsed and everything it needs is imported, before its work begins.
    """
    command: Any = None
    if is_silent():
        _discard_output()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            command = _parse_command(arguments)
            if command is not None:
                import_module(getattr(command, "imports", "ileed._names"))  # slow; most commands need it
                at_work()
                _check_torchrun(command)
                command()
        _flush_output()
    except IleedError as error:
        _print_message(str(error))
        return _ERROR
    except BrokenPipeError:
        _discard_output()
        return _OUTPUT_CLOSED
    except OSError as error:
        _print_message(f"{error.strerror or error} ({error.filename or 'a file'})")
        return _ERROR
    except KeyboardInterrupt:
        _print_message(f"interrupted; {_how_to_continue(command)}")
        return _INTERRUPTED
    return _SUCCESS


def _parse_command(words: Sequence[str], program: str = "ileed", known: Mapping[str, Command] = _ALL) -> Any:
    """The command with its options, or None after printing help or the version."""
    name, *words = words or [""]
    if (program, name) == ("ileed", "--version"):
        print(f"ileed {ileed.__version__}")  # noqa: T201
        return None
    if name in ("--help", "-h"):
        print(_help(program, commands() if known is _ALL else known))  # noqa: T201
        return None
    command, program = _find_command(name, known, program), f"{program} {name}"
    if command.others:
        return _parse_command(words, program, command.others)
    try:
        from ileed.cli.parsing import parse
    except ModuleNotFoundError as error:
        raise IleedError(f"the command needs rich and tyro ({error}): pip install rich tyro") from error
    return parse(getattr(import_module(command.module), command.kind), program, words)


def _find_command(name: str, known: Mapping[str, Command], program: str) -> Command:
    if not name:
        raise SettingsError(f"no command was given: `{program} --help` explains {', '.join(known)}")
    plugins.refuse_without_lab(plugins.COMMANDS, name)
    if name not in known:
        raise SettingsError(
            f"there is no {'option' if name.startswith('-') else 'command'} {name!r} of `{program}`"
            f"{did_you_mean(name, [*known, '--help', '--version'])}: the commands are {', '.join(known)}"
        )
    return known[name]


def _help(program: str, known: Mapping[str, Command]) -> str:
    width = max(40, min(shutil.get_terminal_size().columns, 100))
    margin = max(map(len, known)) + 4
    version = " [--version]" if program == "ileed" else ""
    lines = [f"usage: {program} [-h]{version} COMMAND ...", "", *textwrap.wrap(_PURPOSE, width), "", "commands:"]
    for name, command in known.items():
        start = f"  {name:<{margin - 2}}"
        lines += textwrap.wrap(command.summary, width, initial_indent=start, subsequent_indent=" " * margin)
    about = f"`{program} COMMAND --help` explains a command and its options. {_EXIT_CODES}"
    return "\n".join([*lines, "", *textwrap.wrap(about, width)])


def _how_to_continue(command: Any) -> str:
    """Say what an interrupted command has saved and how to continue it."""
    if hasattr(command, "after_an_interrupt"):
        return str(command.after_an_interrupt())
    if hasattr(command, "resume"):
        return "the same command with --resume continues where it stopped"
    return "no file is incomplete"


def _flush_output() -> None:
    """Flush standard output now, so that a failure can still be reported."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        if isinstance(error, BrokenPipeError):
            raise
        raise IleedError(f"standard output cannot be written ({error.strerror}): send it elsewhere") from error


def _discard_output() -> None:
    """Redirect standard output to the null device, so that the interpreter can flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    if not is_silent():
        _print_message(f"warning: {message}")


def _check_torchrun(command: Any) -> None:
    """Refuse several processes for a command that runs in one; handle SIGTERM, which torchrun sends, like Ctrl-C."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or _TORCHRUN not in os.environ:
        return
    if not getattr(command, "takes_several_processes", False):
        raise SettingsError("this command runs in one process: start it without torchrun, which is for `ileed fit`")
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def is_silent() -> bool:
    """Whether this process was started by `torchrun` and is not the first one, which prints the results."""
    return _TORCHRUN in os.environ and os.environ.get("RANK", "0") != "0"


def _print_message(sentence: str) -> None:
    """Print one line to standard error; names and paths cannot break the line or control the terminal."""
    speaker = f"ileed (rank {os.environ['RANK']})" if is_silent() else "ileed"
    print(f"{speaker}: {printable(' '.join(sentence.split()))}", file=sys.stderr)  # noqa: T201
