"""Rating people by a policy that is held fixed: the likelihood's own answer, honest intervals, and shrinkage."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.optimize import brentq, minimize_scalar
from strategies import follows, world
from torch.distributions import Categorical

import ileed
from ileed.data import Demonstrations
from ileed.errors import DemonstrationError, SettingsError
from ileed.methods import rate

ACTIONS = 6
MODELS = (ileed.UniformMixture(), ileed.OneVersusRest(), ileed.Boltzmann())


@cache
def fit(model=MODELS[0], *, legal=False):
    """A fit whose policy takes the observation's own number, nearly always."""
    data = follows([0.97, 0.97], steps=300, actions=ACTIONS)
    if legal:
        data = replace(data, legal=np.ones((len(data), ACTIONS), dtype=bool))
    method = ileed.Ileed(
        policy=ileed.CategoricalMLP(hidden=(8,)),
        demonstrator=model,
        expertise=ileed.Perfect(),
        restarts=1,
        steps=300,
        learning_rate=0.03,
    )
    return method.fit(data, seed=0, device="cpu")


def play(fitted, expertise, steps, *, seed, each=10, legal=False):
    """What people of known expertise do: actions drawn from the fit's own model of them, each `each` of an episode."""
    random = np.random.default_rng(seed)
    who = np.repeat(np.arange(len(steps)), steps)
    number = random.integers(0, ACTIONS, size=len(who))
    seen = np.eye(ACTIONS, dtype=np.int64)[number]
    allowed = None
    if legal:
        allowed = random.random((len(who), ACTIONS)) < 0.5
        allowed[np.arange(len(who)), number] = True
    rho = torch.tensor(np.asarray(expertise, dtype=np.float32)[who])
    policy = fitted.policy.distribution(seen, legal=allowed)
    acts = fitted.joint.parts.demonstrator.observed(policy, rho).probs.double().numpy()
    actions = (acts.cumsum(1) / acts.sum(1, keepdims=True) < random.random((len(who), 1))).sum(1)
    first = np.cumsum(steps) - np.asarray(steps)
    return Demonstrations(
        observations=seen,
        actions=actions,
        demonstrator=who,
        episode=who * 10_000 + (np.arange(len(who)) - first[who]) // each,
        names=tuple(f"person {k}" for k in range(len(steps))),
        legal=allowed,
        action_count=ACTIONS,
    )


def log_likelihood(fitted, data):
    """The sum over steps of log p(action), from the model's definition, one expertise at a time."""
    policy = fitted.policy.distribution(data.observations, legal=data.legal)
    doubled = Categorical(logits=policy.logits.double())
    actions = torch.tensor(data.actions)

    def at(rho):
        observed = fitted.joint.parts.demonstrator.observed(doubled, torch.full((len(data),), float(rho)).double())
        return float(observed.logits[torch.arange(len(data)), actions].sum())

    return at


@pytest.mark.parametrize(
    ("model", "legal"),
    [*((model, False) for model in MODELS), (ileed.UniformMixture(), True), (ileed.Boltzmann(), True)],
    ids=repr,
)
def test_the_estimate_is_the_top_of_the_likelihood_and_its_interval_where_that_has_fallen(model, legal):
    """Against a search along the plain sum; the grid's points lie at most 0.0016 apart and are interpolated."""
    fitted = fit(model, legal=legal)
    data = play(fitted, [0.35, 0.8], [90, 160], seed=1, legal=legal)
    found = rate(fitted, data, pooled=False, confidence_level=0.9)
    for person, name in enumerate(data.names):
        at = log_likelihood(fitted, data.by(name))
        top = minimize_scalar(lambda rho, at=at: -at(rho), bounds=(0, 1), method="bounded", options={"xatol": 1e-6})
        assert found.alone.expertise[person] == pytest.approx(top.x, abs=2e-4)
        for end, side in ((found.alone.low, 0.0), (found.alone.high, 1.0)):
            crossing = brentq(lambda rho, at=at, top=top: at(rho) + top.fun + 2.705543 / 2, side, top.x)
            assert end[person] == pytest.approx(crossing, abs=2e-4)


@pytest.mark.parametrize("legal", [False, True])
@pytest.mark.parametrize("rho", [0.3, 0.75, 0.95])
def test_intervals_hold_the_truth_as_often_as_they_say(rho, legal):
    """Of 400 players 95 % are held, but for a standard error of 1.1 %: the bounds lie three and a half of them off."""
    fitted = fit(legal=legal)
    data = play(fitted, [rho] * 400, [150] * 400, seed=2, legal=legal)
    found = rate(fitted, data, pooled=False).alone
    held = ((found.low <= rho) & (rho <= found.high)).mean()
    assert 0.91 <= held <= 0.99


