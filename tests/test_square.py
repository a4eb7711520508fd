"""Square in robosuite's simulator: our loop against robosuite's own, the laws of a task, and the stand-in operators."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

import ileed
from ileed.envs.abstract_task import as_actor
from ileed.errors import SettingsError
from ileed_lab.square.operators import OPERATORS, Operator, SquareExpert, attempt, demonstrate_square
from ileed_lab.square.rendering import render_episode
from ileed_lab.square.task import LIMIT, OBSERVATIONS, PHASES, SquareTask, SquareWorld
from ileed_lab.square.world import ENV_ARGS, _arm_torques, built_scene

pytest.importorskip("mujoco")
pytest.importorskip("robosuite", reason="robosuite is not installed: make test installs it")


class Still:
    """A policy that does nothing, and remembers with which seeds it was reset."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)

    def predict(self, observation: Any, state: Any, episode_start: Any, deterministic: bool) -> tuple[Any, Any]:
        return np.zeros((len(observation), 7)), state


@cache
def robosuite_environment() -> Any:
    """robosuite's environment as anybody would make it from what we write into files."""
    scene = built_scene()  # imports robosuite quietly
    import robosuite

    assert scene is not None
    return robosuite.make(ENV_ARGS["env_name"], **ENV_ARGS["env_kwargs"], renderer="mujoco", hard_reset=False)


def reset(environment: Any, seed: int) -> np.ndarray:
    environment.rng = np.random.default_rng(seed)
    for sampler in environment.placement_initializer.samplers.values():
        sampler.rng = environment.rng
    return flat(environment.reset())


def flat(seen: dict[str, np.ndarray]) -> np.ndarray:
    """The observation as robomimic reads it: its `object` is robosuite's `object-state`."""
    return np.concatenate([seen["object-state"], *(seen[name] for name in list(OBSERVATIONS)[1:])])


def test_our_loop_moves_the_arm_as_robosuite_does() -> None:
    # robosuite keeps rotations in 32 bits, and our torques differ from its in the last bits: 1e-6 is ten times what is
    # seen. Nothing is touched but the table by the nut: contact would amplify the last bits.
    world, environment = SquareWorld(), robosuite_environment()
    generator = np.random.default_rng(1)
    np.testing.assert_array_equal(world.reset(5), reset(environment, 5))
    np.testing.assert_array_equal(world.state, environment.sim.get_state().flatten())
    action = np.zeros(7)
    for _ in range(40):
        action = np.clip(0.8 * action + 0.3 * generator.standard_normal(7), -1, 1)
        action[2] = abs(action[2])
        ours, reward, success, over, _ = world.step(action)
        theirs, their_reward, _, _ = environment.step(action)
        np.testing.assert_allclose(ours, flat(theirs), rtol=0, atol=1e-6)
        assert (reward, success, over) == (their_reward, False, False)


def test_a_whole_episode_succeeds_in_robosuite_too_with_the_actions_that_succeeded_here() -> None:
    # A grasp amplifies the last bits, so positions are compared to a millimetre.
    world, environment = SquareWorld(), robosuite_environment()
    seen, expert = world.reset(11), SquareExpert()
    reset(environment, 11)
    success, steps = False, 0
    while not success and steps < LIMIT:
        action = expert(seen[None], np.array([steps == 0]))[0]
        seen, _, success, _, _ = world.step(action)
        theirs, reward, _, _ = environment.step(action)
        np.testing.assert_allclose(seen[14:17], theirs["robot0_eef_pos"], rtol=0, atol=1e-3)
        steps += 1
    assert success
    assert reward == 1


