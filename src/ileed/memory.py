"""Memory: how much of it is available, and the rule by which a file that would decode to more is refused.

Twice what a file decodes to (the file's form and ours exist side by side) must fit; see docs/decisions/files.md.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ileed.errors import DemonstrationError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_COPIES = 2
_UNKNOWN = 4 << 30  # bytes to assume where the system does not tell


def available_bytes() -> int:
    """The memory that this process can still take: what the system, its control group and its own limit leave it."""
    known = (_of_system(), _of_control_group(), _of_process())
    return max(0, min((left for left in known if left is not None), default=_UNKNOWN))


def check_fits(place: Path | str, decoded_bytes: int) -> None:
    """Refuse a file, or a part of one, that decodes to more bytes than memory can hold."""
    if decoded_bytes * _COPIES > (left := available_bytes()):
        raise DemonstrationError(
            f"{place} would take {decoded_bytes / 1e9:,.3g} GB once decoded, and {left / 1e9:,.3g} GB of memory are "
            f"available: it may take one part in {_COPIES} of that; read a part of the data, or use a larger machine"
        )


def _of_system() -> int | None:
    with suppress(OSError, ValueError, StopIteration):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        return next(int(size) * 1024 for name, size, *_ in lines if name == "MemAvailable:")
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_control_group() -> int | None:
    """What the limit of a container leaves, where there is one; cached files are given back on demand."""
    for place, limit, used in (
        (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such group, or "max"
            allowed, taken = int((place / limit).read_text()), int((place / used).read_text())
            rows = (line.split() for line in (place / "memory.stat").read_text().splitlines())
            return allowed - taken + sum(int(size) for name, size in rows if name == "inactive_file")
    return None


def _of_process() -> int | None:
    """What is left of the limit on this process's address space (`ulimit -v`), where there is one."""
    if resource is None or (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) == resource.RLIM_INFINITY:
        return None
    with suppress(OSError, ValueError):
        return limit - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return limit
