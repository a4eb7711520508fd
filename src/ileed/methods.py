"""Methods: frozen settings with `.fit(demonstrations, seed=...)`, of which behaviour cloning is one."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from ileed import checking, runs
from ileed._torch import available_memory, resolve_device, stream
from ileed.checking import callable_or_none, instance_of, path_of, seed_of, shown, true_or_false, whole_number
from ileed.demonstrations import Array, Collapsed, Demonstrations, Encoding, check_demonstrations
from ileed.demonstrations.encoding import Feature
from ileed.errors import SettingsError
from ileed.fitted import Expertise, ExpertiseSummary, Fitted, Policy, Restarts
from ileed.fitted.saving import restored
from ileed.fitting import (
    Checkpoint,
    OptimisationResult,
    OptimiserSettings,
    Prepared,
    Progress,
    ProgressCallback,
    checked_weights,
    optimise,
    prepare,
    side_by_side,
    stands_beside,
)
from ileed.model.ask import ask
from ileed.model.batch import Sizes
from ileed.model.demonstrators import (
    AbstractDemonstratorModel,
    Boltzmann,
    OneVersusRest,
    UniformMixture,
    VarianceScaling,
)
from ileed.model.dynamics import LatentDynamics
from ileed.model.expertise import AbstractExpertise, Constant, Embedded, Perfect, Skills
from ileed.model.joint import Joint, Parts, taken_apart
from ileed.model.joint import side_by_side as models_side_by_side
from ileed.model.normaliser import Normaliser
from ileed.model.policies import AbstractPolicyHead, CategoricalMLP, MixtureLSTM, MixtureMLP
from ileed.nets import members
from ileed.width import LADDER, RESTARTS, Split, WidthComparison, compare_widths, layers, wider_than

_STATES = 60  # how many of the most visited observations a summary keeps


@final
@dataclass(frozen=True, kw_only=True)
class Ileed:
    """Imitation learning by estimating expertise of demonstrators: one policy and everybody's expertise, jointly.

    `restarts` independent fits run side by side, and the one of greatest likelihood is kept.
    """

    policy: CategoricalMLP | MixtureMLP | MixtureLSTM | None = None
    """The policy's network; None follows the kind of actions, and `fit` chooses its width by held-out episodes."""
    demonstrator: UniformMixture | OneVersusRest | Boltzmann | VarianceScaling | None = None
    """How a person of given expertise acts; None is UniformMixture or VarianceScaling, by the kind of actions."""
    expertise: Embedded | Constant | Perfect | Skills = Embedded()  # noqa: RUF009 (frozen)
    """What expertise depends on; Perfect makes this behaviour cloning."""
    dynamics: LatentDynamics | None = None
    """An auxiliary cost that shapes the embedding of states."""
    restarts: int = 20
    """Independent fits, of which the likeliest is kept."""
    steps: int = 2000
    """Gradient steps of each."""
    committee: int = 1
    """How many of the likeliest restarts act together, by the mean of their probabilities; 1 is the paper's choice."""
    learning_rate: float = 1e-3
    """Of the networks."""
    skill_learning_rate: float = 1e-2
    """Of each demonstrator's own numbers, w."""
    batch_size: int | None = None
    """Steps drawn for each gradient; None takes all where observations repeat, 256 where they do not.

    A policy with a memory learns from windows: so many of them, 100 where this is None."""
    clip: float | None = None
    """Bound on each restart's own gradient norm."""
    held_out: float = 0.0
    """Share of everybody's episodes to choose by; 0 chooses by the likelihood of all the data, as the paper does."""
    normalise: bool | None = None
    """Inputs in units of their own spread; None does so for floating-point observations, not for whole numbers."""

    def __post_init__(self) -> None:
        _check_parts(self)
        restarts = whole_number(
            "restarts", self.restarts, least=1, rule="a fit needs a whole number of them, one or more"
        )
        rule = f"it takes between one and all {restarts} of the restarts"
        committee = whole_number("committee", self.committee, least=1, rule=rule)
        if committee > restarts:
            raise SettingsError(f"committee is {committee}: {rule}")
        settings = self.optimiser  # refuses impossible settings now rather than at the fit
        checked = {item.name: getattr(settings, item.name) for item in fields(OptimiserSettings)} | {
            "restarts": restarts,
            "committee": committee,
            "normalise": true_or_false("normalise", self.normalise, or_none=True),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def optimiser(self) -> OptimiserSettings:
        """The part of the settings that says how to optimise."""
        return OptimiserSettings(**{item.name: getattr(self, item.name) for item in fields(OptimiserSettings)})

    def parts(self, data: Demonstrations) -> Parts:
        """The model's parts, with what was left to the data filled in."""
        policy = self._head(data)
        demonstrator = self.demonstrator or (UniformMixture() if data.discrete else VarianceScaling())
        return Parts(policy, demonstrator.for_data(data), self.expertise, self.dynamics)

    def _head(self, data: Demonstrations) -> CategoricalMLP | MixtureMLP | MixtureLSTM:
        return self.policy or (CategoricalMLP() if data.discrete else MixtureMLP())

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        weights: npt.ArrayLike | None = None,
        check_width: bool | None = None,
        progress: ProgressCallback | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 5.0,
    ) -> Fitted:
        """Fit to the data; the same seed on the same machine gives the same bits.

        `weights` counts each episode that many times: (episode,), or (restart, episode) to give each restart its own.
        `check_width` compares policies of several widths by the likelihood of held-out episodes before the fit, and
        `Fitted.width` says what came out. None does so where `policy` is None, and takes the width that the comparison
        chooses; with a policy of your own, True tells whether a wider one would do better. With False and no policy
        the network is the paper's.
        `progress` is called with a `Progress` now and then. `checkpoint` names a file that is written every few seconds
        and from which an interrupted fit, called again with the same arguments, goes on. It is written at the end too,
        and stays until the fit is saved: `Fitted.save` removes it.
        """
        began = time.monotonic()
        check_demonstrations(demonstrations)
        seed = seed_of(seed)
        callable_or_none("progress", progress, rule="pass a function of a `Progress`, or None")
        if checkpoint is not None:
            checkpoint = path_of("checkpoint", checkpoint, rule="pass the path of a file, or None")
        rule = "pass seconds, zero or more"
        checking.number("checkpoint_seconds", checkpoint_seconds, within=lambda seconds: seconds >= 0, rule=rule)
        torch_device = resolve_device(device)
        weighed = None
        if weights is not None:
            weighed = checked_weights(_numbers("weights", weights), demonstrations, self.restarts)
        width, checkpoints = None, list[Checkpoint]()
        if self.policy is None if check_width is None else true_or_false("check_width", check_width):

            def fit_width(method: Ileed, data: Demonstrations, stage: str, **options: Any) -> Fitted:
                if checkpoint is not None:
                    path = Path(f"{checkpoint}-{'-'.join(map(str, method._head(demonstrations).hidden))}")
                    options |= {"checkpoint": path, "checkpoint_seconds": checkpoint_seconds}
                callback = progress and partial(_in_stage, progress, stage)
                fitted = method.fit(
                    data, seed=seed, device=str(torch_device), check_width=False, progress=callback, **options
                )
                checkpoints.extend(fitted.checkpoints)
                return fitted

            width = self._compared_widths(demonstrations, seed, torch_device, weighed, fit_width)
        method = self
        if self.policy is None and width is not None:
            method = replace(self, policy=replace(self._head(demonstrations), hidden=width.chosen))
        start = method._start(demonstrations, seed, torch_device, weighed)
        file = None
        if checkpoint is not None:
            fingerprint = _fingerprint(method, demonstrations, seed, torch_device, weighed)
            file = Checkpoint(Path(checkpoint), fingerprint=fingerprint, seconds=checkpoint_seconds)
        result = optimise(
            start.joint.to(torch_device), start.prepared, method.optimiser, checkpoint=file, callback=progress
        )
        fitted = Ensemble.of(self, start, result, torch_device, time.monotonic() - began).fitted()
        return replace(fitted, width=width, checkpoints=(*checkpoints, *([] if file is None else [file])))

    def _compared_widths(
        self,
        data: Demonstrations,
        seed: int,
        device: torch.device,
        weights: Array | None,
        fit_width: Callable[..., Fitted],
    ) -> WidthComparison | None:
        """Policies of several widths on held-out episodes; nothing where no episode of any weight can be held out.

        `fit_width(method, data, stage, ...)` is `method.fit(data, ...)`, called as the fit that is to follow.
        """
        head = self._head(data)
        if head.length > 1:
            raise SettingsError(f"widths are not compared for {type(head).__name__}: pass check_width=False, or None")
        _check_memory(self, self.parts(data), _sizes_at_least(self, data), device)  # of the fit that is to follow
        split = Split.of(data, seed=seed)
        by_episode = np.ones(data.episode_count) if weights is None else np.atleast_2d(weights).mean(0)
        by_episode = by_episode[data.episode[np.unique(split.data.episode, return_index=True)[1]]]
        if not by_episode[split.kept].any() or not by_episode[~split.kept].any():
            return None
        candidates = LADDER if self.policy is None else wider_than(head.hidden)

        def cost(hidden: tuple[int, ...]) -> Array:
            method = replace(
                self, policy=replace(head, hidden=hidden), restarts=min(RESTARTS, self.restarts), committee=1
            )
            stage = f"trying {layers(hidden)}"
            fitted = fit_width(method, split.data, stage, weights=by_episode * split.kept)
            return fitted.nats(split.held_out)

        return compare_widths(split, candidates, cost, by_episode)

    def fit_each(
        self,
        datasets: Sequence[Demonstrations],
        *,
        seeds: Sequence[int],
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> list[Ensemble]:
        """`fit` of each data set with its own seed, before the choice among restarts; all of them side by side.

        Each comes out as it would alone, but for rounding. Data sets that cannot stand side by side (continuous
        actions, legal actions, given skills, mini-batches, held-out episodes) are fitted one after the other. Widths
        are not compared: where `policy` is None, the network is the paper's.
        """
        began = time.monotonic()
        for data in datasets:
            check_demonstrations(data)
        seeds = [seed_of(seed) for seed in seeds]
        torch_device = resolve_device(device)
        starts = [self._start(data, seed, torch.device("cpu")) for data, seed in zip(datasets, seeds, strict=True)]
        if not all(stands_beside(start.prepared) for start in starts):
            starts = [self._start(data, seed, torch_device) for data, seed in zip(datasets, seeds, strict=True)]
        blocks = _blocks(starts, torch_device)
        found: list[Ensemble] = []
        for number, block in enumerate(blocks):
            callback = progress and partial(_in_part, progress, number, len(blocks))
            results = _optimise_block(block, self, torch_device, callback)
            seconds = (time.monotonic() - began) / len(block)
            found += [
                Ensemble.of(self, start, result, torch_device, seconds)
                for start, result in zip(block, results, strict=True)
            ]
            began = time.monotonic()
        return found

    def _start(self, data: Demonstrations, seed: int, device: torch.device, weights: Array | None = None) -> _Start:
        """The data made ready, and every restart where it begins."""
        parts = self.parts(data)
        _check_memory(self, parts, _sizes_at_least(self, data), device)
        prepared = prepare(
            data,
            parts,
            self.optimiser,
            seed=seed,
            device=device,
            members=self.restarts,
            normalise=self.normalise,
            weights=weights,
        )
        _check_memory(self, parts, prepared.sizes, device, prepared.sampler.batch().observations.shape[-1])
        generators = [stream(seed, "init", restart) for restart in range(self.restarts)]
        joint = Joint(parts, prepared.sizes, generators)
        if prepared.action_scale is not None:
            joint.policy.measure(prepared.action_scale)
        return _Start(data, seed, prepared, joint)


def _check_parts(method: Ileed) -> None:
    """Refuse what is no part of a model, or not the part that it stands for."""
    if method.policy is not None:
        rule = "pass CategoricalMLP(...), MixtureMLP(...) or MixtureLSTM(...), or None to follow the kind of actions"
        instance_of("policy", method.policy, AbstractPolicyHead, rule=rule)
    if method.demonstrator is not None:
        rule = "pass UniformMixture(), OneVersusRest(), Boltzmann() or VarianceScaling(), or None for the usual one"
        instance_of("demonstrator", method.demonstrator, AbstractDemonstratorModel, rule=rule)
    rule = "pass Embedded(), Constant(), Skills(column), or Perfect() for behaviour cloning"
    instance_of("expertise", method.expertise, AbstractExpertise, rule=rule)
    if method.dynamics is not None:
        instance_of("dynamics", method.dynamics, LatentDynamics, rule="pass LatentDynamics(), or None")


def _numbers(name: str, values: npt.ArrayLike) -> Array:
    """`values` in double precision."""
    masked = isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values)
    try:
        if not masked:
            return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        pass
    found = "hold masked values" if masked else f"are {shown(values)}"
    raise SettingsError(f"{name} {found}: pass one number for each episode")


