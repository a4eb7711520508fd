"""Settings of an optimisation, and data prepared for it: collapsed, weighted, normalised, and given to a sampler."""

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
from ileed.fitting.batches import (
    ColumnsOnDevice,
    ColumnsOnDisk,
    DemonstratorBatches,
    MiniBatches,
    Sampler,
    TrainingData,
    WholeBatch,
    Windows,
)
from ileed.model.batch import Sizes
from ileed.model.joint import Joint, Parts
from ileed.model.normaliser import ActionScale, Normaliser, input_moments, normaliser_for


@final
@dataclass(frozen=True, kw_only=True)
class OptimiserSettings:
    """Settings of the optimisation; `Ileed` documents those of the same name."""

    steps: int = 2000
    learning_rate: float = 1e-3
    decay: bool = False
    skill_learning_rate: float = 1e-2
    batch_size: int | None = None
    clip: float | None = None
    held_out: float = 0.0
    member_block: int | None = None

    def __post_init__(self) -> None:
        rules = {
            "steps": "a fit takes a whole number of steps, one or more",
            "batch_size": "it must be a whole number, one or more, or None to choose by the data",
            "member_block": "it must be a whole number, one or more, or None for all restarts at once",
        }
        checked: dict[str, object] = {
            name: whole_number(name, value, least=1, rule=rule)
            for name, rule in rules.items()
            if (value := getattr(self, name)) is not None or name == "steps"
        }
        for name in ("learning_rate", "skill_learning_rate", "clip"):
            if (value := getattr(self, name)) is not None or name != "clip":
                checked[name] = number(name, value, above=0, below=math.inf, rule="it must be a number above zero")
        rule = "it is a share of the episodes, from 0 up to but not 1"
        checked["held_out"] = number("held_out", self.held_out, least=0, below=1, rule=rule)
        checked["decay"] = true_or_false("decay", self.decay)
        for name, value in checked.items():
            object.__setattr__(self, name, value)


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """A data set prepared for a device."""

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
    """Collapse the data as the model's parts require, choose a sampler, and move the data to the device."""
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
    """The sampler for a data set.

    Windows for a recurrent policy; batches of demonstrators if there are very many; all data as counts if observations
    repeat or steps are few; otherwise mini-batches of steps.
    """
    data, collapsed, device = training_data.data, training_data.collapsed, training_data.seen.device
    parts, expertise, store = training_data.parts, training_data.parts.expertise, data.store
    repeats = _repeats(collapsed, parts, len(data))
    if parts.policy.length > 1:
        store.check_in_memory("a recurrent policy does not read a folder yet: select episodes that memory holds")
        return Windows([training_data], device=device)
    # a batch of demonstrators has neither transitions nor the mean over all demonstrators
    is_separable = expertise.estimates_expertise and not expertise.measures_from_mean and parts.dynamics is None
    if data.has_many_demonstrators and settings.batch_size is None and not store.is_on_disk and is_separable:
        return DemonstratorBatches(training_data, repeats=repeats)
    if collapsed.repeats and (repeats if settings.batch_size is None else settings.batch_size >= len(data)):
        return WholeBatch.of(training_data)
    columns = ColumnsOnDisk(training_data, normaliser) if store.is_on_disk else ColumnsOnDevice(training_data)
    return MiniBatches(training_data, columns)


def _collapsed(data: Demonstrations, parts: Parts) -> Collapsed | Uncollapsed:
    """The data collapsed for these parts, which are checked first."""
    parts.check(sizes_of(data, parts))
    by_step = parts.dynamics is not None or parts.policy.length > 1
    return data.collapsed(parts.expertise.skill_column, parts.context, by_step=by_step)


def _repeats(collapsed: Collapsed | Uncollapsed, parts: Parts, steps: int) -> bool:
    """Whether observations repeat, or there are so few steps that all are read at once."""
    few = steps <= FEW_STEPS and not parts.policy.learns_from_batches
    return 2 * collapsed.unique_count <= steps or few


def _batch_size(settings: OptimiserSettings, parts: Parts) -> int:
    """Number of steps in a mini-batch, or of windows for a recurrent policy."""
    return settings.batch_size or (100 if parts.policy.length > 1 else 256)


def prepared_for(prepared: Prepared, members: Sequence[int], settings: OptimiserSettings) -> Prepared:
    """The same data for these members only, in this order; a member may be repeated."""
    whole = prepared.training_data
    own_weights = whole.episode_weight.ndim > 1
    if not own_weights and whole.parts.policy.length == 1:  # these samplers do not depend on the members
        return prepared
    weight = whole.episode_weight[list(members)] if own_weights else whole.episode_weight
    part = replace(whole, episode_weight=weight, members=len(members))
    return replace(prepared, training_data=part, sampler=sampler_of(part, settings, prepared.normaliser))


def sizes_of(data: Demonstrations, parts: Parts, *, inputs: int = 0) -> Sizes:
    """The sizes of a model of the data; `inputs` is known once the data are collapsed."""
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
    """(input, unique observation); none if the data did not collapse."""
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
    """Location and range of continuous actions."""
    if not data.action_size:
        return None
    blocks = [data.actions[block] for block in blocks_of(data, row_bytes=32 * data.actions.shape[1])]
    mean, deviation = map(torch.from_numpy, moments(blocks))
    low, high = (torch.from_numpy(end([end(block, axis=0) for block in blocks], axis=0)) for end in (np.min, np.max))
    return ActionScale(*(each.float() for each in (mean, deviation.clamp_min(1e-6), low, high)))


def _guessing_nats(data: Demonstrations, scale: ActionScale | None) -> float:
    """The cost of the best guess that ignores the observation, in nats per action.

    For discrete actions the guess is their marginal frequencies, or the uniform distribution over legal actions if that
    costs less; for continuous actions it is one Gaussian.
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
    """Weights of episodes, (episode,) or (member, episode), validated."""
    weights = _numbers(given)
    if weights.shape not in ((data.episode_count,), (members, data.episode_count)):
        raise SettingsError(
            f"weights have shape {weights.shape}: pass one for each of the {data.episode_count} episodes, "
            f"or ({members}, {data.episode_count}) to give every restart its own",
            code="weights-shape",
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
    """(*member, episode) weights for learning, and (episode,) weights of held-out episodes."""
    by_episode = np.ones(data.episode_count)
    if weights is not None:
        by_episode = checked_weights(weights, data, members)
    if settings.held_out == 0:
        return by_episode, None
    kept, out = data.split(settings.held_out, generator=numpy_stream(seed, "held out"))
    if ((by_episode * kept).sum(-1) == 0).any():
        raise SettingsError(
            "all the weight of a restart is on held-out episodes: give weight to more episodes, or pass held_out=0"
        )
    return by_episode * kept, out.astype(np.float64)


def least_memory(data: Demonstrations, parts: Parts, settings: OptimiserSettings, members: int) -> float:
    """A lower bound on the bytes of an optimisation; parts that do not fit each other or the data are refused.

    Each parameter takes four numbers (its value, gradient and Adam's two moments), and each output of a layer takes one
    per observation that a step reads.
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
    """Refuse a model that needs more bytes than the device has."""
    available = available_memory(device)
    if available is not None and least > available:
        found = "more than a billion" if least > 1e18 else f"{least / 1e9:,.2f}"
        raise SettingsError(
            f"this fit needs at least {found} GB of memory for its {members:,} restarts, and "
            f"{available / 1e9:,.2f} GB are available on {device.type}: lower hidden, dim, modes, restarts or "
            "batch_size, or the data's action_count"
        )
