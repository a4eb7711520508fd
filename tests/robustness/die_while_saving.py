"""Die at every moment of a save in turn, and say what is found then: `python die_while_saving.py OLD NEW RUN PLACE`.

RUN is created again as PLACE says (a copy of the run OLD with a file of its user, an empty folder, or nothing), and a
forked process saves NEW there. It dies without a word, as at `kill -9`, before its first request to the operating
system to open, make, rename or remove something; then before its second, until it lives. Prints as JSON what was found
each time, and how many times the save was repeated and came out well.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import ileed

NEVER = -1


def dying(save: Callable[[], None], moment: int) -> bool:
    """Whether a forked process that saves died at the moment, rather than ended well."""
    child = os.fork()
    if child == 0:
        moments = count()

        def audit(event: str, _: object) -> None:
            if event.startswith(("open", "os.", "shutil.")) and next(moments) == moment:
                os._exit(9)

        sys.addaudithook(audit)
        try:
            save()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), f"the save failed, with exit code {code}"
    return code == 9


def files(run: Path) -> dict[str, bytes]:
    return {
        item.name: item.read_bytes() for item in run.iterdir() if item.name.split(".")[-1] in ("safetensors", "json")
    }


def made(run: Path, old: Path, place: str) -> None:
    shutil.rmtree(run.parent, ignore_errors=True)
    run.parent.mkdir()
    if place == "a run":
        shutil.copytree(old, run)
        (run / "thesis.tex").write_text("years of work")
    elif place == "an empty folder":
        run.mkdir()


def content(run: Path, whole: dict[str, Path]) -> str:
    """Which run is found there, whole; or nothing."""
    try:
        ileed.load(run)
    except ileed.RunError as error:
        return "nothing" if "is not a run directory" in str(error) else str(error)
    return next((name for name, other in whole.items() if files(other) == files(run)), "a mixture")


def main(old: Path, new: Path, run: Path, place: str) -> None:
    fitted = ileed.load(new)

    def save() -> None:
        fitted.save(run, overwrite=True)

    found, repeated = [], 0
    for moment in count():
        made(run, old, place)
        if not dying(save, moment):
            break
        left = {item.name for item in (run.iterdir() if run.exists() else ())}
        found.append(content(run, {"old": old, "new": new}))
        if place == "a run":
            assert (run / "thesis.tex").read_text() == "years of work"
        if moment % 3 == 0:
            assert not dying(save, NEVER), left
            assert content(run, {"new": new}) == "new"
            names = {item.name for item in new.iterdir()} | ({"thesis.tex"} if place == "a run" else set())
            assert {item.name for item in run.iterdir()} == names, left
            assert [item.name for item in run.parent.iterdir()] == [run.name]
            repeated += 1
    print(json.dumps({"found": found, "repeated": repeated}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), sys.argv[4])
