"""Ensembles: members, the likeliest of them, and what a fit of several members says.

The oracle is the model written out in numpy from a member's parameters: two perceptrons, a softmax and a sigmoid.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refused
from strategies import world

import ileed
from ileed.errors import SettingsError
from ileed.fitting import Outcome
from ileed.model import nets

PEOPLE = ("ann", "bob", "cyd")


def ensemble_of(data, *, seed=0, **settings):
    """Five members, a few steps from their initial values, so that they differ."""
    usual = {"policy": ileed.CategoricalMLP(hidden=(3,)), "restarts": 5, "steps": 20, "learning_rate": 0.02}
    return ileed.Ileed(**(usual | settings)).fit_each([data], seeds=[seed], device="cpu")[0]


def perceptron(parameters, name, inputs):
    """(row, output) from (row, input), by one member's own weights."""
    layers = sorted({key.split(".")[-2] for key in parameters if key.startswith(f"{name}.body.layers.")}, key=int)
    for number, layer in enumerate(layers):
        weight, bias = (parameters[f"{name}.body.layers.{layer}.{part}"] for part in ("weight", "bias"))
        inputs = inputs @ weight.T + bias[:, 0]
        inputs = np.maximum(inputs, 0) if number < len(layers) - 1 else inputs
    return inputs


def by_hand(ensemble, restart, observations, person):
    """(row, action) pi, (row,) rho, and (row, action) p(a | s, i) of one restart, in double precision."""
    tensors = ensemble.result.joint.state_dict()
    parameters = {name: value[restart].double().numpy() for name, value in tensors.items()}
    varying = observations[:, ensemble.collapsed.varying].astype(np.float64)
    inputs = (varying - ensemble.normaliser.shift.numpy()) / ensemble.normaliser.scale.numpy()
    scores = np.exp(perceptron(parameters, "policy", inputs))
    policy = scores / scores.sum(1, keepdims=True)
    f, w = perceptron(parameters, "expertise", inputs), parameters["expertise.skill"][:, person].T
    rho = 1 / (1 + np.exp(-(f * w).sum(1)))
    return policy, rho, rho[:, None] * policy + (1 - rho[:, None]) / policy.shape[1]


# --- several members


@pytest.mark.parametrize("count", [1, 3, 5])
def test_policy_expertise_and_cost_are_means_over_the_same_members(count):
    """Within 1e-5: the library computes in single precision."""
    data = world((9, 8, 7, 9, 6, 5), seed=2, floating=True)
    every = ensemble_of(data)
    fitted = every.top(count).fitted()
    kept = np.argsort(every.nats_per_action)[:count].tolist()
    assert list(fitted.restarts.kept) == kept
    each = [by_hand(every, restart, data.observations, data.demonstrator) for restart in kept]
    policy, rho, likelihood = (np.mean(parts, axis=0) for parts in zip(*each, strict=True))
    np.testing.assert_allclose(fitted.policy.distribution(data.observations).probs, policy, atol=1e-5)
    own_actions = likelihood[np.arange(len(data)), data.actions]
    np.testing.assert_allclose(fitted.nats(data), -np.log(own_actions), atol=1e-5)
    assert fitted.nats_per_action == pytest.approx(-np.log(own_actions).mean(), abs=1e-5)
    for person, name in enumerate(PEOPLE):
        own = data.demonstrator == person
        np.testing.assert_allclose(fitted.expertise(data.observations[own], name), rho[own], atol=1e-5)
        assert fitted.expertise.by_demonstrator()[name] == pytest.approx(rho[own].mean(), abs=1e-5)
        np.testing.assert_allclose(
            fitted.expertise.summary.quantiles[person, [0, -1]], [rho[own].min(), rho[own].max()], atol=1e-5
        )


def test_the_density_of_continuous_actions_is_the_mean_of_the_members():
    data = world(seed=1, discrete=False)
    every = ensemble_of(data, policy=ileed.MixtureMLP(hidden=(4,), modes=2))
    actions = torch.tensor(data.actions)
    alone = [
        ileed.Policy(nets.members(every.result.joint, [restart]), every.normaliser)
        .distribution(data.observations)
        .log_prob(actions)
        .exp()
        for restart in np.argsort(every.nats_per_action)[:3].tolist()
    ]
    together = every.top(3).fitted().policy.distribution(data.observations).log_prob(actions).exp()
    torch.testing.assert_close(together, torch.stack(alone).mean(0), rtol=1e-4, atol=1e-6)


