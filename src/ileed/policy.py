"""What a fit leaves behind: a policy to act with, an expertise to ask, and how both came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isnan, log
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily

from ileed import runs
from ileed._torch import stream
from ileed.checking import path_of, seed_of, shown
from ileed.demonstrations import Array, Demonstrations, Encoding, check_demonstrations
from ileed.demonstrations.encoding import is_table
from ileed.demonstrations.rules import as_array, listed
from ileed.errors import DemonstrationError, SettingsError
from ileed.exporting import PolicyModule, policy_module, write_onnx
from ileed.fitting import Checkpoint, History, Outcome
from ileed.fitting.windows import episode_ends, tiles
from ileed.model.batch import Batch
from ileed.model.expertise import Perfect, Skills
from ileed.model.joint import Joint
from ileed.model.normaliser import Normaliser
from ileed.model.policies import Choice, RecurrentNet, mixture, mixture_parts
from ileed.width import WidthComparison


@final
class Policy:
    """The learned policy: takes observations as they come, in their own units and with all their numbers.

    Where several restarts were kept, it is the mean of their distributions.

    `act` answers with the most likely actions, or draws them with `sample=True` from a random stream of the policy's
    own, which `reset(seed)` starts anew. `predict` is the same for stable-baselines3's evaluators.

    A policy with a memory remembers from one call to the next: each row is an episode that goes on, until `reset`.
    `predict` leaves that to its caller, who passes the state that it returned.

    A policy that learned from a table has an `encoding`, and takes tables as well: a DataFrame of pandas or polars, an
    Arrow table, or a mapping of columns, with the columns that it learned from. `act` answers a table with the action's
    labels, and an array with their numbers.
    """

    def __init__(self, joint: Joint, normaliser: Normaliser, encoding: Encoding | None = None) -> None:
        self.encoding = encoding
        self._net, self._normaliser, self._sizes = joint.policy.eval(), normaliser, joint.sizes
        self._generator = stream(0, "act")
        self._state: State | None = None

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self._normaliser.shape

    @property
    def action_count(self) -> int:
        """How many discrete actions it chooses among; 0 where actions are continuous."""
        return self._sizes.actions if self._sizes.discrete else 0

    @property
    def action_size(self) -> int:
        """How many numbers a continuous action has; 0 where actions are discrete."""
        return 0 if self._sizes.discrete else self._sizes.actions

    def reset(self, seed: int = 0) -> None:
        """Forget the episode so far and start the stream of sampled actions anew."""
        self._generator = stream(seed_of(seed), "act")
        self._state = None

    @torch.no_grad()
    def distribution(
        self, observations: Array | Tensor | Any, *, legal: Array | Tensor | None = None
    ) -> Categorical | MixtureSameFamily:
        """The policy's distribution of actions after each of (row, *shape) observations.

        A policy with a memory takes them as the next of as many episodes.
        """
        found, self._state = self._next(_encoded(observations, self.encoding), self._state, None, legal=legal)
        return found

    def next_distribution(
        self,
        observations: Array | Tensor | Any,
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
    ) -> tuple[Categorical | MixtureSameFamily, tuple[Array, ...] | None]:
        """`distribution` with the hidden state passed in and returned, as `predict` does; the policy keeps none of it.

        Rows for which `episode_start` is true begin without a hidden state. A policy that is not recurrent returns the
        state as it was given.
        """
        starts = None if episode_start is None else np.asarray(episode_start, dtype=bool)
        return self._next(_encoded(observations, self.encoding), state, starts)

    def act(
        self, observations: Array | Tensor | Any, *, sample: bool = False, legal: Array | Tensor | None = None
    ) -> Array:
        """One action for each observation: the most likely one, or one drawn from the policy."""
        chosen = self._chosen(self.distribution(observations, legal=legal), sample=sample)
        return self.encoding.decode(chosen) if self.encoding is not None and is_table(observations) else chosen

    def predict(
        self,
        observation: Array,
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, tuple[Array, ...] | None]:
        """`act` under the signature that stable-baselines3's evaluators call; one observation or a batch of them."""
        single = np.shape(observation) == self._normaliser.shape
        batch = np.asarray(observation)[None] if single else observation
        starts = None if episode_start is None else np.atleast_1d(np.asarray(episode_start, dtype=bool))
        distribution, state = self._next(batch, state, starts)
        actions = self._chosen(distribution, sample=not deterministic)
        return (actions[0] if single else actions), state

    def to_module(self) -> PolicyModule:
        """The policy as a `torch.nn.Module` that takes observations as they come, with weights of its own.

        It can be trained further, and what `torch.export.save` writes of it runs without this package. For discrete
        actions `module(observations)` is their log-probabilities (batch, action), for continuous ones the log-weights,
        means and standard deviations of a mixture of Gaussians. A recurrent policy takes a state as well, at first
        `module.initial_state(batch)`, and returns the next. Where several restarts act together, so they do here.
        """
        return policy_module(self._net, self._normaliser)

    def to_onnx(self, path: str | Path) -> None:
        """Write the policy as an ONNX file, for any number of observations at a time; needs the extra `onnx`.

        Its input is `observations`, in 32 bits; its outputs are `action`, the most likely one, and what `to_module`
        returns. A recurrent policy has its state as further inputs and, as `next_...`, outputs. Nothing is written
        unless onnxruntime's answers agree with the policy's within 1e-4.
        """
        write_onnx(self.to_module(), Path(path), ours=self._next)

    @torch.no_grad()
    def _next(
        self,
        observations: Array | Tensor,
        state: State | None,
        starts: Array | None,
        *,
        legal: Array | Tensor | None = None,
    ) -> tuple[Categorical | MixtureSameFamily, State | None]:
        """What to do next, and what to remember; rows that start an episode remember nothing."""
        seen = self._normaliser(_batched(observations, self._normaliser.shape))
        if isinstance(self._net, RecurrentNet):
            mixtures, state = _walked(self._net, seen, state, starts)
            return mixture(*_modes_of_all_members(*mixture_parts(mixtures))), state
        allowed = None if legal is None else self._legal(legal, seen.shape[1]).T
        found = self._net(seen, allowed)
        if isinstance(found, Choice):
            checked = None if seen.shape[1] else False  # torch's own checks fail where there is nothing to check
            return Categorical(logits=_mean_of_members(found.logits), validate_args=checked), state
        return mixture(*_modes_of_all_members(*mixture_parts(found))), state

    def _chosen(self, distribution: Categorical | MixtureSameFamily, *, sample: bool) -> Array:
        if sample:
            chosen = self._drawn(distribution)
        elif isinstance(distribution, MixtureSameFamily) and getattr(self._net, "low_noise", False):
            chosen = self._drawn(distribution, noise=False)
        else:
            chosen = _most_likely(distribution)
        return np.asarray(chosen.numpy())

    def _drawn(self, distribution: Categorical | MixtureSameFamily, *, noise: bool = True) -> Tensor:
        if isinstance(distribution, Categorical):
            return torch.multinomial(distribution.probs, 1, generator=self._generator)[:, 0]
        logits, means, deviations = mixture_parts(distribution)
        mode = torch.multinomial(logits.softmax(-1), 1, generator=self._generator)[..., None]
        index = mode.expand(-1, 1, means.shape[-1])
        centre, deviation = (part.gather(1, index)[:, 0] for part in (means, deviations))
        return (
            centre if noise == 0 else centre + noise * deviation * torch.randn(centre.shape, generator=self._generator)
        )

    def _legal(self, legal: Array | Tensor, rows: int) -> Tensor:
        tensor = _tensor(legal).bool()
        if tensor.shape != (rows, self._sizes.actions):
            raise DemonstrationError(
                f"legal actions have shape {tuple(tensor.shape)}: pass ({rows}, {self._sizes.actions})"
            )
        if not tensor.any(1).all():
            raise DemonstrationError("some observation has no legal action: there must be one or more for each")
        return tensor


