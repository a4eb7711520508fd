"""Demonstrator model of continuous actions with per-demonstrator gains and noise levels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import inf
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import MixtureSameFamily

from ileed._torch import Float
from ileed.data import Array, Demonstrations
from ileed.errors import SettingsError, number, true_or_false, whole_number
from ileed.model.batch import Batch, PerCount, Sizes
from ileed.model.demonstrators import (
    NO_CONTEXT,
    AbstractDemonstratorModel,
    Context,
    Learned,
    LearnedColumn,
    VarianceScaling,
)
from ileed.model.distributions import GaussianMixture, among, mixture, mixture_parts
from ileed.model.nets import Generators, Pick

_LONGEST, _LONGEST_SECONDS = 32, 2.0  # horizon that is tried, in steps, or in seconds where the data state their rate
_SHARE_OF_EPISODE = 4  # the median episode has at least this many times the steps of a horizon
_SHOWN = 6  # dimensions of actions whose parameters a report shows
_SECONDS = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*s\s*")


@final
@dataclass(frozen=True, kw_only=True)
class SignalScaling(AbstractDemonstratorModel[MixtureSameFamily]):
    """Act around the policy's means times a gain, with noise that scales with the gain.

    p(a | s, i) = sum over k of pi_k(s) N(a; c + g_i (mu_k(s) - c) + b_i, g_i^2 sigma_k(s)^2 / (rho kappa_i)), for each
    dimension of the action, with c the mean action in the data. Noise that grows with the command is signal-dependent
    noise (Harris and Wolpert, "Signal-dependent noise determines motor planning", Nature 394, 1998): a demonstrator
    whose actions and noise are both half as large has the same rho. `VarianceScaling` gives that demonstrator four
    times the expertise, and so rewards hesitation. The policy's sigma_k(s) covers noise that varies with the state
    within a demonstrator.

    log g_i and log kappa_i have one value per dimension, or one in all (`per_dimension=False`). Their weighted mean
    over demonstrators is zero, because what all demonstrators share belongs to the policy. Their prior is Gaussian with
    variance 1 / `shrinkage`, as is that of offsets b_i in units of `spread` (the random effects of Laird and Ware,
    Biometrics 1982).

    A fit rates demonstrators by the share of the variance of their actions that the policy explains, SNR / (1 + SNR)
    with SNR the signal-to-noise ratio of the mean action over a `horizon` (`ileed.rating.signal`).
    """

    gain: bool = True
    """Whether demonstrators have gains."""
    offset: bool = False
    """Whether demonstrators have offsets; without them, a constant error counts as noise."""
    per_dimension: bool = True
    """Whether gains and noise levels differ between dimensions of the action."""
    horizon: int | str | None = None
    """Number of steps over which actions are averaged to rate demonstrators, or seconds, as in "1.5s", if the data
    state their rate. None chooses the horizon with the most reliable ratings. The policy does not depend on it."""
    shrinkage: float = 4.0
    """Precision of the prior of log gains, log noise levels and offsets."""
    exempt: tuple[int, ...] | None = None
    """Dimensions that all demonstrators draw from the policy as it is; None for `Demonstrations.binary_dimensions`."""
    centre: tuple[float, ...] | None = None
    """c; None for the mean action in the data."""
    spread: tuple[float, ...] | None = None
    """Units of offsets; None for the standard deviation of the actions in the data."""
    importance: tuple[float, ...] | None = None
    """Weights of demonstrators in the mean that is zero; None for equal weights, or those of a weighted fit."""
    discrete = False
    is_policy_at_expertise_one = False
    measures_from_mean = True

    @classmethod
    def candidates(cls) -> Mapping[int, AbstractDemonstratorModel[Any]]:
        return {0: cls(gain=False, per_dimension=False), 1: cls(), 2: cls(offset=True)}

    def __post_init__(self) -> None:
        object.__setattr__(self, "exempt", VarianceScaling(exempt=self.exempt).exempt)
        for name in ("gain", "offset", "per_dimension"):
            object.__setattr__(self, name, true_or_false(name, getattr(self, name)))
        for name in ("centre", "spread", "importance"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        rule = "it is the precision of a prior: pass a number, zero or more"
        checked = number("shrinkage", self.shrinkage, least=0, below=inf, rule=rule)
        object.__setattr__(self, "shrinkage", checked)
        rule = 'pass steps, one or more, or seconds as in "1.5s", or None to choose it'
        if isinstance(self.horizon, str):
            if _SECONDS.fullmatch(self.horizon) is None or not _seconds(self.horizon) > 0:
                raise SettingsError(f"horizon is {self.horizon!r}: {rule}")
        elif self.horizon is not None:
            object.__setattr__(self, "horizon", whole_number("horizon", self.horizon, least=1, rule=rule))

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        VarianceScaling(exempt=self.exempt).check(sizes)
        for name in ("centre", "spread"):
            found = getattr(self, name)
            if found is not None and len(found) != sizes.actions:
                rule = "pass one per dimension, or None for those of the data"
                raise SettingsError(f"{name} has {len(found)} numbers but actions have {sizes.actions}: {rule}")
        if self.importance is not None and len(self.importance) != sizes.demonstrators:
            found, rule = f"{len(self.importance)} numbers", "pass one per demonstrator, or None for equal weights"
            raise SettingsError(f"importance has {found} but there are {sizes.demonstrators} demonstrators: {rule}")

    def for_data(self, data: Demonstrations) -> SignalScaling:
        if not data.action_size:
            return self  # which `check` refuses
        actions = data.actions.astype("float64")
        filled: dict[str, Any] = {"exempt": VarianceScaling(exempt=self.exempt).for_data(data).exempt}
        if self.centre is None:
            filled["centre"] = tuple(actions.mean(0).tolist())
        if self.spread is None:
            filled["spread"] = tuple(actions.std(0).clip(min=1e-6).tolist())
        return replace(self, **filled)

    def weighted(self, importance: Array) -> SignalScaling:
        if self.importance is not None:
            return self
        return replace(self, importance=tuple((importance / importance.sum()).tolist()))

    def horizons(self, data: Demonstrations) -> tuple[int, ...]:
        """The given horizon, or powers of two up to 32 steps (2 s) and a quarter of the median episode length."""
        if isinstance(self.horizon, str):
            if data.fps is None:
                raise SettingsError(f"horizon is {self.horizon!r} but the data have no rate: pass steps, or fps")
            return (max(1, round(_seconds(self.horizon) * data.fps)),)
        if self.horizon is not None:
            return (self.horizon,)
        most = _LONGEST if data.fps is None else int(_LONGEST_SECONDS * data.fps)
        longest = min(most, int(np.median(np.bincount(data.episode))) // _SHARE_OF_EPISODE)
        return tuple(1 << power for power in range(max(1, longest).bit_length()))

    def build(self, sizes: Sizes, generators: Generators) -> nn.Module:
        shape = (sizes.actions if self.per_dimension else 1, sizes.demonstrators)
        is_free = [number not in (self.exempt or ()) for number in range(sizes.actions)]
        constants = {
            "centre": self.centre or (0.0,) * sizes.actions,
            "spread": self.spread or (1.0,) * sizes.actions,
            "share": tuple(free / max(1, sum(is_free)) for free in is_free),
        }
        if self.importance is not None:
            constants["importance"] = self.importance
        return _OwnParameters(len(generators), dict.fromkeys(self._names, shape), constants)

    @property
    def _names(self) -> tuple[str, ...]:
        own = {"gain": self.gain, "offset": self.offset, "precision": self.per_dimension}
        return tuple(name for name, is_learned in own.items() if is_learned)

    def anchored(self, module: nn.Module) -> nn.Module:
        found: Any = deepcopy(module)
        for name in self._names:
            found.get_parameter(name).data = found.own(name).detach()
        found.from_mean = False
        return found

    def log_prior(self, module: Any) -> Float[Tensor, " member"] | None:
        # of the parameters before centring, so that their mean is shrunk towards zero too
        squares = [parameter.square().flatten(1).sum(1) for parameter in module.parameters()]
        return -0.5 * self.shrinkage * torch.stack(squares).sum(0) if squares else None

    def observed(self, policy: Any, expertise: Tensor, context: Context = NO_CONTEXT) -> MixtureSameFamily:
        return self._noise.observed(self._at_expertise_one(policy, context), expertise)

    def log_likelihood(self, policy: Any, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        context = Context.of(batch, policy.batch_shape[0], module)
        here = self._at_expertise_one(policy.at(batch.observation_index), context)
        return self._noise.log_likelihood(here, expertise, _row_by_row(batch))

    def log_likelihood_with_error(
        self, policy: Any, expertise: PerCount, batch: Batch, error: Tensor, module: Any = None
    ) -> PerCount:
        context = Context.of(batch, policy.batch_shape[0], module)
        here = self._at_expertise_one(policy.at(batch.observation_index), context)
        own = error if batch.observation_index.identity else error.index_select(1, batch.observation_index.index)
        if self.gain:
            own = own * self._at_rows("gain", context, own).mul(2).exp()
        return self._noise.log_likelihood_with_error(here, expertise, _row_by_row(batch), own)

    def slips(self, module: Any) -> dict[str, Tensor]:
        found = {}
        for name in self._names:
            own = module.own(name).movedim(-1, 1)
            found[name] = own * module.constant("spread", own) if name == "offset" else own.exp()
        return found

    def learned(self, slips: Mapping[str, Array], actions: Sequence[str]) -> Learned:
        if not slips:
            return Learned()
        kept = [number for number in range(len(actions)) if number not in (self.exempt or ())]
        columns = [
            LearnedColumn(f"{name} of {actions[number]}", f"{name}_{number}", slips[name][:, number].tolist())
            for number in kept[:_SHOWN]
            for name in ("offset", "gain")
            if name in slips and slips[name].shape[1] == len(actions)
        ]
        if self.gain and not self.per_dimension:
            columns.append(LearnedColumn("gain", "gain", slips["gain"][:, 0].tolist()))
        says = (
            "Expertise is a demonstrator's precision around their own mean action. The difference between that mean "
            "and the policy's was learned separately: an offset in the units of the action, and a gain that multiplies "
            "deviations from the mean action in the data. Train large biases of single demonstrators first."
        )
        return Learned([says], columns, "How each demonstrator's mean action differs from the policy's, best first")

    def at_expertise_zero(self, sizes: Sizes) -> str:
        return "no relation to the policy"

    @property
    def _noise(self) -> VarianceScaling:
        return VarianceScaling(exempt=self.exempt)

    def _at_expertise_one(self, policy: Any, context: Context) -> GaussianMixture:
        """How each row's demonstrator acts at expertise one."""
        if not self._names:
            return policy
        logits, means, standard_deviations = mixture_parts(policy)
        module: Any = context.module
        moved, wider, centre = means, standard_deviations, module.constant("centre", means)
        if self.gain:
            gain = self._at_rows("gain", context, means).exp()
            moved, wider = centre + gain * (means - centre), wider * gain
        if self.offset:
            moved = moved + self._at_rows("offset", context, means) * module.constant("spread", means)
        if self.per_dimension:
            wider = wider * self._at_rows("precision", context, means).mul(-0.5).exp()
        return mixture(logits, moved, wider)

    def _at_rows(self, name: str, context: Context, like: Tensor) -> Float[Tensor, "member row 1 dimension"]:
        """A parameter of each row's demonstrator; zero in exempt dimensions."""
        module: Any = context.module
        own = context.at_rows(module.own(name)).unsqueeze(-2)
        return torch.where(among(self.exempt, like), 0.0, own) if self.exempt else own


