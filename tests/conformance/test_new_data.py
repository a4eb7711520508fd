"""New data that differ from those of a fit get the same answer or an error: never another answer, never another error.

The law is checked for every entry that takes new data, with the files of every reader: with their columns in another
order, features or labels renamed, one column more or fewer, and the same numbers in another type.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ileed
from ileed import by_column
from ileed.cli import run as command
from ileed.report import compare_runs, figures
from ileed.serve import Destination, Marks, Session

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'ileed[robot]'")

Table = Mapping[str, Any]
NUMBERS = ("age", "pulse", "load")
ROLES = {"action": "decision", "demonstrator": "nurse", "episode": "case"}
MOVES = ("dx", "dy", "up", "left")
CHOICES = ("admit", "discharge", "observe")


@cache
def table() -> Table:
    """Three nurses with 5 cases of 4 steps each; the first two features decide, and nurse c often slips."""
    rng = np.random.default_rng(0)
    steps, nurses = 60, np.repeat(["a", "b", "c"], 20)
    numbers = {name: rng.normal(20 * place, 1 + place, steps).round(2) for place, name in enumerate(NUMBERS)}
    best = (numbers["age"] > 0).astype(int) + (numbers["pulse"] > 20)
    slips = rng.random(steps) < np.where(nurses == "c", 0.7, 0.1)
    chosen = np.where(slips, rng.integers(3, size=steps), best)
    return {name: values.astype(np.float32) for name, values in numbers.items()} | {
        "arrival": rng.choice(["ambulance", "walk-in"], steps),
        "nurse": nurses,
        "case": np.repeat([f"case {k:02}" for k in range(15)], 4),
        "decision": np.array(CHOICES)[chosen],
        "dx": rng.normal(numbers["age"], 0.2),
        "dy": rng.normal(size=steps),
    }


Change = Callable[[Table], Table]


def permuted(columns: Table) -> Table:
    return dict(reversed(columns.items()))


def renamed_feature(columns: Table) -> Table:
    return {"temperature" if name == "pulse" else name: values for name, values in columns.items()}


def renamed_labels(columns: Table) -> Table:
    """The actions under other names, in another order of the alphabet; so are the dimensions of continuous ones."""
    other = {"admit": "2 admit", "discharge": "1 discharge", "observe": "0 observe"}
    names = {"dx": "up", "dy": "left"}
    renamed = dict(columns) | {"decision": np.array([other[word] for word in columns["decision"]])}
    return {names.get(name, name): values for name, values in renamed.items()}


def widened(columns: Table) -> Table:
    return {"aisle": (np.arange(len(columns["age"])) % 7 / 2).astype(np.float32)} | dict(columns)


def narrowed(columns: Table) -> Table:
    return {name: values for name, values in columns.items() if name != "age"}


def widened_and_narrowed(columns: Table) -> Table:
    """One column more and another fewer, so that the width is that of the fit."""
    return narrowed(widened(columns))


def other_type(columns: Table) -> Table:
    return {name: values.astype(np.float64) if name in NUMBERS else values for name, values in columns.items()}


CHANGES = (permuted, renamed_feature, renamed_labels, widened, narrowed, widened_and_narrowed, other_type)
SAME = (permuted, widened, other_type)  # which names allow to answer as before


# --- formats: files of every reader, made of the columns of a table


def seen(columns: Table) -> list[str]:
    """The features, in the order of the columns."""
    return [name for name in columns if name not in ("nurse", "case", "decision", *MOVES)]


def discrete(columns: Table) -> Table:
    return {name: columns[name] for name in columns if name in (*seen(columns), *ROLES.values())}


def of_discrete(columns: Table) -> ileed.Demonstrations:
    return ileed.from_table(discrete(columns), **ROLES)


def of_continuous(columns: Table) -> ileed.Demonstrations:
    moves = [name for name in columns if name in MOVES]
    kept = {name: columns[name] for name in columns if name in (*seen(columns), *moves, "nurse", "case")}
    return ileed.from_table(kept, **ROLES | {"action": moves})


def of_numbers(columns: Table) -> ileed.Demonstrations:
    """Continuous actions, and numbers alone as features."""
    return of_continuous({name: values for name, values in columns.items() if name != "arrival"})


def numbered(columns: Table) -> Any:
    """The discrete actions as a program without labels numbers them."""
    return np.array([CHOICES.index(word.split()[-1]) for word in columns["decision"]])


def write_rows(columns: Table, path: Path) -> None:
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    path.write_text("\n".join(",".join(map(str, row)) for row in [columns, *rows]))


def write_csv(columns: Table, path: Path) -> None:
    write_rows(discrete(columns), path)


def write_lerobot_of_others(columns: Table, path: Path) -> None:
    """LeRobot's own writer knows nothing of our notes, and names the numbers of features in meta/info.json."""
    data = of_numbers(columns)
    ileed.write(data, path, format="lerobot")
    (path / "meta/ileed.json").unlink()
    info = json.loads((path / "meta/info.json").read_text())
    info["features"]["observation.state"]["names"] = {"motors": list(data.encoding.inputs)}
    info["features"]["action"]["names"] = list(data.encoding.action)
    (path / "meta/info.json").write_text(json.dumps(info))


