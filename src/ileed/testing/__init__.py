"""Conformance checks for parts of a model, policies and formats that are written outside the library.

Each function calls a part as a fit does, and raises an `AssertionError` that states the first law that does not hold.
Neither pytest nor data are needed.

>>> import ileed
>>> check_demonstrator_model(ileed.UniformMixture())
>>> check_policy_head(ileed.CategoricalMLP(hidden=(3,)))
>>> check_expertise(ileed.Constant())
"""

from __future__ import annotations

import inspect
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ileed import runs
from ileed._torch import stream
from ileed.data import Demonstrations
from ileed.errors import IleedError, SettingsError, brief, path_of
from ileed.formats import AbstractFormat
from ileed.model import nets
from ileed.model.batch import Batch, Sizes
from ileed.model.demonstrators import AbstractDemonstratorModel, Context
from ileed.model.distributions import Choice, mixture, mixture_parts
from ileed.model.expertise import AbstractExpertise
from ileed.model.modules import as_head
from ileed.model.policies import AbstractPolicyHead, PolicyNet

__all__ = ["check_demonstrator_model", "check_expertise", "check_format", "check_policy", "check_policy_head"]

_MEMBERS, _DEMONSTRATORS, _OBSERVATIONS, _INPUTS = 2, 4, 5, 3  # all different, so that no axis is mistaken for another
_ROWS = 4  # of observations, or of windows
_LEVELS = (0.0, 0.3, 0.8, 1.0)  # of expertise
_POINTS = 20_001  # of an integral over fifteen standard deviations to either side


def check_demonstrator_model(model: AbstractDemonstratorModel[Any], *, actions: int = 3, seed: int = 0) -> None:
    """Check the laws of `AbstractDemonstratorModel` on random policies.

    Args:
        model: The settings of the demonstrator model.
        actions: The number of discrete actions, or of dimensions of continuous ones.
        seed: That of the random policies.
    """
    sizes = _checked_part(model, actions, seed)
    module = _module(model, sizes, seed)
    _hold(not list(module.buffers()) if module else True, "the module of a demonstrator model must have no buffers")
    policy, batch, row = _situation(model.context, sizes, seed)
    for rho in _LEVELS:
        expertise = _constant_expertise(rho, batch)
        found = model.log_likelihood(policy, expertise, batch, module)
        context = Context.of(batch, _MEMBERS, module)
        observed = model.observed(policy.at(batch.observation_index), expertise, context)
        expected = observed.log_prob(batch.action)
        some = expected > (-18 if sizes.action_count else -torch.inf)  # fainter ones may be floored
        _close(found[some], expected[some], f"at expertise {rho} log_likelihood must be observed(...).log_prob(action)")
        if sizes.action_count:
            _check_total(_sums(found, row), f"at expertise {rho} the probabilities of actions must sum to one", 1e-7)
        if rho == 1 and model.is_policy_at_expertise_one and not model.defines_expertise:
            _close(found, policy.taken(batch), "at expertise 1 the policy itself must be observed")
    if module is not None:
        _check_own_parameters(model, module, sizes)
    if model.defines_expertise:
        _hold(module is not None, "a model that defines expertise must have parameters, and `build` returned None")
        _check_range(model.expertise(batch, module), len(batch.weight))  # type: ignore[arg-type]
    if sizes.action_size:
        _check_density(model, seed)
    elif model.knows_legal_actions:
        _check_legal_actions(model, sizes, seed)
    _check_edges(model, sizes, seed)


def _checked_part(part: Any, actions: int, seed: int) -> Sizes:
    """Check what holds for every part of a model, and return the sizes for which it was built."""
    _check_settings(part)
    sizes = Sizes(inputs=_INPUTS, demonstrators=_DEMONSTRATORS, actions=actions, discrete=part.discrete)
    part.check(sizes)
    _check_members(lambda generators: part.build(sizes, generators), seed)
    return sizes


