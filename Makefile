# Every target does its own set-up; the second time that costs nothing. The demo needs few packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
DOCS := $(VENV)/ready-for-the-docs
DEMO := $(VENV)/ready-for-the-demo
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable

# A file's tests share its fixtures and compiled programs, so one process runs them all.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo test test-all coverage lint bench docs dist clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or later is needed"'
	@echo "1/3  making an environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml | $(BIN)/python
	@echo "2/3  installing scoreascent and what its demo needs into $(VENV): jax, NumPyro, SciPy, scikit-learn,"
	@echo "     matplotlib and what they bring, 0.8 GB on disk; half a minute to two, by your network"
	@$(PIP) ".[cli]"
	@touch $(DEMO)

$(READY): pyproject.toml | $(BIN)/python
	@echo "2/3  installing the rest into $(VENV): all extras (PyMC, ArviZ, BlackJAX, Dask, ...) and the tools of"
	@echo "     the tests; a few minutes"
	@$(PIP) ".[dev]"
	@touch $(READY) $(DEMO) $(DOCS)

$(DOCS): pyproject.toml | $(BIN)/python
	@echo "installing MkDocs, its theme and mkdocstrings into $(VENV)"
	@$(PIP) ".[docs]"
	@touch $(DOCS)

demo: $(DEMO)
	@echo "3/3  fitting: half a minute of two cores the first time, for most of which jax compiles"
	$(BIN)/scoreascent demo

test: $(READY)
	$(PYTEST)

test-all: $(READY)
	$(PYTEST) -m ""

# The same tests, and the lines of the library that none of them runs; takes a third longer.
coverage: $(READY)
	$(PYTEST) --cov=scoreascent --cov-report=term-missing:skip-covered

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.looks

# The site, into site/; a warning, such as a link that leads nowhere, is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The wheel and the sdist, into dist/, and whether what is in them is what should be.
dist: $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m tests.released dist

clean:
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage out
