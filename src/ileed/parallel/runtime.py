"""Seeds, devices, memory, threads, CUDA graphs and processes, for packages that extend the library.

>>> import torch
>>> torch.rand(2, generator=stream(0, "weights")).equal(torch.rand(2, generator=stream(0, "weights")))
True
>>> resolve_device("cpu")
device(type='cpu')
>>> with several_processes() as job:  # one, unless torchrun started more
...     job.count, job.leads
(1, True)
"""

from ileed._memory import check_fits
from ileed._torch import keep_freed_memory, record_cuda_graph, resolve_device, stream, threads
from ileed.parallel.processes import several_processes

__all__ = [
    "check_fits",
    "keep_freed_memory",
    "record_cuda_graph",
    "resolve_device",
    "several_processes",
    "stream",
    "threads",
]
