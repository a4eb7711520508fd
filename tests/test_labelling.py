"""Tables of labels: true labels and workers from answers, by laws, by a brute-force posterior and in simulation."""

from __future__ import annotations

import csv
import io
import json
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaln

import ileed
from ileed import DemonstrationError, Labelling, SettingsError, cli
from ileed.labels.models import MODELS

REAL = Path(__file__).parents[2] / "shared" / "data" / "crowd"
ANSWERS = {
    "task": ["t1", "t1", "t1", "t2", "t2", "t2", "t3", "t3"],
    "worker": ["ann", "bob", "cy", "ann", "bob", "cy", "ann", "cy"],
    "label": ["cat", "cat", "dog", "dog", "dog", "dog", "cat", "dog"],
}


def simulate(kind: str, seed: int, *, tasks=500, workers=30, labels=4, each=5):
    """Answers, true labels, confusion matrices and, of mixtures, rho: drawn from the model itself."""
    chance = np.random.default_rng(seed)
    true = chance.choice(labels, tasks, p=chance.dirichlet(np.full(labels, 5.0)))
    task = np.repeat(np.arange(tasks), each)
    worker = np.concatenate([chance.permutation(workers)[:each] for _ in range(tasks)])
    rho = chance.beta(4, 2, workers)
    slips = chance.dirichlet(np.ones(labels), workers) if kind == "biased" else np.full((workers, labels), 1 / labels)
    matrix = rho[:, None, None] * np.eye(labels) + (1 - rho)[:, None, None] * slips[:, None]
    if kind == "confusion":
        matrix = chance.gamma(np.where(np.eye(labels, dtype=bool), 4.0, 1.5 / labels), size=(workers, labels, labels))
        matrix /= matrix.sum(2, keepdims=True)
    chances = matrix[worker, true[task]].cumsum(1)
    answer = (chance.random(len(task))[:, None] > chances).sum(1).clip(0, labels - 1)
    return {"task": task, "worker": worker, "label": answer}, true, matrix, rho


tables = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 3)),
    min_size=2,
    max_size=40,
    unique_by=lambda row: row[:2],
).filter(lambda rows: len({row[2] for row in rows}) > 1)


def as_columns(rows):
    return dict(zip(("task", "worker", "label"), (list(column) for column in zip(*rows, strict=True)), strict=True))


# --- laws


@settings(deadline=None, max_examples=40)
@given(rows=tables, model=st.sampled_from([*MODELS]))
def test_no_iteration_lowers_the_objective_and_all_probabilities_are_proper(rows, model):
    found = Labelling(model=model, restarts=2, iterations=60).fit(as_columns(rows))
    objective = np.array(found.objective)
    assert (np.diff(objective) >= -1e-9 * np.abs(objective[1:])).all()
    np.testing.assert_allclose(found.probabilities.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(found.confusion.sum(2), 1, atol=1e-12)
    workers = found.worker_table().to_pandas()
    assert (workers.low <= workers.expertise).all()
    assert (workers.expertise <= workers.high).all()
    assert workers.accuracy.between(0, 1 + 1e-12).all()
    assert np.isfinite(found.log_likelihood)


@pytest.mark.parametrize("model", MODELS)
def test_names_of_labels_mean_nothing(model):
    answers, *_ = simulate("confusion", 0, tasks=60, workers=8, labels=3)
    order = np.array([2, 0, 1])
    one = Labelling(model=model, restarts=1).fit(answers)
    other = Labelling(model=model, restarts=1).fit({**answers, "label": order[answers["label"]]})
    np.testing.assert_allclose(one.probabilities, other.probabilities[:, order], atol=1e-8)
    np.testing.assert_allclose(one.confusion, other.confusion[:, order][:, :, order], atol=1e-8)


def test_the_order_of_rows_means_nothing():
    answers, *_ = simulate("biased", 1, tasks=60, workers=8)
    mixed = np.random.default_rng(0).permutation(len(answers["task"]))
    one, other = ileed.label(answers), ileed.label({name: column[mixed] for name, column in answers.items()})
    np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-8)


def test_the_seed_alone_decides_the_restarts():
    answers, *_ = simulate("confusion", 2, tasks=60, workers=8)
    one, same = ileed.label(answers, seed=3), ileed.label(answers, seed=3)
    assert (one.probabilities == same.probabilities).all()


