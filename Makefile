# make demo    install lamina (lean) and study a small network: demo/plan/plan.toml and demo/report.html
# make test    install the development set and run the tests that need no GPU
# Settings: PYTHON (what makes .venv), TORCH_INDEX or TORCH_FROM_PYPI=1 (where torch comes from, if it is not here).

PYTHON ?= python3
CLAIM  ?=
VENV   := .venv
BIN    := $(VENV)/bin

# Packages are installed without byte code, which halves the time; each module's first import writes its own.
unexport PYTHONDONTWRITEBYTECODE

# Tests whose tolerances depend most on how a processor rounds: fits, accuracy against float64, exact equalities.
ISA_TESTS := tests/pipeline/deft/test_composition.py tests/build/convolution \
  tests/run tests/testing/test_tolerance.py tests/accelerate/methods/fusion/test_contract.py \
  tests/accelerate/methods/elimination/test_recovery.py tests/accelerate/methods/elimination/test_functional.py \
  tests/accelerate/methods/circulant/test_reference.py tests/accelerate/methods/circulant/test_projection.py \
  tests/accelerate/methods/circulant/test_functional.py tests/accelerate/methods/circulant/lstm/test_nn.py \
  tests/accelerate/methods/activation_sparsity/test_ops.py tests/accelerate/methods/activation_sparsity/row_union \
  tests/accelerate/methods/activation_sparsity/ellpack/test_format.py tests/accelerate/common/split_fp16/test_ops.py \
  tests/accelerate/common/split_fp16/test_convolution.py tests/accelerate/methods/weight_only/test_formats.py \
  tests/simulate/fission_unit tests/simulate/workloads --ignore=tests/run/test_processes.py

.PHONY: help setup demo test test-isa test-isa-sse test-isa-avx2 test-gpu bench-gpu lint types docs lock clean
.DEFAULT_GOAL := help

help:
	@sed -n '/^# make/s/^# //p' Makefile
	@echo "also: setup, lint, types, docs, test-isa, test-gpu, bench-gpu CLAIM=name, lock, clean"

demo: $(VENV)/core.stamp
	@mkdir -p demo
	LAMINA_CACHE_DIR=demo/cache $(BIN)/lamina study cifarnet --data fashion-mnist --train-epochs 2 --budget 90s \
	  --store demo/lamina.db --output demo/plan --report demo/report.html

setup: $(VENV)/dev.stamp

test: setup
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

# The instruction sets of older processors sum in other orders. The variables are those of torch, MKL, oneDNN and of
# OpenBLAS, whose products interpreted kernels use.
test-isa: test-isa-sse test-isa-avx2

test-isa-sse: setup
	ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Nehalem \
	  OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 8 $(ISA_TESTS)

test-isa-avx2: setup
	ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell \
	  OMP_NUM_THREADS=2 $(BIN)/python -m pytest -q $(ISA_TESTS)

test-gpu: setup
	$(BIN)/python -m pytest -n auto --maxprocesses 8 -m "(gpu or counters) and not alone"
	$(BIN)/python -m pytest -m "(gpu or counters) and alone"

bench-gpu: $(VENV)/core.stamp
	@test -n "$(CLAIM)" || { echo "make bench-gpu CLAIM=name, with a name from benchmarks/*.py"; exit 2; }
	$(BIN)/python -m benchmarks.$(CLAIM)

lint: setup
	$(BIN)/ruff check --output-format concise .
	-@$(BIN)/python tools/results_age.py | tail -n 1

types: setup
	$(BIN)/mypy

docs: $(VENV)/docs.stamp
	$(BIN)/python tools/quote_results.py
	$(BIN)/python tools/results_age.py --page docs/reference/age.md
	$(BIN)/typer lamina.cli utils docs --name lamina --title "Command line" --output docs/reference/cli.md
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build

# One stamp for each set of packages. uv is quicker but does not read pip's settings, so it is passed over where
# pip has been given another index.
define install
	@echo "installing $(1) into $(VENV)"
	@if command -v uv >/dev/null && ! $(BIN)/python -m pip config list | grep -q '[.]index-url'; \
	then uv pip install -q --python $(BIN)/python -c $(VENV)/constraints.txt -e '$(1)'; \
	else $(BIN)/python -m pip install -qq --no-compile -c $(VENV)/constraints.txt -e '$(1)'; fi
	@touch $@
endef

$(VENV)/core.stamp: $(VENV)/torch.stamp pyproject.toml
	$(call install,.)

$(VENV)/dev.stamp: $(VENV)/torch.stamp pyproject.toml
	$(call install,.[dev])
	@touch $(VENV)/core.stamp

$(VENV)/docs.stamp: $(VENV)/torch.stamp pyproject.toml
	$(call install,.[docs])
	@touch $(VENV)/core.stamp

$(VENV)/torch.stamp: constraints.txt tools/install_torch.py | $(BIN)/python
	@$(BIN)/python tools/install_torch.py
	@touch $@

# A torch that the system's Python has already is used, not downloaded again.
$(BIN)/python:
	@$(PYTHON) -m venv $$($(PYTHON) -c 'from importlib.util import find_spec as f; print("--system-site-packages" if f("torch") else "")') $(VENV)

# Compiled for the oldest Python; the CUDA build's own packages are left out, torch's pins decide those.
lock:
	@{ echo "# Made by 'make lock' from pyproject.toml and tools/lock_pins.txt: the versions lamina is tested with."; \
	  uv pip compile -q --no-header --no-annotate --python-version 3.11 --extra dev --extra docs \
	    --override tools/lock_pins.txt pyproject.toml | grep -vP '^(cuda-|nvidia-(?!ml-py))'; } > constraints.new
	@mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) demo dist docs/_build docs/reference/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
