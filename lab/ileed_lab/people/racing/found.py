"""What the records of racing say, for the page and its figure: means over seeds, and differences between policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from ileed.data import Array
from ileed.parallel.runtime import stream
from ileed_lab.comparison import Records
from ileed_lab.people.racing.policies import ADVANTAGE, LEFT_OUT, TRAINED
from ileed_lab.records import Measured

__all__ = ["POLICIES", "RACING", "SCORES", "Found", "FoundPolicies", "FoundScores"]

RACING, RACING_POLICIES = "people/racing", "people/racing-policies"
SCORES = {
    "default": "**ILEED, default settings**",
    "paper": "ILEED, the paper's noise model (`VarianceScaling`)",
    "mutual-information": "mutual information (DemInf), single actions",
    "mutual-information-chunks": "mutual information (DemInf), chunks of 120 m",
    "spectral-arc-length": "spectral arc length of the controls (as RINSE)",
    "jerk-and-idle": "jerk and idle outliers (as lerobot 3761)",
    "bc-log-likelihood": "log-likelihood of a BC policy, cross-validated",
    "bc-squared-error": "squared error of a BC policy, cross-validated",
    "definition-precision": "plain regression: precision over 120 m",
    "definition-share": "plain regression: explained share of variance over 120 m",
    "definition-signal-dependent": "plain regression: signal-dependent noise over 120 m",
    "definition-direction": "plain regression: direction over 120 m",
    "episode-length": "episode length, shorter is better",
    "full-throttle": "share of full throttle (knows the task)",
    "random": "random",
}
"""What the page calls each score, in the order of its tables."""
POLICIES = {
    ("everyone", TRAINED): "everyone",
    ("oracle", TRAINED): "the four fastest of them by lap time (oracle)",
    ("default", "curated"): "`curate` with defaults",
    ("default", "best half"): "`curate(keep=0.5)`",
    ("default", "weighted"): "`curate(weight=True)`",
    ("default", "own policy"): "ILEED's own policy",
    ("outcome", "curated"): "with lap times: `curate` with defaults",
    ("outcome", "best half"): "with lap times: `curate(keep=0.5)`",
    ("outcome", "weighted"): "with lap times: `curate(weight=True)`",
    ("outcome", ADVANTAGE): "with lap times: advantage weights",
    ("outcome", "own policy"): "with lap times: ILEED's own policy",
}
"""What the page calls each policy, by method and name."""
_DRAWS = 2_000


@final
@dataclass(frozen=True)
class Found:
    """A number with a 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        low, high = (round(end, 2) + 0.0 for end in (self.low, self.high))
        return f"{round(self.value, 2) + 0.0:.2f} [{low:.2f}, {high:.2f}]"


@final
@dataclass(frozen=True)
class FoundScores:
    """Correlations of each score with measured skill."""

    trials: Mapping[str, Mapping[int, Measured]]
    """By method and seed; methods that were not run are left out."""

    @classmethod
    def of(cls, records: Records) -> FoundScores:
        """Those that were run."""
        found = {name: records.trials(RACING, name, demonstrators="drivers") for name in SCORES}
        return cls({name: trials for name, trials in found.items() if trials})

    def first(self, method: str) -> Measured:
        """What the first seed measured."""
        return self.trials[method][min(self.trials[method])]

    def over_seeds(self, method: str, part: str, name: str | None = None) -> Found:
        """The mean over seeds of a correlation, and of both ends of its interval."""
        each = [trial[part] if name is None else trial[part][name] for trial in self.trials[method].values()]
        value, low, high = (float(np.mean([one[key] for one in each])) for key in ("correlation", "low", "high"))
        return Found(value, low, high)

    def above(self, method: str, part: str, name: str) -> list[str]:
        """Other methods with a greater mean correlation, greatest first."""
        values = {other: self.over_seeds(other, part, name).value for other in self.trials}
        greater = [other for other in values if values[other] > values[method] and other != method]
        return sorted(greater, key=lambda other: -values[other])


@final
@dataclass(frozen=True)
class FoundPolicies:
    """Squared errors of policies on the laps of the drivers that were left out."""

    records: Records

    def errors(self, left_out: int, policy: tuple[str, str]) -> Array | None:
        """(network, lap) the mean squared error; None where the policy was not run."""
        method, name = policy
        trials = self.records.trials(RACING_POLICIES, method, left_out=left_out)
        rows = [trials[number]["errors"][name] for number in sorted(trials) if name in trials[number]["errors"]]
        return np.array(rows) if rows else None

    def error(self, left_out: int, policy: tuple[str, str]) -> float | None:
        """The mean over steps and networks."""
        errors = self.errors(left_out, policy)
        return None if errors is None else float(np.average(errors.mean(0), weights=self._steps(left_out)))

    def difference(self, left_out: int, policy: tuple[str, str]) -> Found | None:
        """The error minus that of everyone, with a paired bootstrap over networks and over the laps of each driver."""
        one, other = self.errors(left_out, policy), self.errors(left_out, next(iter(POLICIES)))
        if one is None or other is None:
            return None
        networks = min(len(one), len(other))
        gap = one[:networks] - other[:networks]
        steps, driver = self._steps(left_out), self._column(left_out, "driver")
        laps = [np.flatnonzero(driver == each) for each in np.unique(driver)]
        random = np.random.default_rng(stream(0, "policies", left_out).initial_seed())
        drawn = []
        for _ in range(_DRAWS):
            chosen = np.concatenate([own[random.integers(len(own), size=len(own))] for own in laps])
            rows = random.integers(networks, size=networks)
            drawn.append(np.average(gap[rows][:, chosen].mean(0), weights=steps[chosen]))
        low, high = np.quantile(drawn, (0.025, 0.975))
        return Found(float(np.average(gap.mean(0), weights=steps)), float(low), float(high))

    @cached_property
    def were_run(self) -> Sequence[tuple[str, str]]:
        """The policies of which there is a record."""
        return [each for each in POLICIES if any(self.errors(count, each) is not None for count in LEFT_OUT)]

    def share_of_oracle(self, policy: tuple[str, str]) -> float | None:
        """The gain on everyone divided by the oracle's, each summed over the numbers of drivers left out."""
        everyone, oracle, *_ = POLICIES
        errors = [[self.error(count, each) for count in LEFT_OUT] for each in (everyone, oracle, policy)]
        if any(each is None for row in errors for each in row):
            return None
        total = [sum(each for each in row if each is not None) for row in errors]
        return (total[0] - total[2]) / (total[0] - total[1]) if total[0] != total[1] else None

    def _steps(self, left_out: int) -> Array:
        return self._column(left_out, "steps")

    def _column(self, left_out: int, name: str) -> Array:
        """What is the same for all policies."""
        methods = (self.records.trials(RACING_POLICIES, method, left_out=left_out) for method, _ in POLICIES)
        trials = next(each for each in methods if each)
        return np.array(trials[min(trials)][name])
