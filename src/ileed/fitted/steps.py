"""What a joint model says of every step of a data set, in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ileed.demonstrations import Array, Demonstrations
from ileed.demonstrations.collapsing import step_context
from ileed.demonstrations.rules import listed
from ileed.errors import DemonstrationError
from ileed.fitted.policy import as_tensor
from ileed.fitting.windows import episode_ends, tiles
from ileed.model.ask import Answer, ask
from ileed.model.context import context_of_rows
from ileed.model.joint import Joint
from ileed.model.normaliser import Normaliser

_ROWS_AT_ONCE = 4096


def answers_at_steps(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, demonstrator: Array, skill_names: tuple[str, ...]
) -> Iterator[tuple[Array, Array, Answer]]:
    """Blocks of steps, which of them count, and the answers; `demonstrator` are the model's numbers of people.

    A recurrent policy reads windows, which go on behind an episode's end; the steps there do not count.
    """
    skills = _skill_weights(joint, data, skill_names)
    step = np.arange(len(data))[None]
    inside = np.ones_like(step, dtype=bool)
    if (length := joint.parts.policy.length) > 1:
        begin, ends = tiles(data.episode, length), episode_ends(data.episode)
        step = begin + np.arange(length)[:, None]  # time steps first, as the network reads them
        inside = step <= ends[begin]
        step = np.minimum(step, ends[begin])
    context = step_context(data, joint.parts.demonstrator.context, np.arange(len(data)))

    def inputs(steps: Array) -> Tensor:
        return normaliser(as_tensor(data.observations[steps]))

    for block in range(0, step.shape[1], _ROWS_AT_ONCE):
        rows, real = (part[:, block : block + _ROWS_AT_ONCE].ravel() for part in (step, inside))
        answer = ask(
            joint,
            inputs(rows),
            demonstrator=torch.from_numpy(demonstrator[rows]),
            action=as_tensor(data.actions[rows] if data.discrete else data.actions[rows].astype(np.float32)),
            legal=None if data.legal is None else as_tensor(data.legal[rows].T),
            skills=None if skills is None else as_tensor(skills[rows].T),
            context=context_of_rows(context, rows, inputs),
        )
        yield rows, real, answer


def _skill_weights(joint: Joint, data: Demonstrations, skill_names: tuple[str, ...]) -> Array | None:
    """(step, skill) weights of the skills that a model knows by name; None where it reads none."""
    column = joint.parts.expertise.skill_column
    if column is None:
        return None
    weights, names = data.skill(column)
    if unknown := [name for name in names if name not in skill_names]:
        raise DemonstrationError(f"there is no skill {unknown[0]!r}: this fit knows {listed(skill_names)}")
    placed = np.zeros((len(data), len(skill_names)), dtype=np.float32)
    placed[:, [skill_names.index(name) for name in names]] = weights
    return placed
