"""Episodes kept by a rule, with the scores of all of them."""

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
from ileed.curation.rules import Rule, Units, effective_size
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

STRETCH = 20
_SHARES = (0.75, 0.5)  # that a recommendation compares with everything
_NO_RULE: Mapping[str, Any] = {"keep": None, "above": None, "steps": None, "weight": False}
_HELD_OUT = "policies of folds, none of which has seen the episodes that it judges"


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
    """Score every episode and every segment within it, and keep some by a rule.

    Without a rule everything is kept. `curate(...).recommended()` keeps what cross-validation recommends, as the
    command does; `curate(...).check(seed=0)` compares a rule with training on everything.

    With continuous actions, expertise of episodes is corrected for their states and shrunk towards the rating of their
    demonstrator (`adjust`), and the states in which episodes begin keep their shares (`coverage`).

    Args:
        fitted: The fit that judges.
        data: The data of the fit, or others with the same features and actions; both are matched by name where they
            have names (`Policy.match`). If the fit knows pseudonyms, the data of the fit get the same ones, and
            demonstrators of other data count as new, with a warning.
        stretch: The number of steps of a segment.
        confidence_level: That of all intervals.
        seed: That of the sample with which states are compared, of clusters, of folds, and of the order of equal
            scores.
        cross_fit: Whether to fit once more, in folds, so that each episode is judged by policies that have not seen it.
            Otherwise discrete actions of the data of the fit are judged in-sample.
        progress: Called with the number of steps done and their total.
        rule: The fields of `Rule`: `keep=0.5`, `above=1.0, probability=0.9` or `steps=10_000`, with `at_least=5` (of
            each kind of state), `by="agreement"`, `weight=True`, `unit="stretch"` and others.
    """
    instance_of("fitted", fitted, Fitted, rule="pass what method.fit(data, seed=0) or ileed.load(run) returns")
    matched = fitted.match_names(fitted.policy.match(data), allow_new=True)
    if matched.names != data.names:
        data = matched
    callable_or_none("progress", progress, rule="pass a function of the number done and the total, or None")
    stretch = whole_number("stretch", stretch, least=1, rule="a segment has one step or more, a whole number")
    chosen = Rule.of(rule).of_actions(discrete=data.discrete)
    seed, level = seed_of(seed), checked_level(confidence_level)
    reads, seen = fitted.normaliser, matched.observations
    blocks = (network_inputs(seen[rows], reads, None).numpy().T for rows in blocks_of(matched))
    inputs = matched.store.written(blocks, np.float32, (len(reads.kept),)).T  # (input, step), mapped if the data are
    groups = StateGroups(matched, cluster_steps(matched, inputs, seed=seed)) if chosen.adjust else None
    settings = Settings(chosen.bounds, level, seed, progress, groups=groups)

    is_held_out = fitted.rater is not None and fitted.rater.fingerprint == matched.fingerprint
    is_own = fitted.provenance.get("data", {}).get("fingerprint") == matched.fingerprint
    learned_from = "these episodes" if is_own else "other data"
    judged_by = _HELD_OUT if is_held_out else f"the policy of the fit, which has learned from {learned_from}"
    if true_or_false("cross_fit", cross_fit) and not is_held_out:
        fitted, likelihood = _cross_fitted(fitted, matched, seed)
        settings, judged_by = settings._replace(likelihood=likelihood), _HELD_OUT

    stretches = Stretches.of(data, stretch)
    scored = score(fitted, matched, inputs, stretches, settings)
    unit = data.episode if chosen.unit == "episode" else stretches.of_step
    steps = np.bincount(unit)
    units = Units(
        steps=steps,
        ties=numpy_stream(seed, "ties").permutation(len(steps)) if chosen.adjust else np.arange(len(steps)),
        kinds=kinds_of(data, inputs, unit, chosen.kinds, seed=seed) if chosen.at_least else None,
        strata=strata_of(inputs, unit, seed=seed),
        reference=None if fitted.rater is None else scored.reference,
    )
    cluster, ratings = None if groups is None else groups.cluster, fitted.expertise.ratings
    return Curated(
        data=data,
        rule=chosen,
        kept_units=np.ones(len(steps), dtype=bool),
        unit_weights=np.ones(len(steps)),
        scores=scored.episodes,
        stretch_scores=scored.stretches,
        stretches=stretches,
        units=units,
        material=Material(data, inputs, scored.expertise, fitted.rater is not None, cluster),
        within_reliability=scored.within_reliability,
        confidence_level=level,
        judged_by=judged_by,
        explained="" if ratings is None else ratings.by.explained,
    ).marked({})


