"""Sections of pages about recorded players: correlations of indices with outcomes, and the choice of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ileed.parallel.runtime import stream
from ileed_lab.comparison import Records, join_words, markdown_table
from ileed_lab.people.measures import DRAWS
from ileed_lab.ranking import rank_correlation
from ileed_lab.records import Measured

__all__ = ["Indices", "interval", "model_choice"]

Row = tuple[str, str]
"""Demonstrators and method of an index."""
_MODELS = {
    "UniformMixture()": "uniform",
    "Boltzmann()": "boltzmann",
    "BiasedMixture(shared=True)": "shared-habit",
    "Persistent()": "persistent",
    "BiasedMixture()": "biased",
    "Persistent(biased=True)": "persistent-biased",
    "Confusion()": "confusion",
}
"""What each model of `ileed.compare` is called among our methods."""
_CLAIMED = {
    "adjusted score": "the adjusted score",
    "experience": "stated experience",
    "other games": "the adjusted score of other games",
}
_COLUMNS = {"score": "score", "adjusted score": "adjusted", "experience": "experience"}
_DRAWS = 200


@final
@dataclass(frozen=True)
class Indices:
    """The measurements of each index of skill, by demonstrators and method; the last index is the naive one."""

    words: Mapping[Row, str]
    found: Mapping[Row, Mapping[int, Measured]]

    @classmethod
    def of(cls, records: Records, experiment: str, words: Mapping[Row, str]) -> Indices:
        """The indices that were run."""
        trials = {row: records.trials(experiment, row[1], demonstrators=row[0]) for row in words}
        return cls(words, {row: each for row, each in trials.items() if 0 in each})

    @property
    def first(self) -> Measured:
        """Any measurement, for what does not depend on the index."""
        return next(iter(self.found.values()))[0]

    @property
    def not_run(self) -> str:
        """The planned indices that were not run, as a sentence; empty if all were run."""
        missing = [words for row, words in self.words.items() if row not in self.found]
        return f"Planned and not run: {join_words(missing)}." if missing else ""

    def outcome(self, name: str, words: str, people: str = "players") -> list[str]:
        """A table of correlations with one outcome, with intervals and controls."""
        naive = self.found.get(list(self.words)[-1])
        rows = []
        for row, trials in self.found.items():
            measured = trials[0]["correlations"][name]
            others = [trial["correlations"][name]["correlation"] for trial in trials.values()]
            rows.append(
                [
                    self.words[row],
                    f"**{measured['correlation']:.2f}**",
                    interval(measured["over_people"]),
                    interval(measured["over_games"]),
                    interval(measured["permuted"]),
                    _share(measured["permuted_beyond"]),
                    interval([min(others), max(others)]) if len(others) > 1 else "one seed",
                    "" if naive is None or trials is naive else _minus(trials[0], naive[0], name),
                ]
            )
        head = ["index", "rank correlation", f"95% CI over {people}", f"over {people} and games"]
        head += ["95% range of permutations", "p-value", "over seeds", "minus naive"]
        return [
            f"Spearman's rank correlation with {words}; {self.first['correlations'][name]['people']} {people}. "
            f"Bootstrap intervals resample {people}, or {people} and the games of each; the p-value is the share of "
            f"permutations of the outcome over {people} that are as far from zero.",
            markdown_table(head, rows),
        ]

    def by_partner(self) -> str:
        """Correlations with the score of games with one partner, or in one kitchen, at a time."""
        first = self.first["correlations"]
        partners = [name for name in first if name.startswith("score with ")]
        rows = [
            [self.words[row], *(f"{trials[0]['correlations'][name]['correlation']:.2f}" for name in partners)]
            for row, trials in self.found.items()
        ]
        head = [f"{name.removeprefix('score with ')} ({first[name]['people']})" for name in partners]
        return markdown_table(["index", *head], rows)

    def verdict(self, chosen: Row) -> str:
        """The conclusion from the intervals of the preferred model, the plain one and the naive index."""
        every = list(self.words)
        rows = [row for row in dict.fromkeys([chosen, every[0], every[-1]]) if row in self.found]
        return "\n".join(
            f"- **{self.words[row]}** {join_words(_claims(self.found[row][0]['correlations']))}." for row in rows
        )


def model_choice(records: Records, experiment: str, demonstrators: str) -> tuple[Row, list[str]]:
    """The index by the model that `ileed.compare` prefers, and the paragraphs about the comparison."""
    trials = records.trials(experiment, "compare", demonstrators=demonstrators)
    if 0 not in trials:
        return (demonstrators, "uniform"), ["Not run."]
    rows = [
        [
            f"`{row['model']}`" + (" (preferred)" if row["preferred"] else ""),
            f"{row['nats_per_action']:.3f}",
            f"{row['more_than_preferred']:+.3f} ± {row['standard_error']:.3f}",
            "" if row["rank_correlation"] is None else f"{row['rank_correlation']:.2f}",
        ]
        for row in trials[0]["models"]
    ]
    return (demonstrators, _MODELS.get(trials[0]["preferred"], "uniform")), [
        f"`ileed compare`, by held-out games: {trials[0]['sentence']}. The errors are standard errors of the "
        "difference from the best; the last column is the rank correlation of the expertise estimates with those of "
        "the preferred model.",
        markdown_table(["model", "nats per action", "more than the preferred", "order"], rows),
    ]


def _share(share: float) -> str:
    return f"{share:.3f}" if share else f"none of {DRAWS:,}"


def _claims(measured: Measured) -> list[str]:
    return [_claim(measured[name], words) for name, words in _CLAIMED.items() if name in measured]


def _claim(measured: Measured, words: str) -> str:
    low, high = measured["over_games" if "over_games" in measured else "over_people"]
    finding = (
        "correlates with" if low > 0 else "correlates negatively with" if high < 0 else "shows no clear relation to"
    )
    return f"{finding} {words} ({measured['correlation']:.2f}, {interval([low, high])})"


def _minus(one: Measured, other: Measured, name: str) -> str:
    """The difference of two indices' correlations, with a 95% interval over demonstrators."""
    column = _COLUMNS[name]
    known = [k for k, person in enumerate(one["people"]) if person[column] is not None]
    outcome = np.array([one["people"][k][column] for k in known])
    mine, theirs = (np.array([each["people"][k]["expertise"] for k in known]) for each in (one, other))
    random = np.random.default_rng(stream(0, "minus").initial_seed())
    drawn = [random.integers(len(known), size=len(known)) for _ in range(_DRAWS)]
    each = [rank_correlation(mine[d], outcome[d]) - rank_correlation(theirs[d], outcome[d]) for d in drawn]
    own = rank_correlation(mine, outcome) - rank_correlation(theirs, outcome)
    return f"{own:+.2f} ({interval(np.quantile(each, (0.025, 0.975)).tolist())})"


def interval(ends: Sequence[float]) -> str:
    """Two numbers to two decimals."""
    low, high = (round(end, 2) + 0.0 for end in ends)
    return f"{low:.2f} to {high:.2f}"
