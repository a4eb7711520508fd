"""The rules of a data set: each column is checked and converted once, when `Demonstrations` are made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ileed._numpy import native
from ileed.errors import LONGEST, DemonstrationError, brief, instance_of, whole_number

if TYPE_CHECKING:
    from ileed.data.encoding import Encoding

Array = npt.NDArray[Any]

MANY_DEMONSTRATORS = 5_000
"""With more demonstrators than this, fits use mini-batches of demonstrators and ratings use their distribution."""

_AT_ONCE = 1 << 16  # numbers compared at a time: the first ones decide for most columns
_DIGITS = 6  # significant decimal digits that float32 always keeps apart (FLT_DIG of C)
_EXACT_POWER = 22  # the largest power of ten that float64 holds exactly
_LARGEST = float(np.finfo(np.float32).max)
_MANY_ACTIONS, _SPARSELY_TAKEN = 10_000, 100


def as_array(name: str, values: Any, rule: str = "one value or one row for each step") -> Array:
    """Convert to an array of numbers or text of a type that torch can read; `rule` says what to pass."""
    if values is None:
        raise DemonstrationError(f"{name} are None: pass {rule}")
    rows = values if isinstance(values, list | tuple) else [values]
    if count := sum(np.ma.getmaskarray(row).sum(dtype=int) for row in rows if isinstance(row, np.ma.MaskedArray)):
        # asarray would drop the mask and show the values under it
        raise DemonstrationError(f"{name} hold {count:,} masked values: fill them (array.filled(value)) or drop them")
    check_words(name, values)
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    except (TypeError, RuntimeError) as error:  # such as a tensor on a GPU, or one that is being differentiated
        found = f"{brief(values)} that cannot be read as an array ({' '.join(str(error).split())})"
        raise DemonstrationError(f"{name} are {found}: pass an array, as tensor.detach().cpu().numpy() is") from error
    if array.dtype == object and array.size and all(isinstance(word, str) for word in array.flat):  # as pandas has them
        array = array.astype(np.str_)
    if array.dtype.kind in "UT" and array.ndim == 1 and len(array):
        check_text(name, array[np.append(True, array[1:] != array[:-1])].tolist())
    if array.dtype != object:
        return native(array)
    raise DemonstrationError(f"{name} are ragged or hold objects: every row must be numbers of the same shape")


def check_words(name: str, values: Any) -> None:
    """Refuse text that is too long for a column, or that `check_text` refuses."""
    kind = values.dtype.kind if isinstance(values, np.ndarray) else ""
    if kind == "O" or (kind == "U" and values.dtype.itemsize > 4 * LONGEST) or isinstance(values, list | tuple):
        words = [word for word in (values.flat if kind else values) if isinstance(word, str)]
        if long := next((word for word in words if len(word) > LONGEST), None):
            raise too_long(f"{name} hold", long)
        check_text(name, words)


def check_text(name: str, words: Sequence[str]) -> None:
    """Refuse NUL characters, which numpy and HDF5 cut off, and lone surrogates: no file could return them."""
    for character, found in (("\0", "a NUL character"), (r"\ud800-\udfff", "a lone surrogate, which is not Unicode")):
        if odd := re.search(f"[{character}]", "".join(words)):
            word = next(word for word in words if odd[0] in word)
            raise DemonstrationError(f"{name} hold {brief(word)}, with {found}: remove it")


def too_long(found: str, word: str) -> DemonstrationError:
    """An error about a text that is too long to be repeated in every row."""
    return DemonstrationError(
        f"{found} a text of {len(word):,} characters (it begins {word[:20]!r}): shorten it to {LONGEST:,} or fewer"
    )


def read_only(value: Any) -> Any:
    """A read-only view of an array; other values are returned unchanged."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def check_finite(name: str, array: Array) -> None:
    """Refuse numbers that are not finite in single precision, in which models compute."""
    if array.dtype.kind != "f":
        return
    with np.errstate(invalid="ignore"):
        sound = np.abs(array) <= _LARGEST  # false for NaN as well
    if not sound.all():
        bad = ~sound.reshape(len(array), -1).all(axis=1)
        where = f"in {bad.sum():,} of {len(array):,} steps (first: step {int(bad.argmax()):,})"
        raise DemonstrationError(f"{name} hold NaN, infinite or too large values {where}: drop or repair those steps")


