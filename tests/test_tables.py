"""Tables: from CSV, parquet, pandas, polars and Arrow to a ranking, with the table's own names all the way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from test_import import ALONE
from triage import DECISIONS, best_decision, case_columns, triage

import ileed
from ileed import DemonstrationError, Demonstrations
from ileed.cli import run as command
from ileed.data import Encoding
from ileed.data.encoding import Feature

ROLES = {"action": "decision", "demonstrator": "nurse", "episode": "case"}


def small(**changed: Any) -> dict[str, Any]:
    """Six rows of every kind of column: whole numbers, fractions, text, and true or false."""
    return {
        "age": [71, 30, 55, 42, 8, 64],
        "fever": [38.5, 36.6, 37.0, 39.1, 37.7, 36.9],
        "arrival": ["walk-in", "ambulance", "walk-in", "ambulance", "walk-in", "referral"],
        "insured": [True, True, False, True, False, True],
        "nurse": ["bob", "bob", "ann", "ann", "bob", "ann"],
        "decision": ["observe", "admit", "discharge", "admit", "observe", "observe"],
    } | changed


def built(**changed: Any) -> Demonstrations:
    return ileed.from_table(small(**changed), action="decision", demonstrator="nurse")


@pytest.fixture(scope="module")
def quick() -> ileed.Fitted:
    return ileed.Ileed(restarts=1, steps=20).fit(built(), seed=0, device="cpu")


# --- from a table to a ranking


def test_a_triage_table_is_ranked_in_three_lines_with_default_settings(tmp_path):
    """Ten further sets are in docs/decisions/width.md, where the lowest rank correlation is stated."""
    columns, skill = triage(1)
    csv.write_csv(pa.table(columns), tmp_path / "triage.csv")

    data = ileed.from_table(tmp_path / "triage.csv", action="decision", demonstrator="nurse", episode="case")
    fitted = ileed.Ileed().fit(data, seed=0, device="cpu")
    found = fitted.expertise.by_demonstrator()

    assert rank_correlation([found[name] for name in skill], list(skill.values())) > 0.9
    cases = case_columns(np.random.default_rng(2), 2000)
    assert np.mean(fitted.policy.act(cases) == best_decision(cases)) > 0.85
    assert fitted.width.chosen > 0


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's, of values without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def test_a_table_is_ranked_in_one_command(tmp_path, capsys):
    columns, skill = triage(0, people=4, cases=50)
    csv.write_csv(pa.table(columns), tmp_path / "triage.csv")
    words = ["--action", "decision", "--demonstrator", "nurse", "--episode", "case"]
    quick_fit = ["--restarts", "1", "--steps", "20", "--device", "cpu", "--out", str(tmp_path / "run"), "--json"]
    assert command(["fit", str(tmp_path / "triage.csv"), *words, *quick_fit]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["expertise"].keys() == skill.keys()
    assert printed["actions"] == {"columns": ["decision"], "labels": list(DECISIONS)}
    assert ileed.load(tmp_path / "run").policy.encoding.labels == DECISIONS


def test_the_policy_of_a_table_takes_tables_and_answers_with_labels():
    columns, _ = triage(0, people=6)
    data = ileed.from_table(columns, **ROLES)
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(32, 32)), restarts=1, steps=800)
    policy = method.fit(data, seed=0, device="cpu").policy
    cases = case_columns(np.random.default_rng(5), 500)
    answered = policy.act(cases | {"nurse": ["whoever"] * 500})
    assert set(answered.tolist()) <= set(DECISIONS)
    assert (answered == best_decision(cases)).mean() > 0.5  # guessing is right in a quarter
    for table in (pd.DataFrame(cases), pl.DataFrame(cases), pa.table(cases)):
        np.testing.assert_array_equal(policy.act(table), answered)
    numbers = policy.act(data.encoding.encode(cases))
    np.testing.assert_array_equal(np.array(DECISIONS)[numbers], answered)
    assert set(policy.act(cases, sample=True).tolist()) <= set(DECISIONS)


# --- every kind of table


def parquet_of(table: pa.Table, path: Any) -> Any:
    pq.write_table(table, path / "table.parquet")
    return path / "table.parquet"


def csv_of(table: pa.Table, path: Any) -> Any:
    csv.write_csv(table, path / "table.csv")
    return path / "table.csv"


def semicolons(table: pa.Table, path: Any) -> Any:
    csv.write_csv(table, path / "table.csv", csv.WriteOptions(delimiter=";"))
    return path / "table.csv"


KINDS = {
    "CSV": csv_of,
    "CSV with semicolons": semicolons,
    "parquet": parquet_of,
    "pandas": lambda table, path: table.to_pandas(),
    "pandas with an index of its own": lambda table, path: table.to_pandas().set_index(np.arange(6) * 7),
    "pandas categories": lambda table, path: table.to_pandas().astype({"arrival": "category", "nurse": "category"}),
    "polars": lambda table, path: pl.from_arrow(table),
    "polars categories": lambda table, path: pl.from_arrow(table).with_columns(
        pl.col("arrival", "decision").cast(pl.Categorical)
    ),
    "Arrow": lambda table, path: table,
    "an Arrow batch": lambda table, path: table.to_batches()[0],
    "an Arrow stream": lambda table, path: table.to_reader(),
    "a mapping of columns": lambda table, path: table.to_pydict(),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_the_same_table_gives_the_same_data_from_everywhere(kind, tmp_path):
    table = kind(pa.table(small()), tmp_path)
    assert ileed.from_table(table, action="decision", demonstrator="nurse").equals(built())


def test_numbers_text_and_true_or_false_mix():
    data = built()
    assert data.encoding.inputs == (
        *("age", "fever", "arrival = ambulance", "arrival = referral", "arrival = walk-in"),
        *("insured = false", "insured = true"),
    )
    assert data.observations.dtype == np.float32
    np.testing.assert_allclose(data.observations[0], [71, 38.5, 0, 0, 1, 0, 1])
    np.testing.assert_allclose(data.observations[5], [64, 36.9, 0, 1, 0, 0, 1])
    assert data.encoding.decode(data.actions).tolist() == small()["decision"]
    assert [data.names[person] for person in data.demonstrator] == small()["nurse"]


def test_neither_pandas_nor_polars_is_needed(tmp_path):
    csv_of(pa.table(small()), tmp_path)
    code = (
        ALONE + "import ileed\n"
        "assert 'pyarrow.csv' not in sys.modules and 'pyarrow.compute' not in sys.modules\n"
        f"data = ileed.from_table({str(tmp_path / 'table.csv')!r}, action='decision', demonstrator='nurse')\n"
        "assert data.encoding.labels == ('admit', 'discharge', 'observe')\n"
        "assert not {'pandas', 'polars'} & set(sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


# --- actions


ACTIONS = {
    "text": (small()["decision"], ("admit", "discharge", "observe")),
    "whole numbers": ([10, 30, 20, 30, 10, 20], (10, 20, 30)),
    "true or false": ([True, False, True, True, False, False], (False, True)),
}


@pytest.mark.parametrize(("values", "labels"), ACTIONS.values(), ids=ACTIONS.keys())
@pytest.mark.parametrize("from_csv", [False, True], ids=["columns", "csv"])
def test_labels_of_actions_are_kept_as_they_are(values, labels, from_csv, tmp_path):
    table = csv_of(pa.table(small(decision=values)), tmp_path) if from_csv else small(decision=values)
    data = ileed.from_table(table, action="decision", demonstrator="nurse")
    assert data.encoding.labels == labels
    assert data.encoding.decode(data.actions).tolist() == values


def test_declared_categories_of_an_action_count_though_never_taken():
    declared = pd.Categorical(small()["decision"], categories=["observe", "admit", "transfer", "discharge"])
    ordered = declared.as_ordered()
    data = ileed.from_table(pd.DataFrame(small(decision=declared)), action="decision", demonstrator="nurse")
    assert data.encoding.labels == ("admit", "discharge", "observe", "transfer")
    assert any(finding.says == "transfer of 4 never occur" for finding in data.check())
    kept = ileed.from_table(pd.DataFrame(small(decision=ordered)), action="decision", demonstrator="nurse")
    assert kept.encoding.labels == ("observe", "admit", "transfer", "discharge")
    assert kept.encoding.decode(kept.actions).tolist() == small()["decision"]


def test_a_column_of_fractions_or_several_columns_are_a_continuous_action():
    dose = [0.5, 1.25, 0.0, 2.0, 0.75, 0.1]
    one = built(decision=dose)
    assert one.actions.shape == (6, 1)
    assert not one.encoding.labels
    two = ileed.from_table(small(dose=dose), action=["dose", "age"], demonstrator="nurse")
    np.testing.assert_allclose(two.actions, np.stack([dose, small()["age"]], 1), rtol=1e-6)
    assert "age" not in two.encoding.inputs
    assert "actions dose, age (continuous)" in repr(two)
    policy = ileed.Ileed(restarts=1, steps=2).fit(two, seed=0, device="cpu").policy
    assert policy.act(small()).shape == (6, 2)


def test_codes_with_leading_zeros_stay_as_they_are(tmp_path):
    (tmp_path / "codes.csv").write_text("age,nurse,code\n1,007,01\n2,07,02\n3,007,01\n4,10,02\n")
    data = ileed.from_table(tmp_path / "codes.csv", action="code", demonstrator="nurse")
    assert data.names == ("007", "07", "10")
    assert data.encoding.labels == ("01", "02")


def test_numbered_demonstrators_stand_in_the_order_of_numbers(tmp_path):
    (tmp_path / "numbered.csv").write_text("age,nurse,code\n1,10,1\n2,9,2\n3,10,1\n4,1,2\n")
    data = ileed.from_table(tmp_path / "numbered.csv", action="code", demonstrator="nurse")
    assert data.names == ("1", "9", "10")
    assert data.encoding.labels == (1, 2)


def test_a_column_is_of_fractions_if_any_of_its_rows_is(tmp_path):
    """A megabyte of whole numbers before the first fraction must not matter."""
    rows = [
        f"{number % 90},{'ann' if number % 2 else 'bob'},{'yes' if number % 3 else 'no'}" for number in range(90_000)
    ]
    (tmp_path / "long.csv").write_text("\n".join(["age,nurse,code", *rows, "1.5,ann,no"]))
    data = ileed.from_table(tmp_path / "long.csv", action="code", demonstrator="nurse")
    assert data.observations[-1].tolist() == [1.5]


# --- episodes, features and skills


def test_without_an_episode_column_each_row_is_an_episode():
    data = built()
    assert data.episode_count == len(data) == 6
    assert "6 episodes of one step each (independent decisions)" in repr(data)


def test_rows_of_an_episode_are_brought_together_in_the_order_of_the_table():
    shifts = ["late", "early", "noon", "noon", "late", "noon"]
    data = ileed.from_table(small(shift=shifts), action="decision", demonstrator="nurse", episode="shift")
    assert data.observations[:, 0].tolist() == [71, 8, 30, 55, 42, 64]
    assert data.episode.tolist() == [0, 0, 1, 2, 2, 2]
    assert "3 episodes, 6 steps" in repr(data)


def test_episodes_numbered_per_demonstrator_are_identified_by_two_columns():
    table = small(shift=[1, 2, 1, 1, 1, 2])
    with pytest.raises(DemonstrationError, match=r"shift 1 has two demonstrators.*episode=\[demonstrator, episode\]"):
        ileed.from_table(table, action="decision", demonstrator="nurse", episode="shift")
    data = ileed.from_table(table, action="decision", demonstrator="nurse", episode=["nurse", "shift"])
    assert data.episode_count == 4
    assert "nurse" not in "".join(data.encoding.inputs)


def test_features_are_those_that_are_named_or_all_that_have_no_other_role():
    table = small(phase=["in", "out"] * 3, case=[1, 2, 3, 4, 5, 6])
    named = ileed.from_table(
        table, action="decision", demonstrator="nurse", episode="case", features=["fever"], skills="phase"
    )
    assert named.encoding.inputs == ("fever",)
    assert named.skill("phase")[1] == ("in", "out")
    others = ileed.from_table(table, action="decision", demonstrator="nurse", episode="case", skills=["phase"])
    assert [feature.name for feature in others.encoding.features] == ["age", "fever", "arrival", "insured"]
    fitted = ileed.Ileed(expertise=ileed.Skills("phase"), restarts=1, steps=2).fit(named, seed=0, device="cpu")
    assert set(fitted.expertise.by_skill()["ann"]) == {"in", "out"}


def test_categories_are_not_scaled_by_how_rare_they_are():
    """In units of its own spread, one row in a hundred would weigh ten times as much as a number does."""
    rare = ["common"] * 198 + ["rare"] * 2
    random = np.random.default_rng(0)
    table = {"size": random.normal(50, 9, 200), "kind": rare, "who": ["ann", "bob"] * 100, "did": ["a", "b"] * 100}
    data = ileed.from_table(table, action="did", demonstrator="who")
    normaliser = ileed.Ileed(restarts=1, steps=2).fit(data, seed=0, device="cpu").normaliser
    assert normaliser.scale[1:].tolist() == [1, 1]
    assert normaliser.scale[0] == pytest.approx(table["size"].std(), rel=1e-4)


# --- missing values


def test_missing_values_are_refused_by_name_or_kept_as_a_category():
    table = small(arrival=["walk-in", None, "walk-in", None, "walk-in", "referral"])
    roles = {"action": "decision", "demonstrator": "nurse"}
    with pytest.raises(DemonstrationError, match=r"'arrival' has 2 missing values in 6 rows.*missing='category'"):
        ileed.from_table(table, **roles)
    data = ileed.from_table(table, **roles, missing="category")
    assert data.encoding.inputs[2:5] == ("arrival = referral", "arrival = walk-in", "arrival = missing")
    assert data.observations[:, 4].tolist() == [0, 1, 0, 1, 0, 0]
    again = data.encoding.encode(table | {"arrival": [None] * 6})
    assert again[:, 4].tolist() == [1] * 6


def test_a_missing_number_is_refused_or_replaced_by_the_mean_and_marked():
    table = small(fever=[38.0, float("nan"), 37.0, None, 36.0, 37.0])
    roles = {"action": "decision", "demonstrator": "nurse"}
    with pytest.raises(DemonstrationError, match="'fever' has 2 missing values in 6 rows"):
        ileed.from_table(table, **roles)
    data = ileed.from_table(table, **roles, missing="category")
    assert data.encoding.inputs[1:3] == ("fever", "fever = missing")
    assert data.observations[:, 1].tolist() == [38, 37, 37, 37, 36, 37]
    assert data.observations[:, 2].tolist() == [0, 1, 0, 1, 0, 0]
    assert data.encoding.indicators.tolist() == [False, False, *[True] * 6]


@pytest.mark.parametrize("column", ["decision", "nurse"])
def test_who_and_what_may_never_be_missing(column):
    with pytest.raises(DemonstrationError, match=f"'{column}' has 1 missing values in 6 rows"):
        ileed.from_table(
            small(**{column: [None, *small()[column][1:]]}), action="decision", demonstrator="nurse", missing="category"
        )


def test_an_empty_field_of_a_csv_file_is_missing(tmp_path):
    (tmp_path / "holes.csv").write_text("age,arrival,nurse,code\n1,,ann,a\n2,walk-in,bob,b\n3,walk-in,ann,a\n")
    with pytest.raises(DemonstrationError, match="'arrival' has 1 missing values in 3 rows"):
        ileed.from_table(tmp_path / "holes.csv", action="code", demonstrator="nurse")


# --- tables that are refused, in one sentence


MANY = 50
BAD_TABLES = {
    "an unknown column": (small(), {"action": "descision"}, "no column 'descision'.*did you mean 'decision'"),
    "two roles": (small(), {"action": "nurse"}, "'nurse' is named as action and as demonstrator"),
    "the action as a feature": (small(), {"features": ["age", "decision"]}, "named as action and as feature"),
    "a feature twice": (small(), {"features": ["age", "age"]}, "'age' twice"),
    "no features": ({k: small()[k] for k in ("nurse", "decision")}, {}, "no column is left for the features"),
    "features of none": (small(), {"features": []}, "features names no column"),
    "a number for a name": (small(), {"action": 3}, "action is 3: pass the name of a column"),
    "two demonstrators": (small(), {"demonstrator": ["nurse", "age"]}, "name one column that says who acted"),
    "an unknown choice": (small(), {"missing": "drop"}, "missing is 'drop'"),
    "no rows": ({name: [] for name in small()}, {}, "no rows"),
    "one action": (small(decision=["admit"] * 6), {}, "'admit' in every row"),
    "whole fractions": (small(decision=[1.0, 2.0, 1.0, 2.0, 1.0, 1.0]), {}, r"action=\['decision'\]"),
    "fractions for names": (small(nurse=[1.5] * 6), {}, "'nurse' holds double"),
    "an identifier": (small(case=list("abcdef")), {}, "'case' has 6 different texts in 6 rows.*features="),
    "numbered rows": (
        {"": range(MANY), "age": range(0, 2 * MANY, 2), "nurse": ["ann", "bob"] * 25, "decision": ["a", "b"] * 25},
        {},
        "'' numbers the rows",
    ),
    "dates": (small(seen=pa.array([0] * 6, pa.timestamp("s"))), {}, "'seen' holds timestamp.*turn it into numbers"),
    "lists": (small(scan=[[1, 2]] * 6), {}, "'scan' holds list"),
    "nothing at all": (small(note=[None] * 6), {}, "'note' has no values at all"),
    "infinite": (small(fever=[np.inf] * 6), {}, "'fever' has 6 infinite"),
    "decimal commas": (small(fever=["38,5", "37,0", "36", "38,5", "37,0", "36"]), {}, "'fever'.*decimal comma"),
    "a novel": (small(note=["x" * 5000, "y"] * 3), {}, "'note' holds a text of 5,000 characters"),
    "unequal columns": (small(age=[1, 2]), {}, "cannot be read column by column"),
    "a single value": (small(age=3), {}, "'age' is a single value"),
    "columns of one name": (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "cannot be read column by column"),
    "mixed values": (pd.DataFrame(small(age=[1, "old", 2, 3, 4, 5])), {}, "cannot be read column by column"),
    "no table": ([1, 2, 3], {}, "a table is needed and list was given"),
    "a missing file": ("absent.csv", {}, "there is no file absent.csv"),
}


@pytest.mark.parametrize(("table", "options", "said"), BAD_TABLES.values(), ids=BAD_TABLES.keys())
def test_a_bad_table_is_refused_in_one_sentence(table, options, said):
    with pytest.raises(DemonstrationError, match=said):
        ileed.from_table(table, **({"action": "decision", "demonstrator": "nurse"} | options))


BAD_FILES = {
    "nothing.csv": (b"", "nothing.csv is not a readable CSV file"),
    "blank.csv": (b"\n\n", "blank.csv is not a readable CSV file"),
    "header.csv": (b"age,nurse,decision\n", "no rows"),
    "ragged.csv": (b"age,nurse,decision\n1,ann,a\n2,bob\n", "as many values as the header"),
    "latin.csv": ("age,nurse,decision\n1,Zoë,a\n2,bob,b\n".encode("latin-1"), "UTF-8"),
    "latin_feature.csv": ("age,nurse,decision\nzoë,ann,a\n2,bob,b\n".encode("latin-1"), "UTF-8"),
    "latin_header.csv": ("äge,nurse,decision\n1,ann,a\n".encode("latin-1"), "UTF-8"),
    "marked.csv": (b"\xef\xbb\xbfage,nurse,decision\n1,ann,a\n2,bob,a\n", "'a' in every row"),
    "wide.csv": ("age,nurse,decision\n1,ann,a\n".encode("utf-16"), "zero bytes"),
    "twice.csv": (b"age,age,nurse,decision\n1,2,ann,a\n", "'age' occurs twice"),
    "book.xlsx": (b"PK", "no known format of tables"),
    "cut.parquet": (b"PAR1", "not a readable parquet file"),
}


@pytest.mark.parametrize(("name", "content", "said"), [(k, *v) for k, v in BAD_FILES.items()], ids=BAD_FILES.keys())
def test_a_bad_file_is_refused_in_one_sentence(name, content, said, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    words = ["--action", "decision", "--demonstrator", "nurse"]
    assert command(["inspect", str(tmp_path / name), *words]) == 2
    printed, refused = capsys.readouterr()
    assert printed == ""
    assert said in refused
    assert len(refused.splitlines()) == 1


def test_a_policy_refuses_a_table_that_it_cannot_encode(quick):
    for changed, said in {
        "an unknown category": (
            {"arrival": ["helicopter"] * 6},
            "'arrival' holds 'helicopter' in 6 of 6 rows.*'walk-in'",
        ),
        "text for numbers": ({"age": ["old"] * 6}, "'age' holds string, and numbers are needed"),
        "a missing value": ({"fever": [None] * 6}, "'fever' has 6 missing values"),
        "a missing category": ({"arrival": [None] * 6}, "'arrival' has 6 missing values"),
        "no rows": ({name: [] for name in small()}, "no rows"),
    }.values():
        with pytest.raises(DemonstrationError, match=said):
            quick.policy.act(small(**changed))
    with pytest.raises(DemonstrationError, match=r"no column 'arrival'.*did you mean 'arrivals'"):
        quick.policy.act({("arrivals" if name == "arrival" else name): v for name, v in small().items()})


@pytest.mark.parametrize("write", [csv_of, parquet_of])
def test_read_takes_a_table_with_its_columns_by_keyword(write, tmp_path):
    path = write(pa.table(small(case=[1, 1, 2, 3, 3, 3])), tmp_path)
    roles = {"action": "decision", "episode": ["nurse", "case"], "features": ["age", "arrival"]}
    expected = ileed.from_table(path, demonstrator="nurse", **roles)
    assert ileed.read(path, demonstrator="nurse", **roles).equals(expected)
    assert ileed.read(path, demonstrator=ileed.by_column("nurse"), **roles).equals(expected)
    found = ileed.read(path, demonstrator="nurse", action="decision", encoding=expected.encoding)
    assert found.encoding == expected.encoding


def test_read_names_what_is_missing_of_a_table(tmp_path):
    path = csv_of(pa.table(small()), tmp_path)
    for options, said in {
        ("demonstrator", "nurse"): "is a flat table",
        ("action", "decision"): "not that of the demonstrator: add demonstrator= ",
        ("episode", "nurse"): "not that of the action: add action= ",
        ("colour", "red"): "colour does not apply to .csv files: the options of these are action, episode, features",
    }.items():
        with pytest.raises(DemonstrationError, match=re.escape(said)):
            ileed.read(path, **dict([options]))
    with pytest.raises(DemonstrationError, match="does not apply to tables: use by_column"):
        ileed.read(path, action="decision", demonstrator=ileed.by_one("ann"))


def test_flat_parquet_and_csv_files_are_answered_with_how_to_name_their_columns(tmp_path, capsys):
    for path in (parquet_of(pa.table(small()), tmp_path), csv_of(pa.table(small()), tmp_path)):
        with pytest.raises(DemonstrationError, match=r"is a flat table with the columns 'age'.*ileed\.from_table"):
            ileed.read(path)
        assert command(["fit", str(path)]) == 2
        refused = capsys.readouterr().err
        assert "--action" in refused
        assert "rename" not in refused
        assert len(refused.splitlines()) == 1


# --- names are kept


def test_names_survive_selections_files_and_runs(tmp_path, quick):
    data = built()
    assert data.by("ann").encoding == data.encoding
    assert data.select(data.actions == 0).encoding == data.encoding
    ileed.write_parquet(data, tmp_path / "data.parquet")
    assert ileed.read(tmp_path / "data.parquet").equals(data)
    quick.save(tmp_path / "run")
    loaded = ileed.load(tmp_path / "run")
    assert loaded.policy.encoding == data.encoding
    assert loaded.policy.act(small()).tolist() == quick.policy.act(small()).tolist()
    np.testing.assert_array_equal(loaded.expertise(small(), "ann"), quick.expertise(data.observations, "ann"))


def test_other_names_are_other_data():
    data = built()
    assert built(decision=["A", "B", "C", "B", "A", "A"]).fingerprint != data.fingerprint
    assert not replace(data, encoding=None).equals(data)


def test_every_output_shows_the_names(tmp_path, capsys, quick):
    data = built()
    assert "features age, fever, arrival (3 categories), insured (2 categories)" in repr(data)
    assert "actions decision (admit, discharge, observe)" in repr(data)
    says = {finding.says for finding in data.by("ann").select(np.array([True, True, False])).check()}
    assert "observe of 3 never occur" in says
    assert any("never vary (arrival = referral" in said for said in says)
    quick.save(tmp_path / "run")
    page = ileed.report(tmp_path / "run").read_text()
    for word in ("decision", "discharge", "ambulance", "fever"):
        assert word in page
    csv_of(pa.table(small()), tmp_path)
    words = ["inspect", str(tmp_path / "table.csv"), "--action", "decision", "--who", "nurse"]
    assert command(words) == 0
    assert "actions decision (admit, discharge, observe)" in " ".join(capsys.readouterr().out.split())
    assert command([*words, "--features", "age", "arrival", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["actions"] == {"columns": ["decision"], "labels": ["admit", "discharge", "observe"]}
    assert told["features"][0] == "age"


def test_names_cannot_command_a_terminal():
    labels = ["\x1b[2Jadmit", "discharge"] * 3
    data = ileed.from_table(small(decision=labels, **{"\x1b]0;age": range(6)}), action="decision", demonstrator="nurse")
    assert "\x1b" not in repr(data)
    assert "\x1b" not in "".join(finding.says for finding in data.select(data.actions == 1).check())
    assert data.encoding.decode(data.actions).tolist() == labels


def test_names_must_fit_the_data():
    data = built()
    one = Encoding((Feature("age"),), ("decision",), ("a", "b", "c"))
    with pytest.raises(DemonstrationError, match="the encoding names 1 inputs"):
        replace(data, encoding=one)
    with pytest.raises(DemonstrationError, match="there are 3 actions and the encoding names 2"):
        replace(data, encoding=replace(data.encoding, labels=("a", "b")))


def test_data_encoded_otherwise_are_not_judged_by_a_fit(quick):
    assert np.isfinite(quick.nats(built())).all()
    with pytest.raises(DemonstrationError, match="'A'"):
        quick.nats(built(decision=["A", "B", "C", "B", "A", "A"]))
    later = small(arrival=["walk-in"] * 6, decision=["admit"] * 6)
    data = ileed.from_table(later, action="decision", demonstrator="nurse", encoding=quick.policy.encoding)
    assert np.isfinite(quick.nats(data)).all()
    assert data.action_count == 3
    with pytest.raises(DemonstrationError, match=r"'decision' holds 'operate'.*'discharge'"):
        ileed.from_table(
            small(decision=["operate"] * 6), action="decision", demonstrator="nurse", encoding=quick.policy.encoding
        )


@pytest.mark.parametrize(
    "note",
    [
        3,
        [],
        {"kind": "Feature", "name": "age"},
        {"kind": "Encoding"},
        {"kind": "Encoding", "features": 3, "action": []},
    ],
    ids=["a number", "a list", "another kind", "nothing inside", "wrong types"],
)
def test_a_damaged_note_of_names_is_refused_in_one_sentence(note, tmp_path, quick):
    ileed.write_parquet(built(), tmp_path / "data.parquet")
    table = pq.read_table(tmp_path / "data.parquet")
    notes = json.loads(table.schema.metadata[b"ileed"]) | {"encoding": note}
    pq.write_table(table.replace_schema_metadata({"ileed": json.dumps(notes)}), tmp_path / "data.parquet")
    with pytest.raises(DemonstrationError, match="encoding"):
        ileed.read(tmp_path / "data.parquet")
    quick.save(tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "settings.json").read_text()) | {"encoding": note}
    (tmp_path / "run" / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(ileed.IleedError):
        ileed.load(tmp_path / "run")


# --- episodes as other programs record them


def test_a_text_is_not_a_list_of_demonstrators():
    episode = {"observations": np.zeros((2, 1)), "actions": [0, 1]}
    for demonstrator in ("ab", b"ab", None, 7):
        with pytest.raises(DemonstrationError, match="pass a list with one name or whole number for each episode"):
            Demonstrations.from_episodes([episode, episode], demonstrator=demonstrator)


@dataclass(frozen=True)
class Trajectory:
    """What imitation records: one observation more than acts, and a single word on how it ended."""

    obs: Any
    acts: Any
    infos: Any
    terminal: bool
    rews: Any


class DictObs:
    """imitation's wrapper of Dict observations: it has entries, and is no mapping."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self._entries = entries

    def items(self) -> Any:
        return self._entries.items()


