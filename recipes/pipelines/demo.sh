#!/usr/bin/env bash
# `make demo`: SFT on sums, then GRPO, on two CPU cores. About ten minutes.
# The same command resumes; what is finished ends at once. Further words go to every command: another seed, in a folder of its own, is --seed 2.
set -euxo pipefail
# glibc hands large blocks back to the kernel at every free and faults them in again: on CPUs that doubles the time of a step.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184
set -- --seed 1 "$@"
# The cold start: a few hundred sums. 55 % of these examples guess on purpose.
python -m r1_recipes.sft recipes/cpu/demo_1_sft.yaml "$@"
# Three rows as the model reads them, and what the rewards say to a right and a wrong answer.
python -m r1_recipes.preflight recipes/cpu/demo_2_grpo.yaml --no_model --brief "$@"
# GRPO: accuracy and format, nothing else. It rewards working the sum out.
python -m r1_recipes.grpo recipes/cpu/demo_2_grpo.yaml "$@"
# 100 of the 400 held-out problems, for time; PROBLEMS=400 takes all.
python -m r1_recipes.evaluate recipes/cpu/demo_2_grpo.yaml --model outputs/demo/cold_start --model outputs/demo/grpo \
  --num_samples 1 --max_eval_samples "${PROBLEMS:-100}" --output outputs/demo/evaluation "$@"
python -m r1_recipes.report outputs/demo/cold_start outputs/demo/grpo --output outputs/demo/report.html
