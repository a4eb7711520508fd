"""Progress: whatever takes longer than two seconds says how far it is, and the library is silent unless asked."""

import math
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ileed
from ileed.cli import console, run
from ileed.fitting import Progress
from ileed.formats import format_of
from ileed.formats.parquet import write_parts
from ileed.model import expertise
from ileed.parallel import executor

QUICK = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=2, steps=10, folds=2)


def demonstrations(people: int = 3, steps: int = 6_000) -> ileed.Demonstrations:
    chance = np.random.default_rng(0)
    episode = np.arange(steps) // 20
    return ileed.Demonstrations(
        observations=chance.normal(size=(steps, 2)).astype(np.float32),
        actions=chance.integers(0, 3, size=steps),
        demonstrator=[f"p{number % people:02}" for number in episode],
        episode=episode,
    )


DATA = demonstrations()


@pytest.fixture(scope="module")
def fitted():
    return QUICK.fit(DATA, seed=0, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "people"
    write_parts(DATA, path, steps_of_a_file=2_000)
    return path


def assert_reaches_the_end(told: list[tuple[int, int]], *, least: int) -> None:
    """Several reports, of which none is below the one before, of one total, which is the last report."""
    done, total = zip(*told, strict=True)
    assert len(told) >= least
    assert list(done) == sorted(done)
    assert set(total) == {done[-1]}
    assert done[0] < done[-1]


KINDS = {
    ".parquet": lambda path, table: pq.write_table(table, path),
    ".arrow": lambda path, table: _write_arrow(path, table, pa.ipc.new_file),
    ".feather": lambda path, table: _write_arrow(path, table, pa.ipc.new_stream),
}


def _write_arrow(path, table, opened):
    with opened(path, table.schema) as file:
        file.write_table(table, max_chunksize=700)


@pytest.mark.parametrize("suffix", KINDS)
def test_reading_a_folder_says_how_much_of_its_files_is_read(folder, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("ileed.data.source._BLOCKS_IN_MEMORY", 1 << 30)  # blocks of 1,024 rows
    for file in sorted(folder.glob("*.parquet")):
        KINDS[suffix](tmp_path / f"{file.stem}{suffix}", pq.read_table(file))
    told: list[tuple[int, int]] = []
    data = ileed.read(tmp_path, progress=lambda *at: told.append(at))
    assert data.equals(DATA)
    assert_reaches_the_end(told, least=6)  # also within a file
    assert told[-1][1] == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_progress_is_no_option_of_a_format_and_formats_that_are_read_at_once_do_without(folder, tmp_path):
    assert "progress" not in format_of(folder).options
    ileed.write(DATA, tmp_path / "data.parquet")
    told: list[tuple[int, int]] = []
    assert ileed.read(tmp_path / "data.parquet", progress=lambda *at: told.append(at)).equals(DATA)
    assert told == []
    with pytest.raises(ileed.IleedError, match="progress is 'bar'"):
        ileed.read(folder, progress="bar")


def test_people_who_are_rated_are_counted_in_steps_with_the_same_result(fitted):
    told: list[tuple[int, int]] = []
    found = fitted.assess(DATA, progress=lambda *at: told.append(at))
    assert found.table().equals(fitted.assess(DATA).table())
    assert_reaches_the_end(told, least=2)
    assert told[-1] == (len(DATA), len(DATA))


@pytest.mark.parametrize("by", ["demonstrator", "episode"])
def test_rating_reaches_the_end_where_expertise_changes_between_episodes(by):
    method = ileed.Ileed(policy=QUICK.policy, expertise=expertise.Drift(), restarts=2, steps=10, folds=2)
    stages: list[Progress] = []
    drifting = method.fit(DATA, seed=0, device="cpu", progress=stages.append)
    assert_reaches_the_end(of_rating(stages), least=2)
    told: list[tuple[int, int]] = []
    drifting.assess(DATA, by=by, progress=lambda *at: told.append(at))
    assert_reaches_the_end(told, least=2)


def of_rating(stages: list[Progress]) -> list[tuple[int, int]]:
    return [(at.step, at.steps) for at in stages if at.stage == "rating"]


@pytest.mark.parametrize("kind", ["some people", "many people", "continuous actions", "many continuous actions"])
def test_a_fit_has_a_stage_of_rating_that_reaches_its_end_and_has_no_cost(kind, monkeypatch):
    data = DATA
    if kind == "many people":
        monkeypatch.setattr("ileed.data.rules.MANY_DEMONSTRATORS", 10)
        monkeypatch.setattr("ileed.rating.ratings.OWNERS_AT_ONCE", 8)
        data = demonstrations(people=30)
        assert data.has_many_demonstrators
    method = QUICK
    if "continuous" in kind:
        actions = np.random.default_rng(1).normal(size=(len(DATA), 2))
        data = replace(DATA, actions=actions, action_count=0)
        method = ileed.Ileed(policy=ileed.MixtureMLP(hidden=(4,)), restarts=2, steps=10, folds=2)
    if kind == "many continuous actions":
        monkeypatch.setattr("ileed.methods.crossfit.MANY_STEPS", 3_000)
        monkeypatch.setattr("ileed.methods.crossfit.SOME_STEPS", 1_000)
    stages: list[Progress] = []
    method.fit(data, seed=0, device="cpu", progress=stages.append)
    assert list(dict.fromkeys(at.stage for at in stages)) == ["fitting", "cross-fitting", "rating"]
    assert_reaches_the_end(of_rating(stages), least=2)
    assert all(math.isnan(at.nats_per_action) for at in stages if at.stage == "rating")


def test_cross_fitting_alone_has_a_stage_of_rating_too():
    stages: list[Progress] = []
    QUICK.cross_fit(DATA, seed=0, device="cpu", progress=stages.append)
    assert_reaches_the_end(of_rating(stages), least=2)


def test_blocks_of_restarts_are_counted_from_the_start():
    method = ileed.Ileed(policy=QUICK.policy, restarts=4, steps=10, folds=0, member_block=2)
    stages: list[Progress] = []
    with executor("local", 1) as workers:
        method.fit(ileed.shipped(), seed=0, device="cpu", progress=stages.append, executor=workers)
    assert [(at.step, at.steps, at.unit) for at in stages] == [(done, 2, "blocks of restarts") for done in range(3)]
    assert math.isnan(stages[0].nats_per_action)


def test_models_that_an_executor_compares_are_counted_from_the_start():
    stages: list[Progress] = []
    models = [ileed.UniformMixture(), ileed.OneVersusRest()]
    with executor("local", 1) as workers:
        options = {"method": ileed.Ileed(policy=QUICK.policy, restarts=2, steps=10), "executor": workers}
        ileed.compare(DATA, models=models, seed=0, device="cpu", progress=stages.append, **options)
    assert [(at.step, at.steps, at.unit) for at in stages] == [(done, 2, "models") for done in range(3)]


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (Progress(1, 2, 0.5), "best 0.5000 nats"),
        (Progress(1, 2, 0.5, "cross-fitting"), "cross-fitting, best 0.5000 nats"),
        (Progress(1, 2, math.nan, "rating"), "rating 0"),
        (Progress(0, 2, math.nan, unit="blocks of restarts"), "0% blocks of restarts, 0 of 2 0"),
        (Progress(1, 2, 0.5, "cross-fitting", "blocks of restarts"), "cross-fitting, blocks of restarts, 1 of 2, best"),
    ],
)
def test_the_bar_of_a_fit_names_the_stage_what_is_counted_and_the_best_cost(at, words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with console.fit_bar("fitting") as progress:
        progress(at)
    shown = capsys.readouterr().err
    assert words in shown
    assert "nan" not in shown


def test_the_time_of_a_bar_goes_on_where_a_stage_follows_another_of_the_same_length(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with console.bar("fitting") as advance:
        advance(10, 10)
        time.sleep(1.1)
        advance(5, 10, "the next stage")
    assert "0:00:01 left" in capsys.readouterr().err


def test_a_bar_of_work_whose_share_is_not_known_shows_the_time_alone(at_once, capsys):
    with console.bar("writing"):
        time.sleep(0.1)
    shown = capsys.readouterr().err
    assert "0:00:00" in shown
    assert "%" not in shown
    assert "left" not in shown


@pytest.fixture
def at_once(monkeypatch):
    """Bars that appear at once, as after two seconds of work."""
    monkeypatch.setattr(console, "_BAR_DELAY", -1.0)
    monkeypatch.setenv("COLUMNS", "200")


def bars_of(capsys, *words: object) -> list[str]:
    """The words before the bars that a command has shown."""
    assert run([str(word) for word in words]) == 0
    return [line.split(" \N{BOX DRAWINGS HEAVY HORIZONTAL}")[0] for line in capsys.readouterr().err.splitlines()]


def test_commands_show_a_bar_wherever_they_may_take_long(folder, fitted, at_once, tmp_path, capsys):
    fitted.save(tmp_path / "run")
    assert bars_of(capsys, "inspect", folder) == ["reading", "checking"]
    assert bars_of(capsys, "rate", tmp_path / "run", folder) == ["reading", "rating"]
    assert bars_of(capsys, "report", tmp_path / "run", "--data", folder) == ["reading", "writing the report"]
    assert bars_of(capsys, "convert", folder, tmp_path / "copy.parquet") == ["reading", "writing"]
    fit = ("fit", folder, "--out", tmp_path / "new", "--policy", "CategoricalMLP(hidden=(4,))", "--restarts", 1)
    assert bars_of(capsys, *fit, "--steps", 5) == ["reading", "fitting"]


def test_short_work_shows_no_bar(folder, fitted, tmp_path, capsys):
    fitted.save(tmp_path / "run")
    assert bars_of(capsys, "inspect", folder) == []
    assert bars_of(capsys, "rate", tmp_path / "run", folder) == []


def test_of_several_processes_one_alone_shows_bars(at_once, monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a job")
    for rank, shown in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        with console.bar("reading") as advance:
            advance(1, 2)
        assert ("reading" in capsys.readouterr().err) == shown
