"""Parts of another package: fitted end to end on simulated data whose answer is known, saved, resumed and loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch
from tiny import PACKAGE, tiny_parts

import ileed
from ileed import formats, plugins
from ileed.model import nets, parts

ACTIONS, STATES = 3, 6
SHARP = ileed.CategoricalMLP(hidden=())


def simulated(act, *, people: int, episodes: int = 60, steps: int = 25, seed: int = 0) -> ileed.Demonstrations:
    """Episodes of each person in random states; `act(random, person, right, previous)` chooses the action."""
    random = np.random.default_rng(seed)
    seen, done, who, episode = [], [], [], []
    for number in range(people * episodes):
        previous = -1
        for _ in range(steps):
            state = int(random.integers(STATES))
            previous = act(random, number % people, state % ACTIONS, previous)
            seen.append(np.eye(STATES)[state])
            done.append(previous)
            who.append(number % people)
            episode.append(number)
    return ileed.Demonstrations(
        observations=np.array(seen),
        actions=done,
        demonstrator=who,
        episode=episode,
        names=tuple(f"person {k}" for k in range(people)),
        action_count=ACTIONS,
    )


def fit(data, demonstrator, *, expertise=None, **settings):
    method = ileed.Ileed(
        **{
            "policy": SHARP,
            "demonstrator": demonstrator,
            "expertise": expertise or ileed.Constant(),
            "restarts": 2,
            "steps": 400,
            "learning_rate": 0.05,
            "skill_learning_rate": 0.05,
        }
        | settings
    )
    return method.fit(data, seed=0, device="cpu")


def parameter(fitted, name):
    return fitted.joint.demonstrator.get_parameter(name)[0]


HABITS = np.array([[1 / 3, 1 / 3, 1 / 3], [0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
SKILL = np.array([0.9, 0.4, 0.4])


def biased(random, person, right, previous):
    return int(right if random.random() < SKILL[person] else random.choice(ACTIONS, p=HABITS[person]))


def persistent(random, person, right, previous):
    """Slips repeat the previous action 6 times in 10."""
    if random.random() < SKILL[person]:
        return int(right)
    return int(previous if previous >= 0 and random.random() < 0.6 else random.integers(ACTIONS))


MATRICES = np.array(
    [
        [[0.95, 0.025, 0.025], [0.025, 0.95, 0.025], [0.025, 0.025, 0.95]],
        [[0.9, 0.05, 0.05], [0.6, 0.3, 0.1], [0.05, 0.05, 0.9]],
        [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]],
    ]
)


def confused(random, person, right, previous):
    return int(random.choice(ACTIONS, p=MATRICES[person][right]))


# --- demonstrator models with parameters of their own


def test_the_habit_of_each_person_is_found():
    """1,500 steps each, of which 60 % are slips of the biased: a standard error below 0.02, and 0.06 is three."""
    data = simulated(biased, people=3)
    fitted = fit(data, tiny_parts.Habit())
    found = parameter(fitted, "habit").softmax(0).T.detach().numpy()
    np.testing.assert_allclose(found[1:], HABITS[1:], atol=0.06)
    np.testing.assert_allclose(list(fitted.expertise.by_demonstrator().values()), SKILL, atol=0.08)
    assert fitted.nats(data).mean() < fit(data, ileed.UniformMixture()).nats(data).mean() - 0.02


@pytest.mark.parametrize("batch_size", [None, 500], ids=["counts", "mini-batches"])
def test_the_probability_that_a_slip_repeats_the_previous_action_is_found(batch_size):
    """3,000 steps of people who slip six times in ten: a standard error near 0.015; mini-batches add their noise."""
    data = simulated(persistent, people=3)
    fitted = fit(data, tiny_parts.Repeat(), batch_size=batch_size)
    assert parameter(fitted, "repeats").sigmoid().item() == pytest.approx(0.6, abs=0.06)
    np.testing.assert_allclose(list(fitted.expertise.by_demonstrator().values()), SKILL, atol=0.08)
    assert fitted.nats(data).mean() == pytest.approx(fitted.nats_per_action, abs=2e-3)


def test_a_matrix_of_each_person_is_found_and_defines_expertise():
    """1,500 steps each, 500 in a row of the matrix: a standard error below 0.02, and 0.07 is three."""
    data = simulated(confused, people=3)
    fitted = fit(data, tiny_parts.Matrix(), expertise=ileed.Embedded())
    found = parameter(fitted, "logits").softmax(1).permute(2, 0, 1).detach().numpy()
    np.testing.assert_allclose(found, MATRICES, atol=0.07)
    diagonal = found.diagonal(axis1=1, axis2=2).mean(-1)
    np.testing.assert_allclose(list(fitted.expertise.by_demonstrator().values()), diagonal, atol=1e-6)
    assert fitted.estimates_expertise
    assert fitted.joint.expertise.skill.numel() == 0  # no expertise beside the model's own is learned


def test_an_expertise_of_another_package_is_estimated():
    fitted = fit(simulated(biased, people=3), ileed.UniformMixture(), expertise=tiny_parts.AtLeast(floor=0.35))
    found = fitted.expertise.by_demonstrator()
    assert found["person 0"] > 0.8
    assert all(value >= 0.35 for value in found.values())
    assert found["person 1"] < 0.6


def test_a_recurrent_policy_over_discrete_actions_learns_what_depends_on_the_past():
    """The right action is the state before the last one, which no policy without a hidden state can know."""
    random = np.random.default_rng(0)
    state = random.integers(ACTIONS, size=1200)
    right = np.append(0, state[:-1])
    slips = random.random(1200) < np.where(np.arange(1200) < 600, 0.05, 0.5)
    data = ileed.Demonstrations(
        observations=np.eye(ACTIONS)[state],
        actions=np.where(slips, random.integers(ACTIONS, size=1200), right),
        demonstrator=np.repeat([0, 1], 600),
        episode=np.repeat(np.arange(60), 20),
        names=("careful", "careless"),
        action_count=ACTIONS,
    )
    fitted = fit(data, ileed.UniformMixture(), policy=tiny_parts.CategoricalLSTM(), steps=150, batch_size=64)
    found = fitted.expertise.by_demonstrator()
    assert found["careful"] > 0.85 > 0.65 > found["careless"]
    fitted.policy.reset()
    done = [int(fitted.policy.act(np.eye(ACTIONS)[[each]])[0]) for each in state[:20]]
    inside = np.arange(20) % 5 > 0  # the hidden state is reset every five steps, as in training
    assert (np.array(done)[inside] == right[:20][inside]).mean() == 1.0
    with_context = fit(data, tiny_parts.Repeat(), policy=tiny_parts.CategoricalLSTM(), steps=20, batch_size=64)
    assert np.isfinite(with_context.nats(data)).all()


# --- members, side by side, checkpoints


MODELS = {
    "biased": (tiny_parts.Habit(), biased),
    "persistent": (tiny_parts.Repeat(), persistent),
    "confusion": (tiny_parts.Matrix(), confused),
}
each_model = pytest.mark.parametrize(("model", "act"), MODELS.values(), ids=MODELS)


@each_model
def test_data_sets_side_by_side_end_as_each_alone(model, act):
    datasets = [simulated(act, people=people, episodes=people, seed=people) for people in (2, 3)]
    method = ileed.Ileed(policy=SHARP, demonstrator=model, expertise=ileed.Constant(), restarts=2, steps=30)
    together = method.fit_each(datasets, seeds=[1, 2], device="cpu")
    for data, seed, ensemble in zip(datasets, (1, 2), together, strict=True):
        alone = method.fit(data, seed=seed, device="cpu")
        np.testing.assert_allclose(ensemble.result.nats_per_action, alone.restarts.nats_per_action, atol=2e-5)


@each_model
def test_people_are_rated_under_a_model_with_parameters_of_its_own(model, act):
    data = simulated(act, people=2, episodes=4)
    method = ileed.Ileed(policy=SHARP, demonstrator=model, expertise=ileed.Constant(), restarts=2, steps=30, folds=2)
    expertise = method.fit(data, seed=0, device="cpu").expertise
    if model.defines_expertise:
        assert expertise.ratings is None  # a person's expertise is more than one number
    else:
        assert expertise.table().num_rows == 2


@each_model
def test_an_interrupted_fit_goes_on_to_the_same_bits(model, act, tmp_path):
    data = simulated(act, people=2, episodes=3)
    method = ileed.Ileed(policy=SHARP, demonstrator=model, expertise=ileed.Constant(), restarts=2, steps=40)
    whole = method.fit(data, seed=3, device="cpu")

    class StopError(Exception):
        pass

    def stop(progress):
        if progress.step == 20:
            raise StopError

    options = {"seed": 3, "device": "cpu", "checkpoint": tmp_path / "fit", "checkpoint_seconds": 0.0}
    with pytest.raises(StopError):
        method.fit(data, progress=stop, **options)
    resumed = method.fit(data, **options)
    for name, value in whole.joint.named_parameters():
        assert torch.equal(value, resumed.joint.get_parameter(name)), name
    assert {name.partition(".")[0] for name, _ in whole.joint.named_parameters()} >= {"demonstrator", "policy"}


@each_model
def test_a_members_own_parameters_are_taken_out_with_it(model, act):
    data = simulated(act, people=2, episodes=2)
    joint = ileed.Ileed(policy=SHARP, demonstrator=model, expertise=ileed.Constant(), restarts=3, steps=5)
    whole = joint.fit_each([data], seeds=[0], device="cpu")[0].result.joint
    (name, _) = next(iter(whole.demonstrator.named_parameters()))
    assert torch.equal(
        nets.members(whole, [2]).demonstrator.get_parameter(name)[0], whole.demonstrator.get_parameter(name)[2]
    )


# --- found by entry points


@pytest.fixture
def installed(monkeypatch):
    """The tiny package as pip would install it: importable, with its entry points beside it."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    plugins.contributed.cache_clear()
    yield
    plugins.contributed.cache_clear()


