# Two commands need nothing but Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint types layers pytest format clean help

help:  ## Show the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo: $(VENV)/.installed  ## Compare three methods on the embedded benchmark, with left-out domains
	$(BIN)/fedshift compare examples/demo.toml --methods fedavg,fedbn,scaffold --leave-out handwritten,engraved --out runs

test: lint types layers pytest  ## Linters, type checks, layers and tests

lint: $(VENV)/.developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.developer
	$(BIN)/mypy

layers: $(VENV)/.developer
	$(BIN)/lint-imports --no-logo

pytest: $(VENV)/.developer
	$(BIN)/python -m pytest --numprocesses 2

format: $(VENV)/.developer  ## Lay the code out
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch comes first and pinned: a range would bring packages for GPUs where only a CPU build is at hand.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fedshift needs Python 3.11 or newer, this is %d.%d; set PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	touch $@

$(VENV)/.developer: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@

clean:  ## Remove the environment and caches
	rm -rf $(VENV) .*_cache src/*.egg-info build dist
