"""Rating: how expert people are by a policy that is given, with intervals.

A fit learns policy and expertise together. Here the policy is given (`ileed.fitted.likelihood`), so that people whom no
fit has seen can be rated; `ileed.fitted.posterior` has the estimates. Cross-fitting rates the people of a fit in the
same way, each episode by a policy that has not seen it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ileed._torch import numpy_stream
from ileed.checking import instance_of, one_of, shown
from ileed.demonstrations import Array, Demonstrations, check_demonstrations
from ileed.deprecation import renamed_arguments
from ileed.errors import SettingsError
from ileed.fitted.ensemble import Fitted
from ileed.fitted.likelihood import Block, blocks_of_fit, blocks_of_policy, curves, dispersion
from ileed.fitted.newcomers import joint_with_newcomers
from ileed.fitted.posterior import Population, likeliest, mean_and_interval, peak, posterior, tails
from ileed.fitted.ratings import Estimates, RatedBy, Rating, Ratings, Units, checked_level
from ileed.model.demonstrators import AbstractDemonstratorModel, UniformMixture

__all__ = ["Estimates", "Population", "Rating", "Ratings", "rate"]

RESAMPLES = 2_000


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

    One number for each person, also where the expertise of a fit depends on the state.

    `policy` is a fit; or an object whose `distribution(observations, legal=)` returns a categorical distribution, as
    `Fitted.policy` has it; or the probability of every action at every step: an array (step, action), or a categorical
    distribution of as many rows. `demonstrator` is the model of how a person of given expertise acts: by default that
    of the fit, and `UniformMixture()` where there is no fit.

    `pooled` adds estimates that are shrunk towards the mean of the population, the more the fewer steps somebody has.
    Everybody rated here makes that population, unless one is passed: rate a newcomer with the `population` of earlier
    ratings, since one person alone says nothing of others. `Fitted.assess` does so.

    `interval` is that of the estimates in `alone`. "likelihood" takes every rho whose log-likelihood is within half a
    chi-square quantile of the greatest: right for any number of steps but the fewest, at the ends of the range too, if
    steps are independent given rho. "episodes" resamples whole episodes instead, which allows for dependence between
    the steps of an episode; it needs some twenty episodes a person, and is the whole range for a single one.
    """
    check_demonstrations(demonstrations)
    if not isinstance(pooled, bool):
        instance_of("pooled", pooled, Population, rule="pass True, False, or the `population` of earlier ratings")
    level = checked_level(confidence_level)
    one_of("interval", interval, ("likelihood", "episodes"))
    blocks = judged_steps(policy, demonstrations, demonstrator)
    return rate_blocks(blocks, demonstrations, pooled=pooled, level=level, by_episode=interval == "episodes")


def assess(
    fit: Fitted, demonstrations: Demonstrations, *, by: str = "demonstrator", confidence_level: float = 0.95
) -> Ratings:
    """People rated by a fit, as `Fitted.assess` says."""
    check_demonstrations(demonstrations)
    level, known = checked_level(confidence_level), fit.expertise.ratings
    blocks, units = judged_steps(fit, demonstrations), units_of(demonstrations, by)
    if known is None:
        return rate_blocks(blocks, demonstrations, level=level, units=units)
    # kinds of state and episodes differ more than people do, and so have a population of their own
    pooled = known.population if units is None and known.population is not None else True
    how = partial(rate_blocks, temperature=known.by.temperature, spread=known.by.dispersion)
    found = how(blocks, demonstrations, pooled=pooled, level=level, units=units)
    return replace(found, reference=float(known.best.expertise.mean()))


