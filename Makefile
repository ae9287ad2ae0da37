# Everything a developer does. The virtual environment is made on need; the stamps remember which extras it has.

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip install --quiet
# the lowest Python of the system that will do; override with `make BASE_PYTHON=python3.12 ...`
BASE_PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p && break; done)

.PHONY: help demo test pytest lint types fuzz-schedules fuzz-construct fuzz-models fuzz-trees fuzz-chains fuzz-conv-chains fuzz-contrib fuzz-tuning hostile-candidates onnx-backend verify-zoo replay bench-models bench-quantized bench-dynamic-shapes bench-ops bench-paper-eto bench-paper-gensor bench-paper-mcfuser bench-paper-vortex bench-search clean distclean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/stamp:
	$(BASE_PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/stamp-demo: $(VENV)/stamp pyproject.toml
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/stamp-test: $(VENV)/stamp pyproject.toml
	$(PIP) -e '.[test]'
	touch $@

# torch in a step of its own: resolved together with packages that only ask for "torch", pip would first fetch the
# newest one with gigabytes of GPU libraries
$(VENV)/stamp-bench: $(VENV)/stamp pyproject.toml
	$(PIP) torch==2.13.0
	$(PIP) -e '.[bench]'
	touch $@

demo: $(VENV)/stamp-demo ## read the text of an image with RapidOCR on Tilewright
	$(PYTHON) examples/ocr_demo.py

# the type checker has one thread: it runs beside the tests, unless the caller says how many jobs there are
test: $(VENV)/stamp-test ## style, layers, types and all tests
	+$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,--jobs=2) lint types pytest

pytest: $(VENV)/stamp-test
	$(PYTHON) -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal $(PYTEST_ARGS)

lint: $(VENV)/stamp-test ## style, and which layer imports which
	$(VENV)/bin/ruff check src tests benchmarks examples
	$(VENV)/bin/lint-imports

types: $(VENV)/stamp-test ## types, strictly
	$(VENV)/bin/pyright

fuzz-schedules: $(VENV)/stamp-test ## 20,000 random schedules of random computations, down to native code
	$(PYTHON) -m tests.fuzz --count 20000 --jobs 2 $(FUZZ_ARGS)

fuzz-construct: $(VENV)/stamp-test ## 2,000 random operators through gensor and roller, down to native code
	$(PYTHON) -m tests.fuzz_construct --count 2000 --jobs 2 $(FUZZ_ARGS)

fuzz-models: $(VENV)/stamp-test ## 2,000 random models against ONNX Runtime; FUZZ_ARGS=--resume goes on where a run was stopped
	$(PYTHON) -m tests.fuzz_models --count 2000 --jobs 2 $(FUZZ_ARGS)

fuzz-trees: $(VENV)/stamp-test ## 750 random tile trees over kernels of several computations, down to native code, some without a stack; a stop says how to go on (FUZZ_ARGS)
	$(PYTHON) -m tests.fuzz_trees --count 500 $(FUZZ_ARGS)
	$(PYTHON) -m tests.fuzz_trees --count 250 --stack-bytes 0 $(FUZZ_ARGS)

fuzz-chains: $(VENV)/stamp-test ## 2,000 random chains of two to four contractions in one kernel each, down to native code
	$(PYTHON) -m tests.fuzz_chains --count 2000 $(FUZZ_ARGS)

fuzz-conv-chains: $(VENV)/stamp-test ## 300 random chains of convolutions with halos, fused, down to native code
	$(PYTHON) -m tests.fuzz_conv_chains --count 300 $(FUZZ_ARGS)

fuzz-contrib: $(VENV)/stamp-test ## every operator of com.microsoft in 20 random settings against ONNX Runtime; resumable
	$(PYTHON) -m tests.fuzz_contrib --count 20 $(FUZZ_ARGS)

fuzz-tuning: $(VENV)/stamp-test ## kill a tuning at 200 random moments: nothing that was acknowledged is lost (half an hour; stops and goes on)
	$(PYTHON) -m tests.fuzz_tuning $(FUZZ_ARGS)

hostile-candidates: $(VENV)/stamp-test ## 50 crashing, 50 hanging, 50 memory-eating and 50 wrong programs through the measurer
	$(PYTHON) -m tests.measure.hostile_candidates $(HOSTILE_ARGS)

onnx-backend: $(VENV)/stamp-test ## all cases of ONNX's backend tests, and a table of what becomes of them
	$(PYTHON) -m tests.onnx_backend $(ONNX_BACKEND_ARGS)

replay: $(VENV)/stamp-test ## that no generated code differs from a revision's: make replay BASE=main REPLAY_ARGS="--only 'conv/*'"
	$(PYTHON) -m benchmarks.replay --base $(or $(BASE),main) $(REPLAY_ARGS)

verify-zoo: $(VENV)/stamp-bench ## the zoo's outputs against float64 and ONNX Runtime
	$(PYTHON) -m benchmarks.zoo verify

bench-models: $(VENV)/stamp-bench ## the zoo's times against ONNX Runtime
	$(PYTHON) -m benchmarks.zoo bench

bench-quantized: $(VENV)/stamp-bench ## models quantized with ONNX Runtime's tools: right, native, and their times (ten minutes)
	$(PYTHON) -m benchmarks.quantized --write $(BENCH_ARGS)

bench-dynamic-shapes: $(VENV)/stamp-bench ## random shapes against compilations for them, ONNX Runtime and OpenVINO (half an hour; stops and goes on)
	$(PYTHON) -m benchmarks.dynamic_shapes --prepare $(BENCH_ARGS)
	$(PYTHON) -m benchmarks.dynamic_shapes --write $(BENCH_ARGS)

bench-ops: $(VENV)/stamp-bench ## single operators against NumPy, torch, ONNX Runtime and OpenVINO
	$(PYTHON) -m benchmarks.operators

bench-paper-eto: $(VENV)/stamp-bench ## the experiments of ETO's paper on this machine (hours; stops and goes on)
	$(PYTHON) -m benchmarks.paper_eto $(PAPER_ARGS)

bench-paper-gensor: $(VENV)/stamp-bench ## the experiments of Gensor's paper on this machine (half an hour; stops and goes on)
	$(PYTHON) -m benchmarks.paper_gensor $(PAPER_ARGS)

bench-paper-mcfuser: $(VENV)/stamp-bench ## the experiments of MCFuser's paper on this machine (ten minutes; stops and goes on)
	$(PYTHON) -m benchmarks.paper_mcfuser $(PAPER_ARGS)

bench-paper-vortex: $(VENV)/stamp-bench ## the experiments of Vortex' paper on this machine (an hour; stops and goes on)
	$(PYTHON) -m benchmarks.paper_vortex $(PAPER_ARGS)

bench-search: $(VENV)/stamp-bench ## measured searches of 24 operators against constructed programs and each other (hours; stops and goes on)
	$(PYTHON) -m benchmarks.search $(SEARCH_ARGS)

clean: ## remove what was built, but neither the models of the zoo nor the virtual environment
	if [ -d build ]; then find build -mindepth 1 -maxdepth 1 ! -name zoo -exec rm -rf {} +; fi
	rm -rf dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## also remove the models of the zoo and the virtual environment
	rm -rf build $(VENV)
