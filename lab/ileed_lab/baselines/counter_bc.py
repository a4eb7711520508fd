"""Counter-BC: behaviour cloning that may replace an action by a counterfactual one, if the policy is simpler for it.

Sagheb and Losey, "Counterfactual Behavior Cloning: Offline Imitation Learning from Imperfect Human Demonstrations",
2025 (arXiv:2505.10760). Around every demonstrated action lies a set of actions that the demonstrator may have meant.
The policy chooses among them by its own probabilities, R, and the loss is the cross-entropy of that choice:

    loss(s, a) = - sum over b in the set of R(b) log pi(b | s),    R(b) = pi(b | s) / sum over c in the set of pi(c | s)

With the set {a} it is behaviour cloning. As in the authors' public code, the gradient passes through R too.

What the paper leaves open here: its actions are continuous, and its sets are balls around them. Names of actions have
no distance, so that a ball holds one action, which is BC, or all of them, under which the loss is the policy's entropy
whatever was demonstrated. We take the demonstrated action and a fixed number of others, drawn uniformly, and
the mean of the loss over all such sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from ileed import Constant, Ileed, SettingsError
from ileed.errors import whole_number
from ileed.model.batch import Batch, PerCount, Sizes
from ileed.model.demonstrators import NO_CONTEXT, AbstractDemonstratorModel, Context
from ileed.model.distributions import Choice

__all__ = ["CounterfactualSets", "counter_bc", "counterfactual_loss"]


@final
@dataclass(frozen=True, kw_only=True)
class CounterfactualSets(AbstractDemonstratorModel[Choice]):
    """The loss of Counter-BC in the place of a demonstrator model's likelihood, which it is not.

    Demonstrators are not distinguished, and every demonstrator's expertise is one. What a fit calls nats per action is
    this loss.
    """

    counterfactuals: int = 1
    """Actions in a set beside the demonstrated one; 0 is behaviour cloning."""
    discrete = True
    defines_expertise = True

    def __post_init__(self) -> None:
        rule = "a set has a whole number of counterfactual actions, zero or more"
        whole_number("counterfactuals", self.counterfactuals, least=0, rule=rule)

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        if self.counterfactuals >= (sizes.actions or 0):
            raise SettingsError(
                f"{self.counterfactuals} counterfactual actions beside the demonstrated one are more than all "
                f"{sizes.actions} actions: take fewer"
            )

    def observed(self, policy: Any, expertise: Tensor, context: Context = NO_CONTEXT) -> Distribution:
        return policy

    def log_likelihood(self, policy: Choice, expertise: PerCount, batch: Batch, module: Any = None) -> PerCount:
        assert batch.taken is not None  # discrete batches have it
        return -batch.taken(counterfactual_loss(policy.log_probs, self.counterfactuals).flatten(-2))


def counter_bc(*, counterfactuals: int = 1, **settings: Any) -> Ileed:
    """Counter-BC with as many restarts as BC; the restart of lowest loss is used."""
    return Ileed(expertise=Constant(), demonstrator=CounterfactualSets(counterfactuals=counterfactuals), **settings)


def counterfactual_loss(log_probs: Tensor, counterfactuals: int) -> Tensor:
    """(member, action, observation) mean loss of each action over its sets, from log-probabilities of that shape."""
    chosen, holds = _sets(log_probs.shape[-2], counterfactuals, log_probs.device, log_probs.dtype)
    # (member, set, action of the set, observation)
    among = (chosen @ log_probs).unflatten(1, (-1, counterfactuals + 1))
    return holds @ -(among.softmax(2) * among).sum(2)


@cache
def _sets(actions: int, counterfactuals: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(set x action of the set, action) picks the actions of every set; (action, set) weighs an action's own sets.

    Picking by a product has a deterministic gradient on a GPU, which indexing has not.
    """
    sets = torch.tensor(list(combinations(range(actions), counterfactuals + 1)))
    chosen = torch.nn.functional.one_hot(sets, actions).to(device, dtype)
    holds = chosen.sum(1).T
    return chosen.flatten(0, 1), holds / holds.sum(1, keepdim=True)