def _check_own_parameters(model: AbstractDemonstratorModel[Any], module: nn.Module, sizes: Sizes) -> None:
    """The prior is one finite number per member; slips have the member axis first, and tables all demonstrators."""
    slips = model.slips(module)
    for name, value in slips.items():
        finite = len(value) == _MEMBERS and bool(torch.isfinite(value).all())
        _hold(finite, f"{name} of slips must be finite, with the member as its first axis")
    names = [f"action {number}" for number in range(sizes.actions)]
    with torch.no_grad():
        learned = model.learned({name: value.mean(0).numpy() for name, value in slips.items()}, names)
    for column in learned.columns:
        _hold(
            len(column.values) == _DEMONSTRATORS,
            f"the column {column.name} of learned must have one value a demonstrator",
        )
    prior = model.log_prior(module)
    if prior is None:
        return
    _hold(prior.shape == (_MEMBERS,), f"log_prior must be (member,), and its shape is {tuple(prior.shape)}")
    _check_finite(prior, list(module.parameters()), prior.sum(), "log_prior and its gradient must be finite")


def _check_finite(values: Tensor, inputs: Sequence[Tensor], total: Tensor, sentence: str) -> None:
    """Values and the gradients of their total are finite."""
    gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    found = [each for each in (values, *gradients) if each is not None]
    _hold(all(bool(torch.isfinite(each).all()) for each in found), sentence)


def _check_legal_actions(model: AbstractDemonstratorModel[Any], sizes: Sizes, seed: int) -> None:
    """The legal actions have all of the probability."""
    legal = torch.ones(sizes.actions, _OBSERVATIONS, dtype=torch.bool)
    legal[0, ::2] = legal[-1, 1] = False
    policy, batch, row = _situation(model.context, sizes, seed, legal=legal)
    for rho in _LEVELS:
        found = model.log_likelihood(policy, _constant_expertise(rho, batch), batch, _module(model, sizes, seed))
        sentence = f"at expertise {rho} the legal actions must have all of the probability"
        _check_total(_sums(found, row), sentence, 1e-7)


def _check_density(model: AbstractDemonstratorModel[Any], seed: int) -> None:
    """A density over actions of one dimension integrates to one, if the model accepts such actions."""
    sizes = Sizes(inputs=_INPUTS, demonstrators=_DEMONSTRATORS, actions=1, discrete=False)
    try:
        model.check(sizes)
    except SettingsError:
        return
    policy, batch, _ = _situation(model.context, sizes, seed)
    context = Context.of(batch, _MEMBERS, _module(model, sizes, seed))
    observed = model.observed(policy.at(batch.observation_index), _constant_expertise(0.3, batch), context)
    _check_total(_integral(observed, 60.0), "at expertise 0.3 the density must integrate to one")


def _check_edges(model: AbstractDemonstratorModel[Any], sizes: Sizes, seed: int) -> None:
    """Values and gradients are finite at expertise zero and one, and for actions of probability zero."""
    module = _module(model, sizes, seed)
    for gap, rho in product((0.0, 70.0, 1e4), (0.0, 1e-30, 0.5, 1.0)):  # exp(-1e4) is zero
        policy, batch, _ = _situation(model.context, sizes, seed, gap=gap)
        expertise = _constant_expertise(rho, batch).requires_grad_()
        found = model.log_likelihood(policy, expertise, batch, module)
        inputs = [expertise, *([policy.log_probs] if sizes.action_count else mixture_parts(policy))]
        inputs += [] if module is None else list(module.parameters())
        sentence = f"values and gradients must be finite at expertise {rho}, also for improbable actions"
        _check_finite(found, inputs, batch.mean_cost(found).sum(), sentence)


