"""How wide the policy's network should be: what `Ileed()` chooses, and what every width would have given.

    python benchmarks/policy_width.py data --positions FILE   # make the data sets, into benchmarks/data/width
    python benchmarks/policy_width.py fit --out FILE          # fit every width to every data set (minutes on a GPU)
    python benchmarks/policy_width.py play FILE               # score the policies where there is a task to play
    python benchmarks/policy_width.py page                    # write docs/decisions/width.md from the record

`--positions` names a table of king-and-pawn positions (`ileed chess extract` writes one). The rule (widths, share held
out, one standard error, restarts of the comparison) was fixed after looking at data sets of seed 0; those that the page
shows have other seeds, but for the positions, of which there is one set.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ileed
from ileed import runs
from ileed.data import Demonstrations
from ileed.parallel.runtime import resolve_device
from ileed.selection import LADDER
from ileed_lab.ranking import rank_correlation
from ileed_lab.result_pages import ResultPage

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks" / "data" / "width"
RECORD = ROOT / "results" / "benchmarks" / "policy-width.json"
PAGE = ROOT / "docs" / "decisions" / "width.md"
EPISODES = 200

Known = dict[str, float]


def data_sets(seeds: Sequence[int], tables: int, positions: Path | None) -> Iterator[tuple[str, Demonstrations, Known]]:
    """Data sets by name, with the known skill of every demonstrator."""
    sys.path.insert(0, str(ROOT / "tests"))
    from cartpole import cartpole

    from ileed import envs
    from ileed.envs import simulation
    from ileed_lab.minigrid.sequence import actor_by_stage, experts, multi_skill
    from ileed_lab.reach import ReachExpert

    for seed in seeds:
        for name in ("empty", "lava", "obstacles", "unlock"):
            task = envs.task(f"minigrid/{name}")
            for population in ("beta-1", "unif"):
                skill = simulation.POPULATIONS[population]
                data = simulation.demonstrate(task, envs.expert(task.name), skill=skill, steps=1000, seed=seed)
                yield f"minigrid-{name} {population} {seed}", data, dict(zip(data.names, skill, strict=True))
        skills = multi_skill(0.1)
        task = envs.task("minigrid/skills")
        data = simulation.demonstrate(task, actor_by_stage(experts(task), task), skill=skills, steps=10_000, seed=seed)
        yield f"minigrid-skills beta-0.1 {seed}", data, {}
        levels = np.linspace(0.1, 0.95, 8).tolist()
        data = cartpole(seed, skill=levels, steps=1000)
        yield f"cartpole uniform {seed}", data, dict(zip(data.names, levels, strict=True))
        levels = [0.05, 0.1, 0.2, 0.4, 0.6, 0.8]
        data = simulation.demonstrate(envs.task("robot/reach"), ReachExpert(), skill=levels, steps=1000, seed=seed)
        yield f"reach variance {seed}", data, dict(zip(data.names, levels, strict=True))
    yield from triage_tables(range(seeds[0], seeds[0] + tables))
    yield "square small 0", ileed.shipped("square"), {}
    if positions is not None:
        from ileed_lab.chess.positions import demonstrations, rating_bins, read_positions

        table = read_positions(positions)
        yield "chess positions 0", demonstrations(table, rating_bins(table)), {}


def triage_tables(seeds: Sequence[int]) -> Iterator[tuple[str, Demonstrations, Known]]:
    """Tables of decisions, through the door that users take."""
    from triage import triage

    for seed in seeds:
        columns, known = triage(seed)
        table = {name: values for name, values in columns.items() if name != "case"}
        yield f"triage table {seed}", ileed.from_table(table, action="decision", demonstrator="nurse"), known


def studied(path: Path, *, device: str, kept: Path) -> dict[str, Any]:
    """What `Ileed()` chooses on one data set, and what each width gives on all of it."""
    data, known = ileed.read_parquet(path), json.loads(path.with_suffix(".json").read_text())
    default = ileed.Ileed().fit(data, seed=0, device=device)
    assert default.width is not None
    chosen = default.joint.parts.policy.hidden
    head = ileed.CategoricalMLP if data.discrete else ileed.MixtureMLP
    rows = []
    for hidden in LADDER:
        method = ileed.Ileed(policy=head(hidden=hidden))
        fitted = default if hidden == chosen else method.fit(data, seed=0, device=device)
        fitted.save(kept / f"{path.stem} {hidden[0]}", overwrite=True)
        rows.append(
            {
                "hidden": hidden,
                "nats_per_action": round(fitted.nats_per_action, 4),
                "rank_correlation": _agreement(fitted, known),
                "outcome": fitted.outcome.name,
                "seconds": fitted.provenance["seconds"],
            }
        )
    compared = {name: getattr(default.width, name) for name in ("nats_per_action", "standard_errors")}
    compared["hidden"] = [each["policy"].hidden for each in default.width.settings]
    kind, population, seed = path.stem.split(" ")
    return {
        "data": kind,
        "population": population,
        "seed": int(seed),
        "demonstrators": len(data.names),
        "steps": len(data),
        "chosen": chosen,
        "held_out": compared | {"steps": default.width.held_out_steps},
        "widths": rows,
    }


def _agreement(fitted: ileed.Fitted, known: Known) -> float | None:
    estimated = fitted.expertise.by_demonstrator()
    return rank_correlation([estimated[name] for name in known], list(known.values())) if known else None


def played(record: dict[str, Any], kept: Path) -> None:
    """Add the reward, or the share of best decisions, of every width's policy to a record of `fit`."""
    sys.path.insert(0, str(ROOT / "tests"))
    from triage import best_decision, case_columns

    cases = case_columns(np.random.default_rng(1), 5000)
    for found in record["sets"]:
        for row in found["widths"]:
            run = kept / f"{found['data']} {found['population']} {found['seed']} {row['hidden'][0]}"
            policy = ileed.load(run).policy
            if found["data"] == "triage":
                row["score"] = float(np.mean(policy.act(cases) == best_decision(cases)))
            elif found["data"] not in ("square", "chess"):
                task = {"cartpole": "CartPole-v1", "reach": "robot/reach"}.get(found["data"])
                scores = ileed.evaluate(
                    policy, task or found["data"].replace("-", "/"), episodes=EPISODES, seed=found["seed"]
                )
                row["score"] = round(scores.mean, 4)
        print(
            found["data"],
            found["population"],
            found["seed"],
            found["chosen"],
            [row.get("score") for row in found["widths"]],
        )


