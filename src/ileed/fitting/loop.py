"""The optimisation loop: the loss of all members is minimised at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Float, keep_freed_memory, record_cuda_graph, threads
from ileed.errors import SettingsError
from ileed.fitting.adam import Adam
from ileed.fitting.checkpoint import Checkpoint
from ileed.fitting.preparing import Prepared, SideBySide
from ileed.fitting.results import History, OptimisationResult, Progress, ProgressCallback
from ileed.fitting.settings import OptimiserSettings
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
    """Optimise `joint` itself, from where it stands or from where `checkpoint` was left."""
    resumed = checkpoint.read() if checkpoint is not None else None
    device = next(joint.parameters()).device
    count = resumed[1] if resumed is not None else thread_count(joint, prepared, device)
    if device.type == "cpu":
        keep_freed_memory()
    with threads(count):
        optimisation = _Optimisation(joint, prepared, settings)
        start = 0
        if checkpoint is not None and resumed is not None:
            start, _, tensors = resumed
            checkpoint.check(tensors, optimisation.state, start, settings.steps)
            optimisation.resume(tensors)
        for done, cost in optimisation.records(start):
            if callback is not None and (done < settings.steps or prepared.has_held_out):
                callback(Progress(done, settings.steps, cost))
            if checkpoint is not None and (done == settings.steps or checkpoint.due()):
                checkpoint.write(done, count, optimisation.state | optimisation.history())
        try:
            result = optimisation.result()
        except SettingsError:
            if checkpoint is not None:
                checkpoint.remove()  # there is nothing in it to go on from
            raise
    if callback is not None and start < settings.steps and not prepared.has_held_out:
        callback(Progress(settings.steps, settings.steps, float(result.nats_per_action.min())))
    return result


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


@final
class _Optimisation:
    """All members on their way: `state` names every tensor that the next step depends on."""

    def __init__(self, joint: Joint, prepared: Prepared | SideBySide, settings: OptimiserSettings) -> None:
        self.joint, self.sampler, self.settings = joint, prepared.sampler, settings
        self.guessing_nats = prepared.guessing_nats
        self.adam = Adam(
            [
                (joint.network_parameters(), settings.learning_rate),
                (joint.skill_parameters(), settings.skill_learning_rate),
            ]
        )
        self.keeper = _Keeper(joint) if prepared.has_held_out else None
        first = next(joint.parameters())
        self.device, self.smoothed = first.device, torch.zeros(len(first), device=first.device)
        named = {f"parameter.{name}": parameter.detach() for name, parameter in joint.named_parameters()}
        self.moving = named | self.adam.tensors()
        self.state = self.moving | {"smoothed": self.smoothed}
        self.state |= self.keeper.tensors() if self.keeper is not None else {}
        self.steps, self.costs, self.held_out = list[int](), list[Tensor](), list[Tensor]()

    def resume(self, tensors: dict[str, Tensor]) -> None:
        """Take the state and the learning curve of a checkpoint."""
        for name, tensor in self.state.items():
            tensor.copy_(tensors[name])
        self.steps, self.costs = tensors["history.step"].tolist(), list(tensors["history.cost"])
        self.held_out = list(tensors["history.held_out"]) if "history.held_out" in tensors else []

    def history(self) -> dict[str, Tensor]:
        """The learning curve so far, as a checkpoint holds it."""
        found = {"history.step": torch.tensor(self.steps), "history.cost": torch.stack(self.costs)}
        return found | ({"history.held_out": torch.stack(self.held_out)} if self.held_out else {})

    def records(self, start: int) -> Iterator[tuple[int, float]]:
        """Take all steps from `start` on; after each record of the learning curve, its step and the best cost."""
        steps, window = self.settings.steps, min(self.sampler.epoch, _SMOOTHED_BATCHES)
        record = max(1, steps // _RECORDS)
        cuda = self.device.type == "cuda"
        advance = record_cuda_graph(self._advance, state=self.moving.values()) if cuda else self._advance
        for first in range(start, steps, record):
            done = min(first + record, steps)
            for step in range(first, done):
                self.sampler.load(step)
                self.smoothed.lerp_(advance(), 1 / min(step + 1, window))
            self.steps.append(done)
            self.costs.append(self.smoothed.cpu().clone())
            if self.keeper is not None:
                self.held_out.append(self.keeper.keep(self._mean_cost(held_out=True)).cpu())
            yield done, float(self.costs[-1].nan_to_num(float("inf")).min())

    def result(self) -> OptimisationResult:
        """What was found: the best parameters of each member where episodes are held out, the last ones otherwise."""
        if self.keeper is not None:
            self.keeper.restore()
        resolve_mirror_symmetry(self.joint, self.sampler.everything(held_out=False))
        final = self._mean_cost(held_out=self.keeper is not None).double().cpu().numpy()
        if not np.isfinite(final).any():
            raise SettingsError("every restart became non-finite: lower learning_rate, or set clip")
        if self.keeper is None:  # the curve ends with the figure that the result states
            self.costs[-1] = torch.from_numpy(final).to(self.costs[-1])
        curve = History(
            step=np.array(self.steps),
            nats_per_action=torch.stack(self.costs).double().numpy(),
            held_out=torch.stack(self.held_out).double().numpy() if self.held_out else None,
        )
        return OptimisationResult(self.joint, np.where(np.isfinite(final), final, np.inf), curve, self.guessing_nats)

    def _advance(self) -> Float[Tensor, " member"]:
        """One optimisation step; returns the cost in nats per action that it started from."""
        objective = self.joint.objective(self.sampler.batch())
        objective.total.sum().backward()  # members share nothing, so each one's gradient is its own
        if self.settings.clip is not None:
            self._clip_each_member(self.settings.clip)
        self.adam.step()
        return objective.negative_log_likelihood.detach()

    def _clip_each_member(self, bound: float) -> None:
        """Bound each member's own gradient norm: a bound on all together would make members depend on each other."""
        gradients = [parameter.grad for parameter in self.joint.parameters() if parameter.grad is not None]
        norm = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
        factor = (bound / norm.clamp_min(1e-12)).clamp_max(1)
        for gradient in gradients:
            gradient.mul_(factor.view(-1, *(1 for _ in gradient.shape[1:])))

    @torch.no_grad()
    def _mean_cost(self, *, held_out: bool) -> Float[Tensor, " member"]:
        """Negative log-likelihood of each member over all the data, or all that is held out, in nats per action."""
        total, weight = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for batch in self.sampler.everything(held_out=held_out):
            total = total + batch.mean_cost(self.joint.log_likelihood(batch)) * batch.total_weight
            weight = weight + batch.total_weight
        return total / weight


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
        """Keep the parameters of the members that cost less than ever before."""
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
