"""Methods and what they return: settings with `.fit(demonstrations, seed=...)`, and the `Fitted` value."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ileed import fitting, runs
from ileed._torch import available_memory, default_modes, resolve_device, stream, threads
from ileed.data import Array, Demonstrations, check_demonstrations
from ileed.data.collapsing import held_in_memory
from ileed.data.findings import first_copies, lost_values, suspicions
from ileed.errors import (
    IleedWarning,
    SettingsError,
    brief,
    callable_or_none,
    instance_of,
    list_of,
    number,
    path_of,
    seed_of,
    text,
    true_or_false,
    whole_number,
)
from ileed.fitting.blocks import Start, optimise_blocks, optimise_both, optimise_each
from ileed.fitting.preparing import check_memory, least_memory, sizes_of
from ileed.fitting.stages import Stages
from ileed.methods.crossfit import RESTARTS as FOLD_RESTARTS
from ileed.methods.crossfit import FoldPolicies, SignalFolds
from ileed.methods.expertise import Expertise, ExpertiseSummary
from ileed.methods.fitted import Ensemble, Fitted, Restarts, Spread, rate
from ileed.methods.policy import Policy
from ileed.methods.saving import fields_at
from ileed.model.demonstrators import AbstractDemonstratorModel, UniformMixture, VarianceScaling
from ileed.model.expertise import AbstractExpertise, Constant, Embedded, LatentDynamics, Perfect
from ileed.model.joint import Joint, Parts
from ileed.model.knowledge import Known
from ileed.model.modules import Factory, as_head
from ileed.model.policies import AbstractPolicyHead, CategoricalMLP, MixtureLSTM, MixtureMLP
from ileed.model.scaling import SignalScaling
from ileed.parallel.processes import ALONE, Processes
from ileed.rating.outcome_evidence import combine_evidence
from ileed.rating.outcomes import EpisodeOutcomes, Outcome
from ileed.rating.ratings import Ratings
from ileed.rating.signal import Rater, actions_ahead
from ileed.selection import Candidate, Folds, ModelComparison, candidates, to_try, tried_by_workers
from ileed.selection.candidates import CONTINUOUS_LADDER, LADDER
from ileed.selection.comparison import Tried

__all__ = [
    "Ensemble",
    "Expertise",
    "ExpertiseSummary",
    "Fitted",
    "Ileed",
    "Policy",
    "Restarts",
    "Spread",
    "bc",
    "bc_rnn",
    "compare",
    "load",
    "rate",
]

_PARTS: dict[str, tuple[Any, str]] = {
    "policy": (
        AbstractPolicyHead | None,
        "CategoricalMLP(...), MixtureMLP(...) or MixtureLSTM(...), a torch.nn.Module or what makes one, or None",
    ),
    "demonstrator": (
        AbstractDemonstratorModel | None,
        'UniformMixture(), BiasedMixture(), SignalScaling() or the like, "auto", or None for the usual one',
    ),
    "expertise": (
        AbstractExpertise | None,
        "Embedded(), Constant(), Skills(column), Drift() or the like, Perfect(), or None for the usual one",
    ),
    "dynamics": (LatentDynamics | None, "LatentDynamics(), or None"),
}
AUTO = "auto"
Rated = tuple[Ratings, Rater | None]
_WARNED_OF = 3  # findings that a warning states
_PEAK_OF_TWO = 8  # peak memory of two optimisations, in units of the least that one takes: activations and gradients
_FLOOR = 0.05  # of the default policy: controls that rest at the end of their range would be spikes of the density
_CONTINUOUS_RESTARTS, _CONTINUOUS_PASSES, _CONTINUOUS_RATE, _CONTINUOUS_BATCH = 2, 200, 2e-3, 512
"""Of the policy that acts; docs/decisions/real-operators.md says why."""
RESTARTS = 20
"""How many restarts a fit has, unless it is told or actions are continuous: the paper's."""
FOLDS = 5
"""How many folds episodes are dealt into, unless a fit is told."""
RATER_HIDDEN, RATER_BATCH = (64, 64), 256
"""Of the policies that rate continuous actions, unless a policy or a batch size is given."""


@final
@dataclass(frozen=True)
class _Usual:
    """What stands for None in settings, by the kind of actions."""

    policy: AbstractPolicyHead
    expertise: AbstractExpertise
    demonstrator: AbstractDemonstratorModel[Any]
    of_experts: AbstractDemonstratorModel[Any]
    """The demonstrator model where expertise is not estimated: one without parameters."""
    ladder: Sequence[tuple[int, ...]]
    """The widths of policies that held-out episodes choose from."""
    acts_apart: bool
    """Whether the policy that acts is trained in its own way, and policies of another width rate."""