def _sizes_at_least(method: Ileed, data: Demonstrations) -> Sizes:
    """What is known of a model's sizes before the data are collapsed: all but how many inputs vary."""
    column = method.expertise.skill_column
    return Sizes(
        inputs=0,
        demonstrators=len(data.names),
        actions=data.action_count if data.discrete else data.actions.shape[1],
        discrete=data.discrete,
        skills=0 if column is None else len(data.skill(column).names),
        has_legal_actions=data.legal is not None,
    )


def _check_memory(method: Ileed, parts: Parts, sizes: Sizes, device: torch.device, unique_count: int = 1) -> None:
    """Refuse a model that the device cannot hold, from sizes alone, along with parts that do not go together.

    It takes at least four numbers for each parameter (its value, its gradient and Adam's two moments), and one for
    each output of a layer at each of the `unique observations` that a step looks at.
    """
    available = available_memory(device)
    try:
        shapes = dict(Joint(parts, sizes, []).named_parameters())  # no members, so no memory either
    except RuntimeError:  # more numbers than 64 bits can count
        least = float("inf")
    else:
        parameters = sum(math.prod(each.shape[1:]) for each in shapes.values())
        outputs = sum(each.shape[1] for name, each in shapes.items() if name.endswith("bias"))
        least = method.restarts * (4 * parameters + unique_count * outputs) * torch.float32.itemsize
    if available is not None and least > available:
        found = "more than a billion" if least > 1e18 else f"{least / 1e9:,.2f}"
        raise SettingsError(
            f"this fit needs at least {found} GB of memory for its {method.restarts:,} restarts, and "
            f"{available / 1e9:,.2f} GB are available on {device.type}: lower hidden, dim, modes, restarts or "
            "batch_size, or the data's action_count"
        )


