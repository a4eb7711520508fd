"""Every demonstrator model with every policy head and every expertise, on every device.

A CUDA graph records one optimisation step. It cannot copy from main memory or wait for a value, so a step must make
every tensor on the device of the model. That is checked without a GPU as well: a step is traced on torch's `meta`
device, where an operation on a tensor in main memory is an error.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from needs import gpu
from tiny import tiny_parts
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import ileed
from ileed.fitting.adam import _plain
from ileed.fitting.loop import _Optimisation
from ileed.model.parts import parts_of_kind

META = torch.device("meta")
MODELS = (
    *ileed.selection.CANDIDATES,
    ileed.Persistent(per_person=True),
    ileed.SignalScaling(),
    ileed.SignalScaling(gain=False, offset=True),
    ileed.VarianceScaling(),
)
HEADS = (
    ileed.CategoricalMLP(),
    tiny_parts.CategoricalLSTM(units=3, length=2),
    ileed.MixtureMLP(hidden=(4, 4), modes=2),
    ileed.MixtureLSTM(hidden=(3,), length=2, modes=2),
)
EXPERTISE = (
    ileed.Perfect(),
    ileed.Constant(),
    ileed.Embedded(),
    ileed.Embedded(shared=True),
    ileed.Skills("phase"),
    ileed.Difficulty(),
    ileed.Difficulty(easiness=False),
    ileed.Drift(),
)


def name(part: Any) -> str:
    """The class of a part, with the settings that are not its defaults."""
    own = [f"{each.name}={value}" for each in fields(part) if (value := getattr(part, each.name)) != each.default]
    return f"{type(part).__name__}({', '.join(own)})"


def combinations() -> Iterator[Any]:
    """All models, heads and kinds of expertise; `make test` has every pair of them, and every third in some pair."""
    for (row, model), (column, expertise) in product(enumerate(MODELS), enumerate(EXPERTISE)):
        heads = [head for head in HEADS if head.discrete == model.discrete]
        for number, head in enumerate(heads):
            marks = () if number == (row + column) % len(heads) else pytest.mark.campaign
            yield pytest.param(model, head, expertise, id="-".join(map(name, (model, head, expertise))), marks=marks)


COMBINATIONS = list(combinations())


@cache
def demonstrations(*, discrete: bool) -> ileed.Demonstrations:
    """Three demonstrators, nine episodes of six steps; three actions, or two dimensions and a gripper."""
    rng, steps = np.random.default_rng(0), 54
    gripper = rng.choice([-1.0, 1.0], size=(steps, 1))
    return ileed.Demonstrations(
        observations=rng.normal(size=(20, 3))[rng.integers(20, size=steps)],
        actions=rng.integers(3, size=steps) if discrete else np.hstack([rng.normal(size=(steps, 2)), gripper]),
        demonstrator=np.repeat(np.arange(9) % 3, 6),
        episode=np.repeat(np.arange(9), 6),
        skills={"phase": np.array(["early", "late"])[np.arange(steps) % 2]},
    )


def method(model: Any, head: Any, expertise: Any, **settings: Any) -> ileed.Ileed:
    usual = {"restarts": 2, "steps": 4, "folds": 0}
    return ileed.Ileed(policy=head, demonstrator=model, expertise=expertise, **(usual | settings))


def test_the_combinations_have_every_part_of_the_library():
    """Nine models and two heads for discrete actions, six and two for continuous ones; eight kinds of expertise."""
    for kind, listed in (
        (ileed.model.demonstrators.AbstractDemonstratorModel, MODELS),
        (ileed.model.policies.AbstractPolicyHead, HEADS),
        (ileed.model.expertise.AbstractExpertise, EXPERTISE),
    ):
        own = {part for part in parts_of_kind(kind) if part.__module__.startswith("ileed.")}
        assert own <= {type(each) for each in listed}
    assert len(COMBINATIONS) == (9 * 2 + 6 * 2) * 8


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
@pytest.mark.parametrize(("model", "head", "expertise"), COMBINATIONS)
def test_every_combination_of_parts_is_fitted_on_every_device(model, head, expertise, device):
    """To the costs of the CPU: sums are taken in another order elsewhere, which four steps hardly amplify."""
    data, chosen = demonstrations(discrete=model.discrete), method(model, head, expertise, batch_size=16)
    costs = chosen.fit(data, seed=0, device=device).restarts.nats_per_action
    assert np.isfinite(costs).all()
    if device != "cpu":
        expected = chosen.fit(data, seed=0, device="cpu").restarts.nats_per_action
        np.testing.assert_allclose(costs, expected, atol=1e-4)


# --- without a GPU


class OneDevice(TorchDispatchMode):
    """Refuse every operation that reads or makes a tensor on another device than `meta`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, found)):
            if isinstance(each, Tensor) and each.device != META:
                raise AssertionError(f"{func} has a tensor {tuple(each.shape)} on {each.device} within a step")
        return found


