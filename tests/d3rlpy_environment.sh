#!/bin/sh
# An environment of d3rlpy's own, in .cache/d3rlpy: it pins gymnasium, so it never meets ours. `make bench` uses it.
# Run again to repair; remove it to start again.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
home=$root/.cache/d3rlpy
uv=$root/.venv/bin/uv
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"

[ -x "$home/bin/python" ] || "$uv" venv --quiet --python "$root/.venv/bin/python" "$home"
"$uv" pip install --quiet --python "$home/bin/python" "torch==2.13.0" "d3rlpy==2.8.1"
