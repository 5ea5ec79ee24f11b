#!/usr/bin/env bash
# `make r1-mini`: every stage of DeepSeek-R1 (arXiv:2501.12948) in miniature, on two CPU cores. About 25 minutes.
# The same command resumes; what is finished ends at once. Further words go to every command: another seed, in a folder of its own, is --seed 2.
set -euxo pipefail
# glibc hands large blocks back to the kernel at every free and faults them in again: on CPUs that doubles the time of a step.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184
set -- --seed 1 "$@"
out=outputs/r1_mini mini=recipes/cpu/r1_mini raw=embedded:SmolLM2-135M-Instruct
# 1. Cold start: a few hundred sums, 55 % of them only estimated.
python -m r1_recipes.sft recipes/cpu/demo_1_sft.yaml --output_dir $out/1_cold_start "$@"
# 2. Reasoning RL: accuracy and language consistency. Preflight ends the script if no group of four has spread.
[ -e $out/2_reasoning_rl ] || python -m r1_recipes.preflight $mini/2_reasoning_grpo.yaml --groups 4 --brief "$@"
python -m r1_recipes.grpo $mini/2_reasoning_grpo.yaml "$@"
# 3. Rejection sampling: several answers a question, the right and readable ones are kept.
python -m r1_recipes.generate $mini/3_rejection_sampling.yaml "$@"
# 4. SFT on reasoning and general data, from the raw model anew.
python -m r1_recipes.sft $mini/4_sft.yaml "$@"
# 5. RL for all scenarios: rule rewards where an answer can be checked, others for the rest.
[ -e $out/5_all_scenarios_rl ] || python -m r1_recipes.preflight $mini/5_all_scenarios_grpo.yaml --groups 4 --brief "$@"
python -m r1_recipes.grpo $mini/5_all_scenarios_grpo.yaml "$@"
# 6. Distillation: the last model answers new questions, and the raw model learns from its answers.
python -m r1_recipes.generate $mini/6_teacher_completions.yaml "$@"
python -m r1_recipes.sft $mini/6_distill.yaml "$@"
# 80 of the 400 held-out problems, for time; PROBLEMS=400 takes all. Each model is compared with the one before it.
python -m r1_recipes.evaluate $mini/2_reasoning_grpo.yaml --model $raw --model $out/1_cold_start --model $out/2_reasoning_rl \
  --model $out/4_sft --model $out/5_all_scenarios_rl --model $out/6_distill \
  --num_samples 1 --max_eval_samples "${PROBLEMS:-80}" --output $out/evaluation "$@"
python -m r1_recipes.report $out/2_reasoning_rl $out/5_all_scenarios_rl --output $out/report.html
