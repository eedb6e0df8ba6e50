# Each target does one thing; `make help` lists them.
PYTHON ?= python3.11
BIN := .venv/bin
EXIT ?=
# Tests start many processes, so bytecode is kept even if the shell disables it.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n auto

.PHONY: help setup kernels demo serve browser test test-all torture mutants lint docs stats bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 11

setup: .venv/ready  ## create the environment in .venv, nothing else

.venv/ready: pyproject.toml constraints.txt
	@echo "set-up 1/2: a Python environment in .venv"
	@$(shell command -v $(PYTHON) || echo python3) -m venv .venv
	@echo "set-up 2/2: installing packages, some minutes the first time"
	@$(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

kernels: .venv/ready  # compiled once and cached next to the sources
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m bco_core.compile_kernels

demo: .venv/ready  ## learn from a bakery's history, prescribe, leave the service running (EXIT=1: stop after the table)
	@$(BIN)/bco demo $(if $(EXIT),--exit)

serve: .venv/ready  ## run the API and a worker on this machine
	@$(BIN)/bco serve

browser:  # pages are tested in a real browser: Debian's, installed here if missing and permitted
	@command -v chromium chromium-browser google-chrome > /dev/null || { echo "set-up: installing chromium" ; apt-get update -q && apt-get install -y -q chromium; } > /dev/null 2>&1 \
	  || echo "chromium is missing and cannot be installed: browser tests are skipped."

test: kernels browser  ## the first tier: every feature, in minutes
	@echo "tests, first tier: every feature; 'make test-all' runs the rest"
	@$(PYTEST)

test-all: kernels browser  ## all tests, on SQLite and on a PostgreSQL that the run starts itself
	@echo "tests, both tiers: half an hour or more on two cores"
	@$(PYTEST) --all

torture: kernels  ## the long tests: minutes of load, fuzzing and dying processes
	@$(BIN)/pytest --all -m torture

mutants: .venv/ready  ## break the numerics in small ways, one at a time; a test must notice each
	@$(BIN)/python -m tests.mutants.run

lint: .venv/ready  ## format, lint and type checks
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: .venv/ready  ## update the settings and results in README and docs
	@$(BIN)/python -m docs.settings
	@$(BIN)/python -m docs.results

stats: .venv/ready  ## lines, modules, modules with one importer, seconds of the last test runs
	@$(BIN)/python .ci/stats

bench: .venv/ready  ## measure a running service; prints JSON
	@$(BIN)/bco bench serving --json

clean:  ## remove the environment and the local database
	rm -rf .venv var
