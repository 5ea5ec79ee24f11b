"""Response formats: how a response is asked for, written and read.

A :class:`ResponseFormat` writes the system prompt, renders SFT targets and few-shot messages, and
reads completions. Prompts, rewards, generation filters and evaluation share one object, so a
prompt cannot ask for one format while a reward expects another.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import regex

_BOX = "\\boxed{"
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# Characters and LaTeX that print nothing. Unicode does not class the Braille blank and two other
# signs as spaces, so they are listed.
_INVISIBLE = regex.compile(
    r"""(?:
      [\s\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}\u2800\U00016FE4\U0001D159{}~$]
    | \\ [,;:!>\s\\]
    | \\ (?: [hv]?phantom | [hv]space \*? ) \s* \{ [^{}]* \}
    | \\ (?: boxed | fbox | [hm]box | (?:text|math) (?:bf|it|rm|sf|tt|normal)? | q?quad | enspace |
      thinspace | null | strut ) (?![A-Za-z])
    )*+""",
    regex.VERBOSE,
)
_SENTENCE_END = "$\\)]*.。 \t\r\n"
SLOT = re.compile(r"\{(reasoning|answer)\}")


@dataclass(frozen=True)
class ParsedResponse:
    """A completion, parsed by a :class:`ResponseFormat`. Both parts are stripped.

    Attributes:
        reasoning: ``None`` if there is none, if it shows a reader nothing, or if it never closes.
        answer: The answer after the reasoning. ``None`` if it is missing, shows a reader nothing,
            never closes, or if several answers contradict each other.
        well_formed: Whether the text is one reasoning block, then one answer block, and nothing
            else. Both must show a reader something.
        boxes: The distinct contents of the boxes after the reasoning. Empty boxes are ignored.
    """

    reasoning: str | None
    answer: str | None
    well_formed: bool
    boxes: tuple[str, ...] = field(default=(), compare=False)


def is_blank(text: str) -> bool:
    r"""Return whether a text prints nothing, in time linear in its length.

    White space, characters without width and ``\boxed{\quad}`` print nothing.
    """
    if not _INVISIBLE.fullmatch(text):
        return False
    # Braces and dollars alone are an answer (an empty dictionary). Around LaTeX they print nothing.
    return "\\" in text or not re.search(r"[{}~$]", text)


def _content(text: str) -> str | None:
    """Return the stripped content of a block, or ``None`` if it is blank."""
    return None if is_blank(text) else text.strip()


def boxed_spans(text: str) -> Iterator[tuple[int, int]]:
    r"""Yield ``(start, end)`` of the content of each outermost, balanced ``\boxed{…}``.

    Escaped braces (``\{``) do not count. The text is read once.
    """
    start = text.find(_BOX)
    while start != -1:
        begin = start + len(_BOX)
        depth = 1
        for match in _BRACE.finditer(text, begin):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0:
                yield begin, match.start()
                break
        else:
            return
        start = text.find(_BOX, match.end())


_OTHER_BOX = re.compile(r"\\(?:boxed\s|fbox)")


def one_spelling_of_boxes(text: str) -> str:
    r"""Write ``\boxed {72}``, ``\fbox{72}`` and ``\boxed 2`` in a text as ``\boxed{…}``.
    Return it.
    """
    if not _OTHER_BOX.search(text):
        return text
    text = re.sub(r"\\(?:boxed\s+|fbox\s*)\{", r"\\boxed{", text)
    return re.sub(r"\\boxed\s+([^\s{}\\])", r"\\boxed{\1}", text)


@dataclass(frozen=True)
class ResponseFormat:
    r"""The shape of a response: how an answer is asked for, written and parsed.

    Attributes:
        name: The name in a recipe.
        system_prompt: The instruction that asks for this shape. ``""`` sends no system message.
        layout: Literal text with one ``{answer}`` slot, and one ``{reasoning}`` slot before it.
        reasoning_tags: The delimiters of the reasoning, without line breaks. ``None``: the
            reasoning is the text before the answer or box.
        answer_tags: The delimiters of the answer. ``None``: the answer is in a box, or is the rest
            of the text.
        boxed: Whether the answer is in ``\boxed{…}``. With ``answer_tags``, this holds where there
            is no such block.
        prose: Whether the answer is a text for a reader. Then the final answer in the text is
            compared with the reference answer.
        delimited: Whether there is no answer without the delimiters. The whole completion is then
            neither searched for a box nor taken as the answer. The delimiters of the reasoning
            appear once each, the second with the line breaks that the layout writes after it.
        prefill: The start of the assistant's turn, which the model does not generate. Completions
            are parsed with the prefill in front.
        chat_template: A chat template for base models that need this format's own conversation.
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

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """Return every delimiter of a response, with the line breaks that the layout adds.

        A response contains each of them exactly once.
        """
        tags = []
        for core in chain(*self._blocks):
            tags += re.findall(rf"\n*{re.escape(core)}\n*", self.layout)[:1]
        # A box is as often part of a sentence as on a separate line.
        if self.boxed and not self.answer_tags:
            tags.append(_BOX)
        return tuple(tags)

    @property
    def _blocks(self) -> list[tuple[str, str]]:
        return [tags for tags in (self.reasoning_tags, self.answer_tags) if tags]

    @cached_property
    def marks(self) -> tuple[tuple[str, ...], ...]:
        """Return groups of marks: a prompt for this format names one of each group.

        The reasoning's marks come first.
        """
        groups: list[tuple[str, ...]] = [tags[:1] for tags in self._blocks]
        if self.reasoning_tags and self.delimited:
            groups.append(self.reasoning_tags[1:])
        if self.boxed:
            tagged = groups.pop() if self.answer_tags else ()
            groups.append((*tagged, "\\boxed"))
        return tuple(groups)

    def lacking(self, prompt: str) -> list[tuple[str, ...]]:
        """Return the :attr:`marks` that neither the prompt nor the prefill names."""
        text = f"{prompt}\n{self.prefill}"  # No mark has a line break.
        return [group for group in self.marks if not any(mark in text for mark in group)]

    def render(self, reasoning: str, answer: str) -> str:
        """Write a whole response, prefill included.

        Args:
            reasoning: The reasoning; white space around it is dropped.
            answer: The answer; white space around it is dropped.

        Raises:
            ValueError: The response could not be parsed back.
        """
        parts = {"reasoning": reasoning.strip(), "answer": answer.strip()}
        text = SLOT.sub(lambda slot: parts[slot[1]], self.layout)
        expected = ParsedResponse(parts["reasoning"], parts["answer"], well_formed=True)
        if self._read(text) != expected:
            raise ValueError(
                f"response_format {self.name!r} cannot hold reasoning {reasoning[:60]!r} "
                f"with answer {answer[:60]!r}: "
                "both must have visible text and must not contain the format's delimiters"
            )
        return text

    def render_completion(self, reasoning: str, answer: str) -> str:
        """Return what the model generates: a complete response without the prefill.

        Raise ValueError if the response does not start with the prefill.
        """
        text = self.render(reasoning, answer)
        if text.startswith(self.prefill):
            return text[len(self.prefill) :]
        # A prefill may be longer than the layout's start ("Let me solve this.\n<think>").
        if self.reasoning_tags and self.prefill.rstrip().endswith(self.reasoning_tags[0]):
            return text.partition(self.reasoning_tags[0])[2]
        raise ValueError(
            f"response_format {self.name!r} renders {text[:60]!r}, which does not start with "
            f"its prefill {self.prefill!r}"
        )

    def full_text(self, completion: str) -> str:
        """Return the complete text of the assistant's turn, including the prefill."""
        return self.prefill + completion

    def with_prefill(self, response: str) -> str | None:
        """Return a response with the prefill in front, or ``None`` if it starts differently."""
        if response.startswith(self.prefill):
            return response
        if not self.reasoning_tags or not self.prefill.rstrip().endswith(self.reasoning_tags[0]):
            return None
        opening, closing = self.reasoning_tags
        # If a server's template opens the reasoning, the response starts after the tag. Other data
        # starts with the tag.
        rest = response.lstrip().removeprefix(opening)
        if closing not in rest or opening in rest:
            return None
        return self.prefill + (rest.lstrip() if self.prefill[-1:].isspace() else rest)

    def parse(self, completion: str) -> ParsedResponse:
        """Parse a generated completion. No text makes this method raise.

        Args:
            completion: What the model generated, without the prefill.
        """
        return self._read(self.prefill + completion)

    def hollow_tags(self, completion: str) -> set[str]:
        """Return the :attr:`tags` of a completion's blank blocks and boxes."""
        text = self.full_text(completion)
        hollow: set[str] = set()
        for number, (opening, closing) in enumerate(self._blocks):
            # A missing tag, as in a completion that was cut, does not bound the block.
            before_end = text.rsplit(closing, 1)[0]
            if is_blank(before_end.rsplit(opening, 1)[-1]):
                hollow.update(self.tags[2 * number : 2 * number + 2])
        empty = [_INVISIBLE.fullmatch(text, *span) for span in boxed_spans(text)]
        if empty and all(empty):
            hollow.add(_BOX)
        return hollow

    def answer_anywhere(self, completion: str) -> str | None:
        """Return a completion's last answer block.

        It may be inside the reasoning, or after reasoning that never closes.
        """
        if self.answer_tags is None:
            return None
        opening, closing = self.answer_tags
        for piece in reversed(self.full_text(completion).split(closing)[:-1]):
            if opening in piece:
                return _content(piece.rpartition(opening)[2])
        return None

    def _read(self, text: str) -> ParsedResponse:
        reasoning, single_reasoning, body = self._split_reasoning(text)
        if body is None:
            return ParsedResponse(reasoning, None, False)
        boxes: tuple[str, ...] = ()
        tags = self.answer_tags
        boxed = self.boxed and not (tags and tags[0] in body)
        if boxed:
            answer, lead, rest, single, boxes = _read_boxed_answer(body)
        elif tags:
            answer, lead, rest, single = _read_tagged_answer(body, *tags)
        else:
            answer, lead, rest, single = self._read_trailing_answer(body), "", "", True
        if self.reasoning_tags is None:
            reasoning = _content(lead)  # The reasoning is the text before the answer.
        elif not boxed:  # The sentence before a box belongs to the answer.
            rest += lead
        well_formed = False
        if single and single_reasoning and answer and reasoning and not rest.strip():
            # An answer block inside the reasoning is a second answer. A box there is not: many
            # models box an interim result.
            well_formed = not any(tag in reasoning for tag in tags or ())
        return ParsedResponse(reasoning, answer, well_formed, boxes)

    def _split_reasoning(self, text: str) -> tuple[str | None, bool, str | None]:
        """Split a text into reasoning and the text after it.

        Return the reasoning, whether the text starts with its only block, and the text after the
        last block (``None`` if the block never closes).
        """
        if self.reasoning_tags is None:
            return None, True, text
        opening, closing = self.reasoning_tags
        if self.delimited:
            closing = self.tags[1].lstrip("\n")
            if not text.count(opening) == text.count(closing) == 1:
                return None, False, None
        if opening == closing:
            return _split_between(text, opening)
        before_end, closed, body = text.rpartition(closing)
        if not closed and opening not in text:
            return None, False, text
        if not closed or opening in body:
            return None, False, None
        before, opened, inner = before_end.partition(opening)
        if not opened:
            return _content(before_end), False, body
        # Text before the block is stray unless it comes from the prefill.
        from_prefill = self.prefill.partition(opening)[0].strip()
        starts = before.strip() in ("", from_prefill)
        single = starts and opening not in inner and closing not in inner
        return _content(inner), single, body

    def _read_trailing_answer(self, body: str) -> str | None:
        """Return an answer that is all the text after the reasoning.

        The layout's text before the answer ("Summary:") is removed.
        """
        assert self.reasoning_tags, (
            f"{self.name}: an answer without delimiters must follow delimited reasoning"
        )
        closing = self.reasoning_tags[1]
        text = body.strip()
        after = self.layout.rpartition(closing)[2]
        prefix = after.removesuffix("{answer}").strip()
        if closing in text or not text.startswith(prefix):
            return None
        return _content(text.removeprefix(prefix))


def _split_between(text: str, mark: str) -> tuple[str | None, bool, str | None]:
    """Return as :meth:`ResponseFormat._split_reasoning`, for one mark that opens and closes the
    reasoning.
    """
    before, *pieces = text.split(mark)
    if len(pieces) < 2:
        return None, False, None if pieces else text
    return _content(pieces[0]), len(pieces) == 2 and not before.strip(), pieces[-1]


def _read_tagged_answer(body: str, opening: str, closing: str) -> tuple[str | None, str, str, bool]:
    """Return the answer, the text before and after its blocks, and whether there is only
    one block.
    """
    lead, *pieces = body.split(opening)
    blocks = set()
    rests = ""
    for piece in pieces:
        content, closed, rest = piece.partition(closing)
        if not closed or closing in rest:
            return None, lead, "", False
        blocks.add(content.strip())
        rests += rest
    if len(blocks) != 1:
        return None, lead, "", False
    return _content(blocks.pop()), lead, rests, len(pieces) == 1


def _read_boxed_answer(body: str) -> tuple[str | None, str, str, bool, tuple[str, ...]]:
    """Return as :func:`_read_tagged_answer`, and the contents of the boxes."""
    body = one_spelling_of_boxes(body)  # \\fbox{71} beside \\boxed{72} is a second answer
    # Unlike in is_blank, braces and dollars alone are no answer: \\boxed{} around them is LaTeX.
    spans = [span for span in boxed_spans(body) if not _INVISIBLE.fullmatch(body, *span)]
    boxes = tuple(dict.fromkeys(body[start:end].strip() for start, end in spans))
    if len(boxes) != 1:
        return None, body, "", False, boxes
    start, end = spans[-1]
    lead = body[: start - len(_BOX)]
    # The sentence around the box ("So the answer is $…$.") belongs to the answer. Further text
    # does not.
    rest = body[end + 1 :].strip(_SENTENCE_END)
    return boxes[0], lead, rest, body.count(_BOX) == 1, boxes


def leaves_open(generation_prompt: str, tags: tuple[str, str]) -> bool:
    """Return whether the model continues inside reasoning with these tags.

    An empty ``<think></think>`` in the generation prompt means no reasoning.
    """
    _, opened, inside = generation_prompt.rpartition(tags[0])
    return bool(opened) and tags[1] not in inside


def template_prefill(generation_prompt: str, fmt: ResponseFormat) -> str:
    """Return the part of a generation prompt that belongs to the response, or ``""``.

    An example is ``<think>`` of DeepSeek's distilled models.
    """
    if not fmt.reasoning_tags:
        return ""
    _, opening, inside = generation_prompt.rpartition(fmt.reasoning_tags[0])
    return opening + inside if opening else ""
