# Every target that needs the environment brings it up itself (scripts/setup); that costs about a
# second once it is there.

PYTHON_BIN := .venv/bin/python

# Two spinning OpenMP threads next to a busy neighbour can take fifty times as long as one.
export OMP_WAIT_POLICY := passive

# Tests wait for processes and leases more than they compute: two at a time, one thread each.
SPREAD := -n 2 --dist loadgroup
test verify: export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help quickstart test verify check fmt protos setup lock images clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 14

quickstart: setup ## From a fresh machine to a finished batch of real agent steps on a real model
	@.venv/bin/impala quickstart

test: check ## Set up, run all checks and the fast tests (under 10 minutes on 2 cores)
	@$(PYTHON_BIN) -m pytest -q $(SPREAD) -m "not slow"

verify: check ## All that `make test` runs, and the slow tests too
	@$(PYTHON_BIN) -m pytest -q $(SPREAD)

check: setup ## Formatting, lint, types and import rules
	@scripts/check

.PHONY: bazel
bazel: setup ## Build and test protos and cores with Bazel, in its sandbox (bazel/README.md)
	@bazel/run

fmt: setup ## Format the code and fix what lint can fix
	@$(PYTHON_BIN) -m ruff check -q --fix .
	@$(PYTHON_BIN) -m ruff format .

protos: setup ## Generate Python code from protos/ into gen/ (a part of setup)

setup: ## .venv, pinned dependencies, generated code, demo model, etcd
	@scripts/setup

lock: setup ## Pin the closure of requirements.in anew
	@$(PYTHON_BIN) scripts/make_lock.py

images: setup ## Build the services' container images and try them together (as root; no engine needed)
	@$(PYTHON_BIN) -m scripts.images

clean: ## Remove what was made here (.venv, gen, caches); the model cache stays
	@rm -rf .venv gen .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
