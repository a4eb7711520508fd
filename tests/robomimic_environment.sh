#!/bin/sh
# An environment of robomimic's own, in .cache/robomimic: its pins fight the present, so it never meets ours.
# robomimic and robosuite come without their dependencies (they would replace torch by another build and hold numpy
# below 2); what their import, training and rollouts need is named here. Run again to repair; remove it to start again.
#   tests/robomimic_environment.sh [training | rollouts]      (rollouts, the default, adds robosuite and mujoco)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
home=$root/.cache/robomimic
python=$home/bin/python
uv=$root/.venv/bin/uv
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"

[ -x "$python" ] || "$uv" venv --quiet --python "$root/.venv/bin/python" "$home"
"$uv" pip install --quiet --python "$python" "torch==2.13.0" numpy h5py psutil tqdm termcolor six tensorboardX \
  imageio imageio-ffmpeg matplotlib safetensors pyarrow setuptools pytest
"$uv" pip install --quiet --python "$python" --no-deps "robomimic==0.3.0"
"$uv" pip install --quiet --python "$python" --no-deps -e "$root"

# Stand-ins for two packages that robomimic imports and low-dimensional training never uses. torchvision's wheels of this
# version do not load beside a CPU build of torch; mujoco_py is the predecessor of mujoco, and only an exception of it is
# named. Either is left alone where the real one is installed.
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ ! -d "$site/torchvision" ]; then
  mkdir -p "$site/torchvision/transforms"
  cat > "$site/torchvision/absent.py" <<'PYTHON'
"""Says what is missing when something is called that is not here."""


def absent(name):
    """A function in place of `name`, which refuses to be called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_, **__):
        raise ImportError(f"{name} needs torchvision, and this environment has a stand-in for it: images are not learned here")

    return refuse
PYTHON
  for module in models transforms/__init__ transforms/functional; do
    echo 'from torchvision.absent import absent as __getattr__' > "$site/torchvision/$module.py"
  done
  echo '"""Stands in for torchvision, of which low-dimensional training uses nothing."""' > "$site/torchvision/__init__.py"
fi
if [ ! -e "$site/mujoco_py" ]; then
  mkdir -p "$site/mujoco_py"
  echo '"""Stands in for mujoco_py, of which robomimic names one exception."""' > "$site/mujoco_py/__init__.py"
  echo 'from mujoco_py import builder' >> "$site/mujoco_py/__init__.py"
  printf 'class MujocoException(Exception):\n    """What mujoco_py raised when a simulation became unstable."""\n' \
    > "$site/mujoco_py/builder.py"
fi

if [ "${1:-rollouts}" = rollouts ]; then
  "$uv" pip install --quiet --python "$python" "mujoco>=3.3,<3.10" numba scipy opencv-python-headless pillow
  "$uv" pip install --quiet --python "$python" --no-deps "robosuite==1.5.2"
fi
