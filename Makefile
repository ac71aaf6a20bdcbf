# One command each; `make` alone lists them. Every one may be run again, and does only what is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/setup.stamp
SETUP_ALL := .venv/setup-all.stamp
ARGS ?=
MINUTES ?= 30
PROCESSES ?= 6
SEED ?=

.PHONY: help
help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(SETUP)  ## make .venv: toc, editable, and what the demo needs (120 MB)

.PHONY: setup-all
setup-all: $(SETUP_ALL)  ## the same with Spark and the tools for tests (1 GB); lint and test do it themselves

$(SETUP): LOCK := requirements.lock
$(SETUP): pyproject.toml requirements-build.lock requirements.lock
	$(install)

$(SETUP_ALL): LOCK := requirements-all.lock
$(SETUP_ALL): pyproject.toml requirements-build.lock requirements-all.lock
	$(install)
	@touch $(SETUP)

# Without isolation: what builds a package is what requirements-build.lock has, and nothing is fetched for it.
define install
	@if command -v uv >/dev/null; then \
	  [ -x $(BIN)/python ] || uv venv --quiet --python $(PYTHON) .venv; \
	  for lock in requirements-build.lock $(LOCK); do \
	    uv pip install --quiet --python $(BIN)/python --no-build-isolation --require-hashes --requirement $$lock; \
	  done; \
	  uv pip install --quiet --python $(BIN)/python --no-build-isolation --no-deps --editable .; \
	else \
	  $(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	    [ "$$(id -u)" = 0 ] || { echo "python3-venv is missing: install it, as root"; exit 1; }; \
	    apt-get update -q; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends python3-venv; \
	  }; \
	  [ -x $(BIN)/pip ] || $(PYTHON) -m venv .venv; \
	  for lock in requirements-build.lock $(LOCK); do \
	    $(BIN)/pip install --quiet --no-build-isolation --require-hashes --requirement $$lock; \
	  done; \
	  $(BIN)/pip install --quiet --no-build-isolation --no-deps --editable .; \
	fi
	@touch $@
endef

.PHONY: servers
servers: setup  ## install the servers that tests, demo and benchmarks use, where missing
	@$(BIN)/python -m tests.servers install

.PHONY: lint
lint: setup-all  ## check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# All processes of a run would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# Each process has servers of its own. Tests wait much: three processes per processor core. See tests/balance.py.
SHARED := --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

# Outside CI a server may be missing: Docker may serve it, and else its tests are skipped.
.PHONY: test
test: setup-all  ## run the tests, on real servers; ARGS='-k word' goes to pytest
	@$(BIN)/python -m tests.servers install || [ -z "$${CI:-}" ]
	@$(BIN)/pytest $(if $(ARGS),$(ARGS),$(SHARED))

.PHONY: durations
durations: setup-all servers  ## run the tests and write down how long each file takes, to share them out well
	@TOC_TEST_DURATIONS=write $(BIN)/pytest $(SHARED)

.PHONY: reference
reference: setup-all  ## make the pages of docs/reference that come from the program
	@$(BIN)/python -m tests.tidy.reference_pages

.PHONY: docs
docs: setup-all  ## make the site of docs/ in build/docs, without warnings; open build/docs/index.html
	@$(BIN)/sphinx-build -W --keep-going -n -q -d build/doctrees docs build/docs
	@cp build/docs/README.html build/docs/index.html

.PHONY: test-all
test-all: setup-all servers  ## the tests that take hours too: 5,000 seeds, every fault, the large models
	@TOC_TEST_ALL=1 TOC_TEST_SEEDS=$${TOC_TEST_SEEDS:-5000} $(BIN)/pytest $(if $(ARGS),$(ARGS),$(SHARED))

.PHONY: reliability
reliability: setup-all servers  ## break real servers under load, and print what became of the jobs
	@TOC_TEST_ALL=1 $(BIN)/pytest tests/reliability -p no:randomly $(ARGS)

