"""HBC, IRIS, BCQ and CQL: what each of them promises, their parts against torch's own, and what each is good for."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from integration import fork, offline_side_by_side
from needs import gpu
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

import ileed
from ileed.envs.abstract_task import as_actor
from ileed.errors import IleedError
from ileed_lab.baselines import Bcq, Cql, Hbc, Iris
from ileed_lab.baselines.cql import CqlActor
from ileed_lab.baselines.networks import ConditionalVAE, Critics, RecurrentMixture, build
from ileed_lab.baselines.replay import Preprocessing, Replay, Windows
from ileed_lab.baselines.training import minimiser

CPU = torch.device("cpu")
TINY_HBC = Hbc(steps=12, batch_size=8, horizon=3, planner_hidden=(8,), latent=2, prior_modes=3, policy_hidden=6)
TINY_BCQ = Bcq(steps=12, batch_size=8, hidden=(8, 8), candidates=7, target_candidates=3, perturbation=0.05)
TINY = {
    "hbc": TINY_HBC,
    "iris": Iris(hierarchy=TINY_HBC, value=TINY_BCQ, candidates=5, value_actions=4),
    "bcq": TINY_BCQ,
    "bcq with a learned prior": replace(TINY_BCQ, prior_modes=3, perturbation=0.0, latent_bound=0.5),
    "cql": Cql(steps=12, warm_start=5, batch_size=8, hidden=(8, 8), samples=2),
    "cql of fixed weight": Cql(steps=12, warm_start=0, batch_size=8, hidden=(8, 8), samples=2, gap=None),
}
every_method = pytest.mark.parametrize("method", TINY.values(), ids=TINY.keys())
rewarded = pytest.mark.parametrize("method", [TINY["iris"], TINY["bcq"], TINY["cql"]], ids=["IRIS", "BCQ", "CQL"])


def demonstrations(*, seed=0, lengths=(5, 1, 9, 3), **changed):
    """Four episodes in three observed numbers, the last constant, and two actions; the second episode was cut."""
    chance, steps = np.random.default_rng(seed), sum(lengths)
    last = np.cumsum(lengths) - 1
    ended = np.isin(np.arange(steps), np.delete(last, 1))
    columns = {
        "observations": np.column_stack([chance.normal(3, 2, (steps, 2)), np.full(steps, 7.0)]).astype(np.float32),
        "actions": chance.uniform([-1, 0.2], [0.5, 0.8], (steps, 2)).astype(np.float32),
        "demonstrator": np.zeros(steps, dtype=int),
        "episode": np.repeat(np.arange(len(lengths)), lengths),
        "rewards": ended.astype(np.float32),
        "terminals": ended,
    }
    return ileed.Demonstrations(**(columns | changed))


def fitted(method, data=None, seed=1):
    return method.fit(demonstrations() if data is None else data, seed=seed, device="cpu")


def bits(fit):
    return {name: value.numpy().tobytes() for name, value in fit.policy._actor.state_dict().items()}


def played(policy, observations, **options):
    """Actions (time, row, dimension) after observations (time, row, input), the state carried along."""
    state, actions = None, []
    for now in observations:
        answer, state = policy.predict(now, state=state, **options)
        actions.append(answer)
    return np.stack(actions)


# What every method promises


@every_method
def test_actions_stay_within_what_was_demonstrated_also_far_from_the_data(method):
    data = demonstrations()
    policy = fitted(method, data).policy
    places = np.random.default_rng(0).normal(0, 100, (50, 3)).astype(np.float32)
    for deterministic in (True, False):
        actions, _ = policy.predict(places, deterministic=deterministic)
        assert actions.shape == (50, 2)
        assert (actions >= data.actions.min(axis=0)).all()
        assert (actions <= data.actions.max(axis=0)).all()
    assert policy.predict(places[0])[0].shape == (2,)


@every_method
def test_a_seed_fixes_every_bit(method):
    once = bits(fitted(method))
    assert bits(fitted(method)) == once
    assert bits(fitted(method, seed=2)) != once


@every_method
def test_a_fit_comes_out_the_same_alone_and_beside_others(method):
    data = [demonstrations(seed=number, lengths=(5, 1, 9 - number, 3)) for number in range(3)]
    beside = method.fit_each(data, seeds=[4, 5, 6], device="cpu")
    alone = [method.fit(each, seed=seed, device="cpu") for each, seed in zip(data, [4, 5, 6], strict=True)]
    assert [bits(fit) for fit in beside] == [bits(fit) for fit in alone]
    assert [_losses(fit) for fit in beside] == [_losses(fit) for fit in alone]


def _losses(fit):
    return {name: [point.losses for point in curve] for name, curve in fit.history.items()}


def test_trainers_of_different_lengths_each_take_their_own_steps():
    longer = replace(TINY["iris"], value=replace(TINY_BCQ, steps=20))
    fit = fitted(longer)
    assert {name: curve[-1].steps for name, curve in fit.history.items()} == {"hbc": 12, "bcq": 20}
    weights = fit.policy._actor.value.state_dict()
    for name, value in fitted(replace(TINY_BCQ, steps=20)).policy._actor.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=0)


@every_method
def test_no_global_generator_is_moved(method):
    """Python's own is left out: beartype, under pytest alone, moves it to pick what it looks at in a sequence."""

    def state():
        return np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    before = state()
    fitted(method).policy.predict(np.zeros((2, 3)), deterministic=False)
    assert state() == before


