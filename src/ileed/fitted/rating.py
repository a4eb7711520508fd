"""Rating: how expert people are by a given policy, with intervals; people whom no fit has seen can be rated.

A fit learns policy and expertise together. Here the policy is given, so the likelihood of one person's steps is a
function of one number, rho, and is computed on a fine grid:

    log L_i(rho) = sum over the steps of person i of log p(action | observation, rho),

with p of a demonstrator model; rho pi(a) + (1 - rho) / |legal| under `UniformMixture`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed._torch import stream
from ileed.checking import instance_of, number, one_of, shown
from ileed.demonstrations import Array, Demonstrations, check_demonstrations
from ileed.deprecation import renamed_arguments, renamed_property
from ileed.errors import SettingsError
from ileed.fitted.result import Fitted
from ileed.model.demonstrators import AbstractDemonstratorModel, UniformMixture
from ileed.model.joint import log_likelihood

__all__ = ["Estimates", "Population", "Rating", "Ratings", "rate"]

_POINTS = 1000
_ANGLES = (np.arange(_POINTS) + 0.5) * (np.pi / 2 / _POINTS)
_INSIDE = np.sin(_ANGLES) ** 2
_GRID = np.concatenate([[0.0], _INSIDE, [1.0]])  # evenly spaced in the arc sine of the root: finest near 0 and 1
RESAMPLES = 2_000


class Rating(NamedTuple):
    """One person's expertise, from 0 to 1, and its interval at the confidence level that was asked for."""

    expertise: float
    low: float
    high: float


@final
@dataclass(frozen=True, eq=False)
class Estimates:
    """Everybody's expertise and interval, in the order of the names; three arrays (person,)."""

    expertise: Array
    low: Array
    high: Array


@final
@dataclass(frozen=True, eq=False)
class Population:
    """The distribution of expertise among people: what is known of somebody before a step of theirs is seen.

    It is learned from everybody who was rated together: a Beta distribution of unknown mean and standard deviation,
    averaged over their posterior distribution.
    """

    share: Array  # (point,) how much of the distribution lies at each inner point of the grid

    @property
    def mean(self) -> float:
        return float(self.share @ _INSIDE)

    @property
    def spread(self) -> float:
        """Standard deviation of expertise between people."""
        return float(np.sqrt(self.share @ (_INSIDE - self.mean) ** 2))


