"""Entry point of the command `ileed`: handles interrupts before anything slow is imported."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as in `typing`, which need not be imported before interrupts are handled
if TYPE_CHECKING:
    from typing import Any, NoReturn

_INTERRUPTED = 130


def main() -> None:
    """Run the command and end the process with its exit code."""
    interrupts: list[int] = []

    def interrupt(number: int, *_: Any) -> None:
        """Interrupt the work, and let it clean up."""
        interrupts.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, _leave_at_once)
    sys.unraisablehook = _unraisable
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (until the process ends)
        # names in the data and our tables may contain characters that the output encoding lacks
        getattr(sys, name).reconfigure(errors="backslashreplace")
    from ileed.cli import run

    try:
        code = run(sys.argv[1:], at_work=lambda: signal.signal(signal.SIGINT, interrupt))
    except Exception:
        if not interrupts:
            raise
        _leave("")  # a library turned an interrupt during its import into another exception
    except KeyboardInterrupt:  # a second one, while the first was reported
        _leave("")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done
    sys.exit(code)


def _leave_at_once(*_: Any) -> None:
    """End the process before the work begins, because an exception during an import could get lost."""
    _leave("; nothing was begun")


def _unraisable(what: Any) -> None:
    """Send an interrupt again that arrived where nothing can be raised, as in a destructor."""
    if not isinstance(what.exc_value, KeyboardInterrupt):
        return sys.__unraisablehook__(what)
    from threading import Timer

    again = Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    return again.start()


def _leave(words: str) -> NoReturn:
    os.write(2, f"ileed: interrupted{words}\n".encode())
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
