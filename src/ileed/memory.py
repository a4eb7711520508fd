"""Memory: how much of it is available, and the rule by which a file that would decode to more is refused.

A small file can stand for a large table: one value repeated, or a data set that was never written. So a reader works
out from the file's own description how many bytes it would decode to, before it decodes any. The rule is that twice
that (the file's form and ours exist side by side) must fit in the memory that is available.
"""

from __future__ import annotations

import os
from pathlib import Path

from ileed.errors import DemonstrationError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_COPIES = 2
_UNKNOWN = 4 << 30  # bytes to reckon with where the system does not tell


def available_bytes() -> int:
    """The memory that this process can still take: what the system, its control group and its own limit leave it."""
    known = (_of_system(), _of_control_group(), _of_process())
    return max(0, min((left for left in known if left is not None), default=_UNKNOWN))


def check_fits(place: Path | str, decoded_bytes: int) -> None:
    """Refuse a file, or a part of one, that decodes to more bytes than memory can hold."""
    if decoded_bytes * _COPIES > (left := available_bytes()):
        raise DemonstrationError(
            f"{place} would take {_readable(decoded_bytes)} once decoded, and {_readable(left)} of memory are "
            f"available: it may take one part in {_COPIES} of that; read a part of the data, or use a larger machine"
        )


def _readable(size: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000  # type: ignore[assignment]
    return f"{size:,.0f} TB"


def _of_system() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _of_control_group() -> int | None:
    """What the limit of a container leaves, where there is one; cached files are given back on demand."""
    for place, limit, used in (
        (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            allowed, taken = int((place / limit).read_text()), int((place / used).read_text())
            rows = (line.split() for line in (place / "memory.stat").read_text().splitlines())
            return allowed - taken + sum(int(size) for name, size in rows if name == "inactive_file")
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return None


def _of_process() -> int | None:
    """What is left of the limit on this process's address space (`ulimit -v`), where there is one."""
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return limit
    return limit - pages * resource.getpagesize()
