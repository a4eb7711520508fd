"""Blocks of members: optimised one after the other, or dealt out to the processes of a job, with the same answer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, as_completed
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ileed.errors import SettingsError
from ileed.fitting.checkpoint import Checkpoint
from ileed.fitting.loop import DIVERGED, Start, in_block, optimise, recorded_steps
from ileed.fitting.preparing import OptimiserSettings, Prepared, prepared_for
from ileed.fitting.results import History, OptimisationResult, Progress, ProgressCallback
from ileed.model.joint import Joint
from ileed.model.nets import members
from ileed.parallel.processes import ALONE, Processes

Checkpoints = Callable[[str], Checkpoint | None]
"""The checkpoint of a part of an optimisation, by the end of its name."""


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
    """Every member as its block gives it: all at once, or `settings.member_block` at a time.

    Rounding depends on how many members a kernel computes. All blocks have the same size, the last one by members that
    are computed twice, so that a member depends neither on how many there are nor on which process computes it.
    """
    count, size = start.members, settings.member_block
    if size is None and processes.count == 1:
        joint = start.joint.to(device)
        return optimise(joint, start.prepared, settings, checkpoint=checkpoints(""), callback=callback)
    firsts = range(0, count, size or count)
    blocks = [slice(first, min(first + (size or count), count)) for first in firsts]
    files = [checkpoints("" if size is None else f"-block-{first}") for first in firsts]
    ranks, teams = [processes.ranks(number, len(blocks)) for number in range(len(blocks))], processes.teams(len(blocks))
    own = [number for number in range(len(blocks)) if processes.rank in ranks[number]]
    found = _empty_result(start, settings)
    if size is not None and processes.count == 1 and executor is not None:
        _deal(executor, start, settings, device, files, found, callback)
        own = []
    for place, number in enumerate(own):
        told = callback and partial(in_block, callback, place, len(own))
        prepared, joint = _part(start, firsts[number], size or count, settings)
        team = teams[number]
        if team is not None and not _can_be_shared(joint, prepared, len(team.ranks)):
            if not team.leads:
                continue
            team = None
        result = optimise(
            joint.to(device), prepared, settings, checkpoint=files[number], callback=told, may_diverge=True, team=team
        )
        learned = _numbers(result, slice(blocks[number].stop - blocks[number].start))
        for place_of, values in zip(_numbers(found, blocks[number]), learned, strict=True):
            place_of.copy_(values)
    for number, block in enumerate(blocks):
        processes.send(_numbers(found, block), source=ranks[number][0])
    if not np.isfinite(found.nats_per_action).any():
        for file in files:
            if file is not None and processes.leads:
                file.remove()
        raise SettingsError(DIVERGED)
    return found


def _part(start: Start, first: int, size: int, settings: OptimiserSettings) -> Start:
    """A block of members, and the data as they are weighed for these."""
    indices = [min(member, start.members - 1) for member in range(first, first + size)]
    return Start(prepared_for(start.prepared, indices, settings), members(start.joint, indices))


def _deal(
    executor: Executor,
    start: Start,
    settings: OptimiserSettings,
    device: torch.device,
    files: Sequence[Checkpoint | None],
    found: OptimisationResult,
    callback: ProgressCallback | None,
) -> None:
    """Have the workers of an executor compute all blocks."""
    found_in = "the columns of a folder are on this machine's disk, and no worker is sent them"
    store = start.prepared.training_data.data.store
    store.check_in_memory(f"{found_in}: leave the executor out, or share the fit by torchrun")
    size = settings.member_block or start.members
    firsts = range(0, start.members, size)
    calls = {
        executor.submit(_learn, _part(start, first, size, settings), settings, str(device), file): first
        for first, file in zip(firsts, files, strict=True)
    }
    tell = callback or (lambda progress: None)
    tell(Progress(0, len(calls), math.nan, unit="blocks of restarts"))
    for done, call in enumerate(as_completed(calls), 1):
        block = slice(calls[call], min(calls[call] + size, start.members))
        learned = _numbers(call.result(), slice(block.stop - block.start))
        for place_of, values in zip(_numbers(found, block), learned, strict=True):
            place_of.copy_(values)
        tell(Progress(done, len(calls), float(np.nanmin(found.nats_per_action)), unit="blocks of restarts"))


def _learn(part: Start, settings: OptimiserSettings, device: str, file: Checkpoint | None) -> OptimisationResult:
    """What a worker learns of a block."""
    joint = part.joint.to(device)
    return optimise(joint, part.prepared, settings, checkpoint=file, callback=None, may_diverge=True)


def _can_be_shared(joint: Joint, prepared: Prepared, processes: int) -> bool:
    """Whether the objective is a sum over the data, which pairs of people in a known order are not."""
    pairs_are_known = joint.knowledge is not None and len(joint.knowledge.better) > 0
    return not pairs_are_known and prepared.sampler.share(0, processes) is not None


def _empty_result(start: Start, settings: OptimiserSettings) -> OptimisationResult:
    """A result on the CPU, whose numbers are to be overwritten block by block."""
    steps = np.array(recorded_steps(settings.steps))
    costs, held_out = (np.full((len(steps), start.members), np.inf) for _ in range(2))
    history = History(steps, costs, None if start.prepared.training_data.held_out is None else held_out)
    joint = copy.deepcopy(start.joint).cpu().requires_grad_(False)
    return OptimisationResult(joint, np.full(start.members, np.inf), history, start.prepared.guessing_nats)


def _numbers(result: OptimisationResult, block: slice) -> list[Tensor]:
    """What a result says of the members of a block, as tensors that share its memory."""
    parameters = [parameter.detach()[block] for parameter in result.joint.parameters()]
    curves = [each for each in (result.history.nats_per_action, result.history.held_out) if each is not None]
    return [
        *parameters,
        torch.from_numpy(result.nats_per_action)[block],
        *(torch.from_numpy(each)[:, block] for each in curves),
    ]
