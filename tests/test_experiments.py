"""Grids of experiments: interrupted, resumed, failed and refused."""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import code_size
import pytest
from strategies import world

import ileed
from ileed.cli import run
from ileed.envs.abstract_task import AbstractTask
from ileed_lab import running
from ileed_lab.experiments import EXPERIMENTS, AbstractExperiment, Cell, experiment, reproduce
from ileed_lab.grid import cells
from ileed_lab.learners import Ensemble, Learner, fits_together, likeliest, runs_on
from ileed_lab.records import read_cell, recorded_settings
from ileed_lab.square.experiment import BY_STATE, SUBSETS_BY_STATE


@dataclass(frozen=True)
class Small(AbstractExperiment):
    """Two worlds, cloned and estimated; measured by cost alone, so that nothing has to be played."""

    name: str = "tests/small"
    trials: int = 3
    unlucky: int = -1
    steps: int = 12

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"episodes": 0}

    def settings(self) -> Sequence[Mapping[str, Any]]:
        return [{"world": "one", "people": 2}, {"world": "two", "people": 3}]

    def methods(self, setting: Mapping[str, Any]) -> Mapping[str, ileed.Ileed | None]:
        return {
            "bc": ileed.bc(restarts=2, steps=self.steps),
            "ileed": ileed.Ileed(restarts=2, steps=self.steps),
            "nobody": None,
        }

    def demonstrations(self, setting: Mapping[str, Any], trials: Sequence[int]) -> list[ileed.Demonstrations]:
        return [world(people=setting["people"], seed=trial) for trial in trials]

    def task(self, setting: Mapping[str, Any]) -> AbstractTask:
        raise AssertionError("nothing here is played")

    def measure(self, setting: Mapping[str, Any], method: str, trial: int, fit: Ensemble | None) -> dict[str, Any]:
        if trial == self.unlucky:
            raise ileed.IleedError("this trial was not lucky")
        return {"people": setting["people"]} if fit is None else {"cost": likeliest(fit).nats_per_action}


def trials_of(path: Path) -> list[dict[str, Any]]:
    """What was measured, without the time that it took."""
    return [
        {name: value for name, value in trial.items() if not name.endswith("seconds")}
        for trial in read_cell(path)["trials"]
    ]


def test_every_cell_becomes_a_file_that_names_its_settings_and_origin(tmp_path):
    heard: list[tuple[int, int]] = []
    paths = reproduce(
        Small(), out=tmp_path, device="cpu", workers=1, progress=lambda done, total: heard.append((done, total))
    )
    assert [path.name for path in paths] == [
        f"{world}_{method}.json" for world in ("one_2", "two_3") for method in ("bc", "ileed", "nobody")
    ]
    cell = json.loads((tmp_path / "tests/small/two_3_ileed.json").read_text())
    assert cell["setting"] == {"world": "two", "people": 3}
    assert cell["settings"]["kind"] == "Ileed"
    assert [trial["trial"] for trial in cell["trials"]] == [0, 1, 2]
    assert cell["made"][0].keys() >= {"commit", "date", "machine", "device", "trials"}
    assert heard[-1] == (18, 18)
    assert all(trial["fit_seconds"] > 0 for trial in cell["trials"])
    alone = ileed.Ileed(restarts=2, steps=12).fit(world(people=3, seed=1), seed=1, device="cpu")
    assert cell["trials"][1]["cost"] == pytest.approx(alone.nats_per_action, abs=1e-5)


def test_a_resumed_run_adds_the_missing_trials_and_equals_one_that_was_never_interrupted(tmp_path):
    reproduce(Small(), out=tmp_path / "whole", device="cpu", workers=1)
    reproduce(Small(), out=tmp_path / "parts", trials=1, device="cpu", workers=1)
    kept = (tmp_path / "parts/tests/small/one_2_bc.json").stat().st_mtime_ns
    reproduce(Small(), out=tmp_path / "parts", methods=["ileed", "nobody"], resume=True, device="cpu", workers=1)
    assert (tmp_path / "parts/tests/small/one_2_bc.json").stat().st_mtime_ns == kept
    reproduce(Small(), out=tmp_path / "parts", resume=True, device="cpu", workers=1)
    for cell in cells(Small()):
        whole, parts = (trials_of(cell.path(tmp_path / name)) for name in ("whole", "parts"))
        assert [trial["trial"] for trial in parts] == [0, 1, 2]
        for one, other in zip(whole, parts, strict=True):
            assert one == pytest.approx(other, abs=2e-5)


