"""Provenance: the versions, commit, machine and date of a result."""

from __future__ import annotations

import os
import platform
import subprocess
import tomllib
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
"""The format of run directories and result records."""


def provenance() -> dict[str, Any]:
    """What is needed to reproduce a result: versions, commit, machine and date."""
    import torch  # here, since readers of data need nothing else of it

    return {
        "format": FORMAT,
        "ileed": _version(),
        # ILEED_COMMIT is for copies without a history
        "commit": os.environ.get("ILEED_COMMIT") or _describe_checkout(Path(__file__).parents[1]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _version() -> str:
    """The version of the installed distribution, or `source` where the package runs without one."""
    try:
        return metadata.version("ileed")
    except metadata.PackageNotFoundError:
        return "source"


@cache
def _describe_checkout(home: Path) -> str | None:
    """What `git describe` prints for our checkout, once a process: a later commit is not the code that runs.

    A package inside another repository, in an environment or as a copy, has no commit of its own. Changed files under
    results/ do not make the commit "-dirty": experiments write them, and no measurement depends on them.
    """
    root = home.parent.parent
    if not (root / ".git").exists() or not _is_our_project(root / "pyproject.toml"):
        return None
    if _git(root, "ls-files", "--error-unmatch", str(home / "__init__.py")) is None:
        return None
    described = _git(root, "describe", "--always", "--abbrev=12")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
    return described if not described or changes == "" else f"{described}-dirty"


def _is_our_project(file: Path) -> bool:
    try:
        return bool(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"] == "ileed")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _git(root: Path, *words: str) -> str | None:
    """The output of git for the repository at `root`, whatever the environment says; None where git fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # leave no lock behind, even on a full disk
    words = ("git", "-C", str(root), *words)
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=10, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
