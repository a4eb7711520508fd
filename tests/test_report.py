"""Report: one page that needs nothing but a browser, says who is good, and holds whatever names the data have."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
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
from ileed.fitted import Expertise, ExpertiseSummary
from ileed.report import figures, report, sections
from ileed.report.sections import Content
from ileed.runs import PAGE_MARK

pytest.importorskip("altair", reason="a report needs the extra 'report'")
pytest.importorskip("vl_convert", reason="a report needs the extra 'report'")

ODD_NAMES = ("<b>ann</b>", "</style><script>alert(1)</script>", 'bob & "co" \'s', "日本\x00\ud800人")
LIMIT = 1_000_000


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
        self.text += data

    def count(self, tag):
        return sum(tag == found for found, _ in self.elements)

    @property
    def attributes(self):
        return [(name, value or "") for _, attributes in self.elements for name, value in attributes.items()]

    @property
    def charts(self):
        """What the charts show in words, wide ones alone."""
        return [values["aria-label"] for tag, values in self.elements if tag == "svg" and values["class"] == "wide"]


def lattice(names, *, steps=40, places=8, seed=0, **columns):
    """Everybody's walk over a few places, each person erring less than the one before."""
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
def eventful(fitted, tmp_path_factory):
    """The page of a fit with all that can happen to one, and all that can be told beside it.

    Two people were not everywhere, restart `lost` was lost, and the order is not that of known skill.
    """
    visits, costs = fitted.expertise.summary.visits.clone(), fitted.restarts.nats_per_action.copy()
    visits[1, 2] = visits[2, 5] = 0
    costs[lost(fitted)] = np.inf
    found = finding(fitted, by_demonstrator=np.array([0.9, 0.2, 0.4]), visits=visits)
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


def test_the_page_fetches_and_runs_nothing(page):
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object", "embed", "base", "use"}
    fetching = {"src", "srcset", "href", "xlink:href", "action", "data", "poster", "background"}
    assert [item for item in page.attributes if item[0] in fetching or item[0].startswith("on")] == []
    addresses = [value for name, value in page.attributes if "//" in value and not name.startswith("xmlns")]
    assert addresses == []
    assert re.findall(r"@import|url\((?!#)|javascript:", page.html) == []


def test_the_page_says_who_how_many_and_how_it_ended(page, fitted):
    for told in ("ann", "bob", "cat", "120", fitted.outcome.value.replace("`", ""), f"{fitted.nats_per_action:.3f}"):
        assert told in page.text
    assert Content.of(fitted, {}, {}).verdict in page.text
    assert len(page.charts) == 5


def test_the_report_stands_in_the_run_directory_and_leaves_the_run_loadable(eventful):
    assert eventful.name == "report.html"
    assert ileed.load(eventful.parent).expertise.names == ("ann", "bob", "cat")


def test_the_same_run_gives_the_same_page(page, run, tmp_path):
    assert report(run, out=tmp_path / "new" / "again.html").read_text(encoding="utf-8") == page.html


def test_charts_in_one_page_do_not_share_what_they_refer_to(page):
    ids = Counter(value for name, value in page.attributes if name == "id")
    used = {name for _, value in page.attributes for name in re.findall(r"url\(#([^)]*)\)", value)}
    assert used
    assert set(ids.values()) == {1}
    assert used <= set(ids)


def test_names_are_text_whatever_they_hold(tmp_path):
    scores = {"<i>x</i>": SimpleNamespace(mean=1.0, interval=(0.5, 1.5))}
    page = page_of(fit(ODD_NAMES, restarts=1), tmp_path, scores=scores, title="<u>")
    assert (page.count("b"), page.count("script"), page.count("i"), page.count("u")) == (1, 0, 0, 0)  # one b of our own
    for told in (*ODD_NAMES[:3], "日本\ufffd\ufffd人", "<i>x</i>"):
        assert told in page.text


def test_names_that_print_alike_stay_two_people(tmp_path):
    page = page_of(fit(("ann\x01", "ann\x02", "ann\ufffd (2)"), restarts=1), tmp_path)
    rows = re.findall(r"<th scope=row>([^<]*)</th>", page.html)
    assert len(set(rows)) == 3


