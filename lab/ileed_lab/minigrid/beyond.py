"""Tables of what the paper does not ask: calibration, how much data, the wrong noise; and where results come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, mode

from ileed_lab.catalogue import EXPERIMENTS
from ileed_lab.comparison import Estimate, Records, distinct, listed, shown, table
from ileed_lab.grid import Measured
from ileed_lab.minigrid.sequence import multi_skill

__all__ = ["beyond_the_paper"]

Show = Callable[[str, str], str]


def beyond_the_paper(records: Records, show: Show) -> list[str]:
    """Paragraphs and tables; `show` gives a picture by its name and what it shows."""
    return [*_calibration(records, show), *_how_much(records, show), *_wrong_noise(records, show)]


def _calibration(records: Records, show: Show) -> list[str]:
    experiment = EXPERIMENTS["minigrid/skills"]
    rows = []
    for beta in (setting["beta"] for setting in experiment.settings()):
        found = records.trials(experiment.name, "ileed", beta=beta).values()
        measured = [_calibrated(trial["expertise"], beta) for trial in found]
        columns = ("skilled", "unskilled", "ratio", "error", "recognised")
        cells = [
            shown(Estimate.over(trial[column] for trial in measured), planned=experiment.trials)
            if beta < 1 or column in ("skilled", "error")
            else ""
            for column in columns
        ]
        rows.append([f"{beta:.2f}", *cells])
    return [
        "### Is estimated expertise the true one, where it depends on the state?",
        "The three demonstrators of the many-skills task: mean estimated expertise of each in each part, over their "
        "own steps there. The truth is 1 in the part they are skilled in and beta elsewhere, so the ratio should be "
        "beta. A best part is found where the estimate is highest in the part that the demonstrator is skilled in "
        "(chance: one in three).",
        show("calibration", "Estimated against true expertise by demonstrator and part"),
        table(
            ["beta", "estimate at 1", "estimate at beta", "ratio of these", "absolute error", "best part found"],
            rows,
        ),
        "Only ratios of expertise are identified: scaling everybody's expertise and blurring the policy to match "
        "leaves the likelihood as it is, and with a learned embedding each state may have a scale of its own. The "
        "absolute level comes out right as far as the policy is sharp.",
    ]


def _calibrated(expertise: Mapping[str, Mapping[str, float]], beta: float) -> dict[str, float]:
    """How one trial's estimates compare with the truth."""
    truth = multi_skill(beta)
    pairs = [(truth[name][part], estimate) for name, own in expertise.items() for part, estimate in own.items()]
    skilled = fmean(estimate for true, estimate in pairs if true == 1)
    unskilled = fmean(estimate for true, estimate in pairs if true == beta)
    return {
        "skilled": skilled,
        "unskilled": unskilled,
        "ratio": unskilled / skilled,
        "error": fmean(abs(true - estimate) for true, estimate in pairs),
        "recognised": fmean(truth[name][max(own, key=lambda part: own[part])] == 1 for name, own in expertise.items()),
    }


def _how_much(records: Records, show: Show) -> list[str]:
    experiment = EXPERIMENTS["minigrid/how-much"]
    settings = experiment.settings()
    usual = {name: mode(setting[name] for setting in settings) for name in ("demonstrators", "steps")}
    whole = records.trials(experiment.name, "ileed", **usual)
    restarts = list(next(iter(whole.values()), {"best_of": {}})["best_of"])
    by_restarts = [
        [
            among,
            *(
                shown(Estimate.over(trial["best_of"][among]["reward"] for trial in trials.values()))
                for trials in (records.trials(experiment.name, "bc", **usual), whole)
            ),
            shown(Estimate.over(trial["best_of"][among]["rank_loss"] for trial in whole.values())),
        ]
        for among in restarts
    ]
    head = ["BC, reward", "ILEED, reward", "committee, reward", "ILEED, rank loss", "seconds a fit"]
    return [
        "### How much data, and how many restarts?",
        f"Obstacles, demonstrators with skills spread evenly from 0.05 to 0.95, over {experiment.trials} trials. "
        f"Seconds are those of one ILEED fit with all its restarts, {_where_timed(records, experiment.name)}.",
        show("how-much", "Reward, rank loss and cost by demonstrators, steps and restarts"),
        f"By demonstrators, with {usual['steps']:,} steps each:",
        table(["demonstrators", *head], _learning(records, "demonstrators", usual)),
        f"By steps of each demonstrator, with {usual['demonstrators']} demonstrators:",
        table(["steps", *head], _learning(records, "steps", usual)),
        f"By restarts, with {usual['demonstrators']} demonstrators and {usual['steps']:,} steps each, all taken from "
        "the same fits:",
        table(["restarts", "BC, reward", "ILEED, reward", "ILEED, rank loss"], by_restarts) if restarts else "not run",
    ]


