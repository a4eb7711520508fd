"""The sections about the baselines of this field, and about later models where the paper's numbers are higher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from ileed_lab.comparison import (
    Comparison,
    Estimate,
    Records,
    csv_table,
    difference,
    format_comparison,
    format_estimate,
    join_words,
    markdown_table,
)
from ileed_lab.minigrid.baseline_experiment import Baselines, Gaps
from ileed_lab.minigrid.experiment import WIDER
from ileed_lab.minigrid.sections import Paper, task_title
from ileed_lab.records import Measured

__all__ = ["baseline_tables", "field_baselines", "gaps"]

_ANNOTATORS = {"dawid-skene": "Dawid-Skene", "glad": "GLAD"}
_LEARNERS = {
    "counter-bc": "Counter-BC, 1",
    "counter-bc-half": "Counter-BC, half",
    "top-ileed": "BC on half, by ILEED",
    "top-reward": "BC on half, by reward",
    "top-skill": "BC on half, by true skill",
}
Trials = Mapping[int, Measured]


def field_baselines(records: Records) -> list[str]:
    """Paragraphs and tables; empty if nothing was run."""
    if not records.cells(Baselines().name):
        return []
    return [
        "### Baselines of this field",
        f"On the demonstrations of the populations and of the low range of the ranking, over {Baselines().trials} "
        "trials and in the same episodes; paired intervals are over trials.",
        *_rank_losses(records),
        *_learned_policies(records),
    ]


def _cells(records: Records) -> Mapping[str, tuple[dict[str, Any], Trials, Trials]]:
    """By the cell's words: its setting, and the trials of ILEED and of BC in the experiment that has them."""
    found = {}
    for setting in Baselines().settings():
        source = "minigrid/ranking" if "range" in setting else "minigrid/populations"
        words = f"{task_title(setting['task'])} {setting.get('population', 'low range')}"
        ileed, bc = (records.trials(source, method, **setting) for method in ("ileed", "bc"))
        found[words] = (dict(setting), ileed, bc)
    return found


def _values(trials: Trials, field: str) -> dict[int, float]:
    return {trial: measured[field] for trial, measured in trials.items() if field in measured}


def _formatted(values: Mapping[int, float]) -> str:
    return format_estimate(Estimate.over(values.values()), planned=Baselines().trials)


def baseline_tables(records: Records) -> Mapping[str, str]:
    """The files with the rank loss and the reward of every method in every cell; none if nothing was run."""
    if not records.cells(Baselines().name):
        return {}
    losses, rewards = [], []
    for words, (setting, ileed, bc) in _cells(records).items():
        found = {method: records.trials(Baselines().name, method, **setting) for method in (*_ANNOTATORS, *_LEARNERS)}
        if len(set(Baselines().skills(setting))) > 1:
            losses.append([words, *(_formatted(_values(found[method], "rank_loss")) for method in _ANNOTATORS)])
            losses[-1].append(_formatted(_values(ileed, "rank_loss")))
        trials = (bc, *(found[method] for method in _LEARNERS), ileed)
        rewards.append([words, *(_formatted(_values(each, "reward")) for each in trials)])
    return {
        "reproduction-rank-losses.csv": csv_table(["cell", *_ANNOTATORS.values(), "ILEED"], losses),
        "reproduction-baselines.csv": csv_table(["cell", "BC", *_LEARNERS.values(), "ILEED"], rewards),
    }


def _rank_losses(records: Records) -> list[str]:
    apart = dict[str, list[Estimate | None]]()
    for setting, ileed, _ in _cells(records).values():
        if len(set(Baselines().skills(setting))) > 1:
            for method in _ANNOTATORS:
                own = _values(records.trials(Baselines().name, method, **setting), "rank_loss")
                apart.setdefault(method, []).append(difference(own, _values(ileed, "rank_loss")))
    return [
        "Annotator models as estimates of expertise: a unique observation is a task, a demonstrator a worker, and an "
        "action a label, which may be repeated. *Dawid-Skene* (1979) has a confusion matrix for each demonstrator, "
        "*GLAD* (Whitehill et al., 2009) an ability for each demonstrator and an easiness for each observation. "
        "Neither uses the content of an observation, so neither has a policy for unseen observations. Rank losses "
        "(lower is better) are in [reproduction-rank-losses.csv](details/reproduction-rank-losses.csv), where "
        "demonstrators differ in skill.",
        " ".join(
            f"{name}'s rank loss minus ILEED's: {_sides(apart[method], 'cell')}."
            for method, name in _ANNOTATORS.items()
        ),
    ]


def _learned_policies(records: Records) -> list[str]:
    kept = dict[str, list[float]]()
    from_ileed, from_bc = (dict[str, list[Estimate | None]]() for _ in range(2))
    for setting, ileed, bc in _cells(records).values():
        rewards = {"ileed": _values(ileed, "reward"), "bc": _values(bc, "reward")}
        for method in _LEARNERS:
            trials = records.trials(Baselines().name, method, **setting)
            own = _values(trials, "reward")
            from_ileed.setdefault(method, []).append(difference(own, rewards["ileed"]))
            from_bc.setdefault(method, []).append(difference(own, rewards["bc"]))
            kept.setdefault(method, []).extend(fmean(trial["kept"]) for trial in trials.values() if "kept" in trial)
    skill = [f"{fmean(values):.3f} ({_LEARNERS[method]})" for method, values in kept.items() if values]
    lines = [
        f"- {name}: minus BC {_sides(from_bc[method], 'cell')}; minus ILEED {_sides(from_ileed[method], 'cell')}."
        for method, name in _LEARNERS.items()
    ]
    return [
        "Policies, each the most likely of 20 restarts of the paper's network. *Counter-BC* (Sagheb and Losey, 2025) "
        "lets the policy choose among the actions that a demonstrator may have intended and minimises the "
        "cross-entropy of that choice. Its sets are balls around continuous actions; discrete actions have no "
        "distance. Our sets have the demonstrated action and one other, or half of the others (of three actions one, "
        "of seven three), with equal probability, and the loss is the mean over all such sets. *BC on half* clones "
        "half of the demonstrators: the best by ILEED's estimate, by mean return, or by true skill (an "
        "oracle). The rewards are in [reproduction-baselines.csv](details/reproduction-baselines.csv).",
        "By the interval of the paired difference:\n\n" + "\n".join(lines),
        f"Mean true skill of the demonstrators kept, over all cells: {join_words(skill)}." if skill else "",
    ]


