"""Data made ready for a settings: collapsed, weighed, and supplied in the way that suits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from ileed._torch import stream
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.errors import SettingsError
from ileed.fitting.batches import FixedBatch, MiniBatches, Sampler, TrainingData, WholeBatch, tensor
from ileed.fitting.settings import OptimiserSettings
from ileed.fitting.windows import Windows
from ileed.model.batch import Batch, Sizes
from ileed.model.normaliser import Normaliser, normaliser_for
from ileed.model.policies import ActionScale

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
    settings: OptimiserSettings,
    *,
    seed: int,
    device: torch.device,
    members: int,
    normalise: bool | None = None,
    skill: str | None = None,
    transitions: bool = False,
    weights: Array | None = None,
    length: int = 1,
) -> Prepared:
    """Collapse the data, choose between the whole batch and mini-batches, and put them on the device.

    A policy with a memory learns from windows of `length` steps, which are always drawn in mini-batches.
    """
    collapsed = data.collapse(skill)
    step_weight, held_out = _step_weights(data, settings, weights, members, seed)
    sizes = Sizes(
        inputs=collapsed.observations.shape[1],
        demonstrators=len(data.names),
        actions=data.action_count if data.discrete else data.actions.shape[1],
        discrete=data.discrete,
        skills=len(collapsed.skill_names),
        has_legal_actions=data.legal is not None,
        binary_dimensions=data.binary_dimensions,
    )
    unique_observations = torch.from_numpy(np.ascontiguousarray(collapsed.observations.T))
    steps_at = torch.from_numpy(
        np.bincount(collapsed.step_observation_index, minlength=unique_observations.shape[1])
    ).double()
    normaliser = normaliser_for(
        data.observations.shape[1:],
        torch.from_numpy(collapsed.varying),
        unique_observations,
        steps_at,
        normalise=data.observations.dtype.kind == "f" if normalise is None else normalise,
        indicators=None if data.encoding is None else torch.from_numpy(data.encoding.indicators[collapsed.varying]),
    )
    seen = normaliser.normalise(unique_observations).to(device)
    repeats = 2 * len(collapsed.observations) <= len(data) or len(data) <= _FEW_STEPS
    whole = repeats if settings.batch_size is None else settings.batch_size >= len(data)
    batch_size = min(settings.batch_size or (256 if length == 1 else 100), len(data))
    training_data = TrainingData(
        data, collapsed, sizes, seen, step_weight, held_out, batch_size, seed, transitions, members, length
    )
    if length > 1:
        sampler: Sampler = Windows([training_data], device=device)
    else:
        sampler = WholeBatch(training_data) if whole else MiniBatches(training_data)
    scale = None
    if not data.discrete:
        actions = tensor(data.actions, torch.device("cpu")).double()
        spread = actions.std(0, correction=0).clamp_min(1e-6)
        scale = ActionScale(*(each.float() for each in (actions.mean(0), spread, actions.amin(0), actions.amax(0))))
    return Prepared(
        sizes, normaliser, collapsed, sampler, held_out is not None, training_data, _guessing_nats(data, scale), scale
    )


def _guessing_nats(data: Demonstrations, scale: ActionScale | None) -> float:
    """The cost of a guess that never looks: any legal action alike, or one Gaussian over all actions."""
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
    if all(isinstance(each.sampler, Windows) for each in prepared):
        return SideBySide(Windows([each.training_data for each in prepared], device=device), prepared[0].has_held_out)
    batches = [each.sampler.batch() for each in prepared]
    sizes = [each.sizes for each in prepared]
    return SideBySide(FixedBatch(Batch.side_by_side(batches, sizes, members=members, device=device)))


def stands_beside(prepared: Prepared) -> bool:
    """Whether a data set can be supplied side by side with others: in windows, or whole and plain."""
    if isinstance(prepared.sampler, Windows):
        return not prepared.sizes.skills
    plain = prepared.sizes.discrete and not prepared.sizes.has_legal_actions and not prepared.sizes.skills
    return plain and isinstance(prepared.sampler, WholeBatch) and not prepared.has_held_out


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
