"""What is known beforehand, in the terms of data that are prepared for a fit."""

from __future__ import annotations

from dataclasses import replace

import torch

from ileed.errors import SettingsError
from ileed.fitting.batches import tensor
from ileed.fitting.loop import Start
from ileed.fitting.preparing import Prepared
from ileed.model.batch import Batch
from ileed.model.knowledge import Known


def start_with(start: Start, known: Known, device: torch.device) -> Start:
    """The same start, whose objective prefers what is known."""
    policy = start.prepared.training_data.parts.policy
    if policy.length > 1 and known.answers is not None:
        raise SettingsError(f"{type(policy).__name__} takes no answers, since it learns from windows: use MixtureMLP")
    people = known.of(start.prepared.training_data.data)
    start.joint.knowledge = replace(
        people,
        gold=people.gold.to(device),
        better=people.better.to(device),
        answers=_answers(start.prepared, known, device),
    )
    return start


def _answers(prepared: Prepared, known: Known, device: torch.device) -> Batch | None:
    """Gold answers as steps of a person who never errs, as many as a state has on average and more."""
    data, collapsed = prepared.training_data.data, prepared.training_data.collapsed
    if (found := known.gold_answers(data)) is None:
        return None
    seen = prepared.normaliser(tensor(found.observations)).to(device)
    batch = Batch.of(sizes=prepared.sizes, observations=seen, action=tensor(found.actions, device))
    return replace(batch, weight=batch.weight * known.answer_steps * len(data) / collapsed.unique_count)