.PHONY: model
model: setup-all  ## go through every state of the protocols' model, whole and broken; TOC_TEST_ALL=1: the large ones too
	@$(BIN)/python -m tests.servers install spin
	@$(BIN)/pytest tests/model -p no:randomly $(ARGS)

.PHONY: simulation
simulation: setup-all servers  ## whole nodes in one process, faults between any two steps: ARGS='--seeds 1-1000'
	@$(BIN)/python -m tests.simulation $(ARGS)

.PHONY: chaos
chaos: setup-all servers  ## break everything, drawn from a seed, and judge: MINUTES=30 SEED=word TOC_CHAOS_DB=mariadb
	@$(BIN)/python -m tests.chaos.run --minutes $(MINUTES) --seed "$(SEED)" $(ARGS)

.PHONY: demo
demo: setup  ## show it
	@$(BIN)/toc demo $(ARGS)

.PHONY: bench
# Without TLS, for the baseline as for toc: on loopback it protects nothing and costs both.
bench: setup-all servers  ## measure toc beside the bare drivers, on fresh MySQL and Redis servers
	@$(BIN)/python -m tests.servers run mysql redis -- bash -c \
	  'TOC_DATABASES=$$TOC_TEST_MYSQL_URL/toc TOC_MYSQL__TLS=off TOC_REDIS_URL=$$TOC_TEST_REDIS_URL exec "$$@"' \
	  bench $(BIN)/python -m tests.bench $(ARGS)

# Not in .venv: what audits is no part of what is audited.
AUDIT := .venv-audit
.PHONY: audit
audit: $(AUDIT)/setup.stamp  ## look up known vulnerabilities of all that is locked; skipped where their database is away
	@for lock in requirements-build.lock requirements-all.lock requirements-audit.lock; do \
	  rm -f $(AUDIT)/found; \
	  $(AUDIT)/bin/pip-audit --strict --require-hashes --disable-pip --progress-spinner off --format columns \
	    --requirement $$lock --output $(AUDIT)/found 2>$(AUDIT)/said && { echo "$$lock: nothing known"; continue; }; \
	  [ -s $(AUDIT)/found ] && { echo "$$lock:"; cat $(AUDIT)/found; exit 1; }; \
	  echo "audit SKIPPED, nothing was looked up: the database of vulnerabilities does not answer, or not for all:"; \
	  tail -n 1 $(AUDIT)/said; break; \
	done

$(AUDIT)/setup.stamp: requirements-audit.lock
	@if command -v uv >/dev/null; then \
	  [ -x $(AUDIT)/bin/python ] || uv venv --quiet --python $(PYTHON) $(AUDIT); \
	  uv pip install --quiet --python $(AUDIT)/bin/python --only-binary :all: --require-hashes --requirement $<; \
	else \
	  [ -x $(AUDIT)/bin/pip ] || $(PYTHON) -m venv $(AUDIT); \
	  $(AUDIT)/bin/pip install --quiet --only-binary :all: --require-hashes --requirement $<; \
	fi
	@touch $@

.PHONY: release
release: setup audit  ## build and check sdist and wheel; write them, notes, SBOM and checksums to dist/
	@$(BIN)/python -m tests.release --tools $(AUDIT)

.PHONY: lock
lock:  ## resolve the dependencies anew into the files requirements….lock (needs uv)
	$(compile) pyproject.toml --extra embedded --extra web --extra client --extra reconcile --group dev --group docs $(ARGS) --output-file requirements-all.lock
	$(compile) pyproject.toml --extra embedded --extra web --extra client --constraints requirements-all.lock --output-file requirements.lock
	$(compile) pyproject.toml --extra reconcile --constraints requirements-all.lock --output-file requirements-spark.lock
	$(compile) --group build --constraints requirements-all.lock --output-file requirements-build.lock
	$(compile) --group audit $(ARGS) --output-file requirements-audit.lock
	@! grep -n '://' requirements*.lock

compile = uv pip compile --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command 'make lock' --quiet
