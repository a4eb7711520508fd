"""Memory: whether a device can hold a fit, told from sizes alone before anything is allocated."""

from __future__ import annotations

import math

import torch

from ileed._torch import available_memory
from ileed.demonstrations import Demonstrations
from ileed.errors import SettingsError
from ileed.model.batch import Sizes
from ileed.model.joint import Joint, Parts


def least_sizes(parts: Parts, data: Demonstrations) -> Sizes:
    """What is known of a model's sizes before the data are collapsed: all but how many inputs vary."""
    column = parts.expertise.skill_column
    return Sizes(
        inputs=0,
        demonstrators=len(data.names),
        actions=data.action_count if data.discrete else data.actions.shape[1],
        discrete=data.discrete,
        skills=0 if column is None else len(data.skill(column).names),
        has_legal_actions=data.legal is not None,
    )


def check_memory(parts: Parts, sizes: Sizes, members: int, device: torch.device, unique_count: int = 1) -> None:
    """Refuse a model that the device cannot hold, along with parts that do not go together.

    It takes at least four numbers for each parameter (its value, its gradient and Adam's two moments), and one for
    each output of a layer at each of the `unique_count` observations that a step reads.
    """
    available = available_memory(device)
    try:
        shapes = dict(Joint(parts, sizes, []).named_parameters())  # no members, so no memory either
    except RuntimeError:  # more numbers than 64 bits can count
        least = float("inf")
    else:
        parameters = sum(math.prod(each.shape[1:]) for each in shapes.values())
        outputs = sum(each.shape[1] for name, each in shapes.items() if name.endswith("bias"))
        least = members * (4 * parameters + unique_count * outputs) * torch.float32.itemsize
    if available is not None and least > available:
        found = "more than a billion" if least > 1e18 else f"{least / 1e9:,.2f}"
        raise SettingsError(
            f"this fit needs at least {found} GB of memory for its {members:,} restarts, and "
            f"{available / 1e9:,.2f} GB are available on {device.type}: lower hidden, dim, modes, restarts or "
            "batch_size, or the data's action_count"
        )
