"""The processes of one fit that `torchrun` started: which blocks each computes, and how they exchange results.

Every process runs the same program on the same data. The blocks are distributed over the processes, and the result of
a block is sent to all of them, so that all continue with the same values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from ileed.errors import RunError, SettingsError

_TIMEOUT = timedelta(days=30)  # one process may wait for another as long as a fit takes; a lost one is noticed at once


class LostProcessError(RunError):
    """Another process of the job was lost, and this one cannot continue."""


@final
@dataclass(frozen=True, eq=False)
class Team:
    """The processes that share the data of one block; `place` is the position of this process among them."""

    ranks: tuple[int, ...]
    place: int
    _group: Any

    @property
    def leads(self) -> bool:
        """Whether this process writes the checkpoint of the block."""
        return self.place == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the processes, with the same bits in each."""
        summed = values if values.device.type == "cpu" or _has_own_gpu() else values.cpu()
        with _name_lost_process():
            dist.all_reduce(summed, group=self._group)
        return summed.to(values.device)


@final
@dataclass(frozen=True, eq=False)
class Processes:
    """The number of processes, and which of them this is."""

    rank: int = 0
    count: int = 1
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """Whether this process prints progress and writes the run."""
        return self.rank == 0

    def ranks(self, block: int, blocks: int) -> tuple[int, ...]:
        """The processes that compute a block: only one if there are at least as many blocks as processes."""
        if blocks >= self.count:
            return (block % self.count,)
        return tuple(range(block, self.count, blocks))

    def teams(self, blocks: int) -> list[Team | None]:
        """For each block, the processes that share it, or None if one computes it alone; all processes call this."""
        return [self._team(self.ranks(block, blocks)) for block in range(blocks)]

    def _team(self, ranks: tuple[int, ...]) -> Team | None:
        if len(ranks) == 1:
            return None
        if ranks not in self._groups:
            with _name_lost_process():
                self._groups[ranks] = dist.new_group(list(ranks), timeout=_TIMEOUT)
        return Team(ranks, ranks.index(self.rank) if self.rank in ranks else -1, self._groups[ranks])

    def check_alike(self, digest: str) -> None:
        """Refuse to continue if this process does not compute the same fit as the first one."""
        own = torch.tensor([float(byte) for byte in digest.encode()])
        first = own.clone()
        self.send([first], source=0)
        if not torch.equal(own, first):
            raise SettingsError(
                f"the process of rank {self.rank} has other data, settings, seed or device than the first: start all "
                "processes with the same command, and let all of them read the same files"
            )

    def send(self, values: Sequence[Tensor], *, source: int) -> None:
        """Overwrite tensors on the CPU in all processes by those of the process of rank `source`."""
        if self.count == 1:
            return
        flat = torch.cat([each.detach().double().flatten() for each in values])  # exact for 32 bits
        with _name_lost_process():
            dist.broadcast(flat, src=source)
        parts = flat.split([each.numel() for each in values])
        with torch.no_grad():
            for each, part in zip(values, parts, strict=True):
                each.copy_(part.view_as(each))


ALONE = Processes()
"""This process alone."""


@contextmanager
def several_processes() -> Iterator[Processes]:
    """The processes that `torchrun` started, for `Ileed.fit(processes=)`; all must run the same program.

    Each process uses its own GPU if there are enough. With one process or another launcher, this process is alone.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    if dist.is_initialized():
        raise SettingsError("torch.distributed has a process group already: call several_processes() before making one")
    here = int(os.environ["LOCAL_RANK"])
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(here % gpus)
    with _name_lost_process():
        backend = "cpu:gloo,cuda:nccl" if gpus and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
    yield Processes(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()  # not after an error, since it would wait for the others


def _has_own_gpu() -> bool:
    """Whether NCCL is available and each process has its own GPU, which NCCL requires."""
    return dist.is_nccl_available() and int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count()


@contextmanager
def _name_lost_process() -> Iterator[None]:
    """Turn the error of torch for a broken connection into one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            "another process of this job was lost: run the same command again, with as many processes as you like"
        ) from error
