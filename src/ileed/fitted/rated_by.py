"""How people were rated: confidence level, temperature, folds, and what the data fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ileed.checking import number, whole_number
from ileed.errors import SettingsError


@final
@dataclass(frozen=True)
class RatedBy:
    """How people were rated."""

    confidence_level: float = 0.95
    temperature: float = 1.0
    """The policy was taken to the power 1 / temperature."""
    dispersion: float = 1.0
    """How much more episodes of one person differ than independent steps would."""
    folds: int = 0
    """Into how many folds episodes were dealt, each rated by a policy that has not seen it; 0 for a policy as given."""
    levels: tuple[float, ...] = ()
    """The least and the greatest mean expertise that explain the held-out steps about equally well, each with a policy
    of its own temperature: within 1.92 nats of the likeliest, where a 95 % interval of one number ends."""
    free_scales: int | None = None
    """How many scales of expertise the likelihood leaves free, for any policy; None where the embedding is learned."""
    horizon: int | None = None
    """The number of steps over which actions were averaged; None where steps were rated one by one."""
    reliability: float | None = None
    """Split-half reliability of the ratings over episodes, None where it is not known; with outcomes, the share of the
    variance of skill between demonstrators that is known."""
    explained: str = ""
    """What else than skill may explain the order: duration and speed (`Indicators.explained_by`), or observations that
    lack the goal of an episode (`ileed.demonstrations.findings.unpredicted_ends`)."""
    practice: int | None = None
    """The episodes over which a learning curve's change is counted; None where there are no curves."""
    outcomes: int = 0
    """The number of episodes whose outcomes were combined with actions (`ileed.fitted.evidence`)."""

    @property
    def orders_by_skill(self) -> bool:
        """Whether an order of demonstrators is one of skill.

        Continuous actions alone show how closely a demonstrator follows the common policy. A constant offset or a delay
        may follow it closely and fail, pauses may not and succeed: only outcomes tell.
        """
        return self.horizon is None or self.outcomes > 0

    @property
    def replaces_in_sample(self) -> bool:
        """Whether the expertise of a fit is that of its ratings rather than the estimate in sample."""
        return self.horizon is not None or self.outcomes > 0

    @property
    def identification(self) -> str:
        """What the data fix, in one sentence; empty where it was not examined."""
        if self.outcomes:
            known = "" if self.reliability is None else f"; reliability {self.reliability:.2f}"
            return f"expertise combines actions with the outcomes of {self.outcomes:,} episodes{known}"
        if self.horizon is not None:
            known = "" if self.reliability is None else f"; split-half reliability {self.reliability:.2f}"
            steps = "the action" if self.horizon == 1 else f"the mean action over {self.horizon} steps"
            return f"expertise is the share of the variance of {steps} that the policy explains{known}"
        if not self.levels:
            return ""
        low, high = self.levels
        if high <= 1.1 * low:
            return f"the held-out steps fix the level of expertise too, by a sharp policy: {low:.2f} on average"
        if self.free_scales == 0:
            return f"the known skills fix the level of expertise for any policy: {low:.2f} to {high:.2f} on average"
        least = f"mean expertise from {low:.2f} to {high:.2f} explains the held-out steps about equally well"
        each = f" in each of {self.free_scales} skills" if (self.free_scales or 1) > 1 else ""
        return f"the data fix ratios of expertise and not its level{each}: {least}"

    def __post_init__(self) -> None:
        checked_level(self.confidence_level)
        if len(self.levels) not in (0, 2) or not all(0 <= level <= 1 for level in self.levels):
            raise SettingsError(f"levels are {self.levels}: they are two numbers from 0 to 1, or none")
        for name in ("temperature", "dispersion"):
            number(name, getattr(self, name), within=lambda value: value > 0, rule="it must be a number above zero")
        whole_number("folds", self.folds, least=0, rule="it is a whole number, zero or more")
        if self.free_scales is not None:
            whole_number("free_scales", self.free_scales, least=0, rule="it is a whole number, zero or more, or None")
        if self.horizon is not None:
            whole_number("horizon", self.horizon, least=1, rule="it is a whole number of steps, one or more, or None")
        if self.reliability is not None:
            rule = "it is a number from 0 to 1, or None"
            number("reliability", self.reliability, within=lambda value: 0 <= value <= 1, rule=rule)
        if self.practice is not None:
            whole_number("practice", self.practice, least=2, rule="it is a whole number, two or more, or None")
        whole_number("outcomes", self.outcomes, least=0, rule="it is a whole number, zero or more")


def checked_level(value: float, name: str = "confidence_level") -> float:
    """A confidence level or another probability between 0 and 1, both excluded."""
    rule = "it is a probability between 0 and 1, such as 0.95"
    return number(name, value, within=lambda share: 0 < share < 1, rule=rule)
