"""Methods: frozen settings with `.fit(demonstrations, seed=...)`, of which behaviour cloning is one."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from ileed import runs
from ileed._torch import resolve_device, stream
from ileed.demonstrations import Array, Collapsed, Demonstrations
from ileed.errors import SettingsError
from ileed.fitting import (
    Ascent,
    Checkpoint,
    Climb,
    History,
    Outcome,
    Prepared,
    Progress,
    Watcher,
    climb,
    prepare,
    side_by_side,
    stands_beside,
)
from ileed.model.batch import Batch, Sizes
from ileed.model.demonstrators import Boltzmann, OneVersusRest, UniformMixture, VarianceScaling
from ileed.model.dynamics import LatentDynamics
from ileed.model.expertise import Constant, Embedded, Perfect, Skills
from ileed.model.joint import Joint, Parts, taken_apart
from ileed.model.joint import side_by_side as models_side_by_side
from ileed.model.lens import Lens
from ileed.model.policies import CategoricalMLP, GaussianNet, MixtureLSTM, MixtureMLP
from ileed.nets import members
from ileed.policy import Expertise, Fitted, Policy, Restarts, Survey

_STATES = 60  # how many of the most visited observations a survey keeps


@final
@dataclass(frozen=True, kw_only=True)
class Ileed:
    """Imitation learning by estimating expertise of demonstrators: one policy and everybody's expertise, jointly.

    `restarts` independent fits run side by side, and the one of greatest likelihood is kept.
    """

    policy: CategoricalMLP | MixtureMLP | MixtureLSTM | None = None
    """The policy's network; None follows the kind of actions."""
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
        if self.restarts < 1 or self.restarts != int(self.restarts):
            raise SettingsError(f"restarts is {self.restarts}: a fit needs a whole number of them, one or more")
        if not 1 <= self.committee <= self.restarts:
            raise SettingsError(
                f"committee is {self.committee}: it takes between one and all {self.restarts} of the restarts"
            )
        self.climb  # noqa: B018 (refuses impossible settings now rather than at the fit)

    @property
    def climb(self) -> Climb:
        """The part of the settings that says how to climb."""
        return Climb(**{item.name: getattr(self, item.name) for item in fields(Climb)})

    def parts(self, data: Demonstrations) -> Parts:
        """The model's parts, with what was left to the data filled in."""
        policy = self.policy or (CategoricalMLP() if data.discrete else MixtureMLP())
        demonstrator = self.demonstrator or (UniformMixture() if data.discrete else VarianceScaling())
        if isinstance(demonstrator, VarianceScaling) and demonstrator.exempt is None:
            demonstrator = replace(demonstrator, exempt=data.two_valued)
        return Parts(policy, demonstrator, self.expertise, self.dynamics)

    def fit(
        self,
        demonstrations: Demonstrations,
        *,
        seed: int,
        device: str = "auto",
        weights: npt.ArrayLike | None = None,
        progress: Watcher | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 5.0,
    ) -> Fitted:
        """Fit to the data; the same seed on the same machine gives the same bits.

        `weights` counts each episode that many times: (episode,), or (restart, episode) to give each restart its own.
        `progress` is called with a `Progress` now and then. `checkpoint` names a file that is written every few seconds
        and from which an interrupted fit, called again with the same arguments, goes on. It is written at the end too,
        and stays until the fit is saved: `Fitted.save` removes it.
        """
        began = time.monotonic()
        place = resolve_device(device)
        weighed = None if weights is None else np.asarray(weights, dtype=np.float64)
        start = self._start(demonstrations, seed, place, weighed)
        file = None
        if checkpoint is not None:
            fingerprint = _fingerprint(self, demonstrations, seed, place, weighed)
            file = Checkpoint(Path(checkpoint), fingerprint=fingerprint, seconds=checkpoint_seconds)
        ascent = climb(start.joint.to(place), start.prepared, self.climb, checkpoint=file, watch=progress)
        fitted = Ascended.of(self, start, ascent, place, time.monotonic() - began).fitted()
        return replace(fitted, checkpoint=file)

    def ascend_each(
        self,
        datasets: Sequence[Demonstrations],
        *,
        seeds: Sequence[int],
        device: str = "auto",
        progress: Watcher | None = None,
    ) -> list[Ascended]:
        """`fit` of each data set with its own seed, before the choice among restarts; all of them side by side.

        Each comes out as it would alone, but for rounding. Data sets that cannot stand side by side (continuous
        actions, legal actions, given skills, mini-batches, held-out episodes) are fitted one after the other.
        """
        began = time.monotonic()
        place = resolve_device(device)
        starts = [self._start(data, seed, torch.device("cpu")) for data, seed in zip(datasets, seeds, strict=True)]
        if not all(stands_beside(start.prepared) for start in starts):
            starts = [self._start(data, seed, place) for data, seed in zip(datasets, seeds, strict=True)]
        blocks = _blocks(starts, place)
        found: list[Ascended] = []
        for number, block in enumerate(blocks):
            watch = progress and partial(_in_part, progress, number, len(blocks))
            ascents = _ascents(block, self, place, watch)
            seconds = (time.monotonic() - began) / len(block)
            found += [
                Ascended.of(self, start, ascent, place, seconds) for start, ascent in zip(block, ascents, strict=True)
            ]
            began = time.monotonic()
        return found

    def _start(self, data: Demonstrations, seed: int, device: torch.device, weights: Array | None = None) -> _Start:
        """The data made ready, and every restart where it begins."""
        parts = self.parts(data)
        prepared = prepare(
            data,
            self.climb,
            seed=seed,
            device=device,
            members=self.restarts,
            normalise=self.normalise,
            skill=self.expertise.column if isinstance(self.expertise, Skills) else None,
            transitions=self.dynamics is not None,
            weights=weights,
            length=parts.policy.length,
        )
        generators = [stream(seed, "init", restart) for restart in range(self.restarts)]
        joint = Joint(parts, prepared.sizes, generators)
        if prepared.action_scale is not None and isinstance(joint.policy, GaussianNet):
            joint.policy.measure(prepared.action_scale)
        return _Start(data, seed, prepared, joint)