@final
@dataclass(frozen=True, eq=False)
class _Start:
    data: Demonstrations
    seed: int
    prepared: Prepared
    joint: Joint


@final
@dataclass(frozen=True, eq=False)
class Ensemble:
    """A fit before the choice: every restart where it ended."""

    method: Ileed
    data: Demonstrations
    seed: int
    collapsed: Collapsed
    normaliser: Normaliser
    result: OptimisationResult
    learned_from: Array  # (restart or 1, demonstrator) whether any step of somebody had a weight
    device: str
    seconds: float

    @classmethod
    def of(
        cls, method: Ileed, start: _Start, result: OptimisationResult, device: torch.device, seconds: float
    ) -> Ensemble:
        """What an optimisation found from a start; everything lies on the CPU from here on."""
        prepared = start.prepared
        found = replace(result, joint=result.joint.cpu().requires_grad_(False))
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        known = _learned_from(start.data, prepared.training_data.step_weight)
        return cls(method, start.data, start.seed, prepared.collapsed, prepared.normaliser, found, known, name, seconds)

    def fitted(self, *, among: int | None = None, committee: int | None = None) -> Fitted:
        """The likeliest of the first `among` restarts, or of all: what a fit with so many restarts would choose.

        `committee` overrides the method's own number of restarts that act together.
        """
        costs = self.result.nats_per_action[:among]
        likeliest = np.argsort(costs, kind="stable")[: committee or self.method.committee]
        if not np.isfinite(costs[likeliest]).all():
            raise SettingsError(
                f"committee is {len(likeliest)}, and only {np.isfinite(costs).sum()} of {len(costs)} restarts stayed "
                "finite: lower committee or learning_rate, or set clip"
            )
        data, normaliser, collapsed = self.data, self.normaliser, self.collapsed
        joint = members(self.result.joint, likeliest.tolist())
        known = self.learned_from[int(likeliest[0]) if len(self.learned_from) > 1 else 0]
        summary = _expertise_summary(joint, normaliser, collapsed, data, known)
        provenance = runs.provenance() | {
            "seed": self.seed,
            "device": self.device,
            "seconds": round(self.seconds, 3),
            "data": {
                "steps": len(data),
                "episodes": data.episode_count,
                "places": len(collapsed.observations),
                "fingerprint": data.fingerprint(),
            },
        }
        return Fitted(
            policy=Policy(joint, normaliser, data.encoding),
            expertise=Expertise(joint, normaliser, data.names, collapsed.skill_names, summary, data.encoding),
            restarts=Restarts(costs, int(likeliest[0])),
            history=self.result.history,
            outcome=self.result.history.outcome(int(likeliest[0]), self.result.guessing_nats),
            method=self.method,
            provenance=provenance,
            joint=joint,
            normaliser=normaliser,
        )


