"""Policies with a memory: torch's own LSTM says what they compute, and windows show them every step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ileed
from ileed import Constant, DemonstrationError, Demonstrations, Ileed, MixtureLSTM, Skills, VarianceScaling
from ileed._torch import stream
from ileed.envs.simulation import demonstrate
from ileed.fitting import OptimiserSettings, prepare
from ileed.model.distributions import mixture, mixture_parts
from ileed.model.nets import LSTM, Recurrence
from ileed_lab.reach import ReachExpert, ReachTask

CPU = torch.device("cpu")


def operators(lengths=(7, 12, 3, 10, 9, 5), *, people=3, seed=0, **columns) -> Demonstrations:
    """Episodes of given lengths in turn by each of a few people, whose actions follow what they saw two steps ago."""
    generator = np.random.default_rng(seed)
    steps = sum(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    observations = generator.normal(size=(steps, 4))
    actions = np.tanh(np.roll(observations[:, :2], 2, axis=0) + 0.1 * generator.normal(size=(steps, 2)))
    return Demonstrations(
        observations=observations, actions=actions, demonstrator=episode % people, episode=episode, **columns
    )


def recurrent(**settings) -> Ileed:
    policy = settings.pop("policy", MixtureLSTM(hidden=(6, 5), length=4, modes=2))
    chosen = {"expertise": Constant(), "restarts": 2, "steps": 12, "batch_size": 8} | settings
    return Ileed(policy=policy, **chosen)


def windows(data: Demonstrations, *, length=4, members=1, held_out=0.0, batch_size=8, weights=None):
    settings = OptimiserSettings(batch_size=batch_size, held_out=held_out)
    parts = recurrent(policy=MixtureLSTM(length=length)).parts(data)
    return prepare(data, parts, settings, seed=0, device=CPU, members=members, weights=weights).sampler


# --- the layer


@given(inputs=st.integers(1, 4), units=st.integers(1, 4), length=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_member_is_torchs_own_lstm_of_the_same_weights(inputs, units, length, seed):
    """In float64, where the two can differ by the order of sums alone."""
    layer = LSTM(inputs, units, generators=[stream(seed, k) for k in range(3)]).double()
    generator = torch.Generator().manual_seed(seed)
    seen = torch.randn(inputs, length, 2, generator=generator, dtype=torch.float64)
    walked = layer(seen.flatten(1), length)
    hidden = cell = walked.new_zeros(3, units, 2)
    for time in range(length):
        hidden, cell = layer.step(seen[:, time], (hidden, cell))
    order = [0, 1, 3, 2]  # torch's gates are input, forget, candidate, output
    for k in range(3):
        plain = torch.nn.LSTM(inputs, units).double()
        with torch.no_grad():
            for name, ours in (("weight_ih_l0", layer.seen), ("weight_hh_l0", layer.remembered)):
                getattr(plain, name).copy_(ours[k].view(4, units, -1)[order].flatten(0, 1))
            plain.bias_ih_l0.copy_(layer.bias[k].view(4, units)[order].flatten())
            plain.bias_hh_l0.zero_()
        theirs, (last, last_cell) = plain(seen.permute(1, 2, 0))
        torch.testing.assert_close(walked[k].view(units, length, 2), theirs.permute(2, 0, 1), rtol=0, atol=1e-12)
        torch.testing.assert_close(hidden[k].T, last[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(cell[k].T, last_cell[0], rtol=0, atol=1e-12)


@given(
    sizes=st.sampled_from([(4, 0), (4, 1), (4, 2), (4, 4), (1, 0), (1, 1)]),
    length=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_rows_on_a_cpu_and_all_members_at_once_on_a_gpu_give_the_same(sizes, length, seed):
    """In float64, where the two can differ by the order of sums alone; inputs of all members, or of each group."""
    members, groups = sizes
    layer = LSTM(3, 2, generators=[stream(seed, k) for k in range(members)]).double()
    shape = (groups, 3, 5 * length) if groups else (3, 5 * length)
    seen = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()
    variables = [seen, *layer.parameters()]
    on_gpu = Recurrence.apply(seen, layer.seen, layer.bias, layer.remembered, length)
    found = [(out, torch.autograd.grad(out.sin().sum(), variables)) for out in (layer(seen, length), on_gpu)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 4])
def test_gradients_are_those_of_finite_differences(length):
    layer = LSTM(2, 3, generators=[stream(0), stream(1)]).double()
    generator = torch.Generator().manual_seed(0)
    seen = torch.randn(2, 2 * length, generator=generator, dtype=torch.float64)
    parameters = tuple(parameter.detach().requires_grad_() for parameter in layer.parameters())

    def outputs(inputs, *weights):
        named = dict(zip(dict(layer.named_parameters()), weights, strict=True))
        return torch.func.functional_call(layer, named, (inputs, length))

    assert torch.autograd.gradcheck(outputs, (seen.requires_grad_(), *parameters), atol=1e-6)


def test_steps_one_after_the_other_are_the_window():
    layer = LSTM(3, 4, generators=[stream(0)]).double()
    seen = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = layer(seen.flatten(1), 6).unflatten(-1, (6, 2))
    state = whole.new_zeros(1, 4, 2), whole.new_zeros(1, 4, 2)
    for time in range(6):
        state = layer.step(seen[:, time], state)
        torch.testing.assert_close(state[0], whole[:, :, time], rtol=0, atol=1e-12)


# --- windows


@given(lengths=st.lists(st.integers(1, 11), min_size=3, max_size=6), length=st.integers(2, 5))
def test_scoring_counts_every_step_once_and_windows_begin_where_a_policy_would_forget(lengths, length):
    data = operators(tuple(lengths))
    sampler = windows(data, length=length)
    counted = []
    for batch in sampler.everything(held_out=False):
        inside = batch.weight[0] > 0
        counted.append(batch.action[0][inside])
    found = torch.cat(counted).numpy()
    assert len(found) == len(data)
    expected = data.actions.astype(np.float32)
    assert np.array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])


def test_a_window_is_steps_in_a_row_of_one_episode():
    data = operators((9, 3, 6))
    sampler = windows(data, length=4)
    row = {tuple(action): step for step, action in enumerate(data.actions.astype(np.float32).tolist())}
    for step in range(5):
        sampler.load(step)
        batch = sampler.batch()
        steps = np.array([row[tuple(action)] for action in batch.action[0].tolist()]).reshape(4, -1)
        inside = (batch.weight[0] > 0).numpy().reshape(4, -1)
        for window, real in zip(steps.T, inside.T, strict=True):
            expected = np.arange(window[0], window[0] + 4)
            stays = np.array([s < len(data) and data.episode[s] == data.episode[window[0]] for s in expected])
            assert np.array_equal(real, stays)
            assert np.array_equal(window[real], expected[real])


def test_every_step_begins_a_window_once_an_epoch():
    data = operators((8, 8, 8))
    sampler = windows(data, length=3, batch_size=8)
    begun = []
    for step in range(3):
        sampler.load(step)
        begun += sampler.batch().action[0, :8].tolist()
    assert sorted(begun) == sorted(data.actions.astype(np.float32).tolist())


def test_held_out_episodes_are_scored_and_never_learned_from():
    data = operators((6, 6, 6, 6, 6, 6))
    sampler = windows(data, held_out=0.5)
    learned = {tuple(a) for b in sampler.everything(held_out=False) for a in b.action[0][b.weight[0] > 0].tolist()}
    scored = {tuple(a) for b in sampler.everything(held_out=True) for a in b.action[0][b.weight[0] > 0].tolist()}
    assert len(learned) == len(scored) == 18
    assert not learned & scored


# --- fits


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    one, two, other = (recurrent().fit(operators(), seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.restarts.nats_per_action, two.restarts.nats_per_action)
    assert not np.array_equal(one.restarts.nats_per_action, other.restarts.nats_per_action)


def test_an_interrupted_fit_resumes_to_the_same_bits(tmp_path):
    method = recurrent(steps=70)  # windows are drawn ahead in blocks: stop within one, and go on past its end

    def stop(progress):
        if progress.step >= 30:
            raise KeyboardInterrupt

    settings = {"seed": 0, "checkpoint": tmp_path / "checkpoint", "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        method.fit(operators(), progress=stop, **settings)
    resumed, whole = method.fit(operators(), **settings), method.fit(operators(), seed=0)
    for name, value in whole.joint.state_dict().items():
        assert torch.equal(value, resumed.joint.state_dict()[name]), name


def test_a_shorter_fit_is_the_beginning_of_a_longer_one():
    """So that a fit of fewer steps is a checkpoint of the whole; its last record is the cost of all the data."""
    short, long = (recurrent(steps=steps).fit(operators(), seed=3, device="cpu") for steps in (70, 100))
    np.testing.assert_array_equal(short.history.nats_per_action[:-1], long.history.nats_per_action[:69])


def test_data_sets_are_fitted_side_by_side_as_they_would_be_alone():
    """But for rounding: other shapes of the same products may be summed in another order."""
    data = operators()
    datasets = [data, data.by("0", "2"), replace(operators(seed=3), actions=operators(seed=3).actions * 5 + 2)]
    method = recurrent(held_out=0.3)
    together = method.fit_each(datasets, seeds=[0, 1, 2], device="cpu")
    for found, each, seed in zip(together, datasets, (0, 1, 2), strict=True):
        alone = method.fit(each, seed=seed)
        np.testing.assert_allclose(found.result.nats_per_action, alone.restarts.nats_per_action, rtol=1e-4)


def test_expertise_by_given_skills_can_have_a_recurrent_policy():
    phase = np.where(np.arange(46) % 2 == 0, "near", "far")
    fitted = recurrent(expertise=Skills("phase")).fit(operators(skills={"phase": phase}), seed=0)
    assert set(fitted.expertise.by_skill()["0"]) == {"near", "far"}


def test_a_memory_predicts_what_happened_two_steps_ago_and_no_memory_cannot():
    data = operators((12,) * 30, people=2)
    settings = {"restarts": 1, "steps": 500, "batch_size": 40, "learning_rate": 1e-2, "expertise": ileed.Perfect()}
    remembering = recurrent(policy=MixtureLSTM(hidden=(16,), length=6, modes=1), **settings).fit(data, seed=0)
    forgetful = recurrent(policy=ileed.MixtureMLP(hidden=(16,), modes=1), **settings).fit(data, seed=0)
    assert remembering.nats_per_action < forgetful.nats_per_action - 0.3


# --- acting


@pytest.fixture(scope="module")
def fitted():
    policy = MixtureLSTM(hidden=(6, 5), length=4, modes=2, low_noise=False)
    return recurrent(policy=policy, ensemble=2).fit(operators(), seed=0)


def test_acting_step_by_step_is_the_walk_that_was_learned(fitted):
    """After `length` steps the memory is empty again, as at the start of the next window."""
    seen = operators().observations[:8]
    fitted.policy.reset()
    acted = np.concatenate([fitted.policy.act(row[None]) for row in seen])
    net, normaliser = fitted.joint.policy, fitted.normaliser
    with torch.no_grad():
        for first in (0, 4):
            walked = net(normaliser(torch.tensor(seen[first : first + 4])))
            means, weights = walked.component_distribution.mean, walked.mixture_distribution.probs
            for moment in range(4):
                heaviest = weights[:, moment].flatten().argmax()
                expected = means[:, moment].flatten(0, 1)[heaviest]
                np.testing.assert_allclose(acted[first + moment], expected, atol=1e-5)  # float32


def test_rows_are_episodes_of_their_own(fitted):
    seen = operators().observations
    together, alone = [], []
    state, lone = None, None
    for step in range(6):
        starts = np.array([step == 0, step == 0 or step == 3])
        rows = np.stack([seen[step], seen[step + 9]])
        actions, state = fitted.policy.predict(rows, state, starts)
        together.append(actions[1])
        action, lone = fitted.policy.predict(rows[1], None if starts[1] else lone, starts[1:])
        alone.append(action)
    np.testing.assert_allclose(together, alone, atol=1e-6)  # float32


def test_reset_forgets(fitted):
    seen = operators().observations[:2]
    fitted.policy.reset()
    first = fitted.policy.act(seen)
    assert not np.array_equal(fitted.policy.act(seen), first)
    fitted.policy.reset()
    assert np.array_equal(fitted.policy.act(seen), first)


def test_asking_for_a_distribution_twice_gives_the_same_answer_and_changes_no_episode(fitted):
    """In `distribution` rows begin an episode, whatever `act` saw before; `act` is not affected."""
    seen = operators().observations[:3]
    fitted.policy.reset()
    acted = [fitted.policy.act(seen) for _ in range(3)]
    fitted.policy.reset()
    first, _ = fitted.policy.next_distribution(seen)
    for expected in acted:
        for _ in range(2):
            for one, other in zip(mixture_parts(fitted.policy.distribution(seen)), mixture_parts(first), strict=True):
                assert torch.equal(one, other)
        assert np.array_equal(fitted.policy.act(seen), expected)
    fitted.policy.reset()


def test_another_number_of_rows_in_the_middle_of_episodes_is_refused(fitted):
    fitted.policy.reset()
    fitted.policy.act(operators().observations[:3])
    with pytest.raises(DemonstrationError, match=r"2 observations.*state is of 3 episodes.*reset"):
        fitted.policy.act(operators().observations[:2])
    fitted.policy.reset()


def test_low_noise_acts_by_a_components_mean_drawn_by_its_weight():
    fitted = recurrent(policy=MixtureLSTM(hidden=(4,), length=4, modes=3)).fit(operators(), seed=0)
    seen = np.repeat(operators().observations[:1], 4000, axis=0)
    fitted.policy.reset(1)
    acted = fitted.policy.act(seen)
    fitted.policy.reset(1)
    mixture = fitted.policy.distribution(seen[:1])
    means, weights = mixture.component_distribution.mean[0], mixture.mixture_distribution.probs[0]
    nearest = np.abs(acted[:, None] - means.numpy()).sum(-1).argmin(1)
    np.testing.assert_allclose(acted, means.numpy()[nearest], atol=1e-6)
    share = np.bincount(nearest, minlength=3) / 4000
    np.testing.assert_allclose(share, weights, atol=0.04)  # five standard errors of a share of one half


def test_means_stay_within_the_actions_of_the_data():
    data = operators()
    fitted = recurrent().fit(data, seed=0)
    with torch.no_grad():
        fitted.joint.policy.body.last.weight.mul_(1e3)
    acted = fitted.policy.act(np.random.default_rng(0).normal(size=(50, 4)) * 100)
    assert (acted >= data.actions.min(0) - 1e-6).all()
    assert (acted <= data.actions.max(0) + 1e-6).all()


# --- dimensions without a spread


def gripping(share=1.0) -> Demonstrations:
    """Actions whose last dimension is at an end of its range in a share of the steps."""
    data = operators()
    generator = np.random.default_rng(0)
    shut = np.sign(generator.normal(size=len(data)))
    between = generator.random(len(data)) > share
    grip = np.where(between, generator.uniform(-0.8, 0.8, len(data)), shut)
    return replace(data, actions=np.column_stack([data.actions, grip]))


def test_a_gripper_is_found_in_the_data_and_left_unscaled():
    assert gripping().binary_dimensions == (2,)
    assert gripping(share=0.5).binary_dimensions == ()
    assert recurrent().fit(gripping(), seed=0).joint.parts.demonstrator.exempt == (2,)
    chosen = recurrent(demonstrator=VarianceScaling(exempt=())).fit(gripping(), seed=0)
    assert chosen.joint.parts.demonstrator == VarianceScaling(exempt=())


def test_a_dimension_that_is_not_there_cannot_be_exempt():
    with pytest.raises(ileed.SettingsError, match=r"dimension 7 but actions have 2"):
        recurrent(demonstrator=VarianceScaling(exempt=(7,))).fit(operators(), seed=0)


def test_a_dimension_that_never_changes_is_exempt_too():
    still = replace(operators(), actions=np.column_stack([operators().actions, np.zeros(len(operators()))]))
    assert still.binary_dimensions == (2,)


# --- judging other data


@pytest.mark.parametrize("policy", [MixtureLSTM(hidden=(6,), length=4, modes=2), ileed.MixtureMLP(hidden=(4,))])
def test_the_cost_of_the_data_themselves_is_what_the_fit_reports(policy):
    data = operators()
    fitted = recurrent(policy=policy, restarts=1).fit(data, seed=0)
    assert fitted.nats(data).mean() == pytest.approx(fitted.nats_per_action, abs=1e-5)  # float32 over 46 steps


def test_the_cost_follows_given_skills_by_their_labels():
    phase = np.where(np.arange(46) < 20, "near", "far")
    data = operators(skills={"phase": phase})
    fitted = recurrent(expertise=Skills("phase"), restarts=1).fit(data, seed=0)
    assert fitted.nats(data).mean() == pytest.approx(fitted.nats_per_action, abs=1e-5)
    near = data.select(phase == "near")  # one label alone must not be taken for the first
    whole = data.episode[phase == "near"] != data.episode[19]  # the episode that is cut has another memory
    np.testing.assert_allclose(fitted.nats(near)[whole], fitted.nats(data)[phase == "near"][whole], rtol=1e-5)


def test_the_cost_of_other_data_follows_names_not_their_order():
    data = operators()
    fitted = recurrent().fit(data, seed=0)
    turned = data.by("2", "0")
    chosen = data.demonstrator != 1
    np.testing.assert_allclose(fitted.nats(turned), fitted.nats(data)[chosen], rtol=1e-5)


def test_a_stranger_cannot_be_judged():
    fitted = recurrent().fit(operators(), seed=0)
    with pytest.raises(DemonstrationError, match=r"'3'.*knows '0', '1', '2'"):
        fitted.nats(operators((5, 5, 5, 5), people=4))


# --- demonstrators that follow a recurrent policy


class Narrow:
    """A recurrent policy whose actions hardly deviate from their means, so that its memory can be seen in them."""

    def __init__(self, policy):
        self.policy = policy

    def distribution(self, observations):
        return self.narrowed(self.policy.distribution(observations))

    def next_distribution(self, observations, state=None, episode_start=None):
        found, state = self.policy.next_distribution(observations, state, episode_start)
        return self.narrowed(found), state

    def narrowed(self, found):
        logits, means, deviations = mixture_parts(found)
        return mixture(logits, means, 1e-9 * deviations)


def test_simulated_demonstrators_remember_nothing_of_earlier_episodes():
    """Against the policy's own `predict`, reset at each episode: truncated by the limit, three of 50 steps each."""
    reach = ReachTask()
    learned_from = demonstrate(reach, ReachExpert(), skill=[1.0, 1.0], steps=60, seed=0)
    policy = recurrent(policy=MixtureLSTM(hidden=(6,), length=8, modes=1), steps=30).fit(learned_from, seed=0).policy
    data = demonstrate(reach, Narrow(policy), skill=[1.0, 1.0], steps=150, seed=1)
    for episode in range(data.episode_count):
        own, state = data.episode == episode, None
        for seen, action in zip(data.observations[own], data.actions[own], strict=True):
            expected, state = policy.predict(seen[None], state)
            np.testing.assert_allclose(action, expected[0], atol=1e-5)  # networks in 32 bits, draws in 64
    assert data.episode_count > 2
    again = demonstrate(reach, Narrow(policy), skill=[1.0, 1.0], steps=150, seed=1)
    np.testing.assert_array_equal(again.actions, data.actions)


def test_asking_for_the_next_distribution_remembers_nothing_in_the_policy():
    policy = recurrent().fit(operators(), seed=0).policy
    seen = operators().observations[:2]
    (first, state), (again, _) = (policy.next_distribution(seen) for _ in range(2))
    later, _ = policy.next_distribution(seen, state)
    afresh, _ = policy.next_distribution(seen, state, np.array([True, False]))
    for one, other, equal in (
        (first, again, [True, True]),
        (first, later, [False, False]),
        (first, afresh, [True, False]),
    ):
        assert (one.mean == other.mean).all(-1).tolist() == equal
