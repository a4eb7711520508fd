#!/bin/sh
# An environment of overcooked-ai's own, in .cache/overcooked, with what its simulator imports and nothing that draws
# pictures or plans. Run again to repair; remove it to start again.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
home=$root/.cache/overcooked
uv=$root/.venv/bin/uv
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"

[ -x "$home/bin/python" ] || "$uv" venv --quiet --python "$root/.venv/bin/python" "$home"
"$uv" pip install --quiet --python "$home/bin/python" numpy cloudpickle gym-notices
"$uv" pip install --quiet --python "$home/bin/python" --no-deps "gym==0.26.2" "overcooked-ai==1.1.0"
