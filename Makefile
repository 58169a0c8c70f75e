# Everything runs in .venv, which is made here and filled anew only when pyproject.toml has changed.
# A fresh machine needs nothing but make and a Python of 3.10 or newer.

# The first Python that answers and is new enough; PYTHON=... takes another one.
PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11 python3.10 python \
	"$$HOME"/.pyenv/versions/3.1[0-3].*/bin/python; do \
	"$$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2])' 2>/dev/null && echo "$$python" && break; done)
MODEL ?= docs/examples/image
PORT ?=
FLAGS ?=
VENV := .venv
STAMP := $(VENV)/.installed
SERVES := $(VENV)/.serves
# Pythons of `make test-all`: on PATH, or in pyenv's versions folder when a shim does not answer.
VERSIONS := 3.10 3.11 3.12 3.13
PYENV := $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions
PACKAGES := python3 python3-venv tini util-linux chromium
# One process more than processors: the stories wait a good part of their time.
PROCESSES := $(shell python3 -c "import os; print(min(4, (os.cpu_count() or 1) + 1))" 2>/dev/null || echo 3)
CORES := $(shell python3 -c "import os; print(min(4, os.cpu_count() or 1))" 2>/dev/null || echo 2)
TESTFLAGS ?= -n $(PROCESSES) --dist worksteal -rs

.PHONY: serve test test-fast test-lowest check format rows map system test-all chaos soak pipes fuzz docs bench clean help

serve: $(SERVES)  ## serve the image example, or MODEL=path, on 127.0.0.1:8393, or PORT=number; FLAGS="--workers 2"
	@MAKE_SERVE=1 exec $(VENV)/bin/cog-trio serve $(MODEL) $(if $(PORT),--port $(PORT)) $(FLAGS)

# Hundreds of servers are started, each a third slower where it compiles its modules. Some shells forbid to keep bytecode.
BYTECODE := PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m compileall -q cog_trio scenarios tests

test: $(STAMP)  ## run all tests
	$(BYTECODE)
	$(VENV)/bin/python -m pytest $(TESTFLAGS)

test-fast: $(STAMP)  ## run the unit tests that are quick: on fakes, no process is started
	$(VENV)/bin/python -m pytest -n $(CORES) --dist worksteal -m "unit and not exhaustive" tests

check: $(STAMP)  ## format check, lint, types, language and form of the pages
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy --strict
	$(VENV)/bin/python -m tests.language
	$(VENV)/bin/pymarkdown scan --recurse --exclude 'docs/changes/*' README.md docs

format: $(STAMP)  ## format and fix what can be fixed
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

system:  ## Debian packages that the tests need, when root and when they are missing
	@{ python3 -c 'import ensurepip, venv' && command -v tini && command -v unshare && command -v chromium; } >/dev/null 2>&1 || { \
		test "$$(id -u)" = 0 || { echo "make system: needs root to install $(PACKAGES)" >&2; exit 1; }; \
		apt-get update && apt-get install -y --no-install-recommends $(PACKAGES); }

test-all:  ## run all tests on each Python of 3.10 to 3.13 that answers
	@found=""; failed=""; \
	for version in $(VERSIONS); do \
		for python in "python$$version" "$(PYENV)"/$$version.*/bin/python; do \
			"$$python" -c 1 2>/dev/null || continue; \
			found="$$found $$version"; \
			echo "== Python $$version: $$python"; \
			$(MAKE) --no-print-directory test PYTHON="$$python" VENV=".venv-$$version" || failed="$$failed $$version"; \
			break; \
		done; \
	done; \
	test -n "$$found" || { echo "make test-all: no Python of $(VERSIONS) answers" >&2; exit 1; }; \
	echo "== tested on:$$found"; \
	test -z "$$failed" || { echo "== failed on:$$failed" >&2; exit 1; }

