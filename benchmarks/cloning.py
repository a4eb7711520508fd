"""How long cloning the same demonstrations takes: `ileed.bc` beside imitation's BC and d3rlpy's DiscreteBC.

    python benchmarks/cloning.py                                  # all that are installed, by turns
    python benchmarks/cloning.py --ways ours imitation --steps 2000

The data are those of the demo, as flat float32. Every way has the same network (ReLU), Adam with a learning rate of
0.001, the same number of gradient steps, batch size and threads, and no regularisation, and runs in a process and an
environment of its own (tests/imitation_environment.sh, tests/d3rlpy_environment.sh). The clock runs during the call
that trains: `BC.train`, `DiscreteBC.fit`, and ours `.fit`, which also prepares the data. The cost is the mean negative
log-likelihood of all the data afterwards. imitation's policy has a value network of the same size, which is evaluated
and not trained. "ours, 20 seeds" trains 20 policies at once; others would take 20 times as long as for one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
SEEDS = 20
LEARNING_RATE = 1e-3


class Lesson(NamedTuple):
    """What is cloned, and how."""

    observations: np.ndarray[Any, Any]
    actions: np.ndarray[Any, Any]
    episode: np.ndarray[Any, Any]
    action_count: int
    steps: int
    batch: int
    hidden: int


class Trained(NamedTuple):
    """Seconds of training on the clock and of the processor, and nats per action on all the data."""

    seconds: float
    processor_seconds: float
    nats_per_action: float


def ours(lesson: Lesson, *, restarts: int = 1) -> Trained:
    """One call of `.fit`; with several restarts the cost is that of the best."""
    import ileed

    data = ileed.Demonstrations(
        observations=lesson.observations,
        actions=lesson.actions,
        demonstrator=np.zeros(len(lesson.actions), np.int64),
        episode=lesson.episode,
        names=("all",),
        action_count=lesson.action_count,
    )
    method = ileed.bc(
        policy=ileed.CategoricalMLP(hidden=(lesson.hidden, lesson.hidden)),
        restarts=restarts,
        steps=lesson.steps,
        batch_size=lesson.batch,
        learning_rate=LEARNING_RATE,
        normalise=False,
        folds=0,
    )
    seconds, fitted = timed(lambda: method.fit(data, seed=0, device="cpu"))
    return Trained(*seconds, fitted.nats_per_action)


def imitation(lesson: Lesson) -> Trained:
    """`imitation.algorithms.bc.BC` on transitions in memory."""
    cloning: Any = import_module("imitation.algorithms.bc")
    types: Any = import_module("imitation.data.types")
    policies: Any = import_module("stable_baselines3.common.policies")
    spaces: Any = import_module("gymnasium.spaces")
    seen = spaces.Box(-np.inf, np.inf, lesson.observations.shape[1:], np.float32)
    done = spaces.Discrete(lesson.action_count)
    steps = types.Transitions(
        obs=lesson.observations,
        acts=lesson.actions,
        infos=np.array([{}] * len(lesson.actions)),
        next_obs=lesson.observations,
        dones=np.append(np.diff(lesson.episode) != 0, True),
    )
    policy = policies.ActorCriticPolicy(
        observation_space=seen,
        action_space=done,
        lr_schedule=lambda _: torch.finfo(torch.float32).max,
        net_arch=[lesson.hidden, lesson.hidden],
        activation_fn=torch.nn.ReLU,
    )
    clone = cloning.BC(
        observation_space=seen,
        action_space=done,
        rng=np.random.default_rng(0),
        policy=policy,
        demonstrations=steps,
        batch_size=lesson.batch,
        optimizer_kwargs={"lr": LEARNING_RATE},
        ent_weight=0.0,
        device="cpu",
        custom_logger=import_module("imitation.util.logger").configure(tempfile.mkdtemp(), format_strs=()),
    )
    seconds, _ = timed(lambda: clone.train(n_batches=lesson.steps, progress_bar=False))
    distribution = clone.policy.get_distribution(torch.from_numpy(lesson.observations))
    return Trained(*seconds, _cost(distribution.distribution.logits, lesson))


def d3rlpy(lesson: Lesson) -> Trained:
    """`d3rlpy.algos.DiscreteBC` on its own data set in memory; nothing is logged or saved."""
    library: Any = import_module("d3rlpy")
    import_module("logging").disable(import_module("logging").INFO)
    last = np.append(np.diff(lesson.episode) != 0, True)
    data = library.dataset.MDPDataset(
        observations=lesson.observations,
        actions=lesson.actions[:, None],
        rewards=np.zeros((len(lesson.actions), 1), np.float32),
        terminals=last.astype(np.float32),
        action_space=library.ActionSpace.DISCRETE,
        action_size=lesson.action_count,
    )
    settings = library.algos.DiscreteBCConfig(
        batch_size=lesson.batch,
        learning_rate=LEARNING_RATE,
        encoder_factory=library.models.VectorEncoderFactory(hidden_units=[lesson.hidden, lesson.hidden]),
        beta=0.0,
    )
    clone = settings.create(device="cpu:0")
    nowhere = library.logging.NoopAdapterFactory()
    size = {"n_steps": lesson.steps, "n_steps_per_epoch": lesson.steps}
    seconds, _ = timed(lambda: clone.fit(data, **size, logger_adapter=nowhere, show_progress=False))
    logits = clone.impl.modules.imitator(torch.from_numpy(lesson.observations)).logits
    return Trained(*seconds, _cost(logits, lesson))


WAYS: dict[str, Callable[[Lesson], Trained]] = {
    "ours": ours,
    f"ours, {SEEDS} seeds": partial(ours, restarts=SEEDS),
    "imitation": imitation,
    "d3rlpy": d3rlpy,
}


def timed(train: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    """Seconds on the clock and of the processor, and what came out."""
    began, worked = time.perf_counter(), time.process_time()
    made = train()
    return (time.perf_counter() - began, time.process_time() - worked), made


def _cost(logits: Any, lesson: Lesson) -> float:
    return float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(lesson.actions)))


def answer(way: str, source: Path, out: Path, options: argparse.Namespace) -> None:
    """What a process of its own does: warm up, train, and write what it took."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with np.load(source) as columns:
        arrays = {name: columns[name] for name in ("observations", "actions", "episode")}
        count = int(columns["action_count"])
    lesson = Lesson(**arrays, action_count=count, steps=options.steps, batch=options.batch, hidden=options.hidden)
    WAYS[way](lesson._replace(steps=10))
    found = WAYS[way](lesson)
    library = "ileed" if way.startswith("ours") else way
    out.write_text(json.dumps(found._asdict() | {"version": _version(library), "torch": torch.__version__}))


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "source"


