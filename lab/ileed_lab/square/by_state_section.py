"""The section about expertise by state in Square: why it learns worse policies than one number for each operator."""

from __future__ import annotations

from ileed_lab.comparison import Estimate, Records, join_words, markdown_table
from ileed_lab.square.experiment import BY_STATE, SUBSETS_BY_STATE
from ileed_lab.square.success_section import Done, format_points, format_success, paired_estimate, pool_differences

__all__ = ["by_state_section"]

_METHODS = {
    "ileed": "one number",
    "ileed-by-state": "by state",
    "ileed-common-state": "common state alone",
    "ileed-difficulty": "difficulty",
    "ileed-interaction": "interaction",
}
_NAMES = _METHODS | {"bc-rnn-shared": "BC-RNN, shared"}

_PREDICTED = (
    ("ileed-common-state", "ileed", "below"),
    ("ileed-common-state", "bc-rnn-shared", "below"),
    ("ileed-difficulty", "ileed", "below"),
    ("ileed-interaction", "ileed", "not below"),
    ("ileed-interaction", "ileed-difficulty", "above"),
)
"""Two methods, and the predicted sign of the interval of the first minus the second."""


def by_state_section(records: Records) -> list[str]:
    """The heading, paragraphs and tables; nothing if none of the section's methods was run."""
    done = {
        subset: {method: records.trials("robot/square", method, operators=subset) for method in _NAMES}
        for subset in SUBSETS_BY_STATE
    }
    if not any(done[subset][method] for subset in SUBSETS_BY_STATE for method in BY_STATE):
        return []
    rows = [[subset, *(format_success(done[subset][method]) for method in _METHODS)] for subset in SUBSETS_BY_STATE]
    return [
        "## Why expertise by state learns worse policies",
        _HYPOTHESIS,
        _COMPARED,
        markdown_table(["operators", *_METHODS.values()], rows),
        "Paired differences in percentage points, as above; *all of these* are the subsets in which both were run.",
        _differences(done),
        _outcome(done),
    ]


_HYPOTHESIS = (
    "In some subsets expertise by state learns worse policies than one number for each operator. The hypothesis and "
    "its predictions were written before the last three methods below were run. Expertise by state contains an effect "
    "of the state that all operators share. `VarianceScaling` divides the variance by expertise, so this effect acts "
    "as a standard deviation that depends on the state. The likelihood then weights the squared error in each state by "
    "its precision and fits the means less well in states of low precision, which "
    'keeps the precision low there (Seitzer et al., "On the Pitfalls of Heteroscedastic Uncertainty Estimation with '
    'Probabilistic Neural Networks", ICLR 2022). This would also explain why BC-RNN with standard '
    "deviations by state is below BC-RNN with shared ones. If so, the common effect alone suffices to learn worse "
    "policies, and expertise by state without it learns policies that are no worse."
)
_COMPARED = (
    f"All have the recurrent policy with shared standard deviations. The operators are {join_words(SUBSETS_BY_STATE)}, "
    "where *by state* was below *one number* by the interval. *One number*: ILEED, `sigmoid(w_i)`. *By state*: "
    "`sigmoid(<f(s), w_i>)`. *Common state alone*: the same with one w for all operators, so that BC-RNN with shared "
    "standard deviations is the same model without the effect of the state. *Difficulty*: "
    "`sigmoid(w_i + d(s) + <f(s), v_i>)`, with a prior that shrinks v_i. *Interaction*: "
    "`sigmoid(w_i + <f(s), v_i - mean of v>)`, the same without the common effect. The subsets were chosen by success "
    "of *one number* minus *by state*, so *one number* may be high there by chance; differences without it have no "
    "such bias. The last three methods were fitted by a later version, which differs by rounding only. Not "
    "every cell has "
    "three trials: after the first trial of each was seen, common state alone and interaction were run to three for "
    "Okay-Better, where they disagreed most with Better; difficulty has one."
)


def _differences(done: Done) -> str:
    pairs = [("ileed-by-state", "ileed"), *((one, other) for one, other, _ in _PREDICTED)]
    rows = [
        [subset, *(format_points(paired_estimate(done[subset][one], done[subset][other])) for one, other in pairs)]
        for subset in done
    ]
    pooled = [format_points(Estimate.over(pool_differences(done, one, other))) for one, other in pairs]
    head = [f"{_NAMES[one]} minus {_NAMES[other]}" for one, other in pairs]
    return markdown_table(["operators", *head], [*rows, ["all of these", *pooled]])


def _outcome(done: Done) -> str:
    """A line for each prediction, and how many of them hold."""
    found = [(pair, Estimate.over(pool_differences(done, *pair[:2]))) for pair in _PREDICTED]
    known = [(predicted, estimate) for (_, _, predicted), estimate in found if estimate is not None]
    held = sum(_holds(predicted, estimate) for predicted, estimate in known)
    lines = [f"- {_prediction(*pair, estimate)}" for pair, estimate in found]
    missing = f", {len(found) - len(known)} not run" if len(known) < len(found) else ""
    total = f"Predictions that hold by the pooled interval: {held} of {len(known)}{missing}."
    return "\n".join([total, "", *lines])


def _prediction(one: str, other: str, predicted: str, difference: Estimate | None) -> str:
    words = f"{_NAMES[one]} minus {_NAMES[other]}, predicted {predicted} zero"
    if difference is None:
        return f"{words}: not run."
    side = _side(difference)
    where = f"{side} zero by the interval" if side else "the interval includes zero"
    contradiction = "" if _holds(predicted, difference) else ", **against the prediction**"
    return f"{words}: {format_points(difference)} points, {where}{contradiction}."


def _side(difference: Estimate) -> str:
    """The side of zero on which the whole interval lies, or nothing."""
    return "above" if difference.low > 0 else "below" if difference.high < 0 else ""


def _holds(predicted: str, difference: Estimate) -> bool:
    side = _side(difference)
    return side != "below" if predicted == "not below" else side == predicted
