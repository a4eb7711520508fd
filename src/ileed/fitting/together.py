"""Several data sets optimised at once, in blocks that make good use of a device."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch

from ileed.fitting.loop import optimise
from ileed.fitting.preparing import Prepared, side_by_side, stands_beside
from ileed.fitting.results import OptimisationResult, Progress, ProgressCallback
from ileed.fitting.settings import OptimiserSettings
from ileed.model.joint import Joint, taken_apart
from ileed.model.joint import side_by_side as models_side_by_side

_AT_ONCE = {"cpu": 400_000, "cuda": 200_000_000}  # members x counts: what a cache holds, and what a GPU's memory does


@final
@dataclass(frozen=True, eq=False)
class Start:
    """Where an optimisation begins: data that are prepared, and every member's initial parameters."""

    prepared: Prepared
    joint: Joint


def optimise_each(
    starts: Sequence[Start], settings: OptimiserSettings, *, device: torch.device, callback: ProgressCallback | None
) -> Iterator[tuple[OptimisationResult, float]]:
    """The result of each start, in their order, and its share of the seconds that its block took."""
    blocks = _blocks(starts, device)
    for number, block in enumerate(blocks):
        began = time.monotonic()
        results = _optimise_block(
            block, settings, device, callback and partial(_in_block, callback, number, len(blocks))
        )
        seconds = (time.monotonic() - began) / len(block)
        yield from ((result, seconds) for result in results)


def _optimise_block(
    block: Sequence[Start], settings: OptimiserSettings, device: torch.device, callback: ProgressCallback | None
) -> list[OptimisationResult]:
    """Optimise the members of a block of data sets at once, and give each data set its own part of the result."""
    first = block[0]
    if len(block) == 1 and (device.type == "cpu" or not stands_beside(first.prepared)):
        return [optimise(first.joint.to(device), first.prepared, settings, callback=callback)]
    joints = [start.joint for start in block]
    members = len(next(first.joint.parameters()))
    whole = models_side_by_side(joints).to(device)
    sampler = side_by_side([start.prepared for start in block], members=members, device=device)
    result = optimise(whole, sampler, settings, callback=callback)
    taken_apart(result.joint.cpu(), joints)
    return [
        result.part(start.joint, number * members, start.prepared.guessing_nats) for number, start in enumerate(block)
    ]


def _blocks(starts: Sequence[Start], device: torch.device) -> list[list[Start]]:
    """Data sets to optimise at once: as many as make good use of the device, in their own order."""
    most = _AT_ONCE[device.type]
    blocks: list[list[Start]] = []
    held = 0
    for start in starts:
        counts = len(start.prepared.collapsed.observation_index) * len(next(start.joint.parameters()))
        alike = blocks and start.joint.can_stand_beside(blocks[-1][0].joint)
        if not alike or held + counts > most or not stands_beside(start.prepared):
            blocks.append([])
            held = 0
        blocks[-1].append(start)
        held += counts
    return blocks


def _in_block(callback: ProgressCallback, number: int, blocks: int, progress: Progress) -> None:
    """Report one optimisation of several as a part of one long one."""
    callback(progress._replace(step=number * progress.steps + progress.step, steps=blocks * progress.steps))
