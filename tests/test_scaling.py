"""The demonstrator model with gains: what it learns is how demonstrators act. And simulated demonstrators."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

import ileed
from ileed.envs import task
from ileed.envs.simulation import demonstrate
from ileed.model.distributions import among, mixture, mixture_parts
from ileed.selection import CANDIDATES
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
SLOPES = np.array([[1.0, 0.2], [-0.5, 1.0], [0.0, 0.5]])


def simulated(*, offset=0.0, gain=1.0, people=4, episodes=24, length=25, seed=0, gripper=False):
    """Demonstrators of `RHO` who follow a line, with noise that scales with their gain."""
    random = np.random.default_rng(seed)
    who = np.repeat(np.arange(people), episodes * length) % 4
    count = len(who)
    seen = random.uniform(-1, 1, size=(count, 3)).astype(np.float32)
    mean = seen @ SLOPES
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
    fitted = method(model, steps=500, decay=True).fit(data, seed=0, device="cpu")
    np.testing.assert_allclose(fitted.slips["offset"], OFFSET - OFFSET.mean(0), atol=0.04)
    np.testing.assert_allclose(fitted.slips["gain"], GAIN, atol=0.06)
    np.testing.assert_allclose(relative(fitted), RHO / RHO.mean(), rtol=0.15)


@pytest.mark.parametrize("least", [0.0, 0.01])
def test_the_policy_has_the_gain_of_those_whose_episodes_count(least):
    """Demonstrators of hardly any weight would otherwise take any gain, so that the policy could have any scale."""
    data = simulated()
    weights = np.where(data.episode_demonstrator == 0, 1.0, least)
    fitted = method(ileed.SignalScaling(centre=(0.0, 0.0)), steps=500, learning_rate=2e-2).fit(
        data, seed=0, device="cpu", weights=weights
    )
    found, true = np.asarray(fitted.policy.distribution(data.observations).mean), data.observations @ SLOPES
    slope = (found * true).sum(0) / np.square(true).sum(0)
    np.testing.assert_allclose(slope, 1, atol=0.05)  # about 600 steps, noise of SIGMA
    if least == 0.0:
        np.testing.assert_allclose(fitted.slips["gain"][0], 1, atol=0.02)


def test_small_actions_with_small_noise_are_as_expert_as_large_ones():
    """All have the same signal-to-noise ratio; `VarianceScaling` does not see that."""
    size = np.array([0.25, 0.5, 1.0, 2.0])
    data, random = simulated(), np.random.default_rng(1)
    mean = data.observations @ SLOPES
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
    monkeypatch.setattr("ileed.selection.MODEL_RESTARTS", 1)


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


# --- simulated people


@dataclass(frozen=True, eq=False, kw_only=True)
class LastingErrors:
    """Demonstrators with offsets, gains and autocorrelated noise.

    Each is a number, (dimension,) numbers, or (person, dimension) numbers in the order of the demonstrators. A mean of
    the policy is multiplied by `gain`, and `offset` is added; `correlation` is that of noise with the step before.
    """

    offset: Any = 0.0
    gain: Any = 1.0
    correlation: Any = 0.0
    exempt: tuple[int, ...] = ()
    """Dimensions of the action without errors of any kind."""
    previous: Any = field(default=float("nan"), repr=False)
    """The residual of the step before; NaN where there is none."""
    discrete = False

    def after(self, previous: torch.Tensor) -> LastingErrors:
        """The same, after these residuals (env, dimension)."""
        return replace(self, previous=previous)

    def observed(self, policy: Any, expertise: torch.Tensor) -> Any:
        """The demonstrator's own distribution of actions; `expertise` has the policy's batch shape."""
        logits, means, standard_deviations = mixture_parts(policy)
        each = (self.offset, self.gain, self.correlation, self.previous)
        offset, gain, correlation, previous = (self._of_rows(value, means) for value in each)
        known = ~previous.isnan()
        correlation = correlation * known
        moved = gain * means + offset + correlation * previous.nan_to_num()
        left = standard_deviations * (1 - correlation.square()).sqrt()
        if self.exempt:
            moved = torch.where(among(self.exempt, means), means, moved)
            left = torch.where(among(self.exempt, means), standard_deviations, left)
        return ileed.VarianceScaling(exempt=self.exempt).observed(mixture(logits, moved, left), expertise)

    @staticmethod
    def _of_rows(value: Any, means: torch.Tensor) -> torch.Tensor:
        """(row, 1, dimension), beside means (row, mode, dimension)."""
        found = torch.as_tensor(np.asarray(value), dtype=means.dtype)
        return found.expand(means.shape[0], means.shape[-1]).unsqueeze(-2)


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


def test_without_errors_that_last_simulated_people_are_those_of_variance_scaling():
    options = {"skill": [0.9, 0.5], "steps": 50, "seed": 0}
    own, other = (
        demonstrate(task("robot/reach"), ReachExpert(), demonstrator=noise, **options)
        for noise in (LastingErrors(), ileed.VarianceScaling())
    )
    np.testing.assert_allclose(own.actions, other.actions)
