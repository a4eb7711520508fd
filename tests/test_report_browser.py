"""Report in a real browser: it asks for nothing, its tables are sorted by key and click, and it can be read by all."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, browser

import ileed
from ileed.report import compare_runs
from ileed.report.page import HEAT, style

needs_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: run `make browser`")
AXE = Path(os.environ.get("AXE_CORE", ".cache/axe/node_modules/axe-core/axe.min.js"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page with the data, one without them, and a comparison."""
    folder = tmp_path_factory.mktemp("pages")
    generator = np.random.default_rng(0)
    who = np.repeat(np.arange(4), 120)
    place = generator.integers(8, size=len(who))
    right = generator.random(len(who)) < (who + 1) / 4
    data = ileed.Demonstrations(
        observations=np.eye(8)[place],
        actions=np.where(right, place % 3, generator.integers(3, size=len(who))),
        demonstrator=who,
        episode=np.arange(len(who)) // 30,
        names=("ann_lee", "bob", "<b>cat</b>", "dan"),
    )
    for seed in (0, 1):
        method = ileed.Ileed(restarts=3, steps=30, folds=2)
        method.fit(data, seed=seed, device="cpu", check_width=False).save(folder / f"run{seed}")
    full = ileed.report(folder / "run0", data=data, out=folder / "full.html", truth={"bob": 0.5, "dan": 0.9})
    plain = ileed.report(folder / "run0", out=folder / "plain.html")
    both = compare_runs(folder / "run0", folder / "run1", data=data, out=folder / "both.html")
    return {"full": full, "plain": plain, "both": both}


@pytest.fixture(scope="module")
def chromium():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: run `make browser`")
    with browser() as opened:
        yield opened


LOOKS = {"desktop": {}, "phone": {"width": 390, "height": 844}, "dark": {"dark": True}, "paper": {"paper": True}}


@needs_a_browser
@pytest.mark.campaign
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["full", "plain", "both"])
def test_a_page_logs_nothing_requests_nothing_and_fits_its_screen(pages, chromium, name, look):
    chromium.console.clear()
    chromium.requests.clear()
    chromium.open(pages[name], **LOOKS[look])
    assert chromium.console == []
    assert chromium.requests == [pages[name].resolve().as_uri()]
    assert chromium.value("document.documentElement.scrollWidth <= innerWidth")
    assert not re.search(r"\b(undefined|NaN|null|Infinity)\b", chromium.value("document.body.innerText"))


@needs_a_browser
@pytest.mark.campaign
def test_numbers_in_tiles_stay_on_one_line(pages, chromium):
    for look in LOOKS.values():
        chromium.open(pages["full"], **look)
        heights = "[...document.querySelectorAll('.tiles dd')].map(e => e.getClientRects().length * e.offsetHeight)"
        assert max(chromium.value(heights)) < 40


def column(chromium, title):
    script = """(title => {
      const table = document.querySelector('#ranking table');
      const place = [...table.tHead.rows[0].cells].findIndex(c => c.textContent.trim() === title);
      return [...table.tBodies[0].rows].map(r => r.cells[place].dataset.v ?? r.cells[place].textContent);
    })"""
    return chromium.value(f"{script}({title!r})")


@needs_a_browser
@pytest.mark.campaign
def test_a_table_is_sorted_by_a_click_and_by_a_key(pages, chromium):
    chromium.open(pages["full"])
    button = "[...document.querySelectorAll('#ranking th button')].find(b => b.textContent.trim() === '{}')"
    chromium.value(f"{button.format('expertise')}.click()")
    falling = [float(value) for value in column(chromium, "expertise")]
    assert falling == sorted(falling, reverse=True)
    chromium.value(f"{button.format('expertise')}.focus()")
    for key in ("Enter", "Space"):
        before = column(chromium, "expertise")
        chromium.press(key)
        assert column(chromium, "expertise") == before[::-1]
    chromium.value(f"{button.format('demonstrator')}.click()")
    names = column(chromium, "demonstrator")
    assert names == sorted(names, key=str.lower)
    assert chromium.value(f"{button.format('demonstrator')}.closest('th').getAttribute('aria-sort')") == "ascending"
    assert chromium.value("document.querySelectorAll('#ranking [aria-sort]').length") == 1


@needs_a_browser
@pytest.mark.campaign
def test_the_keyboard_goes_through_the_page_in_the_order_that_it_is_read(pages, chromium):
    chromium.open(pages["full"])
    tops = []
    for _ in range(40):
        chromium.press("Tab")
        where = "(e => [e.tagName, e.getBoundingClientRect().top + scrollY, e.textContent.slice(0, 20)])"
        tops.append(tuple(chromium.value(f"{where}(document.activeElement)")))
    assert tops[0][2] == "Skip to the results"
    reached = [top for tag, top, _ in tops if tag != "BODY"]
    assert all(
        after >= before - 60 for before, after in pairwise(reached)
    )  # within a row, and a table before its buttons
    assert {"A", "BUTTON", "DIV"} <= {tag for tag, _, _ in tops}


@needs_a_browser
@pytest.mark.campaign
@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: `make axe` fetches it from npm")
@pytest.mark.parametrize("look", ["desktop", "phone", "dark"])
@pytest.mark.parametrize("name", ["full", "plain", "both"])
def test_axe_finds_nothing_against_the_page(pages, chromium, name, look, tmp_path):
    chromium.open(pages[name], **LOOKS[look])
    chromium.value(AXE.read_text(encoding="utf-8") + ";0")
    found = chromium.value(
        "axe.run().then(r => r.violations.map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 120)]))"
    )
    assert found == []


@needs_a_browser
@pytest.mark.campaign
def test_the_page_is_printed_whole(pages, chromium, tmp_path):
    chromium.open(pages["full"])
    chromium.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert chromium.value("[...document.querySelectorAll('details')].every(d => d.open)")


def luminance(colour):
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_what_they_stand_on(scheme):
    """WCAG 2.1: 4.5 for text, 3 for marks."""
    blocks = re.findall(r":root \{([^}]*)\}", style())
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", blocks[scheme]))
    for back in ("back", "card"):
        for text in ("ink", "muted", "link", "two"):
            assert contrast(colours[text], colours[back]) >= 4.5, (text, back)
    for mark in ("one", "two"):
        assert contrast(colours[mark], colours["back"]) >= 3
    assert contrast(colours["ink"], colours["code"]) >= 4.5


def test_numbers_in_a_map_stand_out_from_its_shades_which_grow_darker():
    inks = {level: "#ffffff" if level > 5 else "#1f2933" for level in range(len(HEAT))}
    assert all(contrast(inks[level], shade) >= 4.5 for level, shade in enumerate(HEAT))
    assert all(luminance(one) > luminance(other) for one, other in pairwise(HEAT))


def deficient(colour, matrix):
    """A colour as seen without one kind of cone (Machado et al., 2009)."""
    channels = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return np.clip(matrix @ linear, 0, 1)


PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)


@pytest.mark.parametrize("matrix", [np.eye(3), PROTANOPIA, DEUTERANOPIA], ids=["all cones", "no red", "no green"])
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_the_two_colours_of_marks_differ_for_the_colour_blind(scheme, matrix):
    blocks = re.findall(r":root \{([^}]*)\}", style())
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", blocks[scheme]))
    one, two = (deficient(colours[name], matrix) for name in ("one", "two"))
    assert np.abs(one - two).max() > 0.2