_MIXTURE = MixtureMLP(modes=1, standard_deviation_floor=_FLOOR)
_DISCRETE = _Usual(CategoricalMLP(), Embedded(), UniformMixture(), UniformMixture(), LADDER, False)
_CONTINUOUS = _Usual(_MIXTURE, Constant(), SignalScaling(), VarianceScaling(), CONTINUOUS_LADDER, True)


def _usual(data: Demonstrations) -> _Usual:
    return _DISCRETE if data.discrete else _CONTINUOUS


@final
@dataclass(frozen=True, kw_only=True)
class Ileed:
    """Imitation learning by estimating expertise of demonstrators: one policy and everybody's expertise, jointly.

    `restarts` independent fits run side by side, and the `ensemble` likeliest of them are kept. Where restarts, steps,
    learning rate, decay and batch size are None, the policy that acts has those of its kind of actions; recurrent
    policies, data of very many people, and policies that are compared or that rate have those of discrete actions.
    """

    policy: AbstractPolicyHead | nn.Module | Factory | None = None
    """The policy's network; None follows the kind of actions, and `fit` chooses its width by held-out episodes. A class
    or function that makes a `torch.nn.Module`, or a module, is a policy of your own (`ileed.model.modules`)."""
    demonstrator: AbstractDemonstratorModel[Any] | Literal["auto"] | None = None
    """How a demonstrator of given expertise acts; None is UniformMixture or SignalScaling, by the kind of actions.
    "auto" takes the simplest of `ileed.selection.CANDIDATES` within one standard error of the best on held-out
    episodes."""
    expertise: AbstractExpertise | None = None
    """What expertise depends on; None is Embedded where actions are discrete and Constant where they are continuous.
    Perfect makes this behaviour cloning."""
    dynamics: LatentDynamics | None = None
    """An auxiliary cost that shapes the embedding of states."""
    restarts: int | None = None
    """Independent fits, from different initial values; None is 20, or 2 where actions are continuous."""
    steps: int | None = None
    """Optimisation steps of each; None is 2,000, or 200 epochs where actions are continuous, but between 2,000 and
    8,000 steps."""
    ensemble: int = 1
    """How many of the likeliest restarts are kept; `Fitted` says how they are averaged. 1 is the paper's choice."""
    learning_rate: float | None = None
    """Of the networks; None is 0.001, or 0.002 where actions are continuous."""
    decay: bool | None = None
    """Whether learning rates fall to zero along half a cosine; None does so where actions are continuous and
    `learning_rate` is None. The own numbers of very many demonstrators keep their rate."""
    skill_learning_rate: float = 1e-2
    """Of each demonstrator's own numbers, w."""
    batch_size: int | None = None
    """Steps drawn for each gradient; None takes all where observations repeat, 256 where they do not, and 512 where
    actions are continuous.

    A recurrent policy learns from windows: so many of them, 100 where this is None."""
    clip: float | None = None
    """Bound on each restart's own gradient norm."""
    held_out: float = 0.0
    """Share of everybody's episodes to choose by; 0 chooses by the likelihood of all the data, as the paper does."""
    member_block: int | None = None
    """How many restarts are computed at a time, here or in one of several processes; None computes all at once."""
    folds: int | None = None
    """Into how many folds episodes are dealt, to rate everybody by policies that have not seen their episodes: what
    `Fitted.expertise.table()` shows. None is 5, but 0, for none, where a policy is recurrent: its fit takes long. Of a
    folder, episodes of everybody that memory holds are dealt."""
    temperature: float | None = None
    """Of the policies that rate people, 1 for as they were learned; None estimates it from the folds."""
    normalise: bool | None = None
    """Whether inputs are standardised; None standardises all but integer columns of small codes, from -16 to 16. A
    module of your own sees observations in their own units unless this is True."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", as_head(self.policy))
        for name, (kind, choices) in _PARTS.items():
            value = getattr(self, name)
            if name == "demonstrator" and isinstance(value, str) and value == AUTO:
                continue
            instance_of(name, value, kind, rule=f"pass {choices}")
        rule = "a fit needs a whole number of them, one or more, or None to choose by the data"
        restarts = whole_number("restarts", self.usual_restarts, least=1, rule=rule)
        rule = f"it takes between one and all {restarts} of the restarts"
        ensemble = whole_number("ensemble", self.ensemble, least=1, rule=rule)
        if ensemble > restarts:
            raise SettingsError(f"ensemble is {ensemble}: {rule}")
        normalise = true_or_false("normalise", self.normalise, or_none=True)
        checked = {name: value for name, value in vars(self.optimiser).items() if getattr(self, name) is not None}
        checked |= {"ensemble": ensemble, "normalise": normalise}
        if self.restarts is not None:
            checked["restarts"] = restarts
        if self.folds is not None:
            rule = "pass two or more, or 0 for no cross-fitting"
            checked["folds"] = whole_number("folds", self.folds, least=0, rule=rule)
        if self.temperature is not None:
            rule = "pass a number above zero, or None to estimate it"
            checked["temperature"] = number("temperature", self.temperature, above=0, rule=rule)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def optimiser(self) -> fitting.OptimiserSettings:
        """The part of the settings that says how to optimise; None is what it is for discrete actions."""
        given = {item.name: getattr(self, item.name) for item in fields(fitting.OptimiserSettings)}
        return fitting.OptimiserSettings(**{name: value for name, value in given.items() if value is not None})

    @property
    def usual_restarts(self) -> int:
        """The number of restarts; None is what it is for discrete actions."""
        return RESTARTS if self.restarts is None else self.restarts

    def for_data(self, data: Demonstrations) -> Ileed:
        """The settings of the policy that acts, with what was left to the kind of actions filled in."""
        if not _usual(data).acts_apart or data.has_many_people or self._head(data).length > 1:
            return replace(self, restarts=self.usual_restarts)
        steps = min(max(_CONTINUOUS_PASSES * len(data) // _CONTINUOUS_BATCH, 2_000), 8_000)
        usual: dict[str, Any] = {
            "restarts": max(_CONTINUOUS_RESTARTS, self.ensemble),
            "steps": steps,
            "learning_rate": _CONTINUOUS_RATE,
            "decay": self.learning_rate is None,
            "batch_size": _CONTINUOUS_BATCH,
        }
        return replace(self, **{name: value for name, value in usual.items() if getattr(self, name) is None})

    def parts(self, data: Demonstrations) -> Parts:
        """The model's parts, with what was left to the data filled in."""
        policy, usual = self._head(data), _usual(data)
        expertise = self.expertise or (Embedded() if self.dynamics else usual.expertise)
        chosen = self.model or (usual.demonstrator if expertise.estimates_expertise else usual.of_experts)
        return Parts(policy, chosen.for_data(data), expertise.for_data(data), self.dynamics)

    @property
    def model(self) -> AbstractDemonstratorModel[Any] | None:
        """The demonstrator model that is asked for; None where the data choose it."""
        return None if isinstance(self.demonstrator, str) else self.demonstrator

    def _head(self, data: Demonstrations) -> AbstractPolicyHead:
        head: Any = _usual(data).policy if self.policy is None else self.policy
        return head.for_data(data)

    @default_modes()
    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        weights: npt.ArrayLike | None = None,
        check_width: bool | None = None,
        progress: fitting.ProgressCallback | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 5.0,
        gold: Sequence[str] | Mapping[str, float] | Known | None = None,
        outcome: Outcome | None = None,
        better: Literal["higher", "lower"] | None = None,
        executor: Executor | None = None,
        processes: Processes = ALONE,
    ) -> Fitted:
        """Fit to the data; the same seed on the same machine gives the same bits, for any number of threads.

        `weights` counts each episode that many times: (episode,), or (restart, episode) to give each restart its own.
        Restarts with different weights, as in a bootstrap, are not compared: all are kept and averaged, whatever
        `ensemble` says.
        `check_width` compares policies of several widths by the likelihood of held-out episodes before the fit, and
        `Fitted.width` says what came out. None does so where `policy` is None, and takes the width that the comparison
        chooses; with a policy of your own, True tells whether a wider one would do better. With False and no policy
        the network is the paper's.
        `progress` is called with a `Progress` now and then. `checkpoint` names a file that is written every few seconds
        and from which an interrupted fit, called again with the same arguments, goes on. It is written at the end too,
        and stays until the fit is saved: `Fitted.save` removes it. A path that cannot be written is an error; a write
        that fails later, on a full disk, is a warning.
        `gold` names people who are taken to be expert, softly; `Known` says how softly, and what else can be known.
        `outcome` says how episodes went: one number or truth value for each, NaN or None where it is not known; a
        mapping from `Demonstrations.episode_keys`; "success" (any reward above zero), "reward" (their sum), "duration"
        (seconds, or steps without `fps`); or a skill column that is constant within episodes. `better` says whether
        "higher" (the usual) or "lower" outcomes are better, and is required for "duration". Ratings then combine
        actions and outcomes, `Fitted.evidence` has what each says alone, and the policy learns most from episodes of
        good outcome (`ileed.rating.outcome_model`).
        An `executor` (`ileed.parallel.executor("ray")`, in a `with` statement) computes blocks of `member_block`
        restarts, replicates or fold policies; `processes` are those of `ileed.parallel.runtime.several_processes()`,
        which share them. Both leave the result as it is.
        """
        check_demonstrations(demonstrations)
        _check_calls(progress, executor)
        checkpoint = _checked_checkpoint(checkpoint, checkpoint_seconds)
        seed, chosen = seed_of(seed), resolve_device(device)
        weighed: Array | None = None
        if weights is not None:
            weighed = fitting.checked_weights(weights, demonstrations, self.for_data(demonstrations).usual_restarts)
        outcomes = self._outcomes(outcome, better, demonstrations, weighed)
        known = Known.told(gold, demonstrations)
        stages = Stages(seed, chosen, progress, checkpoint, checkpoint_seconds, known, executor, processes=processes)
        if checkpoint is not None and processes.leads:
            runs.check_writable(checkpoint)  # an error now, rather than a warning later
        compares = self.policy is None if check_width is None else true_or_false("check_width", check_width)
        return self._fit(demonstrations, weighed, stages, check_width=compares, outcomes=outcomes)

    def _outcomes(
        self, outcome: Outcome | None, better: str | None, data: Demonstrations, weights: Array | None
    ) -> EpisodeOutcomes | None:
        """Outcomes of the episodes that have a weight, after a check that demonstrators can be rated beside them."""
        if outcome is None:
            if better is not None:
                raise SettingsError(f"better is {brief(better)} and there is no outcome: pass outcome= too")
            return None
        found = EpisodeOutcomes.of(outcome, better, data)
        if weights is None:
            return found
        if weights.ndim > 1:
            raise SettingsError("outcome and weights of each restart were passed: pass one weight for each episode")
        return EpisodeOutcomes.of(found.among(weights > 0).values, found.better, data, name=found.name)

    @threads(1)
    def _fit(
        self,
        data: Demonstrations,
        weights: Array | None,
        stages: Stages,
        *,
        check_width: bool,
        outcomes: EpisodeOutcomes | None,
    ) -> Fitted:
        """Select settings by held-out episodes, rate by policies of folds, fit, and put the results together."""
        self.for_data(data)._check_memory(data, stages.device)
        rates_alone = _usual(data).acts_apart and self.demonstrator != AUTO and outcomes is None  # at any width
        select = partial(self._select, data, weights, check_width=check_width)
        method, compared = (self, dict[str, Any]()) if rates_alone else select(stages)

        def fit(own: Stages, weights: Array | None = weights) -> tuple[Ensemble, dict[str, Any]]:
            selected, found = select(own) if rates_alone else (method, compared)
            return selected.for_data(data).fit_members(data, weights, own), found

        evidence = None
        if outcomes is None:
            (ensemble, compared), rated = method._both(data, stages, fit, partial(method._rate, data, weights))
        else:
            rated = method._rate(data, weights, stages)
            if rated is None:
                raise SettingsError(
                    "outcome is combined with ratings by cross-fitting, and this fit has none: they need folds=2 or "
                    "more, two episodes, steps of every demonstrator, and a model that estimates expertise"
                )
            combined = combine_evidence(rated[0], outcomes, data.episode_demonstrator)
            evidence = combined.evidence
            ensemble, _ = fit(stages, combined.weights if weights is None else combined.weights * weights)
        ensemble = replace(ensemble, method=self)
        fitted = (ensemble.top(self.ensemble) if ensemble.comparable else ensemble).fitted()
        if rated is not None:
            ratings, rater = rated
            fitted = fitted.with_ratings(ratings, rater) if evidence is None else fitted.with_evidence(evidence, rater)
        _warn(fitted, data)
        return replace(fitted, **compared, checkpoints=tuple(stages.checkpoints))

    def _select(
        self, data: Demonstrations, weights: Array | None, stages: Stages, *, check_width: bool
    ) -> tuple[Ileed, dict[str, Any]]:
        """The method with what was left to held-out episodes, and the comparisons by the names that `Fitted` has."""
        method, width, comparison = self, None, None
        if check_width:
            width = self._compare_widths(data, weights, stages)
        if width is not None and self.policy is None:
            method = replace(self, **width.settings[width.chosen])
        if self.demonstrator == AUTO:
            comparison = method.compare_models(data, stages, None, weights)
            method = replace(method, **comparison.settings[comparison.chosen])
        return method, {"width": width, "comparison": comparison}

    def _both(
        self,
        data: Demonstrations,
        stages: Stages,
        fit: Callable[[Stages], tuple[Ensemble, dict[str, Any]]],
        rate: Callable[[Stages], Rated | None],
    ) -> tuple[tuple[Ensemble, dict[str, Any]], Rated | None]:
        """What both return; they run at the same time if threads and memory suffice."""
        alone = stages.processes.count == 1  # several speak to each other in one order
        if stages.threads > 1 and alone and stages.device.type == "cpu":
            available = available_memory(stages.device)
            if available is None or _PEAK_OF_TWO * self.for_data(data)._least_memory(data) <= available:
                return optimise_both(
                    lambda progress: fit(replace(stages, progress=progress)),
                    lambda progress: rate(replace(stages, progress=progress)),
                    stages.progress,
                )
        return fit(stages), rate(stages)

    def _least_memory(self, data: Demonstrations) -> float:
        return least_memory(data, self.parts(data), self.optimiser, self.usual_restarts)

    def _check_memory(self, data: Demonstrations, device: torch.device) -> None:
        """Refuse parts that do not go together, and a fit that the device's memory does not hold."""
        check_memory(self._least_memory(data), self.usual_restarts, device)

    def _rate(self, data: Demonstrations, weights: Array | None, stages: Stages) -> Rated | None:
        """Ratings by cross-fitting, and what rated; None where that cannot be, or is not asked."""
        found = self.fit_folds(data, weights, stages)
        ratings = found and found.rate(temperature=self.temperature, progress=stages.counter("rating"))
        return None if found is None or ratings is None else (ratings, found.rater)

    def fit_members(self, data: Demonstrations, weights: Array | None, stages: Stages) -> Ensemble:
        """Every restart, fitted and with its checkpoint."""
        start = self._start(data, stages.seed, stages.device, weights)
        if stages.known is not None:
            start = start.with_knowledge(stages.known, stages.device)
        files = stages.checkpoints_of(self, data, weights)
        together: dict[str, Any] = {"executor": stages.executor, "processes": stages.processes}
        result = optimise_blocks(start, self.optimiser, stages.device, files, stages.progress, **together)
        found = _ensemble(self, start.prepared, result, stages.device, time.monotonic() - stages.began)
        known = {} if stages.known is None else {"known": stages.known.provenance(data)}
        return replace(found, provenance={**found.provenance, **known})

    def _compare_widths(self, data: Demonstrations, weights: Array | None, stages: Stages) -> ModelComparison | None:
        """Policies of several widths on held-out episodes; None where no episode of any weight can be held out."""
        head = self._head(data)
        if not head.compares_widths:
            raise SettingsError(f"widths are not compared for {type(head).__name__}: pass check_width=False, or None")
        members = min(candidates.WIDTH_RESTARTS, self.usual_restarts)
        folds = Folds.of(data, seed=stages.seed, members=members, weights=weights)
        ladder = _usual(data).ladder
        tried = candidates.widths(head, ladder if self.policy is None else candidates.wider_than(head.hidden))
        return self._compare(folds, tried, stages, name="width") if folds.is_complete else None

    def compare_models(
        self,
        data: Demonstrations,
        stages: Stages,
        models: Sequence[AbstractDemonstratorModel[Any]] | None,
        weights: Array | None = None,
    ) -> ModelComparison:
        """What `ileed.compare` does, with stages that report progress and write checkpoints."""
        models = candidates.applicable(models, sizes_of(data, replace(self, demonstrator=None).parts(data)))
        tried = candidates.demonstrator_models(models)
        members, count = candidates.MODEL_RESTARTS, candidates.MODEL_FOLDS
        folds = Folds.of(data, seed=stages.seed, members=members, count=count, weights=weights)
        if not folds.is_complete:
            raise SettingsError("models are compared by held-out episodes, and there is one step alone: add episodes")
        for each in tried:
            self._with(each, folds)._check_memory(folds.data, stages.device)
        executor = None if stages.checkpoint is not None else stages.executor  # workers would report no checkpoint
        if executor is not None:
            return ModelComparison.of(folds, tried, tried_by_workers(folds, tried, self._try, stages, executor))
        return self._compare(folds, tried, stages, name="model")

    def _compare(self, folds: Folds, every: Sequence[Candidate], stages: Stages, *, name: str) -> ModelComparison:
        """The candidates, fitted one after the other to the same folds and compared by the episodes left out."""
        tried: list[Tried] = []
        for candidate, stage in to_try(folds, every, tried, stages, name=name):
            tried.append(self._try(candidate, folds, stage))
        return ModelComparison.of(folds, every, tried)

    @threads(1)
    def _try(self, candidate: Candidate, folds: Folds, stages: Stages) -> Tried:
        """Costs of held-out episodes by a candidate and, of a demonstrator model, demonstrators' expertise by it."""
        found = self._with(candidate, folds).fit_members(folds.data, folds.weights, stages)
        nats = folds.held_out_nats(found)
        if "demonstrator" not in candidate.settings or found.joint.parts.demonstrator.defines_expertise:
            return nats, ()
        rated = FoldPolicies(found, folds.fold).rate(temperature=None, progress=stages.counter("rating"))
        return nats, () if rated is None else tuple(rated.best.expertise.tolist())

    def _with(self, candidate: Candidate, folds: Folds) -> Ileed:
        return replace(self, **candidate.settings, restarts=folds.members * folds.count, ensemble=1)

    @default_modes()
    @threads(1)
    def cross_fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        by: str = "demonstrator",
        device: str = "auto",
        progress: fitting.ProgressCallback | None = None,
        gold: Sequence[str] | Mapping[str, float] | Known | None = None,
    ) -> Ratings:
        """Everybody, or with `by` each episode or kind of state as in `Fitted.assess`, rated by cross-fitting alone.

        Each episode is rated by policies that have not seen it, which `Fitted.assess` cannot do for the data that a fit
        learned from. `fit` does the same for people. Where `policy` is None, the network is the paper's.
        """
        check_demonstrations(demonstrations)
        text("by", by)
        _check_calls(progress)
        stages = Stages(seed_of(seed), resolve_device(device), progress, known=Known.told(gold, demonstrations))
        folds = replace(self, folds=self.folds or FOLDS).fit_folds(demonstrations, None, stages)
        found = folds and folds.rate(temperature=self.temperature, by=by, progress=stages.counter("rating"))
        if found is None:
            raise SettingsError("cross-fitting needs two episodes, and a model under which expertise is one number")
        return found

    def fit_folds(
        self, data: Demonstrations, weights: Array | None, stages: Stages
    ) -> FoldPolicies | SignalFolds | None:
        """Policies of each fold, which have not seen its episodes; None where that cannot be, or is not asked."""
        data, weights = (data, weights) if self.folds == 0 else held_in_memory(data, weights)
        parts = self.parts(data)
        horizons = parts.demonstrator.horizons(data) if _usual(data).acts_apart else ()
        is_rated = parts.policy.length == 1 or (horizons and not data.has_many_people)  # a rater of many takes GBs
        usual = FOLDS if is_rated else 0
        count = min(usual if self.folds is None else self.folds, data.episode_count)
        by_episode = np.ones(data.episode_count) if weights is None else weights
        rates = parts.expertise.estimates_expertise and not parts.demonstrator.defines_expertise
        if count < 2 or by_episode.ndim > 1 or not rates or (data.steps_each == 0).any():
            return None
        members = min(FOLD_RESTARTS, self.usual_restarts)
        folds = Folds.deal(data, count, seed=stages.seed, weight=by_episode, members=members)
        if not folds.is_complete:
            return None
        fold, each = folds.fold, folds.weights
        method, stage = replace(self, restarts=len(each), ensemble=1), stages.stage("cross-fitting", "folds")
        assumed = None if stages.known is None else stages.known.assumed_of_gold(data)
        if not horizons:
            method._check_memory(data, stage.device)
            return FoldPolicies(method.fit_members(data, each, stage), fold, assumed)
        model: Any = parts.demonstrator
        count = len(horizons)
        exempt = tuple(each + k * data.actions.shape[1] for k in range(count) for each in model.exempt)
        hidden = parts.policy.hidden if self.policy is not None and parts.policy.compares_widths else RATER_HIDDEN
        method = replace(
            method,
            policy=parts.policy.rater(len(horizons)) or MixtureMLP(hidden=hidden, modes=1),
            demonstrator=replace(model, exempt=exempt, centre=None, spread=None),
            expertise=Constant(),
            dynamics=None,
            batch_size=self.batch_size or RATER_BATCH,
        )
        known = stage.known and replace(stage.known, answers=None)  # which have actions of one step
        ahead = actions_ahead(data, horizons)
        method._check_memory(ahead, stage.device)
        found = method.fit_members(ahead, each * _equal_weights(data), replace(stage, known=known))
        return SignalFolds(found, data, fold, horizons, model, parts.expertise.practice_episodes, assumed)

    @default_modes()
    @threads(1)
    def fit_each(
        self,
        datasets: Sequence[Demonstrations],
        *,
        seeds: Sequence[int],
        device: str = "auto",
        progress: fitting.ProgressCallback | None = None,
        weights: Sequence[npt.ArrayLike] | None = None,
    ) -> list[Ensemble]:
        """Every member of the fit of each data set with its own seed; all data sets are fitted side by side.

        Each is as it would be alone, but for rounding: `ensemble.top(k).fitted()` is a fit that keeps k members. Data
        sets that cannot stand side by side (continuous actions, legal actions, given skills, mini-batches, held-out
        episodes) are fitted one after the other. Widths are not compared: where `policy` is None, the network is the
        paper's. `weights` has those of each data set, as in `fit`.
        """
        _check_calls(progress)
        datasets, seeds = list_of("datasets", datasets), list_of("seeds", seeds)
        own_weights = [None] * len(datasets) if weights is None else list_of("weights", weights)
        if not len(datasets) == len(seeds) == len(own_weights):
            found = f"{len(datasets)} data sets, {len(seeds)} seeds and {len(own_weights)} weights"
            raise SettingsError(f"there are {found}: pass one of each for every data set")
        for data in datasets:
            check_demonstrations(data)
        methods = [self.for_data(data) for data in datasets]
        if any(method != methods[0] for method in methods):
            given = zip(methods, datasets, seeds, own_weights, strict=True)
            alone = partial(Ileed.fit_each, device=device, progress=progress)
            return [
                alone(method, [data], seeds=[seed], weights=None if own is None else [own])[0]
                for method, data, seed, own in given
            ]
        return methods[0]._fit_alike(datasets, seeds, resolve_device(device), own_weights, progress) if methods else []

    def _fit_alike(
        self,
        datasets: Sequence[Demonstrations],
        seeds: Sequence[int],
        chosen: torch.device,
        weights: Sequence[npt.ArrayLike | None],
        progress: fitting.ProgressCallback | None,
    ) -> list[Ensemble]:
        """Every member of the fit of each data set, all with these settings."""
        given, count = zip(datasets, weights, strict=True), self.usual_restarts
        each = [None if own is None else fitting.checked_weights(own, data, count) for data, own in given]
        seeds = [seed_of(seed) for seed in seeds]
        for data in datasets:
            self._check_memory(data, chosen)

        def starts(prepared_on: torch.device) -> list[Start]:
            zipped = zip(datasets, seeds, each, strict=True)
            return [self._start(data, seed, prepared_on, own) for data, seed, own in zipped]

        begun = starts(torch.device("cpu"))
        if not all(start.prepared.sampler.can_stand_beside for start in begun):
            begun = starts(chosen)
        results = optimise_each(begun, self.optimiser, device=chosen, callback=progress)
        ended = zip(begun, results, strict=True)
        return [_ensemble(self, start.prepared, result, chosen, seconds) for start, (result, seconds) in ended]

    def _start(self, data: Demonstrations, seed: int, device: torch.device, weights: Array | None = None) -> Start:
        """The data prepared, and every restart's initial parameters."""
        parts, restarts = self.parts(data), self.usual_restarts
        if weights is not None and weights.ndim == 1:  # weights of each restart are resamples, in which all count alike
            importance = _mean_weights(data, weights)
            if np.ptp(importance) > 0:
                parts = replace(parts, demonstrator=parts.demonstrator.weighted(importance))
        prepared = fitting.prepare(
            data,
            parts,
            self.optimiser,
            seed=seed,
            device=device,
            members=restarts,
            normalise=self.normalise,
            weights=weights,
        )
        joint = Joint(parts, prepared.sizes, [stream(seed, "init", restart) for restart in range(restarts)])
        joint.policy.see(prepared.normaliser, data, standardised=self.normalise is True)
        if prepared.action_scale is not None:
            joint.policy.measure(prepared.action_scale)
        return Start(prepared, joint)