SOURCE = "<!-- Generated by `python benchmarks/policy_width.py page` from results/benchmarks/policy-width.json. -->"
DECISION = """\
**`Ileed()` chooses the width of the policy by held-out cost.** The paper's networks have two hidden layers of four
units, which suffice for MiniGrid and are far too narrow for a table of decisions; the training cost does not show it.

- A fifth of each demonstrator's episodes is held out (blocks of steps if no demonstrator has two episodes). Larger data
  are represented by about 100,000 steps in randomly drawn whole episodes.
- Policies with two hidden layers of 4, 8 and 32 units are fitted to the rest, three restarts each, with the settings of
  the final fit; 128 units are tried if 32 win.
- Each width is rated by the held-out cost of its most likely restart. The narrowest width within one standard error of
  the best wins (of the paired difference, over episodes).

The final fit uses all episodes. `Fitted.width` keeps the comparison. An explicit `policy` is used as it is;
`fit(..., check_width=True)` then reports whether a wider one would explain held-out actions better. The reproduction of
the paper bypasses the comparison (`fit_each`) and keeps (4, 4).

A rule by data size would not work: the same number of steps asks for 4 units in MiniGrid and for 32 in a table. Always
taking the widest would not work either: networks of 128 units memorise small data sets within the usual 2,000 steps,
act worse and rate all demonstrators as perfect. The one-standard-error rule prefers narrow networks, which are faster,
where the data cannot decide."""
TABLES = """\
Means over data sets (their number in brackets), with the choice of `Ileed()` in bold: the held-out cost in nats per
action (lower is better), the rank correlation of estimated with known skill (below 1 in the populations `beta-1`, where
nine of ten demonstrators are equally skilled), and the score of the policy learned from all data: mean reward of
{episodes} episodes, or the share of best decisions in 5,000 new cases. A triage table has 30 demonstrators with 200
cases each; over its {tables} sets the lowest rank correlation of `Ileed()` is {lowest:.3f}.
"""


