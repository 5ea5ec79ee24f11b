"""What an answer must look like, said once.

A :class:`ResponseFormat` writes the system prompt, renders SFT targets and few-shot turns, and reads completions back. Prompts,
rewards, generation filters and evaluation share one object, so a prompt cannot ask for one shape while a reward looks for another.

This module imports neither torch nor transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

_BOX = "\\boxed{"
_SENTENCE_END = "$\\)]*.。 \t\r\n"
_SLOT = re.compile(r"\{(reasoning|answer)\}")


@dataclass(frozen=True)
class ParsedResponse:
    """A completion, read by a :class:`ResponseFormat`.

    Attributes:
        reasoning: text of the reasoning block, stripped; ``None`` where there is none or it never closes.
        answer: the one answer given after the reasoning, stripped; ``None`` where there is none, where it is unclosed, or where
            several blocks contradict each other.
        well_formed: the whole text is one non-empty reasoning block, then one non-empty answer block, and nothing else.
    """

    reasoning: str | None
    answer: str | None
    well_formed: bool


def boxed_spans(text: str) -> Iterator[tuple[int, int]]:
    r"""Yield ``(start, end)`` of what each outermost, balanced ``\boxed{…}`` holds, in one pass over ``text``.

    Escaped braces (``\{``, ``\}``) do not count. A box that never closes yields nothing.
    """
    start = text.find(_BOX)
    while start != -1:
        begin = start + len(_BOX)
        depth, position = 1, begin
        for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, begin):
            if match[0] == "{":
                depth += 1
            elif match[0] == "}":
                depth -= 1
                if depth == 0:
                    position = match.end()
                    yield begin, match.start()
                    break
        else:
            return
        start = text.find(_BOX, position)


def one_spelling_of_boxes(text: str) -> str:
    r"""``\boxed {72}``, ``\fbox{72}`` and ``\boxed 2`` as ``\boxed{…}``."""
    if "box" not in text:
        return text
    return re.sub(r"\\boxed\s+([^\s{}\\])", r"\\boxed{\1}", re.sub(r"\\(?:boxed\s+|fbox\s*)\{", r"\\boxed{", text))


@dataclass(frozen=True)
class ResponseFormat:
    r"""The shape of a response: how it is asked for, written and read.

    Attributes:
        name: registry name, the recipe's ``response_format``.
        system_prompt: the instruction that asks for this shape; ``""`` sends no system message.
        layout: literal text with one ``{answer}`` slot and one ``{reasoning}`` slot before it.
        reasoning_tags: opening and closing delimiter of the reasoning, without line breaks; ``None`` where it is not delimited.
        answer_tags: the same for the answer; ``None`` where the answer is boxed or is simply the rest of the text.
        boxed: the answer stands in ``\boxed{…}``.
        prose: the answer is a text for a reader; what is compared with a gold is the final answer in it, as in a whole completion.
        delimited: without its delimiters there is no answer: no search of the whole completion for one (``boxed``), and a text without any
            reasoning block is not taken for the answer.
        prefill: text that the assistant's turn starts with and the model does not generate. Completions are read with it in front.
        chat_template: Jinja template for base models that need this format's own conversation text (R1-Zero), else ``None``.
        source: paper or project that the shape comes from.
    """

    name: str
    system_prompt: str
    layout: str
    reasoning_tags: tuple[str, str] | None = None
    answer_tags: tuple[str, str] | None = None
    boxed: bool = False
    prose: bool = False
    delimited: bool = False
    prefill: str = ""
    chat_template: str | None = field(default=None, repr=False)
    source: str = ""

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """Every delimiter that a response holds exactly once, with the line breaks that the layout puts around it."""
        tags = []
        cores = [*(self.reasoning_tags or ()), *(self.answer_tags or ())]
        cursor = 0
        for core in cores:
            start = self.layout.index(core, cursor)
            end = cursor = start + len(core)
            while self.layout[start - 1 : start] == "\n":
                start -= 1
            while self.layout[end : end + 1] == "\n":
                end += 1
            tags.append(self.layout[start:end])
        # A box stands in a sentence as often as on a line of its own.
        return (*tags, _BOX) if self.boxed else tuple(tags)

    def render(self, reasoning: str, answer: str) -> str:
        """Write a whole response, prefill included; outer white space of both parts is dropped.

        Raises:
            ValueError: a part is blank, or holds a delimiter of this format, so that it could not be read back.
        """
        parts = {"reasoning": reasoning.strip(), "answer": answer.strip()}
        text = _SLOT.sub(lambda slot: parts[slot[1]], self.layout)
        parsed = self._read(text)
        if not parsed.well_formed or (parsed.reasoning, parsed.answer) != (parts["reasoning"], parts["answer"]):
            raise ValueError(
                f"response_format {self.name!r} cannot hold reasoning {_clip(reasoning)} with answer {_clip(answer)}: "
                "both must be non-blank and free of the format's own delimiters"
            )
        return text

    def render_completion(self, reasoning: str, answer: str) -> str:
        """Write what the model itself generates: the whole response without the prefill.

        Raises:
            ValueError: as :meth:`render`, or the response does not start with the prefill.
        """
        text = self.render(reasoning, answer)
        if text.startswith(self.prefill):
            return text[len(self.prefill) :]
        # A prefill may say more than the layout does ("Let me solve this step by step.\n<think>").
        if self.reasoning_tags and self.prefill.rstrip().endswith(self.reasoning_tags[0]):
            return text[text.index(self.reasoning_tags[0]) + len(self.reasoning_tags[0]) :]
        raise ValueError(f"response_format {self.name!r} renders {_clip(text)}, which does not start with its prefill {self.prefill!r}")

    def full_text(self, completion: str) -> str:
        """The assistant's whole turn: the prefill and what was generated after it."""
        return self.prefill + completion

    def parse(self, completion: str) -> ParsedResponse:
        """Read a generated completion (without the prefill). Never raises, whatever the text; linear in its length."""
        return self._read(self.full_text(completion))

    def _read(self, text: str) -> ParsedResponse:
        reasoning, head, body = self._split_reasoning(text)
        if body is None:
            return ParsedResponse(reasoning, None, False)
        if self.answer_tags:
            answer, lead, rest, single = self._read_tagged_answer(body)
        elif self.boxed:
            answer, lead, rest, single = self._read_boxed_answer(body)
        else:
            # What the layout writes before the answer ("Summary:"), or nothing.
            prefix = self.layout.rpartition(self.reasoning_tags[1])[2].removesuffix("{answer}").strip()
            stripped = body.strip()
            single = stripped.startswith(prefix) and self.reasoning_tags[1] not in stripped
            answer = stripped.removeprefix(prefix).strip() or None if single else None
            lead = rest = ""
        if self.reasoning_tags is None:
            # The working is whatever stands before the answer.
            reasoning, lead = (lead.strip() or None), ""
        if self.boxed:
            # The sentence that leads to the box ("So the answer is $") belongs to the answer, and so does what closes it; more does not.
            lead, rest = "", rest.strip(_SENTENCE_END)
        # An answer block inside the reasoning is a second one. (A box there is how many models note an interim result.)
        second = bool(self.answer_tags and reasoning and any(tag in reasoning for tag in self.answer_tags))
        well_formed = bool(single and answer and reasoning) and not (second or head or lead.strip() or rest.strip())
        return ParsedResponse(reasoning, answer, well_formed)

    def _split_reasoning(self, text: str) -> tuple[str | None, str, str | None]:
        """Reasoning, stray text or stray tags outside its single block, and what follows the last block (``None``: never closed)."""
        if self.reasoning_tags is None:
            return None, "", text
        opening, closing = self.reasoning_tags
        if opening == closing:
            pieces = text.split(opening)
            if len(pieces) == 1:
                return None, "missing", text
            if len(pieces) == 2:
                return None, "unclosed", None
            return pieces[1].strip() or None, pieces[0].strip() or ("repeated" if len(pieces) > 3 else ""), pieces[-1]
        end = text.rfind(closing)
        if end == -1:
            return None, "missing", None if self.delimited or opening in text else text
        body = text[end + len(closing) :]
        if opening in body:
            return None, "reopened", None
        before, found, inner = text[:end].partition(opening)
        if not found:
            return text[:end].strip() or None, "unopened", body
        single = opening not in inner and closing not in inner
        # Text before the block is stray unless the prefill itself put it there.
        stray = before.strip() and before.strip() != self.prefill.partition(opening)[0].strip()
        return inner.strip() or None, "stray" if stray or not single else "", body

    def _read_tagged_answer(self, body: str) -> tuple[str | None, str, str, bool]:
        opening, closing = self.answer_tags
        lead, found, tail = body.partition(opening)
        if not found:
            return None, body, "", False
        blocks, rests = [], []
        for piece in tail.split(opening):
            content, closed, rest = piece.partition(closing)
            if not closed or closing in rest:
                return None, lead, tail, False
            blocks.append(content.strip())
            rests.append(rest)
        if len(set(blocks)) > 1:
            return None, lead, tail, False
        return blocks[0] or None, lead, "".join(rests), len(blocks) == 1

    def _read_boxed_answer(self, body: str) -> tuple[str | None, str, str, bool]:
        spans = list(boxed_spans(body))
        boxes = [body[start:end].strip() for start, end in spans]
        if not boxes or len(set(boxes)) > 1:
            return None, body, "", False
        start, end = spans[-1]
        lead, rest = body[: start - len(_BOX)], body[end + 1 :]
        return boxes[0] or None, lead, rest, body.count(_BOX) == 1


