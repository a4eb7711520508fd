"""Methods: parts that do not go together are refused, defaults follow the data, and what comes out can act."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from strategies import follows, joint_of, parts_for, prepared_for, raw_batch, world

import ileed
from ileed import (
    Boltzmann,
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
    Perfect,
    SettingsError,
    SignalScaling,
    Skills,
    UniformMixture,
    VarianceScaling,
    bc,
)
from ileed.fitting import OptimiserSettings, optimise

CONTINUOUS = {"discrete": False}
TINY = {"restarts": 2, "steps": 3}


def fit(data, *, seed=0, **settings):
    return Ileed(**(TINY | settings)).fit(data, seed=seed, device="cpu")


# --- parts that do not go together


ILLEGAL = {
    "a mixture over discrete actions": (
        world(), {"policy": MixtureMLP()},
        ["MixtureMLP", "continuous actions", "data's are discrete", "None for the usual one"],
    ),
    "categories over continuous actions": (
        world(**CONTINUOUS), {"policy": CategoricalMLP()},
        ["CategoricalMLP", "discrete actions", "data's are continuous", "None for the usual one"],
    ),
    "variance of discrete actions": (
        world(), {"demonstrator": VarianceScaling()},
        ["VarianceScaling", "continuous", "discrete", "None for the usual one"],
    ),
    **{
        f"{type(model).__name__} of continuous actions": (
            world(**CONTINUOUS), {"demonstrator": model}, [type(model).__name__, "discrete", "None for the usual one"],
        )
        for model in (UniformMixture(), OneVersusRest(), Boltzmann())
    },
    "legal actions under one versus rest": (
        world(optional=["legal"]), {"demonstrator": OneVersusRest()},
        ["OneVersusRest", "legal actions", "None for the usual one"],
    ),
    **{
        f"one demonstrator under {expertise!r}": (
            world(people=1, optional=["phase"]),
            {"expertise": expertise},
            ["one demonstrator", "bc()", "add demonstrators"],
        )
        for expertise in (Constant(), Embedded(), Skills("phase"))
    },
    "an unknown skill column": (
        world(optional=["phase"]), {"expertise": Skills("mood")}, ["'mood'", "'phase'"],
    ),
    "dynamics of a constant": (
        world(), {"expertise": Constant(), "dynamics": LatentDynamics()},
        ["LatentDynamics", "Constant has none", "use Embedded"],
    ),
    "dynamics of nobody's errors": (
        world(), {"expertise": Perfect(), "dynamics": LatentDynamics()}, ["Perfect has none", "dynamics=None"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "settings", "fragments"), ILLEGAL.values(), ids=ILLEGAL.keys())
def test_parts_that_do_not_go_together_are_refused_in_one_sentence(data, settings, fragments):
    with pytest.raises(ileed.IleedError) as refusal:
        fit(data, **settings)
    sentence = str(refusal.value)
    assert "\n" not in sentence
    for fragment in fragments:
        assert fragment in sentence, sentence


@pytest.mark.parametrize(
    ("make", "fragments"),
    [
        (lambda: Ileed(restarts=0), ["restarts is 0", "one or more"]),
        (lambda: Ileed(steps=0), ["steps is 0"]),
        (lambda: bc(clip=0.0), ["clip is 0.0"]),
        (lambda: LatentDynamics(weight=-1.0), ["-1.0", "zero or more"]),
        (lambda: LatentDynamics(weight=float("nan")), ["nan", "zero or more"]),
        (lambda: LatentDynamics(hidden=(0,)), ["(0,)"]),
    ],
    ids=["no restarts", "no steps", "no clip", "negative weight", "NaN weight", "an empty layer"],
)
def test_impossible_settings_are_refused_before_any_data_are_seen(make, fragments):
    with pytest.raises(SettingsError) as refusal:
        make()
    for fragment in fragments:
        assert fragment in str(refusal.value)


def test_one_demonstrator_can_be_cloned():
    fitted = fit(world(people=1), expertise=Perfect())
    assert not fitted.estimates_expertise
    assert fitted.expertise.by_demonstrator() == {"ann": 1.0}


# --- defaults


@pytest.mark.parametrize(
    ("discrete", "policy", "demonstrator", "expertise"),
    [(True, CategoricalMLP, UniformMixture, Embedded), (False, MixtureMLP, SignalScaling, Constant)],
    ids=["discrete", "continuous"],
)
def test_defaults_follow_the_kind_of_action(discrete, policy, demonstrator, expertise):
    parts = fit(world(discrete=discrete)).joint.parts
    assert isinstance(parts.policy, policy)
    assert isinstance(parts.demonstrator, demonstrator)
    assert isinstance(parts.expertise, expertise)


@pytest.mark.parametrize(("floating", "normalised"), [(True, True), (False, False)], ids=["measured", "whole numbers"])
def test_inputs_are_put_in_units_of_their_spread_where_they_are_measured(floating, normalised):
    data = world(floating=floating)
    normaliser = fit(data).normaliser
    seen = normaliser(torch.tensor(data.observations))
    assert len(seen) == 2  # the third input never varies
    centred = torch.allclose(seen.mean(1), torch.zeros(2), atol=1e-6) and torch.allclose(
        seen.std(1, correction=0), torch.ones(2), atol=1e-5
    )  # float32 over 30 steps
    assert centred == normalised
    as_they_come = fit(data, normalise=False).normaliser(torch.tensor(data.observations))
    assert torch.equal(as_they_come.T, torch.tensor(data.observations[:, :2]).float())


def test_settings_are_frozen_and_compare_by_value():
    assert Ileed(restarts=3) == Ileed(restarts=3) != Ileed(restarts=4)
    assert bc(restarts=3) == Ileed(expertise=Perfect(), restarts=3)
    with pytest.raises(AttributeError):
        Ileed().restarts = 4


# --- how the policy that acts is optimised


@pytest.mark.parametrize(("steps", "optimised"), [(60, 2_000), (10_240, 4_000), (200_000, 8_000)])
def test_a_policy_of_continuous_actions_is_optimised_for_two_hundred_epochs_within_bounds(steps, optimised):
    found = Ileed().for_data(world([steps // 2] * 2, discrete=False))
    assert (found.restarts, found.steps, found.batch_size, found.decay) == (2, optimised, 512, True)


@pytest.mark.parametrize(
    ("policy", "discrete"), [(None, True), (MixtureLSTM(), False)], ids=["discrete actions", "recurrent policy"]
)
def test_other_policies_are_optimised_as_in_the_paper(policy, discrete):
    found = Ileed(policy=policy).for_data(world(discrete=discrete))
    assert (found.restarts, found.optimiser) == (20, OptimiserSettings(steps=2_000, learning_rate=1e-3, decay=False))


def test_what_a_user_sets_is_kept_and_a_learning_rate_of_their_own_does_not_decay():
    own = Ileed(restarts=3, steps=7, learning_rate=0.1, batch_size=5, ensemble=2)
    assert own.for_data(world(discrete=False)) == replace(own, decay=False)
    assert Ileed(ensemble=5).for_data(world(discrete=False)).restarts == 5


def test_ratings_do_not_depend_on_how_the_policy_that_acts_is_optimised():
    data = world([12] * 9, discrete=False)
    how = {"policy": MixtureMLP(hidden=(4,)), "folds": 2, "steps": 30}
    short, long = (
        Ileed(**how, **own).fit(data, seed=0, device="cpu") for own in ({}, {"restarts": 4, "batch_size": 256})
    )
    assert short.expertise.by_demonstrator() == long.expertise.by_demonstrator()


# --- legal actions


@pytest.mark.parametrize("model", [UniformMixture(), Boltzmann()], ids=repr)
@pytest.mark.parametrize("lengths", [(4, 4, 4), (40, 40, 40)], ids=["few places", "many places"])
def test_a_fit_with_legal_actions_ends_with_finite_costs_and_legal_acts(model, lengths):
    data = world(lengths, optional=["legal"], shape=(5,))
    fitted = fit(data, demonstrator=model)
    assert np.isfinite(fitted.restarts.nats_per_action).all()
    for sample in (False, True):
        acted = fitted.policy.act(np.array(data.observations), legal=np.array(data.legal), sample=sample)
        assert data.legal[np.arange(len(data)), acted].all()


# --- the mirror image under OneVersusRest with two actions


@pytest.mark.parametrize("expertise", [Constant(), Embedded(hidden=(3,)), Skills("phase")], ids=repr)
def test_resolving_the_mirror_symmetry_keeps_the_likelihood(expertise):
    """An optimisation whose steps are too short to matter, so that all that changes is which way up each member is."""
    data = world([20] * 6, actions=2, optional=["phase"])
    parts = parts_for(data, OneVersusRest(), expertise)
    how = {"steps": 1, "learning_rate": 1e-12, "skill_learning_rate": 1e-12}
    prepared = prepared_for(data, parts, members=16, **how)
    joint = joint_of(parts, prepared.sizes, range(16))
    raw = raw_batch(data, prepared.sizes, skill="phase" if isinstance(expertise, Skills) else None)

    def told(joint):
        joint = joint.double()
        found = joint.expertise_at(raw).mean(1).detach(), joint.log_likelihood(raw).detach()
        joint.float()
        return found

    before, likelihood_before = told(joint)
    after, likelihood_after = told(optimise(joint, prepared, OptimiserSettings(**how)).joint)
    down = before < 0.5
    assert 0 < down.sum() < 16, "this test needs members of both kinds"
    torch.testing.assert_close(after, torch.where(down, 1 - before, before), rtol=0, atol=1e-6)  # float32 weights
    torch.testing.assert_close(likelihood_after, likelihood_before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_with_two_actions_the_chosen_policy_is_not_inverted(seed):
    """People follow the right action with 0.9, 0.8 and 0.7; an inverted policy would take the wrong one everywhere."""
    data = follows([0.9, 0.8, 0.7], steps=200)
    fitted = fit(
        data, seed=seed, demonstrator=OneVersusRest(), expertise=Constant(), restarts=4, steps=150,
        learning_rate=2e-2, skill_learning_rate=5e-2,
    )  # fmt: skip
    assert fitted.policy.act(np.eye(2, dtype=np.int64)).tolist() == [0, 1]
    assert min(fitted.expertise.by_demonstrator().values()) > 0.5


@pytest.mark.parametrize("demonstrator", [UniformMixture(), OneVersusRest()], ids=repr)
def test_only_the_mirrored_model_is_ever_turned_over(demonstrator):
    """With three actions, or another model, low expertise is an answer and stays."""
    data = world([20] * 6, actions=2 if isinstance(demonstrator, UniformMixture) else 3)
    parts = parts_for(data, demonstrator, Constant())
    how = {"steps": 1, "learning_rate": 1e-12, "skill_learning_rate": 1e-12}
    prepared = prepared_for(data, parts, members=2, **how)
    joint = joint_of(parts, prepared.sizes)
    with torch.no_grad():
        joint.expertise.skill.fill_(-2.0)
    result = optimise(joint, prepared, OptimiserSettings(**how))
    torch.testing.assert_close(result.joint.expertise.skill.detach(), torch.full((2, 3), -2.0))


# --- what comes out


def test_the_better_demonstrator_is_ranked_first():
    """A world of known answer: 0.95 against 0.4 over 300 steps each, 9 standard errors apart."""
    data = follows([0.4, 0.95], steps=300, actions=3)
    fitted = fit(data, expertise=Constant(), restarts=3, steps=300, learning_rate=1e-2, skill_learning_rate=3e-2)
    assert [name for name, _ in fitted.expertise.ranking()] == ["person 1", "person 0"]
    assert fitted.policy.act(np.eye(3, dtype=np.int64)).tolist() == [0, 1, 2]
    assert fitted.estimates_expertise


@pytest.mark.parametrize("expertise", [Constant(), Embedded(hidden=(3,)), Skills("phase")], ids=repr)
def test_expertise_by_demonstrator_is_the_mean_over_their_own_steps(expertise):
    data = world(optional=["phase"])
    fitted = fit(data, expertise=expertise)
    for person, (name, found) in enumerate(fitted.expertise.by_demonstrator().items()):
        own = data.demonstrator == person
        skills = (data.skills["phase"][:, None] == ["grasp", "lift"])[own] if isinstance(expertise, Skills) else None
        at_own_steps = fitted.expertise(np.array(data.observations[own]), name, skills=skills)
        assert found == pytest.approx(at_own_steps.mean(), abs=1e-6)  # float32


def test_expertise_by_skill_is_expertise_where_that_skill_alone_is_called_for():
    fitted = fit(world(optional=["phase"]), expertise=Skills("phase"))
    for name, skills in fitted.expertise.by_skill().items():
        assert list(skills) == ["grasp", "lift"]
        alone = fitted.expertise(np.zeros((2, 3)), name, skills=np.eye(2))
        np.testing.assert_allclose(list(skills.values()), alone, rtol=0, atol=1e-6)  # float32


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_a_policy_acts_as_its_distribution_says(discrete):
    data = world(discrete=discrete)
    policy = fit(data).policy
    distribution = policy.distribution(np.array(data.observations))
    acted = policy.act(np.array(data.observations))
    assert acted.shape == data.actions.shape
    if discrete:
        np.testing.assert_array_equal(acted, distribution.probs.argmax(-1).numpy())
    else:
        means = distribution.component_distribution.base_dist.mean
        heaviest = distribution.mixture_distribution.probs.argmax(-1)
        np.testing.assert_array_equal(acted, means[torch.arange(len(data)), heaviest].numpy())


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_sampled_actions_repeat_after_a_reset_with_the_same_seed(discrete):
    policy = fit(world(discrete=discrete)).policy
    seen = np.zeros((200, 3))

    def draws(seed):
        policy.reset(seed)
        return [policy.act(seen, sample=True) for _ in range(2)]

    first, again, other = draws(4), draws(4), draws(5)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_sampled_actions_follow_the_distribution(discrete):
    """20,000 draws with seed 0; within five standard errors, which a right program leaves once in a million."""
    policy = fit(world(discrete=discrete, actions=3)).policy
    seen = np.ones((20_000, 3))
    policy.reset(0)
    drawn = policy.act(seen, sample=True)
    distribution = policy.distribution(seen[:1])
    if discrete:
        found, expected, spread = np.bincount(drawn, minlength=3) / len(drawn), distribution.probs[0].numpy(), 0.5
    else:
        found, expected = drawn.mean(axis=0), distribution.mean[0].numpy()
        spread = distribution.variance[0].sqrt().numpy()
        np.testing.assert_allclose(drawn.std(axis=0), spread, rtol=0.05)
    assert (np.abs(found - expected) <= 5 * spread / np.sqrt(len(drawn))).all()


def test_the_datas_own_observations_can_be_asked_about_without_a_warning():
    """They are read-only, of which torch warns (once a process, unless told to always) where they are not copied."""
    data = world(optional=["legal"], shape=(5,))
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        fitted = fit(data)
        fitted.policy.act(data.observations, legal=data.legal)
        fitted.policy.predict(data.observations[0])
        fitted.expertise(data.observations, "ann")
        fit(world(discrete=False))
    finally:
        torch.set_warn_always(before)


# --- stable-baselines3


def test_one_observation_or_a_batch_of_them_can_be_predicted():
    policy = fit(world()).policy
    seen = np.zeros((4, 3), dtype=np.int64)
    actions, state = policy.predict(seen, state=None, episode_start=np.zeros(4), deterministic=True)
    assert actions.tolist() == policy.act(seen).tolist()
    assert state is None
    action, _ = policy.predict(seen[0])
    assert np.shape(action) == ()
    assert action == actions[0]


def test_stable_baselines3_evaluates_a_policy():
    gymnasium = pytest.importorskip("gymnasium")
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    monitor = pytest.importorskip("stable_baselines3.common.monitor")

    class Copying(gymnasium.Env):
        """Ten steps; doing what is shown earns one."""

        observation_space = gymnasium.spaces.Box(0, 1, shape=(2,), dtype=np.int64)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return self.shown(), {}

        def shown(self):
            self.right = int(self.np_random.integers(2))
            return np.eye(2, dtype=np.int64)[self.right]

        def step(self, action):
            reward = float(action == self.right)
            self.steps += 1
            return self.shown(), reward, self.steps == 10, False, {}

    data = follows([0.95, 0.6], steps=200)
    fitted = fit(data, expertise=Constant(), restarts=2, steps=200, learning_rate=2e-2)
    mean, spread = evaluation.evaluate_policy(fitted.policy, monitor.Monitor(Copying()), n_eval_episodes=5)
    assert (mean, spread) == (10.0, 0.0)


# --- questions that cannot be answered


def test_an_unknown_demonstrator_is_answered_with_the_known_ones():
    with pytest.raises(DemonstrationError, match=r"no demonstrator 'eve'.*'ann', 'bob', 'cyd'"):
        fit(world()).expertise(np.zeros((1, 3)), "eve")


@pytest.mark.parametrize("shape", [(4, 2), (3,), (2, 3, 3)], ids=str)
def test_observations_of_another_shape_are_refused(shape):
    fitted = fit(world())
    for ask in (fitted.policy.act, fitted.policy.distribution, lambda seen: fitted.expertise(seen, "ann")):
        with pytest.raises(DemonstrationError) as refusal:
            ask(np.zeros(shape))
        assert str(shape) in str(refusal.value)
        assert "(3,)" in str(refusal.value)


@pytest.mark.parametrize(
    ("legal", "fragments"),
    [
        (np.ones((2, 5)), ["(2, 5)", "(2, 3)"]),
        (np.array([[1, 1, 1], [0, 0, 0]]), ["legal"]),
    ],
    ids=["of another width", "nothing legal"],
)
def test_legal_actions_that_leave_no_choice_are_refused(legal, fragments):
    with pytest.raises(DemonstrationError) as refusal:
        fit(world()).policy.act(np.zeros((2, 3)), legal=legal)
    for fragment in fragments:
        assert fragment in str(refusal.value)


def test_observations_that_are_not_numbers_are_refused():
    with pytest.raises(ileed.IleedError, match="NaN"):
        fit(world()).policy.act(np.full((2, 3), np.nan))


def test_expertise_by_skill_needs_skills():
    with pytest.raises(SettingsError, match=r"names no skills.*Skills\(column\)"):
        fit(world()).expertise.by_skill()
    fitted = fit(world(optional=["phase"]), expertise=Skills("phase"))
    with pytest.raises(SettingsError, match=r"pass skills"):
        fitted.expertise(np.zeros((1, 3)), "ann")
    with pytest.raises(ileed.IleedError, match="skills"):
        fitted.expertise(np.zeros((1, 3)), "ann", skills=np.zeros((1, 5)))


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "toaster"])
def test_a_device_that_is_not_there_is_refused(device):
    if device.startswith("cuda") and torch.cuda.device_count() > (7 if ":" in device else 0):
        pytest.skip("this machine has it")
    with pytest.raises(SettingsError, match=rf"device '{device}' cannot be used here.*device='cpu'"):
        Ileed(**TINY).fit(world(), seed=0, device=device)


def test_the_best_device_there_is_is_taken_when_none_is_named():
    found = Ileed(**TINY).fit(world(), seed=0).provenance["device"]
    assert (found == "cpu") == (not torch.cuda.is_available())


def test_someone_without_steps_has_no_estimate_and_ranks_last():
    rows = np.arange(8)
    data = Demonstrations(
        observations=rows[:, None] % 2, actions=rows % 2, demonstrator=rows // 4, episode=rows // 2,
        names=("ann", "bob", "eve"),
    )  # fmt: skip
    expertise = fit(data).expertise
    assert np.isnan(expertise.by_demonstrator()["eve"])
    assert expertise.ranking()[-1][0] == "eve"