def check_policy_head(head: AbstractPolicyHead, *, actions: int = 3, seed: int = 0) -> None:
    """Check the laws of `AbstractPolicyHead` and of its network, in training and in acting.

    Args:
        head: The settings of the policy.
        actions: The number of discrete actions, or of dimensions of continuous ones.
        seed: That of the initial parameters and observations.
    """
    sizes = _checked_part(head, actions, seed)
    net = head.build(sizes, _generators(seed))
    _check_skill_parameters(net, "network")
    seen = torch.randn(_INPUTS, head.length * _ROWS, generator=stream(seed, "check"))
    _check_net(head, net, sizes, seen, seed)
    if sizes.action_count:
        _check_discrete_net(head, net, seen, seed)
    else:
        density = head.build(replace(sizes, actions=1), _generators(seed)).double()(seen.double(), None)
        _check_total(_integral(density, 40.0), "the density must integrate to one")


def check_policy(policy: Any, demonstrations: Demonstrations, *, seed: int = 0) -> None:
    """Check that a module of your own, or a function that makes one, is a policy that can be fitted to these data.

    >>> from torch.distributions import Categorical
    >>> class Net(nn.Linear):
    ...     def forward(self, observations):
    ...         return Categorical(logits=super().forward(observations))
    >>> data = Demonstrations(observations=np.eye(4), actions=[0, 1, 1, 0], demonstrator=list("aabb"),
    ...                       episode=[0, 0, 1, 1])
    >>> check_policy(lambda: Net(4, 2), data)
    """
    data, head = demonstrations, as_head(policy)
    is_module = getattr(head, "is_module", False)
    _hold(is_module, f"a policy is a torch.nn.Module or a function that makes one, and this is {brief(policy)}")
    head, actions = head.for_data(data), data.action_count + data.action_size
    sizes = Sizes(inputs=data.observation_size, demonstrators=_DEMONSTRATORS, actions=actions, discrete=data.discrete)
    _check_members(lambda generators: head.build(sizes, generators), seed)
    net: Any = head.build(sizes, _generators(seed))
    rows = np.linspace(0, len(data) - 1, head.length * _ROWS).astype(np.int64)
    flat = data.observations.reshape(len(data), -1)[rows].astype(np.float32)
    seen = torch.from_numpy(flat.T.copy())
    _check_net(head, net, sizes, seen, seed)

    def answers(observations: Tensor) -> Sequence[Tensor]:
        return net.parameters_of(net(observations, None))

    first, numbers = seen.unflatten(1, (head.length, _ROWS))[:, :, :2].flatten(1), answers(seen)
    for found, one, again in zip(numbers, answers(first), answers(seen), strict=True):
        own = found.unflatten(0, (head.length, _ROWS))[:, :2].flatten(0, 1)
        _close(one, own, "no row of a batch may depend on another: use GroupNorm or LayerNorm", atol=1e-4)
        _hold(torch.equal(found, again), "the same observations must give the same distribution: sample nothing")
    net.takes_turns = True
    for found, one in zip(numbers, answers(seen), strict=True):
        _close(one, found, "members side by side must equal those computed one after the other", atol=1e-4)


def _check_net(head: AbstractPolicyHead, net: PolicyNet, sizes: Sizes, seen: Tensor, seed: int) -> None:
    """Distributions, gradients and acting of a network."""
    policy = net(seen, None)
    _hold(policy.batch_shape == (_MEMBERS, head.length * _ROWS), "the batch shape must be (member, observation)")
    _, batch, row = _situation((), sizes, seed, observations=seen)
    if sizes.action_count:
        _check_total(_sums(policy.taken(batch), row), "the probabilities of all actions must sum to one")
    taken, here = policy.taken(batch), policy.at(batch.observation_index)
    _close(taken, here.log_prob(batch.action), "taken(batch) must be at(index).log_prob(action)", atol=1e-5)
    alone = nets.members(net, [1])(seen, None).taken(batch)
    _close(alone[0], taken[1], "a member selected alone must be the same member", atol=1e-5)
    taken.sum().backward()
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            finite = parameter.grad is not None and bool(torch.isfinite(parameter.grad).all())
            _hold(finite, f"the parameter {name} must have a finite gradient")
    _check_acting(head, net, seen, _ROWS, seed)


