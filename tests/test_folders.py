"""Folders of parquet or Arrow files: mapped columns give what the same data give in memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import demonstrations, world

import ileed
from ileed.cli import run
from ileed.data import collapsing
from ileed.data.collapsing import CONTEXT, StepContext
from ileed.errors import DemonstrationError, SettingsError
from ileed.fitting import order as orders
from ileed.fitting.order import Order, permuted
from ileed.formats.parquet import read_parts, write_parts

SOME = np.random.default_rng(0)


def folder_of(data, path, steps_of_a_file=1_000):
    write_parts(data, path, steps_of_a_file=steps_of_a_file)
    return path


def people(steps=9_000, *, repeat=False, discrete=True, optional=()):
    """People whose observations all differ, or repeat, in more steps than are taken whole."""
    lengths = np.full(steps // 20, 20)
    data = world(lengths, people=4, discrete=discrete, optional=optional, floating=True, shape=(8,))
    if repeat:
        return data
    return replace(data, observations=SOME.normal(size=(steps, 8)).astype(np.float32))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Data in memory, and the same mapped."""
    found = {}
    for name, options in {
        "unique": {},
        "repeat": {"repeat": True, "optional": ("legal", "phase")},
        "continuous": {"discrete": False},
    }.items():
        data = people(**options)
        folder = folder_of(data, tmp_path_factory.mktemp(name) / "folder", 1_234)
        found[name] = data, read_parts(folder, memory_gib=0.01)
    return found


@settings(max_examples=6, deadline=None)
@given(demonstrations())
def test_a_folder_is_read_as_it_was_written(tmp_path_factory, data):
    for length in (1, 3, 1_000):
        folder = folder_of(data, tmp_path_factory.mktemp("folders") / "folder", length)
        found = ileed.read(folder)
        assert found.equals(data)
        assert found.fingerprint == data.fingerprint
        np.testing.assert_array_equal(found.episode_keys, data.episode_keys)
        assert repr(found) == repr(data)


@pytest.mark.parametrize("who", [["bob", "ann", "bob"], [10, 9, 10]])
def test_without_notes_people_stand_in_the_order_of_their_names_or_numbers(tmp_path, who):
    columns = {"observation": [[0.0], [1.0], [2.0]], "action": [0, 1, 0], "demonstrator": who, "episode": list("aba")}
    columns["episode"] = ["x", "y", "z"]
    pq.write_table(pa.table(columns), tmp_path / "all.parquet")
    for number in range(3):
        table = pa.table({name: values[number : number + 1] for name, values in columns.items()})
        if number == 1:
            with (
                pa.OSFile(str(tmp_path / f"{number}.arrow"), "wb") as sink,
                pa.ipc.new_file(sink, table.schema) as file,
            ):
                file.write_table(table)
        else:
            pq.write_table(table, tmp_path / f"{number}.parquet")
    whole = ileed.read(tmp_path / "all.parquet")
    (tmp_path / "all.parquet").unlink()
    found = ileed.read(tmp_path)
    assert found.equals(whole)
    assert found.episode_keys.tolist() == ["x", "y", "z"]


def write_each(folder, *tables):
    for number, columns in enumerate(tables):
        usual = {"observation": [[0.0], [1.0]], "action": [0, 1], "demonstrator": ["a", "a"], "episode": [number] * 2}
        pq.write_table(pa.table(usual | columns), folder / f"{number}.parquet")


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        (({}, {"observation": [[0.0], [np.nan]]}), r"1.parquet, rows 0 to 1: observations hold NaN.*in 1 of 2 steps"),
        (({}, {"action": [-1, 0]}), "1.parquet, rows 0 to 1: action -1 is negative"),
        (({}, {"episode": [0, 0], "demonstrator": ["b", "b"]}), "episode 0 has two demonstrators, 'a' and 'b'"),
        (
            ({}, {}, {"episode": [0, 0]}),
            "episode 0 is interrupted by other steps, in 0.parquet and again in 2.parquet: number the episodes",
        ),
        (
            ({}, {"observation": [[0.0]] * 3, "action": [0] * 3, "demonstrator": ["a"] * 3, "episode": [1, 2, 1]}),
            "1.parquet, rows 0 to 2: episode 1 is interrupted by other steps: sort the steps",
        ),
        (({}, {"action": [[0.1], [0.2]]}), "column 'action' is int64 in 0.parquet and list.* in 1.parquet"),
        (
            ({}, {"observation": [[0.0, 1.0], [1.0, 1.0]]}),
            r"observations are .* \(2,\) in .*1.parquet, and .* of \(1,\)",
        ),
        (({}, {"action": [0, 90_000]}), "action 90,000 was taken, and yet only 3 different"),
        (({"reward": [0.0, 1.0]}, {}), "column 'reward' is double in 0.parquet and absent in 1.parquet"),
    ],
)
def test_what_breaks_a_rule_is_refused_in_the_same_words(tmp_path, tables, sentence):
    write_each(tmp_path, *tables)
    with pytest.raises(DemonstrationError, match=sentence):
        ileed.read(tmp_path)


