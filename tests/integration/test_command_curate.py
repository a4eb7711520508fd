"""`ileed curate RUN DATA`: kept episodes, tables and files for trainers, from the command."""

import json

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ileed
from ileed.cli import run
from ileed.formats import shipped


def some_episodes() -> ileed.Demonstrations:
    """A quarter of the shipped episodes, of all ten demonstrators."""
    data = shipped()
    return data.select(data.episode % 4 == 0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curate")
    data = some_episodes()
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=1, steps=100, folds=2)
    method.fit(data, seed=0, device="cpu").save(folder / "run")
    ileed.write(data, folder / "data.parquet")
    return folder


def curate(saved, out, *options):
    try:
        return run(["curate", str(saved / "run"), str(saved / "data.parquet"), "--out", str(out), *options])
    except SystemExit as stopped:
        return int(stopped.code or 0)


def test_it_says_what_was_kept_by_which_rule_whose_it_is_and_where_the_files_are(saved, tmp_path, capsys):
    before = (saved / "data.parquet").read_bytes()
    assert curate(saved, tmp_path / "out", "--keep", "0.07", "--no-check") == 0
    shown = capsys.readouterr().out
    assert "kept 25 of 360 episodes: the best by expertise, 7% of the episodes" in shown
    assert "best by expertise, with 95% intervals" in shown
    assert "rank correlation with the length of episodes" in shown
    assert str(tmp_path / "out") in shown.replace("\n", "")
    assert (saved / "data.parquet").read_bytes() == before
    table = pq.read_table(tmp_path / "out/episodes.parquet")
    kept = table.filter(table["keep"])
    assert set(kept["demonstrator"].to_pylist()) == {"demonstrator 1"}  # the one who is competent


