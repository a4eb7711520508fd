"""Provenance: versions, commit, machine and date, which a result needs beside it to be made again."""

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
    """What a result needs beside it to be made again: versions, commit, machine and date."""
    return {
        "format": FORMAT,
        "ileed": metadata.version("ileed") if _installed("ileed") else "source",
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _commit() -> str | None:
    """The commit of the checkout this package runs from, or ILEED_COMMIT where a copy came without its history."""
    if stated := os.environ.get("ILEED_COMMIT"):
        return stated
    return _described(Path(__file__).parents[1])


@cache
def _described(home: Path) -> str | None:
    """What git calls our own checkout; asked once, since a commit made while we run is not what runs.

    A package that lies in somebody else's repository, in an environment or as a copy, has no commit of its own. Changed
    files under results/ do not make it "-dirty": they are what experiments write, and no measurement depends on them.
    """
    root = home.parent.parent
    if not (root / ".git").exists() or not _is_our_project(root / "pyproject.toml"):
        return None
    if _git(root, "ls-files", "--error-unmatch", str(home / "__init__.py")) is None:
        return None
    described = _git(root, "describe", "--always", "--dirty", "--abbrev=12")
    if described is not None and described.endswith("-dirty"):
        status = ("status", "--porcelain", "--branch", "--untracked-files=no", "--", ".", ":(exclude)results")
        if len((_git(root, *status) or "").splitlines()) == 1:  # the branch's name, and no change
            return described.removesuffix("-dirty")
    return described


def refuse_uncommitted(out: Path) -> None:
    """Refuse to write under our checkout's results/ where the code that runs is not that of a commit."""
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
    """What git prints about the repository at `root`, whichever other one the environment speaks of; or nothing."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # asking must leave no lock behind, even on a full disk
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
