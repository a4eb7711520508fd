"""Curation: fewer and better episodes for whatever trainer, by scores of each episode and a rule that is stated.

`curate` scores every episode, and every segment within it, and applies a rule; `Curated` holds the result, compares it
with training on everything, writes it in the formats of trainers, and never changes the data that it is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import WeightedRandomSampler

from ileed._torch import default_modes, numpy_stream, stream, threads
from ileed.curation import outputs
from ileed.curation.coverage import effective_size
from ileed.curation.rules import Rule, Units
from ileed.curation.scores import Progress, Scores, Settings, Stretches, score
from ileed.curation.states import Kinds, StateGroups, cluster_steps, kinds_of, strata_of
from ileed.curation.validation import Comparison, Material, Recommendation, compare_with_everything
from ileed.data import Array, Demonstrations
from ileed.data.collapsing import blocks_of
from ileed.errors import (
    DemonstrationError,
    SettingsError,
    callable_or_none,
    counted,
    instance_of,
    path_of,
    seed_of,
    true_or_false,
    whole_number,
)
from ileed.fitting.stages import Stages
from ileed.methods import Fitted, Ileed
from ileed.methods.ileed import FOLDS
from ileed.methods.policy import network_inputs
from ileed.rating.ranks import rank_correlation
from ileed.rating.ratings import checked_level
from ileed.rating.step_likelihood import StepLikelihood

__all__ = ["Comparison", "Correlation", "Curated", "Recommendation", "Rule", "curate"]

STRETCH = 20
_SHARES = (0.75, 0.5)  # that a recommendation compares with everything
_NO_RULE: Mapping[str, Any] = {"keep": None, "above": None, "steps": None, "weight": False}


@default_modes()
@threads(1)
def curate(
    fitted: Fitted,
    data: Demonstrations,
    *,
    stretch: int = STRETCH,
    confidence_level: float = 0.95,
    seed: int = 0,
    cross_fit: bool = False,
    progress: Progress | None = None,
    **rule: Any,
) -> Curated:
    """Score every episode of `data`, and every segment of `stretch` steps within it, and keep some by a rule.

    `rule` are the fields of `Rule`: `keep=0.5`, `above=1.0, probability=0.9` or `steps=10_000`, all of which may be
    joined with `at_least=5` (of each kind of state), `by="agreement"`, `weight=True` and `unit="stretch"`. Without a
    rule everything is kept; `curate(...).recommended()` keeps what cross-validation recommends, as the command does,
    and `curate(...).check(seed=0)` compares a rule with training on everything.

    With continuous actions, expertise of episodes is corrected for their states and shrunk towards the rating of their
    demonstrator (`adjust`), and the states in which episodes begin keep their shares (`coverage`).

    A fit to anonymised data has pseudonyms: of the same data, so has the result; demonstrators of other data count as
    new, with a warning.

    The data may be those of the fit, or others with the same features and actions; both are matched by name where they
    have names (`Policy.match`). Discrete actions of the data of the fit are judged in-sample. With `cross_fit` each
    episode is judged by policies that have not seen it: the method is fitted to `data` once more, in folds.

    `progress` is called with the number of steps done and their total. `seed` chooses the sample that states are
    compared with, the clusters of states, the order of equal scores, and the folds.
    """
    instance_of("fitted", fitted, Fitted, rule="pass what method.fit(data, seed=0) or ileed.load(run) returns")
    matched = fitted.match_names(fitted.policy.match(data), allow_new=True)
    if matched.names != data.names:
        data = matched
    callable_or_none("progress", progress, rule="pass a function of the number done and the total, or None")
    stretch = whole_number("stretch", stretch, least=1, rule="a stretch has one step or more, a whole number")
    chosen = Rule.of(rule).of_actions(discrete=data.discrete)
    seed, level = seed_of(seed), checked_level(confidence_level)
    inputs = _inputs(fitted, matched)
    groups = StateGroups(matched, cluster_steps(matched, inputs, seed=seed)) if chosen.adjust else None
    settings = Settings(chosen.bounds, level, seed, progress, groups=groups)
    judged_by = _judged_by(fitted, matched)
    if true_or_false("cross_fit", cross_fit) and not _is_held_out(fitted, matched):
        fitted, likelihood = _cross_fitted(fitted, matched, seed)
        settings, judged_by = settings._replace(likelihood=likelihood), _HELD_OUT
    stretches = Stretches.of(data, stretch)
    scored = score(fitted, matched, inputs, stretches, settings)
    units = _units(data, inputs, stretches, chosen, seed)
    units = units._replace(reference=None if fitted.rater is None else scored.reference)
    cluster = None if groups is None else groups.cluster
    material = Material(data, inputs, scored.expertise, fitted.rater is not None, cluster)
    all_units, ones = np.ones(len(units.steps), dtype=bool), np.ones(len(units.steps))
    scores, reliability = (scored.episodes, scored.stretches), scored.within_reliability
    every = Curated(data, chosen, all_units, ones, *scores, stretches, units, material, reliability, level, judged_by)
    ratings = fitted.expertise.ratings
    return replace(every, explained="" if ratings is None else ratings.by.explained).marked({})


def _units(data: Demonstrations, inputs: Array, stretches: Stretches, rule: Rule, seed: int) -> Units:
    """What a rule reads of units beside their scores; chance decides among equals where scores are adjusted."""
    unit = data.episode if rule.unit == "episode" else stretches.of_step
    kinds = kinds_of(data, inputs, unit, rule.kinds, seed=seed) if rule.at_least else None
    steps = np.bincount(unit)
    ties = np.arange(len(steps))
    if rule.adjust:
        ties = numpy_stream(seed, "ties").permutation(len(steps))
    return Units(steps, ties, kinds, strata_of(inputs, unit, seed=seed))


def _inputs(fitted: Fitted, data: Demonstrations) -> Array:
    """(input, step) what the networks read; of mapped columns, mapped as well."""
    width = len(fitted.normaliser.kept)
    blocks = (network_inputs(data.observations[block], fitted.normaliser, None).numpy().T for block in blocks_of(data))
    return data.store.written(blocks, np.float32, (width,)).T


def _judged_by(fitted: Fitted, data: Demonstrations) -> str:
    """What judges the steps without cross-fitting, in words."""
    if _is_held_out(fitted, data):
        return _HELD_OUT
    learned_from = fitted.provenance.get("data", {}).get("fingerprint")
    if learned_from == data.fingerprint:
        return "the policy of the fit, which has learned from these episodes"
    return "the policy of the fit, which has learned from other data"


_HELD_OUT = "policies of folds, none of which has seen the episodes that it judges"


def _is_held_out(fitted: Fitted, data: Demonstrations) -> bool:
    """Whether the fit rates these data by policies that have not seen each episode."""
    return fitted.rater is not None and fitted.rater.fingerprint == data.fingerprint


def _cross_fitted(fitted: Fitted, data: Demonstrations, seed: int) -> tuple[Fitted, StepLikelihood]:
    """The fit with the ratings of folds of the data, and the likelihood of the steps by policies of these folds."""
    data.store.check_in_memory("cross_fit needs the steps in memory, and these are mapped from a folder: leave it out")
    if set(data.names) - set(fitted.expertise.names):
        raise DemonstrationError(
            "the data have demonstrators who are not in the fit: cross_fit needs the data of the fit"
        )
    method: Ileed = replace(
        fitted.method, policy=fitted.joint.parts.policy, demonstrator=fitted.joint.parts.demonstrator
    )
    method = replace(method, folds=method.folds or FOLDS)
    folds = method.fit_folds(data, None, Stages(seed, torch.device("cpu")))
    ratings = None if folds is None else folds.rate(temperature=method.temperature)
    if folds is None or ratings is None:
        raise SettingsError(
            "cross_fit needs two episodes, a model under which expertise is one number, and folds that stay finite: "
            "leave it out"
        )
    likelihood = folds.step_likelihood(ratings)
    if fitted.evidence is not None:  # whose ratings by outcomes and cross-fitting stay
        return replace(fitted, rater=folds.rater), likelihood
    return fitted.with_ratings(ratings, folds.rater), likelihood


class Correlation(NamedTuple):
    """A rank correlation (Spearman) and its interval by Fisher's transformation; NaN where it is not defined."""

    value: float
    low: float
    high: float

    @property
    def sentence(self) -> str:
        """The correlation in words."""
        if np.isnan(self.value):
            return "the score's correlation with the length of episodes is not defined: too few episodes, or all alike"
        interval = f"{self.low:.2f} to {self.high:.2f}"
        return f"the score's rank correlation with the length of episodes is {self.value:.2f} ({interval})"