@final
@dataclass(frozen=True, eq=False)
class Ratings:
    """How expert each person is: `alone` by their own steps, and `pooled` with what is known of the others.

    Read expertise as a comparison between people rated by one policy: the policy fixes what 1 means.
    """

    names: tuple[str, ...]
    steps: Array
    """How many steps each was rated by, (person,)."""
    confidence_level: float
    alone: Estimates
    """The expertise of greatest likelihood, and a confidence interval."""
    pooled: Estimates | None = None
    """The posterior mean given the steps of all people, and the interval that holds `confidence_level` of it."""
    population: Population | None = None
    """What was learned of people in general; pass it as `pooled` to rate others."""
    certainty = renamed_property("the attribute certainty of Ratings", "confidence_level")

    @property
    def best(self) -> Estimates:
        """The pooled estimates where there are any."""
        return self.alone if self.pooled is None else self.pooled

    def __getitem__(self, name: str) -> Rating:
        if name not in self.names:
            raise KeyError(f"nobody named {name!r} was rated")
        person = self.names.index(name)
        best = self.best
        return Rating(float(best.expertise[person]), float(best.low[person]), float(best.high[person]))

    def by_demonstrator(self) -> dict[str, float]:
        """Each person's expertise, pooled where it was asked for."""
        return dict(zip(self.names, self.best.expertise.tolist(), strict=True))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One mapping for each person, ready for a table."""
        for person, name in enumerate(self.names):
            row: dict[str, Any] = {"name": name, "steps": int(self.steps[person])}
            for kind, estimates in (("alone", self.alone), ("pooled", self.pooled)):
                if estimates is not None:
                    row |= {f"{kind}_{part}": float(values[person]) for part, values in vars(estimates).items()}
            yield row

    def __str__(self) -> str:
        best = self.best
        lines = zip(self.names, best.expertise, best.low, best.high, self.steps, strict=True)
        return "\n".join(
            f"{name}: {expertise:.3f} ({low:.3f} to {high:.3f}, {steps:,} steps)"
            for name, expertise, low, high, steps in sorted(lines, key=lambda line: -line[1])
        )


@renamed_arguments(certainty="confidence_level", fitted="policy")
def rate(
    policy: Any,
    demonstrations: Demonstrations,
    *,
    demonstrator: AbstractDemonstratorModel[Any] | None = None,
    pooled: bool | Population = True,
    confidence_level: float = 0.95,
    interval: Literal["likelihood", "episodes"] = "likelihood",
) -> Ratings:
    """How expert everybody in `demonstrations` is by a policy, whether or not it was learned from them.

    One number for each person, also where the expertise of a fit depends on the state. Discrete actions only.

    `policy` is a fit; or an object whose `distribution(observations, legal=)` returns a categorical distribution, as
    `Fitted.policy` has it; or the probability of every action at every step: an array (step, action), or a categorical
    distribution of as many rows. `demonstrator` is the model of how a person of given expertise acts: by default that
    of the fit, and `UniformMixture()` where there is no fit.

    `pooled` adds estimates that are shrunk towards the mean of the population, the more the fewer steps somebody has.
    Everybody rated here makes that population, unless one is passed: rate a newcomer with the `population` of earlier
    ratings, since one person alone says nothing of others.

    `interval` is that of the estimates in `alone`. "likelihood" takes every rho whose log-likelihood is within half a
    chi-square quantile of the greatest: right for any number of steps but the fewest, at the ends of the range too, if
    steps are independent given rho. "episodes" resamples whole episodes instead, which allows for dependence between
    the steps of an episode; it needs some twenty episodes a person, and is the whole range for a single one.
    """
    check_demonstrations(demonstrations)
    if not isinstance(pooled, bool):
        instance_of("pooled", pooled, Population, rule="pass True, False, or the `population` of earlier ratings")
    rule = "it is a probability between 0 and 1, such as 0.95"
    level = number("confidence_level", confidence_level, within=lambda share: 0 < share < 1, rule=rule)
    one_of("interval", interval, ("likelihood", "episodes"))
    log_policy = _log_policy(policy, demonstrations)
    model = _model(policy, demonstrator)
    steps = demonstrations.steps_each
    if (steps == 0).any():
        nobody = demonstrations.names[int((steps == 0).argmax())]
        raise SettingsError(f"{nobody!r} has no step to be rated by: leave that name out with demonstrations.by(...)")
    curves, by_episode = _curves(log_policy, model, demonstrations, keep_episodes=interval == "episodes")
    alone = _likeliest(curves, level)
    if by_episode is not None:
        alone = _resampled(alone, by_episode, demonstrations.episode_demonstrator, level)
    if pooled is False:
        return Ratings(demonstrations.names, steps, level, alone)
    posterior, population = _posterior(curves[:, 1:-1], None if pooled is True else pooled)
    return Ratings(demonstrations.names, steps, level, alone, _mean_and_interval(posterior, level), population)


def _model(policy: Any, demonstrator: AbstractDemonstratorModel[Any] | None) -> AbstractDemonstratorModel[Any]:
    """The demonstrator model to rate by: one that takes expertise as a number, and needs nothing else."""
    usual = policy.joint.parts.demonstrator if isinstance(policy, Fitted) else UniformMixture()
    model = usual if demonstrator is None else demonstrator
    rule = "pass UniformMixture(), OneVersusRest() or Boltzmann()"
    instance_of("demonstrator", model, AbstractDemonstratorModel, rule=rule)
    if model.defines_expertise or model.context or not model.discrete:
        raise SettingsError(f"{type(model).__name__} does not rate a person by one number: {rule}")
    return model


_LogPolicy = Callable[[slice], Tensor]
"""From a block of steps to the policy's log-probabilities there, (step, action), in double precision."""