def _check_calls(progress: fitting.ProgressCallback | None, executor: Executor | None = None) -> None:
    callable_or_none("progress", progress, rule="pass a function of a `Progress`, or None")
    rule = "pass one of ileed.parallel, as in executor=ileed.parallel.executor('local'), or None"
    instance_of("executor", executor, Executor | None, rule=rule)


def _checked_checkpoint(checkpoint: str | Path | None, seconds: float) -> Path | None:
    """The path of a checkpoint, which is no folder, after a check of the time between two."""
    number("checkpoint_seconds", seconds, least=0, rule="pass seconds, zero or more")
    if checkpoint is None:
        return None
    found = path_of("checkpoint", checkpoint, rule="pass the path of a file, or None")
    if os.path.isdir(found):
        raise SettingsError(f"checkpoint is the folder {brief(str(found))}: pass the path of a file, or None")
    return found


def _mean_weights(data: Demonstrations, weights: Array) -> Array:
    """(demonstrator,) the mean weight of their steps, by (episode,) weights; zero for one without steps."""
    total = np.bincount(data.demonstrator, weights[data.episode], minlength=len(data.names))
    return np.asarray(total / np.maximum(data.steps_each, 1))


def _equal_weights(data: Demonstrations) -> Array:
    """(episode,) weights of steps by which every episode counts alike, however long, and all copies of one as one."""
    first = first_copies(data)
    weights = 1 / (np.diff(data.episode_bounds) * np.bincount(first)[first])
    return np.asarray(weights * (len(data) / (np.diff(data.episode_bounds) * weights).sum()))


