# What can be made here: `make` lists it. PYTHON chooses the interpreter of .venv: make install PYTHON=python3.12

PYTHON ?= python3
NAME ?=
HISTORIES ?= 5000
SEED ?=
ROUNDS ?= 25
PY := .venv/bin/python
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help check install run run-trace notebook test test-fast test-crash test-power simulate lint docs zip bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	  || { echo 'checkback: Python 3.10 or newer with venv is needed; install it, or name it: make install PYTHON=python3.12' >&2; exit 2; }
	@PYTHONPATH=lib $(PYTHON) -m checkback.spark.jvm

install: check $(STAMP) ## .venv with the pinned packages and Delta's JARs

$(STAMP): constraints.txt pyproject.toml | check
	@echo 'Installing into .venv: some minutes the first time'
	@$(PYTHON) -m venv .venv
	@$(PY) -m pip --disable-pip-version-check install --quiet --require-hashes -r constraints.txt
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation -e .
	@$(PY) -m checkback.application.prefetch
	@touch $@

run: install ## a demonstration: two services and their databases, killed now and then; the books must balance
	@$(PY) -m checkback.demo.bank

run-trace: install ## a demonstration on the trace of a real broker: check-backs, decisions, tables
	@$(PY) -m checkback.demo

notebook: install ## look at the tables in Jupyter: notebooks/; without any, the demonstration makes some first
	@test -d data/bank/data || env | grep -q '^CHECKBACK__STORAGE__' \
	  || { echo 'No tables yet: the demonstration makes some, in less than three minutes'; $(PY) -m checkback.demo.bank; }
	@$(PY) -m jupyterlab notebooks

test: install ## all tests, in two processes
	@$(PY) -m pytest -q -n 2 --dist loadfile

test-fast: install ## the tests that need no Spark
	@$(PY) -m pytest -q -m "not spark"

test-crash: install ## kill -9 of the running application under load, then an audit; ROUNDS=n, SEED=n
	@PYTHONPATH=lib:tests ROUNDS=$(ROUNDS) SEED=$(SEED) $(PY) -m crash

test-power: install ## one run, its power cut at many moments, started again after each; ROUNDS=n, SEED=n
	@PYTHONPATH=lib:tests ROUNDS=$(ROUNDS) SEED=$(SEED) $(PY) -m power

simulate: install ## histories of the protocol under faults, promises checked after each step; HISTORIES=n, SEED=n for one again
	@PYTHONPATH=lib:tests HISTORIES=$(HISTORIES) SEED=$(SEED) $(PY) -m simulator

lint: install ## ruff, mypy, import-linter; changes nothing
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-cache --no-logo

docs: install ## docs/settings.md and docs/tables.md, from the code
	@PYTHONPATH=lib:tests $(PY) -m docs

zip: ## dist/checkback.zip for spark-submit --py-files
	@$(PYTHON) .ci/zip.py lib/checkback dist/checkback.zip

bench: install ## benchmarks; NAME=... for one of them
	@$(PY) tests/benchmarks/run.py $(NAME)

clean: ## remove what the targets made, but for .venv and data/
	@rm -rf build dist artifacts spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find lib jobs tests -name __pycache__ -type d -prune -exec rm -rf {} +
