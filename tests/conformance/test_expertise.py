"""Expertise keeps the laws that `AbstractExpertise` states: a number in [0, 1] for every demonstrator and place."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import EXPERTISES

from ileed import Constant, Difficulty, Embedded, Perfect, SettingsError, Skills
from ileed._torch import stream
from ileed.model.batch import Batch, Sizes

SIZES = Sizes(inputs=3, demonstrators=4, actions=2, skills=2)
each_expertise = pytest.mark.parametrize("expertise", EXPERTISES, ids=repr)
ROUNDING = {"rtol": 0, "atol": 1e-6}  # float32 numbers below one, a few sums deep


def net_of(expertise, restarts=(0, 1, 2), *, seed=0):
    return expertise.build(SIZES, [stream(seed, "init", restart) for restart in restarts])


def everyone_everywhere(unique_count=5, *, size=1.0, seed=0) -> Batch:
    """One cell for each demonstrator at each place; the place varies fastest."""
    generator = torch.Generator().manual_seed(seed)
    batch = Batch.of(
        sizes=SIZES,
        observations=size * torch.randn(3, unique_count, generator=generator),
        observation_index=torch.arange(unique_count).repeat(4),
        demonstrator=torch.arange(4).repeat_interleave(unique_count),
        action=torch.zeros(4 * unique_count, dtype=torch.long),
        weight=torch.ones(4 * unique_count),
        skills=torch.eye(2)[:, torch.arange(unique_count) % 2].contiguous(),
    )
    return replace(batch, context={"episode_number": torch.full((4 * unique_count,), 3)})


def table(net, batch: Batch) -> torch.Tensor:
    """rho as (member, demonstrator, place)."""
    return net(net.embedding(batch), batch).detach().unflatten(-1, (4, -1))


@each_expertise
@given(size=st.sampled_from([0.0, 1.0, 1e4, 1e12]), seed=st.integers(0, 99))
def test_expertise_lies_between_zero_and_one(expertise, size, seed):
    found = table(net_of(expertise, seed=seed), everyone_everywhere(size=size, seed=seed))
    assert found.shape == (3, 4, 5)
    assert ((found >= 0) & (found <= 1)).all()


@each_expertise
def test_a_members_expertise_depends_on_its_own_generator_alone(expertise):
    among, elsewhere = net_of(expertise, (0, 1, 2)), net_of(expertise, (7, 1))
    for name, parameter in among.named_parameters():
        assert torch.equal(parameter[1], elsewhere.get_parameter(name)[1])
    batch = everyone_everywhere()
    torch.testing.assert_close(table(among, batch)[1], table(elsewhere, batch)[1], **ROUNDING)


def test_perfect_demonstrators_do_not_err():
    assert (table(net_of(Perfect()), everyone_everywhere()) == 1).all()


def test_constant_ignores_what_is_seen_but_not_who_acts():
    net = net_of(Constant())
    here, there = table(net, everyone_everywhere(seed=0)), table(net, everyone_everywhere(seed=1))
    assert torch.equal(here, there)
    assert torch.equal(here, here[..., :1].expand_as(here))
    assert (here[..., 0].diff(dim=1).abs() > 1e-3).all()


def test_embedded_depends_on_what_is_seen_and_on_who_acts():
    found = table(net_of(Embedded(hidden=(8,))), everyone_everywhere())
    assert (found.diff(dim=1).abs().amax(dim=(1, 2)) > 1e-3).all()
    assert (found.diff(dim=2).abs().amax(dim=(1, 2)) > 1e-3).all()


def test_embedded_is_the_sigmoid_of_the_product_of_both_embeddings():
    net, batch = net_of(Embedded(dim=3, hidden=(4,))), everyone_everywhere()
    observation_index, person = net.embedding(batch), net.skill
    by_hand = torch.einsum("mdp,mdi->mip", observation_index, person).sigmoid().detach()
    torch.testing.assert_close(table(net, batch), by_hand, **ROUNDING)


def test_a_shared_embedding_ignores_who_acts_but_not_what_is_seen():
    found = table(net_of(Embedded(hidden=(8,), shared=True)), everyone_everywhere())
    torch.testing.assert_close(found, found[:, :1].expand_as(found), rtol=0, atol=0)
    assert (found.diff(dim=2).abs().amax(dim=(1, 2)) > 1e-3).all()


def test_difficulty_is_the_sigmoid_of_ability_easiness_and_interaction():
    net, batch = net_of(Difficulty(dim=2, hidden=(4,))), everyone_everywhere()
    state, (ability, interaction) = net.embedding(batch), net.skill.split((1, 2), dim=1)
    both = torch.einsum("mdp,mdi->mip", state[:, 1:], interaction)
    by_hand = (ability.mT + state[:, :1] + both).sigmoid().detach()
    torch.testing.assert_close(table(net, batch), by_hand, **ROUNDING)


def test_without_easiness_no_state_is_easier_for_all_demonstrators():
    net, batch = net_of(Difficulty(dim=2, hidden=(4,), easiness=False)), everyone_everywhere()
    ability, interaction = net.skill.split((1, 2), dim=1)
    centred = interaction - interaction.mean(-1, keepdim=True)
    logit = ability.mT + torch.einsum("mdp,mdi->mip", net.embedding(batch), centred)
    torch.testing.assert_close(table(net, batch), logit.sigmoid().detach(), **ROUNDING)
    mean = table(net, batch).logit().mean(1)
    torch.testing.assert_close(mean, ability.mean(-1).expand_as(mean), rtol=0, atol=1e-5)  # logit doubles twice
    assert (table(net, batch).diff(dim=2).abs().amax(dim=(1, 2)) > 1e-3).all()


def test_difficulty_without_easiness_and_interaction_is_refused():
    with pytest.raises(SettingsError, match="dim=0 with easiness=False"):
        Difficulty(dim=0, easiness=False)


def test_given_one_skill_at_a_time_each_skill_has_a_constant_of_its_own():
    net, batch = net_of(Skills("phase")), everyone_everywhere(unique_count=6)
    found = table(net, batch)
    for skill in (0, 1):
        constant = net_of(Constant())
        with torch.no_grad():
            constant.skill.copy_(net.skill[:, skill])
        alone = table(constant, batch)
        torch.testing.assert_close(found[..., skill::2], alone[..., skill::2], **ROUNDING)


def test_skills_ignore_what_is_seen_beyond_the_skills():
    net, batch = net_of(Skills("phase")), everyone_everywhere()
    moved = replace(batch, observations=batch.observations + 5)
    assert torch.equal(table(net, batch), table(net, moved))


def test_mixed_skills_mix_in_log_odds():
    """rho = sigmoid(<f, w>): half of either skill gives the mean of their log-odds."""
    net, batch = net_of(Skills("phase")), everyone_everywhere(unique_count=3)
    mixed = replace(batch, skills=torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]]))
    log_odds = table(net, mixed).logit()
    torch.testing.assert_close(log_odds[..., 2], log_odds[..., :2].mean(-1), rtol=0, atol=1e-5)  # logit doubles twice


@pytest.mark.parametrize(
    ("make", "found"),
    [(lambda: Embedded(dim=0), "dim is 0"), (lambda: Embedded(hidden=(0,)), "(0,)")],
    ids=["no dimension", "an empty layer"],
)
def test_sizes_that_make_no_embedding_are_refused(make, found):
    with pytest.raises(SettingsError) as refusal:
        make()
    assert found in str(refusal.value)
