"""Saving and loading of fits: run directories, and the registry of the settings that they may name.

A fit that was loaded can be asked, acted with and reported: a field of another type, shape or length than was written
is refused here, by name. The model is laid out without memory, and takes the tensors of the file only once they agree
with it, so that no setting can ask for more memory than the file's own size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ileed import plugins, runs
from ileed.checking import path_of
from ileed.demonstrations import Encoding
from ileed.demonstrations.encoding import Feature
from ileed.errors import SettingsError, brief
from ileed.fitted.expertise import QUANTILES, Expertise, ExpertiseSummary
from ileed.fitted.policy import Policy
from ileed.fitted.result import Fitted, Restarts
from ileed.fitting import History, Outcome
from ileed.model.batch import Batch, Sizes
from ileed.model.joint import Joint, Parts
from ileed.model.normaliser import Normaliser
from ileed.model.parts import OWN_PARTS, check_part
from ileed.width import WidthComparison

_MOST_VISITS = 2**53
_MOST_NUMBERS = 10**9  # of one observation
_DEPTH = 20  # objects within objects of a provenance, beyond which nobody would read it

_Kind = TypeVar("_Kind", bound=type)

_KINDS: plugins.Registry[type] = plugins.Registry(
    plugins.PARTS,
    {kind.__name__: kind for kind in (*OWN_PARTS, Parts, Sizes, Encoding, Feature, WidthComparison)},
    check_part,
)


def register(kind: _Kind) -> _Kind:
    """Let run directories name a class of settings, a frozen dataclass; other packages use the group `ileed.parts`."""
    _KINDS.add(kind.__name__, kind)
    return kind


def write(fitted: Fitted, path: Path, *, overwrite: bool) -> None:
    """Write a fit as a run directory, whole or not at all."""
    costs = fitted.restarts.nats_per_action
    settings: dict[str, Any] = {
        "method": runs.plain(fitted.method),
        "parts": runs.plain(fitted.joint.parts),
        "sizes": runs.plain(fitted.joint.sizes),
        "observation_shape": list(fitted.normaliser.shape),
        "demonstrators": list(fitted.expertise.names),
        "skills": list(fitted.expertise.skill_names),
        "restarts": [float(cost) if np.isfinite(cost) else None for cost in costs],
        "chosen": fitted.restarts.chosen,
        "kept": list(fitted.restarts.kept),
        "nats_per_action": fitted.nats_per_action,
        "outcome": fitted.outcome.name,
        "width": runs.plain(fitted.width),
    }
    if fitted.policy.encoding is not None:
        settings["encoding"] = runs.plain(fitted.policy.encoding)
    groups = {
        "joint": fitted.joint.state_dict(),
        "lens": fitted.normaliser.state_dict(),  # these two names are those of the first runs
        "survey": vars(fitted.expertise.summary),
    }
    weights = {
        f"{group}.{name}": value.contiguous()
        for group, named in groups.items()
        for name, value in named.items()
        if value is not None
    }
    runs.write_run(
        path, runs.Run(settings, fitted.provenance, list(fitted.history.rows()), weights), overwrite=overwrite
    )


def load(path: str | Path) -> Fitted:
    """A fit as `Fitted.save` left it; whatever is not as it was written is refused here."""
    place = Path(path_of("path", path, rule="pass the path of a run directory, as fitted.save(path) wrote it"))
    run = runs.read_run(place)
    try:
        return _fitted(run)
    except SettingsError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, MemoryError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else brief(error)
        raise runs.damaged(place, reason) from error


class _ContradictionError(ValueError):
    """A field that is not what the writer puts there, or does not go with another."""


def _expect(holds: bool, name: str, found: object, rule: str) -> None:
    if not holds:
        raise _ContradictionError(f"{name} is {brief(found)} but must be {rule}")


def _fitted(run: runs.Run) -> Fitted:
    settings, weights = run.settings, run.weights
    _check_provenance(run.provenance)
    parts, sizes, method = (
        _rebuilt(settings, name, kind) for name, kind in (("parts", Parts), ("sizes", Sizes), ("method", None))
    )
    _check_sizes(sizes)
    names = _words(settings, "demonstrators", sizes.demonstrators)
    skills = _words(settings, "skills", sizes.skills)
    restarts, nats_per_action = _restarts(settings, method)
    history = _history(run.history, len(restarts.nats_per_action))
    outcome, outcomes = settings["outcome"], list(Outcome.__members__)
    _expect(outcome in outcomes, "outcome", outcome, f"one of {outcomes}")
    shape = _shape(settings["observation_shape"])
    joint = _laid_out(parts, sizes, len(restarts.kept), len(weights))
    _check_names(weights, joint)
    _check_normaliser(weights, sizes, math.prod(shape))
    _check_summary(weights, len(names), len(restarts.kept))
    joint.load_state_dict(_named(weights, "joint"), assign=True)
    normaliser = Normaliser(shape, **_named(weights, "lens"))
    _check_answers(joint)
    encoding = _encoding(runs.rebuilt(settings.get("encoding"), _KINDS), normaliser, sizes)
    summary = ExpertiseSummary(**_named(weights, "survey"))
    return Fitted(
        policy=Policy(joint, normaliser, encoding),
        expertise=Expertise(joint, normaliser, names, skills, summary, encoding),
        restarts=restarts,
        nats_per_action=nats_per_action,
        history=history,
        outcome=Outcome[outcome],
        method=method,
        provenance=run.provenance,
        joint=joint,
        normaliser=normaliser,
        width=_width(runs.rebuilt(settings.get("width"), _KINDS)),
    )


def _shape(found: Any) -> list[int]:
    """The shape of an observation."""
    are_sizes = isinstance(found, list) and len(found) > 0 and all(_is_whole(size) for size in found)
    _expect(are_sizes, "observation_shape", found, "a list of whole numbers")
    _expect(math.prod(found) <= _MOST_NUMBERS, "observation_shape", found, f"a product of at most {_MOST_NUMBERS:,}")
    return list(found)


def _encoding(found: Any, normaliser: Normaliser, sizes: Sizes) -> Encoding | None:
    """The names of a table's features and actions, as many as the model has."""
    if found is None:
        return None
    _expect(isinstance(found, Encoding), "encoding", found, "settings of Encoding")
    _expect(
        normaliser.shape == (len(found.inputs),),
        "encoding",
        found,
        f"names of observations of shape {normaliser.shape}",
    )
    named = (len(found.labels) or len(found.action)) == sizes.actions and bool(found.labels) == sizes.discrete
    _expect(named, "encoding", found, f"names of {sizes.actions} actions")
    return found


