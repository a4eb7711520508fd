"""`ileed convert`: a data set in another format."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from ileed.cli.console import Output, bar, print_json
from ileed.cli.data import OfData, Writing, given_options
from ileed.errors import SettingsError
from ileed.formats import check_output, format_to_write, our_formats, write
from ileed.runs import stores


@dataclass(frozen=True)
class Convert(OfData):
    """Convert a data set to another format, including the names of demonstrators.

    The data set itself is never changed. An existing output is refused, or replaced with --overwrite.
    """

    out: Annotated[Positional[Path], arg(metavar="OUT")] = field(kw_only=True)
    """The file or folder to write; its ending or --format determines the format."""
    format: str | None = None
    """The name of the format: parquet, robomimic, lerobot, or one of another package."""
    overwrite: bool = False
    """Replace an existing file, or the files of an earlier call in a folder; other files are kept."""
    writing: OmitArgPrefixes[Writing] = Writing()  # noqa: RUF009 (frozen)
    """Options that apply to some formats only."""

    def __call__(self) -> None:
        shown = stores.name_of(self.out)
        check_output(self.out, overwrite=self.overwrite)
        if Path(os.path.realpath(self.data)).is_relative_to(os.path.realpath(self.out)):
            raise SettingsError(f"{shown} is or contains the data set to convert: choose another place")
        target, options = format_to_write(self.out, self.format), given_options(self.writing)
        if strange := next((option for option in options if option not in target.write_options), None):
            takers = [each for each in our_formats() if strange in each.write_options]
            flag = next(option.flag for each in takers for option in each.writing if option.name == strange)
            names = " and ".join(each.name for each in takers)
            raise SettingsError(f"{flag} does not apply to the format {target.name}: it is for {names}")
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