def small_fit(**parts):
    chosen = {"policy": SHARP, "expertise": ileed.Constant(), "restarts": 2, "steps": 20, "ensemble": 2} | parts
    return ileed.Ileed(**chosen).fit(simulated(biased, people=2, episodes=2), seed=0, device="cpu")


PARTS = {
    "Habit": {"demonstrator": tiny_parts.Habit()},
    "Repeat": {"demonstrator": tiny_parts.Repeat()},
    "Matrix": {"demonstrator": tiny_parts.Matrix()},
    "AtLeast": {"expertise": tiny_parts.AtLeast(floor=0.2)},
    "CategoricalLSTM": {"policy": tiny_parts.CategoricalLSTM(units=3, length=4)},
}


@pytest.mark.parametrize("name", PARTS)
def test_a_saved_run_with_a_part_of_another_package_loads_where_that_is_installed(name, installed, tmp_path):
    fitted, data = small_fit(**PARTS[name]), simulated(biased, people=2, episodes=2)
    fitted.save(tmp_path / "run")
    again = ileed.load(tmp_path / "run")
    assert again.joint.parts == fitted.joint.parts
    assert again.method == fitted.method
    np.testing.assert_array_equal(again.nats(data), fitted.nats(data))
    assert again.expertise.by_demonstrator() == fitted.expertise.by_demonstrator()


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_no_installed_package_provides_is_refused_by_its_name(name, tmp_path):
    small_fit(**PARTS[name]).save(tmp_path / "run")
    with pytest.raises(ileed.SettingsError) as refusal:
        ileed.load(tmp_path / "run")
    assert f"unknown kind '{name}' of settings: install the package that provides it" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_of_another_packages_format_is_read(installed, tmp_path):
    (tmp_path / "data.steps").write_text("ann;0;1.5;0\nann;0;0.5;1\nbob;1;2.5;0\n")
    data = ileed.read(tmp_path / "data.steps", delimiter=";")
    assert data.names == ("ann", "bob")
    assert data.actions.tolist() == [0, 1, 0]
    with pytest.raises(ileed.DemonstrationError, match=r"delimter does not apply to \.steps files"):
        ileed.read(tmp_path / "data.steps", delimter=";")


