"""Data made by each demonstrator model, and fitted with the same: who is better than whom comes out."""

import pytest

import ileed
from ileed.envs import simulation
from ileed.envs.evaluation import rank_loss

pytest.importorskip("minigrid", reason="the demonstrators play MiniGrid: pip install 'ileed[minigrid]'")

from ileed.envs import expert, task
from ileed_lab.minigrid.sequence import actor_by_stage, experts, multi_skill, multi_skill_task

SKILL = {"ann": 0.1, "bob": 0.4, "cat": 0.7, "dan": 0.95}


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["minigrid/empty", "minigrid/lava"])
@pytest.mark.parametrize(
    ("model", "temperature"),
    [(ileed.UniformMixture(), None), (ileed.OneVersusRest(), None), (ileed.Boltzmann(), 4.0)],
    ids=["UniformMixture", "OneVersusRest", "Boltzmann, softened"],
)
def test_the_order_of_demonstrators_is_recovered_under_the_model_that_made_them(name, model, temperature):
    """Skills lie 0.25 apart or more, ten standard errors of a share of 2,000 steps; the seeds are fixed."""
    data = simulation.demonstrate(
        task(name), expert(name), skill=SKILL, steps=2000, seed=0, demonstrator=model, temperature=temperature
    )
    method = ileed.Ileed(demonstrator=model, expertise=ileed.Constant(), restarts=8, steps=1000)
    assert rank_loss(method.fit(data, seed=0, check_width=False).expertise.by_demonstrator(), SKILL) == 0


@pytest.mark.campaign
def test_skills_by_stage_are_recovered_where_the_stages_are_known():
    """`Skills("phase")` is given what the embedding would have to learn.

    The least seen of the unskilled, in some 200 steps, leaves a standard error of 0.03 on a skill; the seed is fixed.
    """
    known, world = multi_skill(0.1), multi_skill_task()
    data = simulation.demonstrate(world, actor_by_stage(experts(world), world), skill=known, steps=3000, seed=0)
    method = ileed.Ileed(expertise=ileed.Skills("phase"), restarts=8, steps=1000)
    found = method.fit(data, seed=0, check_width=False).expertise.by_skill()
    for name, by_stage in known.items():
        assert found[name] == pytest.approx(by_stage, abs=0.1)
