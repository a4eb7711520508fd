"""Seconds of one fit by the number of processes that share it, and whether all find the same bits.

python benchmarks/processes.py --processes 1 2 4 8 16 --out results/benchmarks/processes.json
python benchmarks/processes.py --processes 1 2 --device cuda        # two processes on one GPU
python benchmarks/processes.py --processes 1 2 4 --restarts 1 --member-block 1 --width 512  # they share data

Each number of processes is started by `torchrun`, and fits the data of the demo with a policy of one width. Seconds
are those of the clock around the fit, without the start of the processes, of the fastest of some rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ileed
from ileed.runs import provenance, write_file
from ileed.runtime import several_processes


def main() -> None:
    """Start the fits one after the other, and write one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--restarts", type=int, default=32)
    parser.add_argument("--member-block", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        fit_rounds(options)
        return
    settings = ["restarts", "member_block", "width", "steps", "rounds", "device"]
    rows = [started(count, options, settings) for count in options.processes]
    about: dict[str, Any] = {"settings": {name: getattr(options, name) for name in settings}, "cores": os.cpu_count()}
    record = about | {"rows": rows, "provenance": provenance()}
    for row in rows:
        ratio, same = rows[0]["seconds"] / row["seconds"], row["digest"] == rows[0]["digest"]
        speed = f"{row['seconds']:8.2f} s {ratio:6.2f} times"
        print(f"{row['processes']:>3} processes {speed}  {row['nats_per_action']:.6f} nats  same bits: {same}")
    if options.out is not None:
        write_file(options.out, json.dumps(record, indent=1).encode() + b"\n")


def started(count: int, options: argparse.Namespace, settings: list[str]) -> dict[str, Any]:
    """The fit by so many processes: seconds, and a digest of every parameter."""
    given = [word for name in settings for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    found = Path(f".processes-{count}.json").absolute()
    subprocess.run([*launcher, __file__, *given, "--one", str(found)], check=True)
    try:
        return {"processes": count, **json.loads(found.read_text())}
    finally:
        found.unlink()


def fit_rounds(options: argparse.Namespace) -> None:
    """What each of the processes runs."""
    data, seconds, fitted = ileed.shipped(), list[float](), None
    policy = ileed.CategoricalMLP(hidden=(options.width, options.width))
    method = ileed.Ileed(
        policy=policy, restarts=options.restarts, member_block=options.member_block, steps=options.steps, folds=0
    )
    with several_processes() as job:
        for _ in range(options.rounds):
            began = time.monotonic()
            fitted = method.fit(data, seed=0, device=options.device)
            seconds.append(time.monotonic() - began)
        assert fitted is not None
        if job.leads:
            digest = hashlib.sha256(fitted.restarts.nats_per_action.tobytes())
            for values in fitted.joint.state_dict().values():
                digest.update(values.numpy().tobytes())
            found = {"seconds": min(seconds), "nats_per_action": fitted.nats_per_action}
            options.one.write_text(json.dumps(found | {"digest": digest.hexdigest()[:16]}))


if __name__ == "__main__":
    main()