@final
@dataclass(frozen=True, eq=False)
class _Start:
    data: Demonstrations
    seed: int
    prepared: Prepared
    joint: Joint


@final
@dataclass(frozen=True, eq=False)
class Ascended:
    """A fit before the choice: every restart where it ended."""

    method: Ileed
    data: Demonstrations
    seed: int
    collapsed: Collapsed
    lens: Lens
    ascent: Ascent
    device: str
    seconds: float

    @classmethod
    def of(cls, method: Ileed, start: _Start, ascent: Ascent, device: torch.device, seconds: float) -> Ascended:
        """What a climb found from a start; everything lies on the CPU from here on."""
        prepared = start.prepared
        found = replace(ascent, joint=ascent.joint.cpu().requires_grad_(False))
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        return cls(method, start.data, start.seed, prepared.collapsed, prepared.lens, found, name, seconds)

    def fitted(self, *, among: int | None = None, committee: int | None = None) -> Fitted:
        """The likeliest of the first `among` restarts, or of all: what a fit with so many restarts would choose.

        `committee` overrides the method's own number of restarts that act together.
        """
        costs = self.ascent.nats_per_action[:among]
        likeliest = np.argsort(costs, kind="stable")[: committee or self.method.committee]
        data, lens, collapsed = self.data, self.lens, self.collapsed
        joint = members(self.ascent.joint, likeliest.tolist())
        survey = _survey(joint, lens, collapsed, data)
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
            policy=Policy(joint, lens),
            expertise=Expertise(joint, lens, data.names, collapsed.skill_names, survey),
            restarts=Restarts(costs, int(likeliest[0])),
            history=self.ascent.history,
            outcome=self.ascent.outcome,
            method=self.method,
            provenance=provenance,
            joint=joint,
            lens=lens,
        )


def _ascents(block: Sequence[_Start], method: Ileed, device: torch.device, watch: Watcher | None) -> list[Ascent]:
    """Climb with a block of data sets at once, and give each its own part of what was found."""
    first = block[0]
    if len(block) == 1 and (device.type == "cpu" or not stands_beside(first.prepared)):
        return [climb(first.joint.to(device), first.prepared, method.climb, watch=watch)]
    joints = [start.joint for start in block]
    whole = models_side_by_side(joints).to(device)
    supply = side_by_side([start.prepared for start in block], members=method.restarts, device=device)
    ascent = climb(whole, supply, method.climb, watch=watch)
    taken_apart(ascent.joint.cpu(), joints)
    return [ascent.part(joint, number * method.restarts) for number, joint in enumerate(joints)]


def _blocks(starts: Sequence[_Start], device: torch.device) -> list[list[_Start]]:
    """Data sets to climb with at once: as many as make good use of the device, in their own order."""
    most = _AT_ONCE[device.type]
    blocks: list[list[_Start]] = []
    held = 0
    for start in starts:
        cells = len(start.prepared.collapsed.place) * len(next(start.joint.parameters()))
        alike = blocks and start.joint.parts == blocks[-1][0].joint.parts  # the same gripper, where there is one
        if not alike or held + cells > most or not stands_beside(start.prepared):
            blocks.append([])
            held = 0
        blocks[-1].append(start)
        held += cells
    return blocks


_AT_ONCE = {"cpu": 400_000, "cuda": 200_000_000}  # members x cells: what a cache holds, and what a GPU's memory does


def _in_part(watch: Watcher, number: int, parts: int, progress: Progress) -> None:
    """Tell of one climb of several as of one long one."""
    watch(progress._replace(step=number * progress.steps + progress.step, steps=parts * progress.steps))


