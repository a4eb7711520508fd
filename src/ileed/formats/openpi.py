"""openpi's filter files: the frames of each episode that a training run may use, in one JSON file.

The file maps the key of an episode to a list of ranges [start, end) of its frames. openpi reads it for DROID
(`filter_dict_path`), where a key is `{recording_folderpath}--{file_path}` of the episode's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ileed import runs
from ileed.errors import DemonstrationError, brief, instance_of, path_of, text, whole_number
from ileed.formats.files import read_json

Ranges = list[tuple[int, int]]


def write_openpi_filter(keep_ranges: Mapping[str, Sequence[tuple[int, int]]], path: str | Path) -> None:
    """Write ranges [start, end) of frames to keep, by the key of their episode, completely or not at all.

    The ranges of an episode are sorted, and joined where they touch or overlap; an episode of which nothing is kept has
    an empty list.
    """
    rule = "pass a mapping from episodes' keys to lists of (start, end)"
    instance_of("keep_ranges", keep_ranges, Mapping, rule=rule, error=DemonstrationError)
    kept = {text("key", key, error=DemonstrationError): _ranges(key, ranges) for key, ranges in keep_ranges.items()}
    place = path_of("path", path, rule="pass the path of a file", error=DemonstrationError)
    runs.write_file(place, json.dumps(kept).encode())


def read_openpi_filter(path: str | Path) -> dict[str, Ranges]:
    """The ranges [start, end) of frames to keep, sorted, by the key of their episode."""
    place = path_of("path", path, rule="pass the path of a file", error=DemonstrationError)
    if not place.is_file():
        raise DemonstrationError(f"there is no file {brief(str(place))}: check the path")
    return {key: _ranges(key, ranges) for key, ranges in read_json(place).items()}


def _ranges(key: str, ranges: Any) -> Ranges:
    """The checked ranges of an episode, sorted, and joined where they touch."""
    rule = "a range is (start, end) with whole numbers 0 <= start < end; the end is exclusive"
    found: Ranges = []
    listed: Sequence[Any] = ranges if _is_list(ranges) else [None]
    for each in listed:
        if not _is_list(each) or len(each) != 2:
            raise DemonstrationError(f"the ranges of {brief(key)} are {brief(ranges)}: {rule}", code="range-invalid")
        start = whole_number(f"the start of {brief(key)}", each[0], least=0, rule=rule, error=DemonstrationError)
        end = whole_number(f"the end of {brief(key)}", each[1], least=start + 1, rule=rule, error=DemonstrationError)
        found.append((start, end))
    joined: Ranges = []
    for start, end in sorted(found):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or hasattr(value, "tolist")
