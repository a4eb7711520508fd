"""Methods: frozen settings with `.fit(demonstrations, seed=...)`, of which behaviour cloning is one."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch

from ileed import fitting, processes, runs
from ileed._torch import available_memory, default_modes, resolve_device, stream, threads
from ileed.checking import (
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
from ileed.demonstrations import Array, Demonstrations, check_demonstrations
from ileed.demonstrations.findings import first_copies, lost_values, suspicions
from ileed.demonstrations.outcomes import EpisodeOutcomes, Outcome
from ileed.demonstrations.streaming import FEW_STEPS, held_in_memory
from ileed.deprecation import renamed_settings
from ileed.errors import IleedWarning, SettingsError, brief
from ileed.fitted import Ensemble, Fitted
from ileed.fitted.comparison import ModelComparison
from ileed.fitted.crossfit import RESTARTS as FOLD_RESTARTS
from ileed.fitted.crossfit import FoldPolicies, SignalFolds, deal_episodes, fold_weights
from ileed.fitted.evidence import SkillEvidence, combine_evidence
from ileed.fitted.model_choice import Model, applicable, compare_models
from ileed.fitted.policy import as_tensor
from ileed.fitted.ratings import Ratings
from ileed.fitted.saving import load, register
from ileed.fitted.signal import Rater, actions_ahead
from ileed.fitting.blocks import optimise_blocks
from ileed.fitting.concurrency import optimise_both
from ileed.fitting.knowing import start_with
from ileed.fitting.loop import Start, optimise_each
from ileed.fitting.preparing import check_memory, least_memory, sizes_of
from ileed.fitting.stages import Stages
from ileed.model.batch import Sizes
from ileed.model.demonstrators import AbstractDemonstratorModel, UniformMixture, VarianceScaling
from ileed.model.dynamics import LatentDynamics
from ileed.model.expertise import AbstractExpertise, Constant, Embedded, Perfect
from ileed.model.joint import Joint, Parts
from ileed.model.knowledge import Known
from ileed.model.policies import AbstractPolicyHead, CategoricalMLP, MixtureLSTM, MixtureMLP
from ileed.model.scaling import SignalScaling
from ileed.width import CONTINUOUS_LADDER, LADDER, RESTARTS, Split, WidthComparison, compare_widths, layers, wider_than

__all__ = ["Ileed", "bc", "bc_rnn", "load"]

_PARTS: dict[str, tuple[Any, str]] = {
    "policy": (AbstractPolicyHead | None, "CategoricalMLP(...), MixtureMLP(...) or MixtureLSTM(...), or None"),
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
_Result = TypeVar("_Result")
_WARNED_OF = 3  # findings that a warning states
_PEAK_OF_TWO = 8  # peak memory of two optimisations, in units of the least that one takes: activations and gradients
_FLOOR = 0.05  # of the default policy: controls that rest at the end of their range would be spikes of the density
FOLDS = 5
"""How many folds episodes are dealt into, unless a fit is told."""
RATER_HIDDEN, RATER_BATCH = (64, 64), 256
"""Of the policies that rate continuous actions, unless a policy or a batch size is given."""


@final
@register
@renamed_settings(committee="ensemble")
@dataclass(frozen=True, kw_only=True)
class Ileed:
    """Imitation learning by estimating expertise of demonstrators: one policy and everybody's expertise, jointly.

    `restarts` independent fits run side by side, and the `ensemble` likeliest of them are kept.
    """

    policy: AbstractPolicyHead | None = None
    """The policy's network; None follows the kind of actions, and `fit` chooses its width by held-out episodes."""
    demonstrator: AbstractDemonstratorModel[Any] | Literal["auto"] | None = None
    """How a demonstrator of given expertise acts; None is UniformMixture or SignalScaling, by the kind of actions.
    "auto" takes the simplest of `ileed.comparing.CANDIDATES` within one standard error of the best on held-out
    episodes."""
    expertise: AbstractExpertise | None = None
    """What expertise depends on; None is Embedded where actions are discrete and Constant where they are continuous.
    Perfect makes this behaviour cloning."""
    dynamics: LatentDynamics | None = None
    """An auxiliary cost that shapes the embedding of states."""
    restarts: int = 20
    """Independent fits, from different initial values."""
    steps: int = 2000
    """Gradient steps of each."""
    ensemble: int = 1
    """How many of the likeliest restarts are kept; `Fitted` says how they are averaged. 1 is the paper's choice."""
    learning_rate: float = 1e-3
    """Of the networks."""
    skill_learning_rate: float = 1e-2
    """Of each demonstrator's own numbers, w."""
    batch_size: int | None = None
    """Steps drawn for each gradient; None takes all where observations repeat, 256 where they do not.

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
    """Whether inputs are standardised; None standardises all but integer columns of small codes, from -16 to 16."""

    def __post_init__(self) -> None:
        for name, (kind, choices) in _PARTS.items():
            value = getattr(self, name)
            if name == "demonstrator" and isinstance(value, str) and value == AUTO:
                continue
            instance_of(name, value, kind, rule=f"pass {choices}")
        rule = "a fit needs a whole number of them, one or more"
        restarts = whole_number("restarts", self.restarts, least=1, rule=rule)
        rule = f"it takes between one and all {restarts} of the restarts"
        ensemble = whole_number("ensemble", self.ensemble, least=1, rule=rule)
        if ensemble > restarts:
            raise SettingsError(f"ensemble is {ensemble}: {rule}")
        normalise = true_or_false("normalise", self.normalise, or_none=True)
        checked = vars(self.optimiser) | {"restarts": restarts, "ensemble": ensemble, "normalise": normalise}
        if self.folds is not None:
            rule = "pass two or more, or 0 for no cross-fitting"
            checked["folds"] = whole_number("folds", self.folds, least=0, rule=rule)
        if self.temperature is not None:
            rule = "pass a number above zero, or None to estimate it"
            checked["temperature"] = number("temperature", self.temperature, within=lambda value: value > 0, rule=rule)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def optimiser(self) -> fitting.OptimiserSettings:
        """The part of the settings that says how to optimise."""
        names = [item.name for item in fields(fitting.OptimiserSettings)]
        return fitting.OptimiserSettings(**{name: getattr(self, name) for name in names})

    def parts(self, data: Demonstrations) -> Parts:
        """The model's parts, with what was left to the data filled in."""
        policy = self._head(data)
        expertise = self.expertise or (Embedded() if data.discrete or self.dynamics else Constant())
        continuous = SignalScaling() if expertise.estimates_expertise else VarianceScaling()  # which has no parameters
        chosen = self.model or (UniformMixture() if data.discrete else continuous)
        return Parts(policy, chosen.for_data(data), expertise.for_data(data), self.dynamics)

    @property
    def model(self) -> AbstractDemonstratorModel[Any] | None:
        """The demonstrator model that is asked for; None where the data choose it."""
        return self.demonstrator if isinstance(self.demonstrator, AbstractDemonstratorModel) else None

    def _head(self, data: Demonstrations) -> AbstractPolicyHead:
        return self.policy or (CategoricalMLP() if data.discrete else MixtureMLP(standard_deviation_floor=_FLOOR))

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
        good outcome (`ileed.fitted.advantages`).
        """
        check_demonstrations(demonstrations)
        callable_or_none("progress", progress, rule="pass a function of a `Progress`, or None")
        checkpoint = _checked_checkpoint(checkpoint, checkpoint_seconds)
        seed, chosen = seed_of(seed), resolve_device(device)
        weighed: Array | None = None
        if weights is not None:
            weighed = fitting.checked_weights(weights, demonstrations, self.restarts)
        outcomes = self._outcomes(outcome, better, demonstrations, weighed)
        stages = Stages(seed, chosen, progress, checkpoint, checkpoint_seconds, Known.told(gold, demonstrations))
        if checkpoint is not None and processes.current().leads:
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
        """Compare widths and demonstrator models as far as they are left to the data, then fit and rate."""
        comparison = evidence = None
        if (
            not data.discrete and self.demonstrator != AUTO and outcomes is None
        ):  # policies that rate have their own width
            ensemble, width, rated = self._fit_beside_folds(data, weights, stages, check_width=check_width)
        else:
            method, width = self._sized(data, weights, stages) if check_width else (self, None)
            if self.demonstrator == AUTO:
                comparison = method.compare_models(data, stages, None, weights)
                method = replace(method, demonstrator=comparison.settings[comparison.chosen])
            if outcomes is None:
                ensemble, rated = method._fit_and_folds(data, weights, stages)
            else:
                ensemble, rated, evidence = method._folds_and_fit(data, weights, stages, outcomes)
        ensemble = replace(ensemble, method=self)
        kept = ensemble.top(self.ensemble) if ensemble.comparable else ensemble
        fitted = kept.fitted()
        if evidence is not None and rated is not None:
            fitted = fitted.with_evidence(evidence, rated[1])
        elif rated is not None:
            fitted = fitted.with_ratings(*rated)
        _warn(fitted, data)
        return replace(fitted, width=width, comparison=comparison, checkpoints=tuple(stages.checkpoints))

    def _sized(
        self, data: Demonstrations, weights: Array | None, stages: Stages
    ) -> tuple[Ileed, WidthComparison | None]:
        """The method with the width that held-out episodes choose, where no policy was given, and the comparison."""
        parts = self.parts(data)
        check_memory(parts, sizes_of(data, parts), self.restarts, stages.device)  # of the fit that follows
        width = self._compared_widths(data, weights, stages)
        if self.policy is not None or width is None:
            return self, width
        return replace(self, policy=self._head(data).resized(width.chosen)), width

    def _fit_beside_folds(
        self, data: Demonstrations, weights: Array | None, stages: Stages, *, check_width: bool
    ) -> tuple[Ensemble, WidthComparison | None, Rated | None]:
        """Every restart of the width that is chosen first, and the ratings, which do not depend on that width."""

        def fit(progress: fitting.ProgressCallback | None) -> tuple[Ensemble, WidthComparison | None]:
            own = replace(stages, progress=progress)
            method, width = self._sized(data, weights, own) if check_width else (self, None)
            return method.fit_members(data, weights, own), width

        head = self._head(data)
        widest = head.resized(CONTINUOUS_LADDER[-1]) if check_width and self.policy is None else head
        parts = replace(self, policy=widest).parts(data)
        rows = self.batch_size or min(len(data), FEW_STEPS)
        (ensemble, width), rated = self._with_folds(fit, data, weights, stages, parts, sizes_of(data, parts), rows)
        return ensemble, width, rated

    def _fit_and_folds(
        self, data: Demonstrations, weights: Array | None, stages: Stages
    ) -> tuple[Ensemble, Rated | None]:
        """Every restart, and the ratings by cross-fitting."""
        start = self._start(data, stages.seed, stages.device, weights)

        def fit(progress: fitting.ProgressCallback | None) -> Ensemble:
            return self.fit_members(data, weights, replace(stages, progress=progress), start)

        unique_count = start.prepared.sampler.batch().observations.shape[-1]
        return self._with_folds(fit, data, weights, stages, start.joint.parts, start.prepared.sizes, unique_count)

    def _with_folds(
        self,
        fit: Callable[[fitting.ProgressCallback | None], _Result],
        data: Demonstrations,
        weights: Array | None,
        stages: Stages,
        parts: Parts,
        sizes: Sizes,
        unique_count: int,
    ) -> tuple[_Result, Rated | None]:
        """What `fit` returns and the ratings by cross-fitting; at the same time if threads and memory suffice."""

        def folds(progress: fitting.ProgressCallback | None) -> Rated | None:
            return self._rate(data, weights, replace(stages, progress=progress))

        alone = processes.current().count == 1  # several speak to each other in one order
        if stages.threads > 1 and alone and stages.device.type == "cpu":
            least, available = least_memory(parts, sizes, self.restarts, unique_count), available_memory(stages.device)
            if available is None or _PEAK_OF_TWO * least <= available:
                return optimise_both(fit, folds, stages.progress)
        return fit(stages.progress), folds(stages.progress)

    def _folds_and_fit(
        self, data: Demonstrations, weights: Array | None, stages: Stages, outcomes: EpisodeOutcomes
    ) -> tuple[Ensemble, Rated, SkillEvidence]:
        """The ratings by cross-fitting, what they say together with outcomes, and the fit with weights by that."""
        rated = self._rate(data, weights, stages)
        if rated is None:
            raise SettingsError(
                "outcome is combined with ratings by cross-fitting, and this fit has none: they need folds=2 or more, "
                "two episodes, steps of every demonstrator, and a model that estimates expertise"
            )
        combined = combine_evidence(rated[0], outcomes, data.episode_demonstrator)
        weighed = combined.weights if weights is None else combined.weights * weights
        return self.fit_members(data, weighed, stages), rated, combined.evidence

    def _rate(self, data: Demonstrations, weights: Array | None, stages: Stages) -> Rated | None:
        """Ratings by cross-fitting, and what rated; None where that cannot be, or is not asked."""
        found = self.fit_folds(data, weights, stages)
        ratings = found and found.rate(temperature=self.temperature, progress=stages.counter("rating"))
        return None if found is None or ratings is None else (ratings, found.rater)

    def fit_members(
        self, data: Demonstrations, weights: Array | None, stages: Stages, start: Start | None = None
    ) -> Ensemble:
        """Every restart, fitted and with its checkpoint."""
        start = start or self._start(data, stages.seed, stages.device, weights)
        if stages.known is not None:
            start = start_with(start, stages.known, stages.device)
        files = stages.checkpoints_of(self, data, weights)
        result = optimise_blocks(start, self.optimiser, stages.device, files, stages.progress)
        found = _ensemble(self, start.prepared, result, stages.device, time.monotonic() - stages.began)
        known = {} if stages.known is None else {"known": stages.known.provenance(data)}
        return replace(found, provenance={**found.provenance, **known})

    def _compared_widths(self, data: Demonstrations, weights: Array | None, stages: Stages) -> WidthComparison | None:
        """Policies of several widths on held-out episodes; None where no episode of any weight can be held out."""
        head = self._head(data)
        if not head.compares_widths:
            raise SettingsError(f"widths are not compared for {type(head).__name__}: pass check_width=False, or None")
        split = Split.of(data, seed=stages.seed)
        by_episode = np.ones(data.episode_count) if weights is None else np.atleast_2d(weights).mean(0)
        by_episode = by_episode[split.source]
        if not by_episode[split.kept].any() or not by_episode[~split.kept].any():
            return None

        def cost(hidden: tuple[int, ...]) -> Array:
            method = replace(self, policy=head.resized(hidden), restarts=min(RESTARTS, self.restarts), ensemble=1)
            stage, suffix = f"trying {layers(hidden)}", "-".join(map(str, hidden))
            found = method.fit_members(split.data, by_episode * split.kept, stages.stage(stage, suffix))
            return found.best().fitted().nats(split.held_out)

        ladder = LADDER if data.discrete else CONTINUOUS_LADDER
        candidates = ladder if self.policy is None else wider_than(head.hidden)
        return compare_widths(split, candidates, cost, by_episode)

    def compare_models(
        self, data: Demonstrations, stages: Stages, models: Sequence[Model] | None, weights: Array | None = None
    ) -> ModelComparison:
        """What `ileed.compare` does, with stages that report progress and write checkpoints."""
        candidates = applicable(models, sizes_of(data, replace(self, demonstrator=None).parts(data)))
        return compare_models(data, self._fit_model, candidates, stages, weights)

    def _fit_model(self, model: Model, data: Demonstrations, weights: Array, stages: Stages) -> Ensemble:
        return replace(self, demonstrator=model, restarts=len(weights), ensemble=1).fit_members(data, weights, stages)

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
        callable_or_none("progress", progress, rule="pass a function of a `Progress`, or None")
        stages = Stages(seed_of(seed), resolve_device(device), progress, None, 0.0, Known.told(gold, demonstrations))
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
        horizons = () if data.discrete else parts.demonstrator.horizons(data)
        is_rated = parts.policy.length == 1 or (horizons and not data.has_many_people)  # a rater of many takes GBs
        usual = FOLDS if is_rated else 0
        count = min(usual if self.folds is None else self.folds, data.episode_count)
        by_episode = np.ones(data.episode_count) if weights is None else weights
        rates = parts.expertise.estimates_expertise and not parts.demonstrator.defines_expertise
        if count < 2 or by_episode.ndim > 1 or not rates or (data.steps_each == 0).any():
            return None
        fold = deal_episodes(data, count, seed=stages.seed)
        each = fold_weights(data, fold, by_episode, members=min(FOLD_RESTARTS, self.restarts), seed=stages.seed)
        if (each.sum(1) == 0).any():
            return None
        method, stage = replace(self, restarts=len(each), ensemble=1), stages.stage("cross-fitting", "folds")
        assumed = None if stages.known is None else stages.known.assumed_of_gold(data)
        if not horizons:
            return FoldPolicies(method.fit_members(data, each, stage), fold, assumed)
        model: Any = parts.demonstrator
        count = len(horizons)
        exempt = tuple(each + k * data.actions.shape[1] for k in range(count) for each in model.exempt)
        hidden = parts.policy.hidden if self.policy is not None and parts.policy.compares_widths else RATER_HIDDEN
        method = replace(
            method,
            policy=MixtureMLP(hidden=hidden, modes=1),
            demonstrator=replace(model, exempt=exempt, centre=None, spread=None),
            expertise=Constant(),
            dynamics=None,
            batch_size=self.batch_size or RATER_BATCH,
        )
        known = stage.known and replace(stage.known, answers=None)  # which have actions of one step
        stage = replace(stage, known=known)
        found = method.fit_members(actions_ahead(data, horizons), each * _equal_weights(data), stage)
        practice = parts.expertise.practice_episodes
        return SignalFolds(found, data, fold, horizons, model, practice, assumed)

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
        callable_or_none("progress", progress, rule="pass a function of a `Progress`, or None")
        datasets, seeds = list_of("datasets", datasets), list_of("seeds", seeds)
        own_weights = [None] * len(datasets) if weights is None else list_of("weights", weights)
        if not len(datasets) == len(seeds) == len(own_weights):
            found = f"{len(datasets)} data sets, {len(seeds)} seeds and {len(own_weights)} weights"
            raise SettingsError(f"there are {found}: pass one of each for every data set")
        for data in datasets:
            check_demonstrations(data)
        given = zip(datasets, own_weights, strict=True)
        each = [None if own is None else fitting.checked_weights(own, data, self.restarts) for data, own in given]
        seeds, chosen = [seed_of(seed) for seed in seeds], resolve_device(device)

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
        parts = self.parts(data)
        check_memory(parts, sizes_of(data, parts), self.restarts, device)
        prepared = fitting.prepare(
            data,
            parts,
            self.optimiser,
            seed=seed,
            device=device,
            members=self.restarts,
            normalise=self.normalise,
            weights=weights,
        )
        unique_count = prepared.sampler.batch().observations.shape[-1]
        check_memory(parts, prepared.sizes, self.restarts, device, unique_count)
        joint = Joint(parts, prepared.sizes, [stream(seed, "init", restart) for restart in range(self.restarts)])
        if prepared.action_scale is not None:
            joint.policy.measure(prepared.action_scale)
        return Start(prepared, joint)


def _checked_checkpoint(checkpoint: str | Path | None, seconds: float) -> Path | None:
    """The path of a checkpoint, which is no folder, after a check of the time between two."""
    number("checkpoint_seconds", seconds, within=lambda value: value >= 0, rule="pass seconds, zero or more")
    if checkpoint is None:
        return None
    found = path_of("checkpoint", checkpoint, rule="pass the path of a file, or None")
    if os.path.isdir(found):
        raise SettingsError(f"checkpoint is the folder {brief(str(found))}: pass the path of a file, or None")
    return found


def _equal_weights(data: Demonstrations) -> Array:
    """(episode,) weights of steps by which every episode counts alike, however long, and all copies of one as one."""
    first = first_copies(data)
    weights = 1 / (np.diff(data.episode_bounds) * np.bincount(first)[first])
    return np.asarray(weights * (len(data) / (np.diff(data.episode_bounds) * weights).sum()))


def _warn(fitted: Fitted, data: Demonstrations) -> None:
    """Warn once of all that makes the results of a fit wrong or meaningless."""

    def preprocess(observations: Array) -> Array:
        return np.asarray(fitted.normaliser(as_tensor(observations)).T.numpy())

    lost = lost_values(data, fitted.normaliser.kept.numpy(), preprocess)
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
        "data": {
            "steps": len(data),
            "episodes": data.episode_count,
            "places": training_data.collapsed.unique_count,
            "fingerprint": data.fingerprint(),
            **({"anonymised": True} if data.has_pseudonyms else {}),
        },
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
        restarts=tuple(range(method.restarts)),
    )


def bc(**settings: Any) -> Ileed:
    """Behaviour cloning: the joint model in which nobody ever errs."""
    return Ileed(expertise=Perfect(), **settings)


def bc_rnn(**settings: Any) -> Ileed:
    """Behaviour cloning with a recurrent policy, as robomimic's BC-RNN: one fit of `MixtureLSTM`, in 20,000 steps."""
    usual: dict[str, Any] = {"policy": MixtureLSTM(), "expertise": Perfect(), "restarts": 1, "steps": 20_000}
    return Ileed(**(usual | settings))
