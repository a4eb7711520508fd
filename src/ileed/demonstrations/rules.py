"""The rules of a data set: what each column must be, checked once, with a sentence for each way to break it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ileed.checking import LONGEST, instance_of, shown, whole_number
from ileed.errors import DemonstrationError

if TYPE_CHECKING:
    from ileed.demonstrations.encoding import Encoding

Array = npt.NDArray[Any]


def as_array(name: str, values: Any) -> Array:
    """`values` as an array of numbers or words, all rows of one shape."""
    if values is None:
        raise DemonstrationError(f"{name} are None: pass one value or one row for each step")
    _check_mask(name, values)
    _check_words(name, values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DemonstrationError(f"{name} are ragged: every row must have the same shape") from error
    except (TypeError, RuntimeError) as error:  # such as a tensor on a GPU, or one that is being differentiated
        raise DemonstrationError(
            f"{name} are {shown(values)} that cannot be read as an array ({' '.join(str(error).split())}): pass an "
            "array, as tensor.detach().cpu().numpy() is one"
        ) from error
    if array.dtype == object:
        raise DemonstrationError(f"{name} are ragged or hold objects: every row must be numbers of the same shape")
    return array


def _check_mask(name: str, values: Any) -> None:
    """Refuse masked values: an array forgets its mask and shows what lay under it."""
    rows = values if isinstance(values, list | tuple) else [values]
    count = sum(np.ma.getmaskarray(row).sum(dtype=int) for row in rows if isinstance(row, np.ma.MaskedArray))
    if count:
        raise DemonstrationError(
            f"{name} hold {count:,} masked value{'' if count == 1 else 's'}: fill them (array.filled(value)) "
            "or drop those steps"
        )


def _check_words(name: str, values: Any) -> None:
    """Refuse words so long that a column of them would not fit into memory."""
    array = isinstance(values, np.ndarray)
    if array and values.dtype.kind == "U" and values.dtype.itemsize <= 4 * LONGEST:
        return
    if not (isinstance(values, list | tuple) or (array and values.dtype.kind in "UO")):
        return
    words = (word for word in (values.flat if array else values) if isinstance(word, str))
    if long := next((word for word in words if len(word) > LONGEST), None):
        raise too_long(name, long)


def too_long(name: str, word: str) -> DemonstrationError:
    """The sentence for a word that no column can hold in every row."""
    return DemonstrationError(
        f"{name} hold a word of {len(word):,} characters (it begins {word[:20]!r}): shorten it to {LONGEST:,} or fewer"
    )


def frozen(value: Any) -> Any:
    """A view that cannot be written to; anything but an array as it is."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def observations(values: Any) -> Array:
    """(step, ...) finite numbers."""
    array = as_array("observations", values)
    if len(array.shape) == 0 or len(array) == 0:
        raise DemonstrationError("there are no steps: pass at least one observation")
    if array.dtype.kind not in "biuf":
        raise DemonstrationError(f"observations are {array.dtype}, not numbers: encode them as numbers first")
    if array.ndim == 1:
        raise DemonstrationError(
            f"observations have shape {array.shape}: pass (steps, numbers), or observations[:, None] for one number"
        )
    finite("observations", array)
    return array


_LARGEST = float(np.finfo(np.float32).max)


def finite(name: str, array: Array) -> None:
    """Refuse numbers that single precision, in which models compute, cannot hold."""
    if array.dtype.kind != "f":
        return
    with np.errstate(invalid="ignore"):
        sound = np.abs(array) <= _LARGEST  # false for NaN as well
    if not sound.all():
        bad = ~sound.reshape(len(array), -1).all(axis=1)
        raise DemonstrationError(
            f"{name} hold NaN, infinite or too large values (beyond {_LARGEST:.1e}) in {bad.sum():,} of "
            f"{len(array):,} steps (first: step {int(bad.argmax()):,}): drop or repair those steps"
        )


def same_length(name: str, array: Array, steps: int) -> None:
    """One value for each step."""
    if array.ndim == 0 or len(array) != steps:
        found = 0 if array.ndim == 0 else len(array)
        raise DemonstrationError(
            f"{steps:,} observations but {found:,} values in {name}: there must be one for each step "
            "(an observation after an episode's last action does not count: drop it)"
        )