def test_an_answer_that_is_given_twice_counts_twice():
    twice = {name: [*column, *column[:3]] for name, column in ANSWERS.items()}
    with pytest.raises(DemonstrationError, match=r"worker 'ann' answered task 't1' more than once \(3 such pairs\)"):
        ileed.label(twice)
    counted = Labelling(model="uniform", repeats="count").fit(twice)
    assert counted.worker_table()["answers"].to_pylist() == [4, 3, 4]
    once = Labelling(model="uniform").fit(ANSWERS)
    assert counted.probabilities[0, 0] > once.probabilities[0, 0]  # t1 is a cat, and now by four votes of six


def test_of_two_workers_the_one_who_agrees_with_the_others_is_the_expert():
    answers, true, *_ = simulate("uniform", 4, tasks=100, workers=6)
    for name, label in (("right", true), ("stubborn", np.zeros_like(true))):
        answers = {
            "task": [*answers["task"], *range(100)],
            "worker": [*map(str, answers["worker"]), *[name] * 100],
            "label": [*answers["label"], *label],
        }
    for model in MODELS:
        workers = Labelling(model=model).fit(answers).worker_table().to_pandas().set_index("worker")
        assert workers.expertise["right"] == workers.expertise.max()
        assert workers.low["right"] > workers.high["stubborn"]
        assert workers.accuracy["right"] == workers.accuracy.max()


def test_biased_slips_hold_uniform_ones_as_a_case():
    """With uniform slips the two models differ by little, and the likelier is the simpler one."""
    answers, *_ = simulate("uniform", 5)
    found = {model: Labelling(model=model).fit(answers) for model in ("uniform", "biased")}
    assert np.abs(found["uniform"].probabilities - found["biased"].probabilities).mean() < 0.005
    assert ileed.label(answers).model == "uniform"


@pytest.mark.parametrize("kind", MODELS)
def test_the_likeliest_model_is_that_of_the_simulation(kind):
    """In each of five populations; with two labels `biased` and `confusion` are one model, so there are four."""
    assert [ileed.label(simulate(kind, seed)[0]).model for seed in range(10, 15)] == [kind] * 5


def test_many_labels_do_not_make_the_largest_model_likeliest():
    """A confusion matrix of 20 labels has a population of 400 numbers, which 40 workers cannot pay for."""
    answers, *_ = simulate("biased", 8, tasks=400, workers=40, labels=20)
    assert ileed.label(answers).model == "biased"


# --- an independent oracle


def evidence_by_hand(columns, model: str) -> tuple[dict[tuple[int, ...], float], float]:
    """p(true labels | answers) by summation over all labels of three tasks, with the populations held at their start.

    Rows and rho are integrated exactly: they are Dirichlet and Beta, so that counts alone are needed.
    """
    task, worker, label = (np.asarray(columns[name]) for name in ("task", "worker", "label"))
    found = {}
    for true in product(range(2), repeat=3):
        of_class = np.bincount(true, minlength=2)
        log = betaln(1 + of_class[0], 1 + of_class[1])
        for who in range(3):
            own = worker == who
            right = np.array(true)[task[own]] == label[own]
            if model == "confusion":
                for value in range(2):
                    rows = right[np.array(true)[task[own]] == value]
                    log += betaln(2 + rows.sum(), 1 + (~rows).sum()) - betaln(2, 1)
            else:  # a right answer was known, or a slip that hit: rho + (1 - rho) / 2; any other a slip
                grid = (np.arange(20_000) + 0.5) / 20_000
                density = grid * 2 * (0.5 + grid / 2) ** right.sum() * ((1 - grid) / 2) ** (~right).sum()
                log += np.log(density.mean())
        found[true] = log
    total = np.logaddexp.reduce(list(found.values()))
    return {true: float(np.exp(log - total)) for true, log in found.items()}, float(total)


@pytest.mark.parametrize("model", ["uniform", "confusion"])
@pytest.mark.parametrize(
    "answers", [(0, 0, 1, 1, 1, 1, 0, 0, 1), (0, 0, 0, 1, 1, 1, 1, 0, 1), (1, 0, 0, 0, 1, 0, 0, 1, 1)]
)
def test_three_tasks_and_three_workers_agree_with_the_exact_posterior(model, answers, monkeypatch):
    """Labels agree, and the bound is one; with few answers a mean field is sharper than the posterior, by up to .3."""
    monkeypatch.setattr("ileed.labels.models.population_update", lambda prior, *_: prior)
    monkeypatch.setattr("ileed.labels.models.gamma_log_density", lambda *_: 0.0)
    columns = {"task": [0, 0, 0, 1, 1, 1, 2, 2, 2], "worker": [0, 1, 2] * 3, "label": [*map(int, answers)]}
    exact, total = evidence_by_hand(columns, model)
    found = Labelling(model=model, restarts=8, tolerance=1e-12).fit(columns)
    marginal = [sum(p for true, p in exact.items() if true[task] == 1) for task in range(3)]
    np.testing.assert_allclose(found.probabilities[:, 1], marginal, atol=0.3)
    assert ((found.probabilities[:, 1] > 0.5) == (np.array(marginal) > 0.5)).all()
    bound = found.objective[-1]
    assert bound <= total + 1e-9
    assert total - bound < 1.5


