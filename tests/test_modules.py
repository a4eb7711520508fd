"""Policies that are modules of the user's own: the general path, which agrees with the fast one of our networks."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import ileed
from ileed import Demonstrations, SettingsError
from ileed._torch import stream
from ileed.model.batch import Batch, Sizes
from ileed.model.distributions import mixture_parts
from ileed.model.modules import ModulePolicy
from ileed.model.nets import members
from ileed.testing import check_policy

EXAMPLES = Path(__file__).parents[1] / "examples" / "policies"

STEPS, EPISODES = 240, 12


def demonstrations(*, discrete: bool = True, named: bool = False) -> Demonstrations:
    rng = np.random.default_rng(0)
    state = rng.normal(size=(STEPS, 3)).astype(np.float32)
    frames = rng.integers(0, 256, size=(STEPS, 4, 5, 1), dtype=np.uint8)
    who = np.repeat(["ann", "bob"], STEPS // 2)
    noise = np.where(who == "bob", 1.0, 0.1)
    goal = state[:, 0] + noise * rng.normal(size=STEPS)
    actions = (goal > 0).astype(np.int64) if discrete else np.stack([goal, noise * rng.normal(size=STEPS)], axis=1)
    return Demonstrations(
        observations={"state": state, "frame": frames} if named else state,
        actions=actions,
        demonstrator=who,
        episode=np.repeat(np.arange(EPISODES), STEPS // EPISODES),
    )


class Choosing(nn.Module):
    """Two layers and a choice of two actions."""

    def __init__(self, actions: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, actions))

    def forward(self, observations):
        return Categorical(logits=self.layers(observations))


class Mixed(nn.Module):
    """Two layers and a mixture of three Gaussians over two dimensions, as `MixtureMLP` reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3 * 5))

    def forward(self, observations):
        outputs = self.layers(observations)
        means, spreads = outputs[..., 3:].unflatten(-1, (3, -1)).chunk(2, -1)
        deviations = nn.functional.softplus(spreads) + 1e-3
        return MixtureSameFamily(Categorical(logits=outputs[..., :3]), Independent(Normal(means, deviations), 1))


def method(policy, **settings) -> ileed.Ileed:
    usual = {"restarts": 2, "steps": 20, "expertise": ileed.Constant(), "folds": 0}
    return ileed.Ileed(policy=policy, **(usual | settings))


def fit(policy, data, **settings) -> ileed.Fitted:
    return method(policy, **settings).fit(data, seed=0, device="cpu")


