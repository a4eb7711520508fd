"""Our BCQ and CQL beside d3rlpy's on the fork, our HBC and IRIS beside robomimic's, and our BC with them.

    tests/d3rlpy_environment.sh
    tests/robomimic_environment.sh training
    .venv/bin/python tests/integration/offline_side_by_side.py

writes `offline_side_by_side.json` beside this file and the table of docs/decisions/offline-baselines.md that is made of
it; with `--table` it writes the table alone. What the record holds already is not run again: remove it to run all,
which takes some ten minutes on one core.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD, PAGE = HERE / "offline_side_by_side.json", ROOT / "docs" / "decisions" / "offline-baselines.md"
SIDES = {
    "d3rlpy": (ROOT / ".cache" / "d3rlpy" / "bin" / "python", HERE / "d3rlpy_side.py"),
    "robomimic": (ROOT / ".cache" / "robomimic" / "bin" / "python", HERE / "robomimic_side.py"),
}
"""Others' Python, and what it runs."""
BEGIN, END = "<!-- made by tests/integration/offline_side_by_side.py -->\n", "<!-- end of what was made -->\n"

COMMON: dict[str, Any] = {
    "steps": 2_000,
    "batch_size": 100,
    "hidden": [64, 64],
    "learning_rate": 1e-3,
    "discount": 0.9,
    "target_rate": 0.02,
    "samples": 10,
    "perturbation": 0.05,
    "entropy_weight": 0.01,
    "conservative_weight": 0.02,
    "seeds": [0, 1, 2],
    "data": {"episodes": 200, "good": 0.4, "seed": 0},
    "hierarchy_steps": 1_000,
    "policy_hidden": 32,
    "planner_divergence_weight": 5e-4,
    "value_divergence_weight": 0.05,
    "value_latent": 4,
    "play": {"episodes": 200, "seed": 9},
}


def ours(known: dict[str, list[int]]) -> dict[str, list[int]]:
    """Successes of each of our methods, for each seed; those that are known are taken as they are."""
    import fork

    import ileed
    from ileed.envs.abstract_task import as_actor
    from ileed_lab.baselines import Bcq, Cql, Hbc, Iris

    data = ileed.Demonstrations(**fork.demonstrations(**COMMON["data"]))
    shared = {name: COMMON[name] for name in ("steps", "batch_size", "learning_rate", "discount", "target_rate")}
    shared["hidden"] = tuple(COMMON["hidden"])
    samples = COMMON["samples"]
    bcq = Bcq(
        target_candidates=samples,
        candidates=samples,
        perturbation=COMMON["perturbation"],
        latent=COMMON["value_latent"],
        divergence_weight=COMMON["value_divergence_weight"],
        **shared,
    )
    cql = Cql(
        warm_start=0,
        policy_learning_rate=COMMON["learning_rate"],
        gap=None,
        weight=COMMON["conservative_weight"],
        entropy_weight=COMMON["entropy_weight"],
        samples=samples,
        **shared,
    )
    hbc = Hbc(
        steps=COMMON["hierarchy_steps"],
        batch_size=COMMON["batch_size"],
        planner_hidden=tuple(COMMON["hidden"]),
        divergence_weight=COMMON["planner_divergence_weight"],
        policy_hidden=COMMON["policy_hidden"],
        policy_layers=1,
    )
    methods = {"bc": ileed.bc(restarts=1, steps=1_000), "hbc": hbc, "iris": Iris(hierarchy=hbc, value=bcq)}
    methods |= {"bcq": bcq, "bcq with bounded latents": replace(bcq, latent_bound=0.5), "cql": cql}
    return {
        name: known.get(name)
        or [
            int(fork.successes(as_actor(method.fit(data, seed=seed, device="cpu").policy), **COMMON["play"]).sum())
            for seed in COMMON["seeds"]
        ]
        for name, method in methods.items()
    }


def theirs(library: str) -> dict[str, Any]:
    """Successes of a library's methods, for each seed, and its version."""
    python, side = SIDES[library]
    ran = subprocess.run(
        [str(python), "-W", "ignore", str(side), json.dumps(COMMON)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def share(hits: int, trials: int) -> str:
    """In percent, with Wilson's 95% interval."""
    z, rate = 1.959964, hits / trials
    centre = (rate + z**2 / (2 * trials)) / (1 + z**2 / trials)
    reach = z / (1 + z**2 / trials) * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    return f"{100 * rate:.0f}% [{100 * (centre - reach):.0f}, {100 * (centre + reach):.0f}]"


def table(record: dict[str, Any]) -> str:
    """What the page shows of a record."""
    settings, episodes = record["settings"], record["settings"]["play"]["episodes"]
    own, d3rlpy, robomimic = record["ours"], record["theirs"]["d3rlpy"], record["theirs"]["robomimic"]
    rows = [
        ("BC, ours", "no", own["bc"]),
        ("HBC, ours", "no", own["hbc"]),
        (f"HBC, robomimic {robomimic['version']}", "no", robomimic["successes"]["hbc"]),
        ("IRIS, ours", "yes", own["iris"]),
        (f"IRIS, robomimic {robomimic['version']}", "yes", robomimic["successes"]["iris"]),
        ("BCQ, ours", "yes", own["bcq"]),
        ("BCQ, ours, latents bounded as d3rlpy's", "yes", own["bcq with bounded latents"]),
        (f"BCQ, d3rlpy {d3rlpy['version']}", "yes", d3rlpy["successes"]["bcq"]),
        ("CQL, ours", "yes", own["cql"]),
        (f"CQL, d3rlpy {d3rlpy['version']}", "yes", d3rlpy["successes"]["cql"]),
    ]
    lines = [
        f"| method | uses rewards | at the goal, of {len(settings['seeds']) * episodes} | of {episodes}, by seed |",
        "|---|---|---|---|",
    ]
    for name, rewards, counts in rows:
        pooled = share(sum(counts), episodes * len(counts))
        lines.append(f"| {name} | {rewards} | {pooled} | {', '.join(map(str, counts))} |")
    note = (
        f"Intervals speak of chance in the episodes; the seeds show chance in the fits. BCQ and CQL took "
        f"{settings['steps']:,} gradient steps of {settings['batch_size']} transitions, BC and HBC half as many, and "
        f"so did all parts of robomimic's; {record['when']}, {record['machine']}."
    )
    return "\n".join([*lines, "", note, ""])


def main() -> None:
    """Run all sides unless told to write the table alone."""
    if "--table" not in sys.argv:
        before = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        known = before if before.get("settings") == COMMON else {"ours": {}, "theirs": {}}
        record = {
            "settings": COMMON,
            "ours": ours(known["ours"]),
            "theirs": {library: known["theirs"].get(library) or theirs(library) for library in SIDES},
            "when": datetime.now(UTC).date().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        }
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    above, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(above + BEGIN + table(json.loads(RECORD.read_text())) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
