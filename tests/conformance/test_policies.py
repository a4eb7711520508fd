"""Policy heads keep the laws that `AbstractPolicyHead` states; members are independent networks side by side."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import every_act
from torch import nn
from torch.distributions import Categorical

from ileed import CategoricalMLP, MixtureLSTM, MixtureMLP, SettingsError
from ileed._torch import stream
from ileed.model import distributions
from ileed.model.batch import Sizes
from ileed.model.distributions import Choice, has_known_internals, mixture_parts
from ileed.model.nets import MLP, Pick, members

HEADS = (
    CategoricalMLP(hidden=(4, 3)),
    CategoricalMLP(hidden=()),
    MixtureMLP(hidden=(4, 3), modes=2),
    MixtureMLP(hidden=(5,), modes=1),
    MixtureMLP(hidden=(5,), modes=2, shared_standard_deviations=True),
    MixtureLSTM(hidden=(4, 3), length=7, modes=2),
    MixtureLSTM(hidden=(4,), length=1, modes=2, shared_standard_deviations=True),
)
each_head = pytest.mark.parametrize("head", HEADS, ids=repr)


def built(head, restarts=(0, 1, 2), *, inputs=3, actions=2, seed=0):
    sizes = Sizes(inputs=inputs, demonstrators=2, actions=actions, discrete=head.discrete)
    return head.build(sizes, [stream(seed, "init", restart) for restart in restarts])


def seen(unique_count=7, *, inputs=3, seed=0) -> torch.Tensor:
    return torch.randn(inputs, unique_count, generator=torch.Generator().manual_seed(seed))


def tensors(distribution) -> list[torch.Tensor]:
    """What fixes a distribution, with the member axis first."""
    return [distribution.log_probs] if isinstance(distribution, Choice) else list(mixture_parts(distribution))


@given(seed=st.integers(0, 999), actions=st.integers(2, 7), size=st.floats(0.1, 100))
def test_probabilities_sum_to_one(seed, actions, size):
    policy = built(CategoricalMLP(), actions=actions, seed=seed)(seen(seed=seed) * size)
    assert policy.batch_shape == (3, 7)
    total = policy.log_probs.exp().sum(-2)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-6)  # float32: 7 terms of 6e-8


@given(seed=st.integers(0, 999))
def test_an_illegal_action_has_no_probability_and_the_rest_sum_to_one(seed):
    legal = torch.rand(4, 7, generator=torch.Generator().manual_seed(seed)) < 0.5
    legal[seed % 4] = True
    probabilities = built(CategoricalMLP(), actions=4, seed=seed)(seen(seed=seed), legal).log_probs.exp()
    assert (probabilities[:, ~legal] == 0).all()
    torch.testing.assert_close(probabilities.sum(-2), torch.ones(3, 7), rtol=0, atol=1e-6)  # float32


def test_a_mixture_integrates_to_one():
    """In float64 on 20,001 points over 15 deviations, where the trapezium rule errs far below 1e-6."""
    policy = built(MixtureMLP(hidden=(4,), modes=3), actions=1).double()(seen(2).double())
    assert policy.batch_shape == (3, 2)
    _, means, deviations = mixture_parts(policy)
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64) * (means.abs().max() + 15 * deviations.max())
    density = policy.log_prob(grid[:, None, None, None].expand(-1, 3, 2, 1)).exp()
    total = torch.trapezoid(density, grid, dim=0)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-6)


def test_no_deviation_lies_below_the_floor():
    net = built(MixtureMLP(hidden=(), modes=2, standard_deviation_floor=0.25))
    with torch.no_grad():
        net.body.layers[-1].bias.fill_(-200.0)  # softplus of this is nothing at all
    assert mixture_parts(net(seen()))[2].min() == 0.25


def test_actions_in_other_units_have_the_same_density_in_those_units():
    """Change of variables: p(shift + scale z) = p(z) / scale, in every dimension."""
    net = built(MixtureMLP(hidden=(4,), modes=2)).double()
    action = torch.randn(3, 7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = net(seen().double()).log_prob(action)
    net.action_shift, net.action_scale = torch.tensor([5.0, -1.0]).double(), torch.tensor([100.0, 0.01]).double()
    moved = net(seen().double()).log_prob(net.action_shift + net.action_scale * action)
    torch.testing.assert_close(moved, plain - net.action_scale.log().sum(), rtol=1e-9, atol=1e-9)  # float64


@each_head
def test_a_member_depends_on_its_own_generator_alone(head):
    among, alone, elsewhere = built(head, (0, 1, 2)), built(head, (1,)), built(head, (5, 4, 1, 9))
    for name, parameter in among.named_parameters():
        assert torch.equal(parameter[1], alone.get_parameter(name)[0])
        assert torch.equal(parameter[1], elsewhere.get_parameter(name)[2])
        assert not torch.equal(parameter[1], parameter[0])
    for ours, theirs in zip(tensors(among(seen())), tensors(elsewhere(seen())), strict=True):
        torch.testing.assert_close(ours[1], theirs[2], rtol=0, atol=1e-6)  # other batch sizes may sum in another order


@each_head
@pytest.mark.parametrize("index", [0, 2])
def test_a_member_taken_out_is_that_slice(head, index):
    net = built(head)
    out = members(net, [index])
    for whole, alone in zip(tensors(net(seen())), tensors(out(seen())), strict=True):
        assert len(alone) == 1
        torch.testing.assert_close(alone[0], whole[index], rtol=0, atol=1e-6)  # other batch sizes, another order
    with torch.no_grad():
        next(out.parameters()).zero_()
    assert next(net.parameters())[index].abs().sum() > 0, "the member taken out must not share memory with the rest"


@pytest.mark.parametrize("shared", [True, False], ids=["inputs shared", "inputs of its own"])
@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_a_member_is_a_plain_torch_network_of_the_same_weights(shared, sizes, seed):
    net = MLP(sizes, generators=[stream(seed, k) for k in range(3)]).double()
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(*(() if shared else (3,)), sizes[0], 5, generator=generator, dtype=torch.float64)
    outputs = net(inputs)
    for k in range(3):
        modules: list[nn.Module] = []
        for ours in net.layers:
            linear = nn.Linear(ours.weight.shape[2], ours.weight.shape[1], dtype=torch.float64)
            linear.load_state_dict({"weight": ours.weight[k], "bias": ours.bias[k, :, 0]})
            modules += [linear, nn.ReLU()]
        plain = nn.Sequential(*modules[:-1])
        expected = plain((inputs if shared else inputs[k]).T).T
        torch.testing.assert_close(outputs[k], expected, rtol=1e-10, atol=1e-12)  # float64


@given(sizes=st.lists(st.integers(1, 50), min_size=2, max_size=2), seed=st.integers(0, 99))
def test_weights_start_within_the_bound_that_torch_uses(sizes, seed):
    inputs, outputs = sizes
    (layer,) = MLP((inputs, outputs), generators=[stream(seed, k) for k in range(4)]).layers
    bound = inputs**-0.5
    largest = max(layer.weight.abs().max(), layer.bias.abs().max())
    assert largest <= bound
    assert largest > 0.2 * bound  # of 8 or more uniform draws; all below a fifth has probability 0.2**8 at most


# --- Choice


class CategoricalOfAnotherTorch(Categorical):
    """What torch may make of it: the number of events under another name."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._event_count = vars(self).pop("_num_events")


