# Each target does one thing; `make help` lists them.
PYTHON ?= python3.11
BIN := .venv/bin
EXIT ?=

.PHONY: help setup demo serve browser test torture mutants lint docs bench clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

setup: .venv/ready  ## make the environment in .venv, nothing else

.venv/ready: pyproject.toml constraints.txt
	$(shell command -v $(PYTHON) || echo python3) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv/ready  ## learn from a bakery's history, prescribe, leave the service running (EXIT=1: stop after the table)
	$(BIN)/bco demo $(if $(EXIT),--exit)

serve: .venv/ready  ## run the API and a worker on this machine
	$(BIN)/bco serve

browser:  # pages are tested in a real one: Debian's, where it is not there yet and may be installed
	@command -v chromium chromium-browser google-chrome > /dev/null || { apt-get update -q && apt-get install -y -q chromium; } > /dev/null 2>&1 \
	  || echo "There is no chromium here and it cannot be installed: tests of pages in a browser are skipped."

test: .venv/ready browser  ## all tests, on SQLite and on a PostgreSQL that the run starts itself
	@echo "What fails beside other tests runs once more, alone: a crowded machine is no failure."
	$(BIN)/pytest -n auto --dist loadfile || $(BIN)/pytest --last-failed --last-failed-no-failures none

torture: .venv/ready  ## the long tests: minutes of load, fuzzing and dying processes
	$(BIN)/pytest -m torture

mutants: .venv/ready  ## break the numerics in small ways, one at a time, and see that a test notices each
	$(BIN)/python -m tests.mutants.run

lint: .venv/ready  ## format, lint and type checks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/ready  ## write anew what pages say of settings and of results
	$(BIN)/python -m docs.settings
	$(BIN)/python -m docs.results

bench: .venv/ready  ## measure the running parts; figures are printed as JSON
	$(BIN)/bco bench serving --json

clean:  ## remove the environment and the local database
	rm -rf .venv var
