"""Policies that are the user's own modules: any `torch.nn.Module` from observations to a distribution over actions.

Members run at once by `torch.func.vmap` over their stacked parameters. `nets` is the faster path of the library's own
networks.
"""

from __future__ import annotations

import copy
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.parameter import is_lazy

from ileed._torch import Float, ProcessSetting, stream
from ileed.data import Demonstrations
from ileed.data.encoding import Arrays
from ileed.errors import SettingsError, brief
from ileed.model.batch import Sizes
from ileed.model.distributions import Choice, mixture, mixture_parts
from ileed.model.nets import Generators
from ileed.model.normaliser import ActionScale, Normaliser
from ileed.model.policies import AbstractPolicyHead, CategoricalNet, GaussianNet, Legal, PolicyNet, Seen, State

Factory = Callable[[], nn.Module]
"""A class or function without arguments that makes a module."""
Numbers = tuple[Tensor, ...]
"""The parameters of a distribution: logits of actions, or logits, means and standard deviations of a mixture."""

_ROWS = 256  # computed at once without gradients


@final
@dataclass(frozen=True, kw_only=True)
class ModulePolicy(AbstractPolicyHead):
    """A policy that is the user's own module, as `Ileed(policy=...)` makes it from a module or a factory.

    The module is called with (row, *shape) observations, or a mapping of these by name, in their own units and single
    precision, or standardised with `Ileed(normalise=True)`. It returns a `torch.distributions.Distribution` of batch
    shape (row,): `Categorical`; or `Independent(Normal(...), 1)` or a `MixtureSameFamily` of these. It is always in
    evaluation mode, and no row may depend on another.

    - A factory is called once per restart, with torch's CPU generator seeded by the restart's own stream: initial
      values differ between restarts and do not depend on their number. A module is copied with its values, from which
      every restart begins: trained weights are kept.
    - A module with the attribute `window` (T > 1) is called with (row, T, *shape) consecutive observations, and returns
      distributions of batch shape (row, T), each of which depends on no later observation.
    - A module with the attribute `chunk` (K > 1) returns distributions of batch shape (row, K): of the action after
      the observation and of the K - 1 actions after that. When it acts, it predicts again every K steps.
    """

    module: Factory | nn.Module | None = field(default=None, metadata={"saved": False})
    """None after loading, until the user passes the module."""
    name: str = ""
    """Name of the module, for messages."""
    digest: str = ""
    """Digest of its initial values, so that a checkpoint is not continued with another module."""
    window: int = 1
    chunk: int = 1
    horizons: int = 1
    """Number of copies, each of which predicts the mean action over one horizon, to rate demonstrators."""
    discrete: bool = True
    shape: tuple[int, ...] = ()
    arrays: Arrays = ()
    can_stand_beside = False
    learns_from_batches = True
    is_module = True

    def __post_init__(self) -> None:
        if min(self.window, self.chunk) < 1 or min(self.window, self.chunk) > 1:
            found = f"window of {self.name} is {self.window} and its chunk {self.chunk}"
            raise SettingsError(f"{found}: declare one of the two, a whole number above one", code="policy-window")

    @classmethod
    def of(cls, module: Factory | nn.Module) -> ModulePolicy:
        """The head of a module or factory, with the window or chunk that it declares."""
        kind: Any = type(module) if isinstance(module, nn.Module) else getattr(module, "func", module)  # of a partial
        name = getattr(kind, "__qualname__", type(kind).__name__)
        made = _made(module, name, stream(0, "digest"))
        if any(is_lazy(each) for each in (*made.parameters(), *made.buffers())):
            message = f"{name} has parameters without a shape"
            raise SettingsError(f"{message}: state the sizes of its layers", code="policy-parameters")
        declared: dict[str, Any] = {each: getattr(made, each, 1) for each in ("window", "chunk")}
        for each, value in declared.items():
            if not isinstance(value, int):
                message = f"{each} of {name} is {brief(value)}: declare a whole number of steps"
                raise SettingsError(message, code="policy-window")
        digest = hashlib.blake2b(digest_size=16)
        for key, value in (*made.named_parameters(), *made.named_buffers()):
            digest.update(repr((key, tuple(value.shape))).encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return cls(module=module, name=name, digest=digest.hexdigest(), **declared)

    @property
    def length(self) -> int:  # type: ignore[override]
        return max(self.window, self.chunk)

    def for_data(self, data: Demonstrations) -> ModulePolicy:
        return replace(self, discrete=data.discrete, shape=data.observations.shape[1:], arrays=data.arrays)

    def with_module(self, module: Any) -> ModulePolicy:
        if module is None:
            message = f"the policy of this run is the module {self.name}, which a run directory does not contain"
            raise SettingsError(f"{message}: pass it, as in ileed.load(path, policy=...)", code="policy-missing")
        given = as_head(module)
        if type(given) is not ModulePolicy:
            message = f"policy is {brief(module)}"
            raise SettingsError(f"{message}: pass the module {self.name}, or what makes it", code="policy-module")
        return replace(self, module=given.module)

    def rater(self, horizons: int) -> ModulePolicy | None:
        """One copy of the module per horizon, unless observations are flat vectors."""
        has_axes = any(len(each.shape) > 1 for each in self.arrays) if self.arrays else len(self.shape) > 1
        return replace(self, horizons=horizons) if has_axes else None

    def build(self, sizes: Sizes, generators: Generators) -> PolicyNet:
        count, on_meta = len(generators), torch.get_default_device().type == "meta"
        shapes_only = on_meta or not count
        with torch.device("cpu"):
            made = [self._made(each) for each in ([stream(0, "shapes")] if shapes_only else generators)]
            learned, fixed = stack_module_state(made)
        if shapes_only:
            learned, fixed = _repeated(learned, count), _repeated(fixed, count)
        if not any(each.requires_grad for each in made[0].parameters()):
            message = f"{self.name} has no parameters that are learned"
            raise SettingsError(f"{message}: pass a module with some", code="policy-parameters")
        kind = _CategoricalModule if self.discrete else _GaussianModule
        return kind(self, sizes, made[0].eval(), learned, fixed, count)

    def _made(self, generator: torch.Generator) -> nn.Module:
        assert self.module is not None
        if self.horizons == 1:
            return _made(self.module, self.name, generator)
        return _AtHorizons([_made(self.module, self.name, generator) for _ in range(self.horizons)])


def as_head(policy: Any) -> Any:
    """The head of a module or factory; anything else as it is."""
    is_class = isinstance(policy, type) and not issubclass(policy, nn.Module)
    return policy if is_class or not callable(policy) else ModulePolicy.of(policy)


_generator_lock = Lock()


def _made(module: Factory | nn.Module, name: str, generator: torch.Generator) -> nn.Module:
    """A copy of a module, or what a factory makes while torch's CPU generator is seeded by this one."""
    if isinstance(module, nn.Module):
        return copy.deepcopy(module)
    seed = int(torch.randint(2**62, (), generator=generator))
    with _generator_lock:  # all threads share the generator
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)
        try:
            found = module()
        finally:
            torch.set_rng_state(before)
    if not isinstance(found, nn.Module):
        message = f"policy is {name}, which returned {brief(found)}"
        raise SettingsError(f"{message}: pass a module, or what makes one without arguments", code="policy-module")
    return found


