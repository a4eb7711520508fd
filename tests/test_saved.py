"""Run directories: a field of another type, shape or length than was written is refused at load, not at first use."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from strategies import world

import ileed
from ileed import CategoricalMLP, Embedded, Ileed, IleedError, MixtureLSTM, MixtureMLP, Skills
from ileed.fitting import Checkpoint
from ileed.report.sections import Content

METHODS = {
    "defaults": Ileed(policy=CategoricalMLP(hidden=(3,)), expertise=Embedded(hidden=(3,))),
    "skills": Ileed(expertise=Skills("phase")),
    "continuous": Ileed(policy=MixtureMLP(hidden=(3,), modes=2), held_out=0.4),
    "recurrent": Ileed(policy=MixtureLSTM(hidden=(3,), length=3, modes=2)),
}


@cache
def fitted(kind: str) -> ileed.Fitted:
    data = world(discrete=kind not in ("continuous", "recurrent"), optional=["phase"], shape=(2, 2), floating=True)
    return replace(METHODS[kind], restarts=3, steps=4).fit(data, seed=1, device="cpu")


@pytest.fixture
def run(tmp_path) -> Path:
    fitted("defaults").save(tmp_path / "run")
    return tmp_path / "run"


def refusal(run: Path) -> str:
    with pytest.raises(IleedError) as caught:
        ileed.load(run)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def edit(run: Path, file: str, place: str, value: object) -> None:
    """Replace one field; `...` removes it."""
    content = json.loads((run / file).read_text())
    *above, name = place.split(".")
    holder = content
    for part in above:
        holder = holder[part]
    if value is ...:
        del holder[name]
    else:
        holder[name] = value
    (run / file).write_text(json.dumps(content))


SETTINGS = [
    ("demonstrators", ["ann", "bob"], "3 strings, as many as the sizes state"),
    ("demonstrators", ["ann", "bob", "bob"], "distinct strings"),
    ("demonstrators", ["ann", "bob", 3], "demonstrators is ['ann', 'bob', 3] but must be tuple[str, ...]"),
    ("demonstrators", "abc", "demonstrators is 'abc' but must be tuple[str, ...]"),
    ("demonstrators", {"a": 1, "b": 2, "c": 3}, "demonstrators is {"),
    ("skills", ["x"], "0 strings"),
    ("restarts", [1.0, 2.0, 3.0, 4.0], "1 to 3 costs"),
    ("restarts", [], "1 to 3 costs"),
    ("restarts", ["a", "b", "c"], "restarts is ['a', 'b', 'c'] but must be tuple[float | None, ...]"),
    ("restarts", 3, "restarts is 3"),
    ("restarts", [None, None, None], "the chosen cost"),
    ("chosen", 3, "one of the 3 restarts"),
    ("chosen", -1, "one of the 3 restarts"),
    ("chosen", True, "chosen is True but must be int"),
    ("chosen", "0", "chosen is '0' but must be int"),
    ("outcome", "LOST", "outcome is 'LOST'"),
    ("outcome", ["CONVERGED"], "outcome"),
    ("observation_shape", [2, 3, 4.0], "observation_shape is [2, 3, 4.0] but must be tuple[int, ...]"),
    ("observation_shape", [1], "distinct indices into an observation of 1 numbers"),
    ("observation_shape", [], "one or more whole numbers"),
    ("observation_shape", "x", "observation_shape is 'x'"),
    ("observation_shape", [10**12, 2], "a product of at most 1,000,000,000"),
    ("observation_shape", ..., "there is no 'observation_shape'"),
    ("sizes.inputs", 10**12, "the shape of"),
    ("sizes.demonstrators", 10**12, "as many as the sizes state"),
    ("sizes.actions", -3, "sizes.actions"),
    ("sizes.actions", 2.0, "actions of Sizes is 2.0: it must be int"),
    ("sizes.discrete", 1, "discrete of Sizes is 1: it must be bool"),
    ("sizes.discrete", False, "CategoricalMLP models discrete actions"),
    ("sizes.binary_dimensions", [7], "distinct dimensions of the actions"),
    ("sizes", {"kind": "Perfect"}, "but must be Sizes"),
    ("parts.policy.hidden", [10**12], "the shape of"),
    ("parts.policy.hidden", [10**6, 10**6], "there is no tensor"),
    ("parts.policy.hidden", [10**18, 10**18], "damaged"),
    ("parts.policy.hidden", [1] * 100_000, "the number of layers"),
    ("parts.policy.hidden", 3, "hidden of CategoricalMLP is 3"),
    ("parts.policy.hidden", ["4"], "hidden of CategoricalMLP is ('4',)"),
    ("parts.policy", {"kind": "Perfect"}, "policy of Parts is"),
    ("parts.expertise", None, "expertise of Parts is None"),
    ("parts.expertise.dim", "2", "dim of Embedded is '2': it must be int"),
    ("parts.expertise.shared", 0, "shared of Embedded is 0: it must be bool"),
    ("parts", [], "parts is [] but must be Parts"),
    ("method", 3, "settings of a method"),
    ("method", {"kind": "Perfect"}, "settings of a method"),
    ("method.steps", "4", "steps of Ileed is '4': it must be int"),
    ("method.steps", 10**400, "steps of Ileed is"),
    ("method.learning_rate", [], "learning_rate of Ileed is (): it must be float"),
    ("method.ensemble", 10**9, "ensemble"),
    ("kept", [], "kept is []"),
    ("kept", {"0": 1}, "kept is"),
    ("nats_per_action", None, "nats_per_action is None"),
    ("nats_per_action", "low", "nats_per_action is 'low'"),
    ("method.expertise", "Embedded", "expertise of Ileed is 'Embedded'"),
]
PROVENANCE = [
    ("data", 3, "data of the provenance is 3"),
    ("data", ..., "there is no 'data'"),
    ("data.steps", 0, "steps of the data is 0"),
    ("data.steps", "many", "steps of the data is 'many'"),
    ("data.episodes", None, "episodes of the data is None"),
    ("data.episodes", ..., "there is no 'episodes'"),
    ("seconds", "long", "seconds of the provenance is 'long'"),
    ("seconds", 1e999, "Infinity is not JSON"),
    ("seconds", ..., "there is no 'seconds'"),
    ("seed", [], "seed is []"),
    ("seed", ..., "there is no 'seed'"),
    ("format", "1", "the format must be a whole number"),
    ("device", {"a": 1}, "device of the provenance"),
]


@pytest.mark.parametrize(("place", "value", "says"), SETTINGS, ids=lambda value: str(value)[:40])
def test_a_setting_of_another_type_or_length_is_refused_at_load(run, place, value, says):
    edit(run, "settings.json", place, value)
    assert says in refusal(run)


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (lambda chosen, other: [chosen, chosen], "kept is"),
        (lambda chosen, other: [chosen, 7], "kept is"),
        (lambda chosen, other: [other, chosen], "which was chosen"),
        (lambda chosen, other: [chosen, other], "the shape of"),
    ],
    ids=["twice the same", "not there", "another first", "one too many"],
)
def test_kept_members_that_are_not_those_of_the_tensors_are_refused_at_load(run, kept, says):
    chosen = json.loads((run / "settings.json").read_text())["chosen"]
    edit(run, "settings.json", "kept", kept(chosen, (chosen + 1) % 3))
    assert says in refusal(run)


def test_a_run_of_the_first_format_keeps_the_chosen_member_alone(tmp_path):
    """It has no list of the kept members, and its cost is that of the chosen member."""
    fit = replace(METHODS["defaults"], restarts=3, steps=4).fit(world(), seed=1, device="cpu")
    fit.save(tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    old = {name: value for name, value in settings.items() if name not in ("kept", "nats_per_action")}
    (tmp_path / "run" / "settings.json").write_text(json.dumps(old))
    found = ileed.load(tmp_path / "run")
    assert found.restarts.kept == fit.restarts.kept
    assert found.nats_per_action == fit.restarts.nats_per_action[fit.restarts.chosen]
    assert torch.equal(*(each.policy.distribution(world().observations).logits for each in (found, fit)))


@pytest.mark.parametrize(("place", "value", "says"), PROVENANCE, ids=lambda value: str(value)[:40])
def test_a_provenance_that_a_report_could_not_show_is_refused_at_load(run, place, value, says):
    edit(run, "provenance.json", place, value)
    assert says in refusal(run)


ROW = {"step": 1, "nats_per_action": [1.0, 1.0, 1.0]}
HISTORIES = {
    "no row": ([], "history is []"),
    "a number": ([3], "row 1 of the history is 3"),
    "no step": ([{"nats_per_action": [1.0] * 3}], "there is no 'step'"),
    "a step in words": ([ROW | {"step": "one"}], "step of row 1"),
    "steps that repeat": ([ROW, ROW], "step of row 2"),
    "costs in words": (
        [ROW | {"nats_per_action": ["a"] * 3}],
        "of row 1 of the history is ['a', 'a', 'a']",
    ),
    "one cost": ([ROW | {"nats_per_action": 1.0}], "nats_per_action of row 1 of the history is 1.0"),
    "too few costs": ([ROW | {"nats_per_action": [1.0]}], "3 costs"),
    "ragged costs": ([ROW, ROW | {"step": 2, "nats_per_action": [1.0] * 4}], "3 costs"),
    "held out here and there": ([ROW, ROW | {"step": 2, "held_out": [1.0] * 3}], "like the first row"),
}


@pytest.mark.parametrize(("rows", "says"), HISTORIES.values(), ids=HISTORIES.keys())
def test_a_learning_curve_that_is_not_whole_is_refused_at_load(run, rows, says):
    (run / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert says in refusal(run)


def replaced(tensors: dict, name: str, value: torch.Tensor | None) -> dict:
    return {key: item for key, item in (tensors | {name: value}).items() if item is not None}


TENSORS = {
    "nan": ("joint.policy.body.layers.0.weight", lambda value: value * torch.nan, "NaN or infinite"),
    "infinite": ("joint.expertise.skill", lambda value: value / 0, "NaN or infinite"),
    "so large that nothing is finite": ("joint.policy.body.layers.0.weight", lambda value: value * 0 + 3e38, "NaN"),
    "of another type": ("joint.expertise.skill", lambda value: value.double(), "the type of joint.expertise.skill"),
    "of another shape": ("joint.expertise.skill", lambda value: value.flatten(), "the shape of"),
    "absent": ("lens.kept", lambda value: None, "there is no tensor 'lens.kept'"),
    "beyond the observation": ("lens.kept", lambda value: value + 4, "distinct indices"),
    "negative": ("lens.kept", lambda value: -1 - value, "distinct indices"),
    "the same twice": ("lens.kept", lambda value: value * 0, "distinct indices"),
    "not whole": ("lens.kept", lambda value: value.float(), "the type of lens.kept"),
    "no scale": ("lens.scale", lambda value: value * 0, "above zero"),
    "a shift of nan": ("lens.shift", lambda value: value * torch.nan, "NaN or infinite"),
    "too few people": (
        "survey.by_demonstrator",
        lambda value: value[:2].clone(),
        "the shape of survey.by_demonstrator",
    ),
    "quantiles": ("survey.quantiles", lambda value: value[:, :5].clone(), "the shape of survey.quantiles"),
    "no states": ("survey.states", lambda value: value[:, :0].clone(), "the shape of survey.states"),
    "visits": ("survey.visits", lambda value: value.float(), "the type of survey.visits"),
    "negative visits": ("survey.visits", lambda value: value - 999, "survey.visits"),
    "expertise above one": ("survey.by_demonstrator", lambda value: value + 2, "from 0 to 1"),
}


@pytest.mark.parametrize(("name", "change", "says"), TENSORS.values(), ids=TENSORS.keys())
def test_a_tensor_that_is_not_that_of_the_settings_is_refused_at_load(run, name, change, says):
    tensors = load_file(run / "weights.safetensors")
    save_file(replaced(tensors, name, change(tensors[name])), run / "weights.safetensors")
    assert says in refusal(run)


def test_a_superfluous_tensor_is_refused(run):
    save_file(load_file(run / "weights.safetensors") | {"other": torch.zeros(1)}, run / "weights.safetensors")
    assert "a tensor 'other', which these settings have no place for" in refusal(run)


@pytest.mark.parametrize("name", ["settings.json", "provenance.json", "history.jsonl", "weights.safetensors"])
def test_a_file_of_a_run_that_is_a_link_to_elsewhere_is_refused(run, tmp_path, name):
    os.replace(run / name, tmp_path / name)
    (run / name).symlink_to(tmp_path / name)
    assert "outside the directory" in refusal(run)


def test_a_file_of_a_run_that_is_a_link_in_a_circle_is_refused(run):
    (run / "history.jsonl").unlink()
    (run / "history.jsonl").symlink_to("history.jsonl")
    assert "is damaged" in refusal(run)


def test_a_file_of_a_run_that_is_a_pipe_is_refused_without_waiting(run):
    (run / "history.jsonl").unlink()
    os.mkfifo(run / "history.jsonl")
    assert "is not a regular file" in refusal(run)


def test_a_run_directory_may_itself_be_a_link(run, tmp_path):
    (tmp_path / "latest").symlink_to(run)
    assert ileed.load(tmp_path / "latest").expertise.names == ("ann", "bob", "cyd")


def test_settings_that_nest_too_deeply_are_refused(run):
    (run / "settings.json").write_text('{"method": ' + "[" * 100_000)
    refusal(run)


def loaded_or_refused(run: Path) -> ileed.Fitted | None:
    """The fit, or nothing where it is refused in one sentence."""
    sentence = ""
    try:
        return ileed.load(run)
    except IleedError as error:
        sentence = str(error)
    assert len(sentence.splitlines()) == 1
    return None


def spots(value, before=()):
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [spot for key, each in inside for spot in [(*before, key), *spots(each, (*before, key))]]


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("file", ["settings.json", "provenance.json"])
def test_whatever_a_field_is_replaced_by_a_run_that_loads_can_be_used_and_reported(tmp_path, kind, file):
    run = tmp_path / "run"
    fitted(kind).save(run)
    text = (run / file).read_text()
    for spot in spots(json.loads(text)):
        for value in (None, True, -1, 10**12, 0.5, "x", [], {}, [1, 2], {"kind": "Perfect"}):
            content = json.loads(text)
            holder = content
            for part in spot[:-1]:
                holder = holder[part]
            holder[spot[-1]] = value
            (run / file).write_text(json.dumps(content))
            if (found := loaded_or_refused(run)) is None:
                continue
            repr(found)
            Content(found, {}, {}).page("title")
            found.policy.act(np.zeros((2, *found.policy.observation_shape), dtype=np.float32))


# --- checkpoints


class Stop(Exception):  # noqa: N818
    pass


def interrupted(path: Path) -> Ileed:
    method = Ileed(policy=CategoricalMLP(hidden=(4, 4)), restarts=2, steps=6, held_out=0.4)

    def progress(told):
        if told.step == 4:
            raise Stop

    with pytest.raises(Stop):
        method.fit(world(), seed=0, device="cpu", checkpoint=path, checkpoint_seconds=0.0, progress=progress)
    return method


@pytest.mark.parametrize("name", ["parameter.expertise.skill", "history.cost", "history.held_out"])
@pytest.mark.parametrize("change", ["absent", "of one row", "of another shape"])
def test_a_checkpoint_whose_tensors_are_not_those_of_the_fit_is_refused(tmp_path, name, change):
    path = tmp_path / "fit.checkpoint"
    method = interrupted(path)
    tensors = load_file(path)
    step, _ = Checkpoint(path, fingerprint=_fingerprint(path)).read()
    notes = {"step": str(step), "fingerprint": _fingerprint(path)}
    changed = {"absent": None, "of one row": tensors[name][:1].clone(), "of another shape": tensors[name][None].clone()}
    save_file(replaced(tensors, name, changed[change]), path, metadata=notes)
    before = path.read_bytes()
    with pytest.raises(ileed.RunError, match=r"is damaged .* remove it to start again") as caught:
        method.fit(world(), seed=0, device="cpu", checkpoint=path)
    assert len(str(caught.value).splitlines()) == 1
    assert path.read_bytes() == before


def _fingerprint(path: Path) -> str:
    header = path.read_bytes()
    size = int.from_bytes(header[:8], "little")
    return json.loads(header[8 : 8 + size])["__metadata__"]["fingerprint"]


@pytest.mark.parametrize(
    "notes",
    [{}, {"step": "x"}, {"step": "0"}, {"step": "7"}],
)
def test_a_checkpoint_that_does_not_say_where_it_stood_is_refused(tmp_path, notes):
    path = tmp_path / "fit.checkpoint"
    method = interrupted(path)
    save_file(load_file(path), path, metadata=notes | {"fingerprint": _fingerprint(path)})
    with pytest.raises(ileed.RunError, match=r"is damaged .* remove it to start again"):
        method.fit(world(), seed=0, device="cpu", checkpoint=path)
