"""Response formats: how a response is asked for, written and read.

Prompts, SFT targets, rewards and evaluation share one :class:`ResponseFormat`, so a prompt cannot
ask for one format while a reward expects another. ``formats.yaml`` has those that recipes name.

Importing this module imports neither torch nor transformers.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, from_mapping, located, unknown_name
from r1_recipes.common.files import read_yaml

_BOX = "\\boxed{"
# Models also write \boxed {72} and \fbox{72}. In \boxed 2 no brace says where the box ends.
# With the content, if no brace stands in it.
_OPENING = re.compile(r"\\(?:boxed|fbox)\s*\{(?=([^{}\\]*)\}|)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SLOT = re.compile(r"\{(reasoning|answer)\}")
_SENTENCE_END = "$\\)]*.。 \t\r\n"  # what may follow a box: "So it is $\boxed{72}$."


@dataclass(frozen=True)
class ParsedResponse:
    """The parts of a completion, stripped; ``None`` if a part is missing or empty.

    Attributes:
        reasoning: The text between the reasoning tags, or before the answer.
        answer: The answer after the reasoning. ``None`` too if answers there contradict.
        well_formed: Whether the text is one reasoning, then one answer, and nothing else.
    """

    reasoning: str | None
    answer: str | None
    well_formed: bool


@dataclass(frozen=True)
class ResponseFormat:
    r"""The shape of a response.

    Attributes:
        name: The name in a recipe.
        system_prompt: The instruction that asks for this shape. ``""`` sends no system message.
        layout: Literal text with the slots ``{reasoning}`` and ``{answer}``. With
            ``\boxed{{answer}}`` in it, the answer is read from a box.
        reasoning_tags: The delimiters of the reasoning. ``None``: it is the text before the answer.
        answer_tags: The delimiters of the answer. ``None``: it is in a box, or the rest of the
            text.
        prose: Whether the answer is a text for a reader. Then the final answer in the text is
            compared with the reference answer.
        prefill: The start of the assistant's turn, which the model does not generate.
        chat_template: A chat template for base models that need this format's own conversation.
    """

    name: str
    system_prompt: str
    layout: str
    reasoning_tags: tuple[str, str] | None = None
    answer_tags: tuple[str, str] | None = None
    prose: bool = False
    prefill: str = ""
    chat_template: str | None = field(default=None, repr=False)

    @cached_property
    def boxed(self) -> bool:
        r"""Whether the answer is in ``\boxed{…}``."""
        return _BOX in self.layout

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The delimiters in the order of a response."""
        box = (_BOX,) if self.boxed else ()
        return (*(self.reasoning_tags or ()), *(self.answer_tags or ()), *box)

    def render(self, reasoning: str, answer: str) -> str:
        """Write a whole response, prefill included. Raise ValueError if it could not be read back.

        White space around the parts is dropped.
        """
        parts = {"reasoning": reasoning.strip(), "answer": answer.strip()}
        text = _SLOT.sub(lambda slot: parts[slot[1]], self.layout)
        if self.read(text) != ParsedResponse(parts["reasoning"], parts["answer"], True):
            raise ValueError(
                f"response_format {self.name!r} cannot hold reasoning {reasoning[:60]!r} with "
                f"answer {answer[:60]!r}: both must have text, and none of the format's tags"
            )
        return text

    def render_completion(self, reasoning: str, answer: str) -> str:
        """Return what the model generates: a response without the prefill."""
        text = self.render(reasoning, answer)
        # A prefill may be longer than the layout's start: "Let me solve this.\n<think>".
        opening = self.reasoning_tags[0] if self.reasoning_tags else "\0"
        if text.startswith(self.prefill):
            return text.removeprefix(self.prefill)
        if self.prefill.rstrip().endswith(opening):
            return text.partition(opening)[2]
        raise ValueError(
            f"response_format {self.name!r} writes {text[:60]!r}, which does not start with its "
            f"prefill {self.prefill!r}"
        )

    def full_text(self, completion: str) -> str:
        """Return the text of the assistant's whole turn, of which the model wrote all but the
        prefill.
        """
        return self.prefill + completion

    def parse(self, completion: str) -> ParsedResponse:
        """Read what the model generated, in time linear in its length. No text raises an error."""
        return self.read(self.prefill + completion)

    def read(self, text: str) -> ParsedResponse:
        """Read the assistant's whole turn. The answer after the last reasoning counts."""
        before, reasoning, rest = self._split(text)
        lead, answer, after = self._answer(rest)
        if self.reasoning_tags is None:
            reasoning, lead = lead, ""
        # The sentence around a box belongs to the answer.
        stray = before + after.strip(_SENTENCE_END) if self.boxed else before + lead + after
        reasoning, answer = reasoning.strip(), answer.strip()
        single = all(text.count(tag) == self.tags.count(tag) for tag in self.tags if tag != _BOX)
        if self.boxed:  # many models box an interim result in their reasoning
            single = single and len(boxes(rest)) == 1
        well_formed = bool(single and reasoning and answer and not stray.strip())
        return ParsedResponse(reasoning or None, answer or None, well_formed)

    def _split(self, text: str) -> tuple[str, str, str]:
        """Return the text before the reasoning, the reasoning, and the text after it.

        Reasoning that is still open leaves no text for an answer.
        """
        if self.reasoning_tags is None:
            return "", "", text
        opening, closing = self.reasoning_tags
        head, closed, rest = text.rpartition(closing)
        if not closed or opening in rest:
            return "", "", "" if opening in text else text
        # Text before the reasoning is stray, unless it comes from the prefill.
        head = head.removeprefix(self.prefill.partition(opening)[0])
        before, opened, reasoning = head.partition(opening)
        if opened:
            return before, reasoning, rest
        return ("", "", "") if opening == closing else ("", before, rest)

    def _answer(self, rest: str) -> tuple[str, str, str]:
        """Return the text before the answer, the answer, and the text after it."""
        if self.boxed:
            spans = [span for span in boxed_spans(rest) if rest[slice(*span)].strip()]
            if len({rest[start:end].strip() for start, end in spans}) != 1 or left_open(rest):
                return rest, "", ""  # no box, or two that contradict each other
            start, end = spans[-1]
            return rest[: rest.rindex("\\", 0, start)], rest[start:end], rest[end + 1 :]
        if self.answer_tags:
            lead, answer, after = between(rest, *self.answer_tags)
            earlier = between(lead, *self.answer_tags)[1].strip()
            if earlier and earlier != answer.strip():
                return rest, "", ""  # two answers are none, or a model would list candidates
            return lead, answer, after
        lead = self.layout.partition("{reasoning}")[2].partition("{answer}")[0]
        closing = self.reasoning_tags[1] if self.reasoning_tags else ""
        lead = lead.rpartition(closing)[2].strip()  # "Summary:"
        text = rest.strip()
        return "", text.removeprefix(lead) if text.startswith(lead) else "", ""


