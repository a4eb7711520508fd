"""What is known beforehand, in the terms of data that are prepared for a fit."""

from __future__ import annotations

from dataclasses import replace

import torch

from ileed.errors import SettingsError
from ileed.fitting.batches import tensor
from ileed.fitting.loop import Start
from ileed.fitting.preparing import OptimiserSettings, Prepared, sampler_of
from ileed.model.batch import Batch
from ileed.model.knowledge import Known


def start_with(start: Start, known: Known, settings: OptimiserSettings, device: torch.device) -> Start:
    """The same start, whose objective prefers what is known."""
    prepared, training_data = start.prepared, start.prepared.training_data
    data, steps, policy = training_data.data, known.assumed_steps(training_data.data), training_data.parts.policy
    if policy.length > 1 and not (steps is None and known.answers is None):
        kind = type(policy).__name__
        raise SettingsError(f"{kind} takes neither quality nor answers, since it learns from windows: use MixtureMLP")
    if steps is not None and data.mapping is not None:
        raise SettingsError("qualities of episodes need the steps in memory, not a folder: select episodes first")
    if steps is not None:
        training_data = replace(training_data, assumed=steps)
        prepared = replace(
            prepared, training_data=training_data, sampler=sampler_of(training_data, settings, prepared.normaliser)
        )
    people = known.of(data)
    start.joint.knowledge = replace(
        people,
        gold=people.gold.to(device),
        better=people.better.to(device),
        answers=_answers(prepared, known, device),
    )
    return Start(prepared, start.joint)


def _answers(prepared: Prepared, known: Known, device: torch.device) -> Batch | None:
    """Gold answers as steps of a person who never errs, as many as a state has on average and more."""
    data, collapsed = prepared.training_data.data, prepared.training_data.collapsed
    if (found := known.gold_answers(data)) is None:
        return None
    seen = prepared.normaliser(tensor(found.observations)).to(device)
    batch = Batch.of(sizes=prepared.sizes, observations=seen, action=tensor(found.actions, device))
    return replace(batch, weight=batch.weight * known.answer_steps * len(data) / collapsed.unique_count)
