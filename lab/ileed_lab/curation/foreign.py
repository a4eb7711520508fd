"""Other projects' trainers through one signature, each in an environment and a process of its own.

`train` writes the demonstrations in the trainer's own format, lets the project train on them with its own trainer, and
returns a policy whose actions the project's process answers with. Settings are those of the programs in `trainers`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, final

import numpy as np
import numpy.typing as npt

import ileed
from ileed import Demonstrations, SettingsError
from ileed.errors import IleedError
from ileed_lab.curation.trainers.answering import read_array, write_array

__all__ = ["TRAINERS", "ForeignPolicy", "Trainer", "train"]

Array = npt.NDArray[Any]
_ENVIRONMENTS = Path(__file__).parents[3] / ".cache"


@final
@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A trainer of another project: its program, where it runs, and what it takes."""

    program: str
    """The module of `trainers` that is run."""
    environment: str
    """The project, whose environment is `.cache/PROJECT` of the checkout, made by `make PROJECT`."""
    file: str
    """What the demonstrations are called in the folder."""
    format: str
    takes_weights: bool = False
    """Whether episodes may have weights."""
    numbered: bool = False
    """Whether actions may be numbers of a list; otherwise each is written as a vector with a one at its place, and the
    place of the largest number that the policy answers with is taken."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the format's writer."""

    @property
    def python(self) -> Path:
        """The interpreter of the project's own environment."""
        return _ENVIRONMENTS / self.environment / "bin" / "python"

    @property
    def installed(self) -> bool:
        """Whether the environment is there."""
        return self.python.exists()


TRAINERS = {
    "imitation-bc": Trainer(
        program="imitation_bc",
        environment="imitation",
        file="data",
        format="imitation",
        takes_weights=True,
        numbered=True,
    ),
    "robomimic-bc-rnn": Trainer(
        program="robomimic_bc_rnn", environment="robomimic", file="data.hdf5", format="robomimic"
    ),
    "lerobot-act": Trainer(program="lerobot_policy", environment="lerobot", file="data", format="lerobot"),
}


def train(
    trainer: str, demonstrations: Demonstrations, *, seed: int, episode_weights: Sequence[float] | Array | None = None
) -> ForeignPolicy:
    """Train one of `TRAINERS` on demonstrations, in a process that lives as long as the policy that is returned.

    `episode_weights` has a number for each episode, where the trainer takes them. Use the policy in a `with` statement,
    or `close` it.
    """
    if trainer not in TRAINERS:
        raise SettingsError(
            f"there is no trainer {trainer!r}; the trainers are {', '.join(TRAINERS)}", code="trainer-unknown"
        )
    chosen = TRAINERS[trainer]
    weights = None if episode_weights is None else np.asarray(episode_weights, dtype=np.float64)
    if weights is not None and not chosen.takes_weights:
        raise SettingsError(f"{trainer} takes no weights: pass None, or leave episodes out", code="weights-unsupported")
    if weights is not None and weights.shape != (demonstrations.episode_count,):
        found = f"{weights.shape} weights but {demonstrations.episode_count} episodes"
        raise SettingsError(f"{found}: pass one for each episode", code="weights-count")
    if not chosen.installed:
        raise IleedError(
            f"{trainer} needs an environment of {chosen.environment}'s own, and {chosen.python} is not there: run make "
            f"{chosen.environment}",
            code="environment-missing",
        )
    return ForeignPolicy(chosen, demonstrations, seed, weights)


@final
class ForeignPolicy:
    """A policy that another project's process answers for: an actor, as `ileed.evaluate` takes it."""

    release: str
    """The project and its release."""
    settings: Mapping[str, Any]
    """Of the trainer."""
    seconds: float
    """That training took, without writing the data and starting the process."""

    def __init__(self, trainer: Trainer, data: Demonstrations, seed: int, weights: Array | None) -> None:
        self._trainer, self._numbered = trainer, data.discrete
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ileed-trainer-")))
            self._log = folder / "log.txt"
            _write(trainer, data, folder, weights)
            self._process = _start(trainer, folder, seed)
            stack.callback(_end, self._process)
            line = self._output.readline()
            if not line:
                raise self._failure("training")
            message = json.loads(line)
            self.release, self.settings, self.seconds = message["release"], message["settings"], message["seconds"]
            self._stack = stack.pop_all()

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _failure(self, during: str) -> IleedError:
        """What the process said last; the name of its error, if there is one, and not the bar of its progress."""
        said = self._log.read_text(errors="replace").strip().splitlines() or ["nothing"]
        named = [line for line in said if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return IleedError(f"{self._trainer.environment} ended during {during}, and said last: {(named or said)[-1]}")

    def __call__(self, observations: Array, starts: Array) -> Array:
        """The actions for (row, number) observations; `starts` says which rows begin an episode."""
        assert self._process.stdin is not None
        try:
            write_array(self._process.stdin, observations.reshape(len(observations), -1).astype(np.float32))
            write_array(self._process.stdin, np.asarray(starts, dtype=bool))
            answered = read_array(self._output)
        except BrokenPipeError:
            answered = None
        if answered is None:
            raise self._failure("play")
        if not self._numbered:
            return answered.astype(np.float64)
        return (answered if answered.ndim == 1 else answered.argmax(axis=1)).astype(np.int64)

    def close(self) -> None:
        """End the process, and remove what it wrote."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write(trainer: Trainer, data: Demonstrations, folder: Path, weights: Array | None) -> None:
    """The demonstrations in the trainer's format, and what it cannot read from them."""
    seen = data.observations.reshape(len(data), -1).astype(np.float32)
    plain = replace(data, observations=seen, rewards=None, terminals=None, legal=None, skills={}, encoding=None)
    if data.discrete and not trainer.numbered:
        places = np.eye(data.action_count, dtype=np.float32)[data.actions]
        plain = replace(plain, actions=places, action_count=0)
    options = dict(trainer.options)
    if trainer.format == "lerobot":
        half = data.observation_size // 2  # ACT needs both, and cannot take a single number
        options["observations"] = {
            "observation.state": half,
            "observation.environment_state": data.observation_size - half,
        }
    ileed.write(plain, folder / trainer.file, format=trainer.format, **options)
    about = {"action_count": data.action_count, "weights": None if weights is None else weights.tolist()}
    (folder / "about.json").write_text(json.dumps(about))


def _start(trainer: Trainer, folder: Path, seed: int) -> subprocess.Popen[bytes]:
    """The project's own Python, away from our packages, without network and on one thread of the CPU."""
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "PYTHONPATH": str(Path(__file__).parent),
        "HOME": str(folder),
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    words = [str(trainer.python), "-m", f"trainers.{trainer.program}", str(folder), "--seed", str(seed)]
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=folder
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