# --- recovery, with error rates


@pytest.mark.parametrize("kind", MODELS)
def test_confusion_matrices_and_expertise_are_recovered(kind):
    """25 workers of 200 answers, four populations: root-mean-square errors below .045, of rho below .065."""
    for seed in range(4):
        answers, true, matrix, rho = simulate(kind, seed, tasks=1000, workers=25)
        found = Labelling(model=kind).fit(answers)
        assert (found.probabilities.argmax(1) == true).mean() > 0.93
        order = [int(name) for name in found.answers.workers]
        weights = np.bincount(true, minlength=4) / len(true)
        errors = np.square(found.confusion - matrix[order]).sum(2)  # of rows, by how often they occur
        assert np.sqrt((errors @ weights).mean() / 4) < 0.045
        if kind != "confusion":
            expertise = found.worker_table()["expertise"].to_numpy()
            assert np.sqrt(np.square(expertise - rho[order]).mean()) < 0.065


@pytest.mark.parametrize("kind", MODELS)
def test_intervals_of_expertise_hold_the_truth(kind):
    """900 workers in 30 populations: of nominal 90 % intervals, 86 to 94 % (four standard errors)."""
    held = []
    for seed in range(100, 130):
        answers, true, matrix, rho = simulate(kind, seed)
        found = Labelling(model=kind).fit(answers)
        table = found.worker_table().to_pandas()
        order = [int(name) for name in table.worker]
        truth = rho[order]
        if kind == "confusion":
            own = np.zeros((30, 4))
            np.add.at(own, (answers["worker"], true[answers["task"]]), 1)
            diagonal = np.einsum("iyy->iy", matrix)
            truth = ((own / own.sum(1, keepdims=True)) * diagonal).sum(1)[order]
        held += ((table.low <= truth) & (truth <= table.high)).tolist()
    assert 0.86 <= np.mean(held) <= 0.94


# --- gold


def test_gold_labels_are_kept_and_make_workers_known():
    answers, true, *_ = simulate("confusion", 6, tasks=60, workers=6)
    gold = {"task": list(range(30)), "true_label": true[:30].tolist()}
    hard = Labelling().fit(answers, gold=gold)
    assert (hard.probabilities[np.arange(30), true[:30]] == 1).all()
    soft = Labelling(gold_confidence=0.9).fit(answers, gold=gold)
    assert (soft.probabilities[np.arange(30), true[:30]] < 1).any()
    none = Labelling().fit(answers)
    right = [(each.probabilities[:30].argmax(1) == true[:30]).mean() for each in (none, soft, hard)]
    assert right == sorted(right)


def test_gold_is_not_looked_at_unless_it_is_asked_for():
    gold = {"task": ["t1"], "true_label": ["dog"]}
    data = ileed.from_answers(ANSWERS, gold=gold)
    assert ileed.label(data).labels["t1"] == "cat"
    assert ileed.label(data, gold=True).labels["t1"] == "dog"
    assert ileed.label(ANSWERS, gold=gold).labels["t1"] == "dog"
    assert ileed.label(pd.DataFrame(ANSWERS), gold=pd.Series({"t1": "dog"}).rename_axis("task")).labels["t1"] == "dog"
    with pytest.raises(DemonstrationError, match="there are no gold labels: pass gold="):
        ileed.label(ANSWERS, gold=True)
    with pytest.raises(DemonstrationError, match="the gold label 'fox' was given by no worker"):
        ileed.label(ANSWERS, gold={"task": ["t1"], "true_label": ["fox"]})


def test_a_majority_that_errs_alike_is_corrected_by_gold_labels():
    """Six of ten workers take label 1 for 2 and decide; with a third of the tasks as gold, the other four do."""
    chance = np.random.default_rng(0)
    true = chance.integers(0, 3, 150)
    taken = np.where(true == 1, 2, true)
    given_ = [np.where(chance.random(150) < 0.9, each, chance.integers(0, 3, 150)) for each in [taken] * 6 + [true] * 4]
    answers = {"task": [*range(150)] * 10, "worker": np.repeat(range(10), 150), "label": np.concatenate(given_)}
    gold = {"task": [*range(50)], "true_label": true[:50].tolist()}
    right = [
        (each.probabilities[50:].argmax(1) == true[50:]).mean()
        for each in (Labelling(model="uniform").fit(answers), ileed.label(answers, gold=gold))
    ]
    assert right[0] < 0.8 < 0.95 < right[1], right