State = tuple[Array, ...]
"""What a policy remembers of every row: two arrays for each layer, (row, member, unit), and the row's age in steps."""


def _walked(
    net: RecurrentNet, seen: Tensor, state: State | None, starts: Array | None
) -> tuple[MixtureSameFamily, State]:
    """One step of every row; a row forgets at the start of an episode, and after as many steps as it learned from."""
    rows = seen.shape[1]
    if state is not None and len(state[-1]) != rows:
        raise DemonstrationError(
            f"there are {rows} observations, and the policy remembers {len(state[-1])} episodes: pass as many, "
            "or reset() the policy"
        )
    age = np.zeros(rows, dtype=np.int64) if state is None else state[-1]
    if starts is not None:
        age = np.where(starts, 0, age)
    memory = net.nothing(rows)
    if state is not None:
        kept = torch.from_numpy(age % net.length > 0)
        pairs = zip(state[:-1:2], state[1:-1:2], strict=True)
        memory = [(_remembered(hidden, kept), _remembered(cell, kept)) for hidden, cell in pairs]
    mixtures, memory = net.step(seen, memory)
    after = [values.permute(2, 0, 1).numpy() for pair in memory for values in pair]
    return mixtures, (*after, age + 1)


def _remembered(values: Array, kept: Tensor) -> Tensor:
    """(member, unit, row) from (row, member, unit), with nothing in the rows that are not kept."""
    return torch.from_numpy(values).permute(1, 2, 0) * kept


