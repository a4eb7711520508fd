"""`ileed rate RUN DATA`: people rated by a run, from the command."""

import json

import pytest

import ileed
from ileed.cli import run
from ileed.formats import shipped


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rate")
    data = shipped()
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=1, steps=50, folds=2)
    method.fit(data, seed=0, device="cpu").save(folder / "run")
    newcomer = data.by("demonstrator 1", "demonstrator 2")
    ileed.formats.parquet.write_parquet(newcomer, folder / "people.parquet")
    return folder


def test_people_are_rated_in_a_table_best_first_with_a_sentence(saved, capsys):
    assert run(["rate", str(saved / "run"), str(saved / "people.parquet")]) == 0
    shown = capsys.readouterr().out
    assert shown.index("demonstrator 1") < shown.index("demonstrator 2")
    assert "95% interval" in shown
    assert "told apart" in shown or "better than" in shown


def test_json_has_the_table_its_scale_and_the_order(saved, capsys):
    assert run(["rate", str(saved / "run"), str(saved / "people.parquet"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["demonstrator"] for row in found["table"]] == ["demonstrator 1", "demonstrator 2"]
    assert found["scale"] == "expertise divided by its mean over demonstrators"
    assert found["order"]


def test_names_are_replaced_by_pseudonyms(saved, capsys):
    assert run(["rate", str(saved / "run"), str(saved / "people.parquet"), "--anonymise"]) == 0
    assert "demonstrator 1" not in capsys.readouterr().out


def test_a_run_that_is_not_there_is_refused(saved, capsys):
    assert run(["rate", str(saved / "nowhere"), str(saved / "people.parquet")]) == 2
    assert "nowhere" in capsys.readouterr().err
