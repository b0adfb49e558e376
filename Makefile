# Needs Python 3.11 or newer and a package index; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed
# What measuring is about; it slows tests down, so the others run without.
MEASURED := tests/core tests/engine tests/dialects

.DEFAULT_GOAL := help
.PHONY: help venv test check docs stress bench demo clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY)  ## make .venv, or bring it up to date

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { \
	  $(PYTHON) -c 'import sys; sys.exit("retinue needs Python 3.11 or newer: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)' \
	  && $(PYTHON) -m venv .venv; }
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

test: $(READY)  ## run the tests, with branch coverage
	@$(BIN)/python -m pytest -q -n 2 --cov --cov-report= $(MEASURED)
	@$(BIN)/coverage report
	@$(BIN)/python -m pytest -q -n 2 $(MEASURED:%=--ignore=%)

check: $(READY)  ## lint, format, types and the direction of imports
	@$(BIN)/ruff check -q
	@$(BIN)/ruff format -q --check
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports --no-logo

docs: $(READY)  ## write the reference pages that follow from the code
	@$(BIN)/python docs/generate.py

stress: $(READY)  ## run every test at full size
	@RETINUE_STRESS=1 $(BIN)/python -m pytest -q -n 2 -m "stress or not stress"

bench: $(READY)  ## what retinue costs next to a bare loop, in some minutes (ARGS=--quick: in one)
	@$(BIN)/python -m bench.run $(ARGS)

demo: $(READY)  ## watch an incident, three agents and a crash; needs no model and no key
	@$(BIN)/retinue demo

clean:  ## remove .venv and whatever the tools left behind
	@rm -rf .venv .coverage .coverage.* htmlcov dist build .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
