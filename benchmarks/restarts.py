"""How long 20 restarts take: the paper's procedure done plainly, against ours, in one run.

    python benchmarks/restarts.py                       # both tasks, on the best device there is
    python benchmarks/restarts.py --plain-restarts 1    # time one plain restart and multiply (a CPU needs hours for 20)
    python benchmarks/restarts.py --ways ours plain     # some of the ways alone

The plain procedure takes one restart after the other, each a full batch of raw flat observations (2,835 numbers, with
the constant encoding of the mission that minigrid's own wrapper appends), with `torch.nn.Linear` and two Adam
optimisers: the same model, sizes and steps as ours. Between the two stands our own engine fitting one restart at a
time, which shows how much comes from collapsing the data and how much from fitting all restarts together. The plain
procedure gives no ratings, so neither do these two (`folds=0`); ours with cross-fitting, the default, is timed apart.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ileed
from ileed import runs
from ileed._torch import resolve_device
from ileed.data import Demonstrations
from ileed.formats import read_parquet, shipped, write_parquet
from ileed_lab.minigrid.mission import flat_with_mission

HERE = Path(__file__).parent
HIDDEN = 4
POLICY = ileed.CategoricalMLP(hidden=(HIDDEN, HIDDEN))
OURS = "ours"
WAYS = (OURS, "ours, with cross-fitting", "ours, one restart at a time", "plain")


class Plain(nn.Module):
    """The joint model of one restart, as a reader of the paper would write it."""

    def __init__(self, inputs: int, actions: int, demonstrators: int) -> None:
        super().__init__()
        self.policy = self._mlp(inputs, actions)
        self.embedding = self._mlp(inputs, 2)
        self.skill = nn.Parameter(torch.randn(demonstrators, 2))

    @staticmethod
    def _mlp(inputs: int, outputs: int) -> nn.Sequential:
        layers = (nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        return nn.Sequential(*layers, nn.Linear(HIDDEN, outputs))

    def forward(self, observations: Tensor, demonstrator: Tensor, action: Tensor) -> Tensor:
        """Mean negative log-likelihood, in nats per action."""
        probs = self.policy(observations).softmax(-1)
        taken = probs.gather(1, action[:, None])[:, 0]
        expertise = (self.embedding(observations) * self.skill[demonstrator]).sum(-1).sigmoid()
        return -(expertise * taken + (1 - expertise) / probs.shape[-1]).log().mean()


def plain(data: Demonstrations, task: str, *, restarts: int, steps: int, device: torch.device) -> tuple[float, float]:
    """Seconds and the best cost of restarts done one after the other on raw data."""
    observations = torch.from_numpy(flat_with_mission(np.asarray(data.observations), task)).float().to(device)
    who = torch.from_numpy(data.demonstrator.copy()).to(device)
    action = torch.from_numpy(data.actions.copy()).to(device)
    best = float("inf")
    began = _now(device)
    for restart in range(restarts):
        torch.manual_seed(restart)
        model = Plain(observations.shape[1], data.action_count, len(data.names)).to(device)
        networks = torch.optim.Adam([*model.policy.parameters(), *model.embedding.parameters()], lr=1e-3)
        skills = torch.optim.Adam([model.skill], lr=1e-2)
        for _ in range(steps):
            networks.zero_grad()
            skills.zero_grad()
            cost = model(observations, who, action)
            cost.backward()
            networks.step()
            skills.step()
        with torch.no_grad():
            best = min(best, float(model(observations, who, action)))
    return _now(device) - began, best


def together(
    data: Demonstrations, *, restarts: int, steps: int, device: torch.device, folds: int | None = 0
) -> tuple[float, float]:
    """Seconds and the best cost of one call of `fit`, from the data as they come to a fitted policy."""
    began = _now(device)
    method = ileed.Ileed(policy=POLICY, restarts=restarts, steps=steps, folds=folds)
    fitted = method.fit(data, seed=0, device=device.type)
    return _now(device) - began, fitted.nats_per_action


def one_by_one(data: Demonstrations, *, restarts: int, steps: int, device: torch.device) -> tuple[float, float]:
    """Seconds and the best cost of our own engine, fitting one restart after the other on collapsed data."""
    began = _now(device)
    method = ileed.Ileed(policy=POLICY, restarts=1, steps=steps, folds=0)
    best = min(method.fit(data, seed=seed, device=device.type).nats_per_action for seed in range(restarts))
    return _now(device) - began, best


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def data_of(task: str) -> Demonstrations:
    """The demo's data for Obstacles; for others the `unif` population, made once and kept in benchmarks/data."""
    if task == "minigrid/obstacles":
        return shipped()
    path = HERE / "data" / f"{task.replace('/', '-')}.parquet"
    if not path.exists():
        from ileed import envs
        from ileed.envs import simulation

        skill = simulation.POPULATIONS["unif"]
        made = simulation.demonstrate(envs.task(task), envs.expert(task), skill=skill, steps=1000, seed=0)
        path.parent.mkdir(exist_ok=True)
        write_parquet(made, path)
    return read_parquet(path)