def _width(found: Any) -> WidthComparison | None:
    """How the policy's width was chosen: as many costs and errors as there were candidates."""
    if found is None:
        return None
    _expect(isinstance(found, WidthComparison), "width", found, "settings of WidthComparison")
    measured = (found.nats_per_action, found.standard_errors)
    counts = {len(column) if isinstance(column, tuple) else -1 for column in (found.hidden, *measured)}
    _expect(len(counts) == 1 and min(counts) > 0, "width", found, "one cost and one error for each width")
    numbers = all(_is_number(value) for column in measured for value in column)
    sizes = all(isinstance(each, tuple) and all(_is_whole(size, 1) for size in each) for each in found.hidden)
    _expect(numbers and sizes and _is_whole(found.held_out_steps), "width", found, "numbers")
    return found


def _rebuilt(settings: Mapping[str, Any], name: str, kind: type | None) -> Any:
    """One of the settings' objects; that of the method, the only one with restarts, may be of any method's kind."""
    value = runs.rebuilt(settings[name], _KINDS)
    holds = hasattr(value, "restarts") if kind is None else isinstance(value, kind)
    _expect(holds, name, settings[name], "settings of a method" if kind is None else f"settings of {kind.__name__}")
    return value


def _is_whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def _is_number(value: object) -> bool:
    """A finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -1e308 < value < 1e308


def _are_costs(value: object) -> bool:
    """Finite numbers, and null for a restart that became non-finite."""
    return isinstance(value, list) and all(cost is None or _is_number(cost) for cost in value)


def _check_provenance(made: Mapping[str, Any]) -> None:
    """What reports read, as it was written; what else is there may be anything that is not too deep to show."""
    data = made["data"]
    _expect(isinstance(data, dict), "data of the provenance", data, "an object")
    for name in ("steps", "episodes"):
        _expect(_is_whole(data[name], 1), f"data.{name} of the provenance", data[name], "a whole number above zero")
    _expect(_is_number(made["seconds"]) and made["seconds"] >= 0, "seconds", made["seconds"], "a number, zero or more")
    _expect(isinstance(made["seed"], int), "seed", made["seed"], "a whole number")
    for name in ("ileed", "commit", "date", "python", "torch", "numpy", "machine", "device"):
        value = made.get(name)
        _expect(value is None or isinstance(value, str), f"{name} of the provenance", value, "a string")
    _expect(_depth(made) <= _DEPTH, "provenance", made, f"an object of at most {_DEPTH} levels")


def _depth(value: object) -> int:
    """How many objects and lists stand one within another; counted level by level, not by recursion."""
    level, depth = [value], 0
    while level and depth <= _DEPTH:
        inside = [each for item in level if isinstance(item, dict) for each in item.values()]
        inside += [each for item in level if isinstance(item, list) for each in item]
        level, depth = inside, depth + 1
    return depth


def _check_sizes(sizes: Sizes) -> None:
    least = {"inputs": 0, "demonstrators": 1, "actions": 2 if sizes.discrete else 1, "skills": 0}
    for name, lowest in least.items():
        value = getattr(sizes, name)
        _expect(_is_whole(value, lowest), f"sizes.{name}", value, f"a whole number, {lowest} or more")
    inside = all(0 <= dimension < sizes.actions for dimension in sizes.binary_dimensions)
    unique = len(set(sizes.binary_dimensions)) == len(sizes.binary_dimensions)
    _expect(inside and unique, "sizes.binary_dimensions", sizes.binary_dimensions, "distinct dimensions of the actions")


def _words(settings: Mapping[str, Any], name: str, count: int) -> tuple[str, ...]:
    """Distinct strings, as many as the sizes state."""
    words = settings[name]
    are_strings = isinstance(words, list) and all(isinstance(word, str) for word in words)
    _expect(are_strings, name, words, "a list of strings")
    _expect(len(words) == count, name, words, f"{count} strings, as many as the sizes state")
    _expect(len(set(words)) == len(words), name, words, "distinct strings")
    return tuple(words)


def _restarts(settings: Mapping[str, Any], method: Any) -> tuple[Restarts, float]:
    """Every restart's cost, which members were kept, and their cost together.

    Runs of earlier versions name the likeliest member alone; others that were kept follow it by their costs. The cost
    and the summary of expertise in such a run are that member's.
    """
    costs, chosen = settings["restarts"], settings["chosen"]
    _expect(_are_costs(costs), "restarts", costs, "a list of costs")
    most = method.restarts
    _expect(1 <= len(costs) <= most, "restarts", costs, f"a list of 1 to {most} costs, as many as the method has")
    _expect(_is_whole(chosen) and chosen < len(costs), "chosen", chosen, f"one of the {len(costs)} restarts")
    _expect(costs[chosen] is not None, "the chosen cost", costs[chosen], "a number")
    numbers = np.array([math.inf if cost is None else float(cost) for cost in costs])
    by_cost = [chosen, *(int(each) for each in np.argsort(numbers, kind="stable") if each != chosen)]
    kept = settings.get("kept", by_cost[: method.ensemble])
    known = isinstance(kept, list) and all(_is_whole(each) and each < len(costs) for each in kept)
    distinct = known and len(set(kept)) == len(kept) and kept[:1] == [chosen]
    finite = distinct and all(costs[each] is not None for each in kept)
    _expect(finite, "kept", kept, f"restart {chosen}, which was chosen, and others that stayed finite")
    nats = settings.get("nats_per_action", costs[chosen])
    _expect(_is_number(nats), "nats_per_action", nats, "a number")
    return Restarts(numbers, tuple(kept)), float(nats)


def _history(rows: Sequence[Mapping[str, Any]], least: int) -> History:
    """The learning curve: equally long rows of costs, of every restart or more, in the order of steps."""
    _expect(len(rows) > 0, "history", rows, "one row or more")
    has_held_out = isinstance(rows[0], dict) and "held_out" in rows[0]
    width = -1
    before = 0
    for number, row in enumerate(rows, start=1):
        _expect(isinstance(row, dict), f"row {number} of the history", row, "an object")
        _expect(_is_whole(row["step"], before), f"step of row {number} of the history", row["step"], "a later step")
        before = row["step"] + 1
        _expect(("held_out" in row) == has_held_out, f"row {number} of the history", row, "like the first row")
        for name in ("nats_per_action", *(["held_out"] if has_held_out else [])):
            costs, about = row[name], f"{name} of row {number} of the history"
            _expect(_are_costs(costs), about, costs, "a list of costs")
            width = len(costs) if width < 0 else width
            _expect(len(costs) == width >= least, about, costs, f"{max(width, least)} costs, one for each restart")
    return History.of(list(rows))


def _laid_out(parts: Parts, sizes: Sizes, members: int, tensors: int) -> Joint:
    """The model's shapes, without memory for its numbers."""
    layers = sum(len(getattr(part, "hidden", ())) for part in vars(parts).values())
    _expect(layers <= tensors, "the number of layers", layers, f"at most that of the {tensors} tensors in the file")
    generators = [torch.Generator() for _ in range(members)]
    with torch.device("meta"):
        return Joint(parts, sizes, generators)


