"""Optimisation: members do not feel each other, the budget is spent exactly, and the same seed gives the same bits."""

from __future__ import annotations

import pickle
from concurrent.futures import Executor, Future
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import (
    cost_and_gradients,
    demonstrations,
    double,
    follows,
    joint_of,
    parts_for,
    prepared_for,
    raw_batch,
    world,
)
from torch import nn

import ileed
from ileed import (
    CategoricalMLP,
    Constant,
    DemonstrationError,
    Demonstrations,
    Embedded,
    Ileed,
    LatentDynamics,
    MixtureLSTM,
    MixtureMLP,
    OneVersusRest,
    Outcome,
    Perfect,
    RunError,
    SettingsError,
    Skills,
    UniformMixture,
    bc,
)
from ileed.fitting import Adam, History, OptimiserSettings, Sampler, optimise
from ileed.model.joint import Joint
from ileed.parallel import WorkerLostError

SMALL = {"policy": CategoricalMLP(hidden=(4,)), "expertise": Embedded(hidden=(3,))}

# Two ways of adding the same float32 numbers differ by about 1e-7 a step; a few dozen small steps keep that below 1e-5.
REORDERED = {"rtol": 0, "atol": 1e-5}
EXACT = {"rtol": 1e-9, "atol": 1e-11}  # the same sums in float64


def optimised(data, restarts=(0, 1, 2), *, parts=None, seed=0, weights=None, **how):
    """An optimisation of these restarts alone."""
    parts = parts or parts_for(data, expertise=Embedded(hidden=(3,)))
    prepared = prepared_for(data, parts, members=len(restarts), seed=seed, weights=weights, **how)
    return optimise(joint_of(parts, prepared.sizes, restarts, seed=seed), prepared, OptimiserSettings(**how))


def fit(data, *, seed=0, weights=None, progress=None, checkpoint=None, checkpoint_seconds=0.0, **how):
    method = Ileed(
        **({"restarts": 3, "steps": 20, "folds": 0} | ({} if "policy" in how or not data.discrete else SMALL) | how)
    )
    return method.fit(
        data,
        seed=seed,
        device="cpu",
        weights=None if weights is None else np.asarray(weights),
        progress=progress,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
    )


def assert_same_bits(one, other) -> None:
    """The same weights, costs and curves, to the last bit."""
    for name, value in one.joint.state_dict().items():
        assert torch.equal(value, other.joint.state_dict()[name]), name
    assert one.restarts.chosen == other.restarts.chosen
    np.testing.assert_array_equal(one.restarts.nats_per_action, other.restarts.nats_per_action)
    np.testing.assert_array_equal(one.history.step, other.history.step)
    np.testing.assert_array_equal(one.history.nats_per_action, other.history.nats_per_action)
    assert (one.history.held_out is None) == (other.history.held_out is None)
    if one.history.held_out is not None:
        np.testing.assert_array_equal(one.history.held_out, other.history.held_out)


# --- members


@pytest.mark.parametrize("clip", [None, 0.05], ids=["free", "clipped"])
@pytest.mark.parametrize("batch_size", [None, 8], ids=["whole", "mini-batches"])
@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_a_restart_does_not_depend_on_its_neighbours(discrete, batch_size, clip):
    data = world(discrete=discrete)
    how = {"steps": 30, "batch_size": batch_size, "clip": clip, "learning_rate": 1e-2}
    among, alone = optimised(data, (0, 1, 2, 3), **how), optimised(data, (2,), **how)
    np.testing.assert_allclose(among.nats_per_action[2], alone.nats_per_action[0], **REORDERED)
    np.testing.assert_allclose(among.history.nats_per_action[:, 2], alone.history.nats_per_action[:, 0], **REORDERED)
    for name, parameter in among.joint.named_parameters():
        torch.testing.assert_close(parameter[2], alone.joint.get_parameter(name)[0], rtol=0, atol=1e-4)


def test_a_restart_that_breaks_does_not_break_its_neighbours():
    """With per-member clipping: a shared norm would spread the first member's NaN to all."""
    data = world()
    parts = parts_for(data)
    prepared = prepared_for(data, parts, members=3, steps=5, clip=0.1)
    joint = joint_of(parts, prepared.sizes, (0, 1, 2))
    with torch.no_grad():
        next(joint.parameters())[0] = torch.nan
    result = optimise(joint, prepared, OptimiserSettings(steps=5, clip=0.1))
    healthy = optimised(data, (1, 2), parts=parts, steps=5, clip=0.1)
    assert result.nats_per_action[0] == np.inf
    assert result.chosen != 0
    np.testing.assert_allclose(result.nats_per_action[1:], healthy.nats_per_action, **REORDERED)


def test_clipping_bounds_the_step_of_every_member_and_leaves_small_gradients_alone():
    data = world()
    unbounded, loose = optimised(data, steps=5), optimised(data, steps=5, clip=1e6)
    np.testing.assert_array_equal(unbounded.nats_per_action, loose.nats_per_action)
    tight = optimised(data, steps=5, clip=1e-9)
    assert (tight.nats_per_action > unbounded.nats_per_action).all()  # Adam's own epsilon, 1e-8, then outweighs it


