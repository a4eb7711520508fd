"""Cross-fitting: everybody's episodes rated by policies that have not seen them.

A flexible policy remembers what was done, and then finds everybody perfect. Episodes are therefore dealt into folds;
members of one optimisation learn from all folds but one each, and that one is rated by them (Chernozhukov et al., 2018,
"Double/debiased machine learning", is the general principle).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ileed._torch import numpy_stream
from ileed.demonstrations import Array, Demonstrations
from ileed.fitted.ensemble import Ensemble
from ileed.fitted.identification import free_scales
from ileed.fitted.likelihood import Block, blocks_of_fit, likeliest_temperature, likely_levels, profiles
from ileed.fitted.rating import rate_blocks, units_of
from ileed.fitted.ratings import Ratings
from ileed.nets import members

RESTARTS = 4
"""Members of each fold."""


def deal_episodes(data: Demonstrations, folds: int, *, seed: int) -> Array:
    """(episode,) the fold of each episode: everybody's episodes are dealt evenly, in random order."""
    order = numpy_stream(seed, "folds").permutation(data.episode_count)
    by_person = order[np.argsort(data.episode_demonstrator[order], kind="stable")]
    fold = np.empty(data.episode_count, dtype=np.int64)
    fold[by_person] = np.arange(data.episode_count) % folds
    return fold


def fold_weights(data: Demonstrations, fold: Array, weights: Array, *, members: int, seed: int) -> Array:
    """(fold x member, episode) weights of episodes for so many members of each fold, which do not see it.

    Members for continuous actions are replicates of a Bayesian bootstrap (Rubin, 1981): how far they are apart tells
    the error of the policy, which would otherwise be laid to people, and to the best of them most.
    """
    others = np.repeat((fold[None] != np.arange(fold.max() + 1)[:, None]) * weights, members, axis=0)
    if data.discrete:
        return others
    return others * numpy_stream(seed, "replicates").exponential(size=others.shape)


def rate_folds(ensemble: Ensemble, fold: Array, *, temperature: float | None, by: str) -> Ratings | None:
    """Everybody, or each unit of `by`, rated by the mean likelihood of the members of each fold, on its episodes.

    The temperature of the policies is that at which the held-out episodes are likeliest, unless one is assumed. There
    are no ratings where all members of a fold became non-finite.
    """
    data, folds = ensemble.data, int(fold.max()) + 1
    finite = np.isfinite(ensemble.nats_per_action).reshape(folds, -1)
    if not finite.any(1).all():
        return None
    blocks: list[Block] = []
    for number, own in enumerate(finite):
        kept = (number * len(own) + np.flatnonzero(own)).tolist()
        if ensemble.joint.parts.demonstrator.actions_can_be_exchanged:  # not to be averaged
            kept = ensemble.likeliest_first(kept)[:1]
        joint = members(ensemble.joint, kept)
        steps = np.flatnonzero(fold[data.episode] == number)
        held_out = data.select(fold[data.episode] == number)
        own_blocks = blocks_of_fit(
            joint, ensemble.normaliser, held_out, held_out.demonstrator, ensemble.collapsed.skill_names
        )
        blocks += [replace(block, steps=steps[block.steps]) for block in own_blocks]
    found = profiles(blocks, data)
    chosen = likeliest_temperature(found) if temperature is None else temperature
    ratings = rate_blocks(blocks, data, temperature=chosen, spread=None, units=units_of(data, by))
    free = _free_scales(ensemble, int(np.flatnonzero(finite.ravel())[0]))
    # expertise that divides a variance shares its scale with the policy's, whatever its temperature
    levels = likely_levels(found) if data.discrete else (0.0, 1.0)
    return replace(ratings, by=replace(ratings.by, folds=folds, levels=levels, free_scales=free))


def _free_scales(ensemble: Ensemble, member: int) -> int | None:
    """How many scales of expertise are free at one member; None where the embedding is learned."""
    if not ensemble.joint.parts.expertise.depends_on_state:
        return 1
    if (embedding := ensemble.collapsed.skills) is None:
        return None
    skill = ensemble.joint.expertise.skill[member].double().numpy()  # (skill, demonstrator)
    return free_scales(embedding, 1 / (1 + np.exp(-(embedding @ skill).T)))
