"""Dirichlet posteriors that share one learned prior: the probabilities of every model of workers.

With C_i ~ Dirichlet(a) and expected counts N_i the posterior is Dirichlet(a + N_i). Only outcomes that a worker has
shown are stored, since the others add nothing to what is computed here.
"""

from __future__ import annotations

import numpy as np
import torch

from ileed.demonstrations import Array

__all__ = ["digamma", "gamma_log_density", "lgamma", "logit_moments", "population_update"]


def digamma(values: Array) -> Array:
    """The derivative of log Gamma."""
    return torch.digamma(torch.from_numpy(values)).numpy()


def lgamma(values: Array) -> Array:
    """log Gamma."""
    return torch.lgamma(torch.from_numpy(values)).numpy()


def population_update(prior: Array, gain: Array, total_gain: Array, mode: Array) -> Array:
    """One step of a prior's parameters towards the greatest evidence; it never lowers it.

    The fixed point of Minka (2000), *Estimating a Dirichlet distribution*, with a Gamma prior on each parameter whose
    weight is that of one worker:

        a_k <- (a_k sum_i [psi(a_k + N_ik) - psi(a_k)] + m_k) / (sum_i [psi(a_0 + N_i0) - psi(a_0)] + 1)

    `gain` has the sums over workers by outcome, `total_gain` that of all outcomes together; m is the `mode`.
    """
    return np.asarray((prior * gain + mode) / (np.asarray(total_gain)[..., None] + 1))


def gamma_log_density(prior: Array, mode: Array) -> float:
    """The log-density of parameters under their Gamma prior, whose rate is 1 and whose mode is given."""
    return float((mode * np.log(prior) - prior - lgamma(mode + 1)).sum())


def logit_moments(mean: Array, standard_deviation: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the logit of a variable that has a Beta distribution with these moments."""
    total = mean * (1 - mean) / standard_deviation**2 - 1
    both = torch.from_numpy(np.maximum(np.stack([mean * total, (1 - mean) * total]), 1e-3))
    centre = torch.digamma(both[0]) - torch.digamma(both[1])
    return centre.numpy(), torch.polygamma(1, both).sum(0).sqrt().numpy()