def _check_discrete_net(head: AbstractPolicyHead, net: PolicyNet, seen: Tensor, seed: int) -> None:
    legal = torch.ones(net(seen, None).logits.shape[-1], seen.shape[-1], dtype=torch.bool)
    legal[0, ::2] = False
    probabilities = net(seen, legal).probs.mT
    _hold(bool((probabilities[:, ~legal] == 0).all()), "an illegal action must have no probability")
    both = head.build(Sizes(inputs=_INPUTS, demonstrators=2, actions=2), _generators(seed))
    before = both(seen, None).probs
    both.exchange_actions(torch.tensor([True, False]))
    expected = torch.cat([before[:1].flip(-1), before[1:]])
    _close(both(seen, None).probs, expected, "exchange_actions must exchange the two actions of the members named")


@torch.no_grad()
def _check_acting(head: AbstractPolicyHead, net: PolicyNet, seen: Tensor, rows: int, seed: int) -> None:
    """`step` agrees with the network on a whole window, and restarts after it; members are averaged."""
    whole, state = net(seen, None), net.initial_state(rows)
    for time in range(2 * head.length):
        at = torch.arange(rows) + (time % head.length) * rows
        found, state = net.step(seen[:, at], state)
        for ours, theirs in zip(net.parameters_of(found), net.parameters_of(whole), strict=True):
            _close(ours, theirs[at], "step after step must give what the network gives for a window", atol=1e-5)
    average = net.average(found)
    action, again = (net.sample(average, stream(seed, "act")) for _ in range(2))
    _hold(torch.equal(action, again), "sample must depend on its generator alone")
    likely = net.most_likely(average, stream(seed, "act"))
    _hold(len(action) == len(likely) == rows, "there must be one action for each row")
    density = found.log_prob(action.expand(_MEMBERS, *action.shape)).exp().mean(0)
    _close(average.log_prob(action).exp(), density, "average must be the mean of the members' distributions", atol=1e-5)


def check_expertise(expertise: AbstractExpertise, *, seed: int = 0) -> None:
    """Check the laws of `AbstractExpertise`, for observations in and beyond the usual range."""
    _check_settings(expertise)
    skills = 0 if expertise.skill_column is None else 2
    sizes = Sizes(inputs=_INPUTS, demonstrators=_DEMONSTRATORS, actions=2, skills=skills)
    expertise.check(sizes)
    _check_members(lambda generators: expertise.build(sizes, generators), seed)
    net = expertise.build(sizes, _generators(seed))
    _check_skill_parameters(net, "module")
    if (prior := net.log_prior()) is not None:
        finite = prior.shape == (_MEMBERS,) and bool(torch.isfinite(prior).all())
        _hold(finite, f"log_prior must be (member,) finite numbers, and its shape is {tuple(prior.shape)}")
    seen = torch.randn(_INPUTS, _OBSERVATIONS, generator=stream(seed, "check"))
    for size in (1.0, 0.0, 1e6):
        _, batch, _ = _situation((), sizes, seed, observations=size * seen)
        if expertise.depends_on_episode:  # also in an episode far beyond all data
            number = torch.full((len(batch.weight),), 3 if size == 1 else int(size), dtype=torch.int64)
            batch = replace(batch, context={"episode_number": number})
        if skills:
            batch = replace(batch, skills=torch.eye(2)[:, torch.arange(_OBSERVATIONS) % 2].contiguous())
        rho = net(net.embedding(batch), batch).detach()
        _check_range(rho, len(batch.weight))
        table = rho.unflatten(-1, (sizes.actions, _OBSERVATIONS, _DEMONSTRATORS))[:, 0]
        if not expertise.depends_on_state:
            _close(table, table[:, :1].expand_as(table), "expertise must be the same at all observations, as it says")
        if not expertise.distinguishes_demonstrators:
            _close(
                table, table[..., :1].expand_as(table), "expertise must be the same for all demonstrators, as it says"
            )
        if expertise.can_be_mirrored:
            net.mirror(torch.tensor([True] * _MEMBERS))
            _close(net(net.embedding(batch), batch).detach(), 1 - rho, "mirror must replace rho by 1 - rho", atol=1e-5)


