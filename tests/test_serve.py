"""The live page: who may ask for what, marks that nothing loses, and a result that is written as `curate` writes it."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import follows

import ileed
from ileed import runs
from ileed.cli import run
from ileed.cli.serve import _opened
from ileed.errors import RunError, SettingsError
from ileed.serve import Destination, Marks, Server, Session
from ileed.serve.session import PART, Playback

pytest.importorskip("starlette", reason="starlette is absent: pip install 'ileed[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is absent: pip install 'ileed[serve]'")

HOSTILE = ("<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "ann\u202egnp.exe\x1b[31m", "x" * 1_000)


@cache
def population():
    """Four people with hostile names, ten episodes of 20 steps each."""
    return replace(follows([0.9, 0.7, 0.5, 0.3], steps=200, actions=4, seed=1), names=HOSTILE)


@cache
def fit():
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(8,)), restarts=1, steps=100, learning_rate=0.02)
    return method.fit(population(), seed=0, device="cpu")


@cache
def curated(**rule):
    return ileed.curate(fit(), population(), stretch=5, **rule)


def session(folder, *, overwrite=False, **rule):
    data = population()
    fit().save(folder / "run", overwrite=True)
    marks = Marks.of(folder / "run", data.fingerprint, data.episode_count)
    return Session(folder / "run", fit(), curated(**rule), marks, Destination(folder / "out", overwrite=overwrite))


class Client:
    """Requests to a server that runs in a thread, with headers as a test wants them."""

    def __init__(self, server):
        self.port, self.address = server.port, server.address
        self.token = urlsplit(server.address).query.removeprefix("token=")
        self.origin = f"http://127.0.0.1:{server.port}"

    def __call__(self, path, body=None, *, method=None, **headers):
        usual = {"Authorization": f"Bearer {self.token}"} | ({} if body is None else {"Origin": self.origin})
        sent = {name: value for name, value in (usual | headers).items() if value is not None}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method or ("GET" if body is None else "POST"), path, content, sent)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def json(self, path, body=None, **headers):
        answer, content = self(path, body, **headers)
        assert answer.status == 200, (answer.status, content)
        return json.loads(content)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="module")
def client(place):
    server = Server(session(place, keep=0.5))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield Client(server)
    server.stop()
    thread.join(timeout=30)
    assert not thread.is_alive()


@pytest.fixture
def nothing_marked(client, place):
    for file in (place / "run").glob("marks-*.json"):
        file.unlink()


# --- who may ask


READS = ["/", "/episodes", "/episodes/0/0", "/frames/0/0", "/marks", "/nothing"]


@pytest.mark.parametrize("path", READS)
def test_a_request_without_the_token_or_with_another_is_refused_in_a_sentence(client, path):
    for wrong in (
        None,
        "Bearer ",
        "Bearer wrong",
        f"Basic {client.token}",
        f"Bearer {client.token[:-1]}",
        "Bearer \xff",
    ):
        answer, content = client(path, Authorization=wrong)
        assert answer.status == 403
        assert content == b"The token is missing or wrong: use the whole address that the command printed.\n"
    if path != "/":  # in the address it opens the page alone
        assert client(f"{path}?token={client.token}", Authorization=None)[0].status == 403


def test_the_token_in_the_address_opens_the_page(client):
    answer, content = client(f"/?token={client.token}", Authorization=None)
    assert answer.status == 200
    assert client.token.encode() not in content
    assert b"Demonstrator report" in content


@pytest.mark.parametrize("path", [*READS, "/?token={token}"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.example:{port}", ""]
)
def test_a_request_to_another_name_is_refused_even_with_the_token(client, path, host):
    answer, content = client(path.format(token=client.token), Host=host.format(port=client.port))
    assert answer.status in (400, 403)  # 400: a Host that is none
    assert b"Demonstrator" not in content


def test_localhost_is_a_name_of_the_server(client):
    assert client(f"/?token={client.token}", Host=f"localhost:{client.port}", Authorization=None)[0].status == 200


@pytest.mark.parametrize("path", ["/marks", "/save"])
@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1:{port}"]
)
def test_a_write_from_another_page_is_refused_and_writes_nothing(client, place, nothing_marked, path, origin):
    body = {"episode": 0, "mark": "drop"}
    answer, content = client(path, body, Origin=origin and origin.format(port=client.port))
    assert answer.status == 403
    assert content == b"This request comes from another page: use the one that the command opened.\n"
    assert client.json("/marks") == {"version": 0, "marks": {}}
    assert not (place / "out").exists()


def test_a_read_from_another_page_is_refused(client):
    assert client("/episodes", Origin="http://evil.example")[0].status == 403


def test_every_answer_has_the_headers_that_keep_other_pages_out(client):
    for path in (*READS, f"/?token={client.token}"):
        answer, _ = client(path)
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert (answer.headers["Referrer-Policy"], answer.headers["Cache-Control"]) == ("no-referrer", "no-store")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert "Set-Cookie" not in answer.headers


def test_the_server_listens_on_the_loopback_address_alone(client):
    lines = Path("/proc/net/tcp")
    if not lines.exists():
        pytest.skip("this system has no /proc/net/tcp")
    listening = [line.split()[1] for line in lines.read_text().splitlines()[1:] if line.split()[3] == "0A"]
    assert [each for each in listening if each.endswith(f":{client.port:04X}")] == [f"0100007F:{client.port:04X}"]


def test_every_server_has_a_token_of_its_own(client, tmp_path):
    other = Server(session(tmp_path))
    assert other.address.partition("token=")[2] != client.token
    assert len(client.token) >= 43  # 32 random bytes
    other._socket.close()


def test_a_port_that_is_taken_is_refused_in_a_sentence(client, tmp_path):
    with pytest.raises(SettingsError, match=rf"port {client.port} is not available"):
        Server(session(tmp_path), port=client.port)
    with pytest.raises(SettingsError, match="from 1 to 65,535"):
        Server(session(tmp_path), port=70_000)


@pytest.mark.parametrize(
    "path",
    [
        "/episodes/40/0", "/episodes/-1/0", "/episodes/0/20", "/episodes/99999999999999999999/0",
        "/episodes/../../etc/passwd", "/episodes/0/0/..", "/frames/0/..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd", "/frames/0/0", "/marks/../episodes",
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_found_and_no_path_is_a_file(client, path):
    answer, content = client(path)
    assert answer.status == 404
    assert b"root:" not in content


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"null", b'"drop"', b"[" * 900, b"x" * 2_000, b"\xff", {"episode": 0, "mark": "perhaps"},
        {"episode": "0", "mark": "keep"}, {"episode": True, "mark": "keep"}, {"episode": -1, "mark": "keep"},
        {"episode": 40, "mark": "keep"}, {"episode": 1e300, "mark": "keep"}, {"mark": "keep"},
        {"episode": 0, "mark": ["keep"]},
    ],
)  # fmt: skip
def test_a_mark_that_is_none_is_refused_in_a_sentence_and_changes_nothing(client, nothing_marked, body):
    answer, content = client("/marks", body)
    assert answer.status in (409, 422)
    assert json.loads(content)["message"]
    assert client.json("/marks")["version"] == 0


def test_other_methods_are_refused(client):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert client("/marks", b"{}", method=method)[0].status == 405
    assert client("/save", Origin=client.origin)[0].status == 405  # a link or an image cannot save


# --- what is shown


def test_the_listing_has_the_scores_of_curate_and_no_text_that_controls_anything(client):
    found, scored = client.json("/episodes"), curated(keep=0.5)
    assert found["steps"] == [20] * 40
    assert found["keep"] == scored.kept.tolist()
    assert found["rule"] == scored.sentence
    for name, score in scored.scores.items():
        np.testing.assert_allclose(found["scores"][name]["estimate"], score.estimate, rtol=1e-4)
        np.testing.assert_allclose(found["scores"][name]["high"], score.high, rtol=1e-4)
    assert all(name.isprintable() and len(name) < 200 for name in found["demonstrator"])
    assert found["demonstrator"][0] == HOSTILE[0]  # text: it is the page that never takes it for HTML


def test_the_page_holds_names_as_text(client):
    _, content = client(f"/?token={client.token}")
    page = content.decode()
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "\u202e" not in page
    assert len(re.findall("<script", page)) == 2


def test_the_steps_of_an_episode_agree_with_its_scores_and_with_the_policy(client):
    found, data = client.json("/episodes/7/0"), population()
    steps = data.episode == 7
    assert found["taken"] == data.actions[steps].tolist()
    assert found["chosen"] == fit().policy.act(data.observations[steps]).tolist()
    assert np.mean(found["agreement"]) == pytest.approx(curated().scores["agreement"].estimate[7], abs=1e-4)
    chances = fit().policy.distribution(data.observations[steps]).probs.numpy()
    np.testing.assert_allclose(found["taken_probability"], chances[np.arange(20), found["taken"]], rtol=1e-3)
    assert [(each["start"], each["end"]) for each in found["stretches"]] == [(0, 5), (5, 10), (10, 15), (15, 20)]
    first = int(np.flatnonzero(curated().stretches.episode == 7)[0])
    assert found["stretches"][0]["estimate"] == pytest.approx(
        curated().stretch_scores["expertise"].estimate[first], rel=1e-3
    )


def test_a_long_episode_is_sent_in_parts():
    steps = 2 * PART + 7
    data = ileed.Demonstrations(
        observations=np.arange(steps)[:, None] % 7 * 1.0,
        actions=np.arange(steps) % 2,
        demonstrator=["ann"] * steps,
        episode=[0] * steps,
    )
    fitted = ileed.bc(policy=ileed.CategoricalMLP(hidden=(2,)), restarts=1, steps=2).fit(data, seed=0, device="cpu")
    playback = Playback(fitted, ileed.curate(fitted, data))
    parts = [playback.part(0, start) for start in (0, PART, 2 * PART)]
    assert [len(each["taken"]) for each in parts] == [PART, PART, 7]
    assert [*parts[0]["taken"], *parts[1]["taken"], *parts[2]["taken"]] == data.actions.tolist()
    assert parts[1]["stretches"][0]["start"] == PART
    assert parts[0]["expected"] is None  # cloning takes every demonstrator for an expert


@pytest.mark.parametrize("policy", [ileed.MixtureMLP(hidden=(4,), modes=2), ileed.MixtureLSTM(hidden=(4,), modes=2)])
def test_continuous_actions_stand_beside_those_of_the_policy(policy):
    random = np.random.default_rng(0)
    data = ileed.Demonstrations(
        observations=random.normal(size=(60, 3)),
        actions=random.normal(size=(60, 2)),
        demonstrator=np.arange(60) // 30,
        episode=np.arange(60) // 15,
        rewards=np.arange(60.0),
    )
    fitted = ileed.Ileed(policy=policy, restarts=1, steps=3).fit(data, seed=0, device="cpu")
    found = Playback(fitted, ileed.curate(fitted, data)).part(2, 0)
    fitted.policy.reset()
    steps = data.observations[data.episode == 2]
    expected = np.stack([fitted.policy.act(step[None])[0] for step in steps])
    np.testing.assert_allclose(found["chosen"], expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found["taken"], data.actions[30:45], rtol=1e-3)
    assert np.shape(found["path"]) == (15, 2)
    assert found["rewards"][0] == 30


def test_frames_are_shown_where_observations_are_images(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, size=(12, 8, 8, 3)).astype(np.uint8)
    data = ileed.Demonstrations(
        observations=images, actions=np.arange(12) % 2, demonstrator=np.arange(12) // 6, episode=np.arange(12) // 3
    )
    fitted = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(2,)), restarts=1, steps=2).fit(data, seed=0, device="cpu")
    playback = Playback(fitted, ileed.curate(fitted, data))
    assert playback.part(1, 0)["frames"]
    assert playback.part(1, 0)["features"] == []
    assert playback.frame(1, 0) != playback.frame(1, 1)
    assert playback.frame(1, 0).startswith(b"\x89PNG")


# --- marks


def test_marks_are_there_after_a_crash_and_in_every_window(client, place, nothing_marked):
    versions = [client.json("/marks", {"episode": e, "mark": "drop"})["version"] for e in (3, 5, 3)]
    assert versions == [1, 2, 3]
    client.json("/marks", {"episode": 5, "mark": None})
    client.json("/marks", {"episode": 0, "mark": "keep"})
    expected = {"version": 5, "marks": {"0": "keep", "3": "drop"}}
    assert client.json("/marks") == expected
    assert client("/marks?after=5")[0].status == 204
    assert client.json("/marks?after=4") == expected
    data = population()
    again = Marks.of(place / "run", data.fingerprint, data.episode_count)  # as another process reads them
    assert again.read().kept == {0: True, 3: False}


def test_marks_of_many_windows_at_once_are_all_kept(client, nothing_marked):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda e: client.json("/marks", {"episode": e, "mark": "keep" if e % 2 else "drop"}), range(40)))
    found = client.json("/marks")
    assert found["version"] == 40
    assert found["marks"] == {str(e): "keep" if e % 2 else "drop" for e in range(40)}


def test_marks_of_two_processes_at_once_are_all_kept(tmp_path):
    code = (
        "import sys; from pathlib import Path; from ileed.serve import Marks\n"
        "marks = Marks.of(Path(sys.argv[1]), 'abc', 100)\n"
        "for k in range(int(sys.argv[2]), 100, 2): marks.put(k, 'drop')\n"
    )
    pytest.importorskip("fcntl", reason="this system has no fcntl, by which processes wait for each other")
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(k)]) for k in (0, 1)]
    assert [each.wait(timeout=120) for each in both] == [0, 0]
    assert Marks.of(tmp_path, "abc", 100).read().marks == dict.fromkeys(range(100), "drop")


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["keep", "drop", None])), max_size=12))
def test_the_last_mark_of_each_episode_counts(tmp_path_factory, changes):
    marks = Marks.of(tmp_path_factory.mktemp("marks"), "abc", 5)
    expected = {}
    for episode, mark in changes:
        marks.put(episode, mark)
        expected[episode] = mark
    assert marks.read().marks == {episode: mark for episode, mark in expected.items() if mark}


def test_a_mark_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    marks = Marks.of(tmp_path, "abc", 5)
    marks.put(1, "keep")
    before = marks.path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(RunError, match="No space left on device"):
            marks.put(2, "drop")
    assert marks.path.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir() if "lock" not in path.name) == [marks.path.name]


KEYS = st.sampled_from(["ileed", "data", "version", "marks", "0", "9"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["marks of episodes", "abc", "keep", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
)


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"ileed": "marks of episodes", "data": "abc", "version": true, "marks": {}}')
@example(b'{"ileed": "marks of episodes", "data": "abc", "version": 1, "marks": {"0": ["keep"]}}')
@example(b'{"ileed": "marks of episodes", "data": "abc", "version": 1, "marks": {"zero": "keep"}}')
def test_a_hostile_file_of_marks_is_refused_in_a_sentence(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("marks")
    (folder / "marks-abc.json").write_bytes(content)
    with pytest.raises(RunError, match="is not a readable file of marks"):
        Marks.of(folder, "abc", 5)
    assert (folder / "marks-abc.json").read_bytes() == content


def test_marks_of_other_data_are_not_taken_for_these(tmp_path):
    Marks.of(tmp_path, "abc", 5).put(4, "drop")
    assert Marks.of(tmp_path, "abd", 5).read().marks == {}
    os.rename(tmp_path / "marks-abc.json", tmp_path / "marks-abd.json")
    with pytest.raises(RunError, match="it belongs to other data"):
        Marks.of(tmp_path, "abd", 5)
    Marks.of(tmp_path, "abe", 5).put(4, "drop")
    with pytest.raises(RunError, match="it marks an episode that does not exist"):
        Marks.of(tmp_path, "abe", 4)


def test_a_file_that_is_damaged_while_the_page_is_open_is_said_and_not_replaced(client, place, nothing_marked):
    client.json("/marks", {"episode": 0, "mark": "keep"})
    (file,) = (place / "run").glob("marks-*.json")
    file.write_text("{")
    for asked in ({}, {"body": {"episode": 1, "mark": "keep"}}):
        answer, content = client("/marks", **asked)
        assert answer.status == 409
        assert "move it away" in json.loads(content)["message"]
    assert file.read_text() == "{"


def test_a_run_with_marks_is_still_a_run(tmp_path):
    fit().save(tmp_path / "run")
    Marks.of(tmp_path / "run", "abc", 5).put(1, "keep")
    fit().save(tmp_path / "run", overwrite=True)
    assert runs.read_run(tmp_path / "run").settings
    assert Marks.of(tmp_path / "run", "abc", 5).read().marks == {1: "keep"}


# --- saving


def content_of(folder):
    """The tables of a folder of curated episodes, and its summary without when it was written."""
    summary = json.loads((folder / "curated.json").read_text())
    tables = [pq.read_table(folder / f"{name}.parquet") for name in ("episodes", "stretches")]
    return tables, {name: value for name, value in summary.items() if name != "provenance"}


def test_without_marks_the_result_is_that_of_curate(tmp_path):
    opened = session(tmp_path, keep=0.5)
    opened.save()
    curated(keep=0.5).write(tmp_path / "other")
    assert content_of(tmp_path / "out") == content_of(tmp_path / "other")


def test_marks_override_the_rule(tmp_path):
    opened = session(tmp_path, keep=0.5, weight=True)
    kept = curated(keep=0.5).kept
    dropped, other = int(np.flatnonzero(kept)[0]), int(np.flatnonzero(~kept)[0])
    opened.marks.put(dropped, "drop")
    opened.marks.put(other, "keep")
    told = opened.save()
    assert told["sentence"].endswith("; 2 episodes by hand (1 kept, 1 dropped)")
    (episodes, _), summary = content_of(tmp_path / "out")
    keep = np.array(episodes["keep"].to_pylist())
    assert (keep[dropped], keep[other]) == (False, True)
    assert np.array_equal(np.delete(keep, [dropped, other]), np.delete(kept, [dropped, other]))
    assert episodes["by_hand"].to_pylist()[other] == "keep"
    assert summary["kept_episodes"] == kept.sum()
    weights = np.array(episodes["weight"].to_pylist())
    assert weights[dropped] == 0
    assert weights[keep].mean() == pytest.approx(1)


def test_marks_are_about_whole_episodes_where_the_rule_is_about_segments():
    scored = curated(keep=0.3, unit="stretch")
    episode = int(scored.stretches.episode[np.flatnonzero(~scored.kept_units)[0]])
    marked = scored.marked({episode: True})
    assert marked.kept_steps[population().episode == episode].all()
    assert np.array_equal(
        marked.kept_steps[population().episode != episode], scored.kept_steps[population().episode != episode]
    )
    assert np.array_equal(marked.marked({}).kept_units, scored.kept_units)


def test_marks_that_keep_nothing_or_are_unknown_are_refused():
    with pytest.raises(SettingsError, match="keep one or more"):
        curated().marked(dict.fromkeys(range(40), False))
    with pytest.raises(SettingsError, match="episodes are numbered from 0 to 39"):
        curated().marked({40: True})


def test_saving_replaces_a_folder_only_where_that_is_asked_for(client, place, nothing_marked):
    assert client.json("/save", {})["folder"] == str(place / "out")
    answer, content = client("/save", {})
    assert answer.status == 409
    assert "holds curated episodes" in json.loads(content)["message"]
    client.json("/marks", {"episode": 0, "mark": "drop"})
    told = client.json("/save", {"replace": True})
    assert "1 episode by hand" in told["sentence"]
    (place / "out" / "curated.json").write_text("mine")
    answer, content = client("/save", {"replace": True})
    assert (answer.status, (place / "out" / "curated.json").read_text()) == (409, "mine")


def test_a_second_save_replaces_what_the_first_wrote_and_nothing_that_others_wrote_since(client, place, nothing_marked):
    """As the page does: it names the version that it saved last, and asks where that is no longer there."""
    shutil.rmtree(place / "out", ignore_errors=True)  # of other tests
    first = client.json("/save", {})
    client.json("/marks", {"episode": 0, "mark": "drop"})
    second = client.json("/save", {"replace": first["version"]})
    assert second["version"] != first["version"]
    curated(keep=0.25).write(place / "out", overwrite=True)
    before = content_of(place / "out")
    answer, content = client("/save", {"replace": second["version"]})
    assert answer.status == 409
    assert "overwrite" in json.loads(content)["message"], "by which the page knows that it may offer to replace it"
    assert content_of(place / "out") == before
    assert client("/save", {"replace": 1})[0].status == 422


# --- the command


def test_the_command_prints_the_address_and_keeps_marks_when_it_is_interrupted(tmp_path):
    data = population()
    fit().save(tmp_path / "run")
    ileed.write_parquet(data, tmp_path / "data.parquet")
    before = (tmp_path / "data.parquet").read_bytes()
    words = [sys.executable, "-m", "ileed", "serve", "run", "data.parquet", "--json", "--anonymise"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        address = urlsplit(told["address"])
        asks = Client.__new__(Client)
        asks.port, asks.token, asks.origin = address.port, address.query[6:], f"http://{address.netloc}"
        assert asks.json("/episodes")["demonstrator"][0].startswith("person ")
        _, page = asks(f"/?token={asks.token}")
        assert b"script&gt;alert" not in page  # no name, not even as text
        asks.json("/marks", {"episode": 1, "mark": "drop"})
        assert asks.json("/save", {})["files"] == [
            "curated.json",
            "episodes.csv",
            "episodes.parquet",
            "stretches.parquet",
        ]
    finally:
        process.send_signal(2)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "ileed: interrupted; the marks are kept in run" in error
    assert asks.token not in error
    assert Marks.of(tmp_path / "run", data.fingerprint, 40).read().marks == {1: "drop"}
    assert (tmp_path / "data.parquet").read_bytes() == before


def test_without_the_extra_one_sentence_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert run(["serve", str(tmp_path), str(tmp_path / "data.parquet")]) == 2
    assert capsys.readouterr().err == (
        "ileed: this needs the package 'starlette', which is not installed: pip install 'ileed[serve]'\n"
    )


def test_the_browser_is_opened_by_a_file_that_others_cannot_read(monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with _opened("http://127.0.0.1:1/?token=secret"):
        (address,) = opened
        assert "secret" not in address  # which other users can see among the words of a command
        door = Path(urlsplit(address).path)
        assert "url=http://127.0.0.1:1/?token=secret" in door.read_text()
        assert door.parent.stat().st_mode & 0o077 == 0
    assert not door.exists()