@pytest.mark.parametrize(
    ("own", "general"),
    [
        (ileed.CategoricalMLP(hidden=(4,)), Choosing),
        (ileed.MixtureMLP(hidden=(4,), modes=3, fixed_standard_deviation=None), Mixed),
    ],
    ids=["discrete", "continuous"],
)
def test_our_network_as_a_plain_module_has_its_likelihood_and_gradient(own, general):
    """To rounding of float32: sums of a few products, each to 6e-8."""
    sizes = Sizes(inputs=3, demonstrators=1, actions=2, discrete=own.discrete)
    generators = [stream(0, "init", restart) for restart in range(3)]
    ours = own.build(sizes, generators)
    head = ModulePolicy.of(general).for_data(demonstrations(discrete=own.discrete))
    theirs = head.build(sizes, generators)
    layers = {"module/layers/0": ours.body.layers[0], "module/layers/2": ours.body.layers[1]}
    for name, layer in layers.items():
        theirs.learned[f"{name}/weight"].data.copy_(layer.weight.data)
        theirs.learned[f"{name}/bias"].data.copy_(layer.bias.data.squeeze(-1))
    seen = torch.randn(3, 9, generator=torch.Generator().manual_seed(1))
    action = torch.arange(9) % 2 if own.discrete else torch.randn(9, 2, generator=torch.Generator().manual_seed(2))
    batch = Batch.of(sizes=sizes, observations=seen, action=action)
    found = [net(seen).taken(batch) for net in (ours, theirs)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
    for each in found:
        each.sum().backward()
    for name, layer in layers.items():
        gradient = theirs.learned[f"{name}/weight"].grad
        torch.testing.assert_close(gradient, layer.weight.grad, rtol=1e-4, atol=1e-5)
        bias = theirs.learned[f"{name}/bias"].grad
        torch.testing.assert_close(bias, layer.bias.grad.squeeze(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("discrete", [True, False])
def test_a_module_fits_acts_and_comes_back_from_a_run_directory(discrete, tmp_path):
    data = demonstrations(discrete=discrete)
    policy = Choosing if discrete else Mixed
    fitted = fit(policy, data, steps=150, folds=2)
    assert fitted.expertise.ranking()[0][0] == "ann"
    assert len(fitted.expertise.table()) == 2
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run", policy=policy)
    np.testing.assert_array_equal(loaded.nats(data), fitted.nats(data))
    np.testing.assert_array_equal(loaded.policy.act(data.observations), fitted.policy.act(data.observations))
    assert loaded.policy.distribution(data.observations[:0]).batch_shape == (0,)
    with pytest.raises(SettingsError) as error:
        ileed.load(tmp_path / "run")
    assert error.value.code == "policy-missing"
    assert ileed.curate(loaded, data, keep=0.5).kept.sum() == EPISODES // 2


def test_a_run_of_another_module_is_refused(tmp_path):
    fit(Choosing, demonstrations()).save(tmp_path / "run")
    with pytest.raises(SettingsError) as error:
        ileed.load(tmp_path / "run", policy=lambda: Choosing(3))
    assert error.value.code == "policy-differs"


def test_a_run_that_needs_no_module_refuses_one(tmp_path):
    fit(ileed.CategoricalMLP(), demonstrations()).save(tmp_path / "run")
    with pytest.raises(SettingsError) as error:
        ileed.load(tmp_path / "run", policy=Choosing)
    assert error.value.code == "policy-not-needed"


def test_each_restart_of_a_factory_depends_on_its_own_stream_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, three = (fit(Choosing, demonstrations(), restarts=count, steps=1) for count in (1, 3))
    assert torch.equal(torch.get_rng_state(), before)
    weights = three.ensemble.result.joint.policy.learned["module/layers/0/weight"]
    torch.testing.assert_close(one.ensemble.result.joint.policy.learned["module/layers/0/weight"][0], weights[0])
    assert not torch.equal(weights[0], weights[1])


def test_a_module_is_where_every_restart_begins():
    module = Choosing()
    net = (
        ModulePolicy.of(module)
        .for_data(demonstrations())
        .build(Sizes(inputs=3, demonstrators=1, actions=2), [stream(0, restart) for restart in range(2)])
    )
    for member in range(2):
        assert torch.equal(net.learned["module/layers/0/weight"][member], module.layers[0].weight)
    before = module.layers[0].weight.detach().clone()
    fit(module, demonstrations())
    assert torch.equal(module.layers[0].weight, before)


def test_frozen_parameters_and_buffers_stay_as_they_are(tmp_path):
    class Scaled(Choosing):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))
            self.register_buffer("places", torch.arange(3))
            self.layers[0].requires_grad_(False)

        def forward(self, observations):
            return super().forward(self.scale * observations[..., self.places])

    module, data = Scaled(), demonstrations()
    fitted = fit(module, data)
    learned = fitted.joint.policy.learned
    assert torch.equal(learned["module/layers/0/weight"][0], module.layers[0].weight)
    assert not torch.equal(learned["module/layers/2/weight"][0], module.layers[2].weight)
    assert torch.equal(fitted.joint.policy.fixed["module/places"], torch.arange(3)[None])
    fitted.save(tmp_path / "run")
    np.testing.assert_array_equal(ileed.load(tmp_path / "run", policy=Scaled).nats(data), fitted.nats(data))


def test_observations_arrive_by_name_in_their_shapes_and_units():
    data, seen = demonstrations(named=True), []

    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3 + 20, 2)

        def forward(self, observations):
            seen.append({name: values.detach().clone() for name, values in observations.items()})
            state, frame = observations["state"], observations["frame"]
            return Categorical(logits=self.last(torch.cat([state, frame.flatten(1) / 255], dim=1)))

    fitted = fit(Looking, data, steps=2)
    seen.clear()
    fitted.policy.act(data.named_observations)
    np.testing.assert_array_equal(seen[0]["frame"].numpy(), data.named_observations["frame"])
    np.testing.assert_allclose(seen[0]["state"].numpy(), data.named_observations["state"], rtol=0, atol=1e-6)
    fitted = fit(Looking, data, steps=2, normalise=True)
    seen.clear()
    fitted.policy.act(data.named_observations)
    assert float(seen[0]["frame"].mean().abs()) < 1e-5


