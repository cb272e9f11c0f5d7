# Every target does its own set-up; the second time that costs nothing. The demo needs few packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
DEMO := $(VENV)/ready-for-the-demo
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable

# A file's tests share its fixtures and compiled programs, so one process runs them all.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo test test-all coverage lint bench clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or later is needed"'
	@echo "making an environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml | $(BIN)/python
	@echo "installing scoreascent and what the demo needs into $(VENV): jax, numpyro, matplotlib, ..."
	@$(PIP) ".[cli]"
	@touch $(DEMO)

$(READY): pyproject.toml | $(BIN)/python
	@echo "installing scoreascent, its extras and the tools of the tests into $(VENV): a few minutes"
	@$(PIP) ".[dev]"
	@touch $(READY) $(DEMO)

demo: $(DEMO)
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

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage out