def test_torques_are_those_of_operational_space_control() -> None:
    # The oracle is robosuite's own arithmetic, which takes pseudo-inverses where we solve.
    built_scene()
    from robosuite.utils.control_utils import nullspace_torques, opspace_matrices, orientation_error

    generator = np.random.default_rng(0)
    spread, velocities = generator.standard_normal((15, 15)), generator.standard_normal(15)
    inertia = spread @ spread.T + np.eye(15)
    shift, turn = generator.standard_normal((2, 3, 15))
    now, goal_turn = Rotation.random(2, random_state=0).as_matrix()
    position, goal, joints = generator.standard_normal((3, 3))
    joints, home, bias = generator.standard_normal((3, 15))
    arm, moving, turning = np.ascontiguousarray(inertia[:7, :7]), shift[:, :7].copy(), turn[:, :7].copy()
    jacobian = np.vstack([moving, turning])
    _, heavy, heavy_turn, null = opspace_matrices(arm, jacobian, moving, turning)
    force = heavy @ (150 * (goal - position) - 2 * np.sqrt(150) * (shift @ velocities))
    twist = heavy_turn @ (150 * orientation_error(goal_turn, now) - 2 * np.sqrt(150) * (turn @ velocities))
    theirs = jacobian.T @ np.concatenate([force, twist]) + bias[:7]
    theirs += nullspace_torques(arm, null, home[:7], joints[:7], velocities[:7])
    ours = _arm_torques(
        joints,
        velocities,
        position,
        now.ravel(),
        shift,
        turn,
        inertia,
        bias,
        goal,
        goal_turn,
        home[:7],
        np.full(7, 1e9),
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_the_older_layout_shows_the_nut_first_and_then_as_the_hand_sees_it_now() -> None:
    world = SquareWorld(layout="robosuite-1.4")
    world.reset(2)
    seen = world.step(np.array([0.5, 0.3, -0.2, 0.1, 0.2, -0.4, 1.0]))[0]
    nut, nut_turn = seen[:3], Rotation.from_quat(seen[3:7])
    hand, hand_turn = seen[14:17], Rotation.from_quat(seen[17:21])
    np.testing.assert_allclose(seen[7:10], hand_turn.inv().apply(nut - hand), atol=1e-6)
    relative = (hand_turn.inv() * nut_turn).inv() * Rotation.from_quat(seen[10:14])
    assert relative.magnitude() < 1e-5


def test_an_episode_depends_on_its_seed_and_number_alone() -> None:
    task, expert = SquareTask(), SquareExpert(OPERATORS[0])
    alone = task.rollouts(expert, episodes=3, seed=4)
    together = task.rollouts(expert, episodes=3, seed=4, environments=3)
    fewer = task.rollouts(expert, episodes=2, seed=4)
    other = task.rollouts(expert, episodes=3, seed=5)
    np.testing.assert_array_equal(alone.steps, together.steps)
    np.testing.assert_array_equal(alone.steps[:2], fewer.steps)
    assert alone.steps.tolist() != other.steps.tolist()


def test_processes_play_what_one_process_plays() -> None:
    told: list[tuple[int, int]] = []
    task, expert = SquareTask(), SquareExpert(OPERATORS[0])
    alone = task.rollouts(expert, episodes=3, seed=4)
    shared = task.rollouts(expert, episodes=3, seed=4, workers=2, progress=lambda *how: told.append(how))
    np.testing.assert_array_equal(alone.steps, shared.steps)
    np.testing.assert_array_equal(alone.success, shared.success)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_no_global_generator_is_read_or_moved() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    SquareTask().play(SquareExpert(), steps=3, seeds=[0, 1])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[0])


def test_who_does_nothing_fails_at_the_limit_and_is_reset_for_every_episode_with_a_seed_of_its_own() -> None:
    still, again = Still(), Still()
    found = SquareTask().rollouts(still, episodes=2, seed=0)
    assert found.success.tolist() == [False, False]
    assert found.steps.tolist() == [LIMIT, LIMIT]
    assert [PHASES[each] for each in found.phase] == ["reach", "reach"]
    assert len(set(still.seeds)) == 2
    np.testing.assert_array_equal(SquareTask().score(again, episodes=1, seed=0), [0.0])
    assert again.seeds == still.seeds[:1]


def test_the_controller_succeeds_from_forty_starts_and_goes_through_all_phases() -> None:
    found = SquareTask().rollouts(SquareExpert(), episodes=40, seed=1)
    assert found.success.all()
    assert found.steps.mean() < 110
    assert (found.phase == PHASES.index("insert")).all()


def test_phases_seen_in_observations_are_mostly_those_the_controller_was_in() -> None:
    # They part where one turns into the next: what is wanted changes before anything moves.
    played = attempt(Operator(name="controller"), seed=0, episode=0)
    seen = SquareTask().phase(played.observations)
    assert (seen == played.phase).mean() > 0.75
    assert set(seen) == set(range(4))


@pytest.fixture(scope="module")
def recording() -> Any:
    return demonstrate_square(episodes=2, seed=3, operators=OPERATORS[:3:2], workers=1)


def test_kept_demonstrations_succeed_at_their_last_step_and_only_there(recording: Any) -> None:
    data = recording.demonstrations
    last = np.append(np.diff(data.episode) > 0, True)
    np.testing.assert_array_equal(data.terminals, last)
    np.testing.assert_array_equal(data.rewards, last)
    assert data.episode_count == 4
    assert data.names == ("better_operator_1", "okay_operator_1")
    assert set(data.skills["phase"]) == set(PHASES)
    assert np.abs(data.actions).max() <= 1
    assert set(data.actions[:, 6]) == {-1.0, 1.0}


