"""Make a golden run of the present format: `python tests/golden/make.py tests/golden/run-v1`, once for each format."""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import ileed

PROBE = np.random.default_rng(1).integers(0, 3, size=(8, 5)).astype(np.float32)


def main(path: Path) -> None:
    rng = np.random.default_rng(0)
    data = ileed.Demonstrations(
        observations=rng.integers(0, 3, size=(400, 5)).astype(np.float32),
        actions=rng.integers(0, 4, size=400),
        demonstrator=np.repeat(["ann", "bob"], 200),
        episode=np.repeat(np.arange(8), 50),
    )
    fitted = ileed.Ileed(restarts=3, steps=60, held_out=0.25).fit(data, seed=0, device="cpu")
    fitted.save(path)
    expected = {
        "log_probs": fitted.policy.distribution(PROBE).logits.numpy(),
        "ann": fitted.expertise(PROBE, "ann"),
        "restarts": fitted.restarts.nats_per_action,
    }
    save_file({name: np.ascontiguousarray(value) for name, value in expected.items()}, path / "expected.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
