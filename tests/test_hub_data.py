"""Data sets of the Hugging Face hub, which a server in this process stands in for, and its library for itself."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import ileed
from ileed.errors import DemonstrationError, IleedError
from ileed.runs import stores

COMMIT = "a" * 40


def people() -> ileed.Demonstrations:
    chance = np.random.default_rng(0)
    return ileed.Demonstrations(
        observations=chance.normal(size=(40, 3)).astype(np.float32),
        actions=chance.normal(size=(40, 2)).astype(np.float32),
        demonstrator=np.repeat(["ann", "bob"], 20),
        episode=np.arange(40) // 5,
    )


@pytest.fixture
def repository(tmp_path) -> Path:
    """A LeRobot folder with a video, and a parquet file of ours beside it."""
    folder = tmp_path / "repository"
    ileed.write(people(), folder, format="lerobot")
    (folder / "videos").mkdir()
    (folder / "videos" / "front.mp4").write_bytes(b"large")
    (folder / "extra").mkdir()
    ileed.write(people().by("bob"), folder / "extra" / "bob.parquet")
    return folder


class StandIn:
    """huggingface_hub as far as it is called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, []

    def snapshot_download(self, repo_id, *, repo_type, revision, allow_patterns, ignore_patterns):
        self.asked.append((repo_id, repo_type, revision, allow_patterns))
        assert "videos/*" in ignore_patterns
        if repo_id != "lab/cups":
            raise OSError(f"no such repository: {repo_id}\nand much more")
        return str(self.folder)


@pytest.fixture
def stand_in(repository, monkeypatch) -> StandIn:
    found = StandIn(repository)
    monkeypatch.setitem(sys.modules, "huggingface_hub", found)
    stores._downloaded.cache_clear()
    yield found
    stores._downloaded.cache_clear()


def test_an_address_is_read_as_the_folder_that_it_names(stand_in):
    data = ileed.read("hf://datasets/lab/cups")
    assert data.fingerprint == people().fingerprint
    assert ileed.read(Path("hf://datasets/lab/cups@v1/extra/bob.parquet")).steps_each.sum() == 20
    assert stand_in.asked == [
        ("lab/cups", "dataset", None, None),
        ("lab/cups", "dataset", "v1", ["extra/bob.parquet", "extra/bob.parquet/*"]),
    ]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("hf://datasets/cups", "not the address of a data set: write hf://datasets/OWNER/NAME"),
        ("hf://lab/cups", "not the address of a data set"),
        ("hf://datasets/lab/cups/../../other", "leads out of the data set"),
        ("hf://datasets/lab/cups/nothing", "has no 'nothing': check the path"),
        ("hf://datasets/lab/plates", "cannot be downloaded .*no such repository.*: check its name"),
    ],
)
def test_what_cannot_be_had_is_refused_in_a_sentence(stand_in, address, says):
    with pytest.raises(DemonstrationError, match=says) as caught:
        ileed.read(address)
    assert "\n" not in str(caught.value)


def test_without_the_extra_the_message_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(IleedError, match=r"pip install 'ileed\[hub\]'"):
        ileed.read("hf://datasets/lab/pans")


class Server(BaseHTTPRequestHandler):
    """Three routes of the hub: a revision, the list of its files, and a file."""

    folder: Path
    asked: list[str]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        place = self.path.partition("?")[0]
        self.asked.append(place)
        headers = {"X-Repo-Commit": COMMIT}
        files = [file for file in self.folder.rglob("*") if file.is_file()]
        names = [str(file.relative_to(self.folder)) for file in files]
        if place.startswith("/api/datasets/lab/cups/revision/"):
            siblings = [{"rfilename": name} for name in names]
            content = json.dumps({"id": "lab/cups", "sha": COMMIT, "siblings": siblings}).encode()
        elif place.startswith("/api/datasets/lab/cups/tree/"):
            sizes = [file.stat().st_size for file in files]
            rows = [{"type": "file", "path": name, "size": size} for name, size in zip(names, sizes, strict=True)]
            content = json.dumps([{**row, "oid": f"{number:040x}"} for number, row in enumerate(rows)]).encode()
        elif place.startswith(f"/datasets/lab/cups/resolve/{COMMIT}/"):
            content = (self.folder / place.split(f"{COMMIT}/")[1]).read_bytes()
            headers["ETag"] = f'"{abs(hash(place)):040x}"'
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def command(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "ileed", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **own, **environment},
    )


def test_the_command_reads_from_a_server_without_videos_and_later_from_the_cache(repository, tmp_path):
    pytest.importorskip("huggingface_hub")
    kind = type("Own", (Server,), {"folder": repository, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        found = command(tmp_path, "inspect", "--json", "--repo-id", "lab/cups", HF_ENDPOINT=endpoint)
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["demonstrators"] == {"ann": 20, "bob": 20}
        assert not [place for place in kind.asked if "videos" in place]
        assert [place for place in kind.asked if place.endswith("meta/info.json")]
        other = command(tmp_path, "inspect", "hf://datasets/lab/plates", HF_ENDPOINT=endpoint)
        assert other.returncode == 2
        assert "the data set 'lab/plates' cannot be downloaded" in other.stderr
        assert len(other.stderr.splitlines()) == 1
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    for offline in ({"HF_HUB_OFFLINE": "1"}, {}):
        again = command(
            tmp_path,
            "convert",
            "hf://datasets/lab/cups",
            f"copy{len(offline)}.parquet",
            HF_ENDPOINT=endpoint,
            **offline,
        )
        assert again.returncode == 0, again.stderr
        assert ileed.read(tmp_path / f"copy{len(offline)}.parquet").fingerprint == people().fingerprint
    lost = command(tmp_path, "inspect", "hf://datasets/lab/forks", HF_ENDPOINT=endpoint)
    assert lost.returncode == 2
    assert "check its name (OWNER/NAME), the revision, the network" in lost.stderr
    assert len(lost.stderr.splitlines()) == 1