def _clip(text: str, width: int = 60) -> str:
    return repr(text if len(text) <= width else text[: width - 1] + "…")


_THINK_ANSWER_PROMPT = (
    "You are a careful problem solver. First work the problem out step by step, then give the final answer. Write the working "
    "between <think> and </think> and the answer alone between <answer> and </answer>, each tag on a line of its own:\n"
    "<think>\nyour working\n</think>\n<answer>\nthe final answer\n</answer>"
)

# The conversation text of DeepSeek-R1-Zero (arXiv:2501.12948, table 1) for base models, as a chat template.
_R1_ZERO_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n"
    "{% elif message['role'] == 'user' %}User: {{ message['content'] }}\n"
    "{% elif message['role'] == 'assistant' %}Assistant: {% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ '\\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{{ ' ' }}{% endif %}"
)

FORMATS: dict[str, ResponseFormat] = {
    fmt.name: fmt
    for fmt in (
        ResponseFormat(
            name="think_answer",
            system_prompt=_THINK_ANSWER_PROMPT,
            layout="<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>",
            reasoning_tags=("<think>", "</think>"),
            answer_tags=("<answer>", "</answer>"),
            source="DeepSeek-R1 (arXiv:2501.12948), with open-r1's line breaks",
        ),
        ResponseFormat(
            name="reasoning_answer",
            system_prompt=(
                "Respond in the following format:\n<reasoning>\nyour working, step by step\n</reasoning>\n<answer>\n"
                "the final answer alone\n</answer>"
            ),
            layout="<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>",
            reasoning_tags=("<reasoning>", "</reasoning>"),
            answer_tags=("<answer>", "</answer>"),
            source="the GSM8K GRPO demo for TRL (grpo_demo)",
        ),
        ResponseFormat(
            name="think_boxed",
            system_prompt=(
                "Work the problem out step by step between <think> and </think>. After </think>, state the final answer once, "
                "inside \\boxed{}."
            ),
            layout="<think>\n{reasoning}\n</think>\n\\boxed{{answer}}",
            reasoning_tags=("<think>", "</think>"),
            boxed=True,
            source="DeepSeek-R1's usage notes for its distilled models",
        ),
        ResponseFormat(
            name="boxed",
            system_prompt="Please reason step by step, and put your final answer within \\boxed{}.",
            layout="{reasoning}\n\\boxed{{answer}}",
            boxed=True,
            source="simpleRL-reason; Qwen2.5-Math's prompt",
        ),
        ResponseFormat(
            name="boxed_only",
            system_prompt="Please reason step by step, and put your final answer within \\boxed{}.",
            layout="{reasoning}\n\\boxed{{answer}}",
            boxed=True,
            delimited=True,
            source="simpleRL-reason's reward, which pays nothing without a box; else as boxed",
        ),
        ResponseFormat(
            name="special_token",
            system_prompt=(
                "Answer as |special_token|<your reasoning>|special_token|Summary: <the final answer>, with the reasoning between the "
                "two markers and only the result after 'Summary:'."
            ),
            layout="|special_token|{reasoning}|special_token|Summary: {answer}",
            reasoning_tags=("|special_token|", "|special_token|"),
            source="DeepSeek-R1's cold-start data (arXiv:2501.12948, section 2.3.1)",
        ),
        ResponseFormat(
            name="think_prose",
            system_prompt=(
                "Think the question through between <think> and </think>, as long as it takes. After </think>, write the answer for the "
                "reader."
            ),
            layout="<think>\n{reasoning}\n</think>\n\n{answer}",
            reasoning_tags=("<think>", "</think>"),
            prose=True,
            source="DeepSeek-R1's own answers, as in Mixture-of-Thoughts and R1-Distill-SFT",
        ),
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
            source="Sky-T1 (https://novasky-ai.github.io/posts/sky-t1); OpenThoughts-114k and Bespoke-Stratos-17k write it too",
        ),
        ResponseFormat(
            name="thinking_response",
            system_prompt=(
                "Write your thinking under the heading '## Thinking', then the answer for the reader under the heading '## Final Response'."
            ),
            layout="## Thinking\n\n{reasoning}\n\n## Final Response\n\n{answer}",
            reasoning_tags=("## Thinking", "## Final Response"),
            prose=True,
            delimited=True,
            source="HuatuoGPT-o1 (arXiv:2412.18925), which pays nothing without the second heading",
        ),
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
            source="DeepSeek-R1-Zero (arXiv:2501.12948, table 1)",
        ),
    )
}