def column(name: str, values: Any, steps: int, kinds: Mapping[int, str], rule: str) -> Array:
    """Convert to one finite value or row per step, of the numpy `kinds` allowed for its number of axes."""
    array = as_array(name, values, rule)
    found = len(array) if array.ndim else 0
    if found != steps:
        rule = "there must be one for each step; if an observation follows an episode's last action, drop it"
        raise DemonstrationError(f"{steps:,} observations but {found:,} values in {name}: {rule}")
    if array.dtype.kind not in kinds.get(array.ndim, ""):
        numbers = ", not numbers" if array.dtype.kind in "UST" else ""
        raise DemonstrationError(f"{name} are {array.dtype} of shape {array.shape}{numbers}: pass {rule}")
    check_finite(name, array)
    return array


def observations(values: Any) -> Array:
    """(step, ...) finite numbers."""
    rule = "(steps, numbers): encode them as numbers first, or pass observations[:, None] for one number a step"
    array = as_array("observations", values)
    if array.ndim == 0 or len(array) == 0:
        raise DemonstrationError("there are no steps: pass at least one observation")
    return column("observations", array, len(array), dict.fromkeys(range(2, 65), "biuf"), rule)


def actions(values: Any, steps: int) -> Array:
    """(step,) whole numbers from zero, or (step, dimension) floating-point numbers."""
    rule = "whole numbers of shape (steps,), or for continuous actions floating-point ones of (steps, dimensions)"
    array = column("actions", values, steps, {1: "biuf", 2: "f"}, rule)
    if array.ndim == 2:
        if array.shape[1] == 0:
            raise DemonstrationError(f"actions have shape {array.shape}: pass one dimension or more")
        return array
    if array.dtype.kind == "f":
        fractional = array[array != np.round(array)]
        found = f"fractional (first: {fractional[0]})" if len(fractional) else "floating-point"
        raise DemonstrationError(f"actions in one column are {found}: pass integers, or actions[:, None] if continuous")
    if (low := int(array.min())) < 0:
        raise DemonstrationError(f"action {low} is negative: number discrete actions 0, 1, ...")
    if (high := int(array.max())) > np.iinfo(np.int64).max:
        raise DemonstrationError(f"action {high:,} is too large: number discrete actions 0, 1, ...")
    return array.astype(np.int64)


def action_count(actions: Array, stated: Any) -> int:
    """The number of discrete actions, as stated or counted in the data.

    More than 10,000 actions of which fewer than one in a hundred occurs are probably codes, so they must be stated.
    """
    rule = "it must be a whole number, 2 or more for there to be a choice, or 0 to count those in the data"
    stated = whole_number("action_count", stated, least=0, rule=rule, error=DemonstrationError)
    if stated == 1:
        raise DemonstrationError(f"action_count is 1: {rule}")
    found = int(actions.max()) + 1
    if 0 < stated < found:
        raise DemonstrationError(f"action {found - 1} was taken but action_count is {stated}: state {found} or more")
    if stated == 0 and found > _MANY_ACTIONS and found > _SPARSELY_TAKEN * (taken := len(np.unique(actions))):
        shown = f"action {found - 1:,} was taken, and yet only {taken:,} different actions"
        raise DemonstrationError(f"{shown}: number them 0, 1, ..., or pass action_count={found} if there are so many")
    return stated or max(found, 2)


def demonstrator(values: Any, names: Sequence[str], steps: int) -> tuple[tuple[str, ...], Array]:
    """The names, and for each step an index into them."""
    if isinstance(names, str | bytes) or not np.iterable(names):
        raise DemonstrationError(f"names is {brief(names)}: pass a sequence of names, one for each demonstrator")
    names = tuple(str(name) for name in names)
    check_words("names", names)
    if len(set(names)) != len(names):
        raise DemonstrationError(f"demonstrator names repeat in {listed(names)}: give each demonstrator one name")
    array = column("demonstrator labels", values, steps, {1: "iuUT"}, "one name or whole number for each step")
    if array.dtype.kind in "iu" and names:
        if len(odd := array[(array < 0) | (array >= len(names))]):
            count = len(names)
            raise DemonstrationError(f"demonstrator {odd[0]} has no name: the {count} names go from 0 to {count - 1}")
        return names, array.astype(np.int64)
    distinct, index = np.unique(array, return_inverse=True)
    found = tuple(str(label) for label in distinct)
    names = names or found
    number = {name: number for number, name in enumerate(names)}
    if unknown := [label for label in found if label not in number]:
        raise DemonstrationError(f"demonstrator {unknown[0]!r} is not among the names {listed(names)}: add it to names")
    return names, np.array([number[label] for label in found], dtype=np.int64)[index]