def _warn(fitted: Fitted, data: Demonstrations) -> None:
    """Warn once of all that makes the results of a fit wrong or meaningless."""
    lost = lost_values(data, fitted.normaliser.kept.numpy(), fitted.policy.preprocess)
    found = [f"{each.about} {each.says}" for each in (*suspicions(data), *lost) if each.serious]
    if fitted.outcome is fitting.Outcome.WORSE_THAN_GUESSING:
        found.append(f"{fitted.nats_per_action:.2f} nats per action: {fitted.outcome.value}")
    if len(found) > _WARNED_OF:
        found[_WARNED_OF:] = [f"and {len(found) - _WARNED_OF} more, see `ileed inspect`"]
    if found:
        warnings.warn("; ".join(found), IleedWarning, stacklevel=4)  # of the caller, behind `default_modes`


def _ensemble(
    method: Ileed, prepared: fitting.Prepared, result: fitting.OptimisationResult, device: torch.device, seconds: float
) -> Ensemble:
    """Every member that an optimisation found; everything is on the CPU from here on."""
    training_data = prepared.training_data
    data = training_data.data
    provenance = {
        "seed": training_data.seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "seconds": round(seconds, 3),
    }
    return Ensemble(
        method=method,
        data=data,
        collapsed=training_data.collapsed,
        normaliser=prepared.normaliser,
        result=replace(result, joint=result.joint.cpu().requires_grad_(False)),
        episode_weight=training_data.episode_weight.reshape(-1, data.episode_count),
        held_out_episodes=training_data.held_out_episodes,
        provenance=provenance,
        restarts=tuple(range(method.usual_restarts)),
    )


