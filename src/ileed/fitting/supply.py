"""Supplies of batches: the whole data set as counts, or mini-batches of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Float, stream
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.errors import SettingsError
from ileed.fitting.settings import Climb
from ileed.model.batch import Batch, Sizes, Transitions, Visits
from ileed.model.lens import Lens, lens_for
from ileed.nets import Pick

_FEW_STEPS = 4096  # data this small are taken whole, whether their observations repeat or not
_EVALUATED_AT_ONCE = 4096  # steps scored together where data come in mini-batches


@runtime_checkable
class Supply(Protocol):
    """Where batches come from: `load(step)` prepares what the next `batch()` returns, always of the same size."""

    def load(self, step: int) -> None: ...

    def batch(self) -> Batch: ...

    def everything(self, *, held_out: bool) -> Iterator[Batch]: ...


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """A data set made ready for a device: sizes, lens, and a supply of batches."""

    sizes: Sizes
    lens: Lens
    collapsed: Collapsed
    supply: Supply
    has_held_out: bool
    action_spread: tuple[Tensor, Tensor] | None = None


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
) -> Prepared:
    """Collapse the data, choose between the whole batch and mini-batches, and put them on the device."""
    collapsed = data.collapse(skill)
    step_weight, held_out = _step_weights(data, climb, weights, members, seed)
    sizes = Sizes(
        inputs=collapsed.observations.shape[1],
        demonstrators=len(data.names),
        actions=data.action_count if data.discrete else data.actions.shape[1],
        discrete=data.discrete,
        skills=len(collapsed.skill_names),
        has_legal_actions=data.legal is not None,
    )
    places = torch.from_numpy(np.ascontiguousarray(collapsed.observations.T))
    visits = torch.from_numpy(np.bincount(collapsed.step_place, minlength=places.shape[1])).double()
    lens = lens_for(
        data.observations.shape[1:],
        torch.from_numpy(collapsed.varying),
        places,
        visits,
        normalise=data.observations.dtype.kind == "f" if normalise is None else normalise,
    )
    seen = lens.focus(places).to(device)
    repeats = 2 * len(collapsed.observations) <= len(data) or len(data) <= _FEW_STEPS
    whole = repeats if climb.batch_size is None else climb.batch_size >= len(data)
    kind = _Whole if whole else _Shuffled
    batch_size = min(climb.batch_size or 256, len(data))
    supply = kind(_Material(data, collapsed, sizes, seen, step_weight, held_out, batch_size, seed, transitions))
    spread = None
    if not data.discrete:
        actions = _tensor(data.actions, torch.device("cpu")).double()
        spread = actions.mean(0).float(), actions.std(0, correction=0).clamp_min(1e-6).float()
    return Prepared(sizes, lens, collapsed, supply, held_out is not None, spread)


@final
@dataclass(frozen=True, eq=False)
class SideBySide:
    """Several data sets as one supply, each for as many members in a row."""

    supply: Supply
    has_held_out: bool = False


def side_by_side(prepared: Sequence[Prepared], *, members: int, device: torch.device) -> SideBySide:
    """One supply of several data sets; each must be supplied whole, have discrete actions, and hold nothing out."""
    batches = [each.supply.batch() for each in prepared]
    sizes = [each.sizes for each in prepared]
    return SideBySide(_Fixed(Batch.side_by_side(batches, sizes, members=members, device=device)))


def stands_beside(prepared: Prepared) -> bool:
    """Whether a data set can be supplied side by side with others."""
    plain = prepared.sizes.discrete and not prepared.sizes.has_legal_actions and not prepared.sizes.skills
    return plain and isinstance(prepared.supply, _Whole) and not prepared.has_held_out


def _step_weights(
    data: Demonstrations, climb: Climb, weights: Array | None, members: int, seed: int
) -> tuple[Array, Array | None]:
    """(*member, step) weights to learn from, and (step,) weights of what is held out."""
    by_episode = np.ones(data.episode_count) if weights is None else np.asarray(weights, dtype=np.float64)
    if by_episode.shape not in ((data.episode_count,), (members, data.episode_count)):
        raise SettingsError(
            f"weights have shape {by_episode.shape}: pass one for each of the {data.episode_count} episodes, "
            f"or ({members}, {data.episode_count}) to give every restart its own"
        )
    if not np.isfinite(by_episode).all() or (by_episode < 0).any() or (by_episode.sum(-1) == 0).any():
        raise SettingsError("weights must be finite and not negative, and some must be above zero for every restart")
    if climb.held_out == 0:
        return by_episode[..., data.episode], None
    numpy_seed = int(torch.randint(2**31, (), generator=stream(seed, "held out")))
    kept, out = data.split(climb.held_out, generator=np.random.default_rng(numpy_seed))
    if ((by_episode * kept).sum(-1) == 0).any():
        raise SettingsError("all the weight of a restart is on held-out episodes: weigh more episodes, or held_out=0")
    return (by_episode * kept)[..., data.episode], out[data.episode].astype(np.float64)


@final
@dataclass(frozen=True, eq=False)
class _Material:
    """What a supply is made from."""

    data: Demonstrations
    collapsed: Collapsed
    sizes: Sizes
    seen: Float[Tensor, "input place"]
    step_weight: Array  # (*member, step)
    held_out: Array | None  # (step,)
    batch_size: int
    seed: int
    transitions: bool


@final
class _Whole:
    """Every step in every batch, as counts of distinct acts: exact, and the same tensors from first to last."""

    def __init__(self, material: _Material) -> None:
        collapsed, sizes = material.collapsed, material.sizes
        seen, device = material.seen, material.seen.device
        self._batch = Batch.of(
            sizes=sizes,
            observations=seen,
            place=_tensor(collapsed.place, device),
            demonstrator=_tensor(collapsed.demonstrator, device),
            action=_action_tensor(collapsed.action, device),
            weight=_tensor(collapsed.weights(material.step_weight), device).float(),
            legal=None if collapsed.legal is None else _tensor(collapsed.legal.T, device),
            skills=None if collapsed.skills is None else _tensor(collapsed.skills.T, device),
            transitions=_collapsed_transitions(material) if material.transitions else None,
        )
        self._held_out = self._batch
        if material.held_out is not None:
            weight = _tensor(collapsed.weights(material.held_out), device).float()
            self._held_out = replace(self._batch, weight=weight, transitions=None)

    def load(self, step: int) -> None:
        pass

    def batch(self) -> Batch:
        return self._batch

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        yield self._held_out if held_out else self._batch


@final
@dataclass(frozen=True, eq=False)
class _Fixed:
    """One batch for ever."""

    _batch: Batch

    def load(self, step: int) -> None:
        pass

    def batch(self) -> Batch:
        return self._batch

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        yield self._batch


@final
class _Shuffled:
    """Mini-batches of steps: every step once an epoch, in an order drawn for that epoch alone."""

    def __init__(self, material: _Material) -> None:
        data, collapsed, sizes = material.data, material.collapsed, material.sizes
        seen, device = material.seen, material.seen.device
        self._sizes, self._seen, self._seed = sizes, seen, material.seed
        self._place = _tensor(collapsed.step_place, device)
        self._action = _action_tensor(data.actions, device)
        self._demonstrator = _tensor(data.demonstrator, device)
        self._people = torch.eye(sizes.demonstrators, device=device)
        self._weight = _tensor(material.step_weight, device).float()
        self._held_out = None if material.held_out is None else _tensor(material.held_out, device).float()
        self._legal = None if collapsed.legal is None else _tensor(collapsed.legal.T, device)
        self._skills = None if collapsed.skills is None else _tensor(collapsed.skills.T, device)
        continues = np.append(data.episode[1:] == data.episode[:-1], False)
        self._continues = _tensor(continues, device).float() if material.transitions else None
        learned_from = np.flatnonzero(material.step_weight.reshape(-1, len(data)).sum(0) > 0)
        self._learned_from = torch.from_numpy(learned_from)
        self._size = min(material.batch_size, len(learned_from))
        self._loaded = torch.zeros(self._size, dtype=torch.long, device=device)
        self._order: dict[int, Tensor] = {}

    def load(self, step: int) -> None:
        count = len(self._learned_from)
        start = step * self._size
        epochs = range(start // count, (start + self._size - 1) // count + 1)
        drawn = torch.cat([self._epoch(epoch) for epoch in epochs])
        offset = start - epochs.start * count
        self._loaded.copy_(drawn[offset : offset + self._size])
        self._order = {epoch: self._order[epoch] for epoch in epochs}

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._order:
            order = torch.randperm(len(self._learned_from), generator=stream(self._seed, "order", epoch))
            self._order[epoch] = self._learned_from[order].to(self._seen.device)
        return self._order[epoch]

    def batch(self) -> Batch:
        return self._of(self._loaded, self._weight)

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        weight = self._held_out if held_out and self._held_out is not None else self._weight
        used = torch.nonzero(weight.reshape(-1, weight.shape[-1]).sum(0)).flatten()
        for steps in used.split(_EVALUATED_AT_ONCE):
            yield self._of(steps, weight)

    def _of(self, steps: Tensor, weight: Tensor) -> Batch:
        """The batch of these steps: each one a place and a cell of its own."""
        size = len(steps)
        here = torch.arange(size, device=steps.device)
        place = self._place[steps]
        action = self._action[steps]
        transitions = None
        observations = self._seen.index_select(1, place)
        if self._continues is not None:  # what was seen next stands behind, as places without a cell
            following = (steps + 1).clamp_max(len(self._place) - 1)
            observations = torch.cat([observations, self._seen.index_select(1, self._place[following])], dim=1)
            transitions = Transitions(
                place=Pick(here, 2 * size),
                action=_action_columns(action, self._sizes),
                next_place=Pick(here + size, 2 * size),
                weight=weight[..., steps] * self._continues[steps],
            )
        places = observations.shape[1]
        at = Pick(here, places, identity=places == size)
        who = self._demonstrator[steps]
        by = Pick(who, self._sizes.demonstrators, one_hot=self._people[:, who])
        return Batch(
            observations=observations,
            place=at,
            demonstrator=by,
            visits=Visits(at, by, Pick(here, size, identity=True)),
            action=action,
            weight=weight[..., steps],
            taken=Pick(action * places + here, self._sizes.actions * places) if self._sizes.discrete else None,
            legal=self._beside(self._legal, place, places),
            skills=self._beside(self._skills, place, places),
            transitions=transitions,
        )

    @staticmethod
    def _beside(columns: Tensor | None, place: Tensor, places: int) -> Tensor | None:
        """Per-place columns of the batch; places without a cell repeat the first, since nothing reads them."""
        if columns is None:
            return None
        chosen = columns.index_select(1, place)
        return chosen if places == len(place) else torch.cat([chosen, chosen], dim=1)


def _collapsed_transitions(material: _Material) -> Transitions:
    """Counted distinct (place, action, next place) of steps that another step of their episode follows."""
    data, collapsed, sizes = material.data, material.collapsed, material.sizes
    step_weight, device = material.step_weight, material.seen.device
    start = np.flatnonzero(data.episode[1:] == data.episode[:-1])
    if len(start) == 0:
        raise SettingsError("LatentDynamics needs an episode of two steps or more, and the data have none")
    places = collapsed.observations.shape[0]
    here, after = collapsed.step_place[start], collapsed.step_place[start + 1]
    if data.discrete:
        key, kind = np.unique((here * sizes.actions + data.actions[start]) * places + after, return_inverse=True)
        here, action, after = key // places // sizes.actions, key // places % sizes.actions, key % places
    else:
        kind, action = np.arange(len(start)), data.actions[start]
    rows = step_weight[..., start].reshape(-1, len(start))
    weight = np.stack([np.bincount(kind, weights=row, minlength=len(here)) for row in rows])
    return Transitions(
        place=Pick.of(_tensor(here, device), places),
        action=_action_columns(_action_tensor(action, device), sizes),
        next_place=Pick.of(_tensor(after, device), places),
        weight=_tensor(weight.reshape(*step_weight.shape[:-1], -1), device).float(),
    )


def _action_columns(action: Tensor, sizes: Sizes) -> Float[Tensor, "action transition"]:
    """Actions as a network takes them: one-hot where they are discrete, as they come where not."""
    return torch.nn.functional.one_hot(action, sizes.actions).T.float() if sizes.discrete else action.T


def _action_tensor(actions: Array, device: torch.device) -> Tensor:
    tensor = _tensor(actions, device)
    return tensor.float() if tensor.is_floating_point() else tensor


def _tensor(array: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(array, order="C")).to(device)