def test_a_demonstration_depends_on_who_gives_it_and_its_number_not_on_the_others(recording: Any) -> None:
    alone = demonstrate_square(episodes=1, seed=3, operators=OPERATORS[2:3], workers=1)
    among = recording.demonstrations.by("okay_operator_1")
    first = among.episode == among.episode[0]
    np.testing.assert_array_equal(alone.demonstrations.actions, among.actions[first])
    np.testing.assert_array_equal(alone.demonstrations.observations, among.observations[first])


def test_robosuite_sees_the_recorded_observations_in_the_recorded_states(recording: Any) -> None:
    # What the hand and the nut's own pose are does not depend on what came before; 1e-3, because an observation is of
    # MuJoCo's last step but one, 2 ms before the state.
    environment, data = robosuite_environment(), recording.demonstrations
    assert 'file="/' not in recording.model_file
    assert 'file="/' in environment.edit_model_xml(recording.model_file)
    reset(environment, 0)
    for step in (0, 20, 60):
        environment.sim.set_state_from_flattened(recording.states[step])
        environment.sim.forward()
        seen = flat(environment._get_observations(force_update=True))
        np.testing.assert_allclose(seen[7:], data.observations[step, 7:], rtol=0, atol=2e-3)


def test_the_noise_has_the_standard_deviation_of_the_operator() -> None:
    # Without other faults, two operators who differ in noise alone intend the same action at the first step.
    exact, noisy = Operator(name="same"), Operator(name="same", noise=(0.1, 0.1, 0.1, 0.1))
    observations = np.stack([SquareWorld().reset(0)] * 1)
    wanted = SquareExpert(exact)(observations, np.array([True]))
    inside = np.abs(wanted[0]) < 0.6
    draws = np.stack([SquareExpert(noisy, seed=seed)(observations, np.array([True]))[0] for seed in range(400)])
    # 400 draws: the standard deviation is known to 3.5 %, four standard errors are 14 %.
    expected = 0.1 * np.array([1, 1, 1, 0.5, 0.5, 0.5])
    motion = inside[:6]
    assert motion.sum() >= 3
    np.testing.assert_allclose((draws - wanted).std(axis=0)[:6][motion], expected[motion], rtol=0.14)
    np.testing.assert_array_equal(draws[:, 6], wanted[0, 6])


def test_tiers_are_graded_and_within_a_tier_each_is_better_at_something() -> None:
    noise = {operator.name: np.array(operator.noise) for operator in OPERATORS}
    for better, worse in (("better", "okay"), ("okay", "worse")):
        for number in (1, 2):
            assert (noise[f"{better}_operator_{number}"] < noise[f"{worse}_operator_{number}"]).all()
    for tier in ("better", "okay", "worse"):
        first, second = noise[f"{tier}_operator_1"], noise[f"{tier}_operator_2"]
        assert (first[:2] < second[:2]).all()
        assert (first[2:] > second[2:]).all()


def test_what_cannot_be_done_is_refused_in_one_sentence() -> None:
    with pytest.raises(SettingsError, match="there is no layout 'mine'"):
        SquareTask(layout="mine")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="pass the policy itself, or workers=1"):
        SquareTask().rollouts(as_actor(Still()), episodes=2, seed=0, workers=2)
    with pytest.raises(
        SettingsError, match="one standard deviation, zero or more, for each of reach, grasp, carry, insert"
    ):
        Operator(name="ann", noise=(0.1, 0.1, 0.1, -0.1))
    with pytest.raises(SettingsError, match="drop=2, but a probability lies between 0 and 1"):
        Operator(name="ann", drop=2)
    with pytest.raises(SettingsError, match="two operators have the same name"):
        demonstrate_square(episodes=1, operators=OPERATORS[:1] * 2)


def test_building_a_world_says_nothing() -> None:
    probe = "from ileed_lab.square.task import SquareWorld; SquareWorld().reset(0)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", probe], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_the_shipped_episodes_are_the_first_of_the_full_set():
    """On another machine contact may end in other last bits, so a whole episode is compared by its beginning."""
    shipped = ileed.shipped("square")
    assert shipped.names == tuple(operator.name for operator in OPERATORS)
    assert shipped.episode_count == 12
    first = attempt(OPERATORS[0], seed=0, episode=0)
    np.testing.assert_allclose(shipped.observations[:20], first.observations[:20], atol=1e-6)
    np.testing.assert_allclose(shipped.actions[:20], first.actions[:20], atol=1e-6)


def test_an_episode_is_rendered_where_there_is_a_renderer(tmp_path):
    try:
        render_episode(SquareExpert(OPERATORS[0]), tmp_path / "square.gif", picture=tmp_path / "square.png")
    except ileed.IleedError as error:
        assert "apt-get install" in str(error)  # noqa: PT017 (the sentence is the other outcome)
        return
    assert (tmp_path / "square.gif").read_bytes()[:3] == b"GIF"
    assert (tmp_path / "square.png").read_bytes()[1:4] == b"PNG"