@every_method
def test_rewards_matter_to_those_methods_alone_that_say_so(method):
    data = demonstrations()
    other = demonstrations(rewards=-data.rewards)
    assert (bits(fitted(method, data)) != bits(fitted(method, other))) == method.uses_rewards
    if not method.uses_rewards:
        assert bits(fitted(method, demonstrations(rewards=None, terminals=None))) == bits(fitted(method, data))


@every_method
def test_the_scale_of_observations_does_not_matter(method):
    """Powers of two scale without rounding, so the networks see the same bits."""
    data = demonstrations()
    scaled = demonstrations(observations=data.observations * np.float32(1024))
    assert bits(fitted(method, scaled)) == bits(fitted(method, data))


@every_method
def test_a_row_plays_the_same_alone_and_among_others(method):
    policy = fitted(method).policy
    observations = np.random.default_rng(1).normal(3, 2, (8, 5, 3)).astype(np.float32)
    together = played(policy, observations)
    for row in range(5):
        # Sums of single precision may be taken in another order for another number of rows.
        np.testing.assert_allclose(played(policy, observations[:, row : row + 1])[:, 0], together[:, row], atol=1e-5)
        np.testing.assert_allclose(played(policy, observations[:, row]), together[:, row], atol=1e-5)


@every_method
def test_an_episode_that_starts_has_the_initial_state_and_its_neighbours_continue(method):
    policy = fitted(method).policy
    observations = np.random.default_rng(2).normal(3, 2, (7, 2, 3)).astype(np.float32)
    expected = played(policy, observations)
    restarted = played(policy, observations[4:, :1])
    state, starts = None, np.array([False, False])
    for step, now in enumerate(observations):
        starts[0] = step == 4
        actions, state = policy.predict(now, state=state, episode_start=starts)
        want = expected[step, 0] if step < 4 else restarted[step - 4, 0]
        np.testing.assert_allclose(actions, [want, expected[step, 1]], atol=1e-5)


@every_method
def test_samples_restart_with_reset_and_a_policy_survives_pickling(method):
    policy = fitted(method).policy
    places = np.random.default_rng(3).normal(3, 2, (1, 40, 3)).astype(np.float32)
    policy.reset(5)
    first, second = (played(policy, places, deterministic=False) for _ in range(2))
    assert (first != second).any()
    again = pickle.loads(pickle.dumps(policy))
    again.reset(5)
    np.testing.assert_array_equal(played(again, places, deterministic=False), first)
    np.testing.assert_array_equal(played(again, places), played(policy, places))


@every_method
def test_the_losses_of_the_curve_are_finite(method):
    fit = method.fit(demonstrations(), seed=0, device="cpu")
    assert all(np.isfinite(list(point.losses.values())).all() for curve in fit.history.values() for point in curve)


@gpu
@every_method
def test_a_gpu_learns_a_policy_that_plays_on_a_cpu(method):
    fit = method.fit(demonstrations(), seed=0, device="cuda")
    assert np.isfinite(played(fit.policy, np.zeros((4, 2, 3)))).all()
    assert all(value.device == CPU for value in fit.policy._actor.state_dict().values())


