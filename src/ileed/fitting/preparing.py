"""Data made ready for a climb: collapsed, weighed, and supplied in the way that suits them."""

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
from ileed.fitting.settings import Climb
from ileed.fitting.supply import Fixed, Material, Shuffled, Supply, Whole, tensor
from ileed.fitting.windows import Windows
from ileed.model.batch import Batch, Sizes
from ileed.model.lens import Lens, lens_for
from ileed.model.policies import ActionScale

_FEW_STEPS = 4096  # data this small are taken whole, whether their observations repeat or not


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """A data set made ready for a device: sizes, lens, and a supply of batches."""

    sizes: Sizes
    lens: Lens
    collapsed: Collapsed
    supply: Supply
    has_held_out: bool
    material: Material
    guessing_nats: float
    action_scale: ActionScale | None = None


def prepare(
    data: Demonstrations,
    climb: Climb,
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
    step_weight, held_out = _step_weights(data, climb, weights, members, seed)
    sizes = Sizes(
        inputs=collapsed.observations.shape[1],
        demonstrators=len(data.names),
        actions=data.action_count if data.discrete else data.actions.shape[1],
        discrete=data.discrete,
        skills=len(collapsed.skill_names),
        has_legal_actions=data.legal is not None,
        two_valued=data.two_valued,
    )
    places = torch.from_numpy(np.ascontiguousarray(collapsed.observations.T))
    visits = torch.from_numpy(np.bincount(collapsed.step_place, minlength=places.shape[1])).double()
    lens = lens_for(
        data.observations.shape[1:],
        torch.from_numpy(collapsed.varying),
        places,
        visits,
        normalise=data.observations.dtype.kind == "f" if normalise is None else normalise,
        indicators=None if data.encoding is None else torch.from_numpy(data.encoding.indicators[collapsed.varying]),
    )
    seen = lens.focus(places).to(device)
    repeats = 2 * len(collapsed.observations) <= len(data) or len(data) <= _FEW_STEPS
    whole = repeats if climb.batch_size is None else climb.batch_size >= len(data)
    batch_size = min(climb.batch_size or (256 if length == 1 else 100), len(data))
    material = Material(
        data, collapsed, sizes, seen, step_weight, held_out, batch_size, seed, transitions, members, length
    )
    if length > 1:
        supply: Supply = Windows([material], device=device)
    else:
        supply = Whole(material) if whole else Shuffled(material)
    scale = None
    if not data.discrete:
        actions = tensor(data.actions, torch.device("cpu")).double()
        spread = actions.std(0, correction=0).clamp_min(1e-6)
        scale = ActionScale(*(each.float() for each in (actions.mean(0), spread, actions.amin(0), actions.amax(0))))
    return Prepared(sizes, lens, collapsed, supply, held_out is not None, material, _guessing_nats(data, scale), scale)


def _guessing_nats(data: Demonstrations, scale: ActionScale | None) -> float:
    """The cost of a guess that never looks: any legal action alike, or one Gaussian over all actions."""
    if scale is not None:
        return float((scale.spread.double().log() + 0.5 * math.log(2 * math.pi * math.e)).sum())
    choices = np.full(len(data), data.action_count) if data.legal is None else data.legal.sum(1)
    return float(np.log(choices).mean())


@final
@dataclass(frozen=True, eq=False)
class SideBySide:
    """Several data sets as one supply, each for as many members in a row."""

    supply: Supply
    has_held_out: bool = False
    guessing_nats: float = math.nan  # each data set has its own


def side_by_side(prepared: Sequence[Prepared], *, members: int, device: torch.device) -> SideBySide:
    """One supply of several data sets, each of which `stands_beside` others."""
    if all(isinstance(each.supply, Windows) for each in prepared):
        return SideBySide(Windows([each.material for each in prepared], device=device), prepared[0].has_held_out)
    batches = [each.supply.batch() for each in prepared]
    sizes = [each.sizes for each in prepared]
    return SideBySide(Fixed(Batch.side_by_side(batches, sizes, members=members, device=device)))


def stands_beside(prepared: Prepared) -> bool:
    """Whether a data set can be supplied side by side with others: in windows, or whole and plain."""
    if isinstance(prepared.supply, Windows):
        return not prepared.sizes.skills
    plain = prepared.sizes.discrete and not prepared.sizes.has_legal_actions and not prepared.sizes.skills
    return plain and isinstance(prepared.supply, Whole) and not prepared.has_held_out


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
    data: Demonstrations, climb: Climb, weights: Array | None, members: int, seed: int
) -> tuple[Array, Array | None]:
    """(*member, step) weights to learn from, and (step,) weights of what is held out."""
    by_episode = np.ones(data.episode_count) if weights is None else checked_weights(weights, data, members)
    if climb.held_out == 0:
        return by_episode[..., data.episode], None
    numpy_seed = int(torch.randint(2**31, (), generator=stream(seed, "held out")))
    kept, out = data.split(climb.held_out, generator=np.random.default_rng(numpy_seed))
    if ((by_episode * kept).sum(-1) == 0).any():
        raise SettingsError("all the weight of a restart is on held-out episodes: weigh more episodes, or held_out=0")
    return (by_episode * kept)[..., data.episode], out[data.episode].astype(np.float64)