def episode_labels(values: Any, steps: int) -> Array:
    """(step,) labels of episodes; bytes and times become text."""
    array = column("episode labels", values, steps, {1: "biucmMUSTV"}, "one label for each step")
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            found = f"episode labels hold {brief(error.object)}, which is not UTF-8"
            raise DemonstrationError(f"{found}: decode the labels and pass them as str") from error
    return array.astype(np.str_) if array.dtype.kind in "mM" else array


def source_labels(values: Any, steps: int) -> Array:
    """(step,) labels of episodes in the source; an array of shared `str` objects stays one, to save memory."""
    shared = isinstance(values, np.ndarray) and values.dtype == object and values.shape == (steps,)
    if not shared or set(map(type, values.tolist())) != {str}:
        return episode_labels(values, steps)
    check_words("episode labels", [*set(values.tolist())])
    return values


def timestamps(values: Any, steps: int, fps: float | None) -> Array:
    """(step,) finite numbers in double precision, which represents LeRobot's single precision exactly."""
    if fps is None:
        raise DemonstrationError("timestamps were given without fps: pass fps, the number of frames per second, too")
    return column("timestamps", values, steps, {1: "iuf"}, "seconds, one number for each step").astype(np.float64)


def is_fps(value: Any) -> bool:
    """Whether a value can be a number of frames per second."""
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return is_number and bool(1e-6 <= value <= 1e6)


def fps(value: Any) -> float:
    """A number of frames per second, as an integer if it is whole."""
    if not is_fps(value):
        raise DemonstrationError(f"fps is {brief(value)}: pass a number of frames per second above zero, or None")
    return int(value) if value == int(value) else float(value)


def episode(values: Any, demonstrator: Array, names: Sequence[str]) -> Array:
    """(step,) episodes numbered from zero in order; each is contiguous and has one demonstrator."""
    array = episode_labels(values, len(demonstrator))
    starts = np.concatenate([[True], array[1:] != array[:-1]])
    labels, counts = np.unique(array[starts], return_counts=True)
    if (counts > 1).any():
        label = labels[counts.argmax()]
        raise DemonstrationError(f"episode {label!s} is interrupted by other steps: sort the steps by episode and time")
    changed = (demonstrator[1:] != demonstrator[:-1]) & ~starts[1:]
    if changed.any():
        where = int(changed.argmax())
        one, other = (names[each] for each in demonstrator[where : where + 2])
        found = f"episode {array[where]!s} has two demonstrators, {one!r} and {other!r}"
        raise DemonstrationError(f"{found}: each episode belongs to one; split it where the demonstrator changes")
    return np.cumsum(starts, dtype=np.int64) - 1


def episode_number(values: Any, episode: Array) -> Array:
    """(step,) whole numbers from zero, one for each episode."""
    rule = "the number of the step's episode among the demonstrator's own: whole numbers from 0 on"
    array = column("episode_number", values, len(episode), {1: "iu"}, rule)
    if array.size and array.min() < 0:
        raise DemonstrationError(f"episode_number is {int(array.min())} at step {int(array.argmin()):,}: pass {rule}")
    changes = (array[1:] != array[:-1]) & (episode[1:] == episode[:-1])
    if changes.any():
        where = int(changes.argmax()) + 1
        raise DemonstrationError(f"episode_number changes within an episode (at step {where:,}): give each episode one")
    return array.astype(np.int64)


def numbers_of(owner: Array) -> Array:
    """(episode,) the number of earlier episodes of the same demonstrator."""
    order = np.argsort(owner, kind="stable")
    number: Array = np.argsort(order) - np.searchsorted(owner[order], owner)
    return number


def rewards(values: Any, steps: int) -> Array:
    """(step,) finite numbers in single precision."""
    return column("rewards", values, steps, {1: "biuf"}, "one number for each step").astype(np.float32)


def terminals(values: Any, steps: int) -> Array:
    """(step,) true or false."""
    array = column("terminals", values, steps, {1: "biuf"}, "true or false for each step")
    if not np.isin(array, (0, 1)).all():
        raise DemonstrationError("terminals must be true or false, one for each step")
    return array.astype(bool)