def test_a_file_of_an_unknown_format_is_refused_with_those_that_are_read(tmp_path):
    (tmp_path / "data.steps").write_text("ann;0;1.5;0\n")
    with pytest.raises(ileed.DemonstrationError, match=r"there are readers for \.parquet, \.hdf5"):
        ileed.read(tmp_path / "data.steps")


def command(*words):
    code = f"import sys; from ileed.cli import run; sys.exit(run({list(words)!r}))"
    path = os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )


def test_a_command_of_another_package_is_called():
    said = command("tiny")
    assert (said.returncode, said.stdout) == (0, "five parts\n")


def test_the_command_fits_with_parts_of_another_package(tmp_path):
    ileed.write_parquet(simulated(biased, people=2, episodes=2), tmp_path / "data.parquet")
    words = ("--steps", "5", "--restarts", "1", "--out", str(tmp_path / "run"), "--policy", "CategoricalMLP(hidden=())")
    said = command(
        "fit",
        str(tmp_path / "data.parquet"),
        "--expertise",
        "AtLeast(floor=0.25)",
        "--demonstrator-model",
        "habit",
        *words,
    )
    assert said.returncode == 0, said.stderr
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["parts"]["demonstrator"] == {"kind": "Habit"}
    assert settings["parts"]["expertise"] == {"kind": "AtLeast", "floor": 0.25}
    wrong = command("fit", str(tmp_path / "data.parquet"), "--expertise", "Habit()")
    assert wrong.returncode == 2
    assert "'Habit()' is not one of Perfect, Constant, Embedded, Skills" in wrong.stderr.replace("\n", " ")


@pytest.mark.parametrize("value", ["simulated", "PARTS"])
def test_a_contribution_that_is_no_part_is_refused(value, monkeypatch, tmp_path):
    point = EntryPoint("Wrong", f"{__name__}:{value}", plugins.PARTS)
    monkeypatch.setattr(plugins, "contributed", lambda group: {"Wrong": point})
    with pytest.raises(ileed.IleedError, match="the entry point Wrong of the group"):
        parts.PARTS["Wrong"]
    monkeypatch.setattr(plugins, "contributed", lambda group: {"csv2": point})
    assert "csv2" not in [reader.name for reader in formats.formats()]  # other formats are read and written as before
    with pytest.raises(ileed.DemonstrationError, match=r"an entry point of the group ileed\.formats must name"):
        formats.format_of(tmp_path / "data.csv2")


def test_the_registry_of_parts_goes_by_name():
    assert list(parts.PARTS)[:2] == ["CategoricalMLP", "MixtureMLP"]
    assert parts.PARTS["Constant"] is ileed.Constant
    assert "Transformer" not in parts.PARTS
    assert len(parts.PARTS) == len(set(parts.PARTS))