def _log_policy(policy: Any, data: Demonstrations) -> _LogPolicy:
    """The log-probabilities of a fit, of an object with `distribution`, or of a table of probabilities."""
    sizes = policy.joint.sizes if isinstance(policy, Fitted) else None
    if not data.discrete or (sizes is not None and not sizes.discrete):
        raise SettingsError("rating needs discrete actions, and these are continuous: read fitted.expertise instead")
    if sizes is not None and sizes.has_legal_actions != (data.legal is not None):
        one, other = ("was", "do not say") if sizes.has_legal_actions else ("was not", "say")
        raise SettingsError(
            f"the policy {one} told which actions are legal and the demonstrations {other}: make both alike"
        )
    policy = policy.policy if sizes is not None else policy
    if getattr(policy, "recurrent", False):
        raise SettingsError("policy is recurrent, and is asked step by step: pass every action's probability instead")
    asked = getattr(policy, "distribution", None)
    table = _log_table(policy, data) if asked is None else torch.empty(0)

    def of_block(block: slice) -> Tensor:
        legal = None if data.legal is None else data.legal[block]
        found = table[block] if asked is None else asked(data.observations[block], legal=legal).logits
        if found.shape[-1] != data.action_count:
            raise SettingsError(
                f"the policy chooses among {found.shape[-1]} actions and the data among {data.action_count}: "
                "pass action_count when building the Demonstrations"
            )
        return found.double()

    return of_block


def _log_table(policy: Any, data: Demonstrations) -> Tensor:
    """The log-probability of every action at every step, from a categorical distribution or an array."""
    try:
        logits = getattr(policy, "logits", None)
        table = torch.from_numpy(np.asarray(policy, dtype=np.float64)).log() if logits is None else logits
    except (TypeError, ValueError):
        raise SettingsError(
            f"policy is {shown(policy)}: pass a fit, an object with distribution(observations, legal=), or the "
            "probability of every action at every step"
        ) from None
    wanted = (len(data), data.action_count)
    if tuple(table.shape) != wanted:
        raise SettingsError(f"policy is {tuple(table.shape)} probabilities: pass {wanted}, each action's at each step")
    legal = torch.ones_like(table, dtype=torch.bool) if data.legal is None else torch.tensor(data.legal)
    possible = table.double().exp()
    if not torch.allclose(possible.sum(-1), torch.ones(len(table)).double(), atol=1e-4) or bool(possible[~legal].any()):
        raise SettingsError("policy has probabilities that are no distribution over legal actions: they must sum to 1")
    return table


