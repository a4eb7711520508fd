"""Seeds, devices, threads and CUDA graphs, for packages that extend the library and must handle them as it does.

A part of a model, a baseline or a task that another package contributes takes one integer seed and a device's name, as
`ileed.Ileed.fit` does. These functions turn them into what torch needs. The library's own modules use the same ones.

>>> import torch
>>> torch.rand(2, generator=stream(0, "weights")).equal(torch.rand(2, generator=stream(0, "weights")))
True
>>> resolve_device("cpu")
device(type='cpu')
"""

from ileed._torch import keep_freed_memory, record_cuda_graph, resolve_device, stream, threads

__all__ = ["keep_freed_memory", "record_cuda_graph", "resolve_device", "stream", "threads"]
