"""Small fits of every part of the model, and digests of the weights that they end with.

`python tests/digests/reference_fits.py` prints the digests; with `--record` it adds them to `digests.json` under the
key of this machine's arithmetic. Whatever reads the library here uses names that are public, since both commits of
`compare_commits.py` run this one file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ileed

RECORDED = Path(__file__).with_name("digests.json")

RESTARTS, STEPS, SEED = 3, 40, 7


def discrete(*, seed: int = 0, **columns: Any) -> ileed.Demonstrations:
    """Three people, eight episodes of five to twelve steps, three actions; observations repeat."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 13, size=8)
    steps = int(lengths.sum())
    actions = rng.integers(0, 3, size=steps)
    if "legal" in columns:
        columns["legal"] = (rng.random((steps, 3)) < 0.6) | (np.arange(3) == actions[:, None])
    return ileed.Demonstrations(
        observations=rng.integers(0, 3, size=(steps, 4)).astype(np.float32),
        actions=actions,
        demonstrator=np.repeat(np.arange(8) % 3, lengths),
        episode=np.repeat(np.arange(8), lengths),
        names=("ann", "bob", "cy"),
        action_count=3,
        **columns,
    )


def continuous(*, seed: int = 0) -> ileed.Demonstrations:
    """Three people, eight episodes, two dimensions and a gripper."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 13, size=8)
    steps = int(lengths.sum())
    gripper = rng.choice([-1.0, 1.0], size=(steps, 1))
    return ileed.Demonstrations(
        observations=rng.normal(size=(steps, 4)).astype(np.float32),
        actions=np.hstack([rng.normal(size=(steps, 2)), gripper]).astype(np.float32),
        demonstrator=np.repeat(np.arange(8) % 3, lengths),
        episode=np.repeat(np.arange(8), lengths),
        names=("ann", "bob", "cy"),
    )


def phased() -> ileed.Demonstrations:
    """`discrete` with a known skill for every step."""
    return discrete(skills={"phase": np.array(["early", "late"])[np.arange(len(discrete())) % 2]})


def alone(data: Callable[[], ileed.Demonstrations], *, weighted: bool = False, **settings: Any) -> Callable[[], Any]:
    """One data set, fitted on its own; `weighted` gives each restart its own episode weights."""

    def fit() -> list[ileed.Fitted]:
        found = data()
        weights = np.random.default_rng(1).integers(0, 3, size=(RESTARTS, found.episode_count)) if weighted else None
        paper = {} if found.discrete else {"demonstrator": ileed.VarianceScaling(), "expertise": ileed.Embedded()}
        return [method(**(paper | settings)).fit(found, seed=SEED, device="cpu", weights=weights, check_width=False)]

    return fit


def together(**settings: Any) -> Callable[[], Any]:
    """Several data sets, fitted side by side."""

    def fit() -> list[ileed.Fitted]:
        chosen: Any = method(**settings)
        fit_each = getattr(chosen, "fit_each", None) or chosen.fit_each
        found = fit_each([discrete(seed=seed) for seed in range(3)], seeds=[SEED, SEED + 1, SEED + 2], device="cpu")
        return [each if isinstance(each, ileed.Fitted) else each.fitted() for each in found]

    return fit


def method(**settings: Any) -> ileed.Ileed:
    return ileed.Ileed(**({"restarts": RESTARTS, "steps": STEPS} | settings))


CATEGORICAL = ileed.CategoricalMLP(hidden=(4, 4))
MIXTURE = ileed.MixtureMLP(hidden=(8, 8), modes=2)
RECURRENT = ileed.MixtureLSTM(hidden=(6,), length=4, modes=2)

FITS: Mapping[str, Callable[[], list[ileed.Fitted]]] = {
    "uniform mixture, embedded expertise, whole batch": alone(discrete, policy=CATEGORICAL),
    "one versus rest, constant expertise": alone(
        discrete, policy=CATEGORICAL, demonstrator=ileed.OneVersusRest(), expertise=ileed.Constant()
    ),
    "Boltzmann, shared embedding": alone(
        discrete, policy=CATEGORICAL, demonstrator=ileed.Boltzmann(), expertise=ileed.Embedded(shared=True)
    ),
    "known skills": alone(phased, policy=CATEGORICAL, expertise=ileed.Skills("phase")),
    "behaviour cloning": alone(discrete, policy=CATEGORICAL, expertise=ileed.Perfect()),
    "legal actions": alone(lambda: discrete(legal=None), policy=CATEGORICAL),
    "mini-batches, clipped gradients": alone(discrete, policy=CATEGORICAL, batch_size=16, clip=0.1),
    "held-out episodes": alone(discrete, policy=CATEGORICAL, held_out=0.25),
    "latent dynamics": alone(discrete, policy=CATEGORICAL, dynamics=ileed.LatentDynamics()),
    "episode weights of each restart": alone(discrete, policy=CATEGORICAL, weighted=True),
    "normalised inputs, wider policy": alone(discrete, policy=ileed.CategoricalMLP(hidden=(16,)), normalise=True),
    "mixture of Gaussians, variance scaling": alone(continuous, policy=MIXTURE, learning_rate=1e-3),
    "mixture of Gaussians, behaviour cloning, whole batch": alone(
        continuous, policy=MIXTURE, expertise=ileed.Perfect(), batch_size=10_000, learning_rate=1e-3
    ),
    "mixture of Gaussians, latent dynamics, held-out episodes": alone(
        continuous, policy=MIXTURE, dynamics=ileed.LatentDynamics(), held_out=0.25, learning_rate=1e-3
    ),
    "recurrent policy, embedded expertise": alone(continuous, policy=RECURRENT, batch_size=8),
    "recurrent policy, behaviour cloning, held-out episodes": alone(
        continuous, policy=RECURRENT, expertise=ileed.Perfect(), batch_size=8, held_out=0.25
    ),
    "three data sets side by side": together(policy=CATEGORICAL),
    "three data sets side by side, Boltzmann, constant expertise": together(
        policy=CATEGORICAL, demonstrator=ileed.Boltzmann(), expertise=ileed.Constant()
    ),
}
"""Every policy head, demonstrator model and expertise, each in one fit at least."""


def digest(fits: Iterable[ileed.Fitted]) -> str:
    """Digest of the chosen restart's parameters, and of the cost of every restart, of each of the fits.

    Parameters are ordered by their shape and bytes, not by name: renaming a layer changes no bits.
    """
    found = hashlib.blake2b(digest_size=16)
    for fitted in fits:
        for shape, values in sorted(_parameters(fitted)):
            found.update(repr(shape).encode() + values)
        found.update(np.asarray(fitted.restarts.nats_per_action, dtype=np.float64).tobytes())
    return found.hexdigest()


def _parameters(fitted: ileed.Fitted) -> set[tuple[tuple[int, ...], bytes]]:
    """Shape and bytes of the chosen restart's own part of every parameter, whose first axis is the member."""
    chosen = int(np.argmin(fitted.restarts.nats_per_action))
    parameters = (parameter for module in _modules(fitted) for parameter in module.parameters())
    own = (parameter[chosen if len(parameter) > 1 else 0].detach() for parameter in parameters)
    return {(tuple(values.shape), values.contiguous().numpy().tobytes()) for values in own if values.numel()}