@contextmanager
def copied_to_meta(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make `copy.deepcopy` put the copies of tensors on the `meta` device."""

    def moved(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        if id(tensor) not in memo:
            found = torch.empty_like(tensor.detach(), device=META)
            memo[id(tensor)] = nn.Parameter(found) if isinstance(tensor, nn.Parameter) else found
        return memo[id(tensor)]

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "__deepcopy__", moved)
        patch.setattr(nn.Parameter, "__deepcopy__", moved)
        yield


def step_on_meta(
    chosen: ileed.Ileed, data: ileed.Demonstrations, monkeypatch: pytest.MonkeyPatch, known: ileed.Known | None = None
) -> None:
    """Trace one optimisation step: what a CUDA graph would record of it."""
    start = chosen._start(data, 0, torch.device("cpu"))
    if known is not None:
        start = start.with_knowledge(known, torch.device("cpu"))
    with copied_to_meta(monkeypatch):
        optimisation = copy.deepcopy(_Optimisation(start.joint, start.prepared, chosen.optimiser, None))
    if hasattr(optimisation.sampler, "_device"):
        optimisation.sampler._device = META
    optimisation.adam._update = _plain
    with OneDevice():
        cost = optimisation._advance()
    assert cost.device == META
    assert cost.shape == (chosen.restarts,)


@pytest.mark.parametrize(("model", "head", "expertise"), COMBINATIONS)
def test_a_step_makes_every_tensor_on_the_device_of_the_model(model, head, expertise, monkeypatch):
    data = demonstrations(discrete=model.discrete)
    for batch_size in (16, len(data)) if head.length == 1 else (16,):  # mini-batches and whole batches, or windows
        chosen = method(model, head, expertise, batch_size=batch_size, clip=1.0)
        step_on_meta(chosen, data, monkeypatch)


@pytest.mark.parametrize("batch_size", [16, 54])
@pytest.mark.parametrize("discrete", [True, False])
def test_a_step_with_dynamics_and_knowledge_makes_every_tensor_on_the_device(discrete, batch_size, monkeypatch):
    data = demonstrations(discrete=discrete)
    chosen = ileed.Ileed(restarts=2, dynamics=ileed.LatentDynamics(), batch_size=batch_size)
    step_on_meta(chosen, data, monkeypatch)
    known = ileed.Known(
        gold=["0"],
        better=[("1", "2")],
        answers=(data.observations[:2], data.actions[:2]),
    )
    step_on_meta(replace(chosen, dynamics=None), data, monkeypatch, known)


def test_a_tensor_in_main_memory_is_noticed():
    on_device = torch.empty(3, device=META)
    with OneDevice(), pytest.raises(AssertionError, match="cpu"):
        torch.arange(3).to(on_device)
    with OneDevice():
        torch.where(on_device > 0, -1, torch.arange(3, device=META))