def _mean_of_members(log_probs: Tensor) -> Tensor:
    """(row, action) log of the members' mean probability, from (member, row, action)."""
    return log_probs[0] if len(log_probs) == 1 else log_probs.logsumexp(0) - log(len(log_probs))


def _modes_of_all_members(logits: Tensor, means: Tensor, deviations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of the members' mixtures is one mixture of all their components."""
    return torch.cat(list(logits.log_softmax(-1)), -1), torch.cat(list(means), -2), torch.cat(list(deviations), -2)


def _most_likely(distribution: Categorical | MixtureSameFamily) -> Tensor:
    """The likeliest action, or the centre of the heaviest component."""
    if isinstance(distribution, Categorical):
        return distribution.logits.argmax(-1)
    logits, means, _ = mixture_parts(distribution)
    return means[torch.arange(len(means)), logits.argmax(-1)]


def _encoded(observations: Any, encoding: Encoding | None) -> Any:
    """The observations of a table, where the fit knows its columns; arrays as they are."""
    return observations if encoding is None or not is_table(observations) else encoding.encode(observations)


def _batched(observations: Array | Tensor, shape: tuple[int, ...]) -> Tensor:
    tensor = _tensor(observations, "observations")
    if tuple(tensor.shape[1:]) != shape:
        raise DemonstrationError(
            f"observations have shape {tuple(tensor.shape)}: this policy learned from observations of shape {shape}, "
            f"so pass (number of observations, {', '.join(str(size) for size in shape)})"
        )
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise DemonstrationError("observations hold NaN or infinite values: leave those out, or repair them")
    return tensor


def _tensor(values: Array | Tensor, name: str = "values") -> Tensor:
    """A tensor of its own: torch does not know of arrays that must not be written to."""
    if isinstance(values, Tensor):
        return values
    array = as_array(name, values)
    if array.dtype.kind not in "biuf":
        raise DemonstrationError(f"{name} are {array.dtype}, not numbers: pass them as the fit was given them")
    return torch.from_numpy(np.array(array))


@final
@dataclass(frozen=True, eq=False)
class ExpertiseSummary:
    """Expertise where it was used in the data, kept beside the model so that a report needs no data.

    `by_demonstrator` averages over each person's own steps; `quantiles` (demonstrator, 21) is the spread over the same
    steps; `states` (demonstrator, state) holds the most visited observations, which `visits` (demonstrator, state)
    counts.
    """

    by_demonstrator: Tensor
    quantiles: Tensor
    states: Tensor
    visits: Tensor


@final
class Expertise:
    """Estimated expertise: of anybody, at any observation, in [0, 1].

    Read it as a comparison. Under every demonstrator model the likelihood fixes ratios of expertise, and only a sharp
    policy fixes their absolute level.
    """

    def __init__(
        self,
        joint: Joint,
        normaliser: Normaliser,
        names: tuple[str, ...],
        skill_names: tuple[str, ...],
        summary: ExpertiseSummary,
        encoding: Encoding | None = None,
    ) -> None:
        self._joint, self._normaliser, self._encoding = joint, normaliser, encoding
        self.names, self.skill_names, self.summary = names, skill_names, summary

    def by_demonstrator(self) -> dict[str, float]:
        """Each demonstrator's expertise, averaged over that person's own steps.

        Somebody of whom no step was learned from (none is in the data, or all have weight 0) has none: NaN.
        """
        return dict(zip(self.names, self.summary.by_demonstrator.tolist(), strict=True))

    def ranking(self) -> list[tuple[str, float]]:
        """Demonstrators and their expertise, best first; those who have none, NaN, stand last."""
        return sorted(self.by_demonstrator().items(), key=lambda item: (isnan(item[1]), -item[1]))

    @torch.no_grad()
    def by_skill(self) -> dict[str, dict[str, float]]:
        """Each demonstrator's expertise in each named skill; for fits with `Skills` alone."""
        if not self.skill_names:
            raise SettingsError("this fit names no skills: fit with expertise=Skills(column)")
        values = self._joint.expertise.skill[0].sigmoid()
        values = torch.where(self.summary.by_demonstrator.isnan(), torch.nan, values)
        return {
            name: dict(zip(self.skill_names, values[:, person].tolist(), strict=True))
            for person, name in enumerate(self.names)
        }

    def by_label(self, data: Demonstrations, column: str) -> dict[str, dict[str, float]]:
        """Everybody's mean expertise over their own steps in `data`, for each label of a column of its skills."""
        if self.skill_names:
            return self.by_skill()
        labels = np.asarray(data.skills[column])
        found: dict[str, dict[str, float]] = {}
        for person, name in enumerate(data.names):
            own = data.demonstrator == person
            expertise = self(data.observations[own], name)
            found[name] = {
                str(label): float(expertise[labels[own] == label].mean()) for label in np.unique(labels[own])
            }
        return found

    @torch.no_grad()
    def __call__(
        self, observations: Array | Tensor | Any, demonstrator: str, *, skills: Array | Tensor | None = None
    ) -> Array:
        """One demonstrator's expertise at each of (row, *shape) observations, or at each row of a table.

        `skills` (row, skill) is needed where the fit was given the embedding (`Skills`).
        """
        if demonstrator not in self.names:
            raise DemonstrationError(
                f"there is no demonstrator {shown(demonstrator)}: this fit knows {listed(self.names)}"
            )
        seen = self._normaliser(_batched(_encoded(observations, self._encoding), self._normaliser.shape))
        rows = seen.shape[1]
        wanted = (rows, len(self.skill_names))
        if self.skill_names and (skills is None or np.shape(skills) != wanted):
            found = "none" if skills is None else str(np.shape(skills))
            raise SettingsError(
                f"expertise depends on given skills and {found} were passed: pass skills of shape {wanted}, "
                f"for {', '.join(self.skill_names)}"
            )
        if isnan(self.summary.by_demonstrator[self.names.index(demonstrator)]) or not rows:
            return np.full(rows, np.nan, dtype=np.float32)
        sizes = self._joint.sizes
        batch = Batch.of(
            sizes=sizes,
            observations=seen,
            observation_index=torch.arange(rows),
            demonstrator=torch.full((rows,), self.names.index(demonstrator)),
            action=torch.zeros(rows, dtype=torch.long),
            weight=torch.ones(rows),
            skills=None if skills is None else _tensor(skills).float().T,
        )
        return np.asarray(self._joint.expertise_at(batch)[0].numpy())


_JUDGED_AT_ONCE = 4096


@final
@dataclass(frozen=True, eq=False)
class Restarts:
    """Every restart's cost in nats per action (lower is better), and which one was chosen."""

    nats_per_action: Array
    chosen: int


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit: `policy` to act with, `expertise` to ask, `restarts`, `history` and `outcome` to judge it by."""

    policy: Policy
    expertise: Expertise
    restarts: Restarts
    history: History
    outcome: Outcome
    method: Any
    provenance: Mapping[str, Any]
    joint: Joint
    normaliser: Normaliser
    width: WidthComparison | None = None
    checkpoints: tuple[Checkpoint, ...] = ()  # from which this fit can be had again until it is saved

    @property
    def width_sentence(self) -> str:
        """What the comparison of widths chose and why, or whether a wider policy would do better; empty without one."""
        if self.width is None:
            return ""
        if self.method.policy is None:
            return self.width.choice()
        return self.width.diagnosis(type(self.method.policy).__name__)

    @property
    def nats_per_action(self) -> float:
        """The chosen restart's cost: mean negative log-likelihood of an action, in nats."""
        return float(self.restarts.nats_per_action[self.restarts.chosen])

    @property
    def estimates_expertise(self) -> bool:
        """Whether this is more than behaviour cloning, under which everybody's expertise is one by assumption."""
        return not isinstance(self.joint.parts.expertise, Perfect)

    @torch.no_grad()
    def nats(self, data: Demonstrations) -> Array:
        """Cost of each step of other data by the same people, (step,): its negative log-likelihood, in nats.

        Held-out data tell whether the model, not only its fit, is good; a policy with a memory forgets as it does when
        it acts.
        """
        check_demonstrations(data)
        position = {name: number for number, name in enumerate(self.expertise.names)}
        if strangers := [name for name in data.names if name not in position]:
            raise DemonstrationError(
                f"there is no demonstrator {strangers[0]!r}: this fit knows {listed(self.expertise.names)}"
            )
        if data.encoding is not None and data.encoding != self.policy.encoding:
            raise DemonstrationError(
                "the data were encoded otherwise than those of the fit, so that their numbers mean something else: "
                "read them with from_table(..., encoding=fitted.policy.encoding)"
            )
        known = np.array([position[name] for name in data.names])
        skills = self._skills_of(data)
        length = self.joint.parts.policy.length
        step = np.arange(len(data))[None]
        inside = np.ones_like(step, dtype=bool)
        if length > 1:
            begin, ends = tiles(data.episode, length), episode_ends(data.episode)
            step = begin + np.arange(length)[:, None]  # time steps first, as the network walks along them
            inside = step <= ends[begin]
            step = np.minimum(step, ends[begin])
        costs = np.empty(len(data))
        for block in range(0, step.shape[1], _JUDGED_AT_ONCE):
            rows, real = (part[:, block : block + _JUDGED_AT_ONCE].ravel() for part in (step, inside))
            batch = Batch.of(
                sizes=self.joint.sizes,
                observations=self.normaliser(_tensor(data.observations[rows])),
                observation_index=torch.arange(len(rows)),
                demonstrator=torch.from_numpy(known[data.demonstrator[rows]]),
                action=_tensor(data.actions[rows] if data.discrete else data.actions[rows].astype(np.float32)),
                weight=torch.ones(len(rows)),
                legal=None if data.legal is None else _tensor(data.legal[rows].T),
                skills=None if skills is None else _tensor(skills[rows].T),
            )
            costs[rows[real]] = -self.joint.log_likelihood(batch)[0].numpy()[real]
        return costs

    def _skills_of(self, data: Demonstrations) -> Array | None:
        """(step, skill) weights of the skills that this fit knows, where it was given any."""
        expertise = self.joint.parts.expertise
        if not isinstance(expertise, Skills):
            return None
        weights, names = data.skill(expertise.column)
        if unknown := [name for name in names if name not in self.expertise.skill_names]:
            known = ", ".join(map(repr, self.expertise.skill_names))
            raise DemonstrationError(f"there is no skill {unknown[0]!r}: this fit knows {known}")
        placed = np.zeros((len(data), len(self.expertise.skill_names)), dtype=np.float32)
        placed[:, [self.expertise.skill_names.index(name) for name in names]] = weights
        return placed

    def renamed(self, names: Mapping[str, str]) -> Fitted:
        """The same fit with other names for its demonstrators, such as pseudonyms."""
        asked = self.expertise
        expertise = Expertise(
            asked._joint,
            asked._normaliser,
            tuple(names[name] for name in asked.names),
            asked.skill_names,
            asked.summary,
            asked._encoding,
        )
        return replace(self, expertise=expertise)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a run directory, whole or not at all; then remove the checkpoint of this fit, if it had one.

        A run that is already there is refused, or replaced with `overwrite`; files in it that are not ours stay.
        """
        path = path_of("path", path, rule="pass the path of a directory to write")
        sizes = self.joint.sizes
        summary = self.expertise.summary
        settings: dict[str, Any] = {
            "method": runs.plain(self.method),
            "parts": runs.plain(self.joint.parts),
            "sizes": runs.plain(sizes),
            "observation_shape": list(self.normaliser.shape),
            "demonstrators": list(self.expertise.names),
            "skills": list(self.expertise.skill_names),
            "restarts": [float(cost) if np.isfinite(cost) else None for cost in self.restarts.nats_per_action],
            "chosen": self.restarts.chosen,
            "outcome": self.outcome.name,
            "width": runs.plain(self.width),
        }
        if self.policy.encoding is not None:
            settings["encoding"] = runs.plain(self.policy.encoding)
        weights = (
            {f"joint.{name}": value for name, value in self.joint.state_dict().items()}
            | {f"lens.{name}": value for name, value in self.normaliser.state_dict().items()}
            | {f"survey.{name}": value for name, value in vars(summary).items()}
        )
        contiguous = {name: value.contiguous() for name, value in weights.items()}
        run = runs.Run(settings, self.provenance, list(self.history.rows()), contiguous)
        runs.write_run(Path(path), run, overwrite=overwrite)
        for checkpoint in self.checkpoints:
            checkpoint.remove()

    def __repr__(self) -> str:
        costs = self.restarts.nats_per_action
        return (
            f"Fitted({type(self.joint.parts.expertise).__name__} expertise of {len(self.expertise.names)} "
            f"demonstrators, {self.nats_per_action:.4f} nats per action, best of {len(costs)} restarts: "
            f"{self.outcome.value})"
        )