def between(text: str, opening: str, closing: str) -> tuple[str, str, str]:
    """Return the text before the last complete block, its content, and the text after it."""
    head, closed, after = text.rpartition(closing)
    before, opened, content = head.rpartition(opening)
    if closed and opened and closing not in content:
        return before, content, after
    return text, "", ""


def boxed_spans(text: str) -> Iterator[tuple[int, int]]:
    r"""Yield ``(start, end)`` of the content of each outermost, balanced ``\boxed{…}``.

    Escaped braces (``\{``) do not count. The text is read once.
    """
    opening = _OPENING.search(text)
    while opening:
        end = opening.end(1)
        if opening[1] is None:
            depth = 1
            for brace in _BRACE.finditer(text, opening.end()):
                depth += (brace[0] == "{") - (brace[0] == "}")
                if depth == 0:
                    break
            else:
                return  # a box that never closes
            end = brace.start()
        yield opening.end(), end
        opening = _OPENING.search(text, end + 1)


def boxes(text: str) -> list[str]:
    r"""Return what each balanced ``\boxed{…}`` holds, stripped."""
    return [text[start:end].strip() for start, end in boxed_spans(text)]


def left_open(text: str) -> bool:
    r"""Return whether the last ``\boxed{`` of a text never closes, or holds nothing."""
    *before, last = _OPENING.split(text)
    return bool(before) and not any(boxes(r"\boxed{" + last))


def template_prefill(generation_prompt: str, fmt: ResponseFormat) -> str:
    """Return the part of a generation prompt that belongs to the response, or ``""``.

    The templates of DeepSeek's distilled models open ``<think>`` themselves.
    """
    if not fmt.reasoning_tags:
        return ""
    _, opening, inside = generation_prompt.rpartition(fmt.reasoning_tags[0])
    return opening + inside if opening else ""


# A chat template for models without one
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def _read_format(name: str, keys: Any, where: str) -> ResponseFormat:
    keys = {"name": name, **keys} if isinstance(keys, Mapping) else keys
    fmt = from_mapping(ResponseFormat, keys, where)
    with located(where):  # a format has to read what it writes
        for reasoning, answer in (("2 + 2 = 4", "4"), ("First.\n\nSecond.", "1,080")):
            read = fmt.parse(fmt.render_completion(reasoning, answer))
            if read != ParsedResponse(reasoning, answer, True):
                raise ValueError(f"layout: writes {reasoning!r} and {answer!r}, but reads {read}")
    return fmt


FORMATS = {
    name: _read_format(name, keys, f"formats.yaml: {name}")
    for name, keys in read_yaml(Path(__file__).with_name("formats.yaml")).items()
}


def get_response_format(
    name: str | Mapping[str, Any] | ResponseFormat,
    *,
    system_prompt: str | None = None,
    prefill: str | None = None,
) -> ResponseFormat:
    """Return a response format with a recipe's ``system_prompt`` and ``prefill``.

    Args:
        name: A name of ``FORMATS``, a format's keys, or a format.
        system_prompt: Replaces the format's own instruction.
        prefill: Replaces the format's own prefill.

    Raises:
        ValueError: There is no such format, or it cannot read what it writes.
    """
    if isinstance(name, ResponseFormat):
        fmt = name
    elif not isinstance(name, str):
        fmt = _read_format("own", name, "response_format")
    elif name in FORMATS:
        fmt = FORMATS[name]
    else:
        unknown = unknown_name("response_format", name, FORMATS)
        raise RecipeError(f"{unknown} To use your own format, write its keys below response_format")
    given: dict[str, Any] = {"system_prompt": system_prompt, "prefill": prefill}
    return replace(fmt, **{key: text for key, text in given.items() if text is not None})
