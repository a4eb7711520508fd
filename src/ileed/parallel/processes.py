"""The processes of one fit, as `torchrun` starts them: which of them does what, and what they tell each other.

Every process runs the same program on the same data. Work is dealt out by blocks, and the result of a block is then
sent to all processes, so that each goes on with the same values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from ileed.errors import RunError, SettingsError

_PATIENCE = timedelta(days=30)  # one process may wait for another as long as a fit takes; a lost one is noticed at once


class LostProcessError(RunError):
    """Another process of the job is gone, so that this one cannot go on."""


@final
@dataclass(frozen=True, eq=False)
class Team:
    """Processes that share the data of one block; `place` is this process's number among them."""

    ranks: tuple[int, ...]
    place: int
    _group: Any

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes the block's checkpoint."""
        return self.place == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over processes, the same bits in each."""
        through = values if values.device.type == "cpu" or _has_own_gpu() else values.cpu()
        with _lost_processes_named():
            dist.all_reduce(through, group=self._group)
        return through.to(values.device)


@final
@dataclass(frozen=True, eq=False)
class Processes:
    """How many processes there are, and which of them this is."""

    rank: int = 0
    count: int = 1
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """Whether this is the process that prints, and writes the run."""
        return self.rank == 0

    def ranks(self, block: int, blocks: int) -> tuple[int, ...]:
        """The processes that work at a block: one where there are as many blocks as processes, or more."""
        if blocks >= self.count:
            return (block % self.count,)
        return tuple(range(block, self.count, blocks))

    def teams(self, blocks: int) -> list[Team | None]:
        """For each block, the processes that share it, or None where one has it alone; called by all processes."""
        return [self._team(self.ranks(block, blocks)) for block in range(blocks)]

    def _team(self, ranks: tuple[int, ...]) -> Team | None:
        if len(ranks) == 1:
            return None
        if ranks not in self._groups:
            with _lost_processes_named():
                self._groups[ranks] = dist.new_group(list(ranks), timeout=_PATIENCE)
        return Team(ranks, ranks.index(self.rank) if self.rank in ranks else -1, self._groups[ranks])

    def check_alike(self, digest: str) -> None:
        """Refuse to go on where this process computes something else than the first one does."""
        own = torch.tensor([float(byte) for byte in digest.encode()])
        first = own.clone()
        self.send([first], source=0)
        if not torch.equal(own, first):
            raise SettingsError(
                f"the process of rank {self.rank} has other data, settings, seed or device than the first: start all "
                "of them with the same command, and let all of them read the same files"
            )

    def send(self, values: Sequence[Tensor], *, source: int) -> None:
        """Overwrite tensors on the CPU by those of the process of rank `source`, in all processes."""
        if self.count == 1:
            return
        flat = torch.cat([each.detach().double().flatten() for each in values])  # exact for 32 bits
        with _lost_processes_named():
            dist.broadcast(flat, src=source)
        parts = flat.split([each.numel() for each in values])
        with torch.no_grad():
            for each, part in zip(values, parts, strict=True):
                each.copy_(part.view_as(each))


ALONE = Processes()
"""This process alone."""


def started_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `torchrun` started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in environment and int(environment.get("WORLD_SIZE", "1")) > 1


@contextmanager
def several() -> Iterator[Processes]:
    """The processes that `torchrun` started, for `Ileed.fit(processes=)`; all must run the same program.

    Each process takes a GPU of its own where there are enough. Under any other launcher, and with one process, it is
    this process alone.
    """
    if not started_by_torchrun():
        yield ALONE
        return
    if dist.is_initialized():
        raise SettingsError("torch.distributed has a process group already: share fits before any other is made")
    here = int(os.environ["LOCAL_RANK"])
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(here % gpus)
    with _lost_processes_named():
        backend = "cpu:gloo,cuda:nccl" if gpus and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, timeout=_PATIENCE)
    yield Processes(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()  # not after an error, where others would be waited for


def _has_own_gpu() -> bool:
    """Whether NCCL is there, and no other process computes on this process's GPU, which it asks for."""
    return dist.is_nccl_available() and int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count()


@contextmanager
def _lost_processes_named() -> Iterator[None]:
    """Turn what torch says of a broken connection into one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            "another process of this job was lost: run the same command again, with as many processes as you like"
        ) from error