# What talks to the network, to files and to the terminal: where an old release would be noticed.
# The extra `reload` needs a newer trio than the rest.
LOWEST := tests --ignore=tests/cli/serve/test_reload_watcher.py \
	$(patsubst %,scenarios/test_%.py,files http_rows metrics run run_remote sse webhooks websocket)

test-lowest: $(STAMP)  ## run the quick tests and some stories with the lowest versions of our dependencies
	@mkdir -p build
	$(VENV)/bin/uv pip compile --quiet --resolution lowest-direct --python $(VENV)/bin/python \
		--extra cli --no-header --no-annotate -o build/lowest.txt pyproject.toml
	$(VENV)/bin/uv venv --quiet --clear --python $(VENV)/bin/python build/lowest
	$(VENV)/bin/uv pip install --quiet --python build/lowest/bin/python -e '.[dev]'
	$(VENV)/bin/uv pip install --quiet --python build/lowest/bin/python -r build/lowest.txt
	build/lowest/bin/python -m pytest $(TESTFLAGS) -m "not exhaustive and not process" $(LOWEST)

SEED ?=
SECONDS ?= 600
COUNT ?= 100000

chaos: $(STAMP)  ## random acts against one server after the other for SECONDS; SEED draws those of an earlier run again
	$(VENV)/bin/python -m scenarios.faults --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

soak: $(STAMP)  ## COUNT predictions on a sync and on an async model with flat memory, and the strict figures under load
	COG_TRIO_SOAK=$(COUNT) $(VENV)/bin/python -m pytest -s scenarios/faults/test_soak.py \
		scenarios/faults/test_load.py scenarios/test_files.py::test_hundreds_of_predictions_with_files_leave_nothing

pipes: $(STAMP)  ## 1 GB of output into a pipe whose reader sleeps for 20 s, as a file and as 1,000,000 chunks
	COG_TRIO_PIPE_MIB=1024 COG_TRIO_PIPE_WAIT=20 $(VENV)/bin/python -m pytest -s scenarios/test_pipes.py

BENCH := .venv-bench
BENCHFLAGS ?= --write

bench: $(STAMP) $(BENCH)/.installed  ## measure against coglet, write the page of results and its chart; BENCHFLAGS="--quick" only prints
	$(BYTECODE)
	$(VENV)/bin/python -m scenarios.bench --coglet $(BENCH)/bin/python $(BENCHFLAGS)
	$(BENCH)/bin/python -m scenarios.bench.chart

$(BENCH)/.installed: Makefile
	"$(PYTHON)" -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check cog==0.23.1 matplotlib
	PYTHONDONTWRITEBYTECODE= $(BENCH)/bin/python -m compileall -q $(BENCH)/lib || true  # some packages carry Python 2
	@touch $@

docs: $(STAMP)  ## the documentation as a site, in build/site; strict: a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict -f docs/site/mkdocs.yml

rows: $(STAMP)  ## each row of the checklists and each decision, with the tests that show it; what no test shows is an error
	$(VENV)/bin/python -m tests.rows

map: $(STAMP)  ## figures of the architecture: folders, imports, circles, the way of one prediction; REPO=path takes another checkout
	$(VENV)/bin/python tests/architecture_map.py $(if $(REPO),--repo $(REPO))

fuzz: $(STAMP)  ## requests that Schemathesis draws from the OpenAPI document for SECONDS; SEED draws those of an earlier run again
	COG_TRIO_FUZZ=$(SECONDS) COG_TRIO_FUZZ_SEED=$(SEED) $(VENV)/bin/python -m pytest -s scenarios/faults/test_api_fuzz.py

clean:  ## remove what make made
	rm -rf .venv .venv-* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

help:  ## list all of this
	@sed -n 's/^\([a-z-]*\):[^#]*## /make \1: /p' Makefile

# To serve takes a few packages, to test takes many.
$(SERVES): packages := -e '.[cli,reload]' 'pillow>=10'
$(STAMP): packages := -e '.[dev]'
$(STAMP) $(SERVES): pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python of 3.10 or newer found; name one with PYTHON=..." >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(packages)
	@touch $@