def check_format(kind: AbstractFormat, path: str | Path | None = None, **options: Any) -> None:
    """Check the laws of `ileed.formats.AbstractFormat`.

    Small data sets of every kind are written, and each is either read back exactly or refused.

    Args:
        kind: The format.
        path: A valid data set; required if the format has no writer.
        options: Options with which `path` is read.
    """
    _check_signature(kind)
    _hold(kind.write is not None or path is not None, "a format without a writer is checked with a valid data set")
    with tempfile.TemporaryDirectory() as folder:
        made = [] if kind.write is None else _check_writer(kind, Path(folder))
        for place in [path_of("path", path)] if path is not None else made:
            _check_reading(kind, place, options, Path(folder))


def _check_signature(kind: AbstractFormat) -> None:
    parameters = inspect.signature(kind.read).parameters
    who = parameters.get("demonstrator")
    _hold(who is not None and who.default is None, "`read` must take `demonstrator`, a Labeller or None, the default")
    for name in ("demonstrator", *kind.options):
        only = parameters[name].kind is inspect.Parameter.KEYWORD_ONLY and parameters[name].default is None
        _hold(only, f"the option {name} of `read` must be keyword-only, and None by default")
    described = {each.name for each in kind.reading} <= {*kind.options}
    described &= {each.name for each in kind.writing} <= {*kind.write_options}
    _hold(described, "options that are described for the command must be options of `read` or `write`")


def _samples() -> Iterator[Demonstrations]:
    """Data sets of three demonstrators, for each kind of actions, shape of observations and optional column."""
    episode = np.repeat([0, 1, 2, 3], [3, 2, 4, 1])
    steps, ends = len(episode), np.append(np.diff(episode) > 0, True)
    legal = np.ones((steps, 3), dtype=bool)
    legal[0, 2] = False
    optional: list[dict[str, Any]] = [
        {},
        {"rewards": np.linspace(-1, 1, steps), "terminals": ends},
        {"skills": {"phase": np.array(["grasp", "lift"])[episode % 2], "load": np.full((steps, 2), 0.5)}},
    ]
    for discrete, shape, more in product((True, False), ((1,), (2, 2)), [*optional, {"legal": legal}]):
        if "legal" in more and not discrete:
            continue
        seen = np.arange(steps * math.prod(shape)).reshape(steps, *shape) % 5
        yield Demonstrations(
            observations=seen if discrete else seen.astype(np.float32) / 4,
            actions=np.arange(steps) % 3 if discrete else np.sin(np.arange(steps * 2.0)).reshape(steps, 2),
            demonstrator=episode % 3,
            episode=episode,
            names=("zoe", "ann", "bob") if more else ("ann", "bob", "zoe"),
            action_count=3 if discrete else 0,
            **more,
        )


def _check_writer(kind: AbstractFormat, folder: Path) -> list[Path]:
    """The data sets that were written and read back exactly; all others were refused without leaving a file."""
    assert kind.write is not None
    made: list[Path] = []
    for number, data in enumerate(_samples()):
        place = folder / f"data{number}{kind.suffixes[0]}"
        try:
            kind.write(data, place)
        except IleedError as error:
            _hold("\n" not in str(error), "a refusal must be one sentence")
            _hold(not place.exists(), f"data that are refused must leave no file, and {place.name} exists")
            continue
        _hold(kind.can_read(place), f"{kind.name} must recognise what it has written")
        found = kind.read(place)
        _hold(data.equals(found), f"what is written must be read back: {data!r} became {found!r}")
        made.append(place)
    _hold(bool(made), f"{kind.name} must write some of the data sets, and refused all")
    return made