def write_robomimic_of_others(columns: Table, path: Path) -> None:
    """A key for each feature, and an integer that says who demonstrated; the dimensions of actions have no names."""
    ordered = sorted(columns, key=lambda name: ("dx", "up", "dy", "left").index(name) if name in MOVES else -1)
    data = of_numbers({name: columns[name] for name in ordered})
    with h5py.File(path, "w") as file:
        for number in range(data.episode_count):
            steps = data.episode == number
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"], demo["who"] = data.actions[steps], data.demonstrator[steps]
            for place, name in enumerate(data.encoding.inputs):
                demo[f"obs/{name}"] = data.observations[steps, place : place + 1]


def write_minari_of_others(columns: Table, path: Path) -> None:
    """Observations in a Dict space, with an entry for each feature."""
    data = of_discrete({name: columns[name] for name in columns if name != "arrival"} | {"decision": numbered(columns)})
    ileed.write(data, path, format="minari")
    about = json.loads((path / "data/metadata.json").read_text())
    del about["ileed"], about["observation_space"]
    (path / "data/metadata.json").write_text(json.dumps(about))
    with h5py.File(path / "data/main_data.hdf5", "r+") as file:
        for episode in file.values():
            rows = episode["observations"][:]
            del episode["observations"]
            for place, name in enumerate(data.encoding.inputs):
                episode[f"observations/{name}"] = rows[:, place]


def write_answers(columns: Table, path: Path) -> None:
    path.mkdir()
    names = {"case": "question", "nurse": "worker", "decision": "answer", "aisle": "aisle"}
    kept = {names[name]: values for name, values in columns.items() if name in names}
    write_rows(kept, path / "answer.csv")


def of_episodes(columns: Table) -> ileed.Demonstrations:
    """Episodes as gymnasium programs record them, with a mapping of observations."""
    parts = [np.flatnonzero(columns["case"] == case) for case in dict.fromkeys(columns["case"].tolist())]
    numbers, action = [name for name in seen(columns) if name != "arrival"], numbered(columns)
    return ileed.Demonstrations.from_episodes(
        [{"observations": {name: columns[name][part] for name in numbers}, "actions": action[part]} for part in parts],
        demonstrator=[columns["nurse"][part[0]] for part in parts],
        action_count=3,
    )


Write = Callable[[Table, Path], object]


def writer(of: Callable[[Table], ileed.Demonstrations], name: str) -> Write:
    return lambda columns, path: ileed.write(of(columns), path, format=name)


@dataclass(frozen=True)
class Format:
    """How columns become data: by a file that a reader reads, or in memory."""

    reader: str | None
    suffix: str
    write: Write | None
    read: Callable[[Any], ileed.Demonstrations]
    options: tuple[str, ...] = ()
    """Of the command that reads the file."""

    def make(self, columns: Table, folder: Path) -> tuple[ileed.Demonstrations, Path | None]:
        if self.write is None:
            return self.read(columns), None
        path = folder / f"data{self.suffix}"
        self.write(columns, path)
        return self.read(path), path


def from_file(path: Path) -> ileed.Demonstrations:
    return ileed.from_table(path, **ROLES)