def test_pooled_intervals_hold_the_truth_and_are_shorter():
    """400 people drawn from one population, with 20 steps each: few enough that each one's own steps say little."""
    rho = np.random.default_rng(3).beta(8, 3, size=400)
    fitted = fit()
    found = rate(fitted, play(fitted, rho, [20] * 400, seed=3))
    pooled, alone = found.pooled, found.alone
    assert 0.91 <= ((pooled.low <= rho) & (rho <= pooled.high)).mean() <= 0.99
    assert (pooled.high - pooled.low).mean() < 0.85 * (alone.high - alone.low).mean()
    assert np.square(pooled.expertise - rho).mean() < 0.85 * np.square(alone.expertise - rho).mean()
    assert found.population.mean == pytest.approx(8 / 11, abs=0.03)
    assert found.population.spread == pytest.approx(np.sqrt(8 * 3 / 12) / 11, abs=0.03)


def test_pooling_draws_people_to_the_others_the_more_the_fewer_steps_they_have():
    """Four newcomers never err, in ever more steps: alone all are called perfect, pooled the longer record counts."""
    fitted = fit()
    crowd = play(fitted, np.linspace(0.4, 0.8, 30), [200] * 30, seed=4)
    steps = np.array([3, 12, 48, 192])
    who = np.repeat(np.arange(4), steps)
    number = np.arange(len(who)) % ACTIONS
    flawless = Demonstrations(
        observations=np.eye(ACTIONS, dtype=np.int64)[number],
        actions=number,
        demonstrator=who,
        episode=who,
        names=("3", "12", "48", "192"),
        action_count=ACTIONS,
    )
    population = rate(fitted, crowd).population
    found = rate(fitted, flawless, pooled=population)
    assert found.population is population
    distance = found.alone.expertise - found.pooled.expertise
    assert (np.diff(distance) < -0.01).all()
    assert (found.pooled.expertise > population.mean).all()
    assert (np.diff(found.pooled.high - found.pooled.low) < 0).all()


def test_few_people_are_not_claimed_to_be_alike():
    """Two people whose records agree may still differ: the population keeps a spread, and a newcomer room."""
    fitted = fit()
    found = rate(fitted, play(fitted, [0.7, 0.7], [300, 300], seed=5))
    assert found.population.spread > 0.1


def test_a_person_is_rated_alone_as_among_others():
    fitted = fit()
    data = play(fitted, [0.2, 0.6, 0.9], [40, 60, 80], seed=6)
    among = rate(fitted, data, pooled=False)
    for person, name in enumerate(data.names):
        alone = rate(fitted, data.by(name), pooled=False)
        assert alone[name] == pytest.approx(among[name], abs=1e-12)
        assert among[name].expertise == among.alone.expertise[person]


def test_resampled_episodes_allow_for_steps_that_go_together():
    """Each step told ten times over in its episode: the likelihood believes them all, ten times the evidence.

    Both intervals agree where steps are independent; so repeated, the honest one is about sqrt(10) times as wide.
    """
    fitted = fit()
    once = play(fitted, [0.6], [150], seed=7, each=1)
    ten = np.repeat(np.arange(len(once)), 10)
    often = Demonstrations(
        observations=once.observations[ten],
        actions=once.actions[ten],
        demonstrator=once.demonstrator[ten],
        episode=once.episode[ten],
        action_count=ACTIONS,
    )
    widths = {}
    for name, data in (("once", once), ("often", often)):
        for kind in ("likelihood", "episodes"):
            found = rate(fitted, data, pooled=False, interval=kind).alone
            widths[name, kind] = float(found.high[0] - found.low[0])
    assert widths["often", "episodes"] == pytest.approx(widths["once", "episodes"], rel=0.01)
    assert widths["once", "episodes"] == pytest.approx(widths["once", "likelihood"], rel=0.15)
    assert widths["often", "episodes"] > 2.5 * widths["often", "likelihood"]


def test_one_episode_says_nothing_of_how_episodes_differ():
    fitted = fit()
    found = rate(fitted, play(fitted, [0.6], [30], seed=8, each=30), pooled=False, interval="episodes").alone
    assert (found.low[0], found.high[0]) == (0, 1)
    assert 0 < found.expertise[0] < 1


def test_the_same_call_gives_the_same_bits():
    fitted = fit()
    data = play(fitted, [0.6, 0.8], [50, 40], seed=9)
    first, second = (rate(fitted, data, interval="episodes") for _ in range(2))
    np.testing.assert_array_equal([first.alone, first.pooled], [second.alone, second.pooled])


