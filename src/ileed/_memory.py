"""Available memory, and the refusal of files that do not fit into it when decoded; see docs/decisions/files.md."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ileed.errors import DemonstrationError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def available_bytes() -> int:
    """The memory that the system, the control group and the limit of this process leave available."""
    known = []
    with suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        known.append(1024 * {name: int(size) for name, size, *_ in lines}["MemAvailable:"])
    if not known:
        with suppress(AttributeError, OSError, ValueError):
            known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such group, or its limit is "max"
            left = int(Path(folder, limit).read_text()) - int(Path(folder, used).read_text())
            rows = (line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
            cached = sum(int(size) for name, size in rows if name == "inactive_file")  # freed on demand
            known.append(left + cached)
    allowed = None if resource is None else resource.getrlimit(resource.RLIMIT_AS)[0]
    if allowed is not None and allowed != resource.RLIM_INFINITY:
        with suppress(OSError, ValueError):
            allowed -= int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        known.append(allowed)
    return max(0, min(known, default=4 << 30))


def check_fits(place: Path | str, decoded_bytes: int) -> None:
    """Refuse data that take more than half of the available memory: the decoded file and our copy exist at once."""
    if decoded_bytes * 2 > (left := available_bytes()):
        raise DemonstrationError(
            f"{place} takes {decoded_bytes / 1e9:,.3g} GB when decoded, and at most half of the available memory "
            f"({left / 1e9:,.3g} GB) is used: read a part of the data, or use a larger machine",
            code="memory-short",
        )
