# One command each; `make` alone lists them. Every one may be run again, and does only what is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/setup.stamp
ARGS ?=
MINUTES ?= 30
SEED ?=

.PHONY: help
help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(SETUP)  ## make .venv: the locked dependencies, and toc itself, editable

$(SETUP): pyproject.toml requirements.lock
	@if command -v uv >/dev/null; then \
	  [ -x $(BIN)/python ] || uv venv --quiet --python $(PYTHON) .venv; \
	  uv pip install --quiet --python $(BIN)/python --require-hashes --requirement requirements.lock; \
	  uv pip install --quiet --python $(BIN)/python --no-deps --editable .; \
	else \
	  $(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	    [ "$$(id -u)" = 0 ] || { echo "python3-venv is missing: install it, as root"; exit 1; }; \
	    apt-get update -q; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends python3-venv; \
	  }; \
	  [ -x $(BIN)/pip ] || $(PYTHON) -m venv .venv; \
	  $(BIN)/pip install --quiet --require-hashes --requirement requirements.lock; \
	  $(BIN)/pip install --quiet --no-deps --editable .; \
	fi
	@touch $@

.PHONY: servers
servers: setup  ## install the servers that tests, demo and benchmarks use, where missing
	@$(BIN)/python -m tests.servers install

.PHONY: lint
lint: setup  ## check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Outside CI a server may be missing: Docker may serve it, and else its tests are skipped. Three processes,
# each with servers of its own: the tests mostly wait.
.PHONY: test
test: setup  ## run the tests, on real servers; ARGS='-k word' goes to pytest
	@$(BIN)/python -m tests.servers install || [ -z "$${CI:-}" ]
	@$(BIN)/pytest $(if $(ARGS),$(ARGS),--numprocesses 3 --dist loadfile --no-loadscope-reorder)

.PHONY: reliability
reliability: servers  ## break real servers under load, and print what became of the jobs
	@$(BIN)/pytest tests/reliability -p no:randomly $(ARGS)

.PHONY: model
model: setup  ## go through every state of the protocols' model, whole and broken; TOC_TEST_MODEL=all: more
	@$(BIN)/python -m tests.servers install spin
	@$(BIN)/pytest tests/model -p no:randomly $(ARGS)

.PHONY: simulation
simulation: servers  ## whole nodes in one process, faults between any two steps: ARGS='--seeds 1-1000'
	@$(BIN)/python -m tests.simulation $(ARGS)

.PHONY: chaos
chaos: servers  ## break everything, drawn from a seed, and judge: MINUTES=30 SEED=word TOC_CHAOS_DB=mariadb
	@$(BIN)/python -m tests.chaos.run --minutes $(MINUTES) --seed "$(SEED)" $(ARGS)

.PHONY: demo
demo: setup  ## show it
	@$(BIN)/toc demo $(ARGS)

.PHONY: bench
# Without TLS, for the floor as for toc: on loopback it protects nothing and costs both.
bench: servers  ## measure it, on fresh MySQL and Redis servers
	@$(BIN)/python -m tests.servers run mysql redis -- bash -c \
	  'TOC_DATABASES=$$TOC_TEST_MYSQL_URL/toc?ssl_disabled=true TOC_REDIS_URL=$$TOC_TEST_REDIS_URL exec "$$@"' \
	  bench $(BIN)/toc bench $(ARGS)

.PHONY: lock
lock:  ## resolve the dependencies anew into requirements.lock (needs uv)
	uv pip compile pyproject.toml --extra embedded --extra reconcile --extra plot --group dev --universal --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' --quiet \
	  $(ARGS) --output-file requirements.lock
	@! grep -n '://' requirements.lock
