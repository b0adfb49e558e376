# Needs Python 3.11 or newer and a package index; everything else goes into .venv, or with VENV=FOLDER into that folder.
PYTHON ?= python3
# Pins of the environment; CONSTRAINTS=constraints.in installs the newest releases within its bounds.
CONSTRAINTS ?= constraints.txt
# What `make titles` checks, and the Pythons that `make constraints` resolves with.
COMMITS ?= main..HEAD
PYTHONS ?= $(PYTHON)
# What `make fuzz` looks at, and for how long.
TARGET ?= sse
SECONDS ?= 60
# What measuring is about; it slows tests down, so the others run without.
MEASURED := tests/core tests/engine tests/dialects tests/config tests/documents tests/app

# Where the checkout cannot be written, the environment and what tools leave behind go to the user's cache folder.
ifeq ($(shell test -w . && echo writable),)
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/retinue-$(firstword $(shell pwd | cksum))
VENV ?= $(if $(wildcard .venv/.installed),.venv,$(CACHE)/venv)
SITE ?= $(CACHE)/docs
CLIENT ?= $(CACHE)/api-client
export COVERAGE_FILE := $(CACHE)/coverage
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/hypothesis
export PYTEST_ADDOPTS := -o 'cache_dir=$(CACHE)/pytest' $(PYTEST_ADDOPTS)
export PYTHONPYCACHEPREFIX := $(CACHE)/pycache
export RUFF_CACHE_DIR := $(CACHE)/ruff
endif
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
SITE ?= build/docs
# The environment of the generator of API clients.
CLIENT ?= build/api-client

.DEFAULT_GOAL := help
.PHONY: help venv python test lint check fix titles hooks docs docs-site picture stress fuzz hosts vendors bench api-client demo constraints model-data dist clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Whether the marker file $(1) is newer than what the environment is made from.
is_current = test -e "$(1)" && test -z "$$(find pyproject.toml constraints.txt -newer "$(1)")"

# Make the environment with the extras $(1), step by step, and then the marker file $(2). Without extras the pip of
# $(PYTHON) installs, if it can, because making one for the environment and compiling what the demo never imports take
# as long as the rest. Whatever is installed later gets a pip first.
define install
{ test -x "$(BIN)/python" || { \
	    echo "[1/2] creating the environment in $(VENV)" \
	    && $(PYTHON) -c 'import sys; sys.exit("retinue needs Python 3.11 or newer: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)' \
	    && $(PYTHON) -m venv --without-pip "$(VENV)"; }; } \
	  && echo "[2/2] installing Retinue$(if $(1), with the tools of its developers,) and its dependencies into $(VENV)" \
	  && if test -z "$(1)" && $(PYTHON) -m pip --python "$(BIN)/python" --version >/dev/null 2>&1; \
	    then pip() { $(PYTHON) -m pip --python "$(BIN)/python" "$$@" --no-compile; }; \
	    else "$(BIN)/python" -m pip --version >/dev/null 2>&1 || "$(BIN)/python" -m ensurepip >/dev/null; \
	      pip() { "$(BIN)/python" -m pip "$$@"; }; \
	    fi \
	  && pip install -q --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e ".$(1)" \
	  && touch "$(2)"
endef

# Not rules for files: make cannot name files whose path has spaces.
venv:  ## make the environment, or bring it up to date
	@$(call is_current,$(READY)) || { $(call install,[dev],$(READY)); } >&2

python: venv  ## say which Python the environment has
	@echo "$(BIN)/python"

test: venv  ## run the tests, with branch coverage
	@RETINUE_TEST_COUNTS="$$(mktemp)" && export RETINUE_TEST_COUNTS && trap 'rm -f "$$RETINUE_TEST_COUNTS"' EXIT \
	  && "$(BIN)/python" -m pytest -q -n 2 --cov --cov-report= $(MEASURED) \
	  && "$(BIN)/coverage" report \
	  && "$(BIN)/python" -m pytest -q -n 2 $(MEASURED:%=--ignore=%) \
	  && awk '{p += $$1; s += $$2} END {printf "all tests passed: %d passed, %d skipped\n", p, s}' "$$RETINUE_TEST_COUNTS"

lint: venv  ## lint and format alone, in a second
	@"$(BIN)/ruff" check -q
	@"$(BIN)/ruff" format -q --check

