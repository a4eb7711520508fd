"""The optimisation loop: all members up the likelihood at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Float, keep_freed_memory, threads
from ileed.errors import SettingsError
from ileed.fitting.adam import Adam
from ileed.fitting.batches import Sampler
from ileed.fitting.checkpoint import Checkpoint
from ileed.fitting.preparing import Prepared, SideBySide
from ileed.fitting.results import History, OptimisationResult, Progress, ProgressCallback
from ileed.fitting.settings import OptimiserSettings
from ileed.model.batch import Batch
from ileed.model.joint import Joint, resolve_mirror_symmetry

_RECORDS = 200  # how many points of the learning curve are kept
_SMOOTHED_BATCHES = 100  # a cost of mini-batches is the running mean over so many, or over an epoch where it is shorter


def optimise(
    joint: Joint,
    prepared: Prepared | SideBySide,
    settings: OptimiserSettings,
    *,
    checkpoint: Checkpoint | None = None,
    callback: ProgressCallback | None = None,
) -> OptimisationResult:
    """OptimiserSettings from where `joint` stands, or from where `checkpoint` was left; `joint` itself is moved."""
    resumed = checkpoint.read() if checkpoint is not None else None
    device = next(joint.parameters()).device
    count = resumed[1] if resumed is not None else thread_count(joint, prepared, device)
    if device.type == "cpu":
        keep_freed_memory()
    with threads(count):
        return _optimise(joint, prepared, settings, checkpoint, resumed, callback, count)


def thread_count(joint: Joint, prepared: Prepared | SideBySide, device: torch.device) -> int:
    """One thread but for very large networks, which take as many as torch may use.

    Threads meet after every kernel, and one that waits for a core keeps the others waiting: beside one busy process on
    two cores, a fit of small networks takes ten times as long with two threads as with one, and gains little where the
    cores are idle. One thread also gives the same bits for every number of threads that torch may use.
    """
    parameters = sum(parameter.numel() for parameter in joint.parameters())
    products = parameters * prepared.sampler.batch().observations.shape[-1]
    return 1 if device.type == "cuda" or products < _ONE_THREAD_PRODUCTS else torch.get_num_threads()


_ONE_THREAD_PRODUCTS = 1e9  # multiplications in one pass through all networks: some 50 ms of one core


def _optimise(
    joint: Joint,
    prepared: Prepared | SideBySide,
    settings: OptimiserSettings,
    checkpoint: Checkpoint | None,
    resumed: tuple[int, int, dict[str, Tensor]] | None,
    callback: ProgressCallback | None,
    thread_count: int,
) -> OptimisationResult:
    sampler = prepared.sampler
    optimiser = _Optimiser(joint, settings)
    keeper = _Keeper(joint) if prepared.has_held_out else None
    smoothed = torch.zeros(len(next(joint.parameters())), device=next(joint.parameters()).device)
    window = min(sampler.epoch, _SMOOTHED_BATCHES)
    state = optimiser.tensors() | {"smoothed": smoothed} | (keeper.tensors() if keeper is not None else {})
    record = max(1, settings.steps // _RECORDS)
    steps: list[int] = []
    costs: list[Tensor] = []
    held_out: list[Tensor] = []
    start = 0
    if resumed is not None:
        start, _, saved = resumed
        assert checkpoint is not None  # it was resumed from
        checkpoint.check(saved, state, start, settings.steps)
        for name, tensor in state.items():
            tensor.copy_(saved[name])
        steps, costs = saved["history.step"].tolist(), list(saved["history.cost"])
        held_out = list(saved["history.held_out"]) if "history.held_out" in saved else []
    advance = (
        optimiser.graph(sampler) if next(joint.parameters()).is_cuda else (lambda: optimiser.advance(sampler.batch()))
    )
    for first in range(start, settings.steps, record):
        for step in range(first, min(first + record, settings.steps)):
            sampler.load(step)
            smoothed.lerp_(advance(), 1 / min(step + 1, window))
        done = min(first + record, settings.steps)
        steps.append(done)
        costs.append(smoothed.cpu().clone())
        if keeper is not None:
            held_out.append(keeper.keep(_mean_cost(joint, sampler, held_out=True)).cpu())
        best = float(costs[-1].nan_to_num(float("inf")).min())
        if callback is not None and (done < settings.steps or keeper is not None):
            callback(Progress(done, settings.steps, best))
        if checkpoint is not None and (done == settings.steps or checkpoint.due()):
            history = {"history.step": torch.tensor(steps), "history.cost": torch.stack(costs)}
            if held_out:
                history["history.held_out"] = torch.stack(held_out)
            checkpoint.write(done, thread_count, state | history)
    if keeper is not None:
        keeper.restore()
    resolve_mirror_symmetry(joint, sampler.everything(held_out=False))
    final = _mean_cost(joint, sampler, held_out=keeper is not None).double().cpu().numpy()
    if not np.isfinite(final).any():
        if checkpoint is not None:
            checkpoint.remove()  # there is nothing in it to go on from
        raise SettingsError("every restart became non-finite: lower learning_rate, or set clip")
    if keeper is None:  # the curve and the bar end with the figure that the result states
        costs[-1] = torch.from_numpy(final).to(costs[-1])
        if callback is not None and start < settings.steps:
            callback(Progress(settings.steps, settings.steps, float(np.nanmin(final))))
    curve = History(
        step=np.array(steps),
        nats_per_action=torch.stack(costs).double().numpy(),
        held_out=torch.stack(held_out).double().numpy() if held_out else None,
    )
    return OptimisationResult(joint, np.where(np.isfinite(final), final, np.inf), curve, prepared.guessing_nats)


@torch.no_grad()
def _mean_cost(joint: Joint, sampler: Sampler, *, held_out: bool) -> Float[Tensor, " member"]:
    """Negative log-likelihood of each member over the whole sampler, in nats per action."""
    total: Tensor | float = 0.0
    weight: Tensor | float = 0.0
    for batch in sampler.everything(held_out=held_out):
        total = total + batch.mean_cost(joint.log_likelihood(batch)) * batch.total_weight
        weight = weight + batch.total_weight
    assert isinstance(total, Tensor)
    return total / weight


@final
class _Optimiser:
    """One step of all members at a time, from tensors that can be saved; as a CUDA graph where there is a GPU."""

    def __init__(self, joint: Joint, settings: OptimiserSettings) -> None:
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

    def graph(self, sampler: Sampler) -> Callable[[], Tensor]:
        """The step as a recorded CUDA graph: launching it costs one call instead of a hundred."""
        before = {name: tensor.clone() for name, tensor in self.tensors().items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # the first runs choose kernels and allocate; what they learned is undone below
            for _ in range(3):
                self.advance(sampler.batch())
        torch.cuda.current_stream().wait_stream(side)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            cost = self.advance(sampler.batch())
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