def actions(values: Any, steps: int) -> Array:
    """(step,) whole numbers from zero, or (step, dimension) floating-point numbers."""
    array = as_array("actions", values)
    same_length("actions", array, steps)
    if array.dtype.kind not in "biuf":
        raise DemonstrationError(f"actions are {array.dtype}, not numbers: encode them as whole numbers 0, 1, ...")
    finite("actions", array)
    if array.ndim == 2 and array.shape[1] == 0:
        raise DemonstrationError(f"actions have shape {array.shape}, so nothing was done: pass one dimension or more")
    if array.ndim == 2 and array.dtype.kind == "f":
        return array
    if array.ndim != 1:
        raise DemonstrationError(
            f"actions are {array.dtype} of shape {array.shape}: pass whole numbers of shape (steps,) for discrete "
            "actions, or floating-point numbers of shape (steps, dimensions) for continuous ones"
        )
    if array.dtype.kind == "f":
        fractional = array != np.round(array)
        found = f"fractional (first: {array[fractional][0]})" if fractional.any() else "floating-point"
        raise DemonstrationError(
            f"actions in one column are {found}: pass integers for discrete actions, "
            "or actions[:, None] for continuous ones"
        )
    if array.dtype.kind != "b" and array.min() < 0:
        raise DemonstrationError(f"action {array.min()} is negative: number discrete actions 0, 1, ...")
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise DemonstrationError(
            f"action {int(array.max()):,} is beyond what 64 bits with a sign can hold: number the actions 0, 1, ..."
        )
    return array.astype(np.int64)


_MANY_ACTIONS, _SPARSELY_TAKEN = 10_000, 100


def action_count(actions: Array, stated: Any) -> int:
    """How many discrete actions there are: as stated, or as many as the data show.

    Numbers that are hardly ever used are taken for codes, not for a count: more than 10,000 actions, of which fewer
    than one in a hundred was ever taken, must be stated.
    """
    rule = "it must be a whole number, 2 or more for there to be a choice, or 0 to count those in the data"
    stated = whole_number("action_count", stated, least=0, rule=rule, error=DemonstrationError)
    found = int(actions.max()) + 1
    if stated == 0:
        if found > _MANY_ACTIONS and found > _SPARSELY_TAKEN * (taken := len(np.unique(actions))):
            raise DemonstrationError(
                f"action {found - 1:,} was taken, and yet only {taken:,} different actions: number the actions "
                f"0, 1, ..., or pass action_count={found} if there are so many"
            )
        return max(found, 2)
    if stated < 2:
        raise DemonstrationError(f"action_count is {stated}: it must be 2 or more, for there to be a choice")
    if found > stated:
        raise DemonstrationError(
            f"action {found - 1} was taken but action_count is {stated}: it must be {found} or more"
        )
    return int(stated)


def demonstrator(values: Any, names: Sequence[str], steps: int) -> tuple[tuple[str, ...], Array]:
    """The names, and for each step an index into them."""
    if names is None or isinstance(names, str):
        raise DemonstrationError(f"names is {shown(names)}: pass a sequence of names, one for each demonstrator")
    names = tuple(str(name) for name in names)
    _check_words("names", names)
    if len(set(names)) != len(names):
        raise DemonstrationError(f"demonstrator names repeat in {listed(names)}: give each person one name")
    if values is None:
        raise DemonstrationError("demonstrator is None: pass one name or whole number for each step")
    _check_mask("demonstrator labels", values)
    _check_words("demonstrator labels", values)
    array = np.asarray(values)
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):  # a pandas column of names
        array = array.astype(np.str_)
    same_length("demonstrator", array, steps)
    if array.ndim != 1 or array.dtype.kind not in "iuUT":
        raise DemonstrationError(
            f"demonstrator labels are {array.dtype} of shape {array.shape}: pass one name or whole number for each step"
        )
    if array.dtype.kind in "iu" and names:
        if array.min() < 0 or array.max() >= len(names):
            raise DemonstrationError(
                f"demonstrator {array.min() if array.min() < 0 else array.max()} has no name: "
                f"there are {len(names)} names, so indices go from 0 to {len(names) - 1}"
            )
        return names, array.astype(np.int64)
    labels, index = np.unique(array, return_inverse=True)
    found = tuple(str(label) for label in labels)
    if not names:
        return found, index.astype(np.int64)
    places = {name: place for place, name in enumerate(names)}
    if unknown := [label for label in found if label not in places]:
        raise DemonstrationError(f"demonstrator {unknown[0]!r} is not among the names {listed(names)}: add it to names")
    place = np.array([places[label] for label in found], dtype=np.int64)
    return names, place[index]


