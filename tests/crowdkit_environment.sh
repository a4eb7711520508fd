#!/bin/sh
# An environment of crowd-kit's own, in .cache/crowdkit, with what its classical methods import and neither torch nor
# transformers, which it names for its networks. Run again to repair; remove it to start again.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
home=$root/.cache/crowdkit
uv=$root/.venv/bin/uv
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"

[ -x "$home/bin/python" ] || "$uv" venv --quiet --python "$root/.venv/bin/python" "$home"
"$uv" pip install --quiet --python "$home/bin/python" attrs nltk numpy pandas pyarrow scikit-learn tqdm
"$uv" pip install --quiet --python "$home/bin/python" --no-deps "crowd-kit==1.4.2"
