"""How to optimise: step sizes, batches, and what to choose by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from ileed.checking import number, whole_number


@final
@dataclass(frozen=True, kw_only=True)
class OptimiserSettings:
    """Settings of the optimisation: Adam, with one learning rate for networks and one for w, for `steps` steps.

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
        checked: dict[str, object] = {}
        rule = "a fit takes a whole number of steps, one or more"
        checked["steps"] = whole_number("steps", self.steps, least=1, rule=rule)
        rule = "it is a share of the episodes, from 0 up to but not 1"
        checked["held_out"] = number("held_out", self.held_out, within=lambda share: 0 <= share < 1, rule=rule)
        if self.batch_size is not None:
            rule = "it must be a whole number, one or more, or None to choose by the data"
            checked["batch_size"] = whole_number("batch_size", self.batch_size, least=1, rule=rule)
        rule = "it must be a number above zero"
        for name in ("learning_rate", "skill_learning_rate", *(["clip"] if self.clip is not None else [])):
            checked[name] = number(name, getattr(self, name), within=lambda size: 0 < size < math.inf, rule=rule)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