def get_response_format(name: str | ResponseFormat, *, system_prompt: str | None = None, prefill: str | None = None) -> ResponseFormat:
    """Look a format up by name and apply a recipe's overrides.

    Args:
        name: a key of :data:`FORMATS`, or a format object, which passes through.
        system_prompt: replaces the format's own; ``""`` sends no system message.
        prefill: replaces the format's own.

    Raises:
        ValueError: no such format; the message names the nearest and all there are.
    """
    if isinstance(name, ResponseFormat):
        fmt = name
    elif name in FORMATS:
        fmt = FORMATS[name]
    else:
        from r1_recipes.common.errors import unknown_name

        raise ValueError(unknown_name("response_format", name, FORMATS))
    changes = {key: value for key, value in (("system_prompt", system_prompt), ("prefill", prefill)) if value is not None}
    return replace(fmt, **changes) if changes else fmt


def template_prefill(generation_prompt: str, fmt: ResponseFormat) -> str:
    """The part of a rendered generation prompt that already belongs to the response.

    The chat templates of DeepSeek's distilled models end in ``<think>\\n``, so the model never generates that tag.

    Args:
        generation_prompt: the text that the chat template adds for the assistant's turn to come.
        fmt: the format whose opening delimiter is looked for.

    Returns:
        The text from the opening delimiter on, or ``""`` where the template does not open it.
    """
    if not fmt.reasoning_tags:
        return ""
    start = generation_prompt.rfind(fmt.reasoning_tags[0])
    return "" if start == -1 else generation_prompt[start:]
