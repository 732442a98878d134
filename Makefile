# make run    train and evaluate Discrete SAC on CartPole; ARGS="algo=ppo env=acrobot" runs something else
# make test   the test suite, in under ten minutes on two cores; make test-learning the rest: long trainings, more combinations
# Both create .venv and install pinned dependencies the first time.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run test test-learning lint format clean

run: $(INSTALLED)
	$(BIN)/rlexp $(or $(ARGS),zoo=discrete_sac_cartpole)

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not learning" $(ARGS)

test-learning: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 -m learning $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing rlexp and its dependencies into $(VENV), once: this may take some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
