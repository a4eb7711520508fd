"""Settings of an optimisation, and the data prepared for it: collapsed, weighed, and given to a sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt
import torch

from ileed._torch import available_memory, numpy_stream
from ileed.data import Array, Collapsed, Demonstrations
from ileed.data.collapsing import (
    FEW_STEPS,
    Uncollapsed,
    blocks_of,
    input_moments_of,
    moments,
    skill_rows,
    unscaled_inputs,
)
from ileed.errors import SettingsError, brief, number, true_or_false, whole_number
from ileed.fitting.batches import ColumnsOnDevice, ColumnsOnDisk, MiniBatches, Sampler, TrainingData, WholeBatch
from ileed.fitting.people import PeopleBatches
from ileed.fitting.windows import Windows
from ileed.model.batch import Sizes
from ileed.model.joint import Joint, Parts
from ileed.model.normaliser import ActionScale, Normaliser, input_moments, normaliser_for

_SCALED_AT_ONCE = 1 << 20  # steps whose actions are scaled in memory


@final
@dataclass(frozen=True, kw_only=True)
class OptimiserSettings:
    """Settings of the optimisation, as `Ileed` describes those of the same name.

    Held-out episodes choose among members, and among each member's steps.
    """

    steps: int = 2000
    learning_rate: float = 1e-3
    decay: bool = False
    skill_learning_rate: float = 1e-2
    batch_size: int | None = None
    clip: float | None = None
    held_out: float = 0.0
    member_block: int | None = None

    def __post_init__(self) -> None:
        checked: dict[str, object] = {}
        rule = "a fit takes a whole number of steps, one or more"
        checked["steps"] = whole_number("steps", self.steps, least=1, rule=rule)
        rule = "it is a share of the episodes, from 0 up to but not 1"
        checked["held_out"] = number("held_out", self.held_out, least=0, below=1, rule=rule)
        if self.batch_size is not None:
            rule = "it must be a whole number, one or more, or None to choose by the data"
            checked["batch_size"] = whole_number("batch_size", self.batch_size, least=1, rule=rule)
        if self.member_block is not None:
            rule = "it must be a whole number, one or more, or None for all restarts at once"
            checked["member_block"] = whole_number("member_block", self.member_block, least=1, rule=rule)
        checked["decay"] = true_or_false("decay", self.decay)
        rule = "it must be a number above zero"
        for name in ("learning_rate", "skill_learning_rate", *(["clip"] if self.clip is not None else [])):
            checked[name] = number(name, getattr(self, name), above=0, below=math.inf, rule=rule)
        for name, value in checked.items():
            object.__setattr__(self, name, value)


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """A data set made ready for a device: sizes, normaliser, and a sampler of batches."""

    training_data: TrainingData
    sampler: Sampler
    normaliser: Normaliser
    action_scale: ActionScale | None
    guessing_nats: float

    @property
    def sizes(self) -> Sizes:
        """The sizes of a model of these data."""
        return self.training_data.sizes


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
    data set where observations repeat or steps are few, and from mini-batches of steps otherwise. Of very many people
    they learn from mini-batches of people.
    """
    collapsed = _collapsed(data, parts)
    episode_weight, held_out = _episode_weights(data, settings, weights, members, seed)
    normaliser = _normaliser(data, collapsed, normalise)
    training_data = TrainingData(
        data=data,
        parts=parts,
        collapsed=collapsed,
        sizes=sizes_of(data, parts, inputs=len(collapsed.varying)),
        seen=normaliser.normalise(_unique_observations(collapsed)).to(device),
        episode_weight=episode_weight,
        held_out_episodes=held_out,
        batch_size=min(_batch_size(settings, parts), len(data)),
        seed=seed,
        members=members,
    )
    scale = _action_scale(data)
    sampler = sampler_of(training_data, settings, normaliser)
    return Prepared(training_data, sampler, normaliser, scale, _guessing_nats(data, scale))


def sampler_of(training_data: TrainingData, settings: OptimiserSettings, normaliser: Normaliser) -> Sampler:
    """Windows for a recurrent policy; all data as counts where observations repeat; mini-batches otherwise."""
    data, collapsed, device = training_data.data, training_data.collapsed, training_data.seen.device
    repeats = _repeats(collapsed, training_data.parts, len(data))
    if training_data.parts.policy.length > 1:
        data.store.check_in_memory("a recurrent policy does not read a folder yet: select episodes that memory holds")
        return Windows([training_data], device=device)
    parts, expertise = training_data.parts, training_data.parts.expertise
    on_disk = data.store.is_on_disk
    by_people = data.has_many_people and settings.batch_size is None and not on_disk
    has_mean_of_all = expertise.measures_from_mean  # which no part of the people has
    if by_people and parts.dynamics is None and expertise.estimates_expertise and not has_mean_of_all:
        return PeopleBatches(training_data, repeats=repeats)
    if collapsed.repeats and (repeats if settings.batch_size is None else settings.batch_size >= len(data)):
        return WholeBatch.of(training_data)
    columns = ColumnsOnDisk(training_data, normaliser) if on_disk else ColumnsOnDevice(training_data)
    return MiniBatches(training_data, columns)