def test_ratings_read_as_a_table_and_as_a_mapping():
    fitted = fit()
    data = play(fitted, [0.3, 0.9], [50, 70], seed=10)
    found = rate(fitted, data)
    assert (found.names, found.steps.tolist()) == (("person 0", "person 1"), [50, 70])
    assert found["person 1"].expertise == found.by_demonstrator()["person 1"] == found.pooled.expertise[1]
    assert str(found).splitlines()[0].startswith("person 1: 0.")
    with pytest.raises(KeyError, match="'nobody'"):
        found["nobody"]


def test_what_cannot_be_rated_is_refused():
    fitted = fit()
    data = play(fitted, [0.5], [20], seed=11)
    with pytest.raises(SettingsError, match="confidence_level is 95"):
        rate(fitted, data, confidence_level=95)
    with pytest.raises(SettingsError, match="'bootstrap'"):
        rate(fitted, data, interval="bootstrap")
    with pytest.raises(DemonstrationError, match="7 discrete actions and the fit 6"):
        rate(fitted, replace(data, action_count=7))
    with pytest.raises(DemonstrationError, match="legal actions"):
        rate(fitted, replace(data, legal=np.ones((len(data), ACTIONS), dtype=bool)))
    with pytest.raises(SettingsError, match="'ghost' has no step"):
        rate(fitted, replace(data, names=(*data.names, "ghost")))
    with pytest.raises(DemonstrationError, match="continuous"):
        rate(fitted, world(shape=(ACTIONS,), discrete=False))


# --- by a policy that is no fit


class FollowsTheObservation:
    """A policy written by hand: the observation's own number with probability 0.97, among legal actions."""

    def distribution(self, observations, *, legal=None):
        probs = torch.where(torch.tensor(observations) > 0, 0.97, 0.03 / (ACTIONS - 1)).double()
        return Categorical(probs=probs if legal is None else probs * torch.tensor(legal))


@pytest.mark.parametrize("legal", [False, True])
@pytest.mark.parametrize("model", [ileed.UniformMixture(), ileed.Boltzmann()], ids=repr)
def test_people_are_rated_by_a_fit_its_policy_or_its_probabilities_alike(model, legal):
    fitted = fit(model, legal=legal)
    data = play(fitted, [0.35, 0.8], [90, 160], seed=1, legal=legal)
    expected = rate(fitted, data, interval="episodes")
    policy = fitted.policy.distribution(data.observations, legal=data.legal)
    for given in (fitted.policy, policy, policy.probs.double().numpy()):
        found = rate(given, data, demonstrator=model, interval="episodes")
        # probabilities in single precision
        np.testing.assert_allclose([found.alone, found.pooled], [expected.alone, expected.pooled], atol=1e-5)


def test_a_policy_written_by_hand_rates_people_without_any_fit():
    """Alone, by the likelihood of `UniformMixture` written out: rho pi(a) + (1 - rho) / 6."""
    fitted = fit()
    data = play(fitted, [0.3, 0.9], [400, 400], seed=12)
    found = rate(FollowsTheObservation(), data, pooled=False)
    right = data.observations[np.arange(len(data)), data.actions] > 0
    for person in range(2):
        taken = np.where(right, 0.97, 0.03 / 5)[data.demonstrator == person]
        top = minimize_scalar(
            lambda rho, taken=taken: -np.log(rho * taken + (1 - rho) / 6).sum(), bounds=(0, 1), method="bounded"
        )
        assert found.alone.expertise[person] == pytest.approx(top.x, abs=2e-4)
    by_power = rate(FollowsTheObservation(), data, demonstrator=ileed.Boltzmann(), pooled=False)
    assert not np.allclose(by_power.alone.expertise, found.alone.expertise, atol=0.01)


REFUSED = {
    "text": ("expert", "policy-invalid"),
    "too few rows": (np.full((3, ACTIONS), 1 / ACTIONS), "policy-shape"),
    "no distribution": (np.full((20, ACTIONS), 0.5), "policy-not-a-distribution"),
    "negative": (np.tile([1.2, -0.2, 0, 0, 0, 0], (20, 1)), "policy-not-a-distribution"),
    "of another number of actions": (
        type("Other", (), {"distribution": lambda self, seen, legal: Categorical(probs=torch.ones(len(seen), 4))})(),
        "policy-actions",
    ),
}


@pytest.mark.parametrize(("policy", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_policy_over_the_actions_is_refused(policy, code):
    with refused(code, SettingsError):
        rate(policy, play(fit(), [0.5], [20], seed=11))


def test_probabilities_of_illegal_actions_are_refused():
    data = play(fit(legal=True), [0.5], [20], seed=11, legal=True)
    with refused("policy-not-a-distribution", SettingsError):
        rate(np.full((20, ACTIONS), 1 / ACTIONS), data)
    with pytest.raises(SettingsError, match=r"VarianceScaling.*by one number"):
        rate(fit(), play(fit(), [0.5], [20], seed=11), demonstrator=ileed.VarianceScaling())
