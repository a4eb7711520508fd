"""The likelihood of steps is one value, whoever owns the steps."""

import numpy as np
import pytest

import ileed
from ileed.rating.answers import likelihood_by_policy
from ileed.rating.posterior import GRID
from ileed.rating.step_likelihood import Units, interpolation

ACTIONS, STEPS = 4, 600


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(0).dirichlet(np.ones(ACTIONS), size=STEPS)


@pytest.fixture(scope="module")
def likelihood(table):
    random = np.random.default_rng(1)
    episode = np.arange(STEPS) // 20
    data = ileed.Demonstrations(
        observations=random.normal(size=(STEPS, 2)),
        actions=random.integers(ACTIONS, size=STEPS),
        demonstrator=episode % 3,
        episode=episode,
        skills={"half": np.where(random.random(STEPS) < 0.5, "up", "down")},
    )
    return likelihood_by_policy(table, data, ileed.UniformMixture())


def test_steps_have_the_likelihood_of_the_demonstrator_model(likelihood, table):
    found = likelihood.summed(np.arange(STEPS), STEPS)
    taken = table[np.arange(STEPS), likelihood.data.actions][:, None]
    inside = slice(1, -1)  # at 0 and 1, a model may bound probabilities away from zero
    expected = np.log(GRID * taken + (1 - GRID) / ACTIONS)
    np.testing.assert_allclose(found[:, inside], expected[:, inside], rtol=1e-6)


@pytest.mark.parametrize("by", ["episode", "half"])
def test_units_of_a_demonstrator_add_up_to_the_demonstrator(likelihood, by):
    data, units = likelihood.data, Units.of(likelihood.data, by)
    by_unit = likelihood.by_owner(units)(None).curves
    owner = [data.names.index(name) for name in units.columns["demonstrator"]]
    whole = np.zeros((len(data.names), len(GRID)))
    np.add.at(whole, owner, by_unit)
    np.testing.assert_allclose(whole, likelihood.by_owner(None)(None).curves, rtol=1e-12)


def test_some_demonstrators_have_the_curves_that_they_have_among_all(likelihood):
    curves, of_some = (likelihood.by_owner(None)(each) for each in (None, np.array([0, 2])))
    np.testing.assert_allclose(of_some.curves, curves.curves[[0, 2]], rtol=1e-12)
    _, population = curves.posterior(None)
    shares, of_these = (each.posterior(population)[0] for each in (curves, of_some))
    np.testing.assert_allclose(of_these, shares[[0, 2]], rtol=1e-6)


def test_selected_steps_are_those_of_the_whole(likelihood):
    chosen = likelihood.data.demonstrator == 1
    numbers = np.cumsum(chosen) - 1
    found = likelihood.select(chosen).summed(numbers, int(chosen.sum()))
    np.testing.assert_array_equal(found, likelihood.summed(np.arange(STEPS), STEPS)[chosen])


@pytest.mark.parametrize("size", [2, 4, 6])
def test_interpolation_is_exact_for_polynomials_of_its_degree(size):
    nodes, at = np.sort(np.random.default_rng(2).random(9)), np.linspace(0.2, 0.8, 7)
    coefficients = np.arange(1, size + 1)
    values, expected = (np.polyval(coefficients, each) for each in (nodes, at))
    np.testing.assert_allclose(values @ interpolation(nodes, at, size), expected, rtol=1e-9)