def _cross_fitted(fitted: Fitted, data: Demonstrations, seed: int) -> tuple[Fitted, StepLikelihood]:
    """The fit with cross-fitted ratings on these data, and the likelihood of the steps by the same policies."""
    data.store.check_in_memory("cross_fit needs the steps in memory, and these are mapped from a folder: leave it out")
    if set(data.names) - set(fitted.expertise.names):
        message = "cross_fit needs the data of the fit, and some demonstrators are not in the fit: leave it out"
        raise DemonstrationError(message, code="cross-fit-other-data")
    parts = fitted.joint.parts
    method: Ileed = replace(
        fitted.method, policy=parts.policy, demonstrator=parts.demonstrator, folds=fitted.method.folds or FOLDS
    )
    folds = method.fit_folds(data, None, Stages(seed, torch.device("cpu")))
    ratings = None if folds is None else folds.rate(temperature=method.temperature)
    if folds is None or ratings is None:
        raise SettingsError(
            "cross_fit needs two episodes, a model under which expertise is one number, and folds that stay finite: "
            "leave it out",
            code="not-cross-fitted",
        )
    likelihood = folds.step_likelihood(ratings)
    if fitted.evidence is not None:  # whose ratings combine outcomes with cross-fitting already
        return replace(fitted, rater=folds.rater), likelihood
    return fitted.with_ratings(ratings, folds.rater), likelihood


