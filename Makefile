# One place for every command of the project. An active virtual environment is used as it is; otherwise `.venv` is
# made. The first call installs (minutes); later calls see the stamp file and start at once.

PYTHON ?= python3
VENV := $(or $(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.longspan-installed
TORCH := $(shell grep '^torch==' constraints.txt)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
# One worker per core up to four, one thread each: many tiny tensors, so threads inside an operation only cost.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ $$n -gt 4 ] && n=4; echo $$n)
PYTEST ?=
# A worker that has finished its half takes from the other's: what one module shares is made once, and none waits.
TESTS = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# A virtual environment shared by two checkouts must be installed again when the checkout changes.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(shell rm -f $(STAMP))
endif

.PHONY: help install demo test test-all check lint types format gpu bench docs clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 18

install: $(STAMP)  ## make .venv (unless one is active) and install the package with its tools

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Longspan needs Python 3.11 or newer; this is %s: call make PYTHON=python3.11" % sys.version.split()[0])'
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing $(TORCH) and the package into $(VENV) (first time only)"
	$(PIP) -c constraints.txt $(TORCH)
	$(PIP) -c constraints.txt -e '.[dev]'
	@echo '$(CURDIR)' > $(STAMP)

demo: $(STAMP)  ## summarise a long text that every machine has, then ten times as much
	$(BIN)/python -m longspan.cli.demo

test: $(STAMP)  ## all tests but those marked slow, in minutes (PYTEST='-k window -x' passes options on)
	$(TESTS) -m 'not slow' $(PYTEST)

test-all: $(STAMP)  ## all tests, as CI runs them
	$(TESTS) $(PYTEST)

check: lint types  ## lint, format and types

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP)  ## repair what ruff can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A Python that sees CUDA already, such as that of a GPU image, is used as it is: nothing is installed, no network is asked.
# Only files with tests for a GPU are collected, so that packages which others need may be absent.
HAS_CUDA := import torch; raise SystemExit(not torch.cuda.is_available())
gpu:  ## tests and benchmark that need a CUDA device, ten minutes a call (BUDGET=540 seconds for the benchmark)
	@python=$(PYTHON); \
	$$python -c '$(HAS_CUDA)' 2>/dev/null || { $(MAKE) --no-print-directory install; python=$(BIN)/python; }; \
	$$python -c '$(HAS_CUDA)' || { echo 'make gpu needs a CUDA device and a CUDA build of torch; torch sees none'; exit 1; }; \
	export PYTHONPATH=src PYTHONUNBUFFERED=1; \
	status=0; \
	$$python -m pytest -m gpu $(PYTEST) $$(grep -rl 'mark\.gpu' tests --include='test_*.py') || status=$$?; \
	$$python benchmarks/gpu.py --budget $(or $(BUDGET),540) || status=$$?; \
	exit $$status

bench: $(STAMP)  ## every benchmark, each side by side with its peer (long)
	@set -e; for script in $$(grep -l '__main__' benchmarks/*.py); do \
	    if [ -z "$$LONGSPAN_DATA" ] && grep -q LONGSPAN_DATA $$script; then \
	        echo "== $$script skipped: it reads real documents, set LONGSPAN_DATA to their folder"; \
	    else echo "== $$script"; $(BIN)/python $$script; fi; \
	done

docs: $(STAMP)  ## draw the figures and build the site into site/
	$(BIN)/python docs/figures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "built site/index.html"

clean:  ## remove what was built; the virtual environment stays
	rm -rf build dist site .pytest_cache .ruff_cache .mypy_cache .hypothesis