@gpu
@every_method
def test_a_gpu_learns_the_same_alone_and_beside_others_but_for_rounding(method):
    data = [demonstrations(seed=number, lengths=(5, 1, 9 - number, 3)) for number in range(3)]
    beside = method.fit_each(data, seeds=[4, 5, 6], device="cuda")
    for fit, each, seed in zip(beside, data, [4, 5, 6], strict=True):
        alone = method.fit(each, seed=seed, device="cuda").policy._actor.state_dict()
        for name, value in fit.policy._actor.state_dict().items():
            torch.testing.assert_close(value, alone[name], rtol=1e-3, atol=1e-4)


# What is refused


@every_method
def test_discrete_actions_are_refused_in_one_sentence(method):
    with pytest.raises(IleedError, match="choose among 4 discrete actions"):
        fitted(method, demonstrations(actions=np.arange(18) % 4))


@rewarded
def test_data_that_say_nothing_of_good_and_bad_are_refused_in_one_sentence(method, request):
    name = request.node.callspec.id
    for changed, words in (
        ({"rewards": None}, f"no rewards, but {name} learns"),
        ({"terminals": None}, f"no terminals, but {name} learns"),
        ({"rewards": np.zeros(18)}, "every reward is zero"),
    ):
        with pytest.raises(IleedError, match=words):
            fitted(method, demonstrations(**changed))


@every_method
def test_observations_of_another_shape_are_refused_in_one_sentence(method):
    with pytest.raises(IleedError, match="learned from observations of shape \\(3,\\)"):
        fitted(method).policy.predict(np.zeros((2, 4)))


def test_a_state_of_other_rows_is_refused_in_one_sentence():
    policy = fitted(TINY_HBC).policy
    _, state = policy.predict(np.zeros((2, 3)))
    with pytest.raises(IleedError, match="2 rows of another kind"):
        policy.predict(np.zeros((5, 3)), state=state)


@pytest.mark.parametrize(
    ("method", "changed", "words"),
    [
        (TINY_BCQ, {"steps": 0}, "steps is 0"),
        (TINY_BCQ, {"discount": 1.5}, "discount is 1.5"),
        (TINY_BCQ, {"learning_rate": -1.0}, "learning_rate is -1"),
        (TINY["cql"], {"warm_start": 13}, "warm_start is 13"),
        (TINY_HBC, {"prior_modes": -1}, "prior_modes is -1"),
        (TINY["iris"], {"value_actions": 8}, "value_actions is 8"),
    ],
)
def test_impossible_settings_are_refused_when_made(method, changed, words):
    with pytest.raises(IleedError, match=words):
        replace(method, **changed)


# Data


def test_actions_are_scaled_and_unscaled_and_one_that_never_varies_is_repeated():
    data = demonstrations(actions=np.column_stack([np.linspace(-0.3, 0.7, 18), np.full(18, 0.25)]))
    preprocessing = Preprocessing.of(data)
    scaled = preprocessing.scale_actions(data.actions)
    assert (float(scaled.min()), float(scaled.max())) == (-1, 1)
    np.testing.assert_allclose(preprocessing.unscale_actions(scaled), data.actions, atol=1e-6)
    np.testing.assert_allclose(preprocessing.unscale_actions(torch.tensor([[0.0, 0.9]])), [[0.2, 0.25]], atol=1e-6)


def test_observations_are_normalised_to_the_bit_as_mean_and_standard_deviation_say():
    """The recorded results were made with this arithmetic, before the library's normaliser was used for it."""
    data = demonstrations()
    observed = data.observations.astype(np.float64)
    mean, standard_deviation = observed.mean(axis=0).astype(np.float32), observed.std(axis=0).astype(np.float32)
    expected = (data.observations - mean) / np.where(standard_deviation > 0, standard_deviation, np.float32(1))
    found = Preprocessing.of(data).normalise(data.observations)
    assert found.is_contiguous()
    assert found.numpy().tobytes() == expected.tobytes()
    assert not found[:, 2].any(), "the third observation never varies"


