"""Modes of torch and numpy that a caller has set change neither a result nor whether a call succeeds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ileed


@contextmanager
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def every_error_raises() -> Iterator[None]:
    before = np.seterr(all="raise")
    try:
        yield
        assert np.geterr() == dict.fromkeys(before, "raise")
    finally:
        np.seterr(**before)


MODES = {
    "default dtype float64": double_precision,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "errstate raise": lambda: np.errstate(all="raise"),
    "seterr raise": every_error_raises,
    "default device": lambda: torch.device("meta"),
}


def bits(value: Any) -> Any:
    """A value in a form whose equality is that of its bits."""
    match value:
        case torch.Tensor():
            return value.detach().numpy().tobytes()
        case np.ndarray():
            return value.tobytes()
        case pa.Table():
            return repr(value.to_pydict())
        case list() | tuple():
            return [bits(each) for each in value]
    return repr(value)


def demonstrations(*, discrete: bool) -> ileed.Demonstrations:
    chance, steps = np.random.default_rng(0), 80
    return ileed.Demonstrations(
        observations=chance.normal(size=(steps, 3)),
        actions=chance.integers(0, 3, steps) if discrete else chance.normal(size=(steps, 2)),
        demonstrator=np.repeat(["ann", "bob"], steps // 2),
        episode=np.repeat(np.arange(16), 5),
        rewards=1e-300 * chance.random(steps),  # underflows in single precision
    )


def fit_and_act(*, discrete: bool) -> list[Any]:
    """A fit of a moment, and what it says of its data."""
    data = demonstrations(discrete=discrete)
    head = ileed.CategoricalMLP(hidden=(4,)) if discrete else ileed.MixtureMLP(hidden=(4,))
    fitted = ileed.Ileed(policy=head, restarts=2, steps=5, folds=0).fit(data, seed=0, device="cpu")
    seen, policy = data.observations, fitted.policy
    return bits([*fitted.joint.parameters(), fitted.nats(data), policy.act(seen), policy.act(seen, sample=True)])


def every_entry(folder, *, discrete: bool) -> dict[str, Any]:
    """The results of every public entry that computes, on data so small that each takes a moment."""
    data = demonstrations(discrete=discrete)
    seen = data.observations
    head = ileed.CategoricalMLP(hidden=(4,)) if discrete else ileed.MixtureMLP(hidden=(4,))
    method = ileed.Ileed(policy=head, restarts=2, steps=5, folds=2, ensemble=2)
    fitted = method.fit(data, seed=0, device="cpu")
    ratings = fitted.assess(data)
    fitted.save(folder / "run", overwrite=True)
    loaded = ileed.load(folder / "run")
    policy = fitted.policy
    after = policy.distribution(seen)
    kept = ileed.curate(fitted, data, keep=0.5, at_least=1, weight=True)
    found_by = ileed.indicators(data, columns={"expertise": np.arange(data.episode_count)})
    drift = ileed.Ileed(policy=head, expertise=ileed.Drift(), restarts=1, steps=3, folds=2).fit(data, seed=0)
    found = {
        "parameters": [*fitted.joint.parameters()],
        "expertise": [fitted.expertise.table(), fitted.expertise(seen, "ann"), drift.expertise.drift()],
        "assess": [ratings.table(), ratings.groups(), ratings.sentence(), ratings.probability_better("ann", "bob")],
        "cross_fit": method.cross_fit(data, seed=0, by="episode").table(),
        "nats": [fitted.nats(data), loaded.nats(data)],
        "act": [policy.act(seen), policy.act(seen, sample=True), policy.predict(seen[0])],
        "distribution": [after.logits]
        if discrete
        else [after.mixture_distribution.logits, after.component_distribution.mean],
        "curate": [kept.episodes, kept.stretch_table, kept.marked({0: True}).weights],
        "check": [str(finding) for finding in data.check()],
        "indicators": [found_by.demonstrators(), found_by.correlations(), found_by.explained_by().table()],
        "report": ileed.report(folder / "run", data=data).stat().st_size > 0,
    }
    if discrete:
        answers = {"task": [f"t{k // 3}" for k in range(60)], "worker": ["u", "v", "w"] * 20}
        labels = ileed.label({**answers, "label": [k * k % 7 % 2 for k in range(60)]})
        found["label"] = [labels.probabilities, labels.worker_table()]
        models = [ileed.UniformMixture(), ileed.Confusion()]
        found["compare"] = ileed.compare(data, seed=0, models=models, method=method).table()
        found["rate"] = ileed.rate(policy, data).table()
    return {name: bits(value) for name, value in found.items()}


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_the_caller_changes_no_bit_of_a_fit(mode, discrete):
    expected = fit_and_act(discrete=discrete)
    with MODES[mode]():
        assert fit_and_act(discrete=discrete) == expected


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_all_modes_at_once_change_no_bit_of_any_result(discrete, tmp_path):
    expected = every_entry(tmp_path, discrete=discrete)
    with ExitStack() as modes:
        for mode in MODES.values():
            modes.enter_context(mode())
        found = every_entry(tmp_path, discrete=discrete)
    assert [name for name in expected if found[name] != expected[name]] == []


def test_the_modes_of_the_caller_are_back_after_the_last_of_several_threads():
    """The default dtype belongs to the process: a thread that ends first must not take it from one that computes."""
    from ileed._torch import default_modes

    entered, may_leave = threading.Event(), threading.Event()

    def compute_longer():
        with default_modes():
            entered.set()
            may_leave.wait(10)
            found.append(torch.zeros(1).dtype)

    found: list[torch.dtype] = []
    with double_precision():
        longer = threading.Thread(target=compute_longer)
        with default_modes():
            longer.start()
            entered.wait(10)
        assert torch.get_default_dtype() == torch.float32  # for the thread that still computes
        may_leave.set()
        longer.join()
        assert torch.get_default_dtype() == torch.float64
    assert found == [torch.float32]


def test_an_error_leaves_the_modes_as_the_caller_had_them():
    with double_precision(), torch.no_grad(), np.errstate(all="raise"):
        with pytest.raises(ileed.IleedError):
            ileed.Ileed(restarts=1, steps=1).fit("demonstrations.parquet", seed=0)
        assert torch.get_default_dtype() == torch.float64
        assert not torch.is_grad_enabled()
        assert np.geterr()["under"] == "raise"
