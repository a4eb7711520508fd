"""Several data sets fitted at once: each comes out as it would alone."""

import numpy as np
import pytest
from needs import gpu
from strategies import world

import ileed
from ileed.fitting import blocks

METHODS = {
    "cloning": ileed.bc(restarts=3, steps=40),
    "constant": ileed.Ileed(expertise=ileed.Constant(), restarts=3, steps=40),
    "embedded": ileed.Ileed(restarts=3, steps=40),
    "shared": ileed.Ileed(expertise=ileed.Embedded(shared=True), restarts=2, steps=40),
    "interaction": ileed.Ileed(expertise=ileed.Difficulty(easiness=False), restarts=3, steps=40),
    "dynamics": ileed.Ileed(dynamics=ileed.LatentDynamics(), restarts=3, steps=40),
    "one versus rest": ileed.Ileed(demonstrator=ileed.OneVersusRest(), restarts=3, steps=40),
    "Boltzmann, clipped": ileed.Ileed(demonstrator=ileed.Boltzmann(), clip=0.5, restarts=3, steps=40),
    "held out": ileed.Ileed(held_out=0.3, restarts=3, steps=40),
    "mini-batches": ileed.Ileed(batch_size=5, restarts=3, steps=40),
}
PLACES = ["cpu", pytest.param("cuda", marks=gpu)]


def unequal_worlds() -> list[ileed.Demonstrations]:
    """Data sets that differ in steps, places, varying inputs and demonstrators, so that all padding is used."""
    still = world((9, 8, 7), people=2, seed=3)
    observations = still.observations.copy()
    observations[:, 1] = 1  # an input that varies in the others
    return [
        world((6, 4, 5, 7, 3, 5), people=3, seed=1),
        ileed.Demonstrations(
            observations=observations,
            actions=still.actions,
            demonstrator=still.demonstrator,
            episode=still.episode,
            names=still.names,
            action_count=still.action_count,
        ),
        world((20, 11, 30, 8), people=3, seed=2),
    ]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_each_of_several_data_sets_is_fitted_as_it_would_be_alone(method, device):
    datasets = unequal_worlds()
    fitted_together = method.fit_each(datasets, seeds=[5, 6, 7], device=device)
    for data, seed, ensemble in zip(datasets, [5, 6, 7], fitted_together, strict=True):
        alone, beside = method.fit(data, seed=seed, device=device, check_width=False), ensemble.best().fitted()
        # products of other shapes round differently; forty steps amplify the last bits by no more than this
        np.testing.assert_allclose(beside.restarts.nats_per_action, alone.restarts.nats_per_action, atol=2e-5)
        np.testing.assert_allclose(
            beside.policy.distribution(data.observations).probs,
            alone.policy.distribution(data.observations).probs,
            atol=2e-4,
        )
        assert beside.expertise.by_demonstrator() == pytest.approx(alone.expertise.by_demonstrator(), abs=2e-4)
        assert beside.outcome == alone.outcome


def test_data_sets_with_other_numbers_of_actions_are_fitted_one_after_the_other():
    datasets = [world(seed=seed, actions=actions) for seed, actions in ((1, 3), (2, 5), (3, 5))]
    fitted_together = METHODS["constant"].fit_each(datasets, seeds=[5, 6, 7], device="cpu")
    for data, seed, ensemble in zip(datasets, [5, 6, 7], fitted_together, strict=True):
        alone = METHODS["constant"].fit(data, seed=seed, device="cpu", check_width=False)
        np.testing.assert_allclose(ensemble.result.nats_per_action, alone.restarts.nats_per_action, atol=2e-5)


def test_data_sets_are_cut_into_blocks_without_changing_anything(monkeypatch):
    method, datasets = METHODS["embedded"], unequal_worlds()
    at_once = method.fit_each(datasets, seeds=[5, 6, 7], device="cpu")
    monkeypatch.setattr(blocks, "_AT_ONCE", {"cpu": 1})
    heard: list[ileed.Progress] = []
    one_by_one = method.fit_each(datasets, seeds=[5, 6, 7], device="cpu", progress=heard.append)
    for one, other in zip(at_once, one_by_one, strict=True):
        np.testing.assert_allclose(one.result.nats_per_action, other.result.nats_per_action, atol=2e-5)
    assert (heard[-1].step, heard[-1].steps) == (120, 120)
    assert [told.step for told in heard] == sorted(told.step for told in heard)


@pytest.mark.parametrize("among", [1, 2])
def test_the_choice_among_the_first_restarts_is_that_of_a_fit_with_so_many(among):
    data = world(seed=1)
    fewer = ileed.Ileed(restarts=among, steps=40).fit(data, seed=5, device="cpu", check_width=False)
    chosen = METHODS["embedded"].fit_each([data], seeds=[5], device="cpu")[0].first(among).best().fitted()
    np.testing.assert_allclose(chosen.restarts.nats_per_action, fewer.restarts.nats_per_action, atol=2e-5)
    assert chosen.restarts.chosen == fewer.restarts.chosen