def python_of(way: str) -> Path:
    """The interpreter of the environment that a way runs in."""
    return Path(sys.executable) if way.startswith("ours") else ROOT / ".cache" / way / "bin" / "python"


def measure(ways: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """All ways by turns, the fastest round of each, and why some were left out."""
    from ileed.formats import shipped

    missing = [way for way in ways if not python_of(way).exists()]
    skipped = {way: f"there is no .cache/{way}: run tests/{way}_environment.sh" for way in missing}
    rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in ways if way not in skipped}
    data = shipped()
    given = [f"--{name}={getattr(options, name)}" for name in ("steps", "batch", "hidden", "threads")]
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "steps.npz", Path(folder) / "answer.json"
        seen, done = np.asarray(data.observations, np.float32).reshape(len(data), -1), data.actions.astype(np.int64)
        count = np.int64(data.action_count)
        np.savez(source, observations=seen, actions=done, episode=data.episode, action_count=count)
        for _ in range(options.rounds):
            for way, found in rounds.items():
                words = [str(python_of(way)), __file__, *given, "--one", way, "--source", str(source)]
                threads = {"OMP_NUM_THREADS": str(options.threads)}
                ended = subprocess.run(
                    [*words, "--out", str(out)], env=os.environ | threads, cwd=folder, capture_output=True, text=True
                )
                if ended.returncode:
                    raise SystemExit(f"{way} failed: {ended.stderr.strip().splitlines()[-1:]}")
                found.append(json.loads(out.read_text()))
                print(f"{way:16} {found[-1]['seconds']:7.2f} s  {found[-1]['nats_per_action']:.4f} nats", flush=True)
    best = {way: min(found, key=lambda each: float(each["seconds"])) for way, found in rounds.items()}
    return {"ways": best, "rounds": rounds, "skipped": skipped, "demonstrations": len(data)}


def main() -> None:
    """Print seconds and costs, and write them as JSON, with what made them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--steps", type=int, default=1000, help="gradient steps")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=32, help="width of each of two layers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        answer(options.one, options.source, options.out, options)
        return
    found = measure(options.ways, options)
    for way, reason in found["skipped"].items():
        print(f"{way}: {reason}")
    if options.out:
        from ileed import runs

        settings = {name: getattr(options, name) for name in ("steps", "batch", "hidden", "threads", "rounds")}
        record = {"provenance": runs.provenance(), "settings": settings} | found
        runs.write_file(options.out, (json.dumps(record, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
