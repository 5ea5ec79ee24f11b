"""Ask a judge model for scores, and read its replies."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from r1_recipes.common.chat_client import ChatServer, Reply
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import without_surrogates

logger = logging.getLogger(__name__)


Conversation = list[dict[str, str]]


# What a judge reads of a row: the conversation, the completion, the reference answer.
JudgeInput = tuple[Conversation, str, str]


SERVED = "openai:"  # The prefix of a judge behind a server, instead of a folder or hub id.


# All repetitions are bounded, and only a line is read.
_NUMBER = (
    r"([+-]?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}))(?:\s{0,2}(?:/|out "
    r"of)\s{0,2}([0-9]{1,9}))?"
)


_SCORE = re.compile(
    rf"[-#*_`\[(\s]{{0,9}}(?:(?:my|the|final|overall|"
    rf"total)\s){{0,3}}score[*_`]{{0,3}}\s{{0,4}}[:：=][*_`\[\s]{{0,8}}{_NUMBER}[]*_`).。]{{0,9}}"
    rf"|<score>\s{{0,9}}{_NUMBER}\s{{0,9}}</score>",
    re.IGNORECASE,
)


# The end of the reasoning. Inside a line, the tag is a quotation.
_REASONED = re.compile(r"</think>(?:(?<=^</think>)|\s{0,9}$)", re.MULTILINE)


_SLOT = re.compile(r"\{([A-Za-z_]+)\}")


def fill(prompt: str, slots: Mapping[str, str]) -> str:
    """Replace each ``{name}`` of a prompt that is in ``slots``, in a single pass.

    Other braces stay unchanged, also in the inserted text.
    """
    return without_surrogates(_SLOT.sub(lambda slot: slots.get(slot[1], slot[0]), prompt))


def as_text(completion: str) -> str:
    """Return a completion without special tokens, which the server of a judge would read as such.

    A zero-width space breaks them.
    """
    return re.sub(r"<(?=[|｜])", "<\u200b", completion)


class Opinion(NamedTuple):
    """The opinion of a judge or a reward model about a text."""

    score: float | None = None
    error: str | None = None  # Why there is no score.
    scale: float | None = None  # 10 for "8/10"; None without a scale.
    # The server failed, and may give a score later. Selection stops if this metric is not 0.
    failed: bool = False


# Opinions of this process, by address, judge and message.
_cache: dict[tuple[str, str, str], Opinion] = {}
_MAX_CACHED = 10_000


def read_score(reply: str) -> Opinion:
    """Return the score in the last line of a reply, or in its last two ("Score:" and a number).

    There is no score if these lines contain anything else.
    """
    verdict = _REASONED.split(reply)[-1].strip()
    if verdict.startswith("<think>"):  # The reasoning is not closed.
        return Opinion()
    lines = [line.strip() for line in verdict.rsplit("\n", 9)]
    *_, previous, last = ["", "", *filter(None, lines)]
    match = _SCORE.fullmatch(last) or _SCORE.fullmatch(f"{previous} {last}")
    if not match:
        return Opinion()
    scale = match[2] or match[4]
    return Opinion(float(match[1] or match[3]), scale=float(scale) if scale else None)


def ask(
    judge: str,
    prompt: str,
    slots: Sequence[Mapping[str, str]],
    timeout: float = ChatServer.timeout,
    max_tokens: int | None = None,
) -> list[Opinion]:
    """Ask the judge ``openai:NAME`` at ``OPENAI_BASE_URL``, and return an opinion per row of slots.

    Cached opinions are not asked again. A reply that is cut at ``max_tokens`` has no score, because
    it may end in a quotation instead of the verdict.
    """
    server = ChatServer(judge.removeprefix(SERVED), timeout=timeout)
    address = server.check()
    keys = [(address, judge, fill(prompt, row)) for row in slots]
    new = [key for key in dict.fromkeys(keys) if key not in _cache]
    conversations = [[{"role": "user", "content": message}] for *_, message in new]
    replies = server.chat(conversations, max_tokens=max_tokens)
    received = {}
    for key, reply in zip(new, replies, strict=True):
        received[key] = _opinion(reply)
    opinions = [received.get(key) or _cache[key] for key in keys]
    if len(_cache) > _MAX_CACHED:
        _cache.clear()
    for key, opinion in received.items():
        if opinion.score is not None:
            _cache[key] = opinion
    return opinions


def _opinion(reply: Reply) -> Opinion:
    if reply.error:
        return Opinion(error=reply.error, failed=not reply.refused)
    if reply.finish_reason == "length":
        return Opinion()
    return read_score(reply.text)


def within(bounds: Sequence[float] | None, opinion: Opinion) -> Opinion:
    """Return the opinion, without its score if that is out of bounds.

    Such a score is on another scale ("10/1000000"), or the completion persuaded the judge.
    """
    if bounds is None or opinion.score is None:
        return opinion
    low, high = bounds
    inside = low <= opinion.score <= high and opinion.scale in (None, high)
    return opinion if inside else opinion._replace(score=None)


def report_unjudged(where: str, opinions: Sequence[Opinion]) -> None:
    """Warn about completions without a score. Raise if the judge failed on the whole batch.

    A single request that it refuses, for example for its content, may be the completion's fault.
    """
    errors = [opinion.error for opinion in opinions if opinion.error]
    unscored = sum(opinion.score is None for opinion in opinions)
    cause = errors[0] if errors else "no score"
    message = (
        f"{where}: {unscored} of {len(opinions)} completions got no score: {cause} (errors: "
        f"{len(errors)}, verdicts without a readable score: {unscored - len(errors)})"
    )
    if errors and len(errors) == len(opinions) and (len(errors) > 1 or opinions[0].failed):
        raise RecipeError(message)
    if unscored:
        logger.warning("%s", message)