def units_of(data: Demonstrations, by: str) -> Units | None:
    """Each person's episodes, or their steps with each label of a column; None for people themselves."""
    if by == "demonstrator":
        return None
    if by == "episode":
        labels, number = [str(each + 1) for each in range(data.episode_count)], data.episode
    else:
        weights, names = data.skill(by)
        if not np.isin(weights, (0, 1)).all():
            raise SettingsError(f"the skill column {by!r} holds weights: rate by a column of labels, or by 'episode'")
        labels, number = list(names), weights.argmax(1)
    pairs, of_step = np.unique(data.demonstrator * len(labels) + number, return_inverse=True)
    people = tuple(data.names[pair // len(labels)] for pair in pairs)
    return Units({"demonstrator": people, by: tuple(labels[pair % len(labels)] for pair in pairs)}, of_step)


def rate_blocks(
    blocks: Sequence[Block],
    data: Demonstrations,
    *,
    pooled: bool | Population = True,
    level: float = 0.95,
    by_episode: bool = False,
    temperature: float = 1.0,
    spread: float | None = 1.0,
    units: Units | None = None,
) -> Ratings:
    """Ratings by steps whose likelihood is known; `spread` is their dispersion, None to estimate it.

    `units` are rated in place of people.
    """
    steps = data.steps_each
    if (steps == 0).any():
        nobody = data.names[int((steps == 0).argmax())]
        raise SettingsError(f"{nobody!r} has no step to be rated by: leave that name out with demonstrations.by(...)")
    names, owner = (data.names, data.demonstrator) if units is None else (units.names, units.of_step)
    people = len(names)
    if by_episode:
        each = curves(blocks, data.episode, data.episode_count, temperature=temperature)
        found = np.zeros((people, each.shape[1]))
        np.add.at(found, data.episode_demonstrator, each)
    else:
        found = curves(blocks, owner, people, temperature=temperature)
    if spread is None:
        spread = dispersion(blocks, data, temperature)
    alone = Estimates(*likeliest(found / spread, level))
    if by_episode:
        alone = _resampled(alone, each, data.episode_demonstrator, level)
    episodes = np.bincount(np.unique(np.stack([owner, data.episode]), axis=1)[0], minlength=people)
    by = RatedBy(level, temperature, spread)
    parts = {} if units is None else units.columns
    ratings = Ratings(names, np.bincount(owner, minlength=people), episodes, by, alone, parts=parts)
    if pooled is False:
        return ratings
    shares, population = posterior(found / spread, None if pooled is True else pooled)
    return replace(ratings, pooled=Estimates(*mean_and_interval(shares, level)), population=population, shares=shares)


def _resampled(alone: Estimates, by_episode: Array, who: Array, level: float) -> Estimates:
    """The same estimates with intervals from resampled episodes; from 0 to 1 for a single one."""
    low, high = np.zeros_like(alone.low), np.ones_like(alone.high)
    for person in range(len(low)):
        each = by_episode[who == person]
        if len(each) < 2:
            continue
        drawn = numpy_stream(0, "rating", len(each)).multinomial(
            len(each), np.full(len(each), 1 / len(each)), size=RESAMPLES
        )
        low[person], high[person] = np.quantile(peak(drawn.astype(np.float64) @ each), tails(level))
    return Estimates(alone.expertise, low, high)


def judged_steps(
    policy: Any, data: Demonstrations, demonstrator: AbstractDemonstratorModel[Any] | None = None
) -> list[Block]:
    """The steps in blocks, judged by a fit, by an object with `distribution`, or by a table of probabilities."""
    fit = policy if isinstance(policy, Fitted) else None
    model = demonstrator or (UniformMixture() if fit is None else fit.joint.parts.demonstrator)
    instance_of("demonstrator", model, AbstractDemonstratorModel, rule=_MODELS)
    if model.defines_expertise:
        raise SettingsError(f"{type(model).__name__} does not rate a person by one number: {_MODELS}")
    if fit is not None:
        _check_actions(fit, data)
        if demonstrator is None:
            return blocks_of_people(fit, data)
        policy = fit.policy
    if model.context or not model.discrete:
        raise SettingsError(
            f"{type(model).__name__} does not rate by one number with a policy that is no fit: {_MODELS}"
        )
    return blocks_of_policy(_log_policy(policy, data), model, data)


_MODELS = "pass UniformMixture(), OneVersusRest() or Boltzmann()"


def blocks_of_people(fit: Fitted, data: Demonstrations) -> list[Block]:
    """The steps of people, known to the fit or not, judged by its policy."""
    number = {name: number for number, name in enumerate(fit.expertise.names)}
    known = np.array([number.get(name, -1) for name in data.names])
    joint, who, skills = fit.joint, known.clip(min=0)[data.demonstrator], fit.expertise.skill_names
    if not (known >= 0).all() and fit.joint.demonstrator is not None:
        joint, who = joint_with_newcomers(joint, fit.normaliser, data, known, skills), data.demonstrator
    return list(blocks_of_fit(joint, fit.normaliser, data, who, skills))


def _check_actions(fit: Fitted, data: Demonstrations) -> None:
    """Refuse data whose actions are not those of a fit."""
    sizes = fit.joint.sizes
    if data.discrete != sizes.discrete:
        kinds = {True: "discrete", False: "continuous"}
        raise SettingsError(
            f"the policy's actions are {kinds[sizes.discrete]} and the data's are {kinds[data.discrete]}"
        )
    if sizes.has_legal_actions != (data.legal is not None):
        one, other = ("was", "do not say") if sizes.has_legal_actions else ("was not", "say")
        raise SettingsError(
            f"the policy {one} told which actions are legal and the demonstrations {other}: make both alike"
        )
    count = data.action_count if data.discrete else data.actions.shape[1]
    if count != sizes.actions:
        raise SettingsError(
            f"the policy chooses among {sizes.actions} actions and the data among {count}: "
            "pass action_count when building the Demonstrations"
        )


def _log_policy(policy: Any, data: Demonstrations) -> Callable[[slice], Tensor]:
    """From a block of steps to the policy's log-probabilities there, (step, action), in double precision."""
    if not data.discrete:
        raise SettingsError("a policy that is no fit rates discrete actions, and these are continuous: pass a fit")
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
