"""Anonymised outputs contain no name in any byte, and an anonymised run still matches the data it was fitted to."""

import base64
import gzip
import html
import http.client
import io
import json
import re
import threading
import urllib.parse
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ileed
from ileed.cli import COMMANDS, run
from ileed.errors import DemonstrationError, SettingsError
from ileed.report import compare_runs
from ileed.serve import Server

NAMES = ("Zoë Quillon", "adam_brookner", "MIA STONWELL")
WORDS = ("quillon", "brookner", "stonwell")
"""Of each name, what is searched for, in any case."""
TABLE = ["--action", "decision", "--who", "nurse", "--features", "pulse", "ward", "--episode", "nurse", "shift"]
QUICK = ["--restarts", "1", "--steps", "5", "--folds", "2", "--check-width", "False"]


def nurses(seed: int = 0) -> pd.DataFrame:
    """Decisions of three nurses in shifts that each nurse counts from one; the second nurse decides by chance."""
    chance = np.random.default_rng(seed)
    who, shift = np.repeat(np.arange(3), 80), np.tile(np.repeat(np.arange(1, 11), 8), 3)
    pulse, ward = chance.integers(0, 4, size=240), chance.choice(["east", "west"], size=240)
    skilled = chance.random(240) < np.array([0.95, 0.5, 0.9])[who]
    decision = np.where(skilled, pulse > 1, chance.random(240) < 0.5)
    columns = {"nurse": np.array(NAMES)[who], "shift": shift, "pulse": pulse, "ward": ward}
    columns["mentor"] = [f"with {name}" for name in np.array(NAMES)[who - 1]]
    return pd.DataFrame(columns | {"decision": np.where(decision, "admit", "discharge")})


