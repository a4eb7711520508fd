"""Run directories: what they keep of a fit, and the checks by which a fit is loaded again.

A loaded fit can do whatever the saved one could, apart from answering questions about its data. A field of another
type, shape or range than `run_of` writes is refused here, by name. The model is laid out on the meta device and takes
the tensors of the file once they agree with that layout: no setting can ask for more memory than the size of the file.
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
from ileed.data import Encoding
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
from ileed.rating.outcomes import EvidenceSettings, SkillEvidence
from ileed.rating.ratings import RatedBy, Ratings
from ileed.rating.signal import Rater, RaterSettings
from ileed.selection import ModelComparison

_KINDS: tuple[type, ...] = (
    *(ModulePolicy, Parts, Sizes, Encoding, Feature, NamedArray),
    *(ModelComparison, RatedBy, RaterSettings, EvidenceSettings),
)
_Costs = tuple[float | None, ...]  # None for a restart whose cost became NaN or infinite
_SETTINGS = {
    "method": Any,
    "parts": Parts,
    "sizes": Sizes,
    "observation_shape": tuple[int, ...],
    "arrays": tuple[NamedArray, ...],
    "demonstrators": tuple[str, ...],
    "skills": tuple[str, ...],
    "restarts": _Costs,
    "chosen": int,
    "kept": tuple[int, ...],
    "alternatives": tuple[tuple[float, ...], ...],
    "nats_per_action": float,
    "outcome": str,
    "width": ModelComparison | None,
    "comparison": ModelComparison | None,
    "encoding": Encoding | None,
    "ratings": RatedBy | None,
    "rater": RaterSettings | None,
    "evidence": EvidenceSettings | None,
}
_ABSENT_IN_V1: Mapping[str, Any] = {
    **dict.fromkeys(("width", "comparison", "encoding", "ratings", "rater", "evidence")),
    "alternatives": [],
    "arrays": [],
}
_OPTIONAL_TENSORS = {"survey.learned_from", "ratings.episode_spread"}
_MOST_VISITS = 2**53
_LARGEST_LOGIT = 1e4
_MOST_NUMBERS = 10**9  # in one observation
_MOST_LEVELS = 20  # of nested objects in a provenance


def run_of(fitted: Any) -> runs.Run:
    """The content of a run directory for a `Fitted`."""
    costs, ratings, rater = fitted.restarts.nats_per_action, fitted.expertise.ratings, fitted.rater
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
        "rater": rater and rater.settings,
        "evidence": fitted.evidence and fitted.evidence.settings,
    }
    weights = {
        "joint": fitted.joint.state_dict(),
        "lens": fitted.normaliser.state_dict(),
        "survey": vars(fitted.expertise.summary),
        "ratings": {} if ratings is None else ratings.tensors(),
        "evidence": {} if fitted.evidence is None else fitted.evidence.tensors(),
    }
    if rater is not None:
        weights |= _rater_tensors(rater.joint, rater.normaliser, rater.tensors())
    plain = {name: runs.plain(value) for name, value in settings.items()}
    return runs.Run(plain, fitted.provenance, list(fitted.history.rows()), _flat(weights))


def _rater_tensors(joint: Joint, normaliser: Normaliser, own: Mapping[str, Tensor]) -> dict[str, Mapping[str, Tensor]]:
    return {"rater.joint": joint.state_dict(), "rater.lens": normaliser.state_dict(), "rater.own": own}


def _flat(groups: Mapping[str, Mapping[str, Tensor | None]]) -> dict[str, Tensor]:
    """The tensors of a file by name. "lens" and "survey" are the names that the first format gave their groups."""
    named = ((f"{group}.{name}", value) for group, values in groups.items() for name, value in values.items())
    return {name: value.contiguous() for name, value in named if value is not None}


def _group(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    prefix = f"{group}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def fields_at(path: Path, method: type, policy: Any = None) -> dict[str, Any]:
    """The fields of the `Fitted` in a run directory, and as `restarts` the fields of its `Restarts`.

    `method` is the class of its settings, and `policy` the user's own module that was fitted, if one was.
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
    saved = {**_ABSENT_IN_V1, **run.settings}
    if "kept" not in saved:  # in the first format, which kept one member
        saved |= {"kept": [saved["chosen"]], "nats_per_action": saved["restarts"][saved["chosen"]]}
    settings = _with_module(_checked(saved, _SETTINGS, kinds=_registry(method)), policy)
    _check_sizes(settings)
    _check_restarts(settings)
    outcome, kept, names = settings["outcome"], settings["kept"], settings["demonstrators"]
    _expect(outcome in Outcome.__members__, "outcome", outcome, f"one of {list(Outcome.__members__)}")
    costs = np.array([math.inf if cost is None else float(cost) for cost in settings["restarts"]])
    history = _history(run.history, len(costs))

    weights, rater = run.weights, settings["rater"]
    joint = _laid_out(settings["parts"], settings["sizes"], len(kept), weights)
    rater_joint = rater and _laid_out(rater.parts, rater.sizes, rater.members, _group(weights, "rater"))
    _check_alike(weights, _expected(settings, joint, rater_joint, weights))
    for name, tensor in weights.items():
        _check_range(name, tensor, math.prod(settings["observation_shape"]))
    joint.load_state_dict(_group(weights, "joint"), assign=True)
    _check_answers(joint)

    shape, arrays, encoding = settings["observation_shape"], settings["arrays"], settings["encoding"]
    normaliser = Normaliser(shape, **_group(weights, "lens"), arrays=arrays)
    summary, ratings, evidence = ExpertiseSummary(**_group(weights, "survey")), None, None
    if (rated_by := settings["ratings"]) is not None:
        ratings = Ratings.of_tensors(names, rated_by, _group(weights, "ratings"))
    if settings["evidence"] is not None:
        evidence = _evidence(settings["evidence"], ratings, _group(weights, "evidence"))
    if rater is not None:
        rater_joint.load_state_dict(_group(weights, "rater.joint"), assign=True)
        _check_answers(rater_joint)
        lens = Normaliser(shape, **_group(weights, "rater.lens"), arrays=arrays)
        rater = Rater.of_tensors(rater, rater_joint, lens, _group(weights, "rater.own"))
    return {
        "policy": Policy(joint, normaliser, encoding),
        "expertise": Expertise(joint, normaliser, names, settings["skills"], summary, encoding, ratings),
        "restarts": (costs, kept, settings["alternatives"]),
        "nats_per_action": float(settings["nats_per_action"]),
        "history": history,
        "outcome": Outcome[outcome],
        "method": settings["method"],
        "provenance": run.provenance,
        "joint": joint,
        "normaliser": normaliser,
        "width": settings["width"],
        "comparison": settings["comparison"],
        "rater": rater,
        "evidence": evidence,
    }


