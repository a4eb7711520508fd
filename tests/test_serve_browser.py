"""The live page in a real browser: play, mark by key, save, reload, two windows, hostile names."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM

import ileed
from ileed.serve import Destination, Marks, Server, Session

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is absent: pip install 'ileed[dev]'")
pytest.importorskip("uvicorn", reason="uvicorn is absent: pip install 'ileed[serve]'")

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: run `make browser`"),
]
AXE = Path(os.environ.get("AXE_CORE", ".cache/axe/node_modules/axe-core/axe.min.js"))
NAMES = (
    "<script>document.title='owned'</script>",
    "\"'><img src=x onerror=document.title='owned'>",
    "a\u202eb",
    "x" * 900,
)
LOOKS = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
}


def people(images=False):
    """Four people with hostile names, three episodes of 12 steps each, called by hostile keys."""
    random = np.random.default_rng(0)
    who = np.repeat(np.arange(4), 36)
    seen = random.normal(size=(len(who), 3)).astype(np.float32)
    right = random.random(len(who)) < (4 - who) / 4
    keys = np.array([f"<b onclick='alert(1)'>{k}</b>" for k in range(12)])[np.arange(len(who)) // 12]
    if images:
        seen = random.integers(0, 255, size=(len(who), 8, 8, 3)).astype(np.uint8)
    return ileed.Demonstrations(
        observations=seen,
        actions=np.where(right, seen.reshape(len(who), -1)[:, 0] > 0, random.integers(2, size=len(who))).astype(int),
        demonstrator=who,
        episode=np.arange(len(who)) // 12,
        source_episode=keys,
        names=NAMES,
    )


def served(folder, data):
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=1, steps=40, folds=2)
    fitted = method.fit(data, seed=0, device="cpu", check_width=False)
    fitted.save(folder / "run")
    marks = Marks.of(folder / "run", data.fingerprint, data.episode_count)
    curated = ileed.curate(fitted, data, stretch=4, keep=0.5)
    server = Server(Session(folder / "run", fitted, curated, marks, Destination(folder / "out")))
    thread = threading.Thread(target=server.run)
    thread.start()
    return server, thread, folder


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    found = {name: served(tmp_path_factory.mktemp(name), people(name == "images")) for name in ("states", "images")}
    yield found
    for server, _, _ in found.values():
        server.stop()
    for _, thread, _ in found.values():
        thread.join(timeout=30)


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-quic"])
        yield opened
        opened.close()


class Window:
    """A page in a context of its own, with what it wrote to its console and asked for."""

    def __init__(self, chromium, server, **look):
        self.context = chromium.new_context(**(look or LOOKS["desktop"]))
        self.page = self.context.new_page()
        self.console, self.requests = [], []
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(server.address)
        self.page.wait_for_selector("#facts dt")

    def marks(self):
        """The marks that the list shows, by the number of the episode."""
        rows = (
            "[...document.querySelectorAll('#browse tbody tr')].map(r => [r.dataset.episode, r.cells[0].textContent])"
        )
        return {int(number): words[2:] for number, words in self.page.evaluate(rows) if words[:1] in "✓✗"}

    def current(self):
        return int(self.page.get_attribute("tr[aria-current]", "data-episode"))

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def said(self, pattern):
        playwright.expect(self.page.locator("#said")).to_have_text(re.compile(pattern))

    def tallies(self, words):
        playwright.expect(self.page.locator("#tally")).to_contain_text(words)


@pytest.fixture
def window(chromium, servers):
    opened = []

    def make(name="states", **look):
        opened.append(Window(chromium, servers[name][0], **look))
        return opened[-1]

    for _, _, folder in servers.values():
        for file in (folder / "run").glob("marks-*.json"):
            file.unlink()
    yield make
    for each in opened:
        each.context.close()


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["states", "images"])
def test_the_page_says_nothing_to_the_console_asks_its_own_server_alone_and_fits_its_screen(
    window, name, look, servers
):
    opened = window(name, **LOOKS[look])
    opened.press("ArrowDown", "ArrowRight", "Space")
    opened.page.wait_for_timeout(500)
    opened.page.click("summary:has-text('Keys')")
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert opened.page.evaluate(fits)
    words = opened.page.inner_text("body")
    opened.page.click("text=Report")
    assert opened.page.is_visible("#settings-h")
    assert opened.page.evaluate(fits)
    assert not re.search(r"\b(undefined|NaN|null|Infinity)\b", words + opened.page.inner_text("body"))
    assert opened.console == []
    origin = servers[name][0].address.partition("?")[0]
    assert all(each.startswith((origin, f"blob:{origin}")) for each in opened.requests)


def test_names_and_keys_from_the_data_are_text(window):
    opened = window()
    for _ in range(12):
        opened.press("j")
    opened.page.fill("#find", "<script>")
    assert opened.page.locator("#browse tbody tr").count() == 3
    assert opened.page.title() == "Demonstrator report: run"
    assert opened.page.locator("#live img, #live b[onclick], #browse script").count() == 0
    assert "\u202e" not in opened.page.content()
    assert "<b onclick='alert(1)'>" in opened.page.inner_text("#player-h")
    assert opened.console == []


def test_marks_by_key_and_click_outlive_a_reload_and_saving_writes_them(window, servers):
    opened, folder = window(), servers["states"][2]
    first = opened.current()
    opened.press("d", "j", "k", "n")
    third = opened.current()
    opened.page.click("button[data-mark=drop]")
    opened.press("ArrowDown", "d", "u")
    expected = {first: "drop", third: "drop"}
    opened.said("no mark")
    expected |= {episode: mark for episode, mark in opened.marks().items() if mark == "keep"}
    assert opened.marks() == expected
    assert len(expected) == 3
    place = opened.current()
    opened.page.reload()
    opened.page.wait_for_selector("#facts dt")
    assert opened.marks() == expected
    assert opened.current() == place
    opened.page.click("#save")
    opened.said(r"^Saved in .*out .*3 episodes by hand \(1 kept, 2 dropped\)")
    summary = json.loads((folder / "out" / "curated.json").read_text())
    data = people()
    kept = set(summary["kept_keys"])
    for episode, mark in expected.items():
        assert (str(data.episode_keys[episode]) in kept) == (mark == "keep")
    again = window()  # which has not saved yet, and is asked
    again.press("k")
    again.page.click("#save")
    again.page.click("text=Replace the folder")
    again.said("^Saved in")
    assert len(opened.console) == 0


def test_two_windows_see_each_others_marks_and_lose_none(window):
    one, other = window(), window()
    one.press("d", "j", "d")
    for _ in range(4):
        other.press("j")
    other.press("k", "j", "k")
    one.said("marked drop")
    other.said("marked keep")
    for each in (one, other):
        each.tallies("2 marked keep, 2 marked drop")
    assert one.marks() == other.marks()
    one.press("u")  # the last writer of an episode wins, in both
    other.tallies("2 marked keep, 1 marked drop")
    assert one.marks() == other.marks()


def test_an_episode_is_played_and_scrubbed(window):
    opened = window("images")
    step = "Number(document.querySelector('#step').value)"
    opened.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert opened.page.evaluate(step) == 1
    opened.press("End")
    assert opened.page.evaluate(step) == 11
    opened.press("Home", "Shift+ArrowRight")
    assert opened.page.evaluate(step) == 10
    before = opened.page.get_attribute("#sight img", "src")
    opened.press("Home", "Space")
    assert opened.page.inner_text("#play") == "Pause"
    playwright.expect(opened.page.locator("#at")).to_have_text("step 11 of 11")
    playwright.expect(opened.page.locator("#play")).to_have_text("Play")
    assert opened.page.get_attribute("#sight img", "src") != before
    assert opened.page.evaluate("document.querySelector('#sight img').naturalWidth") == 8
    opened.page.focus("#step")
    opened.press("ArrowLeft")
    assert opened.page.evaluate(step) == 10


def test_the_report_links_to_the_player(window):
    opened = window()
    opened.page.click("text=Report")
    assert not opened.page.is_visible("#player")
    link = opened.page.locator("#episodes tbody th a").nth(3)
    number = int(link.inner_text())
    link.click()
    playwright.expect(opened.page.locator("#player-h")).to_have_text(f"Episode {people().episode_keys[number]}")
    assert opened.current() == number
    opened.page.goto(opened.page.url.replace(f"#e{number}", "#ranking"))
    opened.page.reload()
    assert opened.page.is_visible("#ranking")
    assert not opened.page.is_visible("#player")


def test_episodes_are_sorted_and_filtered(window):
    opened = window()

    def column(place):
        cells = f"[...document.querySelectorAll('#browse tbody tr')].map(r => Number(r.cells[{place}].textContent))"
        return opened.page.evaluate(cells)

    assert column(4) == sorted(column(4))  # the lowest by the rule's score first
    opened.page.click("#browse thead button:has-text('agreement')")
    assert column(5) == sorted(column(5), reverse=True)
    opened.press("Enter")
    assert column(5) == sorted(column(5))
    assert opened.page.locator("#browse th[aria-sort=ascending]").count() == 1
    opened.press("Tab", "k")
    opened.said("marked keep")
    opened.page.select_option("#which", "keep")
    assert list(opened.marks().values()) == ["keep"]
    opened.page.fill("#find", "nobody")
    assert opened.page.locator("#browse tbody tr").count() == 0
    opened.press("d")  # a letter in a field is a letter
    assert opened.page.input_value("#find") == "nobodyd"


def test_what_the_server_refuses_is_said_and_not_shown_as_done(window, servers):
    opened, folder = window(), servers["states"][2]
    opened.press("k")
    opened.said("marked keep")
    (file,) = (folder / "run").glob("marks-*.json")
    file.write_text("{")
    opened.press("d")
    playwright.expect(opened.page.locator("#trouble")).to_contain_text("is not a readable file of marks")
    assert list(opened.marks().values()) == ["keep"]


def test_a_page_of_another_origin_learns_and_changes_nothing(chromium, servers, window):
    server, _, folder = servers["states"]
    context = chromium.new_context()
    page = context.new_page()
    page.route("http://evil.example/", lambda route: route.fulfill(content_type="text/html", body="<p>evil</p>"))
    page.goto("http://evil.example/")
    tries = """async ([home, address]) => {
      const told = [];
      const ask = async (path, options) => {
        try { const r = await fetch(path, options); told.push(r.type + r.status); } catch { told.push('refused'); }
      };
      await ask(address);
      await ask(home + 'episodes', { headers: { Authorization: 'Bearer ' + address.split('=')[1] } });
      await ask(home + 'marks', { method: 'POST', mode: 'no-cors', body: '{"episode":0,"mark":"drop"}' });
      const frame = document.createElement('iframe');
      frame.src = address;
      document.body.append(frame);
      await new Promise((done) => { frame.onload = done; setTimeout(done, 3000); });
      try { told.push(String(frame.contentDocument && frame.contentDocument.title)); } catch { told.push('refused'); }
      return told;
    }"""
    home = server.address.partition("?")[0]
    told = page.evaluate(tries, [home, server.address])
    assert told[:2] == ["refused", "refused"]
    assert told[2] in ("opaque0", "refused")
    assert told[3] in ("null", "refused", "")
    assert not list((folder / "run").glob("marks-*.json"))
    context.close()


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: `make axe` fetches it from npm")
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["states", "images"])
def test_axe_finds_nothing_against_the_page(chromium, servers, name, look):
    context = chromium.new_context(**LOOKS[look], bypass_csp=True)
    page = context.new_page()
    page.goto(servers[name][0].address)
    page.wait_for_selector("#facts dt")
    page.keyboard.press("k")
    page.click("summary:has-text('Keys')")
    page.evaluate(AXE.read_text(encoding="utf-8") + ";0")
    found = "axe.run().then(r => r.violations.map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 160)]))"
    assert page.evaluate(found) == []
    page.click("text=Report")
    assert page.evaluate(found) == []
    context.close()
