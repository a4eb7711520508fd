"""How long the command takes before it says anything, beside how long torch takes to import on the same machine.

$ python benchmarks/command_start.py

prints, for each command line, the median wall time of five runs and its ratio to `python -c "import torch"`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = ("--help", "--version", "inspect --help", "evaluate --help", "fit --help", "inspekt", "fit --stepz 5")
RUNS = 5


def seconds(*arguments: str) -> float:
    """Median wall time of a Python process with these arguments."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    torch = seconds("-c", "import torch")
    print(f"{'python -c pass':<24} {seconds('-c', 'pass'):6.2f} s")
    print(f"{'import torch':<24} {torch:6.2f} s")
    print(f"{'import ileed':<24} {seconds('-c', 'import ileed'):6.2f} s")
    print(f"{'import ileed; ileed.Ileed':<24} {seconds('-c', 'import ileed; ileed.Ileed'):6.2f} s")
    for words in COMMANDS:
        spent = seconds("-m", "ileed", *words.split())
        print(f"{'ileed ' + words:<24} {spent:6.2f} s {spent / torch:6.2f} of torch")


if __name__ == "__main__":
    main()
