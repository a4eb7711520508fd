"""Policies that play Overcooked in the package's own simulator, which runs in an environment of its own."""

from __future__ import annotations

import ast
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np

from ileed import IleedError
from ileed.data import Array
from ileed_lab.people.overcooked.trials import Trial
from ileed_lab.people.overcooked.views import view

__all__ = ["ENVIRONMENT", "RULES", "Simulator", "play"]

ENVIRONMENT = Path(__file__).parents[4] / ".cache" / "overcooked"
RULES = ("2019", "1.1.0")
"""Those that demonstrators played by, and those of the package."""
SOUP = 20
"""The package's reward for a soup of three onions."""
_SCRIPT = Path(__file__).with_name("simulator.py")
_MADE: tuple[Any, ...] = ((0, -1), (0, 1), (-1, 0), (1, 0), "INTERACT")
"""What each of our actions is to the simulator."""


@final
class Simulator:
    """A process that asks the package what happens in its kitchens."""

    def __init__(self) -> None:
        python = ENVIRONMENT / "bin" / "python"
        if not python.exists():
            raise IleedError(f"there is no {python}: tests/overcooked_environment.sh makes the simulator's environment")
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed on exit
        self._process = subprocess.Popen(
            [str(python), str(_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def start(self, maps: Sequence[Sequence[str]], rules: str) -> list[Mapping[str, Any]]:
        """The first state of one game for each map."""
        return list(self._ask({"start": [list(tiles) for tiles in maps], "rules": rules})["states"])

    def step(self, actions: Array) -> tuple[list[Mapping[str, Any]], Array]:
        """The next state and the soups delivered in each game, where both players do what their numbers say."""
        answer = self._ask({"actions": [[_MADE[first], _MADE[second]] for first, second in actions]})
        return list(answer["states"]), np.array(answer["rewards"]) / SOUP

    def check(self, trial: Trial, rules: str) -> dict[str, float]:
        """Recorded steps, how many of them come out as they were recorded, and the soups delivered in them."""
        states, actions = ([ast.literal_eval(text) for text in each] for each in (trial.states, trial.actions))
        answer = self._ask({"check": list(trial.tiles), "states": states, "actions": actions, "rules": rules})
        return {"steps": answer["steps"], "alike": answer["alike"], "soups": answer["reward"] / SOUP}

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._log.seek(0)
            reason = (self._log.read().strip().splitlines() or ["it says nothing"])[-1]
            raise IleedError(f"the simulator of Overcooked failed ({reason}): look at its environment, {ENVIRONMENT}")
        return dict(json.loads(answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


def play(
    simulator: Simulator,
    policy: Any,
    kitchens: Sequence[Trial],
    *,
    rules: str,
    steps: int,
    noise: np.random.Generator | None,
) -> Array:
    """(game,) soups delivered where both players follow a policy, in the kitchens of some trials, for `steps` steps.

    Actions are drawn from the policy with `noise`, and are the likeliest ones without.
    """
    states, soups = simulator.start([each.tiles for each in kitchens], rules), np.zeros(len(kitchens))
    for _ in range(steps):
        seen = [
            view(kitchen, state, player) for kitchen, state in zip(kitchens, states, strict=True) for player in range(2)
        ]
        scores = np.asarray(policy.distribution(np.stack(seen)).logits)
        if noise is not None:
            scores = scores + noise.gumbel(size=scores.shape)  # the largest is then a draw from the policy
        states, delivered = simulator.step(scores.argmax(1).reshape(-1, 2))
        soups += delivered
    return soups
