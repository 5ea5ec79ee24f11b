# Every target sets up what it needs in .venv and can be run again at any time.
#   make demo                                    the whole story on two CPU cores
#   make test | make lint
#   make grpo RECIPE=gsm8k_qwen05b CONFIG=single_gpu ARGS="--max_steps 100"
#   make sft  RECIPE=cpu_cold_start CONFIG=cpu
#   make install EXTRAS=demo,dev,vllm            on a GPU machine, before recipes with use_vllm: true

PYTHON ?= python3
# The libraries ping their hubs when they are imported; nothing here needs that.
export HF_HUB_DISABLE_TELEMETRY = 1
export HF_UPDATE_DOWNLOAD_COUNTS = 0
VENV   := .venv
BIN    := $(VENV)/bin
CONFIG ?= single_gpu
EXTRAS ?= demo,dev
ARGS   ?=

# With several Pythons at hand, take one that is new enough.
BASE := $(shell for p in $(PYTHON) python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)

.PHONY: install demo test lint format grpo sft clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(BASE)" || { echo "make: Python 3.11 or newer is needed (looked for $(PYTHON), python3.13, python3.12, python3.11)" >&2; exit 1; }
	@# A folder that an interrupted call left half made has no pip yet.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BASE) -m venv --clear $(VENV)
	@echo "installing into $(VENV): torch is the large part (on Linux the registry's build for NVIDIA GPUs is several GB)"
	@# torch by its exact version first: a range would let pip pick a newer one than the tests ran with.
	$(BIN)/python -m pip install "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# glibc hands large blocks back to the kernel at every free and faults them in again: on CPUs that doubles the time of logits-sized steps.
demo: export MALLOC_MMAP_MAX_ = 0
demo: export MALLOC_TRIM_THRESHOLD_ = 17179869184
demo: install
	$(BIN)/python -m r1_recipes.demo $(ARGS)

test: install
	$(BIN)/python -m pytest $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

grpo sft: install
	@test -n "$(RECIPE)" || { echo "make $@: name a recipe: make $@ RECIPE=$$(ls recipes | grep -m1 yaml | sed 's/.yaml//') [CONFIG=cpu] [ARGS='--key value']" >&2; exit 1; }
	$(BIN)/accelerate launch --config_file accelerate_configs/$(CONFIG).yaml -m r1_recipes.$@ \
		$(firstword $(wildcard $(RECIPE)) recipes/$(RECIPE:.yaml=).yaml) $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis src/*.egg-info
