# Everything a fresh machine needs: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
RUN_DIR ?= runs/demo

.PHONY: demo test lint format docs bench clean

# PyTorch goes first and pinned, so that resolving the package pulls in no other build of it.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=23"
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/reticent train --out $(RUN_DIR) --overwrite

test: $(VENV)/.installed lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Every number and figure in the documents, from what was measured.
docs: $(VENV)/.installed
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/figures.py
	$(BIN)/python benchmarks/pictures.py

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/steps.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
