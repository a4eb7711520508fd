"""How long a fit takes with a network of the library as a plain module, through `vmap`, against the fast path.

    python benchmarks/own_policy.py [--restarts 20] [--out results/benchmarks/own-policy-cpu.json]

The same layers, data, restarts and steps, in one process and one thread; the two take turns, and processor time is
compared, which a busy machine disturbs less. Neither is cross-fitted (`folds=0`). Numbers that never vary, which the
library's networks leave out and a module reads, are taken out of the data.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal

import ileed
from ileed import runs
from ileed.data import Demonstrations

ROUNDS = 3
MODES = 5


def layers(*sizes: int) -> nn.Sequential:
    """Affine maps with rectifiers between them."""
    found = [part for before, after in pairwise(sizes) for part in (nn.Linear(before, after), nn.ReLU())]
    return nn.Sequential(*found[:-1])


class Choosing(nn.Module):
    """`CategoricalMLP` as its user would write it."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.layers = layers(inputs, 4, 4, actions)

    def forward(self, observations: Tensor) -> Distribution:
        """A choice for each row."""
        return Categorical(logits=self.layers(observations))


class Mixed(nn.Module):
    """`MixtureMLP` as its user would write it."""

    def __init__(self, inputs: int, dimensions: int) -> None:
        super().__init__()
        self.layers = layers(inputs, 64, 64, MODES * (1 + 2 * dimensions))

    def forward(self, observations: Tensor) -> Distribution:
        """A mixture for each row."""
        outputs = self.layers(observations)
        means, spreads = outputs[..., MODES:].unflatten(-1, (MODES, -1)).chunk(2, -1)
        parts = Independent(Normal(means, nn.functional.softplus(spreads) + 1e-3), 1)
        return MixtureSameFamily(Categorical(logits=outputs[..., :MODES]), parts)


def varying(data: Demonstrations) -> Demonstrations:
    """The numbers of observations that vary."""
    flat = data.observations.reshape(len(data), -1)
    return replace(data, observations=flat[:, (flat != flat[0]).any(axis=0)], encoding=None)


def measured(data: Demonstrations, ways: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Processor seconds of each way, the least of several rounds, and by how much the module takes longer."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for steps in (2, *[settings["steps"]] * ROUNDS):  # the first chooses kernels
        for name, policy in ways.items():
            method = ileed.Ileed(policy=policy, folds=0, expertise=ileed.Constant(), **(settings | {"steps": steps}))
            began = time.process_time()
            method.fit(data, seed=0, device="cpu")
            found[name].append(time.process_time() - began)
    seconds = {name: min(each[1:]) for name, each in found.items()}
    return {"processor_seconds": seconds, "module_by_own": seconds["module"] / seconds["own"]}


def main() -> None:
    """Print the ratios and write them as JSON, with what made them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen, moved = varying(ileed.shipped()), varying(ileed.shipped("square"))
    sizes: dict[str, Any] = {"restarts": options.restarts, "steps": options.steps}
    choosing = partial(Choosing, chosen.observation_size, chosen.action_count)
    mixed = partial(Mixed, moved.observation_size, moved.actions.shape[1])
    rows = {
        "discrete, 4 and 4 units": measured(chosen, {"own": ileed.CategoricalMLP(), "module": choosing}, **sizes),
        "continuous, 64 and 64 units": measured(
            moved, {"own": ileed.MixtureMLP(), "module": mixed}, batch_size=256, **sizes
        ),
    }
    for name, row in rows.items():
        print(f"{name:30} the module takes {row['module_by_own']:.2f} times as long")
    if options.out:
        record = {"provenance": runs.provenance(), "settings": sizes, "rows": rows}
        runs.write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