def measured(task: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """All ways on one task, in one run, with ratios to ours."""
    data = data_of(task)
    sizes = {"restarts": options.restarts, "steps": options.steps, "device": device}
    for warm_up in (together, one_by_one):  # chooses kernels and allocates
        warm_up(data, restarts=2, steps=5, device=device)
    plain(data, task, restarts=1, steps=5, device=device)
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        OURS: lambda: together(data, **sizes),
        "ours, with cross-fitting": lambda: together(data, **sizes, folds=None),
        "ours, one restart at a time": lambda: one_by_one(data, **sizes),
        "plain": lambda: plain(data, task, **{**sizes, "restarts": options.plain_restarts or options.restarts}),
    }
    rows: dict[str, Any] = {}
    for name in options.ways:
        worked = time.process_time()
        seconds, cost = ways[name]()
        worked = time.process_time() - worked
        if name == "plain":
            timed = options.plain_restarts or options.restarts
            rows[name] = {"timed_restarts": timed, "timed_seconds": seconds}
            seconds, worked = (each * options.restarts / timed for each in (seconds, worked))
        found = {"seconds": seconds, "processor_seconds": worked, "best_nats_per_action": cost}
        rows.setdefault(name, {}).update(found)
        print(f"{task:20} {name:30} {seconds:10.2f} s   best {cost:.4f} nats per action", flush=True)
    for name in rows.keys() & {"ours, one restart at a time", "plain"} if OURS in rows else ():
        rows[name]["times_ours"] = rows[name]["seconds"] / rows[OURS]["seconds"]
        print(f"{task:20} {name:30} takes {rows[name]['times_ours']:,.0f} times as long as ours", flush=True)
    if options.members:
        seconds, cost = together(data, restarts=options.members, steps=options.steps, device=device)
        rows[f"ours, {options.members:,} restarts"] = {"seconds": seconds, "best_nats_per_action": cost}
        print(f"{task:20} ours, {options.members:,} restarts {seconds:18.2f} s   best {cost:.4f}", flush=True)
    return rows


def main() -> None:
    """Print the table and write it as JSON, with what made it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["minigrid/empty", "minigrid/obstacles"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--plain-restarts", type=int, help="time so many plain restarts and multiply")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS, help="to time")
    parser.add_argument("--members", type=int, default=0, help="also fit so many restarts at once")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args()
    device = resolve_device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    record: dict[str, Any] = {
        "provenance": runs.provenance() | {"device": name, "threads": torch.get_num_threads()},
        "settings": {"restarts": options.restarts, "steps": options.steps, "expertise": "Embedded(dim=2)"},
        "tasks": {task: measured(task, options, device) for task in options.tasks},
    }
    if options.out:
        runs.write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
