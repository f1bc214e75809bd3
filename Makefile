# `make` lists the targets. PYTHON selects the interpreter for .venv: make install PYTHON=python3.12

PYTHON ?= python3
NAME ?=
STORE ?= folder
ACCOUNTS ?= python
HISTORIES ?= 5000
SEED ?=
ROUNDS ?= 25
EXAMPLES ?= default
PY := .venv/bin/python
STAMP := .venv/.installed

# Modules are compiled once, not by each process that a test or a benchmark starts: a third of a command's start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help check install run run-trace notebook test test-rest test-all test-fast test-cluster test-crash test-power simulate lint docs screenshots zip bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	  || { echo 'checkback: Python 3.10 or newer with venv is needed; install it, or name it: make install PYTHON=python3.12' >&2; exit 2; }
	@PYTHONPATH=lib $(PYTHON) -m checkback.spark.jvm

install: check $(STAMP) ## create .venv with the pinned packages and Delta's JARs

$(STAMP): constraints.txt pyproject.toml | check
	@echo 'Installing into .venv: some minutes the first time'
	@$(PYTHON) -m venv .venv
	@$(PY) -m pip --disable-pip-version-check install --quiet --require-hashes -r constraints.txt
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation -e .
	@$(PY) -m checkback.application.prefetch
	@touch $@

run: install ## demo: two services and their databases, killed repeatedly; the accounts must balance; STORE=s3, ACCOUNTS=java
	@$(PY) -m examples.bank --store $(STORE) --accounts $(ACCOUNTS)

run-outbox: install ## demo of `land --table`: PostgreSQL (apt-get install postgresql), an outbox, a copy in Delta
	@$(PY) -m examples.outbox

run-trace: install ## demo on the trace of a real broker: checks, decisions, tables
	@$(PY) -m examples.trace

notebook: install ## inspect the tables in Jupyter (notebooks/); runs the demo first if there are none
	@test -d data/bank/data || env | grep -q '^CHECKBACK__STORAGE__' \
	  || { echo 'No tables yet: the demonstration makes some, in less than three minutes'; $(PY) -m examples.bank; }
	@$(PY) -m jupyterlab notebooks $$([ "$$(id -u)" != 0 ] || echo --allow-root)  # root, as in a container

# In memory, if there is room for files and programs: much of the tests' time would be waiting for the disk. Of those that
# passed nothing is kept.
TESTS := test test-rest test-fast
$(TESTS): TMPDIR := $(shell grep -qs ' /dev/shm .*noexec' /proc/mounts || df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4194304 { print $$6 }')
$(TESTS): PYTEST = TMPDIR=$(or $(TMPDIR),/tmp) $(PY) -m pytest -q --dist worksteal -o tmp_path_retention_policy=failed --hypothesis-profile=$(EXAMPLES)

# Two have a core each; while tests of the third wait, for their threads or the disk, the others use them. One has a Spark
# session.
test: install ## what starts neither Spark nor processes, and a spine of what does; EXAMPLES=thorough: 15 times the examples
	@$(PYTEST) -n 3 -m "not rest"

# A session each: a third would cost more than it brings.
test-rest: install ## all other tests: Spark, servers, stores, Kafka, catalogs, clusters, a browser, kill -9, benchmarks
	@DRIVERS=1 $(PYTEST) -n 2 -m rest

test-all: test test-rest ## all tests

test-fast: EXAMPLES = fast
test-fast: install ## the short tests, without Spark and processes of their own; a quarter of hypothesis' examples
	@$(PYTEST) -n 3 -m "not slow"

test-crash: install ## kill -9 the application under load, then audit; ROUNDS=n, SEED=n
	@PYTHONPATH=lib:tests ROUNDS=$(ROUNDS) SEED=$(SEED) $(PY) -m crash

test-cluster: install ## kill executors, workers and drivers of a standalone cluster under load, then audit; ROUNDS=n, SEED=n
	@DRIVERS=1 $(PY) -m pytest -q tests/cluster
	@PYTHONPATH=lib:tests ROUNDS=$(ROUNDS) SEED=$(SEED) $(PY) -m cluster

test-power: install ## record one run, simulate power cuts at many points, restart after each; ROUNDS=n, SEED=n
	@PYTHONPATH=lib:tests ROUNDS=$(ROUNDS) SEED=$(SEED) $(PY) -m power

simulate: install ## random histories with faults, invariants checked after each step; HISTORIES=n, SEED=n to replay one
	@PYTHONPATH=lib:tests HISTORIES=$(HISTORIES) SEED=$(SEED) $(PY) -m simulator

lint: install ## ruff, mypy, import-linter; read-only
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-cache --no-logo

docs: install ## generate docs/settings.md, docs/tables.md and the diagram in docs/architecture.md
	@PYTHONPATH=lib:tests $(PY) -m docs

screenshots: install ## docs/pictures of the dashboard on the demonstration's tables; needs Debian's chromium
	@PYTHONPATH=lib:tests $(PY) -m docs.screenshots

zip: ## build dist/checkback.zip for spark-submit --py-files
	@$(PYTHON) .ci/zip.py lib/checkback dist/checkback.zip

bench: install ## run the benchmarks; NAME=... for one of them
	@$(PY) tests/benchmarks/run.py $(NAME)

clean: ## remove build output and caches, except .venv and data/
	@rm -rf build dist artifacts spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find lib jobs tests -name __pycache__ -type d -prune -exec rm -rf {} +
