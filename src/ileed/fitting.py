"""The climb: all members of a joint model up the likelihood at once, to the same bits every time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from ileed import runs
from ileed._torch import Float, stream, threads
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.errors import RunError, SettingsError
from ileed.model.batch import Batch, Sizes, Transitions
from ileed.model.joint import Joint, upright
from ileed.model.lens import Lens, lens_for
from ileed.nets import Pick

_RECORDS = 200  # how many points of the learning curve are kept
_SETTLED_NATS = 1e-3  # an improvement below this over the last tenth of the steps is called converged
_EVALUATED_AT_ONCE = 4096  # steps scored together where data come in mini-batches


class Outcome(StrEnum):
    """How a climb ended, as a sentence."""

    CONVERGED = "the best restart stopped improving"
    STEPS_SPENT = "the step budget ran out first: raise `steps`, or read the curve in `history`"


class Progress(NamedTuple):
    """Where a climb is: `nats_per_action` is the best member's cost so far."""

    step: int
    steps: int
    nats_per_action: float


Watcher = Callable[[Progress], None]


@final
@dataclass(frozen=True, kw_only=True)
class Climb:
    """How to climb: two Adam optimisers (one for networks, one for the demonstrators' w) for an exact number of steps.

    `batch_size` is the number of steps drawn for each gradient; None takes the whole data set where observations
    repeat, and 256 where they do not. `clip` bounds each member's gradient norm on its own. `held_out` keeps that
    share of everybody's episodes for choosing among members (and among each member's steps); 0 chooses by the
    likelihood of all the data, as the paper does.
    """

    steps: int = 2000
    learning_rate: float = 1e-3
    skill_learning_rate: float = 1e-2
    batch_size: int | None = None
    clip: float | None = None
    held_out: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.steps != int(self.steps):
            raise SettingsError(f"steps is {self.steps}: a fit takes a whole number of steps, one or more")
        if self.batch_size is not None and self.batch_size < 1:
            raise SettingsError(
                f"batch_size is {self.batch_size}: it must be one or more, or None to choose by the data"
            )
        if not 0 <= self.held_out < 1:
            raise SettingsError(f"held_out is {self.held_out}: it is a share of the episodes, from 0 up to but not 1")
        for name in ("learning_rate", "skill_learning_rate", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SettingsError(f"{name} is {value}: it must be a number above zero")


@final
@dataclass(frozen=True, eq=False)
class History:
    """The learning curve of every member: costs in nats per action, lower is better.

    `held_out` is the cost on held-out episodes, where there are any.
    """

    step: Array  # (record,)
    nats_per_action: Array  # (record, member)
    held_out: Array | None = None  # (record, member)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain mapping for each record, as history.jsonl holds them."""
        for k, step in enumerate(self.step.tolist()):
            row: dict[str, Any] = {"step": step, "nats_per_action": _rounded(self.nats_per_action[k])}
            yield row if self.held_out is None else row | {"held_out": _rounded(self.held_out[k])}

    @classmethod
    def of(cls, rows: list[Mapping[str, Any]]) -> History:
        held_out = [row["held_out"] for row in rows if "held_out" in row]
        return cls(
            step=np.array([row["step"] for row in rows]),
            nats_per_action=np.array([row["nats_per_action"] for row in rows], dtype=np.float64),
            held_out=np.array(held_out, dtype=np.float64) if held_out else None,
        )


@final
@dataclass(frozen=True, eq=False)
class Ascent:
    """What a climb found: all members as they ended, and each one's cost in nats per action."""

    joint: Joint
    nats_per_action: Array  # (member,) of the whole data set, or of the held-out episodes
    history: History
    outcome: Outcome

    @property
    def chosen(self) -> int:
        """The member of least cost."""
        return int(np.nanargmin(self.nats_per_action))


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
    whole = climb.batch_size is None and (2 * len(collapsed.observations) <= len(data) or len(data) <= 4096)
    kind = _Whole if whole or (climb.batch_size or 256) >= len(data) else _Shuffled
    supply = kind(data, collapsed, sizes, seen, step_weight, held_out, climb, seed, transitions)
    spread = None
    if not data.discrete:
        actions = _tensor(data.actions, torch.device("cpu")).double()
        spread = actions.mean(0).float(), actions.std(0, correction=0).clamp_min(1e-6).float()
    return Prepared(sizes, lens, collapsed, supply, held_out is not None, spread)


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
class _Whole:
    """Every step in every batch, as counts of distinct acts: exact, and the same tensors from first to last."""

    def __init__(
        self,
        data: Demonstrations,
        collapsed: Collapsed,
        sizes: Sizes,
        seen: Float[Tensor, "input place"],
        step_weight: Array,
        held_out: Array | None,
        climb: Climb,
        seed: int,
        transitions: bool,
    ) -> None:
        device = seen.device
        self._batch = Batch.of(
            sizes=sizes,
            observations=seen,
            place=_tensor(collapsed.place, device),
            demonstrator=_tensor(collapsed.demonstrator, device),
            action=_action_tensor(collapsed.action, device),
            weight=_tensor(collapsed.weights(step_weight), device).float(),
            legal=None if collapsed.legal is None else _tensor(collapsed.legal.T, device),
            skills=None if collapsed.skills is None else _tensor(collapsed.skills.T, device),
            transitions=_collapsed_transitions(data, collapsed, sizes, step_weight, device) if transitions else None,
        )
        out = None if held_out is None else _tensor(collapsed.weights(held_out), device).float()
        self._held_out = self._batch if out is None else replace(self._batch, weight=out, transitions=None)

    def load(self, step: int) -> None:
        pass

    def batch(self) -> Batch:
        return self._batch

    def everything(self, *, held_out: bool) -> Iterator[Batch]:
        yield self._held_out if held_out else self._batch


@final
class _Shuffled:
    """Mini-batches of steps: every step once an epoch, in an order drawn for that epoch alone."""

    def __init__(
        self,
        data: Demonstrations,
        collapsed: Collapsed,
        sizes: Sizes,
        seen: Float[Tensor, "input place"],
        step_weight: Array,
        held_out: Array | None,
        climb: Climb,
        seed: int,
        transitions: bool,
    ) -> None:
        device = seen.device
        self._sizes, self._seen, self._seed = sizes, seen, seed
        self._place = _tensor(collapsed.step_place, device)
        self._action = _action_tensor(data.actions, device)
        self._demonstrator = _tensor(data.demonstrator, device)
        self._people = torch.eye(sizes.demonstrators, device=device)
        self._weight = _tensor(step_weight, device).float()
        self._held_out = None if held_out is None else _tensor(held_out, device).float()
        self._legal = None if collapsed.legal is None else _tensor(collapsed.legal.T, device)
        self._skills = None if collapsed.skills is None else _tensor(collapsed.skills.T, device)
        continues = np.append(data.episode[1:] == data.episode[:-1], False)
        self._continues = _tensor(continues, device).float() if transitions else None
        learned_from = np.flatnonzero(step_weight.reshape(-1, len(data)).sum(0) > 0)
        self._learned_from = torch.from_numpy(learned_from)
        self._size = min(climb.batch_size or 256, len(learned_from))
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
        return Batch(
            observations=observations,
            place=Pick(here, places, identity=places == size),
            demonstrator=Pick(
                self._demonstrator[steps],
                self._sizes.demonstrators,
                one_hot=self._people[:, self._demonstrator[steps]],
            ),
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


def _collapsed_transitions(
    data: Demonstrations, collapsed: Collapsed, sizes: Sizes, step_weight: Array, device: torch.device
) -> Transitions:
    """Counted distinct (place, action, next place) of steps that another step of their episode follows."""
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


@final
class Checkpoint:
    """A file that an interrupted climb goes on from, to the same bits; written every few seconds, removed at the end.

    `fingerprint` names the settings, data and seed, so that one climb never goes on from another's file.
    """

    def __init__(self, path: Path, *, fingerprint: str, seconds: float = 5.0) -> None:
        self.path, self.fingerprint, self.seconds = path, fingerprint, seconds
        self._written = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._written >= self.seconds

    def write(self, step: int, thread_count: int, tensors: Mapping[str, Tensor]) -> None:
        notes = {"step": str(step), "threads": str(thread_count), "fingerprint": self.fingerprint}
        runs.write_tensors(self.path, {name: value.detach().cpu() for name, value in tensors.items()}, notes)
        self._written = time.monotonic()

    def read(self) -> tuple[int, int, dict[str, Tensor]] | None:
        """The step reached, the threads in use and the tensors; nothing where no climb was interrupted."""
        if not self.path.exists():
            return None
        tensors, notes = runs.read_tensors(self.path)
        if notes.get("fingerprint") != self.fingerprint:
            raise RunError(
                f"{self.path} belongs to a fit with other settings, data or seed: "
                "remove it to start anew, or fit with what it was started with"
            )
        return int(notes["step"]), int(notes["threads"]), tensors

    def remove(self) -> None:
        runs.remove_file(self.path)


def climb(
    joint: Joint,
    prepared: Prepared,
    settings: Climb,
    *,
    checkpoint: Checkpoint | None = None,
    watch: Watcher | None = None,
) -> Ascent:
    """Climb from where `joint` stands, or from where `checkpoint` was left; `joint` itself is moved."""
    resumed = checkpoint.read() if checkpoint is not None else None
    device = next(joint.parameters()).device
    count = resumed[1] if resumed is not None else thread_count(joint, prepared, device)
    with threads(count):
        return _climb(joint, prepared, settings, checkpoint, resumed, watch, count)


def thread_count(joint: Joint, prepared: Prepared, device: torch.device) -> int:
    """One thread for small work, where starting more costs more than they do; all cores for large."""
    parameters = sum(parameter.numel() for parameter in joint.parameters())
    products = parameters * prepared.supply.batch().observations.shape[1]
    return 1 if device.type == "cuda" or products < _ONE_THREAD_PRODUCTS else os.cpu_count() or 1


_ONE_THREAD_PRODUCTS = 2e8  # multiplications in one pass through all networks


def _climb(
    joint: Joint,
    prepared: Prepared,
    settings: Climb,
    checkpoint: Checkpoint | None,
    resumed: tuple[int, int, dict[str, Tensor]] | None,
    watch: Watcher | None,
    thread_count: int,
) -> Ascent:
    supply = prepared.supply
    climber = _Climber(joint, settings)
    keeper = _Keeper(joint) if prepared.has_held_out else None
    state = climber.tensors() | (keeper.tensors() if keeper is not None else {})
    record = max(1, settings.steps // _RECORDS)
    steps: list[int] = []
    costs: list[Tensor] = []
    held_out: list[Tensor] = []
    start = 0
    if resumed is not None:
        start, _, saved = resumed
        for name, tensor in state.items():
            tensor.copy_(saved[name])
        steps, costs = saved["history.step"].tolist(), list(saved["history.cost"])
        held_out = list(saved["history.held_out"]) if "history.held_out" in saved else []
    advance = climber.graph(supply) if next(joint.parameters()).is_cuda else (lambda: climber.advance(supply.batch()))
    for first in range(start, settings.steps, record):
        for step in range(first, min(first + record, settings.steps)):
            supply.load(step)
            cost = advance()
        done = min(first + record, settings.steps)
        steps.append(done)
        costs.append(cost.cpu().clone())
        if keeper is not None:
            held_out.append(keeper.keep(_mean_cost(joint, supply, held_out=True)).cpu())
        best = float(costs[-1].nan_to_num(float("inf")).min())
        if watch is not None:
            watch(Progress(done, settings.steps, best))
        if checkpoint is not None and done < settings.steps and checkpoint.due():
            history = {"history.step": torch.tensor(steps), "history.cost": torch.stack(costs)}
            if held_out:
                history["history.held_out"] = torch.stack(held_out)
            checkpoint.write(done, thread_count, state | history)
    if keeper is not None:
        keeper.restore()
    upright(joint, supply.everything(held_out=False))
    final = _mean_cost(joint, supply, held_out=keeper is not None).double().cpu().numpy()
    if not np.isfinite(final).any():
        raise SettingsError("every restart became non-finite: lower learning_rate, or set clip")
    if checkpoint is not None:
        checkpoint.remove()
    history_ = History(
        step=np.array(steps),
        nats_per_action=torch.stack(costs).double().numpy(),
        held_out=torch.stack(held_out).double().numpy() if held_out else None,
    )
    return Ascent(joint, np.where(np.isfinite(final), final, np.inf), history_, _outcome(history_))


def _outcome(history: History) -> Outcome:
    best = np.nan_to_num(history.nats_per_action, nan=np.inf).min(axis=1)
    before, last = best[max(0, int(len(best) * 0.9) - 1)], best[-1]
    settled = len(best) > 1 and np.isfinite(last) and before < last + _SETTLED_NATS
    return Outcome.CONVERGED if settled else Outcome.STEPS_SPENT


@torch.no_grad()
def _mean_cost(joint: Joint, supply: Supply, *, held_out: bool) -> Float[Tensor, " member"]:
    """Negative log-likelihood of each member over the whole supply, in nats per action."""
    total: Tensor | float = 0.0
    weight: Tensor | float = 0.0
    for batch in supply.everything(held_out=held_out):
        total = total + batch.mean_cost(joint.log_likelihood(batch)) * batch.total_weight
        weight = weight + batch.total_weight
    assert isinstance(total, Tensor)
    return total / weight


@final
class Adam:
    """Adam (Kingma and Ba, 2015) with a learning rate for each group of parameters, by torch's fused kernel.

    `torch.optim.Adam` calls the same kernel, but importing what surrounds it takes seconds and each of its steps spends
    longer in Python than on the arithmetic of networks as small as ours. A test holds the two together.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[nn.Parameter], float]]) -> None:
        self.groups = [(list(parameters), rate) for parameters, rate in groups]
        self.steps = torch.zeros((), device=self.groups[0][0][0].device)
        self.first = [[torch.zeros_like(parameter) for parameter in parameters] for parameters, _ in groups]
        self.second = [[torch.zeros_like(parameter) for parameter in parameters] for parameters, _ in groups]

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient, and forget the gradients."""
        self.steps += 1
        for (parameters, rate), first, second in zip(self.groups, self.first, self.second, strict=True):
            moved = [k for k, parameter in enumerate(parameters) if parameter.grad is not None]
            if not moved:
                continue
            torch._fused_adam_(
                [parameters[k] for k in moved],
                [gradient for k in moved if (gradient := parameters[k].grad) is not None],
                [first[k] for k in moved],
                [second[k] for k in moved],
                [],
                [self.steps] * len(moved),
                lr=rate,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )
            for parameter in parameters:
                parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Everything the next step depends on beside the parameters, by name."""
        named = {"adam.steps": self.steps}
        for group, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            for k in range(len(first)):
                named |= {f"adam.{group}.{k}.first": first[k], f"adam.{group}.{k}.second": second[k]}
        return named


@final
class _Climber:
    """One step of all members at a time, from tensors that can be saved; as a CUDA graph where there is a GPU."""

    def __init__(self, joint: Joint, settings: Climb) -> None:
        self.joint, self.clip = joint, settings.clip
        self.adam = Adam(
            [
                (joint.network_parameters(), settings.learning_rate),
                (joint.skill_parameters(), settings.skill_learning_rate),
            ]
        )

    def tensors(self) -> dict[str, Tensor]:
        """Everything the next step depends on, by name."""
        named = {f"parameter.{name}": parameter.detach() for name, parameter in self.joint.named_parameters()}
        return named | self.adam.tensors()

    def advance(self, batch: Batch) -> Float[Tensor, " member"]:
        """One step up; returns the cost in nats per action that it started from."""
        objective = self.joint.objective(batch)
        objective.total.sum().backward()  # members share nothing, so each one's gradient is its own
        if self.clip is not None:
            self._clip_each_member(self.clip)
        self.adam.step()
        return objective.negative_log_likelihood.detach()

    def _clip_each_member(self, bound: float) -> None:
        """Bound each member's own gradient norm: a bound on all together would let members feel each other."""
        gradients = [parameter.grad for parameter in self.joint.parameters() if parameter.grad is not None]
        norm = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
        factor = (bound / norm.clamp_min(1e-12)).clamp_max(1)
        for gradient in gradients:
            gradient.mul_(factor.view(-1, *(1 for _ in gradient.shape[1:])))

    def graph(self, supply: Supply) -> Callable[[], Tensor]:
        """The step as a recorded CUDA graph: launching it costs one call instead of a hundred."""
        before = {name: tensor.clone() for name, tensor in self.tensors().items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # the first runs choose kernels and allocate; what they learned is undone below
            for _ in range(3):
                self.advance(supply.batch())
        torch.cuda.current_stream().wait_stream(side)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            cost = self.advance(supply.batch())
        for name, tensor in self.tensors().items():
            tensor.copy_(before[name])

        def replay() -> Tensor:
            recorded.replay()
            return cost

        return replay


@final
class _Keeper:
    """The parameters with which each member did best on held-out episodes."""

    def __init__(self, joint: Joint) -> None:
        self.parameters = dict(joint.named_parameters())
        self.best = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        first = next(joint.parameters())
        self.cost = torch.full((len(first),), float("inf"), device=first.device)

    def tensors(self) -> dict[str, Tensor]:
        return {f"best.{name}": value for name, value in self.best.items()} | {"best.cost": self.cost}

    @torch.no_grad()
    def keep(self, cost: Float[Tensor, " member"]) -> Float[Tensor, " member"]:
        better = cost < self.cost
        self.cost.copy_(torch.where(better, cost, self.cost))
        for name, value in self.best.items():
            chosen = better.view(-1, *(1 for _ in value.shape[1:]))
            value.copy_(torch.where(chosen, self.parameters[name].detach(), value))
        return cost

    @torch.no_grad()
    def restore(self) -> None:
        for name, value in self.best.items():
            self.parameters[name].copy_(value)


def _rounded(costs: Array) -> list[float | None]:
    return [round(float(cost), 6) if np.isfinite(cost) else None for cost in costs]