def test_trajectories_of_imitation_are_taken_as_they_are():
    seen = np.arange(8.0).reshape(4, 2)
    one = Trajectory(seen, np.array([0, 1, 1]), None, True, np.array([0.0, 0.0, 1.0]))
    two = Trajectory(seen, np.array([1, 0, 1]), None, False, np.array([0.0, 0.5, 0.0]))
    data = Demonstrations.from_episodes([one, two], demonstrator=["ann", "bob"])
    assert data.observations.tolist() == seen[:3].tolist() * 2
    assert data.actions.tolist() == [0, 1, 1, 1, 0, 1]
    assert data.rewards.tolist() == [0, 0, 1, 0, 0.5, 0]
    assert data.terminals.tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("kind", [dict, DictObs], ids=["a mapping", "imitation's wrapper"])
def test_dict_observations_are_flattened_in_the_order_of_sorted_names(kind):
    position, goal = np.arange(6.0).reshape(3, 2), np.array([7, 8, 9])
    episode = {"obs": kind({"position": position, "goal": goal, "inner": {"b": goal, "a": goal * 10}}), "acts": [0, 1]}
    data = Demonstrations.from_episodes([episode], demonstrator=["ann"])
    assert data.observations.tolist() == [[7, 70, 7, 0, 1], [8, 80, 8, 2, 3]]