def _modules(value: object, depth: int = 3) -> Iterator[torch.nn.Module]:
    """Every network that a value of the library holds, under whichever attribute."""
    if isinstance(value, torch.nn.Module):
        yield value
    elif depth and type(value).__module__.split(".")[0] == ileed.__name__:
        for held in getattr(value, "__dict__", {}).values():
            yield from _modules(held, depth - 1)


def digests() -> dict[str, str]:
    """The digest of every reference fit, made with one thread."""
    with one_thread():
        return {name: digest(fit()) for name, fit in FITS.items()}


def arithmetic_key() -> str:
    """What digests depend on besides the library: torch, the CPU, and how its kernels round.

    torch's own name for the CPU's capability does not tell which kernels its BLAS library chooses; so the key ends in
    a digest of a few products and functions that the library does not take part in.
    """
    with one_thread():
        found = hashlib.blake2b(digest_size=4)
        generator = torch.Generator().manual_seed(0)
        for rows, inner, columns in ((4, 4, 64), (8, 4, 77), (24, 6, 8), (1, 16, 64), (3, 64, 4)):
            left = torch.rand(RESTARTS, rows, inner, generator=generator)
            product = left @ torch.rand(RESTARTS, inner, columns, generator=generator)
            for values in (product, product.log_softmax(-2), product.tanh(), product.sigmoid().log(), product.exp()):
                found.update(values.contiguous().numpy().tobytes() + values.sum(-1).numpy().tobytes())
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {capability}, {platform.machine()}, arithmetic {found.hexdigest()}"


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums over several threads are rounded in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def recorded() -> dict[str, dict[str, str]]:
    """The digests that were recorded, by the key of the arithmetic."""
    return dict(json.loads(RECORDED.read_text())) if RECORDED.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the digests of the reference fits as JSON.")
    parser.add_argument("--record", action="store_true", help=f"add them to {RECORDED.name} for this arithmetic")
    options = parser.parse_args()
    key, found = arithmetic_key(), digests()
    if options.record:
        RECORDED.write_text(json.dumps(recorded() | {key: found}, indent=2, sort_keys=True) + "\n")
        print(f"recorded {len(found)} digests for {key}", file=sys.stderr)
    else:
        print(json.dumps({"library": str(Path(ileed.__file__).parent), "arithmetic": key, "digests": found}, indent=2))


if __name__ == "__main__":
    main()