def _named(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    prefix = f"{group}."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _check_names(weights: Mapping[str, Tensor], joint: Joint) -> None:
    """The tensors that the settings ask for and no other; the model's of its shapes and types, and finite."""
    model = {f"joint.{name}": value for name, value in joint.state_dict().items()}
    others = [f"lens.{name}" for name in ("kept", "shift", "scale")]
    others += [f"survey.{item.name}" for item in fields(ExpertiseSummary)]
    if missing := sorted({*model, *others} - weights.keys() - {"survey.learned_from"}):
        raise _ContradictionError(f"there is no tensor {missing[0]!r}")
    if extra := sorted(weights.keys() - {*model, *others}):
        raise _ContradictionError(f"there is a tensor {brief(extra[0])}, which these settings have no place for")
    for name, value in model.items():
        _check_tensor(weights, name, tuple(value.shape), value.dtype)
        if name.endswith(("action_scale", "action_reach")):
            _expect(bool((weights[name] >= 0).all()), name, weights[name].tolist(), "zero or more")


def _check_tensor(
    weights: Mapping[str, Tensor], name: str, shape: tuple[int, ...], kind: torch.dtype, *, may_be_nan: bool = False
) -> None:
    found = weights[name]
    _expect(tuple(found.shape) == shape, f"the shape of {name}", tuple(found.shape), f"{shape}")
    _expect(found.dtype == kind, f"the type of {name}", found.dtype, f"{kind}")
    if kind.is_floating_point:
        sound = torch.isfinite(found) | (torch.isnan(found) if may_be_nan else False)
        _expect(bool(sound.all()), name, "NaN or infinite in places", "finite")


def _check_normaliser(weights: Mapping[str, Tensor], sizes: Sizes, numbers: int) -> None:
    """Which of an observation's numbers are inputs, and their units."""
    inputs = (sizes.inputs,)
    _check_tensor(weights, "lens.kept", inputs, torch.int64)
    _check_tensor(weights, "lens.shift", inputs, torch.float32)
    _check_tensor(weights, "lens.scale", inputs, torch.float32)
    kept = weights["lens.kept"]
    inside = bool(((kept >= 0) & (kept < min(numbers, 2**63 - 1))).all()) and len(kept.unique()) == len(kept)
    _expect(inside, "lens.kept", kept.tolist(), f"distinct indices into an observation of {numbers} numbers")
    _expect(bool((weights["lens.scale"] > 0).all()), "lens.scale", weights["lens.scale"].tolist(), "above zero")


def _check_summary(weights: Mapping[str, Tensor], people: int, members: int) -> None:
    """Expertise where it was used: from 0 to 1, or NaN for somebody of whom there is nothing."""
    states = weights["survey.states"]
    _expect(states.ndim == 2 and states.shape[1] > 0, "the shape of survey.states", tuple(states.shape), "two sizes")
    grid = (people, states.shape[1])
    _check_tensor(weights, "survey.by_demonstrator", (people,), torch.float64, may_be_nan=True)
    _check_tensor(weights, "survey.quantiles", (people, QUANTILES), torch.float64, may_be_nan=True)
    _check_tensor(weights, "survey.states", grid, torch.float32, may_be_nan=True)
    _check_tensor(weights, "survey.visits", grid, torch.int64)
    for name in ("survey.by_demonstrator", "survey.quantiles", "survey.states"):
        value = weights[name].nan_to_num(0.5)
        _expect(bool(((value >= -1e-6) & (value <= 1 + 1e-6)).all()), name, "outside that", "from 0 to 1")
    visits = weights["survey.visits"]
    counts = bool(((visits >= 0) & (visits < _MOST_VISITS // max(1, visits.numel()))).all())
    _expect(counts, "survey.visits", "outside that", "counts, zero or more")
    if "survey.learned_from" in weights:
        _check_tensor(weights, "survey.learned_from", (members, people), torch.bool)


@torch.no_grad()
def _check_answers(joint: Joint) -> None:
    """Weights may be finite and yet so large that no answer is: ask at the mean input, and one unit to either side."""
    sizes = joint.sizes
    seen = torch.tensor([0.0, 1.0, -1.0]).expand(sizes.inputs, 3).contiguous()
    batch = Batch.of(sizes=sizes, observations=seen, skills=torch.ones(sizes.skills, 3) if sizes.skills else None)
    policy, _ = joint.policy.step(seen, joint.policy.initial_state(3))
    answers = [*joint.policy.parameters_of(policy), joint.expertise_at(batch)]
    _expect(not any(bool(answer.isnan().any()) for answer in answers), "the policy's answer", "NaN", "a number")