def _repeated(stacked: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """The first of (member, ...) values for `count` members, without memory for each."""
    first = {name: values.detach()[:1] for name, values in stacked.items()}
    return {name: one.expand(count, *one.shape[1:]) if count else one[:0] for name, one in first.items()}


class _ModuleNet(PolicyNet):
    """The modules of all members; buffers hold what undoes the normaliser (`whole_observations`)."""

    kept: Tensor
    shift: Tensor
    scale: Tensor
    fill: Tensor
    is_integer: Tensor
    kind: tuple[str, str, str]
    """Words for messages: the kind of actions, the accepted distributions, and what these have one of per action."""

    def __init__(
        self,
        head: ModulePolicy,
        sizes: Sizes,
        template: nn.Module,
        learned: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        members: int,
    ) -> None:
        nn.Module.__init__(self)
        self.head, self.sizes, self.length = head, sizes, head.length
        frozen = {name for name, each in template.named_parameters() if not each.requires_grad}
        self.learned, self.fixed = nn.ParameterDict(), nn.ParameterDict()  # each (member, ...)
        for name, values in learned.items():
            self.learned[_key(name)] = nn.Parameter(_single(values), requires_grad=name not in frozen)
        for name, values in fixed.items():
            self.fixed[_key(name)] = nn.Parameter(_single(values), requires_grad=False)
        self.fixed[_EXCHANGED] = nn.Parameter(torch.zeros(members), requires_grad=False)
        numbers = prod(head.shape)
        self.register_buffer("kept", torch.arange(sizes.inputs))
        self.register_buffer("shift", torch.zeros(sizes.inputs))
        self.register_buffer("scale", torch.ones(sizes.inputs))
        self.register_buffer("fill", torch.zeros(numbers))
        self.register_buffer("is_integer", torch.zeros(numbers, dtype=torch.bool))
        self._template = (template,)  # not a submodule: its values belong to no member
        # `functional_call` does not replace the parameters of TorchScript
        is_script = any(isinstance(each, torch.jit.ScriptModule) for each in template.modules())
        self.takes_turns: bool | None = True if is_script else None

    def see(self, normaliser: Normaliser, data: Demonstrations, *, standardised: bool) -> None:
        self.kept = normaliser.kept.clone()  # a file holds no tensor twice
        if standardised:
            return
        self.shift, self.scale = normaliser.shift.float().clone(), normaliser.scale.float().clone()
        self.fill = torch.from_numpy(np.array(data.observations[0], dtype=np.float32).ravel())
        kinds = [(each.dtype, each.size) for each in data.arrays] or [(data.observations.dtype, data.observation_size)]
        of_integers = [np.full(size, np.dtype(dtype).kind in "biu") for dtype, size in kinds]
        self.is_integer = torch.from_numpy(np.concatenate(of_integers))

    def measure(self, scale: ActionScale) -> None:
        """Nothing: modules model actions in the actions' own units."""

    def exchange_actions(self, members: Tensor) -> None:
        self.fixed[_EXCHANGED].data[members] = 1 - self.fixed[_EXCHANGED].data[members]

    def initial_state(self, rows: int) -> State:
        """The observations of the current window or chunk, and the age of the episode."""
        if self.length == 1:
            return ()
        return (
            self.shift.new_zeros(rows, self.head.window, len(self.kept)),
            torch.zeros(rows, dtype=torch.long, device=self.shift.device),
        )

    def forward(self, observations: Seen, legal: Legal = None) -> Any:
        seen = self.whole_observations(observations.reshape(len(self.kept), -1).T)
        if self.length == 1:
            return self.distribution(self._members(seen), legal)
        seen = seen.unflatten(0, (self.length, -1)).transpose(0, 1)
        found = self._members(seen if self.head.window > 1 else seen[:, 0])
        return self.distribution(tuple(each.transpose(1, 2).flatten(1, 2) for each in found), legal)

    def read(self, outputs: Tensor, legal: Legal = None) -> Any:
        raise NotImplementedError("a module of the user's own returns its distribution")

    def step(self, observations: Seen, state: State, legal: Legal = None) -> tuple[Any, State]:
        """Evaluate the whole window with this observation added; a new window begins every `length` steps."""
        if self.length == 1:
            return self(observations, legal), state
        before, age = state
        at = age % self.length
        place = torch.arange(self.head.window, device=at.device)
        # the rest of a window repeats this observation, as at the end of an episode
        is_new = place >= at[:, None] if self.head.window > 1 else (at == 0)[:, None]
        seen = torch.where(is_new[..., None], observations.T[:, None], before)
        whole = self.whole_observations(seen)
        found = self._members(whole if self.head.window > 1 else whole[:, 0])
        rows = torch.arange(at.shape[0], device=at.device)
        return self.distribution(tuple(each[:, rows, at] for each in found), legal), (seen, age + 1)

    @abstractmethod
    def distribution(self, found: Numbers, legal: Legal) -> Any:
        """The distribution with these parameters, of batch shape (member, observation)."""

    def whole_observations(self, seen: Float[Tensor, "*row input"]) -> Float[Tensor, "*row number"]:
        """Complete observations from the varying inputs, in their own units unless they stay standardised."""
        values = seen * self.scale + self.shift
        values = torch.where(self.is_integer[self.kept], values.round(), values)
        return self.fill.expand(*seen.shape[:-1], -1).index_copy(-1, self.kept, values)

    def _named(self, whole: Float[Tensor, "*row number"]) -> Any:
        """The argument of the module."""
        lead, arrays = whole.shape[:-1], self.head.arrays
        if not arrays:
            return whole.reshape(*lead, *self.head.shape)
        parts = whole.split([each.size for each in arrays], dim=-1)
        return {each.name: part.reshape(*lead, *each.shape) for each, part in zip(arrays, parts, strict=True)}

    def _members(self, whole: Float[Tensor, "row *time number"]) -> Numbers:
        """(member, row, ...) parameters of each member's distribution."""
        if torch.is_grad_enabled() or len(whole) <= _ROWS:
            return self._at_once(whole)
        blocks = [self._at_once(rows) for rows in whole.split(_ROWS)]
        return tuple(torch.cat(each, dim=1) for each in zip(*blocks, strict=True))

    def _at_once(self, whole: Tensor) -> Numbers:
        tensors = self._tensors()
        with _MODES.at(_PLAIN):
            if self.takes_turns is None:
                try:
                    found = self._side_by_side(whole, tensors)
                    self.takes_turns = False
                except RuntimeError:  # not supported by `vmap`; an error of the module itself is raised again below
                    found = self._one_by_one(whole, tensors)
                    self.takes_turns = True
                return found
            return self._one_by_one(whole, tensors) if self.takes_turns else self._side_by_side(whole, tensors)

    def _tensors(self) -> dict[str, Tensor]:
        """(member, ...) parameters and buffers of the module by name."""
        kept = {**self.learned, **self.fixed}
        return {_name(key): values for key, values in kept.items() if key != _EXCHANGED}

    def _side_by_side(self, whole: Tensor, tensors: dict[str, Tensor]) -> Numbers:
        def one(own: dict[str, Tensor]) -> Numbers:
            return self._numbers(functional_call(self._template[0], own, (self._named(whole),)), whole)

        if len(self.fixed[_EXCHANGED]) > 1:
            return vmap(one)(tensors)
        return tuple(each.unsqueeze(0) for each in one({name: values[0] for name, values in tensors.items()}))

    def _one_by_one(self, whole: Tensor, tensors: dict[str, Tensor]) -> Numbers:
        found: Numbers = _OneByOne.apply(self, whole, *tensors.values())  # type: ignore[no-untyped-call]
        return found

    def called_with(self, whole: Tensor, own: Sequence[Tensor]) -> tuple[Numbers, list[Tensor]]:
        """Call the module with these values in place of its own; returns its numbers, and the parameters used."""
        for parameter in self._template[0].parameters():
            parameter.detach_()  # copies of TorchScript share gradients with their original
        module = self._template[0].to(device=whole.device, dtype=whole.dtype)
        places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        learns = {_name(key): each.requires_grad for key, each in self.learned.items()}
        with torch.no_grad():
            for name, values in zip(self._tensors(), own, strict=True):
                places[name].copy_(values)
                places[name].requires_grad_(learns.get(name, False))
        return self._numbers(module(self._named(whole)), whole), [places[name] for name in self._tensors()]

    def _numbers(self, found: Any, whole: Tensor) -> Numbers:
        """The parameters of the distribution that the module returned; anything else is refused."""
        sizes, name = self.sizes, self.head.name
        numbers, (kind, family, each) = self.defining(found), self.kind
        if numbers is None:
            described = repr(found) if isinstance(found, Distribution) else f"an object of type {type(found).__name__}"
            message = f"{name} returned {described:.80} and actions are {kind}"
            raise SettingsError(f"{message}: return {family} of torch.distributions", code="policy-output")
        lead = (whole.shape[0], self.length) if self.length > 1 else (whole.shape[0],)
        shape, count = numbers[0].shape[:-1], numbers[-1].shape[-1]
        if shape != lead:
            asked = f"one distribution for each of {whole.shape[0]} observations, of batch shape {lead}"
            message = f"{name} returned a distribution of batch shape {tuple(shape)}: return {asked}"
            raise SettingsError(message, code="policy-shape")
        if count != sizes.actions:
            message = f"{name} returned a distribution over {count} {each}, and the data have {sizes.actions}"
            raise SettingsError(f"{message}: return as many", code="policy-actions")
        return numbers

    @abstractmethod
    def defining(self, found: Any) -> Numbers | None:
        """The parameters of a distribution over this kind of actions; None for anything else."""


@final
class _CategoricalModule(_ModuleNet, CategoricalNet):
    kind = ("discrete", "Categorical", "actions")

    def defining(self, found: Any) -> Numbers | None:
        return (found.logits,) if isinstance(found, Categorical) else None

    def distribution(self, found: Numbers, legal: Legal) -> Choice:
        (logits,) = found
        if self.sizes.actions == 2:
            is_exchanged = self.fixed[_EXCHANGED][:, None, None] > 0
            logits = torch.where(is_exchanged, logits.flip(-1), logits)
        return Choice(logits.mT) if legal is None else CategoricalNet.read(self, logits.mT, legal)


@final
class _GaussianModule(_ModuleNet, GaussianNet):
    kind = ("continuous", "Independent(Normal(...), 1), or MixtureSameFamily of these", "dimensions of actions")

    def defining(self, found: Any) -> Numbers | None:
        components = found.component_distribution if isinstance(found, MixtureSameFamily) else found
        base = components.base_dist if isinstance(components, Independent) else None
        if not isinstance(base, Normal) or len(components.event_shape) != 1:
            return None
        if isinstance(found, MixtureSameFamily):
            return mixture_parts(found)
        means, deviations = base.mean.unsqueeze(-2), base.stddev.unsqueeze(-2)
        return torch.zeros_like(means[..., 0]), means, deviations

    def distribution(self, found: Numbers, legal: Legal) -> MixtureSameFamily:
        return mixture(*found)

    def skill_parameters(self) -> list[nn.Parameter]:
        return []

    def measure_each(self, nets: Sequence[Any]) -> None:
        """Nothing: these networks are never joined with others."""


_EXCHANGED = "exchanged"
"""Key of a (member,) tensor: 1 where the two actions are exchanged, otherwise 0."""


def _key(name: str) -> str:
    """The name of a parameter in a form that every `ParameterDict` accepts."""
    return f"module/{name.replace('.', '/')}"


def _name(key: str) -> str:
    return key.removeprefix("module/").replace("/", ".")


def _single(values: Tensor) -> Tensor:
    """The values, in single precision if they are real numbers."""
    return values.detach().float() if values.is_floating_point() else values.detach()


@final
class _AtHorizons(nn.Module):
    """Copies of a module, one per horizon: a Gaussian with the moments of their distributions."""

    def __init__(self, each: Sequence[nn.Module]) -> None:
        super().__init__()
        self.each = nn.ModuleList(each)

    def forward(self, observations: Any) -> Any:
        found = [module(observations) for module in self.each]
        if invalid := [each for each in found if not isinstance(each, Distribution)]:
            return invalid[0]  # which `_numbers` refuses
        mean, deviation = (torch.cat([getattr(each, name) for each in found], -1) for name in ("mean", "stddev"))
        return Independent(Normal(mean, deviation), 1)


@final
class _OneByOne(torch.autograd.Function):
    """Call a module for one member after another, and again for the gradient, if `vmap` does not support it."""

    @staticmethod
    def forward(context: Any, net: _ModuleNet, whole: Tensor, *tensors: Tensor) -> Numbers:
        context.net = net
        context.save_for_backward(whole, *tensors)
        each = [net.called_with(whole, own)[0] for own in zip(*tensors, strict=True)]
        return tuple(torch.stack(parts) for parts in zip(*each, strict=True))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        whole, *tensors = context.saved_tensors
        asked = [number for number, needed in enumerate(context.needs_input_grad[2:]) if needed]
        found: list[list[Tensor]] = []
        for own, *upstream in zip(zip(*tensors, strict=True), *gradients, strict=True):
            with torch.enable_grad(), _MODES.at(_PLAIN):
                numbers, places = context.net.called_with(whole, own)
            places = [places[number] for number in asked]
            used = [(each, up) for each, up in zip(numbers, upstream, strict=True) if each.requires_grad]
            outputs, ups = [each for each, _ in used], [up for _, up in used]
            gradient = torch.autograd.grad(outputs, places, ups, allow_unused=True, materialize_grads=True)
            found.append([*gradient])
        stacked = dict(zip(asked, (torch.stack(parts) for parts in zip(*found, strict=True)), strict=True))
        return None, None, *(stacked.get(number) for number in range(len(tensors)))


_Modes = tuple[bool, bool, bool]


def _read_modes() -> _Modes:
    return (
        Distribution._validate_args,
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
    )


def _write_modes(modes: _Modes) -> None:
    Distribution.set_default_validate_args(modes[0])
    torch.backends.mha.set_fastpath_enabled(modes[1])
    torch.backends.cuda.enable_flash_sdp(modes[2])  # on a CPU too


_MODES = ProcessSetting(_read_modes, _write_modes)
"""Validation of distributions, and two attention kernels. `vmap` supports neither branches on values nor the kernels,
and a member that becomes non-finite must not end the others."""
_PLAIN: _Modes = (False, False, False)
