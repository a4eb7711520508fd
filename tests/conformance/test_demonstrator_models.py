"""Demonstrator models keep the laws that `AbstractDemonstratorModel` states, each of them and over many policies."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    CONTINUOUS_MODELS,
    DISCRETE_MODELS,
    continuous_batch,
    every_act,
    mixture_tensors,
    over_actions,
    random_mixture,
)

from ileed.model.demonstrators import Boltzmann, OneVersusRest, UniformMixture
from ileed.model.distributions import Choice, mixture, mixture_parts

# Float64 throughout: sums of a handful of terms, each exact to 2e-16, through one exp and one log.
ROUNDING = {"rtol": 1e-10, "atol": 1e-12}

each_discrete = pytest.mark.parametrize("model", DISCRETE_MODELS, ids=repr)
each_continuous = pytest.mark.parametrize("model", CONTINUOUS_MODELS, ids=repr)
fading = pytest.mark.parametrize("model", [UniformMixture(), Boltzmann()], ids=repr)  # uniform at expertise zero

scores = st.integers(2, 5).flatmap(
    lambda actions: st.lists(st.lists(st.floats(-8, 8), min_size=actions, max_size=actions), min_size=1, max_size=3)
)
expertise = st.floats(0, 1)


def policy_over(rows: list[list[float]]) -> tuple[Choice, object]:
    """One member; each row of scores is a place."""
    return every_act(torch.tensor(rows, dtype=torch.float64).T[None].contiguous())


def at(batch, rho: float | torch.Tensor) -> torch.Tensor:
    """The same expertise in every cell."""
    return torch.as_tensor(rho, dtype=batch.weight.dtype).expand(1, len(batch.weight))


def level(rho: float, count: int) -> torch.Tensor:
    """The same expertise at every place."""
    return torch.full((1, count), rho, dtype=torch.float64)


def acts(probabilities: list[float]):
    """A policy at one place given by its probabilities, and one cell for each action in order."""
    return every_act(torch.tensor(probabilities, dtype=torch.float64).log()[None, :, None])


# --- discrete actions


@each_discrete
@given(rows=scores, rho=expertise)
def test_what_is_observed_sums_to_one_over_actions(model, rows, rho):
    """Through `log_likelihood`, since `Categorical` would normalise behind our back."""
    policy, batch = policy_over(rows)
    total = over_actions(model.log_likelihood(policy, at(batch, rho), batch).exp(), batch, len(rows))
    torch.testing.assert_close(total, torch.ones_like(total), **ROUNDING)


@each_discrete
@given(rows=scores)
def test_at_expertise_one_the_policy_itself_is_observed(model, rows):
    policy, batch = policy_over(rows)
    torch.testing.assert_close(model.observed(policy, level(1.0, len(rows))).probs, policy.probs, **ROUNDING)
    torch.testing.assert_close(model.log_likelihood(policy, at(batch, 1.0), batch), policy.taken(batch), **ROUNDING)


@fading
@given(rows=scores)
def test_at_expertise_zero_every_action_is_as_likely(model, rows):
    policy, batch = policy_over(rows)
    uniform = torch.full_like(policy.probs, 1 / policy.probs.shape[-1])
    torch.testing.assert_close(model.observed(policy, level(0.0, len(rows))).probs, uniform, **ROUNDING)
    log_likelihood = model.log_likelihood(policy, at(batch, 0.0), batch)
    torch.testing.assert_close(log_likelihood, torch.full_like(log_likelihood, uniform[0, 0, 0].log()), **ROUNDING)


@given(rows=scores)
def test_one_versus_rest_is_uniform_at_one_over_the_number_of_actions(rows):
    policy, batch = policy_over(rows)
    actions = policy.probs.shape[-1]
    log_likelihood = OneVersusRest().log_likelihood(policy, at(batch, 1 / actions), batch)
    torch.testing.assert_close(log_likelihood, torch.full_like(log_likelihood, -math.log(actions)), **ROUNDING)


@each_discrete
@given(rows=scores, rho=expertise)
def test_the_likelihood_of_a_cell_is_what_the_definition_gives_its_action(model, rows, rho):
    """Scores within 8 of each other keep every probability above 1e-8, where `Categorical` does not clamp."""
    policy, batch = policy_over(rows)
    by_definition = model.observed(policy, level(rho, len(rows)))
    expected = by_definition.probs[:, batch.observation_index.index, batch.action].log()
    # At expertise 0 the others under OneVersusRest may have no mass at all; there ours is floored, theirs is not.
    some = expected > -18
    found = model.log_likelihood(policy, at(batch, rho), batch)
    torch.testing.assert_close(found[some], expected[some], rtol=1e-7, atol=1e-9)  # 1 - pi cancels 8 digits at most


@each_discrete
@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("faint", [1e-8, 1e-18, 1e-30])
def test_the_definition_and_the_likelihood_agree_about_faint_actions(model, rho, faint):
    policy, batch = acts([1 - 2 * faint, faint, faint])
    by_definition = model.observed(policy, level(rho, 1))
    found = model.log_likelihood(policy, at(batch, rho), batch)
    # The leading action's 1 - pi is a difference of nearly equal numbers under OneVersusRest; the faint ones are exact.
    torch.testing.assert_close(by_definition.log_prob(batch.action[1:, None])[:, 0], found[0, 1:], rtol=1e-6, atol=0)


@fading
@given(rows=scores, rho=expertise, seed=st.integers(0, 99))
def test_only_legal_actions_are_ever_observed(model, rows, rho, seed):
    table = torch.tensor(rows, dtype=torch.float64).T[None].contiguous()
    legal = torch.rand(table.shape[1:], generator=torch.Generator().manual_seed(seed)) < 0.5
    legal[seed % len(legal)] = True
    policy, batch = every_act(table, legal=legal)
    by_definition = model.observed(policy, level(rho, len(rows))).probs[0].T
    assert (by_definition[~legal] == 0).all()
    if rho == 0:
        torch.testing.assert_close(by_definition, legal / legal.sum(0).double(), **ROUNDING)
    total = over_actions(model.log_likelihood(policy, at(batch, rho), batch).exp(), batch, len(rows))
    torch.testing.assert_close(total, torch.ones_like(total), **ROUNDING)


@fading
@pytest.mark.parametrize("unique_count", [2, 40], ids=["a table read as a product", "a table read by index"])
def test_at_expertise_zero_every_legal_action_is_as_likely(model, unique_count):
    generator = torch.Generator().manual_seed(0)
    legal = torch.rand(4, unique_count, generator=generator) < 0.5
    legal[0] = True
    policy, batch = every_act(torch.randn(1, 4, unique_count, generator=generator, dtype=torch.float64), legal=legal)
    choices = legal.sum(0).double()[batch.observation_index.index]
    found = model.log_likelihood(policy, at(batch, 0.0), batch)
    torch.testing.assert_close(found, -choices.log()[None], **ROUNDING)


@pytest.mark.parametrize(
    ("model", "legal"),
    [*((model, False) for model in DISCRETE_MODELS), (UniformMixture(), True), (Boltzmann(), True)],
    ids=lambda value: ("some legal" if value else "all legal") if isinstance(value, bool) else repr(value),
)
@pytest.mark.parametrize("unique_count", [2, 25], ids=["a table read as a product", "a table read by index"])
def test_gradients_match_finite_differences(model, unique_count, legal):
    generator = torch.Generator().manual_seed(1)
    allowed = torch.ones(3, unique_count, dtype=torch.bool)
    allowed[0, ::2] = not legal
    table = torch.randn(2, 3, unique_count, generator=generator, dtype=torch.float64, requires_grad=True)
    _, batch = every_act(table.detach(), legal=allowed if legal else None)
    rho = 0.05 + 0.9 * torch.rand(2, len(batch.weight), generator=generator, dtype=torch.float64)

    def log_likelihood(table, rho):
        policy, _ = every_act(table, legal=allowed if legal else None)
        return model.log_likelihood(policy, rho, batch)

    assert torch.autograd.gradcheck(log_likelihood, (table, rho.requires_grad_()), fast_mode=True)


@each_discrete
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rho", [0.0, 1e-30, 0.5, 1.0])
@pytest.mark.parametrize(
    "gap", [0.0, 30 * math.log(10), 1e4], ids=["equal", "1e-30", "no mass"]
)  # exp(-1e4) is zero in either precision
def test_values_and_gradients_stay_finite_at_the_edges(model, dtype, rho, gap):
    table = torch.tensor([[0.0, 0.0], [-gap, 0.0], [-gap, -gap]], dtype=dtype)[None].requires_grad_()
    policy, batch = every_act(table)
    own = torch.full((1, len(batch.weight)), rho, dtype=dtype, requires_grad=True)
    found = model.log_likelihood(policy, own, batch)
    by_table, by_expertise = torch.autograd.grad(found.sum(), (table, own))
    for tensor in (found, by_table, by_expertise):
        assert torch.isfinite(tensor).all(), tensor


@fading
@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("unique_count", [2, 40], ids=["a table read as a product", "a table read by index"])
def test_illegal_actions_leave_values_and_gradients_finite(model, rho, unique_count):
    legal = torch.ones(3, unique_count, dtype=torch.bool)
    legal[2, ::2] = False
    legal[1, 0] = False  # one legal action only
    table = torch.zeros(1, 3, unique_count, dtype=torch.float64, requires_grad=True)
    policy, batch = every_act(table, legal=legal)
    own = torch.full((1, len(batch.weight)), rho, dtype=torch.float64, requires_grad=True)
    found = model.log_likelihood(policy, own, batch)
    by_table, by_expertise = torch.autograd.grad(found.sum(), (table, own))
    for tensor in (found, by_table, by_expertise):
        assert torch.isfinite(tensor).all(), tensor


BY_HAND = {
    UniformMixture(): lambda p, rho: [rho * q + (1 - rho) / len(p) for q in p],
    OneVersusRest(): lambda p, rho: [rho * q + (1 - rho) * (1 - q) / (len(p) - 1) for q in p],
    Boltzmann(): lambda p, rho: [q**rho / sum(other**rho for other in p) for q in p],
}


@each_discrete
@pytest.mark.parametrize("rho", [0.0, 0.25, 0.8, 1.0])
@pytest.mark.parametrize("probabilities", [[0.7, 0.2, 0.1], [0.4, 0.6], [0.1, 0.2, 0.3, 0.4]], ids=str)
def test_against_arithmetic(model, rho, probabilities):
    policy, batch = acts(probabilities)
    by_hand = torch.tensor(BY_HAND[model](probabilities, rho), dtype=torch.float64)
    torch.testing.assert_close(model.observed(policy, at(batch, rho)[:, :1]).probs[0, 0], by_hand, **ROUNDING)
    torch.testing.assert_close(model.log_likelihood(policy, at(batch, rho), batch)[0].exp(), by_hand, **ROUNDING)


# --- what the likelihood cannot tell apart


@given(rows=scores, rho=st.floats(0.05, 1), share=st.floats(0, 1))
def test_under_a_uniform_slip_more_expertise_of_a_blunter_policy_is_as_likely(rows, rho, share):
    sharp, batch = policy_over(rows)
    factor = 1 + share * (1 / rho - 1)  # up to where the greater expertise is one
    actions = sharp.probs.shape[-1]
    blunt = Choice((1 / actions + (sharp.log_probs.exp() - 1 / actions) / factor).log())
    torch.testing.assert_close(
        UniformMixture().log_likelihood(blunt, at(batch, min(factor * rho, 1.0)), batch),
        UniformMixture().log_likelihood(sharp, at(batch, rho), batch),
        **ROUNDING,
    )


@given(score=st.floats(-8, 8), rho=expertise)
def test_under_one_versus_rest_with_two_actions_the_mirror_image_is_as_likely(score, rho):
    policy, batch = policy_over([[score, 0.0]])
    mirrored, _ = policy_over([[0.0, score]])
    torch.testing.assert_close(
        OneVersusRest().log_likelihood(mirrored, at(batch, 1 - rho), batch).exp(),
        OneVersusRest().log_likelihood(policy, at(batch, rho), batch).exp(),
        **ROUNDING,
    )


@given(rows=scores, rho=expertise, factor=st.floats(1, 4))
def test_under_boltzmann_less_expertise_of_a_sharper_policy_is_as_likely(rows, rho, factor):
    policy, batch = policy_over(rows)
    sharper = Choice((factor * policy.log_probs).log_softmax(-2))
    torch.testing.assert_close(
        Boltzmann().log_likelihood(sharper, at(batch, rho / factor), batch),
        Boltzmann().log_likelihood(policy, at(batch, rho), batch),
        **ROUNDING,
    )


@each_continuous
@given(rho=st.floats(0.01, 0.25), factor=st.floats(1, 4))
def test_under_variance_scaling_more_expertise_of_a_wider_policy_is_as_likely(model, rho, factor):
    policy = random_mixture(dimensions=2)
    logits, means, deviations = mixture_parts(policy)
    wider = mixture(logits, means, deviations * (math.sqrt(factor) if model.scaled == "variance" else factor))
    action = torch.linspace(-2, 2, 6, dtype=torch.float64).reshape(3, 2)
    batch = continuous_batch(action, torch.arange(3), unique_count=3)
    torch.testing.assert_close(
        model.log_likelihood(wider, torch.full((2, 3), factor * rho, dtype=torch.float64), batch),
        model.log_likelihood(policy, torch.full((2, 3), rho, dtype=torch.float64), batch),
        **ROUNDING,
    )


# --- continuous actions


@each_continuous
@pytest.mark.parametrize("rho", [1e-3, 0.3, 1.0])
def test_a_density_integrates_to_one(model, rho):
    """On 40,001 points over 12 of the widest deviations either side, the trapezium rule errs far below 1e-6."""
    policy = random_mixture(members=1, unique_count=1)
    _, means, deviations = mixture_parts(policy)
    widest = deviations.max() / (math.sqrt(rho) if model.scaled == "variance" else rho)
    grid = torch.linspace(-1, 1, 40_001, dtype=torch.float64) * (12 * widest + means.abs().max())
    batch = continuous_batch(grid[:, None], torch.zeros(len(grid), dtype=torch.long), unique_count=1)
    density = model.log_likelihood(policy, torch.full((1, len(grid)), rho, dtype=torch.float64), batch).exp()[0]
    torch.testing.assert_close(
        torch.trapezoid(density, grid), torch.tensor(1.0, dtype=torch.float64), rtol=0, atol=1e-6
    )


@each_continuous
@given(rho=st.floats(0.01, 1), seed=st.integers(0, 99))
def test_one_component_has_its_variance_or_deviation_divided(model, rho, seed):
    """Against the normal density written out by hand."""
    logits, means, spreads = mixture_tensors(members=1, unique_count=1, modes=1, dimensions=1, seed=seed)
    batch = continuous_batch(
        torch.tensor([[0.3]], dtype=torch.float64), torch.zeros(1, dtype=torch.long), unique_count=1
    )
    found = model.log_likelihood(
        mixture(logits, means, spreads.exp()), torch.full((1, 1), rho, dtype=torch.float64), batch
    )
    mean, deviation = means.item(), math.exp(spreads.item())
    variance = deviation**2 / rho if model.scaled == "variance" else deviation**2 / rho**2
    by_hand = -0.5 * math.log(2 * math.pi * variance) - (0.3 - mean) ** 2 / (2 * variance)
    assert found.item() == pytest.approx(by_hand, rel=1e-10, abs=1e-12)


@each_continuous
@given(seed=st.integers(0, 99))
def test_at_expertise_one_the_mixture_itself_is_observed(model, seed):
    policy = random_mixture(dimensions=2, seed=seed)
    batch = continuous_batch(torch.ones(4, 2, dtype=torch.float64), torch.tensor([0, 1, 1, 2]), unique_count=3)
    ones = torch.ones(2, 4, dtype=torch.float64)
    torch.testing.assert_close(model.log_likelihood(policy, ones, batch), policy.taken(batch), **ROUNDING)


@each_continuous
def test_the_likelihood_of_a_continuous_cell_is_what_the_definition_gives_its_action(model):
    policy = random_mixture(dimensions=2)
    observation_index = torch.tensor([2, 0, 1, 1, 2])
    generator = torch.Generator().manual_seed(3)
    action = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    by_place = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    found = model.log_likelihood(
        policy, by_place[:, observation_index], continuous_batch(action, observation_index, unique_count=3)
    )
    observed = model.observed(policy, by_place)
    one_by_one = [
        observed.log_prob(action[count_index].expand(2, 3, 2))[:, observation_index[count_index]]
        for count_index in range(5)
    ]
    torch.testing.assert_close(found, torch.stack(one_by_one, dim=1), **ROUNDING)


@each_continuous
def test_gradients_of_a_mixture_match_finite_differences(model):
    generator = torch.Generator().manual_seed(4)
    observation_index = torch.tensor([0, 2, 2, 1])
    batch = continuous_batch(
        torch.randn(4, 2, generator=generator, dtype=torch.float64), observation_index, unique_count=3
    )
    rho = 0.05 + 0.9 * torch.rand(2, 4, generator=generator, dtype=torch.float64)

    def log_likelihood(logits, means, spreads, rho):
        return model.log_likelihood(mixture(logits, means, spreads.exp()), rho, batch)

    inputs = (*mixture_tensors(members=2, unique_count=3, modes=2, dimensions=2, seed=5), rho)
    assert torch.autograd.gradcheck(log_likelihood, tuple(tensor.requires_grad_() for tensor in inputs))


@each_continuous
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rho", [0.0, 1e-30, 1.0])
@pytest.mark.parametrize("distance", [0.0, 30.0], ids=["at the centre", "thirty deviations out"])
def test_densities_and_gradients_stay_finite_at_the_edges(model, dtype, rho, distance):
    tensors = [
        part.to(dtype).requires_grad_()
        for part in mixture_tensors(members=1, unique_count=1, modes=2, dimensions=1, seed=0)
    ]
    logits, means, spreads = tensors
    action = torch.full((1, 1), means[0, 0, 0, 0].item() + distance, dtype=dtype)
    own = torch.full((1, 1), rho, dtype=dtype, requires_grad=True)
    batch = continuous_batch(action, torch.zeros(1, dtype=torch.long), unique_count=1)
    found = model.log_likelihood(mixture(logits, means, spreads.exp()), own, batch)
    for tensor in (found, *torch.autograd.grad(found.sum(), (*tensors, own))):
        assert torch.isfinite(tensor).all(), tensor


@each_continuous
@pytest.mark.parametrize("exempt", [(), (0, 8)])
def test_with_an_error_of_the_policy_the_likelihood_is_that_of_the_broadened_definition(model, exempt):
    model = replace(model, exempt=exempt)
    policy = random_mixture(members=1, unique_count=5, modes=3, dimensions=9)
    generator = torch.Generator().manual_seed(3)
    action, error = (torch.randn(*shape, 9, generator=generator, dtype=torch.float64) for shape in ((5,), (1, 5, 3)))
    batch = continuous_batch(action, torch.arange(5), unique_count=5)
    rho = torch.tensor([0.0, 1e-3, 0.4, 1.0], dtype=torch.float64)[:, None].expand(-1, 5)
    expected = model.observed(policy, rho).broadened(error.square()).log_prob(action)
    torch.testing.assert_close(
        model.log_likelihood_with_error(policy, rho, batch, error.square()), expected, **ROUNDING
    )
