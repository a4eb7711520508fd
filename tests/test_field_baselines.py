"""Dawid-Skene, GLAD, Counter-BC and filtered BC on demonstrations, and a width chosen for several data sets."""

import shutil
from itertools import combinations
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
import torch
from strategies import world

import ileed
from ileed_lab.baselines import DawidSkene, FilteredBC, Glad, counter_bc
from ileed_lab.baselines.annotators import counted_answers, glad_log_posterior
from ileed_lab.baselines.counter_bc import counterfactual_loss
from ileed_lab.comparison import Records
from ileed_lab.grid import Cell, cells
from ileed_lab.learners import Widened, likeliest
from ileed_lab.minigrid.baseline_experiment import LOW_RANGE, Baselines, Gaps
from ileed_lab.minigrid.experiment import Ranking
from ileed_lab.minigrid.page import published_minigrid
from ileed_lab.minigrid.sections.baselines import baseline_tables, field_baselines, gaps

SKILLS = (0.95, 0.8, 0.6, 0.4, 0.2)


def answered(steps: int = 400, *, places: int = 40, actions: int = 4, seed: int = 0) -> ileed.Demonstrations:
    """Five people of known skill who act at random places, each with a right action; others are as frequent."""
    random = np.random.default_rng(seed)
    count = steps * len(SKILLS)
    place, right = random.integers(0, places, count), random.integers(0, actions, places)
    who = np.repeat(np.arange(len(SKILLS)), steps)
    follows = random.random(count) < np.array(SKILLS)[who]
    taken = np.where(follows, right[place], random.integers(0, actions, count))
    return ileed.Demonstrations(
        observations=np.eye(places, dtype=np.float32)[place],
        actions=taken,
        demonstrator=who,
        episode=np.arange(count) // 20,
        rewards=follows.astype(float),
        action_count=actions,
    )


DATA = answered()


# Models of annotators


def test_repeated_answers_of_a_person_in_a_state_are_counted():
    answers = counted_answers(DATA)
    assert answers.shape == (40, 5, 4)
    assert answers.sum() == len(DATA)
    one = np.flatnonzero((DATA.observations == DATA.observations[7]).all(1) & (DATA.demonstrator == 0))
    place = DATA.collapsed().step_observation_index[7]
    np.testing.assert_array_equal(answers[place, 0], np.bincount(DATA.actions[one], minlength=4))


def test_dawid_skene_ends_where_its_own_equations_hold_written_as_loops():
    """One more iteration, one answer at a time, in plain Python, changes nothing."""
    data = answered(60, places=8, actions=3)
    found = DawidSkene(tolerance=1e-13).fit(data, seed=0)
    place, right = data.collapsed().step_observation_index, found.probabilities.tolist()
    frequency = [sum(row[y] for row in right) / len(right) for y in range(3)]
    confusion = [[[1e-300] * 3 for _ in range(3)] for _ in SKILLS]
    for s, i, a in zip(place, data.demonstrator, data.actions, strict=True):
        for y in range(3):
            confusion[i][y][a] += right[s][y]
    likelihood = 0.0
    for s, posterior in enumerate(right):
        joint = [log(each) for each in frequency]
        for i, a in zip(data.demonstrator[place == s], data.actions[place == s], strict=True):
            for y in range(3):
                joint[y] += log(confusion[i][y][a] / sum(confusion[i][y]))
        evidence = sum(map(exp, joint))
        likelihood += log(evidence)
        assert [exp(each) / evidence for each in joint] == pytest.approx(posterior, abs=1e-5)
    assert likelihood == pytest.approx(found.objective, abs=1e-4)


def test_dawid_skene_agrees_with_the_labelling_of_the_library_where_answers_are_many():
    """The library's has a prior and an interval; with thousands of answers both say the same of people and tasks."""
    found = DawidSkene().fit(DATA, seed=0)
    place = DATA.collapsed().step_observation_index
    table = {"task": place.tolist(), "worker": DATA.demonstrator.tolist(), "label": DATA.actions.tolist()}
    labelled = ileed.Labelling(model="confusion", repeats="count").fit(table)
    assert [int(labelled.labels[str(task)]) for task in range(40)] == found.policy.tolist()
    own = labelled.worker_table().to_pylist()
    accuracy = {row["worker"]: row["accuracy"] for row in own}
    expertise = list(found.expertise.values())
    assert [accuracy[str(person)] for person in range(5)] == pytest.approx(expertise, abs=0.03)


