"""Wrappers around torch: random streams, devices, modes, threads, and shape annotations."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch

from ileed import _memory
from ileed._numpy import default_errors, stream_key
from ileed.errors import SettingsError, instance_of

if TYPE_CHECKING:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
    from jaxtyping import Shaped as Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:  # shapes are checked only under pytest; elsewhere they are documentation
        _shape = {"__class_getitem__": classmethod(lambda cls, item: item[0])}
        Bool = Float = Int = Shaped = type("Shape", (), _shape)

_Result = TypeVar("_Result")
_Value = TypeVar("_Value")


def stream(seed: int, *purpose: object) -> torch.Generator:
    """A random generator that depends only on `seed` and on the purpose that names it."""
    return torch.Generator().manual_seed(stream_key(seed, *purpose))


def numpy_stream(seed: int, *purpose: object) -> np.random.Generator:
    """`stream` for numpy."""
    return np.random.default_rng(int(torch.randint(2**31, (), generator=stream(seed, *purpose))))


def resolve_device(name: str) -> torch.device:
    """The best available device for `auto`; a named device is used or refused, never replaced by another."""
    rule = "pass device='auto' for the best available device, or device='cpu'"
    name = str(instance_of("device", name, str | torch.device, rule=rule))
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails for a device without memory, such as "meta"
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device {name!r} cannot be used here: {rule}", code="device-unusable") from error
    return device


def available_memory(device: torch.device) -> int | None:
    """The available memory of a device in bytes, or None if it is unknown."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return _memory.available_bytes() if device.type == "cpu" else None


@contextmanager
def default_modes() -> Iterator[None]:
    """Compute with the default modes of torch and numpy, and restore the caller's modes afterwards.

    Covers the default dtype and device of torch, `no_grad`, `inference_mode`, autocast, and the floating-point errors
    of numpy. It decorates every public function that computes, so that the caller's modes affect neither the result
    nor whether there is one.
    """
    with ExitStack() as modes:
        modes.enter_context(default_errors())
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        modes.enter_context(_DEFAULT_DTYPE.at(torch.float32))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        yield


@final
class ProcessSetting(Generic[_Value]):
    """A setting of torch that all threads of a process share; the last thread that leaves `at` restores it."""

    def __init__(self, read: Callable[[], _Value], write: Callable[[_Value], object]) -> None:
        self._read, self._write, self._lock = read, write, Lock()
        self._before: list[_Value] = []  # one entry for every thread in `at`

    @contextmanager
    def at(self, value: _Value) -> Iterator[None]:
        """Run the block with this value of the setting."""
        with self._lock:
            self._before.append(self._before[0] if self._before else self._read())
            self._write(value)
        try:
            yield
        finally:
            with self._lock:
                before = self._before.pop()
                if not self._before:
                    self._write(before)


_DEFAULT_DTYPE = ProcessSetting(torch.get_default_dtype, torch.set_default_dtype)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the block with `count` CPU threads inside torch's kernels, and restore the previous number afterwards.

    `@threads(1)` decorates functions whose results must not depend on the number of threads: kernels round
    differently when several threads share a sum or a matrix product. torch keeps the number per Python thread, so a
    function that runs in its own thread needs the decorator too.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def product(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`left @ right` for numpy arrays, with the same bits for any number of threads.

    numpy's own `@` calls a BLAS library whose rounding depends on its number of threads, which cannot be limited
    portably. Large matrix products, for which BLAS is ten times faster than einsum, use torch on one thread. They copy
    the operands into torch's memory because MKL's rounding depends on their alignment.
    """
    if left.ndim == right.ndim == 2 and len(left) * right.size >= 1 << 28:
        kind, rows = np.result_type(left, right), 1024  # at a time, which bounds the memory of copies
        found = np.empty((len(left), right.shape[1]), dtype=kind)
        with threads(1):
            second = torch.tensor(np.ascontiguousarray(right, dtype=kind), device="cpu")
            for first in range(0, len(left), rows):
                some = torch.tensor(np.ascontiguousarray(left[first : first + rows], dtype=kind), device="cpu")
                found[first : first + rows] = (some @ second).numpy()
        return found
    subscripts = "...i,i->..." if right.ndim == 1 else "...i,ij->...j"
    return np.asarray(np.einsum(subscripts, left, right, optimize=False))


def keep_freed_memory() -> None:
    """Let glibc keep the memory that tensors free for the next step; see docs/decisions/engine.md."""
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, size in ((-1, 256 << 20), (-3, 32 << 20)):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
            mallopt(parameter, size)


def record_cuda_graph(
    step: Callable[[], _Result],
    *,
    state: Iterable[torch.Tensor] = (),
    generators: Iterable[torch.Generator] = (),
    warm_up: int = 3,
) -> Callable[[], _Result]:
    """Record `step` as a CUDA graph, and return a function that replays it and returns the same tensors, overwritten.

    The step first runs `warm_up` times, so that kernels are chosen and memory is allocated; changes of the tensors in
    `state` are undone. CUDA `generators` that the step uses are registered, so that every replay draws new numbers.
    Pass `warm_up=0` if earlier steps have warmed up; recording itself does not run the step.
    """
    kept = [(tensor, tensor.detach().clone()) for tensor in state]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = step()
    with torch.no_grad():
        for tensor, before in kept:
            tensor.copy_(before)

    def replay() -> _Result:
        graph.replay()
        return result

    return replay


def beside(device: torch.device, work: Callable[[], _Result]) -> Callable[[], _Result]:
    """Start `work` in parallel to what follows, and return a function that waits for its result.

    On a GPU, `work` runs on a second stream, so that two chains of small kernels overlap, forwards and backwards;
    elsewhere it runs at once. Nothing that `work` reads may be written before its result was waited for.
    """
    if device.type != "cuda":
        result = work()
        return lambda: result
    side = _second_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        begun = work()

    def wait() -> _Result:
        torch.cuda.current_stream(device).wait_stream(side)
        return begun

    return wait


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
