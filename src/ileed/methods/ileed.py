"""Imitation learning by estimating the expertise of demonstrators: settings, and the fit that they lead to.

`Ileed` is a frozen dataclass of settings. `fit` proceeds in stages: it chooses what was left to the data by held-out
episodes, rates demonstrators by cross-fitting, optimises all restarts of the policy, and returns a `Fitted`.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ileed import fitting, runs, selection
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
from ileed.methods.fitted import Ensemble, Fitted, Restarts
from ileed.methods.saving import fields_at
from ileed.model.demonstrators import AbstractDemonstratorModel, UniformMixture, VarianceScaling
from ileed.model.expertise import AbstractExpertise, Constant, Embedded, LatentDynamics, Perfect
from ileed.model.joint import Joint, Parts
from ileed.model.knowledge import Known
from ileed.model.modules import Factory, as_head
from ileed.model.policies import AbstractPolicyHead, CategoricalMLP, MixtureLSTM, MixtureMLP
from ileed.model.scaling import SignalScaling
from ileed.parallel.processes import ALONE, Processes
from ileed.rating.outcomes import EpisodeOutcomes, Outcome, combine_evidence
from ileed.rating.ratings import Ratings
from ileed.rating.signal import Rater, actions_ahead
from ileed.selection import (
    CONTINUOUS_LADDER,
    LADDER,
    Candidate,
    Folds,
    ModelComparison,
    Tried,
    to_try,
    tried_by_workers,
)

_PARTS: dict[str, tuple[Any, str]] = {
    "policy": (
        AbstractPolicyHead | None,
        "CategoricalMLP(...), MixtureMLP(...), MixtureLSTM(...), a torch.nn.Module or a function that makes one, "
        "or None",
    ),
    "demonstrator": (
        AbstractDemonstratorModel | None,
        'UniformMixture(), BiasedMixture(), SignalScaling() or the like, "auto", or None for the default',
    ),
    "expertise": (
        AbstractExpertise | None,
        "Embedded(), Constant(), Skills(column), Drift() or the like, Perfect(), or None for the default",
    ),
    "dynamics": (LatentDynamics | None, "LatentDynamics(), or None"),
}
AUTO = "auto"
RESTARTS = 20
"""Restarts of a fit to discrete actions by default, as in the paper."""
FOLDS = 5
"""Folds of cross-fitting by default."""
RATER_HIDDEN, RATER_BATCH = (64, 64), 256
"""Hidden layers and batch size of the policies that rate continuous actions by default."""
_WARNINGS = 3  # findings that one warning states
_PEAK_OF_TWO = 8  # peak memory of two optimisations by the least that one takes: activations and gradients
_STANDARD_DEVIATION_FLOOR = 0.05  # actions that rest at the end of their range would be spikes of the density


@final
@dataclass(frozen=True)
class _Defaults:
    """The parts that None stands for, by the kind of actions."""

    policy: AbstractPolicyHead
    expertise: AbstractExpertise
    demonstrator: AbstractDemonstratorModel[Any]
    demonstrator_of_experts: AbstractDemonstratorModel[Any]
    """Where expertise is not estimated: a model without parameters."""
    widths: Sequence[tuple[int, ...]]
    """Hidden layers among which held-out episodes choose."""
    has_rater: bool
    """Whether demonstrators are rated by policies of their own, and the policy that acts is trained in its own way."""


_DISCRETE = _Defaults(CategoricalMLP(), Embedded(), UniformMixture(), UniformMixture(), LADDER, has_rater=False)
_CONTINUOUS = _Defaults(
    MixtureMLP(modes=1, standard_deviation_floor=_STANDARD_DEVIATION_FLOOR),
    Constant(),
    SignalScaling(),
    VarianceScaling(),
    CONTINUOUS_LADDER,
    has_rater=True,
)
_CONTINUOUS_TRAINING: Mapping[str, Any] = {"restarts": 2, "learning_rate": 2e-3, "decay": True, "batch_size": 512}
_CONTINUOUS_EPOCHS, _LEAST_STEPS, _MOST_STEPS = 200, 2_000, 8_000
"""Of the policy that acts; docs/decisions/real-operators.md has the measurements."""


def _defaults(data: Demonstrations) -> _Defaults:
    return _DISCRETE if data.discrete else _CONTINUOUS


@final
@dataclass(frozen=True, kw_only=True)
class Ileed:
    """Imitation learning by estimating expertise: one policy and the expertise of all demonstrators, learned jointly.

    All `restarts` are optimised side by side, and the `ensemble` likeliest are kept. The defaults for continuous
    actions apply to the policy that acts; recurrent policies, data of very many demonstrators, and the policies that
    rate or are compared have those for discrete actions.
    """

    policy: AbstractPolicyHead | nn.Module | Factory | None = None
    """The network of the policy: a head, a `torch.nn.Module`, or a class or function that makes one. None follows the
    kind of actions, with a width that held-out episodes choose."""
    demonstrator: AbstractDemonstratorModel[Any] | Literal["auto"] | None = None
    """How a demonstrator of given expertise acts. None is UniformMixture for discrete and SignalScaling for continuous
    actions. "auto" takes the simplest of `ileed.selection.CANDIDATES` within one standard error of the best on held-out
    episodes."""
    expertise: AbstractExpertise | None = None
    """What expertise depends on. None is Embedded for discrete and Constant for continuous actions; Perfect makes this
    behaviour cloning."""
    dynamics: LatentDynamics | None = None
    """An auxiliary loss that shapes the embedding of states."""
    restarts: int | None = None
    """The number of independent fits from random initial values. None is 20, or 2 for continuous actions."""
    steps: int | None = None
    """Optimisation steps. None is 2,000, or 200 epochs (2,000 to 8,000 steps) for continuous actions."""
    ensemble: int = 1
    """How many of the likeliest restarts are kept and averaged; 1 as in the paper."""
    learning_rate: float | None = None
    """The learning rate of the networks. None is 0.001, or 0.002 for continuous actions."""
    decay: bool | None = None
    """Whether learning rates decay to zero along half a cosine; with very many demonstrators, not that of w. None is
    False, or True for continuous actions if `learning_rate` is None."""
    skill_learning_rate: float = 1e-2
    """The learning rate of w, the parameters of each demonstrator."""
    batch_size: int | None = None
    """Steps in a batch, or windows for recurrent policies. None takes all steps where observations repeat, otherwise
    256, or 512 for continuous actions, or 100 windows."""
    clip: float | None = None
    """The greatest norm of the gradient of each restart."""
    held_out: float = 0.0
    """The share of each demonstrator's episodes by which restarts are compared; 0 compares them by the likelihood of
    all data, as in the paper."""
    member_block: int | None = None
    """How many restarts are computed at a time, here or in one of several processes; None computes all at once."""
    folds: int | None = None
    """Folds of episodes for cross-fitting, where each is rated by policies that have not seen it. None is 5, or 0 (no
    ratings) for recurrent policies, whose fits take long."""
    temperature: float | None = None
    """The temperature of the policies that rate, where 1 leaves them as learned; None estimates it from the folds."""
    normalise: bool | None = None
    """Whether inputs are standardised. None standardises all but integer columns of small codes (-16 to 16), and leaves
    the inputs of a module of your own as they are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", as_head(self.policy))
        for name, (kind, choices) in _PARTS.items():
            value = getattr(self, name)
            if not (name == "demonstrator" and isinstance(value, str) and value == AUTO):
                instance_of(name, value, kind, rule=f"pass {choices}")
        checked = {name: value for name, value in vars(self.optimiser).items() if getattr(self, name) is not None}
        if self.restarts is not None:
            rule = "pass a whole number, one or more, or None for the default"
            checked["restarts"] = whole_number("restarts", self.restarts, least=1, rule=rule)
        most = checked.get("restarts", RESTARTS)
        rule = f"it must be from 1 to {most}, the restarts"
        checked["ensemble"] = whole_number("ensemble", self.ensemble, least=1, most=most, rule=rule)
        checked["normalise"] = true_or_false("normalise", self.normalise, or_none=True)
        if self.folds is not None:
            rule = "pass two or more, or 0 for no cross-fitting"
            checked["folds"] = whole_number("folds", self.folds, least=0, rule=rule)
        if self.temperature is not None:
            rule = "pass a number above zero, or None to estimate it"
            checked["temperature"] = number("temperature", self.temperature, above=0, rule=rule)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

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
        """Fit a policy and the expertise of every demonstrator.

        Args:
            demonstrations: The data.
            seed: The same seed on the same machine gives the same bits, for any number of threads.
            device: "cpu", "cuda", or "auto" for the best available.
            weights: How often each episode counts: (episode,), or (restart, episode) for weights of each restart.
                Restarts with different weights, as in a bootstrap, cannot be compared: all of them are kept.
            check_width: Whether to compare policies of several widths on held-out episodes first (`Fitted.width`). None
                does so if `policy` is None, and takes the width that the comparison chooses; with a policy of your own,
                True tells whether a wider one would be better. With False and no policy, the network is the paper's.
            progress: Called with a `Progress` now and then.
            checkpoint: A file that is written every `checkpoint_seconds` seconds. An interrupted fit, called again with
                the same arguments, continues from it. `Fitted.save` removes it. If a later write fails, on a full disk
                for example, that is a warning.
            checkpoint_seconds: Seconds between checkpoints.
            gold: Names of demonstrators that are taken to be experts, softly. `Known` says how softly, and what else
                can be known.
            outcome: How episodes went: one number or truth value for each, NaN or None where it is unknown; a mapping
                from `Demonstrations.episode_keys`; "success" (any reward above zero), "reward" (their sum), "duration"
                (seconds, or steps without `fps`); or a skill column that is constant within episodes. Ratings then
                combine actions and outcomes (`Fitted.evidence`), and the policy learns most from episodes that went
                well (`ileed.rating.outcomes`).
            better: Whether "higher" (the default) or "lower" outcomes are better; required for "duration".
            executor: Computes blocks of `member_block` restarts, replicates or fold policies, as in
                `with ileed.parallel.executor("ray") as executor:`. The result is the same.
            processes: Those of `ileed.parallel.runtime.several_processes()`, which share these blocks. The result is
                the same.
        """
        check_demonstrations(demonstrations)
        _check_calls(progress, executor)
        checkpoint = _checked_checkpoint(checkpoint, checkpoint_seconds)
        seed, chosen = seed_of(seed), resolve_device(device)
        weighed: Array | None = None
        if weights is not None:
            weighed = fitting.checked_weights(weights, demonstrations, self.for_data(demonstrations).usual_restarts)
        outcomes = _checked_outcomes(outcome, better, demonstrations, weighed)
        known = Known.told(gold, demonstrations)
        stages = Stages(seed, chosen, progress, checkpoint, checkpoint_seconds, known, executor, processes=processes)
        if checkpoint is not None and processes.leads:
            runs.check_writable(checkpoint)  # an error now, rather than a warning later
        compares = self.policy is None if check_width is None else true_or_false("check_width", check_width)
        return self._fit(demonstrations, weighed, stages, check_width=compares, outcomes=outcomes)

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
        """Rate demonstrators by cross-fitting alone: each episode by policies that have not seen it.

        `fit` does the same for demonstrators. This rates other units too, which `Fitted.assess` can only do in-sample
        for the data of a fit. If `policy` is None, the network is the paper's.

        Args:
            demonstrations: The data.
            seed: As in `fit`.
            by: "demonstrator"; "episode" to rate each episode; or a skill column, as in `Fitted.assess`.
            device: As in `fit`.
            progress: As in `fit`.
            gold: As in `fit`.
        """
        check_demonstrations(demonstrations)
        text("by", by)
        _check_calls(progress)
        stages = Stages(seed_of(seed), resolve_device(device), progress, known=Known.told(gold, demonstrations))
        folds = replace(self, folds=self.folds or FOLDS).fit_folds(demonstrations, None, stages)
        found = folds and folds.rate(temperature=self.temperature, by=by, progress=stages.counter("rating"))
        if found is None:
            message = "cross-fitting needs two episodes, and a model under which expertise is one number"
            raise SettingsError(message, code="not-cross-fitted")
        return found

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
        """Fit several data sets side by side, each with its own seed.

        Each result is that of the data set alone but for rounding; `ensemble.top(k).fitted()` keeps k members. Data
        sets with continuous actions, legal actions, given skills, mini-batches or held-out episodes are fitted one
        after the other. Widths are not compared: if `policy` is None, the network is the paper's.

        Args:
            datasets: The data sets.
            seeds: One seed for each data set.
            device: As in `fit`.
            progress: As in `fit`.
            weights: Those of each data set, as in `fit`.
        """
        _check_calls(progress)
        datasets, seeds = list_of("datasets", datasets), list_of("seeds", seeds)
        own_weights = [None] * len(datasets) if weights is None else list_of("weights", weights)
        if not len(datasets) == len(seeds) == len(own_weights):
            found = f"{len(datasets)} data sets, {len(seeds)} seeds and {len(own_weights)} weights"
            raise SettingsError(f"there are {found}: pass one of each for every data set", code="lengths-differ")
        chosen, given = resolve_device(device), []
        for data, seed, own in zip(datasets, seeds, own_weights, strict=True):
            check_demonstrations(data)
            method = self.for_data(data)
            checked = None if own is None else fitting.checked_weights(own, data, method.usual_restarts)
            given.append((method, data, seed_of(seed), checked))
        for method, data, _, _ in given:
            method._check_memory(data, chosen)

        def starts(device: torch.device) -> list[Start]:
            return [method._start(data, seed, device, own) for method, data, seed, own in given]

        begun = starts(torch.device("cpu"))
        if not all(start.prepared.sampler.can_stand_beside for start in begun):
            begun = starts(chosen)
        methods = [method for method, *_ in given]
        alike = all(method == methods[0] for method in methods)
        groups = [begun] if alike else [[start] for start in begun]
        optimise = partial(optimise_each, device=chosen, callback=progress)
        alone = (optimise(group, method.optimiser) for method, group in zip(methods, groups, strict=False))
        ended = zip(methods, begun, chain.from_iterable(alone), strict=True)
        return [method._ensemble(start, result, chosen, seconds) for method, start, (result, seconds) in ended]

    def for_data(self, data: Demonstrations) -> Ileed:
        """Return the settings of the policy that acts, with defaults for the kind of actions filled in."""
        if not _defaults(data).has_rater or data.has_many_demonstrators or self._head(data).length > 1:
            return replace(self, restarts=self.usual_restarts)
        usual: dict[str, Any] = dict(_CONTINUOUS_TRAINING)
        epochs = _CONTINUOUS_EPOCHS * len(data) // usual["batch_size"]
        usual["steps"] = min(max(epochs, _LEAST_STEPS), _MOST_STEPS)
        usual["restarts"] = max(usual["restarts"], self.ensemble)
        usual["decay"] = self.learning_rate is None
        return replace(self, **{name: value for name, value in usual.items() if getattr(self, name) is None})

    def parts(self, data: Demonstrations) -> Parts:
        """Return the parts of the model, with defaults for the data filled in."""
        usual = _defaults(data)
        expertise = self.expertise or (Embedded() if self.dynamics else usual.expertise)
        model = self.model or (usual.demonstrator if expertise.estimates_expertise else usual.demonstrator_of_experts)
        return Parts(self._head(data), model.for_data(data), expertise.for_data(data), self.dynamics)

    @property
    def model(self) -> AbstractDemonstratorModel[Any] | None:
        """The demonstrator model that was asked for; None where the data decide."""
        return None if isinstance(self.demonstrator, str) else self.demonstrator

    def _head(self, data: Demonstrations) -> AbstractPolicyHead:
        head: Any = _defaults(data).policy if self.policy is None else self.policy
        return head.for_data(data)

    @property
    def optimiser(self) -> fitting.OptimiserSettings:
        """The settings of the optimisation, with defaults for discrete actions."""
        given = {item.name: getattr(self, item.name) for item in fields(fitting.OptimiserSettings)}
        return fitting.OptimiserSettings(**{name: value for name, value in given.items() if value is not None})

    @property
    def usual_restarts(self) -> int:
        """The number of restarts, with the default for discrete actions."""
        return RESTARTS if self.restarts is None else self.restarts

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
        """Choose settings by held-out episodes, rate by cross-fitting, fit, and put the results together."""
        self.for_data(data)._check_memory(data, stages.device)
        select = partial(self._select, data, weights, check_width=check_width)
        # a rater does not depend on the width of the policy that acts, which is then chosen while it is fitted
        is_independent = _defaults(data).has_rater and self.demonstrator != AUTO and outcomes is None
        selected = None if is_independent else select(stages)
        method = self if selected is None else selected[0]

        def fit(own: Stages, weights: Array | None = weights) -> tuple[Ensemble, dict[str, Any]]:
            acting, comparisons = selected or select(own)
            return acting.for_data(data).fit_members(data, weights, own), comparisons

        evidence = None
        if outcomes is None:
            (ensemble, comparisons), rated = method._both(data, stages, fit, partial(method._rate, data, weights))
        else:
            rated = method._rate(data, weights, stages)
            if rated is None:
                raise SettingsError(
                    "outcome is combined with cross-fitted ratings, and this fit has none: they need folds=2 or more, "
                    "two episodes, steps of every demonstrator, and a model that estimates expertise",
                    code="outcome-without-ratings",
                )
            combined = combine_evidence(rated[0], outcomes, data.episode_demonstrator)
            evidence = combined.evidence
            ensemble, comparisons = fit(stages, combined.weights if weights is None else combined.weights * weights)
        ensemble = replace(ensemble, method=self)
        fitted = (ensemble.top(self.ensemble) if ensemble.comparable else ensemble).fitted()
        if rated is not None:
            ratings, rater = rated
            fitted = fitted.with_ratings(ratings if evidence is None else evidence.both, rater, evidence)
        _warn(fitted, data)
        return replace(fitted, **comparisons, checkpoints=tuple(stages.checkpoints))

    def _select(
        self, data: Demonstrations, weights: Array | None, stages: Stages, *, check_width: bool
    ) -> tuple[Ileed, dict[str, Any]]:
        """The settings that held-out episodes choose, and the comparisons by the names that `Fitted` gives them."""
        method, width, comparison = self, None, None
        if check_width:
            width = self._compare_widths(data, weights, stages)
        if width is not None and self.policy is None:
            method = replace(self, **width.settings[width.chosen])
        if self.demonstrator == AUTO:
            comparison = method.compare_models(data, stages, None, weights)
            method = replace(method, **comparison.settings[comparison.chosen])
        return method, {"width": width, "comparison": comparison}

    def _compare_widths(self, data: Demonstrations, weights: Array | None, stages: Stages) -> ModelComparison | None:
        """Compare policies of several widths; None where no episode with a weight can be held out."""
        head = self._head(data)
        if not head.compares_widths:
            message = f"widths are not compared for {type(head).__name__}: pass check_width=False, or None"
            raise SettingsError(message, code="widths-not-compared")
        members = min(selection.WIDTH_RESTARTS, self.usual_restarts)
        folds = Folds.of(data, seed=stages.seed, members=members, weights=weights)
        widths = _defaults(data).widths if self.policy is None else selection.wider_than(head.hidden)
        tried = selection.widths(head, widths)
        return self._compare(folds, tried, stages, name="width") if folds.is_complete else None

    def compare_models(
        self,
        data: Demonstrations,
        stages: Stages,
        models: Sequence[AbstractDemonstratorModel[Any]] | None,
        weights: Array | None = None,
    ) -> ModelComparison:
        """Compare demonstrator models as `ileed.compare` does, as a stage of a fit."""
        models = selection.applicable(models, sizes_of(data, replace(self, demonstrator=None).parts(data)))
        tried = selection.demonstrator_models(models)
        members, count = selection.MODEL_RESTARTS, selection.MODEL_FOLDS
        folds = Folds.of(data, seed=stages.seed, members=members, count=count, weights=weights)
        if not folds.is_complete:
            message = "models are compared by held-out episodes, and there is only one step: add episodes"
            raise SettingsError(message, code="too-few-episodes")
        for each in tried:
            self._with(each, folds)._check_memory(folds.data, stages.device)
        executor = None if stages.checkpoint is not None else stages.executor  # workers would report no checkpoint
        if executor is not None:
            return ModelComparison.of(folds, tried, tried_by_workers(folds, tried, self._try, stages, executor))
        return self._compare(folds, tried, stages, name="model")

    def _compare(self, folds: Folds, every: Sequence[Candidate], stages: Stages, *, name: str) -> ModelComparison:
        """Fit the candidates to the same folds, one after the other, and compare them on held-out episodes."""
        tried: list[Tried] = []
        for candidate, stage in to_try(folds, every, tried, stages, name=name):
            tried.append(self._try(candidate, folds, stage))
        return ModelComparison.of(folds, every, tried)

    @threads(1)
    def _try(self, candidate: Candidate, folds: Folds, stages: Stages) -> Tried:
        """Costs of held-out episodes and, for a demonstrator model, the expertise of demonstrators."""
        found = self._with(candidate, folds).fit_members(folds.data, folds.weights, stages)
        nats = folds.held_out_nats(found)
        if "demonstrator" not in candidate.settings or found.joint.parts.demonstrator.defines_expertise:
            return nats, ()
        rated = FoldPolicies(found, folds.fold).rate(temperature=None, progress=stages.counter("rating"))
        return nats, () if rated is None else tuple(rated.best.expertise.tolist())

    def _with(self, candidate: Candidate, folds: Folds) -> Ileed:
        return replace(self, **candidate.settings, restarts=folds.members * folds.count, ensemble=1)

    def _both(
        self,
        data: Demonstrations,
        stages: Stages,
        fit: Callable[[Stages], tuple[Ensemble, dict[str, Any]]],
        rate: Callable[[Stages], tuple[Ratings, Rater | None] | None],
    ) -> tuple[tuple[Ensemble, dict[str, Any]], tuple[Ratings, Rater | None] | None]:
        """The results of both functions, which run at the same time if threads and memory suffice."""
        alone = stages.processes.count == 1  # several communicate in one order
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
        """Refuse parts that contradict each other, and a fit that exceeds the memory of the device."""
        check_memory(self._least_memory(data), self.usual_restarts, device)

    def _rate(self, data: Demonstrations, weights: Array | None, stages: Stages) -> tuple[Ratings, Rater | None] | None:
        """Cross-fitted ratings and the policies that rated; None where `fit_folds` or its members give none."""
        found = self.fit_folds(data, weights, stages)
        ratings = found and found.rate(temperature=self.temperature, progress=stages.counter("rating"))
        return None if found is None or ratings is None else (ratings, found.rater)

    def fit_folds(
        self, data: Demonstrations, weights: Array | None, stages: Stages
    ) -> FoldPolicies | SignalFolds | None:
        """Fit policies to all folds but one each; None where demonstrators cannot be rated, or `folds` is 0."""
        if self.folds == 0:
            return None
        data, weights = held_in_memory(data, weights)
        parts = self.parts(data)
        horizons = parts.demonstrator.horizons(data) if _defaults(data).has_rater else ()
        # recurrent policies take long, and a rater of very many demonstrators gigabytes
        is_default = parts.policy.length == 1 or (horizons and not data.has_many_demonstrators)
        count = min(self.folds or (FOLDS if is_default else 0), data.episode_count)
        by_episode = np.ones(data.episode_count) if weights is None else weights
        has_ratings = parts.expertise.estimates_expertise and not parts.demonstrator.defines_expertise
        if count < 2 or by_episode.ndim > 1 or not has_ratings or (data.steps_each == 0).any():
            return None
        members = min(FOLD_RESTARTS, self.usual_restarts)
        folds = Folds.deal(data, count, seed=stages.seed, weight=by_episode, members=members)
        if not folds.is_complete:
            return None
        stage = stages.stage("cross-fitting", "folds")
        assumed = None if stage.known is None else stage.known.assumed_of_gold(data)
        method = replace(self, restarts=len(folds.weights), ensemble=1)
        if not horizons:
            method._check_memory(data, stage.device)
            return FoldPolicies(method.fit_members(data, folds.weights, stage), folds.fold, assumed)
        method, ahead = method._rater(parts, horizons, data), actions_ahead(data, horizons)
        method._check_memory(ahead, stage.device)
        known = stage.known and replace(stage.known, answers=None)  # which are actions of one step
        found = method.fit_members(ahead, folds.weights * _equal_weights(data), replace(stage, known=known))
        model: Any = parts.demonstrator
        return SignalFolds(found, data, folds.fold, horizons, model, parts.expertise.practice_episodes, assumed)

    def _rater(self, parts: Parts, horizons: Sequence[int], data: Demonstrations) -> Ileed:
        """The settings of policies that predict mean actions over horizons, to rate demonstrators by them."""
        model: Any = parts.demonstrator
        size = data.actions.shape[1]
        exempt = tuple(dimension + place * size for place in range(len(horizons)) for dimension in model.exempt)
        hidden = parts.policy.hidden if self.policy is not None and parts.policy.compares_widths else RATER_HIDDEN
        return replace(
            self,
            policy=parts.policy.rater(len(horizons)) or MixtureMLP(hidden=hidden, modes=1),
            demonstrator=replace(model, exempt=exempt, centre=None, spread=None),
            expertise=Constant(),
            dynamics=None,
            batch_size=self.batch_size or RATER_BATCH,
        )

    def fit_members(self, data: Demonstrations, weights: Array | None, stages: Stages) -> Ensemble:
        """Optimise all restarts, with a checkpoint."""
        start = self._start(data, stages.seed, stages.device, weights)
        if stages.known is not None:
            start = start.with_knowledge(stages.known, stages.device)
        files = stages.checkpoints_of(self, data, weights)
        together: dict[str, Any] = {"executor": stages.executor, "processes": stages.processes}
        result = optimise_blocks(start, self.optimiser, stages.device, files, stages.progress, **together)
        found = self._ensemble(start, result, stages.device, time.monotonic() - stages.began)
        known = {} if stages.known is None else {"known": stages.known.provenance(data)}
        return replace(found, provenance={**found.provenance, **known})

    def _start(self, data: Demonstrations, seed: int, device: torch.device, weights: Array | None = None) -> Start:
        """Prepare the data and draw the initial parameters of every restart."""
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

    def _ensemble(
        self, start: Start, result: fitting.OptimisationResult, device: torch.device, seconds: float
    ) -> Ensemble:
        """Every member that an optimisation found, on the CPU."""
        training_data = start.prepared.training_data
        data = training_data.data
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        return Ensemble(
            method=self,
            data=data,
            collapsed=training_data.collapsed,
            normaliser=start.prepared.normaliser,
            result=replace(result, joint=result.joint.cpu().requires_grad_(False)),
            episode_weight=training_data.episode_weight.reshape(-1, data.episode_count),
            held_out_episodes=training_data.held_out_episodes,
            provenance={"seed": training_data.seed, "device": name, "seconds": round(seconds, 3)},
            restarts=tuple(range(self.usual_restarts)),
        )


