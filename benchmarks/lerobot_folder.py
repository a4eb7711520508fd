"""How long a simulated LeRobot folder takes to write, inspect and read, and how much memory.

$ python benchmarks/lerobot_folder.py [--episodes 1000] [--frames 300] [--dimensions 14]

makes one folder of each version in a temporary place, runs `ileed inspect` on it with and without a demonstrator, and
prints wall and processor times, the ratio to `python -c "import ileed; ileed.read"`, which every command spends, and
peak memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ileed

PEOPLE = 10


def simulated(episodes: int, frames: int, dimensions: int, seed: int = 0) -> ileed.Demonstrations:
    """A random walk of the state for each episode; the action is the next step of it, and each person adds noise."""
    random = np.random.default_rng(seed)
    steps = random.normal(size=(episodes, frames, dimensions)).astype(np.float32)
    who = np.arange(episodes) % PEOPLE
    noise = random.normal(size=steps.shape).astype(np.float32) * (0.1 * who[:, None, None]).astype(np.float32)
    return ileed.Demonstrations(
        observations=steps.cumsum(axis=1).reshape(-1, dimensions),
        actions=(steps + noise).reshape(-1, dimensions),
        demonstrator=np.repeat(who, frames),
        episode=np.repeat(np.arange(episodes), frames),
        names=tuple(f"operator {number}" for number in range(PEOPLE)),
    )


def measured(*arguments: str) -> tuple[float, float, float]:
    """Wall time and processor time in seconds, and peak memory in MB, of a Python process with these arguments."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Write, inspect and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in {"episodes": 1000, "frames": 300, "dimensions": 14}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    data = simulated(options.episodes, options.frames, options.dimensions)
    least, work, _ = measured("-c", "import ileed; ileed.read")
    print(f"{options.episodes:,} episodes x {options.frames} frames x {options.dimensions} dimensions")
    print(f"import ileed                     {least:6.2f} s  processor {work:5.2f} s")
    with tempfile.TemporaryDirectory() as place:
        for version in ("v3.0", "v2.1"):
            folder = Path(place) / version
            began = time.perf_counter()
            ileed.write(data, folder, format="lerobot", version=version)
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
            print(f"{version} written                     {time.perf_counter() - began:6.2f} s  {size:6.0f} MB on disk")
            for said in ("named", "not named"):
                if said == "not named":
                    (folder / "meta/ileed.json").unlink()
                seconds, work, memory = measured("-m", "ileed", "inspect", str(folder))
                spent = f"{seconds:6.2f} s  processor {work:5.2f} s  {seconds / least:5.1f} x import"
                print(f"{version} inspect, people {said:<10}  {spent}  peak {memory:6.0f} MB")


if __name__ == "__main__":
    main()
