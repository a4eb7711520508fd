"""What a fit found: its policy, the expertise of everybody, and how both came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from ileed import runs
from ileed.checking import path_of
from ileed.demonstrations import Array, Demonstrations, check_demonstrations
from ileed.demonstrations.context import step_context
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError
from ileed.fitted.expertise import Expertise
from ileed.fitted.policy import Policy, as_tensor
from ileed.fitting import Checkpoint, History, Outcome
from ileed.fitting.windows import episode_ends, tiles
from ileed.model.ask import ask
from ileed.model.context import context_of_rows
from ileed.model.joint import Joint
from ileed.model.normaliser import Normaliser
from ileed.width import WidthComparison

_JUDGED_AT_ONCE = 4096


@final
@dataclass(frozen=True, eq=False)
class Restarts:
    """Every restart's cost in nats per action (lower is better), and which one was chosen."""

    nats_per_action: Array
    chosen: int


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit: `policy` to act with, `expertise` to ask, `restarts`, `history` and `outcome` to judge it by."""

    policy: Policy
    expertise: Expertise
    restarts: Restarts
    history: History
    outcome: Outcome
    method: Any
    provenance: Mapping[str, Any]
    joint: Joint
    normaliser: Normaliser
    width: WidthComparison | None = None
    checkpoints: tuple[Checkpoint, ...] = ()  # from which this fit can be had again until it is saved

    @property
    def width_sentence(self) -> str:
        """What the comparison of widths chose and why, or whether a wider policy would do better; empty without one."""
        if self.width is None:
            return ""
        if self.method.policy is None:
            return self.width.choice()
        return self.width.diagnosis(type(self.method.policy).__name__)

    @property
    def nats_per_action(self) -> float:
        """The chosen restart's cost: mean negative log-likelihood of an action, in nats."""
        return float(self.restarts.nats_per_action[self.restarts.chosen])

    @property
    def estimates_expertise(self) -> bool:
        """Whether this is more than behaviour cloning, under which everybody's expertise is one by assumption."""
        return self.joint.parts.expertise.estimates_expertise

    @torch.no_grad()
    def nats(self, data: Demonstrations) -> Array:
        """Cost of each step of other data by the same people, (step,): its negative log-likelihood, in nats.

        Held-out data tell whether the model, not only its fit, is good; a policy with a memory forgets as it does when
        it acts.
        """
        check_demonstrations(data)
        position = {name: number for number, name in enumerate(self.expertise.names)}
        if strangers := [name for name in data.names if name not in position]:
            raise DemonstrationError(
                f"there is no demonstrator {strangers[0]!r}: this fit knows {listed(self.expertise.names)}"
            )
        if data.encoding is not None and data.encoding != self.policy.encoding:
            raise DemonstrationError(
                "the data were encoded otherwise than those of the fit, so that their numbers mean something else: "
                "read them with from_table(..., encoding=fitted.policy.encoding)"
            )
        known = np.array([position[name] for name in data.names])
        skills = self._skills_of(data)
        length = self.joint.parts.policy.length
        step = np.arange(len(data))[None]
        inside = np.ones_like(step, dtype=bool)
        if length > 1:
            begin, ends = tiles(data.episode, length), episode_ends(data.episode)
            step = begin + np.arange(length)[:, None]  # time steps first, as the network walks along them
            inside = step <= ends[begin]
            step = np.minimum(step, ends[begin])
        costs = np.empty(len(data))
        context = step_context(data, self.joint.parts.demonstrator.context, np.arange(len(data)))

        def features(steps: Array) -> torch.Tensor:
            return self.normaliser(as_tensor(data.observations[steps]))

        for block in range(0, step.shape[1], _JUDGED_AT_ONCE):
            rows, real = (part[:, block : block + _JUDGED_AT_ONCE].ravel() for part in (step, inside))
            answer = ask(
                self.joint,
                features(rows),
                demonstrator=torch.from_numpy(known[data.demonstrator[rows]]),
                action=as_tensor(data.actions[rows] if data.discrete else data.actions[rows].astype(np.float32)),
                legal=None if data.legal is None else as_tensor(data.legal[rows].T),
                skills=None if skills is None else as_tensor(skills[rows].T),
            )
            answer = answer.with_context(context_of_rows(context, rows, features))
            costs[rows[real]] = -answer.log_likelihood[0].numpy()[real]
        return costs

    def _skills_of(self, data: Demonstrations) -> Array | None:
        """(step, skill) weights of the skills that this fit knows, where it was given any."""
        column = self.joint.parts.expertise.skill_column
        if column is None:
            return None
        weights, names = data.skill(column)
        if unknown := [name for name in names if name not in self.expertise.skill_names]:
            known = ", ".join(map(repr, self.expertise.skill_names))
            raise DemonstrationError(f"there is no skill {unknown[0]!r}: this fit knows {known}")
        placed = np.zeros((len(data), len(self.expertise.skill_names)), dtype=np.float32)
        placed[:, [self.expertise.skill_names.index(name) for name in names]] = weights
        return placed

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a run directory, whole or not at all; then remove the checkpoint of this fit, if it had one.

        A run that is already there is refused, or replaced with `overwrite`; files in it that are not ours stay.
        """
        path = path_of("path", path, rule="pass the path of a directory to write")
        sizes = self.joint.sizes
        summary = self.expertise.summary
        settings: dict[str, Any] = {
            "method": runs.plain(self.method),
            "parts": runs.plain(self.joint.parts),
            "sizes": runs.plain(sizes),
            "observation_shape": list(self.normaliser.shape),
            "demonstrators": list(self.expertise.names),
            "skills": list(self.expertise.skill_names),
            "restarts": [float(cost) if np.isfinite(cost) else None for cost in self.restarts.nats_per_action],
            "chosen": self.restarts.chosen,
            "outcome": self.outcome.name,
            "width": runs.plain(self.width),
        }
        if self.policy.encoding is not None:
            settings["encoding"] = runs.plain(self.policy.encoding)
        weights = (
            {f"joint.{name}": value for name, value in self.joint.state_dict().items()}
            | {f"lens.{name}": value for name, value in self.normaliser.state_dict().items()}
            | {f"survey.{name}": value for name, value in vars(summary).items()}
        )
        contiguous = {name: value.contiguous() for name, value in weights.items()}
        run = runs.Run(settings, self.provenance, list(self.history.rows()), contiguous)
        runs.write_run(Path(path), run, overwrite=overwrite)
        for checkpoint in self.checkpoints:
            checkpoint.remove()

    def __repr__(self) -> str:
        costs = self.restarts.nats_per_action
        return (
            f"Fitted({type(self.joint.parts.expertise).__name__} expertise of {len(self.expertise.names)} "
            f"demonstrators, {self.nats_per_action:.4f} nats per action, best of {len(costs)} restarts: "
            f"{self.outcome.value})"
        )
