"""The policy outside: as a PyTorch module, as an exported program, and as an ONNX file, each against the policy."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused
from strategies import world
from tiny import tiny_parts
from torch.distributions import Categorical

import ileed
from ileed.errors import IleedError
from ileed.methods import policy as policies
from ileed.model.distributions import mixture_parts

LENGTH = 3
"""Steps after which the recurrent policies here forget."""


def fitted_policy(head, *, members=1, shape=(3,), floating=True, legal=(), two_valued=False, **settings):
    """A policy of a few steps of fitting; the last input of its data never varies, so it is dropped."""
    discrete = head.discrete
    data = world((9, 8, 7, 9, 6), discrete=discrete, shape=shape, floating=floating, optional=legal)
    if floating:
        random = np.random.default_rng(1)
        moved = data.observations + random.normal(size=data.observations.shape).astype(np.float32) * 3 + 5
        moved.reshape(len(moved), -1)[:, -1] = 4
        data = replace(data, observations=moved)
    if two_valued:
        data = replace(data, actions=np.sign(data.actions) * [1, 0.3, 1] + data.actions * [0, 1, 0])
    method = ileed.Ileed(
        policy=head, expertise=ileed.Constant(), restarts=3, ensemble=members, steps=15, learning_rate=0.05, **settings
    )
    return method.fit(data, seed=0, device="cpu").policy


POLICIES = {
    "discrete": lambda: fitted_policy(ileed.CategoricalMLP(hidden=(5, 4))),
    "discrete, whole numbers": lambda: fitted_policy(ileed.CategoricalMLP(hidden=()), floating=False),
    "discrete, ensemble": lambda: fitted_policy(ileed.CategoricalMLP(hidden=(5,)), members=3),
    "discrete, images": lambda: fitted_policy(ileed.CategoricalMLP(hidden=(5,)), shape=(2, 3, 2)),
    "mixture": lambda: fitted_policy(ileed.MixtureMLP(hidden=(5,), modes=2)),
    "mixture, ensemble": lambda: fitted_policy(ileed.MixtureMLP(hidden=(5,), modes=2), members=2),
    "mixture, shared": lambda: fitted_policy(ileed.MixtureMLP(hidden=(5,), modes=3, shared_standard_deviations=True)),
    "mixture, binary dimension": lambda: fitted_policy(ileed.MixtureMLP(hidden=(5,), modes=2), two_valued=True),
    "recurrent": lambda: fitted_policy(ileed.MixtureLSTM(hidden=(4,), length=LENGTH, modes=2)),
    "recurrent, two layers": lambda: fitted_policy(
        ileed.MixtureLSTM(hidden=(4, 3), length=LENGTH, modes=2, shared_standard_deviations=True), two_valued=True
    ),
    "recurrent, ensemble": lambda: fitted_policy(
        ileed.MixtureLSTM(hidden=(4, 3), length=LENGTH, modes=2), members=2, batch_size=4
    ),
}


@pytest.fixture(params=POLICIES)
def policy(request):
    """A policy of every kind of head, alone and in ensembles, with normalised and with plain inputs."""
    return POLICIES[request.param]()


def observed(policy, rows=7, seed=0):
    return (np.random.default_rng(seed).normal(size=(rows, *policy.observation_shape)) * 4 + 5).astype(np.float32)


def is_recurrent(module):
    return bool(module.state_names)


def assert_equal_parameters(found, distribution):
    """Within 1e-5, since sums in 32 bits are taken in another order."""
    if isinstance(distribution, Categorical):
        torch.testing.assert_close(found[0], distribution.logits, atol=1e-5, rtol=1e-5)
        return
    for one, other in zip(found, mixture_parts(distribution), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def assert_same_policy(answer, policy, rows=7):
    """`answer(observations, state)` gives parameters and a new state, as the policy does over steps and restarts.

    A recurrent policy runs past the reset of its hidden state, and one row starts another episode.
    """
    module = policy.to_module()
    state = module.initial_state(rows) if is_recurrent(module) else []
    own = None
    for step in range(2 * LENGTH + 2 if state else 1):
        starts = np.full(rows, step == 0)
        starts[-1] = step in (0, 2)
        if state:
            state[-1] = torch.where(torch.from_numpy(starts), 0, state[-1])
        seen = observed(policy, rows, seed=step)
        parameters, state = answer(torch.from_numpy(seen), state)
        distribution, own = policy._next(seen, own, starts)
        assert_equal_parameters(parameters, distribution)


def called(module):
    """A module as an answer: the last of a recurrent one's outputs is the state."""

    def answer(observations, state):
        with torch.no_grad():
            outputs = module(observations, state) if state else module(observations)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return (outputs[:-1], list(outputs[-1])) if state else (outputs, [])

    return answer


def exported(policy):
    """The module as an exported program for any number of rows."""
    module = policy.to_module()
    batch = torch.export.Dim("batch")
    inputs, shapes = [torch.from_numpy(observed(policy))], {"observations": {0: batch}}
    if is_recurrent(module):
        inputs.append(module.initial_state(7))
        shapes["state"] = [{0: batch} for _ in inputs[1]]
    return torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)


# A module


def test_the_module_gives_the_parameters_of_the_policys_own_distribution(policy):
    assert_same_policy(called(policy.to_module()), policy)


