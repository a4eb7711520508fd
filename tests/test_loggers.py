"""Loggers: what a fit reports arrives where people look, under names that cannot be confused."""

import inspect
import json
import struct
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ileed
from ileed.cli import run
from ileed.errors import IleedError, RunError, SettingsError
from ileed.integrations.loggers import _tags, logger

METHOD = ileed.Ileed(policy=ileed.CategoricalMLP(), restarts=2, steps=20, folds=2)
NAMES = ("ann b", "ann/b", "zoë\x1b[31m")

needs_tensorboard = pytest.mark.skipif(
    find_spec("tensorboardX") is None, reason="tensorboardX is absent: pip install 'ileed[tensorboard]'"
)


@pytest.fixture(scope="module")
def data() -> ileed.Demonstrations:
    shipped = ileed.shipped()
    some = shipped.by(*shipped.names[:3])
    return ileed.Demonstrations(
        observations=some.observations,
        actions=some.actions,
        demonstrator=some.demonstrator,
        episode=some.episode,
        names=NAMES,
        action_count=some.action_count,
    )


class Calls(list):
    """A stand-in for a package: the name and the arguments of every call, which must fit the real signature."""

    def function(self, name, signature, answer=None):
        def call(*arguments, **options):
            signature.bind(*arguments, **options)
            self.append((name, arguments, options))
            return answer

        return call


def _wandb_init(entity=None, project=None, *, name=None, notes=None, config=None, settings=None, mode=None): ...
def _wandb_log(data, step=None, commit=None): ...
def _wandb_define(name, step_metric=None, step_sync=None, hidden=None, summary=None, overwrite=None): ...
def _wandb_finish(exit_code=None): ...
def _trackio_init(project, name=None, group=None, space_id=None, server_url=None, config=None, **others): ...
def _trackio_log(metrics, step=None): ...
def _trackio_finish(): ...


def stand_in(package: str, monkeypatch) -> Calls:
    """wandb 0.31 or trackio 0.43 as far as a fit calls them; both print while they start."""
    calls, of = Calls(), inspect.signature
    if package == "wandb":
        each = {"log": _wandb_log, "define_metric": _wandb_define, "finish": _wandb_finish}
        opened = SimpleNamespace(**{name: calls.function(name, of(like)) for name, like in each.items()})
        module = SimpleNamespace(init=calls.function("init", of(_wandb_init), opened))
    else:
        opened = SimpleNamespace(log=calls.function("log", of(_trackio_log)))
        begin = calls.function("init", of(_trackio_init), opened)
        module = SimpleNamespace(
            init=lambda *args, **options: (print("* Trackio"), begin(*args, **options))[1],
            finish=calls.function("finish", of(_trackio_finish)),
        )
    monkeypatch.setitem(sys.modules, package, module)
    return calls


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars of TensorBoard's files by tag: records of a length, its checksum, an event and its checksum."""
    event_pb2 = import_module("tensorboardX.proto.event_pb2")
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.iterdir()):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = event_pb2.Event.FromString(content[at + 12 : at + 12 + length])
            at += 16 + length
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def expected(fitted) -> dict[str, float]:
    """The results of a fit under the names by which they are logged; here each name is cleaned by hand."""
    tags = {"ann b": "ann_b", "ann/b": "ann_b", "zoë\ufffd[31m": "zoë__31m"}
    found, columns = {"nats_per_action": fitted.nats_per_action}, ("expertise", "low", "high")
    for row in fitted.expertise.table().to_pylist():
        tag = tags.get(row["demonstrator"].replace("\x1b", "\ufffd"))
        tag += "_2" if f"expertise/{tag}" in found else ""
        found |= {f"expertise{'' if each == 'expertise' else f'_{each}'}/{tag}": row[each] for each in columns}
    return found


@needs_tensorboard
def test_tensorboard_has_every_report_and_the_results_of_the_fit(data, tmp_path):
    reports = []
    with logger("tensorboard", tmp_path / "run", settings={"a": 1}, then=reports.append) as log:
        fitted = METHOD.fit(data, seed=0, progress=log)
        log.result(fitted)
    found = events(tmp_path / "run.tensorboard")
    assert [path.name for path in tmp_path.iterdir()] == ["run.tensorboard"]
    assert {"fitting", "cross-fitting", "rating"} == {report.stage for report in reports}
    for stage in ("fitting", "cross-fitting"):  # rating has no cost
        curve = [(report.step, report.nats_per_action) for report in reports if report.stage == stage]
        np.testing.assert_allclose(found.pop(f"nats_per_action/{stage}"), curve, rtol=1e-6)  # TensorBoard's are float32
    result = expected(fitted)
    assert found.keys() == result.keys()
    assert {tag: points[0][1] for tag, points in found.items()} == pytest.approx(result, rel=1e-6)


@needs_tensorboard
def test_tensorboard_itself_reads_what_was_logged(data, tmp_path):
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(module, reason="tensorboard, which shows the files, is absent")
    with logger("tensorboard", tmp_path / "run", to=str(tmp_path / "elsewhere")) as log:
        fitted = METHOD.fit(data, seed=0, progress=log)
        log.result(fitted)
    shown = accumulator.EventAccumulator(str(tmp_path / "elsewhere"))
    shown.Reload()
    assert set(expected(fitted)) < set(shown.Tags()["scalars"])
    assert shown.Scalars("nats_per_action")[0].value == pytest.approx(fitted.nats_per_action)


