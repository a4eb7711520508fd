"""Mixtures of Gaussians: torch's own distribution says what their density and its gradient are."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import mixture_tensors
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from ileed.model.distributions import _LogDensity


@given(
    modes=st.integers(1, 4), dimensions=st.integers(1, 3), every_member=st.booleans(), shared=st.booleans(),
    distance=st.sampled_from([0.1, 1.0, 1e3]), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_density_of_a_gpu_and_its_gradient_are_those_of_torchs_mixture(
    modes, dimensions, every_member, shared, distance, seed
):
    """In float64, to rounding; actions and standard deviations may be shared, and actions far from every mean."""
    logits, means, spreads = mixture_tensors(members=2, unique_count=3, modes=modes, dimensions=dimensions, seed=seed)
    spreads = spreads[:, :1] if shared else spreads
    generator = torch.Generator().manual_seed(seed + 1)
    shape = (2, 3, dimensions) if every_member else (3, dimensions)
    action = distance * torch.randn(shape, generator=generator, dtype=torch.float64)
    given_tensors = [each.requires_grad_() for each in (logits, means, spreads, action)]
    plain = MixtureSameFamily(Categorical(logits=logits), Independent(Normal(means, spreads.exp()), 1))
    densities = _LogDensity.apply(logits.log_softmax(-1), means, spreads.exp(), action), plain.log_prob(action)
    found = [(each, torch.autograd.grad(each.sin().sum(), given_tensors, retain_graph=True)) for each in densities]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
