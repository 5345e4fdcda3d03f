# make demo   a small student from a real teacher, offline, with its report
# make test   everything that CI runs; tests that need all of the shared data are skipped where they are not
# Both make .venv first where it is missing or older than the project's dependencies.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made

# Tests start many processes, which would otherwise compile the package again, each for itself.
export PYTHONDONTWRITEBYTECODE =

.PHONY: venv demo test check tests test-shared test-lowest lint docs experiments benchmarks clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,bm25,molecules,onnx,openvino,model2vec,gguf,torchao,lora,serve,ray,writing,mteb,docs,dev]'
	@touch $(STAMP)

demo: venv
	$(BIN)/distilvec demo

# Both at once: checking types leaves a core idle, and so do tests that wait for others.
test: venv
	$(MAKE) --jobs=2 check tests

check: venv
	$(BIN)/ruff check src tests benchmarks experiments examples docs
	$(BIN)/ruff format --check src tests benchmarks experiments examples docs
	$(BIN)/lint-imports
	$(BIN)/mypy

tests: venv
	@# In order of names: the slowest files have few tests, and pytest-xdist would leave them to the end and one worker.
	@# A worker that dies ends the run: with files dealt out as a whole, pytest-xdist waits for ever for what it had left.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Only the tests that need the shared data (DISTILVEC_DATA).
test-shared: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m shared

# The lowest supported sentence-transformers and transformers, in an environment of their own.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet torch==2.13.0
	.venv-lowest/bin/python -m pip install --quiet 'sentence-transformers[train]==6.0.0' transformers==5.17.0 \
		--editable '.[demo,bm25,molecules,dev]'
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -n 2 --dist loadfile tests/students tests/teachers tests/training tests/methods

lint: venv
	$(BIN)/ruff check --fix src tests benchmarks experiments examples docs
	$(BIN)/ruff format src tests benchmarks experiments examples docs

docs: venv
	$(BIN)/mkdocs build --strict

experiments: venv
	$(BIN)/python -m experiments.run_all

benchmarks: venv
	$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
