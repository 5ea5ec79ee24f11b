"""The response formats that recipes name, and chat templates for models that bring none. Imports neither torch nor transformers."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable
from dataclasses import replace

from r1_recipes.common.errors import unknown_name
from r1_recipes.prompts.formats import ResponseFormat

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_THINK_ANSWER_PROMPT = (
    "You are a careful problem solver. First work the problem out step by step, then give the final answer. Write the working "
    "between <think> and </think> and the answer alone between <answer> and </answer>, each tag on a line of its own:\n"
    "<think>\nyour working\n</think>\n<answer>\nthe final answer\n</answer>"
)

# The conversation text of DeepSeek-R1-Zero (arXiv:2501.12948, table 1) for base models, as a chat template. A turn's first space is the
# model's to write: " <" is one token, which cannot follow a prompt that ends in a space.
_R1_ZERO_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n"
    "{% elif message['role'] == 'user' %}User: {{ message['content'] }}\n"
    "{% elif message['role'] == 'assistant' %}Assistant:{% generation %}{{ ' ' + message['content'].lstrip() + eos_token }}"
    "{% endgeneration %}{{ '\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)

FORMATS: dict[str, ResponseFormat] = {
    fmt.name: fmt
    for fmt in (
        # DeepSeek-R1 (arXiv:2501.12948), with open-r1's line breaks
        ResponseFormat(
            name="think_answer",
            system_prompt=_THINK_ANSWER_PROMPT,
            layout="<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>",
            reasoning_tags=("<think>", "</think>"),
            answer_tags=("<answer>", "</answer>"),
        ),
        # the GSM8K GRPO demo for TRL (grpo_demo)
        ResponseFormat(
            name="reasoning_answer",
            system_prompt=(
                "Respond in the following format:\n<reasoning>\nyour working, step by step\n</reasoning>\n<answer>\n"
                "the final answer alone\n</answer>"
            ),
            layout="<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>",
            reasoning_tags=("<reasoning>", "</reasoning>"),
            answer_tags=("<answer>", "</answer>"),
        ),
        # DeepSeek-R1's usage notes for its distilled models
        ResponseFormat(
            name="think_boxed",
            system_prompt=(
                "Work the problem out step by step between <think> and </think>. After </think>, state the final answer once, "
                "inside \\boxed{}."
            ),
            layout="<think>\n{reasoning}\n</think>\n\\boxed{{answer}}",
            reasoning_tags=("<think>", "</think>"),
            boxed=True,
        ),
        # simpleRL-reason; Qwen2.5-Math's prompt
        ResponseFormat(
            name="boxed",
            system_prompt="Please reason step by step, and put your final answer within \\boxed{}.",
            layout="{reasoning}\n\\boxed{{answer}}",
            boxed=True,
        ),
        # DeepSeek-R1's cold-start data (arXiv:2501.12948, section 2.3.1)
        ResponseFormat(
            name="special_token",
            system_prompt=(
                "Answer as |special_token|<your reasoning>|special_token|Summary: <the final answer>, with the reasoning between the "
                "two markers and only the result after 'Summary:'."
            ),
            layout="|special_token|{reasoning}|special_token|Summary: {answer}",
            reasoning_tags=("|special_token|", "|special_token|"),
        ),
        # DeepSeek-R1's own answers, as in Mixture-of-Thoughts and R1-Distill-SFT
        ResponseFormat(
            name="think_prose",
            system_prompt=(
                "Think the question through between <think> and </think>, as long as it takes. After </think>, write the answer for the "
                "reader."
            ),
            layout="<think>\n{reasoning}\n</think>\n\n{answer}",
            reasoning_tags=("<think>", "</think>"),
            prose=True,
        ),
        # Sky-T1 (https://novasky-ai.github.io/posts/sky-t1); OpenThoughts-114k and Bespoke-Stratos-17k write it too
        ResponseFormat(
            name="thought_solution",
            system_prompt=(
                "Answer in two parts. First your thoughts, with every step, check and correction, between <|begin_of_thought|> and "
                "<|end_of_thought|>; then the solution, complete and to the point, between <|begin_of_solution|> and <|end_of_solution|>."
            ),
            layout=(
                "<|begin_of_thought|>\n\n{reasoning}\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\n{answer}\n\n<|end_of_solution|>"
            ),
            reasoning_tags=("<|begin_of_thought|>", "<|end_of_thought|>"),
            answer_tags=("<|begin_of_solution|>", "<|end_of_solution|>"),
            prose=True,
        ),
        # HuatuoGPT-o1 (arXiv:2412.18925), which pays nothing without the second heading
        ResponseFormat(
            name="thinking_response",
            system_prompt=(
                "Write your thinking under the heading '## Thinking', then the answer for the reader under the heading '## Final Response'."
            ),
            layout="## Thinking\n\n{reasoning}\n\n## Final Response\n\n{answer}",
            reasoning_tags=("## Thinking", "## Final Response"),
            prose=True,
            delimited=True,
        ),
        # DeepSeek-R1-Zero (arXiv:2501.12948, table 1)
        ResponseFormat(
            name="r1_zero",
            system_prompt=(
                "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
                "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
                "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., "
                "<think> reasoning process here </think> <answer> answer here </answer>."
            ),
            layout="<think> {reasoning} </think> <answer> {answer} </answer>",
            reasoning_tags=("<think>", "</think>"),
            answer_tags=("<answer>", "</answer>"),
            chat_template=_R1_ZERO_CHAT_TEMPLATE,
        ),
    )
}
# What ms-swift's reward accuracy reads (swift/rewards/orm.py): an <answer> block or, without one, a box.
FORMATS["answer_or_boxed"] = replace(FORMATS["think_answer"], name="answer_or_boxed", boxed=True)
# simpleRL-reason's reward, which pays nothing without a box
FORMATS["boxed_only"] = replace(FORMATS["boxed"], name="boxed_only", delimited=True)


def named_marks(prompt: str) -> list[str]:
    """Return the marks of every format that a prompt names, in whatever characters; headings only as a pair."""
    prompt = unicodedata.normalize("NFKC", html.unescape(prompt)).casefold()
    marks = {fmt.name: [mark for group in fmt.marks for mark in group if mark.casefold() in prompt] for fmt in FORMATS.values()}
    return list(dict.fromkeys(mark for found in marks.values() for mark in found if not mark.startswith("#") or len(found) > 1))


def fitting_format(named: Iterable[str], present: ResponseFormat) -> str:
    """Return the recipe key that would agree with a prompt that names these marks: the format that has all, and fewest others."""
    named = set(named)
    fitting = [fmt for fmt in FORMATS.values() if fmt.name != present.name and named <= {mark for group in fmt.marks for mark in group}]
    nearest = min(fitting, key=lambda fmt: len(fmt.lacking(" ".join(named))), default=None)
    return f"response_format: {nearest.name}" if nearest else "a system_prompt that asks for what is wanted"


def get_response_format(name: str | ResponseFormat, *, system_prompt: str | None = None, prefill: str | None = None) -> ResponseFormat:
    """Return a format, given or by name, with a recipe's ``system_prompt`` and ``prefill``; ``ValueError`` if there is none."""
    if isinstance(name, str) and name not in FORMATS:
        raise ValueError(unknown_name("response_format", name, FORMATS))
    fmt = FORMATS[name] if isinstance(name, str) else name
    system_prompt = fmt.system_prompt if system_prompt is None else system_prompt
    return replace(fmt, system_prompt=system_prompt, prefill=fmt.prefill if prefill is None else prefill)
