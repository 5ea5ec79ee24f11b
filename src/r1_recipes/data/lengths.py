"""Find prompts and targets that are longer than a limit in tokens."""

import json
from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mapped_row import Message

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

    def _counts(self, texts: list[str]) -> list[int]:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:  # a tokenizer in Python
            return [len(self.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        # This gives the same counts as calling the tokenizer, in half the time.
        backend.no_truncation()
        backend.no_padding()
        encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        return list(map(len, encodings))