OF_TABLE = ("--action", "decision", "--who", "nurse", "--episode", "case")
OURS = {"parquet": ".parquet", "parquet-folder": "", "minari": "-v0", "imitation": "", "lerobot": ""}
FORMATS = {
    "table in memory": Format(None, "", None, of_discrete),
    "continuous table in memory": Format(None, "", None, of_continuous),
    "Arrow": Format(None, "", None, lambda columns: ileed.from_table(pa.table(dict(discrete(columns))), **ROLES)),
    "episodes in memory": Format(None, "", None, of_episodes),
    "CSV table": Format("table", ".csv", write_csv, from_file, OF_TABLE),
    "parquet table": Format(
        "table", ".parquet", lambda columns, path: pq.write_table(pa.table(dict(discrete(columns))), path), from_file,
        OF_TABLE,
    ),
    **{name: Format(name, suffix, writer(of_discrete, name), ileed.read) for name, suffix in OURS.items()},
    "robomimic": Format("robomimic", ".hdf5", writer(of_continuous, "robomimic"), ileed.read),
    "lerobot of others": Format(
        "lerobot", "", write_lerobot_of_others, lambda path: ileed.read(path, demonstrator=by_column("operator")),
        ("--demonstrator", "operator"),
    ),
    "robomimic of others": Format(
        "robomimic", ".hdf5", write_robomimic_of_others, lambda path: ileed.read(path, demonstrator=by_column("who")),
        ("--demonstrator", "who"),
    ),
    "minari of others": Format("minari", "-v0", write_minari_of_others, ileed.read),
    "crowd": Format("crowd", "", write_answers, ileed.read),
}  # fmt: skip
SMALL = {"restarts": 1, "steps": 15, "folds": 2}


