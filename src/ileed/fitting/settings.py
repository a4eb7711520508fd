"""How to climb: step sizes, batches, and what to choose by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ileed.errors import SettingsError


@final
@dataclass(frozen=True, kw_only=True)
class Climb:
    """How to climb: two Adam optimisers (one for networks, one for the demonstrators' w) for an exact number of steps.

    `batch_size` is the number of steps drawn for each gradient; None takes the whole data set where observations
    repeat, and 256 where they do not. `clip` bounds each member's gradient norm on its own. `held_out` keeps that
    share of everybody's episodes for choosing among members (and among each member's steps); 0 chooses by the
    likelihood of all the data, as the paper does.
    """

    steps: int = 2000
    learning_rate: float = 1e-3
    skill_learning_rate: float = 1e-2
    batch_size: int | None = None
    clip: float | None = None
    held_out: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.steps != int(self.steps):
            raise SettingsError(f"steps is {self.steps}: a fit takes a whole number of steps, one or more")
        if self.batch_size is not None and self.batch_size < 1:
            raise SettingsError(
                f"batch_size is {self.batch_size}: it must be one or more, or None to choose by the data"
            )
        if not 0 <= self.held_out < 1:
            raise SettingsError(f"held_out is {self.held_out}: it is a share of the episodes, from 0 up to but not 1")
        for name in ("learning_rate", "skill_learning_rate", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SettingsError(f"{name} is {value}: it must be a number above zero")
