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
    truncated: bool = False  # only the end of the text was read


def ask(judge: str, prompt: str, slots: Sequence[Mapping[str, str]]) -> list[Opinion]:
    """Ask ``openai:NAME`` at ``OPENAI_BASE_URL`` for one opinion per prompt filled in, in order; equal prompts are asked about once.

    Raises:
        RecipeError: no address, or the server refuses the model or the key.
    """
    messages = [fill(prompt, one) for one in slots]
    asked = list(dict.fromkeys(messages))
    replies = ChatServer(judge.removeprefix(SERVED)).chat([[{"role": "user", "content": message}] for message in asked])
    opinions = {message: _opinion(reply) for message, reply in zip(asked, replies, strict=True)}
    return [opinions[message] for message in messages]


def _opinion(reply: Reply) -> Opinion:
    return Opinion(read_score(reply.text)) if reply.error is None else Opinion(error=reply.error)


def check_prompt(key: str, prompt: str | None, slots: Sequence[str]) -> None:
    """Refuse a judge's prompt that lacks one of ``slots``."""
    if prompt is None or any(f"{{{slot}}}" not in prompt for slot in slots):
        wanted = " and ".join(f"{{{slot}}}" for slot in slots)
        raise RecipeError(f"{key}: must be a text with {wanted} that asks for a line 'Score: x', got {prompt!r}")


def report_unjudged(where: str, opinions: Sequence[Opinion]) -> None:
    """Warn about the completions of a batch that got no score; it is an error if all of them failed."""
    errors = [opinion.error for opinion in opinions if opinion.error]
    unscored = sum(opinion.score is None for opinion in opinions)
    told = f"{where}: {unscored} of {len(opinions)} completions are not judged: {errors[0] if errors else 'their verdicts hold no score'}"
    if errors and len(errors) == len(opinions):
        raise RecipeError(told)
    if unscored:
        logger.warning(told)