@pytest.fixture(scope="module")
def fit_of(tmp_path_factory):
    """The fit to the columns as they are, by the name of a format, and its run directory; each is made once."""

    @cache
    def fit(name: str) -> tuple[ileed.Fitted, Path]:
        folder = tmp_path_factory.mktemp("fit")
        data, _ = FORMATS[name].make(table(), folder)
        policy = ileed.CategoricalMLP(hidden=(4,)) if data.discrete else ileed.MixtureMLP(hidden=(4,), modes=1)
        ileed.Ileed(policy=policy, **SMALL).fit(data, seed=0, check_width=False).save(folder / "run")
        return ileed.load(folder / "run"), folder / "run"

    return fit


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Changed columns in a format: the columns, the data, and where they lie; or the error of a reader. Made once."""

    @cache
    def make(name: str, change: Change) -> tuple[Table, ileed.Demonstrations, Path | None] | ileed.IleedError:
        columns = change(table())
        try:
            return columns, *FORMATS[name].make(columns, tmp_path_factory.mktemp("changed"))
        except ileed.IleedError as error:
            return error

    return make


# --- entries: whatever takes new data


@dataclass(frozen=True)
class New:
    """A fit, and new data for it."""

    fitted: ileed.Fitted
    run: Path
    columns: Table
    data: ileed.Demonstrations
    path: Path | None
    options: tuple[str, ...]
    folder: Path
    capsys: Any

    @property
    def observations(self) -> dict[str, Any]:
        return {name: self.columns[name] for name in seen(self.columns)}

    def command(self, *words: object) -> str:
        """What a command prints; a refusal of it is an error of ours."""
        code = command([str(word) for word in (*words, *self.options)])
        told = self.capsys.readouterr()
        assert code in (0, 2)
        assert "Traceback" not in told.err
        if code:
            raise ileed.IleedError(told.err)
        return told.out


def scores(curated: ileed.Curated) -> Any:
    return curated.episodes.drop_columns(["key"]).to_pydict()


def page(new: New, make: Callable[..., Path]) -> str:
    return make(out=new.folder / "page.html", data=new.data).read_text()


def page_of_command(new: New) -> str:
    out = new.folder / "page.html"
    new.command("report", new.run, "--data", new.path, "--out", out)
    return out.read_text()


def serve(new: New) -> Any:
    """What the live page shows of the data: all episodes, and every step of one."""
    curated = ileed.curate(new.fitted, new.data)
    marks = Marks.of(new.run, new.data.fingerprint, new.data.episode_count)
    session = Session(new.run, new.fitted, curated, marks, Destination(new.folder / "out"))
    session.page()
    return {name: value for name, value in session.playback.listing().items() if name != "key"}, session.playback.part(
        2, 0
    )


ENTRIES: dict[str, Callable[[New], Any]] = {
    "Fitted.nats": lambda new: new.fitted.nats(new.data),
    "Fitted.assess": lambda new: new.fitted.assess(new.data).table().to_pydict(),
    "Policy.match": lambda new: new.fitted.policy.match(new.data).observations,
    "Policy.preprocess": lambda new: new.fitted.policy.preprocess(new.observations),
    "Policy.act": lambda new: new.fitted.policy.act(new.observations),
    "Policy.predict": lambda new: new.fitted.policy.predict(new.observations)[0],
    "Policy.distribution": lambda new: probabilities(new.fitted.policy.distribution(new.observations)),
    "Policy.next_distribution": lambda new: probabilities(new.fitted.policy.next_distribution(new.observations)[0]),
    "Expertise.__call__": lambda new: new.fitted.expertise(new.observations, new.fitted.expertise.names[0]),
    "rate": lambda new: ileed.rate(new.fitted, new.data).table().to_pydict(),
    "rate by a policy": lambda new: ileed.rate(new.fitted.policy, new.data).table().to_pydict(),
    "curate": lambda new: scores(ileed.curate(new.fitted, new.data)),
    "curate by cross-fitting": lambda new: scores(ileed.curate(new.fitted, new.data, cross_fit=True)),
    "report": lambda new: page(new, lambda **options: ileed.report(new.run, **options)),
    "report.compare_runs": lambda new: page(new, lambda **options: compare_runs(new.run, new.run, **options)),
    "report.figures": lambda new: {
        name: path.read_text() for name, path in figures(new.run, new.folder / "figures", data=new.data).items()
    },
    "serve.Session": serve,
    "ileed rate": lambda new: json.loads(new.command("rate", new.run, new.path, "--json"))["table"],
    "ileed curate": lambda new: json.loads(
        new.command("curate", new.run, new.path, "--json", "--format", "tables", "--out", new.folder / "curated")
    )["people"],
    "ileed report": page_of_command,
}
MATCHED = "Fitted.nats"
"""The entry that is checked with every format: all entries match data in one place, readers name them in another."""
SOME = ("table in memory", "CSV table", "lerobot of others", "crowd")
SHORT = ("CSV table", "lerobot of others")  # for entries that take seconds
SECONDS = ("curate", "curate by cross-fitting", "report", "report.compare_runs", "report.figures", "serve.Session")
PAIRS = [
    (entry, name)
    for entry in ENTRIES
    for name in (FORMATS if entry == MATCHED else SHORT if entry in SECONDS or entry.startswith("ileed ") else SOME)
]


def probabilities(distribution: Any) -> Any:
    return distribution.probs if hasattr(distribution, "probs") else distribution.mean


def is_close(one: Any, other: Any) -> bool:
    """Equal, but for rounding of numbers to single precision."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_close, one, other))
    if isinstance(one, float | np.ndarray) or hasattr(one, "numpy"):
        found, expected = np.asarray(one), np.asarray(other)
        is_number = found.dtype.kind in "fc"
        return np.allclose(found, expected, rtol=1e-3, atol=1e-4) if is_number else np.array_equal(found, expected)
    return one == other


@pytest.mark.parametrize(("entry", "name"), PAIRS)
def test_data_that_differ_from_those_of_the_fit_get_the_same_answer_or_an_error(
    entry, name, fit_of, changed, tmp_path, capsys
):
    def answer(change: Change) -> Any:
        """None where the columns are refused with an error of ours."""
        folder = tmp_path / change.__name__
        folder.mkdir()
        made = changed(name, change)
        try:
            if isinstance(made, ileed.IleedError):
                raise made
            return ENTRIES[entry](New(*fit_of(name), *made, FORMATS[name].options, folder, capsys))
        except ileed.IleedError:
            return None

    expected = answer(dict)
    for change in CHANGES:
        found = answer(change)
        is_text = isinstance(found, str) and change is other_type  # in which digits may be rounded otherwise
        assert found is None or is_text or (expected is not None and is_close(found, expected)), change.__name__
        if change in SAME and expected is not None:
            assert found is not None, f"{change.__name__} columns can be matched by name"


