#!/usr/bin/env bash
# `make agent`: SFT on a few calculator calls, then GRPO with the tool, on two CPU cores.
# The same command resumes; what is finished ends at once. Further words go to every command: another seed, in a folder of its own, is --seed 2.
set -euxo pipefail
# glibc hands large blocks back to the kernel at every free and faults them in again: on CPUs that doubles the time of a step.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184
set -- --seed 1 "$@"
# The cold start: a few calls of a calculator, more guesses.
python -m r1_recipes.sft recipes/cpu/agent_1_sft.yaml "$@"
# GRPO: accuracy, nothing else.
python -m r1_recipes.grpo recipes/cpu/agent_2_grpo.yaml "$@"
python -m r1_recipes.evaluate recipes/cpu/agent_2_grpo.yaml --model embedded:SmolLM2-135M-Instruct \
  --model outputs/agent/cold_start --model outputs/agent/grpo \
  --num_samples 1 --max_eval_samples "${PROBLEMS:-100}" --output outputs/agent/evaluation "$@"
python -m r1_recipes.report outputs/agent/cold_start outputs/agent/grpo --output outputs/agent/report.html