def legal(values: Any, actions: Array, action_count: int) -> Array:
    """(step, action) whether an action is legal; every action taken must be."""
    if actions.ndim != 1:
        raise DemonstrationError("legal actions were given but actions are continuous: leave legal out")
    rule = f"true or false for each step and each of the {action_count} actions"
    array = column("legal actions", values, len(actions), {2: "biuf"}, rule)
    if array.shape[1] != action_count or not np.isin(array, (0, 1)).all():
        raise DemonstrationError(f"legal actions have shape {array.shape}: pass {rule}")
    array = array.astype(bool)
    illegal = ~array[np.arange(len(actions)), actions]
    if illegal.any():
        first = f"first: step {illegal.argmax():,}, action {actions[illegal.argmax()]}"
        raise DemonstrationError(f"{illegal.sum():,} steps take an illegal action ({first}): correct or drop them")
    return array


def skills(values: Any, steps: int) -> dict[str, Array]:
    """Skill columns by name: (step,) labels, or (step, skill) weights."""
    rule = "pass a mapping from names to columns, as in {'phase': ...}"
    columns, found = instance_of("skills", values, Mapping, rule=rule, error=DemonstrationError), {}
    for name, each in columns.items():
        instance_of("the name of a skill column", name, str, rule="pass text", error=DemonstrationError)
        check_text("names of skill columns", [name])
        about = f"skill column {name!r} values"
        rule = "one label for each step, or (steps, skills) weights"
        array = column(about, each, steps, {1: "biuU", 2: "biuf"}, rule)
        if array.ndim == 2 and (array < 0).any():
            step = int((array < 0).any(axis=1).argmax())
            least = f"{array[step].min():g} (first: step {step:,})"
            raise DemonstrationError(f"{about} hold {least}: pass weights of zero or more")
        found[name] = read_only(array.astype(np.float32) if array.ndim == 2 else array)
    return found


def encoding(values: Encoding, observations: Array, actions: Array, action_count: int) -> Encoding:
    """An encoding that names exactly the numbers of an observation and the actions of the data."""
    rule = "pass an encoding, such as data.encoding or fitted.policy.encoding"
    if not hasattr(values, "inputs"):
        raise DemonstrationError(f"encoding is {brief(values)}: {rule}")
    inputs, labels, discrete = len(values.inputs), len(values.labels), actions.ndim == 1
    if observations.shape[1:] != (inputs,):
        found = f"observations have shape {observations.shape} and the encoding names {inputs} inputs"
    elif (labels != action_count) if discrete else (labels > 0 or len(values.action) != actions.shape[1]):
        there = f"{action_count} actions" if discrete else f"actions of {actions.shape[1]} dimensions"
        found = f"there are {there} and the encoding names {labels or len(values.action)}"
    else:
        return values
    raise DemonstrationError(f"{found}: name as many, or pass none")


def optional(rule: Callable[..., Any], values: Any, *others: Any) -> Any:
    """Apply a rule to a column that may be missing."""
    return None if values is None else rule(values, *others)


def listed(names: Sequence[object], most: int = 6, show: Callable[[Any], str] = brief) -> str:
    """The first names as `show` writes them, and the number of others."""
    return ", ".join(map(show, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def single_holds(values: Array) -> bool:
    """Whether float32 represents every value exactly or as a decimal of at most six significant digits."""
    if np.can_cast(values.dtype, np.float32):
        return True
    flat = values.reshape(-1)
    return all(_single_holds(flat[first : first + _AT_ONCE]) for first in range(0, len(flat), _AT_ONCE))


def _single_holds(values: Array) -> bool:
    with np.errstate(under="ignore"):
        rest = values[values.astype(np.float32) != values]
    if not len(rest):
        return True
    if values.dtype.kind != "f":
        return False
    shift = _DIGITS - 1 - np.floor(np.log10(np.abs(rest)))
    if np.abs(shift).max() > _EXACT_POWER:
        return False
    # integers and these powers of ten are exact, so the quotient or product is the float64 nearest to the decimal
    power = 10.0 ** np.abs(shift)
    rounded = np.where(shift >= 0, np.rint(rest * power) / power, np.rint(rest / power) * power)
    return bool((rounded == rest).all())


def is_table(value: object) -> bool:
    """Whether a value has named columns: a mapping, a DataFrame, or an object with one of Arrow's protocols."""
    return isinstance(value, Mapping) or hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")