@final
class _OwnParameters(nn.Module):
    """Named parameters of demonstrators, (member, dimension or 1, demonstrator), initially zero.

    They are centred on their mean over demonstrators, unless they are `anchored`. The log precisions of a demonstrator
    are centred over dimensions too: their mean is rho.
    """

    def __init__(
        self, members: int, shapes: dict[str, tuple[int, int]], constants: dict[str, tuple[float, ...]]
    ) -> None:
        super().__init__()
        self.from_mean = True
        self._constants = constants  # (dimension,) each, of the settings
        self._on_device: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(members, *shape)))

    def own(self, name: str) -> Float[Tensor, "member dimension demonstrator"]:
        found: Tensor = self.get_parameter(name)
        if name == "precision":
            found = found - (found * self.constant("share", found)[:, None]).sum(1, keepdim=True)
        if not self.from_mean:
            return found
        if "importance" in self._constants:
            return found - (found * self.constant("importance", found)).sum(-1, keepdim=True)
        return found - found.mean(-1, keepdim=True)

    def constant(self, name: str, like: Tensor) -> Float[Tensor, " number"]:
        """A constant with the device and dtype of `like`; cached, so that a CUDA graph can read it."""
        key = (name, like.device, like.dtype)
        if key not in self._on_device:
            self._on_device[key] = torch.tensor(self._constants[name], device=like.device, dtype=like.dtype)
        return self._on_device[key]


def _row_by_row(batch: Batch) -> Batch:
    """The batch for a policy that was already evaluated at every count."""
    counts = batch.demonstrator.index.shape[-1]
    here = torch.arange(counts, device=batch.weight.device)
    return replace(batch, observation_index=Pick(here, counts, identity=True), context={})


def _seconds(text: str) -> float:
    found = _SECONDS.fullmatch(text)
    return 0.0 if found is None else float(found[1])


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    rule = "pass one finite number per dimension, above zero for a spread"
    try:
        found = list(values)
    except TypeError:
        raise SettingsError(f"{name} is {values!r}: {rule}") from None
    least = 0.0 if name == "spread" else -inf
    return tuple(number(name, value, above=least, below=inf, rule=rule) for value in found)