def test_transitions_stay_within_their_episode_and_leave_out_truncated_ends():
    """Against the steps themselves, each known by its first number."""
    data = demonstrations()
    replay = Replay(data, method="BCQ", with_rewards=True, device=CPU)
    drawn = replay.transitions(2_000, torch.Generator().manual_seed(0))
    numbers = {
        value: step for step, value in enumerate(replay.preprocessing.normalise(data.observations)[:, 0].tolist())
    }
    at = [numbers[value] for value in drawn.observations[:, 0].tolist()]
    after = [numbers[value] for value in drawn.next_observations[:, 0].tolist()]
    assert set(at) == set(range(18)) - {5}, "all but the single step of the cut episode"
    for row, (now, then) in enumerate(zip(at, after, strict=True)):
        assert drawn.rewards[row] == data.rewards[now]
        assert bool(drawn.continues[row]) != data.terminals[now]
        assert then == (now if data.terminals[now] else now + 1)


def test_windows_stay_within_their_episode_and_end_in_its_last_observation():
    data = demonstrations()
    replay = Replay(data, method="HBC", with_rewards=False, device=CPU)
    drawn = replay.windows(500, length=4, horizon=6, generator=torch.Generator().manual_seed(0))
    numbers = {
        value: step for step, value in enumerate(replay.preprocessing.normalise(data.observations)[:, 0].tolist())
    }
    begun = set()
    for row in range(500):
        steps = [numbers[value] for value in drawn.observations[row, :, 0].tolist()]
        last = int(np.flatnonzero(data.episode == data.episode[steps[0]])[-1])
        assert steps == [min(steps[0] + ahead, last) for ahead in range(4)]
        assert drawn.present[row].tolist() == [steps[0] + ahead <= last for ahead in range(4)]
        assert numbers[float(drawn.subgoals[row, 0])] == min(steps[0] + 6, last)
        torch.testing.assert_close(drawn.actions[row], replay.preprocessing.scale_actions(data.actions)[steps])
        begun.add(steps[0])
    assert begun == set(range(18))


# Parts, against torch's own


def test_the_density_of_a_squashed_action_is_that_of_torch():
    actor = build(lambda: CqlActor(3, 2, (8,)), torch.Generator().manual_seed(0), CPU).double()
    seen = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)).double()
    mean, log_scale = actor._gaussian(seen)
    reference = Independent(TransformedDistribution(Normal(mean, log_scale.exp()), TanhTransform()), 1)
    actions = torch.rand(20, 2, generator=torch.Generator().manual_seed(2)).double() * 1.9 - 0.95
    torch.testing.assert_close(actor.log_density(seen, actions), reference.log_prob(actions))
    drawn, density = actor.sample(seen, torch.Generator().manual_seed(3))
    torch.testing.assert_close(density, reference.log_prob(drawn), rtol=1e-5, atol=1e-5)


def test_the_loss_of_the_recurrent_policy_is_the_likelihood_of_torchs_mixture_over_present_steps():
    net = build(lambda: RecurrentMixture(6, 2, hidden=5, layers=2, modes=3), torch.Generator().manual_seed(0), CPU)
    data = demonstrations()
    replay = Replay(data, method="HBC", with_rewards=False, device=CPU)
    windows = replay.windows(30, length=4, horizon=4, generator=torch.Generator().manual_seed(1))
    goals = windows.subgoals[:, None].expand(-1, 4, -1)
    (log_weights, means, standard_deviations), _ = net(torch.cat([windows.observations, goals], -1))
    mixture = MixtureSameFamily(Categorical(logits=log_weights), Independent(Normal(means, standard_deviations), 1))
    expected = -mixture.log_prob(windows.actions)[windows.present.bool()].mean()
    torch.testing.assert_close(net.loss(windows), expected)
    cut = Windows(*(part[:, :1] for part in windows[:3]), windows.subgoals)
    assert not torch.allclose(net.loss(cut), expected), "later steps count"


def test_a_critic_scores_an_action_the_same_whatever_others_are_asked_about():
    critics = build(lambda: Critics(3, 2, (8, 8)), torch.Generator().manual_seed(0), CPU)
    generator = torch.Generator().manual_seed(1)
    seen, actions = torch.randn(4, 3, generator=generator), torch.randn(4, 5, 2, generator=generator)
    scores = critics(seen, actions)
    assert scores.shape == (2, 4, 5)
    assert (scores[0] != scores[1]).all(), "two opinions"
    for row in range(4):
        one_by_one = critics(seen[row].expand(5, -1), actions[row])
        torch.testing.assert_close(scores[:, row], one_by_one)