def test_glad_ends_where_its_posterior_is_flat_and_its_gradient_is_that_of_expected_answers():
    """By Fisher's identity: the sum over answers of (is right - sigmoid) beta, minus the prior's pull, is zero."""
    data = answered(60, places=6)
    found = Glad().fit(data, seed=0)
    answers = torch.from_numpy(counted_answers(data))
    ability = torch.tensor(list(found.expertise.values()), dtype=torch.float64, requires_grad=True)
    free = torch.ones(6, dtype=torch.float64, requires_grad=True)
    easiest = torch.optim.LBFGS([free], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def cost() -> torch.Tensor:
        easiest.zero_grad()
        cost = -glad_log_posterior(answers, ability.detach(), free)[0]
        cost.backward()
        return cost

    easiest.step(cost)
    objective, _ = glad_log_posterior(answers, ability, free)
    assert objective.item() == pytest.approx(found.objective, abs=1e-4)
    easiness, right = free.detach().exp().numpy(), found.probabilities
    for person, own in enumerate(found.expertise.values()):
        pull = -(own - 1)
        for s in range(6):
            for a in range(4):
                expected = right[s, a] - 1 / (1 + exp(-own * easiness[s]))
                pull += float(answers[s, person, a]) * expected * easiness[s]
        assert pull == pytest.approx(0, abs=1e-2)


@pytest.mark.parametrize("method", [DawidSkene(), Glad()], ids=["dawid-skene", "glad"])
def test_models_of_annotators_find_the_order_of_people_and_the_right_actions(method):
    found = method.fit(DATA, seed=0)
    assert ileed.rank_loss(found.expertise, dict(zip(DATA.names, SKILLS, strict=True))) == 0
    best = DATA.by(DATA.names[0])
    index = DATA.collapsed().step_observation_index[DATA.demonstrator == 0]
    assert np.mean(found.policy[index] == best.actions) > 0.9


def test_models_of_annotators_refuse_continuous_actions():
    with pytest.raises(ileed.SettingsError, match="these actions are continuous"):
        DawidSkene().fit(world(discrete=False), seed=0)


# Counter-BC


@pytest.mark.parametrize("counterfactuals", [0, 1, 2, 3])
def test_the_loss_of_counter_bc_is_the_mean_over_all_sets_with_the_action(counterfactuals):
    log_probs = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    found = counterfactual_loss(log_probs, counterfactuals)
    for member, action, place in np.ndindex(2, 4, 3):
        p = log_probs[member, :, place].exp().tolist()
        losses = []
        for others in combinations([each for each in range(4) if each != action], counterfactuals):
            meant = [action, *others]
            total = sum(p[each] for each in meant)
            losses.append(-sum(p[each] / total * log(p[each]) for each in meant))
        assert found[member, action, place].item() == pytest.approx(sum(losses) / len(losses))


def test_counter_bc_without_counterfactuals_is_behaviour_cloning():
    ours, plain = (
        likeliest(method.fit_each([DATA], seeds=[0], device="cpu")[0])
        for method in (counter_bc(counterfactuals=0, restarts=2, steps=30), ileed.bc(restarts=2, steps=30))
    )
    assert ours.nats_per_action == pytest.approx(plain.nats_per_action, abs=1e-6)
    one, other = (each.policy.distribution(DATA.observations[:50]).probs for each in (ours, plain))
    torch.testing.assert_close(one, other)


def test_counter_bc_with_all_actions_in_a_set_does_not_look_at_what_was_demonstrated():
    log_probs = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    entropy = -(log_probs.exp() * log_probs).sum(1, keepdim=True)
    torch.testing.assert_close(counterfactual_loss(log_probs, 3), entropy.expand(1, 4, 3))


def test_counter_bc_refuses_more_counterfactuals_than_there_are_actions():
    with pytest.raises(ileed.SettingsError, match=r"4 counterfactual actions beside .* more than all 4 actions"):
        counter_bc(counterfactuals=4, restarts=1, steps=1).fit(DATA, seed=0, device="cpu", check_width=False)


# Filtered BC


@pytest.mark.parametrize("by", ["ileed", "reward", "skill"])
def test_filtered_bc_is_bc_on_the_better_half_of_the_people(by):
    small = {
        "trainer": ileed.bc(restarts=2, steps=20),
        "rater": ileed.Ileed(expertise=ileed.Constant(), restarts=1, steps=300),
    }
    found = FilteredBC(by, SKILLS, **small).fit(DATA, seed=3, device="cpu")
    assert set(found.kept) == set(DATA.names[:3])
    alone = small["trainer"].fit_each([DATA.by(*DATA.names[:3])], seeds=[3], device="cpu")[0]
    np.testing.assert_allclose(found.ensemble.nats_per_action, alone.nats_per_action, atol=1e-6)
    assert found.seconds > 0


def test_filtered_bc_breaks_ties_by_its_seed_and_an_oracle_needs_every_skill():
    by_chance = FilteredBC("skill", (0.5,) * 5, trainer=ileed.bc(restarts=1, steps=1))
    kept = {frozenset(by_chance.fit(DATA, seed=seed, device="cpu").kept) for seed in range(6)}
    assert len(kept) > 1
    with pytest.raises(ileed.SettingsError, match="2 skills for 5 demonstrators"):
        FilteredBC("skill", (0.1, 0.2)).fit(DATA, seed=0, device="cpu")


# The experiments


def test_a_width_for_several_data_sets_is_that_of_each_alone():
    datasets = [answered(40, places=6, seed=seed) for seed in (0, 1)]
    method = ileed.Ileed(expertise=ileed.Constant(), restarts=2, steps=60, folds=0)
    together = Widened(method).fit_each(datasets, seeds=[0, 1], device="cpu")
    for seed, (data, found) in enumerate(zip(datasets, together, strict=True)):
        alone = method.fit(data, seed=seed, device="cpu")
        assert found.method.policy.hidden == alone.joint.parts.policy.hidden
        assert likeliest(found).nats_per_action == pytest.approx(alone.nats_per_action, abs=1e-5)


def test_the_skills_that_an_oracle_sees_are_those_of_the_demonstrations():
    experiment = Baselines()
    assert experiment.skills(LOW_RANGE) == Ranking()._skills(LOW_RANGE)
    assert all(experiment.methods(setting)["top-skill"].skills for setting in experiment.settings())


def test_methods_of_the_gaps_learn_from_the_demonstrations_of_the_cells_in_which_they_are():
    skills, unlock = Gaps().settings()
    assert Gaps()._published(skills)[1] == {"beta": 0.01}
    assert Gaps()._published(unlock)[1] == {"task": "minigrid/unlock"}
    assert Gaps()._published(skills)[0].name == skills["table"]
    assert Gaps()._published(unlock)[0].name == unlock["table"]


# The page

RESULTS = Path(__file__).parents[1] / "results"


def measured(cell: Cell, trial: int) -> dict[str, object]:
    """A trial that was never run: its numbers only have the right names."""
    numbers = {"reward": 0.875, "ensemble_reward": 0.99, "rank_loss": 0.25}
    chosen = {
        "top-ileed": {"kept": [0.7, 0.5]},
        "width-by-episodes": {"hidden": [8, 8]},
        "auto": {"chosen": "UniformMixture()"},
    }
    return {"trial": trial} | numbers | chosen.get(cell.method, {})


def test_the_sections_have_every_cell_that_was_run_and_are_not_there_before(tmp_path):
    for name in ("restarts", "skills"):
        shutil.copytree(RESULTS / "minigrid" / name, tmp_path / "minigrid" / name)
    assert field_baselines(Records(tmp_path)) == gaps(Records(tmp_path), published_minigrid()) == []
    for cell in [
        *cells(Baselines(), settings=["minigrid/lava", "low"]),
        *cells(Gaps(), methods=["auto", "width-by-episodes"]),
    ]:
        cell.write(tmp_path, [measured(cell, trial) for trial in range(20)], [])
    losses, rewards = baseline_tables(Records(tmp_path)).values()
    assert losses.count("0.250 (0.250 to 0.250)") == 2 * 4  # not where all have the same skill
    assert rewards.count("0.875 (0.875 to 0.875)") == 5 * 5
    text = "\n\n".join(field_baselines(Records(tmp_path)))
    assert "Mean true skill of the demonstrators kept, over all cells: 0.600 (BC on half, by ILEED)." in text
    text = "\n\n".join(gaps(Records(tmp_path), published_minigrid()))
    assert "| 100 restarts | not run<br>published 0.70 |" in text
    assert "| width by held-out episodes | 0.875 (0.875 to 0.875), 20 of 100 trials<br>above 0.70 |" in text
    assert "Chosen in Unlock, demonstrator model: UniformMixture() 20." in text
    ours = next(line for line in text.splitlines() if line.startswith("| the paper's network"))
    assert "0.556 (0.526 to 0.587)<br>**below 0.70**" in ours
    assert "0.20 (0.13 to 0.29)<br>**below 0.59**" in ours
