"""What the campaigns of kills share: the record of what was found, and the loop over trials that writes it."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ileed import runs

MOST_KILLS_IN_A_TRIAL = 3


@dataclass
class Record:
    """What was found so far; written as JSON."""

    seed: int
    trials: int = 0
    kills: int = 0
    by_place: Counter[str] = field(default_factory=Counter)
    found_after_a_kill: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    unequal: int = 0
    touched: int = 0
    left_over: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def read(cls, path: Path, seed: int) -> Self:
        """The record of trials that are done, if there is one of the same seed."""
        if not path.exists():
            return cls(seed)
        saved = json.loads(path.read_text())
        if saved["seed"] != seed:
            raise SystemExit(f"{path} is a record of seed {saved['seed']}: choose another --out, or that seed")
        kept = {name: saved[name] for name in vars(cls(seed))}
        return cls(**{name: Counter(value) if isinstance(value, dict) else value for name, value in kept.items()})

    def write(self, path: Path, about: Mapping[str, Any]) -> None:
        found = {**about, "provenance": runs.provenance(), **vars(self)}
        runs.write_file(path, (json.dumps(found, indent=2) + "\n").encode())

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.unequal or self.touched or self.left_over or self.failures)

    def run(self, trial: Callable[[random.Random], bool], kills: int, out: Path, about: Mapping[str, Any]) -> int:
        """Run trials until there were so many kills, or one asks to stop; returns the exit code."""
        goes_on = True
        while goes_on and self.kills < kills:
            began = time.monotonic()
            goes_on = trial(random.Random(f"{self.seed} {self.trials}"))
            self.seconds = round(self.seconds + time.monotonic() - began, 3)
            self.trials += 1
            if self.trials % 10 == 0:
                self.write(out, about)
                print(f"{self.kills} kills in {self.trials} trials, {len(self.failures)} failures", flush=True)
        self.write(out, about)
        print(json.dumps({"kills": self.kills, "lost": self.lost, "unequal": self.unequal}))
        return 0 if self.is_clean else 1


def parsed(words: list[str] | None, about: str, out: str) -> argparse.Namespace:
    """The options of a campaign."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(out))
    return parser.parse_args(words)
