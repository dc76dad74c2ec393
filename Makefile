# Two commands: `make bench` and `make test`. Both build .venv when it is missing or out of date.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

.PHONY: test
test: $(VENV)/.ready
	$(BIN)/python -m pytest -m "not slow and not neuron and not realweights" -n auto