@pytest.mark.parametrize("batch_size", [None, 8], ids=["whole", "mini-batches"])
def test_adding_restart_21_does_not_change_restart_3(batch_size):
    data = world()
    twenty, more = fit(data, restarts=20, batch_size=batch_size), fit(data, restarts=21, batch_size=batch_size)
    np.testing.assert_allclose(more.restarts.nats_per_action[:20], twenty.restarts.nats_per_action, **REORDERED)
    np.testing.assert_allclose(more.history.nats_per_action[:, 3], twenty.history.nats_per_action[:, 3], **REORDERED)


def test_restarts_start_from_different_places_and_the_least_cost_is_chosen():
    fitted = fit(world(), restarts=8)
    costs = fitted.restarts.nats_per_action
    assert len(set(costs.tolist())) == 8
    assert fitted.restarts.chosen == costs.argmin()
    assert fitted.nats_per_action == costs.min()


# --- what is optimised


def test_behaviour_cloning_is_a_plain_classifier_trained_on_every_step():
    """Against torch's own layers, cross entropy and Adam on the raw steps, from the same initial weights."""
    data = world([20, 20, 20])
    parts = parts_for(data, UniformMixture(), Perfect())
    prepared = prepared_for(data, parts, members=1, steps=40, learning_rate=1e-2)
    joint = joint_of(parts, prepared.sizes, (0,))
    first, second = joint.policy.body.layers
    plain = nn.Sequential(nn.Linear(*first.weight.shape[:0:-1]), nn.ReLU(), nn.Linear(*second.weight.shape[:0:-1]))
    for ours, theirs in ((first, plain[0]), (second, plain[2])):
        theirs.load_state_dict({"weight": ours.weight[0], "bias": ours.bias[0, :, 0]})
    raw = raw_batch(data, prepared.sizes)
    inputs, targets = raw.observations.T.float(), raw.action
    adam = torch.optim.Adam(plain.parameters(), lr=1e-2)
    for _ in range(40):
        adam.zero_grad()
        nn.functional.cross_entropy(plain(inputs), targets).backward()
        adam.step()
    result = optimise(joint, prepared, OptimiserSettings(steps=40, learning_rate=1e-2))
    expected = nn.functional.cross_entropy(plain(inputs), targets).item()
    np.testing.assert_allclose(result.nats_per_action, [expected], **REORDERED)


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_behaviour_cloning_is_ileed_with_perfect_demonstrators(discrete):
    data = world(discrete=discrete)
    policy = CategoricalMLP(hidden=(4,)) if discrete else MixtureMLP(hidden=(4,), modes=2)
    cloned = bc(policy=policy, restarts=2, steps=10).fit(data, seed=3, device="cpu")
    perfect = fit(data, seed=3, policy=policy, expertise=Perfect(), restarts=2, steps=10)
    assert_same_bits(cloned, perfect)


@pytest.mark.parametrize("batch_size", [None, 16], ids=["whole", "mini-batches"])
def test_an_optimisation_lowers_the_cost(batch_size):
    data = follows([0.95, 0.6], steps=60, actions=3)
    fitted = fit(data, steps=150, batch_size=batch_size, learning_rate=1e-2)
    first, last = fitted.history.nats_per_action[0], fitted.restarts.nats_per_action
    assert (last < first - 0.05).all()


def test_w_learns_at_its_own_rate():
    """Adam's first step is the learning rate itself in every coordinate that has a gradient."""
    data = world()
    parts = parts_for(data, expertise=Constant())
    how = {"steps": 1, "learning_rate": 1e-3, "skill_learning_rate": 0.1}
    prepared = prepared_for(data, parts, members=2, **how)
    joint = joint_of(parts, prepared.sizes)
    before = {name: parameter.detach().clone() for name, parameter in joint.named_parameters()}
    optimise(joint, prepared, OptimiserSettings(**how))
    for name, parameter in joint.named_parameters():
        moved = (parameter.detach() - before[name]).abs().max().item()
        assert moved == pytest.approx(0.1 if name.endswith("skill") else 1e-3, rel=1e-2), name


def torch_without_the_kernel(monkeypatch):
    monkeypatch.delattr(torch, "_fused_adam_")


def torch_with_another_signature(monkeypatch):
    def kernel(parameters, gradients, states, *, lr): ...

    monkeypatch.setattr(torch, "_fused_adam_", kernel)


def torch_with_another_meaning(monkeypatch):
    def kernel(parameters, *others, **options): ...  # accepts everything, and moves nothing

    monkeypatch.setattr(torch, "_fused_adam_", kernel)


@pytest.mark.parametrize(
    "torch_as_it_may_be",
    [lambda monkeypatch: None, torch_without_the_kernel, torch_with_another_signature, torch_with_another_meaning],
    ids=["this torch", "no kernel", "another signature", "another meaning"],
)
def test_our_adam_moves_parameters_as_torchs_does(torch_as_it_may_be, monkeypatch):
    """Two groups with rates of their own; the second one's only parameter never has a gradient, as under `Perfect`."""
    torch_as_it_may_be(monkeypatch)
    for idle in (False, True):
        generator = torch.Generator().manual_seed(0)
        start = [torch.randn(size, generator=generator) for size in ((2, 3), (4,), (5,))]
        ours, theirs = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
        adam = Adam([(ours[:2], 1e-2), (ours[2:], 1e-1)])
        plain = torch.optim.Adam([{"params": theirs[:2], "lr": 1e-2}, {"params": theirs[2:], "lr": 1e-1}])
        for _ in range(20):
            for one, other in list(zip(ours, theirs, strict=True))[: 2 if idle else 3]:
                gradient = torch.randn(one.shape, generator=generator)
                one.grad, other.grad = gradient, gradient.clone()
            adam.step()
            plain.step()
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)  # float32, fused against unfused