def _sides(differences: list[Estimate | None], noun: str) -> str:
    """In how many cells a difference is above or below zero, by its interval."""
    known = [each for each in differences if each is not None]
    sides = Counter("above" if each.low > 0 else "below" if each.high < 0 else "equal" for each in known)
    least = min(known, key=lambda each: each.mean, default=None)
    most = max(known, key=lambda each: each.mean, default=None)
    if least is None or most is None:
        return "not run"
    return (
        f"above zero in {sides['above']} and below zero in {sides['below']} of {len(known)} {noun}s "
        f"(from {least.mean:+.3f} to {most.mean:+.3f})"
    )


_GAPS = {
    "difficulty": "`Difficulty()` expertise",
    "wider-difficulty": f"`Difficulty()`, layers of {' and '.join(map(str, WIDER.hidden))} units",
    "wide-32": "layers of 32 and 32 units",
    "width-by-episodes": "width by held-out episodes",
    "restarts-100": "100 restarts",
    "auto": '`demonstrator="auto"`',
}


def gaps(records: Records, paper: Paper) -> list[str]:
    """Paragraphs and a table; empty if nothing was run."""
    experiment = Gaps()
    if not records.cells(experiment.name):
        return []
    skills, unlock = experiment.settings()
    demonstrators = {
        trial: fmean(measured["demonstrators"])
        for trial, measured in records.trials("minigrid/restarts", "ileed", task="minigrid/unlock").items()
    }
    most = list(paper["restarts"]["unlock"])[-1]
    number = paper["skills"]["0.01"]["ileed"]["mean"], paper["restarts"]["unlock"][most]["mean"]
    rows = []
    for name, (at_skills, at_unlock) in _methods_of_gaps(records, skills, unlock, most).items():
        cells = [
            Comparison(name, Estimate.over(_values(at_skills, field).values()), number[0])
            for field in ("reward", "ensemble_reward")
        ] + [
            Comparison(name, _share_ahead(_values(at_unlock, field), demonstrators), number[1])
            for field in ("reward", "ensemble_reward")
        ]
        formatted = [format_comparison(cell, digits=3 - (place > 1), planned=100) for place, cell in enumerate(cells)]
        rows.append([name, *formatted])
    heads = [f"{table}, {kind}" for table in ("many skills", "Unlock p") for kind in ("best restart", "ensemble")]
    return [
        "### Where the paper's numbers are higher",
        "Two numbers of the paper are well above ours with its own network: the reward in many skills at beta 0.01, "
        "and the share p of trials in Unlock in which the policy earns at least the mean of its demonstrators. The "
        "table has other settings in these cells, on the same demonstrations and in the same episodes, by the most "
        f"likely restart and by an ensemble of the {experiment.plan['ensemble']} most likely; the first two rows are "
        "those of the tables above. Unless a row says otherwise, expertise depends on the state in many skills and is "
        "one number in Unlock. These settings are not the paper's, so they do not explain its numbers.",
        markdown_table(["", *heads], rows),
        _chosen(records, skills, unlock),
    ]


def _methods_of_gaps(
    records: Records, skills: Mapping[str, Any], unlock: Mapping[str, Any], most: str
) -> Mapping[str, tuple[Trials, Trials]]:
    """By the label of a row: the trials in both cells."""
    found = {}
    for method, name in (("ileed", "the paper's network"), ("wider", "layers of 8 and 8 units")):
        restarts = records.trials("minigrid/restarts", method, task="minigrid/unlock")
        with_rewards = {
            trial: {"reward": measured["best_of"][most], "ensemble_reward": measured["ensemble"]}
            for trial, measured in restarts.items()
        }
        found[name] = (records.trials("minigrid/skills", method, beta=0.01), with_rewards)
    others = {
        name: (records.trials(Gaps().name, method, **skills), records.trials(Gaps().name, method, **unlock))
        for method, name in _GAPS.items()
    }
    return found | others


def _share_ahead(rewards: Mapping[int, float], demonstrators: Mapping[int, float]) -> Estimate | None:
    paired = rewards.keys() & demonstrators.keys()
    hits = sum(rewards[trial] >= demonstrators[trial] for trial in paired)
    return Estimate.share(hits, len(paired)) if paired else None


def _chosen(records: Records, skills: Mapping[str, Any], unlock: Mapping[str, Any]) -> str:
    """The choices of the trials that chose a width or a demonstrator model."""
    sentences = []
    for words, setting in (("many skills", skills), ("Unlock", unlock)):
        widths = Counter(
            " and ".join(map(str, trial["hidden"]))
            for trial in records.trials(Gaps().name, "width-by-episodes", **setting).values()
        )
        models = Counter(trial["chosen"] for trial in records.trials(Gaps().name, "auto", **setting).values())
        for what, counts in (("units of the layers", widths), ("demonstrator model", models)):
            if counts:
                each = ", ".join(f"{name} {count}" for name, count in counts.most_common())
                sentences.append(f"Chosen in {words}, {what}: {each}.")
    return " ".join(sentences)
