"""How tests run here: the same examples every time, and no clock in hypothesis."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    """With `--dist loadgroup`, tests of a group or of a file that shares something go to one process, which makes it
    once; all others to whichever is free.

    Such files come first, those of many tests before those of few; then slow tests, then the others, so that no process
    waits long for another at the end.
    """
    from xdist.scheduler import LoadGroupScheduling

    class BySharing(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group, path = super()._split_scope(nodeid), nodeid.partition("::")[0]
            return path if group == nodeid and shares(config.rootpath / path) else group

    return BySharing(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@cache
def shares(file: Path) -> bool:
    """Whether tests of a file use a value that is made once in a process, or say that they belong together."""
    return bool(re.search(r"scope=\"(module|session)\"|^@cache|xdist_group", file.read_text(), flags=re.MULTILINE))


@pytest.fixture(scope="session", autouse=True)
def fits_are_cross_fitted_where_a_test_says_so() -> Iterator[None]:
    """Most tests are about the fit itself, which folds leave as it is; processes of their own have the usual folds."""
    import ileed.methods

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ileed.methods, "FOLDS", 0)
        yield