@pytest.mark.parametrize("steps", [0, -5, 2.5])
def test_a_file_of_no_whole_number_of_steps_is_refused_and_nothing_is_written(tmp_path, steps):
    with pytest.raises(SettingsError, match="steps_of_a_file is"):
        ileed.write(people(100), tmp_path / "new", format="parquet-folder", steps_of_a_file=steps)
    assert not (tmp_path / "new").exists()


def test_a_folder_without_our_columns_a_damaged_file_and_settings_are_refused(tmp_path):
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "flat.parquet")
    with pytest.raises(DemonstrationError, match="flat table"):
        ileed.read(tmp_path)
    (tmp_path / "flat.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DemonstrationError, match="not a readable parquet file"):
        ileed.read(tmp_path)
    for option, sentence in (
        ({"memory_gib": 0}, "memory_gib is 0"),
        ({"memory_gib": 1e9}, "memory_gib is 1000000000.0: pass a number of GiB, from 0.01 to 1,000,000"),
        ({"cache": tmp_path / "no"}, "there is no folder"),
    ):
        with pytest.raises((DemonstrationError, SettingsError), match=sentence):
            ileed.read(tmp_path, **option)


def test_the_folder_is_not_changed_and_nothing_is_left_in_the_cache(tmp_path):
    folder, cache = folder_of(people(2_000), tmp_path / "folder"), tmp_path / "cache"
    cache.mkdir()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    data = ileed.read(folder, cache=cache)
    data.collapsed()
    assert not any(cache.iterdir())  # files without a name, also where the process is killed
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


CONTEXTS = [(), ("previous_action", "first_step"), ("episode_number",)]


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_counts_are_those_of_the_same_data_in_memory(kinds, context):
    data, mapped = kinds["repeat"]
    ours, theirs = mapped.collapsed("phase", context), data.collapsed("phase", context)
    for name in ("observations", "varying", "skills", "legal", "observation_index", "action", "demonstrator", "count"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    np.testing.assert_array_equal(ours.step_observation_index, theirs.step_observation_index)
    for name in context:
        np.testing.assert_array_equal(ours.context[name], theirs.context[name])
    weights = np.random.default_rng(1).integers(0, 3, size=(2, data.episode_count)).astype(float)
    np.testing.assert_array_equal(ours.weights(mapped, weights), theirs.weights(data, weights))


@pytest.mark.parametrize("width", [0, 1, 4])
def test_distinct_rows_of_blocks_are_numbered_in_the_order_of_their_first_appearance(width):
    rows = SOME.integers(0, 3, size=(500, width)).astype(np.float32)
    unique = collapsing.UniqueRows()
    number = np.concatenate([unique.numbers(rows[:200]), unique.numbers(rows[200:])])
    np.testing.assert_array_equal(unique.rows(width, np.float32)[number], rows)
    assert len(unique) == len(np.unique(rows, axis=0))
    assert np.unique(number, return_index=True)[1].tolist() == sorted(np.unique(number, return_index=True)[1])


@given(blocks=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=40), min_size=1, max_size=12))
def test_keys_of_blocks_are_counted_as_all_together_however_they_are_merged(blocks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collapsing, "_MERGED_AT_ONCE", 7)
        counts = collapsing.Counts(1_000)
        for number, block in enumerate(blocks):
            counts.add(np.array(block))
            if number % 3 == 2:
                counts.merged()
        found = counts.merged()
    expected = np.unique(np.concatenate(blocks), return_counts=True)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_table_of_counts_that_memory_does_not_hold_is_given_up(kinds):
    _, mapped = kinds["repeat"]
    bounded = replace(mapped, store=replace(mapped.store, memory_bytes=4_096))
    assert mapped.collapsed().repeats
    assert not bounded.collapsed().repeats


def test_context_of_mapped_steps_is_that_of_steps_in_memory(kinds):
    data, mapped = kinds["unique"]
    steps = SOME.integers(0, len(data), size=300)
    columns = StepContext(data, tuple(CONTEXT))(steps)
    for name, values in StepContext(mapped, tuple(CONTEXT))(steps).items():
        np.testing.assert_array_equal(values, columns[name])


