"""The door of the command `ileed`: everything heavy is imported behind it, and an interrupt ends it in one sentence."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as in `typing`, which need not be imported before an interrupt is looked after
if TYPE_CHECKING:
    from typing import Any, NoReturn

_INTERRUPTED = 130


def main() -> None:
    """Run the command and end the process with its exit code."""
    interrupts: list[int] = []

    def interrupt(number: int, *_: Any) -> None:
        """An interrupt of the work, which lets what is half done be tidied up."""
        interrupts.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, _leave_at_once)
    sys.unraisablehook = _unraisable
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the process lives)
        # names in the data, and our own tables, hold characters that the encoding of the output may lack
        getattr(sys, name).reconfigure(errors="backslashreplace")
    from ileed.cli import run

    try:
        code = run(sys.argv[1:], at_work=lambda: signal.signal(signal.SIGINT, interrupt))
    except Exception:
        if not interrupts:
            raise
        _leave("")  # what a library made of an interrupt in the middle of its import
    except KeyboardInterrupt:  # a second one, while the first was told
        _leave("")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done: an interrupt has nothing left to stop
    sys.exit(code)


def _leave_at_once(*_: Any) -> None:
    """End the process before the work begins: an exception in the middle of an import could be lost, or shown."""
    _leave("; nothing was begun")


def _unraisable(what: Any) -> None:
    """Where nothing can be raised, as in a destructor, the interrupt is sent once more, a moment later."""
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
