"""Object stores: fsspec's store in memory for what holds of any, and moto's server, which answers as S3 does."""

import os
import shutil
import socket
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from pyarrow import ArrowException, fs

import ileed
from ileed.cli import run as command
from ileed.errors import IleedError, RunError
from ileed.report import compare_runs, figures, people_table
from ileed.runs import stores
from ileed.serve import Marks

MOTO = Path(__file__).parents[1] / ".cache" / "moto" / "bin" / "moto_server"
METHOD = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=()), expertise=ileed.Constant(), restarts=1, steps=5, folds=0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ILEED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def people() -> ileed.Demonstrations:
    chance = np.random.default_rng(0)
    return ileed.Demonstrations(
        observations=chance.normal(size=(60, 2)).astype(np.float32),
        actions=chance.integers(0, 3, size=60),
        demonstrator=np.repeat(["ann", "bob"], 30),
        episode=np.arange(60) // 5,
    )


@pytest.fixture(scope="module")
def s3():
    """A server on this machine with an empty bucket, found by the variables that S3's own tools read."""
    if not MOTO.exists():
        pytest.skip("moto is absent: make moto")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [MOTO, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    told = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        try:
            for _ in range(300):
                with socket.socket() as asked:
                    if asked.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            fs.S3FileSystem(endpoint_override=told["AWS_ENDPOINT_URL"], allow_bucket_creation=True).create_dir("lab")
            yield "s3://lab"
        finally:
            server.kill()
            server.wait()


@pytest.fixture(params=["memory", "s3"])
def store(request, tmp_path) -> str:
    """An empty place in a store."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{tmp_path.name}"
    return f"memory://{tmp_path.name}"


def upload(path: Path, address: str) -> None:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    for each in files:
        stores.put(Path(f"{address}/{each.relative_to(path)}".removesuffix("/.")), each.read_bytes())


def content(address: str) -> bytes:
    system, place = stores._opened(address)
    with system.open_input_stream(place) as opened:
        return bytes(opened.read())


def test_a_file_and_a_folder_are_read_from_a_store(store, people, tmp_path):
    ileed.write(people, f"{store}/people.parquet")
    assert ileed.read(f"{store}/people.parquet").fingerprint == people.fingerprint
    assert ileed.read(Path(f"{store}/people.parquet")).fingerprint == people.fingerprint

    continuous = ileed.Demonstrations(
        observations=people.observations,
        actions=people.observations,
        demonstrator=people.demonstrator,
        episode=people.episode,
        names=people.names,
    )
    ileed.write(continuous, tmp_path / "folder", format="lerobot")
    (tmp_path / "folder" / "videos").mkdir()
    (tmp_path / "folder" / "videos" / "front.mp4").write_bytes(b"large")
    upload(tmp_path / "folder", f"{store}/folder")
    read = ileed.read(f"{store}/folder")
    assert np.array_equal(read.actions, continuous.actions)
    assert not list(stores.fetched(Path(f"{store}/folder")).rglob("*.mp4")), "no reader needs it"


def test_what_is_unchanged_is_fetched_once_and_what_changes_again(store, people, tmp_path, monkeypatch):
    ileed.write(people, tmp_path / "people.parquet")
    address = Path(f"{store}/people.parquet")
    upload(tmp_path / "people.parquet", str(address))
    first = stores.fetched(address)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", lambda *_: pytest.fail("it was fetched again"))
        assert stores.fetched(address) == first
    ileed.write(people.by("ann"), tmp_path / "ann.parquet")
    upload(tmp_path / "ann.parquet", str(address))
    assert ileed.read(stores.fetched(address)).names == ("ann",)


def test_a_file_that_was_replaced_in_the_store_is_read_again(store, people):
    address = f"{store}/people.parquet"
    for data in (people, people.by("ann")):
        ileed.write(data, address, overwrite=True)
        assert ileed.read(address).fingerprint == data.fingerprint


def test_versions_of_equal_size_within_one_second_are_distinguished(store, monkeypatch):
    path, now, listed = Path(f"{store}/settings.json"), int(time.time()), stores._files

    def in_whole_seconds(*place):
        return {name: fs.FileInfo(i.path, i.type, size=i.size, mtime=now) for name, i in listed(*place).items()}

    monkeypatch.setattr(stores, "_files", in_whole_seconds)
    for text in (b"old", b"new"):
        stores.put(path, text)
        assert stores.fetched(path).read_bytes() == text


def test_a_key_may_have_spaces_and_letters_beyond_ascii(store, people):
    ileed.write(people, f"{store}/Zoë & Ann/round 1.parquet")
    assert ileed.read(f"{store}/Zoë & Ann/round 1.parquet").fingerprint == people.fingerprint
    assert ileed.read(Path(f"{store}/Zoë & Ann/round 1.parquet")).fingerprint == people.fingerprint


def test_a_run_that_is_saved_in_a_store_is_loaded_from_there_and_replaced_only_when_asked(store, people, cache):
    fitted = METHOD.fit(people, seed=0)
    fitted.save(f"{store}/run")
    again = ileed.load(f"{store}/run")
    assert again.nats_per_action == fitted.nats_per_action
    assert again.expertise.by_demonstrator() == fitted.expertise.by_demonstrator()
    with pytest.raises(RunError, match="already holds a run"):
        fitted.save(f"{store}/run")
    other = METHOD.fit(people, seed=1)
    other.save(f"{store}/run", overwrite=True)
    assert ileed.load(f"{store}/run").nats_per_action == other.nats_per_action
    page = ileed.report(f"{store}/run")
    assert stores.address_of(page) == f"{store}/run/report.html"
    assert "report.html" in stores.check(Path(f"{store}/run"))
    other.save(f"{store}/run", overwrite=True)
    assert "report.html" not in stores.check(Path(f"{store}/run")), "it was that of the run before"
    stores.put(Path(f"{store}/run/report.html"), b"years of work")
    other.save(f"{store}/run", overwrite=True)
    assert content(f"{store}/run/report.html") == b"years of work"
    assert not [path for path in cache.rglob("*") if path.name == "run" and "settings.json" not in os.listdir(path)]


def test_a_run_whose_upload_was_interrupted_is_none_and_the_settings_come_last(store, people, monkeypatch):
    fitted, put = METHOD.fit(people, seed=0), stores._upload
    fitted.save(f"{store}/run")

    def interrupted(system, place, content):
        if place.endswith("settings.json"):
            raise OSError("the network is gone")
        put(system, place, content)

    with monkeypatch.context() as patch:
        patch.setattr(stores, "_upload", interrupted)
        with pytest.raises(RunError, match=r"cannot be reached .*the network is gone"):
            fitted.save(f"{store}/run", overwrite=True)
    with pytest.raises(RunError):
        ileed.load(f"{store}/run")


@pytest.mark.parametrize("found", ["s3://b/k", "gs://b/k.parquet", "memory://x"])
def test_an_address_is_known_also_when_a_path_has_taken_one_of_its_slashes(found):
    assert stores.address_of(found) == stores.address_of(Path(found)) == found


@pytest.mark.parametrize(
    "found", ["hf://datasets/a/b", "/data/x", "C:/data", "https://a.b/c", "file:///x", "a:b", "ab:", 3]
)
def test_a_local_path_the_hub_and_the_web_are_no_stores(found):
    assert stores.address_of(found) is None


def test_what_is_not_there_and_what_cannot_be_written_there_get_one_sentence(store, people, tmp_path):
    with pytest.raises(IleedError, match=r"there is nothing at .*: check the bucket and the key"):
        ileed.read(f"{store}/nothing.parquet")
    with pytest.raises(IleedError, match="name a local folder"):
        ileed.write(people, f"{store}/folder", format="lerobot")
    with pytest.raises(IleedError, match=r"nowhere.*cannot be reached"):
        ileed.read("nowhere://a/b.parquet")
    stores.put(Path(f"{store}/thesis/chapter.tex"), b"years of work")
    with pytest.raises(RunError, match=r"holds files and no run \(.*chapter.tex.*\): choose another place"):
        METHOD.fit(people, seed=0).save(f"{store}/thesis", overwrite=True)


def test_a_foreign_file_is_not_replaced_in_a_store(store, people, tmp_path, capsys):
    run, theirs = f"{store}/run", b"years of work"
    METHOD.fit(people, seed=0).save(run)
    files = [f"{store}/{name}" for name in ("notes.html", "charts/ranking.svg", "table.csv", "people.parquet")]
    for address in files:
        stores.put(Path(address), theirs)
    notes, chart, table, parquet = files
    for write in (lambda: ileed.report(run, out=notes), lambda: compare_runs(run, run, out=notes)):
        with pytest.raises(RunError, match="exists and is not a report by ileed") as refused:
            write()
        assert str(refused.value).startswith(f"{notes} exists")
    with pytest.raises(RunError, match="exists and is not a report by ileed"):
        ileed.report(run, out=f"{store}/charts")
    with pytest.raises(RunError, match="exists and is not a figure of ileed") as refused:
        figures(run, f"{store}/charts")
    assert str(refused.value).startswith(f"{chart} exists")
    with pytest.raises(RunError, match="exists already") as refused:
        people_table(run, table)
    assert str(refused.value).startswith(f"{table} exists")
    ileed.write(people, tmp_path / "people.parquet")
    assert command(["convert", str(tmp_path / "people.parquet"), parquet]) == 2
    assert f"{parquet} exists already" in capsys.readouterr().err
    assert command(["demonstrate", "minigrid/obstacles", "--out", parquet]) == 2
    assert f"{parquet} exists already" in capsys.readouterr().err
    assert [content(address) for address in files] == [theirs] * len(files)


def test_a_report_and_figures_of_ours_are_replaced_in_a_store(store, people):
    METHOD.fit(people, seed=0).save(f"{store}/run")
    for title in ("first", "second"):
        ileed.report(f"{store}/run", out=f"{store}/page.html", title=title)
        figures(f"{store}/run", f"{store}/charts")
    assert b"second" in content(f"{store}/page.html")


def test_a_missing_key_and_a_missing_package_get_their_own_advice_alone(store, monkeypatch):
    with pytest.raises(IleedError) as refused:
        ileed.read(f"{store}/nope.parquet")
    assert str(refused.value) == f"there is nothing at '{store}/nope.parquet': check the bucket and the key"
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(IleedError, match=r"^'abfs://c/people.parquet' needs another package: Install adlfs [^:]*$"):
        ileed.read("abfs://c/people.parquet")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(IleedError, match=r"^this needs the package 'fsspec', .* pip install 'ileed\[stores\]'$"):
        ileed.read("nowhere://c/people.parquet")


def test_an_error_of_arrow_itself_gets_one_sentence(people, monkeypatch):
    def fail(*_):
        raise ArrowException("Unknown error: no token")

    monkeypatch.setattr(stores, "_files", fail)
    with pytest.raises(RunError, match=r"cannot be reached \(Unknown error: no token\): check the address"):
        ileed.load("memory://b/run")


@pytest.mark.parametrize(
    ("address", "seconds"), [("gs://b/k", 8), ("gcs://b/k?scheme=http", 8), ("gs://b/k?retry_limit_seconds=60", 60)]
)
def test_google_is_given_up_after_seconds_unless_the_address_says_otherwise(address, seconds):
    system, place = stores._opened(address)
    (settings,) = system.__reduce__()[1]
    assert (settings["retry_time_limit"], place) == (timedelta(seconds=seconds), "b/k")


def test_messages_name_the_address_and_not_the_copy(store, people, cache, tmp_path):
    stores.put(Path(f"{store}/people/chapter.tex"), b"years of work")
    METHOD.fit(people, seed=0).save(f"{store}/run")
    stores.put(Path(f"{store}/run/weights.safetensors"), b"damaged")
    METHOD.fit(people, seed=0).save(f"{store}/other")
    stores.put(Path(f"{store}/other/settings.json"), b'{"ileed": "run directory"}')
    for name in ("damaged.parquet", "damaged.hdf5", "damaged.csv"):
        stores.put(Path(f"{store}/{name}"), b"\x00\xff")
    said = [
        (lambda: ileed.load(f"{store}/people"), f"{store}/people is not a run directory"),
        (lambda: ileed.load(f"{store}/run"), f"{store}/run/weights.safetensors cannot be read"),
        (lambda: ileed.load(f"{store}/other"), f"{store}/other is damaged"),
        (lambda: ileed.read(f"{store}/damaged.parquet"), f"{store}/damaged.parquet is not a readable"),
        (lambda: ileed.read(f"{store}/damaged.hdf5"), f"{store}/damaged.hdf5 is not a readable"),
        (lambda: ileed.from_table(f"{store}/damaged.csv", action="a", demonstrator="b"), f"{store}/damaged.csv"),
        (lambda: people_table(f"{store}/run", f"{store}/table.txt"), f"{store}/table.txt is neither"),
    ]
    for ask, words in said:
        with pytest.raises(IleedError) as refused:
            ask()
        assert words in str(refused.value)
        assert str(cache) not in str(refused.value)


def test_commands_print_addresses_as_they_were_written(store, people, tmp_path, capsys):
    stores.put(Path(f"{store}/damaged.parquet"), b"damaged")
    assert command(["inspect", f"{store}/damaged.parquet"]) == 2
    assert f"ileed: {store}/damaged.parquet is not" in capsys.readouterr().err
    ileed.write(people, tmp_path / "people.parquet")
    data, run = f"{store}/people.parquet", f"{store}/run"
    short = ["--steps", "5", "--restarts", "1", "--folds", "0", "--check-width", "False"]
    for words, printed in (
        (["convert", str(tmp_path / "people.parquet"), data], f"wrote {data} (parquet)"),
        (["fit", data, "--out", run, *short], f"saved in {run}; next: ileed report {run}"),
        (["fit", data, "--out", run, *short, "--overwrite", "--json"], f'"run": "{run}"'),
        (["report", run, "--table", f"{store}/table.csv"], f"wrote {run}/report.html\nwrote {store}/table.csv"),
    ):
        assert command(words) == 0
        assert printed in capsys.readouterr().out


@pytest.mark.parametrize("address", ["s3://", Path("s3://"), "s3:///", "gs:", "memory://"])
def test_a_scheme_without_a_bucket_is_refused_and_no_local_path(address, people, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scheme = str(address).partition(":")[0]
    for ask in (
        lambda: ileed.read(address),
        lambda: ileed.load(address),
        lambda: METHOD.fit(people, seed=0).save(address),
    ):
        with pytest.raises(IleedError, match=f"^{scheme}:// names no bucket: write {scheme}://BUCKET/KEY$"):
            ask()
    assert os.listdir(tmp_path) == []


def test_marks_of_episodes_in_a_store_add_up(store):
    marks = Marks.of(Path(f"{store}/run"), "f" * 40, 12)
    marks.put(1, "keep")
    assert marks.put(2, "drop").marks == marks.read().marks == {1: "keep", 2: "drop"}
    assert Marks.of(Path(f"{store}/run"), "f" * 40, 12).read().version == 2
    stores.put(marks.path, b"years of work")
    with pytest.raises(RunError, match=f"^{store}/run/marks-f+.json is not a readable file of marks"):
        marks.put(3, "keep")
    assert content(stores.name_of(marks.path)) == b"years of work"


def test_the_command_fits_data_in_s3_to_a_run_in_s3_and_reports_there(s3, people, tmp_path):
    ileed.write(people, tmp_path / "people.parquet")
    upload(tmp_path / "people.parquet", f"{s3}/command/people.parquet")
    fit = ["fit", f"{s3}/command/people.parquet", "--out", f"{s3}/command/run", "--steps", "5", "--restarts", "1"]
    for words in ([*fit, "--folds", "0", "--check-width", "False"], ["report", f"{s3}/command/run"]):
        done = subprocess.run([sys.executable, "-m", "ileed", *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "s3:" not in os.listdir(tmp_path)
    assert set(stores.check(Path(f"{s3}/command/run"))) >= {"settings.json", "weights.safetensors", "report.html"}


SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
"""Amazon's example of a secret key; like most, it has a slash, which belongs quoted in an address."""


@pytest.mark.parametrize("written", [SECRET, SECRET.replace("/", "%2F")])
@pytest.mark.parametrize("scheme", ["s3", "nowhere"])
def test_no_refusal_prints_the_secret_of_an_address(scheme, written, people, capsys, monkeypatch):
    def fail(address):
        try:
            raise ValueError(f"cannot parse {address}")
        except ValueError:
            place = address.partition("://")[2]
            raise OSError(f"access denied to {place} of {address}, with the key {SECRET}")  # noqa: B904 (as libraries do)

    monkeypatch.setattr(stores, "_opened", fail)
    bucket = f"{scheme}://AKIAEXAMPLE:{written}@bucket"
    for address in (bucket, f"{bucket}/data.parquet", Path(f"{bucket}/data.parquet")):
        for ask in (lambda at: ileed.read(at), lambda at: ileed.load(at), METHOD.fit(people, seed=0).save):
            with pytest.raises(IleedError) as refused:
                ask(address)
            shown = "".join(traceback.format_exception(refused.value, limit=0))
            assert f"{scheme}://***@bucket" in shown
            assert not any(part in shown for part in ("AKIAEXAMPLE", "wJalr", "K7MDENG"))
        words = (["inspect", str(address)], ["fit", str(address), "--json"], ["card", str(address)])
        for command_words in (*words, ["report", str(address)], ["convert", str(address), f"{address}.out"]):
            assert command(command_words) == 2
            printed = "".join(capsys.readouterr())
            assert "***@bucket" in printed
            assert not any(part in printed for part in ("AKIAEXAMPLE", "wJalr", "K7MDENG"))


def test_a_run_at_an_address_with_a_secret_works_and_no_output_holds_the_secret(people, tmp_path, capsys):
    run = f"memory://AKIAEXAMPLE:{SECRET.replace('/', '%2F')}@bucket"
    METHOD.fit(people, seed=0).save(run)
    ileed.write(people, tmp_path / "people.parquet")
    for words in (
        ["report", run, "--out", str(tmp_path / "page.html"), "--table", f"{run}-table.csv"],
        ["report", run, run, "--out", str(tmp_path / "comparison.html")],
        ["fit", str(tmp_path / "people.parquet"), "--out", f"{run}/2", "--steps", "5", "--restarts", "1", "--json"],
    ):
        assert command(words) == 0
        assert "wJalr" not in "".join(capsys.readouterr())
    stores.put(Path(f"{run}/weights.safetensors"), b"damaged")
    assert command(["card", run]) == 2
    assert "wJalr" not in "".join(capsys.readouterr())
    assert not [path for path in tmp_path.rglob("*") if b"wJalr" in path.name.encode() + read(path)]


def read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
