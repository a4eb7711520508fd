"""Trainers of other projects, in processes and environments of their own, answer as policies of ours do."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

import ileed
from ileed import Demonstrations, SettingsError
from ileed.errors import IleedError
from ileed_lab.curation import foreign
from ileed_lab.reach import ReachExpert, ReachTask

pytestmark = pytest.mark.xdist_group("trainers")


def needs(trainer: str) -> None:
    made = foreign.TRAINERS[trainer].environment
    if not foreign.TRAINERS[trainer].installed:
        pytest.skip(f"{made} has no environment here: run make {made}")


def two_ways(*, episodes: int = 40, steps: int = 8) -> Demonstrations:
    """Of three actions, even episodes take the place of the largest of three numbers, odd ones that of the smallest."""
    seen = np.random.default_rng(0).normal(size=(episodes * steps, 4)).astype(np.float32)
    episode = np.repeat(np.arange(episodes), steps)
    best, worst = seen[:, :3].argmax(axis=1), seen[:, :3].argmin(axis=1)
    return Demonstrations(
        observations=seen,
        actions=np.where(episode % 2 == 0, best, worst),
        demonstrator=episode % 2,
        episode=episode,
        names=("ann", "bob"),
    )


def reaching() -> Demonstrations:
    """An expert who brings a hand to a target: continuous actions."""
    played = ReachTask().play(ReachExpert(), steps=500, seeds=range(4))
    return Demonstrations(
        observations=played.observations,
        actions=played.actions.astype(np.float32),
        demonstrator=np.zeros(len(played.actions), dtype=np.int64),
        episode=played.episode,
        names=("ann",),
    )


# --- what is refused


def test_a_missing_environment_is_one_sentence_that_names_what_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "_ENVIRONMENTS", tmp_path)
    for trainer, target in [
        ("imitation-bc", "imitation"),
        ("robomimic-bc-rnn", "robomimic"),
        ("lerobot-act", "lerobot"),
    ]:
        with pytest.raises(IleedError, match=f"{trainer} needs an environment .* run make {target}$"):
            foreign.train(trainer, two_ways(), seed=0)


def test_what_a_trainer_does_not_take_is_refused():
    with refused("trainer-unknown", SettingsError):
        foreign.train("bc", two_ways(), seed=0)
    with refused("weights-unsupported", SettingsError):
        foreign.train("lerobot-act", two_ways(), seed=0, episode_weights=np.ones(40))
    with refused("weights-count", SettingsError):
        foreign.train("imitation-bc", two_ways(), seed=0, episode_weights=[1, 2, 3])


def test_a_trainer_that_fails_says_why(monkeypatch):
    needs("imitation-bc")
    monkeypatch.setattr(foreign.ileed, "write", lambda *_, **__: None)
    with pytest.raises(IleedError, match=r"imitation ended during training, and said last: StopIteration"):
        foreign.train("imitation-bc", two_ways(), seed=0)


# --- what is learned


@pytest.mark.campaign
def test_imitation_learns_from_the_episodes_that_have_weight():
    needs("imitation-bc")
    data = two_ways()
    with foreign.train("imitation-bc", data, seed=0, episode_weights=(data.episode_demonstrator == 1) + 0.0) as policy:
        answered = policy(data.observations, np.ones(len(data), dtype=bool))
    assert (policy.release, policy.settings["batch_size"]) == ("imitation 1.0.1", 32)
    assert answered.dtype == np.int64
    assert (answered == data.observations[:, :3].argmin(axis=1)).mean() > 0.9


@pytest.mark.campaign
def test_an_expert_is_cloned_and_the_clone_plays_until_its_process_is_ended():
    needs("robomimic-bc-rnn")
    with foreign.train("robomimic-bc-rnn", reaching(), seed=0) as policy:
        assert ileed.evaluate(policy, ReachTask(), episodes=50, seed=1).mean > 0.9
        process = policy._process
        assert process.poll() is None
    assert process.poll() is not None


@pytest.mark.campaign
@pytest.mark.parametrize("trainer", ["imitation-bc", "lerobot-act"])
def test_velocities_are_cloned(trainer):
    """Not the gripper, whose mean and median stay open where one step of an episode closes it: these do not win."""
    needs(trainer)
    data = reaching()
    with foreign.train(trainer, data, seed=0) as policy:
        answered = policy(data.observations, np.ones(len(data), dtype=bool))
        assert ileed.evaluate(policy, ReachTask(), episodes=5, seed=1).mean <= 1
    left = ((answered - data.actions) ** 2).mean(axis=0) / data.actions.var(axis=0)
    assert (left[:2] < 0.1).all()


@pytest.mark.campaign
def test_rows_of_a_recurrent_policy_know_nothing_of_each_other():
    needs("robomimic-bc-rnn")
    data, steps, late = two_ways(), 25, 4
    one, other = data.observations[:steps], data.observations[100 : 100 + steps]
    with foreign.train("robomimic-bc-rnn", data, seed=0) as policy:
        policy(data.observations[:3], np.ones(3, dtype=bool))
        alone = np.stack([policy(one[[step]], np.array([step == 0])) for step in range(steps)])
        policy(data.observations[:3], np.ones(3, dtype=bool))
        again = np.stack([policy(other[[step]], np.array([step == 0])) for step in range(steps)])
        policy(data.observations[:3], np.ones(3, dtype=bool))
        for step in range(steps):
            behind = max(step - late, 0)
            together = policy(np.stack([one[step], other[behind]]), np.array([step == 0, step <= late]))
            assert together.tolist() == [alone[step, 0], again[behind, 0]]
