"""How many gradient steps a second our `MixtureLSTM` takes, and robomimic's own training loop, on the same file.

    .cache/robomimic/bin/python benchmarks/robomimic_loop.py --devices cpu --steps 60
    python benchmarks/robomimic_loop.py --make-file square-sized.hdf5     # writes the file and stops

Paper-size networks and data: LSTM 2 x 400 with 5 modes on sequences of 10 in batches of 100, about 45,000 steps of 23
numbers seen and 7 done. robomimic's loop is its own: its loader with everything cached, its `run_epoch`, its optimiser.
Ours is `Ileed.fit`, alone and with several data sets side by side, where the steps of all of them are counted.
`tests/robomimic_environment.sh training` makes the environment.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

OBSERVATIONS = {"object": 14, "robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
SIZES = {"hidden": 400, "layers": 2, "modes": 5, "sequence": 10, "batch": 100}
Timed = dict[str, float]


def make_file(path: Path, *, episodes: int = 300, steps: int = 150) -> None:
    """Random demonstrations of the size of robomimic's Square Multi-Human: speed does not depend on what they hold."""
    from ileed import Demonstrations, write_robomimic

    random = np.random.default_rng(0)
    count = episodes * steps
    data = Demonstrations(
        observations=random.normal(size=(count, sum(OBSERVATIONS.values()))).astype(np.float32),
        actions=random.uniform(-1, 1, size=(count, 7)).astype(np.float32),
        demonstrator=np.repeat(np.arange(episodes) // 50, steps),
        episode=np.repeat(np.arange(episodes), steps),
        names=tuple(f"{tier}_operator_{number}" for tier in ("better", "okay", "worse") for number in (1, 2)),
    )
    write_robomimic(data, path, observations=OBSERVATIONS)


def robomimic(path: Path, *, device: torch.device, steps: int, warm_up: int, algorithm: str = "bc") -> Timed:
    """robomimic's BC_RNN_GMM, or with `algorithm="ileed"` our plug-in in the same loop."""
    if algorithm == "ileed":
        import_module("ileed.integrations.robomimic").register()
    algo: Any = import_module("robomimic.algo")
    observing: Any = import_module("robomimic.utils.obs_utils")
    training: Any = import_module("robomimic.utils.train_utils")
    config: Any = import_module("robomimic.config").config_factory(algorithm)
    config.train.data = str(path)
    config.train.seq_length, config.train.batch_size = SIZES["sequence"], SIZES["batch"]
    config.algo.gmm.enabled = config.algo.rnn.enabled = True
    config.algo.gmm.num_modes, config.algo.actor_layer_dims = SIZES["modes"], ()
    config.algo.rnn.hidden_dim, config.algo.rnn.num_layers = SIZES["hidden"], SIZES["layers"]
    config.observation.modalities.obs.low_dim = list(OBSERVATIONS)
    config.lock()
    observing.initialize_obs_utils_with_config(config)
    began = time.perf_counter()
    data, _ = training.load_data_for_training(config, obs_keys=list(OBSERVATIONS))
    loading = time.perf_counter() - began
    loader = torch.utils.data.DataLoader(data, batch_size=SIZES["batch"], shuffle=True, num_workers=0, drop_last=True)
    shapes = {key: [size] for key, size in OBSERVATIONS.items()}
    model = algo.algo_factory(config.algo_name, config, shapes, 7, device)
    training.run_epoch(model=model, data_loader=loader, epoch=1, num_steps=warm_up)
    return {"loading_seconds": loading} | timed(
        lambda: training.run_epoch(model=model, data_loader=loader, epoch=2, num_steps=steps), steps, device
    )


def timed(train: Callable[[], object], steps: int, device: torch.device) -> Timed:
    """Gradient steps a second of `train`, which takes `steps` of them."""
    settle(device)
    began, worked = time.perf_counter(), time.process_time()
    train()
    settle(device)
    seconds = time.perf_counter() - began
    return {
        "steps": steps,
        "seconds": seconds,
        "processor_seconds": time.process_time() - worked,  # less than `seconds` where others had the core meanwhile
        "steps_per_second": steps / seconds,
    }


def settle(device: torch.device) -> None:
    """Wait for work that was handed to a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def robomimic_with_ileed(path: Path, *, device: torch.device, steps: int, warm_up: int) -> Timed:
    """Our plug-in in robomimic's loop."""
    return robomimic(path, device=device, steps=steps, warm_up=warm_up, algorithm="ileed")


def ours(path: Path, *, device: torch.device, steps: int, warm_up: int, fits: int = 1, cloning: bool = True) -> Timed:
    """`fits` data sets are optimised side by side with `MixtureLSTM`.

    The clock runs from the end of the warm-up to the last step but one: after the last, unlike in robomimic's loop, the
    cost of all the data is computed.
    """
    from ileed import Constant, Ileed, MixtureLSTM, Perfect, read

    began = time.perf_counter()
    data = read(path)
    loading = time.perf_counter() - began
    stamps: list[tuple[int, float, float]] = []
    policy = MixtureLSTM(hidden=(SIZES["hidden"],) * SIZES["layers"], length=SIZES["sequence"], modes=SIZES["modes"])
    method = Ileed(
        policy=policy,
        expertise=Perfect() if cloning else Constant(),
        restarts=1,
        steps=warm_up + steps,
        batch_size=SIZES["batch"],
    )
    method.fit_each(
        [data] * fits,
        seeds=range(fits),
        device=str(device),
        progress=lambda now: stamps.append((now.step, time.perf_counter(), time.process_time())),
    )
    within = [stamp for stamp in stamps if warm_up <= stamp[0] < warm_up + steps]  # the last comes when all is scored
    first, last = within[0], within[-1]
    taken, seconds = (last[0] - first[0]) * fits, last[1] - first[1]
    return {
        "loading_seconds": loading,
        "steps": taken,
        "seconds": seconds,
        "processor_seconds": last[2] - first[2],
        "steps_per_second": taken / seconds,
    }


LOOPS: dict[str, Callable[..., Timed]] = {
    "robomimic": robomimic,
    "robomimic, ileed plug-in": robomimic_with_ileed,
    "ours, cloning": ours,
    "ours, ileed": partial(ours, cloning=False),
    "ours, cloning, 3 side by side": partial(ours, fits=3),
    "ours, cloning, 21 side by side": partial(ours, fits=21),
}


def main() -> None:
    """Time the loops that are asked for and print one JSON record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", nargs="+", default=["robomimic", "ours, cloning"], choices=LOOPS)
    parser.add_argument("--devices", nargs="+", default=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch, on the CPU")
    parser.add_argument("--file", type=Path, help="a file that --make-file wrote; without it one is made")
    parser.add_argument("--out", type=Path, help="write the record here; results/benchmarks holds those of the page")
    parser.add_argument("--make-file", type=Path, help="write the file here and stop")
    options = parser.parse_args()
    if options.make_file:
        make_file(options.make_file)
        return
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "square-sized.hdf5"
        if options.file is None:
            make_file(path)
        rows = {
            name: {device: quietly(name, path, device, options) for device in options.devices} for name in options.loops
        }
    from ileed.runs import provenance

    cuda = torch.cuda.get_device_name() if "cuda" in options.devices else None
    record = {
        "sizes": SIZES | {"observations": sum(OBSERVATIONS.values()), "actions": 7},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": cuda or "cpu",
        "threads": options.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": os.environ.get("ILEED_COMMIT") or provenance()["commit"],
        "date": datetime.now(UTC).date().isoformat(),
        "loops": rows,
    }
    text = json.dumps(record, indent=2) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)


def quietly(name: str, path: Path, device: str, options: argparse.Namespace) -> Timed:
    """One loop, with robomimic's announcements kept out of the record."""
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found = LOOPS[name](path, device=torch.device(device), steps=options.steps, warm_up=options.warm_up)
    print(f"{name} on {device}: {found['steps_per_second']:.1f} gradient steps a second", file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
