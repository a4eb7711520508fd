"""Control steps per second in Square: robosuite's own `env.step` beside our loop, the same actions, in one run.

python benchmarks/square_steps.py --out results/benchmarks/square-steps.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ileed.runs import provenance, write_file
from ileed_lab.square.world import ENV_ARGS, SquareWorld


def main() -> None:
    """Time both by turns and write one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/square-steps.json"))
    options = parser.parse_args()
    world = SquareWorld()  # imports robosuite quietly
    import robosuite

    environment: Any = robosuite.make(ENV_ARGS["env_name"], **ENV_ARGS["env_kwargs"], renderer="mujoco")
    actions = 0.2 * np.random.default_rng(0).standard_normal((options.steps, 7))
    rates: dict[str, list[float]] = {"robosuite": [], "ours": []}
    for _ in range(options.rounds):
        environment.reset()
        world.reset(0)
        rates["robosuite"].append(_rate(environment.step, actions))
        rates["ours"].append(_rate(world.step, actions))
    record = {
        "provenance": provenance(),
        "settings": {"steps": options.steps, "rounds": options.rounds},
        "steps_per_second": {way: median(found) for way, found in rates.items()},
    }
    write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())


def _rate(step: Callable[[Any], Any], actions: np.ndarray[Any, Any]) -> float:
    step(actions[0])
    began = time.perf_counter()
    for action in actions:
        step(action)
    return len(actions) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
