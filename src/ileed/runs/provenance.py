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
import torch

from ileed.errors import SettingsError

FORMAT = 1
"""The format of run directories and result records."""


def provenance() -> dict[str, Any]:
    """What is needed to reproduce a result: versions, commit, machine and date."""
    return {
        "format": FORMAT,
        "ileed": _version(),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _version() -> str:
    try:
        return metadata.version("ileed")
    except metadata.PackageNotFoundError:
        return "source"


def _commit() -> str | None:
    """ILEED_COMMIT where it is set, for copies without a history, or the commit of the checkout of this package."""
    return os.environ.get("ILEED_COMMIT") or _describe_checkout(Path(__file__).parents[1])


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
    described = _git(root, "describe", "--always", "--dirty", "--abbrev=12")
    if described is not None and described.endswith("-dirty"):
        status = ("status", "--porcelain", "--branch", "--untracked-files=no", "--", ".", ":(exclude)results")
        if len((_git(root, *status) or "").splitlines()) == 1:  # the name of the branch, and no change
            return described.removesuffix("-dirty")
    return described


def refuse_uncommitted(out: Path) -> None:
    """Refuse to write under results/ of our checkout while it has uncommitted changes."""
    results, commit = Path(__file__).resolve().parents[3] / "results", _commit()
    if commit is not None and commit.endswith("-dirty") and out.resolve().is_relative_to(results):
        raise SettingsError(
            f"{results} holds records of committed code alone, and this checkout has uncommitted changes ({commit}): "
            "commit them first, or pass another --out"
        )


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
    return answer.stdout.strip() or None if answer.returncode == 0 else None