FITS = {
    "unique": {},
    "unique, held out": {"held_out": 0.3, "ensemble": 2},
    "unique, dynamics": {"dynamics": ileed.LatentDynamics()},
    "unique, slips": {"demonstrator": ileed.Persistent()},
    "repeat": {"expertise": ileed.Skills("phase"), "batch_size": 64},
    "repeat, counted": {"held_out": 0.3},
    "continuous": {"policy": ileed.MixtureMLP(hidden=(4,), modes=2)},
    "unique, drift": {"expertise": ileed.Drift()},
    "repeat, drift": {"expertise": ileed.Drift()},
    "continuous, the paper's": {
        "policy": ileed.MixtureMLP(hidden=(4,), modes=1),
        "demonstrator": ileed.VarianceScaling(),
    },
}


@pytest.mark.parametrize("name", FITS)
def test_a_fit_to_a_folder_is_that_to_the_same_data_in_memory_bit_by_bit(kinds, name):
    data, mapped = kinds[name.partition(",")[0]]
    usual = {"policy": ileed.CategoricalMLP(hidden=(4,)), "restarts": 2, "steps": 30, "folds": 0}
    method = ileed.Ileed(**(usual | FITS[name]))
    ours, theirs = method.fit(mapped, seed=0), method.fit(data, seed=0)
    for key, value in theirs.joint.state_dict().items():
        assert torch.equal(ours.joint.state_dict()[key], value), key
    np.testing.assert_array_equal(ours.restarts.nats_per_action, theirs.restarts.nats_per_action)
    assert ours.nats_per_action == theirs.nats_per_action
    assert ours.provenance["data"]["fingerprint"] == theirs.provenance["data"]["fingerprint"]
    for own, other in zip(ours.expertise.ranking(), theirs.expertise.ranking(), strict=True):
        assert own[0] == other[0]
        assert own[1] == pytest.approx(other[1], abs=1e-6)


def test_an_interrupted_fit_to_a_folder_goes_on_to_the_same_bits(kinds, tmp_path, monkeypatch):
    """Also where the order of steps is computed and not drawn."""
    monkeypatch.setattr(orders, "_DRAWN_AT_ONCE", 100)
    _, mapped = kinds["unique"]
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=2, steps=60, folds=0)
    whole = method.fit(mapped, seed=0)

    class Stop(BaseException):
        pass

    def stop(progress):
        if progress.step >= 30:
            raise Stop

    how = {"seed": 0, "checkpoint": tmp_path / "checkpoint", "checkpoint_seconds": 0.0}
    with pytest.raises(Stop):
        method.fit(mapped, progress=stop, **how)
    assert (tmp_path / "checkpoint").exists()
    resumed = method.fit(mapped, **how)
    for key, value in whole.joint.state_dict().items():
        assert torch.equal(resumed.joint.state_dict()[key], value)


def test_processes_share_every_batch_of_a_folder(kinds):
    _, mapped = kinds["unique"]
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=1, steps=10)
    sampler = method._start(mapped, 0, torch.device("cpu"), None).prepared.sampler
    shares = [sampler.share(place, 3) for place in range(3)]
    for step in (0, 40):
        sampler.load(step)
        whole = sampler.batch()
        for place, share in enumerate(shares):
            share.load(step)
            own = share.batch()
            assert torch.equal(own.observations, whole.observations[:, place::3])
            assert torch.equal(own.action, whole.action[place::3])
            assert torch.equal(own.data_weight, whole.data_weight)


@pytest.mark.parametrize("length", [1, 2, 5, 64, 65, 1_000])
def test_a_computed_order_has_every_step_once_and_another_order_each_epoch(length):
    orders = [permuted(np.arange(length), length, seed=0, epoch=epoch) for epoch in range(3)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(length))
    if length >= 64:
        assert (orders[0] != orders[1]).any()
        assert (orders[1] != orders[2]).any()


def test_a_computed_order_looks_random():
    """The mean distance of neighbours is a third of the length, within five standard errors of a random one."""
    length = 30_000
    order = permuted(np.arange(length), length, seed=1, epoch=0)
    apart = np.abs(np.diff(order)) / length
    assert abs(apart.mean() - 1 / 3) < 5 * np.sqrt(1 / 18 / length)
    assert abs(np.corrcoef(np.arange(length), order)[0, 1]) < 5 / np.sqrt(length)


