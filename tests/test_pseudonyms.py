"""Pseudonyms: no name is in any output, and nothing else changes."""

import json
from pathlib import Path

import pytest

import ileed
from ileed.cli import run
from ileed.data.source import pseudonyms

NAMES = ("zoe quill", "adam brook", "mia stone")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    shipped = ileed.shipped()
    named = shipped.by(*shipped.names[:3])
    return ileed.Demonstrations(
        observations=named.observations,
        actions=named.actions,
        demonstrator=named.demonstrator,
        episode=named.episode,
        names=NAMES,
        action_count=named.action_count,
    )


@pytest.fixture(scope="module")
def file(data, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "demonstrations.parquet"
    ileed.write_parquet(data, path)
    return path


QUICK = ["--restarts", "2", "--steps", "5", "--policy", "CategoricalMLP()"]


def names_in(folder: Path) -> list[str]:
    """Which of the names stand in any file of a folder."""
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return [name for name in NAMES if name.encode() in content]


def test_pseudonyms_are_distinct_stable_and_not_in_the_order_of_names_for_every_key():
    orders = set()
    for key in "abcdefgh":
        found = pseudonyms(NAMES, key=key)
        assert found == pseudonyms(tuple(reversed(NAMES)), key=key)
        assert sorted(found.values()) == ["person 1", "person 2", "person 3"]
        orders.add(tuple(found[name] for name in sorted(NAMES)))
    assert len(orders) > 1


def test_a_fit_to_anonymised_data_is_the_same_under_other_names(data):
    method = ileed.Ileed(policy=ileed.CategoricalMLP(), restarts=2, steps=5)
    named, hidden = method.fit(data, seed=0), method.fit(data.anonymise(), seed=0)
    key = data.pseudonyms()
    expected = {key[name]: value for name, value in named.expertise.by_demonstrator().items()}
    assert hidden.expertise.by_demonstrator() == expected
    assert hidden.nats_per_action == named.nats_per_action


def test_a_run_of_an_anonymised_fit_holds_no_name(file, tmp_path, capsys):
    assert run(["fit", str(file), "--out", str(tmp_path / "run"), "--anonymise", *QUICK]) == 0
    assert names_in(tmp_path) == []
    assert not any(name in capsys.readouterr().out for name in NAMES)


def test_a_report_shows_no_name_where_that_is_asked_and_the_pseudonyms_of_the_data(data, file, tmp_path, capsys):
    assert run(["fit", str(file), "--out", str(tmp_path / "run"), *QUICK]) == 0
    pages = tmp_path / "pages"
    pages.mkdir()
    assert run(["report", str(tmp_path / "run"), "--out", str(pages / "page.html"), "--figures", str(pages)]) == 0
    assert names_in(pages) == list(NAMES)
    words = ["report", str(tmp_path / "run"), "--out", str(pages / "page.html"), "--figures", str(pages), "--anonymise"]
    assert run(words) == 0
    assert names_in(pages) == []
    ranked = [name for name, _ in ileed.load(tmp_path / "run").expertise.ranking()]
    text = (pages / "page.html").read_text()
    positions = [text.index(f">{data.pseudonyms()[name]}</th>") for name in ranked]
    assert positions == sorted(positions)


def test_known_skill_follows_its_person_behind_the_pseudonym(file, data, tmp_path):
    assert run(["fit", str(file), "--out", str(tmp_path / "run"), *QUICK]) == 0
    page = ileed.report(tmp_path / "run", truth={"mia stone": 0.25}, anonymise=True).read_text()
    assert f"{data.pseudonyms()['mia stone']}</th>" in page
    row = page.split(f"{data.pseudonyms()['mia stone']}</th>")[1].split("</tr>")[0]
    assert "0.25" in row


def test_inspect_shows_pseudonyms(file, data, capsys):
    assert run(["inspect", str(file), "--anonymise", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["demonstrators"]) == set(data.pseudonyms().values())