@final
@dataclass(frozen=True, eq=False)
class Curated:
    """Episodes or segments kept by a rule, with the scores of all of them; `data` is what was curated.

    A unit is an episode, or a segment where the rule is about these. `weights` are for
    `Ileed.fit(curated.demonstrations(), weights=curated.weights)`.
    """

    data: Demonstrations
    rule: Rule
    kept_units: Array
    """(unit,) whether each is kept."""
    unit_weights: Array
    """(unit,) the weight of each: 0 where it is dropped, 1 on average over the steps kept."""
    scores: Scores
    """The scores of episodes by name: expertise, agreement, typicality."""
    stretch_scores: Scores
    stretches: Stretches
    units: Units
    """What the rule reads of units beside their scores: lengths and strata."""
    material: Material
    """What `check` trains policies on."""
    within_reliability: float
    """Reliability of differences between episodes of one demonstrator, from 0 to 1: the intraclass correlation of odd
    and even segments. Adjusted scores of episodes are shrunk by it towards the ratings of their demonstrators; they are
    these ratings where it is NaN, that is, cannot be estimated."""
    confidence_level: float
    judged_by: str
    """Which policies judged the steps: the fit's own, or those of folds that have not seen them; in words."""
    marks: Mapping[int, bool] = field(default_factory=dict)
    """Episodes that were kept (True) or dropped (False) by hand, whatever the rule says of them."""
    explained: str = ""
    """What duration and speed explain of the order of demonstrators in the fit, where that is most of it, in words."""
    comparisons: tuple[Comparison, ...] = ()
    """With training on everything, as far as these were made: see `check` and `recommended`."""

    @default_modes()
    def marked(self, marks: Mapping[int, bool]) -> Curated:
        """The same scores with some episodes kept (True) or dropped (False) by hand, all others by the rule.

        `marks` are by the number of an episode in `data`; they replace earlier ones.
        """
        changed = replace(self, marks=self._checked_marks(marks))
        kept, weights = changed._select(self.rule, np.ones(self.data.episode_count, dtype=bool))
        return replace(changed, kept_units=kept, unit_weights=weights)

    def _select(self, rule: Rule, episodes: Array) -> tuple[Array, Array]:
        """(unit,) which units of some episodes are kept, by a rule and by hand, and their weights."""
        scores = self.scores if rule.unit == "episode" else self.stretch_scores
        chosen = episodes[self._episode_of_unit]
        units = self.units.select(chosen)
        by_hand = np.full(self.data.episode_count, -1)
        by_hand[list(self.marks)] = list(self.marks.values())
        own = by_hand[self._episode_of_unit][chosen]
        part = {name: each.select(chosen) for name, each in scores.items()}
        kept, weights = np.zeros(len(chosen), dtype=bool), np.zeros(len(chosen))
        kept[chosen] = np.where(own >= 0, own == 1, rule.choose(part, units))
        if not kept.any():
            raise SettingsError("every episode is dropped by hand or by the rule: keep one or more")
        weights[chosen] = rule.weights(part, units, kept[chosen])
        return kept, weights

    @property
    def _episode_of_unit(self) -> Array:
        return np.arange(self.data.episode_count) if self.rule.unit == "episode" else self.stretches.episode

    @default_modes()
    def check(self, *, seed: int = 0) -> Comparison:
        """Compare training on what is kept, with its weights, with training on everything, by cross-validation.

        Small policies are trained in folds of episodes, which `seed` chooses, and judged by how well they predict the
        expert component of held-out episodes (`ileed.curation.validation`). The scores are not computed again. A
        selection that is better here need not be better in the task: only training and running both policies shows
        that.
        """
        name = "this selection" if self.rule.is_given or self.marks else "everything"
        weigh = partial(self._weigh, self.rule)
        level = self.confidence_level
        return compare_with_everything(self.material, {name: weigh}, level=level, seed=seed_of(seed))[0]

    @cached_property
    @default_modes()
    def recommendation(self) -> Recommendation:
        """Whether to train on everything, on weighted episodes, or on the best: by cross-validation, with seed 0.

        Candidates are weights and shares of 75% and 50%, with the other options of the rule.
        """
        found = {name: partial(self._weigh, rule) for name, rule in self._candidates.items()}
        return Recommendation(compare_with_everything(self.material, found, level=self.confidence_level, seed=0))

    def recommended(self) -> Curated:
        """The same scores under the rule that `recommendation` names; everything where it names none."""
        best = self.recommendation.best
        rule = replace(self.rule, **_NO_RULE) if best is None else self._candidates[best.name]
        kept, weights = self._select(rule, np.ones(self.data.episode_count, dtype=bool))
        compared = self.recommendation.comparisons
        return replace(self, rule=rule, kept_units=kept, unit_weights=weights, comparisons=compared)

    @property
    def _candidates(self) -> dict[str, Rule]:
        plain = replace(self.rule, **_NO_RULE)
        shares = {f"the best {share:.0%}": replace(plain, keep=share) for share in _SHARES}
        return {"weights": replace(plain, weight=True), **shares}

    def _weigh(self, rule: Rule, training: Array) -> Array:
        """(step,) weights by a rule that is applied to some episodes alone; all of these where it selects nothing."""
        if rule.steps is not None:
            share = training[self.data.episode].mean()
            rule = replace(rule, steps=max(1, round(rule.steps * float(share))))
        try:
            return self._select(rule, training)[1][self.unit]
        except SettingsError:
            return training[self.data.episode].astype(np.float64)

    @property
    def kinds(self) -> Kinds | None:
        """Kinds of state, where the rule keeps some of each."""
        return self.units.kinds

    @property
    def effective_size(self) -> float:
        """Kish's effective sample size of the weights, (sum w)^2 / sum w^2, in units."""
        return effective_size(self.unit_weights)

    def _checked_marks(self, marks: Mapping[int, bool]) -> dict[int, bool]:
        count, checked = self.data.episode_count, {}
        instance_of(
            "marks", marks, Mapping, rule="pass episode numbers with True (keep) or False (drop), as in {0: True}"
        )
        for episode, keep in marks.items():
            rule = f"episodes are numbered from 0 to {count - 1:,}"
            number = whole_number("an episode in marks", episode, least=0, most=count - 1, rule=rule)
            checked[number] = true_or_false(f"the mark of episode {number}", keep)
        return checked

    @property
    def unit(self) -> Array:
        """(step,) the unit of each step of `data`."""
        return self.data.episode if self.rule.unit == "episode" else self.stretches.of_step

    @property
    def kept_steps(self) -> Array:
        """(step,) whether each step of `data` is kept."""
        return self.kept_units[self.unit]

    @property
    def kept(self) -> Array:
        """(episode,) whether any step of each episode of `data` is kept."""
        return np.bincount(self.data.episode, self.kept_steps) > 0

    @property
    def step_weights(self) -> Array:
        """(step,) the weight of every step of `data`; 0 where it is dropped."""
        return self.unit_weights[self.unit]

    @property
    def weights(self) -> Array:
        """The weights of the episodes of `demonstrations()`."""
        return self.unit_weights[self.kept_units]

    @property
    def sentence(self) -> str:
        """The rule in words, with what it kept."""
        told = self.rule.sentence(self.kept_units, self.kinds)
        if not self.marks:
            return told
        keep = sum(self.marks.values())
        return (
            f"{told}; {counted(len(self.marks), 'episode')} by hand ({keep:,} kept, {len(self.marks) - keep:,} dropped)"
        )

    @property
    def keys(self) -> Array:
        """What the kept episodes are called where the data came from."""
        return self.data.episode_keys[self.kept]

    def __repr__(self) -> str:
        return f"Curated({self.sentence})"

    def demonstrations(self) -> Demonstrations:
        """What is kept; each segment is an episode of its own, where the rule is about segments.

        The names of all demonstrators stay, also of those of whom nothing is kept.
        """
        kept = self.kept_steps
        return replace(self.data.select(kept), episode=self.unit[kept])

    def sampler(self, samples: int | None = None, *, seed: int = 0) -> WeightedRandomSampler:
        """Draws steps of `data` by their weights, for a `torch.utils.data.DataLoader` over all of its steps.

        `samples` is how many one pass draws; None takes as many as steps are kept.
        """
        count = int(self.kept_steps.sum())
        if samples is not None:
            count = whole_number("samples", samples, least=1, rule="a pass draws one step or more, a whole number")
        weights = self.step_weights.tolist()
        return WeightedRandomSampler(weights, count, replacement=True, generator=stream(seed_of(seed), "sampler"))

    @cached_property
    def episodes(self) -> pa.Table:
        """One row for each episode of `data`: key, demonstrator, steps, every score with interval, keep and weight."""
        data = self.data
        columns: dict[str, Any] = {
            "episode": np.arange(data.episode_count),
            "key": [_text(key) for key in data.episode_keys.tolist()],
            "demonstrator": [_text(data.names[number]) for number in data.episode_demonstrator],
            "steps": np.bincount(data.episode),
            "keep": self.kept,
            "weight": np.bincount(data.episode, self.step_weights) / np.bincount(data.episode),
        }
        if self.marks:
            words = {True: "keep", False: "drop", None: None}
            columns["by_hand"] = pa.array(
                [words[self.marks.get(each)] for each in range(data.episode_count)], pa.string()
            )
        return self._table(columns, "episode", self.scores)

    @cached_property
    def stretch_table(self) -> pa.Table:
        """One row for each segment: its episode, its steps from `start` to before `end`, every score with interval."""
        cut, keys = self.stretches, np.array([_text(key) for key in self.data.episode_keys.tolist()])
        columns: dict[str, Any] = {
            "episode": cut.episode,
            "key": keys[cut.episode],
            "start": cut.start,
            "end": cut.start + cut.steps,
            "keep": np.bincount(cut.of_step, self.kept_steps) > 0,
            "weight": np.bincount(cut.of_step, self.step_weights) / cut.steps,
        }
        return self._table(columns, "stretch", self.stretch_scores)

    def _table(self, columns: dict[str, Any], unit: str, scores: Scores) -> pa.Table:
        """Columns with the kinds of state of units and their scores; the metadata say what these are."""
        if self.kinds is not None and self.rule.unit == unit:
            names = np.array(self.kinds.names)
            columns["kinds"] = [", ".join(names[held]) for held in self.kinds.held]
        for name, each in scores.items():
            columns |= each.columns(name)
        bounds = ", ".join(f"{name} {bound:g}" for name, bound in self.rule.bounds.items())
        scale = "expertise is divided by its mean over the demonstrators of the fit"
        level = str(self.confidence_level)
        told = {"rule": self.sentence, "confidence_level": level, "bounds": bounds, "scale": scale}
        return pa.table(columns).replace_schema_metadata(told | {"judged_by": self.judged_by})

    @property
    def length_correlation(self) -> Correlation:
        """The rank correlation of the score that decided with the length of episodes."""
        score, steps = self.scores[self.rule.by].estimate, np.bincount(self.data.episode)
        value = rank_correlation(score, steps)
        if len(score) < 4 or np.isnan(value):
            return Correlation(np.nan, np.nan, np.nan)
        reach = NormalDist().inv_cdf((1 + self.confidence_level) / 2) / np.sqrt(len(score) - 3)
        low, high = np.tanh(np.arctanh(np.clip(value, -1 + 1e-12, 1 - 1e-12)) + np.array([-reach, reach]))
        return Correlation(value, float(low), float(high))

    def people(self) -> pa.Table:
        """How many episodes each demonstrator has, how many of these are kept, and which share of all that are kept."""
        who, count = self.data.episode_demonstrator, len(self.data.names)
        had, kept = np.bincount(who, minlength=count), np.bincount(who[self.kept], minlength=count)
        names = [_text(name) for name in self.data.names]
        table = pa.table({"demonstrator": names, "episodes": had, "kept": kept, "share": kept / kept.sum()})
        return table.take(np.argsort(-kept, kind="stable"))

    def write(
        self,
        path: str | Path,
        *,
        format: str | None = None,  # noqa: A002 (as `ileed.write` has it)
        source: str | Path | None = None,
        overwrite: bool = False,
    ) -> list[Path]:
        """Write a folder with the tables, and what trainers of a format read; returns its files.

        `format` is lerobot, robomimic, minari or openpi; None writes the tables alone. `source` is where the data were
        read from, which is copied or looked into and never changed. The folder appears whole or not at all. An
        existing folder is refused; with `overwrite`, the files of an earlier call are replaced and all others stay.
        """
        path = path_of("path", path, rule="pass the path of a folder to write")
        read_from = None if source is None else path_of("source", source, rule="pass where the data were read from")
        return outputs.write(self, path, format, read_from, overwrite=true_or_false("overwrite", overwrite))


def _text(value: object) -> str:
    """A key or name as a file of UTF-8 holds it."""
    return str(value).encode(errors="replace").decode()