@given(size=st.integers(1, 40), at_once=st.integers(1, 30))
def test_a_computed_order_is_the_permutation_however_many_places_are_computed_at_once(size, at_once):
    """Batches of any size over three epochs; 20 steps in one episode."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ileed.fitting.order._DRAWN_AT_ONCE", 0)
        patch.setattr("ileed.fitting.order._COMPUTED_AT_ONCE", at_once)
        order = Order(np.array([0, 20]), np.array([True]), seed=3)
        found = np.concatenate([order.taken(first, size) for first in range(0, 60, size)])[:60]
    whole = [permuted(np.arange(20), 20, seed=3, epoch=epoch) for epoch in range(3)]
    np.testing.assert_array_equal(found, np.concatenate(whole))


@pytest.mark.parametrize("most", [0, 1 << 24])
def test_an_epoch_shows_each_chosen_step_once_wherever_it_is_cut(monkeypatch, most):
    monkeypatch.setattr(orders, "_DRAWN_AT_ONCE", most)
    order = Order(np.array([0, 3, 7, 8, 20]), np.array([True, False, True, True]), seed=0)
    assert order.length == 16
    row = np.concatenate([order.taken(first, 5) for first in range(0, 80, 5)])
    np.testing.assert_array_equal(row, order.taken(0, 80))
    chosen = [0, 1, 2, *range(7, 20)]
    for epoch in range(5):
        assert sorted(row[16 * epoch : 16 * (epoch + 1)].tolist()) == chosen


def test_people_of_a_folder_are_rated_by_a_part_that_memory_holds(kinds):
    data, mapped = kinds["unique"]
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=1, steps=20, folds=5)
    fitted = method.fit(mapped, seed=0)
    assert fitted.expertise.table().num_rows == 4
    assert fitted.assess(mapped).names == data.names
    bounded = replace(mapped, store=replace(mapped.store, memory_bytes=1 << 20))
    part, weights = collapsing.held_in_memory(bounded, np.arange(mapped.episode_count))
    assert 0 < len(part) < len(mapped) / 4
    assert not part.store.is_on_disk
    np.testing.assert_array_equal(part.episode_keys, weights)
    assert part.steps_each.min() > 0
    with pytest.raises(SettingsError, match=r"ileed\.curate"):
        fitted.assess(mapped, by="episode")


@pytest.mark.parametrize("lengths", [[20] * 450, [9_000 - 3, 1, 1, 1], [1] * 9_000, [1, 500] * 18])
def test_a_part_that_memory_holds_has_all_demonstrators_and_is_bounded(tmp_path, lengths):
    data = world(np.array(lengths), people=4, floating=True, shape=(8,))
    mapped = read_parts(folder_of(data, tmp_path / "folder", 4_000))
    bounded = replace(mapped, store=replace(mapped.store, memory_bytes=1 << 20))
    part, weights = collapsing.held_in_memory(bounded, np.arange(data.episode_count))
    assert 0 < len(part) <= 2 * (1 << 20) // 16 // (64 + 32)
    np.testing.assert_array_equal(part.steps_each > 0, data.steps_each > 0)
    np.testing.assert_array_equal(part.episode_keys, weights)
    for number, episode in enumerate(weights.tolist()):
        own = part.observations[part.episode == number]
        np.testing.assert_array_equal(own, data.observations[data.episode == episode][: len(own)])


def test_the_command_takes_a_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = folder_of(people(2_000, repeat=True), tmp_path / "people")
    assert run(["inspect", str(folder), "--memory-gib", "0.5", "--cache", str(tmp_path)]) == 0
    assert "4 demonstrators" in capsys.readouterr().out
    quick = ["--restarts", "1", "--steps", "10", "--policy", "CategoricalMLP(hidden=(4,))"]
    assert run(["fit", str(folder), "--out", "run", *quick]) == 0
    assert run(["rate", "run", str(folder)]) == 0
    assert run(["curate", "run", str(folder), "--keep", "0.5", "--out", "curated"]) == 0
    assert Path("curated", "episodes.csv").exists()
    assert run(["convert", str(folder), "again", "--format", "parquet-folder"]) == 0
    assert ileed.read("again").equals(ileed.read(folder))


@pytest.mark.parametrize("kind", ["unique", "repeat"])
def test_scores_of_episodes_of_a_folder_are_those_in_memory(kinds, kind):
    data, mapped = kinds[kind]
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=1, steps=10, folds=0)
    fitted = method.fit(data, seed=0)
    ours, theirs = (ileed.curate(fitted, each, keep=0.5).episodes for each in (mapped, data))
    for name in theirs.column_names:
        one, other = (table[name].to_pylist() for table in (ours, theirs))
        near = 2 / len(data) if name.startswith("typicality") else 1e-6  # ranks, by rounded distances
        assert one == (pytest.approx(other, abs=near) if isinstance(other[0], float) else other), name
