"""Report: one page that needs nothing but a browser, says who is good, and holds whatever names the data have."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import ileed
from ileed.errors import IleedError, RunError, SettingsError
from ileed.methods import Expertise, ExpertiseSummary
from ileed.report import figures, report, sections
from ileed.report import page as html_page
from ileed.report.page import Column, Table, words
from ileed.report.sections import Content
from ileed.runs import PAGE_MARK

ODD_NAMES = ("<b>ann</b>", "</style><script>alert(1)</script>", 'bob & "co" \'s', "日本\x01\x1b人")
LIMIT = 5_000_000


class Page(HTMLParser):
    """A page as a browser takes it: its elements, their attributes, and the text between them."""

    def __init__(self, html):
        super().__init__()
        self.html, self.elements, self.text = html, [], ""
        self.feed(html)
        self.close()

    @classmethod
    def of(cls, run, **options):
        return cls(report(run, **options).read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data.replace("\N{NO-BREAK SPACE}", " ")

    def count(self, tag):
        return sum(tag == found for found, _ in self.elements)

    @property
    def attributes(self):
        return [(name, value or "") for _, attributes in self.elements for name, value in attributes.items()]

    @property
    def charts(self):
        """What the charts show in words."""
        return [values["aria-label"] for tag, values in self.elements if tag == "svg" and "aria-label" in values]

    @property
    def sections(self):
        return [values["id"] for tag, values in self.elements if tag == "section"]

    @property
    def tables(self):
        """The rows of every CSV file in the page, by its name."""
        links = {values["download"]: values["href"] for tag, values in self.elements if "download" in values}
        contents = {name: base64.b64decode(link.partition("base64,")[2]).decode() for name, link in links.items()}
        return {name: list(csv.DictReader(io.StringIO(content))) for name, content in contents.items()}


def lattice(names, *, steps=40, places=8, seed=0, **columns):
    """Walks over a few places, each demonstrator erring less than the one before."""
    generator = np.random.default_rng(seed)
    who = np.repeat(np.arange(len(names)), steps)
    place = generator.integers(places, size=len(who))
    right = generator.random(len(who)) < (who + 1) / len(names)
    return ileed.Demonstrations(
        observations=np.eye(places)[place],
        actions=np.where(right, place % 3, generator.integers(3, size=len(who))),
        demonstrator=who,
        episode=who * 2 + (np.arange(len(who)) % steps >= steps // 2),
        names=names,
        skills={"phase": np.array(["reach", "grasp"])[place % 2]},
        **columns,
    )


def fit(names=("ann", "bob", "cat"), **settings):
    return ileed.Ileed(**{"restarts": 3, "steps": 12, "folds": 2} | settings).fit(lattice(names), seed=0, device="cpu")


@pytest.fixture(scope="module")
def fitted():
    return fit()


@pytest.fixture(scope="module")
def run(fitted, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "lattice"
    fitted.save(place)
    return place


@pytest.fixture(scope="module")
def page(run):
    return Page.of(run)


@pytest.fixture(scope="module")
def full_page(run, tmp_path_factory):
    """The page of the run with its data."""
    return Page.of(run, data=lattice(("ann", "bob", "cat")), out=tmp_path_factory.mktemp("pages") / "full.html")


@pytest.fixture(scope="module")
def eventful(fitted, tmp_path_factory):
    """The page of a fit with all options: restart `lost` was lost, and the order is not that of known skill."""
    costs = fitted.restarts.nats_per_action.copy()
    costs[lost(fitted)] = np.inf
    found = finding(fitted, by_demonstrator=np.array([0.9, 0.2, 0.4]))
    run = tmp_path_factory.mktemp("runs") / "eventful"
    replace(found, restarts=replace(found.restarts, nats_per_action=costs)).save(run)
    command = f"ileed fit {run.parent}/data.hdf5 --out=/home/me/runs/x ~/list.txt 'C:\\Users\\me\\y.hdf5' runs/square"
    scores = {
        "cloning": SimpleNamespace(mean=-0.51, interval=(-0.62, -0.43)),
        "one": SimpleNamespace(mean=0.2, interval=(-np.inf, np.inf)),
    }
    return report(run, truth={"ann": 0.9, "bob": 0.5, "cat": 0.1}, scores=scores, command=command)


@pytest.fixture(scope="module")
def eventful_page(eventful):
    return Page(eventful.read_text(encoding="utf-8"))


def lost(fitted):
    return (fitted.restarts.chosen + 1) % 3


def finding(fitted, **summary):
    """A fit whose summary is changed, as if it had found something else."""
    asked = fitted.expertise
    changed = ExpertiseSummary(
        **vars(asked.summary) | {name: torch.as_tensor(value) for name, value in summary.items()}
    )
    expertise = Expertise(fitted.joint, fitted.normaliser, asked.names, asked.skill_names, changed)
    return replace(fitted, expertise=expertise)


def page_of(fitted, tmp_path, **options):
    fitted.save(tmp_path / "run")
    return Page.of(tmp_path / "run", **options)


def test_the_page_fetches_nothing_and_runs_one_script_that_its_policy_names(full_page):
    assert not {tag for tag, _ in full_page.elements} & {"link", "img", "iframe", "object", "embed", "base", "use"}
    fetching = {"src", "srcset", "xlink:href", "action", "data", "poster", "background", "style"}
    assert [item for item in full_page.attributes if item[0] in fetching or item[0].startswith("on")] == []
    links = [value for name, value in full_page.attributes if name == "href"]
    assert all(link.startswith(("#", "data:text/csv;")) for link in links)
    assert re.findall(r"@import|url\(|javascript:|https?://", full_page.html) == []
    (policy,) = (values["content"] for _, values in full_page.elements if values.get("http-equiv"))
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", full_page.html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_the_page_says_who_how_many_and_how_it_ended(page, fitted):
    for told in ("ann", "bob", "cat", "120", f"{fitted.nats_per_action:.3f}"):
        assert told in page.text
    assert fitted.outcome.value.replace("`", "")[1:] in page.text
    assert Content(fitted, {}, {}).verdict in page.text
    assert page.sections == ["next", "quality", "ranking", "kinds", "fit", "settings"]


def test_the_verdict_says_how_sure_it_is(page, fitted):
    assert fitted.expertise.ratings.sentence()[1:] in page.text
    best = fitted.expertise.table().to_pylist()[0]
    assert f"{best['demonstrator']} has {best['expertise']:.2f} ({best['low']:.2f} to {best['high']:.2f})" in page.text


def test_without_the_data_the_page_says_what_is_missing_and_with_them_shows_it(page, full_page):
    assert "ileed report RUN --data DATA" in page.text
    assert "ileed report RUN" not in full_page.text
    added = ["weak", "episodes", "along"]
    assert [name for name in full_page.sections if name not in page.sections] == added


def test_every_table_is_whole_in_a_file_inside_the_page(full_page, fitted):
    assert set(full_page.tables) == {
        "ranking.csv",
        "demonstrators-by-cluster.csv",
        "state-clusters.csv",
        "episodes.csv",
    }
    assert len(full_page.tables["episodes.csv"]) == 6
    for row, rated in zip(full_page.tables["ranking.csv"], fitted.expertise.table().to_pylist(), strict=True):
        assert row["demonstrator"] == rated["demonstrator"]
        for name in ("expertise", "low", "high", "steps", "episodes", "rank_low"):
            assert float(row[name]) == pytest.approx(rated[name], rel=1e-5)


def test_what_a_spreadsheet_would_run_is_quoted_in_a_file(tmp_path):
    page = page_of(fit(("=cmd()", "+1", "ann"), restarts=1), tmp_path)
    assert {row["demonstrator"] for row in page.tables["ranking.csv"]} == {"'=cmd()", "'+1", "ann"}


def test_a_file_that_would_not_fit_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr(html_page, "_CSV_BYTES", 50)
    table = Table("x", "x", [Column("name", words)], ["y" * 9] * 9)
    assert table.csv()[1] == 3
    assert "6 do not fit in the page" in table.html()


def test_the_report_stands_in_the_run_directory_and_leaves_the_run_loadable(eventful):
    assert eventful.name == "report.html"
    assert ileed.load(eventful.parent).expertise.names == ("ann", "bob", "cat")


def test_the_same_run_gives_the_same_page(page, run, tmp_path):
    assert report(run, out=tmp_path / "new" / "again.html").read_text(encoding="utf-8") == page.html


def test_no_two_elements_share_an_id(full_page):
    ids = Counter(value for name, value in full_page.attributes if name == "id")
    assert set(ids.values()) == {1}


def test_names_are_text_whatever_they_hold(tmp_path):
    scores = {"<i>x</i>": SimpleNamespace(mean=1.0, interval=(0.5, 1.5))}
    page = page_of(fit(ODD_NAMES, restarts=1), tmp_path, scores=scores, title="<u>")
    assert (page.count("script"), page.count("i"), page.count("u")) == (1, 0, 0)
    for told in (*ODD_NAMES[:3], "日本\ufffd\ufffd人", "<i>x</i>"):
        assert told in page.text
    assert len(page.tables["ranking.csv"]) == len(ODD_NAMES)


def test_names_that_print_alike_stay_two_people(tmp_path):
    page = page_of(fit(("ann\x01", "ann\x02", "ann\ufffd (2)"), restarts=1), tmp_path)
    assert len({row["demonstrator"] for row in page.tables["ranking.csv"]}) == 3


def test_of_a_thousand_people_the_page_shows_the_ends_and_the_most_uncertain_and_its_file_all(tmp_path):
    names = tuple(f"{k:04d} {'名' * 20}" for k in range(1000))
    data = lattice(names, steps=8, places=70)
    fitted = ileed.Ileed(restarts=45, steps=2).fit(data, seed=0, device="cpu")
    fitted.save(tmp_path / "run")
    path = report(tmp_path / "run", truth=dict.fromkeys(names, 0.5), data=data)
    page = Page(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < LIMIT
    assert "940 demonstrators are left out here" in page.text
    order = [row["demonstrator"] for row in page.tables["ranking.csv"]]
    assert sorted(order) == sorted(names)
    (ranking,) = re.findall(r'<section id="ranking".*?</section>', page.html, re.DOTALL)
    shown = [name in ranking for name in order]
    assert (all(shown[:25]), all(shown[-25:]), sum(shown)) == (True, True, 60)


def test_a_failed_write_leaves_the_report_before_it_and_nothing_else(run, tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    before = PAGE_MARK.decode()
    target.write_text(before)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left"):
        report(run, out=target)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.html", before)]


def test_a_picture_without_the_extra_is_refused_in_one_sentence(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert figures(run, tmp_path / "svg")
    with pytest.raises(IleedError, match=r"needs the package 'vl_convert'.*pip install 'ileed\[report\]'"):
        figures(run, tmp_path / "png", format="png")
    assert not (tmp_path / "png").exists()


@pytest.mark.parametrize(
    ("expertise", "verdict"),
    [
        ([0.9, 0.1, 0.05, 0.02], "ann follows the learned policy most closely and dan least closely, with 2%"),
        ([0.02, 0.9, 0.85, 0.8], "bob follows the learned policy most closely and ann least closely, with 2%"),
        ([0.2, 0.4, 0.6, 0.8], "dan follows the learned policy most closely and ann least closely, with 25%"),
        ([0.09, 0.088, 0.085, 0.083], "All 4 demonstrators follow the learned policy about equally closely."),
        ([0.9, np.nan, 0.18, 0.3], "ann follows the learned policy most closely and cat least closely, with 20%"),
    ],
)
def test_the_verdict_compares_and_does_not_depend_on_the_common_level(expertise, verdict):
    fitted = fit(("ann", "bob", "cat", "dan"), restarts=1)
    for level in (1.0, 0.3):
        assert verdict in Content(finding(fitted, by_demonstrator=np.array(expertise) * level), {}, {}).verdict


def test_behaviour_cloning_has_no_ranking_and_says_so(tmp_path):
    page = page_of(fit(expertise=ileed.Perfect()), tmp_path)
    assert "so there is no ranking" in page.text
    assert [chart.split()[0] for chart in page.charts] == ["Learning"]


def test_expertise_that_is_the_same_everywhere_has_no_map(tmp_path):
    page = page_of(fit(expertise=ileed.Constant(), restarts=1), tmp_path)
    assert "the same in all states, by assumption" in page.text
    assert set(page.tables) == {"ranking.csv"}


def test_named_skills_are_mapped_with_their_values(tmp_path):
    fitted = fit(expertise=ileed.Skills("phase"), restarts=1)
    page = page_of(fitted, tmp_path)
    rows = {row["demonstrator"]: row for row in page.tables["skills.csv"]}
    for name, by_skill in fitted.expertise.by_skill().items():
        assert {skill: float(rows[name][skill]) for skill in by_skill} == pytest.approx(by_skill, rel=1e-4)


def test_observations_that_never_repeat_are_mapped_by_kind_of_state_where_the_data_are_given(tmp_path):
    generator = np.random.default_rng(0)
    data = ileed.Demonstrations(
        observations=generator.normal(size=(300, 2)),
        actions=generator.normal(size=(300, 2)),
        demonstrator=np.repeat(["ann", "bob"], 150),
        episode=np.repeat(np.arange(6), 50),
    )
    fitted = ileed.Ileed(restarts=1, steps=3).fit(data, seed=0, device="cpu")
    page = page_of(fitted, tmp_path)
    assert "There was one restart only" in page.text
    assert "need the data" in page.text
    page = Page.of(tmp_path / "run", data=data)
    kinds = page.tables["state-clusters.csv"]
    assert len(kinds) == 6
    assert sum(float(row["share_of_steps"]) for row in kinds) == pytest.approx(1, abs=1e-4)
    assert sum("observation[" in row["description"] for row in kinds) >= 5  # one of the six may lie in the middle
    assert {row["demonstrator"] for row in page.tables["demonstrators-by-cluster.csv"]} == {"ann", "bob"}


def test_held_out_curves_are_drawn_where_there_are_any(page, tmp_path):
    assert "kept, on held-out episodes" in page_of(fit(held_out=0.5, restarts=1), tmp_path).text
    assert "kept, on held-out episodes" not in page.text


def test_a_restart_that_was_lost_is_counted_and_not_drawn(eventful_page, page):
    assert "1 restart became non-finite" in eventful_page.text
    assert "became non-finite" not in page.text
    assert eventful_page.html.count('<polyline class="other"') == 1
    assert page.html.count('<polyline class="other"') == 2


def test_known_skill_is_compared_in_order(eventful_page, page):
    assert "puts 1 of 3 pairs of different skill in the wrong order" in eventful_page.text
    assert {row["known_skill"] for row in eventful_page.tables["ranking.csv"]} == {"0.9", "0.5", "0.1"}
    assert "known skill" not in page.text


@pytest.mark.parametrize("truth", [{"eve": 0.5}, {"ann": 1.5}, {"ann": float("nan")}])
def test_known_skill_of_strangers_or_out_of_range_is_refused(run, tmp_path, truth):
    with pytest.raises(SettingsError, match=r"known skill|not in this run"):
        report(run, out=tmp_path / "x.html", truth=truth)
    assert list(tmp_path.iterdir()) == []


def test_scores_are_shown_with_their_interval_where_they_have_one(eventful_page, run, tmp_path):
    one, other = eventful_page.tables["rewards.csv"]
    assert one == {"policy": "cloning", "mean": "-0.51", "low": "-0.62", "high": "-0.43"}
    assert other == {"policy": "one", "mean": "0.2", "low": "", "high": ""}
    with pytest.raises(SettingsError, match="finite"):
        report(run, out=tmp_path / "x.html", scores={"lost": SimpleNamespace(mean=np.nan, interval=(0.0, 1.0))})


def test_a_report_has_no_paths_of_its_maker(eventful_page, eventful):
    assert "ileed fit data.hdf5 --out=x list.txt 'y.hdf5' runs/square" in eventful_page.text
    for private in (str(eventful.parent.parent), "/home", "Users"):
        assert private not in eventful_page.html


def test_the_call_that_is_printed_makes_the_same_method(page, fitted):
    call = re.search(r"(ileed\.Ileed\(.*\))\.fit\(demonstrations, seed=0\)", page.text)
    assert eval(call[1], {"ileed": ileed}) == fitted.method


def test_every_sentence_of_the_text_is_said_somewhere():
    folder = Path(sections.__file__).parent
    said = [re.findall(r'"(\w+)"', path.read_text()) for path in folder.glob("*.py")]
    known = tomllib.loads((folder / "text.toml").read_text(encoding="utf-8"))
    assert set(known) <= {name for names in said for name in names}
    asked = [re.findall(r'say\(\s*"(\w+)"', path.read_text()) for path in folder.glob("*.py")]
    assert {name for names in asked for name in names} <= set(known)


def test_figures_are_files_of_their_own(run, tmp_path):
    scores = {"cloning": SimpleNamespace(mean=0.5, interval=(0.4, 0.6))}
    drawn = figures(run, tmp_path / "svg", scores=scores)
    assert {name: path.name for name, path in drawn.items()} == {
        name: f"{name}.svg" for name in ("ranking", "scores", "learning")
    }
    for path in drawn.values():
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    pytest.importorskip("vl_convert", reason="pictures need the extra 'report'")
    for path in figures(run, tmp_path / "png", format="png").values():
        assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SettingsError, match="'svg' or 'png'"):
        figures(run, tmp_path, format="gif")


def test_the_report_says_what_the_model_learned_and_which_model_was_preferred(tmp_path):
    from test_slips import habitual, method
    from test_third_party import simulated

    data = simulated(habitual, people=4, episodes=20)
    method("auto", steps=200, folds=2).fit(data, seed=0, device="cpu").save(tmp_path / "run")
    page = ileed.report(tmp_path / "run").read_text()
    assert 'id="learned"' in page
    assert "(preferred)" in page
    assert 'download="learned.csv"' in page


def test_the_report_says_nothing_of_a_model_that_has_nothing_to_learn(tmp_path):
    from test_slips import habitual, method
    from test_third_party import simulated

    data = simulated(habitual, people=4, episodes=5)
    method(ileed.UniformMixture(), steps=20).fit(data, seed=0, device="cpu").save(tmp_path / "run")
    assert 'id="learned"' not in ileed.report(tmp_path / "run").read_text()
