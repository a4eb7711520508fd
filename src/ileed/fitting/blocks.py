"""Several optimisations: blocks of members, blocks of data sets, and two fits at the same time."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed, wait
from dataclasses import replace
from functools import partial
from threading import Event
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ileed._torch import threads
from ileed.errors import SettingsError
from ileed.fitting.batches import tensor
from ileed.fitting.checkpoint import Checkpoint
from ileed.fitting.loop import DIVERGED, optimise, recorded_steps
from ileed.fitting.preparing import OptimiserSettings, Prepared, prepared_for
from ileed.fitting.results import History, OptimisationResult, Progress, ProgressCallback
from ileed.model.batch import Batch
from ileed.model.joint import Joint, side_by_side, taken_apart
from ileed.model.knowledge import Known
from ileed.model.nets import members
from ileed.parallel.processes import ALONE, Processes

Checkpoints = Callable[[str], Checkpoint | None]
"""From the suffix of a name to the checkpoint of a part of an optimisation."""
_First = TypeVar("_First")
_Second = TypeVar("_Second")
_AT_ONCE = {"cpu": 400_000, "cuda": 200_000_000}  # members x counts that fit into a cache, or a GPU's memory


class Start(NamedTuple):
    """The start of an optimisation: prepared data, and the initial parameters of every member."""

    prepared: Prepared
    joint: Joint

    @property
    def members(self) -> int:
        return len(next(self.joint.parameters()))

    def with_knowledge(self, known: Known, device: torch.device) -> Start:
        """The same start, with prior knowledge in the objective."""
        training_data = self.prepared.training_data
        policy = training_data.parts.policy
        if policy.length > 1 and known.answers is not None:
            message = f"{type(policy).__name__} takes no answers, since it learns from windows"
            raise SettingsError(f"{message}: use MixtureMLP", code="answers-unsupported")
        data, answers = training_data.data, None
        if (found := known.gold_answers(data)) is not None:  # steps of a demonstrator who never errs
            seen = self.prepared.normaliser(tensor(found.observations)).to(device)
            answers = Batch.of(sizes=self.prepared.sizes, observations=seen, action=tensor(found.actions, device))
            steps = known.answer_steps * len(data) / training_data.collapsed.unique_count
            answers = replace(answers, weight=answers.weight * steps)
        own = known.of(data)
        self.joint.knowledge = replace(own, gold=own.gold.to(device), better=own.better.to(device), answers=answers)
        return self


def optimise_blocks(
    start: Start,
    settings: OptimiserSettings,
    device: torch.device,
    checkpoints: Checkpoints,
    callback: ProgressCallback | None,
    *,
    executor: Executor | None = None,
    processes: Processes = ALONE,
) -> OptimisationResult:
    """Optimise all members at once, or `settings.member_block` at a time, here, by an executor or by several processes.

    Rounding depends on the number of members that a kernel computes. All blocks have the same size, the last one by
    repeated members, so that a member's bits depend neither on how many there are nor on who computes them.
    """
    count, size = start.members, settings.member_block
    if size is None and processes.count == 1:
        joint = start.joint.to(device)
        return optimise(joint, start.prepared, settings, checkpoint=checkpoints(""), callback=callback)
    length = size or count
    blocks = [slice(first, min(first + length, count)) for first in range(0, count, length)]
    files = [checkpoints("" if size is None else f"-block-{block.start}") for block in blocks]
    parts = partial(_part, start, size=length, settings=settings)
    found = _empty_result(start, settings)
    if size is not None and processes.count == 1 and executor is not None:
        start.prepared.training_data.data.store.check_in_memory(
            "workers cannot read the columns of a folder on this machine's disk: leave the executor out, or share the "
            "fit by torchrun"
        )
        _submit(executor, parts, blocks, files, settings, device, found, callback)
    else:
        ranks = [processes.ranks(number, len(blocks)) for number in range(len(blocks))]
        teams = processes.teams(len(blocks))
        own = [number for number in range(len(blocks)) if processes.rank in ranks[number]]
        for place, number in enumerate(own):
            report = callback and partial(_report_part, callback, place, len(own))
            prepared, joint = parts(blocks[number].start)
            team = teams[number]
            if team is not None and not _can_be_shared(joint, prepared, len(team.ranks)):
                if not team.leads:
                    continue
                team = None
            joint, file = joint.to(device), files[number]
            result = optimise(joint, prepared, settings, checkpoint=file, callback=report, may_diverge=True, team=team)
            _store(result, found, blocks[number])
        for number, block in enumerate(blocks):
            processes.send(_numbers(found, block), source=ranks[number][0])
    if not np.isfinite(found.nats_per_action).any():
        for file in files:
            if file is not None and processes.leads:
                file.remove()
        raise SettingsError(DIVERGED)
    return found


def _part(start: Start, first: int, *, size: int, settings: OptimiserSettings) -> Start:
    """A block of members, with the data weighted for these."""
    indices = [min(member, start.members - 1) for member in range(first, first + size)]
    return Start(prepared_for(start.prepared, indices, settings), members(start.joint, indices))


def _submit(
    executor: Executor,
    parts: Callable[[int], Start],
    blocks: Sequence[slice],
    files: Sequence[Checkpoint | None],
    settings: OptimiserSettings,
    device: torch.device,
    found: OptimisationResult,
    callback: ProgressCallback | None,
) -> None:
    """Have the workers of an executor optimise all blocks, and store their results."""
    calls = {
        executor.submit(_learn, parts(block.start), settings, str(device), file): block
        for block, file in zip(blocks, files, strict=True)
    }
    report = callback or (lambda progress: None)
    report(Progress(0, len(calls), math.nan, unit="blocks of restarts"))
    for done, call in enumerate(as_completed(calls), 1):
        _store(call.result(), found, calls[call])
        report(Progress(done, len(calls), float(np.nanmin(found.nats_per_action)), unit="blocks of restarts"))


def _learn(part: Start, settings: OptimiserSettings, device: str, file: Checkpoint | None) -> OptimisationResult:
    """Optimise a block in a worker."""
    joint = part.joint.to(device)
    return optimise(joint, part.prepared, settings, checkpoint=file, callback=None, may_diverge=True)


def _can_be_shared(joint: Joint, prepared: Prepared, processes: int) -> bool:
    """Whether the objective is a sum over the data; pairs of demonstrators with a known order are not."""
    has_pairs = joint.knowledge is not None and len(joint.knowledge.better) > 0
    return not has_pairs and prepared.sampler.share(0, processes) is not None


def _empty_result(start: Start, settings: OptimiserSettings) -> OptimisationResult:
    """A result on the CPU, to be filled block by block."""
    steps = np.array(recorded_steps(settings.steps))
    costs, held_out = (np.full((len(steps), start.members), np.inf) for _ in range(2))
    history = History(steps, costs, None if start.prepared.training_data.held_out is None else held_out)
    joint = copy.deepcopy(start.joint).cpu().requires_grad_(False)
    return OptimisationResult(joint, np.full(start.members, np.inf), history, start.prepared.guessing_nats)


def _store(result: OptimisationResult, found: OptimisationResult, block: slice) -> None:
    """Copy the result of a block, without repeated members, to its place."""
    learned = _numbers(result, slice(block.stop - block.start))
    for place, values in zip(_numbers(found, block), learned, strict=True):
        place.copy_(values)


def _numbers(result: OptimisationResult, block: slice) -> list[Tensor]:
    """All numbers of the members of a block, as tensors that share the memory of the result."""
    parameters = [parameter.detach()[block] for parameter in result.joint.parameters()]
    curves = [each for each in (result.history.nats_per_action, result.history.held_out) if each is not None]
    return [
        *parameters,
        torch.from_numpy(result.nats_per_action)[block],
        *(torch.from_numpy(each)[:, block] for each in curves),
    ]


def optimise_each(
    starts: Sequence[Start], settings: OptimiserSettings, *, device: torch.device, callback: ProgressCallback | None
) -> Iterator[tuple[OptimisationResult, float]]:
    """Yield the result of each start, in order, and its share of the seconds that its block took."""
    blocks = _blocks_of_data(starts, device)
    for number, block in enumerate(blocks):
        began = time.monotonic()
        report = callback and partial(_report_part, callback, number, len(blocks))
        results = _optimise_together(block, settings, device, report)
        seconds = (time.monotonic() - began) / len(block)
        yield from ((result, seconds) for result in results)


def _optimise_together(
    block: Sequence[Start], settings: OptimiserSettings, device: torch.device, callback: ProgressCallback | None
) -> list[OptimisationResult]:
    """Optimise the members of several data sets at once; returns the result of each data set."""
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


def _blocks_of_data(starts: Sequence[Start], device: torch.device) -> list[list[Start]]:
    """Consecutive data sets to optimise at once, as many as the device computes efficiently."""
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


def _report_part(callback: ProgressCallback, number: int, parts: int, progress: Progress) -> None:
    """Report one of several optimisations as a part of a single long one."""
    callback(progress._replace(step=number * progress.steps + progress.step, steps=parts * progress.steps))


class _StoppedError(Exception):
    """Ends a thread whose result is no longer needed."""


def optimise_both(
    first: Callable[[ProgressCallback], _First],
    second: Callable[[ProgressCallback], _Second],
    callback: ProgressCallback | None,
) -> tuple[_First, _Second]:
    """Call two functions of a progress callback at the same time, the second in a thread of its own.

    `callback` is called in the caller's thread only: with the progress of the first, and then with the rest of the
    second's, at least the last report of each stage. If the first ends early, by an interruption or an exception of
    `callback`, the second ends too.
    """
    report = callback or (lambda progress: None)
    latest: dict[str, Progress] = {}  # by stage
    stop = Event()

    def note(progress: Progress) -> None:
        if stop.is_set():
            raise _StoppedError
        latest[progress.stage] = progress

    def report_latest() -> None:
        for stage in list(latest):
            report(latest.pop(stage))

    with ThreadPoolExecutor(1) as thread:
        beside = thread.submit(threads(1)(second), note)
        try:
            found = first(report)
            while not wait([beside], timeout=0.1).done:
                report_latest()
            report_latest()
            return found, beside.result()
        finally:
            stop.set()
