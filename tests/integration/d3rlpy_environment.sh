#!/bin/sh
# An environment of its own for d3rlpy, whose pins fight ours. Its requirements are left out and what it imports is named.
set -e
cd "$(dirname "$0")/../.."
environment=.cache/d3rlpy/venv
python3 -m venv "$environment"
"$environment/bin/python" -m pip install --quiet "torch==2.13.0" numpy
"$environment/bin/python" -m pip install --quiet --no-deps "d3rlpy==2.8.1"
"$environment/bin/python" -m pip install --quiet \
  click colorama dataclasses-json gym gymnasium h5py scikit-learn structlog tqdm typing-extensions
"$environment/bin/python" -W ignore -c "import d3rlpy; print('d3rlpy', d3rlpy.__version__)"