def _learning(records: Records, varied: str, usual: Mapping[str, int]) -> list[list[str]]:
    experiment = EXPERIMENTS["minigrid/how-much"]
    fixed = next(name for name in usual if name != varied)
    settings = [setting for setting in experiment.settings() if setting[fixed] == usual[fixed]]
    rows = []
    for setting in sorted(settings, key=lambda setting: setting[varied]):
        cloned, learned = (records.trials(experiment.name, method, **setting).values() for method in ("bc", "ileed"))
        columns = [(cloned, "reward"), *((learned, field) for field in ("reward", "committee_reward", "rank_loss"))]
        cells = [
            shown(Estimate.over(trial[field] for trial in trials), planned=experiment.trials)
            for trials, field in columns
        ]
        seconds = f"{fmean(trial['fit_seconds'] for trial in learned):.2f}" if learned else "not run"
        rows.append([f"{setting[varied]:,}", *cells, seconds])
    return rows


def _where_timed(records: Records, experiment: str) -> str:
    devices = distinct(made["device"] for cell in records.cells(experiment) for made in cell["made"])
    shared = ", where all trials of a cell are fitted at once and share the time" if devices != ["cpu"] else ""
    return f"on {listed(devices)}{shared}" if devices else "not measured yet"


_SLIPS = {
    "uniform": "any action, each as likely",
    "one-versus-rest": "any action but the policy's, each as likely",
    "boltzmann": "the policy raised to the power of the skill, so small slips are likelier than large ones",
    "persistent": "the last action again",
    "biased": "always the same action, a step forward",
}


def _wrong_noise(records: Records, show: Show) -> list[str]:
    experiment = EXPERIMENTS["minigrid/wrong-noise"]
    settings = experiment.settings()
    generators = distinct(setting["generator"] for setting in settings)
    paragraphs = [
        "### What if demonstrators err in another way than assumed?",
        f"The unif population, over {experiment.trials} trials, erring in one way (rows) and fitted with each model "
        "of erring (columns); reward, and the rank loss of the estimate under it. How they slip: "
        + "; ".join(f"*{name}*, {_SLIPS[name]}" if name in _SLIPS else f"*{name}*" for name in generators)
        + ". No model describes the last two." * ({"persistent", "biased"} == set(generators[-2:])),
        show("wrong-noise", "Reward and rank loss for every way of erring and every model of it"),
    ]
    for task in distinct(setting["task"] for setting in settings):
        models = list(experiment.methods(next(setting for setting in settings if setting["task"] == task)))
        found = {
            generator: {
                model: records.trials(experiment.name, model, task=task, generator=generator) for model in models
            }
            for generator in generators
        }
        rows = [[generator, *(_fitted(trials.values()) for trials in row.values())] for generator, row in found.items()]
        paragraphs += [
            f"{task.removeprefix('minigrid/').capitalize()}:",
            table(["they err", *("BC" if model == "bc" else f"{model} model" for model in models)], rows),
            _cost_of_assuming_uniform(found),
        ]
    return paragraphs


def _fitted(trials: Iterable[Measured]) -> str:
    measured = list(trials)
    reward = shown(
        Estimate.over(trial["reward"] for trial in measured), planned=EXPERIMENTS["minigrid/wrong-noise"].trials
    )
    losses = [trial["rank_loss"] for trial in measured if "rank_loss" in trial]
    return f"{reward}<br>rank loss {fmean(losses):.3f}" if losses else reward


def _cost_of_assuming_uniform(found: Mapping[str, Mapping[str, Mapping[int, Measured]]]) -> str:
    rewards = {
        generator: {
            model: fmean(trial["reward"] for trial in trials.values()) for model, trials in row.items() if trials
        }
        for generator, row in found.items()
    }
    known = {generator: row for generator, row in rewards.items() if "uniform" in row and "bc" in row}
    if not known:
        return ""
    shortfall = {generator: max(row.values()) - row["uniform"] for generator, row in known.items()}
    worst = max(shortfall, key=lambda generator: shortfall[generator])
    ahead = sum(row["uniform"] > row["bc"] for row in known.values())
    losses = {generator: _mean("rank_loss", found[generator]["uniform"]) for generator in known}
    hardest = max(losses, key=lambda generator: losses[generator])
    return (
        f"Assuming uniform slips, as the paper does, costs at most {shortfall[worst]:.3f} of reward against the best "
        f"of these (they err: {worst}), earns more than BC in {ahead} of {len(known)} rows, and has a rank loss of at "
        f"most {losses[hardest]:.3f} ({hardest})."
    )


def _mean(field: str, trials: Mapping[int, Measured]) -> float:
    return fmean(trial[field] for trial in trials.values())
