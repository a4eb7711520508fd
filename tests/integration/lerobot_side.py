"""lerobot's half of the tests of its folders: runs where lerobot is installed, and needs no ileed.

python lerobot_side.py show FOLDER [EPISODE ...]   prints what LeRobotDataset gives for every frame, as JSON
python lerobot_side.py make FOLDER [robot]         records four episodes with lerobot's own writer; of a robot, ten
python lerobot_side.py delete FOLDER OUT EPISODE   copies a folder without an episode, with lerobot's own tool
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

NAME = "local/data"


def of_lerobot() -> Any:
    """lerobot's own class, imported where it is installed."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset


def show(folder: str, *episodes: str) -> None:
    """Every frame of some episodes, or of all, in order."""
    data = of_lerobot()(NAME, root=folder, episodes=[int(each) for each in episodes] or None)
    frames = [data[number] for number in range(len(data))]
    columns = {
        name: [each[name] if isinstance(each[name], str) else each[name].tolist() for each in frames]
        for name in frames[0]
    }
    statistics = {name: np.asarray(found["mean"]).tolist() for name, found in data.meta.stats.items()}
    print(json.dumps({"columns": columns, "mean": statistics, "episodes": data.num_episodes}))


def make(folder: str, kind: str = "") -> None:
    """Four episodes of two operators in two tasks, with words, numbers and discrete actions.

    A robot moves as its state says in ten episodes, and has continuous actions; the second operator adds noise.
    """
    random, robot = np.random.default_rng(0), kind == "robot"
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "observation.environment_state": {"dtype": "float32", "shape": (2,), "names": None},
        "action": {"dtype": "float32" if robot else "int64", "shape": (2 if robot else 1,), "names": None},
        "collector_id": {"dtype": "string", "shape": (1,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }
    data = of_lerobot().create(NAME, fps=10, features=features, root=folder, use_videos=False)
    task_is_an_argument = "task" in inspect.signature(data.add_frame).parameters  # before 0.4
    for episode, steps in enumerate((12,) * 10 if robot else (5, 3, 6, 4)):
        for step in range(steps):
            state = random.normal(size=3).astype(np.float32)
            moved = state[:2] + (episode % 2) * random.normal(size=2)
            frame = {
                "observation.state": state,
                "observation.environment_state": np.array([episode, step], dtype=np.float32),
                "action": moved.astype(np.float32) if robot else np.array([(episode + step) % 3]),
                "collector_id": ("ann", "bob")[episode % 2],
                "next.reward": np.array([step], dtype=np.float32),
                "next.done": np.array([step == steps - 1]),
            }
            task = ("lift", "push")[episode // 2 % 2]
            data.add_frame(frame, task=task) if task_is_an_argument else data.add_frame(frame | {"task": task})
        data.save_episode()
    if hasattr(data, "finalize"):
        data.finalize()


def delete(folder: str, out: str, episode: str) -> None:
    """The folder without one episode."""
    from lerobot.datasets.dataset_tools import delete_episodes

    delete_episodes(of_lerobot()(NAME, root=folder), [int(episode)], output_dir=Path(out), repo_id="local/fewer")


if __name__ == "__main__":
    {"show": show, "make": make, "delete": delete}[sys.argv[1]](*sys.argv[2:])
