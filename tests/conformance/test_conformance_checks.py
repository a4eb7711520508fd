"""The checks of `ileed.testing` pass for every part of the library and of another package, and fail for broken ones."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import CONTINUOUS_MODELS, DISCRETE_MODELS, EXPERTISES
from tiny import tiny_parts
from torch import nn
from torch.distributions import Categorical

import ileed
from ileed.formats import AbstractFormat
from ileed.model.demonstrators import NO_CONTEXT, AbstractDemonstratorModel, categorical
from ileed.model.distributions import Choice, GaussianMixture
from ileed.model.expertise import AbstractExpertise, ExpertiseNet
from ileed.model.nets import MLP, uniform
from ileed.model.policies import AbstractPolicyHead, CategoricalNet
from ileed.testing import check_demonstrator_model, check_expertise, check_format, check_policy_head

MODELS = (
    *DISCRETE_MODELS,
    *CONTINUOUS_MODELS,
    ileed.VarianceScaling(exempt=(1,)),
    tiny_parts.Habit(),
    tiny_parts.Repeat(),
    tiny_parts.Matrix(),
)
HEADS = (
    ileed.CategoricalMLP(hidden=(4, 3)),
    ileed.CategoricalMLP(hidden=()),
    ileed.MixtureMLP(hidden=(4, 3), modes=2),
    ileed.MixtureMLP(hidden=(5,), modes=2, shared_standard_deviations=True),
    ileed.MixtureLSTM(hidden=(4, 3), length=7, modes=2),
    ileed.MixtureLSTM(hidden=(4,), length=1, modes=2, low_noise=False),
    tiny_parts.CategoricalLSTM(),
)
few = settings(max_examples=3)


@pytest.mark.parametrize("model", MODELS, ids=repr)
@few
@given(seed=st.integers(0, 999), actions=st.integers(2, 5))
def test_every_demonstrator_model_keeps_its_laws(model, seed, actions):
    check_demonstrator_model(model, seed=seed, actions=actions)


@pytest.mark.parametrize("head", HEADS, ids=repr)
@few
@given(seed=st.integers(0, 999), actions=st.integers(2, 4))
def test_every_policy_head_keeps_its_laws(head, seed, actions):
    check_policy_head(head, seed=seed, actions=actions)


@pytest.mark.parametrize("expertise", [*EXPERTISES, tiny_parts.AtLeast(floor=0.25)], ids=repr)
@few
@given(seed=st.integers(0, 999))
def test_every_expertise_keeps_its_laws(expertise, seed):
    check_expertise(expertise, seed=seed)


def steps(folder: Path) -> Path:
    (folder / "data.steps").write_text("ann 0 1.5 0\nann 0 0.5 1\nbob 1 2.5 0\n")
    return folder / "data.steps"


def test_a_format_of_another_package_keeps_its_laws(tmp_path):
    check_format(tiny_parts.STEPS)
    check_format(tiny_parts.STEPS, steps(tmp_path))


def test_the_checks_need_neither_pytest_nor_hypothesis():
    code = (
        "import sys, ileed; from ileed.testing import check_expertise; check_expertise(ileed.Constant()); "
        "sys.exit(any(name.partition('.')[0] in ('pytest', 'hypothesis') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --- broken demonstrator models


class Follow(AbstractDemonstratorModel):
    """A right one, to be broken: with probability rho the policy, otherwise uniform."""

    discrete = True
    knows_legal_actions = False

    def observed(self, policy, expertise, context=NO_CONTEXT):
        uniform = torch.full_like(policy.probs, 1 / policy.probs.shape[-1])
        return categorical(torch.lerp(uniform, policy.probs, expertise.unsqueeze(-1)))


def frozen(kind):
    return dataclass(frozen=True)(kind)


@frozen
class Right(Follow):
    pass


@frozen
class Disagrees(Follow):
    def log_likelihood(self, policy, expertise, batch, module=None):
        return super().log_likelihood(policy, expertise, batch, module) + 0.01


@frozen
class Unnormalised(Follow):
    def observed(self, policy, expertise, context=NO_CONTEXT):
        right = super().observed(policy, expertise)
        right.logits = right.logits - 0.05 * (1 - expertise.unsqueeze(-1))
        return right


@frozen
class NeverThePolicy(Follow):
    def observed(self, policy, expertise, context=NO_CONTEXT):
        return super().observed(policy, 0.9 * expertise)


@frozen
class NotANumberAtZero(Follow):
    def observed(self, policy, expertise, context=NO_CONTEXT):
        return Categorical(logits=super().observed(policy, expertise).probs.log(), validate_args=False)

    def log_likelihood(self, policy, expertise, batch, module=None):
        return super().log_likelihood(policy, expertise, batch, module) + 0 * expertise.log().nan_to_num()


@frozen
class IllegalActions(Follow):
    knows_legal_actions = True


@dataclass
class Thawed(Follow):
    pass


@frozen
class NotSaved(Follow):
    power: object = frozenset({1})


@dataclass(frozen=True, eq=False)
class NotEqual(Follow):
    pass


@frozen
class OneParameterForAll(Follow):
    def build(self, sizes, generators):
        return nn.ParameterDict({"shared": torch.zeros(sizes.actions)})


@frozen
class OneGeneratorForAll(Follow):
    def build(self, sizes, generators):
        return nn.ParameterDict({"habit": uniform((3,), 1.0, list(generators[:1]) * len(generators))})


@frozen
class WithBuffers(Follow):
    def build(self, sizes, generators):
        module = nn.Module()
        module.register_buffer("seen", torch.zeros(len(generators)))
        return module


@frozen
class TooExpert(Follow):
    defines_expertise = True

    def build(self, sizes, generators):
        return nn.ParameterDict({"habit": uniform((sizes.demonstrators,), 1.0, generators)})

    def expertise(self, batch, module):
        return 1 + batch.demonstrator(module.get_parameter("habit")).abs()


@frozen
class ParameterlessExpertise(Follow):
    defines_expertise = True


class Louder(GaussianMixture):
    """A density of too much mass."""

    def log_prob(self, value):
        return super().log_prob(value) + 0.05


@frozen
class TooMuchMass(AbstractDemonstratorModel):
    discrete = False

    def observed(self, policy, expertise, context=NO_CONTEXT):
        right = ileed.VarianceScaling().observed(policy, expertise)
        return Louder(right.mixture_distribution, right.component_distribution) if (expertise < 1).any() else right


BROKEN_MODELS = {
    Disagrees: "log_likelihood must be observed",
    Unnormalised: "probabilities of actions must sum to one",
    NeverThePolicy: "at expertise 1 the policy itself must be observed",
    NotANumberAtZero: "must be finite at expertise",
    IllegalActions: "legal actions must have all of the probability",
    Thawed: "must be a frozen dataclass",
    NotSaved: "must be saved as JSON and come back",
    NotEqual: "must be equal to what its saved settings make",
    OneParameterForAll: "the first axis of the parameter shared must be the member",
    OneGeneratorForAll: "must depend on that member's generator alone",
    WithBuffers: "must have no buffers",
    TooExpert: "expertise must lie between 0 and 1",
    ParameterlessExpertise: "must have parameters",
    TooMuchMass: "must integrate to one",
}


def test_a_right_model_passes():
    check_demonstrator_model(Right())


@pytest.mark.parametrize("kind", BROKEN_MODELS, ids=lambda kind: kind.__name__)
def test_the_check_names_the_law_that_a_demonstrator_model_breaks(kind):
    with pytest.raises(AssertionError, match=BROKEN_MODELS[kind]):
        check_demonstrator_model(kind())


# --- broken policy heads


class Net(CategoricalNet):
    """A right one, to be broken."""

    def __init__(self, sizes, generators):
        super().__init__()
        self.body = MLP((sizes.inputs, sizes.actions), generators=generators)

    def forward(self, observations, legal=None):
        return self.read(self.body(observations), legal)


@dataclass(frozen=True)
class Head(AbstractPolicyHead):
    net: str = "Net"
    length: int = 1
    discrete = True

    def build(self, sizes, generators):
        return globals()[self.net](sizes, generators)


class ScoresAsProbabilities(Net):
    def forward(self, observations, legal=None):
        return Choice(self.body(observations))


class BlindToLegal(Net):
    def forward(self, observations, legal=None):
        return self.read(self.body(observations))


class OnePolicyForAll(Net):
    def __init__(self, sizes, generators):
        super().__init__(sizes, list(generators[:1]) * len(generators))


class NoMembers(Net):
    def __init__(self, sizes, generators):
        super().__init__(sizes, generators)
        self.temperature = nn.Parameter(torch.ones(1))


class Idle(Net):
    def __init__(self, sizes, generators):
        super().__init__(sizes, generators)
        self.idle = nn.Parameter(uniform((3,), 1.0, generators))


class FirstMember(Net):
    def average(self, distribution):
        return Categorical(logits=distribution.logits[0])


class KeepsActions(Net):
    def exchange_actions(self, members):
        pass


class StrangeSkill(Net):
    def skill_parameters(self):
        return [nn.Parameter(torch.zeros(3))]


class GlobalChance(Net):
    def sample(self, distribution, generator):
        return torch.distributions.Categorical(logits=distribution.logits.expand(50, -1, -1)).sample()[0]


class Forgetful(tiny_parts._CategoricalLSTMNet):
    def __init__(self, sizes, generators):
        super().__init__(tiny_parts.CategoricalLSTM(length=4), sizes, generators)

    def step(self, observations, state, legal=None):
        return super().step(observations, self.initial_state(observations.shape[-1]), legal)


BROKEN_NETS = {
    "ScoresAsProbabilities": "probabilities of all actions must sum to one",
    "BlindToLegal": "an illegal action must have no probability",
    "OnePolicyForAll": "must depend on that member's generator alone",
    "NoMembers": "the first axis of the parameter temperature must be the member",
    "Idle": "the parameter idle must have a finite gradient",
    "FirstMember": "average must be the mean of the members' distributions",
    "KeepsActions": "exchange_actions must exchange the two actions",
    "StrangeSkill": "skill_parameters must be parameters of the network",
}


def test_a_right_head_passes():
    check_policy_head(Head())


@pytest.mark.parametrize("net", BROKEN_NETS)
def test_the_check_names_the_law_that_a_policy_head_breaks(net):
    with pytest.raises(AssertionError, match=BROKEN_NETS[net]):
        check_policy_head(Head(net))


def test_the_check_finds_a_recurrent_policy_that_drops_its_state():
    with pytest.raises(AssertionError, match="step after step must give what the network gives for a window"):
        check_policy_head(Head("Forgetful", length=4))


def test_the_check_finds_a_policy_that_uses_the_global_generator():
    head = Head("GlobalChance")
    with torch.random.fork_rng(), pytest.raises(AssertionError, match="sample must depend on its generator alone"):
        check_policy_head(head, actions=50)


# --- broken expertise


class Skill(ExpertiseNet):
    def __init__(self, fault, sizes, generators):
        super().__init__()
        self.fault, self.skill = fault, nn.Parameter(uniform((sizes.demonstrators,), 1.0, generators))

    def forward(self, embedding, batch):
        rho = batch.demonstrator(self.skill.sigmoid())
        if self.fault == "beyond one":
            return 2 * rho + 0.9
        if self.fault == "by state":
            return rho * batch.observation_index(batch.observations.sum(0).sigmoid().expand(len(self.skill), -1))
        return rho[:1] if self.fault == "one member" else rho

    def mirror(self, members):
        if self.fault != "no mirror":
            super().mirror(members)


@dataclass(frozen=True)
class Level(AbstractExpertise):
    fault: str = "right"
    depends_on_state = False
    can_be_mirrored = True

    def build(self, sizes, generators):
        return Skill(self.fault, sizes, generators)


def test_a_right_expertise_passes():
    check_expertise(Level())


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("beyond one", "expertise must lie between 0 and 1"),
        ("by state", "must be the same at all observations"),
        ("one member", r"expertise must be \(member, count\)"),
        ("no mirror", "mirror must replace rho by 1 - rho"),
    ],
)
def test_the_check_names_the_law_that_an_expertise_model_breaks(kind, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_expertise(Level(kind))


def test_an_expertise_that_differs_between_people_must_not_say_that_it_does_not():
    @dataclass(frozen=True)
    class Alike(Level):
        @property
        def distinguishes_demonstrators(self):
            return False

    with pytest.raises(AssertionError, match="must be the same for all demonstrators"):
        check_expertise(Alike())


# --- broken formats


class Lines(AbstractFormat):
    """A right format that is only read, to be broken."""

    name, suffixes = "lines", (".steps",)

    def read(self, path, *, demonstrator=None):
        return tiny_parts.STEPS.read(path)

    def columns(self, path):
        return tiny_parts.STEPS.columns(path)


class Crashes(Lines):
    def read(self, path, *, demonstrator=None):
        return super().read(path) if path.stat().st_size > 30 else 1 / 0


class Changes(Lines):
    def read(self, path, *, demonstrator=None):
        data = super().read(path)
        path.write_text(path.read_text().replace("ann 0", "ann 7"))
        return data


class Alternates(Lines):
    count = 0

    def read(self, path, *, demonstrator=None):
        self.count += 1
        data = super().read(path)
        return data.by("ann") if self.count % 2 else data


class ReturnsText(Lines):
    def read(self, path, *, demonstrator=None):
        return path.read_text()


class AsksNobody(Lines):
    def read(self, path):
        return super().read(path)


class TakesPositions(Lines):
    def read(self, path, limit=None, *, demonstrator=None):
        return super().read(path)


class SaysTooMuch(Lines):
    def read(self, path, *, demonstrator=None):
        if path.stat().st_size < 30:
            raise ileed.DemonstrationError("one\ntwo")
        return super().read(path)


class Forgets(Lines):
    def write(self, data, path):
        path.write_text("ann 0 1.5 0\n")


class LeavesRuins(Lines):
    def write(self, data, path):
        path.write_text("ann")
        raise ileed.DemonstrationError("no")


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (Crashes, "must be read or refused with an IleedError, and this raised ZeroDivisionError"),
        (Changes, "reading must not change the file"),
        (Alternates, "reading twice must give the same data"),
        (ReturnsText, "must return Demonstrations"),
        (AsksNobody, "must take `demonstrator`"),
        (TakesPositions, "must be keyword-only"),
        (SaysTooMuch, "one sentence"),
        (Forgets, "what is written must be read back"),
        (LeavesRuins, "data that are refused must leave no file"),
    ],
)
def test_the_check_names_the_law_that_a_format_breaks(broken, sentence, tmp_path):
    check_format(Lines(), steps(tmp_path))
    with pytest.raises(AssertionError, match=sentence):
        check_format(broken(), steps(tmp_path))


def test_a_format_that_is_only_read_needs_a_data_set():
    with pytest.raises(AssertionError, match="without a writer"):
        check_format(Lines())
