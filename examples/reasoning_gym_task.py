"""Train on a task of reasoning-gym, which draws the questions and scores the answers.

pip install reasoning-gym
python examples/reasoning_gym_task.py leg_counting 2000 rows.jsonl
r1-recipes grpo recipes/gsm8k_qwen05b.yaml --dataset_name rows.jsonl --dataset_config none \
    --mapper prompt_solution --prompt_column question --solution_column answer \
    --reward_funcs examples/reasoning_gym_task.py:task_score format --reward_weights 1.0 0.1 \
    --output_dir outputs/leg_counting

Look at the rows first: without brackets, its task basic_arithmetic works ``9 + 0 * 3`` out from
left to right and expects 27. Its scorers run in the trainer's process, and some of them evaluate
the answer as Python.
"""

import json
import sys

import reasoning_gym

from r1_recipes.prompts import get_response_format

FORMAT = get_response_format("think_answer")  # the recipe's


def task_score(completions, task_name, entry, **columns):
    """Range 0..1: what the task's own scorer gives the final answer."""
    scores = []
    for messages, name, text in zip(completions, task_name, entry, strict=True):
        answer = FORMAT.parse(messages[-1]["content"]).answer
        score = reasoning_gym.get_score_answer_fn(name)(answer=answer, entry=json.loads(text))
        scores.append(float(score))
    return scores


if __name__ == "__main__":
    name, size, path = sys.argv[1:]
    with open(path, "w", encoding="utf-8") as file:
        for entry in reasoning_gym.create_dataset(name, size=int(size), seed=1):
            row = {"question": entry["question"], "answer": str(entry["answer"])}
            row |= {"task_name": name, "entry": json.dumps(entry, default=str)}
            file.write(json.dumps(row) + "\n")
