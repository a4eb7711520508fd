# `make demo` and `make test` set up what they need and may be run again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-all check lint types rooms benchmark bench fuzz pictures speed-page reproduction-page reproduction-figures imitation d3rlpy crowdkit robomimic lerobot moto browser axe stockfish kills same-bits docs wheel-check clean

demo: $(READY)
	$(BIN)/ileed demo

# Every behaviour once. Where an optional environment or program is missing, the tests that ask it are skipped.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -q

# The same and the tests marked `campaign`: fuzzing, kills, browsers, environments of other projects, long recovery tests.
test-all: $(READY) browser axe stockfish
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -q -m ""

check: lint types rooms

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

rooms: $(READY)
	$(BIN)/lint-imports

benchmark: $(READY)
	$(BIN)/python benchmarks/restarts.py

# One table of ratios against what people run today, with what is installed of `make imitation d3rlpy crowdkit robomimic`.
bench: $(READY)
	$(BIN)/python benchmarks/bench.py

# Mutated files for every reader; `make test-all` reads some of them. FILES=100000 reads more, SEED=1 others.
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/campaign.py --files $(or $(FILES),10000) --seed $(or $(SEED),0) \
	  --out results/robustness/fuzz.json

# The pictures of the documents.
pictures: $(READY) browser
	$(BIN)/ileed demo --figures docs/images
	$(BIN)/python docs/report_pictures.py

speed-page: $(READY)
	$(BIN)/python benchmarks/speed_page.py

reproduction-page: $(READY)
	$(BIN)/ileed tables

reproduction-figures: $(READY)
	$(BIN)/python -m ileed_lab.figures --trajectories

# A fresh Debian may lack ensurepip; virtualenv, kept beside the environment, does without it.
$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV) 2>/dev/null || { \
	  rm -rf $(VENV) && $(PYTHON) -m pip install --quiet --target .cache/virtualenv virtualenv && \
	  PYTHONPATH=.cache/virtualenv $(PYTHON) -m virtualenv --quiet $(VENV); }
	$(BIN)/python -m pip install --quiet uv
	UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" $(BIN)/uv pip install --quiet --python $(BIN)/python \
	  -c constraints.txt "torch==2.13.0" -e ".[dev,docs]" -e lab
# robosuite asks for mink, which holds numpy below 2 and serves one humanoid alone: it comes without what it asks for.
	UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" $(BIN)/uv pip install --quiet --python $(BIN)/python \
	  -c constraints.txt --no-deps robosuite
	touch $(READY)

# The site of documents, in site/: the tutorial is executed, and a broken link or a page left out fails the build (with
# --quiet it would not: --strict counts warnings that are shown).
docs: $(READY)
	rm -rf .cache/tutorial && mkdir -p .cache/tutorial && cp docs/tutorial.ipynb .cache/tutorial
	cd .cache/tutorial && OMP_NUM_THREADS=1 $(CURDIR)/$(BIN)/jupyter nbconvert --execute --to markdown \
	  --KernelManager.transport=ipc --log-level=WARN tutorial.ipynb
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The distributions as a user gets them: built, installed in fresh environments, and tried.
wheel-check: $(READY)
	$(BIN)/python tests/wheel_check.py

# An environment of imitation's own, in .cache/imitation; without it the tests that ask imitation itself are skipped.
imitation: $(READY)
	tests/imitation_environment.sh

# An environment of d3rlpy's own, in .cache/d3rlpy, for `make bench`.
d3rlpy: $(READY)
	tests/d3rlpy_environment.sh

# An environment of crowd-kit's own, in .cache/crowdkit; without it nothing is compared with crowd-kit.
crowdkit: $(READY)
	tests/crowdkit_environment.sh

# An environment of robomimic's own, in .cache/robomimic; without it the tests of our plug-in are skipped.
robomimic: $(READY)
	tests/robomimic_environment.sh

# Environments of lerobot's own, several GB; without them the tests that ask lerobot itself are skipped.
lerobot: $(READY)
	tests/lerobot_environment.sh 0.6.1
	tests/lerobot_environment.sh 0.3.3

# An environment of moto's own, in .cache/moto, which answers as S3 does; without it the tests against S3 are skipped.
moto: $(READY)
	tests/moto_environment.sh

# Some tests look at the report in a real browser; where none can be installed, they say so and are skipped.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no chromium and no right to install it: the tests in a browser will be skipped"

# With axe-core, which looks for what cannot be read or reached, further tests look at the report.
axe:
	@test -f .cache/axe/node_modules/axe-core/axe.min.js || npm install --silent --prefix .cache/axe axe-core@4 \
	  >/dev/null 2>&1 || echo "no npm, or no axe-core from it: the tests that use it will be skipped"

# Some tests of chess ask an engine; where it cannot be installed, they say so and are skipped.
stockfish:
	@command -v stockfish >/dev/null || [ -x /usr/games/stockfish ] || { [ "$$(id -u)" = 0 ] && \
	  command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq stockfish >/dev/null; } || \
	  echo "no stockfish and no right to install it: the tests that ask an engine will be skipped"

# Kill fits at a thousand random moments: no run lost, every resumed one the same to the bit (half an hour). Then kill
# everything that writes files, a thousand times: the old or the new content is there, whole (ten minutes).
kills: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/robustness/kill_fits.py --kills 1000 --out results/robustness/kills.json
	OMP_NUM_THREADS=1 $(BIN)/python tests/robustness/kill_writers.py --kills 1000 --out results/robustness/kills-writers.json

# The weights of small fits with another commit and with the working tree, bit by bit. OLD=main compares with main.
same-bits: $(READY)
	$(BIN)/python tests/digests/compare_commits.py $(or $(OLD),HEAD)

clean:
	rm -rf $(VENV) .cache site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