def _optimise_block(
    block: Sequence[_Start], method: Ileed, device: torch.device, callback: ProgressCallback | None
) -> list[OptimisationResult]:
    """OptimiserSettings with a block of data sets at once, and give each its own part of what was found."""
    first = block[0]
    if len(block) == 1 and (device.type == "cpu" or not stands_beside(first.prepared)):
        return [optimise(first.joint.to(device), first.prepared, method.optimiser, callback=callback)]
    joints = [start.joint for start in block]
    whole = models_side_by_side(joints).to(device)
    sampler = side_by_side([start.prepared for start in block], members=method.restarts, device=device)
    result = optimise(whole, sampler, method.optimiser, callback=callback)
    taken_apart(result.joint.cpu(), joints)
    return [
        result.part(start.joint, number * method.restarts, start.prepared.guessing_nats)
        for number, start in enumerate(block)
    ]


def _blocks(starts: Sequence[_Start], device: torch.device) -> list[list[_Start]]:
    """Data sets to optimise at once: as many as make good use of the device, in their own order."""
    most = _AT_ONCE[device.type]
    blocks: list[list[_Start]] = []
    held = 0
    for start in starts:
        counts = len(start.prepared.collapsed.observation_index) * len(next(start.joint.parameters()))
        alike = blocks and start.joint.can_stand_beside(blocks[-1][0].joint)
        if not alike or held + counts > most or not stands_beside(start.prepared):
            blocks.append([])
            held = 0
        blocks[-1].append(start)
        held += counts
    return blocks


