"""Episode-to-episode variation: what a demonstrator's episodes say about their mean expertise when episodes differ.

The unit of replication is the episode. Expertise in episode e of demonstrator i is rho_ie with

    logit rho_ie = eta_i + tau z_ie,   z_ie standard normal,   m_i = E[rho_ie],

and the demonstrator's expertise is the mean m_i over episodes. With L_ie(rho) the likelihood of one episode's steps,

    L_i(m | tau) = prod_e integral L_ie(rho) p(rho | m, tau) d rho.

All demonstrators share tau. Its prior density is tau exp(-tau^2 / 2): zero at zero, since few episodes that happen to
be alike do not show that a demonstrator never varies (a boundary-avoiding prior: Chung et al., 2013, "A nondegenerate
penalized likelihood estimator for variance parameters in multilevel models"). Intervals are averaged over the posterior
distribution of tau.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ileed._torch import product
from ileed.demonstrations import Array
from ileed.fitted.posterior import INSIDE, Population, population_of, possible

SPREADS = np.array([0.0, 0.1, 0.2, 0.3, 0.45, 0.65, 0.9, 1.2, 1.6, 2.2, 3.0])
"""Values of tau, the standard deviation of an episode's expertise on the logit scale, over which we average."""
_PRIOR = np.log(np.maximum(SPREADS, 0.025)) - SPREADS**2 / 2 + np.log(np.gradient(SPREADS))  # 0 stands for 0 to 0.05
_NEGLIGIBLE = 12  # nats below the likeliest spread
_FINE, _COARSE, _MANY_EPISODES = 250, 50, 20_000
_AT_ONCE = 4096
_TINY = np.finfo(np.float64).tiny


def points_for(episodes: int) -> Array:
    """Points of expertise at which the likelihood of each of this many episodes is needed.

    Fifty points serve very many episodes, which are short whenever memory holds their steps.
    """
    return np.sin(_angles(_FINE if episodes <= _MANY_EPISODES else _COARSE)) ** 2


def _angles(count: int) -> Array:
    """Evenly spaced t with rho = sin^2 t, inside (0, pi / 2)."""
    return np.asarray((np.arange(count) + 0.5) * (np.pi / 2 / count))


def marginal_curves(curves: Array, by_episode: Array, owner: Array) -> Array:
    """(spread, demonstrator, point) log-likelihood of each demonstrator's mean expertise, for every spread of episodes.

    Args:
        curves: (demonstrator, point of GRID) log-likelihood of all steps if episodes did not vary.
        by_episode: (episode, point of `points_for`) log-likelihood of the steps of each episode.
        owner: (episode,) the demonstrator of each episode.
    """
    inside = curves[:, 1:-1]
    found = np.empty((len(SPREADS), *inside.shape))
    found[0] = inside
    kernels = _kernels(by_episode.shape[1])
    summed = np.zeros((len(kernels), len(inside), by_episode.shape[1]))
    for first in range(0, len(by_episode), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        top = by_episode[part].max(1, keepdims=True)
        likelihood = np.exp(by_episode[part] - top)
        for total, (kernel, _) in zip(summed, kernels, strict=True):
            np.add.at(total, owner[part], np.log(np.maximum(product(likelihood, kernel.T), _TINY)) + top)
    at = np.arcsin(np.sqrt(INSIDE))
    for place, (total, (_, mean)) in enumerate(zip(summed, kernels, strict=True), start=1):
        found[place] = [np.interp(at, mean, row) for row in total]
    return found


@cache
def _kernels(count: int) -> list[tuple[Array, Array]]:
    """For each spread above zero: (mean, point) distributions of an episode's expertise, and the angle of each mean."""
    angle = _angles(count)
    expertise = np.sin(angle) ** 2
    logit = 2 * np.log(np.tan(angle))
    step = 1 / (np.sin(angle) * np.cos(angle))  # d logit / dt, up to a constant
    found = []
    for spread in SPREADS[1:]:
        kernel = np.exp(-0.5 * ((logit[:, None] - logit) / spread) ** 2) * step
        kernel /= kernel.sum(1, keepdims=True)
        found.append((kernel, np.arcsin(np.sqrt(product(kernel, expertise)))))
    return found


def posterior_of_means(curves: Array, population: Population | None) -> tuple[Array, Population]:
    """(demonstrator, point) the posterior of each demonstrator's mean expertise, and the population that is its prior.

    Args:
        curves: (spread, demonstrator, point) from `marginal_curves`.
        population: the prior, with the distribution of spreads; learned from these demonstrators where it is None.
    """
    if population is not None:
        top = curves.max((0, 2), keepdims=True)
        assert population.episode_spread is not None
        found = np.einsum("s,sdp->dp", population.episode_spread, np.exp(curves - top)) * population.share
        return possible(found), population
    kept = np.flatnonzero(_rough_weights(curves) > -_NEGLIGIBLE)
    each = [population_of(curves[spread]) for spread in kept]
    log_weight = _PRIOR[kept] + np.array([own.log_evidence for own in each])
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    spreads = np.zeros(len(SPREADS))
    spreads[kept] = weight
    shares = sum(part * own.shares for part, own in zip(weight, each, strict=True))
    share = sum(part * own.population.share for part, own in zip(weight, each, strict=True))
    return np.asarray(shares), Population(np.asarray(share), spreads)


def _rough_weights(curves: Array) -> Array:
    """(spread,) log posterior of each spread below the greatest, with uniformly distributed means."""
    top = curves.max(2, keepdims=True)
    density = np.sin(2 * _angles(curves.shape[2]))
    found = _PRIOR + (np.log(product(np.exp(curves - top), density / density.sum())) + top[..., 0]).sum(1)
    return np.asarray(found - found.max())
