"""What the library asks of torch: random streams, devices, threads, and names for shapes."""

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
    except ImportError:  # shapes are checked under pytest alone; elsewhere they are only for reading
        _shape = {"__class_getitem__": classmethod(lambda cls, item: item[0])}
        Bool = Float = Int = Shaped = type("Shape", (), _shape)

_Result = TypeVar("_Result")
_Value = TypeVar("_Value")


def stream(seed: int, *purpose: object) -> torch.Generator:
    """A generator that depends on `seed` and on nothing but the purpose it is named for."""
    return torch.Generator().manual_seed(stream_key(seed, *purpose))


def numpy_stream(seed: int, *purpose: object) -> np.random.Generator:
    """The same for numpy."""
    return np.random.default_rng(int(torch.randint(2**31, (), generator=stream(seed, *purpose))))


def resolve_device(name: str) -> torch.device:
    """`auto` takes the best there is; a named device is used or refused, never swapped for another."""
    rule = "pass device='auto' for the best there is, or device='cpu'"
    name = str(instance_of("device", name, str | torch.device, rule=rule))
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device without memory of its own, such as "meta", has no answer
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device {name!r} was asked for but cannot be used here: {rule}") from error
    return device


def available_memory(device: torch.device) -> int | None:
    """Bytes that a device can still give without swapping, or nothing where the system does not say."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return _memory.available_bytes() if device.type == "cpu" else None


@contextmanager
def default_modes() -> Iterator[None]:
    """Compute as in a fresh process, whatever modes of torch and numpy the caller has set; they are restored after.

    Covers the default dtype and device of torch, `no_grad`, `inference_mode`, autocast, and the floating-point errors
    of numpy. Usable as a decorator: every public function that computes has it, so that a caller's settings change
    neither its result nor whether it succeeds.
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
    """A setting of torch that all threads of a process share: the last thread to leave `at` restores it."""

    def __init__(self, read: Callable[[], _Value], write: Callable[[_Value], object]) -> None:
        self._read, self._write, self._lock = read, write, Lock()
        self._before: list[_Value] = []  # once for every thread that is in `at`

    @contextmanager
    def at(self, value: _Value) -> Iterator[None]:
        """Run the block with this value."""
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
    """Run the block with `count` CPU threads inside torch's kernels, then restore what was set before.

    `@threads(1)` decorates the functions whose results must not depend on how many threads torch may use: kernels
    round differently when several threads share a sum or a matrix product. torch keeps the number per Python thread,
    so a function that runs in a thread of its own needs the decorator too.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_ROWS = 1024  # of a large product at a time
_LARGE = 1 << 28  # multiplications, from which on a BLAS library is ten times faster than einsum


def product(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`left @ right` for numpy arrays, with the same bits for any number of threads.

    numpy's own `@` calls a BLAS library that rounds by the number of its threads, which no call can limit portably.
    Large products of matrices use torch's on one thread. Copies in torch's own memory are aligned alike: MKL rounds by
    the alignment of its operands.
    """
    if left.ndim == right.ndim == 2 and len(left) * right.size >= _LARGE:
        kind = np.result_type(left, right)
        found = np.empty((len(left), right.shape[1]), dtype=kind)
        with threads(1):
            second = torch.tensor(np.asarray(right, dtype=kind), device="cpu")
            for rows in range(0, len(left), _ROWS):  # which bounds the memory of copies
                first = torch.tensor(np.asarray(left[rows : rows + _ROWS], dtype=kind), device="cpu")
                found[rows : rows + _ROWS] = (first @ second).numpy()
        return found
    subscripts = "...i,i->..." if right.ndim == 1 else "...i,ij->...j"
    return np.asarray(np.einsum(subscripts, left, right, optimize=False))


def keep_freed_memory() -> None:
    """Let the C library, where it is glibc, keep what tensors free for the next step; see docs/decisions/engine.md."""
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
    """Record `step` as a CUDA graph, and return a function that replays it and returns the same tensors, rewritten.

    The step is run `warm_up` times first, since a recording must find kernels chosen and memory allocated; what these
    runs changed in the tensors of `state` is undone. CUDA `generators` that the step draws from are registered, so that
    every replay draws new numbers. Pass `warm_up=0` where earlier steps have warmed up; recording itself runs no step.
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
    """Start `work` next to what follows, and return a function that waits for its result.

    On a GPU `work` goes to a second stream, so that two chains of small kernels run at once, forwards and backwards;
    elsewhere it is simply done. What `work` reads must not be written before its result is waited for.
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