def _check_reading(kind: AbstractFormat, path: Path, options: Mapping[str, Any], folder: Path) -> None:
    """Reading twice gives the same data and changes nothing, and truncated files are read or refused."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    content = {file: file.read_bytes() for file in files}
    first, second = kind.read(path, **options), kind.read(path, **options)
    _hold(type(first) is Demonstrations, f"`read` must return Demonstrations, and this returned {type(first)}")
    _hold(first.equals(second), "reading twice must give the same data")
    _hold(bool(kind.columns(path)), "`columns` must name the columns of a data set")
    _hold({file: file.read_bytes() for file in files} == content, "reading must not change the file")
    for file, kept in product(files, (0.0, 0.3, 0.9, 1.0)):
        copy = folder / f"damaged{path.suffix}"
        shutil.copytree(path, copy) if path.is_dir() else shutil.copyfile(path, copy)
        damaged = copy / file.relative_to(path) if path.is_dir() else copy
        damaged.write_bytes(content[file][: min(int(kept * len(content[file])), len(content[file]) - 1)])
        for call in (lambda place: kind.read(place, **options), kind.columns):
            try:
                call(copy)
            except IleedError as error:
                _hold("\n" not in str(error), "a refusal must be one sentence")
            except Exception as error:
                raise AssertionError(
                    f"{file.name}, truncated, must be read or refused with an IleedError, and this raised "
                    f"{type(error).__name__}: {error}"
                ) from error
        shutil.rmtree(copy) if copy.is_dir() else copy.unlink()


def _hold(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)


def _close(found: Tensor, expected: Tensor, sentence: str, *, atol: float = 1e-7) -> None:
    _hold(found.shape == expected.shape, f"{sentence}: the shape is {tuple(found.shape)}, not {tuple(expected.shape)}")
    found, expected = found.detach(), expected.detach()
    apart = (found - expected).abs() / (1 + expected.abs())
    _hold(bool((apart <= atol).all()), f"{sentence}: the largest difference is {float(apart.max()):.2g}")


def _check_settings(part: Any) -> None:
    """Settings are saved as JSON under the name of their class, and are equal after loading."""
    kind = type(part)
    frozen = is_dataclass(part) and kind.__dataclass_params__.frozen
    _hold(frozen, f"{kind.__name__} must be a frozen dataclass, so that it can be saved and compared")
    try:
        again = runs.rebuilt(json.loads(json.dumps(runs.plain(part))), {kind.__name__: kind})
    except (TypeError, SettingsError) as error:
        raise AssertionError(f"{kind.__name__} must be saved as JSON and come back: {error}") from error
    _hold(again == part, f"{kind.__name__} must be equal to what its saved settings make: {again!r} is not {part!r}")


def _check_members(build: Callable[[Sequence[torch.Generator]], nn.Module | None], seed: int) -> None:
    """Every parameter is (member, ...), and depends on the generator of its member alone."""
    among, elsewhere, empty = build(_generators(seed)), build(_generators(seed, (7, 1))), build([])
    if among is None or elsewhere is None or empty is None:
        _hold(among is elsewhere is empty is None, "`build` must return a module for any generators, or for none")
        return
    for name, parameter in among.named_parameters():
        _hold(len(parameter) == _MEMBERS, f"the first axis of the parameter {name} must be the member")
        own = torch.equal(parameter[1], elsewhere.get_parameter(name)[1])
        _hold(own, f"the parameter {name} of a member must depend on that member's generator alone")
        shape = empty.get_parameter(name).shape
        _hold(shape == (0, *parameter.shape[1:]), f"without generators the parameter {name} must have no members")


def _check_total(total: Tensor, sentence: str, atol: float = 1e-5) -> None:
    _close(total, torch.ones_like(total), sentence, atol=atol)


def _check_skill_parameters(net: Any, what: str) -> None:
    own = {id(parameter) for parameter in net.parameters()}
    _hold({id(each) for each in net.skill_parameters()} <= own, f"skill_parameters must be parameters of the {what}")


def _check_range(rho: Tensor, counts: int) -> None:
    _hold(rho.shape == (_MEMBERS, counts), f"expertise must be (member, count), and its shape is {tuple(rho.shape)}")
    _hold(bool(((rho >= 0) & (rho <= 1)).all()), "expertise must lie between 0 and 1")


def _generators(seed: int, restarts: Sequence[int] = range(_MEMBERS)) -> list[torch.Generator]:
    return [stream(seed, "init", restart) for restart in restarts]


@torch.no_grad()
def _module(model: AbstractDemonstratorModel[Any], sizes: Sizes, seed: int) -> nn.Module | None:
    """The parameters of a model away from their initial values, as an optimisation may find them."""
    built = model.build(sizes, _generators(seed))
    if built is None:
        return None
    generator = stream(seed, "moved")
    for parameter in built.double().parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return built


def _constant_expertise(rho: float, batch: Batch) -> Tensor:
    """The same expertise at every count."""
    return batch.weight.new_full((_MEMBERS, len(batch.weight)), rho)


def _sums(log_probs: Tensor, row: Tensor) -> Tensor:
    """Sums of (member, count) probabilities over the counts of each row."""
    return log_probs.new_zeros(len(log_probs), int(row.max()) + 1).index_add_(1, row, log_probs.exp())


def _integral(density: Any, half_width: float) -> Tensor:
    grid = torch.linspace(-half_width, half_width, _POINTS, dtype=torch.float64)
    at = grid.view(-1, *(1 for _ in density.batch_shape), 1).expand(-1, *density.batch_shape, 1)
    return torch.trapezoid(density.log_prob(at).exp(), grid, dim=0)


def _situation(
    context: Sequence[str],
    sizes: Sizes,
    seed: int,
    *,
    legal: Tensor | None = None,
    observations: Tensor | None = None,
    gap: float = 2.0,
) -> tuple[Any, Batch, Tensor]:
    """A random policy, a batch of all legal actions by demonstrator and observation, and the row of each count.

    A row is a demonstrator at an observation, with a random context; it has one action if actions are continuous.
    """
    generator = stream(seed, "check", sizes.actions)
    seen = torch.zeros(_INPUTS, _OBSERVATIONS, dtype=torch.float64) if observations is None else observations
    unique_count = seen.shape[-1]
    rows = torch.arange(unique_count * _DEMONSTRATORS)
    allowed = torch.ones(sizes.action_count or 1, unique_count, dtype=torch.bool) if legal is None else legal
    action, row = torch.nonzero(allowed[:, rows // _DEMONSTRATORS], as_tuple=True)
    policy: Any
    if sizes.action_count:
        scores = gap * torch.randn(_MEMBERS, sizes.actions, unique_count, generator=generator, dtype=torch.float64)
        policy = Choice(scores.masked_fill(~allowed, -torch.inf).log_softmax(-2).requires_grad_())
    else:
        shape = (_MEMBERS, unique_count, 2, 1 + 2 * sizes.actions)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        means, spreads = drawn[..., 1:].chunk(2, -1)
        policy = mixture(drawn[..., 0], means, (0.3 * spreads).exp())
        action = torch.randn(len(row), sizes.actions, generator=generator, dtype=seen.dtype)
    at, who = row // _DEMONSTRATORS, row % _DEMONSTRATORS
    batch = Batch.of(sizes=sizes, observations=seen, observation_index=at, demonstrator=who, action=action, legal=legal)
    columns = _random_context(sizes, len(rows), seed)
    return policy, replace(batch, context={name: columns[name][..., row] for name in context}), row


def _random_context(sizes: Sizes, rows: int, seed: int) -> dict[str, Tensor]:
    """Every column of a context, for `rows` rows, half of them first steps."""
    generator = stream(seed, "context")
    first = torch.randint(2, (rows,), generator=generator)
    if sizes.action_count:
        previous = torch.where(first == 1, -1, torch.randint(sizes.actions, (rows,), generator=generator))
    else:
        previous = torch.randn(sizes.actions, rows, generator=generator).double() * (1 - first)
    return {
        "first_step": first,
        "episode_number": torch.randint(5, (rows,), generator=generator),
        "previous_action": previous,
    }
