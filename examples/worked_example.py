"""The paper's worked example: two demonstrators, each perfect where the other is poor.

With the state embedding given, the optimal policy comes out exactly. With a learned one the likelihood is the same, but
a state in which no expertise is known has a free scale: sharper policies with lower expertise fit as well.
"""

import numpy as np

import ileed

ACTS = {  # how often, of ten times, each demonstrator takes each of three actions in each of three states
    "first": [[8, 1, 1], [0, 5, 5], [3, 3, 4]],
    "second": [[4, 3, 3], [0, 5, 5], [1, 1, 8]],
}
SKILLS = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])  # which skills each state calls for


def demonstrations() -> ileed.Demonstrations:
    rows = [
        (state, action, name)
        for name, table in ACTS.items()
        for state, counts in enumerate(table)
        for action, count in enumerate(counts)
        for _ in range(count)
    ]
    states = np.array([state for state, _, _ in rows])
    names = [name for _, _, name in rows]
    return ileed.Demonstrations(
        observations=np.eye(3)[states],
        actions=[action for _, action, _ in rows],
        demonstrator=names,
        episode=names,
        skills={"skill": SKILLS[states]},
    )


def method(expertise: ileed.Skills | ileed.Embedded | ileed.Perfect) -> ileed.Ileed:
    table = ileed.CategoricalMLP(hidden=())  # one layer upon three distinct states is a table
    return ileed.Ileed(
        policy=table, expertise=expertise, learning_rate=0.03, skill_learning_rate=0.1, steps=3000, normalise=False
    )


if __name__ == "__main__":
    for expertise in (ileed.Perfect(), ileed.Skills("skill"), ileed.Embedded(dim=2, hidden=())):
        fitted = method(expertise).fit(demonstrations(), seed=0)
        print(f"{expertise}: log-likelihood {-fitted.nats_per_action:.3f} nats per action")
        print(fitted.policy.distribution(np.eye(3)).probs.numpy().round(3))
