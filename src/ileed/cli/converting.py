"""`ileed convert`: a data set in another format."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from ileed import stores
from ileed.cli.console import Output, bar, print_json
from ileed.cli.data import OfData
from ileed.errors import SettingsError

_OF_FORMATS = {"fps": ("lerobot",), "version": ("lerobot",), "observations": ("lerobot", "robomimic")}
_SHOWN = {"fps": "--fps", "version": "--lerobot-version", "observations": "--divide"}


@dataclass(frozen=True)
class Convert(OfData):
    """Write a data set in another format, with who demonstrated in it.

    The data set itself is never changed. An output that exists is refused, or replaced with --overwrite.
    """

    out: Positional[Path] = field(kw_only=True)
    """The file or folder to write; its ending says the format, or --format does."""
    format: str | None = None
    """The name of the format: parquet, robomimic, lerobot, or one that another package brings."""
    divide: tuple[str, ...] = ()
    """How many numbers of an observation each feature takes (robomimic, lerobot), as in observation.state=9 ...."""
    lerobot_version: Literal["v3.0", "v2.1"] | None = None
    """The version of a LeRobot folder; v3.0 by default."""
    overwrite: bool = False
    """Replace an output that exists: a file, or in a folder the files of an earlier call; others stay."""
    fps: Annotated[int | None, arg(metavar="INT")] = None
    """Frames per second in a LeRobot folder; by default those of the data, or 10 where the data state none."""

    def __call__(self) -> None:
        from ileed.readers import check_output, format_to_write, write
        from ileed.readers.lerobot_writer import frame_rate

        shown = stores.name_of(self.out)
        check_output(self.out, overwrite=self.overwrite)
        if Path(os.path.realpath(self.data)).is_relative_to(os.path.realpath(self.out)):
            raise SettingsError(f"{shown} is or holds the data set to convert: choose another place")
        name = format_to_write(self.out, self.format)
        divided = dict(map(_part, self.divide))
        given = {"fps": self.fps, "version": self.lerobot_version, "observations": divided or None}
        options: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
        if strange := next((option for option in options if name not in _OF_FORMATS[option]), None):
            raise SettingsError(
                f"{_SHOWN[strange]} does not apply to the format {name}: it is for {' and '.join(_OF_FORMATS[strange])}"
            )
        data = self.read()
        with bar("writing"):
            write(data, self.out, format=name, overwrite=self.overwrite, **options)
        rate = {"fps": frame_rate(data, self.fps)} if name == "lerobot" else {}
        if self.json:
            counts = {"steps": len(data), "episodes": data.episode_count, "demonstrators": list(data.names)}
            print_json({"wrote": shown, "format": name} | counts | rate)
        else:
            clock = f", {rate['fps']:g} frames per second" if rate else ""
            Output().say(f"{data!r}\nwrote {shown} ({name}{clock})")


def _part(word: str) -> tuple[str, int]:
    name, _, count = word.rpartition("=")
    if not name or not count.isdecimal() or len(count) > 9:
        raise SettingsError(f"--divide is {word!r}: give a name and a number, as in observation.state=9")
    return name, int(count)
