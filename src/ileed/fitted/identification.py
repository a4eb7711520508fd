"""What the likelihood leaves open: scales of expertise for which the policy can make up."""

from __future__ import annotations

import numpy as np

from ileed.demonstrations import Array

_STATES = 300  # distinct embeddings that are looked at; more of them only fix more
_LARGEST = 1 - 1e-3  # of expertise, beyond which its logit is not told from that of 1
_ZERO = 1e-9  # of the greatest eigenvalue


def free_scales(embedding: Array, expertise: Array) -> int:
    """How many scales of expertise are free where rho_i(s) = sigma(<f(s), w_i>) and f, (state, dimension), is known.

    A policy that is less sharp by a factor C_s at each state is as likely if everybody's expertise there is divided by
    C_s, as far as the w_i can follow: to first order in c = log C,

        <f(s), dw_i> = -c_s / (1 - rho_i(s))  for every person i and state s,

    with `expertise` (person, state) for rho. Returned is the dimension of the c for which there are such dw_i. Where it
    is zero, the sufficient condition of Beliaev et al., ICML 2022 (the lemma on a strictly proper loss), holds near the
    fit: nobody's expertise can be changed for another policy. One number for each person (f = 1) leaves one scale,
    labels of k skills leave k.
    """
    kept, first = np.unique(embedding, axis=0, return_index=True)
    kept, rho = kept[:_STATES], np.minimum(expertise[:, first[:_STATES]], _LARGEST)
    basis, size, _ = np.linalg.svd(kept.astype(np.float64), full_matrices=False)
    basis = basis[:, size > 1e-9 * size.max(initial=1e-300)]
    outside = np.eye(len(kept)) - basis @ basis.T
    gram = sum((weight[:, None] * outside * weight for weight in 1 / (1 - rho)), np.zeros_like(outside))
    values = np.linalg.eigvalsh(gram)
    return int((values <= _ZERO * max(values.max(), 1.0)).sum())
