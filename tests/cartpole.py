"""Demonstrators of known skill in gymnasium's CartPole: a controller that balances the pole, and slips."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np
import numpy.typing as npt

from ileed import Demonstrations

GAINS = np.array([0.1, 0.3, 3.0, 1.0])
"""Of a linear controller on position, velocity, angle and angular velocity; it keeps the pole up for all 500 steps."""


def controller(observations: npt.NDArray[np.float32], starts: object = None) -> npt.NDArray[np.int64]:
    """Push (step,) to the side to which the pole falls, after (step, 4) observations: an actor of `ileed.envs`."""
    return (observations @ GAINS > 0).astype(np.int64)


def cartpole(seed: int, skill: Sequence[float] = (0.95, 0.8, 0.6, 0.4, 0.2, 0.05), steps: int = 500) -> Demonstrations:
    """`steps` steps of each demonstrator, who acts as the controller with probability skill[i], else at random.

    Mean rewards are about 500 at skill 0.8 and above, 170 at 0.5, 55 at 0.3 and 21 at 0. Each demonstrator's last
    episode is truncated.
    """
    observations, actions, rewards, terminals, episode = [], [], [], [], []
    begun = -1
    environment = gymnasium.make("CartPole-v1")
    for person, share in enumerate(skill):
        random = np.random.default_rng([seed, person])
        over = True
        for _ in range(steps):
            if over:
                begun += 1
                seen, _ = environment.reset(seed=int(random.integers(2**31)))
            slips = random.random() >= share
            action = int(random.integers(2)) if slips else int(controller(seen))
            observations.append(seen)
            seen, reward, terminated, truncated, _ = environment.step(action)
            over = terminated or truncated
            actions.append(action)
            rewards.append(reward)
            terminals.append(terminated)
            episode.append(begun)
    environment.close()
    return Demonstrations(
        observations=np.array(observations),
        actions=np.array(actions),
        demonstrator=np.repeat(np.arange(len(skill)), steps),
        episode=np.array(episode),
        names=tuple(f"person {number}" for number in range(len(skill))),
        rewards=np.array(rewards),
        terminals=np.array(terminals),
        action_count=2,
    )
