"""The options of commands that read a data set."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, make_dataclass
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
    """Where the data set names its demonstrators; by default where the format does."""

    demonstrator: Annotated[str | None, arg(aliases=["--who"])] = None
    """The column of the demonstrator, if it is not called demonstrator."""
    masks: tuple[str, ...] = ()
    """Masks of a robomimic file, one per demonstrator; by default better_operator_1 and the like."""
    unmatched: Literal["error", "drop"] = "error"
    """Refuse or drop episodes that no mask contains."""
    one: str | None = None
    """The name of the demonstrator, if there is only one."""
    episode_table: Path | None = None
    """A CSV file with the columns episode and operator, which names the demonstrator of each episode."""

    def labeller(self) -> Labeller | None:
        """The labeller that these options select."""
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
            raise SettingsError(f"{' and '.join(found)} each name the demonstrators: give one of them")
        return next(iter(found.values()), None)


def _options_class(name: str, options: Iterable[Option]) -> type:
    """A frozen dataclass with a field for each option, None or empty by default; formats may share an option."""
    found = {}
    for each in options:
        default = () if get_origin(each.kind) is tuple else None
        own = each.flag.removeprefix("--").replace("-", "_")
        found[own] = (own, Annotated[each.kind, arg(help=each.help)], field(default=default, metadata={"option": each}))
    doc = "Options that apply to some formats only."
    return make_dataclass(name, found.values(), frozen=True, namespace={"__doc__": doc})


def given_options(values: Any) -> dict[str, Any]:
    """The options that a user gave at the command, by their names, as formats take them."""
    given = ((each.metadata["option"], getattr(values, each.name)) for each in fields(values))
    return {option.name: option.parse(value) for option, value in given if value not in (None, ())}


if TYPE_CHECKING:
    Reading = Any
    Writing = Any
else:
    Reading = _options_class("Reading", (option for each in our_formats() for option in each.reading))
    Writing = _options_class("Writing", (option for each in our_formats() for option in each.writing))


@dataclass(frozen=True)
class OfData:
    """A command that reads a data set."""

    data: Annotated[Positional[Path], arg(metavar="DATA")]
    """A file (.parquet, .hdf5, .h5, .npz), a folder, with --action a table (.csv, .tsv), or --repo-id OWNER/NAME."""
    naming: OmitArgPrefixes[Naming] = Naming()
    """Where the data set names its demonstrators."""
    reading: OmitArgPrefixes[Reading] = Reading()  # noqa: RUF009 (frozen)
    """Options that apply to some formats only."""
    anonymise: bool = False
    """Replace names by pseudonyms in all outputs; the same data have the same pseudonyms everywhere."""
    json: bool = False
    """Print JSON instead of text."""

    @property
    def place(self) -> Path:
        """The local path of the data; data on the Hugging Face hub are downloaded once."""
        return Path(stores.local_copy(self.data))

    @property
    def data_format(self) -> AbstractFormat:
        """The format of the data set."""
        return format_of(self.place, given_options(self.reading))

    def check_file(self) -> None:
        """Refuse a missing file; an address is only checked when it is read."""
        if not stores.address_of(self.data) and not str(self.data).startswith("hf:") and not self.data.exists():
            raise DemonstrationError(f"there is no file {plain(str(self.data))}: check the path")

    def read(self, encoding: Encoding | None = None) -> Demonstrations:
        """The demonstrations in the file, with pseudonyms if --anonymise is given."""
        data = self.read_named(encoding)
        return data.anonymise() if self.anonymise else data

    def read_named(self, encoding: Encoding | None = None) -> Demonstrations:
        """The demonstrations in the file with their own names; with --anonymise, no message contains these.

        With the `encoding` of a fit, the columns of a table are encoded as those of the fit were.
        """
        labeller, options = self.naming.labeller(), given_options(self.reading)
        if self.anonymise:
            self.check_file()
        with names_withheld(stores.name_of(self.data)) if self.anonymise else nullcontext():
            if not stores.address_of(self.data):
                stores.local_copy(self.data)  # the hub has its own progress bars
            with bar("reading", late=True) as progress:
                if encoding is not None and "features" not in options and self.place.exists():
                    options |= {"encoding": encoding} if "encoding" in self.data_format.options else {}
                return formats.read(self.data, demonstrator=labeller, progress=progress, **options)


@contextmanager
def names_withheld(place: str) -> Iterator[None]:
    """Withhold errors and warnings of a reader, which may quote names from the file."""
    found = f"{place} {{}}, which may contain names: `ileed inspect` without --anonymise shows {{}}"
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    except DemonstrationError:
        raise DemonstrationError(found.format("cannot be read for a reason", "it")) from None
    if caught:
        warnings.warn(found.format("was read with warnings", "them"), stacklevel=1)


def column_names(data: Demonstrations) -> dict[str, Any]:
    """The names of features and actions, for JSON; empty unless the data come from a table."""
    if (encoding := data.encoding) is None:
        return {}
    actions = {"columns": list(encoding.action), "labels": list(encoding.labels)}
    return {"features": list(encoding.inputs), "actions": actions}
