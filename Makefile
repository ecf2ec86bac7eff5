# One place for every command of the project. An active virtual environment is used as it is; otherwise `.venv` is
# made. The first call installs (minutes); later calls see the stamp file and start at once.

PYTHON ?= python3
VENV := $(or $(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.longspan-installed
PACKAGES := packages/longspan packages/longspan-documents packages/longspan-papers
TORCH := $(shell grep '^torch==' constraints.txt)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
# One worker per core up to four, one thread each: many tiny tensors, so threads inside an operation only cost.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ $$n -gt 4 ] && n=4; echo $$n)
PYTEST ?=
# A worker that has finished its half takes from the other's: what one module shares is made once, and none waits.
PYTEST_IN = OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -n $(WORKERS) --dist worksteal
TESTS = $(call PYTEST_IN,$(VENV))
# The packages as they stand here, the first of them with these extras.
EDITABLE = -e '$(firstword $(PACKAGES))[$(1)]' $(addprefix -e ,$(wordlist 2,9,$(PACKAGES)))
# What is tested with other versions than those of constraints.txt: `dev`, and the extras that `dev` leaves out.
EXTRAS := dev,langchain,ray,sentence-transformers

# A virtual environment shared by two checkouts must be installed again when the checkout changes.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(shell rm -f $(STAMP))
endif

.PHONY: help install demo test test-all test-newest test-oldest smoke release-check check lint types format gpu programs bench docs clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 18

install: $(STAMP)  ## make .venv (unless one is active) and install the package with its tools

$(STAMP): $(PACKAGES:%=%/pyproject.toml) constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Longspan needs Python 3.11 or newer; this is %s: call make PYTHON=python3.11" % sys.version.split()[0])'
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing $(TORCH) and the package into $(VENV) (first time only)"
	$(PIP) -c constraints.txt $(TORCH)
	$(PIP) -c constraints.txt $(call EDITABLE,dev)
	@echo '$(CURDIR)' > $(STAMP)

demo: $(STAMP)  ## summarise a long text that every machine has, then ten times as much
	$(BIN)/python -m longspan_documents.cli.demo

PACKAGE ?=
test: $(STAMP)  ## all tests but those marked slow (PACKAGE=longspan: of one package, in minutes; PYTEST='-k window -x' passes options on)
	$(TESTS) -m 'not slow$(if $(PACKAGE), and not variant)' $(if $(PACKAGE),packages/$(PACKAGE)/tests) $(PYTEST)

test-all: $(STAMP)  ## all tests, as CI runs them
	$(TESTS) $(PYTEST)

# Neither uses or changes the active environment. Both install again what has changed since the last call. Old releases
# are installed with new ones of what they depend on themselves, and warn of it: that alone is no failure.
OLD := -W default::DeprecationWarning -W default::PendingDeprecationWarning
test-newest:  ## the tests of `make test` with the newest versions that the packages allow, in .venv-newest
	@test -x .venv-newest/bin/python || $(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager $(call EDITABLE,$(EXTRAS))
	$(call PYTEST_IN,.venv-newest) -m 'not slow' $(PYTEST)

test-oldest:  ## the same with the oldest versions that it declares, in .venv-oldest
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	$(PYTHON) tools/oldest_versions.py > .venv-oldest/oldest.txt
	.venv-oldest/bin/python -m pip install --quiet -c .venv-oldest/oldest.txt $(call EDITABLE,$(EXTRAS))
	$(call PYTEST_IN,.venv-oldest) -m 'not slow' $(OLD) $(PYTEST)

# As a newcomer does on a fresh machine. Only torch is pinned, whose newest brings gigabytes: TORCH=torch takes that too.
WHEELS ?=
smoke:  ## build the wheels (WHEELS=DIR: take those), install them with the newest versions into a fresh environment, and try every verb
	@set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	unset VIRTUAL_ENV PYTHONPATH PYTHONHOME; \
	$(PYTHON) -m venv "$$work/venv"; python="$$work/venv/bin/python"; \
	$(if $(WHEELS),cp $(WHEELS)/*/*.whl "$$work",$$python -m pip wheel --quiet --no-deps --wheel-dir "$$work" $(addprefix ./,$(PACKAGES))); \
	cd "$$work"; export OMP_NUM_THREADS=1; \
	$$python -m pip install --quiet '$(TORCH)' "$$work"/longspan-*.whl; \
	$$python '$(CURDIR)/tools/smoke.py' models; \
	$$python -m pip install --quiet "$$work"/longspan_documents-*.whl; \
	$$python '$(CURDIR)/tools/smoke.py' documents; \
	$$python -m pip install --quiet "$$(echo "$$work"/longspan-*.whl)[all]" "$$work"/longspan_*.whl; \
	$$python -m pip check; \
	$$python '$(CURDIR)/tools/smoke.py'

PYTHONS ?= $(PYTHON)
release-check:  ## build what is released into dist/, twice and equal to the byte, and try it with each of PYTHONS='python3.11 python3.14'
	rm -rf dist
	@set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; unset VIRTUAL_ENV PYTHONPATH PYTHONHOME; \
	$(PYTHON) -m venv "$$work"; "$$work/bin/python" -m pip install --quiet -r tools/release.txt; \
	"$$work/bin/python" tools/release.py dist
	@set -e; for python in $(PYTHONS); do echo "trying the wheels with $$($$python --version)"; \
	    $(MAKE) --no-print-directory smoke WHEELS='$(CURDIR)/dist' PYTHON="$$python"; done

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
gpu:  ## benchmark and tests that need a CUDA device, in this order; failed tests alone (BUDGET=420 seconds, FROM=section)
	@python=$(PYTHON); \
	$$python -c '$(HAS_CUDA)' 2>/dev/null || { $(MAKE) --no-print-directory install; python=$(BIN)/python; }; \
	$$python -c '$(HAS_CUDA)' || { echo 'make gpu needs a CUDA device and a CUDA build of torch; torch sees none'; exit 1; }; \
	export PYTHONPATH="$$($$python tools/source_paths.py)" PYTHONUNBUFFERED=1; \
	status=0; \
	$$python benchmarks/gpu.py --budget $(or $(BUDGET),420) --from $(or $(FROM),device) || status=$$?; \
	$$python -m pytest -m gpu --last-failed -o cache_dir=runs/gpu/pytest $(PYTEST) $$(grep -rl 'mark\.gpu' packages/*/tests tests --include='test_*.py') || status=$$?; \
	exit $$status

# Triton is not among the packages: PyTorch for a GPU brings its own, and for a processor none is needed.
programs: $(STAMP)  ## compile our GPU programs for devices that are not here: FlexAttention's may not spill, fused steps are one kernel each
	@test -d .triton || $(PIP) --no-deps --target .triton triton
	PYTHONPATH=.triton $(TESTS) packages/longspan/tests/ops/test_flex_programs.py packages/longspan/tests/ops/test_fused_programs.py $(PYTEST)

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

clean:  ## remove what was built; the virtual environment stays, those of test-newest and test-oldest do not
	rm -rf .venv-newest .venv-oldest .triton build dist site .pytest_cache .ruff_cache .mypy_cache .hypothesis