@torch.no_grad()
def _curves(
    log_policy: _LogPolicy, model: AbstractDemonstratorModel[Any], data: Demonstrations, *, keep_episodes: bool
) -> tuple[Array, Array | None]:
    """(person, point) log-likelihood of everybody's steps along the grid, and (episode, point) where they are kept."""
    grid = torch.from_numpy(_GRID)
    owner = data.episode if keep_episodes else data.demonstrator
    summed = torch.zeros(int(owner.max()) + 1, len(grid), dtype=torch.float64)
    at_once = max(1, 8192 // data.action_count) if model.reads_every_action else 1024
    for first in range(0, len(data), at_once):
        block = slice(first, first + at_once)
        found = log_likelihood(
            model,
            log_policy(block),
            grid[:, None].expand(-1, len(data.actions[block])),
            torch.tensor(data.actions[block]),
            None if data.legal is None else torch.tensor(data.legal[block]),
        )
        summed.index_add_(0, torch.tensor(owner[block]), found.T.contiguous())
    curves = summed.numpy()
    if not keep_episodes:
        return curves, None
    people = np.zeros((len(data.names), len(_GRID)))
    np.add.at(people, data.episode_demonstrator, curves)
    return people, curves


def _likeliest(curves: Array, level: float) -> Estimates:
    """The top of each curve, and where it has fallen by half a chi-square quantile of one degree of freedom."""
    top = curves.argmax(1)
    person = np.arange(len(curves))
    fall = NormalDist().inv_cdf((1 + level) / 2) ** 2 / 2
    above = curves - (curves[person, top] - fall)[:, None]
    inside = above >= 0
    first, last = inside.argmax(1), len(_GRID) - 1 - inside[:, ::-1].argmax(1)
    return Estimates(
        expertise=_peak(curves, top),
        low=_crossing(above, np.maximum(first - 1, 0), first),
        high=_crossing(above, np.minimum(last + 1, len(_GRID) - 1), last),
    )


def _peak(curves: Array, top: Array) -> Array:
    """The top of the parabola through the highest point and its neighbours; an end of the grid as it is."""
    middle = np.clip(top, 1, len(_GRID) - 2)
    person = np.arange(len(curves))
    near = np.stack([middle - 1, middle, middle + 1])
    (x0, x1, x2), (y0, y1, y2) = _GRID[near], curves[person, near]
    rise, fall = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (x0 + x1) / 2 - rise * (x2 - x0) / 2 / (fall - rise)
    return np.where((top == middle) & (fall < rise), np.clip(found, x0, x2), _GRID[top])


def _crossing(above: Array, outside: Array, inside: Array) -> Array:
    """Where each curve crosses zero between two neighbours of the grid; the last point inside at an end of it."""
    person = np.arange(len(above))
    out, within = above[person, outside], above[person, inside]
    part = np.where(outside == inside, 0.0, within / np.where(outside == inside, 1.0, within - out))
    return _GRID[inside] + part * (_GRID[outside] - _GRID[inside])


def _resampled(alone: Estimates, by_episode: Array, who: Array, level: float) -> Estimates:
    """The same estimates with intervals from resampled episodes; from 0 to 1 for a single one."""
    low, high = np.zeros_like(alone.low), np.ones_like(alone.high)
    for person in range(len(low)):
        curves = by_episode[who == person]
        if len(curves) < 2:
            continue
        generator = np.random.default_rng(int(torch.randint(2**31, (), generator=stream(0, "rating", len(curves)))))
        drawn = generator.multinomial(len(curves), np.full(len(curves), 1 / len(curves)), size=RESAMPLES)
        sums = drawn.astype(np.float64) @ curves
        tails = ((1 - level) / 2, (1 + level) / 2)
        low[person], high[person] = np.quantile(_peak(sums, sums.argmax(1)), tails)
    return Estimates(alone.expertise, low, high)


def _posterior(curves: Array, population: Population | None) -> tuple[Array, Population]:
    """(person, point) the posterior distribution of each person's expertise, and the population that is its prior.

    Everybody's expertise comes from one Beta distribution. Its mean is uniform from 0 to 1 beforehand, and its standard
    deviation uniform up to the greatest that the mean allows; both are averaged over rather than set to their likeliest
    values, which would claim that all people are alike wherever few were seen.
    """
    likelihood = np.exp(curves - curves.max(1, keepdims=True))
    if population is None:
        shares, log_before = _possible_populations()
        evidence = np.maximum(likelihood @ shares.T, np.finfo(np.float64).tiny)  # (person, possible population)
        log_after = log_before + np.log(evidence).sum(0)
        after = np.exp(log_after - log_after.max())
        after /= after.sum()
        posterior = likelihood * ((after / evidence) @ shares)
        population = Population(after @ shares)
    else:
        posterior = likelihood * population.share
    total = posterior.sum(1, keepdims=True)
    if not (total > 0).all():
        raise SettingsError("somebody's steps are impossible under the population passed: pass one of the same policy")
    return posterior / total, population


def _possible_populations() -> tuple[Array, Array]:
    """(population, point) shares of the Beta distributions that the prior allows, and the log of each one's weight.

    A standard deviation of s sqrt(m (1 - m)) is that of Beta(m k, (1 - m) k) with k = 1 / s^2 - 1.
    """
    angle = (np.arange(60) + 0.5) * (np.pi / 2 / 60)
    mean, spread = np.sin(angle)[:, None] ** 2, (np.arange(40) + 0.5) / 40
    concentration = 1 / spread**2 - 1
    first, second = ((part * concentration).ravel()[:, None] for part in (mean, 1 - mean))
    # with rho = sin^2 t, the density of Beta(a, b) in t is proportional to sin^(2a - 1) t cos^(2b - 1) t
    log_density = (2 * first - 1) * np.log(np.sin(_ANGLES)) + (2 * second - 1) * np.log(np.cos(_ANGLES))
    shares = np.exp(log_density - log_density.max(1, keepdims=True))
    weight = np.broadcast_to(np.sin(2 * angle)[:, None], (60, 40)).ravel()
    return shares / shares.sum(1, keepdims=True), np.log(weight)


def _mean_and_interval(posterior: Array, level: float) -> Estimates:
    """Mean and equal-tailed interval of each row of shares."""
    below = np.cumsum(posterior, axis=1) - posterior / 2
    tails = ((1 - level) / 2, (1 + level) / 2)
    low, high = np.array([np.interp(tails, row, _INSIDE) for row in below]).T
    return Estimates(posterior @ _INSIDE, low, high)