def test_numbers_that_never_vary_keep_their_value():
    data = demonstrations()
    constant = np.concatenate([data.observations[:, :2], np.full((STEPS, 1), 7, np.float32)], axis=1)
    seen = []

    class Looking(Choosing):
        def forward(self, observations):
            seen.append(observations)
            return super().forward(observations)

    columns = {"actions": data.actions, "demonstrator": data.demonstrator, "episode": data.episode}
    fit(Looking, Demonstrations(observations=constant, names=data.names, **columns), steps=1)
    assert all(bool((each[..., 2] == 7).all()) for each in seen)


def test_a_module_that_vmap_refuses_is_called_member_by_member_with_the_same_result():
    class Branching(Choosing):
        def forward(self, observations):
            outputs = self.layers(observations)
            return Categorical(logits=outputs if float(outputs.detach().sum()) > -1e9 else -outputs)

    data = demonstrations()
    fast, slow = (fit(policy, data, restarts=3) for policy in (Choosing, Branching))
    np.testing.assert_allclose(fast.restarts.nats_per_action, slow.restarts.nats_per_action, rtol=1e-5)


def test_a_member_taken_out_is_that_member():
    head = ModulePolicy.of(Choosing).for_data(demonstrations())
    net = head.build(Sizes(inputs=3, demonstrators=1, actions=2), [stream(0, restart) for restart in range(3)])
    seen = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(members(net, [2])(seen).logits[0], net(seen).logits[2])


def test_exchanging_two_actions_exchanges_their_probabilities():
    head = ModulePolicy.of(Choosing).for_data(demonstrations())
    net = head.build(Sizes(inputs=3, demonstrators=1, actions=2), [stream(0, restart) for restart in range(2)])
    seen = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    before = net(seen).probs
    net.exchange_actions(torch.tensor([True, False]))
    torch.testing.assert_close(net(seen).probs, torch.cat([before[:1].flip(-1), before[1:]]))


def test_an_interrupted_fit_goes_on_to_the_same_bits(tmp_path):
    data, file = demonstrations(), tmp_path / "checkpoint"

    class StopError(Exception):
        pass

    def stop(progress):
        if progress.step >= 10:
            raise StopError

    settings = {"steps": 20, "restarts": 2}
    whole = fit(Choosing, data, **settings)
    with pytest.raises(StopError):
        method(Choosing, **settings).fit(
            data, seed=0, device="cpu", checkpoint=file, checkpoint_seconds=0.0, progress=stop
        )
    resumed = method(Choosing, **settings).fit(data, seed=0, device="cpu", checkpoint=file)
    np.testing.assert_array_equal(resumed.nats(data), whole.nats(data))


def test_a_checkpoint_of_a_module_with_other_values_is_refused(tmp_path):
    data, file = demonstrations(), tmp_path / "checkpoint"
    torch.manual_seed(0)
    one, other = Choosing(), Choosing()
    method(one).fit(data, seed=0, device="cpu", checkpoint=file)
    with pytest.raises(ileed.RunError):
        method(other).fit(data, seed=0, device="cpu", checkpoint=file)


class Returning(nn.Module):
    """Returns what a function makes of two outputs."""

    def __init__(self, make) -> None:
        super().__init__()
        self.last, self.make = nn.Linear(3, 2), make

    def forward(self, observations):
        return self.make(self.last(observations))


@pytest.mark.parametrize(
    ("discrete", "make", "code"),
    [
        (True, lambda outputs: outputs, "policy-output"),
        (True, lambda outputs: Normal(outputs, 1.0), "policy-output"),
        (True, lambda outputs: Categorical(logits=outputs.repeat(1, 2)), "policy-actions"),
        (True, lambda outputs: Categorical(logits=outputs[:, None]), "policy-shape"),
        (True, lambda outputs: Categorical(logits=outputs.sum(0)), "policy-shape"),
        (False, lambda outputs: Categorical(logits=outputs), "policy-output"),
        (False, lambda outputs: Normal(outputs, 1.0), "policy-output"),
        (False, lambda outputs: Independent(Normal(outputs[:, :1], 1.0), 1), "policy-actions"),
    ],
)
def test_a_module_that_returns_something_else_is_refused(discrete, make, code):
    with pytest.raises(SettingsError) as error:
        fit(lambda: Returning(make), demonstrations(discrete=discrete))
    assert error.value.code == code


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (lambda: 3, "policy-module"),
        (lambda: nn.ReLU(), "policy-parameters"),
        (lambda: nn.LazyLinear(2), "policy-parameters"),
    ],
)
def test_what_makes_no_module_that_can_learn_is_refused(policy, code):
    with pytest.raises(SettingsError) as error:
        fit(policy, demonstrations())
    assert error.value.code == code


