"""Crowd tables: answers of workers to tasks become demonstrations whose observation is the task's number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ileed
from ileed import DemonstrationError, by_column, by_one
from ileed.formats.crowd import GOLD, TASK

REAL = Path(__file__).parents[2] / "shared" / "data" / "crowd"
ANSWERS = {
    "task": ["t2", "t1", "t1", "t2", "t10"],
    "worker": ["ann", "ann", "bob", "bob", "007"],
    "label": ["cat", "dog", "dog", "bird", "cat"],
}


def real(name: str) -> Path:
    if not (REAL / name).exists():
        pytest.skip(f"crowd/{name} is not here: a folder with answer.csv (question, worker, answer), put in {REAL}")
    return REAL / name


def test_an_answer_is_an_episode_of_one_step_at_the_number_of_its_task():
    data = ileed.from_answers(ANSWERS)
    assert (data.observations.dtype, data.observations.shape) == (np.int64, (5, 1))
    assert data.observations[:, 0].tolist() == [2, 0, 0, 2, 1]  # t1, t10, t2 in the order of text
    assert data.skills[TASK].tolist() == ANSWERS["task"]
    assert data.encoding.decode(data.actions).tolist() == ANSWERS["label"]
    assert [data.names[person] for person in data.demonstrator] == ANSWERS["worker"]
    assert data.episode.tolist() == [0, 1, 2, 3, 4]
    assert data.action_count == 3


def test_tasks_that_are_numbers_stand_in_the_order_of_numbers():
    data = ileed.from_answers({**ANSWERS, "task": [10, 2, 2, 10, 1]})
    assert data.observations[:, 0].tolist() == [2, 1, 1, 2, 0]


@given(rows=st.lists(st.tuples(st.integers(-5, 30), st.sampled_from("abc"), st.integers(0, 3)), min_size=2))
def test_names_of_tasks_and_labels_are_those_of_the_table(rows):
    tasks, workers, labels = (list(column) for column in zip(*rows, strict=True))
    if len(set(labels)) < 2:
        labels[0] = 9 if labels[0] != 9 else 8
    data = ileed.from_answers({"task": tasks, "worker": workers, "label": labels})
    assert data.skills[TASK].tolist() == [str(task) for task in tasks]
    assert data.observations[:, 0].tolist() == [sorted(set(tasks)).index(task) for task in tasks]
    assert data.encoding.decode(data.actions).tolist() == labels


def test_every_kind_of_table_gives_the_same(tmp_path):
    pq.write_table(pa.table(ANSWERS), tmp_path / "a.parquet")
    pd.DataFrame(ANSWERS).to_csv(tmp_path / "a.csv", index=False)
    first = ileed.from_answers(ANSWERS)
    for table in (pa.table(ANSWERS), pd.DataFrame(ANSWERS), pl.DataFrame(ANSWERS)):
        assert ileed.from_answers(table).equals(first)
    for name in ("a.parquet", "a.csv"):
        assert ileed.from_answers(tmp_path / name).equals(first)


def test_columns_of_other_names_are_named():
    other = {"image": ANSWERS["task"], "annotator": ANSWERS["worker"], "class": ANSWERS["label"]}
    named = ileed.from_answers(other, task="image", worker="annotator", label="class")
    assert named.actions.tolist() == ileed.from_answers(ANSWERS).actions.tolist()
    with pytest.raises(DemonstrationError, match=r"none of the columns 'task', 'question': say which .*, with task="):
        ileed.from_answers(other)
    with pytest.raises(DemonstrationError, match="two of the columns 'label', 'answer': say which holds the label"):
        ileed.from_answers({**ANSWERS, "answer": ANSWERS["label"]})


def test_gold_is_kept_beside_and_is_empty_where_it_is_not_known():
    gold = pd.Series(["dog", "cat"], index=pd.Index(["t1", "t7"], name="task"), name="true_label")  # as crowd-kit's
    for given_as in (gold, {"task": ["t1"], "true_label": ["dog"]}, pl.DataFrame({"task": ["t1"], "truth": ["dog"]})):
        data = ileed.from_answers(ANSWERS, gold=given_as)
        assert data.skills[GOLD].tolist() == ["", "dog", "dog", "", ""]
    assert replace(data, skills={}).equals(replace(ileed.from_answers(ANSWERS), skills={}))
    with pytest.raises(DemonstrationError, match="task 't1' has two true labels, 'dog' and 'cat'"):
        ileed.from_answers(ANSWERS, gold={"task": ["t1", "t1"], "true_label": ["dog", "cat"]})


def test_missing_values_are_refused_by_column():
    for column in ("task", "worker", "label"):
        holes = {**ANSWERS, column: [None, *ANSWERS[column][1:]]}
        with pytest.raises(DemonstrationError, match=f"column '{column}' has 1 missing values"):
            ileed.from_answers(holes)


@pytest.mark.parametrize("format_of", ["parquet", "imitation", "minari"])
def test_answers_are_written_and_read_back(tmp_path, format_of):
    data = ileed.from_answers(ANSWERS, gold={"task": ["t1"], "truth": ["dog"]})
    path = tmp_path / ("a.parquet" if format_of == "parquet" else "a-v0")
    ileed.write(data, path, format=format_of)
    assert ileed.read(path).equals(data)


# --- real tables


@pytest.mark.parametrize(("name", "tasks", "workers", "answers"), [("dog", 807, 109, 8070), ("face", 584, 27, 5242)])
def test_a_folder_of_answers_and_truth_is_read(name, tasks, workers, answers):
    data = ileed.read(real(name))
    assert (len(data), len(data.names), data.action_count) == (answers, workers, 4)
    assert (data.observations.min(), data.observations.max()) == (0, tasks - 1)
    assert ileed.read(real(name), demonstrator=by_column("worker")).equals(data)
    with pytest.raises(DemonstrationError, match="does not apply to crowd tables"):
        ileed.read(real(name), demonstrator=by_one("ann"))


def test_majority_vote_on_the_dogs_agrees_with_gold_as_published():
    data = ileed.read(real("dog"))
    votes = np.zeros((807, 4))
    np.add.at(votes, (data.observations[:, 0], data.actions), 1)
    gold = np.zeros(807, dtype=int)
    gold[data.observations[:, 0]] = data.skills[GOLD].astype(int)
    # ties go to the first label here; crowd-kit's majority vote, which draws, has .812
    assert (votes.argmax(axis=1) == gold).mean() == pytest.approx(0.81, abs=0.015)