# --- both lists are complete


def test_every_reader_of_ours_is_checked():
    from ileed.formats import formats

    assert {each.name for each in formats()} <= {each.reader for each in FORMATS.values()}


def test_every_entry_that_takes_new_data_is_checked():
    """Whatever has a parameter for data or observations, and asks a fit about them."""
    asked = {"data", "demonstrations", "observations", "observation"}
    methods = {
        f"{kind.__name__}.{name}"
        for kind in (ileed.Fitted, ileed.Policy, ileed.Expertise)
        for name, method in vars(kind).items()
        if (name == "__call__" or not name.startswith("_")) and callable(method)
        if asked & inspect.signature(method).parameters.keys()
    }
    fits = {"fitted", "policy", "path"}
    functions = {
        name
        for name in ileed.__all__
        if inspect.isfunction(function := getattr(ileed, name)) and not name.startswith(("read", "write"))
        if asked & (names := inspect.signature(function).parameters.keys()) and fits & names
    }
    of_names_alone = {"Fitted.match_names", "Fitted.anonymise_with"}  # which read no column but the demonstrator
    of_matched_data = {"Fitted.step_likelihood"}  # by `Policy.match`, as its docstring says
    assert methods | functions <= ENTRIES.keys() | of_names_alone | of_matched_data
    assert {"Fitted.nats", "Policy.act", "Expertise.__call__", "rate", "curate", "report"} <= methods | functions


# --- arrays, which can be checked by their shape alone


@pytest.fixture(scope="module")
def of_arrays():
    data = of_numbers(table())
    arrays = {name: getattr(data, name) for name in ("observations", "actions", "demonstrator", "episode", "names")}
    plain = ileed.Demonstrations(**arrays)
    return ileed.Ileed(policy=ileed.MixtureMLP(hidden=(4,), modes=1), **SMALL).fit(plain, seed=0), plain


@pytest.mark.parametrize("change", [lambda rows: rows[:, 1:], lambda rows: rows[:, [0, 0, 1, 2]], lambda rows: rows[0]])
def test_arrays_of_another_width_are_refused(change, of_arrays):
    fitted, data = of_arrays
    for ask in (fitted.policy.act, fitted.policy.distribution, lambda rows: fitted.expertise(rows, "a")):
        with pytest.raises(ileed.DemonstrationError, match="shape"):
            ask(change(data.observations))


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_arrays_of_another_type_get_the_same_answer(kind, of_arrays):
    fitted, data = of_arrays
    found = fitted.policy.act(data.observations.astype(kind))
    np.testing.assert_allclose(found, fitted.policy.act(data.observations), rtol=1e-4, atol=1e-5)


def test_a_table_is_not_read_by_position(of_arrays):
    """The fit has no names, so that nothing says which column is which."""
    with pytest.raises(ileed.DemonstrationError, match="table"):
        of_arrays[0].policy.act({name: table()[name] for name in NUMBERS})


def test_data_without_names_are_refused_by_a_fit_with_names_until_the_caller_names_them(fit_of):
    fitted, data = fit_of("table in memory")[0], of_discrete(table())
    nameless = replace(data, encoding=None)
    with pytest.raises(ileed.DemonstrationError, match="encoding"):
        fitted.nats(nameless)
    np.testing.assert_array_equal(fitted.nats(replace(nameless, encoding=fitted.policy.encoding)), fitted.nats(data))


def test_names_do_not_disturb_a_fit_that_has_none(of_arrays):
    fitted, data = of_arrays
    np.testing.assert_array_equal(fitted.nats(replace(of_numbers(table()))), fitted.nats(data))


# --- what names allow


def test_categories_and_labels_that_are_missing_from_the_data_change_nothing(fit_of):
    fitted, data = fit_of("table in memory")[0], of_discrete(table())
    rows = (table()["arrival"] == "ambulance") & (table()["decision"] != "discharge")
    some = of_discrete({name: values[rows] for name, values in table().items()})
    assert (len(some.encoding.inputs), some.action_count) == (4, 2)
    np.testing.assert_allclose(fitted.nats(some), fitted.nats(data)[rows], rtol=1e-6)


def test_a_category_or_label_that_the_fit_has_not_seen_is_refused(fit_of):
    for column, word in (("arrival", "helicopter"), ("decision", "operate")):
        other = table()[column].astype("U20")
        other[7] = word
        with pytest.raises(ileed.DemonstrationError, match=word):
            fit_of("table in memory")[0].assess(of_discrete(dict(table()) | {column: other}))


def test_a_command_reads_a_table_as_that_of_the_fit_was_read(tmp_path, capsys):
    """Wards are text, also where those of some rows look like numbers; numbers of rows are no feature of the fit."""
    columns = discrete(dict(table()) | {"arrival": np.where(np.arange(60) % 4 < 2, "12", "A1")})
    rows = np.arange(60) % 4 < 2
    later = {"row": np.arange(30)} | {name: values[rows] for name, values in columns.items()}
    for name, each in (("all", columns), ("later", later)):
        write_rows(each, tmp_path / f"{name}.csv")
    words = [
        tmp_path / "all.csv",
        *OF_TABLE,
        "--restarts",
        "1",
        "--steps",
        "15",
        "--folds",
        "0",
        "--out",
        tmp_path / "run",
    ]
    assert command(["fit", *map(str, words), "--policy", "CategoricalMLP(hidden=(4,))"]) == 0
    capsys.readouterr()
    assert command(["rate", str(tmp_path / "run"), str(tmp_path / "later.csv"), *OF_TABLE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["table"]
    part = ileed.from_table({name: values[rows] for name, values in columns.items()}, **ROLES)
    expected = ileed.load(tmp_path / "run").assess(part).table().to_pylist()
    assert is_close(found, expected)


def test_missing_values_are_filled_as_those_of_the_fit_were():
    gaps = dict(table()) | {"age": np.where(np.arange(60) % 9 == 0, np.nan, table()["age"])}
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), **SMALL)
    fitted = method.fit(ileed.from_table(discrete(gaps), **ROLES, missing="category"), seed=0, check_width=False)
    whole = ileed.from_table(discrete(gaps), **ROLES, missing="category")
    expected = fitted.nats(whole)
    some = {name: values[:30] for name, values in gaps.items()}  # whose mean is another
    found = ileed.from_table(discrete(some), **ROLES, missing="category")
    assert found.encoding != whole.encoding
    np.testing.assert_allclose(fitted.nats(found), expected[:30], rtol=1e-5)
    present = {name: values[~np.isnan(gaps["age"])] for name, values in gaps.items()}
    np.testing.assert_allclose(fitted.nats(of_discrete(present)), expected[~np.isnan(gaps["age"])], rtol=1e-5)


def test_skill_weights_of_another_width_are_refused():
    data = replace(of_numbers(table()), skills={"phase": np.eye(3, dtype=np.float32)[np.arange(60) % 3]})
    method = ileed.Ileed(policy=ileed.MixtureMLP(hidden=(4,), modes=1), expertise=ileed.Skills("phase"), **SMALL)
    fitted = method.fit(data, seed=0, check_width=False)
    with pytest.raises(ileed.DemonstrationError, match="phase"):
        fitted.nats(replace(data, skills={"phase": data.skills["phase"][:, :2]}))


@pytest.mark.parametrize("environment", ["Acrobot-v1", "MountainCar-v0"])
def test_an_environment_of_another_width_is_refused(environment):
    """CartPole shows four numbers, the others six and two."""
    pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'ileed[minigrid]'")
    data = of_discrete(table())
    cart = ileed.Demonstrations(
        observations=np.repeat(data.observations[:, :1], 4, axis=1), actions=data.actions % 2,
        demonstrator=data.demonstrator, episode=data.episode,
    )  # fmt: skip
    fitted = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), **SMALL).fit(cart, seed=0, check_width=False)
    with pytest.raises(ileed.IleedError, match="shape"):
        ileed.evaluate(fitted.policy, environment, episodes=1)