def test_fits_between_the_cores_give_what_fits_on_the_cores_give(tmp_path, monkeypatch):
    """The scheduling of a GPU, on a CPU."""
    reproduce(Small(), out=tmp_path / "cores", trials=2, device="cpu", workers=1)
    monkeypatch.setattr(running, "_run_on_cores", running._run_on_gpu)
    reproduce(Small(), out=tmp_path / "between", trials=2, device="cpu", workers=1)
    for cell in cells(Small()):
        cores, between = (trials_of(cell.path(tmp_path / name)) for name in ("cores", "between"))
        for one, other in zip(cores, between, strict=True):
            assert one == pytest.approx(other, abs=2e-5)


def test_a_run_that_is_stopped_keeps_what_was_done(tmp_path):
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(Small(), out=tmp_path, device="cpu", workers=1, progress=stop)
    written = list((tmp_path / "tests/small").iterdir())
    assert len(written) == 1
    assert len(trials_of(written[0])) == 3


def test_a_trial_that_fails_is_recorded_in_its_own_words_and_the_others_go_on(tmp_path):
    reproduce(Small(unlucky=1), out=tmp_path, methods=["bc"], device="cpu", workers=1)
    trials = trials_of(tmp_path / "tests/small/one_2_bc.json")
    assert trials[1] == {"trial": 1, "failed": "this trial was not lucky"}
    assert all("cost" in trials[trial] for trial in (0, 2))


@dataclass(frozen=True)
class Breaking:
    """A learner that fails where the data hold a negative number."""

    def fit(
        self, demonstrations: ileed.Demonstrations, *, seed: int, device: str = "auto", progress: Any = None
    ) -> ileed.Fitted:
        if (demonstrations.observations < 0).any():
            raise RuntimeError("the kernel ran out of registers")
        return ileed.bc(restarts=2, steps=12).fit(demonstrations, seed=seed, device=device)


@dataclass(frozen=True)
class Refused(Small):
    """Small, but the data of trial 1 have continuous actions and a negative number, which no learner here accepts."""

    def methods(self, setting: Mapping[str, Any]) -> Mapping[str, Any]:
        chosen = {"policy": ileed.CategoricalMLP(hidden=(4,)), "restarts": 2, "steps": self.steps}
        return {"bc": ileed.bc(**chosen), "ileed": ileed.Ileed(**chosen), "breaking": Breaking()}

    def demonstrations(self, setting: Mapping[str, Any], trials: Sequence[int]) -> list[ileed.Demonstrations]:
        continuous = replace(world(people=2, discrete=False), observations=-1 - world(people=2).observations)
        return [continuous if trial == 1 else world(people=2, seed=trial) for trial in trials]

    def measure(self, setting: Mapping[str, Any], method: str, trial: int, fit: Any) -> dict[str, Any]:
        return {"cost": (fit if method == "breaking" else likeliest(fit)).nats_per_action}


@pytest.mark.parametrize("way", ["_run_on_cores", "_run_on_gpu"])
def test_a_fit_that_fails_is_recorded_and_the_fits_beside_it_go_on(way, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "_run_on_cores", getattr(running, way))
    reproduce(Refused(), out=tmp_path, settings=["one"], device="cpu", workers=1)
    for method, sentence in (
        ("bc", "CategoricalMLP"),
        ("ileed", "CategoricalMLP"),
        ("breaking", "RuntimeError: the kernel ran out of registers"),
    ):
        trials = trials_of(tmp_path / f"tests/small/one_2_{method}.json")
        assert [trial["trial"] for trial in trials] == [0, 1, 2]
        assert trials[1].keys() == {"trial", "failed"}
        assert sentence in trials[1]["failed"]
        assert all("cost" in trials[trial] for trial in (0, 2))


def test_the_command_tells_how_many_trials_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ileed_lab.experiments.experiment", lambda name, data=None: Refused())
    words = ["tests/small", "--out", str(tmp_path), "--settings", "one", "--methods", "breaking"]
    assert run(["reproduce", *words, "--device", "cpu", "--workers", "1"]) == 0
    assert "1 of their trials failed, and the records say why" in " ".join(capsys.readouterr().out.split())


RESULTS = Path(__file__).parents[1] / "results"
LAB = Path(__file__).parents[1] / "lab" / "ileed_lab"