def bc(**settings: Any) -> Ileed:
    """Behaviour cloning: the joint model in which nobody ever errs."""
    return Ileed(expertise=Perfect(), **settings)


def bc_rnn(**settings: Any) -> Ileed:
    """Behaviour cloning with a memory, as robomimic's BC-RNN has it: one fit of `MixtureLSTM`, in 20,000 steps."""
    usual: dict[str, Any] = {"policy": MixtureLSTM(), "expertise": Perfect(), "restarts": 1, "steps": 20_000}
    return Ileed(**(usual | settings))


def load(path: str | Path) -> Fitted:
    """A fit as `Fitted.save` left it."""
    run = runs.read_run(Path(path))
    try:
        parts, sizes, method = (runs.rebuilt(run.settings[name], _KINDS) for name in ("parts", "sizes", "method"))
        settings, weights = run.settings, run.weights
        kept = [stream(0, "loaded", place) for place in range(method.committee)]
        joint = Joint(parts, sizes, kept)
        joint.load_state_dict(_named(weights, "joint."))
        lens = Lens(settings["observation_shape"], **_named(weights, "lens."))
        names = tuple(settings["demonstrators"])
        expertise = Expertise(joint, lens, names, tuple(settings["skills"]), Survey(**_named(weights, "survey.")))
        costs = [np.inf if cost is None else cost for cost in settings["restarts"]]
        restarts = Restarts(np.array(costs), settings["chosen"])
        outcome = Outcome[settings["outcome"]]
        history = History.of(list(run.history))
    except SettingsError:
        raise
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise runs.damaged(path, error) from error
    return Fitted(
        policy=Policy(joint, lens),
        expertise=expertise,
        restarts=restarts,
        history=history,
        outcome=outcome,
        method=method,
        provenance=run.provenance,
        joint=joint,
        lens=lens,
    )


_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Ileed, Parts, Sizes, CategoricalMLP, MixtureMLP, MixtureLSTM),
        *(UniformMixture, OneVersusRest, Boltzmann, VarianceScaling),
        *(Perfect, Constant, Embedded, Skills, LatentDynamics),
    )
}


def _named(tensors: Any, prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@torch.no_grad()
def _survey(joint: Joint, lens: Lens, collapsed: Collapsed, data: Demonstrations) -> Survey:
    """Everybody's expertise at the places they visited, and at the places most visited by all."""
    people = len(data.names)
    pairs, count = np.unique(collapsed.step_place * people + data.demonstrator, return_counts=True)
    own = _expertise(joint, lens, collapsed, pairs // people, pairs % people)
    visits = np.zeros((people, len(collapsed.observations)), dtype=np.int64)
    visits[pairs % people, pairs // people] = count
    average, quantiles = [], []
    for person in range(people):
        theirs = pairs % people == person
        order = np.argsort(own[theirs])
        value, weight = own[theirs][order].astype(np.float64), count[theirs][order]
        average.append((value * weight).sum() / weight.sum() if len(value) else np.nan)
        position = np.cumsum(weight) / weight.sum() if len(value) else np.array([])
        index = np.searchsorted(position, np.linspace(0, 1, 21)).clip(max=max(len(value) - 1, 0))
        quantiles.append(value[index] if len(value) else np.full(21, np.nan))
    busiest = np.argsort(-visits.sum(0), kind="stable")[:_STATES]
    grid = _expertise(
        joint, lens, collapsed, np.repeat(busiest, people), np.tile(np.arange(people), len(busiest))
    ).reshape(len(busiest), people)
    return Survey(
        by_demonstrator=torch.tensor(np.array(average)),
        quantiles=torch.tensor(np.stack(quantiles)),
        states=torch.tensor(grid.T.copy()),
        visits=torch.tensor(visits[:, busiest]),
    )


def _expertise(joint: Joint, lens: Lens, collapsed: Collapsed, place: Array, demonstrator: Array) -> Array:
    """Expertise of the given demonstrators at the given places of the data."""
    batch = Batch.of(
        sizes=replace(joint.sizes, discrete=False),  # no action is asked about
        observations=lens.focus(torch.from_numpy(np.ascontiguousarray(collapsed.observations.T))),
        place=torch.from_numpy(place),
        demonstrator=torch.from_numpy(demonstrator),
        action=torch.zeros(0),
        weight=torch.zeros(0),
        skills=None if collapsed.skills is None else torch.from_numpy(np.ascontiguousarray(collapsed.skills.T)),
    )
    return np.asarray(joint.expertise_at(batch)[0].numpy())


def _fingerprint(method: Ileed, data: Demonstrations, seed: int, device: torch.device, weights: Array | None) -> str:
    """Names everything that a climb's bits depend on, but the number of threads, which its checkpoint holds."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([runs.plain(method), data.fingerprint(), seed, device.type], sort_keys=True).encode())
    if weights is not None:
        digest.update(np.ascontiguousarray(weights).tobytes())
    return digest.hexdigest()
