# Two commands on a fresh machine: `make demo` and `make test`. Each makes its own virtual environment in one pip call.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,dp,dicom,onnx,hub,series,tune,track,docs,flower

.PHONY: demo test bench faults chaos fuzz soak lint docs clean

demo: $(VENV)/.core
	$(BIN)/unisono demo

test: $(VENV)/.all
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup

bench: $(VENV)/.all
	$(BIN)/python -m benchmarks

faults chaos fuzz soak: $(VENV)/.all
	OMP_NUM_THREADS=1 $(BIN)/python -m reliability $@

lint: $(VENV)/.all
	$(BIN)/ruff check src tests benchmarks reliability scripts examples
	$(BIN)/ruff format --check src tests benchmarks reliability scripts examples
	$(BIN)/mypy

docs: $(VENV)/.all
	$(BIN)/sphinx-build -W -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:
	rm -rf $(VENV) docs/_build build

$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.all: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	touch $(VENV)/.core $@