check: lint  ## lint, format, types and the direction of imports
	@"$(BIN)/basedpyright" --pythonpath "$(BIN)/python"
	@"$(BIN)/lint-imports" --no-logo --no-cache
	@"$(BIN)/python" scripts/check_examples.py

fix: venv  ## apply the fixes of the linter, and format
	@"$(BIN)/ruff" check -q --fix --exit-zero
	@"$(BIN)/ruff" format -q

titles: venv  ## check the messages of commits (COMMITS=main..HEAD)
	@"$(BIN)/python" scripts/commit_title.py --range "$(COMMITS)"

hooks: venv  ## install the git hooks of .pre-commit-config.yaml
	@"$(BIN)/pre-commit" install --install-hooks

docs: venv  ## write the reference pages that follow from the code
	@"$(BIN)/python" docs/generate.py

picture: venv  ## record the picture of the README from a run of the demo
	@"$(BIN)/python" docs/make_picture.py

docs-site: venv  ## build the documentation site, build/docs/site
	@test -e "$(READY)-docs" && test -z "$$(find pyproject.toml constraints.txt -newer "$(READY)-docs")" || { \
	  "$(BIN)/python" -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[docs]" \
	  && touch "$(READY)-docs"; }
	@"$(BIN)/python" docs/build_site.py "$(SITE)"

stress: venv  ## run every test at full size
	@RETINUE_STRESS=1 "$(BIN)/python" -m pytest -q -n 2 -m "stress or not stress"

fuzz: venv  ## look for inputs that a parser does not handle (TARGET=sse SECONDS=3600 ARGS=--keep)
	@"$(BIN)/python" -m tests.fuzz "$(TARGET)" --seconds "$(SECONDS)" $(ARGS)

hosts: venv  ## try MCP hosts and agent programs from npm with retinue, offline
	@"$(BIN)/python" scripts/hosts.py

vendors: venv  ## compare requests with the types of the vendors' SDKs
	@"$(BIN)/python" -c 'import anthropic, google.genai, openai' 2>/dev/null || "$(BIN)/python" -m pip install -q \
	  --disable-pip-version-check -c $(CONSTRAINTS) $(if $(filter %.txt,$(CONSTRAINTS)),-c constraints-vendors.txt) \
	  -e ".[vendors]" >&2
	@# botocore wants a python-dateutil before that of other packages, and works with it.
	@"$(BIN)/python" -c 'import botocore, jmespath' 2>/dev/null || "$(BIN)/python" -m pip install -q --no-deps \
	  --disable-pip-version-check $(if $(filter %.txt,$(CONSTRAINTS)),-c constraints-vendors.txt) botocore jmespath >&2
	@"$(BIN)/python" -m pytest -q tests/vendors

bench: venv  ## what retinue costs next to a bare loop, in some minutes (ARGS=--quick: in one)
	@"$(BIN)/python" -m bench.run $(ARGS)

api-client: venv  ## generate a client of the HTTP API with a stock generator, and try it
	@test -x "$(CLIENT)/bin/openapi-python-client" \
	  && test -z "$$(find constraints-client.txt -newer "$(CLIENT)/.installed")" || { \
	  "$(BIN)/python" -m venv --clear "$(CLIENT)" && "$(CLIENT)/bin/python" -m pip install -q \
	  --disable-pip-version-check $(if $(filter %.txt,$(CONSTRAINTS)),-c constraints-client.txt) \
	  "openapi-python-client>=0.29" && touch "$(CLIENT)/.installed"; } >&2
	@PATH="$$(cd "$(CLIENT)/bin" && pwd):$$PATH" "$(BIN)/python" -m pytest -q tests/web/test_openapi.py -k client

demo:  ## watch an incident, four agents and a crash; needs no model and no key
	@# The tools of developers are not needed.
	@$(call is_current,$(READY)) || $(call is_current,$(READY)-demo) || { $(call install,,$(READY)-demo); }
	@"$(BIN)/retinue" demo

constraints: venv  ## pin the newest releases in constraints.txt (PYTHONS="python3.11 python3.14")
	@"$(BIN)/python" scripts/constraints.py $(PYTHONS)

model-data: venv  ## write the prices and context windows of models anew, from two public data sets
	@"$(BIN)/python" scripts/model_data.py

dist: venv  ## build the sdist and the wheel in dist/
	@rm -rf dist
	@"$(BIN)/python" -m build

clean:  ## remove .venv and what the tools left behind
	@rm -rf .venv .coverage .coverage.* htmlcov dist build .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests bench docs examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
