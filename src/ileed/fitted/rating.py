"""Rating: how expert people are by a policy that is held fixed, and how sure we are; anybody can be rated, in a moment.

A fit learns policy and expertise together. Here the policy is given, so the likelihood of one person's steps is a
function of one number, rho, and is worked out on a fine grid:

    log L_i(rho) = sum over the steps of person i of log p(action | observation, rho),

with p of the fit's demonstrator model; rho pi(a) + (1 - rho) / |legal| under `UniformMixture`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from torch.distributions import Categorical

from ileed._torch import stream
from ileed.checking import instance_of, number, one_of
from ileed.demonstrations import Array, Demonstrations, check_demonstrations
from ileed.errors import SettingsError
from ileed.fitted.result import Fitted
from ileed.model.ask import log_likelihood

__all__ = ["Estimates", "Population", "Rating", "Ratings", "rate"]

_POINTS = 1000
_ANGLES = (np.arange(_POINTS) + 0.5) * (np.pi / 2 / _POINTS)
_INSIDE = np.sin(_ANGLES) ** 2
_GRID = np.concatenate([[0.0], _INSIDE, [1.0]])  # evenly spaced in the arc sine of the root: finest near 0 and 1
RESAMPLES = 2_000


class Rating(NamedTuple):
    """One person's expertise, from 0 to 1, and where it lies with the certainty that was asked for."""

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
    """What is known of somebody of whom no step has been seen yet: a distribution of expertise.

    It is learned from everybody who was rated together: a Beta distribution of unknown mean and spread, averaged over
    what those people leave possible.
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
    certainty: float
    alone: Estimates
    """The likeliest expertise, and an interval of confidence."""
    pooled: Estimates | None = None
    """The mean of what is believed after all the steps of all people, and the interval that holds `certainty` of it."""
    population: Population | None = None
    """What was learned of people at large; pass it as `pooled` to rate newcomers."""

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


def rate(
    fitted: Fitted,
    demonstrations: Demonstrations,
    *,
    pooled: bool | Population = True,
    certainty: float = 0.95,
    interval: Literal["likelihood", "episodes"] = "likelihood",
) -> Ratings:
    """How expert everybody in `demonstrations` is by the policy of `fitted`, whether or not the fit knew them.

    One number for each person, also where the fit's own expertise depends on the state. Discrete actions only.

    `pooled` adds estimates that are drawn towards what people at large are like, the more the fewer steps somebody has.
    Everybody rated here makes that population, unless one is passed: rate a newcomer with the `population` of earlier
    ratings, since one person alone tells nothing of others.

    `interval` is that of the estimates that stand alone. "likelihood" takes every rho whose log-likelihood is within
    half a chi-square quantile of the greatest: right for any number of steps but the fewest, at the ends of the range
    too, if steps are independent given rho. "episodes" resamples whole episodes instead, which allows for steps of an
    episode that go well or ill together; it needs some twenty episodes a person, and knows nothing from one.
    """
    instance_of("fitted", fitted, Fitted, rule="pass a fit, as Ileed(...).fit(...) or ileed.load(path) gives it")
    check_demonstrations(demonstrations)
    if not isinstance(pooled, bool):
        instance_of("pooled", pooled, Population, rule="pass True, False, or the `population` of earlier ratings")
    certainty = number(
        "certainty",
        certainty,
        within=lambda share: 0 < share < 1,
        rule="it is a probability between 0 and 1, such as 0.95",
    )
    one_of("interval", interval, ("likelihood", "episodes"))
    _check(fitted, demonstrations)
    steps = demonstrations.steps_each
    if (steps == 0).any():
        nobody = demonstrations.names[int((steps == 0).argmax())]
        raise SettingsError(f"{nobody!r} has no step to be rated by: leave that name out with demonstrations.by(...)")
    curves, by_episode = _curves(fitted, demonstrations, keep_episodes=interval == "episodes")
    alone = _likeliest(curves, certainty)
    if by_episode is not None:
        alone = _resampled(alone, by_episode, demonstrations.episode_demonstrator, certainty)
    ratings = Ratings(demonstrations.names, steps, certainty, alone)
    if pooled is False:
        return ratings
    believed, population = _believed(curves[:, 1:-1], None if pooled is True else pooled)
    return Ratings(ratings.names, steps, certainty, alone, _summary(believed, certainty), population)


def _check(fitted: Fitted, data: Demonstrations) -> None:
    sizes = fitted.joint.sizes
    if not (sizes.discrete and data.discrete):
        raise SettingsError("rating needs discrete actions, and these are continuous: read fitted.expertise instead")
    if sizes.actions != data.action_count:
        raise SettingsError(
            f"the policy chooses among {sizes.actions} actions and the data among {data.action_count}: "
            "pass action_count when building the Demonstrations"
        )
    if sizes.has_legal_actions != (data.legal is not None):
        one, other = ("was", "do not say") if sizes.has_legal_actions else ("was not", "say")
        raise SettingsError(
            f"the policy {one} told which actions are legal and the demonstrations {other}: make both alike"
        )


@torch.no_grad()
def _curves(fitted: Fitted, data: Demonstrations, *, keep_episodes: bool) -> tuple[Array, Array | None]:
    """(person, point) log-likelihood of everybody's steps along the grid, and (episode, point) where they are kept."""
    model = fitted.joint.parts.demonstrator
    grid = torch.from_numpy(_GRID)
    owner = data.episode if keep_episodes else data.demonstrator
    summed = torch.zeros(int(owner.max()) + 1, len(grid), dtype=torch.float64)
    at_once = max(1, 8192 // data.action_count) if model.reads_every_action else 1024
    for first in range(0, len(data), at_once):
        block = slice(first, first + at_once)
        policy = fitted.policy.distribution(
            data.observations[block], legal=None if data.legal is None else data.legal[block]
        )
        assert isinstance(policy, Categorical)  # a fit of discrete actions has no other
        found = log_likelihood(
            model,
            policy.logits.double(),
            grid[:, None].expand(-1, len(policy.logits)),  # one policy for every point of the grid
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


def _likeliest(curves: Array, certainty: float) -> Estimates:
    """The top of each curve, and where it has fallen by half a chi-square quantile of one degree of freedom."""
    top = curves.argmax(1)
    person = np.arange(len(curves))
    fall = NormalDist().inv_cdf((1 + certainty) / 2) ** 2 / 2
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


def _resampled(alone: Estimates, by_episode: Array, who: Array, certainty: float) -> Estimates:
    """The same estimates with intervals from episodes drawn anew, with replacement; from 0 to 1 for a single one."""
    low, high = np.zeros_like(alone.low), np.ones_like(alone.high)
    for person in range(len(low)):
        curves = by_episode[who == person]
        if len(curves) < 2:
            continue
        generator = np.random.default_rng(int(torch.randint(2**31, (), generator=stream(0, "rating", len(curves)))))
        drawn = generator.multinomial(len(curves), np.full(len(curves), 1 / len(curves)), size=RESAMPLES)
        sums = drawn.astype(np.float64) @ curves
        tails = ((1 - certainty) / 2, (1 + certainty) / 2)
        low[person], high[person] = np.quantile(_peak(sums, sums.argmax(1)), tails)
    return Estimates(alone.expertise, low, high)


def _believed(curves: Array, population: Population | None) -> tuple[Array, Population]:
    """(person, point) what is believed of each, and the population that it was believed with.

    Everybody's expertise comes from one Beta distribution. Its mean is taken to be anything from 0 to 1, and its
    standard deviation any part of the greatest that the mean allows, all equally likely beforehand; both are averaged
    over rather than set to their likeliest values, which would claim that all are alike wherever few people were seen.
    """
    likelihood = np.exp(curves - curves.max(1, keepdims=True))
    if population is None:
        shares, log_before = _possible_populations()
        evidence = np.maximum(likelihood @ shares.T, np.finfo(np.float64).tiny)  # (person, possible population)
        log_after = log_before + np.log(evidence).sum(0)
        after = np.exp(log_after - log_after.max())
        after /= after.sum()
        believed = likelihood * ((after / evidence) @ shares)
        population = Population(after @ shares)
    else:
        believed = likelihood * population.share
    total = believed.sum(1, keepdims=True)
    if not (total > 0).all():
        raise SettingsError("somebody's steps are impossible under the population passed: pass one of the same policy")
    return believed / total, population


def _possible_populations() -> tuple[Array, Array]:
    """(population, point) shares of the Beta distributions that are thought possible, and the log of each one's weight.

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


def _summary(believed: Array, certainty: float) -> Estimates:
    """Mean and equal-tailed interval of each row of shares."""
    below = np.cumsum(believed, axis=1) - believed / 2
    tails = ((1 - certainty) / 2, (1 + certainty) / 2)
    low, high = np.array([np.interp(tails, row, _INSIDE) for row in below]).T
    return Estimates(believed @ _INSIDE, low, high)