def test_wandb_keeps_the_steps_of_each_stage_and_no_printed_line(data, tmp_path, monkeypatch):
    calls, reports = stand_in("wandb", monkeypatch), []
    with logger("wandb", tmp_path / "mine", settings={"a": 1}, then=reports.append) as log:
        fitted = METHOD.fit(data, seed=0, progress=log)
        log.result(fitted)
    begun = {"project": "ileed", "name": "mine", "config": {"a": 1}, "settings": {"console": "off"}}
    assert calls[0] == ("init", (), begun)
    assert ("define_metric", ("*",), {"step_metric": "step"}) in calls
    logged = [arguments[0] for name, arguments, options in calls if name == "log" and not options]
    steps = [report.step for report in reports if report.stage != "rating"]  # which has no cost
    assert [each["step"] for each in logged[:-1]] == steps
    assert logged[-1] == pytest.approx(expected(fitted) | {"step": steps[-1]})
    assert calls[-1] == ("finish", (), {"exit_code": 0})


def test_trackio_logs_by_step_and_prints_nothing_where_json_belongs(data, tmp_path, monkeypatch, capsys):
    calls = stand_in("trackio", monkeypatch)
    ileed.write_parquet(data, tmp_path / "data.parquet")
    words = ["fit", str(tmp_path / "data.parquet"), "--out", str(tmp_path / "mine"), "--log", "trackio", "--json"]
    words += ["--log-to", "people", "--restarts", "2", "--steps", "20", "--folds", "2", "--policy", "CategoricalMLP()"]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["run"] == str(tmp_path / "mine")
    (name, _, options), *others, last = calls
    assert (name, options["project"], options["name"]) == ("init", "people", "mine")
    assert options["config"]["method"]["kind"] == "Ileed"
    assert all("step" in options for name, _, options in others)
    assert others[-1][1][0] == pytest.approx(expected(ileed.load(tmp_path / "mine")))
    assert last == ("finish", (), {})


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_the_calls_fit_the_real_package(data, package, tmp_path, monkeypatch):
    real = pytest.importorskip(package, reason=f"{package} is absent, so its signatures cannot be compared")
    calls = stand_in(package, monkeypatch)
    with logger(package, tmp_path / "mine") as log:
        log.result(METHOD.fit(data, seed=0, progress=log))
    owners = {"init": real, "finish": real.Run if package == "wandb" else real}
    for name, arguments, options in calls:
        owner = owners.get(name, real.Run)
        itself = (None,) if owner is not real else ()
        inspect.signature(getattr(owner, name)).bind(*itself, *arguments, **options)


def test_a_fit_that_fails_is_marked_as_failed(tmp_path, monkeypatch):
    calls = stand_in("wandb", monkeypatch)

    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), logger("wandb", tmp_path / "mine", then=interrupt) as log:
        log(ileed.Progress(1, 2, 0.5))
    assert calls[-1] == ("finish", (), {"exit_code": 1})


def test_what_is_not_finite_is_not_logged(data, tmp_path, monkeypatch):
    calls = stand_in("trackio", monkeypatch)
    with logger("trackio", tmp_path / "mine") as log:
        log(ileed.Progress(1, 2, float("nan")))
        log(ileed.Progress(1, 2, 0.5))
        log(ileed.Progress(1_000, 2_000, float("nan"), "rating"))  # steps of the data, of which there are more
        log.result(ileed.bc(policy=ileed.CategoricalMLP(), restarts=2, steps=20).fit(data, seed=0))
    assert [call[2]["step"] for call in calls if call[0] == "log"] == [1, 1]
    assert [[*call[1][0]] for call in calls if call[0] == "log"] == [["nats_per_action/fitting"], ["nats_per_action"]]


def test_without_intervals_expertise_is_relative_to_its_mean(data, tmp_path, monkeypatch):
    calls = stand_in("trackio", monkeypatch)
    with logger("trackio", tmp_path / "mine") as log:
        log.result(ileed.Ileed(policy=ileed.CategoricalMLP(), restarts=2, steps=20, folds=0).fit(data, seed=0))
        log.result(ileed.bc(policy=ileed.CategoricalMLP(), restarts=2, steps=20).fit(data, seed=0))
    ours, cloning = ([*arguments[0]] for name, arguments, _ in calls if name == "log")
    assert sorted(ours) == ["expertise/ann_b", "expertise/ann_b_2", "expertise/zoë__31m", "nats_per_action"]
    assert np.mean([calls[1][1][0][name] for name in ours[1:]]) == pytest.approx(1)
    assert cloning == ["nats_per_action"]


def test_an_unknown_logger_is_refused_with_the_choices(tmp_path, capsys):
    ileed.write_parquet(ileed.shipped(), tmp_path / "data.parquet")
    for words, sentence in (
        (["--log", "tensorbord"], "did you mean 'tensorboard'?): choose one of tensorboard, wandb, trackio"),
        (["--log-to", "people"], "add --log tensorboard"),
    ):
        assert run(["fit", str(tmp_path / "data.parquet"), "--out", str(tmp_path / "mine"), *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert sentence in line
    with pytest.raises(SettingsError, match="there is no logger 3"), logger(3, tmp_path / "mine"):
        pass


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_logger_that_is_not_installed_names_the_extra(name, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(IleedError, match=rf"pip install 'ileed\[{name}\]'"), logger(name, tmp_path / "mine"):
        pass


def test_a_logger_that_cannot_start_says_so_in_one_sentence(tmp_path, monkeypatch):
    def init(**options):
        raise ValueError("no API key configured\nand more")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    sentence = r"wandb cannot be used \(no API key configured\): run `wandb login`, or set WANDB_MODE=offline$"
    with pytest.raises(RunError, match=sentence), logger("wandb", tmp_path / "mine"):
        pass


@given(st.lists(st.text(), unique=True, max_size=6))
def test_people_of_different_names_have_different_tags(names):
    tags = _tags(names)
    assert len(set(tags)) == len(tags) == len(names)
    assert not any(set(tag) & set("/ #\n|") or tag == "" for tag in tags)
