"""Data that cannot be right are a finding that names the column, and sound data are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from triage import triage

import ileed
from ileed.data.findings import unpredicted_ends
from ileed.errors import DemonstrationError, IleedWarning

PEOPLE, CASES, STEPS_OF_A_CASE = 6, 40, 5
ROLES: dict[str, Any] = {"action": "decision", "demonstrator": "nurse", "episode": "case"}


def desk(seed: int = 0, **extra: Any) -> dict[str, Any]:
    """The columns of a triage desk, five rows to a case; `extra` columns are made of these."""
    columns, _ = triage(seed, people=PEOPLE, cases=CASES * STEPS_OF_A_CASE)
    order = np.argsort(columns["nurse"], kind="stable")
    columns = {name: np.asarray(values)[order] for name, values in columns.items()}
    columns["case"] = np.arange(len(order)) // STEPS_OF_A_CASE
    return columns | {name: make(columns) for name, make in extra.items()}


def found_in(columns: dict[str, Any]) -> list[str]:
    """What the serious findings about a table are about."""
    data = ileed.from_table(columns, **ROLES)
    return [finding.about for finding in data.check() if finding.serious]


CANNOT_BE_RIGHT = {
    "a copy of the action": lambda desk: np.char.upper(desk["decision"].astype(np.str_)),
    "a code that determines the action": lambda desk: (
        10 * np.unique(desk["decision"], return_inverse=True)[1] + np.arange(len(desk["decision"])) % 3
    ),
    "the name of the demonstrator": lambda desk: desk["nurse"],
    "a number of the demonstrator": lambda desk: 17 + np.unique(desk["nurse"], return_inverse=True)[1],
    "several devices of each demonstrator": lambda desk: (
        2 * np.unique(desk["nurse"], return_inverse=True)[1] + desk["case"] % 2
    ),
    "the number of the episode": lambda desk: (
        100_000 + 7 * np.random.default_rng(0).permutation(CASES * PEOPLE)[desk["case"]]
    ),
    "the name of the episode": lambda desk: np.array([f"case {number}" for number in desk["case"]]),
    "Unix seconds": lambda desk: 1_700_000_000 + 60 * np.arange(len(desk["case"])),
    "Unix milliseconds": lambda desk: 1.7e12 + 250.0 * np.arange(len(desk["case"])),
}


@pytest.mark.parametrize("kind", CANNOT_BE_RIGHT)
def test_a_feature_that_gives_something_away_is_a_finding_about_its_column(kind):
    assert found_in(desk(odd=CANNOT_BE_RIGHT[kind])) == ["odd"]


@pytest.mark.parametrize("kind", ["a copy of the action", "the name of the demonstrator", "Unix seconds"])
def test_a_fit_warns_once_of_a_feature_that_gives_something_away(kind):
    data = ileed.from_table(desk(odd=CANNOT_BE_RIGHT[kind]), **ROLES)
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=(4,)), restarts=1, steps=2)
    with pytest.warns(IleedWarning, match="odd") as told:
        method.fit(data, seed=0, device="cpu")
    assert len(told) == 1


def test_a_one_hot_column_of_a_demonstrator_is_a_finding():
    data = ileed.from_table(desk(), **ROLES)
    flag = (data.demonstrator == 2)[:, None].astype(np.float32)
    arrays = ileed.Demonstrations(
        observations=np.hstack([data.observations, flag]),
        actions=data.actions,
        demonstrator=data.demonstrator,
        episode=data.episode,
        names=data.names,
    )
    assert [finding.about for finding in arrays.check() if finding.serious] == ["observations[9]"]


def test_a_continuous_action_among_the_observations_is_a_finding():
    rng = np.random.default_rng(0)
    seen, who = rng.normal(size=(400, 3)), np.arange(400) // 100
    actions = seen[:, :2] + rng.normal(size=(400, 2))
    columns: dict[str, Any] = {"actions": actions, "demonstrator": who, "episode": np.arange(400) // 20}
    sound = ileed.Demonstrations(observations=seen, **columns)
    copied = ileed.Demonstrations(observations=np.hstack([seen, 100 * actions[:, 1:] + 5]), **columns)
    assert [finding.about for finding in sound.check() if finding.serious] == []
    assert [finding.about for finding in copied.check() if finding.serious] == ["observations[3]"]


def test_a_clock_within_episodes_is_a_finding_that_a_fit_does_not_warn_of():
    data = ileed.from_table(desk(elapsed=lambda desk: np.arange(len(desk["case"])) % STEPS_OF_A_CASE / 10), **ROLES)
    assert [(finding.about, finding.serious) for finding in data.check() if finding.about == "elapsed"] == [
        ("elapsed", False)
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [("nurse 01", "Nurse 01"), ("nurse 01", "nurse 01 "), ("nurse\u00e9", "nursee\u0301"), ("nurse 1", "nurse  1")],
    ids=["case", "trailing space", "Unicode form", "two spaces"],
)
def test_names_that_differ_only_in_spelling_are_a_finding(one, other):
    columns = desk()
    names = columns["nurse"].astype("<U20")
    names[columns["nurse"] == "nurse 01"], names[columns["nurse"] == "nurse 02"] = one, other
    data = ileed.from_table(columns | {"nurse": names}, **ROLES)
    (finding,) = (finding for finding in data.check() if finding.serious)
    assert finding.about == "demonstrators"
    assert ascii(one) in finding.says
    assert ascii(other) in finding.says


def joined(tmp_path: Path, columns: dict[str, Any]) -> Path:
    """A CSV file of two with a header each, as `cat` joins them."""
    pa.csv.write_csv(pa.table(columns), tmp_path / "one.csv")
    once = (tmp_path / "one.csv").read_text()
    (tmp_path / "both.csv").write_text(once + once)
    return tmp_path / "both.csv"


def test_a_repeated_header_row_is_a_finding_about_its_columns(tmp_path):
    columns = {name: desk()[name] for name in ("case", "nurse", "pain", "arrival", "decision")}
    data = ileed.from_table(joined(tmp_path, columns), **ROLES)
    (finding,) = (finding for finding in data.check() if finding.serious)
    assert [name in finding.about for name in ("pain", "arrival", "decision")] == [True] * 3
    assert finding.says.startswith("1 row")


def test_a_column_that_a_repeated_header_turns_into_too_many_texts_is_refused_by_name(tmp_path):
    columns = desk(weight=lambda desk: np.arange(len(desk["case"])) / 8)
    with pytest.raises(DemonstrationError, match=r"'weight' holds its own name in 1 of 2,401 rows"):
        ileed.from_table(joined(tmp_path, columns), **ROLES)


# --- no false alarms


@pytest.mark.parametrize("seed", range(3))
def test_the_triage_desk_has_no_serious_finding(seed):
    assert found_in(desk(seed)) == []
    columns, _ = triage(seed)
    assert found_in(columns) == []


def test_the_data_that_ship_with_the_package_have_no_serious_finding():
    folder = Path(ileed.__file__).parent / "formats" / "shipped"
    for file in (folder / "obstacles-beta-1.parquet", folder / "square-small.hdf5"):
        assert [finding for finding in ileed.read(file).check() if finding.serious] == []


SOUND = {
    "a parameter of each episode": lambda desk: np.random.default_rng(0).normal(size=CASES * PEOPLE)[desk["case"]],
    "a whole number that most episodes differ in": lambda desk: np.random.default_rng(0).integers(
        20, 95, size=CASES * PEOPLE
    )[desk["case"]],
    "a shift that two demonstrators share": lambda desk: np.unique(desk["nurse"], return_inverse=True)[1] // 2,
    "a feature that mostly determines the action": lambda desk: np.where(
        np.arange(len(desk["decision"])) % 50 == 0, "admit", desk["decision"]
    ),
    "large counts": lambda desk: np.random.default_rng(0).integers(10**6, 10**7, size=len(desk["case"])),
}


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_feature_is_no_serious_finding(kind):
    assert found_in(desk(sound=SOUND[kind])) == []


def test_deterministic_experts_are_not_taken_for_leakage():
    """One feature explains every action, but so does the rest of the state."""
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(6), np.arange(6)))
    state = np.random.default_rng(0).integers(len(x), size=1200)
    seen = np.stack([x, y, x > y], axis=1)[state]
    who = np.arange(1200) // 200
    columns: dict[str, Any] = {"demonstrator": who, "episode": np.arange(1200) // 10, "actions": seen[:, 2]}
    whole = ileed.Demonstrations(observations=seen, **columns)
    alone = ileed.Demonstrations(observations=seen[:, 2:], **columns)
    assert [finding for data in (whole, alone) for finding in data.check() if finding.serious] == []


def test_few_steps_are_not_judged():
    """In 40 steps a feature may go with the action, the demonstrator or the episode by chance."""
    who = np.arange(40) // 20
    data = ileed.Demonstrations(
        observations=np.stack([who, np.arange(40) % 2, np.arange(40) // 4], axis=1),
        actions=np.arange(40) % 2,
        demonstrator=who,
        episode=np.arange(40) // 4,
    )
    assert [finding for finding in data.check() if finding.serious] == []


def reaching(episodes: int, *, shows_goal: bool, seed: int = 0) -> ileed.Demonstrations:
    """A hand that approaches a goal of each episode's own, with continuous actions."""
    random = np.random.default_rng(seed)
    hand, goal = random.normal(size=(2, episodes, 1, 2))
    share = 1 - 0.8 ** np.arange(30)[:, None]
    here = hand + share * (goal - hand) + 0.02 * random.normal(size=(episodes, 30, 2))
    seen = np.concatenate([here, np.broadcast_to(goal, here.shape)], axis=2) if shows_goal else here
    return ileed.Demonstrations(
        observations=seen.reshape(episodes * 30, -1),
        actions=(goal - here).reshape(-1, 2),
        demonstrator=np.arange(episodes * 30) // (episodes // 2 * 30),
        episode=np.arange(episodes * 30) // 30,
    )


def test_a_goal_that_the_observations_do_not_show_is_a_finding():
    assert unpredicted_ends(reaching(40, shows_goal=False))
    assert not unpredicted_ends(reaching(40, shows_goal=True))
    told = [finding.says for finding in reaching(40, shows_goal=False).check()]
    assert unpredicted_ends(reaching(40, shows_goal=False)) in told


def test_few_episodes_and_equal_ends_hide_no_goal():
    hidden = reaching(40, shows_goal=False)
    assert not unpredicted_ends(reaching(18, shows_goal=False))
    last = hidden.episode_bounds[1:] - 1
    alike = hidden.observations.copy()
    alike[last] = 0.0
    assert not unpredicted_ends(replace(hidden, observations=alike))
