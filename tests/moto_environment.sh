#!/bin/sh
# An environment of moto's own, in .cache/moto: a server on this machine that answers as S3 does. Run again to repair;
# remove it to start again.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
home=$root/.cache/moto
uv=$root/.venv/bin/uv
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"

[ -x "$home/bin/python" ] || "$uv" venv --quiet --python "$root/.venv/bin/python" "$home"
"$uv" pip install --quiet --python "$home/bin/python" "moto[server]==5.2.5"
