"""`ileed curate`: fewer and better episodes for a trainer, by the scores of a run and a rule."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.table import Column, Table
from tyro.conf import OmitArgPrefixes, Positional

from ileed.cli.console import Output, bar, plain, print_json
from ileed.cli.data import OfData

if TYPE_CHECKING:
    from ileed.curation import Curated
    from ileed.methods import Fitted

_SHOWN = 10  # episodes and demonstrators
_FORMATS = ("lerobot", "minari", "openpi", "robomimic")


@dataclass(frozen=True)
class RuleOptions:
    """Which episodes are kept; without --keep, --above, --steps and --weight, what cross-validation recommends."""

    keep: float | None = None
    """The share of episodes to keep, best first: 0.5 keeps half of them."""
    above: float | None = None
    """Keep episodes whose score is above this threshold; expertise is relative to the mean over demonstrators."""
    probability: float = 0.9
    """How probable it must be that the score is above the threshold."""
    steps: int | None = None
    """Keep at most this number of steps: the best episodes, skipping those that no longer fit."""
    weight: bool = False
    """Weight what is kept by the score, with mean 1 over steps, tempered to the effective sample size below."""
    by: Literal["expertise", "agreement", "typicality"] = "expertise"
    """The score that decides."""
    at_least: int = 0
    """Keep at least this number of episodes of each kind of state, best first."""
    kinds: str | None = None
    """Kinds of state: a skill column, or a number of clusters of episodes; 8 clusters by default."""
    unit: Literal["episode", "stretch"] = "episode"
    """What is kept or dropped: whole episodes, or segments (stretch) of them, to which the other options apply."""
    coverage: bool | None = None
    """Preserve the states of the whole data set, by selection and by weights; None does so with continuous actions."""
    least_effective: float | None = None
    """The least effective sample size of weights, as a share of what is kept; 0.5 with continuous actions."""
    adjust: bool | None = None
    """Correct expertise for state, and shrink it towards the demonstrator's; None does so with continuous actions."""


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

    run: Positional[Path]
    """A run directory of `ileed fit`."""
    episodes: OmitArgPrefixes[OfData]
    """The data to curate: those of the run, or others."""
    rule: OmitArgPrefixes[RuleOptions] = RuleOptions()
    """Which episodes are kept."""
    out: Path = Path("curated")
    """The folder to write, whole or not at all."""
    format: Literal["lerobot", "minari", "openpi", "robomimic", "tables"] | None = None
    """The trainer to write for; by default that of the data's own format, and tables alone where it has none."""
    overwrite: bool = False
    """Replace the files of an earlier call in the folder, which is an error otherwise; other files stay."""
    stretch: int = 20
    """The number of steps of a segment."""
    seed: int = 0
    """The seed of the sample that states are compared with, of clusters, and of folds."""
    cross_fit: bool = False
    """Judge each episode by policies that have not seen it, which takes about as long as the fit did."""

    def rule_settings(self) -> dict[str, Any]:
        """The settings of the rule; what contradicts itself is refused before anything is read."""
        from ileed.curation import Rule

        options, kinds = vars(self.rule), self.rule.kinds
        options = options | {"kinds": int(kinds) if kinds is not None and kinds.isdecimal() else kinds}
        Rule.of(options)
        return options

    def score(self) -> Scored:
        """Read the run and the data, and score all episodes; with --anonymise the result has pseudonyms."""
        from ileed.curation import curate
        from ileed.methods import load

        options, fitted = self.rule_settings(), load(self.run)
        data = self.episodes.read_named(fitted.policy.encoding)
        fingerprint = fitted.policy.match(data).fingerprint
        if self.episodes.anonymise:
            fitted, data = fitted.anonymise_with(data)
        with bar("curating", late=True) as progress:
            options |= {"stretch": self.stretch, "seed": self.seed, "cross_fit": self.cross_fit}
            curated = curate(fitted, data, progress=progress, **options)
        name = self.episodes.data_format.name
        read_as = name if name in _FORMATS else None  # where there is a trainer that reads it
        format = read_as if self.format is None else None if self.format == "tables" else self.format  # noqa: A001
        source = self.episodes.place if format is not None and format == read_as else None
        return Scored(fitted, curated, fingerprint, format, source)


@dataclass(frozen=True)
class Curate(OfCuration):
    """Score every episode of a data set by a run, keep some by a rule, and write what trainers read.

    The data are never changed. Every episode, and every segment within it, has three scores with intervals: expertise
    of its demonstrator there, agreement with the policy, and typicality of its states. Without a rule everything is
    kept, unless cross-validation finds that policies trained on weighted or on the best episodes predict the expert
    component of held-out episodes better by its interval. A rule is obeyed, and compared with everything.
    """

    check: bool = True
    """Compare the selection with everything by cross-validation; without it and a rule, everything is kept."""

    def __call__(self) -> None:
        from ileed.curation.outputs import check_destination, summary

        self.rule_settings()
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
            console.say(f"{curated.explained}: check the order against outcomes before you rely on it")
        console.say(f"judged by {curated.judged_by}")
        for line in _evidence(curated):
            console.say(line)
        console.print(_best(curated))
        console.print(_people(curated))
        console.say(curated.length_correlation.sentence)
        console.say(f"wrote {self.out}: {', '.join(path.name for path in written)}")

    def _compared(self, curated: Curated) -> Curated:
        """With the comparison of the rule with everything; without a rule, under the one that is recommended."""
        with bar("comparing policies"):
            if not curated.rule.is_given:
                return curated.recommended()
            found = curated.check(seed=self.seed)
        if found.is_worse:
            warnings.warn(f"{found.sentence}; consider training on everything", stacklevel=1)
        return replace(curated, comparisons=(found,))


def _evidence(curated: Curated) -> list[str]:
    """What speaks for the selection, in lines."""
    lines = [each.sentence for each in curated.comparisons]
    if curated.comparisons and not curated.rule.is_given:
        lines.append("everything is kept: no selection is better by its interval")
    known = curated.within_reliability
    if known == known:  # not NaN
        lines.append(f"reliability of differences between episodes of one demonstrator: {known:.2f}")
    if curated.effective_size < curated.kept_units.sum():
        lines.append(f"effective sample size of the weights: {curated.effective_size:,.0f}")
    return lines


def _best(curated: Curated) -> Table:
    """The best episodes by the score that decided, with every score and its interval."""
    scores, by = curated.scores, curated.rule.by
    names = [Column(name, justify="right") for name in ("steps", *scores, "weight")]
    percent = f"{100 * curated.confidence_level:.0f} %"
    table = Table("episode", "demonstrator", *names, title=f"best by {by}, with {percent} intervals")
    rows = curated.episodes.sort_by([(by, "descending")]).slice(0, _SHOWN).to_pylist()
    for row in rows:
        cells = [f"{row[name]:.2f} ({row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f})" for name in scores]
        weight = f"{row['weight']:.2f}" if row["keep"] else "dropped"
        table.add_row(plain(row["key"]), plain(row["demonstrator"]), f"{row['steps']:,}", *cells, weight)
    return table


def _people(curated: Curated) -> Table:
    """Every demonstrator's share of the kept episodes."""
    found = curated.people()
    more = found.num_rows - _SHOWN
    names = [Column(name, justify="right") for name in ("episodes", "kept", "share of those kept")]
    table = Table("demonstrator", *names, caption=f"{more:,} more in episodes.csv" if more > 0 else None)
    for row in found.slice(0, _SHOWN).to_pylist():
        table.add_row(plain(row["demonstrator"]), f"{row['episodes']:,}", f"{row['kept']:,}", f"{row['share']:.0%}")
    return table
