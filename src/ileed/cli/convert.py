"""`ileed convert`: a data set in another format."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import OmitArgPrefixes, Positional

from ileed.cli.console import Output, bar, print_json
from ileed.cli.data import OfData, given_options, options_class
from ileed.errors import SettingsError
from ileed.formats import check_output, format_to_write, our_formats, write
from ileed.runs import stores

_WRITING = tuple(option for each in our_formats() for option in each.writing)
if TYPE_CHECKING:
    Writing = Any
else:
    Writing = options_class("Writing", _WRITING, "Options of the format to write; others refuse them.")


@dataclass(frozen=True)
class Convert(OfData):
    """Write a data set in another format, with who demonstrated in it.

    The data set itself is never changed. An output that exists is refused, or replaced with --overwrite.
    """

    out: Positional[Path] = field(kw_only=True)
    """The file or folder to write; its ending says the format, or --format does."""
    format: str | None = None
    """The name of the format: parquet, robomimic, lerobot, or one that another package brings."""
    overwrite: bool = False
    """Replace an output that exists: a file, or in a folder the files of an earlier call; others stay."""
    writing: OmitArgPrefixes[Writing] = Writing()  # noqa: RUF009 (frozen)
    """Options of the format to write, which others refuse."""

    def __call__(self) -> None:
        shown = stores.name_of(self.out)
        check_output(self.out, overwrite=self.overwrite)
        if Path(os.path.realpath(self.data)).is_relative_to(os.path.realpath(self.out)):
            raise SettingsError(f"{shown} is or holds the data set to convert: choose another place")
        target, options = format_to_write(self.out, self.format), given_options(self.writing, _WRITING)
        if strange := next((option for option in options if option not in target.write_options), None):
            takers = [each.name for each in our_formats() if strange in each.write_options]
            flag = next(option.flag for option in _WRITING if option.name == strange)
            raise SettingsError(f"{flag} does not apply to the format {target.name}: it is for {' and '.join(takers)}")
        data = self.read()
        with bar("writing"):
            write(data, self.out, format=target.name, overwrite=self.overwrite, **options)
        rate = target.resolve(data, **options)
        if self.json:
            counts = {"steps": len(data), "episodes": data.episode_count, "demonstrators": list(data.names)}
            print_json({"wrote": shown, "format": target.name} | counts | rate)
        else:
            clock = f", {rate['fps']:g} frames per second" if rate else ""
            Output().say(f"{data!r}\nwrote {shown} ({target.name}{clock})")
