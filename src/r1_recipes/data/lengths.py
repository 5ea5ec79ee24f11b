"""Find prompts and targets that are longer than a limit in tokens."""

import json
from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mapped_row import Message

_MARK = "|question|"
# Texts per call of the tokenizer. The encoding of a long text takes about 100 bytes per token.
_TOKENIZED_AT_ONCE = 64


@dataclass(frozen=True)
class TokenCounter:
    """Counts the tokens of texts and prompts.

    ``tools`` are JSON schemas, which the chat template writes into every prompt.
    """

    tokenizer: Any
    tools: str | None = None

    def prompts_over(self, prompts: list[list[Message]], limit: int) -> list[int]:
        """Return the indices of the prompts with more than ``limit`` tokens."""
        if _differ_only_in_question(prompts):
            start, texts = self._framed(prompts)
            expected = self._render([prompts[0], prompts[-1]])
            start_count, text_count, whole_count = self._counts([start, texts[0], expected[0]])
            same_text = [start + texts[0], start + texts[-1]] == expected
            if same_text and start_count + text_count == whole_count:
                return self.texts_over(texts, limit - start_count)
        return self.texts_over(self._render(prompts), limit)

    def texts_over(self, texts: list[str], limit: int) -> list[int]:
        """Return the indices of the texts with more than ``limit`` tokens."""
        over = []
        # A token is at least one ASCII character, but some tokenizers put a token in front.
        long = [row for row, text in enumerate(texts) if len(text) >= limit or not text.isascii()]
        for start in range(0, len(long), _TOKENIZED_AT_ONCE):
            indices = long[start : start + _TOKENIZED_AT_ONCE]
            counts = self._counts([texts[index] for index in indices])
            over += [index for index, count in zip(indices, counts, strict=True) if count > limit]
        return over

    def _render(self, prompts: list[list[Message]]) -> list[str]:
        options = {"add_generation_prompt": True, "tokenize": False}
        if self.tools:
            options["tools"] = json.loads(self.tools)
        return self.tokenizer.apply_chat_template(prompts, **options)

    def _framed(self, prompts: list[list[Message]]) -> tuple[str, list[str]]:
        """Return the text that all prompts start with, and the rest of each prompt.

        The text around the question is rendered only once, because rendering every prompt is slow.
        """
        *opening, last = prompts[0]
        [framed] = self._render([[*opening, last | {"content": _MARK}]])
        before, _, after = framed.partition(_MARK)
        # No token crosses a special token, so the text before the last one is counted only once.
        cut = max([0, *map(before.rfind, self.tokenizer.get_added_vocab())])
        end = before[cut:]
        return before[:cut], [end + prompt[-1]["content"] + after for prompt in prompts]

    def _counts(self, texts: list[str]) -> list[int]:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:  # a tokenizer in Python
            return [len(self.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        # This gives the same counts as calling the tokenizer, in half the time.
        backend.no_truncation()
        backend.no_padding()
        encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        return list(map(len, encodings))


def _differ_only_in_question(prompts: list[list[Message]]) -> bool:
    opening = prompts[0][:-1]
    for prompt in prompts:
        question = prompt[-1]["content"]
        if question != question.strip() or prompt[:-1] != opening:
            return False
    return True
