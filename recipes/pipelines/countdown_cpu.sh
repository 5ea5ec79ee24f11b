#!/usr/bin/env bash
# Countdown with two numbers: SFT on searches, then GRPO, on two CPU cores. About 25 minutes.
# The same command resumes; what is finished ends at once. Further words go to every command: another seed, in a folder of its own, is --seed 2.
set -euxo pipefail
# glibc hands large blocks back to the kernel at every free and faults them in again: on CPUs that doubles the time of a step.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184
set -- --seed 1 "$@"
python -m r1_recipes.sft recipes/cpu/countdown_1_sft.yaml "$@"
python -m r1_recipes.grpo recipes/cpu/countdown_2_grpo.yaml "$@"
python -m r1_recipes.evaluate recipes/cpu/countdown_2_grpo.yaml --model outputs/countdown_cpu/cold_start --model outputs/countdown_cpu/grpo \
  --num_samples 2 --max_eval_samples "${PROBLEMS:-200}" --output outputs/countdown_cpu/evaluation "$@"
