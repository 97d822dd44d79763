# Every habit of this repository; `make` alone lists them. Needed: make, and Python 3.11 to 3.13.
# Choose an interpreter with PYTHON=python3.12; hand arguments to pytest with ARGS="-k claim -x".

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_INSTALLED := $(VENV)/.installed-demo
PINS := .pins
UV := 0.13.9

# The first interpreter that fits. Kept lazy: it is asked for only when $(VENV) has to be made.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c '$(FITS)' >/dev/null 2>&1 && echo $$python && break; done)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test matrix mutants check lint types architecture format pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED) ## make .venv with everything, development tools too

# What is installed for development will do; without it, the demo installs only what it needs.
demo: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(DEMO_INSTALLED)) ## start everything and send real documents through it
	@$(BIN)/python -m examples.documents.demo $(ARGS)

test: $(INSTALLED) ## run the whole suite; it starts the servers that it needs
	@$(BIN)/python -m pytest $(ARGS)

matrix: $(INSTALLED) ## the tests of delivery on every broker, PostgreSQL and Python that is supported
	@$(BIN)/python -m tests.matrix $(ARGS)

mutants: $(INSTALLED) ## take each guard out in turn, in a copy, and see some test fail
	@$(BIN)/python -m tests.mutants $(ARGS)

check: lint types architecture ## lint, types and architecture: what has to pass before a commit

lint: $(INSTALLED) ## ruff over the Python, squawk over the SQL
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/squawk sql/lateack_sql/schema/*.sql sql/lateack_sql/queries/*.sql

types: $(INSTALLED) ## mypy, strict
	@$(BIN)/mypy

architecture: $(INSTALLED) ## the floors: who may import whom
	@$(BIN)/lint-imports --no-logo

format: $(INSTALLED) ## lay out the code and mend what can be mended
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

pins: ## write the constraints anew for pyproject.toml; UPGRADE=1 takes newer releases
	$(call need-python)
	@test -x $(PINS)/bin/uv || { $(PYTHON) -m venv $(PINS) && $(PINS)/bin/python -m pip install --quiet uv==$(UV); }
	@$(PINS)/bin/uv pip compile --no-config --quiet --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make pins" $(if $(UPGRADE),--upgrade) \
		--all-extras --group dev --output-file constraints.txt pyproject.toml
	@$(PINS)/bin/uv pip compile --no-config --quiet --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make pins" --constraints constraints.txt \
		--extra demo --group build --output-file constraints-demo.txt pyproject.toml
	@! grep -nE '://|^-' constraints.txt constraints-demo.txt

clean: ## remove .venv, the caches and what the demo kept; data of `lateack up` stays
	rm -rf $(VENV) $(PINS) .matrix dist build examples/documents/.data .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

define need-python
@test -n "$(PYTHON)" || { echo "lateack needs Python 3.11, 3.12 or 3.13, and none was found: install one, or name it with PYTHON=/path/to/python" >&2; exit 1; }
@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON) on this machine" >&2; exit 1; }
@$(PYTHON) -c '$(FITS)' || { echo "lateack needs Python 3.11, 3.12 or 3.13; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
endef

# A .venv is kept when its Python still works and fits; packages are brought to the pinned versions.
# Built without isolation, since the build's own tools are pinned and checked like everything else.
$(INSTALLED): pyproject.toml constraints.txt
	$(call install-pinned,constraints.txt)

$(DEMO_INSTALLED): pyproject.toml constraints-demo.txt
	$(call install-pinned,constraints-demo.txt)

define install-pinned
@$(BIN)/python -c 'import pip; $(FITS)' >/dev/null 2>&1 || $(MAKE) --no-print-directory $(VENV)
@echo "installing into $(VENV)"
@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(1)
@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
@touch $@
endef

.PHONY: $(VENV)
$(VENV):
	$(call need-python)
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
