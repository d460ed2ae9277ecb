# Every task of developers and CI. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-from-lock
# Make it anew if its Python is gone, as after an upgrade of the system.
$(shell test -x $(BIN)/python || rm -f $(STAMP))

# An ENV that is a path is the start-up file of a shell.
ENV_ID := $(or $(filter-out /% ~% .%,$(ENV)),CartPole-v1)
WORKERS ?= 2
ARGS ?=
JOBS ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup train test extras chaos bench check next docs format lock clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with the locked versions

$(STAMP): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "make: $(PYTHON) is not Python 3.11 to 3.13: give PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(if $(wildcard $@),,--clear) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

train: setup ## train ENV (CartPole-v1) with WORKERS (2) until solved
	$(BIN)/python launch_cluster.py --env-id $(ENV_ID) --workers $(WORKERS) --mode child $(ARGS)

test: setup ## run the tests, JOBS (4) test files at a time; JOBS=0: one after the other
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

extras: setup ## install and test the optional packages: W&B, MLflow, Box2D, MuJoCo, MiniGrid, MinAtar
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock \
		wandb mlflow-skinny 'gymnasium[box2d,mujoco]' minigrid minatar
	$(BIN)/python -m pytest tests/sinks.py tests/third_party.py $(ARGS)

chaos: setup ## inject random faults for 3 minutes and check invariants (root)
	$(BIN)/python -m benchmarks.chaos --minutes 3 $(ARGS)

bench: setup ## measure speed: floor, ps, scale, peers (a quarter of an hour; ARGS=--smoke)
	$(BIN)/python -m benchmarks $(ARGS)

check: setup ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

next: ## test the newest libraries that pyproject allows, in .venv-next; ARGS=--beyond: newer ones too
	$(PYTHON) -m venv --clear .venv-next
	.venv-next/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
		$$($(PYTHON) .ci/newest.py $(ARGS))
	-.venv-next/bin/python -m pip freeze | diff requirements.lock - # versions newer than the lock
	.venv-next/bin/python launch_cluster.py --env-id CartPole-v1 --mode child --workers 1 \
		--max-env-steps 4000 --evaluation-episodes 2 --run-dir .venv-next/run
	.venv-next/bin/python -m pytest -q --tb=line -p no:cacheprovider \
		tests/test_startup.py tests/test_envs.py tests/test_atari.py \
		tests/test_losses.py tests/test_returns.py

docs: setup .venv-docs/.made-from-lock ## build the documentation site, .docs/site/index.html
	$(BIN)/python docs/pages.py
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

.venv-docs/.made-from-lock: docs/requirements.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

format: setup ## format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## write the newest versions that pyproject.toml allows into requirements.lock
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --no-cache-dir '.[dev]'
	{ echo "# Versions only: made by 'make lock' from the ranges in pyproject.toml," \
	    "with $$($(PYTHON) -c 'import sys; print("Python %d.%d" % sys.version_info[:2])') on $$(uname)."; \
	  .venv-lock/bin/python -m pip freeze --exclude a3c-cluster | grep == ; } > requirements.lock
	rm -rf .venv-lock

clean: ## remove generated files (not runs/)
	rm -rf $(VENV) .venv-next .venv-docs .docs .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		benchmarks/*.bin