def test_json_has_the_rule_the_keys_the_people_and_the_files(saved, tmp_path, capsys):
    assert curate(saved, tmp_path / "out", "--steps", "100", "--no-check", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kept_steps"] <= 100
    assert len(found["kept_keys"]) == found["kept_episodes"]
    assert sum(person["kept"] for person in found["people"]) == found["kept_episodes"]
    assert -1 <= found["length_correlation"]["low"] <= found["length_correlation"]["high"] <= 1
    assert str(tmp_path / "out" / "episodes.csv") in found["files"]


def test_pseudonyms_stand_for_names_everywhere_and_people_are_rated_by_their_own(saved, tmp_path, capsys):
    words = ("--keep", "0.1", "--no-check", "--json")
    assert curate(saved, tmp_path / "named", *words) == 0
    by_name = json.loads(capsys.readouterr().out)
    assert curate(saved, tmp_path / "out", *words, "--anonymise") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kept_keys"] == by_name["kept_keys"]
    for path in (tmp_path / "out").iterdir():
        assert b"demonstrator 1" not in path.read_bytes()


def test_a_trainer_may_be_named(saved, tmp_path, capsys):
    assert curate(saved, tmp_path / "out", "--above", "1.5", "--weight", "--format", "lerobot", "--no-check") == 0
    weights = pq.read_table(tmp_path / "out/sample_weights.parquet")
    assert np.array_equal(weights["index"].to_numpy(), np.arange(len(some_episodes())))
    assert "lerobot-train" in (tmp_path / "out/lerobot.txt").read_text()
    assert "with probability 0.9 or more" in capsys.readouterr().out


def test_a_robomimic_file_is_copied_with_masks_without_being_asked(tmp_path, capsys):
    pytest.importorskip("h5py")
    ileed.write_robomimic(shipped("square"), tmp_path / "square.hdf5")
    method = ileed.Ileed(policy=ileed.MixtureMLP(hidden=(4,), modes=1), restarts=1, steps=10, folds=0)
    method.fit(ileed.read(tmp_path / "square.hdf5"), seed=0, device="cpu").save(tmp_path / "run")
    words = [
        "curate",
        tmp_path / "run",
        tmp_path / "square.hdf5",
        "--keep",
        "0.5",
        "--no-check",
        "--out",
        tmp_path / "out",
    ]
    assert run([str(word) for word in words]) == 0
    assert ileed.read(tmp_path / "out/square.hdf5", filter_key="ileed_keep").episode_count == 6
    assert "robomimic_bands.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--keep", "2"], "share"),
        (["--keep", "0.5", "--steps", "9"], "give one of them"),
        (["--by", "lenght"], "expertise"),
        (["--keep", "0.5", "--at-least", "1", "--kinds", "phase"], "skill column"),
        (["--format", "robomimic"], "actions are discrete"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_refusal_is_one_sentence_and_leaves_nothing(saved, tmp_path, capsys, options, says):
    assert curate(saved, tmp_path / "out", *options) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ileed: ")]  # a bar may go before
    assert len(said) == 1
    assert says in said[0]
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there_is_refused_before_anything_is_read(saved, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert run(["curate", str(tmp_path / "nowhere"), "nothing.parquet", "--out", str(tmp_path / "out")]) == 2
    assert "choose another place" in capsys.readouterr().err


def test_without_a_rule_the_selection_is_what_cross_validation_recommends(saved, tmp_path, capsys):
    """One of ten demonstrators is competent, and the others act nearly at random: everything teaches less."""
    assert curate(saved, tmp_path / "out", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    better = [each for each in found["comparisons"] if each["is_better"]]
    assert better
    best = max(better, key=lambda each: each["gain"])["selection"]
    assert found["kept_episodes"] == {"weights": 360, "the best 75%": 270, "the best 50%": 180}[best]
    assert json.loads((tmp_path / "out" / "curated.json").read_text())["comparisons"] == found["comparisons"]


def test_a_rule_is_obeyed_with_its_gain_beside_it_and_a_warning_where_it_is_worse(saved, tmp_path, capsys):
    assert curate(saved, tmp_path / "few", "--steps", "60") == 0
    shown = capsys.readouterr()
    assert "everything on held-out episodes, gain" in shown.out
    assert ("warning" in shown.err) == ("worse than everything" in shown.out)
    kept = pq.read_table(tmp_path / "few/episodes.parquet").filter(pc.field("keep"))
    assert kept["steps"].to_numpy().sum() <= 60


def test_without_a_check_and_a_rule_everything_is_kept(saved, tmp_path, capsys):
    assert curate(saved, tmp_path / "out", "--no-check", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kept_episodes"], found["comparisons"]) == (360, [])


@pytest.mark.parametrize("is_explained", [True, False])
def test_it_says_where_duration_explains_the_order(tmp_path, capsys, is_explained):
    """Nine operators, each with more noise than the one before, whose episodes are longer too, or all of one length."""
    random, parts = np.random.default_rng(0), []
    for number in range(9):
        for _ in range(6):
            length = 20 + 8 * number if is_explained else 40
            walk = np.cumsum(random.normal(size=(length, 2)), axis=0) / 4
            state = walk if is_explained else 3 * random.normal(size=2) + walk  # whose end the beginning predicts
            action = np.sin(state) + 0.2 * number * random.normal(size=state.shape)
            parts.append((state, action, np.full(len(state), number)))
    state, action, who = (np.concatenate(each) for each in zip(*parts, strict=True))
    data = ileed.Demonstrations(
        observations=state.astype(np.float32),
        actions=action.astype(np.float32),
        demonstrator=who,
        episode=np.repeat(np.arange(len(parts)), [len(each) for each, _, _ in parts]),
    )
    ileed.write(data, tmp_path / "data.parquet")
    method = ileed.Ileed(policy=ileed.MixtureMLP(hidden=(16,), modes=1), restarts=1, steps=200, folds=2)
    fitted = method.fit(data, seed=0, device="cpu")
    fitted.save(tmp_path / "run")
    expected = fitted.expertise.ratings.by.explained
    assert bool(expected) == is_explained
    assert curate(tmp_path, tmp_path / "out", "--keep", "0.5", "--no-check") == 0
    shown = " ".join(capsys.readouterr().out.split())
    written = json.loads((tmp_path / "out" / "curated.json").read_text())
    assert written.get("explained", "") == expected
    assert ("explained" in shown) == ("explained" in written) == is_explained
    assert expected in shown
