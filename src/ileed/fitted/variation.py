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

from dataclasses import dataclass
from functools import cache
from typing import final

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


@final
@dataclass(frozen=True, eq=False)
class MarginalCurves:
    """Log-likelihood of each demonstrator's mean expertise, for every spread of their episodes."""

    whole: Array
    """(demonstrator, inner point of GRID) if episodes do not vary."""
    varied: Array
    """(spread above zero, demonstrator, mean) at the means of `_kernels`."""

    @classmethod
    def of(cls, curves: Array, by_episode: Array, owner: Array) -> MarginalCurves:
        """Integrate over the expertise of each episode.

        Args:
            curves: (demonstrator, point of GRID) log-likelihood of all steps if episodes do not vary.
            by_episode: (episode, point of `points_for`) log-likelihood of the steps of each episode.
            owner: (episode,) the demonstrator of each episode.
        """
        kernels = _kernels(by_episode.shape[1])
        varied = np.zeros((len(kernels), len(curves), by_episode.shape[1]))
        for first in range(0, len(by_episode), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            top = by_episode[part].max(1, keepdims=True)
            likelihood = np.exp(by_episode[part] - top)
            for total, (kernel, _) in zip(varied, kernels, strict=True):
                np.add.at(total, owner[part], np.log(np.maximum(product(likelihood, kernel.T), _TINY)) + top)
        return cls(curves[:, 1:-1], varied)

    def at(self, spread: int) -> Array:
        """(demonstrator, inner point of GRID) the curves for one of `SPREADS`, by its index."""
        if spread == 0:
            return self.whole
        mean = _kernels(self.varied.shape[2])[spread - 1][1]
        return np.array([np.interp(np.arcsin(np.sqrt(INSIDE)), mean, row) for row in self.varied[spread - 1]])

    @property
    def greatest(self) -> Array:
        """(demonstrator, 1) the greatest log-likelihood over all spreads."""
        return np.maximum(self.whole.max(1), self.varied.max((0, 2)))[:, None]


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


def posterior_of_means(curves: MarginalCurves, population: Population | None) -> tuple[Array, Population]:
    """(demonstrator, point) the posterior of each demonstrator's mean expertise, and the population that is its prior.

    The population, with the distribution of spreads, is learned from these demonstrators unless it is passed.
    """
    if population is not None:
        assert population.episode_spread is not None
        found, top = np.zeros_like(curves.whole), curves.greatest
        for spread in np.flatnonzero(population.episode_spread).tolist():
            found += population.episode_spread[spread] * np.exp(curves.at(spread) - top)
        return possible(found * population.share), population
    rough = _PRIOR + [_rough_evidence(curves.at(spread)) for spread in range(len(SPREADS))]
    kept = np.flatnonzero(rough > rough.max() - _NEGLIGIBLE)
    shares, share, spreads = np.zeros_like(curves.whole), np.zeros(len(INSIDE)), np.zeros(len(SPREADS))
    greatest = -np.inf
    for spread in kept.tolist():  # sums that are scaled again whenever a likelier spread follows
        learned = population_of(curves.at(spread))
        log_weight = _PRIOR[spread] + learned.log_evidence
        scale, weight = np.exp(min(greatest - log_weight, 0.0)), np.exp(min(log_weight - greatest, 0.0))
        greatest = max(greatest, log_weight)
        shares, share, spreads = shares * scale + weight * learned.shares, share * scale, spreads * scale
        share += weight * learned.population.share
        spreads[spread] = weight
    total = spreads.sum()
    return shares / total, Population(share / total, spreads / total)


def _rough_evidence(curves: Array) -> float:
    """The log of the marginal likelihood of curves (demonstrator, inner point) with uniformly distributed means."""
    top = curves.max(1, keepdims=True)
    density = np.sin(2 * _angles(curves.shape[1]))
    return float(np.log(product(np.exp(curves - top), density / density.sum())).sum() + top.sum())
