"""The optimisation loop: minimises the loss of all members at once."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from ileed._torch import Float, Int, keep_freed_memory, record_cuda_graph, threads
from ileed.data import rules
from ileed.errors import SettingsError
from ileed.fitting.adam import Adam, LazyAdam
from ileed.fitting.checkpoint import Checkpoint
from ileed.fitting.preparing import OptimiserSettings, Prepared
from ileed.fitting.results import History, OptimisationResult, Progress, ProgressCallback
from ileed.model.batch import NO_WEIGHT, Batch
from ileed.model.joint import Joint, Objective, resolve_mirror_symmetry
from ileed.parallel.processes import Team

DIVERGED = "every restart became non-finite: lower learning_rate, or set clip"
_RECORDS = 200  # points of the learning curve
_SMOOTHED_BATCHES = 100  # the cost of mini-batches is a running mean over this many, or over an epoch if it is shorter
_GREATEST_RATE = 0.1  # of the parameters of demonstrators that few batches contain


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
    """Optimise `joint` in place, from its current parameters or from those of `checkpoint`.

    It is an error if all members become non-finite, unless they `may_diverge` because they are a block of more members.
    If a `team` of processes calls this together, each computes the gradients of its share of the data and takes every
    step with their sum: the same result up to rounding, and the same bits in all processes.
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
                checkpoint.remove()  # nothing in it is worth resuming
            raise SettingsError(DIVERGED)
    if callback is not None and start < settings.steps and not optimisation.best:
        callback(Progress(settings.steps, settings.steps, float(result.nats_per_action.min())))
    return result