def _registry(method: type) -> plugins.Registry[type]:
    """The classes that settings may name; installed packages contribute theirs."""
    kinds = (*OWN_PARTS, *_KINDS, method)
    return plugins.Registry(plugins.PARTS, {kind.__name__: kind for kind in kinds}, check_part)


def _with_module(settings: dict[str, Any], policy: Any) -> dict[str, Any]:
    """The same settings with the user's own module wherever they name one."""
    kept = settings["parts"].policy
    if policy is not None and kept.with_module(policy) is kept:
        message = f"policy was passed, and this run has the library's own {type(kept).__name__}"
        raise SettingsError(f"{message}: leave it out", code="policy-not-needed")

    def filled(part: Any) -> Any:
        head = getattr(part, "policy", None)
        return part if head is None else replace(part, policy=head.with_module(policy))

    rater = settings["rater"]
    rater = rater and replace(rater, parts=filled(rater.parts))
    return {**settings, "parts": filled(settings["parts"]), "method": filled(settings["method"]), "rater": rater}


def _expect(holds: bool, name: str, found: object, rule: str) -> None:
    """Refuse a field with a value that is never written, or that contradicts another field."""
    if not holds:
        raise ValueError(f"{name} is {brief(found)} but must be {rule}")


def _checked(
    found: Any, hints: Mapping[str, Any], where: str = "", kinds: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """The fields of a JSON object, each of its type; lists become tuples, and settings the objects they describe."""
    values = {name: runs.rebuilt(found[name], kinds or {}) for name in hints}
    for name, hint in hints.items():
        _expect(runs.is_a(values[name], hint), f"{name}{where}", found[name], runs.type_name(hint))
    return values


def _check_provenance(made: Mapping[str, Any]) -> None:
    """Refuse a provenance that a report cannot show; fields that no report reads may hold anything."""
    _expect(not _is_deeper(made, _MOST_LEVELS), "provenance", made, f"an object of at most {_MOST_LEVELS} levels")
    texts = dict.fromkeys(("ileed", "commit", "date", "python", "torch", "numpy", "machine", "device"), str | None)
    _checked({**dict.fromkeys(texts), **made}, texts | {"data": dict, "seconds": float}, " of the provenance")
    _expect(isinstance(made["seed"], int), "seed", made["seed"], "a whole number")  # of any size
    _expect(made["seconds"] >= 0, "seconds", made["seconds"], "zero or more")
    for name, count in _checked(made["data"], {"steps": int, "episodes": int}, " of the data").items():
        _expect(count > 0, f"{name} of the data", count, "above zero")


def _is_deeper(value: object, levels: int) -> bool:
    """Whether objects and lists are nested more than this many levels deep."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(each, levels - 1) for each in inside)


def _check_sizes(settings: Mapping[str, Any]) -> None:
    """Refuse sizes that no model has, and settings that contradict them."""
    sizes, shape, rater = settings["sizes"], settings["observation_shape"], settings["rater"]
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
    if arrays := settings["arrays"]:
        sound = shape == (sum(each.size for each in arrays),) and len({each.name for each in arrays}) == len(arrays)
        _expect(sound, "arrays", arrays, f"of distinct names, for observations of shape {shape}")
    if (encoding := settings["encoding"]) is not None:
        _expect(shape == (len(encoding.inputs),), "encoding", encoding, f"names of observations of shape {shape}")
        actions = (len(encoding.labels), 0) if encoding.labels else (0, len(encoding.action))
        _expect(actions == (sizes.action_count, sizes.action_size), "encoding", encoding, "of actions")
    for name in ("width", "comparison"):
        if (found := settings[name]) is not None:
            columns = (found.models, found.nats_per_action, found.standard_errors, found.expertise)
            counts = {len(each) for each in columns} | ({len(found.errors_from_preferred)} - {0})
            rated = {len(each) for each in found.expertise} - {0}
            sound = len(counts) == 1 and min(counts) > 0 and len(rated) <= 1 and found.held_out_steps >= 0
            _expect(sound, name, found, "one cost, error and ranking for each model")
    if rater is not None:
        alike = (rater.sizes.inputs, rater.sizes.demonstrators, rater.sizes.action_count)
        _expect(alike == (sizes.inputs, sizes.demonstrators, 0), "rater.sizes", rater.sizes, "those of the fit")
        actions, horizons = sizes.actions * len(rater.horizons), rater.horizons
        _expect(rater.sizes.actions == actions, "rater.horizons", horizons, "one for each action")
        _expect(rater.horizon in horizons, "rater.horizon", rater.horizon, f"one of {horizons}")
        _expect(len(rater.reliability) == len(horizons), "rater.reliability", rater.reliability, "one per horizon")


def _check_restarts(settings: Mapping[str, Any]) -> None:
    """Refuse costs, kept members and alternatives that contradict each other."""
    method, costs, chosen = settings["method"], settings["restarts"], settings["chosen"]
    _expect(hasattr(method, "restarts"), "method", method, "settings of a method")
    most = len(costs) if method.restarts is None else method.restarts
    _expect(1 <= len(costs) <= most, "restarts", costs, f"1 to {most} costs, as many as the method has")
    _expect(0 <= chosen < len(costs), "chosen", chosen, f"one of the {len(costs)} restarts")
    _expect(costs[chosen] is not None, "the chosen cost", costs[chosen], "a number")
    kept, alternatives, demonstrators = settings["kept"], settings["alternatives"], len(settings["demonstrators"])
    finite = all(0 <= each < len(costs) and costs[each] is not None for each in kept)
    sound = finite and kept[:1] == (chosen,) and len(set(kept)) == len(kept)
    _expect(sound, "kept", list(kept), f"restart {chosen}, which was chosen, and others that stayed finite")
    rated = all(len(each) == demonstrators and all(0 <= rho <= 1 for rho in each) for each in alternatives)
    _expect(
        rated, "alternatives", list(alternatives), f"lists of {demonstrators} numbers from 0 to 1, one per demonstrator"
    )


def _history(rows: Sequence[Any], least: int) -> History:
    """The learning curve: rows of equal length, in the order of steps, with costs of every restart or more."""
    _expect(len(rows) > 0, "history", rows, "one row or more")
    for number, row in enumerate(rows, start=1):
        where = f"row {number} of the history"
        _expect(isinstance(row, dict) and row.keys() == rows[0].keys(), where, row, "an object like the first row")
        costs = dict.fromkeys(("nats_per_action", *(row.keys() & {"held_out"})), _Costs)
        found = _checked(row, {"step": int, **costs}, f" of {where}")
        later = number == 1 or found["step"] > rows[number - 2]["step"]
        _expect(later and found["step"] >= 0, f"step of {where}", found["step"], "a later step")
        width = max(least, len(rows[0]["nats_per_action"]))
        for name in costs:
            own = found[name]
            _expect(len(own) == width, f"{name} of {where}", own, f"{width} costs, one for each restart")
    return History.of(list(rows))


def _laid_out(parts: Parts, sizes: Sizes, members: int, weights: Mapping[str, Tensor]) -> Joint:
    """The model without memory for its parameters; `weights` bound how many layers and members it may have."""
    layers = sum(len(getattr(part, "hidden", ())) for part in vars(parts).values())
    most = f"at most that of the {len(weights)} tensors in the file"
    _expect(layers <= len(weights), "the number of layers", layers, most)
    largest = max((tensor.numel() for tensor in weights.values()), default=0)
    _expect(0 < members <= largest, "members", members, "one or more, with parameters in the file")
    with torch.device("meta"):
        return Joint(parts, sizes, [torch.Generator() for _ in range(members)])


def _expected(
    settings: Mapping[str, Any], joint: Joint, rater_joint: Joint | None, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors that these settings ask for, on the meta device."""
    sizes, shape, rated_by = joint.sizes, settings["observation_shape"], settings["ratings"]
    demonstrators, states = sizes.demonstrators, weights["survey.states"].shape[-1]
    _expect(states > 0, "the shape of survey.states", states, "one state or more")

    def normaliser(group: str) -> Normaliser:
        precision = torch.float64 if weights[f"{group}.shift"].dtype == torch.float64 else torch.float32
        units = torch.empty(sizes.inputs, dtype=precision)
        return Normaliser(shape, torch.empty(sizes.inputs, dtype=torch.int64), units, units)

    with torch.device("meta"):
        summary = ExpertiseSummary(
            by_demonstrator=torch.empty(demonstrators, dtype=torch.float64),
            quantiles=torch.empty(demonstrators, QUANTILES, dtype=torch.float64),
            states=torch.empty(demonstrators, states),
            visits=torch.empty(demonstrators, states, dtype=torch.int64),
            learned_from=torch.empty(len(settings["kept"]), demonstrators, dtype=torch.bool),
            last_episode=torch.empty(demonstrators, dtype=torch.int64)
            if joint.parts.expertise.depends_on_episode
            else None,
        )
        groups: dict[str, Mapping[str, Tensor | None]] = {
            "joint": joint.state_dict(),
            "lens": normaliser("lens").state_dict(),
            "survey": vars(summary),
        }
        if rated_by is not None:
            points = weights["ratings.shares"].shape[-1]
            groups["ratings"] = Ratings.empty_tensors(demonstrators, rated_by, points)
            if settings["evidence"] is not None:
                groups["evidence"] = SkillEvidence.empty_tensors(demonstrators, points)
        if rater_joint is not None:
            numbers, folds = torch.empty(sizes.actions, dtype=torch.float64), weights["rater.own.fold"]
            own = {"centre": numbers, "noise": numbers, "fold": torch.empty(len(folds), dtype=torch.int64)}
            groups |= _rater_tensors(rater_joint, normaliser("rater.lens"), own)
            count = int(folds.max()) + 1
            rule = f"the same number for each of {count} folds"
            _expect(settings["rater"].members % max(1, count) == 0, "rater.members", settings["rater"].members, rule)
        return _flat(groups)


def _check_alike(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names, shapes or types than expected."""
    if missing := sorted(expected.keys() - found.keys() - _OPTIONAL_TENSORS):
        raise ValueError(f"there is no tensor {missing[0]!r}")
    for name, tensor in found.items():
        if name not in expected:
            raise ValueError(f"there is a tensor {brief(name)}, which these settings have no place for")
        right = expected[name]
        _expect(tensor.shape == right.shape, f"the shape of {name}", tuple(tensor.shape), f"{tuple(right.shape)}")
        _expect(tensor.dtype == right.dtype, f"the type of {name}", tensor.dtype, f"{right.dtype}")


_COUNTS = {"survey.visits", "survey.last_episode", "ratings.curve_numbers", "own.fold", "evidence.rated"}
_SHARES = {f"ratings.{name}" for name in ("shares", "population", "episode_spread", "curve_population")}
_SHARES |= {"evidence.actions", "evidence.outcomes"}


def _check_range(name: str, found: Tensor, numbers: int) -> None:
    """Refuse values out of range; an observation has this many numbers, and expertise is NaN where there is none."""

    def expect(holds: Tensor | bool, rule: str) -> None:
        if not bool(torch.as_tensor(holds).all()):
            raise ValueError(f"values of {name} must be {rule}")

    own = name.removeprefix("rater.")
    if own == "lens.kept":
        are_distinct = len(found.unique()) == len(found)
        rule = f"distinct indices into an observation of {numbers} numbers"
        expect((found >= 0) & (found < numbers) & are_distinct, rule)
    elif own in _COUNTS:
        expect((found >= 0) & (found < _MOST_VISITS // max(1, found.numel())), "counts, zero or more")
    elif own == "ratings.counts":
        expect((found > 0) & (found < _MOST_VISITS), "counts above zero")
    elif own == "ratings.curve_draws":
        expect(found.abs() < _LARGEST_LOGIT, "logits")
    elif own in _SHARES:
        expect(found >= 0, "shares, zero or more")
        expect(torch.allclose(found.sum(-1), torch.ones(()).double(), atol=1e-6), "shares whose sum is 1")
    elif own.startswith(("survey.", "ratings.")):
        value = found.nan_to_num(0.5, posinf=2.0, neginf=-1.0)
        expect((value >= -1e-6) & (value <= 1 + 1e-6), "from 0 to 1")
    elif not own.startswith("joint.policy.fixed."):  # buffers of a module, in which a mask may be infinite
        expect(found.isfinite(), "finite, not NaN or infinite")
        if own == "lens.scale":
            expect(found > 0, "above zero")
        if own.endswith(("action_scale", "action_reach")):
            expect(found >= 0, "zero or more")


def _evidence(kept: EvidenceSettings, both: Ratings | None, found: Mapping[str, Tensor]) -> SkillEvidence:
    """The evidence of a run, in agreement with its ratings."""
    if both is None:
        raise ValueError("there is evidence without ratings")
    rated, total = found["rated"], int(found["rated"].sum())
    _expect(both.by.outcomes > 0, "outcomes of the ratings", both.by.outcomes, "above zero where there is evidence")
    _expect(total == both.by.outcomes, "the sum of evidence.rated", total, f"{both.by.outcomes}, as the ratings state")
    if not bool(((found["variance"] > 0) | (rated == 0)).all()):
        raise ValueError("values of evidence.variance must be above zero where there are outcomes")
    return SkillEvidence.of_tensors(kept, both, found)


@torch.no_grad()
def _check_answers(joint: Joint) -> None:
    """Refuse finite weights so large that answers are NaN, at the mean input and one unit to either side."""
    sizes = joint.sizes
    seen = torch.tensor([0.0, 1.0, -1.0]).expand(sizes.inputs, 3).contiguous()
    first = {"episode_number": torch.zeros(3, dtype=torch.int64)} if joint.parts.expertise.depends_on_episode else None
    answers = [ask(joint, seen, skills=torch.ones(sizes.skills, 3) if sizes.skills else None, context=first).expertise]
    if not joint.parts.policy.is_module:  # which may refuse all but the observations of its data
        policy, _ = joint.policy.step(seen, joint.policy.initial_state(3))
        answers += joint.policy.parameters_of(policy)
    _expect(not any(bool(answer.isnan().any()) for answer in answers), "the policy's answer", "NaN", "a number")
