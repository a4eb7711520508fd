"""The result of a fit: its policy, everybody's expertise, and how both came about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from ileed.checking import path_of
from ileed.demonstrations import Array, Demonstrations, check_demonstrations
from ileed.demonstrations.context import step_context
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError
from ileed.fitted.expertise import Expertise, members_that_know
from ileed.fitted.policy import Policy, as_tensor
from ileed.fitting import Checkpoint, History, Outcome
from ileed.fitting.windows import episode_ends, tiles
from ileed.model.batch import Batch
from ileed.model.context import context_of_rows
from ileed.model.joint import Joint, log_mean_over_members
from ileed.model.normaliser import Normaliser
from ileed.width import WidthComparison

if TYPE_CHECKING:
    from ileed.fitted.ensemble import Ensemble

_ROWS_AT_ONCE = 4096


@final
@dataclass(frozen=True, eq=False)
class Restarts:
    """Every restart's own cost in nats per action (lower is better), and the members that a fit keeps of them.

    `kept` has the likeliest first, where restarts can be compared: where each has episode weights of its own, all are
    kept in their order.
    """

    nats_per_action: Array
    kept: tuple[int, ...]

    @property
    def chosen(self) -> int:
        """The first member that is kept: the likeliest, where restarts can be compared."""
        return self.kept[0]


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit: `policy` acts, `expertise` says who is good where, `restarts`, `history` and `outcome` how it went.

    `policy`, `expertise`, `nats` and `nats_per_action` are of the same members, those that `restarts.kept` names: the
    mean of their distributions, the mean of their expertise, and the cost under the mean of their likelihoods
    p(action | observation, demonstrator). With one member that is the member itself.
    """

    policy: Policy
    expertise: Expertise
    restarts: Restarts
    nats_per_action: float
    """The cost of these members together: mean over actions of the negative logarithm of their mean likelihood, in
    nats. It is of the data that restarts are compared by, the fitted or the held-out episodes; each restart's own cost
    is in `restarts.nats_per_action`."""
    history: History
    outcome: Outcome
    """How most of the members ended; the likeliest of them where there is no majority."""
    method: Any
    provenance: Mapping[str, Any]
    joint: Joint
    """The parameters of these members."""
    normaliser: Normaliser
    width: WidthComparison | None = None
    checkpoints: tuple[Checkpoint, ...] = ()  # from which this fit can be continued until it is saved
    ensemble: Ensemble | None = None
    """Every member of the fit, with the data, to choose others from; None for a fit that was loaded."""

    @property
    def width_sentence(self) -> str:
        """What the comparison of widths chose and why, or whether a wider policy would do better; empty without one."""
        if self.width is None:
            return ""
        if self.method.policy is None:
            return self.width.choice()
        return self.width.diagnosis(type(self.method.policy).__name__)

    @property
    def estimates_expertise(self) -> bool:
        """Whether this is more than behaviour cloning, under which everybody's expertise is one by assumption."""
        return self.joint.parts.expertise.estimates_expertise

    @torch.no_grad()
    def nats(self, data: Demonstrations) -> Array:
        """Cost of each step of other data by the same people, (step,): its negative log-likelihood, in nats.

        With several members, the likelihood is the mean over members. Held-out data tell whether the model, not only
        its fit, is good. The hidden state of a recurrent policy is reset as when it acts.
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
        demonstrator = np.array([position[name] for name in data.names])[data.demonstrator]
        learned_from, costs = self.expertise.summary.learned_from, np.empty(len(data))
        skills = skill_weights(self.joint, data, self.expertise.skill_names)
        for steps, inside, batch in batches_of_steps(self.joint, self.normaliser, data, demonstrator, skills):
            counted = members_that_know(learned_from, torch.from_numpy(demonstrator[steps]))
            costs[steps[inside]] = -log_mean_over_members(self.joint.log_likelihood(batch), counted).numpy()[inside]
        return costs

    def renamed(self, names: Mapping[str, str]) -> Fitted:
        """The same fit with other names for its demonstrators, such as pseudonyms; without the data of `ensemble`."""
        asked = self.expertise
        chosen = tuple(names[name] for name in asked.names)
        expertise = Expertise(
            self.joint, self.normaliser, chosen, asked.skill_names, asked.summary, self.policy.encoding
        )
        return replace(self, expertise=expertise, ensemble=None)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a run directory, whole or not at all; then remove the checkpoint of this fit, if it had one.

        A run that is already there is refused, or replaced with `overwrite`; files in it that are not ours stay.
        """
        from ileed.fitted.saving import write  # which makes fits of run directories, and so needs this module

        write(self, Path(path_of("path", path, rule="pass the path of a directory to write")), overwrite=overwrite)
        for checkpoint in self.checkpoints:
            checkpoint.remove()

    def __repr__(self) -> str:
        count, kept = len(self.restarts.nats_per_action), len(self.restarts.kept)
        chosen = f"best of {count} restarts" if kept == 1 else f"mean of {kept} of {count} restarts"
        return (
            f"Fitted({type(self.joint.parts.expertise).__name__} expertise of {len(self.expertise.names)} "
            f"demonstrators, {self.nats_per_action:.4f} nats per action, {chosen}: {self.outcome.value})"
        )


def batches_of_steps(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, demonstrator: Array, skills: Array | None
) -> Iterator[tuple[Array, Array, Batch]]:
    """All steps of a data set in blocks, as a model reads them: the steps, which of them count, and the batch.

    A recurrent policy reads windows, which go on behind an episode's end; the steps there do not count.
    """
    length = joint.parts.policy.length
    step = np.arange(len(data))[None]
    inside = np.ones_like(step, dtype=bool)
    if length > 1:
        begin, ends = tiles(data.episode, length), episode_ends(data.episode)
        step = begin + np.arange(length)[:, None]  # time steps first, as the network reads them
        inside = step <= ends[begin]
        step = np.minimum(step, ends[begin])
    context = step_context(data, joint.parts.demonstrator.context, np.arange(len(data)))

    def inputs(steps: Array) -> Tensor:
        return normaliser(as_tensor(data.observations[steps]))

    for block in range(0, step.shape[1], _ROWS_AT_ONCE):
        rows, real = (part[:, block : block + _ROWS_AT_ONCE].ravel() for part in (step, inside))
        batch = Batch.of(
            sizes=joint.sizes,
            observations=inputs(rows),
            demonstrator=torch.from_numpy(demonstrator[rows]),
            action=as_tensor(data.actions[rows] if data.discrete else data.actions[rows].astype(np.float32)),
            legal=None if data.legal is None else as_tensor(data.legal[rows].T),
            skills=None if skills is None else as_tensor(skills[rows].T),
        )
        yield rows, real, replace(batch, context=context_of_rows(context, rows, inputs))


def skill_weights(joint: Joint, data: Demonstrations, skill_names: tuple[str, ...]) -> Array | None:
    """(step, skill) weights of the skills that a model knows by name; None where it reads none."""
    column = joint.parts.expertise.skill_column
    if column is None:
        return None
    weights, names = data.skill(column)
    if unknown := [name for name in names if name not in skill_names]:
        known = ", ".join(map(repr, skill_names))
        raise DemonstrationError(f"there is no skill {unknown[0]!r}: this fit knows {known}")
    placed = np.zeros((len(data), len(skill_names)), dtype=np.float32)
    placed[:, [skill_names.index(name) for name in names]] = weights
    return placed