_AT_ONCE = {"cpu": 400_000, "cuda": 200_000_000}  # members x cells: what a cache holds, and what a GPU's memory does


def _in_stage(callback: ProgressCallback, stage: str, progress: Progress) -> None:
    """Tell of a fit that is a stage of another."""
    callback(progress._replace(stage=stage))


def _in_part(callback: ProgressCallback, number: int, parts: int, progress: Progress) -> None:
    """Tell of one optimisation of several as of one long one."""
    callback(progress._replace(step=number * progress.steps + progress.step, steps=parts * progress.steps))


def bc(**settings: Any) -> Ileed:
    """Behaviour cloning: the joint model in which nobody ever errs."""
    return Ileed(expertise=Perfect(), **settings)


def bc_rnn(**settings: Any) -> Ileed:
    """Behaviour cloning with a memory, as robomimic's BC-RNN has it: one fit of `MixtureLSTM`, in 20,000 steps."""
    usual: dict[str, Any] = {"policy": MixtureLSTM(), "expertise": Perfect(), "restarts": 1, "steps": 20_000}
    return Ileed(**(usual | settings))


def load(path: str | Path) -> Fitted:
    """A fit as `Fitted.save` left it; whatever is not as it was written is refused here."""
    return restored(
        path_of("path", path, rule="pass the path of a run directory, as fitted.save(path) wrote it"), _KINDS
    )