def _check_calls(progress: fitting.ProgressCallback | None, executor: Executor | None = None) -> None:
    callable_or_none("progress", progress, rule="pass a function of a `Progress`, or None")
    rule = "pass one of ileed.parallel, as in executor=ileed.parallel.executor('local'), or None"
    instance_of("executor", executor, Executor | None, rule=rule)


def _checked_checkpoint(checkpoint: str | Path | None, seconds: float) -> Path | None:
    number("checkpoint_seconds", seconds, least=0, rule="pass seconds, zero or more")
    if checkpoint is None:
        return None
    found = path_of("checkpoint", checkpoint, rule="pass the path of a file, or None")
    if os.path.isdir(found):
        message = f"checkpoint is the folder {brief(str(found))}: pass the path of a file, or None"
        raise SettingsError(message, code="checkpoint-is-folder")
    return found


def _checked_outcomes(
    outcome: Outcome | None, better: str | None, data: Demonstrations, weights: Array | None
) -> EpisodeOutcomes | None:
    """Outcomes of the episodes that have a weight."""
    if outcome is None:
        if better is not None:
            message = f"better is {brief(better)}, but there is no outcome: pass outcome= too"
            raise SettingsError(message, code="better-without-outcome")
        return None
    found = EpisodeOutcomes.of(outcome, better, data)
    if weights is None:
        return found
    if weights.ndim > 1:
        message = "outcome and weights of each restart were both passed: pass one weight for each episode"
        raise SettingsError(message, code="outcome-with-replicates")
    return EpisodeOutcomes.of(found.among(weights > 0).values, found.better, data, name=found.name)