def test_records_of_an_uncommitted_tree_are_refused_among_the_results_before_anything_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("ILEED_COMMIT", "0123456789ab-dirty")
    monkeypatch.setattr(Small, "demonstrations", None)  # nothing is simulated before the refusal
    refusal = (
        r"holds records of committed code alone, .* \(0123456789ab-dirty\): commit them first, or pass another --out"
    )
    for out in (RESULTS, RESULTS / "tests" / "..", RESULTS / "tests"):
        with pytest.raises(ileed.SettingsError, match=refusal):
            reproduce(Small(), out=out, device="cpu")
    assert not (RESULTS / "tests").exists()


def test_records_of_an_uncommitted_tree_may_lie_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("ILEED_COMMIT", "0123456789ab-dirty")
    (path,) = reproduce(Small(), out=tmp_path, trials=1, settings=["one"], methods=["nobody"], device="cpu", workers=1)
    assert read_cell(path)["made"][0]["commit"] == "0123456789ab-dirty"


def test_no_record_names_an_uncommitted_tree():
    found = sorted(str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*.json") if "-dirty" in path.read_text())
    assert not found, f"made from an uncommitted tree, make them again after a commit: {found}"


def test_results_made_with_other_settings_are_not_added_to(tmp_path):
    reproduce(Small(), out=tmp_path, trials=1, methods=["bc"], device="cpu", workers=1)
    with pytest.raises(ileed.RunError, match=r"one_2_bc\.json was made with another settings: leave out --resume"):
        reproduce(Small(steps=13), out=tmp_path, methods=["bc"], resume=True, device="cpu", workers=1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [({"trials": 0}, "trials is 0"), ({"methods": ["gpt"]}, "no method of tests/small is called")],
)
def test_impossible_wishes_are_refused(wrong, sentence, tmp_path):
    with pytest.raises(ileed.SettingsError, match=sentence):
        reproduce(Small(), out=tmp_path, device="cpu", **wrong)


def test_an_unknown_experiment_is_refused_with_the_names_of_those_there_are():
    with pytest.raises(ileed.SettingsError, match=r"there is no experiment 'minigrid/nothing'; .*minigrid/populations"):
        experiment("minigrid/nothing")


@pytest.mark.parametrize("known", EXPERIMENTS.values(), ids=EXPERIMENTS.keys())
def test_every_cell_of_an_experiment_has_a_name_of_its_own_and_settings_that_json_holds(known):
    grid = cells(known)
    assert len({cell.slug for cell in grid}) == len(grid)
    for cell in grid:
        assert json.loads(json.dumps(cell.header())) == cell.header()


@pytest.mark.parametrize("known", EXPERIMENTS.values(), ids=EXPERIMENTS.keys())
def test_every_record_of_an_experiment_can_be_resumed(known):
    """Those that learn from a file, which is not here, are compared without its fingerprint."""
    found = 0
    for cell in cells(known):
        if not cell.path(RESULTS).exists():
            continue
        found += 1
        content = read_cell(cell.path(RESULTS))
        if known.data_file is None:
            assert len(cell.read(RESULTS)) == len(content["trials"]) > 0
            continue
        content["plan"].pop("data")
        assert {name: content[name] for name in cell.header()} == cell.header(), cell.slug
    assert found > 0


def test_every_record_belongs_to_a_cell():
    known = {cell.path(RESULTS) for each in EXPERIMENTS.values() for cell in cells(each)}
    families = ("minigrid", "robot", "chess", "calibration", "crowd", "curation", "people", "operators")
    assert {path for family in families for path in (RESULTS / family).rglob("*.json")} <= known


@dataclass(frozen=True)
class Renamed(Small):
    """Small, with a measure and a plan that records hold under older names."""

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"ensemble": 10}

    def measure(self, setting: Mapping[str, Any], method: str, trial: int, fit: Any) -> dict[str, Any]:
        return {"ensemble_reward": 0.5, "stages": {"minigrid/empty": 0.25}, "action_error": 0.125}


def test_records_keep_their_names_and_are_read_under_those_of_today(tmp_path):
    experiment = Renamed()
    (path,) = reproduce(
        experiment, out=tmp_path, trials=1, settings=["one"], methods=["nobody"], device="cpu", workers=1
    )
    content = json.loads(path.read_text())
    assert content["plan"] == {"committee": 10}
    names = {"trial", "committee_reward", "parts", "error_of_aim", "fit_seconds", "score_seconds"}
    assert content["trials"][0].keys() == names
    assert read_cell(path)["trials"][0].items() >= experiment.measure({}, "nobody", 0, None).items()
    (cell,) = cells(experiment, settings=["one"], methods=["nobody"])
    assert cell.read(tmp_path).keys() == {0}