@pytest.mark.parametrize("declared", [{"window": 2.5}, {"chunk": 0}, {"window": 3, "chunk": 3}])
def test_a_window_or_chunk_that_cannot_be_is_refused(declared):
    with pytest.raises(SettingsError) as error:
        ileed.Ileed(policy=type("Declaring", (Choosing,), declared))
    assert error.value.code == "policy-window"


class Remembering(nn.Module):
    """A choice by the mean of the observations of the window so far."""

    window = 4

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, observations):
        count = torch.arange(1, observations.shape[1] + 1)[:, None]
        return Categorical(logits=self.last(observations.cumsum(1) / count))


class Chunking(nn.Module):
    """A Gaussian over each of the next four actions."""

    chunk = 4

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 4 * 2)

    def forward(self, observations):
        return Independent(Normal(self.last(observations).unflatten(-1, (4, 2)), 1.0), 1)


class Recurrent(Remembering):
    """The LSTM of torch, which `vmap` does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(3, 3, batch_first=True)

    def forward(self, observations):
        return Categorical(logits=self.last(self.memory(observations)[0]))


class Reading(nn.Module):
    """A choice by the tokens of a window, with an infinite mask, and with parameters of awkward names."""

    window = 3

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Embedding(40, 4)
        self.values = nn.Parameter(torch.randn(4, 2).double())
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))

    def forward(self, observations):
        seen = self.keys(observations[..., 0].long())
        weights = (seen @ seen.mT + self.mask).softmax(-1)
        return Categorical(logits=weights @ seen @ self.values)


def test_tokens_stay_whole_numbers_from_learning_to_loading(tmp_path):
    data = demonstrations()
    tokens = np.random.default_rng(0).integers(0, 40, size=(STEPS, 1))
    columns = {"actions": data.actions, "demonstrator": data.demonstrator, "episode": data.episode}
    data = Demonstrations(observations=tokens, names=data.names, **columns)
    check_policy(Reading, data)
    fitted = fit(Reading, data)
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run", policy=Reading)
    np.testing.assert_array_equal(loaded.nats(data), fitted.nats(data))
    np.testing.assert_array_equal(loaded.policy.act(tokens), fitted.policy.act(tokens))


@pytest.mark.parametrize("policy", [Choosing, Mixed, Remembering, Chunking, Recurrent])
def test_modules_keep_the_laws_of_a_policy(policy):
    check_policy(policy, demonstrations(discrete=policy not in (Mixed, Chunking)))


class Foreseeing(Remembering):
    def forward(self, observations):
        return Categorical(logits=self.last(observations).flip(1))


class Comparing(Choosing):
    def forward(self, observations):
        return Categorical(logits=self.layers(observations - observations.mean(0)))


class Drawing(Choosing):
    def forward(self, observations):
        return Categorical(logits=self.layers(observations + torch.randn(3)))


@pytest.mark.parametrize("policy", [Foreseeing, Comparing, Drawing])
def test_the_check_finds_a_module_that_breaks_a_law(policy):
    with pytest.raises(AssertionError):
        check_policy(policy, demonstrations())


def test_a_chunk_is_learned_from_the_steps_inside_its_episode():
    """The cost of episodes of six steps in chunks of four: the second chunk ends with the episode, after two steps."""
    data = demonstrations(discrete=False)
    data = Demonstrations(
        observations=data.observations,
        actions=data.actions,
        demonstrator=data.demonstrator,
        names=data.names,
        episode=np.arange(STEPS) // 6,
    )
    fitted = fit(Chunking, data, steps=5, restarts=1, demonstrator=ileed.VarianceScaling(), expertise=ileed.Perfect())
    last = fitted.joint.policy.learned
    weight, bias = (last[f"module/last/{name}"][0].numpy() for name in ("weight", "bias"))
    expected = []
    for step in range(STEPS):
        place = step % 6
        mean = (weight @ data.observations[step - place % 4] + bias).reshape(4, 2)[place % 4]
        expected.append(0.5 * ((data.actions[step] - mean) ** 2).sum() + np.log(2 * np.pi))
    np.testing.assert_allclose(fitted.nats(data), expected, rtol=1e-4)
    assert fitted.nats_per_action == pytest.approx(np.mean(expected), rel=1e-4)


def test_a_chunk_is_carried_out_before_the_next_is_predicted():
    data = demonstrations(discrete=False)
    fitted = fit(Chunking, data, steps=5, restarts=1)
    seen = data.observations[:8]
    actions = np.concatenate([fitted.policy.act(each[None]) for each in seen])
    begins = fitted.normaliser(torch.from_numpy(np.tile(seen[[0, 4]], (4, 1))))  # (time step, chunk)
    means = mixture_parts(fitted.joint.policy(begins))[1][0, :, 0].detach().unflatten(0, (4, 2))
    np.testing.assert_allclose(actions, means.transpose(0, 1).flatten(0, 1).numpy(), rtol=1e-5)
    fitted.policy.reset()
    np.testing.assert_allclose(fitted.policy.act(seen[4:5])[0], actions[4], rtol=1e-5)


def test_windows_are_rated_by_folds_where_these_are_asked_for():
    fitted = fit(Remembering, demonstrations(), steps=100, folds=2)
    assert fitted.expertise.table().column("demonstrator").to_pylist()[0] == "ann"


@pytest.mark.parametrize("policy", [Choosing, Mixed, Remembering, Chunking])
def test_a_module_is_exported_for_any_number_of_observations(policy, tmp_path):
    """`to_onnx` compares the file with the policy and writes none that differs."""
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    fitted = fit(policy, demonstrations(discrete=policy in (Choosing, Remembering)), steps=2)
    fitted.policy.to_onnx(tmp_path / "policy.onnx")
    assert (tmp_path / "policy.onnx").is_file()


def test_blocks_of_restarts_give_the_same_answer():
    data = demonstrations()
    whole, blocks = (fit(Choosing, data, restarts=3, member_block=size) for size in (None, 1))
    np.testing.assert_allclose(blocks.restarts.nats_per_action, whole.restarts.nats_per_action, rtol=1e-5)


class Seeing(nn.Module):
    """A Gaussian over two dimensions from images and a state by name."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Conv2d(1, 2, 3)
        self.last = nn.Linear(2 * 2 * 3 + 3, 2)

    def forward(self, observations):
        frame = self.see(observations["frame"].permute(0, 3, 1, 2) / 255).flatten(1)
        return Independent(Normal(self.last(torch.cat([frame, observations["state"]], 1)), 1.0), 1)