def robot() -> ileed.Demonstrations:
    chance = np.random.default_rng(0)
    seen = chance.normal(size=(180, 2)).astype(np.float32)
    return ileed.Demonstrations(
        observations=seen,
        actions=(seen[:, ::-1] + chance.normal(scale=0.2, size=(180, 2))).astype(np.float32),
        demonstrator=np.repeat([0, 1, 2], 60),
        episode=np.arange(180) // 10,
        names=NAMES,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The data: a table, a table of answers, a robomimic file and a LeRobot folder, full of names."""
    folder = tmp_path_factory.mktemp("named")
    nurses().to_csv(folder / "shifts.csv", index=False)
    answers = {
        "task": [f"t{k}" for k in range(8)] * 3,
        "worker": np.repeat(NAMES, 8),
        "label": ["a", "b", "b", "a"] * 6,
    }
    pd.DataFrame(answers).to_csv(folder / "answers.csv", index=False)
    ileed.write(robot(), folder / "robot.hdf5")
    with h5py.File(folder / "robot.hdf5", "r+") as file:
        file["data"].attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "operator": NAMES[0]})
        for number, demo in enumerate(file["data"].values()):
            demo.attrs["model_file"] = f"<mujoco path='/home/{NAMES[0]}/lift.xml'/>"
            demo.attrs["operator"] = NAMES[number % 3]
            demo["obs/instruction"] = np.array([f"as {NAMES[1]} does it".encode()] * 10)
        file["mask/by MIA STONWELL alone"] = np.array([b"demo_0"])
        file["mask/train"] = np.array([b"demo_0", b"demo_7"])
    ileed.write(robot(), folder / "folder", format="lerobot")
    return folder


@pytest.fixture(scope="module")
def runs(place) -> Path:
    """Runs of the table and of the robomimic file, with names."""
    for name, words in (("shifts", ["shifts.csv", *TABLE]), ("robot", ["robot.hdf5"])):
        data, *options = words
        assert run(["fit", str(place / data), *options, "--out", str(place / "runs" / name), *QUICK]) == 0
    return place / "runs"


# --- the search


def content(path: Path) -> bytes:
    """Every byte of a file, and what its compressed or encoded parts say."""
    raw = path.read_bytes()
    found = [path.name.encode(), raw]
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        found.append(repr((table.schema.to_string(show_field_metadata=True), table.schema.metadata)).encode())
        found.append(repr(table.to_pylist()).encode())
    if path.suffix == ".hdf5":
        with h5py.File(path) as file:
            file.visititems(lambda name, item: found.append(described(name, item)))
            found.append(described("", file))
    if path.suffix == ".arrow":
        with pa.memory_map(str(path)) as opened:
            found.append(repr(pa.ipc.open_stream(opened).read_all().to_pylist()).encode())
    if raw[:2] == b"\x1f\x8b":
        found.append(gzip.decompress(raw))
    if zipfile.is_zipfile(io.BytesIO(raw)):
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            found += [archive.read(name) for name in archive.namelist()]
    return b"\n".join(found)


def described(name: str, item) -> bytes:
    values = repr(item[()].tolist()) if hasattr(item, "dtype") else ""
    return repr((name, [(key, item.attrs[key]) for key in item.attrs], values)).encode()


def words_in(searched: bytes) -> list[str]:
    """The names whose words stand in some bytes, in any case, as UTF-8, UTF-16, UTF-32, escaped text or base64."""
    blocks = [base64.b64decode(part + b"===") for part in re.findall(rb"base64,([A-Za-z0-9+/]+)", searched)]
    text = b"\n".join([searched, *blocks]).decode("utf-8", errors="replace")
    forms = [text, html.unescape(text), urllib.parse.unquote(text), text.replace("\0", "")]
    plain = "\n".join(forms).casefold()
    return [each for each in WORDS if each in plain]


def test_the_search_finds_a_name_in_every_kind_of_file(tmp_path):
    text = f"by {NAMES[1]}"
    (tmp_path / "text.txt").write_text(text.upper())
    (tmp_path / "wide.txt").write_bytes(text.encode("utf-16"))
    (tmp_path / "page.html").write_text(f'<a href="data:x;base64,{base64.b64encode(text.encode()).decode()}">')
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.encode()))
    pq.write_table(pa.table({"x": [text] * 100}), tmp_path / "data.parquet", compression="zstd", use_dictionary=False)
    np.savez_compressed(tmp_path / "data.npz", text=np.array([text]))
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        file.create_dataset("x", data=np.array([text.encode()] * 100), compression="gzip")
    with h5py.File(tmp_path / "attribute.hdf5", "w") as file:
        file.create_group("x").attrs["y"] = text
    files = sorted(tmp_path.iterdir())
    assert len(files) == 8
    assert [words_in(content(path)) for path in files] == [["brookner"]] * 8


def visit(server: Server, seen: list[bytes]) -> None:
    """Serve, and ask for the page and everything that the page asks for; what is answered is kept."""
    thread = threading.Thread(target=SERVE, args=(server,))
    thread.start()
    token = server.address.partition("token=")[2]
    headers = {"Authorization": f"Bearer {token}", "Origin": f"http://127.0.0.1:{server.port}"}

    def ask(method: str, path: str, body: str | None = None) -> bytes:
        asked = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        asked.request(method, path, body, headers)
        answer = asked.getresponse()
        seen.append(repr(answer.getheaders()).encode() + answer.read())
        asked.close()
        return seen[-1]

    try:
        assert b"person" in ask("GET", f"/?token={token}")
        for path in ("/episodes", "/episodes/0/0", "/episodes/7/0", "/frames/0/0", "/marks", "/episodes/999/0"):
            ask("GET", path)
        ask("POST", "/marks", '{"episode": 0, "mark": "drop"}')
        assert b"curated.json" in ask("POST", "/save", "{}")
        ask("POST", "/save", "{}")  # refused: it is there
    finally:
        server.stop()
        thread.join()


SERVE = Server.run


def commands(place: Path, runs: Path, out: Path) -> list[tuple[int, list[str]]]:
    """Calls of every command that touches names, with their exit codes; all outputs go to `out`."""
    table, robot = [str(place / "shifts.csv"), *TABLE], [str(place / "robot.hdf5")]
    hide, hidden, folder = "--anonymise", str(out / "run"), str(place / "folder")
    calls = [
        (0, ["fit", *table, hide, "--out", hidden, *QUICK]),
        (0, ["fit", *table, hide, "--out", str(out / "json"), "--json", *QUICK]),
        (0, ["fit", *robot, hide, "--out", str(out / "robot"), *QUICK]),
        (0, ["compare", *table, hide, *QUICK[:4], "--demonstrator-model", "UniformMixture()"]),
        (0, ["convert", table[0], str(out / "converted.parquet"), *TABLE, hide]),
        (0, ["label", str(place / "answers.csv"), hide, "--out", str(out / "labelled")]),
        (0, ["label", str(place / "answers.csv"), hide, "--out", str(out / "labels"), "--format", "parquet"]),
    ]
    for data in (table, robot):
        calls += [(0, ["inspect", *data, hide]), (0, ["inspect", *data, hide, "--json"])]
    for form in ("robomimic", "lerobot", "minari", "imitation", "parquet-folder"):
        calls.append((0, ["convert", *robot, str(out / f"converted-{form}"), hide, "--format", form]))
    # an anonymised run with the original data, with and without --anonymise; and a named run with --anonymise
    for number, (saved, more) in enumerate(((hidden, []), (hidden, [hide]), (str(runs / "shifts"), [hide]))):
        end = [*more, "--out", str(out / f"{number}")]
        tables = ["--figures", f"{end[-1]}-figures", "--table", f"{end[-1]}.csv"]
        calls += [
            (0, ["rate", saved, *table, *more]),
            (0, ["rate", saved, *table, "--json", *more]),
            (0, ["card", saved, *more]),
            (0, ["report", saved, "--data", *table, *end[:-1], f"{end[-1]}.html", *tables]),
            (0, ["report", saved, *end[:-1], f"{end[-1]}-plain.html", "--table", f"{end[-1]}.parquet"]),
            (0, ["curate", saved, *table, *end]),
            (0, ["curate", saved, *table, *end, "--overwrite", "--json", "--keep", "0.5"]),
            (2, ["curate", saved, *table, *end[:-1], f"{end[-1]}-openpi", "--format", "openpi"]),
            (0, ["serve", saved, *table, *end[:-1], f"{end[-1]}-served"]),
        ]
    for form, data in (("robomimic", robot[0]), ("lerobot", folder), ("minari", folder), ("openpi", folder)):
        rule = ["--format", form, "--keep", "0.5", "--out"]
        calls.append((0, ["curate", str(runs / "robot"), data, hide, *rule, str(out / f"named-{form}")]))
        calls.append((0, ["curate", str(out / "robot"), data, *rule, str(out / form)]))
    page = ["--out", str(out / "refused.html")]
    return [
        *calls,
        (0, ["report", hidden, str(runs / "shifts"), "--data", *table, "--out", str(out / "both.html")]),
        (2, ["report", hidden, str(runs / "shifts"), *page]),
        (2, ["report", hidden, "--data", *robot, *page]),
        (2, ["report", str(runs / "shifts"), "--data", *robot, hide, *page]),
        (2, ["evaluate", hidden, "--env", "CartPole-v1", "--episodes", "1"]),
        (2, ["inspect", *table[:-3], "--episode", "shift", hide]),
        (2, ["inspect", *robot, "--masks", "by MIA STONWELL alone", hide]),
        (2, ["inspect", *table, "--skills", "mentor", hide]),
        (2, ["fit", *table[:5], "--features", "pulse", "mentor", hide, "--out", str(out / "refused"), *QUICK]),
    ]


def test_no_byte_of_any_output_of_any_command_contains_a_name(place, runs, tmp_path, capfd, monkeypatch):
    seen: list[bytes] = []
    monkeypatch.setattr(Server, "run", lambda server: visit(server, seen))
    calls = commands(place, runs, tmp_path)
    assert {words[0] for _, words in calls} == set(COMMANDS) - {"demo"}  # which has data of its own
    for code, words in calls:
        found = run(words)
        printed = "".join(capfd.readouterr())
        assert words_in(printed.encode()) == [], words
        assert found == code, (words, printed)
    assert words_in(b"\n".join(seen)) == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {str(path): found for path in files if (found := words_in(content(path)))} == {}
    assert (len(seen), len(files) > 100) == (30, True)


# --- an anonymised run and the data it was fitted to


def shifts(table: pd.DataFrame, **options) -> ileed.Demonstrations:
    named = {
        "action": "decision",
        "demonstrator": "nurse",
        "episode": ["nurse", "shift"],
        "features": ["pulse", "ward"],
    }
    return ileed.from_table(table, **(named | options))


METHOD = ileed.Ileed(
    policy=ileed.CategoricalMLP(hidden=(4,)), demonstrator=ileed.BiasedMixture(), restarts=1, steps=150
)


@pytest.fixture(scope="module")
def data() -> ileed.Demonstrations:
    return shifts(nurses())


@pytest.fixture(scope="module")
def named(data) -> ileed.Fitted:
    return METHOD.fit(data, seed=0, device="cpu")


@pytest.fixture(scope="module")
def hidden(data) -> ileed.Fitted:
    return METHOD.fit(data.anonymise(), seed=0, device="cpu")


def test_an_anonymised_fit_judges_the_original_data_as_a_named_fit_does(data, named, hidden, tmp_path):
    key = data.pseudonyms()
    one, other = ileed.curate(named, data, keep=0.5), ileed.curate(hidden, data, keep=0.5)
    for name, score in one.scores.items():
        assert np.array_equal(score.estimate, other.scores[name].estimate)
    assert np.array_equal(one.kept, other.kept)
    assert other.judged_by == one.judged_by
    assert other.episodes["demonstrator"].to_pylist() == [
        key[each] for each in one.episodes["demonstrator"].to_pylist()
    ]
    assert np.array_equal(named.nats(data), hidden.nats(data))
    for rated, again in (
        (named.assess(data), hidden.assess(data)),
        (ileed.rate(named, data), ileed.rate(hidden, data)),
    ):
        assert again.names == tuple(key[name] for name in rated.names)
        assert np.array_equal(rated.best.expertise, again.best.expertise)
    hidden.save(tmp_path / "run")
    page = ileed.report(tmp_path / "run", data=data, truth={NAMES[2]: 0.875}).read_text()
    assert "0.88" in page.split(f"{key[NAMES[2]]}</th>")[1].split("</tr>")[0]
    assert words_in(page.encode()) == []


def test_demonstrators_of_other_data_are_new_to_an_anonymised_fit_and_a_warning_says_so(hidden):
    other = shifts(nurses(seed=1))
    for ask in (hidden.assess, lambda data: ileed.curate(hidden, data, keep=0.5)):
        with pytest.warns(UserWarning, match="pseudonyms") as told:
            found = ask(other)
        assert words_in(str(told[0].message).encode()) == []
        assert len(told) == 1
    assert set(found.episodes["demonstrator"].to_pylist()) == set(NAMES)
    stranger = METHOD.fit(shifts(nurses()).anonymise(), seed=0, device="cpu")
    renamed = ileed.curate(stranger.renamed({name: f"x{name}" for name in stranger.expertise.names}), other, keep=0.5)
    assert np.array_equal(found.scores["expertise"].estimate, renamed.scores["expertise"].estimate)


def test_an_anonymised_fit_refuses_other_data_where_it_must_know_the_demonstrators(hidden, tmp_path):
    hidden.save(tmp_path / "run")
    other = shifts(nurses(seed=1))
    for ask in (hidden.nats, lambda data: ileed.report(tmp_path / "run", data=data)):
        with pytest.raises(DemonstrationError, match="pseudonyms") as refused:
            ask(other)
        assert words_in(str(refused.value).encode()) == []


def test_a_named_run_rates_and_curates_the_same_with_pseudonyms(named, place, tmp_path, capsys):
    named.save(tmp_path / "run")
    for words in (["rate"], ["curate", "--keep", "0.5"]):
        found = []
        for more in ([], ["--anonymise"]):
            end = [] if words == ["rate"] else ["--out", str(tmp_path / f"out{len(more)}")]
            asked = [words[0], str(tmp_path / "run"), str(place / "shifts.csv"), *TABLE, *words[1:], *more, *end]
            assert run([*asked, "--json"]) == 0
            found.append(json.loads(capsys.readouterr().out))
        if words == ["rate"]:
            one, other = ([row["expertise"] for row in each["table"]] for each in found)
        else:
            one, other = (pq.read_table(tmp_path / f"out{k}/episodes.parquet")["expertise"].to_pylist() for k in (0, 1))
        assert one == other


def test_pseudonyms_are_the_same_in_every_output_of_an_anonymised_run(data, hidden, tmp_path):
    assert data.anonymise().anonymise().names == data.anonymise().names
    assert hidden.anonymise().expertise.names == hidden.expertise.names
    hidden.save(tmp_path / "run")
    shown = ileed.report(tmp_path / "run", anonymise=True, out=tmp_path / "hidden.html").read_text()
    assert shown == ileed.report(tmp_path / "run", out=tmp_path / "page.html").read_text()


def test_names_that_look_like_pseudonyms_are_names():
    names = ("person 1", "person 2", "person 3")
    data = replace(shifts(nurses()), names=names)
    assert not METHOD.fit(data, seed=0, device="cpu").has_pseudonyms
    assert data.anonymise().has_pseudonyms
    assert not replace(data.anonymise(), names=NAMES).has_pseudonyms
    fitted = METHOD.fit(data.anonymise(), seed=0, device="cpu")
    assert fitted.assess(data).names == data.anonymise().names
    newcomers = replace(data, names=("ann", "bob", "cy"))
    assert METHOD.fit(data, seed=0, device="cpu").assess(newcomers).names == newcomers.names  # without a warning


def test_an_anonymised_run_is_compared_with_another_only_through_data_of_both(data, named, hidden, tmp_path):
    other = METHOD.fit(shifts(nurses(seed=1)).anonymise(), seed=0, device="cpu")
    for name, each in (("named", named), ("hidden", hidden), ("other", other)):
        each.save(tmp_path / name)
    for second in ("named", "other"):
        with pytest.raises(SettingsError, match="pseudonyms"):
            compare_runs(tmp_path / "hidden", tmp_path / second)
    page = compare_runs(tmp_path / "hidden", tmp_path / "named", data=data).read_text()
    assert words_in(page.encode()) == []
    assert all(f"{each}</th>" in page for each in hidden.expertise.names)


# --- what anonymised data contain


def test_keys_that_name_demonstrators_are_replaced_and_others_lead_back_to_the_data(data):
    assert data.episode_keys[0] == f"{NAMES[0]}, 1"
    assert data.anonymise().episode_keys.tolist() == [f"episode {number}" for number in range(30)]
    assert data.anonymise().by(data.pseudonyms()[NAMES[1]]).episode_keys[0] == "episode 10"
    table = nurses().assign(case=np.repeat([f"case {number}" for number in range(30)], 8))
    plain = shifts(table, episode="case")
    assert plain.anonymise().episode_keys.tolist() == plain.episode_keys.tolist()
    numbered = table.assign(nurse=table.nurse.map(dict(zip(NAMES, "123", strict=True))))
    assert shifts(numbered).anonymise().episode_keys[0] == "episode 0"
    assert shifts(numbered, episode="case").anonymise().episode_keys[0] == "case 0"


@pytest.mark.filterwarnings("ignore:mentor identifies demonstrators")
@pytest.mark.parametrize("options", [{"features": ["pulse", "mentor"]}, {"skills": "mentor"}, {"action": "mentor"}])
def test_data_are_not_anonymised_where_a_column_would_keep_names(options):
    with pytest.raises(DemonstrationError, match="mentor") as refused:
        shifts(nurses(), **options).anonymise()
    assert words_in(str(refused.value).encode()) == []
    if "skills" not in options:
        fitted = METHOD.fit(shifts(nurses(), **options), seed=0, device="cpu", check_width=False)
        with pytest.raises(DemonstrationError, match="mentor"):
            fitted.anonymise()


def test_an_anonymous_robomimic_copy_keeps_the_numbers_of_every_episode_and_reads_back(place, tmp_path):
    data = ileed.read(place / "robot.hdf5")
    fitted = ileed.Ileed(restarts=1, steps=5, folds=0).fit(data.anonymise(), seed=0, device="cpu", check_width=False)
    ileed.curate(fitted, data, keep=0.5).write(tmp_path / "out", format="robomimic", source=place / "robot.hdf5")
    again = ileed.read(tmp_path / "out" / "curated.hdf5")
    assert again.equals(data.anonymise())
    assert again.episode_keys.tolist() == data.episode_keys.tolist()
    with h5py.File(tmp_path / "out" / "curated.hdf5") as file:
        assert set(file["mask"]) == {
            *again.names,
            "train",
            "ileed_keep",
            "ileed_band_1",
            "ileed_band_2",
            "ileed_band_3",
        }
        assert json.loads(file["data"].attrs["env_args"]) == {"env_name": "Lift", "type": 1}
