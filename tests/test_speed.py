"""Benchmarks run, and what they time is the same fit; layers have torch's own gradient."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from strategies import world
from torch.nn.functional import relu

import ileed
from ileed._torch import stream
from ileed.model.nets import MLP, Pick


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[1] / "benchmarks"), *sys.path])


@pytest.mark.parametrize("groups", [None, 1, 2, 4], ids=["shared inputs", "one group", "two groups", "each its own"])
@pytest.mark.parametrize("hidden", [(), (3,), (4, 2)])
def test_layers_have_the_outputs_and_gradients_of_the_plain_formula(groups, hidden):
    members, inputs, observations = 4, 5, 7
    net = MLP((inputs, *hidden, 2), generators=[stream(1, member) for member in range(members)])
    shape = (inputs, observations) if groups is None else (groups, inputs, observations)
    seen = torch.randn(shape, generator=stream(2, "seen")).requires_grad_()
    factor = torch.randn((members, 2, observations), generator=stream(3, "factor"))
    own = seen.expand(members, -1, -1) if groups is None else seen.repeat_interleave(members // groups, dim=0)
    layers = [(layer.weight, layer.bias) for layer in net.layers]
    for number, (weight, bias) in enumerate(layers):
        own = weight @ (own if number == 0 else relu(own)) + bias
    needed = [seen, *net.parameters()]
    expected = torch.autograd.grad((own * factor).sum(), needed)
    found = net(seen)
    torch.testing.assert_close(found, own)
    for gradient, other in zip(torch.autograd.grad((found * factor).sum(), needed), expected, strict=True):
        torch.testing.assert_close(gradient, other)
    with torch.no_grad():
        torch.testing.assert_close(net(seen), own, rtol=0, atol=1e-6)


def test_reading_does_not_change_what_was_read():
    net = MLP((3, 4, 2), generators=[stream(1, 0)])
    seen = torch.randn((1, 3, 5), generator=stream(2, "seen"))
    before = seen.clone()
    once, again = net(seen), net(seen)
    assert torch.equal(once, again)
    assert torch.equal(seen, before)


def test_a_table_of_any_number_of_axes_is_read_at_its_last():
    index = torch.tensor([70, 0, 3, 3])
    for shape in ((71,), (2, 71), (2, 3, 71)):
        table = torch.randn(shape, generator=stream(1, *shape)).requires_grad_()
        read = Pick.of(index, 71)(table)
        assert torch.equal(read, table[..., index])
        read.sum().backward()
        assert torch.equal(table.grad, torch.bincount(index, minlength=71).float().expand(shape))


def test_the_grid_of_fits_refuses_answers_that_depend_on_how_many_run(benchmarks, monkeypatch, capsys):
    import grid_of_fits

    def costs(*drawn):
        answers = iter(drawn)
        monkeypatch.setattr(grid_of_fits, "fit", lambda seed, steps: (seed, next(answers)))
        return grid_of_fits.table("local", [1, 2], 2, 3)

    monkeypatch.setattr(grid_of_fits, "executor", lambda name, count: ThreadPoolExecutor(1))
    monkeypatch.setattr(grid_of_fits, "_start", lambda seconds: 1)
    assert [row["processes"] for row in costs(0.5, 0.4, 0.5, 0.4)] == [1, 2]
    assert "2 processes" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="how many"):
        costs(0.5, 0.4, 0.5, 0.3)


def test_the_population_table_is_trained_by_task_and_method_as_each_cell_alone(benchmarks, capsys):
    import population_table

    data = [("beta-1", 4, world(seed=1)), ("beta-1", 5, world(seed=2)), ("unif", 4, world(seed=3))]
    cloned, fitted = population_table.train({"minigrid/lava": data}, 3, torch.device("cpu"))
    assert (cloned["models"], fitted["models"], fitted["steps"]) == (60, 60, 3)
    alone = ileed.Ileed(expertise=ileed.Constant(), steps=3).fit(data[2][2], seed=4, device="cpu", check_width=False)
    assert fitted["nats_per_action"]["unif"] == pytest.approx(alone.nats_per_action, abs=2e-6)
    assert "60 models x 3 steps" in capsys.readouterr().out
