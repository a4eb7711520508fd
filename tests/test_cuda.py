"""What holds on a GPU; skipped where there is none."""

import numpy as np
import pytest
import torch
from needs import gpu
from tiny import tiny_parts

import ileed
from ileed.model.nets import Pick, _lstm_cell, _lstm_cell_gradient, _products
from ileed.parallel.runtime import record_cuda_graph

pytestmark = gpu

METHODS = {
    "constant": ileed.Ileed(expertise=ileed.Constant(), restarts=3, steps=60),
    "embedded": ileed.Ileed(restarts=3, steps=60),
    "dynamics": ileed.Ileed(dynamics=ileed.LatentDynamics(), restarts=3, steps=60),
    "mini-batches": ileed.Ileed(batch_size=64, held_out=0.2, restarts=3, steps=60),
    "Boltzmann": ileed.Ileed(demonstrator=ileed.Boltzmann(), restarts=3, steps=60),
    "cloning, clipped": ileed.bc(clip=1.0, restarts=3, steps=60),
    "a habit of each person": ileed.Ileed(demonstrator=tiny_parts.Habit(), restarts=3, steps=60),
    "the previous action": ileed.Ileed(demonstrator=tiny_parts.Repeat(), restarts=3, steps=60),
    "the previous action, mini-batches": ileed.Ileed(
        demonstrator=tiny_parts.Repeat(), batch_size=64, restarts=3, steps=60
    ),
    "a matrix of each person": ileed.Ileed(demonstrator=tiny_parts.Matrix(), restarts=3, steps=60),
}


def demonstrations() -> ileed.Demonstrations:
    rng = np.random.default_rng(0)
    return ileed.Demonstrations(
        observations=rng.normal(size=(200, 6))[rng.integers(200, size=2000)],
        actions=rng.integers(4, size=2000),
        demonstrator=np.repeat(["ann", "bob", "cy", "di"], 500),
        episode=np.repeat(np.arange(40), 50),
    )


MEMORY = ileed.Ileed(
    policy=ileed.MixtureLSTM(hidden=(8, 8)), expertise=ileed.Constant(), restarts=2, steps=60, batch_size=32
)
CASES = [*((method, demonstrations) for method in METHODS.values()), (MEMORY, lambda: ileed.shipped("square"))]


@pytest.mark.parametrize(("method", "made"), CASES, ids=[*METHODS, "memory"])
def test_a_gpu_gives_the_same_bits_twice_and_the_same_costs_as_a_cpu(method, made):
    data = made()
    once, again = (method.fit(data, seed=0, device="cuda") for _ in range(2))
    on_cpu = method.fit(data, seed=0, device="cpu")
    for name, value in once.joint.state_dict().items():
        assert torch.equal(value, again.joint.state_dict()[name]), name
    # sums are taken in another order there; sixty steps amplify the last bits by no more than this
    np.testing.assert_allclose(once.restarts.nats_per_action, on_cpu.restarts.nats_per_action, atol=1e-4)


def test_an_interrupted_fit_resumes_to_the_same_bits(tmp_path):
    data, method = demonstrations(), METHODS["embedded"]

    def stop(progress: ileed.Progress) -> None:
        if progress.step >= 30:
            raise KeyboardInterrupt

    settings = {"seed": 0, "device": "cuda", "checkpoint": tmp_path / "checkpoint", "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        method.fit(data, progress=stop, **settings)
    resumed, whole = method.fit(data, **settings), method.fit(data, seed=0, device="cuda")
    for name, value in whole.joint.state_dict().items():
        assert torch.equal(value, resumed.joint.state_dict()[name]), name


@pytest.mark.parametrize("entries", [50, 100_000])
def test_a_recorded_step_reads_indices_drawn_for_it_and_adds_up_in_the_same_order_every_time(entries):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(6, entries, generator=generator).cuda().requires_grad_()
    weight = torch.randn(6, 500, generator=generator).cuda()
    index = torch.zeros(500, dtype=torch.long, device="cuda")
    gradient = torch.zeros_like(table)

    def step() -> None:
        (Pick.drawn(index, entries)(table) * weight).sum().backward()
        gradient.copy_(table.grad)
        table.grad = None

    replay = record_cuda_graph(step)
    drawn = torch.randint(entries, (500,), generator=generator)
    index.copy_(drawn)
    replay()
    once = gradient.clone()
    replay()
    assert torch.equal(once, gradient)
    expected = torch.zeros(6, entries).index_add_(1, drawn, weight.cpu())
    torch.testing.assert_close(once.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_a_recorded_step_leaves_its_state_as_it_was_and_draws_again_at_every_replay():
    generator = torch.Generator(device="cuda").manual_seed(0)
    total = torch.zeros(4, device="cuda")

    def step() -> torch.Tensor:
        drawn = torch.rand(4, device="cuda", generator=generator)
        total.add_(drawn)
        return drawn

    replay = record_cuda_graph(step, state=[total], generators=[generator])
    assert not total.any()
    first = replay().clone()
    second = replay().clone()
    assert not torch.equal(first, second)
    torch.testing.assert_close(total, first + second)


def test_batches_of_people_give_the_same_bits_twice_and_the_same_costs_as_a_cpu(monkeypatch):
    monkeypatch.setattr("ileed.data.rules.MANY_DEMONSTRATORS", 3)
    monkeypatch.setattr("ileed.fitting.batches._COUNTS_AT_ONCE", 1000)
    data, method = demonstrations(), METHODS["embedded"]
    once, again, on_cpu = (method.fit(data, seed=0, device=device) for device in ("cuda", "cuda", "cpu"))
    assert torch.equal(once.joint.expertise.skill, again.joint.expertise.skill)
    np.testing.assert_allclose(once.restarts.nats_per_action, on_cpu.restarts.nats_per_action, atol=1e-4)


def test_torchs_kernel_of_a_cell_on_a_gpu_is_the_formula_on_a_cpu():
    generator = torch.Generator().manual_seed(0)
    entered, recalled = (torch.randn(7, 12, generator=generator, dtype=torch.float64) for _ in range(2))
    cell, to_hidden, to_cell = (torch.randn(7, 3, generator=generator, dtype=torch.float64) for _ in range(3))

    def both(device):
        given = [each.to(device) for each in (entered, recalled, cell, to_hidden, to_cell)]
        after = _lstm_cell(*given[:3])
        return [each.cpu() for each in (*after, *_lstm_cell_gradient(*given[3:], given[2], *after[1:]))]

    torch.testing.assert_close(both("cuda"), both("cpu"), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("members", "observations"), [(3, 500), (2_000, 500)])
def test_products_summed_over_observations_are_the_matrix_product(members, observations):
    """In double precision; few members are multiplied one by one, many by a product of matrices."""
    generator = torch.Generator("cuda").manual_seed(0)
    rows, columns = (
        torch.randn(members, 4, observations, generator=generator, dtype=torch.float64, device="cuda") for _ in range(2)
    )
    torch.testing.assert_close(_products(rows, columns), rows @ columns.mT, rtol=0, atol=1e-11)