def episode(values: Any, demonstrator: Array, names: Sequence[str], steps: int) -> Array:
    """Episodes numbered from zero in order; each stands together and is of one demonstrator."""
    array = as_array("episode labels", values)
    same_length("episode", array, steps)
    if array.ndim != 1 or array.dtype.kind == "f":
        raise DemonstrationError(
            f"episode labels are {array.dtype} of shape {array.shape}: pass one label for each step"
        )
    starts = np.concatenate([[True], array[1:] != array[:-1]])
    number = np.cumsum(starts) - 1
    labels, counts = np.unique(array[starts], return_counts=True)
    if (counts > 1).any():
        raise DemonstrationError(
            f"episode {labels[counts.argmax()]!s} is interrupted by other steps: "
            "sort the steps so that each episode's stand together, in order"
        )
    changed = (demonstrator[1:] != demonstrator[:-1]) & ~starts[1:]
    if changed.any():
        where = int(changed.argmax())
        raise DemonstrationError(
            f"episode {array[where]!s} has two demonstrators, {names[demonstrator[where]]!r} and "
            f"{names[demonstrator[where + 1]]!r}: each episode belongs to one; split it where the hands change"
        )
    return number.astype(np.int64)


def rewards(values: Any, steps: int) -> Array | None:
    """(step,) finite numbers in single precision."""
    if values is None:
        return None
    array = as_array("rewards", values)
    same_length("rewards", array, steps)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise DemonstrationError(f"rewards are {array.dtype} of shape {array.shape}: pass one number for each step")
    finite("rewards", array)
    return array.astype(np.float32)


def terminals(values: Any, steps: int) -> Array | None:
    """(step,) true or false."""
    if values is None:
        return None
    array = as_array("terminals", values)
    same_length("terminals", array, steps)
    if array.ndim != 1 or not np.isin(array, (0, 1)).all():
        raise DemonstrationError("terminals must be true or false, one for each step")
    return array.astype(bool)


def legal(values: Any, actions: Array, action_count: int) -> Array | None:
    """(step, action) true or false, with every action that was taken among the legal."""
    if values is None:
        return None
    if actions.ndim != 1:
        raise DemonstrationError("legal actions were given but actions are continuous: leave legal out")
    array = as_array("legal actions", values)
    same_length("legal", array, len(actions))
    if array.shape != (len(actions), action_count) or not np.isin(array, (0, 1)).all():
        raise DemonstrationError(
            f"legal actions have shape {array.shape}: pass true or false for each step and each of the "
            f"{action_count} actions"
        )
    array = array.astype(bool)
    illegal = ~array[np.arange(len(actions)), actions]
    if illegal.any():
        step = int(illegal.argmax())
        raise DemonstrationError(
            f"{illegal.sum():,} steps take an action that is marked illegal (first: step {step:,}, action "
            f"{actions[step]}): correct legal or drop those steps"
        )
    return array


def skill(name: str, values: Any, steps: int) -> Array:
    """(step,) labels, or (step, skill) weights."""
    array = as_array(f"skill column {name!r}", values)
    same_length(f"skill column {name!r}", array, steps)
    if array.ndim == 1 and array.dtype.kind in "biuU":
        return array
    if array.ndim == 2 and array.dtype.kind in "biuf":
        finite(f"skill column {name!r}", array)
        if (array < 0).any():
            step = int((array < 0).any(axis=1).argmax())
            raise DemonstrationError(
                f"skill column {name!r} holds {array[step].min():g} (first: step {step:,}): weights say how much of a "
                "skill a step calls for, and must be zero or more"
            )
        return array.astype(np.float32)
    raise DemonstrationError(
        f"skill column {name!r} is {array.dtype} of shape {array.shape}: pass one label for each step, "
        "or (steps, skills) weights"
    )


def encoding(values: Encoding | None, observations: Array, actions: Array, action_count: int) -> Encoding | None:
    """Names for exactly the numbers of an observation and the actions that there are."""
    if values is None:
        return None
    inputs, labels = len(values.inputs), len(values.labels)
    if observations.shape[1:] != (inputs,):
        raise DemonstrationError(
            f"observations have shape {observations.shape} and the encoding names {inputs} inputs: pass (steps, "
            f"{inputs}) observations, or no encoding"
        )
    discrete = actions.ndim == 1
    if (labels != action_count) if discrete else (labels > 0 or len(values.action) != actions.shape[1]):
        found = f"{action_count} actions" if discrete else f"actions of {actions.shape[1]} dimensions"
        raise DemonstrationError(
            f"there are {found} and the encoding names {labels or len(values.action)}: name as many, or pass no "
            "encoding"
        )
    return values


def skills(values: Any, steps: int) -> dict[str, Array]:
    """Every skill column, by its name."""
    mapping = instance_of(
        "skills",
        values,
        Mapping,
        rule="pass a mapping from names to columns, as in {'phase': ...}",
        error=DemonstrationError,
    )
    return {name: frozen(skill(name, column, steps)) for name, column in mapping.items()}


def listed(names: Sequence[object], most: int = 6) -> str:
    """Names in quotes, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