def test_a_setting_that_records_are_older_than_is_recorded_where_it_is_not_theirs():
    older, younger = (recorded_settings(ileed.Difficulty(easiness=easiness)) for easiness in (True, False))
    assert older == {"kind": "Difficulty", "dim": 2, "hidden": [4, 4], "shrinkage": 10.0}
    assert younger == older | {"easiness": False}


LEARNERS = {
    f"{known.name} {name}": learner
    for known in EXPERIMENTS.values()
    for name, learner in known.methods(known.settings()[0]).items()
    if learner is not None
}


@pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS.keys())
def test_methods_and_baselines_have_one_signature(learner: Learner):
    fit = inspect.signature(learner.fit).parameters
    assert next(iter(fit)) == "demonstrations"
    assert fit["seed"].default is inspect.Parameter.empty
    assert fit["device"].default == "auto"
    others = [each for name, each in fit.items() if name not in ("demonstrations", "seed")]
    assert all(each.default is not inspect.Parameter.empty for each in others)
    if fits_together(learner):
        together = inspect.signature(learner.fit_each).parameters
        assert list(together)[:3] == ["datasets", "seeds", "device"]
        assert all(together[name].default is not inspect.Parameter.empty for name in list(together)[2:])
    assert runs_on(learner, "cpu")
    on_cores = ("Gail", "Taught", "DawidSkene", "Glad", "QualityLearner", "PlainTraining", "CuratedTraining")
    assert runs_on(learner, "cuda") == (type(learner).__name__ not in on_cores)


def test_square_compares_expertise_by_state_where_it_learned_worse_policies_and_with_all_else_equal():
    square = EXPERIMENTS["robot/square"]
    for setting in square.settings():
        methods = square.methods(setting)
        assert (methods.keys() >= BY_STATE.keys()) == (setting["operators"] in SUBSETS_BY_STATE)
        for name in BY_STATE.keys() & methods.keys():
            assert replace(methods[name], expertise=methods["ileed-by-state"].expertise) == methods["ileed-by-state"]


def test_an_experiment_takes_a_file_only_where_it_learns_from_one(tmp_path):
    assert experiment("robot/square", data=tmp_path).data == tmp_path
    with pytest.raises(ileed.SettingsError, match="minigrid/experts simulates its own demonstrations"):
        experiment("minigrid/experts", data=tmp_path)


def test_demonstrations_of_a_trial_are_the_same_whatever_other_trials_are_asked_for():
    populations = EXPERIMENTS["minigrid/populations"]
    setting = populations.settings()[0]
    first, second = populations.demonstrations(setting, [0, 1])
    (alone,) = populations.demonstrations(setting, [1])
    assert alone.fingerprint == second.fingerprint != first.fingerprint
    assert alone.names[0] == "demonstrator 1"


def test_a_damaged_cell_is_named(tmp_path):
    cell = Cell(Small(), Small().settings()[0], "bc")
    cell.path(tmp_path).parent.mkdir(parents=True)
    cell.path(tmp_path).write_text("{}")
    with pytest.raises(ileed.RunError, match=r"one_2_bc\.json is not a cell of results"):
        replace(cell).read(tmp_path)


def test_only_the_settings_that_were_asked_for_are_run_and_others_refused(tmp_path):
    paths = reproduce(Small(), out=tmp_path, settings=["two"], methods=["nobody"], device="cpu", workers=1)
    assert [path.name for path in paths] == ["two_3_nobody.json"]
    with pytest.raises(ileed.SettingsError, match="its settings are \\['2', '3', 'one', 'two'\\]"):
        reproduce(Small(), out=tmp_path, settings=["three"], device="cpu")


def test_functions_of_the_lab_are_small():
    """The limits of the library; the runner's arguments are the command's, and the kernel is compiled by numba."""
    files = {str(path.relative_to(LAB)): path.read_text() for path in LAB.rglob("*.py")}
    assert code_size.long_functions(files) == {}
    assert code_size.many_parameters(files).keys() == {"running.py: reproduce", "square/world.py: _arm_torques"}


def test_no_part_of_the_runner_or_of_an_experiment_asks_a_learner_for_its_class():
    files = [LAB / "running.py", LAB / "grid.py", LAB / "catalogue.py", *LAB.rglob("*experiment.py")]
    classes = r"Ileed|Ensemble|Fitted|Gail|AbstractOffline|AbstractExperiment|Perfect|Constant|Succession|AbstractTask"
    asked = re.compile(rf"isinstance\([^)]*\b({classes})\b[^)]*\)")
    assert [path.name for path in files if asked.search(path.read_text())] == []
