# Two commands on a fresh machine: `make demo` and `make test`. Each makes its own virtual environment in one pip call.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,dp,dicom,onnx,hub,search,series,tune,track,docs,flower

.PHONY: demo test test-fast live bench faults chaos fuzz soak robust lint docs release-check clean

demo: $(VENV)/.core
	$(BIN)/unisono demo

test: $(VENV)/.all
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup

# The inner loop: some tests of every package, without processes, browsers and long runs.
FAST := $(addprefix tests/, core losses test_layering.py test_words.py test_site.py test_method_pages.py \
  $(addprefix clustering/test_, equal_size.py importance.py private.py sinkhorn.py two_level.py) \
  $(addprefix data/test_, colour.py outbox.py partitioners.py shift.py value_range.py) \
  $(addprefix models/test_, heads.py nets.py norms.py) \
  $(addprefix federation/test_, aggregate.py cohort.py declared.py robust.py rows.py server_optimizers.py) \
  $(addprefix methods/test_, orchestra_reference.py projectors.py schedule.py selection.py two_views.py) \
  $(addprefix evaluation/test_, clusters.py config.py knn.py) \
  $(addprefix privacy/test_, masked_vector.py shamir.py) $(addprefix runs/test_, files.py manifest.py) \
  $(addprefix report/test_, blocks.py overview.py palette.py timings.py) \
  $(addprefix studies/test_, grid.py significance.py verdicts.py) \
  $(addprefix deploy/test_, approvals.py ledger.py) engines/flower/test_membership.py \
  $(addprefix cli/test_, completion.py error_output.py list.py tables.py))

test-fast: $(VENV)/.all
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal $(FAST) --ignore tests/core/test_work_progress.py

live: $(VENV)/.all
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -s -n 0 tests/deploy/live_federation.py

bench: $(VENV)/.all
	$(BIN)/python -m benchmarks

faults chaos fuzz soak robust: $(VENV)/.all
	OMP_NUM_THREADS=1 $(BIN)/python -m reliability $@

release-check: $(VENV)/.all
	$(BIN)/python scripts/release_check.py

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