def test_a_thousand_people_with_long_names_fit_on_a_page(tmp_path):
    names = tuple(f"{k:04d} {'名' * 20}" for k in range(1000))
    data = lattice(names, steps=8, places=70)
    fitted = ileed.Ileed(restarts=45, steps=2).fit(data, seed=0, device="cpu")
    fitted.save(tmp_path / "run")
    path = report(tmp_path / "run", truth=dict.fromkeys(names, 0.5))
    page = Page(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < LIMIT
    assert "950 demonstrators between them are left out" in page.text
    order = [name for name, _ in fitted.expertise.ranking()]
    assert [name in page.text for name in order] == [True] * 25 + [False] * 950 + [True] * 25


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


@pytest.mark.parametrize("library", ["altair", "vl_convert"])
def test_without_the_extra_one_sentence_says_how_to_get_it(run, tmp_path, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    for ask in (lambda: report(run, out=tmp_path / "x.html"), lambda: figures(run, tmp_path)):
        with pytest.raises(IleedError, match=rf"needs the package '{library}'.*pip install 'ileed\[report\]'"):
            ask()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("expertise", "verdict"),
    [
        ([0.9, 0.1, 0.05, 0.02], "ann follows the learned policy far more closely than the three others."),
        ([0.02, 0.9, 0.85, 0.8], "ann follows the learned policy far less closely than the three others."),
        ([0.01, 0.9, 0.85, 0.05], "bob and cat follow the learned policy far more closely than the two others."),
        ([0.9, 0.5, 0.5, 0.5], "ann follows the learned policy more closely than the three others."),
        ([0.09, 0.088, 0.085, 0.083], "All four demonstrators follow the learned policy about equally closely."),
        (
            [0.2, 0.4, 0.6, 0.8],
            "from dan, who follows the learned policy most closely, to ann, whose expertise is 25 %",
        ),
        ([0.9, np.nan, 0.1, 0.1], "ann follows the learned policy far more closely than the two others."),
    ],
)
def test_the_verdict_compares_and_does_not_depend_on_the_common_level(expertise, verdict):
    fitted = fit(("ann", "bob", "cat", "dan"), restarts=1)
    for level in (1.0, 0.3):
        assert verdict in Content.of(finding(fitted, by_demonstrator=np.array(expertise) * level), {}, {}).verdict


def test_every_cell_where_a_person_never_was_is_told_from_those_seen(eventful_page, fitted):
    cells = re.findall(r", state \d+: [\d.]+, (never there|steps: [\d,]+)<", eventful_page.html)
    assert Counter(cells)["never there"] == 2
    assert len(cells) == fitted.expertise.summary.visits.numel()


def test_behaviour_cloning_has_no_ranking_and_says_so(tmp_path):
    page = page_of(fit(expertise=ileed.Perfect()), tmp_path)
    assert "so there is no ranking" in page.text
    assert [chart.split()[0] for chart in page.charts] == ["Cost", "Learning"]


def test_expertise_that_is_the_same_everywhere_has_no_map(tmp_path):
    page = page_of(fit(expertise=ileed.Constant(), restarts=1), tmp_path)
    assert "the same in all states, by assumption" in page.text
    assert not any("Heat map" in chart for chart in page.charts)


def test_named_skills_are_mapped_with_their_values(tmp_path):
    fitted = fit(expertise=ileed.Skills("phase"), restarts=1)
    page = page_of(fitted, tmp_path)
    for name, by_skill in fitted.expertise.by_skill().items():
        for skill, value in by_skill.items():
            assert f"{name}, {skill}: expertise {value:.2f}<" in page.html


def test_observations_that_never_repeat_have_no_map(tmp_path):
    generator = np.random.default_rng(0)
    data = ileed.Demonstrations(
        observations=generator.normal(size=(30, 2)),
        actions=generator.integers(3, size=30),
        demonstrator=np.repeat(["ann", "bob"], 15),
        episode=np.repeat([0, 1], 15),
    )
    page = page_of(ileed.Ileed(restarts=1, steps=3).fit(data, seed=0, device="cpu"), tmp_path)
    assert "No observation occurs twice" in page.text
    assert "There was one restart only" in page.text


def test_held_out_curves_are_drawn_where_there_are_any(page, tmp_path):
    assert "kept, on held-out episodes" in page_of(fit(held_out=0.5, restarts=1), tmp_path).text
    assert "kept, on held-out episodes" not in page.text


def test_a_restart_that_was_lost_is_counted_and_not_drawn(eventful_page, fitted):
    assert "One of the restarts became non-finite" in eventful_page.text
    drawn = re.findall(r"<title>restart (\d+): [\d.]+ nats per action</title>", eventful_page.html)
    assert set(drawn) == {"1", "2", "3"} - {f"{lost(fitted) + 1}"}


def test_known_skill_is_compared_in_order(eventful_page, page):
    assert "puts 1 of 3 pairs of different skill in the wrong order" in eventful_page.text
    assert "known skill 0.500" in eventful_page.html
    assert "known skill" not in page.text


@pytest.mark.parametrize("truth", [{"eve": 0.5}, {"ann": 1.5}, {"ann": float("nan")}])
def test_known_skill_of_strangers_or_out_of_range_is_refused(run, tmp_path, truth):
    with pytest.raises(SettingsError, match=r"known skill|not in this run"):
        report(run, out=tmp_path / "x.html", truth=truth)
    assert list(tmp_path.iterdir()) == []


def test_scores_are_shown_with_their_interval_where_they_have_one(eventful_page, run, tmp_path):
    assert "-0.51 (-0.62 to -0.43)" in eventful_page.text
    assert "0.20 (one episode)" in eventful_page.text
    with pytest.raises(SettingsError, match="finite"):
        report(run, out=tmp_path / "x.html", scores={"lost": SimpleNamespace(mean=np.nan, interval=(0.0, 1.0))})


def test_nobody_learns_where_its_maker_keeps_files(eventful_page, eventful):
    assert "ileed fit data.hdf5 --out=x list.txt 'y.hdf5' runs/square" in eventful_page.text
    for private in (str(eventful.parent.parent), "/home", "Users"):
        assert private not in eventful_page.html


def test_the_call_that_is_printed_makes_the_same_method(page, fitted):
    call = re.search(r"(ileed\.Ileed\(.*\))\.fit\(demonstrations, seed=0\)", page.text)
    assert eval(call[1], {"ileed": ileed}) == fitted.method


def test_every_sentence_of_the_text_is_said_somewhere():
    folder = Path(sections.__file__).parent
    said = re.findall(r'_say\("(\w+)"', (folder / "sections.py").read_text())
    assert set(said) == set(tomllib.loads((folder / "text.toml").read_text(encoding="utf-8")))


def test_figures_are_files_of_their_own(run, tmp_path):
    scores = {"cloning": SimpleNamespace(mean=0.5, interval=(0.4, 0.6))}
    drawn = figures(run, tmp_path / "svg", scores=scores)
    assert {name: path.name for name, path in drawn.items()} == {
        name: f"{name}.svg" for name in ("ranking", "intervals", "scores", "restarts", "learning", "states")
    }
    for path in drawn.values():
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    for path in figures(run, tmp_path / "png", format="png").values():
        assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SettingsError, match="'svg' or 'png'"):
        figures(run, tmp_path, format="gif")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 420])
def test_a_browser_without_network_shows_every_chart(eventful, tmp_path, width):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine, so the page cannot be looked at")
    picture = tmp_path / "page.png"
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    view = [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2500", "--virtual-time-budget=2000"]
    asked = ["--enable-logging=stderr", "--dump-dom", f"--screenshot={picture}"]
    shown = subprocess.run(
        [browser, *quiet, *view, *asked, eventful.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    page = Page(shown.stdout)
    assert len(page.charts) == 5
    assert page.count("svg") == 2 * len(page.charts)
    assert page.count("path") > 30
    assert not re.search(r"\b(Uncaught|undefined|NaN|null|Infinity)\b", page.text, re.IGNORECASE)
    assert "CONSOLE" not in shown.stderr  # nothing was refused by the page's own policy, nothing failed to load
    assert picture.stat().st_size > 30_000  # a blank page of this size takes less than 15,000 bytes
