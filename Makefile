# Each target creates or refreshes .venv by itself. CI runs `make test PAGE=1`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Numba's compiled kernels, kept between runs; outside src so that a checkout stays clean.
export NUMBA_CACHE_DIR := $(CURDIR)/$(VENV)/numba

.PHONY: help paper proofs test test-slow test-hosts test-versions lint bench bench-flatness clocks finder agreement battery examples house clean

help:
	@echo "make paper      set up (without torch) and reproduce the paper: results/report.html"
	@echo "make proofs     derive the formulas of the theory with sympy, compare the code (a minute)"
	@echo "make test       set up and run linters, type checks and the tests;"
	@echo "                with PAGE=1 also the browser test, which needs Debian's chromium"
	@echo "make test-slow  the checks that take minutes"
	@echo "make test-hosts optimizers and libraries that people use the noise with, in an"
	@echo "                environment of their own (some minutes)"
	@echo "make test-versions  the lowest and the newest releases that pyproject.toml admits, an"
	@echo "                environment each, on every Python that is found; writes docs/versions.md"
	@echo "                (hours; 7 GB at a time); with ROWS=lowest only that one"
	@echo "make bench      speed and memory against real peers; writes benchmarks/results.json"
	@echo "make bench-flatness  traces of Hessians against PyHessian, curvlinops and"
	@echo "                hessian-eigenthings, in an environment of their own, and effective"
	@echo "                sharpness against Hutchinson's trace (25 minutes)"
	@echo "make finder     find_sigma against a search on ten pairs of network and data; fetches"
	@echo "                Fashion-MNIST; writes benchmarks/finder.json (an hour)"
	@echo "make clocks     which clock an optimizer has; writes benchmarks/clocks.json (15 minutes)"
	@echo "make agreement  how NumPy, numba, torch, JAX and Triton agree, in numbers"
	@echo "make battery    dieharder on the words of the stream (an hour or more)"
	@echo "make examples   run the examples from a wheel, in a new environment outside of the clone;"
	@echo "                writes docs/examples.md (some minutes)"
	@echo "make house      how the tree is built: lines, sizes, lists written twice; with"
	@echo "                BEFORE=REV beside that commit"
	@echo "make lint       ruff, mypy and import-linter only"

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

# NumPy and sympy; a part of what `ready` installs.
$(VENV)/proofs: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; a minute)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) --editable . --group proofs
	touch $@

proofs: $(VENV)/proofs
	$(BIN)/python -m proofs

$(VENV)/page: $(VENV)/ready
	$(PIP) --group page
	touch $@

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# With PAGE=1 a missing browser is a failure; without, tests/page is not collected.
test: lint $(if $(filter 1,$(PAGE)),$(VENV)/page)
	PAGE=$(PAGE) $(BIN)/pytest -m "not slow" -n 2
	@test "$(PAGE)" = 1 || echo "not run: the browser test of the page (make test PAGE=1)"

test-slow: $(VENV)/ready
	$(BIN)/pytest -m slow -n 2

bench: $(VENV)/ready
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/optax_step.py
	$(BIN)/python benchmarks/forms.py

finder: $(VENV)/ready
	$(BIN)/antipgd data fashion-mnist
	$(BIN)/python benchmarks/finder.py

clocks: $(VENV)/ready
	$(BIN)/python benchmarks/clocks.py

# The peers bring torchvision, which breaks other libraries beside a CPU torch: not into .venv.
PEERS := .venv-peers
$(PEERS)/ready: pyproject.toml constraints.txt
	@echo "setting up $(PEERS) (once; a minute or two)"
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[paper,flatness]' \
	  PyHessian==0.1 curvlinops-for-pytorch==3.0.1 hessian-eigenthings==1.0.0a5
	touch $@

bench-flatness: $(PEERS)/ready
	$(PEERS)/bin/python benchmarks/flatness.py
	$(PEERS)/bin/python benchmarks/effective_sharpness.py

# Optimizers, trainers and libraries that people use the noise with: not into .venv.
HOSTS := .venv-hosts
$(HOSTS)/ready: pyproject.toml constraints.txt
	@echo "setting up $(HOSTS) (once; a few minutes)"
	test -x $(HOSTS)/bin/python || $(PYTHON) -m venv $(HOSTS)
	$(HOSTS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(HOSTS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[flatness,optax]' --group test --group hosts
	touch $@

test-hosts: $(HOSTS)/ready
	$(HOSTS)/bin/python -m pytest tests/hosts -q --page docs/hosts.md

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

# Reads text only: any Python as new as the code will do.
house:
	$(PYTHON) benchmarks/house.py $(if $(BEFORE),--before $(BEFORE))

clean:
	rm -rf $(VENV) $(PEERS) .pytest_cache .ruff_cache .mypy_cache .import_linter_cache build dist