@pytest.mark.parametrize("modes", [0, 4])
def test_an_autoencoder_learns_a_fork(modes):
    """Half the data are at -0.8 and half at 0.8: so are most samples, but for some between.

    Under a normal prior what is decoded goes continuously from the one side to the other.
    """
    settings = {"latent": 2, "hidden": (32, 32), "divergence_weight": 0.02, "prior_modes": modes, "bounded": True}
    autoencoder = build(lambda: ConditionalVAE(1, 1, **settings), torch.Generator().manual_seed(0), CPU)
    minimise, generator = minimiser(autoencoder.parameters(), 5e-3), torch.Generator().manual_seed(1)
    conditions, sides = torch.zeros(200, 1), torch.tensor([[-0.8], [0.8]]).repeat(100, 1)
    for _ in range(400):
        minimise(autoencoder.loss(conditions, sides, generator))
    uniform, noise = torch.rand(1, 1_000, generator=generator), torch.randn(1, 1_000, 2, generator=generator)
    drawn = autoencoder.sample(conditions[:1], uniform, noise)[0, :, 0]
    assert 0.4 < (drawn > 0).float().mean() < 0.6
    assert ((drawn.abs() - 0.8).abs() < 0.2).float().mean() > 0.85


# What each is good for: at the fork, most demonstrators go left, which earns nothing

QUICK = {"hidden": (48, 48), "batch_size": 64, "target_rate": 0.03, "discount": 0.9, "learning_rate": 2e-3}
QUICK_HBC = Hbc(
    steps=400,
    batch_size=50,
    learning_rate=3e-3,
    planner_hidden=(48, 48),
    latent=4,
    prior_modes=5,
    policy_hidden=24,
    policy_layers=1,
    policy_modes=3,
)
QUICK_BCQ = Bcq(steps=700, candidates=30, **QUICK)
QUICK_CQL = Cql(
    steps=900,
    warm_start=0,
    gap=None,
    weight=0.02,
    samples=4,
    entropy_weight=0.01,
    policy_learning_rate=2e-3,
    **QUICK,
)
QUICK_IRIS = Iris(hierarchy=QUICK_HBC, value=replace(QUICK_BCQ, steps=500), candidates=30)


def reached(method, *, good):
    """Share of 200 episodes in which what was learned of 200 demonstrations reaches the goal."""
    data = ileed.Demonstrations(**fork.demonstrations(episodes=200, good=good, seed=0))
    return fork.successes(as_actor(method.fit(data, seed=0, device="cpu").policy), episodes=200, seed=9).mean()


@pytest.fixture(scope="module")
def cloned():
    """What behaviour cloning of the mixed data reaches; its standard error is below 0.04."""
    return reached(ileed.bc(restarts=1, steps=400), good=0.4)


@pytest.mark.parametrize("method", [QUICK_BCQ, QUICK_CQL], ids=["bcq", "cql"])
def test_rewards_lead_to_the_goal_where_cloning_does_not(method, cloned):
    assert reached(method, good=0.4) > cloned + 0.2


def test_a_hierarchy_reaches_what_good_demonstrators_reach():
    assert reached(QUICK_HBC, good=1.0) > 0.95


def test_subgoals_chosen_by_value_lead_to_the_goal_where_the_likeliest_do_not():
    assert reached(QUICK_IRIS, good=0.4) > reached(QUICK_HBC, good=0.4) + 0.2


# The comparison with d3rlpy and robomimic


@pytest.mark.parametrize(
    ("ours", "library", "theirs"),
    [
        ("bcq with bounded latents", "d3rlpy", "bcq"),
        ("cql", "d3rlpy", "cql"),
        ("hbc", "robomimic", "hbc"),
        ("iris", "robomimic", "iris"),
    ],
)
def test_the_record_finds_ours_and_others_alike_under_equal_settings(ours, library, theirs):
    """Within a tenth of all episodes, about what seeds of one side differ by."""
    record = json.loads(offline_side_by_side.RECORD.read_text())
    played = len(record["settings"]["seeds"]) * record["settings"]["play"]["episodes"]
    assert abs(sum(record["ours"][ours]) - sum(record["theirs"][library]["successes"][theirs])) < played / 10


def test_the_page_shows_the_recorded_comparison():
    record = offline_side_by_side.RECORD.read_text()
    made = offline_side_by_side.BEGIN + offline_side_by_side.table(json.loads(record))
    assert made + offline_side_by_side.END in offline_side_by_side.PAGE.read_text(), (
        "run tests/integration/offline_side_by_side.py --table"
    )