class Correlation(NamedTuple):
    """Spearman's rank correlation with its interval by Fisher's transformation; NaN where it is not defined."""

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

    A unit is an episode, or a segment if the rule is about these. Train with
    `Ileed.fit(curated.demonstrations(), weights=curated.weights)`, or on the files of `write`.
    """

    data: Demonstrations
    rule: Rule
    kept_units: Array
    """(unit,) whether each is kept."""
    unit_weights: Array
    """(unit,) the weight of each: 0 if it is dropped, 1 on average over the steps kept."""
    scores: Scores
    """The scores of episodes by name: expertise, agreement, typicality."""
    stretch_scores: Scores
    """Those of segments."""
    stretches: Stretches
    units: Units
    """What the rule knows about units beside their scores."""
    material: Material
    """What `check` trains policies on."""
    within_reliability: float
    """Reliability of differences between episodes of one demonstrator, from 0 to 1: the intraclass correlation of odd
    and even segments. Adjusted scores of episodes shrink by it towards the ratings of their demonstrators; they are
    these ratings where it is NaN, that is, cannot be estimated."""
    confidence_level: float
    judged_by: str
    """Which policies judged the steps, in words: the fit's own, or policies of folds that have not seen them."""
    marks: Mapping[int, bool] = field(default_factory=dict)
    """Episodes that were kept (True) or dropped (False) by hand, whatever the rule says."""
    explained: str = ""
    """What duration and speed explain of the order of demonstrators in the fit, in words, if that is most of it."""
    comparisons: tuple[Comparison, ...] = ()
    """Comparisons with training on everything; see `check` and `recommended`."""

    @default_modes()
    def marked(self, marks: Mapping[int, bool]) -> Curated:
        """Keep (True) or drop (False) some episodes by hand, and all others by the rule.

        Args:
            marks: By the number of an episode in `data`. They replace earlier marks.
        """
        rule = "pass episode numbers with True (keep) or False (drop), as in {0: True}"
        instance_of("marks", marks, Mapping, rule=rule)
        count, checked = self.data.episode_count, {}
        for episode, keep in marks.items():
            rule = f"episodes are numbered from 0 to {count - 1:,}"
            number = whole_number("an episode in marks", episode, least=0, most=count - 1, rule=rule)
            checked[number] = true_or_false(f"the mark of episode {number}", keep)
        return replace(self, marks=checked)._under(self.rule)

    def _under(self, rule: Rule) -> Curated:
        """The same scores under a rule."""
        kept, weights = self._select(rule, np.ones(self.data.episode_count, dtype=bool))
        return replace(self, rule=rule, kept_units=kept, unit_weights=weights)

    def _select(self, rule: Rule, episodes: Array) -> tuple[Array, Array]:
        """(unit,) which units of some episodes are kept, by a rule and by hand, and their weights."""
        is_episode = rule.unit == "episode"
        scores = self.scores if is_episode else self.stretch_scores
        episode = np.arange(self.data.episode_count) if is_episode else self.stretches.episode
        chosen = episodes[episode]
        units = self.units.select(chosen)
        by_hand = np.full(self.data.episode_count, -1)
        by_hand[list(self.marks)] = list(self.marks.values())
        own = by_hand[episode][chosen]
        part = {name: each.select(chosen) for name, each in scores.items()}
        kept, weights = np.zeros(len(chosen), dtype=bool), np.zeros(len(chosen))
        kept[chosen] = np.where(own >= 0, own == 1, rule.choose(part, units))
        if not kept.any():
            message = "every episode is dropped by hand or by the rule: keep one or more"
            raise SettingsError(message, code="nothing-kept")
        weights[chosen] = rule.weights(part, units, kept[chosen])
        return kept, weights

    @default_modes()
    def check(self, *, seed: int = 0) -> Comparison:
        """Compare training on what is kept, with its weights, with training on everything, by cross-validation.

        Small policies are trained in folds of episodes, which `seed` chooses, and judged by how well they predict the
        expert component of held-out episodes (`ileed.curation.validation`). A selection that is better here need not be
        better in the task; only running both policies shows that.
        """
        name = "this selection" if self.rule.is_given or self.marks else "everything"
        weigh, level = partial(self._weigh, self.rule), self.confidence_level
        return compare_with_everything(self.material, {name: weigh}, level=level, seed=seed_of(seed))[0]

    @cached_property
    @default_modes()
    def recommendation(self) -> Recommendation:
        """Whether to train on everything, on weighted episodes, or on the best, by cross-validation with seed 0.

        Candidates are weights and shares of 75% and 50%, with the other options of the rule.
        """
        found = {name: partial(self._weigh, rule) for name, rule in self._candidates.items()}
        return Recommendation(compare_with_everything(self.material, found, level=self.confidence_level, seed=0))

    def recommended(self) -> Curated:
        """The same scores under the rule that `recommendation` names; everything if it names none."""
        best = self.recommendation.best
        rule = replace(self.rule, **_NO_RULE) if best is None else self._candidates[best.name]
        return replace(self._under(rule), comparisons=self.recommendation.comparisons)

    @property
    def _candidates(self) -> dict[str, Rule]:
        plain = replace(self.rule, **_NO_RULE)
        shares = {f"the best {share:.0%}": replace(plain, keep=share) for share in _SHARES}
        return {"weights": replace(plain, weight=True), **shares}

    def _weigh(self, rule: Rule, training: Array) -> Array:
        """(step,) weights by a rule applied to some episodes alone; all of these if it cannot be applied."""
        if rule.steps is not None:
            share = training[self.data.episode].mean()
            rule = replace(rule, steps=max(1, round(rule.steps * float(share))))
        try:
            return self._select(rule, training)[1][self.unit]
        except SettingsError:
            return training[self.data.episode].astype(np.float64)

    @property
    def kinds(self) -> Kinds | None:
        """Kinds of state, if the rule keeps some episodes of each."""
        return self.units.kinds

    @property
    def effective_size(self) -> float:
        """Kish's effective sample size of the weights, (sum w)^2 / sum w^2, in units."""
        return effective_size(self.unit_weights)

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
        """(step,) the weight of each step of `data`; 0 if it is dropped."""
        return self.unit_weights[self.unit]

    @property
    def weights(self) -> Array:
        """The weights of the episodes of `demonstrations()`."""
        return self.unit_weights[self.kept_units]

    @property
    def sentence(self) -> str:
        """The rule in words, with what it kept."""
        found = self.rule.sentence(self.kept_units, self.kinds)
        if not self.marks:
            return found
        keep, count = sum(self.marks.values()), len(self.marks)
        return f"{found}; {counted(count, 'episode')} by hand ({keep:,} kept, {count - keep:,} dropped)"

    @property
    def keys(self) -> Array:
        """The names of the kept episodes in the source of the data."""
        return self.data.episode_keys[self.kept]

    def __repr__(self) -> str:
        return f"Curated({self.sentence})"

    def demonstrations(self) -> Demonstrations:
        """The steps that are kept; if the rule is about segments, each segment is an episode of its own.

        The names of all demonstrators stay, including those without any step.
        """
        kept = self.kept_steps
        return replace(self.data.select(kept), episode=self.unit[kept])

    def sampler(self, samples: int | None = None, *, seed: int = 0) -> WeightedRandomSampler:
        """Sample steps of `data` by their weights, for a `torch.utils.data.DataLoader` over all of its steps.

        Args:
            samples: The number of samples in one pass; None is the number of steps kept.
            seed: That of the samples.
        """
        count = int(self.kept_steps.sum())
        if samples is not None:
            count = whole_number("samples", samples, least=1, rule="a pass has one sample or more, a whole number")
        weights = self.step_weights.tolist()
        return WeightedRandomSampler(weights, count, replacement=True, generator=stream(seed_of(seed), "sampler"))

    @cached_property
    def episodes(self) -> pa.Table:
        """One row for each episode of `data`: key, demonstrator, steps, every score with interval, keep and weight."""
        data = self.data
        columns: dict[str, Any] = {
            "episode": np.arange(data.episode_count),
            "key": _texts(data.episode_keys.tolist()),
            "demonstrator": _texts(data.names[number] for number in data.episode_demonstrator),
            "steps": np.bincount(data.episode),
            "keep": self.kept,
            "weight": np.bincount(data.episode, self.step_weights) / np.bincount(data.episode),
        }
        if self.marks:
            words = {True: "keep", False: "drop", None: None}
            by_hand = [words[self.marks.get(each)] for each in range(data.episode_count)]
            columns["by_hand"] = pa.array(by_hand, pa.string())
        return self._table(columns, "episode", self.scores)

    @cached_property
    def stretch_table(self) -> pa.Table:
        """One row for each segment: its episode, its steps from `start` to before `end`, every score with interval."""
        cut, keys = self.stretches, np.array(_texts(self.data.episode_keys.tolist()))
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
        """Columns with kinds of state and scores of units; the metadata explain them."""
        if self.kinds is not None and self.rule.unit == unit:
            names = np.array(self.kinds.names)
            columns["kinds"] = [", ".join(names[held]) for held in self.kinds.held]
        for name, each in scores.items():
            columns |= each.columns(name)
        metadata = {
            "rule": self.sentence,
            "confidence_level": str(self.confidence_level),
            "bounds": ", ".join(f"{name} {bound:g}" for name, bound in self.rule.bounds.items()),
            "scale": "expertise is divided by its mean over the demonstrators of the fit",
            "judged_by": self.judged_by,
        }
        return pa.table(columns).replace_schema_metadata(metadata)

    @property
    def length_correlation(self) -> Correlation:
        """The rank correlation of the score that decides with the length of episodes."""
        score, steps = self.scores[self.rule.by].estimate, np.bincount(self.data.episode)
        value = rank_correlation(score, steps)
        if len(score) < 4 or np.isnan(value):
            return Correlation(np.nan, np.nan, np.nan)
        reach = NormalDist().inv_cdf((1 + self.confidence_level) / 2) / np.sqrt(len(score) - 3)
        low, high = np.tanh(np.arctanh(np.clip(value, -1 + 1e-12, 1 - 1e-12)) + np.array([-reach, reach]))
        return Correlation(value, float(low), float(high))

    def people(self) -> pa.Table:
        """One row for each demonstrator: episodes, how many are kept, and the share of all that are kept."""
        who, count = self.data.episode_demonstrator, len(self.data.names)
        had, kept = np.bincount(who, minlength=count), np.bincount(who[self.kept], minlength=count)
        columns = {"demonstrator": _texts(self.data.names), "episodes": had, "kept": kept, "share": kept / kept.sum()}
        return pa.table(columns).take(np.argsort(-kept, kind="stable"))

    def write(
        self,
        path: str | Path,
        *,
        format: str | None = None,  # noqa: A002 (as `ileed.write` has it)
        source: str | Path | None = None,
        overwrite: bool = False,
    ) -> list[Path]:
        """Write a folder with the tables and with files for trainers, atomically; return its files.

        Args:
            path: The folder. One that exists is refused unless `overwrite`.
            format: "lerobot", "robomimic", "minari" or "openpi"; None writes the tables alone.
            source: Where the data were read from; it is copied or read, never changed.
            overwrite: Whether to replace the files of an earlier call; all other files stay.
        """
        path = path_of("path", path, rule="pass the path of a folder to write")
        read_from = None if source is None else path_of("source", source, rule="pass where the data were read from")
        return outputs.write(self, path, format, read_from, overwrite=true_or_false("overwrite", overwrite))


def _texts(values: Any) -> list[str]:
    """Keys or names as UTF-8 can encode them."""
    return [str(value).encode(errors="replace").decode() for value in values]
