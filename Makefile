# Everything a developer runs. `make` alone prints this list.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
EXTRAS := dashboard,trainer,balance,cluster,hta,docs,dev
# PYTHON=python3.12 chooses the interpreter that .venv is made from.
PYTHON ?=
# SERVE=0 ends `make demo` after the diagnosis instead of serving the dashboard.
SERVE ?= 1
# How long `make fuzz` spends on each format.
SECONDS ?= 20
# More arguments for pytest, for example ARGS='-k layout'.
ARGS ?=
FORMATTED := probe analyze dashboard reference_trainer src tests bench docs
PYTEST := $(PY) -m pytest -rs
PARALLEL := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# A file of tests runs on each core; tests/conftest.py has them begin with the long ones. Those that
# start processes come apart: they share a server of processes. Tests that measure time are marked
# ``alone``, and wait until nothing else runs.
# Arguments that leave nothing of one of the two parts (exit code 5) are no failure.
run-tests = $(PYTEST) $(PARALLEL) -m $(1) $(ARGS) || [[ $$? -eq 5 && -n '$(subst ','\'',$(ARGS))' ]]
# What is never imported is never compiled, and what is, once: the tests start a thousand processes.
unexport PYTHONDONTWRITEBYTECODE
install = $(1)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt

.PHONY: help setup demo truth test test-fast golden chromium lint fmt types imports docs docs-check site coverage changelog cut release bench bench-large frameworks frameworks-setup fuzz screenshots check clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install meshscope with its pinned dependencies

# torch goes first and alone: once it is there at its pinned version, nothing
# that follows can pull another build of it. setuptools comes with it because
# the editable build runs inside .venv, where its version is pinned too; so does pip,
# because that of Debian 12 (23.0) takes hours to resolve what a newer one does at once.
$(STAMP): pyproject.toml constraints.txt
	@.ci/make-venv "$(VENV)" "$(PYTHON)"
	$(call install,$(VENV)) pip setuptools torch
	$(call install,$(VENV)) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@

demo: setup ## run a trainer with a hidden slow rank, diagnose it, serve the dashboard
	$(VENV)/bin/meshscope demo $(if $(filter 0,$(SERVE)),--no-serve)

# Arrays of pandas 3 are read-only; so they are here under pandas 2, which the tests otherwise run with.
test: export PANDAS_COPY_ON_WRITE := 1
test: setup chromium ## run all tests that this machine can run; print what was skipped
	$(call run-tests,"not distributed and not browser and not frameworks")
	$(call run-tests,"(distributed or browser) and not frameworks")

test-fast: setup ## run the tests that need no browser, no second process and no patience
	$(PYTEST) $(PARALLEL) -m "not slow and not distributed and not browser" $(ARGS)

# Other frameworks live in an environment of their own: no pin of theirs touches ours.
FRAMEWORKS := .venv-frameworks
# Its packages come first: they need nothing of ours, so that CI fetches them beside `setup`.
$(FRAMEWORKS)/.packages: constraints.txt tests/frameworks/requirements.txt
	@.ci/make-venv "$(FRAMEWORKS)" "$(PYTHON)"
	$(call install,$(FRAMEWORKS)) pip setuptools torch
	$(call install,$(FRAMEWORKS)) --requirement tests/frameworks/requirements.txt
	@touch $@

$(FRAMEWORKS)/.installed: pyproject.toml $(FRAMEWORKS)/.packages
	$(call install,$(FRAMEWORKS)) --no-build-isolation --editable .
	@touch $@

frameworks-setup: setup $(FRAMEWORKS)/.installed # the environment of the other frameworks

frameworks: frameworks-setup ## try the probe on trainers of DeepSpeed, Hugging Face, Lightning, Megatron-core and torchtitan
	$(PYTEST) -n 2 tests/frameworks $(ARGS)

WHEEL := build/wheel/meshscope-*.whl
versions: versions-newest versions-lowest ## try the wheel with the newest and the lowest core dependencies allowed

versions-newest versions-lowest: versions-%: build/wheel
	@.ci/test-versions $* $(WHEEL) "$(PYTHON)"

.PHONY: build/wheel versions versions-newest versions-lowest
build/wheel: setup
	@rm -rf build
	@$(PY) -m build --wheel --no-isolation --outdir $@ . >/dev/null

chromium: # a system Chromium for the browser tests, where it may be installed
	@.ci/install-chromium

truth: setup ## diagnose synthetic, live and foreign jobs, print hits, errors and misses (50 to 75 minutes)
	$(PY) -m tests.truth.matrix
	$(PY) -m tests.truth.live
	$(PY) -m tests.truth.foreign

golden: setup ## write the expected reports of tests/golden anew; review the diff like code
	MESHSCOPE_GOLDEN=write $(PYTEST) -q tests/golden

lint: setup ## check format and style with ruff
	$(PY) -m ruff format --check $(FORMATTED)
	$(PY) -m ruff check $(FORMATTED)

fmt: setup ## rewrite the sources in the project's format
	$(PY) -m ruff format $(FORMATTED)
	$(PY) -m ruff check --fix $(FORMATTED)

types: setup ## check types with mypy --strict
	$(PY) -m mypy
	$(PY) -m mypy tests/typing/api.py

imports: setup ## check the direction of imports
	$(VENV)/bin/lint-imports --no-logo

docs: setup ## write the generated pages of docs/
	$(PY) docs/generate.py

docs-check: setup ## fail if a generated page of docs/ is out of date, or a link of the site leads nowhere
	$(PY) docs/generate.py --check
	@$(MAKE) --no-print-directory site

site: setup # write the pages of docs/ as a site into build/site
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

coverage: setup ## run the tests of one process with branch coverage, print what no test runs
	$(PYTEST) $(PARALLEL) -m "not distributed and not browser and not alone and not frameworks" --cov --cov-report=term:skip-covered $(ARGS)

changelog: setup ## print the changelog of the next release from changes/
	@$(VENV)/bin/towncrier build --draft --version next

cut: setup ## write changelog and version of a release: make cut VERSION=0.1.0
	$(PY) .ci/cut_release.py $(VERSION)

release: setup ## build sdist and wheel into dist/, and try the wheel made from the sdist in a fresh environment
	@.ci/release

bench: setup ## measure what the probe and the readers cost; fails where the probe exceeds a budget
	$(PY) bench/run.py

SIZES ?= 256x1000 1024x1000 4096x100

bench-large: setup ## the part of bench that measures summaries of many ranks alone: of SIZES, by one worker and by two (8 minutes of CPU time)
	$(PY) bench/summaries.py $(SIZES)

fuzz: setup ## feed the readers damaged files for SECONDS each (20), guided by coverage (x86-64 Linux)
	$(call install,$(VENV)) --no-build-isolation --editable '.[fuzz]'
	$(PY) -m tests.fuzz.run --seconds $(SECONDS)

# Pages show the whole path of a run: one that is the same on every machine.
screenshots: PICTURES := /tmp/meshscope-pictures
screenshots: setup chromium ## run the demo and take the pictures of docs/images from it
	rm -rf $(PICTURES)
	$(VENV)/bin/meshscope demo --no-serve --out $(PICTURES)
	$(PY) -m meshscope.dashboard.screenshot $(PICTURES)/runs docs/images demo

check: lint types imports docs-check versions test frameworks ## all that CI runs, in its order

clean: ## remove caches and builds; .venv and recorded runs stay
	rm -rf build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find probe analyze dashboard reference_trainer src tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +
