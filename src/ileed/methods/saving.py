"""Saving and loading of fits: run directories, and the registry of the settings that they may name.

A fit that was loaded can be asked, acted with and reported: a field of another type, shape or length than was written
is refused here, by name. The model is laid out without memory, and takes the tensors of the file only once they agree
with it, so that no setting can ask for more memory than the file's own size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ileed import plugins, runs
from ileed.data import Array, Encoding
from ileed.data.encoding import Feature, NamedArray
from ileed.errors import SettingsError, brief
from ileed.fitting import History, Outcome
from ileed.methods.expertise import QUANTILES, Expertise, ExpertiseSummary
from ileed.methods.policy import Policy
from ileed.model.batch import Sizes
from ileed.model.joint import Joint, Parts, ask
from ileed.model.modules import ModulePolicy
from ileed.model.normaliser import Normaliser
from ileed.model.parts import OWN_PARTS, check_part
from ileed.rating.outcome_evidence import EvidenceSettings, SkillEvidence
from ileed.rating.ratings import RatedBy, Ratings
from ileed.rating.signal import Rater, RaterSettings
from ileed.selection import ModelComparison


def _kinds(*more: type) -> plugins.Registry[type]:
    """The classes that run directories may name, with these; other packages contribute theirs."""
    own = (ModulePolicy, Parts, Sizes, Encoding, Feature, NamedArray, ModelComparison)
    every = (*OWN_PARTS, *own, RatedBy, RaterSettings, EvidenceSettings, *more)
    return plugins.Registry(plugins.PARTS, {kind.__name__: kind for kind in every}, check_part)


_KINDS = _kinds()
_Costs = tuple[float | None, ...]  # None for a restart that became non-finite
_SETTINGS = {
    "method": Any,
    "parts": Parts,
    "sizes": Sizes,
    "observation_shape": tuple[int, ...],
    "demonstrators": tuple[str, ...],
    "skills": tuple[str, ...],
    "restarts": _Costs,
    "chosen": int,
    "outcome": str,
}
_LATER = {  # which runs of earlier versions lack
    "kept": tuple[int, ...],
    "nats_per_action": float,
    "width": ModelComparison | None,
    "comparison": ModelComparison | None,
    "encoding": Encoding | None,
    "ratings": RatedBy | None,
    "alternatives": tuple[tuple[float, ...], ...],
    "rater": RaterSettings | None,
    "evidence": EvidenceSettings | None,
    "arrays": tuple[NamedArray, ...],
}
_MOST_VISITS = 2**53
_LARGEST_LOGIT = 1e4
_MOST_NUMBERS = 10**9  # of one observation
_DEPTH = 20  # objects within objects of a provenance, beyond which nobody would read it


def run_of(fitted: Any) -> runs.Run:
    """What a run directory keeps of a `Fitted`."""
    costs, ratings = fitted.restarts.nats_per_action, fitted.expertise.ratings
    settings = {
        "method": fitted.method,
        "parts": fitted.joint.parts,
        "sizes": fitted.joint.sizes,
        "observation_shape": fitted.normaliser.shape,
        "arrays": fitted.normaliser.arrays,
        "demonstrators": fitted.expertise.names,
        "skills": fitted.expertise.skill_names,
        "restarts": [float(cost) if np.isfinite(cost) else None for cost in costs],
        "chosen": fitted.restarts.kept[0],
        "kept": fitted.restarts.kept,
        "alternatives": fitted.restarts.alternatives,
        "nats_per_action": fitted.nats_per_action,
        "outcome": fitted.outcome.name,
        "width": fitted.width and replace(fitted.width, settings=()),
        "comparison": fitted.comparison and replace(fitted.comparison, settings=()),
        "encoding": fitted.policy.encoding,
        "ratings": ratings and ratings.by,
        "rater": fitted.rater and fitted.rater.settings,
        "evidence": fitted.evidence and fitted.evidence.settings,
    }
    settings = {name: runs.plain(value) for name, value in settings.items()}
    weights = _tensors(fitted.joint, fitted.normaliser, fitted.expertise.summary, ratings and ratings.tensors())
    if (rater := fitted.rater) is not None:
        weights |= _rater_tensors(rater.joint, rater.normaliser, rater.tensors())
    if fitted.evidence is not None:
        weights |= {f"{_EVIDENCE}{name}": tensor for name, tensor in fitted.evidence.tensors().items()}
    return runs.Run(settings, fitted.provenance, list(fitted.history.rows()), weights)


def fields_at(path: Path, method: type, policy: Any = None) -> dict[str, Any]:
    """The fields of the `Fitted` in a run directory; whatever is not as it was written is refused here.

    `restarts` are the fields of its `Restarts`. `method` is the class of its settings, and `policy` the module of the
    user's own that was fitted, if one was.
    """
    run = runs.read_run(path)
    try:
        return _fields_of(run, method, policy)
    except SettingsError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, MemoryError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else brief(error)
        if policy is not None:
            message = f"{path} and the policy that was passed do not go together ({reason})"
            raise SettingsError(f"{message}: pass the module that was fitted", code="policy-differs") from error
        raise runs.damaged(path, reason) from error


def _fields_of(run: runs.Run, method: type, policy: Any) -> dict[str, Any]:
    _check_provenance(run.provenance)
    later = {name: hint for name, hint in _LATER.items() if name in run.settings}
    comparisons = {name: _as_now(run.settings[name]) for name in ("width", "comparison") if name in run.settings}
    settings = _with_module(_fields({**run.settings, **comparisons}, _SETTINGS | later, kinds=_kinds(method)), policy)
    _check_sizes(settings)
    outcome, outcomes = settings["outcome"], list(Outcome.__members__)
    _expect(outcome in outcomes, "outcome", outcome, f"one of {outcomes}")
    parts, sizes, encoding = settings["parts"], settings["sizes"], settings.get("encoding")
    restarts = costs, kept, _ = _restarts(settings)
    joint = _laid_out(parts, sizes, len(kept), len(run.weights))
    rated_by = settings.get("ratings")
    own = {name: tensor for name, tensor in run.weights.items() if not name.startswith((_RATER, _EVIDENCE))}
    weights = _checked_weights(own, joint, settings["observation_shape"], rated_by)
    joint.load_state_dict(weights["joint"], assign=True)
    _check_answers(joint)
    normaliser = Normaliser(settings["observation_shape"], **weights["lens"], arrays=settings.get("arrays", ()))
    names, summary = settings["demonstrators"], ExpertiseSummary(**weights["survey"])
    ratings = None if rated_by is None else Ratings.of_tensors(names, rated_by, weights["ratings"])
    return {
        "policy": Policy(joint, normaliser, encoding),
        "expertise": Expertise(joint, normaliser, names, settings["skills"], summary, encoding, ratings),
        "restarts": restarts,
        "nats_per_action": float(settings.get("nats_per_action", costs[kept[0]])),
        "history": _history(run.history, len(costs)),
        "outcome": Outcome[outcome],
        "method": settings["method"],
        "provenance": run.provenance,
        "joint": joint,
        "normaliser": normaliser,
        "width": settings.get("width"),
        "comparison": settings.get("comparison"),
        "rater": _rater(settings.get("rater"), settings, run.weights),
        "evidence": _evidence(settings.get("evidence"), ratings, run.weights),
    }


def _with_module(settings: dict[str, Any], policy: Any) -> dict[str, Any]:
    """The same settings with the module that the user passed, wherever they name one."""
    kept = settings["parts"].policy
    if policy is not None and kept.with_module(policy) is kept:
        message = f"policy was passed, and this run has the library's own {type(kept).__name__}"
        raise SettingsError(f"{message}: leave it out", code="policy-not-needed")

    def filled(part: Any) -> Any:
        head = getattr(part, "policy", None)
        return part if head is None else replace(part, policy=head.with_module(policy))

    rater = settings.get("rater")
    rater = rater and replace(rater, parts=filled(rater.parts))
    return {**settings, "parts": filled(settings["parts"]), "method": filled(settings["method"]), "rater": rater}


_RATER, _EVIDENCE = "rater.", "evidence."


def _rater_tensors(joint: Joint, normaliser: Normaliser, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a rater by name."""
    groups = {"joint": joint.state_dict(), "lens": normaliser.state_dict(), "own": own}
    named = ((f"{_RATER}{group}.{name}", value) for group, values in groups.items() for name, value in values.items())
    return {name: value.contiguous() for name, value in named}


def _rater(kept: RaterSettings | None, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Rater | None:
    """The rater of a run, each tensor of its shape, type and range."""
    found = {name: tensor for name, tensor in weights.items() if name.startswith(_RATER)}
    if kept is None:
        _expect(not found, "the tensors of a rater", sorted(found)[:1], "none, since the settings have no rater")
        return None
    shape, own_sizes = settings["observation_shape"], settings["sizes"]
    alike = (kept.sizes.inputs, kept.sizes.demonstrators, kept.sizes.action_count)
    _expect(alike == (own_sizes.inputs, own_sizes.demonstrators, 0), "rater.sizes", kept.sizes, "those of the fit")
    actions = own_sizes.actions
    _expect(kept.sizes.actions == actions * len(kept.horizons), "rater.horizons", kept.horizons, "one for each action")
    _expect(kept.horizon in kept.horizons, "rater.horizon", kept.horizon, f"one of {kept.horizons}")
    _expect(len(kept.reliability) == len(kept.horizons), "rater.reliability", kept.reliability, "one a horizon")
    _expect(0 < kept.members <= len(found) * _MOST_NUMBERS, "rater.members", kept.members, "one or more")
    joint = _laid_out(kept.parts, kept.sizes, kept.members, len(found))
    episodes = len(found.get("rater.own.fold", ()))
    with torch.device("meta"):
        precision = found["rater.lens.shift"].dtype
        places, units = torch.empty(own_sizes.inputs, dtype=torch.int64), torch.empty(own_sizes.inputs, dtype=precision)
        numbers = torch.empty(actions, dtype=torch.float64)
        own = {"centre": numbers, "noise": numbers, "fold": torch.empty(episodes, dtype=torch.int64)}
        expected = _rater_tensors(joint, Normaliser(shape, places, units, units), own)
    _check_alike(found, expected)
    for name, tensor in found.items():
        _check_range(name.removeprefix(_RATER), tensor, math.prod(shape))
    fold = found["rater.own.fold"]
    _expect(bool((fold >= 0).all()), "rater.own.fold", "below zero in places", "folds, from 0 on")
    folds = int(fold.max()) + 1
    _expect(kept.members % folds == 0, "rater.members", kept.members, f"as many of each of {folds} folds")
    joint.load_state_dict(_group(found, "rater.joint."), assign=True)
    _check_answers(joint)
    lens = Normaliser(shape, **_group(found, "rater.lens."), arrays=settings.get("arrays", ()))
    return Rater.of_tensors(kept, joint, lens, _group(found, "rater.own."))


def _evidence(
    kept: EvidenceSettings | None, both: Ratings | None, weights: Mapping[str, Tensor]
) -> SkillEvidence | None:
    """The evidence of a run, each tensor of its shape, type and range."""
    found = _group(weights, _EVIDENCE)
    if kept is None:
        _expect(not found, "the tensors of evidence", sorted(found)[:1], "none, since the settings have no evidence")
        return None
    if both is None or both.shares is None:
        raise ValueError("there is evidence without ratings")
    _expect(both.by.outcomes > 0, "outcomes of the ratings", both.by.outcomes, "above zero where there is evidence")
    with torch.device("meta"):
        expected = SkillEvidence.empty_tensors(*both.shares.shape)
    _check_alike(found, expected)
    for name in ("actions", "outcomes"):
        _check_range("ratings.shares", found[name], 0)
    rated, mean = found["rated"], found["mean_outcome"]
    _expect(bool((rated >= 0).all()), "evidence.rated", "below zero in places", "counts, zero or more")
    total = int(rated.sum())
    _expect(total == both.by.outcomes, "the sum of evidence.rated", total, f"{both.by.outcomes}, as the ratings state")
    _expect(bool(mean.isfinite().all()), "evidence.mean_outcome", "NaN or infinite in places", "finite")
    right = bool((found["variance"].isfinite() & ((found["variance"] > 0) | (rated == 0))).all())
    _expect(right, "evidence.variance", "outside that", "finite, and above zero where there are outcomes")
    return SkillEvidence.of_tensors(kept, both, found)


def _group(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _check_alike(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names, shapes or types than expected; some may be missing in earlier runs."""
    if missing := sorted(expected.keys() - found.keys() - _OPTIONAL):
        raise ValueError(f"there is no tensor {missing[0]!r}")
    for name, tensor in found.items():
        if name not in expected:
            raise ValueError(f"there is a tensor {brief(name)}, which these settings have no place for")
        right = expected[name]
        _expect(tensor.shape == right.shape, f"the shape of {name}", tuple(tensor.shape), f"{tuple(right.shape)}")
        _expect(tensor.dtype == right.dtype, f"the type of {name}", tensor.dtype, f"{right.dtype}")


def _as_now(found: Any) -> Any:
    """A comparison as it is written now; earlier runs name widths otherwise, and list demonstrators again."""
    if not isinstance(found, dict):
        return found
    own = {name: value for name, value in found.items() if name != "demonstrators"}
    if found.get("kind") == "WidthComparison":
        widths = [f"hidden={tuple(hidden)}" for hidden in own.pop("hidden")]
        own |= {"kind": ModelComparison.__name__, "models": widths, "expertise": [[]] * len(widths)}
    return own


def _expect(holds: bool, name: str, found: object, rule: str) -> None:
    """Refuse a field that is not what the writer puts there, or does not go with another."""
    if not holds:
        raise ValueError(f"{name} is {brief(found)} but must be {rule}")


def _fields(
    found: Any, hints: Mapping[str, Any], where: str = "", kinds: Mapping[str, type] = _KINDS
) -> dict[str, Any]:
    """The fields of a JSON object, each of its type; a list becomes a tuple, and settings the object they describe."""
    fields = {name: runs.rebuilt(found[name], kinds) for name in hints}
    for name, hint in hints.items():
        _expect(runs.is_a(fields[name], hint), f"{name}{where}", found[name], runs.type_name(hint))
    return fields


def _check_provenance(made: Mapping[str, Any]) -> None:
    """What reports read, as it was written; what else is there may be anything that is not too deep to show."""
    _expect(not _is_deeper(made, _DEPTH), "provenance", made, f"an object of at most {_DEPTH} levels")
    texts = dict.fromkeys(("ileed", "commit", "date", "python", "torch", "numpy", "machine", "device"), str | None)
    _fields({**dict.fromkeys(texts), **made}, texts | {"data": dict, "seconds": float}, " of the provenance")
    _expect(isinstance(made["seed"], int), "seed", made["seed"], "a whole number")  # of any size
    _expect(made["seconds"] >= 0, "seconds", made["seconds"], "zero or more")
    for name, count in _fields(made["data"], {"steps": int, "episodes": int}, " of the data").items():
        _expect(count > 0, f"{name} of the data", count, "above zero")


def _is_deeper(value: object, levels: int) -> bool:
    """Whether more than so many objects and lists stand one within another."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(each, levels - 1) for each in inside)


def _check_sizes(settings: Mapping[str, Any]) -> None:
    """Sizes that a model can have, and names as many as they state."""
    sizes, shape = settings["sizes"], settings["observation_shape"]
    least = {"inputs": 0, "demonstrators": 1, "actions": 1 if sizes.action_size else 2, "skills": 0}
    for name, lowest in least.items():
        _expect(getattr(sizes, name) >= lowest, f"sizes.{name}", getattr(sizes, name), f"{lowest} or more")
    binary = sizes.binary_dimensions
    are_dimensions = all(0 <= each < sizes.actions for each in binary) and len(set(binary)) == len(binary)
    _expect(are_dimensions, "sizes.binary_dimensions", binary, "distinct dimensions of the actions")
    for name in ("demonstrators", "skills"):
        words, count = settings[name], getattr(sizes, name)
        _expect(len(words) == count, name, words, f"{count} strings, as many as the sizes state")
        _expect(len(set(words)) == count, name, words, "distinct strings")
    _expect(len(shape) > 0 and min(shape) >= 0, "observation_shape", shape, "one or more whole numbers")
    _expect(math.prod(shape) <= _MOST_NUMBERS, "observation_shape", shape, f"a product of at most {_MOST_NUMBERS:,}")
    if arrays := settings.get("arrays", ()):
        sound = shape == (sum(each.size for each in arrays),) and len({each.name for each in arrays}) == len(arrays)
        _expect(sound, "arrays", arrays, f"of distinct names, for observations of shape {shape}")
    if (encoding := settings.get("encoding")) is not None:
        _expect(shape == (len(encoding.inputs),), "encoding", encoding, f"names of observations of shape {shape}")
        actions = (len(encoding.labels), 0) if encoding.labels else (0, len(encoding.action))
        _expect(actions == (sizes.action_count, sizes.action_size), "encoding", encoding, "of actions")
    for name in ("width", "comparison"):
        if (found := settings.get(name)) is not None:
            columns = (found.models, found.nats_per_action, found.standard_errors, found.expertise)
            counts = {len(each) for each in columns} | ({len(found.errors_from_preferred)} - {0})
            rated = {len(each) for each in found.expertise} - {0}
            sound = len(counts) == 1 and min(counts) > 0 and len(rated) <= 1 and found.held_out_steps >= 0
            _expect(sound, name, found, "one cost, error and ranking a model")


def _restarts(settings: Mapping[str, Any]) -> tuple[Array, tuple[int, ...], tuple[tuple[float, ...], ...]]:
    """Every restart's cost, and which members were kept.

    Runs of earlier versions name the likeliest member alone; others that were kept follow it by their costs.
    """
    method, costs, chosen = settings["method"], settings["restarts"], settings["chosen"]
    _expect(hasattr(method, "restarts"), "method", method, "settings of a method")
    most = len(costs) if method.restarts is None else method.restarts
    _expect(1 <= len(costs) <= most, "restarts", costs, f"1 to {most} costs, as many as the method has")
    _expect(0 <= chosen < len(costs), "chosen", chosen, f"one of the {len(costs)} restarts")
    _expect(costs[chosen] is not None, "the chosen cost", costs[chosen], "a number")
    numbers = np.array([math.inf if cost is None else float(cost) for cost in costs])
    by_cost = [chosen, *(int(each) for each in np.argsort(numbers, kind="stable") if each != chosen)]
    kept = settings.get("kept", tuple(by_cost[: method.ensemble]))
    finite = all(0 <= each < len(costs) and costs[each] is not None for each in kept)
    are_members = finite and kept[:1] == (chosen,) and len(set(kept)) == len(kept)
    _expect(are_members, "kept", list(kept), f"restart {chosen}, which was chosen, and others that stayed finite")
    alternatives, people = settings.get("alternatives", ()), len(settings["demonstrators"])
    rated = all(len(each) == people and all(0 <= rho <= 1 for rho in each) for each in alternatives)
    _expect(rated, "alternatives", list(alternatives), f"lists of {people} numbers from 0 to 1, one for each person")
    return numbers, kept, alternatives


def _history(rows: Sequence[Any], least: int) -> History:
    """The learning curve: equally long rows of costs, of every restart or more, in the order of steps."""
    _expect(len(rows) > 0, "history", rows, "one row or more")
    for number, row in enumerate(rows, start=1):
        where = f"row {number} of the history"
        _expect(isinstance(row, dict) and row.keys() == rows[0].keys(), where, row, "an object like the first row")
        costs = dict.fromkeys(("nats_per_action", *(row.keys() & {"held_out"})), _Costs)
        found = _fields(row, {"step": int, **costs}, f" of {where}")
        later = number == 1 or found["step"] > rows[number - 2]["step"]
        _expect(later and found["step"] >= 0, f"step of {where}", found["step"], "a later step")
        width = max(least, len(rows[0]["nats_per_action"]))
        for name in costs:
            _expect(
                len(found[name]) == width, f"{name} of {where}", found[name], f"{width} costs, one for each restart"
            )
    return History.of(list(rows))


_OPTIONAL = {"survey.learned_from", "ratings.episode_spread"}
"""Tensors that runs of earlier versions do not have."""


def _laid_out(parts: Parts, sizes: Sizes, members: int, tensors: int) -> Joint:
    """The model's shapes, without memory for its numbers."""
    layers = sum(len(getattr(part, "hidden", ())) for part in vars(parts).values())
    _expect(layers <= tensors, "the number of layers", layers, f"at most that of the {tensors} tensors in the file")
    with torch.device("meta"):
        return Joint(parts, sizes, [torch.Generator() for _ in range(members)])


def _tensors(
    joint: Joint, normaliser: Normaliser, summary: ExpertiseSummary, ratings: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """The tensors of a run by name; two groups have the names of the first runs."""
    groups = {"joint": joint.state_dict(), "lens": normaliser.state_dict(), "survey": vars(summary)}
    groups["ratings"] = dict(ratings or {})
    named = ((f"{group}.{name}", value) for group, values in groups.items() for name, value in values.items())
    return {name: value.contiguous() for name, value in named if value is not None}


def _checked_weights(
    weights: Mapping[str, Tensor], joint: Joint, shape: tuple[int, ...], rated: RatedBy | None
) -> dict[str, dict[str, Tensor]]:
    """The tensors in their groups: those that the settings ask for and no other, each of its shape, type and range."""
    people, members, inputs = joint.sizes.demonstrators, len(next(joint.parameters())), joint.sizes.inputs
    states = weights["survey.states"].shape[-1]
    _expect(states > 0, "the shape of survey.states", states, "one state or more")
    with torch.device("meta"):
        precision = torch.float64 if weights["lens.shift"].dtype == torch.float64 else torch.float32
        places, units = torch.empty(inputs, dtype=torch.int64), torch.empty(inputs, dtype=precision)
        summary = ExpertiseSummary(
            by_demonstrator=torch.empty(people, dtype=torch.float64),
            quantiles=torch.empty(people, QUANTILES, dtype=torch.float64),
            states=torch.empty(people, states),
            visits=torch.empty(people, states, dtype=torch.int64),
            learned_from=torch.empty(members, people, dtype=torch.bool),
            last_episode=torch.empty(people, dtype=torch.int64) if joint.parts.expertise.depends_on_episode else None,
        )
        points = 0 if rated is None else weights["ratings.shares"].shape[-1]
        ratings = None if rated is None else Ratings.empty_tensors(people, rated, points)
        expected = _tensors(joint, Normaliser(shape, places, units, units), summary, ratings)
    _check_alike(weights, expected)
    groups: dict[str, dict[str, Tensor]] = {"joint": {}, "lens": {}, "survey": {}, "ratings": {}}
    for name, found in weights.items():
        _check_range(name, found, math.prod(shape))
        group, _, own = name.partition(".")
        groups[group][own] = found
    return groups


def _check_range(name: str, found: Tensor, numbers: int) -> None:
    """Finite numbers; indices into an observation of so many; expertise from 0 to 1, or NaN where there is none."""
    if name == "lens.kept":
        are_indices = bool(((found >= 0) & (found < numbers)).all()) and len(found.unique()) == len(found)
        _expect(are_indices, name, found.tolist(), f"distinct indices into an observation of {numbers} numbers")
    elif name in ("survey.visits", "survey.last_episode", "ratings.curve_numbers"):
        are_counts = bool(((found >= 0) & (found < _MOST_VISITS // max(1, found.numel()))).all())
        _expect(are_counts, name, "outside that", "counts, zero or more")
    elif name == "ratings.counts":
        _expect(bool(((found > 0) & (found < _MOST_VISITS)).all()), name, "outside that", "counts above zero")
    elif name == "ratings.curve_draws":
        _expect(bool((found.abs() < _LARGEST_LOGIT).all()), name, "outside that", "logits")
    elif name in ("ratings.shares", "ratings.population", "ratings.episode_spread", "ratings.curve_population"):
        is_share = bool((found >= 0).all()) and torch.allclose(found.sum(-1), torch.ones(()).double(), atol=1e-6)
        _expect(is_share, name, "outside that", "shares, zero or more, whose sum is 1")
    elif name.startswith(("survey.", "ratings.")):
        value = found.nan_to_num(0.5, posinf=2.0, neginf=-1.0)
        _expect(bool(((value >= -1e-6) & (value <= 1 + 1e-6)).all()), name, "outside that", "from 0 to 1")
    elif not name.startswith("joint.policy.fixed."):  # buffers of a module, in which a mask may be infinite
        _expect(bool(found.isfinite().all()), name, "NaN or infinite in places", "finite")
        if name == "lens.scale":
            _expect(bool((found > 0).all()), name, found.tolist(), "above zero")
        if name.endswith(("action_scale", "action_reach")):
            _expect(bool((found >= 0).all()), name, found.tolist(), "zero or more")


@torch.no_grad()
def _check_answers(joint: Joint) -> None:
    """Weights may be finite and yet so large that no answer is: ask at the mean input, and one unit to either side."""
    sizes = joint.sizes
    seen = torch.tensor([0.0, 1.0, -1.0]).expand(sizes.inputs, 3).contiguous()
    first = {"episode_number": torch.zeros(3, dtype=torch.int64)} if joint.parts.expertise.depends_on_episode else None
    answers = [ask(joint, seen, skills=torch.ones(sizes.skills, 3) if sizes.skills else None, context=first).expertise]
    if not joint.parts.policy.is_module:  # which may take none but the observations of its data
        policy, _ = joint.policy.step(seen, joint.policy.initial_state(3))
        answers += joint.policy.parameters_of(policy)
    _expect(not any(bool(answer.isnan().any()) for answer in answers), "the policy's answer", "NaN", "a number")
