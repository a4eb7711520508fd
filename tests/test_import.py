"""Importing the package changes nothing and needs little."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter

import grimp
import pytest

import ileed


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)


def test_importing_changes_nothing():
    found = run(
        "import logging, signal, warnings\n"
        "import numpy, torch\n"
        "torch.set_num_threads(3); torch.manual_seed(5); numpy.random.seed(5)\n"
        "def state():\n"
        "    return (\n"
        "        torch.initial_seed(), torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist(),\n"
        "        torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(),\n"
        "        torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),\n"
        "        numpy.geterr(), list(logging.getLogger().handlers), logging.getLogger().level,\n"
        "        signal.getsignal(signal.SIGINT), list(warnings.filters),\n"
        "    )\n"
        "before = state()\n"
        "import ileed\n"
        "assert state() == before\n"
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


OPTIONAL = (
    "rich", "tyro", "gymnasium", "minigrid", "stable_baselines3", "sb3_contrib", "altair", "vl_convert", "h5py",
    "jaxtyping", "beartype", "scipy", "pandas", "matplotlib", "chess", "robosuite", "mujoco", "minari", "onnx",
    "onnxscript", "ray", "envpool", "tensorboardX", "wandb", "trackio", "huggingface_hub", "starlette", "uvicorn",
)  # fmt: skip

ALONE = f"""
import sys
from importlib.machinery import PathFinder
class Bare:
    find_distributions = staticmethod(PathFinder.find_distributions)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {OPTIONAL!r} else PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [Bare() if finder is PathFinder else finder for finder in sys.meta_path]
"""


def test_torch_numpy_safetensors_and_pyarrow_are_enough_to_fit():
    found = run(
        ALONE + "import numpy as np, ileed\n"
        "rows = np.arange(8)\n"
        "data = ileed.Demonstrations(observations=rows[:, None], actions=rows % 2, demonstrator=rows // 4,"
        " episode=rows // 2)\n"
        "fitted = ileed.Ileed(restarts=1, steps=2).fit(data, seed=0, device='cpu')\n"
        "assert len(fitted.expertise.by_demonstrator()) == 2\n"
        f"assert not set({OPTIONAL!r}) & set(sys.modules)\n"
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_everything_that_is_offered_can_be_had():
    for name in ileed.__all__:
        assert getattr(ileed, name) is not None


def test_names_are_loaded_with_the_first_that_is_used():
    found = run(
        "import sys, ileed\n"
        "assert 'torch' not in sys.modules and ileed.__version__\n"
        "ileed.Ileed\n"
        "assert set(ileed.__all__) <= set(vars(ileed)) and 'torch' in sys.modules\n"
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["report"])
def test_a_function_is_not_hidden_by_the_module_of_its_name(name):
    found = run(
        f"import ileed.{name}\n"
        "import ileed\n"
        f"assert callable(ileed.{name}) and ileed.{name}.__name__ == '{name}'\n"
        f"from ileed import {name}\n"
        f"assert {name} is ileed.{name}\n"
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_modules_can_be_reached_through_the_package_and_everything_by_a_star():
    found = run(
        "import ileed\n"
        "assert ileed.envs.task('minigrid/lava').action_count == 7\n"
        "assert not hasattr(ileed, 'nonsense') and not hasattr(ileed, '__wrapped__')\n"
        "from ileed import *\n"
        "assert Ileed is ileed.Ileed and read is ileed.read\n"
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_the_command_inspects_data_without_torch(tmp_path):
    """It takes longer to import than a large file to read; and pandas half as long."""
    data = ileed.Demonstrations(
        observations=[[0.5]] * 4, actions=[[1.0]] * 4, demonstrator=[0, 0, 1, 1], episode=[0, 0, 1, 1]
    )
    ileed.write(data, tmp_path / "folder", format="lerobot")
    found = run(
        "import sys\nfrom ileed.cli import run\n"
        f"assert run(['inspect', {str(tmp_path / 'folder')!r}]) == 0\n"
        "assert not {'torch', 'pandas'} & sys.modules.keys()\n"
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("package", ["ileed", "ileed_lab"])
def test_no_modules_import_each_other_in_a_circle(package):
    """Neither between packages nor inside one, nor within functions; only types may name each other."""
    graph = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=True)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert set(TopologicalSorter(imported).static_order()) == graph.modules  # a CycleError names the modules
