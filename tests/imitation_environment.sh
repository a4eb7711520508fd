#!/bin/sh
# An environment of imitation's own, in .cache/imitation: it pins gymnasium and stable-baselines3, so it never meets ours.
# Run again to repair; remove it to start again.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
home=$root/.cache/imitation
uv=$root/.venv/bin/uv
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"

[ -x "$home/bin/python" ] || "$uv" venv --quiet --python "$root/.venv/bin/python" "$home"
"$uv" pip install --quiet --python "$home/bin/python" "torch==2.13.0" "imitation==1.0.1"