def page() -> ResultPage:
    """The decision, and every width on every kind of data."""
    record = json.loads(RECORD.read_text())
    groups: dict[str, list[dict[str, Any]]] = {}
    for found in record["sets"]:
        groups.setdefault(f"{found['data']}, {found['population']}", []).append(found)
    widths = [hidden[0] for hidden in LADDER]
    triage = [_of_chosen(found, _rank) for found in record["sets"] if found["data"] == "triage"]
    lines = [
        TABLES.format(episodes=EPISODES, tables=len(triage), lowest=min(each for each in triage if each is not None))
    ]
    for title, value in (
        ("Held-out cost", _held_out),
        ("Rank correlation with known skill", _rank),
        ("Score of the policy", lambda found, k: found["widths"][k].get("score")),
    ):
        lines += [f"\n## {title}\n", f"| data | chosen | {' | '.join(map(str, widths))} | `Ileed()` |"]
        lines.append("|---" * (len(widths) + 3) + "|")
        for name, found in groups.items():
            cells = [[value(each, k) for each in found] for k in range(len(widths))]
            own = [_of_chosen(each, value) for each in found]
            if any(each is None for each in own):
                continue
            counts = Counter(each["chosen"][0] for each in found)
            chosen = ", ".join(
                f"{width}" + (f" x {count}" if count > 1 else "") for width, count in sorted(counts.items())
            )
            lines.append(f"| {name} ({len(found)}) | {chosen} | {' | '.join(map(_mean, cells))} | **{_mean(own)}** |")
    made = record["provenance"]
    lines.append(
        f"\nFitted on {made['device']} with torch {made['torch']}, commit {made['commit']}, {made['date'][:10]}.\n"
    )
    return ResultPage("width", "The width of the policy", SOURCE, [DECISION], ["\n".join(lines).strip()])


def _of_chosen(found: dict[str, Any], value: Callable[[dict[str, Any], int], float | None]) -> float | None:
    return value(found, [hidden[0] for hidden in LADDER].index(found["chosen"][0]))


def _rank(found: dict[str, Any], place: int) -> float | None:
    rank: float | None = found["widths"][place]["rank_correlation"]
    return rank


def _held_out(found: dict[str, Any], place: int) -> float | None:
    costs = found["held_out"]["nats_per_action"]
    return costs[place] if place < len(costs) else None


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    few = "" if len(known) == len(values) else f" ({len(known)})"
    return f"{np.mean(known):.3f}{few}" if known else ""


def _name(device: str) -> str:
    """What the device is called, as records name it."""
    place = resolve_device(device)
    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"


def main() -> None:
    """Run one part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("data", "fit", "play", "page"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[100, 101, 102])
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--positions", type=Path)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--kept", type=Path, default=DATA / "runs")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    if asked.part == "data":
        for name, data, known in data_sets(asked.seeds, asked.tables, asked.positions):
            ileed.write_parquet(data, DATA / f"{name}.parquet")
            runs.write_file(DATA / f"{name}.json", json.dumps(known).encode())
            print(name, repr(data))
    elif asked.part == "fit":
        record: dict[str, Any] = {"provenance": runs.provenance() | {"device": _name(asked.device)}, "sets": []}
        for path in sorted(DATA.glob("*.parquet")):
            record["sets"].append(studied(path, device=asked.device, kept=asked.kept))
            print(
                path.stem, record["sets"][-1]["chosen"], record["sets"][-1]["held_out"]["nats_per_action"], flush=True
            )
            runs.write_file(asked.out, json.dumps(record, indent=1).encode())
    elif asked.part == "play":
        record = json.loads(asked.out.read_text())
        played(record, asked.kept)
        runs.write_file(asked.out, (json.dumps(record, indent=1) + "\n").encode())
    else:
        page().write(PAGE)


if __name__ == "__main__":
    main()
