"""A fit: its policy, everybody's expertise and how both came about; and the ensemble of members it is made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from ileed import runs
from ileed._torch import default_modes, threads
from ileed.data import Array, Collapsed, Demonstrations, check_demonstrations
from ileed.data.collapsing import Uncollapsed, held_in_memory
from ileed.data.rules import listed
from ileed.data.source import are_pseudonyms, pseudonyms, refuse_names
from ileed.errors import (
    DemonstrationError,
    SettingsError,
    brief,
    callable_or_none,
    counted,
    instance_of,
    one_of,
    path_of,
    text,
    true_or_false,
    whole_number,
)
from ileed.fitting import Checkpoint, History, OptimisationResult, Outcome
from ileed.methods.expertise import Expertise, ExpertiseSummary, members_that_know, summarise
from ileed.methods.policy import Policy
from ileed.methods.saving import run_of
from ileed.model.ask import Answer, log_mean_over_members
from ileed.model.demonstrators import AbstractDemonstratorModel, Learned, UniformMixture
from ileed.model.joint import Joint
from ileed.model.nets import members
from ileed.model.normaliser import Normaliser
from ileed.rating.answers import (
    answers_at_steps,
    blocks_of_fit,
    check_model,
    joint_with_newcomers,
    likelihood_by_policy,
)
from ileed.rating.outcomes import EpisodeOutcomes, Segments, SkillEvidence, place_newcomers
from ileed.rating.outcomes import Outcome as EpisodeOutcome
from ileed.rating.posterior import Population
from ileed.rating.ranks import orders_alike
from ileed.rating.ratings import Ratings, checked_level, estimate, resampled, with_learning_curves, work_of
from ileed.rating.signal import Rater
from ileed.rating.step_likelihood import Block, StepLikelihood, Units
from ileed.selection import ModelComparison

_EXCHANGED = 0.01  # nats per action: restarts that end with actions exchanged differ by less
_AS_LIKELY = 1.92  # nats of all steps together: where a 95 % interval of one number ends
_Value = Callable[[Answer, Tensor], Tensor]  # (row,) from the answer of every member, and who acted in each row


@final
@dataclass(frozen=True, eq=False)
class Restarts:
    """Every restart's own cost in nats per action (lower is better), and the members that a fit keeps of them."""

    nats_per_action: Array
    kept: tuple[int, ...]
    """The likeliest first; where each has episode weights of its own, all of them in their order."""
    alternatives: tuple[tuple[float, ...], ...] = ()
    """Everybody's expertise by other restarts that are as likely as the likeliest, and order people otherwise."""

    @property
    def chosen(self) -> int:
        """The first member that is kept: the likeliest, where restarts can be compared."""
        return self.kept[0]


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit: `policy` acts, `expertise` says who is good where, `restarts`, `history` and `outcome` how it went.

    `policy`, `expertise`, `nats` and `nats_per_action` are of the members that `restarts.kept` names: the mean of their
    distributions, the mean of their expertise, and the cost under their mean likelihood.
    """

    policy: Policy
    expertise: Expertise
    restarts: Restarts
    nats_per_action: float
    """The cost of these members together, on the data that restarts are compared by: fitted or held-out episodes."""
    history: History
    outcome: Outcome
    """How most of the members ended, the likeliest of them where there is no majority; or worse than guessing."""
    method: Any
    provenance: Mapping[str, Any]
    joint: Joint
    """The parameters of these members."""
    normaliser: Normaliser
    width: ModelComparison | None = None
    """Policies of several widths by held-out episodes, where the fit compared them."""
    comparison: ModelComparison | None = None
    """Demonstrator models by held-out episodes, where the fit chose among them (`demonstrator="auto"`)."""
    checkpoints: tuple[Checkpoint, ...] = ()  # from which this fit can be continued until it is saved
    ensemble: Ensemble | None = None
    """Every member of the fit, with the data, to choose others from; None for a fit that was loaded."""
    rater: Rater | None = None
    """What rates demonstrators of continuous actions; None where the policy's own likelihood does."""
    evidence: SkillEvidence | None = None
    """What actions and outcomes say about skill, each alone and both; None where the fit was given no outcomes."""

    @property
    def width_sentence(self) -> str:
        """Which width held-out episodes prefer, and for a policy that was passed, whether to pass another; or empty."""
        if self.width is None:
            return ""
        advice = f"; pass policy={self.width.preferred}" if self.method.policy is not None and self.width.chosen else ""
        return f"{self.width.sentence()}{advice}"

    @property
    def estimates_expertise(self) -> bool:
        """Whether this is more than behaviour cloning, under which everybody's expertise is one by assumption."""
        return self.joint.parts.expertise.estimates_expertise

    @property
    @default_modes()
    @torch.no_grad()
    def slips(self) -> dict[str, Array]:
        """What people do where they do not follow the policy, as the demonstrator model learned it; the members' mean.

        "slip" is each person's habit (person, action), "repeat" the probability of going on with the previous action,
        "confused" (person, meant, done) which action is taken for which. Of continuous actions, (person, dimension):
        "offset" and "gain" are each person's own. Empty where the model has no parameters.
        """
        parts, module = self.joint.parts, self.joint.demonstrator
        found = {} if module is None else parts.demonstrator.slips(module)
        return {name: values.mean(0).numpy() for name, values in found.items()}

    @property
    def learned(self) -> Learned:
        """The same for a report: the demonstrator model's sentences and its columns of a table."""
        return self.joint.parts.demonstrator.learned(self.slips, self.policy.action_names)

    @default_modes()
    @threads(1)
    @torch.no_grad()
    def nats(self, data: Demonstrations) -> Array:
        """(step,) cost of each step of other data by the same people: its negative log-likelihood, in nats."""
        data = self.match_names(self.policy.match(data), allow_new=False)
        position = {name: number for number, name in enumerate(self.expertise.names)}
        if strangers := [name for name in data.names if name not in position]:
            raise DemonstrationError(
                f"there is no demonstrator {strangers[0]!r}: this fit knows {listed(self.expertise.names)}; "
                "fitted.assess(data) rates people whom it has not seen"
            )
        demonstrator = np.array([position[name] for name in data.names])[data.demonstrator]

        def cost(answer: Answer, who: Tensor) -> Tensor:
            counted = members_that_know(self.expertise.summary.learned_from, who)
            return -log_mean_over_members(answer.log_likelihood, counted)

        return _at_steps(self, data, demonstrator, self.expertise.skill_names, cost)

    def step_likelihood(self, data: Demonstrations) -> StepLikelihood:
        """The likelihood of steps as a function of expertise, at the temperature and dispersion of this fit's ratings.

        `data` are those of the fit, or were matched with them (`Policy.match`); demonstrators may be new.
        """
        if self.rater is not None:
            return self.rater.likelihood(data)
        check_model(self.joint.parts.demonstrator)
        known = self.ratings_by_actions
        temperature, dispersion = (1.0, 1.0) if known is None else (known.by.temperature, known.by.dispersion)
        return StepLikelihood(data, partial(self._judge, data), temperature, dispersion)

    def _judge(self, data: Demonstrations, chosen: Array | None) -> Iterator[Block]:
        part = data if chosen is None else data.select(chosen)
        number = {name: number for number, name in enumerate(self.expertise.names)}
        known = np.array([number.get(name, -1) for name in data.names])
        joint, who, skills = self.joint, known.clip(min=0)[part.demonstrator], self.expertise.skill_names
        if not (known >= 0).all() and joint.demonstrator is not None:
            joint, who = joint_with_newcomers(joint, self.normaliser, part, known, skills), part.demonstrator
        for block in blocks_of_fit(joint, self.normaliser, part, who, skills):
            yield block if chosen is None else replace(block, steps=np.flatnonzero(chosen)[block.steps])

    @default_modes()
    def assess(
        self,
        demonstrations: Demonstrations,
        *,
        by: str = "demonstrator",
        confidence_level: float = 0.95,
        progress: Callable[[int, int], object] | None = None,
        outcome: EpisodeOutcome | None = None,
        better: Literal["higher", "lower"] | None = None,
    ) -> Ratings:
        """Everybody in `demonstrations` rated by this fit's policy, people whom the fit has not seen above all.

        They are drawn towards the population of the fit's people, at the temperature of its ratings, and `table()`
        divides their expertise by the mean over the fit's people. `by` rates each episode ("episode"), or each person
        for each label of a skill column, in place of people. Those whom the fit has seen are rated in sample where
        these are the data that it learned from: `expertise.table()` has them by other policies. `progress` is called
        with the number of steps done and their total.

        If the fit was given outcomes, demonstrators are placed on its combined scale: by actions as far as they predict
        outcomes, and by outcomes of their own, in the units of the fit, where `outcome` has them. With `by` a skill
        column, `outcome` is of the steps of an episode that share a label: "success", "reward", "duration", a skill
        column or an array with one value for each step, constant there, or a mapping from (episode key, label). Actions
        and outcomes are then combined label by label, in any fit. `Ratings.evidence` and, by label, `Ratings.segments`
        have what each says alone.
        """
        check_demonstrations(demonstrations)
        text("by", by)
        if outcome is None and better is not None:
            raise SettingsError(f"better is {brief(better)} and there is no outcome: pass outcome= too")
        own = segments = None
        if outcome is not None and by == "demonstrator":
            own = self._outcomes_of_newcomers(demonstrations, outcome, better)
        elif outcome is not None:
            segments = Segments.of(demonstrations, by, outcome, better)
        found = self._assess_actions(demonstrations, by, checked_level(confidence_level), progress)
        if by == "demonstrator" and self.evidence is not None:
            return place_newcomers(self.evidence, found, own, demonstrations.episode_demonstrator)
        return found if segments is None else segments.combine(found)

    @threads(1)
    def _assess_actions(
        self, data: Demonstrations, by: str, level: float, progress: Callable[[int, int], object] | None
    ) -> Ratings:
        """Ratings by actions alone, on the scale of the fit's demonstrators."""
        data = self.policy.match(data)
        callable_or_none("progress", progress, rule="pass a function of the number done and the total, or None")
        if by == "episode":
            data.store.check_in_memory("episodes of a folder are not rated one by one: ileed.curate scores each")
        data, _ = held_in_memory(self.match_names(data, allow_new=True))
        known, units, likelihood = self.ratings_by_actions, Units.of(data, by), self.step_likelihood(data)
        practice = self.joint.parts.expertise.practice_episodes
        work = work_of(likelihood, units, practice, progress)
        likelihood = likelihood.counted(work)
        # episodes and segments differ more than demonstrators do, and so have a population of their own
        population = None if known is None or units is not None else known.population
        found = estimate(likelihood, pooled=population or True, level=level, units=units)
        if known is not None:
            found = replace(found, reference=float(known.best.expertise.mean()))
        found = with_learning_curves(found, likelihood, practice, known and known.curves)
        work.finish()
        return found

    def _outcomes_of_newcomers(
        self, data: Demonstrations, outcome: EpisodeOutcome, better: str | None
    ) -> EpisodeOutcomes:
        """Outcomes of new data in the terms of the fit's."""
        if self.evidence is None:
            raise SettingsError(
                "outcome was passed to a fit without outcomes, which knows no relation of actions and outcomes: fit "
                "with outcome= (at the command: --outcome), or leave it out"
            )
        known = self.evidence.settings
        if better is not None and better != known.better:
            raise SettingsError(f"better is {brief(better)}, and {known.better!r} in the fit: leave it out")
        found = EpisodeOutcomes.of(outcome, known.better, data, allow_constant=True)
        if known.binary and not found.is_binary:
            other = next(value for value in found.values[found.is_known].tolist() if value not in (0, 1))
            raise SettingsError(
                f"outcome has {other:g}, and outcomes of the fit are successes and failures: pass True and False, "
                "or 1 and 0"
            )
        return found

    @property
    def ratings_by_actions(self) -> Ratings | None:
        """The ratings of the fit's demonstrators by actions alone, whether or not it was given outcomes."""
        return self.expertise.ratings if self.evidence is None else self.evidence.actions

    def with_evidence(self, evidence: SkillEvidence, rater: Rater | None = None) -> Fitted:
        """The same fit with ratings by actions and outcomes."""
        found = self.with_ratings(evidence.both, rater)
        assert found.expertise.ratings is not None
        return replace(found, evidence=evidence.with_ratings(found.expertise.ratings))

    def with_ratings(self, ratings: Ratings, rater: Rater | None = None) -> Fitted:
        """The same fit with ratings of its demonstrators, beside their expertise in sample, and what rated them."""
        own = dict(zip(self.expertise.names, self.expertise.summary.by_demonstrator.tolist(), strict=True))
        ratings = replace(ratings, in_sample=np.array([own[name] for name in ratings.names]))
        return replace(self, expertise=replace(self.expertise, ratings=ratings), rater=rater, evidence=None)

    @property
    def has_pseudonyms(self) -> bool:
        """Whether this fit knows its demonstrators by the pseudonyms of `Demonstrations.anonymise`."""
        return bool(self.provenance.get("data", {}).get("anonymised")) and are_pseudonyms(self.expertise.names)

    def match_names(self, data: Demonstrations, *, allow_new: bool) -> Demonstrations:
        """`data` with the names by which this fit knows its demonstrators.

        A fit to anonymised data knows pseudonyms. The data that it was fitted to lead to the same pseudonyms, and are
        returned anonymised. Demonstrators of other data cannot be matched: they are refused, or with `allow_new` count
        as new, with a warning. The name of no demonstrator is in either message.
        """
        known = self.expertise.names
        if not are_pseudonyms(known) or data.has_pseudonyms:
            return data
        data = self.policy.match(data)
        names, is_apart = data.pseudonyms(), set(known).isdisjoint(data.names)
        hidden = data.with_columns(names=tuple(names[name] for name in data.names))
        learned = self.provenance.get("data", {}).get("fingerprint")
        was_renamed = self.has_pseudonyms or is_apart  # after the fit: its fingerprint is that of the data with names
        if learned == hidden.fingerprint or (was_renamed and learned == data.fingerprint):
            return data.anonymise()
        if not (self.has_pseudonyms and is_apart):
            return data
        found = "this fit knows its demonstrators by pseudonyms, and only the data that it was fitted to lead to them"
        if not allow_new:
            raise DemonstrationError(f"{found}: pass those data, read with the options of the fit")
        warnings.warn(f"{found}: the {counted(len(data.names), 'demonstrator')} here are taken as new", stacklevel=3)
        return data

    def anonymise(self) -> Fitted:
        """This fit with the pseudonyms that `Demonstrations.anonymise` gives its demonstrators."""
        if self.has_pseudonyms:
            return self
        return self._anonymise(pseudonyms(self.expertise.names, key=str(self.provenance["data"]["fingerprint"])))

    def anonymise_with(self, data: Demonstrations) -> tuple[Fitted, Demonstrations]:
        """This fit and `data`, both with the pseudonyms of `data`, so that demonstrators of both still match.

        Demonstrators of the fit who are not in `data` are called `other 01` and on.
        """
        data = self.match_names(data, allow_new=True)
        known, hidden = data.pseudonyms(), data.anonymise()
        others = {name: f"other {number:02}" for number, name in enumerate(self.expertise.names, start=1)}
        found = self._anonymise(others | known)
        learned = found.provenance["data"]
        if learned.get("fingerprint") == data.fingerprint:
            learned = {**learned, "fingerprint": hidden.fingerprint}
        return replace(found, provenance={**found.provenance, "data": learned}), hidden

    def _anonymise(self, names: Mapping[str, str]) -> Fitted:
        columns = {f"the skill {name!r}": [name] for name in self.expertise.skill_names}
        encoded = {} if self.policy.encoding is None else self.policy.encoding.words
        if not self.has_pseudonyms:
            refuse_names(columns | encoded, self.expertise.names)
        learned = {**self.provenance["data"], "anonymised": True}
        return replace(self.renamed(names), provenance={**self.provenance, "data": learned})

    def renamed(self, names: Mapping[str, str]) -> Fitted:
        """The same fit with other names for its demonstrators, such as pseudonyms; without the data of `ensemble`."""
        rule = "pass another name for each demonstrator, as in {'ann': 'person 1'}"
        instance_of("names", names, Mapping, rule=rule)
        if missing := [name for name in self.expertise.names if not isinstance(names.get(name), str)]:
            raise SettingsError(f"names has no name for {brief(missing[0])}: {rule}")
        chosen = tuple(names[name] for name in self.expertise.names)
        ratings = self.expertise.ratings and self.expertise.ratings.renamed(names)
        evidence = self.evidence and self.evidence.renamed(names)
        expertise = replace(self.expertise, names=chosen, ratings=ratings)
        return replace(self, expertise=expertise, ensemble=None, evidence=evidence)

    @default_modes()
    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a run directory, whole or not at all; then remove the checkpoint of this fit, if it had one.

        A run that is already there is refused, or replaced with `overwrite`; files in it that are not ours stay.
        """
        target = path_of("path", path, rule="pass the path of a directory to write")
        runs.write_run(target, run_of(self), overwrite=true_or_false("overwrite", overwrite))
        for checkpoint in self.checkpoints:
            checkpoint.remove()

    def __repr__(self) -> str:
        count, kept = len(self.restarts.nats_per_action), len(self.restarts.kept)
        chosen = f"best of {count} restarts" if kept == 1 else f"mean of {kept} of {count} restarts"
        fixed = f"; {ratings.by.identification}" if (ratings := self.expertise.ratings) is not None else ""
        if self.restarts.alternatives:
            fixed += f"; {len(self.restarts.alternatives)} more as likely, by other orders of people"
        return (
            f"Fitted({type(self.joint.parts.expertise).__name__} expertise of {len(self.expertise.names)} "
            f"demonstrators, {self.nats_per_action:.4f} nats per action, {chosen}: {self.outcome.value}{fixed})"
        )


@default_modes()
@threads(1)
def rate(
    policy: Any,
    demonstrations: Demonstrations,
    *,
    demonstrator: AbstractDemonstratorModel[Any] | None = None,
    pooled: bool | Population = True,
    confidence_level: float = 0.95,
    interval: Literal["likelihood", "episodes"] = "likelihood",
) -> Ratings:
    """Rate the demonstrators of `demonstrations` by a policy, whether or not it was learned from them.

    The result is one number for each demonstrator, also where the expertise of a fit depends on the state.

    `policy` is a fit; or an object whose `distribution(observations, legal=)` returns a categorical distribution, as
    `Fitted.policy` has it; or the probability of every action at every step: an array (step, action), or a categorical
    distribution of as many rows. `demonstrator` is the demonstrator model: by default that of the fit, and
    `UniformMixture()` where there is no fit.

    `pooled` adds estimates that are shrunk towards the mean of the population, more so with fewer steps. The
    demonstrators rated here make that population unless one is passed: rate a newcomer with the `population` of
    earlier ratings, as `Fitted.assess` does.

    `interval` is that of the estimates in `alone`. "likelihood" takes every rho whose log-likelihood is within half a
    chi-square quantile of the greatest: right for any number of steps but the fewest, at the ends of the range too, if
    steps are independent given rho. "episodes" resamples whole episodes instead, which allows for dependence between
    the steps of an episode; it needs some twenty episodes per demonstrator, and is the whole range for a single one.
    """
    check_demonstrations(demonstrations)
    fit = policy if isinstance(policy, Fitted) else None
    if isinstance(own := policy if fit is None else fit.policy, Policy):
        demonstrations = own.match(demonstrations)
    if fit is not None:
        demonstrations = fit.match_names(demonstrations, allow_new=True)
    demonstrations, _ = held_in_memory(demonstrations)
    if not isinstance(pooled, bool):
        instance_of("pooled", pooled, Population, rule="pass True, False, or the `population` of earlier ratings")
    level = checked_level(confidence_level)
    one_of("interval", interval, ("likelihood", "episodes"))
    if fit is not None and demonstrator is None:
        likelihood = replace(fit.step_likelihood(demonstrations), temperature=1.0, dispersion=1.0, rated={})
    else:
        likelihood = likelihood_by_policy(own, demonstrations, demonstrator or UniformMixture())
    found = estimate(likelihood, pooled=pooled, level=level)
    if interval == "episodes" and likelihood.owner_curves is None:
        found = replace(found, alone=resampled(likelihood, level))
    return found


@final
@dataclass(frozen=True)
class Spread:
    """How much the members of an ensemble differ; all of it is zero for one member.

    `nats_per_action` and `expertise` are standard deviations over members, of their costs and of each person's mean
    expertise (NaN where no member learned from the person). `policy`, in nats, is by how much the members' mean cost of
    the actions under their policies alone exceeds the cost under the mean policy (Krogh and Vedelsby, 1995).
    """

    nats_per_action: float
    expertise: Mapping[str, float]
    policy: float


@final
@dataclass(frozen=True, eq=False)
class Ensemble:
    """Members of a fit, each with its own parameters: restarts from different initial values.

    `best`, `top`, `first`, `member` and iteration give ensembles of some members, and `fitted()` the fit that the
    members make together. Members with different episode weights, as the replicates of a bootstrap have, are never
    compared by their costs, which are of different data: `best` and `top` refuse them.
    """

    method: Any
    data: Demonstrations
    collapsed: Collapsed | Uncollapsed
    normaliser: Normaliser
    result: OptimisationResult
    """The parameters, cost and learning curve of every restart of the fit."""
    episode_weight: Array
    """(restart or 1, episode) what each restart learned from."""
    held_out_episodes: Array | None
    """(episode,) what costs are of, where that is not what was learned from."""
    provenance: Mapping[str, Any]
    restarts: tuple[int, ...]
    """Which restart each member is."""

    def __len__(self) -> int:
        return len(self.restarts)

    def __iter__(self) -> Iterator[Ensemble]:
        return (self.member(number) for number in range(len(self)))

    @cached_property
    def joint(self) -> Joint:
        """The parameters of the members, whose first axis is the member."""
        every = tuple(range(len(self.result.nats_per_action)))
        return self.result.joint if self.restarts == every else members(self.result.joint, self.restarts)

    @property
    def nats_per_action(self) -> Array:
        """(member,) each member's own cost, lower is better."""
        return self.result.nats_per_action[list(self.restarts)]

    @property
    def held_out(self) -> Array | None:
        """(step,) what costs are of, where that is not what was learned from."""
        return None if self.held_out_episodes is None else self.held_out_episodes[self.data.episode]

    @property
    def comparable(self) -> bool:
        """Whether the members' costs are of the same data: all have the same episode weights."""
        own = self._own_weights
        return bool((own == own[:1]).all())

    @property
    def learned_from(self) -> Array:
        """(member or 1, demonstrator) whether any step of somebody had a weight."""
        people, who = len(self.data.names), self.data.episode_demonstrator
        return np.stack([np.bincount(who, weights=row, minlength=people) > 0 for row in self._own_weights])

    @property
    def _own_weights(self) -> Array:
        """(member or 1, episode) what each member learned from."""
        return self.episode_weight if len(self.episode_weight) == 1 else self.episode_weight[list(self.restarts)]

    def member(self, number: int) -> Ensemble:
        """One member, as an ensemble of its own."""
        rule = f"members are numbered from 0 to {len(self) - 1}"
        number = whole_number("number", number, least=0, most=len(self) - 1, rule=rule)
        return replace(self, restarts=(self.restarts[number],))

    def first(self, count: int) -> Ensemble:
        """The first so many restarts of the fit: what a fit with so many would have found."""
        count = self._checked(count, len(self.result.nats_per_action))
        result = self.result.part(members(self.result.joint, range(count)), 0, self.result.guessing_nats)
        return replace(self, result=result, restarts=tuple(range(count)))

    def best(self) -> Ensemble:
        """The likeliest member, as an ensemble of its own."""
        return self.top(1)

    def top(self, count: int) -> Ensemble:
        """The likeliest members, so many of them, the likeliest first."""
        count = self._checked(count, len(self))
        if not self.comparable:
            raise SettingsError(
                "these members have different episode weights, so that their costs are of different data and none is "
                "the likeliest: average all of them with fitted(), or take one with member(i)"
            )
        order = self.likeliest_first(range(len(self)))[:count]
        return replace(self, restarts=tuple(self.restarts[number] for number in order))

    def likeliest_first(self, numbers: Iterable[int]) -> list[int]:
        """Some members by their costs; as likely ones by everybody's mean expertise, or that of gold people.

        Expertise decides where the demonstrator model cannot tell a policy from one with its actions exchanged.
        """
        order = sorted(numbers, key=lambda number: float(self.nats_per_action[number]))
        if len(order) < 2 or not self.joint.parts.demonstrator.actions_can_be_exchanged:
            return order
        most, known = self.nats_per_action[order[0]] + _EXCHANGED, self.joint.knowledge
        weight = torch.ones(len(self.data.names)) if known is None or not known.gold.any() else known.gold.cpu()

        def expertise(number: int) -> float:
            own = self.member(number)._summary().by_demonstrator.nan_to_num(0.0)
            return float((own * weight).sum())

        likely = [number for number in order if self.nats_per_action[number] <= most]
        return [*sorted(likely, key=lambda number: -expertise(number)), *order[len(likely) :]]

    def _checked(self, count: int, most: int) -> int:
        rule = f"it takes between one and all {most} of the restarts"
        if whole_number("the size of an ensemble", count, least=1, rule=rule) > most:
            raise SettingsError(f"the size of an ensemble is {count}: {rule}")
        return count

    @default_modes()
    @threads(1)
    @torch.no_grad()
    def spread(self) -> Spread:
        """How much the members differ: in their costs, in everybody's expertise, and in their policies."""

        def disagreement(answer: Answer, _: Tensor) -> Tensor:
            return log_mean_over_members(answer.policy_log_likelihood) - answer.policy_log_likelihood.mean(0)

        data, skill_names = self.data, self.collapsed.skill_names
        each = np.stack([member._summary().by_demonstrator for member in self])
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of nobody's expertise
            deviations = np.nanstd(each, axis=0).tolist()
        return Spread(
            nats_per_action=float(self.nats_per_action.std()),
            expertise=dict(zip(data.names, deviations, strict=True)),
            policy=float(_at_steps(self, data, data.demonstrator, skill_names, disagreement).mean()),
        )

    def alternatives(self) -> list[dict[str, float]]:
        """Expertise of demonstrators by members that are about as likely as the likeliest and order them differently.

        A member is as likely within 1.92 nats of all steps together. Orders differ if their rank correlation is below
        0.9, or if one of the two gives all demonstrators the same expertise. The result has the likeliest member of
        each order, without that of the likeliest of all.
        """
        if not self.comparable or not self.learned_from.all():
            return []
        weight = self._own_weights[0] if self.held_out_episodes is None else self.held_out_episodes
        steps = float((weight * np.diff(self.data.episode_bounds)).sum())
        order = np.argsort(self.nats_per_action, kind="stable")
        likely = order[(self.nats_per_action[order] - self.nats_per_action[order[0]]) * steps < _AS_LIKELY]
        found: list[Tensor] = []
        for member in likely if len(likely) > 1 and len(self.data.names) > 1 else ():
            own = self.member(int(member))._summary().by_demonstrator
            if not any(orders_alike(own, other) for other in found):
                found.append(own)
        return [dict(zip(self.data.names, each.tolist(), strict=True)) for each in found[1:]]

    @property
    def _about_data(self) -> dict[str, Any]:
        """What a fit says of the data that it learned from."""
        known = {
            "steps": len(self.data),
            "episodes": self.data.episode_count,
            "places": self.collapsed.unique_count,
            "fingerprint": self.data.fingerprint,
        }
        return known | ({"anonymised": True} if self.data.has_pseudonyms else {})

    def nats(self, data: Demonstrations) -> Array:
        """(step,) cost of each step of other data of the same columns and demonstrators, in nats."""
        own = self.learned_from
        learned_from = None if (own == own[0]).all() else torch.from_numpy(own)

        def cost(answer: Answer, who: Tensor) -> Tensor:
            return -log_mean_over_members(answer.log_likelihood, members_that_know(learned_from, who))

        return _at_steps(self, data, data.demonstrator, self.collapsed.skill_names, cost)

    def _summary(self) -> ExpertiseSummary:
        return summarise(self.joint, self.normaliser, self.collapsed.some, self.data, self.learned_from)

    @default_modes()
    def fitted(self) -> Fitted:
        """The fit that these members make together: `Fitted` says what is averaged over them."""
        costs, data, result = self.nats_per_action, self.data, self.result
        if not np.isfinite(costs).all():
            raise SettingsError(
                f"ensemble is {len(costs)}, and only {np.isfinite(result.nats_per_action).sum()} of "
                f"{len(result.nats_per_action)} restarts stayed finite: lower ensemble or learning_rate, or set clip"
            )
        joint, normaliser, encoding = self.joint, self.normaliser, data.encoding
        skills = self.collapsed.skill_names
        every = replace(self, restarts=tuple(range(len(result.nats_per_action))))
        others = every.alternatives() if joint.parts.expertise.estimates_expertise else []
        alternatives = tuple(tuple(other.values()) for other in others)
        fitted = Fitted(
            policy=Policy(joint, normaliser, encoding),
            expertise=Expertise(joint, normaliser, data.names, skills, self._summary(), encoding),
            restarts=Restarts(result.nats_per_action, self.restarts, alternatives),
            nats_per_action=float(costs[0]),
            history=result.history,
            outcome=result.outcome_of(self.restarts),
            method=self.method,
            provenance={**runs.provenance(), **self.provenance, "data": self._about_data},
            joint=joint,
            normaliser=normaliser,
            ensemble=every,
        )
        if len(self) == 1:
            return fitted
        weight = self._own_weights.mean(0) if self.held_out_episodes is None else self.held_out_episodes
        return replace(fitted, nats_per_action=float(np.average(fitted.nats(data), weights=weight[data.episode])))


def _at_steps(
    model: Fitted | Ensemble, data: Demonstrations, demonstrator: Array, skill_names: tuple[str, ...], value: _Value
) -> Array:
    """(step,) a value of what a model answers at each step of a data set; `demonstrator` are its numbers of people."""
    found = np.empty(len(data))
    for rows, real, answer in answers_at_steps(model.joint, model.normaliser, data, demonstrator, skill_names):
        found[rows[real]] = value(answer, torch.from_numpy(demonstrator[rows])).numpy()[real]
    return found
