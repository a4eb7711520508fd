"""The optimisation loop: the loss of all members is minimised at once, and of all data sets where there are several."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import Float, keep_freed_memory, record_cuda_graph, threads
from ileed.errors import SettingsError
from ileed.fitting.adam import Adam
from ileed.fitting.checkpoint import Checkpoint
from ileed.fitting.people import PartOfPeople
from ileed.fitting.preparing import OptimiserSettings, Prepared
from ileed.fitting.results import History, OptimisationResult, Progress, ProgressCallback
from ileed.model.batch import NO_WEIGHT, Batch
from ileed.model.joint import Joint, Objective, resolve_mirror_symmetry, side_by_side, taken_apart
from ileed.parallel.processes import Team

DIVERGED = "every restart became non-finite: lower learning_rate, or set clip"
_RECORDS = 200  # how many points of the learning curve are kept
_SMOOTHED_BATCHES = 100  # a cost of mini-batches is the running mean over so many, or over an epoch where it is shorter
_AT_ONCE = {"cpu": 400_000, "cuda": 200_000_000}  # members x counts: what a cache holds, and what a GPU's memory does


def optimise(
    joint: Joint,
    prepared: Prepared,
    settings: OptimiserSettings,
    *,
    checkpoint: Checkpoint | None = None,
    callback: ProgressCallback | None = None,
    may_diverge: bool = False,
    team: Team | None = None,
) -> OptimisationResult:
    """Optimise `joint` itself, from where it stands or from where `checkpoint` was left.

    That all members become non-finite is an error, unless they `may_diverge`, as a part of many may. Where a `team` of
    processes calls this at once, each computes the gradients of its share of the data, and takes every step with the
    sum: the same answer but for rounding, and the same bits in all of them.
    """
    resumed = checkpoint.read() if checkpoint is not None else None
    writes = team is None or team.leads
    if checkpoint is not None and writes:
        checkpoint.remove_partial()
    device = next(joint.parameters()).device
    start, tensors = resumed or (0, {})
    if device.type == "cpu":
        keep_freed_memory()
    with threads(1):
        optimisation = _Optimisation(joint, prepared, settings, team)
        if checkpoint is not None and resumed is not None:
            checkpoint.check(tensors, optimisation.state, start, optimisation.recorded)
            for name, tensor in optimisation.state.items():
                tensor.copy_(tensors[name])
        for done, cost in optimisation.advance_from(start):
            if callback is not None and (done < settings.steps or optimisation.best):
                callback(Progress(done, settings.steps, cost))
            if checkpoint is not None and writes and (done == settings.steps or checkpoint.due()):
                checkpoint.write(done, optimisation.state)
        result = optimisation.result()
        if not may_diverge and not np.isfinite(result.nats_per_action).any():
            if checkpoint is not None:
                checkpoint.remove()  # there is nothing in it to go on from
            raise SettingsError(DIVERGED)
    if callback is not None and start < settings.steps and not optimisation.best:
        callback(Progress(settings.steps, settings.steps, float(result.nats_per_action.min())))
    return result


def recorded_steps(steps: int) -> list[int]:
    """The steps after which the learning curve has a record, and a checkpoint may be written."""
    every = max(1, steps // _RECORDS)
    return [min(step + every, steps) for step in range(0, steps, every)]


@final
class _Optimisation:
    """All members on their way: `state` names every tensor that the next step depends on.

    `best` has the parameters with which each member did best on held-out episodes, where there are any.
    """

    def __init__(self, joint: Joint, prepared: Prepared, settings: OptimiserSettings, team: Team | None) -> None:
        self.joint, self.sampler, self.settings = joint, prepared.sampler, settings
        self.drawn, self.team = self.sampler, team
        if team is not None:
            share = self.sampler.share(team.place, len(team.ranks))
            assert share is not None
            self.drawn = share
        self.guessing_nats = prepared.guessing_nats
        networks, skills = joint.network_parameters(), joint.skill_parameters()
        self.part, rate, size = None, settings.skill_learning_rate, self.sampler.people_at_once
        if size is not None:
            self.part = PartOfPeople(joint, size, rate, self.sampler.epoch)
            skills = [each for each in skills if all(each is not table for table in self.part.tables)]
        decay_steps = settings.steps if settings.decay else None
        self.adam = Adam([(networks, settings.learning_rate), (skills, rate)], decay_steps=decay_steps)
        self.parameters = {name: parameter.detach() for name, parameter in joint.named_parameters()}
        first = next(iter(self.parameters.values()))
        self.device, self.smoothed = first.device, first.new_zeros(len(first))
        self.recorded = recorded_steps(settings.steps)
        self.curve = {"history.cost": torch.zeros(len(self.recorded), len(first))}
        self.best = dict[str, Tensor]()
        if prepared.training_data.held_out_episodes is not None:
            self.curve["history.held_out"] = torch.zeros(len(self.recorded), len(first))
            never = torch.full_like(self.smoothed, torch.inf)
            self.best = {f"best.{name}": value.clone() for name, value in self.parameters.items()} | {
                "best.cost": never
            }
        self.moving = {f"parameter.{name}": value for name, value in self.parameters.items()} | self.adam.tensors()
        if self.part is not None:
            self.moving |= self.part.adam.tensors()
        self.state = self.moving | {"smoothed": self.smoothed} | self.best | self.curve

    def advance_from(self, start: int) -> Iterator[tuple[int, float]]:
        """Take all steps from `start` on; after each record of the learning curve, its step and the best cost."""
        window = min(self.sampler.epoch, _SMOOTHED_BATCHES)
        # batches of people differ in size, and a graph cannot wait for other processes
        is_alone = self.part is None and self.team is None
        cuda = self.device.type == "cuda" and is_alone and self.joint.parts.policy.can_stand_beside
        advance = record_cuda_graph(self._advance, state=self.moving.values()) if cuda else self._advance
        for record, done in enumerate(self.recorded):
            for step in range(start, done):
                self.drawn.load(step)
                self.smoothed.lerp_(advance(), 1 / min(step + 1, window))
            if done <= start:
                continue
            start = done
            self.curve["history.cost"][record] = self.smoothed
            if self.best:
                self.curve["history.held_out"][record] = self._keep_best()
            yield done, float(self.smoothed.nan_to_num(float("inf")).min())

    @torch.no_grad()
    def result(self) -> OptimisationResult:
        """What was found: the best parameters of each member where episodes are held out, the last ones otherwise."""
        if self.best:
            for name, value in self.parameters.items():
                value.copy_(self.best[f"best.{name}"])
        resolve_mirror_symmetry(self.joint, self.sampler.everything(held_out=False))
        final = self._mean_cost(held_out=bool(self.best)).double().cpu().numpy()
        if not self.best:  # the curve ends with the figure that the result states
            self.curve["history.cost"][-1] = torch.from_numpy(final)
        costs, *held_out = (curve.double().numpy() for curve in self.curve.values())
        history = History(np.array(self.recorded), costs, held_out[0] if held_out else None)
        return OptimisationResult(self.joint, np.where(np.isfinite(final), final, np.inf), history, self.guessing_nats)

    def _advance(self) -> Float[Tensor, " member"]:
        """One optimisation step; returns the cost in nats per action that it started from."""
        joint, sampler = self.joint, self.sampler
        if self.part is not None:
            self.part.load(sampler.people)
            joint = self.part.joint
        batch = self.drawn.batch()
        objective = joint.objective(batch)
        cost = objective.negative_log_likelihood.detach()
        if self.team is None:
            objective.total.sum().backward()  # members share nothing, so each one's gradient is its own
        else:
            cost = self._sum_gradients(objective, batch, self.team)
        if self.settings.clip is not None:
            _clip_each_member(joint, self.settings.clip)
        self.adam.step()
        if self.part is not None:
            self.part.step(sampler.people, sampler.visits)
        return cost

    def _sum_gradients(self, objective: Objective, batch: Batch, team: Team) -> Float[Tensor, " member"]:
        """The gradients, and the cost, of the batch that all processes read together: means of theirs by weight."""
        weight = batch.total_weight.clamp_min(NO_WEIGHT).expand_as(objective.total)
        (objective.total * weight).sum().backward()
        gradients = [parameter.grad for parameter in self.joint.parameters() if parameter.grad is not None]
        numbers = [*gradients, objective.negative_log_likelihood.detach() * weight, weight]
        summed = team.sum(torch.cat([each.flatten() for each in numbers]))
        *sums, cost, whole = summed.split([each.numel() for each in numbers])
        for gradient, values in zip(gradients, sums, strict=True):
            gradient.copy_(values.view_as(gradient) / _of_member(whole, gradient))
        return cost / whole

    @torch.no_grad()
    def _keep_best(self) -> Float[Tensor, " member"]:
        """Keep the parameters of members that cost less on held-out episodes than ever before; return that cost."""
        cost = self._mean_cost(held_out=True)
        better = cost < self.best["best.cost"]
        for name, value in (self.parameters | {"cost": cost}).items():
            kept = self.best[f"best.{name}"]
            kept.copy_(torch.where(_of_member(better, value), value, kept))
        return cost

    @torch.no_grad()
    def _mean_cost(self, *, held_out: bool) -> Float[Tensor, " member"]:
        """Negative log-likelihood of each member over all the data, or all that is held out, in nats per action."""
        total, weight = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for batch in self.sampler.everything(held_out=held_out):
            total = total + batch.mean_cost(self.joint.log_likelihood(batch)) * batch.total_weight
            weight = weight + batch.total_weight
        return total / weight


def _clip_each_member(joint: Joint, bound: float) -> None:
    """Bound each member's own gradient norm: a bound on all together would make members depend on each other."""
    gradients = [parameter.grad for parameter in joint.parameters() if parameter.grad is not None]
    norm = torch.stack([gradient.reshape(len(gradient), -1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
    factor = (bound / norm.clamp_min(1e-12)).clamp_max(1)
    for gradient in gradients:
        gradient.mul_(_of_member(factor, gradient))


def _of_member(values: Tensor, parameter: Tensor) -> Tensor:
    """(member,) values, shaped so that each meets its own member of a parameter."""
    return values.view(-1, *[1] * (parameter.ndim - 1))


class Start(NamedTuple):
    """Where an optimisation begins: data that are prepared, and every member's initial parameters."""

    prepared: Prepared
    joint: Joint

    @property
    def members(self) -> int:
        """How many members there are."""
        return len(next(self.joint.parameters()))


def optimise_each(
    starts: Sequence[Start], settings: OptimiserSettings, *, device: torch.device, callback: ProgressCallback | None
) -> Iterator[tuple[OptimisationResult, float]]:
    """The result of each start, in their order, and its share of the seconds that its block took."""
    blocks = _blocks(starts, device)
    for number, block in enumerate(blocks):
        began = time.monotonic()
        told = callback and partial(in_block, callback, number, len(blocks))
        results = _optimise_block(block, settings, device, told)
        seconds = (time.monotonic() - began) / len(block)
        yield from ((result, seconds) for result in results)


def _optimise_block(
    block: Sequence[Start], settings: OptimiserSettings, device: torch.device, callback: ProgressCallback | None
) -> list[OptimisationResult]:
    """Optimise the members of a block of data sets at once, and give each data set its own part of the result."""
    first, *others = block
    sampler = first.prepared.sampler
    if not others and (device.type == "cpu" or not sampler.can_stand_beside):
        return [optimise(first.joint.to(device), first.prepared, settings, callback=callback)]
    joints = [start.joint for start in block]
    beside = sampler.beside([start.prepared.sampler for start in others], members=first.members, device=device)
    together = replace(first.prepared, sampler=beside)
    result = optimise(side_by_side(joints).to(device), together, settings, callback=callback)
    taken_apart(result.joint.cpu(), joints)
    return [
        result.part(start.joint, number * first.members, start.prepared.guessing_nats)
        for number, start in enumerate(block)
    ]


def _blocks(starts: Sequence[Start], device: torch.device) -> list[list[Start]]:
    """Data sets to optimise at once: as many as make good use of the device, in their own order."""
    blocks: list[list[Start]] = []
    held = 0
    for start in starts:
        counts = start.prepared.training_data.count_of_counts * start.members
        alike = blocks and start.joint.can_stand_beside(blocks[-1][0].joint)
        if not alike or held + counts > _AT_ONCE[device.type] or not start.prepared.sampler.can_stand_beside:
            blocks.append([])
            held = 0
        blocks[-1].append(start)
        held += counts
    return blocks


def in_block(callback: ProgressCallback, number: int, blocks: int, progress: Progress) -> None:
    """Report one optimisation of several as a part of one long one."""
    callback(progress._replace(step=number * progress.steps + progress.step, steps=blocks * progress.steps))
