"""`ileed rate`: ratings of demonstrators, including new ones, by the policy of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tyro.conf import OmitArgPrefixes

from ileed.cli.console import (
    Output,
    bar,
    evidence_summary,
    print_json,
    ratings_summary,
    ratings_table,
    say_ratings,
)
from ileed.cli.data import OfData
from ileed.cli.parsing import RunPath


@dataclass(frozen=True)
class Rate:
    """Rate demonstrators, including new ones, by the policy of a run, with intervals.

    Expertise is relative to the mean over the demonstrators of the run. For the data of the run, its report has better,
    out-of-sample estimates. A run with outcomes (`ileed fit --outcome`) rates new demonstrators on its scale of skill:
    by actions, as far as these predict outcomes, and with --outcome also by their own outcomes.
    """

    run: RunPath
    episodes: OmitArgPrefixes[OfData]
    """The data of the demonstrators to rate."""
    outcome: str | None = None
    """The outcome of these episodes, as in the run: success, reward, duration, or a column constant in episodes."""
    better: Literal["higher", "lower"] | None = None
    """Which outcomes are better; as in the run by default."""

    def __call__(self) -> None:
        from ileed.methods import load

        fitted = load(self.run)
        data = self.episodes.read_named(fitted.policy.encoding)
        if self.episodes.anonymise:
            fitted, data = fitted.anonymise_with(data)
        with bar("rating", late=True) as progress:
            ratings = fitted.assess(data, progress=progress, outcome=self.outcome, better=self.better)
        evidence = ratings.evidence if self.outcome is not None else None
        if self.episodes.json:
            print_json(ratings_summary(ratings) | evidence_summary(evidence))
            return
        console = Output()
        console.print(ratings_table(ratings))
        say_ratings(console, ratings)
        if evidence is not None:
            console.say(evidence.sentence())