def test_the_internals_of_this_torchs_categorical_are_known():
    """Otherwise log-probabilities are normalised twice, which costs more than the network that made them."""
    assert has_known_internals(Categorical)
    assert not has_known_internals(CategoricalOfAnotherTorch)


@pytest.mark.parametrize("known", [True, False])
@given(seed=st.integers(0, 99))
def test_a_choice_behaves_as_torchs_categorical(known, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributions, "_INTERNALS_ARE_KNOWN", known)
        _behaves_as_torchs_categorical(seed)


def _behaves_as_torchs_categorical(seed):
    scores = 3 * torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ours = Choice(scores.log_softmax(-2))
    theirs = Categorical(logits=scores.transpose(-1, -2))
    assert ours.batch_shape == theirs.batch_shape == (2, 5)
    for name in ("probs", "logits", "mode"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-12, atol=1e-14)  # float64
    torch.testing.assert_close(ours.entropy(), theirs.entropy(), rtol=1e-12, atol=1e-14)
    assert ours.sample((3,)).shape == theirs.sample((3,)).shape == (3, 2, 5)
    action = torch.randint(4, (2, 5), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action), rtol=1e-12, atol=1e-14)
    assert ours.param_shape == theirs.param_shape
    assert ours.support.upper_bound == theirs.support.upper_bound == 3
    assert torch.equal(ours.enumerate_support(), theirs.enumerate_support())


