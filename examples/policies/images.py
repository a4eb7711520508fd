"""A policy of your own that sees images: a convolutional network, in plain torch.

Two made-up players follow a bright spot in a small image: ann presses the key of its side, bob often any other. The
network gets the image as it was passed, in its own shape and units, and a number beside it.

    python examples/policies/images.py
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import ileed

STEPS, SIZE, SIDES = 600, 12, 4


class Convolutional(nn.Module):
    """From (row, height, width, channel) images and (row, 1) batteries to a choice of keys."""

    def __init__(self, keys: int = SIDES) -> None:
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.choose = nn.Linear(8 * 2 * 2 + 1, keys)

    def forward(self, observations: Mapping[str, Tensor]) -> Categorical:
        image = observations["image"].permute(0, 3, 1, 2) / 255
        return Categorical(logits=self.choose(torch.cat([self.see(image), observations["battery"]], dim=1)))


def demonstrations(seed: int = 0) -> ileed.Demonstrations:
    """Steps of two players: the brightest quarter of the image says which key is right."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 60, size=(STEPS, SIZE, SIZE, 1), dtype=np.uint8)
    side = random.integers(SIDES, size=STEPS)
    for image, where in zip(images, side, strict=True):
        row, column = (where // 2) * SIZE // 2, (where % 2) * SIZE // 2
        image[row + 1 : row + 5, column + 1 : column + 5] = 255
    name = np.repeat(["ann", "bob"], STEPS // 2)
    slips = random.random(STEPS) < np.where(name == "ann", 0.05, 0.6)
    return ileed.Demonstrations(
        observations={"image": images, "battery": random.random((STEPS, 1), dtype=np.float32)},
        actions=np.where(slips, random.integers(SIDES, size=STEPS), side),
        demonstrator=name,
        episode=np.arange(STEPS) // 25,
    )


def main() -> ileed.Fitted:
    data = demonstrations()
    method = ileed.Ileed(
        policy=Convolutional, expertise=ileed.Constant(), restarts=2, steps=150, batch_size=64, folds=2
    )
    fitted = method.fit(data, seed=0)
    print(fitted)
    print("expertise:", {name: round(value, 2) for name, value in fitted.expertise.by_demonstrator().items()})
    print("keys of the first five images:", fitted.policy.act(data.named_observations)[:5])
    return fitted


if __name__ == "__main__":
    main()
