"""The options by which commands read a data set."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin

from tyro.conf import OmitArgPrefixes, Positional, arg

from ileed import formats
from ileed.cli.console import bar, plain
from ileed.errors import DemonstrationError, SettingsError
from ileed.formats import Option, by_column, by_episode_table, by_mask, by_one, format_of, our_formats
from ileed.runs import stores

if TYPE_CHECKING:
    from ileed.data import Demonstrations, Encoding
    from ileed.formats import AbstractFormat, Labeller


@dataclass(frozen=True)
class Naming:
    """Where the data set names its demonstrators; by default in the format's own place."""

    demonstrator: Annotated[str | None, arg(aliases=["--who"])] = None
    """The column of the demonstrator, if it is not called demonstrator."""
    masks: tuple[str, ...] = ()
    """Masks of a robomimic file, each of one demonstrator's episodes; by default better_operator_1 and the like."""
    unmatched: Literal["error", "drop"] = "error"
    """Episodes in none of the masks: an error, or left out."""
    one: str | None = None
    """The name of the demonstrator, if the file has only one."""
    episode_table: Path | None = None
    """A CSV file with the columns episode and operator, which names the demonstrator of each episode."""

    def labeller(self) -> Labeller | None:
        """The labeller that these options mean."""
        found: dict[str, Labeller] = {}
        if self.demonstrator is not None:
            found["--demonstrator"] = by_column(self.demonstrator)
        if self.masks or self.unmatched != "error":
            found["--masks or --unmatched"] = by_mask(*self.masks, unmatched=self.unmatched)
        if self.one is not None:
            found["--one"] = by_one(self.one)
        if self.episode_table is not None:
            found["--episode-table"] = by_episode_table(self.episode_table)
        if len(found) > 1:
            raise SettingsError(f"{' and '.join(found)} each say who demonstrated: give one of them")
        return next(iter(found.values()), None)


def options_class(name: str, options: Iterable[Option], doc: str) -> type:
    """A frozen dataclass with a field for each option, which is None or empty by default.

    Formats may share an option, which the first of them describes.
    """
    fields = [
        (_field(each), Annotated[each.kind, arg(help=each.help)], () if get_origin(each.kind) is tuple else None)
        for each in {each.flag: each for each in reversed([*options])}.values()
    ]
    return make_dataclass(name, reversed(fields), frozen=True, namespace={"__doc__": doc})


def given_options(values: Any, options: Iterable[Option]) -> dict[str, Any]:
    """The options that a user gave at the command, by their names, as formats take them."""
    found = {option: getattr(values, _field(option)) for option in options}
    return {option.name: option.parse(value) for option, value in found.items() if value not in (None, ())}


def _field(option: Option) -> str:
    return option.flag.removeprefix("--").replace("-", "_")


_READING = tuple(option for each in our_formats() for option in each.reading)
if TYPE_CHECKING:
    Reading = Any
else:
    Reading = options_class("Reading", _READING, "Options of one format or another; others refuse them.")


@dataclass(frozen=True)
class OfData:
    """A command about a data set."""

    data: Positional[Path]
    """A file (.parquet, .hdf5, .h5, .npz), a folder, with --action a table (.csv, .tsv), or --repo-id OWNER/NAME."""
    naming: OmitArgPrefixes[Naming] = Naming()
    """Where the data set names its demonstrators."""
    reading: OmitArgPrefixes[Reading] = Reading()  # noqa: RUF009 (frozen)
    """Options of one format or another, which others refuse."""
    anonymise: bool = False
    """Replace names by pseudonyms in all that is shown and saved; the same data have the same pseudonyms everywhere."""
    json: bool = False
    """Print JSON instead of text."""

    @property
    def place(self) -> Path:
        """Where the data lie: those of the Hugging Face hub are downloaded once."""
        return Path(stores.local_copy(self.data))

    @property
    def data_format(self) -> AbstractFormat:
        """The format of the data set."""
        return format_of(self.place, given_options(self.reading, _READING))

    def check_file(self) -> None:
        """Refuse a file that is not there; an address is asked only when it is read."""
        if not stores.address_of(self.data) and not str(self.data).startswith("hf:") and not self.data.exists():
            raise DemonstrationError(f"there is no file {plain(str(self.data))}: check the path")

    def read(self, encoding: Encoding | None = None) -> Demonstrations:
        """The demonstrations in the file, with pseudonyms where these are asked for."""
        data = self.read_named(encoding)
        return data.anonymise() if self.anonymise else data

    def read_named(self, encoding: Encoding | None = None) -> Demonstrations:
        """The demonstrations in the file with the names that it has; with --anonymise, no message contains these.

        With the `encoding` of a fit, the columns of a table are read as those of the fit were.
        """
        labeller, options = self.naming.labeller(), given_options(self.reading, _READING)
        if self.anonymise:
            self.check_file()
        with names_withheld(stores.name_of(self.data)) if self.anonymise else nullcontext():
            if not stores.address_of(self.data):
                stores.local_copy(self.data)  # the hub shows bars of its own
            with bar("reading", late=True) as progress:
                if encoding is not None and "features" not in options and self.place.exists():
                    options |= {"encoding": encoding} if "encoding" in self.data_format.options else {}
                return formats.read(self.data, demonstrator=labeller, progress=progress, **options)


@contextmanager
def names_withheld(place: str) -> Iterator[None]:
    """Withhold the reasons for which data cannot be read, and warnings: they may quote names from the file."""
    found = f"{place} {{}}, which may contain names: `ileed inspect` without --anonymise shows {{}}"
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield
    except DemonstrationError:
        raise DemonstrationError(found.format("cannot be read for a reason", "it")) from None
    if told:
        warnings.warn(found.format("was read with warnings", "them"), stacklevel=1)


def column_names(data: Demonstrations) -> dict[str, Any]:
    """The names of features and actions, where the data came from a table."""
    if (encoding := data.encoding) is None:
        return {}
    actions = {"columns": list(encoding.action), "labels": list(encoding.labels)}
    return {"features": list(encoding.inputs), "actions": actions}
