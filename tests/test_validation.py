"""What a stranger gets wrong is answered by one sentence of ours, before any work is done and whatever its type."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file, save_file

import ileed
from ileed import (
    CategoricalMLP,
    Constant,
    DemonstrationError,
    Demonstrations,
    Embedded,
    Ileed,
    IleedError,
    MixtureLSTM,
    MixtureMLP,
    RunError,
    SettingsError,
    Skills,
    bc,
    cli,
)
from ileed.curation import Rule
from ileed.data.findings import visited_by_several
from ileed.model.distributions import mixture, mixture_parts
from ileed.model.nets import Pick
from ileed_lab.experiments import experiment, reproduce

TINY = {"restarts": 2, "steps": 3}


def table(**changes) -> Demonstrations:
    """Eight steps of two people, with some columns replaced."""
    rows = np.arange(8)
    columns = {
        "observations": (rows[:, None] % 3).astype(float),
        "actions": rows % 2,
        "demonstrator": np.repeat(["ann", "bob"], 4),
        "episode": rows // 2,
    }
    return Demonstrations(**(columns | changes))


def a_fit(data: Demonstrations | None = None, **options):
    return Ileed(**TINY).fit(table() if data is None else data, seed=0, device="cpu", **options)


# --- wrong answers


@pytest.mark.parametrize("largest", [2**63, 2**64 - 1])
def test_actions_that_do_not_fit_into_64_signed_bits_are_refused_rather_than_wrapped(largest):
    with pytest.raises(DemonstrationError, match=f"action {largest:,} .*number .*0, 1, ..."):
        table(actions=np.array([0, 1, 2, 3, 4, 5, 6, largest], dtype=np.uint64))


MASKABLE = {
    "observations": np.zeros((8, 2)),
    "actions": np.zeros(8, dtype=int),
    "demonstrator": np.array([0, 0, 0, 0, 1, 1, 1, 1]),
    "episode": np.arange(8) // 2,
    "rewards": np.zeros(8),
    "terminals": np.zeros(8, dtype=bool),
    "legal": np.ones((8, 2), dtype=bool),
}


@pytest.mark.parametrize("column", [*MASKABLE, "skills"])
def test_a_masked_value_is_refused_in_every_column_and_an_empty_mask_is_not(column):
    values = np.zeros(8, dtype=int) if column == "skills" else MASKABLE[column]
    mask = np.zeros(values.shape, dtype=bool)

    def masked():
        array = np.ma.masked_array(values, mask=mask.copy())
        return table(**{column: {"phase": array} if column == "skills" else array})

    assert len(masked()) == 8
    mask.flat[3] = True
    with pytest.raises(DemonstrationError, match=r"1 masked value.*fill .*or drop"):
        masked()


def test_a_list_of_masked_rows_is_refused_as_well():
    rows = [np.ma.masked_array([1.0, 2.0], mask=[False, step == 5]) for step in range(8)]
    with pytest.raises(DemonstrationError, match="masked"):
        table(observations=rows)


@pytest.mark.parametrize("method", [Ileed(**TINY), Ileed(**TINY, expertise=Constant())], ids=["embedded", "constant"])
def test_a_demonstrator_of_weight_zero_has_no_expertise_and_ranks_last(method, tmp_path, capsys):
    data = table(demonstrator=np.repeat(["ann", "bob", "cyd", "dan"], 2))
    fitted = method.fit(data, seed=0, device="cpu", weights=[1, 0, 1, 1])
    assert np.isnan(fitted.expertise.by_demonstrator()["bob"])
    assert np.isfinite([value for name, value in fitted.expertise.by_demonstrator().items() if name != "bob"]).all()
    assert fitted.expertise.ranking()[-1][0] == "bob"
    assert np.isnan(fitted.expertise(data.observations, "bob")).all()
    fitted.save(tmp_path / "run")
    page = ileed.report(tmp_path / "run").read_text()
    assert "Not ranked: bob." in page
    assert np.isnan(ileed.load(tmp_path / "run").expertise.by_demonstrator()["bob"])
    from rich.console import Console

    from ileed.cli.console import ranking

    Console(width=200).print(ranking(fitted))
    printed = capsys.readouterr().out
    assert "the fit learned from no step of bob" in printed
    assert "nan" not in printed


def test_the_skill_of_a_demonstrator_of_weight_zero_is_unknown_too():
    data = table(skills={"phase": np.arange(8) % 2})
    fitted = Ileed(**TINY, expertise=Skills("phase")).fit(data, seed=0, device="cpu", weights=[1, 1, 0, 0])
    assert np.isnan(list(fitted.expertise.by_skill()["bob"].values())).all()
    assert np.isfinite(list(fitted.expertise.by_skill()["ann"].values())).all()


def test_with_weights_of_each_restart_expertise_is_that_of_the_restarts_that_learned_from_the_person():
    fitted = a_fit(weights=np.array([[1, 1, 1, 1], [1, 1, 0, 0]]))
    assert fitted.restarts.kept == (0, 1)
    first, second = (member.fitted().expertise.by_demonstrator() for member in fitted.ensemble)
    assert np.isnan(second["bob"])
    assert fitted.expertise.by_demonstrator()["bob"] == pytest.approx(first["bob"])
    assert fitted.expertise.by_demonstrator()["ann"] == pytest.approx((first["ann"] + second["ann"]) / 2)
    nobody = a_fit(weights=np.array([[1, 0, 0, 0], [1, 1, 0, 0]]))
    assert np.isnan(nobody.expertise.by_demonstrator()["bob"])


def test_numpy_integers_are_counts():
    assert table(action_count=np.int32(4)).action_count == 4


def test_negative_skill_weights_are_refused():
    weights = np.ones((8, 2))
    weights[3, 1] = -0.5
    with pytest.raises(DemonstrationError, match=r"skill column 'phase' .*-0.5.*step 3"):
        table(skills={"phase": weights})


def test_continuous_actions_of_no_dimension_are_refused():
    with pytest.raises(DemonstrationError, match=r"shape \(8, 0\)"):
        table(actions=np.zeros((8, 0)))


def test_a_numpy_seed_is_the_same_seed(tmp_path):
    ours, theirs = (Ileed(**TINY).fit(table(), seed=seed, checkpoint=tmp_path / "c") for seed in (7, np.int64(7)))
    assert ours.expertise.by_demonstrator() == theirs.expertise.by_demonstrator()
    assert type(theirs.provenance["seed"]) is int


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["joint.policy.body.layers.0.weight", "lens.shift"])
def test_a_run_whose_weights_are_not_finite_does_not_load(tmp_path, name, value):
    a_fit().save(tmp_path / "run")
    file = tmp_path / "run" / "weights.safetensors"
    tensors = load_file(file)
    tensors[name].view(-1)[0] = value
    save_file(tensors, file, metadata={"format": "1"})
    with pytest.raises(RunError, match=f"damaged .*{name}.*must be finite"):
        ileed.load(tmp_path / "run")


def test_a_run_that_names_a_demonstrator_twice_does_not_load(tmp_path):
    a_fit().save(tmp_path / "run")
    file = tmp_path / "run" / "settings.json"
    settings = json.loads(file.read_text())
    settings["demonstrators"] = ["ann", "ann"]
    file.write_text(json.dumps(settings))
    with pytest.raises(RunError, match=r"damaged .*'ann'.*distinct"):
        ileed.load(tmp_path / "run")


def test_an_action_that_implies_a_billion_actions_is_refused():
    actions = np.arange(8)
    actions[3] = 10**9
    with pytest.raises(DemonstrationError, match=r"action 1,000,000,000 .*8 different.*action_count="):
        table(actions=actions)


def test_ten_thousand_actions_are_few_enough_and_so_are_as_many_as_the_data_show():
    assert table(actions=np.arange(8) * 1000).action_count == 7001
    rows = np.arange(20_000)
    many = Demonstrations(observations=rows[:, None], actions=rows, demonstrator=rows % 2, episode=rows)
    assert many.action_count == 20_000


def test_a_stated_billion_actions_is_inspected_and_refused_by_the_memory_that_it_takes(monkeypatch):
    data = table(action_count=10**9)
    about = [finding.says for finding in data.check() if finding.about == "actions"]
    assert about == ["2, 3, 4, 5, 6, 7, 8, 9 of 1000000000 never occur"]
    monkeypatch.setattr("ileed.fitting.prepare", None)  # refused before anything is laid out
    with pytest.raises(SettingsError, match=r"GB.*available.*action_count"):
        Ileed().fit(data, seed=0, device="cpu")


# --- sizes


@pytest.mark.parametrize(
    "method",
    [
        Ileed(policy=CategoricalMLP(hidden=(1_000_000, 1_000_000))),
        Ileed(policy=CategoricalMLP(hidden=(10**9, 10**9))),
        Ileed(expertise=Embedded(hidden=(1_000_000, 1_000_000))),
        Ileed(expertise=Embedded(dim=10**9)),
        Ileed(policy=CategoricalMLP(hidden=(10**9,)), restarts=1),
        Ileed(restarts=10**9),
        bc(policy=CategoricalMLP(hidden=(1_000_000, 1_000_000))),
    ],
    ids=["policy", "beyond 64 bits", "embedding", "dimensions", "one layer", "restarts", "cloning"],
)
def test_a_model_that_memory_cannot_hold_is_refused_at_once(method, monkeypatch):
    monkeypatch.setattr("ileed.fitting.prepare", None)  # refused before anything is laid out
    with pytest.raises(SettingsError, match=r"needs at least .*GB.*available.*lower"):
        method.fit(table(), seed=0, device="cpu")


def test_a_recurrent_policy_that_memory_cannot_hold_is_refused_at_once():
    data = table(actions=np.random.default_rng(0).normal(size=(8, 2)))
    method = Ileed(policy=MixtureLSTM(hidden=(1_000_000,), modes=10**6))
    with pytest.raises(SettingsError, match=r"needs at least .*GB"):
        method.fit(data, seed=0, device="cpu")


def test_a_step_whose_values_memory_cannot_hold_is_refused(monkeypatch):
    monkeypatch.setattr("ileed.fitting.preparing.available_memory", lambda device: 10_000_000)
    steps = 4000
    rows = np.arange(steps)
    data = Demonstrations(observations=rows[:, None], actions=rows % 2, demonstrator=rows % 2, episode=rows)
    few, wide = {"restarts": 2, "steps": 1, "folds": 0}, CategoricalMLP(hidden=(1000,))
    Ileed(**few).fit(data, seed=0, device="cpu")
    with pytest.raises(SettingsError, match=r"0\.\d+ GB.*batch_size"):
        Ileed(**few, policy=wide).fit(data, seed=0, device="cpu")
    Ileed(**few, policy=wide, batch_size=8).fit(data, seed=0, device="cpu")


def test_a_policy_over_continuous_actions_is_refused_for_discrete_data():
    with pytest.raises(SettingsError, match="MixtureLSTM models continuous actions but the data's are discr"):
        Ileed(policy=MixtureLSTM(hidden=(4,)), **TINY).fit(table(), seed=0)


def test_a_dimension_may_be_exempt_by_its_place_from_the_end():
    policy = mixture(torch.zeros(1, 1), torch.zeros(1, 1, 3), torch.ones(1, 1, 3))
    by_end, by_number = (
        ileed.VarianceScaling(exempt=(axis,)).observed(policy, torch.full((1,), 0.25)) for axis in (-1, 2)
    )
    assert mixture_parts(by_number)[2].flatten().tolist() == [2, 2, 1]
    assert mixture_parts(by_end)[2].flatten().tolist() == [2, 2, 1]


PEOPLE = 100_000
MOST_MEGABYTES = 2_000  # 1,310 were measured, 300 of them torch; one float for every pair of people would take 40,000
EVERYBODY_ONCE = f"""
    import re, sys
    from pathlib import Path
    import numpy as np
    from ileed import Demonstrations, Embedded, Ileed, MixtureLSTM

    people = {PEOPLE}
    rows = np.arange(people)
    seen = np.random.default_rng(0).normal(size=(people, 3)).astype(np.float32)
    if sys.argv[1] == "repeated":
        seen = seen[rows % 50]
    recurrent = sys.argv[1] == "windows"
    data = Demonstrations(
        observations=seen,
        actions=seen[:, :1] if recurrent else rows % 3,
        demonstrator=rows,
        episode=rows,
        names=tuple(f"person {{row}}" for row in rows),
    )
    method = Ileed(restarts=2, steps=4, policy=MixtureLSTM(hidden=(4,), length=2) if recurrent else None)
    fitted = method.fit(data, seed=0, device="cpu")
    assert len(fitted.expertise.by_demonstrator()) == people
    if sys.argv[1] == "repeated":
        data.check()
    status = Path("/proc/self/status").read_text()  # ru_maxrss would count what the parent held before the exec
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status).group(1)) // 1024)
"""


@pytest.mark.parametrize("kind", ["own", "repeated", "windows"])
def test_a_hundred_thousand_people_of_one_step_each_take_memory_that_grows_as_they_do(kind):
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EVERYBODY_ONCE), kind], capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < MOST_MEGABYTES


@pytest.mark.parametrize("groups", [(), (2,)], ids=["one data set", "two"])
@pytest.mark.parametrize("entries", [5, 64, 70, 2000])
def test_reading_a_table_at_drawn_indices_is_the_product_with_a_one_hot_matrix(entries, groups):
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(entries, (*groups, 600), generator=generator)
    values = torch.randn(4, entries, generator=generator)
    one_hot = torch.eye(entries)[index].mT if groups else torch.eye(entries)[:, index]
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    read = Pick.drawn(index, entries)(ours)
    expected = (theirs.reshape(*groups, -1, entries) @ one_hot).reshape(4, -1)
    torch.testing.assert_close(read, expected, rtol=0, atol=0)
    weight = torch.randn(read.shape, generator=generator)
    (read * weight).sum().backward()
    (expected * weight).sum().backward()
    exact = {"rtol": 0, "atol": 0} if entries <= 64 else {}
    torch.testing.assert_close(ours.grad, theirs.grad, **exact)


def test_the_share_of_shared_observations_is_as_counted_by_hand():
    generator = np.random.default_rng(0)
    who = np.sort(generator.integers(6, size=300))
    seen = generator.integers(200, size=(300, 1))
    data = Demonstrations(observations=seen, actions=who % 2, demonstrator=who, episode=who)
    collapsed = data.collapsed()
    visited = np.zeros((len(data.names), len(collapsed.observations)), dtype=bool)
    visited[data.demonstrator, collapsed.step_observation_index] = True
    by_hand = visited.sum(0)[collapsed.step_observation_index] > 1
    np.testing.assert_array_equal(visited_by_several(data.demonstrator, collapsed.step_observation_index), by_hand)
    assert 0 < by_hand.mean() < 1


def test_a_name_of_a_hundred_thousand_characters_is_refused_briefly():
    names = ["x" * 100_000 if row < 4 else "bob" for row in range(8)]
    for columns in ({"demonstrator": names}, {"demonstrator": [0] * 8, "names": names[3:5]}, {"episode": names}):
        with pytest.raises(DemonstrationError, match="100,000 characters") as caught:
            table(**columns)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "dictionary"])
def test_a_file_with_such_a_name_is_refused_before_its_rows_are_laid_out(encoded, tmp_path):
    names = pa.array(["x" * 100_000, "bob"] * 2000)
    columns = {"observation": [[1.0]] * 4000, "action": [0] * 4000, "episode": range(4000)}
    columns["demonstrator"] = names.dictionary_encode() if encoded else names
    pq.write_table(pa.table(columns), tmp_path / "mine.parquet")
    with pytest.raises(DemonstrationError, match=r"'demonstrator'.*100,000 characters") as caught:
        ileed.read(tmp_path / "mine.parquet")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("label", [ileed.by_column, ileed.by_mask, ileed.by_one])
def test_a_name_of_a_hundred_thousand_characters_has_no_suggestion(label):
    with pytest.raises(DemonstrationError, match="100,000 characters") as caught:
        label("x" * 100_000)
    assert len(str(caught.value)) < 300


def test_a_path_of_a_hundred_thousand_characters_is_no_file(tmp_path):
    with pytest.raises(DemonstrationError, match="no file") as caught:
        ileed.read(tmp_path / ("x" * 100_000 + ".parquet"))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("workers", [-1, 0, 1.5, "2", True])
def test_an_experiment_needs_one_worker_or_more(workers, tmp_path):
    with refused("workers-invalid", SettingsError):
        reproduce(experiment("minigrid/populations"), out=tmp_path, trials=1, workers=workers)
    assert list(tmp_path.iterdir()) == []


def test_the_robomimic_plug_in_says_what_to_install_where_robomimic_is_missing(tmp_path):
    without = "import sys, runpy; sys.modules['robomimic'] = None; sys.argv[1:] = []; "
    script = "runpy.run_module('ileed.integrations.robomimic', run_name='__main__')"
    ran = subprocess.run([sys.executable, "-c", without + script], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "robomimic cannot be imported here" in ran.stderr
    assert "install it" in ran.stderr


def test_registering_with_robomimic_where_it_is_missing_says_what_to_install(monkeypatch):
    from ileed.integrations import robomimic

    monkeypatch.setitem(sys.modules, "robomimic", None)
    with pytest.raises(IleedError, match=r"robomimic cannot be imported here.*install it"):
        robomimic.register()


# --- wrong types


WRONG_SETTINGS = {
    "Ileed(policy='CategoricalMLP')": "policy-invalid",
    "Ileed(policy=CategoricalMLP)": "policy-invalid",
    "Ileed(demonstrator='uniform')": "demonstrator-invalid",
    "Ileed(expertise=1)": "expertise-invalid",
    "Ileed(expertise=Constant)": "expertise-invalid",
    "Ileed(dynamics=True)": "dynamics-invalid",
    "Ileed(steps='5')": "steps-invalid",
    "Ileed(steps=2.5)": "steps-invalid",
    "Ileed(restarts=True)": "restarts-invalid",
    "Ileed(ensemble='1')": "ensemble-invalid",
    "Ileed(batch_size=2.5)": "batch-size-invalid",
    "Ileed(batch_size='all')": "batch-size-invalid",
    "Ileed(learning_rate='fast')": "learning-rate-invalid",
    "Ileed(skill_learning_rate=True)": "skill-learning-rate-invalid",
    "Ileed(clip='1')": "clip-invalid",
    "Ileed(held_out='half')": "held-out-invalid",
    "Ileed(held_out=float('nan'))": "held-out-invalid",
    "Ileed(normalise='yes')": "normalise-invalid",
    "CategoricalMLP(hidden=5)": "hidden-invalid",
    "CategoricalMLP(hidden='ab')": "hidden-invalid",
    "CategoricalMLP(hidden=(4.5,))": "hidden-invalid",
    "Embedded(hidden=(True,))": "hidden-invalid",
    "LatentDynamics(hidden=None)": "hidden-invalid",
    "Embedded(dim='2')": "dim-invalid",
    "Embedded(shared='no')": "shared-invalid",
    "Difficulty(easiness='no')": "easiness-invalid",
    "MixtureMLP(modes=1.5)": "modes-invalid",
    "MixtureMLP(standard_deviation_floor='x')": "standard-deviation-floor-invalid",
    "MixtureMLP(fixed_standard_deviation='x')": "fixed-standard-deviation-invalid",
    "MixtureLSTM(length=2.5)": "length-invalid",
    "MixtureLSTM(low_noise='no')": "low-noise-invalid",
    "Skills(3)": "column-invalid",
    "LatentDynamics(weight='1')": "the-weight-of-the-latent-dynamics-invalid",
    "VarianceScaling(scaled='spread')": "scaled-invalid",
    "VarianceScaling(exempt='gripper')": "exempt-invalid",
}

PLAIN = (
    "Ileed(policy=CategoricalMLP(hidden=[np.int64(3), 2]), restarts=np.int64(2), steps=np.int32(3), clip=1, "
    "learning_rate=np.float32(0.5), batch_size=np.int16(4), expertise=Embedded(dim=np.int8(2), hidden=np.array([2])))"
)


@pytest.fixture(scope="module")
def answered() -> dict[str, str]:
    """What each expression is answered with in a process of its own: in this one, types are checked before us."""
    program = """
        import json, sys
        import numpy as np
        from ileed import *

        def answer(expression):
            try:
                return repr(eval(expression))
            except SettingsError as error:
                return error.code

        print(json.dumps({expression: answer(expression) for expression in json.loads(sys.argv[1])}))
    """
    asked = json.dumps([*WRONG_SETTINGS, PLAIN])
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program), asked], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("expression", WRONG_SETTINGS)
def test_settings_of_a_wrong_type_are_refused_by_name(expression, answered):
    assert answered[expression] == WRONG_SETTINGS[expression]


def test_settings_given_as_numpy_or_lists_become_plain(answered):
    plain = Ileed(
        policy=CategoricalMLP(hidden=(3, 2)), restarts=2, steps=3, clip=1.0, learning_rate=0.5, batch_size=4,
        expertise=Embedded(dim=2, hidden=(2,)),
    )  # fmt: skip
    assert answered[PLAIN] == repr(plain)


WRONG_CALLS = {
    "a path": (lambda: Ileed(**TINY).fit("mine.parquet", seed=0), "demonstrations-invalid"),
    "a Path": (lambda: Ileed(**TINY).fit(Path("mine"), seed=0), "demonstrations-invalid"),
    "arrays": (lambda: Ileed(**TINY).fit(np.zeros((3, 2)), seed=0), "demonstrations-invalid"),
    "None": (lambda: bc(**TINY).fit(None, seed=0), "demonstrations-invalid"),
    "no device": (lambda: a_fit_with(device=None), "device-invalid"),
    "device 3.7": (lambda: a_fit_with(device=3.7), "device-invalid"),
    "progress": (lambda: a_fit_with(progress="bar"), "progress-invalid"),
    "checkpoint": (lambda: a_fit_with(checkpoint=3), "checkpoint-invalid"),
    "checkpoint_seconds": (lambda: a_fit_with(checkpoint_seconds="often"), "checkpoint-seconds-invalid"),
    "report of a fit": (lambda: ileed.report(SimpleNamespace()), "path-invalid"),
    "load of a number": (lambda: ileed.load(3), "path-invalid"),
    "evaluate no episode": (lambda: play(episodes=0), "episodes-invalid"),
    "evaluate episodes as text": (lambda: play(episodes="5"), "episodes-invalid"),
    "evaluate with no seed": (lambda: play(seed=None), "seed-invalid"),
    "demonstrate in no task": (lambda: demonstrate(task="minigrid/obstacles"), "task-invalid"),
    "demonstrate half a step": (lambda: demonstrate(steps=2.5), "steps-invalid"),
    "demonstrate with no seed": (lambda: demonstrate(seed=None), "seed-invalid"),
    "rate a path": (lambda: ileed.rate(a_fit(), "mine.parquet"), "demonstrations-invalid"),
    "rate with text": (lambda: ileed.rate(a_fit(), table(), confidence_level="high"), "confidence-level-invalid"),
    "nats of a path": (lambda: a_fit().nats("mine.parquet"), "demonstrations-invalid"),
    "reset with text": (lambda: a_fit().policy.reset("0"), "seed-invalid"),
    "workers as text": (lambda: ileed.parallel.executor("local", workers="2"), "workers-invalid"),
    "an executor's name": (lambda: ileed.compare(table(), seed=0, executor="local"), "executor-invalid"),
    "save to a number": (lambda: a_fit().save(3), "path-invalid"),
    "a mask by number": (lambda: ileed.by_mask(3), "name-invalid"),
    "a column by number": (lambda: ileed.by_column(3), "column-invalid"),
    "one by number": (lambda: ileed.by_one(3), "name-invalid"),
    "a file by number": (lambda: ileed.read(3), "path-invalid"),
    "skills None": (lambda: table(skills=None), "skills-invalid"),
    "skills as an array": (lambda: table(skills=np.zeros(8)), "skills-invalid"),
    "a seed of None": (lambda: a_fit_with(seed=None), "seed-invalid"),
    "a seed as text": (lambda: a_fit_with(seed="0"), "seed-invalid"),
    "half a seed": (lambda: a_fit_with(seed=1.5), "seed-invalid"),
    "a seed of True": (lambda: a_fit_with(seed=True), "seed-invalid"),
    "a list of seeds": (lambda: a_fit_with(seed=[0]), "seed-invalid"),
    **{
        f"action_count {count!r}": (lambda count=count: table(action_count=count), "action-count-invalid")
        for count in (3.5, True, "3", -1, None, np.float64(4))
    },
    "coverage as text": (lambda: Rule(coverage="yes"), "coverage-invalid"),
    "adjust as text": (lambda: Rule(adjust="yes"), "adjust-invalid"),
    **{
        f"least_effective {share!r}": (lambda share=share: Rule(least_effective=share), "least-effective-invalid")
        for share in (-0.1, 0.9, "half")
    },
}  # fmt: skip

WITHOUT_CODE = {
    "device meta": (lambda: a_fit_with(device="meta"), "device 'meta'"),
    "weights as text": (lambda: a_fit_with(weights="x"), "weights .*number"),
    "ragged weights": (lambda: a_fit_with(weights=[[1], [1, 2]]), "weights .*number"),
    "masked weights": (lambda: a_fit_with(weights=np.ma.masked_equal([1.0, 2, 3, 4], 2)), "weights .*masked"),
    "evaluate in no task": (lambda: ileed.evaluate(a_fit().policy, "no-such"), "no-such"),
    "demonstrate skill as text": (lambda: demonstrate(skill="high"), "skill is 'high'"),
    "rate with no fit": (lambda: ileed.rate("run", table()), "policy is 'run'"),
    "people by number": (lambda: table().by(1), r"there is no demonstrator 1 \(names are text: write it in quotes\)"),
    "no executor": (lambda: ileed.parallel.executor(None), "no executor is called None"),
    "no observations": (lambda: table(observations=None), "observations .*None"),
    "no actions": (lambda: table(actions=None), "actions .*None"),
    "no episodes": (lambda: table(episode=None), "episode .*None"),
    "text for observations": (lambda: table(observations="abc"), "no steps"),
    "one name": (lambda: table(names="ab"), "names is 'ab'"),
    "names None": (lambda: table(names=None), "names is None"),
    "a tensor with a gradient": (lambda: table(observations=torch.zeros(8, 2, requires_grad=True)), "detach"),
}  # fmt: skip


def a_fit_with(**options):
    return Ileed(**TINY).fit(table(), **({"seed": 0, "device": "cpu"} | options))


def play(**options):
    return ileed.evaluate(lambda seen, starts: np.zeros(len(seen), int), ileed.envs.task("robot/reach"), **options)


def demonstrate(**options):
    usual = {"task": ileed.envs.task("robot/reach"), "policy": None, "skill": [1.0], "steps": 5, "seed": 0}
    return ileed.demonstrate(**(usual | options))


@pytest.mark.parametrize(("call", "code"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_an_argument_of_a_wrong_type_is_refused_by_name(call, code):
    with refused(code):
        call()


@pytest.mark.parametrize(("call", "fact"), WITHOUT_CODE.values(), ids=WITHOUT_CODE)
def test_an_argument_of_a_wrong_type_is_refused_and_the_message_has_the_fact(call, fact):
    with pytest.raises(IleedError, match=fact):
        call()


def test_the_report_of_a_fit_says_to_save_it_first():
    with refused("path-invalid", SettingsError):
        ileed.report(a_fit())


# --- acting


CONTINUOUS = {"actions": np.random.default_rng(0).normal(size=(8, 2))}
POLICIES = {
    "categorical": (None, {}),
    "mixture": (MixtureMLP(hidden=(3,), modes=2), CONTINUOUS),
    "recurrent": (MixtureLSTM(hidden=(3,), modes=2, length=2), CONTINUOUS),
}


@pytest.fixture(scope="module", params=POLICIES)
def acting(request):
    policy, changes = POLICIES[request.param]
    return Ileed(**TINY, policy=policy, expertise=Constant()).fit(table(**changes), seed=0, device="cpu").policy


@pytest.mark.parametrize("sample", [False, True])
def test_a_batch_of_no_observations_is_answered_with_no_actions(acting, sample):
    acting.reset()
    some = acting.act(np.zeros((2, 1)), sample=sample)
    acting.reset()
    none = acting.act(np.zeros((0, 1)), sample=sample)
    assert none.shape == (0, *some.shape[1:])
    assert none.dtype == some.dtype
    actions, _ = acting.predict(np.zeros((0, 1)), deterministic=not sample)
    assert actions.shape == none.shape


@pytest.mark.parametrize(
    "observations", ["text", ["a", "b"], np.array([["a"], ["b"]]), None, [[None], [1]], [], [[1j]]]
)
def test_acting_upon_something_that_is_no_observation_is_refused(acting, observations):
    acting.reset()
    with pytest.raises(DemonstrationError, match="observations"):
        acting.act(observations)


def test_a_demonstrator_without_a_name_has_no_expertise_to_ask_for():
    expertise = a_fit().expertise
    for stranger in (3, None, "eve", ["ann"]):
        with pytest.raises(DemonstrationError, match="there is no demonstrator"):
            expertise(np.zeros((1, 1)), demonstrator=stranger)
    assert expertise(np.zeros((0, 1)), "ann").shape == (0,)


# --- the command


@pytest.fixture(scope="module")
def parquet(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "mine.parquet"
    ileed.write_parquet(table(), path)
    return path


def test_a_label_as_text_is_refused(parquet):
    with pytest.raises(DemonstrationError, match="'who'"):
        ileed.read(parquet, demonstrator="who")


REFUSED = {
    "a recurrent policy on discrete data": ("fit {} --policy MixtureLSTM", "MixtureLSTM models continuous"),
    "networks beyond memory": ("fit {} --policy CategoricalMLP(hidden=(1000000,1000000))", "needs at least"),
    "workers below one": ("reproduce minigrid/populations --workers -1", "workers is -1"),
    "a continuous model on discrete data": (
        "fit {} --demonstrator-model SignalScaling()",
        "SignalScaling models continuous actions but the data's are discrete",
    ),
    "workers of no executor": ("fit {} --workers 2", "add --executor local"),
    "a file that is there": ("demonstrate minigrid/empty --out {}", "exists already: choose another place"),
    "a file of a long name": ("inspect " + "x" * 100_000 + ".parquet", "there is no file"),
}


@pytest.mark.parametrize(("command", "sentence"), REFUSED.values(), ids=REFUSED)
def test_the_command_refuses_with_one_sentence(command, sentence, parquet, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(command.format(parquet).split()) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ileed: ")]
    assert len(said) == 1
    assert sentence in said[0]
    assert len(said[0]) < 500
