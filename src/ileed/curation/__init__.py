"""Curation: fewer and better episodes for whatever trainer, by scores of each episode and a rule that is stated.

`curate` scores every episode, and every stretch within it, and applies a rule; `Curated` holds the result, writes it
in the formats of trainers, and never changes the data that it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import WeightedRandomSampler

from ileed._torch import default_modes, stream, threads
from ileed.checking import callable_or_none, instance_of, path_of, seed_of, true_or_false, whole_number
from ileed.curation import outputs
from ileed.curation.rules import Rule
from ileed.curation.scores import Progress, Scores, Settings, Stretches, score
from ileed.curation.states import Kinds, kinds_of
from ileed.demonstrations import Array, Demonstrations
from ileed.demonstrations.streaming import blocks_of
from ileed.errors import DemonstrationError, SettingsError
from ileed.fitted import Fitted
from ileed.fitted.crossfit import SignalFolds
from ileed.fitted.likelihood import Block
from ileed.fitted.policy import network_inputs
from ileed.fitted.rated_by import checked_level
from ileed.fitting.stages import Stages
from ileed.methods import FOLDS, Ileed
from ileed.ranks import rank_correlation
from ileed.wording import counted

__all__ = ["Correlation", "Curated", "Rule", "curate"]

STRETCH = 20


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
    """Score every episode of `data`, and every stretch of `stretch` steps within it, and keep some by a rule.

    `rule` are the fields of `Rule`: `keep=0.5`, `above=1.0, probability=0.9` or `steps=10_000`, all of which may be
    joined with `at_least=5` (of each kind of state), `by="agreement"`, `weight=True` and `unit="stretch"`. Without a
    rule everything is kept.

    A fit to anonymised data knows its demonstrators by pseudonyms: of the same data, the result has these pseudonyms;
    demonstrators of other data cannot be matched and count as new, with a warning.

    The data may be those that the fit learned from, or others with the same features and actions; both are matched by
    name where they have names (`Policy.match`). Where they are the data of the fit, its policy has seen the
    steps that it judges: the temperature, the dispersion and each demonstrator's mean expertise are cross-fitted then,
    but the likelihood of each episode is in sample. A fit without cross-fitting (`folds=0`) has none of these. With
    `cross_fit` each episode is judged by policies that have not seen it: the method of the fit, with its width, is
    fitted to `data` once more, in folds, which takes about as long as the fit did. `Curated.judged_by` says which.

    `progress` is called with the number of steps done and their total. `seed` chooses the sample that states are
    compared with, the clusters of kinds, and the folds.
    """
    instance_of("fitted", fitted, Fitted, rule="pass what method.fit(data, seed=0) or ileed.load(run) returns")
    matched = fitted.match_names(fitted.policy.match(data), allow_new=True)
    if matched.names != data.names:
        data = matched
    callable_or_none("progress", progress, rule="pass a function of the number done and the total, or None")
    stretch = whole_number("stretch", stretch, least=1, rule="a stretch has one step or more, a whole number")
    chosen, seed, level = Rule.of(rule), seed_of(seed), checked_level(confidence_level)
    settings = Settings(chosen.bounds, level, seed, progress or (lambda done, total: None))
    judged_by = _judged_by(fitted, matched)
    if true_or_false("cross_fit", cross_fit) and not _is_held_out(fitted, matched):
        fitted, blocks = _cross_fitted(fitted, matched, seed)
        settings, judged_by = settings._replace(blocks=blocks), _HELD_OUT
    stretches = Stretches.of(data, stretch)
    inputs = _inputs(fitted, matched)
    episodes, within = score(fitted, matched, inputs, stretches, settings)
    scores, unit = (episodes, data.episode) if chosen.unit == "episode" else (within, stretches.of_step)
    kinds = kinds_of(data, inputs, unit, chosen.kinds, seed=seed) if chosen.at_least else None
    steps = np.bincount(unit)
    kept = chosen.choose(scores, steps, kinds)
    weights = chosen.weights(scores, steps, kept)
    return Curated(data, chosen, kept, weights, episodes, within, stretches, kinds, level, judged_by)


def _inputs(fitted: Fitted, data: Demonstrations) -> Array:
    """(input, step) what the networks read; of mapped columns, mapped as well."""
    if data.mapping is None:
        return network_inputs(data.observations, fitted.normaliser, None).numpy()
    width = len(fitted.normaliser.kept)
    blocks = (network_inputs(data.observations[block], fitted.normaliser, None).numpy().T for block in blocks_of(data))
    return data.mapping.written(blocks, np.float32, (width,)).T


def _judged_by(fitted: Fitted, data: Demonstrations) -> str:
    """What judges the steps without cross-fitting, in words."""
    if _is_held_out(fitted, data):
        return _HELD_OUT
    learned_from = fitted.provenance.get("data", {}).get("fingerprint")
    if learned_from == data.fingerprint():
        return "the policy of the fit, which has learned from these episodes"
    return "the policy of the fit, which has learned from other data"


_HELD_OUT = "policies of folds, none of which has seen the episodes that it judges"


def _is_held_out(fitted: Fitted, data: Demonstrations) -> bool:
    """Whether the fit rates these data by policies that have not seen each episode."""
    return fitted.rater is not None and fitted.rater.fingerprint == data.fingerprint()


def _cross_fitted(fitted: Fitted, data: Demonstrations, seed: int) -> tuple[Fitted, Iterable[Block] | None]:
    """The fit with the ratings of folds of the data, and the steps as these judge them; None where its rater does."""
    if data.mapping is not None:
        raise SettingsError("cross_fit needs the steps in memory, and these are mapped from a folder: leave it out")
    if set(data.names) - set(fitted.expertise.names):
        raise DemonstrationError("the data have people who are not in the fit: cross_fit needs the data of the fit")
    method: Ileed = replace(
        fitted.method, policy=fitted.joint.parts.policy, demonstrator=fitted.joint.parts.demonstrator
    )
    method = replace(method, folds=method.folds or FOLDS)
    folds = method.fit_folds(data, None, Stages(seed, torch.device("cpu"), None, None, 0.0))
    ratings = None if folds is None else folds.rate(temperature=method.temperature)
    if folds is None or ratings is None:
        raise SettingsError(
            "cross_fit needs two episodes, a model under which expertise is one number, and folds that stay finite: "
            "leave it out"
        )
    blocks = None if isinstance(folds, SignalFolds) else folds.judged()
    if fitted.evidence is not None:  # whose ratings by outcomes and cross-fitting stay
        return replace(fitted, rater=folds.rater), blocks
    return fitted.with_ratings(ratings, folds.rater), blocks


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
    """Episodes or stretches kept by a rule, with the scores of all of them; `data` is what was curated.

    A unit is an episode, or a stretch where the rule is about these. `weights` are for
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
    kinds: Kinds | None
    """Kinds of state, where the rule keeps some of each."""
    confidence_level: float
    judged_by: str
    """Which policies judged the steps: the fit's own, or those of folds that have not seen them; in words."""
    marks: Mapping[int, bool] = field(default_factory=dict)
    """Episodes that somebody kept (True) or dropped (False) by hand, whatever the rule says of them."""

    @default_modes()
    def marked(self, marks: Mapping[int, bool]) -> Curated:
        """The same scores with some episodes kept (True) or dropped (False) by hand, all others by the rule.

        `marks` are by the number of an episode in `data`; they replace earlier ones.
        """
        marks, count = self._checked_marks(marks), self.data.episode_count
        scores, of_unit = self.scores, np.arange(count)
        if self.rule.unit == "stretch":
            scores, of_unit = self.stretch_scores, self.stretches.episode
        steps = np.bincount(self.unit)
        by_hand = np.full(count, -1)
        by_hand[list(marks)] = list(marks.values())
        own = by_hand[of_unit]
        kept = np.where(own >= 0, own == 1, self.rule.choose(scores, steps, self.kinds))
        if not kept.any():
            raise SettingsError("every episode is dropped by hand or by the rule: keep one or more")
        return replace(self, kept_units=kept, unit_weights=self.rule.weights(scores, steps, kept), marks=marks)

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
        """What is kept; each stretch is an episode of its own, where the rule is about stretches.

        Everybody's name stays, also of those of whom nothing is kept.
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
        """One row for each episode of `data`: key, person, steps, every score with its interval, keep and weight."""
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
        if self.rule.unit == "episode":
            columns |= self._kinds
        for name, each in self.scores.items():
            columns |= each.columns(name)
        return pa.table(columns).replace_schema_metadata(self._told)

    @cached_property
    def stretch_table(self) -> pa.Table:
        """One row for each stretch: its episode, its steps from `start` to before `end`, every score with interval."""
        cut, keys = self.stretches, np.array([_text(key) for key in self.data.episode_keys.tolist()])
        columns: dict[str, Any] = {
            "episode": cut.episode,
            "key": keys[cut.episode],
            "start": cut.start,
            "end": cut.start + cut.steps,
            "keep": np.bincount(cut.of_step, self.kept_steps) > 0,
            "weight": np.bincount(cut.of_step, self.step_weights) / cut.steps,
        }
        if self.rule.unit == "stretch":
            columns |= self._kinds
        for name, each in self.stretch_scores.items():
            columns |= each.columns(name)
        return pa.table(columns).replace_schema_metadata(self._told)

    @property
    def _kinds(self) -> dict[str, list[str]]:
        if self.kinds is None:
            return {}
        names = np.array(self.kinds.names)
        return {"kinds": [", ".join(names[held]) for held in self.kinds.held]}

    @property
    def _told(self) -> dict[str, str]:
        bounds = ", ".join(f"{name} {bound:g}" for name, bound in self.rule.bounds.items())
        scale = "expertise is divided by its mean over the people of the fit"
        level = str(self.confidence_level)
        told = {"rule": self.sentence, "confidence_level": level, "bounds": bounds, "scale": scale}
        return told | {"judged_by": self.judged_by}

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
        """How many episodes each person has, how many of these are kept, and which share of all that are kept."""
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