def _collapsed(data: Demonstrations, parts: Parts) -> Collapsed | Uncollapsed:
    """The data as these parts read them; parts that do not describe them are refused first."""
    parts.check(sizes_of(data, parts))
    by_step = parts.dynamics is not None or parts.policy.length > 1
    return data.collapsed(parts.expertise.skill_column, parts.context, by_step=by_step)


def _repeats(collapsed: Collapsed | Uncollapsed, parts: Parts, steps: int) -> bool:
    """Whether observations repeat, or steps are so few that all of them are read at once."""
    few = steps <= FEW_STEPS and not parts.policy.learns_from_batches
    return 2 * collapsed.unique_count <= steps or few


def _batch_size(settings: OptimiserSettings, parts: Parts) -> int:
    """Steps of a mini-batch, or windows of a recurrent policy."""
    return settings.batch_size or (100 if parts.policy.length > 1 else 256)


def prepared_for(prepared: Prepared, members: Sequence[int], settings: OptimiserSettings) -> Prepared:
    """The same data for some of the members alone, in the order given; a member may stand in it twice."""
    whole = prepared.training_data
    own_weights = whole.episode_weight.ndim > 1
    if not own_weights and whole.parts.policy.length == 1:  # nothing of these samplers depends on how many members read
        return prepared
    weight = whole.episode_weight[list(members)] if own_weights else whole.episode_weight
    part = replace(whole, episode_weight=weight, members=len(members))
    return replace(prepared, training_data=part, sampler=sampler_of(part, settings, prepared.normaliser))


def sizes_of(data: Demonstrations, parts: Parts, *, inputs: int = 0) -> Sizes:
    """The sizes of a model of the data; how many inputs vary is known once the data are collapsed."""
    column = parts.expertise.skill_column
    return Sizes(
        inputs=inputs,
        demonstrators=len(data.names),
        actions=data.action_count + data.action_size,
        discrete=data.discrete,
        skills=0 if column is None else len(skill_rows(data, column)[0]),
        has_legal_actions=data.legal is not None,
        binary_dimensions=data.binary_dimensions,
    )


def _unique_observations(collapsed: Collapsed | Uncollapsed) -> torch.Tensor:
    """(input, unique observation), none where the data did not collapse."""
    return torch.from_numpy(np.ascontiguousarray(collapsed.observations.T))


def _normaliser(data: Demonstrations, collapsed: Collapsed | Uncollapsed, normalise: bool | None) -> Normaliser:
    shape, varying = data.observations.shape[1:], torch.from_numpy(collapsed.varying)
    if normalise is False:
        return normaliser_for(shape, varying, None, arrays=data.arrays)
    unscaled = torch.from_numpy(unscaled_inputs(data, collapsed, codes=normalise is None))
    if collapsed.repeats:
        steps_at = np.bincount(collapsed.observation_index, collapsed.count, minlength=collapsed.unique_count)
        found = input_moments(_unique_observations(collapsed), torch.from_numpy(steps_at))
    else:
        mean, deviation = input_moments_of(collapsed)
        found = torch.from_numpy(mean), torch.from_numpy(deviation)
    dtype = torch.float32 if collapsed.dtype == np.float32 else torch.float64
    return normaliser_for(shape, varying, found, unscaled, dtype, data.arrays)


def _action_scale(data: Demonstrations) -> ActionScale | None:
    if not data.action_size:
        return None
    if len(data) > _SCALED_AT_ONCE:
        blocks = [data.actions[block] for block in blocks_of(data, row_bytes=32 * data.actions.shape[1])]
        mean, deviation = map(torch.from_numpy, moments(blocks))
        low, high = (np.stack([end(block, axis=0) for block in blocks]) for end in (np.min, np.max))
        reach = torch.from_numpy(low.min(axis=0)), torch.from_numpy(high.max(axis=0))
        return ActionScale(*(each.float() for each in (mean, deviation.clamp_min(1e-6), *reach)))
    actions = torch.from_numpy(data.actions.astype(np.float64))
    spread = actions.std(0, correction=0).clamp_min(1e-6)
    return ActionScale(*(each.float() for each in (actions.mean(0), spread, actions.amin(0), actions.amax(0))))


