"""A policy that comes as a TorchScript file: it is loaded, trained further on all demonstrators, and rates them.

The file is made here; yours may come from any program. TorchScript returns tensors, so a module of a few lines makes
them a distribution. `torch.func.vmap` does not take TorchScript: restarts are computed one after the other.

    python examples/policies/torchscript.py
"""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import ileed


class FromFile(nn.Module):
    """The scores of a TorchScript file as a choice of actions."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.network = torch.jit.load(str(path))

    def forward(self, observations: Tensor) -> Categorical:
        return Categorical(logits=self.network(observations))


def write_script(path: Path) -> None:
    """What another program left: a network that was never shown these demonstrators."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))
    torch.jit.trace(network, torch.zeros(1, 3)).save(str(path))


def demonstrations(seed: int = 0) -> ileed.Demonstrations:
    """Decisions of two demonstrators: the largest of three numbers is right."""
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(600, 3)).astype(np.float32)
    name = np.repeat(["ann", "bob"], 300)
    slips = random.random(600) < np.where(name == "ann", 0.05, 0.5)
    return ileed.Demonstrations(
        observations=numbers,
        actions=np.where(slips, random.integers(3, size=600), numbers.argmax(1)),
        demonstrator=name,
        episode=np.arange(600) // 20,
    )


def main() -> ileed.Fitted:
    warnings.simplefilter("ignore", DeprecationWarning)  # torch advises torch.export for new files
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.pt"
        write_script(path)
        policy = FromFile(path)  # a module, whose weights are where every restart begins
        method = ileed.Ileed(policy=policy, expertise=ileed.Constant(), restarts=1, steps=150, folds=2)
        fitted = method.fit(demonstrations(), seed=0)
        fitted.save(Path(folder) / "run")
        loaded = ileed.load(Path(folder) / "run", policy=FromFile(path))
    print(loaded)
    print("expertise:", {name: round(value, 2) for name, value in loaded.expertise.by_demonstrator().items()})
    print("the largest of 1, 3 and 2 is number", loaded.policy.act(np.array([[1.0, 3.0, 2.0]]))[0])
    return loaded


if __name__ == "__main__":
    main()
