"""The likelihood of steps as a function of expertise, by given policies.

The log-likelihood of some steps, such as those of demonstrator i, is a function of one number, rho:

    log L_i(rho) = sum over the steps of demonstrator i of log p(action | observation, rho),

with p of a demonstrator model; rho pi(a) + (1 - rho) / |legal| under `UniformMixture`. A policy that was learned from
few steps is less sharp than the expert's, so pi may be replaced by pi^(1/T), renormalised, with a temperature T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed.data import Array, Demonstrations
from ileed.errors import SettingsError
from ileed.rating.posterior import (
    GRID,
    MarginalCurves,
    Population,
    points_for,
    points_of,
    posterior,
    posterior_of_means,
)

_BROADER = 2
_TEMPERATURES = (2.0, 1.4, *map(float, np.geomspace(1, 1 / 20, 13)))
"""Candidates: two less sharp policies, by which expertise would be higher; then from the policy as it was learned to
nearly its most likely action alone."""
COARSE_POINTS = points_of(41)
"""Points of expertise at which temperatures are compared and episodes' variances estimated."""
PROFILE_POINTS = len(_TEMPERATURES) * len(COARSE_POINTS)
"""At how many points all profiles ask each step for its likelihood."""
_LEAST = 1e-6  # below which `VarianceScaling` has no expertise
_LOG_NODES = np.concatenate([np.linspace(np.log(_LEAST), -7, 18)[:-1], np.linspace(-7, 0, 36)])
TABULATED_POINTS = len(_LOG_NODES)
_NUMBERS_AT_ONCE = 1 << 23
_PRIOR_EPISODES = 20  # that count in favour of independent steps a priori


