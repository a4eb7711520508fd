"""Which demonstrator model explains people best, by episodes that it was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from ileed import fitting
from ileed._torch import default_modes, resolve_device, threads
from ileed.checking import callable_or_none, instance_of, seed_of, whole_numbers
from ileed.demonstrations import Array, Demonstrations, check_demonstrations
from ileed.errors import SettingsError
from ileed.fitted.comparison import ModelComparison
from ileed.fitted.delays import DelayComparison, compare_delayed
from ileed.fitted.ensemble import Ensemble
from ileed.fitted.model_choice import CANDIDATES
from ileed.fitting.stages import Stages
from ileed.methods import Ileed
from ileed.model.demonstrators import AbstractDemonstratorModel

__all__ = ["CANDIDATES", "DELAYS", "DelayComparison", "ModelComparison", "compare", "compare_delays"]

DELAYS = (0, 1, 2, 3, 4)
"""The delays that are compared, in steps."""


@default_modes()
@threads(1)
def compare(
    demonstrations: Demonstrations,
    *,
    seed: int,
    models: Sequence[AbstractDemonstratorModel[Any]] | None = None,
    method: Ileed | None = None,
    device: str = "auto",
    executor: Executor | None = None,
    progress: fitting.ProgressCallback | None = None,
) -> ModelComparison:
    """Demonstrator models fitted to the same folds of episodes, and judged by the episodes left out.

    `models` stand in the order in which they are preferred where the data cannot choose; by default all of
    `CANDIDATES` that describe the data. `method` has the other settings; `Ileed(demonstrator="auto")` compares in the
    same way before its fit, and keeps what came out as `Fitted.comparison`. Where `policy` is None, the network is the
    paper's here. With an `executor` (`ileed.executors.executor("ray")`, in a `with` statement) each model is fitted by
    one of its workers, with the same result.
    """
    check_demonstrations(demonstrations)
    callable_or_none("progress", progress, rule="pass a function of a `Progress`, or None")
    method = Ileed() if method is None else method
    instance_of("method", method, Ileed, rule="pass Ileed(...), or None for its defaults")
    rule = "pass one of ileed.executors, as in executor=ileed.executors.executor('local'), or None"
    instance_of("executor", executor, Executor | None, rule=rule)
    stages = Stages(seed_of(seed), resolve_device(device), progress, None, 0.0, executor=executor)
    return method.compare_models(demonstrations, stages, models)


@default_modes()
@threads(1)
def compare_delays(
    demonstrations: Demonstrations,
    *,
    seed: int,
    delays: Sequence[int] = DELAYS,
    method: Ileed | None = None,
    device: str = "auto",
    progress: fitting.ProgressCallback | None = None,
) -> DelayComparison:
    """Do people act on what they saw some steps ago? `Demonstrations.delayed` by each of `delays`, compared.

    As in `compare`, each is fitted to the same folds of episodes and judged by the episodes left out. A delay is a part
    of the quasi-linear model of pilots, beside a gain and noise: McRuer and Jex, "A review of quasi-linear pilot
    models", IEEE Transactions on Human Factors in Electronics, 1967. Fit `demonstrations.delayed(found.chosen)`: the
    policy that comes out acts on what it sees at once.
    """
    check_demonstrations(demonstrations)
    callable_or_none("progress", progress, rule="pass a function of a `Progress`, or None")
    method = Ileed() if method is None else method
    instance_of("method", method, Ileed, rule="pass Ileed(...), or None for its defaults")
    rule = "pass whole numbers of steps, zero or more, as in delays=(0, 1, 2)"
    delays = sorted(
        set(whole_numbers("delays", list(delays) if isinstance(delays, range) else delays, least=0, rule=rule))
    )
    if len(delays) < 2:
        raise SettingsError(f"delays is {tuple(delays)}, but two or more are compared: {rule}")
    model = replace(method, demonstrator=method.model).parts(demonstrations).demonstrator

    def fit(data: Demonstrations, weights: Array, stage: Stages) -> Ensemble:
        return replace(method, demonstrator=model, restarts=len(weights), ensemble=1).fit_members(data, weights, stage)

    stages = Stages(seed_of(seed), resolve_device(device), progress, None, 0.0)
    return compare_delayed(demonstrations, fit, model, delays, stages)
