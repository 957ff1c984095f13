# All that is done with a clone. `make help` lists it; `make demo` and `make test` are the two to know.

PYTHON ?= python3
ARGS   ?=
VENV   := .venv
BIN    := $(VENV)/bin
PIP     = $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

# Each stamp says that a group of dependencies is installed as pyproject.toml has it now.
READY       := $(VENV)/.ready
READY_TEST  := $(VENV)/.ready-test
READY_CHECK := $(VENV)/.ready-check
READY_BENCH := $(VENV)/.ready-bench
READY_DOCS  := $(VENV)/.ready-docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check format bench docs clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target what; do printf '%-14s %s\n' "$$target" "$$what"; done

demo: $(READY) ## Kill a writer, stop an agent, and see that nothing is lost
	@$(BIN)/python examples/demo.py
	@$(BIN)/python examples/agent_demo.py

test: $(READY_TEST) ## Run the tests (ARGS='-k torn' for some of them)
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 \
		--dist loadscope --no-loadscope-reorder $(ARGS)

check: $(READY_CHECK) ## Check style, types and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	@PATH="$(CURDIR)/$(BIN):$$PATH" pyright --verifytypes turnlog --ignoreexternal \
		>$(VENV)/types.txt || { cat $(VENV)/types.txt; exit 1; }
	@grep score $(VENV)/types.txt


format: $(READY_CHECK) ## Format the code, and mend what the linter can mend
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(READY_BENCH) ## Measure beside raw limits and peers (ARGS=--smoke for a quick look)
	@$(BIN)/python benchmarks/run.py $(ARGS)

docs: $(READY_DOCS) ## Build the documents as a site, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict >$(VENV)/docs.txt 2>&1 || \
		{ cat $(VENV)/docs.txt; exit 1; }
	@echo 'Built site/index.html'

clean: ## Remove the virtual environment and all caches
	@rm -rf $(VENV) .coverage* .hypothesis .import_linter_cache .pytest_cache .ruff_cache dist site

# ---- setting up; done once, and again when pyproject.toml changes ----

# Installs Debian packages where that is possible, else says which are missing.
debian = if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo "Installing Debian's$(1) ..."; \
	said=$$( { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		apt-get install -qq --yes --no-install-recommends $(1); } </dev/null 2>&1 ) || \
		{ echo "$$said"; false; }; \
	else false; fi

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'turnlog needs Python 3.11 or newer: make PYTHON=python3.12 ...'; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(call debian, python3-venv) || \
		{ echo "Python's venv is missing: install python3-venv"; exit 1; }
	@echo 'Setting up $(VENV) ...'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install 'pip>=25.1'
	@$(PIP) install --editable '.[agents,cli]'
	@touch $@

$(READY_TEST): $(READY)
	@echo 'Installing what the tests need ...'
	@$(PIP) install --group test
	@PATH="$$PATH:/usr/sbin:/sbin"; missing=; \
	for tool in strace:strace mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs openssl:openssl \
		pgbouncer:pgbouncer; do \
		command -v "$${tool%:*}" >/dev/null || missing="$$missing $${tool#*:}"; \
	done; \
	[ -z "$$missing" ] || { $(call debian,$$missing); } || \
		echo "Without Debian's$$missing some tests of faults are skipped."
	@touch $@

$(READY_CHECK): $(READY)
	@echo 'Installing what the checks need ...'
	@$(PIP) install --group check
	@touch $@

$(READY_BENCH): $(READY)
	@echo 'Installing what the benchmarks need ...'
	@$(PIP) install --group bench
	@touch $@

$(READY_DOCS): $(READY)
	@echo 'Installing what the documents need ...'
	@$(PIP) install --group docs
	@touch $@