class Units(NamedTuple):
    """What is rated in place of demonstrators: their episodes, or their steps with each label of a skill column."""

    columns: Mapping[str, tuple[str, ...]]
    """The demonstrator of each unit, and its episode or label."""
    of_step: Array
    """(step,) the unit of each step."""

    @classmethod
    def of(cls, data: Demonstrations, by: str) -> Units | None:
        """The units of "episode" or of a skill column; None for "demonstrator"."""
        if by == "demonstrator":
            return None
        if by == "episode":
            labels, number = [str(each + 1) for each in range(data.episode_count)], data.episode
        else:
            weights, names = data.skill(by)
            if not np.isin(weights, (0, 1)).all():
                raise SettingsError(
                    f"by={by!r} is a skill column of weights: rate by a column of labels, or by 'episode'",
                    code="by-weights",
                )
            labels, number = list(names), weights.argmax(1)
        pairs, of_step = np.unique(data.demonstrator * len(labels) + number, return_inverse=True)
        owners = tuple(data.names[pair // len(labels)] for pair in pairs)
        return cls({"demonstrator": owners, by: tuple(labels[pair % len(labels)] for pair in pairs)}, of_step)

    @property
    def names(self) -> tuple[str, ...]:
        (_, owners), (by, labels) = self.columns.items()
        return tuple(f"{owner}, {by} {label}" for owner, label in zip(owners, labels, strict=True))


@final
@dataclass(frozen=True, eq=False)
class Block:
    """Some steps, and their log-likelihood (point, step) at points of expertise and a temperature of the policy.

    With `kind`, (step,), the log-likelihood is (point, kind): that of all steps of a kind. Where it is a function of
    sufficient statistics, these have it: (step, statistic) times a (statistic, point) basis.
    """

    steps: Array
    at: Callable[[Tensor, float], Tensor]
    kind: Array | None = None
    statistics: Tensor | None = None
    basis: Callable[[Tensor], Tensor] | None = None


@final
class Work:
    """The progress of a rating: the share of likelihoods, each of a step at a point of expertise, that are computed.

    `progress` is called with that share of the steps of the data, and with their number.
    """

    def __init__(self, progress: Callable[[int, int], object] | None, steps: int, likelihoods: int) -> None:
        self._progress, self._steps, self._all, self._done = progress, steps, max(1, likelihoods), 0
        self._add(0)

    def count(self, block: Block) -> Block:
        """The same block, whose likelihoods are counted when they are computed."""

        def at(points: Tensor, temperature: float) -> Tensor:
            found = block.at(points, temperature)
            self._add(len(points) * len(block.steps))
            return found

        return replace(block, at=at)

    def finish(self) -> None:
        """Report that nothing is left to do."""
        self._add(self._all)

    def _add(self, likelihoods: int) -> None:
        self._done += likelihoods
        if self._progress is not None:
            self._progress(min(self._steps, self._steps * self._done // self._all), self._steps)


class OwnerLikelihood(NamedTuple):
    """What the steps of some owners, demonstrators or units, say about the expertise of each."""

    curves: Array
    """(owner, point of GRID) log-likelihoods, divided by the dispersion."""
    integrated: Callable[[], MarginalCurves] | None = None
    """The curves with the expertise of each episode integrated out; None where episodes are not modelled."""

    def posterior(self, population: Population | None) -> tuple[Array, Population]:
        """(owner, point) posterior distributions, and the population, learned from these owners unless it is passed."""
        if self.integrated is None or (population is not None and population.episode_spread is None):
            return posterior(self.curves, population)
        return posterior_of_means(self.integrated(), population)


@final
@dataclass(frozen=True, eq=False)
class StepLikelihood:
    """log p(action | observation, rho) of every step of a data set, as a function of expertise rho.

    Policies are evaluated once for each step. From their outputs follows the likelihood of any owner of steps, such as
    a demonstrator, an episode, a segment or a state cluster, at any points of rho.
    """

    data: Demonstrations
    judge: Callable[[Array | None], Iterable[Block]]
    """From a mask (step,), or None for all steps, to their blocks."""
    temperature: float = 1.0
    dispersion: float = 1.0
    """By which log-likelihoods of demonstrators and units are divided."""
    assumed: Array | None = None
    """(step,) steps that follow the policy and are assumed for each step of gold demonstrators (`Known`)."""
    owner_curves: Callable[[Units | None], Callable[[Array], Array]] | None = None
    """From units, or None for demonstrators, to a function from some of these to their log-likelihoods on GRID.

    None where they are the sums over steps.
    """
    rated: Mapping[str, Any] = field(default_factory=dict)
    """What `RatedBy` says about these likelihoods, beside temperature and dispersion."""

    @property
    def horizon(self) -> int:
        """The number of steps over which actions are averaged."""
        return int(self.rated.get("horizon", 1))

    @cached_property
    def blocks(self) -> list[Block]:
        """All steps, in memory."""
        return list(self.judge(None))

    def select(self, chosen: Array) -> StepLikelihood:
        """The likelihood of the steps of a mask alone; `data` stay as they are."""
        return replace(self, judge=lambda _: self.judge(chosen))

    def counted(self, work: Work) -> StepLikelihood:
        """The same, which counts the likelihoods that are computed."""
        return replace(self, judge=lambda chosen: map(work.count, self.judge(chosen)))

    def tabulated(self, units: Units | None) -> StepLikelihood:
        """The same, interpolated, for sums over the steps of an episode that belong to one demonstrator or unit.

        The log-likelihood of each such group of steps is computed at some fifty points of log rho and interpolated by
        polynomials of the fifth degree: a thousand points then take as little time as fifty, and no memory.
        """
        owner = self.data.demonstrator if units is None else units.of_step
        group = np.unique(owner * self.data.episode_count + self.data.episode, return_inverse=True)[1]

        @torch.no_grad()
        def interpolated(block: Block) -> Block:
            _, first, inverse = np.unique(group[block.steps], return_index=True, return_inverse=True)
            found = block.at(torch.from_numpy(np.exp(_LOG_NODES)), self.temperature).double()
            summed = found.new_zeros(len(found), len(first)).index_add(1, torch.from_numpy(inverse), found)

            def at(points: Tensor, temperature: float) -> Tensor:
                assert temperature == self.temperature
                # a copy in torch's own memory: MKL rounds by the alignment of its operands
                weights = interpolation(_LOG_NODES, np.log(points.clamp_min(_LEAST).numpy()))
                return torch.tensor(weights.T) @ summed

            return Block(block.steps[first], at)

        return replace(self, judge=lambda chosen: map(interpolated, self.judge(chosen)))

    def summed(self, owner: Array, count: int, points: Array = GRID) -> Array:
        """(owner, point) log-likelihood of all steps of each of `count` owners, in nats; `owner` is (step,)."""
        return curves(self.blocks, owner, count, temperature=self.temperature, points=points)

    def dispersion_of(self, unit: Array, owner: Array) -> float:
        """The overdispersion of units such as episodes, (step,), about the estimates of their owners, (unit,)."""
        return dispersion_of(self.summed(unit, len(owner), COARSE_POINTS), owner)

    def calibrated(self, chosen: Array | None, temperature: float | None) -> tuple[StepLikelihood, list[Profile]]:
        """The same at the temperature of greatest likelihood, with the overdispersion there; and the profiles.

        Both are estimated by the steps of a mask, or by all, unless a `temperature` is passed.
        """
        data = self.data
        part = self if chosen is None else self.select(chosen)
        owner, present = _numbered(data.demonstrator, chosen)
        found = _profiles(part.blocks, owner, len(present))
        at = _likeliest_temperature(found) if temperature is None else temperature
        episode, episodes = _numbered(data.episode, chosen)
        by_episode = curves(part.blocks, episode, len(episodes), temperature=at, points=COARSE_POINTS)
        spread = dispersion_of(by_episode, data.episode_demonstrator[episodes])
        judge = self.judge if chosen is not None else lambda mask: self.blocks if mask is None else self.judge(mask)
        return replace(self, judge=judge, temperature=at, dispersion=spread), found

    def by_owner(self, units: Units | None) -> Callable[[Array | None], OwnerLikelihood]:
        """From the numbers of some demonstrators, or units, to the likelihood of each; None for all."""
        owner, count = self.data.demonstrator, len(self.data.names)
        if units is not None:
            owner, count = units.of_step, len(units.names)
        own = None if self.owner_curves is None else self.owner_curves(units)

        def of_some(chosen: Array | None) -> OwnerLikelihood:
            numbers = np.arange(count) if chosen is None else chosen
            place = np.full(count, -1)
            place[numbers] = np.arange(len(numbers))
            mask = None if chosen is None else place[owner] >= 0
            assumed = self._assumed_blocks(mask)
            if own is not None:
                return OwnerLikelihood(own(numbers) + curves(assumed, place[owner], len(numbers)))
            blocks = [*(self.blocks if mask is None else self.judge(mask)), *assumed]
            found = curves(blocks, place[owner], len(numbers), temperature=self.temperature)
            integrated = partial(self._integrated, blocks, found, place, mask) if units is None else None
            return OwnerLikelihood(found / self.dispersion, integrated)

        return of_some

    def _assumed_blocks(self, chosen: Array | None) -> list[Block]:
        """What is known of gold demonstrators beforehand: `assumed` log rho for each step of a mask, or of all."""
        if self.assumed is None:
            return []
        is_gold = self.assumed > 0
        steps = np.flatnonzero(is_gold if chosen is None else is_gold & chosen)
        follow = torch.from_numpy(self.assumed[steps])
        return [Block(steps, lambda points, _: follow * points.clamp(1e-12, 1 - 1e-12)[:, None].log())]

    def _integrated(self, blocks: Sequence[Block], found: Array, place: Array, mask: Array | None) -> MarginalCurves:
        episode, present = _numbered(self.data.episode, mask)
        points = points_for(len(present))
        by_episode = curves(blocks, episode, len(present), temperature=self.temperature, points=points)
        return MarginalCurves.of(found, by_episode, place[self.data.episode_demonstrator[present]])


def _numbered(labels: Array, chosen: Array | None) -> tuple[Array, Array]:
    """(step,) the number of each step's label among those that chosen steps have, or -1; and these labels."""
    present = np.unique(labels if chosen is None else labels[chosen])
    place = np.full(int(labels.max(initial=-1)) + 1, -1)
    place[present] = np.arange(len(present))
    return place[labels], present


# --- sums over steps


@torch.no_grad()
def curves(
    blocks: Iterable[Block], owner: Array, count: int, *, temperature: float = 1.0, points: Array = GRID
) -> Array:
    """(owner, point) log-likelihood of all steps of each of `count` owners, in nats; `owner` is (step,)."""
    summed = torch.zeros(count, len(points), dtype=torch.float64)
    for block in blocks:
        add_block(summed, block, owner, temperature, points)
    return summed.numpy()


def add_block(summed: Tensor, block: Block, owner: Array, temperature: float, points: Array) -> None:
    """Add the log-likelihood of the steps of a block to (owner, point) sums."""
    grid, index = torch.from_numpy(points), torch.tensor(owner[block.steps])
    if block.statistics is not None and block.basis is not None:
        own = block.statistics.new_zeros(len(summed), block.statistics.shape[1]).index_add(0, index, block.statistics)
        summed += own @ block.basis(grid)
        return
    counts = None if block.kind is None else _counts_of_kinds(index, torch.from_numpy(block.kind), len(summed))
    rows = 16 * len(block.steps) if counts is None else max(counts.shape)
    at_once = max(1, _NUMBERS_AT_ONCE // max(1, rows))
    for first in range(0, len(grid), at_once):
        part = slice(first, first + at_once)
        found = block.at(grid[part], temperature).double()
        if counts is None:
            summed[:, part].index_add_(0, index, found.T.contiguous())
        else:
            summed[:, part] += torch.sparse.mm(counts, found[:, : counts.shape[1]].T.contiguous())


def _counts_of_kinds(index: Tensor, kind: Tensor, owners: int) -> Tensor:
    """(owner, kind) numbers of steps, sparse."""
    kinds = int(kind.max()) + 1
    both, count = torch.unique(index * kinds + kind, return_counts=True)
    place = torch.stack([both // kinds, both % kinds])
    return torch.sparse_coo_tensor(place, count.double(), (owners, kinds), check_invariants=False)


# --- interpolation


def polynomial(nodes: Array, at: Array, size: int) -> tuple[Array, Array]:
    """The first of the `size` nodes around each point, and the (node, point) weights of the polynomial through them."""
    first = np.clip(np.searchsorted(nodes, at) - size // 2, 0, len(nodes) - size)
    near = [nodes[first + one] for one in range(size)]
    return first, np.stack(
        [np.prod([(at - other) / (own - other) for other in near if other is not own], axis=0) for own in near]
    )


def interpolation(nodes: Array, at: Array, size: int = 6) -> Array:
    """(node, point) weights of the polynomial through the `size` nodes around each point."""
    first, near = polynomial(nodes, at, size)
    weights = np.zeros((len(nodes), len(at)))
    for one in range(size):
        weights[first + one, np.arange(len(at))] = near[one]
    return weights


# --- temperature, overdispersion and identification


class Profile(NamedTuple):
    """The greatest log-likelihood of all demonstrators' steps at a temperature, in nats, and the mean expertise."""

    temperature: float
    log_likelihood: float
    expertise: float


def _profiles(blocks: Sequence[Block], owner: Array, count: int) -> list[Profile]:
    """The profile at each temperature of `_TEMPERATURES`; `owner` is (step,)."""
    found = []
    for temperature in _TEMPERATURES:
        by_owner = curves(blocks, owner, count, temperature=temperature, points=COARSE_POINTS)
        expertise = float(COARSE_POINTS[by_owner.argmax(1)].mean())
        found.append(Profile(temperature, float(by_owner.max(1).sum()), expertise))
    return found


def _likeliest_temperature(found: Sequence[Profile]) -> float:
    """The middle one of the temperatures, 1 or below, whose likelihood is within half a nat of the greatest.

    Where a temperature shares its scale with expertise, the data cannot choose. The first of them would put the best
    demonstrator at an expertise of 1, the end of its range, and so underrate that demonstrator.
    """
    top = max(profile.log_likelihood for profile in found[_BROADER:])
    likely = [profile for profile in found[_BROADER:] if profile.log_likelihood >= top - 0.5]
    return likely[len(likely) // 2].temperature


def likely_levels(found: Sequence[Profile]) -> tuple[float, float]:
    """The least and the greatest mean expertise over all temperatures that are likely: to 1.92 nats below the top.

    The likelihood is nearly the same along scale (rho, pi) and (c rho, 1/|A| + (pi - 1/|A|) / c), of which a change of
    temperature is an approximation.
    """
    top = max(profile.log_likelihood for profile in found)
    likely = [profile.expertise for profile in found if profile.log_likelihood >= top - 1.92]
    return min(likely), max(likely)


def dispersion_of(by_unit: Array, owner: Array) -> float:
    """The overdispersion of units, such as episodes, about the estimate of each one's owner; one or more.

    It is the variance over units of the score d log L / d t, divided by the information -d^2 log L / d t^2, with rho =
    sin^2 t at the owner's own estimate: the dispersion of a quasi-likelihood (Wedderburn, 1974). A likelihood to the
    power 1 / dispersion has intervals that allow for dependence between the steps of a unit. With few units, the
    estimate shrinks towards 1, as if by 20 more. `by_unit` is (unit, point) log-likelihoods at `COARSE_POINTS`.
    """
    width = np.pi / 2 / len(COARSE_POINTS)
    variance, information, freedom = 0.0, 0.0, 0
    counts = np.bincount(owner)
    by_owner = np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])
    for number in np.flatnonzero(counts > 1):
        own = by_unit[by_owner[number]]
        top = int(np.clip(own.sum(0).argmax(), 1, len(COARSE_POINTS) - 2))
        before, here, after = own[:, top - 1], own[:, top], own[:, top + 1]
        variance += len(own) * float(((after - before) / (2 * width)).var(ddof=1))
        information += float((2 * here - before - after).sum() / width**2)
        freedom += len(own) - 1
    if information <= 0:
        return 1.0
    return max(1.0, (freedom * variance / information + _PRIOR_EPISODES) / (freedom + _PRIOR_EPISODES))


def free_scales(embedding: Array, expertise: Array) -> int:
    """How many scales of expertise are free where rho_i(s) = sigma(<f(s), w_i>) and f, (state, dimension), is known.

    A policy that is less sharp by a factor C_s at each state is as likely if all expertise there is divided by C_s, as
    far as the w_i can follow: to first order in c = log C,

        <f(s), dw_i> = -c_s / (1 - rho_i(s))  for every demonstrator i and state s,

    with `expertise` (demonstrator, state) for rho. Returned is the dimension of the c for which there are such dw_i.
    Where it is zero, the sufficient condition of Beliaev et al., ICML 2022 (the lemma on a strictly proper loss), holds
    near the fit: no demonstrator's expertise can be changed for another policy. One number for each demonstrator
    (f = 1) leaves one scale, labels of k skills leave k.
    """
    kept, first = np.unique(embedding, axis=0, return_index=True)
    kept, first = kept[:300], first[:300]  # more embeddings only fix more
    rho = np.minimum(expertise[:, first], 1 - 1e-3)  # beyond which its logit is not told from that of 1
    basis, size, _ = np.linalg.svd(kept.astype(np.float64), full_matrices=False)
    basis = basis[:, size > 1e-9 * size.max(initial=1e-300)]
    outside = np.eye(len(kept)) - basis @ basis.T
    gram = sum((weight[:, None] * outside * weight for weight in 1 / (1 - rho)), np.zeros_like(outside))
    values = np.linalg.eigvalsh(gram)
    return int((values <= 1e-9 * max(values.max(), 1.0)).sum())
