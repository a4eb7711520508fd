"""A policy of your own that predicts chunks of actions: a small transformer, in plain torch.

Two made-up operators push a puck towards a goal: ann steers smoothly, bob with noise. The transformer reads one
observation and predicts the next eight actions at once. When it acts, it carries out a chunk and then predicts again.

    python examples/policies/chunking_transformer.py
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

import ileed

EPISODES, STEPS = 24, 32


class ChunkingTransformer(nn.Module):
    """From (row, number) observations to Gaussians over the next `chunk` actions, of batch shape (row, chunk)."""

    chunk = 8

    def __init__(self, numbers: int = 4, dimensions: int = 2, width: int = 32) -> None:
        super().__init__()
        self.look = nn.Linear(numbers, width)
        self.queries = nn.Parameter(0.1 * torch.randn(self.chunk, width))
        self.attend = nn.MultiheadAttention(width, num_heads=4, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.think = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.last = nn.Linear(width, 2 * dimensions)

    def forward(self, observations: Tensor) -> Independent:
        tokens = self.look(observations)[:, None] + self.queries
        normed = self.first(tokens)
        tokens = tokens + self.attend(normed, normed, normed, need_weights=False)[0]
        tokens = tokens + self.think(self.second(tokens))
        mean, spread = self.last(tokens).chunk(2, -1)
        return Independent(Normal(mean, nn.functional.softplus(spread) + 0.01), 1)


def demonstrations(seed: int = 0) -> ileed.Demonstrations:
    """Episodes of two operators: position and goal are seen, a velocity is the action."""
    random = np.random.default_rng(seed)
    columns: dict[str, list] = {"observations": [], "actions": [], "demonstrator": [], "episode": []}
    for episode in range(EPISODES):
        name, noise = ("ann", 0.05) if episode % 2 == 0 else ("bob", 0.6)
        position, goal = random.uniform(-1, 1, size=(2, 2))
        for _ in range(STEPS):
            action = 0.3 * (goal - position) + 0.3 * noise * random.normal(size=2)
            for column, value in zip(columns, (np.append(position, goal), action, name, episode), strict=True):
                columns[column].append(value)
            position = position + action
    return ileed.Demonstrations(**{name: np.array(values) for name, values in columns.items()})


def main() -> ileed.Fitted:
    data = demonstrations()
    method = ileed.Ileed(policy=ChunkingTransformer, restarts=2, steps=150, batch_size=64, folds=2)
    fitted = method.fit(data, seed=0)
    print(fitted)
    print("who follows the common policy most closely:", [name for name, _ in fitted.expertise.ranking()])
    position, goal = np.array([-1.0, 0.5]), np.array([0.5, -0.5])
    fitted.policy.reset()
    for _ in range(2 * ChunkingTransformer.chunk):  # two chunks
        position = position + fitted.policy.act(np.append(position, goal)[None])[0]
    print(f"{np.linalg.norm(position - goal):.2f} from the goal after two chunks of actions")
    return fitted


if __name__ == "__main__":
    main()
