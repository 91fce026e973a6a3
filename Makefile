# Each target creates or refreshes .venv by itself. CI runs `make test PAGE=1`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Numba's compiled kernels, kept between runs; outside src so that a checkout stays clean.
export NUMBA_CACHE_DIR := $(CURDIR)/$(VENV)/numba

.PHONY: help paper questions proofs test test-slow test-hosts test-engines test-versions lint bench bench-flatness bench-engines gpu-kernel cost clocks finder agreement battery examples docs house hooks dist release-check clean

help:
	@echo "make paper      set up (without torch) and reproduce the paper: results/report.html"
	@echo "make questions  answer what the paper's conclusion asks; writes docs/questions.md (some minutes)"
	@echo "make proofs     derive the formulas of the theory with sympy, compare the code (a minute)"
	@echo "make test       set up and run linters, type checks and the tests;"
	@echo "                with PAGE=1 also the browser tests, which need Debian's chromium and npm"
	@echo "make test-slow  the checks that take minutes"
	@echo "make test-hosts optimizers and libraries that people use the noise with, in an"
	@echo "                environment of their own (some minutes)"
	@echo "make test-engines  Ray clusters and submitit's executors on this machine, nodes and jobs"
	@echo "                killed among them, in an environment of their own (ten minutes)"
	@echo "make test-versions  the lowest and the newest releases that pyproject.toml admits, an"
	@echo "                environment each, on every Python that is found; writes docs/versions.md"
	@echo "                (hours; 7 GB at a time); with ROWS=lowest only that one"
	@echo "make bench      speed and memory against real peers; writes benchmarks/results.json"
	@echo "make bench-flatness  traces of Hessians against PyHessian, curvlinops and"
	@echo "                hessian-eigenthings, in an environment of their own, and effective"
	@echo "                sharpness against Hutchinson's trace (25 minutes)"
	@echo "make bench-engines  what Ray costs beside processes, on trainings (half an hour)"
	@echo "make gpu-kernel compile the GPU kernel for three kinds of GPU, none of which is needed:"
	@echo "                registers, spills, instructions; writes benchmarks/gpu_kernel.json"
	@echo "make cost       what the noise costs at 10^7 to 10^12 parameters, computed from both;"
	@echo "                writes docs/cost.md and the table in docs/gpu.md"
	@echo "make finder     find_sigma against a search on ten pairs of network and data; fetches"
	@echo "                Fashion-MNIST; writes benchmarks/finder.json (an hour)"
	@echo "make clocks     which clock an optimizer has; writes benchmarks/clocks.json (15 minutes)"
	@echo "make agreement  how NumPy, numba, torch, JAX and Triton agree, in numbers"
	@echo "make battery    dieharder on the words of the stream (an hour or more)"
	@echo "make examples   run the examples from a wheel, in a new environment outside of the clone;"
	@echo "                writes docs/examples.md (some minutes)"
	@echo "make docs       the documentation as a site: site/index.html; spelling, snippets, links"
	@echo "                and the API are checked, warnings are errors (some minutes)"
	@echo "make house      how the tree is built: lines, sizes, lists written twice; with"
	@echo "                BEFORE=REV beside that commit"
	@echo "make lint       ruff, mypy, import-linter and codespell only"
	@echo "make hooks      the same before each commit of this clone, by pre-commit"
	@echo "make dist       sdist and wheel as they are published: dist/"
	@echo "make release-check  build them, check them, install each extra in an empty environment,"
	@echo "                run README and examples from there (three quarters of an hour)"

$(VENV)/ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; a few minutes)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) --editable '.[network]' --group test --group agreement --group lint --group bench \
	  --group proofs
	touch $@

# What the paper needs, which is no torch; a part of what `ready` installs.
$(VENV)/paper: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; a minute or two)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) --editable '.[paper]'
	touch $@

paper: $(VENV)/paper
	$(BIN)/antipgd paper --out results

# What the paper's conclusion asks; writes docs/questions.md and its pictures.
questions: $(VENV)/paper
	$(BIN)/antipgd paper --only questions --out results/questions
	$(BIN)/python -m antipgd.paper.verdict_table results/questions docs/questions.md
	for name in plateau how_anticorrelated which_law when_to_begin after_others saddle batches layerwise one_or_two_points sam_and_noise shuffling_and_rates; do \
	  cp results/questions/figures/$$name.png docs/question-$$name.png || exit 1; done

# NumPy and sympy; a part of what `ready` installs.
$(VENV)/proofs: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; a minute)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) --editable . --group proofs
	touch $@

proofs: $(VENV)/proofs
	$(BIN)/python -m proofs

# axe-core, which says what keeps people from using a page, is npm's.
AXE := 4.11.0
$(VENV)/page: $(VENV)/ready
	$(PIP) --group page
	mkdir -p $(VENV)/axe
	cd $(VENV)/axe && npm pack --silent axe-core@$(AXE) && \
	  tar -xzf axe-core-$(AXE).tgz package/axe.min.js
	touch $@

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs

# With PAGE=1 a missing browser is a failure; without, tests/page is not collected.
test: lint $(if $(filter 1,$(PAGE)),$(VENV)/page)
	PAGE=$(PAGE) $(BIN)/pytest -m "not slow" -n 2 --durations=60 --durations-min=4
	@test "$(PAGE)" = 1 || echo "not run: the browser tests of the page (make test PAGE=1)"

test-slow: $(VENV)/ready
	$(BIN)/pytest -m slow -n 2

bench: $(VENV)/ready
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/optax_step.py
	$(BIN)/python benchmarks/forms.py

gpu-kernel: $(VENV)/ready
	$(BIN)/python benchmarks/gpu_kernel.py

cost: $(VENV)/ready
	$(BIN)/python benchmarks/cost.py

finder: $(VENV)/ready
	$(BIN)/antipgd data fashion-mnist
	$(BIN)/python benchmarks/finder.py

clocks: $(VENV)/ready
	$(BIN)/python benchmarks/clocks.py

COMMA := ,
# An environment of its own, $(1), with what $(2) says.
define environment
	@echo "setting up $(1) (once; a few minutes)"
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt $(2)
	touch $(1)/ready
endef

# The peers bring torchvision, which breaks other libraries beside a CPU torch: not into .venv.
PEERS := .venv-peers
$(PEERS)/ready: pyproject.toml constraints.txt
	$(call environment,$(PEERS),--editable '.[paper$(COMMA)flatness]' PyHessian==0.1 \
	  curvlinops-for-pytorch==3.0.1 hessian-eigenthings==1.0.0a5)

bench-flatness: $(PEERS)/ready
	$(PEERS)/bin/python benchmarks/flatness.py
	$(PEERS)/bin/python benchmarks/effective_sharpness.py

# Optimizers, trainers and libraries that people use the noise with: not into .venv.
HOSTS := .venv-hosts
$(HOSTS)/ready: pyproject.toml constraints.txt
	$(call environment,$(HOSTS),--editable '.[flatness$(COMMA)optax]' --group test --group hosts)

test-hosts: $(HOSTS)/ready
	$(HOSTS)/bin/python -m pytest tests/hosts -q --page docs/hosts.md

# Ray and submitit, and Optuna for the example of docs/cluster.md: not into .venv.
ENGINES := .venv-engines
$(ENGINES)/ready: pyproject.toml constraints.txt
	$(call environment,$(ENGINES),--editable '.[network$(COMMA)ray$(COMMA)slurm]' \
	  --group test --group engines)

test-engines: $(ENGINES)/ready
	$(ENGINES)/bin/python -m pytest tests/engines -q

bench-engines: $(ENGINES)/ready
	$(ENGINES)/bin/python benchmarks/engines.py

# Makes its environments by itself, in a temporary folder.
test-versions:
	$(PYTHON) benchmarks/versions.py $(ROWS)

battery: $(VENV)/ready
	@command -v dieharder >/dev/null || { echo "make battery needs Debian's dieharder"; exit 1; }
	$(BIN)/python benchmarks/battery.py

agreement: $(VENV)/ready
	$(BIN)/python benchmarks/agreement.py

# As a stranger runs them: nothing of the clone or of .venv is used but the wheel.
examples:
	$(PYTHON) benchmarks/examples_page.py

# The site, after its spelling and its snippets. Docstrings are read, not imported; the playground
# is, which needs NumPy alone.
SITE := .venv-docs
$(SITE)/ready: pyproject.toml constraints.txt
	$(call environment,$(SITE),--editable . --group docs)

docs: $(SITE)/ready $(VENV)/ready
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs
	$(BIN)/pytest -q -n 2 README.md docs
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --site-dir site

# What is published. build, twine and their like: not into .venv.
RELEASE := .venv-release
$(RELEASE)/ready: pyproject.toml constraints.txt
	$(call environment,$(RELEASE),--group release)

hooks: $(VENV)/ready $(RELEASE)/ready
	$(RELEASE)/bin/pre-commit install

dist: $(RELEASE)/ready
	$(RELEASE)/bin/python benchmarks/release.py build

# The wheel that is run here is the one in dist/. An environment is gone when it has passed.
release-check: dist
	$(RELEASE)/bin/python benchmarks/release.py check
	WHEEL=$$(echo dist/*.whl) $(RELEASE)/bin/python -m pytest tests/test_installed.py \
	  --noconftest --verbose -o tmp_path_retention_policy=failed
	$(RELEASE)/bin/python benchmarks/examples_page.py --wheel dist/*.whl

# Reads text only: any Python as new as the code will do.
house:
	$(PYTHON) benchmarks/house.py $(if $(BEFORE),--before $(BEFORE))

clean:
	rm -rf $(VENV) $(PEERS) $(HOSTS) $(ENGINES) $(SITE) $(RELEASE) site .pytest_cache .ruff_cache .mypy_cache .import_linter_cache build dist
