"""`ileed curate`: select and weight episodes for a trainer, by the scores of a run and a rule."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Literal, NamedTuple

from rich.table import Table
from tyro.conf import OmitArgPrefixes

from ileed.cli.console import Output, bar, numbers, plain, print_json
from ileed.cli.data import OfData
from ileed.cli.parsing import RunPath
from ileed.curation import Curated, Rule, curate
from ileed.curation.outputs import check_destination, summary
from ileed.methods import Fitted, load

_SHOWN = 10  # episodes and demonstrators
_FORMATS = ("lerobot", "minari", "openpi", "robomimic")


class Scored(NamedTuple):
    """Scored episodes, the fit that scored them, and how they are written."""

    fitted: Fitted
    curated: Curated
    fingerprint: str
    """Of the data as they were read, with names."""
    format: str | None
    source: Path | None


@dataclass(frozen=True)
class OfCuration:
    """A command that scores episodes by a run."""

    run: RunPath
    episodes: OmitArgPrefixes[OfData]
    """The data to curate: those of the run, or others."""
    rule: OmitArgPrefixes[Rule] = Rule()  # noqa: RUF009 (frozen)
    """Which episodes to keep; without --keep, --above, --steps and --weight, what cross-validation recommends."""
    out: Path = Path("curated")
    """The folder to write, whole or not at all."""
    format: Literal["lerobot", "minari", "openpi", "robomimic", "tables"] | None = None
    """The trainer to write for; by default the format of the data, or only tables if no trainer reads that."""
    overwrite: bool = False
    """Replace the files of an earlier call in the folder instead of refusing them; other files are kept."""
    stretch: int = 20
    """The number of steps of a segment."""
    seed: int = 0
    """The seed of clusters, folds and the sample of states for comparison."""
    cross_fit: bool = False
    """Rate each episode by policies that have not seen it, which takes about as long as the fit."""

    def score(self) -> Scored:
        """Read the run and the data, and score all episodes; with --anonymise the result has pseudonyms."""
        fitted = load(self.run)
        data = self.episodes.read_named(fitted.policy.encoding)
        fingerprint = fitted.policy.match(data).fingerprint
        if self.episodes.anonymise:
            fitted, data = fitted.anonymise_with(data)
        options = {"stretch": self.stretch, "seed": self.seed, "cross_fit": self.cross_fit, **vars(self.rule)}
        with bar("curating", late=True) as progress:
            curated = curate(fitted, data, progress=progress, **options)
        own = self.episodes.data_format.name
        own_format = own if own in _FORMATS else None
        format = None if self.format == "tables" else self.format or own_format  # noqa: A001
        source = self.episodes.place if format is not None and format == own_format else None
        return Scored(fitted, curated, fingerprint, format, source)


@dataclass(frozen=True)
class Curate(OfCuration):
    """Score every episode of a data set by a run, keep some by a rule, and write files for trainers.

    The data are never changed. Every episode, and every segment within it, has three scores with intervals: expertise
    of its demonstrator there, agreement with the policy, and typicality of its states. A rule is followed, and compared
    with training on all episodes. Without a rule all episodes are kept, unless cross-validation finds, by its interval,
    that policies trained on weighted or on the best episodes predict the expert part of held-out episodes better.
    """

    check: bool = True
    """Compare the selection with all episodes by cross-validation; without it and without a rule, all are kept."""

    def __call__(self) -> None:
        check_destination(self.out, self.episodes.data, overwrite=self.overwrite)
        scored = self.score()
        curated = self._compared(scored.curated) if self.check else scored.curated
        written = curated.write(self.out, format=scored.format, source=scored.source, overwrite=self.overwrite)
        if self.episodes.json:
            print_json(summary(curated) | {"files": [str(path) for path in written]})
            return
        console = Output()
        console.say(curated.sentence)
        if curated.explained:
            console.say(f"{curated.explained}: compare the order with outcomes before you rely on it")
        console.say(f"rated by {curated.judged_by}")
        for line in _evidence(curated):
            console.say(line)
        console.print(_best_episodes(curated))
        console.print(_demonstrators(curated))
        console.say(curated.length_correlation.sentence)
        console.say(f"wrote {self.out}: {', '.join(path.name for path in written)}")

    def _compared(self, curated: Curated) -> Curated:
        """Add the comparison of the rule with all episodes; without a rule, apply the one that is recommended."""
        with bar("comparing policies"):
            if not curated.rule.is_given:
                return curated.recommended()
            found = curated.check(seed=self.seed)
        if found.is_worse:
            warnings.warn(f"{found.sentence}; consider training on all episodes", stacklevel=1)
        return replace(curated, comparisons=(found,))


def _evidence(curated: Curated) -> list[str]:
    """The evidence for the selection, one line each."""
    lines = [each.sentence for each in curated.comparisons]
    if curated.comparisons and not curated.rule.is_given:
        lines.append("all episodes are kept: no selection is better by its interval")
    if not isnan(known := curated.within_reliability):
        lines.append(f"reliability of differences between episodes of one demonstrator: {known:.2f}")
    if curated.effective_size < curated.kept_units.sum():
        lines.append(f"effective sample size of the weights: {curated.effective_size:,.0f}")
    return lines


def _best_episodes(curated: Curated) -> Table:
    """The best episodes by the score of the rule, with every score and its interval."""
    scores, by = curated.scores, curated.rule.by
    title = f"best by {by}, with {curated.confidence_level:.0%} intervals"
    table = numbers("episode", "demonstrator", "steps", *scores, "weight", title=title)
    for row in curated.episodes.sort_by([(by, "descending")]).slice(0, _SHOWN).to_pylist():
        cells = [f"{row[name]:.2f} ({row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f})" for name in scores]
        weight = f"{row['weight']:.2f}" if row["keep"] else "dropped"
        table.add_row(plain(row["key"]), plain(row["demonstrator"]), f"{row['steps']:,}", *cells, weight)
    return table


def _demonstrators(curated: Curated) -> Table:
    """The share of each demonstrator in the kept episodes."""
    found = curated.people()
    more = found.num_rows - _SHOWN
    caption = f"{more:,} more in episodes.csv" if more > 0 else None
    table = numbers("demonstrator", "episodes", "kept", "share of those kept", caption=caption)
    for row in found.slice(0, _SHOWN).to_pylist():
        table.add_row(plain(row["demonstrator"]), f"{row['episodes']:,}", f"{row['kept']:,}", f"{row['share']:.0%}")
    return table