_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Ileed, Parts, Sizes, CategoricalMLP, MixtureMLP, MixtureLSTM),
        *(UniformMixture, OneVersusRest, Boltzmann, VarianceScaling),
        *(Perfect, Constant, Embedded, Skills, LatentDynamics, Encoding, Feature, WidthComparison),
    )
}


@torch.no_grad()
def _expertise_summary(
    joint: Joint, normaliser: Normaliser, collapsed: Collapsed, data: Demonstrations, known: Array
) -> ExpertiseSummary:
    """Everybody's expertise at the observations of their own steps, and at the most frequent observations.

    Somebody who is not `known`, (demonstrator,), since no step of theirs was learned from, has none.
    """
    people = len(data.names)
    pairs, count = np.unique(collapsed.step_observation_index * people + data.demonstrator, return_counts=True)
    observation_index, person = pairs // people, pairs % people
    own = _expertise(joint, normaliser, collapsed, observation_index, person)
    by_person = np.argsort(person, kind="stable")
    bounds = np.searchsorted(person[by_person], np.arange(people + 1))
    average, quantiles = np.full(people, np.nan), np.full((people, 21), np.nan)
    for each in np.flatnonzero(known):
        theirs = by_person[bounds[each] : bounds[each + 1]]
        order = np.argsort(own[theirs])
        value, weight = own[theirs][order].astype(np.float64), count[theirs][order]
        average[each] = (value * weight).sum() / weight.sum()
        position = np.cumsum(weight) / weight.sum()
        quantiles[each] = value[np.searchsorted(position, np.linspace(0, 1, 21)).clip(max=len(value) - 1)]
    busiest = np.argsort(-np.bincount(collapsed.step_observation_index), kind="stable")[:_STATES]
    grid = _expertise(
        joint, normaliser, collapsed, np.repeat(busiest, people), np.tile(np.arange(people), len(busiest))
    ).reshape(len(busiest), people)
    grid[:, ~known] = np.nan
    column = np.full(len(collapsed.observations), -1)
    column[busiest] = np.arange(len(busiest))
    counted = column[observation_index] >= 0
    visits = np.zeros((people, len(busiest)), dtype=np.int64)
    visits[person[counted], column[observation_index[counted]]] = count[counted]
    return ExpertiseSummary(
        by_demonstrator=torch.tensor(average),
        quantiles=torch.tensor(quantiles),
        states=torch.tensor(grid.T.copy()),
        visits=torch.tensor(visits),
    )


def _learned_from(data: Demonstrations, step_weight: Array) -> Array:
    """(restart or 1, demonstrator) whether any of a person's steps had a weight."""
    rows = step_weight.reshape(-1, len(data))
    return np.stack([np.bincount(data.demonstrator, weights=row, minlength=len(data.names)) > 0 for row in rows])


def _expertise(
    joint: Joint, normaliser: Normaliser, collapsed: Collapsed, observation_index: Array, demonstrator: Array
) -> Array:
    """Expertise of the given demonstrators at the given unique observations of the data."""
    answer = ask(
        joint,
        normaliser.normalise(torch.from_numpy(np.ascontiguousarray(collapsed.observations.T))),
        demonstrator=torch.from_numpy(demonstrator),
        skills=None if collapsed.skills is None else torch.from_numpy(np.ascontiguousarray(collapsed.skills.T)),
        observation_index=torch.from_numpy(observation_index),
    )
    return np.asarray(answer.expertise[0].numpy())


def _fingerprint(method: Ileed, data: Demonstrations, seed: int, device: torch.device, weights: Array | None) -> str:
    """Names everything that an optimisation's bits depend on, but the number of threads, which its checkpoint holds."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([runs.plain(method), data.fingerprint(), seed, device.type], sort_keys=True).encode())
    if weights is not None:
        digest.update(np.ascontiguousarray(weights).tobytes())
    return digest.hexdigest()
