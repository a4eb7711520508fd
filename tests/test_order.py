"""One fit has one order of its demonstrators: in tables, at the terminal, in reports, cards and files."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from test_slips import habitual
from test_third_party import simulated

import ileed
from ileed.cli import run
from ileed.cli.console import ranking, summary
from ileed.integrations.hub import card
from ileed.report import people_table

OPTIONS = (
    "--folds",
    "5",
    "--restarts",
    "2",
    "--steps",
    "150",
    "--policy",
    "CategoricalMLP(hidden=(4,))",
    "--expertise",
    "Constant()",
)


@pytest.fixture(scope="module")
def data():
    return simulated(habitual, people=4, episodes=10)


@pytest.fixture(scope="module")
def fitted(data):
    """Too few steps: in sample, the fit orders people otherwise than policies that have not seen their episodes."""
    method = ileed.Ileed(
        policy=ileed.CategoricalMLP(hidden=(4,)), restarts=2, steps=150, folds=5, expertise=ileed.Constant()
    )
    return method.fit(data, seed=0, device="cpu", check_width=False)


@pytest.fixture(scope="module")
def order(fitted):
    found = fitted.expertise.table()["demonstrator"].to_pylist()
    own = fitted.expertise.by_demonstrator()
    assert found != sorted(own, key=own.get, reverse=True)  # or the tests below would show nothing
    return found


def named_in(text: str) -> list[str]:
    return re.findall(r"person \d", text)


def test_tables_of_either_scale_have_the_order_of_the_ranking(fitted, order):
    assert fitted.expertise.table(relative=False)["demonstrator"].to_pylist() == order
    assert [name for name, _ in fitted.expertise.ranking()] == order


def test_the_ranking_falls(fitted):
    assert (np.diff([value for _, value in fitted.expertise.ranking()]) <= 1e-3).all()


def test_the_terminal_has_the_order_of_the_table_and_of_the_report(fitted, order, tmp_path):
    console = Console(width=200, record=True)
    console.print(ranking(fitted))
    assert named_in(console.export_text()) == order
    fitted.save(tmp_path / "run")
    page = ileed.report(tmp_path / "run").read_text()
    assert named_in(" ".join(re.findall(r"<th scope=row[^>]*>.*?</th>", page)))[:4] == order


def test_the_column_by_which_the_terminal_orders_is_shown_falling(fitted):
    console = Console(width=200, record=True)
    console.print(ranking(fitted))
    shown = [
        float(re.search(r"person \d\D+([\d.]+)", line)[1])
        for line in console.export_text().splitlines()
        if "person" in line
    ]
    assert shown == sorted(shown, reverse=True)


def test_files_cards_and_json_have_the_same_order(fitted, order, tmp_path):
    fitted.save(tmp_path / "run")
    people_table(tmp_path / "run", tmp_path / "people.parquet")
    assert pq.read_table(tmp_path / "people.parquet")["demonstrator"].to_pylist() == order
    assert list(summary(fitted)["expertise"]) == order
    assert named_in(card(fitted, repo_id="someone/policy"))[:4] == order


def test_the_command_prints_one_order(data, order, tmp_path, capsys):
    ileed.write(data, tmp_path / "data.parquet")
    words = ["fit", str(tmp_path / "data.parquet"), "--out", str(tmp_path / "run"), "--device", "cpu", *OPTIONS]
    assert run(words) == 0
    assert named_in(capsys.readouterr().out)[:4] == order
    assert run([*words, "--overwrite", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["expertise"]) == [row["demonstrator"] for row in told["table"]] == order