@pytest.mark.parametrize("alter", [lambda monkeypatch: None, torch_without_the_kernel], ids=["kernel", "no kernel"])
def test_with_decay_our_adam_follows_torchs_cosine_schedule(alter, monkeypatch):
    alter(monkeypatch)
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(size, generator=generator) for size in ((2, 3), (5,))]
    ours, theirs = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    adam = Adam([(ours[:1], 1e-2), (ours[1:], 1e-1)], decay_steps=20)
    plain = torch.optim.Adam([{"params": theirs[:1], "lr": 1e-2}, {"params": theirs[1:], "lr": 1e-1}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(plain, 20)
    for _ in range(20):
        for one, other in zip(ours, theirs, strict=True):
            gradient = torch.randn(one.shape, generator=generator)
            one.grad, other.grad = gradient, gradient.clone()
        adam.step()
        plain.step()
        schedule.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)  # float32, fused against unfused


def test_the_kernel_of_this_torch_is_used(monkeypatch):
    """Without it a fit takes longer and ends with other bits, so its loss should not go unnoticed."""
    used = []
    kernel = torch._fused_adam_
    monkeypatch.setattr(torch, "_fused_adam_", lambda *lists, **rest: used.append(lists[0]) or kernel(*lists, **rest))
    parameter = nn.Parameter(torch.ones(2))
    adam = Adam([([parameter], 1e-2)])
    parameter.grad = torch.ones(2)
    adam.step()
    assert used[-1][0] is parameter


def test_a_fit_without_the_kernel_is_the_same_but_for_rounding(monkeypatch):
    """Rounding in 32 bits, grown over forty steps."""
    data, method = world(), Ileed(policy=CategoricalMLP(hidden=(3,)), restarts=2, steps=40)
    fused = method.fit(data, seed=0, device="cpu")
    monkeypatch.delattr(torch, "_fused_adam_")
    plain = method.fit(data, seed=0, device="cpu")
    np.testing.assert_allclose(plain.restarts.nats_per_action, fused.restarts.nats_per_action, atol=1e-5)
    assert plain.expertise.by_demonstrator() == pytest.approx(fused.expertise.by_demonstrator(), abs=1e-4)


# --- chance


def test_the_same_seed_gives_the_same_bits():
    for how in ({}, {"batch_size": 8}, {"held_out": 0.5}):
        assert_same_bits(fit(world(), seed=5, **how), fit(world(), seed=5, **how))


def test_another_seed_gives_another_fit():
    one, other = fit(world(), seed=0), fit(world(), seed=1)
    assert not np.isin(one.restarts.nats_per_action, other.restarts.nats_per_action).any()


@pytest.mark.parametrize("how", [{}, {"batch_size": 8, "held_out": 0.3}], ids=["whole", "mini-batches"])
def test_a_fit_leaves_global_generators_and_threads_as_they_were(how):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 (to watch it)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    fit(world(), **how)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)


def test_threads_are_restored_also_when_a_fit_is_interrupted():
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(Stop):
            fit(world(), progress=stop_at(3))
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)


# --- batches and the budget


def numbered(lengths=(10, 11, 10)) -> Demonstrations:
    """Every step sees its own number, so that a batch tells which steps are in it."""
    steps = sum(lengths)
    return Demonstrations(
        observations=np.arange(float(steps))[:, None],
        actions=np.arange(steps) % 2,
        demonstrator=np.repeat(np.arange(len(lengths)), lengths),
        episode=np.repeat(np.arange(len(lengths)), lengths),
    )