BAD_OBSERVATIONS = {
    "text": ({"mission": ["go"] * 3, "image": np.zeros((3, 2))}, "entry 'mission', are <U2, not numbers"),
    "empty": ({}, "empty mapping"),
    "unequal": ({"a": np.zeros(3), "b": np.zeros(2)}, "different lengths"),
    "single": ({"a": 3}, "a single value"),
}


@pytest.mark.parametrize(("seen", "said"), BAD_OBSERVATIONS.values(), ids=BAD_OBSERVATIONS.keys())
def test_dict_observations_that_cannot_be_flattened_are_refused_in_one_sentence(seen, said):
    with pytest.raises(DemonstrationError, match=said):
        Demonstrations.from_episodes([{"obs": seen, "acts": [0, 1]}], demonstrator=["ann"])


def test_actions_that_are_a_mapping_are_refused():
    with pytest.raises(DemonstrationError, match="the actions of episode 0 are a mapping"):
        Demonstrations.from_episodes([{"obs": np.zeros((2, 1)), "actions": {"a": [0, 1]}}], demonstrator=["ann"])


@pytest.mark.filterwarnings("ignore::UserWarning")  # it asks for authors, an environment and a description
def test_the_episodes_of_a_minari_data_set_are_taken_as_they_are(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    spaces = pytest.importorskip("gymnasium").spaces
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    random = np.random.default_rng(0)
    buffers = [
        EpisodeBuffer(
            id=number,
            observations={"goal": random.normal(size=(5, 2)), "agent": random.normal(size=(5, 3))},
            actions=random.integers(0, 3, size=4),
            rewards=[0.0, 0.0, 0.0, 1.0],
            terminations=[False, False, False, True],
            truncations=[False] * 4,
            infos={},
        )
        for number in range(3)
    ]
    box = {"goal": spaces.Box(-9, 9, (2,), np.float64), "agent": spaces.Box(-9, 9, (3,), np.float64)}
    found = minari.create_dataset_from_buffers(
        "tables/toy-v0", buffer=buffers, observation_space=spaces.Dict(box), action_space=spaces.Discrete(3)
    )
    data = Demonstrations.from_episodes(found, demonstrator=["ann", "bob", "ann"])
    assert data.observations.shape == (12, 5)
    first = buffers[0].observations
    np.testing.assert_allclose(data.observations[:4], np.concatenate([first["agent"], first["goal"]], axis=1)[:4])
    assert data.actions[:4].tolist() == buffers[0].actions.tolist()
    assert data.terminals.tolist() == [False, False, False, True] * 3


def test_an_episode_may_say_terminals():
    episode = SimpleNamespace(observations=np.zeros((2, 1)), actions=[0, 1], terminals=[False, True])
    assert Demonstrations.from_episodes([episode], demonstrator=["ann"]).terminals.tolist() == [False, True]
