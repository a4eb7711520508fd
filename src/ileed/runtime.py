"""Seeds, devices, threads and CUDA graphs, for packages that extend the library and must handle them as it does.

>>> import torch
>>> torch.rand(2, generator=stream(0, "weights")).equal(torch.rand(2, generator=stream(0, "weights")))
True
>>> resolve_device("cpu")
device(type='cpu')
"""

from ileed._torch import keep_freed_memory, record_cuda_graph, resolve_device, stream, threads

__all__ = ["keep_freed_memory", "record_cuda_graph", "resolve_device", "stream", "threads"]
