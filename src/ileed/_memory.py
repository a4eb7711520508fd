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
            cached = sum(int(size) for name, size in rows if name == "inactive_file")  # is given back on demand
            known.append(left + cached)
    allowed = None if resource is None else resource.getrlimit(resource.RLIMIT_AS)[0]
    if allowed is not None and allowed != resource.RLIM_INFINITY:
        with suppress(OSError, ValueError):
            allowed -= int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        known.append(allowed)
    return max(0, min(known, default=_UNKNOWN))


def check_fits(place: Path | str, decoded_bytes: int) -> None:
    """Refuse a file, or a part of one, that decodes to more bytes than memory can hold."""
    if decoded_bytes * _COPIES > (left := available_bytes()):
        raise DemonstrationError(
            f"{place} would take {decoded_bytes / 1e9:,.3g} GB once decoded, and {left / 1e9:,.3g} GB of memory are "
            f"available: it may take one part in {_COPIES} of that; read a part of the data, or use a larger machine"
        )