def _mean_weights(data: Demonstrations, weights: Array) -> Array:
    """(demonstrator,) the mean weight of their steps, by (episode,) weights; zero for one without steps."""
    total = np.bincount(data.demonstrator, weights[data.episode], minlength=len(data.names))
    return np.asarray(total / np.maximum(data.steps_each, 1))


def _equal_weights(data: Demonstrations) -> Array:
    """(episode,) weights of steps by which all episodes count alike, whatever their length; copies count as one."""
    first = first_copies(data)
    weights = 1 / (np.diff(data.episode_bounds) * np.bincount(first)[first])
    return np.asarray(weights * (len(data) / (np.diff(data.episode_bounds) * weights).sum()))


def _warn(fitted: Fitted, data: Demonstrations) -> None:
    """Warn once of everything that makes the results of a fit wrong or meaningless."""
    lost = lost_values(data, fitted.normaliser.kept.numpy(), fitted.policy.preprocess)
    found = [f"{each.about} {each.says}" for each in (*suspicions(data), *lost) if each.serious]
    if fitted.outcome is fitting.Outcome.WORSE_THAN_GUESSING:
        found.append(f"{fitted.nats_per_action:.2f} nats per action: {fitted.outcome.value}")
    if len(found) > _WARNINGS:
        found[_WARNINGS:] = [f"and {len(found) - _WARNINGS} more, see `ileed inspect`"]
    if found:
        warnings.warn("; ".join(found), IleedWarning, stacklevel=4)  # of the caller, behind `default_modes`