def test_the_module_has_weights_of_its_own_and_can_be_trained():
    policy = POLICIES["discrete"]()
    seen = observed(policy)
    before = policy.distribution(seen).logits
    module = policy.to_module().train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    targets = torch.zeros(len(seen), dtype=torch.long)
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = torch.nn.functional.nll_loss(module(torch.from_numpy(seen)), targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    torch.testing.assert_close(policy.distribution(seen).logits, before, atol=0, rtol=0)


def test_the_module_takes_observations_of_any_type_and_refuses_those_of_another_size():
    policy = POLICIES["discrete, whole numbers"]()
    whole = np.random.default_rng(0).integers(0, 3, size=(4, 3))
    module = policy.to_module()
    for kind in (np.int64, np.uint8, np.float64):
        found = module(torch.from_numpy(whole.astype(kind)))
        torch.testing.assert_close(found, policy.distribution(whole).logits, atol=1e-6, rtol=1e-6)
    with pytest.raises(RuntimeError, match="shape"):
        module(torch.zeros(4, 5))


def test_a_policy_whose_inputs_never_vary_is_a_constant_module_and_onnx_file(tmp_path):
    data = replace(world(floating=True), observations=np.ones((30, 2), np.float32))
    policy = ileed.Ileed(expertise=ileed.Constant(), restarts=1, steps=5).fit(data, seed=0, device="cpu").policy
    assert_same_policy(called(policy.to_module()), policy)
    policy.to_onnx(tmp_path / "constant.onnx")
    assert_same_policy(by_onnxruntime(tmp_path / "constant.onnx", policy), policy)


def test_a_recurrent_policy_of_another_package_is_a_module_and_an_onnx_file_too(tmp_path):
    policy = fitted_policy(tiny_parts.CategoricalLSTM(units=3, length=LENGTH), members=2)
    assert_same_policy(called(policy.to_module()), policy)
    policy.to_onnx(tmp_path / "policy.onnx")
    assert (tmp_path / "policy.onnx").exists()


# An exported program


@pytest.mark.parametrize("kind", ["discrete, ensemble", "mixture, binary dimension", "recurrent, two layers"])
def test_an_exported_program_is_the_policy_for_any_number_of_rows(kind):
    policy = POLICIES[kind]()
    program = exported(policy).module()
    for rows in (2, 11):
        assert_same_policy(called(program), policy, rows=rows)


WITHOUT_US = """
import sys
sys.modules["ileed"] = None
import torch
program = torch.export.load(sys.argv[1]).module()
inputs, expected = torch.load(sys.argv[2])
found = program(*inputs)
flat = torch.utils._pytree.tree_leaves
for one, other in zip(flat(found), flat(expected), strict=True):
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
assert not any(name.startswith("ileed") and module for name, module in sys.modules.items())
print("equal")
"""


def test_a_saved_program_runs_where_this_package_cannot_be_imported(tmp_path):
    policy = POLICIES["recurrent, ensemble"]()
    module = policy.to_module()
    torch.export.save(exported(policy), tmp_path / "policy.pt2")
    inputs = [torch.from_numpy(observed(policy, rows=5)), [values + 1 for values in module.initial_state(5)]]
    with torch.no_grad():
        torch.save((inputs, module(*inputs)), tmp_path / "expected.pt")
    command = [sys.executable, "-c", WITHOUT_US, str(tmp_path / "policy.pt2"), str(tmp_path / "expected.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "equal\n", done.stderr


# An ONNX file


def by_onnxruntime(path, policy):
    """The file as an answer; checked on the way: its names, and that `action` follows from its other outputs."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = [each.name for each in session.get_inputs()]
    outputs = [each.name for each in session.get_outputs()]
    layers = range(1, 1 + len(getattr(policy.to_module().network, "layers", ())))
    state_names = [f"{part}_{layer}" for layer in layers for part in ("hidden", "cell")] + ["age"] * bool(layers)
    parameters = ["log_weights", "means", "standard_deviations"] if policy.action_size else ["log_probabilities"]
    assert inputs == ["observations", *state_names]
    assert outputs == ["action", *parameters, *(f"next_{name}" for name in state_names)]

    def answer(observations, state):
        values = [observations.numpy(), *(part.numpy() for part in state)]
        action, *found = session.run(None, dict(zip(inputs, values, strict=True)))
        found = [torch.from_numpy(each) for each in found]
        count = len(found) - len(state)
        if count == 1:
            np.testing.assert_array_equal(action, found[0].argmax(-1))
        else:
            np.testing.assert_array_equal(action, found[1][torch.arange(len(action)), found[0].argmax(-1)])
        return found[:count], found[count:]

    return answer


@pytest.mark.parametrize("kind", list(POLICIES))
def test_the_onnx_file_is_the_policy_by_onnxruntime(kind, tmp_path, capfd, recwarn):
    policy = POLICIES[kind]()
    capfd.readouterr()
    policy.to_onnx(tmp_path / "policy.onnx")
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]
    for rows in (1, 7):
        assert_same_policy(by_onnxruntime(tmp_path / "policy.onnx", policy), policy, rows=rows)


def test_an_onnx_file_that_differs_from_the_policy_is_not_written(tmp_path, monkeypatch):
    policy = POLICIES["discrete"]()
    another = policy.to_module()
    with torch.no_grad():
        another.network.body.last.bias[:, 0] += 0.1
    content = policies._onnx_bytes(another)
    monkeypatch.setattr(policies, "_onnx_bytes", lambda module: content)
    with pytest.raises(IleedError, match="differ from the policy's by up to"):
        policy.to_onnx(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(IleedError, match="cannot be written"):
        POLICIES["discrete"]().to_onnx(tmp_path / "file" / "policy.onnx")


def test_without_the_extra_the_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with refused("package-missing", IleedError):
        POLICIES["discrete"]().to_onnx(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
