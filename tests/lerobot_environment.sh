#!/bin/sh
# Environments of lerobot's own: its pins fight the present, so it never meets ours. Run again to repair; remove the
# folder to start again.
#   tests/lerobot_environment.sh [0.6.1]   .cache/lerobot: writes and reads folders of v3.0. It needs Python 3.12 and a torch
#       below 2.12, which on Linux comes with CUDA: 4.6 GB. Where PyTorch's own index can be reached, UV_TORCH_BACKEND=cpu
#       makes that 1.5 GB. PYTHON312 names the interpreter where it is not found.
#   tests/lerobot_environment.sh 0.3.3     .cache/lerobot-0.3.3: the last release for v2.1, with the Python and torch of
#       .venv (1.3 GB) and a stand-in for torchvision, whose wheels do not load beside a CPU build of torch.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
release=${1:-0.6.1}
uv=$root/.venv/bin/uv
[ -x "$uv" ] || uv=$(command -v uv)
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"

if [ "$release" = 0.6.1 ]; then
  home=$root/.cache/lerobot
  python=$home/bin/python
  for found in "${PYTHON312:-}" "$(command -v python3.12 || true)" "$HOME"/.pyenv/versions/3.12*/bin/python; do
    [ -x "$found" ] && "$found" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && break
    found=
  done
  [ -n "$found" ] || { echo "lerobot 0.6.1 needs Python 3.12, which was not found: set PYTHON312 to its path" >&2; exit 1; }
  [ -x "$python" ] || "$uv" venv --quiet --python "$found" "$home"
  # Neither compiles anything here, and a policy on the CPU needs no compiler of GPU code.
  printf 'triton; python_version < "3"\ncmake; python_version < "3"\n' > "$home/left-out.txt"
  exec "$uv" pip install --quiet --python "$python" --override "$home/left-out.txt" "lerobot[training]==0.6.1"
fi
[ "$release" = 0.3.3 ] || { echo "there is an environment for lerobot 0.6.1 and one for 0.3.3, not for $release" >&2; exit 1; }

home=$root/.cache/lerobot-0.3.3
python=$home/bin/python
[ -x "$python" ] || "$uv" venv --quiet --python "$root/.venv/bin/python" "$home"
"$uv" pip install --quiet --python "$python" "torch==2.13.0" "numpy<2.3" "datasets>=2.19,<=3.6.0" \
  "huggingface-hub>=0.34.2,<0.36" "av>=14.2,<16" "draccus==0.10.0" "gymnasium>=0.29.1,<1" "deepdiff<9" \
  "imageio[ffmpeg]" einops jsonlines packaging pandas pillow pyserial safetensors termcolor tqdm
"$uv" pip install --quiet --python "$python" --no-deps "lerobot==0.3.3"
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ -d "$site/torchvision" ] && exit 0
mkdir -p "$site/torchvision/transforms/v2" "$site/torchvision/models" "$site/torchvision/ops"
cat > "$site/torchvision/absent.py" <<'PYTHON'
"""Says what is missing when something is called that is not here."""


def absent(name):
    """A class in place of `name`, which refuses to be made."""
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(self, *_, **__):
        raise ImportError(f"{name} needs torchvision, and this environment has a stand-in for it: images are not learned here")

    return type(name, (), {"__init__": refuse})
PYTHON
for module in transforms/__init__ transforms/functional transforms/v2/__init__ transforms/v2/functional models/__init__ \
  models/_utils ops/__init__ ops/misc; do
  echo 'from torchvision.absent import absent as __getattr__' > "$site/torchvision/$module.py"
done
echo 'from torchvision import models, ops, transforms' > "$site/torchvision/__init__.py"
