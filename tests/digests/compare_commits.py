"""Fit with two commits on one machine and compare the bits: `python tests/digests/compare_commits.py OLD [NEW]`.

Without NEW, OLD is compared with the working tree as it is. The fits are those of `reference_fits.py` beside this
file, whichever commits are compared. Prints a line for each fit; the exit code is 1 where any of them differs, and 2
where a commit could not be fitted with.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FITS = Path(__file__).resolve().with_name("reference_fits.py")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the weights that two commits fit, bit by bit.")
    parser.add_argument("old", help="a commit, as git names it")
    parser.add_argument("new", nargs="?", help="another; the working tree as it is by default")
    options = parser.parse_args()
    found = []
    for commit in (options.old, options.new):
        try:
            with checkout(commit) as tree:
                found.append(digests(tree))
        except subprocess.CalledProcessError as error:
            print(f"{commit or 'the working tree'} could not be fitted with: {error.stderr.strip()}", file=sys.stderr)
            return 2
    old, new = found
    width = max(map(len, old | new))
    for name in old | new:
        print(f"{name:{width}}  {'equal' if old.get(name) == new.get(name) else 'DIFFERENT'}")
    different = sum(old.get(name) != new.get(name) for name in old | new)
    print(f"{different} of {len(old | new)} fits differ between {options.old} and {options.new or 'the working tree'}")
    return int(different > 0)


@contextmanager
def checkout(commit: str | None) -> Iterator[Path]:
    """A directory with the files of a commit; the working tree itself without one."""
    if commit is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "tree"
        _run("git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _run("git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree))


def digests(tree: Path) -> dict[str, str]:
    """The digests of the reference fits with the library of a source tree, in a process of its own."""
    found = json.loads(_run(sys.executable, str(FITS), PYTHONPATH=str(tree / "src"), OMP_NUM_THREADS="1"))
    if Path(found["library"]) != tree / "src" / "ileed":
        raise SystemExit(
            f"fitted with {found['library']} instead of {tree / 'src'}: uninstall ileed and run this again"
        )
    return dict(found["digests"])


def _run(*command: str, **environment: str) -> str:
    return subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