def test_of_images_copies_of_the_module_rate_continuous_actions(tmp_path):
    data = demonstrations(discrete=False, named=True)
    model = ileed.SignalScaling(horizon=2)
    fitted = fit(Seeing, data, folds=2, steps=200, demonstrator=model, learning_rate=0.01)
    assert isinstance(fitted.rater.joint.parts.policy, ModulePolicy)
    assert fitted.expertise.ranking()[0][0] == "ann"
    fitted.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run", policy=Seeing)
    assert loaded.assess(data).table().equals(fitted.assess(data).table())
    assert ileed.report(tmp_path / "run", policy=Seeing, data=data).is_file()


def test_of_numbers_our_networks_rate_continuous_actions():
    fitted = fit(Mixed, demonstrations(discrete=False), folds=2)
    assert isinstance(fitted.rater.joint.parts.policy, ileed.MixtureMLP)


def test_the_callers_modes_are_left_as_they_were():
    distributions, attention = torch.distributions.Distribution, torch.backends.mha
    before = distributions._validate_args, attention.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()
    fit(Choosing, demonstrations(), steps=2)
    after = distributions._validate_args, attention.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()
    assert after == before


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_finds_the_better_demonstrator(example, capsys):
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of TorchScript
        found = runpy.run_path(str(example))["main"]()
        policy = found.method.policy.module
    assert [name for name, _ in found.expertise.ranking()] == ["ann", "bob"]
    assert policy is not None
    assert capsys.readouterr().out
