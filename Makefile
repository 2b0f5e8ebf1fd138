# Two commands do everything on a fresh machine: `make run` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Many processes import the same modules: each compiles them anew where a machine's environment forbids to keep that.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
BUILT := .venv/.built-for-run
READY := .venv/.ready-for-tests
DOSE ?= 1
ONLY ?=
MINUTES ?= 0
MACHINES ?=
NODES ?= 3
# Runs a command and `make static` side by side; fails if one of them does.
define beside_static
$(MAKE) --no-print-directory static >.static.log 2>&1 & static=$$!; failed=0; \
$(1) || failed=$$?; \
wait $$static || { failed=1; echo "format, lint, types or imports failed (make static):"; cat .static.log; }; \
exit $$failed
endef

.PHONY: help run demo web test check format shots bench soak interpreters lock clean

help: ## Show what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(BUILT) ## Start Hostler with a first machine: real ones where QEMU is; MACHINES=simulated for others
	@$(BIN)/python web/build.py --go-on
	@kind="$(MACHINES)"; options="--nodes $(NODES) --first-vm"; \
	if [ -n "$$kind" ]; then options="$$options --machines $$kind"; \
	elif command -v qemu-system-x86_64 >/dev/null && command -v qemu-img >/dev/null; then options="$$options --prefer-machines qemu"; \
	else echo "machines are simulated, for QEMU is not installed here: apt-get install --no-install-recommends qemu-system-x86 qemu-utils"; fi; \
	if [ -t 1 ]; then exec $(BIN)/hostler up $$options; else $(BIN)/hostler up $$options --detach; fi

demo: $(BUILT) ## See the store at work, in ten seconds
	@$(BIN)/hostler demo

web: $(BUILT) ## Build the web page anew (`make run` does it when its sources have changed)
	@$(BIN)/python web/build.py --force

test: $(READY) ## Set everything up and prove it: every check, every test, real servers (about 10 minutes)
	@$(BIN)/python web/build.py
	@$(BIN)/python tests/harness/precompile.py
	@$(call beside_static,$(BIN)/pytest -q --lanes)

check: $(READY) ## What to run before each commit: format, lint, types, imports, fast tests (45 seconds)
	@$(call beside_static,$(BIN)/pytest -q -n 4 -m "not slow" tests/unit)

.PHONY: static
static:
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache | tail -n 3
	$(BIN)/python web/build.py --check

format: $(READY) ## Put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

shots: $(READY) ## Take the pictures of docs/images anew, while the web tests run
	@$(BIN)/python web/build.py
	HOSTLER_SHOTS=1 $(BIN)/pytest -n 2 -q tests/web

bench: $(READY) ## Measure, side by side with the bare engines (figures: docs/performance.md)
	$(BIN)/python scripts/bench

soak: $(READY) ## The long campaigns at full dose, or at DOSE times that; goes on where it stopped (docs/testing.md)
	@$(BIN)/python web/build.py
	$(BIN)/python scripts/soak --dose $(DOSE) --only "$(ONLY)" --minutes $(MINUTES)

interpreters: $(READY) ## The fast tests on every Python from 3.11 on that this machine has, at least two
	$(BIN)/python scripts/interpreters

lock: ## Renew requirements.lock from pyproject.toml
	$(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/pip install --quiet uv
	$(BIN)/python -m uv pip compile pyproject.toml --all-extras --group dev --generate-hashes --universal --python-version 3.11 \
		--no-header --no-annotate --upgrade --quiet --output-file requirements.lock

clean: ## Remove what was built here
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf src/hostler/site src/hostler/.site-* web/node_modules .artefacts .soak .static.log

$(BUILT): scripts/setup requirements.lock pyproject.toml web/node.lock
	@scripts/setup run
	@touch $@

$(READY): $(BUILT) tests/servers/package-lock.json
	@scripts/setup test
	@touch $@
