"""Settings of pytest, hypothesis (fixed examples, no deadline) and xdist (files that share values stay together)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "ileed",
    deadline=None,  # the first example pays for torch's warm-up
    derandomize=True,
    max_examples=15,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],  # explaining a failure traces every line, and takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ileed")

collect_ignore = ["tiny_package"]  # collecting it would put it on the path, where its entry points count as installed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup`, tests of a group or of a file that shares a value run in one process, which computes it
    once; the others run in whichever process is free.

    Files that share come first, then campaigns, then the others, so that no process waits long at the end.
    """
    from xdist.scheduler import LoadGroupScheduling

    class BySharing(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group, path = super()._split_scope(nodeid), nodeid.partition("::")[0]
            return path if group == nodeid and shares(config.rootpath / path) else group

    return BySharing(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=lambda item: item.get_closest_marker("campaign") is None)


@cache
def shares(file: Path) -> bool:
    """Whether tests of a file share a value that is computed once in a process, or belong to a group."""
    return bool(re.search(r"scope=\"(module|session)\"|^@cache|xdist_group", file.read_text(), flags=re.MULTILINE))
