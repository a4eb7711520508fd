"""Likelihood of people's steps as a function of their expertise, by policies that are given.

The log-likelihood of one person's steps is a function of one number, rho, and is computed on a grid:

    log L_i(rho) = sum over the steps of person i of log p(action | observation, rho),

with p of a demonstrator model; rho pi(a) + (1 - rho) / |legal| under `UniformMixture`. A policy that was learned from
few steps is less sharp than the expert's, so pi may be replaced by pi^(1/T), renormalised, with a temperature T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ileed.demonstrations import Array, Demonstrations
from ileed.fitted.posterior import GRID
from ileed.fitted.steps import answers_at_steps
from ileed.model.ask import Answer, log_likelihood
from ileed.model.demonstrators import AbstractDemonstratorModel
from ileed.model.joint import Joint
from ileed.model.normaliser import Normaliser
from ileed.nets import members

TEMPERATURES = np.geomspace(1, 1 / 20, 13)
"""Candidates, from the policy as it was learned to nearly its most likely action alone."""
BROADER = (2.0, 1.4)
"""Less sharp policies, by which people would be the better."""
_COARSE = 41  # points of expertise at which temperatures are compared and episodes' variances estimated
_NUMBERS_AT_ONCE = 1 << 23
_PRIOR_EPISODES = 20  # how many episodes' worth it is believed beforehand that steps are independent


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
    """How far a rating is: of so many likelihoods, each of a step at a point of expertise, how many are computed.

    `progress` is called with the share of that in the steps of the data, and with these.
    """

    def __init__(self, progress: Callable[[int, int], object] | None, steps: int, likelihoods: int) -> None:
        self._progress, self._steps, self._all, self._done = progress, steps, max(1, likelihoods), 0
        self._tell()

    def over(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The same blocks, which count the likelihoods that are asked of them."""
        return (replace(block, at=partial(self._count, block)) for block in blocks)

    def _count(self, block: Block, points: Tensor, temperature: float) -> Tensor:
        found = block.at(points, temperature)
        self._done += len(points) * len(block.steps)
        self._tell()
        return found

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(min(self._steps, self._steps * self._done // self._all), self._steps)


def blocks_of_fit(
    joint: Joint, normaliser: Normaliser, data: Demonstrations, demonstrator: Array, skill_names: tuple[str, ...]
) -> Iterator[Block]:
    """The steps of a data set, judged by the members of a fit: by the mean over members of their likelihoods."""
    alone = [members(joint, [member]) for member in range(len(next(joint.parameters())))]
    answers = (answers_at_steps(each, normaliser, data, demonstrator, skill_names) for each in alone)
    for by_member in zip(*answers, strict=True):
        rows, inside, _ = by_member[0]
        yield Block(rows[inside], _mean_likelihood([answer for _, _, answer in by_member], inside))


@torch.no_grad()
def _mean_likelihood(answers: Sequence[Answer], inside: Array) -> Callable[[Tensor, float], Tensor]:
    policies = [answer.policy for answer in answers]
    apart = [own.disagreement([other for other in policies if other is not own]) for own in policies]

    def at(points: Tensor, temperature: float) -> Tensor:
        each = zip(answers, apart, strict=True)
        found = torch.stack([answer.log_likelihood_at(points, temperature, error) for answer, error in each])
        return (found[0] if len(found) == 1 else found.logsumexp(0) - np.log(len(found)))[:, torch.from_numpy(inside)]

    return at


def blocks_of_policy(
    log_probabilities: Callable[[slice], Tensor], model: AbstractDemonstratorModel[Any], data: Demonstrations
) -> list[Block]:
    """The steps of a data set with discrete actions, judged by log-probabilities (step, action) of every action."""
    return [
        Block(np.arange(first, min(first + 4096, len(data))), _by_probabilities(first, log_probabilities, model, data))
        for first in range(0, len(data), 4096)
    ]


def _by_probabilities(
    first: int,
    log_probabilities: Callable[[slice], Tensor],
    model: AbstractDemonstratorModel[Any],
    data: Demonstrations,
) -> Callable[[Tensor, float], Tensor]:
    block = slice(first, first + 4096)
    logits = log_probabilities(block)
    action = torch.tensor(data.actions[block])
    legal = None if data.legal is None else torch.tensor(data.legal[block])

    def at(points: Tensor, temperature: float) -> Tensor:
        policy = logits if temperature == 1 else (logits / temperature).log_softmax(-1)
        return log_likelihood(model, policy, points[:, None].expand(-1, len(action)), action, legal)

    return at


def blocks_of_assumed(assumed: Array | None, steps: Array) -> list[Block]:
    """What is known of gold demonstrators beforehand, as further blocks: follow log rho at each step.

    `assumed` (step,) has how many steps that follow the policy are assumed for each; None for none. `steps` are those
    to take.
    """
    if assumed is None:
        return []

    def block(part: Array) -> Block:
        follow = torch.from_numpy(assumed[part])

        def at(points: Tensor, _: float) -> Tensor:
            rho = points.clamp(1e-12, 1 - 1e-12)[:, None]
            return follow * rho.log()

        return Block(part, at)

    told = steps[assumed[steps] > 0]
    return [block(told[first : first + 4096]) for first in range(0, len(told), 4096)]


@torch.no_grad()
def curves(
    blocks: Iterable[Block], owner: Array, count: int, *, temperature: float = 1.0, points: Array = GRID
) -> Array:
    """(owner, point) log-likelihood of all steps of each of `count` owners, in nats; `owner` is (step,)."""
    grid = torch.from_numpy(points)
    summed = torch.zeros(count, len(grid), dtype=torch.float64)
    for block in blocks:
        at_once = max(1, _NUMBERS_AT_ONCE // max(1, len(block.steps)) // 16)
        index = torch.tensor(owner[block.steps])
        if block.statistics is not None and block.basis is not None:
            own = block.statistics.new_zeros(count, block.statistics.shape[1]).index_add(0, index, block.statistics)
            summed += own @ block.basis(grid)
            continue
        if block.kind is not None:
            _add_by_kind(summed, block, index, temperature, grid)
            continue
        for first in range(0, len(grid), at_once):
            part = slice(first, first + at_once)
            found = block.at(grid[part], temperature).double()
            summed[:, part] = summed[:, part].index_add(0, index, found.T.contiguous())
    return summed.numpy()


def _add_by_kind(summed: Tensor, block: Block, index: Tensor, temperature: float, grid: Tensor) -> None:
    """Add the log-likelihood of a block whose steps are of few kinds: a product with counts of (owner, kind)."""
    assert block.kind is not None
    kinds = int(block.kind.max()) + 1
    both, count = torch.unique(index * kinds + torch.from_numpy(block.kind), return_counts=True)
    shape = (len(summed), kinds)
    counts = torch.sparse_coo_tensor(
        torch.stack([both // kinds, both % kinds]), count.double(), shape, check_invariants=False
    )
    at_once = max(1, _NUMBERS_AT_ONCE // max(kinds, len(summed)))
    for first in range(0, len(grid), at_once):
        part = slice(first, first + at_once)
        found = block.at(grid[part], temperature).double()
        summed[:, part] += torch.sparse.mm(counts, found[:, :kinds].T.contiguous())


@torch.no_grad()
def tabulated(block: Block, group: Array, temperature: float) -> Block:
    """The same block at one temperature, with a log-likelihood for each group of steps in place of each step.

    `group` (step,) are its numbers. The log-likelihood is computed at some fifty points of log rho and interpolated by
    polynomials of the fifth degree, so that it takes as little time at a thousand points as at fifty, and no memory.
    """
    _, first, inverse = np.unique(group[block.steps], return_index=True, return_inverse=True)
    found = block.at(torch.from_numpy(np.exp(_LOG_NODES)), temperature).double()
    summed = found.new_zeros(len(found), len(first)).index_add(1, torch.from_numpy(inverse), found)

    def at(points: Tensor, asked: float) -> Tensor:
        assert asked == temperature
        # a copy in torch's own memory: MKL rounds by the alignment of its operands
        return torch.tensor(_polynomial_weights(_LOG_NODES, np.log(points.clamp_min(_LEAST).numpy()))) @ summed

    return Block(block.steps[first], at)


_LEAST = 1e-6  # below which `VarianceScaling` has no expertise
_LOG_NODES = np.concatenate([np.linspace(np.log(_LEAST), -7, 18)[:-1], np.linspace(-7, 0, 36)])


def _polynomial_weights(nodes: Array, at: Array, size: int = 6) -> Array:
    """(point, node) weights of the polynomial through the nodes around each point, `size` of them."""
    first = np.clip(np.searchsorted(nodes, at) - size // 2, 0, len(nodes) - size)
    weights = np.zeros((len(at), len(nodes)))
    for one in range(size):
        others = [other for other in range(size) if other != one]
        parts = [(at - nodes[first + other]) / (nodes[first + one] - nodes[first + other]) for other in others]
        weights[np.arange(len(at)), first + one] = np.prod(parts, axis=0)
    return weights


TABULATED_POINTS = len(_LOG_NODES)
_COARSE_ANGLES = (np.arange(_COARSE) + 0.5) * (np.pi / 2 / _COARSE)
COARSE_POINTS = np.sin(_COARSE_ANGLES) ** 2
PROFILE_POINTS = (len(BROADER) + len(TEMPERATURES)) * _COARSE
"""At how many points all profiles ask each step for its likelihood."""


class Profile(NamedTuple):
    """The greatest log-likelihood of everybody's steps at a temperature, in nats, and the mean expertise there."""

    temperature: float
    log_likelihood: float
    expertise: float


def profiles(blocks: Sequence[Block], owner: Array, people: int) -> list[Profile]:
    """The profile at each temperature of `TEMPERATURES`, and before them at less sharp ones; `owner` is (step,)."""
    found = []
    for temperature in map(float, (*BROADER, *TEMPERATURES)):
        by_person = curves(blocks, owner, people, temperature=temperature, points=COARSE_POINTS)
        expertise = float(COARSE_POINTS[by_person.argmax(1)].mean())
        found.append(Profile(temperature, float(by_person.max(1).sum()), expertise))
    return found


def likeliest_temperature(found: Sequence[Profile]) -> float:
    """The middle one of the temperatures, 1 or below, whose likelihood is within half a nat of the greatest.

    Where a temperature shares its scale with expertise, the data cannot choose. The first of them would put the best
    person at an expertise of 1, the end of its range, and so underrate that person.
    """
    top = max(profile.log_likelihood for profile in found[len(BROADER) :])
    likely = [profile for profile in found[len(BROADER) :] if profile.log_likelihood >= top - 0.5]
    return likely[len(likely) // 2].temperature


def likely_levels(found: Sequence[Profile]) -> tuple[float, float]:
    """The least and the greatest mean expertise over all temperatures that are likely: to 1.92 nats below the top.

    The likelihood is nearly the same along scale (rho, pi) and (c rho, 1/|A| + (pi - 1/|A|) / c), of which a change of
    temperature is an approximation.
    """
    top = max(profile.log_likelihood for profile in found)
    likely = [profile.expertise for profile in found if profile.log_likelihood >= top - 1.92]
    return min(likely), max(likely)


def dispersion(blocks: Sequence[Block], data: Demonstrations, temperature: float) -> float:
    """How much more episodes of one person differ than independent steps would, one or more.

    The variance over episodes of the score d log L / d t, by the information -d^2 log L / d t^2, with rho = sin^2 t at
    the person's own estimate, over all people: the dispersion of a quasi-likelihood (Wedderburn, 1974). A likelihood to
    the power 1 / dispersion has intervals that allow for steps of an episode that go together. Few episodes say little
    of it: the estimate is drawn towards 1 as if by 20 more.
    """
    by_episode = curves(blocks, data.episode, data.episode_count, temperature=temperature, points=COARSE_POINTS)
    return dispersion_of(by_episode, data.episode_demonstrator)


def dispersion_of(by_unit: Array, owner: Array) -> float:
    """The dispersion of units, such as episodes, about the estimate of each one's owner; one or more.

    `by_unit` is (unit, point) log-likelihoods at `COARSE_POINTS`.
    """
    width = np.pi / 2 / _COARSE
    variance, information, freedom = 0.0, 0.0, 0
    counts = np.bincount(owner)
    by_owner = np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])
    for number in np.flatnonzero(counts > 1):
        own = by_unit[by_owner[number]]
        top = int(np.clip(own.sum(0).argmax(), 1, _COARSE - 2))
        before, here, after = own[:, top - 1], own[:, top], own[:, top + 1]
        variance += len(own) * float(((after - before) / (2 * width)).var(ddof=1))
        information += float((2 * here - before - after).sum() / width**2)
        freedom += len(own) - 1
    if information <= 0:
        return 1.0
    return max(1.0, (freedom * variance / information + _PRIOR_EPISODES) / (freedom + _PRIOR_EPISODES))