def bc(**settings: Any) -> Ileed:
    """Behaviour cloning: the joint model in which nobody ever errs."""
    return Ileed(expertise=Perfect(), **settings)


def bc_rnn(**settings: Any) -> Ileed:
    """Behaviour cloning with a recurrent policy, as robomimic's BC-RNN: one fit of `MixtureLSTM`, in 20,000 steps."""
    usual: dict[str, Any] = {"policy": MixtureLSTM(), "expertise": Perfect(), "restarts": 1, "steps": 20_000}
    return Ileed(**(usual | settings))


@default_modes()
@threads(1)
def compare(
    demonstrations: Demonstrations,
    *,
    seed: int,
    models: Sequence[AbstractDemonstratorModel[Any]] | None = None,
    method: Ileed | None = None,
    device: str = "auto",
    executor: Executor | None = None,
    progress: fitting.ProgressCallback | None = None,
) -> ModelComparison:
    """Compare demonstrator models, fitted to the same folds of episodes, by the episodes left out.

    `models` stand in the order in which they are preferred where the data cannot choose; by default all of
    `ileed.selection.CANDIDATES` that describe the data. `method` has the other settings; `Ileed(demonstrator="auto")`
    compares in the same way before its fit, and keeps the comparison as `Fitted.comparison`. Where `policy` is None,
    the network is the paper's here. With an `executor` (`ileed.parallel.executor("ray")`, in a `with` statement) each
    model is fitted by one of its workers, with the same result.
    """
    check_demonstrations(demonstrations)
    method = Ileed() if method is None else method
    instance_of("method", method, Ileed, rule="pass Ileed(...), or None for its defaults")
    _check_calls(progress, executor)
    stages = Stages(seed_of(seed), resolve_device(device), progress, executor=executor)
    return method.compare_models(demonstrations, stages, models)


@default_modes()
def load(path: str | Path, *, policy: nn.Module | Factory | None = None) -> Fitted:
    """The fit in a run directory, as `Fitted.save` left it; whatever is not as it was written is refused.

    `policy` is what `Ileed(policy=...)` was given, where that is a module or makes one: the directory has its
    parameters and not its code.
    """
    rule = "pass the path of a run directory, as fitted.save(path) wrote it"
    fields = fields_at(path_of("path", path, rule=rule), Ileed, policy)
    return Fitted(**{**fields, "restarts": Restarts(*fields["restarts"])})