@pytest.mark.parametrize("batch_size", [1, 7, 10, 30])
def test_mini_batches_visit_every_step_exactly_once_an_epoch(batch_size):
    data = numbered()
    sampler = prepared_for(data, parts_for(data), members=1, batch_size=batch_size).sampler
    visited = []
    for step in range(3 * len(data) // batch_size):
        sampler.load(step)
        batch = sampler.batch()
        assert batch.observations.shape[1] == batch_size
        visited += batch.observations[0].long().tolist()
    epochs = [visited[start : start + len(data)] for start in range(0, len(visited), len(data))]
    for epoch in epochs[: len(visited) // len(data)]:
        assert sorted(epoch) == list(range(len(data)))
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs), "each epoch has an order of its own"


def test_a_mini_batch_depends_on_its_number_alone():
    """So that a resumed optimisation draws what the uninterrupted one would have drawn."""
    data = numbered()
    one, other = (prepared_for(data, parts_for(data), members=1, batch_size=7).sampler for _ in range(2))
    for step in range(11):
        one.load(step)
    other.load(10)
    assert torch.equal(one.batch().observations, other.batch().observations)


def test_a_step_of_no_weight_is_never_drawn():
    data = numbered()
    sampler = prepared_for(data, parts_for(data), members=1, batch_size=5, weights=[1.0, 0.0, 2.0]).sampler
    visited = set()
    for step in range(8):
        sampler.load(step)
        visited |= set(sampler.batch().observations[0].long().tolist())
    assert visited == {*range(10), *range(21, 31)}


@pytest.mark.parametrize("steps", [1, 2, 7, 200, 399, 401, 450])
def test_the_budget_is_spent_exactly(steps):
    data = world([3, 3])
    seen = []

    class Counted(Sampler):
        def __init__(self, sampler):
            self.sampler, self.epoch = sampler, sampler.epoch

        def load(self, step):
            seen.append(step)
            self.sampler.load(step)

        def batch(self):
            return self.sampler.batch()

        def everything(self, *, held_out):
            return self.sampler.everything(held_out=held_out)

    parts = parts_for(data)
    prepared = prepared_for(data, parts, members=1, steps=steps)
    told = []
    result = optimise(
        joint_of(parts, prepared.sizes, (0,)),
        replace(prepared, sampler=Counted(prepared.sampler)),
        OptimiserSettings(steps=steps),
        callback=told.append,
    )
    assert seen == list(range(steps))
    assert result.history.step[-1] == steps
    assert told[-1].step == told[-1].steps == steps
    assert [progress.step for progress in told] == result.history.step.tolist()
    assert len(result.history.step) < 400  # 200 records or a little more, however long the optimisation


def test_data_that_repeat_are_taken_whole_and_others_in_mini_batches():
    rows = np.arange(5000)
    columns = {"actions": rows % 2, "demonstrator": rows // 2500, "episode": rows // 50}
    repeating = Demonstrations(observations=(rows % 3)[:, None], **columns)
    distinct = Demonstrations(observations=rows[:, None], **columns)
    parts = parts_for(repeating)
    assert prepared_for(repeating, parts, members=1).sampler.batch().total_weight == 5000
    assert prepared_for(distinct, parts, members=1).sampler.batch().observations.shape[1] == 256
    assert prepared_for(repeating, parts, members=1, batch_size=64).sampler.batch().observations.shape[1] == 64


# --- episode weights


def repeated(data: Demonstrations, times: list[int]) -> Demonstrations:
    """The data with each episode written out that many times."""
    copies = [number for number, count in enumerate(times) for _ in range(count)]
    steps = [np.flatnonzero(data.episode == number) for number in copies]
    index = np.concatenate(steps)
    return Demonstrations(
        observations=data.observations[index],
        actions=data.actions[index],
        demonstrator=data.demonstrator[index],
        episode=np.repeat(np.arange(len(copies)), [len(part) for part in steps]),
        names=data.names,
        action_count=data.action_count,
        skills={name: column[index] for name, column in data.skills.items()},
    )


@settings(max_examples=10)
@given(data=demonstrations(people=st.just(2), optional=()), times=st.data())
def test_a_weight_counts_an_episode_that_many_times(data, times):
    """Likelihood and gradient by weights against the same episodes written out, weight 0 being left out."""
    counts = times.draw(st.lists(st.integers(0, 2), min_size=data.episode_count, max_size=data.episode_count))
    if not sum(counts):
        return
    parts = parts_for(data, expertise=Embedded(hidden=(3,)))
    weighted = prepared_for(data, parts, members=2, weights=counts)
    joint = joint_of(parts, weighted.sizes).double()
    written_out = raw_batch(data, weighted.sizes, step_weight=np.zeros(len(data)))  # the same inputs, also if constant
    steps = np.concatenate([np.flatnonzero(data.episode == k) for k in np.repeat(np.arange(len(counts)), counts)])
    counted = np.bincount(steps, minlength=len(data)).astype(float)
    expected = cost_and_gradients(joint, replace(written_out, weight=torch.tensor(counted)))
    for name, found in cost_and_gradients(joint, double(weighted.sampler.batch())).items():
        torch.testing.assert_close(found, expected[name], **EXACT)


@pytest.mark.parametrize("expertise", [Constant(), Embedded(hidden=(3,)), Skills("phase")], ids=repr)
@pytest.mark.parametrize("batch_size", [None, 1000], ids=["whole", "a batch of everything"])
def test_fitting_with_weights_is_fitting_the_episodes_written_out(expertise, batch_size):
    data = world(optional=["phase"])
    times = [2, 0, 1, 1, 3, 1]
    how = {"expertise": expertise, "batch_size": batch_size, "normalise": False, "steps": 25}
    weighted, written_out = fit(data, weights=times, **how), fit(repeated(data, times), **how)
    np.testing.assert_allclose(weighted.restarts.nats_per_action, written_out.restarts.nats_per_action, **REORDERED)


@pytest.mark.parametrize("batch_size", [None, 100], ids=["whole", "a batch of everything"])
def test_every_restart_may_have_weights_of_its_own(batch_size):
    data = world()
    weights = np.array([[1, 1, 1, 1, 1, 1], [2, 0, 1, 0, 3, 0], [0, 5, 0, 1, 1, 1]])
    together = optimised(data, (0, 1, 2), weights=weights, steps=20, batch_size=batch_size)
    for restart in range(3):
        alone = optimised(data, (restart,), weights=weights[restart], steps=20, batch_size=batch_size)
        np.testing.assert_allclose(together.nats_per_action[restart], alone.nats_per_action[0], **REORDERED)


def test_a_mini_batch_that_holds_nothing_for_a_restart_leaves_it_alone():
    """A bootstrap replicate weighs many episodes with zero, so small batches often hold none of its steps."""
    weights = np.array([[1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    result = optimised(world(), (0, 1), weights=weights, steps=20, batch_size=2)
    assert np.isfinite(result.nats_per_action).all()
    assert np.isfinite(result.history.nats_per_action[-1]).any()


@pytest.mark.parametrize(
    ("weights", "fragments"),
    [
        ([1.0, 1.0], ["(2,)", "6 episodes", "(3, 6)"]),
        (np.ones((2, 6)), ["(2, 6)", "(3, 6)"]),
        ([1, 1, 1, 1, 1, -1], ["not negative"]),
        ([1, 1, 1, 1, 1, np.nan], ["finite"]),
        (np.zeros(6), ["above zero"]),
        (np.array([[1] * 6, [0] * 6, [1] * 6]), ["above zero for every restart"]),
    ],
    ids=["too few", "for too few restarts", "negative", "NaN", "all zero", "one restart's all zero"],
)
def test_weights_that_mean_nothing_are_refused(weights, fragments):
    with pytest.raises(SettingsError) as refusal:
        fit(world(), weights=weights)
    for fragment in fragments:
        assert fragment in str(refusal.value)


# --- held-out episodes


@pytest.mark.parametrize("batch_size", [None, 8], ids=["whole", "mini-batches"])
def test_learned_from_and_held_out_steps_are_whole_episodes_and_together_everything(batch_size):
    data = numbered([4, 5, 6, 4, 5, 6, 4, 5])
    data = replace(data, demonstrator=data.episode % 2, names=("ann", "bob"))
    sampler = prepared_for(data, parts_for(data), members=1, batch_size=batch_size, held_out=0.4).sampler
    shares = []
    for held_out in (False, True):
        weight = np.zeros(len(data))
        for batch in sampler.everything(held_out=held_out):
            step = batch.observation_index(batch.observations)[0].long().numpy()
            np.add.at(weight, step, batch.weight.numpy())
        shares.append(weight)
    np.testing.assert_array_equal(shares[0] + shares[1], np.ones(len(data)))
    for number in range(data.episode_count):
        assert len(set(shares[1][data.episode == number])) == 1
    assert {data.demonstrator[step] for step in np.flatnonzero(shares[1])} == {0, 1}


@pytest.mark.parametrize("batch_size", [None, 8], ids=["whole", "mini-batches"])
def test_held_out_episodes_choose_among_restarts_and_among_their_steps(batch_size):
    """Few steps to learn from and a high rate: the held-out cost turns up again, and the turn is what is kept."""
    data = world()
    result = optimised(data, (0, 1, 2, 3), steps=60, held_out=0.5, learning_rate=5e-2, batch_size=batch_size)
    curve = result.history.held_out
    assert curve.shape == result.history.nats_per_action.shape
    assert (curve.min(axis=0) < curve[-1] - 1e-3).any(), "no curve turned up: this test would show nothing"
    np.testing.assert_allclose(result.nats_per_action, curve.min(axis=0), rtol=0, atol=1e-6)  # one float32 evaluation
    assert result.chosen == curve.min(axis=0).argmin()


def test_without_held_out_episodes_the_whole_data_choose():
    result = optimised(world(), steps=5)
    assert result.history.held_out is None
    parts = parts_for(world(), expertise=Embedded(hidden=(3,)))
    raw = raw_batch(world(), prepared_for(world(), parts, members=3).sizes)
    cost = cost_and_gradients(result.joint.double(), raw)["negative log-likelihood"]
    np.testing.assert_allclose(result.nats_per_action, cost.numpy(), **REORDERED)


def test_nothing_can_be_held_out_where_demonstrators_have_one_episode_each():
    with pytest.raises(DemonstrationError, match=r"no demonstrator has two episodes.*held_out=0"):
        fit(world([5, 5, 5]), held_out=0.5)


def test_a_restart_whose_every_weighted_episode_is_held_out_is_refused():
    """Otherwise it would optimise nothing, and be reported at the cost it started from."""
    weights = np.eye(6)[[0, 1, 2]]
    with pytest.raises(SettingsError, match="held"):
        fit(world(), weights=weights, held_out=0.9)


# --- checkpoints


class Stop(BaseException):
    """An interruption that nothing should catch, as KeyboardInterrupt is."""


def stop_at(step: int):
    def watch(progress):
        if progress.step >= step:
            raise Stop

    return watch


CLIMBS = {
    "whole": (world(), {"steps": 30}),
    "mini-batches": (world(), {"steps": 30, "batch_size": 8}),
    "held out": (world(), {"steps": 30, "held_out": 0.5, "learning_rate": 5e-2}),
    "held out in mini-batches": (world(), {"steps": 30, "held_out": 0.5, "batch_size": 8, "clip": 0.1}),
    "continuous": (world(discrete=False), {"steps": 30, "policy": MixtureMLP(hidden=(4,), modes=2)}),
    "latent dynamics": (world(), {"steps": 30, "dynamics": LatentDynamics(), "batch_size": 8}),
    "records of two steps": (world([3, 3]), {"steps": 401, "restarts": 1}),
}


@pytest.mark.parametrize(("data", "how"), CLIMBS.values(), ids=CLIMBS.keys())
def test_an_interrupted_fit_goes_on_to_the_same_bits(tmp_path, data, how):
    straight = fit(data, **how)
    file = tmp_path / "fit.safetensors"
    for stop in (10, 20):
        with pytest.raises(Stop):
            fit(data, **how, checkpoint=file, progress=stop_at(stop))
        assert file.exists()
    told = []
    resumed = fit(data, **how, checkpoint=file, checkpoint_seconds=3600.0, progress=told.append)
    assert told[0].step >= 18, "it started again instead of resuming"
    assert_same_bits(resumed, straight)
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "the checkpoint stays until the fit is saved"
    told = []
    assert_same_bits(fit(data, **how, checkpoint=file, progress=told.append), straight)
    assert told == [], "a fit that is done takes no step again"
    resumed.save(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_resumed_fit_removes_what_a_kill_left_of_a_checkpoint(tmp_path):
    """A process killed while it writes leaves its temporary folder; another file's is none of this fit's business."""
    for name in (".c.ileed-killed", ".other.ileed-writing"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "c").write_bytes(b"half of a checkpoint")
    fit(world(), checkpoint=tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.ileed-writing", "c"]


def test_a_save_that_fails_keeps_the_checkpoint(tmp_path):
    (tmp_path / "observation").write_text("taken")
    fitted = fit(world(), checkpoint=tmp_path / "c")
    with pytest.raises(RunError, match="not a run directory"):
        fitted.save(tmp_path / "observation")
    assert_same_bits(fit(world(), checkpoint=tmp_path / "c"), fitted)


def test_a_save_removes_no_checkpoint_of_another_fit(tmp_path):
    one = fit(world(), checkpoint=tmp_path / "c")
    (tmp_path / "c").unlink()
    other = fit(world(), seed=1, checkpoint=tmp_path / "c")
    one.save(tmp_path / "one")
    assert (tmp_path / "c").exists()
    other.save(tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def test_a_checkpoint_is_written_only_when_its_time_has_come(tmp_path):
    with pytest.raises(Stop):
        fit(world(), checkpoint=tmp_path / "c", checkpoint_seconds=3600.0, progress=stop_at(15))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changed",
    [{"seed": 1}, {"steps": 21}, {"learning_rate": 0.5}, {"weights": np.ones(6)}, {"data": world(seed=9)}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_checkpoint_of_another_fit_is_refused(tmp_path, changed):
    file = tmp_path / "fit.safetensors"
    with pytest.raises(Stop):
        fit(world(), checkpoint=file, progress=stop_at(10))
    content = file.read_bytes()
    arguments = {"data": world()} | changed
    with pytest.raises(RunError, match=r"other settings, data or seed.*remove it"):
        fit(arguments.pop("data"), checkpoint=file, **arguments)
    assert file.read_bytes() == content


def test_a_damaged_checkpoint_is_refused(tmp_path):
    file = tmp_path / "fit.safetensors"
    with pytest.raises(Stop):
        fit(world(), checkpoint=file, progress=stop_at(10))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(RunError, match=r"cannot be read.*remove it"):
        fit(world(), checkpoint=file)


# --- ends


def test_a_fit_that_diverges_says_so():
    with pytest.raises(SettingsError, match=r"every restart became non-finite: lower learning_rate, or set clip"):
        fit(world(), learning_rate=1e36, skill_learning_rate=1e36)


@pytest.mark.parametrize("member_block", [None, 1])
def test_a_fit_that_diverges_leaves_no_checkpoint(member_block, tmp_path):
    """It holds nothing to go on from, and would be in the way of the fit with a lower learning rate."""
    rates = {"learning_rate": 1e36, "skill_learning_rate": 1e36}
    with pytest.raises(SettingsError, match="every restart became non-finite"):
        fit(world(), **rates, member_block=member_block, checkpoint=tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_fit_that_diverges_after_a_good_start_keeps_the_start_where_episodes_are_held_out():
    fitted = fit(world(), steps=30, learning_rate=1e36, skill_learning_rate=1e36, held_out=0.5)
    assert np.isfinite(fitted.nats_per_action)


def test_the_outcome_distinguishes_a_converged_optimisation_from_an_unfinished_one():
    data = follows([0.95, 0.6], steps=60)
    assert fit(data, steps=30, learning_rate=1e-2).outcome is Outcome.STEPS_SPENT
    assert fit(data, steps=500, learning_rate=5e-2, expertise=Constant()).outcome is Outcome.CONVERGED


@pytest.mark.parametrize(
    ("settings", "fragments"),
    [
        ({"steps": 0}, ["steps is 0", "one or more"]),
        ({"batch_size": 0}, ["batch_size is 0", "or None"]),
        ({"member_block": 0}, ["member_block is 0", "all restarts at once"]),
        ({"held_out": 1.0}, ["held_out is 1.0", "share of the episodes"]),
        ({"held_out": -0.1}, ["held_out is -0.1"]),
        ({"learning_rate": 0.0}, ["learning_rate is 0.0", "above zero"]),
        ({"learning_rate": float("nan")}, ["learning_rate is nan", "above zero"]),
        ({"skill_learning_rate": float("inf")}, ["skill_learning_rate is inf", "above zero"]),
        ({"clip": -1.0}, ["clip is -1.0", "above zero"]),
    ],
    ids=lambda value: "",
)
def test_impossible_optimisations_are_refused(settings, fragments):
    for kind in (OptimiserSettings, Ileed):
        with pytest.raises(SettingsError) as refusal:
            kind(**settings)
        for fragment in fragments:
            assert fragment in str(refusal.value)


# --- latent dynamics


def by_hand(joint, data: Demonstrations) -> torch.Tensor:
    """Smooth-L1 distance of g(f(s), a) from f(s'), one transition after the other, in each member."""
    flat = data.observations.reshape(len(data), -1)
    seen = torch.tensor(flat[:, flat.max(axis=0) != flat.min(axis=0)].T, dtype=torch.float64)
    embedding = joint.expertise.body(seen)
    distances = []
    for step in range(len(data) - 1):
        if data.episode[step + 1] == data.episode[step]:
            done = torch.tensor(data.actions[step], dtype=torch.float64)
            if data.discrete:
                done = torch.eye(data.action_count, dtype=torch.float64)[data.actions[step]]
            given = torch.cat([embedding[:, :, step], done.expand(len(embedding), -1)], dim=1)[..., None]
            gap = (joint.dynamics.body(given)[..., 0] - embedding[:, :, step + 1]).abs()
            distances.append(torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean(1))
    return torch.stack(distances).mean(0)


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
@pytest.mark.parametrize("batch_size", [None, 8], ids=["whole", "mini-batches"])
def test_latent_dynamics_are_averaged_over_the_transitions_within_episodes(discrete, batch_size):
    data = world(discrete=discrete)
    parts = parts_for(data, expertise=Embedded(hidden=(3,)), dynamics=LatentDynamics(weight=2.5, hidden=(3,)))
    prepared = prepared_for(data, parts, members=2, batch_size=batch_size)
    joint = joint_of(parts, prepared.sizes).double()
    (batch,) = prepared.sampler.everything(held_out=False)
    objective = joint.objective(double(batch))
    expected = by_hand(joint, data)
    torch.testing.assert_close(objective.latent_dynamics, expected, **EXACT)
    torch.testing.assert_close(objective.total, objective.negative_log_likelihood + 2.5 * expected, **EXACT)


@pytest.mark.parametrize("how", [{}, {"batch_size": 8}, {"held_out": 0.3}], ids=["whole", "mini-batches", "held out"])
@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_a_fit_with_latent_dynamics_ends_with_finite_costs(discrete, how):
    fitted = fit(world(discrete=discrete), dynamics=LatentDynamics(), expertise=Embedded(hidden=(3,)), **how)
    assert np.isfinite(fitted.restarts.nats_per_action).all()


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_mini_batch_without_a_transition_does_not_break_latent_dynamics(batch_size):
    """An episode's last step leads nowhere, and a small batch may hold nothing else."""
    result = optimised(
        world(),
        parts=parts_for(world(), expertise=Embedded(hidden=(3,)), dynamics=LatentDynamics()),
        steps=30,
        batch_size=batch_size,
    )
    assert np.isfinite(result.nats_per_action).all()


def test_latent_dynamics_need_an_episode_of_two_steps():
    with pytest.raises(SettingsError, match="two steps or more"):
        fit(world([1, 1, 1]), dynamics=LatentDynamics())


# --- the mirror image


def test_mini_batches_are_turned_upright_by_the_mean_over_all_steps():
    """The first 4,096 steps, evaluated together, are all by the person who mostly does the opposite."""
    data = follows([0.3, 0.95], steps=6000, each=100)
    parts = parts_for(data, OneVersusRest(), Constant())
    how = {"steps": 1, "batch_size": 64, "learning_rate": 1e-9, "skill_learning_rate": 1e-9}
    prepared = prepared_for(data, parts, members=1, **how)
    joint = joint_of(parts, prepared.sizes, (0,))
    with torch.no_grad():
        joint.expertise.skill.copy_(torch.tensor([[0.3, 0.95]]).logit())
    result = optimise(joint, prepared, OptimiserSettings(**how))
    torch.testing.assert_close(result.joint.expertise.skill.sigmoid(), torch.tensor([[0.3, 0.95]]), rtol=0, atol=1e-5)


def test_five_steps_that_hardly_move_are_not_called_converged():
    fitted = fit(observing(400, seed=1), steps=5)
    assert fitted.outcome is Outcome.STEPS_SPENT


def test_a_fit_to_pure_chance_is_called_no_better_than_guessing():
    data = observing(4000, seed=2, skill=0.0)
    fitted = fit(data, policy=CategoricalMLP(hidden=()), expertise=Constant(), restarts=1, steps=400)
    assert fitted.outcome is Outcome.NO_BETTER_THAN_GUESSING
    assert "no better than guessing" in fitted.outcome.value


def test_a_converged_fit_is_flat_and_better_than_guessing():
    data = observing(4000, seed=3)
    how = {"policy": CategoricalMLP(hidden=(8,)), "expertise": Constant(), "learning_rate": 1e-2}
    fitted = fit(data, restarts=2, steps=1500, **how)
    assert fitted.outcome is Outcome.CONVERGED
    costs, step = fitted.history.nats_per_action[:, fitted.restarts.chosen], fitted.history.step
    assert costs[(step > 1200) & (step <= 1350)].mean() - costs[step > 1350].mean() < 1e-3
    assert fitted.nats_per_action < np.log(3)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_test_of_convergence_tells_a_falling_curve_from_a_flat_one_through_noise(noise):
    """Over 200 curves of either kind: a fall of 0.04 nats a tenth is never flat, a flat curve hardly ever falls."""
    step = np.arange(1, 201) * 10
    verdicts = {"flat": 0, "falling": 0}
    for seed in range(200):
        random = np.random.default_rng(seed).normal(0, noise, size=(200, 1))
        for kind, slope in (("flat", 0.0), ("falling", 0.04 / 200)):
            curve = 1.0 + 0.3 * np.exp(-step / 100) - slope * step
            found = History(step, curve[:, None] + random).outcome(0, guessing_nats=1.4)
            verdicts[kind] += found is Outcome.CONVERGED
    assert verdicts["flat"] >= 190
    assert verdicts["falling"] <= 10


def test_curve_bar_and_result_of_mini_batches_end_with_one_figure():
    data = observing(6000, seed=4)
    told = []
    method = Ileed(policy=CategoricalMLP(hidden=(8,)), expertise=Constant(), restarts=3, steps=1500, batch_size=64)
    fitted = replace(method, folds=0).fit(data, seed=0, progress=told.append)
    assert told[-1].nats_per_action == pytest.approx(fitted.nats_per_action, abs=1e-6)
    np.testing.assert_allclose(fitted.history.nats_per_action[-1], fitted.restarts.nats_per_action, atol=1e-6)
    before = fitted.history.nats_per_action[-2, fitted.restarts.chosen]
    assert before == pytest.approx(fitted.nats_per_action, abs=0.03)  # a running mean, not the cost of 64 steps


def observing(steps, *, seed, skill=0.8, actions=3):
    """Four people of one skill, who see continuous numbers of which the largest names the best action."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(steps, actions)).astype(np.float32)
    acted = np.where(rng.random(steps) < skill, seen.argmax(1), rng.integers(0, actions, size=steps))
    return Demonstrations(
        observations=seen,
        actions=acted,
        demonstrator=np.repeat(np.arange(4), steps // 4),
        episode=np.repeat(np.arange(steps // 10), 10),
        action_count=actions,
    )


# --- blocks of members by an executor

DEALT = Ileed(policy=CategoricalMLP(hidden=()), expertise=Constant(), restarts=3, steps=40, member_block=2, folds=2)


class Here(Executor):
    """Calls functions at once; loses the worker of the call with this number."""

    def __init__(self, lost: int = -1) -> None:
        self.lost, self.calls = lost, 0

    def submit(self, function, /, *args, **options):
        found: Future = Future()
        if self.calls == self.lost:
            found.set_exception(WorkerLostError("process 7 was killed"))
        else:
            found.set_result(function(*pickle.loads(pickle.dumps(args)), **options))
        self.calls += 1
        return found


DEALT_DATA = {
    "whole batches": (ileed.shipped, {}),
    "mini-batches": (lambda: observing(600, seed=0), {"batch_size": 64}),
    "windows": (
        lambda: world(discrete=False, floating=True),
        {"policy": MixtureLSTM(hidden=(3,), length=3, modes=2), "batch_size": 8, "steps": 10},
    ),
}


@pytest.mark.parametrize(("data", "how"), DEALT_DATA.values(), ids=DEALT_DATA)
def test_blocks_that_an_executor_computes_are_those_of_one_process_to_the_bit(data, how):
    data, method, executor = data(), replace(DEALT, **how), Here()
    alone = method.fit(data, seed=0)
    dealt = method.fit(data, seed=0, executor=executor)
    assert executor.calls > 2, "restarts and folds are dealt out"
    for one, other in zip(alone.ensemble.joint.parameters(), dealt.ensemble.joint.parameters(), strict=True):
        assert torch.equal(one, other)
    assert alone.expertise.by_demonstrator() == dealt.expertise.by_demonstrator()


def test_a_folder_is_not_sent_to_workers(tmp_path):
    ileed.write(observing(6_000, seed=0), tmp_path / "people", format="parquet-folder")
    with pytest.raises(SettingsError, match=r"workers cannot read .*: leave the executor out"):
        replace(DEALT, steps=5).fit(ileed.read(tmp_path / "people"), seed=0, executor=Here())


def test_after_a_lost_worker_the_same_fit_goes_on_with_the_blocks_that_were_finished(tmp_path, monkeypatch):
    data, method = ileed.shipped(), replace(DEALT, folds=0)
    with pytest.raises(WorkerLostError):
        method.fit(data, seed=0, checkpoint=tmp_path / "checkpoint", executor=Here(lost=1))
    steps, objective = [], Joint.objective
    monkeypatch.setattr(Joint, "objective", lambda joint, batch: steps.append(batch) or objective(joint, batch))
    fitted = method.fit(data, seed=0, checkpoint=tmp_path / "checkpoint", executor=Here())
    assert len(steps) == method.steps, "one block of two was finished"
    assert fitted.nats_per_action == method.fit(data, seed=0).nats_per_action