def _guessing_nats(data: Demonstrations, scale: ActionScale | None) -> float:
    """The cost of the best guess that ignores the observation, in nats per action.

    For discrete actions the guess is how often each is taken, or any legal action alike where that costs less; for
    continuous ones it is one Gaussian over all actions.
    """
    if scale is not None:
        return float((scale.spread.double().log() + 0.5 * math.log(2 * math.pi * math.e)).sum())
    blocks = [*blocks_of(data, row_bytes=16 + 2 * data.action_count)]
    taken = np.zeros(data.action_count)
    for block in blocks:
        taken += np.bincount(data.actions[block], minlength=data.action_count)
    share = taken[taken > 0] / len(data)
    entropy = -float((share * np.log(share)).sum())
    if data.legal is None:
        return entropy
    return min(entropy, float(sum(np.log(data.legal[block].sum(1)).sum() for block in blocks) / len(data)))


def checked_weights(given: npt.ArrayLike, data: Demonstrations, members: int) -> Array:
    """Weights of episodes, (episode,) or (member, episode), or a sentence about what is wrong with them."""
    weights = _numbers(given)
    if weights.shape not in ((data.episode_count,), (members, data.episode_count)):
        raise SettingsError(
            f"weights have shape {weights.shape}: pass one for each of the {data.episode_count} episodes, "
            f"or ({members}, {data.episode_count}) to give every restart its own"
        )
    if not np.isfinite(weights).all() or (weights < 0).any() or (weights.sum(-1) == 0).any():
        raise SettingsError("weights must be finite and not negative, and some must be above zero for every restart")
    return weights


def _numbers(values: npt.ArrayLike) -> Array:
    """Weights in double precision."""
    try:
        if not np.ma.is_masked(values):
            return np.asarray(values, dtype=np.float64)
        found = "hold masked values"
    except (TypeError, ValueError, RuntimeError):
        found = f"are {brief(values)}"
    raise SettingsError(f"weights {found}: pass one number for each episode")


def _episode_weights(
    data: Demonstrations, settings: OptimiserSettings, weights: Array | None, members: int, seed: int
) -> tuple[Array, Array | None]:
    """(*member, episode) weights to learn from, and (episode,) weights of what is held out."""
    by_episode = np.ones(data.episode_count)
    if weights is not None:
        by_episode = checked_weights(weights, data, members)
    if settings.held_out == 0:
        return by_episode, None
    kept, out = data.split(settings.held_out, generator=numpy_stream(seed, "held out"))
    if ((by_episode * kept).sum(-1) == 0).any():
        raise SettingsError("all the weight of a restart is on held-out episodes: weigh more episodes, or held_out=0")
    return by_episode * kept, out.astype(np.float64)


def least_memory(data: Demonstrations, parts: Parts, settings: OptimiserSettings, members: int) -> float:
    """Bytes that an optimisation takes at least; parts that do not go together are refused.

    Each parameter takes four numbers (its value, its gradient and Adam's two moments), and each output of a layer takes
    one for each observation that a step reads.
    """
    collapsed = _collapsed(data, parts)
    in_batches = settings.batch_size is not None or parts.policy.length > 1 or not _repeats(collapsed, parts, len(data))
    read = min(_batch_size(settings, parts) if in_batches else collapsed.unique_count, len(data))
    try:  # a joint model without members takes no memory
        joint = Joint(parts, sizes_of(data, parts, inputs=len(collapsed.varying)), [])
    except RuntimeError:  # more numbers than 64 bits can count
        return math.inf
    shapes = dict(joint.named_parameters())
    parameters = sum(math.prod(each.shape[1:]) for each in shapes.values())
    outputs = sum(math.prod(each.shape[1:]) for name, each in shapes.items() if name.endswith("bias"))
    return float(members * (4 * parameters + read * outputs) * torch.float32.itemsize)


def check_memory(least: float, members: int, device: torch.device) -> None:
    """Refuse a model that takes more bytes than the device has."""
    available = available_memory(device)
    if available is not None and least > available:
        found = "more than a billion" if least > 1e18 else f"{least / 1e9:,.2f}"
        raise SettingsError(
            f"this fit needs at least {found} GB of memory for its {members:,} restarts, and "
            f"{available / 1e9:,.2f} GB are available on {device.type}: lower hidden, dim, modes, restarts or "
            "batch_size, or the data's action_count"
        )