def test_a_fit_of_one_member_states_that_members_cost_to_the_bit():
    data = world(seed=2)
    fitted = ileed.Ileed(restarts=4, steps=10).fit(data, seed=0, device="cpu")
    assert fitted.nats_per_action == fitted.restarts.nats_per_action.min()
    assert fitted.restarts.kept == (fitted.restarts.chosen,)


def test_the_cost_of_an_ensemble_is_of_the_episodes_by_which_restarts_are_compared():
    """Held-out episodes where there are any; a mean over members is never worse than the members' mean cost."""
    data = world((9, 8, 7, 9, 6, 5), seed=2)
    for settings, weight in (({}, None), ({"held_out": 0.4}, "held out")):
        every = ensemble_of(data, **settings)
        steps = np.ones(len(data), dtype=bool) if weight is None else every.held_out_episodes[data.episode] > 0
        fitted = every.top(3).fitted()
        assert fitted.nats_per_action == pytest.approx(fitted.nats(data)[steps].mean(), abs=1e-6)
        assert fitted.nats_per_action < every.top(3).nats_per_action.mean()
        for member in every:  # the members' own costs are of the same steps
            found = member.fitted()
            assert found.nats(data)[steps].mean() == pytest.approx(found.nats_per_action, abs=1e-5)


def test_expertise_in_given_skills_is_the_mean_over_members():
    data = world(optional=["phase"])
    every = ensemble_of(data, expertise=ileed.Skills("phase"))
    together = every.top(2).fitted().expertise.by_skill()
    alone = [member.fitted().expertise.by_skill() for member in every.top(2)]
    for name in PEOPLE:
        for skill in ("grasp", "lift"):
            assert together[name][skill] == pytest.approx(np.mean([each[name][skill] for each in alone]), abs=1e-6)


def test_an_ensemble_is_saved_and_loaded_whole(tmp_path):
    data = world(seed=1)
    fitted = ileed.Ileed(restarts=4, steps=20, ensemble=3).fit(data, seed=0, device="cpu")
    fitted.save(tmp_path / "run")
    again = ileed.load(tmp_path / "run")
    assert torch.equal(*(each.policy.distribution(data.observations).probs for each in (fitted, again)))
    assert again.expertise.by_demonstrator() == fitted.expertise.by_demonstrator()
    assert (again.restarts.kept, again.nats_per_action) == (fitted.restarts.kept, fitted.nats_per_action)
    np.testing.assert_array_equal(again.nats(data), fitted.nats(data))
    assert again.ensemble is None


# --- members


def test_members_are_ensembles_of_one_in_their_order():
    every = ensemble_of(world(seed=1))
    assert len(every) == 5
    assert [member.restarts for member in every] == [(0,), (1,), (2,), (3,), (4,)]
    assert [float(member.nats_per_action[0]) for member in every] == every.nats_per_action.tolist()
    for number, member in enumerate(every):
        for name, value in member.joint.named_parameters():
            assert torch.equal(value[0], every.joint.get_parameter(name)[number])
    assert every.best().restarts == (int(np.argmin(every.nats_per_action)),)
    assert every.top(4).member(2).restarts == every.top(4).restarts[2:3]
    assert every.top(2).best().restarts == every.best().restarts


def test_every_member_of_a_fit_can_be_reached_from_it():
    data = world(seed=1)
    fitted = ileed.Ileed(restarts=4, steps=10).fit(data, seed=0, device="cpu")
    assert fitted.ensemble.restarts == (0, 1, 2, 3)
    again = fitted.ensemble.best().fitted()
    assert torch.equal(*(each.policy.distribution(data.observations).probs for each in (fitted, again)))
    assert fitted.ensemble.top(2).fitted().restarts.kept[0] == fitted.restarts.chosen


@pytest.mark.parametrize("count", [0, 6, "two", 1.5])
def test_a_number_of_members_that_there_is_not_is_refused(count):
    every = ensemble_of(world(seed=1))
    for choose in (every.top, every.first):
        with refused("count-invalid", SettingsError):
            choose(count)


def test_an_ensemble_larger_than_the_restarts_is_refused():
    with refused("ensemble-invalid"):
        ileed.Ileed(restarts=4, ensemble=5)


