# Every target sets itself up: a fresh clone needs Python 3.10 or later and make, nothing else.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo toy check test lint bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with all that development needs (the others do this themselves)

demo: $(STAMP) ## learn the density of a real table, report on it, score it and sample from it
	$(BIN)/python examples/write_table.py demo/tumours.csv
	$(BIN)/sinuflow fit demo/tumours.csv -o demo/model.safetensors --report demo/report.html --force
	$(BIN)/sinuflow score demo/model.safetensors demo/tumours.csv -o demo/scored.csv --force
	$(BIN)/sinuflow sample demo/model.safetensors -n 1000 --seed 0 -o demo/new_rows.csv --force
	@echo "open $(CURDIR)/demo/report.html in a browser"

toy: $(STAMP) ## learn a density in two dimensions and draw it in toy_density.png
	$(BIN)/python examples/toy_density.py --output toy_density.png

check: $(STAMP) ## check what a change to a file needs, in seconds: make check FILE=src/sinuflow/files.py
	@$(BIN)/python scripts/check.py $(FILE)

test: $(STAMP) ## run the tests, the examples in the docstrings, and measure coverage
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term

lint: $(STAMP) ## check style, formatting, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## time Sinuflow beside zuko, some minutes; figures go to docs/results
	cd benchmarks && ../$(BIN)/python core.py --json ../docs/results/core_speed.json

clean: ## remove caches and build outputs, but not .venv
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache .coverage .coverage.* htmlcov dist build demo toy_density.png
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first, so that its pinned build is taken before anything else asks for torch.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Sinuflow needs Python 3.10 or later: make PYTHON=python3.12 ...")'
	@echo "Setting up .venv; the first time takes a few minutes."
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
