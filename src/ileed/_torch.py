"""What we ask of torch at the door: chance, place, threads, and names for shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ileed.errors import SettingsError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:  # shapes are checked under pytest alone; elsewhere they are only for reading

        class _Shape:
            def __class_getitem__(cls, item: Any) -> Any:
                return item[0]

        Bool = Float = Int = _Shape

__all__ = ["Bool", "Float", "Int", "resolve_device", "stream", "threads"]


def stream(seed: int, *purpose: object) -> torch.Generator:
    """A generator that depends on `seed` and on nothing but the purpose it is named for."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def resolve_device(name: str) -> torch.device:
    """`auto` takes the best there is; a named device is used or refused, never swapped for another."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(
            f"device {name!r} was asked for but cannot be used here; pass device='auto' for the best there is, "
            "or device='cpu'"
        ) from error
    return device


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the block with `count` CPU threads inside torch's kernels, then restore what was set before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
