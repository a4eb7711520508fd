"""The result of a fit: its policy, the expertise of its demonstrators, and the ensemble of members behind both."""

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
from ileed.methods.expertise import Expertise, ExpertiseSummary, members_that_know, summarise, unknown_demonstrator
from ileed.methods.policy import Policy
from ileed.methods.saving import run_of
from ileed.model.demonstrators import AbstractDemonstratorModel, Learned, UniformMixture
from ileed.model.joint import Joint, log_mean_over_members
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

_EXCHANGED = 0.01  # nats per action: the cost of restarts with exchanged actions differs by less
_AS_LIKELY = 1.92  # nats over all steps: where a 95% interval of one number ends


@final
@dataclass(frozen=True, eq=False)
class Restarts:
    """The cost of every restart in nats per action (lower is better), and the members that a fit keeps."""

    nats_per_action: Array
    kept: tuple[int, ...]
    """The likeliest first; all members in their order where each has its own episode weights."""
    alternatives: tuple[tuple[float, ...], ...] = ()
    """Expertise of all demonstrators by other restarts that are as likely as the likeliest and order them otherwise."""

    @property
    def chosen(self) -> int:
        """The first member that is kept: the likeliest, where restarts can be compared."""
        return self.kept[0]


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit: `policy` acts, and `expertise` says how good each demonstrator is in which states.

    `policy`, `expertise`, `nats` and `nats_per_action` combine the members in `restarts.kept`: they are the mean of the
    members' distributions, the mean of their expertise, and the cost under their mean likelihood.
    """

    policy: Policy
    expertise: Expertise
    restarts: Restarts
    nats_per_action: float
    """The cost of these members together, on the episodes by which restarts are compared: all of them, or held-out."""
    history: History
    outcome: Outcome
    """How the optimisation of most members ended (of the likeliest without a majority), or worse than guessing."""
    method: Any
    provenance: Mapping[str, Any]
    joint: Joint
    """The parameters of the members that are kept."""
    normaliser: Normaliser
    width: ModelComparison | None = None
    """Policies of several widths on held-out episodes, where the fit compared them."""
    comparison: ModelComparison | None = None
    """Demonstrator models on held-out episodes, where the fit chose among them (`demonstrator="auto"`)."""
    checkpoints: tuple[Checkpoint, ...] = ()  # from which this fit can be continued until it is saved
    ensemble: Ensemble | None = None
    """Every member of the fit, with the data; None for a fit that was loaded."""
    rater: Rater | None = None
    """The policies that rate demonstrators of continuous actions; None where the likelihood of `policy` does."""
    evidence: SkillEvidence | None = None
    """What actions and outcomes say about skill, alone and together; None where the fit was given no outcomes."""

    @property
    def width_sentence(self) -> str:
        """The width that held-out episodes prefer, with advice if a policy was passed; empty without comparison."""
        if self.width is None:
            return ""
        advice = f"; pass policy={self.width.preferred}" if self.method.policy is not None and self.width.chosen else ""
        return f"{self.width.sentence()}{advice}"

    @property
    def estimates_expertise(self) -> bool:
        """Whether expertise is estimated; behaviour cloning assumes that it is one."""
        return self.joint.parts.expertise.estimates_expertise

    @property
    @default_modes()
    @torch.no_grad()
    def slips(self) -> dict[str, Array]:
        """Learned parameters of the demonstrator model: how demonstrators deviate from the policy; the members' mean.

        For discrete actions, "slip" is the habit of each demonstrator (demonstrator, action), "repeat" the probability
        of repeating the previous action, and "confused" (demonstrator, meant, done) which action replaces which. For
        continuous actions, "offset" and "gain" are (demonstrator, dimension). Empty for a model without parameters.
        """
        parts, module = self.joint.parts, self.joint.demonstrator
        found = {} if module is None else parts.demonstrator.slips(module)
        return {name: values.mean(0).numpy() for name, values in found.items()}

    @property
    def learned(self) -> Learned:
        """`slips` for a report: sentences of the demonstrator model and columns of a table."""
        return self.joint.parts.demonstrator.learned(self.slips, self.policy.action_names)

    @default_modes()
    @threads(1)
    @torch.no_grad()
    def nats(self, data: Demonstrations) -> Array:
        """(step,) negative log-likelihood, in nats, of the steps of other data by the same demonstrators."""
        data = self.match_names(self.policy.match(data), allow_new=False)
        position = {name: number for number, name in enumerate(self.expertise.names)}
        if new := [name for name in data.names if name not in position]:
            advice = "; fitted.assess(data) rates new demonstrators"
            raise unknown_demonstrator(new[0], self.expertise.names, advice)
        demonstrator = np.array([position[name] for name in data.names])[data.demonstrator]
        learned_from = self.expertise.summary.learned_from
        return _nats(self.joint, self.normaliser, data, demonstrator, self.expertise.skill_names, learned_from)

    def step_likelihood(self, data: Demonstrations) -> StepLikelihood:
        """The likelihood of steps as a function of expertise, at the temperature and dispersion of this fit's ratings.

        Args:
            data: Those of the fit, or data that were matched with them (`Policy.match`); demonstrators may be new.
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
        """Rate the demonstrators of other data by this fit, in particular those that the fit has not seen.

        Estimates shrink towards the population of the fit's demonstrators, and `table()` is relative to their mean.
        Ratings of the data of the fit itself are in-sample; `expertise.table()` has cross-fitted ones.

        Args:
            demonstrations: Data with the observations and actions of the fit.
            by: "demonstrator"; "episode" to rate each episode; or a skill column to rate each demonstrator for each of
                its labels.
            confidence_level: That of the intervals.
            progress: Called with the number of steps done and their total.
            outcome: How episodes went, as in `Ileed.fit`; for a fit with outcomes. With `by` a skill column, and in
                any fit: the outcome of the steps of an episode that share a label, as "success", "reward", "duration",
                a skill column or array that is constant on these steps, or a mapping from (episode key, label).
            better: Whether "higher" or "lower" outcomes are better, as in `Ileed.fit`.

        Returns:
            Ratings by actions. If the fit was given outcomes, ratings on its combined scale: by actions as far as they
            predict outcomes, and by `outcome`. `Ratings.evidence`, or `Ratings.segments` by label, has what each says
            alone.
        """
        check_demonstrations(demonstrations)
        text("by", by)
        if outcome is None and better is not None:
            message = f"better is {brief(better)}, but there is no outcome: pass outcome= too"
            raise SettingsError(message, code="better-without-outcome")
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
        """Outcomes of other data, in the units of the fit's."""
        if self.evidence is None:
            raise SettingsError(
                "outcome was passed to a fit without outcomes, which knows no relation of actions and outcomes: fit "
                "with outcome= (at the command: --outcome), or leave it out",
                code="outcome-unrelated",
            )
        known = self.evidence.settings
        if better is not None and better != known.better:
            message = f"better is {brief(better)}, but the fit has {known.better!r}: leave it out"
            raise SettingsError(message, code="better-differs")
        found = EpisodeOutcomes.of(outcome, known.better, data, allow_constant=True)
        if known.binary and not found.is_binary:
            other = next(value for value in found.values[found.is_known].tolist() if value not in (0, 1))
            message = f"outcome contains {other:g}, but outcomes of the fit are successes and failures: pass 1 and 0"
            raise SettingsError(message, code="outcome-not-binary")
        return found

    @property
    def ratings_by_actions(self) -> Ratings | None:
        """The ratings of the fit's demonstrators by actions alone, with or without outcomes."""
        return self.expertise.ratings if self.evidence is None else self.evidence.actions

    def with_ratings(
        self, ratings: Ratings, rater: Rater | None = None, evidence: SkillEvidence | None = None
    ) -> Fitted:
        """The same fit with ratings of its demonstrators, the policies that rated them, and evidence by outcomes."""
        own = dict(zip(self.expertise.names, self.expertise.summary.by_demonstrator.tolist(), strict=True))
        ratings = replace(ratings, in_sample=np.array([own[name] for name in ratings.names]))
        evidence = evidence and evidence.with_ratings(ratings)
        return replace(self, expertise=replace(self.expertise, ratings=ratings), rater=rater, evidence=evidence)

    @property
    def has_pseudonyms(self) -> bool:
        """Whether demonstrators have the pseudonyms of `Demonstrations.anonymise`."""
        return bool(self.provenance.get("data", {}).get("anonymised")) and are_pseudonyms(self.expertise.names)

    def match_names(self, data: Demonstrations, *, allow_new: bool) -> Demonstrations:
        """Return `data` with the names by which this fit knows its demonstrators.

        A fit to anonymised data knows pseudonyms. The data of that fit lead to the same pseudonyms and are returned
        anonymised. Demonstrators of other data cannot be matched: they are refused or, with `allow_new`, count as new,
        with a warning. Neither message contains the name of a demonstrator.
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
        found = "this fit knows its demonstrators by pseudonyms, and only the data of the fit lead to them"
        if not allow_new:
            message = f"{found}: pass those data, read with the options of the fit"
            raise DemonstrationError(message, code="pseudonyms-unmatched")
        warnings.warn(f"{found}: the {counted(len(data.names), 'demonstrator')} here count as new", stacklevel=3)
        return data

    def anonymise(self) -> Fitted:
        """The same fit with the pseudonyms that `Demonstrations.anonymise` gives its demonstrators."""
        if self.has_pseudonyms:
            return self
        return self._anonymise(pseudonyms(self.expertise.names, key=str(self.provenance["data"]["fingerprint"])))

    def anonymise_with(self, data: Demonstrations) -> tuple[Fitted, Demonstrations]:
        """This fit and `data`, both with the pseudonyms of `data`, so that their demonstrators still match.

        Demonstrators of the fit that are not in `data` are called `other 01`, `other 02` and so on.
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
        """The same fit with other names for its demonstrators, by their present names; without the data."""
        rule = "pass another name for each demonstrator, as in {'ann': 'operator 1'}"
        instance_of("names", names, Mapping, rule=rule)
        if missing := [name for name in self.expertise.names if not isinstance(names.get(name), str)]:
            raise SettingsError(f"names has no name for {brief(missing[0])}: {rule}", code="names-incomplete")
        chosen = tuple(names[name] for name in self.expertise.names)
        ratings = self.expertise.ratings and self.expertise.ratings.renamed(names)
        evidence = self.evidence and self.evidence.renamed(names)
        expertise = replace(self.expertise, names=chosen, ratings=ratings)
        return replace(self, expertise=expertise, ensemble=None, evidence=evidence)

    @default_modes()
    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a run directory, atomically, then remove the checkpoints of this fit.

        An existing run is refused, or replaced with `overwrite`; files in it that are not ours stay.
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
            fixed += f"; {len(self.restarts.alternatives)} more as likely, with other orders of demonstrators"
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
    """Rate demonstrators by a given policy, whether or not it was learned from them.

    The result is one number for each demonstrator, even if the expertise of a fit depends on the state.

    Args:
        policy: A fit; an object whose `distribution(observations, legal=)` returns a categorical distribution, such as
            `Fitted.policy`; or the probability of each action at each step, as an array (step, action) or a categorical
            distribution with as many rows.
        demonstrations: The steps by which demonstrators are rated.
        demonstrator: The demonstrator model; None is that of the fit, or `UniformMixture()` where `policy` is no fit.
        pooled: Whether to add estimates that shrink towards the mean of the population, more so with fewer steps. The
            population is learned from these demonstrators; to rate a newcomer, pass the `population` of earlier
            ratings, as `Fitted.assess` does.
        confidence_level: That of the intervals.
        interval: The kind of interval in `alone`. "likelihood" contains each rho whose log-likelihood is within half a
            chi-square quantile of the maximum; it is valid near 0 and 1 and for all but the smallest numbers of steps,
            if steps are independent given rho. "episodes" resamples whole episodes, which allows for dependence between
            the steps of an episode; it needs about twenty episodes per demonstrator.
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
@dataclass(frozen=True, eq=False)
class Ensemble:
    """Members of a fit: restarts from different initial values, each with its own parameters.

    `best`, `top`, `first`, `member` and iteration give ensembles of some members, and `fitted()` the fit that the
    members make together. The costs of members with different episode weights, such as the replicates of a bootstrap,
    cannot be compared, and so `best` and `top` refuse them.
    """

    method: Any
    data: Demonstrations
    collapsed: Collapsed | Uncollapsed
    normaliser: Normaliser
    result: OptimisationResult
    """The parameters, cost and learning curve of every restart of the fit."""
    episode_weight: Array
    """(restart or 1, episode) the weights with which each restart was fitted."""
    held_out_episodes: Array | None
    """(episode,) the weights of held-out episodes, on which costs are computed; None for costs of the fitted ones."""
    provenance: Mapping[str, Any]
    restarts: tuple[int, ...]
    """The restart of each member."""

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
        """(member,) the cost of each member; lower is better."""
        return self.result.nats_per_action[list(self.restarts)]

    @property
    def comparable(self) -> bool:
        """Whether costs can be compared: all members have the same episode weights."""
        own = self._own_weights
        return bool((own == own[:1]).all())

    @property
    def learned_from(self) -> Array:
        """(member or 1, demonstrator) whether any step of each demonstrator had a weight."""
        count, who = len(self.data.names), self.data.episode_demonstrator
        return np.stack([np.bincount(who, weights=row, minlength=count) > 0 for row in self._own_weights])

    @property
    def _own_weights(self) -> Array:
        """(member or 1, episode)."""
        return self.episode_weight if len(self.episode_weight) == 1 else self.episode_weight[list(self.restarts)]

    def member(self, number: int) -> Ensemble:
        """One member, as an ensemble of its own."""
        rule = f"members are numbered from 0 to {len(self) - 1}"
        number = whole_number("number", number, least=0, most=len(self) - 1, rule=rule)
        return replace(self, restarts=(self.restarts[number],))

    def first(self, count: int) -> Ensemble:
        """The first `count` restarts: the ensemble that a fit with so few restarts would have found."""
        count = self._checked(count, len(self.result.nats_per_action))
        result = self.result.part(members(self.result.joint, range(count)), 0, self.result.guessing_nats)
        return replace(self, result=result, restarts=tuple(range(count)))

    def best(self) -> Ensemble:
        """The likeliest member, as an ensemble of its own."""
        return self.top(1)

    def top(self, count: int) -> Ensemble:
        """The `count` likeliest members, the likeliest first."""
        count = self._checked(count, len(self))
        if not self.comparable:
            raise SettingsError(
                "these members have different episode weights, so their costs are of different data and cannot be "
                "compared: average all of them with fitted(), or take one with member(i)",
                code="members-not-comparable",
            )
        order = self.likeliest_first(range(len(self)))[:count]
        return replace(self, restarts=tuple(self.restarts[number] for number in order))

    def likeliest_first(self, numbers: Iterable[int]) -> list[int]:
        """Some members in the order of their costs.

        If the demonstrator model cannot tell a policy from one with exchanged actions, members of about the same cost
        are in the order of the mean expertise of gold demonstrators, or of all if none is gold.
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
        return whole_number("count", count, least=1, most=most, rule=f"it must be from 1 to {most}, the restarts")

    def alternatives(self) -> list[dict[str, float]]:
        """Expertise by members about as likely as the likeliest that order demonstrators differently.

        A member is as likely within 1.92 nats over all steps together. Orders differ if their rank correlation is below
        0.9, or if one of the two gives all demonstrators the same expertise. The result has the likeliest member of
        each order but the first, that of the likeliest member.
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

    def nats(self, data: Demonstrations) -> Array:
        """(step,) negative log-likelihood, in nats, of other data with the same columns and demonstrators."""
        own = self.learned_from
        learned_from = None if (own == own[0]).all() else torch.from_numpy(own)
        return _nats(self.joint, self.normaliser, data, data.demonstrator, self.collapsed.skill_names, learned_from)

    def _summary(self) -> ExpertiseSummary:
        return summarise(self.joint, self.normaliser, self.collapsed.some, self.data, self.learned_from)

    @default_modes()
    def fitted(self) -> Fitted:
        """The fit that these members make together; see `Fitted` for how they are combined."""
        costs, data, result = self.nats_per_action, self.data, self.result
        if not np.isfinite(costs).all():
            raise SettingsError(
                f"ensemble is {len(costs)}, but only {np.isfinite(result.nats_per_action).sum()} of "
                f"{len(result.nats_per_action)} restarts stayed finite: lower ensemble or learning_rate, or set clip",
                code="restarts-not-finite",
            )
        joint, normaliser, encoding = self.joint, self.normaliser, data.encoding
        skills = self.collapsed.skill_names
        every = replace(self, restarts=tuple(range(len(result.nats_per_action))))
        others = every.alternatives() if joint.parts.expertise.estimates_expertise else []
        about_data = {
            "steps": len(data),
            "episodes": data.episode_count,
            "places": self.collapsed.unique_count,
            "fingerprint": data.fingerprint,
        }
        if data.has_pseudonyms:
            about_data["anonymised"] = True
        fitted = Fitted(
            policy=Policy(joint, normaliser, encoding),
            expertise=Expertise(joint, normaliser, data.names, skills, self._summary(), encoding),
            restarts=Restarts(result.nats_per_action, self.restarts, tuple(tuple(each.values()) for each in others)),
            nats_per_action=float(costs[0]),
            history=result.history,
            outcome=result.outcome_of(self.restarts),
            method=self.method,
            provenance={**runs.provenance(), **self.provenance, "data": about_data},
            joint=joint,
            normaliser=normaliser,
            ensemble=every,
        )
        if len(self) == 1:
            return fitted
        weight = self._own_weights.mean(0) if self.held_out_episodes is None else self.held_out_episodes
        return replace(fitted, nats_per_action=float(np.average(fitted.nats(data), weights=weight[data.episode])))


def _nats(
    joint: Joint,
    normaliser: Normaliser,
    data: Demonstrations,
    demonstrator: Array,
    skill_names: tuple[str, ...],
    learned_from: Tensor | None,
) -> Array:
    """(step,) cost under the mean likelihood of members; `demonstrator` (step,) are numbers in the model."""
    found = np.empty(len(data))
    for rows, real, answer in answers_at_steps(joint, normaliser, data, demonstrator, skill_names):
        counted_members = members_that_know(learned_from, torch.from_numpy(demonstrator[rows]))
        found[rows[real]] = -log_mean_over_members(answer.log_likelihood, counted_members).numpy()[real]
    return found
