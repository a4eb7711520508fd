"""Mutual information of states and actions, and the contribution of each episode to it (DemInf).

Hejna et al., *Robot Data Curation with Mutual Information Estimators*, RSS 2025: states and actions are embedded by
variational autoencoders, mutual information is estimated from nearest neighbours (Kraskov, Stögbauer and Grassberger,
*Estimating mutual information*, Phys. Rev. E 69, 2004), and an episode is scored by the mean of its steps'
contributions. This is our own implementation from the description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from ileed import Demonstrations, SettingsError
from ileed.data import Array
from ileed.parallel.runtime import stream, threads
from ileed_lab.quality.autoencoder import Autoencoder
from ileed_lab.quality.score import AbstractQuality, mean_by_unit

__all__ = ["MutualInformation", "information_contributions"]


@final
@dataclass(frozen=True)
class MutualInformation(AbstractQuality):
    """The mean contribution of an episode's steps to the mutual information of states and actions.

    Contributions are estimated in random batches, over several passes through the data, and averaged over several
    numbers of neighbours.
    """

    chunk: int = 1
    """Consecutive actions that are embedded together; the last one of an episode is repeated at its end."""
    neighbours: tuple[int, ...] = (5, 6, 7)
    batch_size: int = 1024
    passes: int = 4
    states: Autoencoder = Autoencoder(latent=8)  # noqa: RUF009 (frozen)
    actions: Autoencoder = Autoencoder(latent=4)  # noqa: RUF009 (frozen)

    def scores(self, data: Demonstrations, *, seed: int, unit: Array | None = None) -> Array:
        if data.discrete:
            raise SettingsError("mutual information is estimated for continuous actions: leave this score out")
        observations = np.asarray(data.observations).reshape(len(data), -1)
        states = self.states.embed(observations, seed=stream(seed, "states").initial_seed())
        chunks = self.actions.embed(_chunks(data, self.chunk), seed=stream(seed, "actions").initial_seed())
        random = np.random.default_rng(stream(seed, "batches").initial_seed())
        total, batches = np.zeros(len(data)), max(1, len(data) // self.batch_size)
        for _ in range(self.passes):
            for batch in np.array_split(random.permutation(len(data)), batches):
                total[batch] += information_contributions(states[batch], chunks[batch], neighbours=self.neighbours)
        return mean_by_unit(total / self.passes, data.episode if unit is None else unit)


@threads(1)
def information_contributions(one: Array, other: Array, *, neighbours: Sequence[int]) -> Array:
    """(row,) what each row contributes to the mutual information of two columns of vectors, in nats.

    psi(k) - psi(n_x + 1) - psi(n_y + 1) + psi(N), where n_x and n_y are the rows that are nearer in one of the two
    columns than the k-th neighbour is in the maximum of both distances; the mean over all k in `neighbours`. The mean
    over rows is the estimate of Kraskov, Stögbauer and Grassberger.
    """
    if max(neighbours) >= len(one):
        raise SettingsError(f"neighbours has {max(neighbours)} and there are {len(one)} rows: pass more rows")
    apart = [torch.cdist(*2 * (torch.from_numpy(np.asarray(each, np.float64)),)) for each in (one, other)]
    nearest = torch.maximum(*apart).fill_diagonal_(torch.inf).topk(max(neighbours), largest=False).values
    found = torch.zeros(len(one), dtype=torch.float64)
    for k in neighbours:
        nearer = [(each < nearest[:, k - 1, None]).sum(1) for each in apart]  # with the row itself: n + 1
        found -= sum(torch.digamma(count.double()) for count in nearer) / len(neighbours)
    constant = torch.digamma(torch.tensor([*neighbours, len(one)], dtype=torch.float64))
    return np.asarray((found + constant[:-1].mean() + constant[-1]).numpy())


def _chunks(data: Demonstrations, length: int) -> Array:
    """(step, length * dimension) the actions of each step and of those after it."""
    last = data.episode_bounds[1:][data.episode] - 1
    index = np.minimum(np.arange(len(data))[:, None] + np.arange(length), last[:, None])
    return data.actions[index].reshape(len(data), -1)
