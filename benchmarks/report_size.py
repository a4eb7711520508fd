"""A report of 5,000 demonstrators and 5 million steps: how large the page is, and how soon a browser shows it.

Demonstrators are rated by a hundred of their steps each, since cross-fitting all steps would take long and changes
neither the size of the page nor the time to open it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from time import monotonic

import numpy as np

import ileed
from ileed import runs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def people(count: int, steps: int) -> ileed.Demonstrations:
    """Demonstrators of rising skill among forty states, in episodes of fifty steps."""
    chance = np.random.default_rng(0)
    who = np.repeat(np.arange(count), steps)
    state = chance.integers(40, size=len(who))
    right = chance.random(len(who)) < (who + 1) / count
    return ileed.Demonstrations(
        observations=np.stack([state, state % 7, state // 8], axis=1).astype(np.float32),
        actions=np.where(right, state % 3, chance.integers(3, size=len(who))),
        demonstrator=who,
        episode=np.arange(len(who)) // 50,
        names=tuple(f"operator {k:04d} of the night shift" for k in range(count)),
    )


def main() -> None:
    """Fit, write the page, open it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=1_000, help="of each demonstrator")
    parser.add_argument("--keep", type=Path, help="where to leave the page")
    parser.add_argument("--out", type=Path, help="where to write the record")
    asked = parser.parse_args()
    data = people(asked.people, asked.steps)
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(8,)), restarts=2, steps=40, folds=0)
    fitted = method.fit(data, seed=0, device="cpu")
    few = data.select(np.arange(len(data)) % asked.steps < 100)
    fitted = fitted.with_ratings(fitted.assess(few))
    with tempfile.TemporaryDirectory() as folder:
        fitted.save(Path(folder) / "run")
        began = monotonic()
        page = ileed.report(Path(folder) / "run", data=data, out=asked.keep or Path(folder) / "page.html")
        found = {"people": asked.people, "steps": len(data), "seconds to write": round(monotonic() - began, 1)}
        found["bytes"] = page.stat().st_size
        from browser import CHROMIUM, browser  # type: ignore[import-not-found]

        if CHROMIUM is not None:
            with browser() as opened:
                found["seconds to open"] = round(min(opened.open(page) for _ in range(3)), 2)
                found["requests"] = len(set(opened.requests)) - 1
    print(json.dumps(found))
    if asked.out is not None:
        load = round(os.getloadavg()[0], 1)
        record = {"provenance": runs.provenance(), "load": load, "report": found}
        asked.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