def bc(**settings: Any) -> Ileed:
    """Behaviour cloning: the joint model in which every demonstrator is an expert."""
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
    """Compare demonstrator models on held-out episodes, all of them fitted to the same folds.

    `Ileed(demonstrator="auto")` makes the same comparison before its fit (`Fitted.comparison`).

    Args:
        demonstrations: The data.
        seed: As in `Ileed.fit`.
        models: Demonstrator models, in the order of preference where the data cannot tell; None is all of
            `ileed.selection.CANDIDATES` that describe the data.
        method: All other settings. If its `policy` is None, the network is the paper's.
        device: As in `Ileed.fit`.
        executor: Fits each model in one of its workers, as in `with ileed.parallel.executor("ray") as executor:`. The
            result is the same.
        progress: As in `Ileed.fit`.
    """
    check_demonstrations(demonstrations)
    method = Ileed() if method is None else method
    instance_of("method", method, Ileed, rule="pass Ileed(...), or None for its defaults")
    _check_calls(progress, executor)
    stages = Stages(seed_of(seed), resolve_device(device), progress, executor=executor)
    return method.compare_models(demonstrations, stages, models)


@default_modes()
def load(path: str | Path, *, policy: nn.Module | Factory | None = None) -> Fitted:
    """Load the fit in a run directory; refuse one that was damaged or changed.

    Args:
        path: The directory that `Fitted.save` wrote.
        policy: What `Ileed(policy=...)` was given, if that was a module or made one: a run has its parameters, but not
            its code.
    """
    rule = "pass the path of a run directory, as fitted.save(path) wrote it"
    found = fields_at(path_of("path", path, rule=rule), Ileed, policy)
    return Fitted(**{**found, "restarts": Restarts(*found["restarts"])})
