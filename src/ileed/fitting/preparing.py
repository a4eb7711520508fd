"""Data prepared for an optimisation: collapsed, weighed, and given to the sampler that suits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import stream
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.errors import SettingsError
from ileed.fitting.batches import MiniBatches, Sampler, TrainingData, WholeBatch, tensor
from ileed.fitting.settings import OptimiserSettings
from ileed.fitting.windows import Windows
from ileed.model.batch import Sizes
from ileed.model.joint import Parts
from ileed.model.normaliser import ActionScale, Normaliser, normaliser_for

_FEW_STEPS = 4096  # data this small are taken whole, whether their observations repeat or not


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """A data set made ready for a device: sizes, normaliser, and a sampler of batches."""

    sizes: Sizes
    normaliser: Normaliser
    collapsed: Collapsed
    sampler: Sampler
    has_held_out: bool
    training_data: TrainingData
    guessing_nats: float
    action_scale: ActionScale | None = None


def prepare(
    data: Demonstrations,
    parts: Parts,
    settings: OptimiserSettings,
    *,
    seed: int,
    device: torch.device,
    members: int,
    normalise: bool | None = None,
    weights: Array | None = None,
) -> Prepared:
    """Collapse the data as the model's parts need them, choose a sampler, and put them on the device.

    A recurrent policy learns from windows, which are always drawn in mini-batches; other policies learn from the whole
    data set where observations repeat or steps are few, and from mini-batches of steps otherwise.
    """
    collapsed = data.collapse(parts.expertise.skill_column, parts.demonstrator.context)
    step_weight, held_out = _step_weights(data, settings, weights, members, seed)
    normaliser, seen = _normalised(data, collapsed, normalise)
    repeats = 2 * len(collapsed.observations) <= len(data) or len(data) <= _FEW_STEPS
    whole = repeats if settings.batch_size is None else settings.batch_size >= len(data)
    length = parts.policy.length
    training_data = TrainingData(
        data=data,
        collapsed=collapsed,
        sizes=_sizes(data, collapsed),
        seen=seen.to(device),
        step_weight=step_weight,
        held_out=held_out,
        batch_size=min(settings.batch_size or (256 if length == 1 else 100), len(data)),
        seed=seed,
        transitions=parts.dynamics is not None,
        members=members,
        length=length,
        context=parts.demonstrator.context,
    )
    if length > 1:
        sampler: Sampler = Windows([training_data], device=device)
    else:
        sampler = WholeBatch.of(training_data) if whole else MiniBatches(training_data)
    scale = None if data.discrete else _action_scale(data)
    guessing_nats = _guessing_nats(data, scale)
    return Prepared(
        training_data.sizes, normaliser, collapsed, sampler, held_out is not None, training_data, guessing_nats, scale
    )


def _sizes(data: Demonstrations, collapsed: Collapsed) -> Sizes:
    return Sizes(
        inputs=collapsed.observations.shape[1],
        demonstrators=len(data.names),
        actions=data.action_count if data.discrete else data.actions.shape[1],
        discrete=data.discrete,
        skills=len(collapsed.skill_names),
        has_legal_actions=data.legal is not None,
        binary_dimensions=data.binary_dimensions,
    )


def _normalised(data: Demonstrations, collapsed: Collapsed, normalise: bool | None) -> tuple[Normaliser, Tensor]:
    """The normaliser of the data, and (input, unique observation) what the networks read."""
    unique_observations = torch.from_numpy(np.ascontiguousarray(collapsed.observations.T))
    steps_at = np.bincount(collapsed.step_observation_index, minlength=unique_observations.shape[1])
    normaliser = normaliser_for(
        data.observations.shape[1:],
        torch.from_numpy(collapsed.varying),
        unique_observations,
        torch.from_numpy(steps_at).double(),
        normalise=data.observations.dtype.kind == "f" if normalise is None else normalise,
        indicators=None if data.encoding is None else torch.from_numpy(data.encoding.indicators[collapsed.varying]),
    )
    return normaliser, normaliser.normalise(unique_observations)


def _action_scale(data: Demonstrations) -> ActionScale:
    actions = tensor(data.actions, torch.device("cpu")).double()
    spread = actions.std(0, correction=0).clamp_min(1e-6)
    return ActionScale(*(each.float() for each in (actions.mean(0), spread, actions.amin(0), actions.amax(0))))


def _guessing_nats(data: Demonstrations, scale: ActionScale | None) -> float:
    """The cost of the same guess for every observation: any legal action alike, or one Gaussian over all actions."""
    if scale is not None:
        return float((scale.spread.double().log() + 0.5 * math.log(2 * math.pi * math.e)).sum())
    choices = np.full(len(data), data.action_count) if data.legal is None else data.legal.sum(1)
    return float(np.log(choices).mean())


@final
@dataclass(frozen=True, eq=False)
class SideBySide:
    """Several data sets as one sampler, each for as many members in a row."""

    sampler: Sampler
    has_held_out: bool = False
    guessing_nats: float = math.nan  # each data set has its own


def side_by_side(prepared: Sequence[Prepared], *, members: int, device: torch.device) -> SideBySide:
    """One sampler of several data sets, each of which `stands_beside` others."""
    first, *others = (each.sampler for each in prepared)
    return SideBySide(first.beside(others, members=members, device=device), prepared[0].has_held_out)


def stands_beside(prepared: Prepared) -> bool:
    """Whether a data set can be learned from side by side with others."""
    return prepared.sampler.can_stand_beside


def checked_weights(weights: Array, data: Demonstrations, members: int) -> Array:
    """Weights of episodes, (episode,) or (member, episode), or a sentence about what is wrong with them."""
    if weights.shape not in ((data.episode_count,), (members, data.episode_count)):
        raise SettingsError(
            f"weights have shape {weights.shape}: pass one for each of the {data.episode_count} episodes, "
            f"or ({members}, {data.episode_count}) to give every restart its own"
        )
    if not np.isfinite(weights).all() or (weights < 0).any() or (weights.sum(-1) == 0).any():
        raise SettingsError("weights must be finite and not negative, and some must be above zero for every restart")
    return weights


def _step_weights(
    data: Demonstrations, settings: OptimiserSettings, weights: Array | None, members: int, seed: int
) -> tuple[Array, Array | None]:
    """(*member, step) weights to learn from, and (step,) weights of what is held out."""
    by_episode = np.ones(data.episode_count) if weights is None else checked_weights(weights, data, members)
    if settings.held_out == 0:
        return by_episode[..., data.episode], None
    numpy_seed = int(torch.randint(2**31, (), generator=stream(seed, "held out")))
    kept, out = data.split(settings.held_out, generator=np.random.default_rng(numpy_seed))
    if ((by_episode * kept).sum(-1) == 0).any():
        raise SettingsError("all the weight of a restart is on held-out episodes: weigh more episodes, or held_out=0")
    return (by_episode * kept)[..., data.episode], out[data.episode].astype(np.float64)