def recorded_steps(steps: int) -> list[int]:
    """The steps after which the learning curve has a point and a checkpoint may be written."""
    every = max(1, steps // _RECORDS)
    return [min(step + every, steps) for step in range(0, steps, every)]


@final
class _Optimisation:
    """The state of an optimisation: `state` names every tensor that the next step depends on.

    `best` has the parameters of each member with the lowest cost on held-out episodes, if there are any.
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
        self.part, rate, size = None, settings.skill_learning_rate, self.sampler.demonstrators_at_once
        if size is not None:
            self.part = PartialJoint(joint, size, rate, self.sampler.epoch)
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
        """Take all steps from `start` on; yields the step and the best cost at each point of the learning curve."""
        window = min(self.sampler.epoch, _SMOOTHED_BATCHES)
        # batches of demonstrators differ in size, and a graph cannot wait for other processes
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
        """The result, with the best parameters of each member if episodes are held out, and the last ones otherwise."""
        if self.best:
            for name, value in self.parameters.items():
                value.copy_(self.best[f"best.{name}"])
        resolve_mirror_symmetry(self.joint, self.sampler.everything(held_out=False))
        final = self._mean_cost(held_out=bool(self.best)).double().cpu().numpy()
        if not self.best:  # the curve ends with the cost that the result states
            self.curve["history.cost"][-1] = torch.from_numpy(final)
        costs, *held_out = (curve.double().numpy() for curve in self.curve.values())
        history = History(np.array(self.recorded), costs, held_out[0] if held_out else None)
        return OptimisationResult(self.joint, np.where(np.isfinite(final), final, np.inf), history, self.guessing_nats)

    def _advance(self) -> Float[Tensor, " member"]:
        """Take one optimisation step; returns the cost before it, in nats per action."""
        joint, sampler = self.joint, self.sampler
        if self.part is not None:
            self.part.load(sampler.demonstrators)
            joint = self.part.joint
        batch = self.drawn.batch()
        objective = joint.objective(batch)
        cost = objective.negative_log_likelihood.detach()
        if self.team is None:
            objective.total.sum().backward()  # members share no parameters
        else:
            cost = self._sum_gradients(objective, batch, self.team)
        if self.settings.clip is not None:
            _clip_each_member(joint, self.settings.clip)
        self.adam.step()
        if self.part is not None:
            self.part.adam.step(sampler.demonstrators, self.part.own, sampler.visits)
        return cost

    def _sum_gradients(self, objective: Objective, batch: Batch, team: Team) -> Float[Tensor, " member"]:
        """Average gradients and cost over processes, weighted by their shares of the batch; returns the cost."""
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
        """Store the parameters of members with a new lowest held-out cost; returns the held-out costs."""
        cost = self._mean_cost(held_out=True)
        better = cost < self.best["best.cost"]
        for name, value in (self.parameters | {"cost": cost}).items():
            kept = self.best[f"best.{name}"]
            kept.copy_(torch.where(_of_member(better, value), value, kept))
        return cost

    @torch.no_grad()
    def _mean_cost(self, *, held_out: bool) -> Float[Tensor, " member"]:
        """Mean negative log-likelihood over all data, or all held-out data, in nats per action."""
        total, weight = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for batch in self.sampler.everything(held_out=held_out):
            total = total + batch.mean_cost(self.joint.log_likelihood(batch)) * batch.total_weight
            weight = weight + batch.total_weight
        return total / weight


def _clip_each_member(joint: Joint, bound: float) -> None:
    """Bound the gradient norm of each member: a joint bound would make members depend on each other."""
    gradients = [parameter.grad for parameter in joint.parameters() if parameter.grad is not None]
    norm = torch.stack([gradient.reshape(len(gradient), -1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
    factor = (bound / norm.clamp_min(1e-12)).clamp_max(1)
    for gradient in gradients:
        gradient.mul_(_of_member(factor, gradient))


def _of_member(values: Tensor, parameter: Tensor) -> Tensor:
    """(member,) values, shaped to broadcast over a parameter."""
    return values.view(-1, *[1] * (parameter.ndim - 1))


@final
class PartialJoint:
    """A joint model of some demonstrators of another, with which it shares all parameters but the demonstrators' own.

    Laws: a step changes nothing of other demonstrators, and what it learns of its own is what Adam would learn of them
    alone. Priors of demonstrators' parameters are those of the demonstrators in the batch.
    """

    def __init__(self, joint: Joint, size: int, rate: float, epoch: int) -> None:
        self.tables = [joint.get_parameter(name) for name in demonstrator_parameters(joint)]
        self.adam = LazyAdam(self.tables, max(rate, min(_GREATEST_RATE, rate * epoch)))
        self.own = [nn.Parameter(table.detach()[..., :size].clone()) for table in self.tables]
        shared = {id(parameter): parameter for parameter in joint.parameters()}
        own = {id(table): part for table, part in zip(self.tables, self.own, strict=True)}
        self.joint = deepcopy(joint, shared | own)
        self.joint.sizes = replace(joint.sizes, demonstrators=size)
        self._knowledge = joint.knowledge
        if self._knowledge is None:
            return
        if self._knowledge.answers is not None:  # every batch has its share of them
            answers = replace(self._knowledge.answers, weight=self._knowledge.answers.weight / epoch)
            self._knowledge = replace(self._knowledge, answers=answers)
        if len(self._knowledge.better):
            found = f"there are {joint.sizes.demonstrators:,} demonstrators and pairs of whom is better"
            limit = f"pairs are limited to {rules.MANY_DEMONSTRATORS:,} demonstrators"
            raise SettingsError(f"{found}: {limit}; name gold demonstrators instead", code="better-too-many")

    @torch.no_grad()
    def load(self, demonstrators: Int[Tensor, " demonstrator"]) -> None:
        """Copy the parameters of these demonstrators from the tables."""
        for table, part in zip(self.tables, self.own, strict=True):
            part.copy_(table.index_select(-1, demonstrators))
        if self._knowledge is not None:
            self.joint.knowledge = replace(self._knowledge, gold=self._knowledge.gold[demonstrators])


def demonstrator_parameters(joint: Joint) -> list[str]:
    """Names of the parameters whose last axis is the demonstrator: those that one more demonstrator makes longer."""
    sizes = replace(joint.sizes, demonstrators=joint.sizes.demonstrators + 1)
    more = dict(Joint(joint.parts, sizes, []).named_parameters())
    return [name for name, each in joint.named_parameters() if each.shape[1:] != more[name].shape[1:]]
