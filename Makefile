# Everything a newcomer needs: `make demo` and `make test`. Each sets up .venv by itself, once.
PYTHON ?= python3
BIN := .venv/bin
# Quiet pip keeps the first screen readable; its errors still show. Modules are compiled when they are imported: most
# never are, and compiling all of them takes half of the time. Old versions of pip take twice as long.
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# Compiled modules are kept, also where the environment says otherwise: compiling all of them for every process takes
# twenty seconds.
export PYTHONDONTWRITEBYTECODE :=
# A process more than there are cores: many tests wait for servers, disks and other processes.
CORES := $(shell nproc 2>/dev/null || echo 1)

.PHONY: help demo test lint docs bench clean

help:
	@echo "make demo    set up, then train the included small model to answer questions by searching"
	@echo "make test    set up, then run all tests"
	@echo "make lint    ruff, mypy --strict, import rules, vocabulary"
	@echo "make docs    build the documentation site into build/site; fails on a broken link"
	@echo "make bench   run the benchmarks on this machine; prints one table each"
	@echo "make clean   remove .venv and caches"

demo: .venv/.installed
	$(BIN)/stepladder demo

test: .venv/.installed-dev
	$(BIN)/python -m pytest --numprocesses $$(($(CORES) + 1)) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python checks/words.py

# The reference is generated from the code, and links out of docs/ are followed, before the site is built.
docs: .venv/.installed-dev
	$(BIN)/python docs/site/build.py
	$(BIN)/zensical build --clean --strict

bench: .venv/.installed
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv .cache build .pytest_cache .mypy_cache .ruff_cache

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Stepladder needs Python >= 3.11; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up .venv (once; a minute or two) ..."
	@$(PYTHON) -m venv .venv
	@$(PIP) --upgrade pip
	@touch $@

.venv/.installed: .venv/.created pyproject.toml constraints.txt
	@$(PIP) --editable .
	@touch $@

.venv/.installed-dev: .venv/.created pyproject.toml constraints.txt
	@$(PIP) --editable ".[dev]"
	@touch .venv/.installed $@