# --- tables in, tables out


def test_users_of_crowd_kit_get_a_series_by_task():
    frame = pd.DataFrame({"task": [7, 7, 3, 3], "worker": ["a", "b", "a", "b"], "label": ["x", "x", "y", "y"]})
    labels = Labelling().fit_predict(frame)
    assert isinstance(labels, pd.Series)
    assert (labels.index.tolist(), labels.index.name, labels.tolist()) == ([3, 7], "task", ["y", "x"])
    chances = Labelling().fit_predict_proba(frame)
    assert (chances.columns.tolist(), chances.index.tolist()) == (["x", "y"], [3, 7])
    assert ileed.label(frame).workers.index.tolist() == ["a", "b"]


def test_other_tables_give_a_mapping_and_arrow(tmp_path):
    pd.DataFrame(ANSWERS).to_csv(tmp_path / "a.csv", index=False)
    expected = {"t1": "cat", "t2": "dog", "t3": ileed.label(ANSWERS).labels["t3"]}
    for table in (ANSWERS, pl.DataFrame(ANSWERS), tmp_path / "a.csv", ileed.from_answers(ANSWERS)):
        found = ileed.label(table)
        assert found.labels == expected
        assert found.probability_table.column_names == ["task", "cat", "dog"]
        assert found.workers["worker"].to_pylist() == ["ann", "bob", "cy"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": ["", *ANSWERS["label"][1:]]}, "a label is empty, and an answer needs one"),
        ({"label": ["cat"] * 8}, "is 'cat' in every row: there is no choice"),
        ({"worker": [None, *ANSWERS["worker"][1:]]}, "column 'worker' has 1 missing values"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence(change, message):
    with pytest.raises(DemonstrationError, match=message):
        ileed.label({**ANSWERS, **change})


def test_labels_may_be_whole_numbers_of_floating_point_and_gold_must_be_of_tasks_that_were_answered():
    table = {"task": ["a", "a", "b", "b"], "worker": ["x", "y", "x", "y"], "label": [1.0, 2.0, 1.0, 1.0]}
    assert ileed.label(table).labels == ileed.label(table | {"label": [1, 2, 1, 1]}).labels
    with pytest.raises(ileed.IleedError, match=r"the label 1.5 .* is a number with a fraction"):
        ileed.label(table | {"label": [1.5, 2.0, 1.0, 1.0]})
    with pytest.raises(ileed.IleedError, match="none of the 1 tasks with a true label"):
        ileed.label(table, gold={"task": ["c"], "true_label": [1]})
    assert ileed.label(table, gold={"task": ["c", "a"], "true_label": [1, 2]}).labels["a"] == 2


def test_labels_of_tasks_with_one_answer_each_say_that_nothing_tells_who_is_right():
    alone = ileed.label({"task": ["a", "b", "c"], "worker": ["x", "x", "y"], "label": [1, 2, 1]})
    told = "no task has two answers, so accuracy cannot be estimated"
    assert told in alone.sentence()
    assert told not in ileed.label(ANSWERS).sentence()


def test_bad_settings_are_refused_in_one_sentence():
    with pytest.raises(DemonstrationError, match=r"the table has no column 'image'"):
        ileed.label(ANSWERS, task="image")
    with pytest.raises(SettingsError, match="model is 'glad': choose 'auto' or 'uniform'"):
        ileed.label(ANSWERS, model="glad")
    with pytest.raises(SettingsError, match="restarts is 0"):
        Labelling(restarts=0)
    with pytest.raises(SettingsError, match="gold_confidence is 0"):
        Labelling(gold_confidence=0)
    with pytest.raises(DemonstrationError, match="not a table of labels"):
        ileed.label(
            ileed.Demonstrations(observations=np.zeros((2, 1)), actions=[0, 1], demonstrator=[0, 1], episode=[0, 1])
        )


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(
        st.tuples(*[st.one_of(st.none(), st.integers(-2, 3), st.text(max_size=3), st.floats())] * 3), max_size=12
    )
)
def test_any_table_gives_labels_or_one_sentence(rows):
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    try:
        found = Labelling(restarts=2, iterations=20).fit(dict(zip(("task", "worker", "label"), columns, strict=True)))
    except DemonstrationError as error:
        message = str(error)
        assert "\n" not in message
    else:
        assert np.isfinite(found.probabilities).all()


# --- files and the command


def test_tables_are_written_whole_and_never_over_others(tmp_path):
    found = ileed.label(ANSWERS)
    for kind in ("csv", "parquet"):
        found.save(tmp_path / kind, format=kind)
        read = pd.read_csv if kind == "csv" else pd.read_parquet
        labels = read(tmp_path / kind / f"labels.{kind}").set_index("task")
        assert labels.label.to_dict() == found.labels
        assert len(read(tmp_path / kind / f"workers.{kind}")) == 3
        matrix = read(tmp_path / kind / f"confusion.{kind}")
        np.testing.assert_allclose(matrix.probability, found.confusion.ravel())
    with pytest.raises(SettingsError, match="exists already"):
        found.save(tmp_path / "csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["csv", "parquet"]


def test_the_command_labels_a_table(tmp_path, capsys):
    pd.DataFrame(ANSWERS).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"task": ["t1"], "true_label": ["dog"]}).to_csv(tmp_path / "gold.csv", index=False)
    words = ["label", str(tmp_path / "a.csv"), "--out", str(tmp_path / "out"), "--gold", str(tmp_path / "gold.csv")]
    assert cli.run(words) == 0
    printed = capsys.readouterr()
    assert "3 tasks, 3 workers, 8 answers" in printed.out
    assert "ann" in printed.out
    assert printed.err == ""
    assert pd.read_csv(tmp_path / "out" / "labels.csv").label[0] == "dog"
    assert cli.run(words) == 2
    assert "exists already" in capsys.readouterr().err
    assert cli.run(["label", str(tmp_path / "a.csv"), "--json", "--anonymise"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tasks"], len(found["workers"])) == (3, 3)
    assert "ann" not in json.dumps(found)


def test_the_command_writes_no_formula_of_a_spreadsheet_and_keeps_negative_labels(tmp_path):
    bad = ("=cmd|' /C calc'!A0", "@SUM(A1)", "+1+cmd", "-2+3", "-1")
    answers = {"task": bad * 2, "worker": [bad[0]] * 5 + [bad[1]] * 5, "label": [*bad, *reversed(bad)]}
    pd.DataFrame(answers).to_csv(tmp_path / "a.csv", index=False)
    assert cli.run(["label", str(tmp_path / "a.csv"), "--out", str(tmp_path / "out")]) == 0
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == ["confusion.csv", "labels.csv", "workers.csv"]
    for file in files:
        cells = {cell for row in csv.reader(io.StringIO(file.read_text())) for cell in row}
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@")) and not cell[1:].isdecimal()]
    tasks = pd.read_csv(tmp_path / "out" / "labels.csv", dtype=str).task
    assert set(tasks) == {"-1", *(f"'{each}" for each in bad[:-1])}


def test_one_function_writes_all_csv_of_the_library():
    library = Path(ileed.__file__).parent
    calls = ("write_csv(", "csv.writer(", "DictWriter(", "to_csv(", "CSVWriter(")
    writers = [path for path in library.rglob("*.py") if any(call in path.read_text() for call in calls)]
    assert [path.relative_to(library).as_posix() for path in writers] == ["runs/files.py"]


@pytest.mark.parametrize(("name", "least"), [("dog", 0.83), ("face", 0.64)])
def test_real_answers_are_labelled_better_than_by_majority(name, least):
    if not (REAL / name).exists():
        pytest.skip(f"crowd/{name} is not here: a folder with answer.csv (question, worker, answer), put in {REAL}")
    found = ileed.label(REAL / name)
    true = pd.read_csv(REAL / name / "truth.csv", dtype=str).set_index("question").truth
    majority = found.answers.votes.argmax(1)
    right = np.mean([str(found.labels[task]) == label for task, label in true.items()])
    vote = {task: str(found.answers.classes[most]) for task, most in zip(found.answers.tasks, majority, strict=True)}
    assert right > max(least, np.mean([vote[task] == label for task, label in true.items()]))


def test_true_labels_have_the_names_that_workers_mean():
    """A confusion matrix allows any names of the true labels; the prior on the population tells which are meant."""
    answers, true, *_ = simulate("confusion", 7, tasks=80, workers=8, labels=3)
    found = Labelling(model="confusion", restarts=8).fit(answers)
    best = found.probabilities.argmax(1)
    shares = {order: (np.array(order)[best] == true).mean() for order in permutations(range(3))}
    assert max(shares, key=lambda order: shares[order]) == (0, 1, 2)
