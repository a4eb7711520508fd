"""From images to expertise: a small convolutional encoder turns frames into features, and these are the observations.

The encoder is plain torch and learns in a few seconds to predict the actions from the frames; any other will do, and a
pretrained one is better. The file has one real episode of robomimic's Lift, so the two demonstrators are made up: one
acts as recorded, the other with noise, on the same frames. The example shows the way from frames to a ranking.

    python examples/image_features.py [FILE.hdf5]
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import ileed

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "robomimic" / "lift_mh_image_1demo.hdf5"
FILE = Path(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].endswith(".hdf5") else SHARED
CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
FEATURES = 16
SEGMENT = 8  # steps; the episode is split into segments, so that some can be held out


class Encoder(nn.Module):
    """Three convolutions with stride, then one layer: (frame, channel, height, width) to (frame, feature)."""

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        widths = (channels, 16, 32, 32)
        layers = [
            layer for each in pairwise(widths) for layer in (nn.Conv2d(*each, kernel_size=5, stride=3), nn.ReLU())
        ]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(features), nn.Tanh())

    def forward(self, frames: Tensor) -> Tensor:
        return self.layers(frames)


def trained(frames: Tensor, actions: Tensor, *, steps: int = 150, seed: int = 0) -> Encoder:
    """An encoder whose features predict the actions by one linear layer; it does not see who acted."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder, head = Encoder(frames.shape[1], FEATURES), nn.Linear(FEATURES, actions.shape[1])
        encoder(frames[:1])  # fixes the size of the last layer
        optimiser = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
        for step in range(steps):
            loss = (head(encoder(frames)) - actions).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 50 == 0 or step == steps - 1:
                print(f"encoder, step {step:3}: mean squared error of the actions {loss.item():.4f}")
    return encoder.eval()


def main() -> None:
    if not FILE.exists():
        print(f"{FILE.name} is not here: pass the path of a robomimic file with images (dataset_states_to_obs.py)")
        return
    cameras = [ileed.read(FILE, demonstrator=ileed.by_one("recorded"), observations=[name]) for name in CAMERAS]
    actions = cameras[0].actions.astype(np.float32)
    images = [each.observations.reshape(len(actions), 84, 84, 3) for each in cameras]
    frames = torch.from_numpy(np.concatenate(images, axis=-1)).permute(0, 3, 1, 2).float() / 255
    encoder = trained(frames, torch.from_numpy(actions))
    with torch.no_grad():
        features = encoder(frames).numpy()
    print(f"{len(frames)} frames of {frames[0].numel():,} numbers became {features.shape[1]} features each")

    noise = 0.3 * np.random.default_rng(0).normal(size=actions.shape).astype(np.float32)
    steps = len(actions)
    data = ileed.Demonstrations(
        observations=np.concatenate([features, features]),
        actions=np.concatenate([actions, actions + noise]),
        demonstrator=np.repeat(["recorded", "shaky"], steps),
        episode=np.arange(2 * steps) // SEGMENT,
    )
    print(data)
    fitted = ileed.Ileed(restarts=2, steps=300, folds=2).fit(data, seed=0, device="cpu")
    for name, expertise in fitted.expertise.ranking():
        print(f"{name:10} expertise {expertise:.2f}")


if __name__ == "__main__":
    main()