def test_samples_of_a_choice_follow_its_probabilities():
    """20,000 draws of each with torch's global generator forked at seed 0; 5 standard errors are below 0.018."""
    probabilities = torch.tensor([0.1, 0.6, 0.3])
    policy = Choice(probabilities.log()[None, :, None])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = policy.sample((20_000,)).flatten()
    torch.testing.assert_close(drawn.bincount(minlength=3) / 20_000, probabilities, rtol=0, atol=0.018)


def test_what_was_taken_is_read_at_the_cells_action_and_place():
    policy, batch = every_act(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)))
    expected = policy.log_probs[:, batch.action, batch.observation_index.index]
    torch.testing.assert_close(policy.taken(batch), expected, rtol=0, atol=1e-6)  # read as a float32 product


# --- reading at indices


@pytest.mark.parametrize("entries", [5, 64, 65, 100], ids=lambda count: f"{count} entries")
@given(data=st.data())
def test_a_pick_reads_and_sends_back_gradients_as_indexing_does(entries, data):
    index = torch.tensor(data.draw(st.lists(st.integers(0, entries - 1), min_size=1, max_size=20)))
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(2, 3, entries, generator=generator, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    upstream = torch.randn(2, 3, len(index), generator=generator, dtype=torch.float64)
    read = Pick.of(index, entries)(ours)
    torch.testing.assert_close(read, ours[..., index], rtol=0, atol=0)
    (read * upstream).sum().backward()
    (theirs[..., index] * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)  # float64 sums of at most 20 terms


@pytest.mark.parametrize("entries", [5, 100], ids=lambda count: f"{count} entries")
def test_reading_beside_an_infinite_entry_is_not_disturbed_by_it(entries):
    table = torch.zeros(1, entries)
    table[0, 0] = -torch.inf  # the log-probability of an illegal action
    assert Pick.of(torch.tensor([1, 2, 2, 0]), entries, finite=False)(table).tolist() == [[0.0, 0.0, 0.0, -torch.inf]]


def test_a_pick_of_everything_in_order_gives_the_table_itself():
    table = torch.randn(2, 4)
    assert Pick.of(torch.arange(4), 4)(table) is table


# --- settings


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: CategoricalMLP(hidden=(4, 0)), "(4, 0)"),
        (lambda: MixtureMLP(hidden=(-1,)), "(-1,)"),
        (lambda: MixtureMLP(modes=0), "modes is 0"),
        (lambda: MixtureMLP(standard_deviation_floor=0.0), "standard_deviation_floor is 0.0"),
        (lambda: MixtureMLP(standard_deviation_floor=float("nan")), "standard_deviation_floor is nan"),
        (lambda: MixtureLSTM(hidden=()), "one or more"),
        (lambda: MixtureLSTM(length=0), "length is 0"),
        (lambda: MixtureLSTM(modes=0), "modes is 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sizes_that_make_no_network_are_refused(make, found):
    with pytest.raises(SettingsError) as refusal:
        make()
    assert found in str(refusal.value)
