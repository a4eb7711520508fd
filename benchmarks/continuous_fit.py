"""How long fits, comparisons and recurrent policies of continuous actions take, now and at an earlier commit.

$ git worktree add ../before 7d86d9a
$ python benchmarks/continuous_fit.py --before ../before [--calls large compare] [--out FILE]

Each call runs in a process of its own that imports the library from one of the two trees, on the same data: simulated
states that drift, a smooth policy and demonstrators of different noise. "large" is the default fit of 40,000 steps, 20
features and 12 actions, "laps" that of 137,600 steps, 11 features and 2 actions; "compare", "auto" and "recurrent" have
240 episodes of 90 steps, 10 features and 4 actions. --before-calls says which calls the earlier tree runs too, and
--limit after how many seconds the earlier tree is stopped. Rows of other calls that are in FILE stay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CALLS = ("large", "laps", "compare", "auto", "recurrent")
_SHAPES = {"large": (8, 50, 100, 20, 12), "laps": (13, 23, 460, 11, 2)}
"""Demonstrators, episodes of each, steps, features and actions."""
_SMALL = (8, 30, 90, 10, 4)


def demonstrations(call: str) -> Any:
    """The data of a call."""
    import ileed

    people, episodes, length, features, actions = _SHAPES.get(call, _SMALL)
    random = np.random.default_rng(0)
    count = people * episodes
    state = np.cumsum(random.normal(size=(count, length, features)), axis=1) / 5
    mean = np.tanh(state @ random.normal(size=(features, actions)) / 3)
    noise = np.linspace(0.1, 0.8, people)[np.repeat(np.arange(people), episodes)]
    acted = mean + noise[:, None, None] * random.normal(size=mean.shape)
    return ileed.Demonstrations(
        observations=state.reshape(-1, features).astype(np.float32),
        actions=acted.reshape(-1, actions).astype(np.float32),
        demonstrator=np.repeat(np.arange(people), episodes * length),
        episode=np.repeat(np.arange(count), length),
        names=tuple(f"operator {number}" for number in range(people)),
    )


def seconds(call: str, device: str) -> float:
    """How long one call takes, in this process."""
    import ileed

    data = demonstrations(call)
    began = time.perf_counter()
    if call == "compare":
        ileed.compare(data, seed=0, device=device)
    elif call == "auto":
        ileed.Ileed(demonstrator="auto").fit(data, seed=0, device=device)
    elif call == "recurrent":
        policy = ileed.MixtureLSTM(hidden=(64,))
        ileed.Ileed(policy=policy, restarts=1, folds=5).fit(data, seed=0, device=device)
    else:
        ileed.Ileed().fit(data, seed=0, device=device)
    return time.perf_counter() - began


def _in_tree(tree: Path, call: str, device: str, limit: float | None = None) -> float | None:
    """The same in a process that imports the library from a tree; None if it takes more than `limit` seconds."""
    words = [sys.executable, __file__, "--call", call, "--device", device]
    paths = os.pathsep.join(filter(None, [str(tree / "src"), os.environ.get("PYTHONPATH")]))
    try:
        found = subprocess.run(
            words, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return None
    return float(found.stdout.split()[-1])


def _sizes() -> dict[str, str]:
    """The size of each call's data, in words."""
    found = {}
    for call in CALLS:
        people, episodes, length, features, actions = _SHAPES.get(call, _SMALL)
        size = f"{people * episodes:,} episodes of {length} steps, {features} features, {actions} actions"
        found[call] = f"{'default fit' if call in _SHAPES else call}: {size}"
    return found


def main() -> None:
    """Print seconds before and now, and their ratio; write them where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--calls", nargs="+", default=list(CALLS), choices=CALLS)
    parser.add_argument("--before-calls", nargs="+", default=list(CALLS), choices=CALLS)
    parser.add_argument("--before-commit", help="of an earlier tree without a history")
    parser.add_argument("--limit", type=float)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--call", choices=CALLS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.call is not None:
        print(seconds(given.call, given.device))
        return
    from ileed import runs

    here, rows = Path(__file__).parents[1], []
    if given.out is not None and given.out.exists():
        rows = [row for row in json.loads(given.out.read_text())["rows"] if row["call"] not in given.calls]
    for call in given.calls:
        row = {"call": call, "now": _in_tree(here, call, given.device)}
        if given.before is not None and call in given.before_calls:
            before = _in_tree(given.before, call, given.device, given.limit)
            row |= {"before_above": given.limit} if before is None else {"before": before}
        rows.append(row)
        print(
            "  ".join(f"{name} {value if isinstance(value, str) else round(value, 1)}" for name, value in row.items())
        )
        if given.out is not None:
            rows.sort(key=lambda row: CALLS.index(row["call"]))
            cores = len(os.sched_getaffinity(0))
            record = {"provenance": runs.provenance(), "device": given.device, "cores": cores, "rows": rows}
            if given.before is not None:
                record["before_commit"] = given.before_commit or _commit(given.before)
            record["sizes"] = _sizes()
            runs.write_file(given.out, (json.dumps(record, indent=2) + "\n").encode())


def _commit(tree: Path) -> str:
    words = ["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
