"""The demonstrator model with gains: what it learns is how demonstrators act. Delays, and simulated demonstrators."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_simulation import Corridor, Leaning

import ileed
from ileed.cli import run
from ileed.comparing import CANDIDATES
from ileed.model.demonstrators import UniformMixture
from ileed.simulation import Delayed, LastingErrors, demonstrate
from ileed.tasks import task
from ileed.testing import check_demonstrator_model
from ileed_lab.reach import ReachExpert

MODELS = (
    ileed.SignalScaling(),
    ileed.SignalScaling(per_dimension=False),
    ileed.SignalScaling(gain=False),
    ileed.SignalScaling(offset=True, exempt=(0,), centre=(1.0,) * 2, spread=(2.0,) * 2),
    ileed.SignalScaling(gain=False, per_dimension=False),
)
RHO = np.array([0.9, 0.6, 0.3, 0.15])
OFFSET = np.array([[0.3, 0.0], [-0.3, 0.2], [0.1, -0.4], [-0.1, 0.2]])
GAIN = np.exp([[0.3, 0.0], [-0.3, 0.2], [0.2, -0.2], [-0.2, 0.0]])
SIGMA = 0.1


def simulated(*, offset=0.0, gain=1.0, people=4, episodes=24, length=25, seed=0, gripper=False):
    """Demonstrators of `RHO` who follow a line, with noise that scales with their gain."""
    random = np.random.default_rng(seed)
    who = np.repeat(np.arange(people), episodes * length) % 4
    count = len(who)
    seen = random.uniform(-1, 1, size=(count, 3)).astype(np.float32)
    mean = seen @ np.array([[1.0, 0.2], [-0.5, 1.0], [0.0, 0.5]])
    noise = SIGMA / np.sqrt(RHO[who])[:, None] * random.normal(size=(count, 2))
    bias, factor = (np.broadcast_to(each, (4, 2))[who] for each in (offset, gain))
    actions = factor * (mean + noise) + bias
    if gripper:
        actions = np.column_stack([actions, np.where(seen[:, 0] > 0, 1.0, -1.0)])
    return ileed.Demonstrations(
        observations=seen,
        actions=actions.astype(np.float32),
        demonstrator=np.repeat(np.arange(people), episodes * length),
        episode=np.arange(count) // length,
        names=tuple(f"person {k}" for k in range(people)),
    )


def method(model, **settings):
    usual = {
        "policy": ileed.MixtureMLP(hidden=(), modes=1, shared_standard_deviations=True),
        "expertise": ileed.Constant(),
        "restarts": 1,
        "steps": 250,
        "learning_rate": 0.1,
        "skill_learning_rate": 0.1,
        "folds": 0,
    }
    return ileed.Ileed(demonstrator=model, **(usual | settings))


def relative(fitted) -> np.ndarray:
    found = np.array(list(fitted.expertise.by_demonstrator().values()))
    return found / found.mean()


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_every_model_keeps_the_laws_of_demonstrator_models(model):
    check_demonstrator_model(model, actions=2)


def test_offsets_gains_and_expertise_are_recovered():
    """600 steps each: offsets have standard errors of 0.01 at most, gains of 0.02, relative expertise of 4 %."""
    data = simulated(offset=OFFSET, gain=GAIN)
    model = ileed.SignalScaling(offset=True, centre=(0.0, 0.0))
    fitted = method(model, steps=500).fit(data, seed=0, device="cpu")
    np.testing.assert_allclose(fitted.slips["offset"], OFFSET - OFFSET.mean(0), atol=0.04)
    np.testing.assert_allclose(fitted.slips["gain"], GAIN, atol=0.06)
    np.testing.assert_allclose(relative(fitted), RHO / RHO.mean(), rtol=0.15)


def test_small_actions_with_small_noise_are_as_expert_as_large_ones():
    """All have the same signal-to-noise ratio; `VarianceScaling` does not see that."""
    size = np.array([0.25, 0.5, 1.0, 2.0])
    data, random = simulated(), np.random.default_rng(1)
    mean = data.observations @ np.array([[1.0, 0.2], [-0.5, 1.0], [0.0, 0.5]])
    actions = size[data.demonstrator][:, None] * (mean + SIGMA * random.normal(size=mean.shape))
    data = replace(data, actions=actions.astype(np.float32))
    own = relative(method(ileed.SignalScaling(centre=(0.0, 0.0)), steps=500).fit(data, seed=0, device="cpu"))
    np.testing.assert_allclose(own, 1, atol=0.25)
    paper = relative(method(ileed.VarianceScaling(), steps=500).fit(data, seed=0, device="cpu"))
    assert paper.max() > 3 * paper.min()


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_mini_batches_and_the_whole_have_the_same_cost(model):
    data = simulated(offset=OFFSET, episodes=4)
    found = method(model, steps=30, batch_size=50).fit(data, seed=0, device="cpu")
    whole = method(model, steps=30, batch_size=len(data)).fit(data, seed=0, device="cpu")
    for fitted in (found, whole):
        np.testing.assert_allclose(fitted.nats(data).mean(), fitted.nats_per_action, rtol=1e-5)


def test_without_parameters_of_its_own_it_is_variance_scaling():
    data = simulated(episodes=4)
    models = ileed.SignalScaling(gain=False, per_dimension=False), ileed.VarianceScaling()
    own, paper = (method(model, steps=50).fit(data, seed=0, device="cpu").nats_per_action for model in models)
    assert own == pytest.approx(paper, abs=1e-5)


def test_a_recurrent_policy_learns_gains_too():
    policy = ileed.MixtureLSTM(hidden=(16,), modes=1, shared_standard_deviations=True)
    data = simulated(gain=GAIN, episodes=12)
    model = ileed.SignalScaling(centre=(0.0, 0.0))
    fitted = method(model, policy=policy, learning_rate=0.02, steps=200).fit(data, seed=0, device="cpu")
    np.testing.assert_allclose(fitted.slips["gain"], GAIN, atol=0.15)
    np.testing.assert_allclose(fitted.nats(data).mean(), fitted.nats_per_action, rtol=1e-4)


def test_a_binary_dimension_has_no_offset_and_no_gain():
    fitted = method(ileed.SignalScaling(offset=True), steps=100).fit(
        simulated(offset=OFFSET, episodes=8, gripper=True), seed=0, device="cpu"
    )
    assert fitted.joint.parts.demonstrator.exempt == (2,)
    assert (fitted.slips["offset"][:, 2] == 0).all()
    assert (fitted.slips["gain"][:, 2] == 1).all()
    assert (fitted.slips["offset"][:, :2] != 0).all()


def test_demonstrators_keep_their_gains_whoever_else_is_there():
    """Gains are measured from the mean over the demonstrators of the fit, not over those who are assessed."""
    fitted = method(ileed.SignalScaling(), steps=20).fit(simulated(gain=GAIN, episodes=3), seed=0, device="cpu")
    model, module = fitted.joint.parts.demonstrator, fitted.joint.demonstrator
    few = model.anchored(module)
    few.get_parameter("gain").data = few.get_parameter("gain").data[..., 2:]
    with torch.no_grad():
        np.testing.assert_array_equal(model.slips(few)["gain"], model.slips(module)["gain"][:, 2:])
    np.testing.assert_allclose(np.log(fitted.slips["gain"]).mean(0), 0, atol=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_runs_are_saved_and_loaded(model, tmp_path):
    fitted = method(model, steps=20).fit(simulated(episodes=3), seed=0, device="cpu")
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    assert loaded.joint.parts.demonstrator == fitted.joint.parts.demonstrator
    for name, value in fitted.slips.items():
        np.testing.assert_array_equal(loaded.slips[name], value)
    data = simulated(episodes=3)
    np.testing.assert_array_equal(loaded.nats(data), fitted.nats(data))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"shrinkage": -1.0}, "shrinkage"),
        ({"spread": (1.0, 0.0)}, "spread"),
        ({"centre": (float("nan"), 0.0)}, "centre"),
        ({"horizon": 0}, "horizon"),
        ({"horizon": "soon"}, "horizon"),
        ({"horizon": "0s"}, "horizon"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, says):
    with pytest.raises(ileed.SettingsError, match=says):
        ileed.SignalScaling(**settings)


def test_a_centre_of_other_dimensions_is_refused():
    with pytest.raises(ileed.SettingsError, match="centre has 3 numbers but actions have 2"):
        method(ileed.SignalScaling(centre=(0.0,) * 3), steps=1).fit(simulated(episodes=2), seed=0, device="cpu")


# --- choosing


@pytest.fixture
def one_restart(monkeypatch):
    """One restart of each fold instead of six: these optimisations have no poor starts."""
    monkeypatch.setattr("ileed.fitted.model_choice.RESTARTS", 1)


@pytest.mark.usefixtures("one_restart")
def test_held_out_episodes_prefer_the_model_that_demonstrators_follow():
    plain, gains = ileed.SignalScaling(gain=False, per_dimension=False), ileed.SignalScaling()
    models = [plain, gains, ileed.SignalScaling(offset=True)]
    few = method(None, steps=60)
    for data, right in (
        (simulated(episodes=6), 0),
        (simulated(gain=GAIN**2, episodes=6), 1),
        (simulated(gain=GAIN**2, offset=OFFSET, episodes=6), 2),
    ):
        assert ileed.compare(data, seed=0, models=models, method=few, device="cpu").chosen == right


@pytest.mark.usefixtures("one_restart")
def test_auto_compares_the_models_of_continuous_actions_and_the_report_shows_what_was_learned(tmp_path):
    data = simulated(gain=GAIN**2, offset=OFFSET, episodes=6)
    fitted = method("auto", steps=60).fit(data, seed=0, device="cpu")
    assert fitted.comparison.models[fitted.comparison.chosen] == "SignalScaling(offset=True)"
    assert len(fitted.comparison.models) == sum(not model.discrete for model in CANDIDATES)
    fitted.save(tmp_path / "run")
    ileed.report(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "offset of action 0" in page
    assert "gain of action 1" in page


# --- delays


@pytest.fixture(scope="module")
def late() -> ileed.Demonstrations:
    """Two people of five act at once, the others on what they saw two steps ago; actions are discrete."""
    random = np.random.default_rng(0)
    state = random.integers(3, size=(5, 20, 30))
    lag = np.array([0, 2, 2, 2, 2])
    step = np.maximum(np.arange(30) - lag[:, None, None], 0) * np.ones((5, 20, 1), dtype=int)
    right = np.take_along_axis(state, step, axis=2)
    action = np.where(random.random(state.shape) < 0.8, right, random.integers(3, size=state.shape))
    return ileed.Demonstrations(
        observations=np.eye(3)[state.ravel()],
        actions=action.ravel(),
        demonstrator=np.repeat(np.arange(5), 600),
        episode=np.arange(3000) // 30,
        names=tuple(f"person {k}" for k in range(5)),
    )


@pytest.mark.usefixtures("one_restart")
def test_the_delay_of_most_people_is_found_and_who_has_another(late):
    policy, expertise = ileed.CategoricalMLP(hidden=()), ileed.Constant()
    quick = ileed.Ileed(policy=policy, expertise=expertise, steps=60, learning_rate=0.1, skill_learning_rate=0.1)
    found = ileed.compare_delays(late, seed=0, delays=(0, 1, 2, 3), method=quick, device="cpu")
    assert found.chosen == 2
    assert found.by_demonstrator["person 0"] == 0
    assert all(found.by_demonstrator[f"person {k}"] == 2 for k in range(1, 5))
    assert "delay 2 is preferred" in found.sentence()
    assert "1 of 5 people prefer another (person 0 0)" in found.sentence()
    assert found.table()["model"].to_pylist() == [f"delay {k}" for k in range(4)]


def test_a_delay_shifts_what_was_seen_within_episodes_and_nothing_else(late):
    shifted = late.delayed({"person 1": 2, "person 3": 40})
    one = slice(600, 630)
    np.testing.assert_array_equal(shifted.observations[600:603], late.observations[[600] * 3])
    np.testing.assert_array_equal(shifted.observations[one][2:], late.observations[one][:-2])
    np.testing.assert_array_equal(shifted.observations[1800:1830], late.observations[[1800] * 30])
    np.testing.assert_array_equal(shifted.observations[:600], late.observations[:600])
    np.testing.assert_array_equal(shifted.actions, late.actions)
    assert late.delayed(0).equals(late)
    assert late.delayed(3).equals(late.delayed(1).delayed(2))


@pytest.mark.parametrize(("delay", "says"), [(-1, "the delay is -1"), ({"nobody": 1}, "no demonstrator 'nobody'")])
def test_a_delay_of_nobody_or_into_the_future_is_refused(late, delay, says):
    with pytest.raises(ileed.DemonstrationError, match=says):
        late.delayed(delay)


@pytest.mark.usefixtures("one_restart")
def test_the_command_compares_delays(late, tmp_path, capsys):
    ileed.write_parquet(late, tmp_path / "data.parquet")
    words = ["compare", str(tmp_path / "data.parquet"), "--delays", "0", "2", "--steps", "20", "--json"]
    words += ["--expertise", "Constant()", "--policy", "CategoricalMLP(hidden=())", "--learning-rate", "0.2"]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["delay"] == 2


# --- simulated people


def test_simulated_people_err_as_they_were_told():
    """Two kinds of people, 1,600 steps each: a correlation has a standard error of 0.03."""
    offset, gain = np.array([[0.3, -0.2, 9.0], [-0.3, 0.2, 9.0]]), np.array([[1.5, 1.0, 9.0], [0.5, 1.0, 9.0]])
    rho, kind = np.array([0.9, 0.5]), np.tile([0, 1], 8)
    noise = LastingErrors(offset=offset[kind], gain=gain[kind], correlation=[0.6, 0.0, 0.9], exempt=(2,))
    expert = ReachExpert(standard_deviation=0.1)
    played = demonstrate(task("robot/reach"), expert, skill=rho[kind], steps=200, seed=0, demonstrator=noise)
    own = played.demonstrator % 2
    mean, scale = expert.mean(played.observations), expert.distribution(played.observations).stddev.numpy()
    apart = (played.actions - gain[own] * mean - offset[own]) * np.sqrt(rho[own])[:, None] / scale
    inside = played.episode[1:] == played.episode[:-1]
    for person in (0, 1):
        np.testing.assert_allclose(apart[own == person, :2].mean(0), 0, atol=0.2)
        np.testing.assert_allclose(apart[own == person, :2].std(0), 1, atol=0.1)
    for dimension, correlation in enumerate((0.6, 0.0)):
        found = np.corrcoef(apart[1:, dimension][inside], apart[:-1, dimension][inside])[0, 1]
        assert found == pytest.approx(correlation, abs=0.08)
    np.testing.assert_allclose(played.actions[:, 2], mean[:, 2], atol=0.06)


def test_simulated_people_who_are_late_act_on_what_they_saw():
    corridor = Corridor()
    certain = Delayed(UniformMixture(), [0, 3])
    data = demonstrate(corridor, Leaning(), skill=[1.0, 1.0], steps=40, seed=0, demonstrator=certain)
    np.testing.assert_array_equal(data.delayed({"demonstrator 2": 3}).observations[:, 0], data.actions)
    assert (data.observations[:, 0] != data.actions).any()


def test_without_errors_that_last_simulated_people_are_those_of_variance_scaling():
    options = {"skill": [0.9, 0.5], "steps": 50, "seed": 0}
    own, other = (
        demonstrate(task("robot/reach"), ReachExpert(), demonstrator=noise, **options)
        for noise in (LastingErrors(), ileed.VarianceScaling())
    )
    np.testing.assert_allclose(own.actions, other.actions)
