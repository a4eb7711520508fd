"""What a joint model says of every step of a data set, in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ileed.demonstrations import Array, Demonstrations
from ileed.demonstrations.rules import listed
from ileed.demonstrations.streaming import StepContext
from ileed.errors import DemonstrationError
from ileed.fitted.policy import as_tensor
from ileed.fitting.windows import episode_ends, tiles
from ileed.model.ask import Answer, ask
from ileed.model.context import before_in_window, context_of_rows
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
    context = StepContext(data, joint.parts.context)

    def inputs(steps: Array) -> Tensor:
        return normaliser(as_tensor(data.observations[steps]))

    length = joint.parts.policy.length
    for rows, real in _rows_at_once(data, length):
        told, seen = context_of_rows(context(rows), np.arange(len(rows)), inputs), rows
        if (before := told.get("previous_policy")) is not None and length > 1:
            told["previous_policy"] = before_in_window(before, len(rows) // length)
        elif before is not None:  # the observations before follow, as observations without a row
            told["previous_policy"] = torch.where(before < 0, -1, torch.arange(len(rows)) + len(rows))
            seen = np.concatenate([rows, before.clamp_min(0).numpy()])
        answer = ask(
            joint,
            inputs(seen),
            observation_index=None if seen is rows else torch.arange(len(rows)),
            demonstrator=torch.from_numpy(demonstrator[rows]),
            action=as_tensor(data.actions[rows] if data.discrete else data.actions[rows].astype(np.float32)),
            legal=None if data.legal is None else as_tensor(data.legal[seen].T),
            skills=None if skills is None else as_tensor(skills[seen].T),
            context=told,
        )
        yield rows, real, answer


def _rows_at_once(data: Demonstrations, length: int) -> Iterator[tuple[Array, Array]]:
    """Blocks of steps, and which of them count: all, or in windows of a length those before an episode's end."""
    if length == 1:
        for first in range(0, len(data), _ROWS_AT_ONCE):
            rows = np.arange(first, min(first + _ROWS_AT_ONCE, len(data)))
            yield rows, np.ones(len(rows), dtype=bool)
        return
    begin, ends = tiles(data.episode, length), episode_ends(data.episode)
    step = begin + np.arange(length)[:, None]  # time steps first, as the network reads them
    inside = step <= ends[begin]
    step = np.minimum(step, ends[begin])
    for first in range(0, step.shape[1], _ROWS_AT_ONCE):
        yield step[:, first : first + _ROWS_AT_ONCE].ravel(), inside[:, first : first + _ROWS_AT_ONCE].ravel()


def _skill_weights(joint: Joint, data: Demonstrations, skill_names: tuple[str, ...]) -> Array | None:
    """(step, skill) weights of the skills that a model knows by name; None where it reads none."""
    column = joint.parts.expertise.skill_column
    if column is None:
        return None
    weights, names = data.skill(column)
    if data.skills[column].ndim == 2 and len(names) != len(skill_names):
        raise DemonstrationError(
            f"skill column {column!r} has weights of {len(names)} skills and the fit {len(skill_names)}: pass as many"
        )
    if unknown := [name for name in names if name not in skill_names]:
        raise DemonstrationError(f"there is no skill {unknown[0]!r}: this fit knows {listed(skill_names)}")
    placed = np.zeros((len(data), len(skill_names)), dtype=np.float32)
    placed[:, [skill_names.index(name) for name in names]] = weights
    return placed
