"""What came before a step: the columns themselves, and that every sampler tells a model the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from strategies import CPU, joint_of, prepared_for, world
from tiny import tiny_parts

import ileed
from ileed.data.collapsing import CONTEXT, StepContext
from ileed.model.demonstrators import NO_CONTEXT, AbstractDemonstratorModel, Context, categorical
from ileed.model.joint import Parts


@dataclass(frozen=True, kw_only=True)
class Probe(AbstractDemonstratorModel):
    """A distribution that depends on every column of the context, on nothing else, and is easily written by hand."""

    discrete = True
    context = tuple(CONTEXT)

    def observed(self, policy, expertise, context: Context = NO_CONTEXT):
        numbers = [context[name].float() for name in ("previous_action", "first_step", "episode_number")]
        here = by_hand(*numbers, policy.probs.shape[-1], expertise)
        return categorical(here.probs + 0 * policy.probs)  # a fit needs a gradient


def by_hand(previous, first, number, actions, like):
    weight = (previous + 2 * first + 3 * number).expand_as(like)
    probs = torch.stack([(0.3 * weight + action).sin() + 2 for action in range(actions)], dim=-1)
    return categorical(probs / probs.sum(-1, keepdim=True))


def by_step(data) -> torch.Tensor:
    """The log-likelihood of every step, from a loop over steps."""
    episodes = {name: [] for name in range(len(data.names))}
    costs = []
    for step in range(len(data)):
        who, first = int(data.demonstrator[step]), step == 0 or data.episode[step] != data.episode[step - 1]
        if first:
            episodes[who].append(step)
        previous = torch.tensor(float(-1 if first else data.actions[step - 1]))
        here = by_hand(previous, torch.tensor(float(first)), len(episodes[who]) - 1, 3, torch.zeros(()))
        costs.append(here.log_prob(torch.tensor(data.actions[step])))
    return torch.stack(costs)


def test_the_columns_say_what_came_before():
    data = ileed.Demonstrations(
        observations=np.arange(6)[:, None],
        actions=[2, 0, 1, 1, 2, 0],
        demonstrator=[0, 0, 1, 1, 0, 0],
        episode=[0, 0, 1, 1, 2, 2],
    )
    found = StepContext(data, tuple(CONTEXT))(np.arange(6))
    assert {name: column.tolist() for name, column in found.items()} == {
        "previous_action": [-1, 2, -1, 1, -1, 2],
        "first_step": [1, 0, 1, 0, 1, 0],
        "episode_number": [0, 0, 0, 0, 1, 1],
    }


def test_the_previous_of_continuous_actions_is_zero_at_first_steps():
    data = world((2, 2), people=2, discrete=False)
    found = StepContext(data, ("previous_action",))(np.arange(4))["previous_action"]
    np.testing.assert_array_equal(found[[0, 2]], 0)
    np.testing.assert_array_equal(found[[1, 3]], data.actions[[0, 2]])


def test_counts_are_distinct_in_the_context_that_is_declared_and_in_no_other():
    data = world(seed=3)
    plain, collapsed = data.collapsed(), data.collapsed(context=("previous_action",))
    rows = {*zip(data.actions, plain.step_observation_index, data.demonstrator, strict=True)}
    assert len(plain.count) == len(rows)
    assert plain.context == {}
    previous = StepContext(data, ("previous_action",))(np.arange(len(data)))["previous_action"]
    distinct = {*zip(data.actions, plain.step_observation_index, data.demonstrator, previous, strict=True)}
    assert len(collapsed.count) == len(distinct) > len(rows)
    assert collapsed.count.sum() == len(data)
    np.testing.assert_array_equal(collapsed.context["previous_action"][collapsed.step_count_index], previous)
    np.testing.assert_array_equal(collapsed.action[collapsed.step_count_index], data.actions)
    np.testing.assert_array_equal(collapsed.demonstrator[collapsed.step_count_index], data.demonstrator)


def sampled(data, policy, **settings):
    parts = Parts(policy, Probe(), ileed.Constant())
    prepared = prepared_for(data, parts, members=2, **settings)
    return prepared.sampler, joint_of(parts, prepared.sizes)


@pytest.mark.parametrize(
    ("policy", "batch_size"),
    [
        (ileed.CategoricalMLP(hidden=()), None),
        (ileed.CategoricalMLP(hidden=()), 5),
        (tiny_parts.CategoricalLSTM(length=3), 5),
    ],
    ids=["counts", "mini-batches", "windows"],
)
def test_every_sampler_has_the_likelihood_of_a_loop_over_steps(policy, batch_size):
    data = world(seed=4)
    sampler, joint = sampled(data, policy, batch_size=batch_size)
    total = sum((joint.log_likelihood(batch) * batch.weight).sum(-1) for batch in sampler.everything(held_out=False))
    torch.testing.assert_close(total.detach(), by_step(data).sum().expand(2), rtol=1e-5, atol=1e-5)  # float32
    sampler.load(0)
    assert torch.isfinite(joint.objective(sampler.batch()).total).all()


def test_a_fit_tells_the_likelihood_of_other_data_with_their_own_context():
    data, other = world(seed=4), world((7, 2, 6), seed=5)
    method = ileed.Ileed(policy=ileed.CategoricalMLP(hidden=()), demonstrator=Probe(), restarts=1, steps=2)
    fitted = method.fit(data, seed=0, device="cpu")
    np.testing.assert_allclose(fitted.nats(other), -by_step(other).numpy(), rtol=1e-4, atol=1e-5)  # float32


@pytest.mark.parametrize("policy", [ileed.CategoricalMLP(hidden=()), tiny_parts.CategoricalLSTM(length=3)], ids=repr)
def test_data_sets_side_by_side_keep_their_own_context(policy):
    datasets = [world((3, 2, 4), seed=4), world((6, 5), people=2, seed=5)]
    parts = Parts(policy, Probe(), ileed.Constant())
    prepared = [prepared_for(data, parts, members=2) for data in datasets]
    beside = prepared[0].sampler.beside([prepared[1].sampler], members=2, device=CPU)
    net = joint_of(parts, prepared[0].sizes, (0, 1, 2, 3)).policy
    total = torch.zeros(4)
    for whole in beside.everything(held_out=False):
        ones = torch.ones(4, whole.action.shape[-1])
        total += (Probe().log_likelihood(net(whole.observations), ones, whole) * whole.weight).sum(-1).detach()
    expected = torch.stack([by_step(data).sum() for data in datasets]).repeat_interleave(2)
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)  # float32


def test_an_unknown_context_is_refused_by_name():
    @dataclass(frozen=True)
    class Wrong(Probe):
        context = ("previous_acton",)

    data = world()
    with pytest.raises(ileed.SettingsError, match="Wrong declares the context 'previous_acton'"):
        ileed.Ileed(demonstrator=Wrong(), restarts=1, steps=1).fit(data, seed=0, check_width=False)


def test_a_model_without_its_context_or_its_module_says_what_to_do():
    policy = torch.distributions.Categorical(logits=torch.zeros(1, 3))
    with pytest.raises(ileed.SettingsError, match="there is no context 'previous_action' here: declare it"):
        Probe().observed(policy, torch.ones(1))
    with pytest.raises(ileed.SettingsError, match="there is no parameter 'habit' here"):
        NO_CONTEXT.own("habit")