def test_the_outcome_is_that_of_most_members(monkeypatch):
    every = ensemble_of(world(seed=1))
    ended = [Outcome.CONVERGED, Outcome.STEPS_SPENT, Outcome.STEPS_SPENT, Outcome.CONVERGED, Outcome.CONVERGED]
    monkeypatch.setattr("ileed.fitting.History.outcome", lambda self, member, guessing_nats: ended[member])
    assert every.fitted().outcome == Outcome.CONVERGED
    assert every.member(1).fitted().outcome == Outcome.STEPS_SPENT


# --- members with episode weights of their own


def replicates(data, count, seed=0):
    """Bootstrap weights: how often each episode is drawn, with replacement, for each restart."""
    random = np.random.default_rng(seed)
    return random.multinomial(data.episode_count, np.full(data.episode_count, 1 / data.episode_count), size=count)


def bootstrap(data, weights, **settings):
    usual = {"policy": ileed.CategoricalMLP(hidden=(3,)), "restarts": len(weights), "steps": 20, "learning_rate": 0.02}
    return ileed.Ileed(**(usual | settings)).fit(data, seed=0, device="cpu", weights=weights)


def test_members_with_different_weights_are_not_compared_and_all_are_kept():
    data = world((9, 8, 7, 9, 6, 5), seed=2)
    fitted = bootstrap(data, replicates(data, 4), ensemble=2)
    assert fitted.restarts.kept == (0, 1, 2, 3)
    assert not fitted.ensemble.comparable
    for choose in (fitted.ensemble.best, lambda: fitted.ensemble.top(2)):
        with pytest.raises(SettingsError, match=r"different episode weights.*fitted\(\).*member\(i\)") as refusal:
            choose()
        assert len(str(refusal.value).splitlines()) == 1
    alone = [member.fitted().policy.distribution(data.observations).probs for member in fitted.ensemble]
    together = fitted.policy.distribution(data.observations).probs
    torch.testing.assert_close(together, torch.stack(alone).mean(0), rtol=0, atol=1e-6)


def test_the_same_weights_for_every_restart_are_compared():
    data = world(seed=2)
    row = replicates(data, 1)[0]
    own, shared = bootstrap(data, np.stack([row] * 3)), bootstrap(data, row, restarts=3)
    assert own.restarts.kept == shared.restarts.kept
    np.testing.assert_allclose(own.restarts.nats_per_action, shared.restarts.nats_per_action, atol=1e-6)  # float32


def test_a_member_that_never_saw_a_person_is_left_out_of_that_persons_expertise_and_cost(tmp_path):
    """Its expertise of that person is the initial value. The episodes go round three people, two episodes each."""
    data = world((9, 8, 7, 9, 6, 5), seed=2)
    weights = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 2, 1, 0, 1], [0, 1, 0, 1, 1, 1]])
    fitted = bootstrap(data, weights)
    every = fitted.ensemble
    assert every.learned_from.tolist() == [[True, True, True], [True, False, True], [True, True, True]]
    learned = {"ann": [0, 1, 2], "bob": [0, 2], "cyd": [0, 1, 2]}
    each = [by_hand(every, restart, data.observations, data.demonstrator) for restart in range(3)]
    fitted.save(tmp_path / "run")
    for found in (fitted, ileed.load(tmp_path / "run")):
        costs = found.nats(data)
        for person, name in enumerate(PEOPLE):
            own = data.demonstrator == person
            rho = np.mean([each[restart][1][own] for restart in learned[name]], axis=0)
            likelihood = np.mean([each[restart][2][own] for restart in learned[name]], axis=0)
            np.testing.assert_allclose(found.expertise(data.observations[own], name), rho, atol=1e-5)
            assert found.expertise.by_demonstrator()[name] == pytest.approx(rho.mean(), abs=1e-5)
            expected = -np.log(likelihood[np.arange(own.sum()), data.actions[own]])
            np.testing.assert_allclose(costs[own], expected, atol=1e-5)


def test_the_cost_of_replicates_counts_each_step_by_its_mean_weight():
    data = world((9, 8, 7, 9, 6, 5), seed=2)
    weights = replicates(data, 3)
    fitted = bootstrap(data, weights)
    expected = np.average(fitted.nats(data), weights=weights.mean(0)[data.episode])
    assert fitted.nats_per_action == pytest.approx(expected)
