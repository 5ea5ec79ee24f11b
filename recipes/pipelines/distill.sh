#!/usr/bin/env bash
# `make distill`: a short teacher answers, and the raw model learns from its answers, on two CPU cores. About 15 minutes.
# The same command resumes; what is finished ends at once. Further words go to every command: another seed, in a folder of its own, is --seed 2.
set -euxo pipefail
# glibc hands large blocks back to the kernel at every free and faults them in again: on CPUs that doubles the time of a step.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184
set -- --seed 1 "$@"
out=outputs/distill mini=recipes/cpu/r1_mini
# The teacher: a cold start, and six steps of reasoning RL.
python -m r1_recipes.sft recipes/cpu/demo_1_sft.yaml --output_dir $out/cold_start "$@"
python -m r1_recipes.grpo $mini/2_reasoning_grpo.yaml --model_name_or_path $out/cold_start --max_steps 6 --output_dir $out/teacher "$@"
# Its answers to new questions: the right ones are kept.
python -m r1_recipes.generate $mini/6_teacher_completions.yaml --model_name_or_path $out/teacher --output_dir $out/completions "$@"
# The student: the raw model learns from them.
python -m r1_recipes.sft $mini/6_distill.yaml --dataset_name $out/completions/dataset --output_dir $out/student "$@"
# 80 of the 400 held-out problems, for time; PROBLEMS=400 takes all.
python -m r1_recipes.evaluate $mini/2_reasoning_grpo.yaml --model $out/cold_start --model $out/teacher \
  --model embedded:SmolLM2-135M-Instruct --model $out/student \
  --num_samples 1 --max_eval_samples "${PROBLEMS:-80}" --output $out/evaluation "$@"
