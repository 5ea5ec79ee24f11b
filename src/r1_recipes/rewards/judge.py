"""The one judge: a model behind an OpenAI-compatible server whose reply ends in a score.

A score is ``Score: x`` up to the end of a line, or ``<score>x</score>`` anywhere. The last one that can be read counts;
docs/recipes.md has a table.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from r1_recipes.common.chat_client import ChatServer, Reply
from r1_recipes.common.errors import RecipeError

logger = logging.getLogger(__name__)

SERVED = "openai:"
"""What a recipe writes before the name of a judge, where a folder or hub id could stand as well."""

# All repetitions are bounded or possessive, so that reading takes time in proportion to the reply.
_NUMBER = r"([+-]?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}))(?:\s{0,2}(?:/|out of)\s{0,2}[0-9]{1,9})?"
_SCORE = re.compile(
    rf"<score>\s{{0,9}}{_NUMBER}\s{{0,9}}</score>"
    rf"|(?<![^\W_])score[*_`]{{0,3}}\s{{0,4}}[:：=][*_`\[\s]{{0,8}}{_NUMBER}[]*_`).。 \t\r]*+$",
    re.IGNORECASE | re.MULTILINE,
)
# A verdict stands at the end of a reply; how long one may be is for the server to say.
_MAX_REPLY_CHARS = 20_000
_SLOT = re.compile(r"\{([A-Za-z_]+)\}")


def read_score(reply: str) -> float | None:
    """The last score of a judge's reply, by the module's table; ``None`` if there is none."""
    found = _SCORE.findall(reply.rstrip()[-_MAX_REPLY_CHARS:])
    return float("".join(found[-1])) if found else None  # one of the two groups is empty


def fill(prompt: str, slots: Mapping[str, str]) -> str:
    """Write ``slots`` into a prompt's ``{name}``; other braces stay, and what is filled in is not filled in again."""
    return without_surrogates(_SLOT.sub(lambda slot: slots.get(slot[1], slot[0]), prompt))


def without_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which UTF-8 cannot encode, with U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True)
class Opinion:
    """What a judge or a reward model says of one text."""

    score: float | None = None
    error: str | None = None  # why the text is not judged
    failed: bool = False  # a server that may yet judge it is at fault
    truncated: bool = False  # only the end of the text was read


@dataclass(frozen=True)
class Judge:
    """A model that rates texts, at ``OPENAI_BASE_URL``."""

    model: str
    prompt: str  # with slots in braces
    max_concurrency: int = 16

    @property
    def server(self) -> ChatServer:
        return ChatServer(self.model, max_concurrency=self.max_concurrency)

    def ask(self, slots: Sequence[Mapping[str, str]]) -> list[Opinion]:
        """Give one opinion per prompt filled in, in order; equal prompts are asked about once.

        Raises:
            RecipeError: no address, or the server refuses the model or the key.
        """
        messages = [fill(self.prompt, one) for one in slots]
        asked = list(dict.fromkeys(messages))
        conversations = [[{"role": "user", "content": message}] for message in asked]
        replies = self.server.chat(conversations)
        opinions = {message: _opinion(reply) for message, reply in zip(asked, replies, strict=True)}
        return [opinions[message] for message in messages]


def _opinion(reply: Reply) -> Opinion:
    if reply.error is not None:
        return Opinion(error=reply.error, failed=not reply.refused)
    return Opinion(read_score(reply.text))


def check_prompt(key: str, prompt: str | None, slots: Sequence[str]) -> None:
    """Refuse a judge's prompt that lacks one of ``slots``."""
    if prompt is None or any(f"{{{slot}}}" not in prompt for slot in slots):
        wanted = " and ".join(f"{{{slot}}}" for slot in slots)
        raise RecipeError(f"{key}: must be a text with {wanted} that asks for a line 'Score: x', got {prompt!r}")


def report_unjudged(where: str, opinions: Sequence[Opinion]) -> None:
    """Warn about the completions of a batch that got no score; it is an error if all of them failed."""
    failed = [row for row, opinion in enumerate(opinions) if opinion.error]
    if failed:
        text = f"{len(failed)} of {len(opinions)} completions are not judged; the first, row {failed[0]}: {opinions[failed[0]].error}"
        if len(failed) == len(opinions):
            raise RecipeError(f"{where}: {text}")
        logger.warning("%s: %s", where, text)
    unread = [row for row, opinion in enumerate(opinions) if opinion.score is None and not opinion.error]
    if unread:
        logger.warning("%s: %d of %d verdicts hold no score; the first is row %d", where, len(unread), len(opinions), unread[0])
