"""Asking a judge for scores, and reading its replies."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from r1_recipes.common.chat_client import ChatServer, Reply
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import without_surrogates
from r1_recipes.extras.judges.rubric import Rubric, read_verdicts

logger = logging.getLogger(__name__)


Conversation = list[dict[str, str]]


Shown = tuple[
    Conversation, str, str, Rubric
]  # what is seen of a row: the conversation before the turn, the turn, the gold, the rubric


SERVED = "openai:"  # before a judge's name, where a folder or hub id could stand as well


# All repetitions are bounded, and one line is read.
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


# Where the reasoning ends; inside a line the tag is quoted.
_REASONED = re.compile(r"</think>(?:(?<=^</think>)|\s{0,9}$)", re.MULTILINE)


_SLOT = re.compile(r"\{([A-Za-z_]+)\}")


_known: dict[
    tuple[str, str, str, Rubric], Any
] = {}  # opinions of this process, by address, judge, message and rubric


_MAX_KNOWN = 10_000


def fill(prompt: str, slots: Mapping[str, str]) -> str:
    """Write ``slots`` into a prompt's ``{name}``; other braces stay, and what is filled in is not
    filled in again.
    """
    return without_surrogates(_SLOT.sub(lambda slot: slots.get(slot[1], slot[0]), prompt))


def as_text(completion: str) -> str:
    """Break what special tokens begin with, by a space of no width: a judge's server reads them
    wherever they stand.
    """
    return re.sub(r"<(?=[|｜])", "<\u200b", completion)


class Opinion(NamedTuple):
    """What a judge or a reward model says of one text."""

    score: float | None = None
    error: str | None = None  # why the text is not judged
    scale: float | None = None  # of "8/10"; None: it names none
    failed: bool = (
        False  # a server that may yet judge it is at fault; selection stops on the metric of it
    )


def read_score(reply: str) -> Opinion:
    """The score that is a reply's last line, or its last two ("Score:" and a number); none if that
    line says anything else.
    """
    verdict = _REASONED.split(reply)[-1].strip()
    if verdict.startswith("<think>"):  # it never came to one
        return Opinion()
    lines = [line.strip() for line in verdict.rsplit("\n", 9) if line.strip()]
    found = _SCORE.fullmatch(lines[-1]) or _SCORE.fullmatch(" ".join(lines[-2:])) if lines else None
    if not found:
        return Opinion()
    scale = found[2] or found[4]
    return Opinion(float(found[1] or found[3]), scale=float(scale) if scale else None)


def ask(
    judge: str,
    prompt: str,
    slots: Sequence[Mapping[str, str]],
    rubrics: Iterable[Rubric] = repeat(()),
    timeout: float = ChatServer.timeout,
    max_tokens: int | None = None,
) -> list[Opinion]:
    """Ask ``openai:NAME`` at ``OPENAI_BASE_URL`` for one opinion per prompt filled in, in order;
    what is known is not asked again.

    A reply that is cut at ``max_tokens`` ends in what the judge quotes as well as in its verdict,
    so it holds none.
    """
    server = ChatServer(judge.removeprefix(SERVED), timeout=timeout)
    address = server.check()
    wanted = [
        (address, judge, fill(prompt, one), rubric)
        for one, rubric in zip(slots, rubrics, strict=False)
    ]
    asked = [key for key in dict.fromkeys(wanted) if key not in _known]
    replies = server.chat(
        [[{"role": "user", "content": message}] for _, _, message, _ in asked],
        max_tokens=max_tokens,
    )
    found = {key: _opinion(reply, key[-1]) for key, reply in zip(asked, replies, strict=True)}
    opinions = [found.get(key) or _known[key] for key in wanted]
    if len(_known) > _MAX_KNOWN:
        _known.clear()
    _known.update((key, opinion) for key, opinion in found.items() if opinion.score is not None)
    return opinions


def _opinion(reply: Reply, rubric: Rubric) -> Opinion:
    if reply.error or reply.finish_reason == "length":
        return Opinion(error=reply.error, failed=bool(reply.error) and not reply.refused)
    return Opinion(read_verdicts(reply.text, rubric)) if rubric else read_score(reply.text)


def within(bounds: Sequence[float] | None, opinion: Opinion) -> Opinion:
    """The opinion, without a score that is out of bounds: one that a judge was talked into, or on
    another scale ("10/1000000").
    """
    if bounds is None or opinion.score is None:
        return opinion
    inside = bounds[0] <= opinion.score <= bounds[1] and opinion.scale in (None, bounds[1])
    return opinion if inside else opinion._replace(score=None)


def report_unjudged(where: str, opinions: Sequence[Opinion]) -> None:
    """Warn about the completions of a batch that got no score; it is an error if all of them
    failed.
    """
    errors = [opinion.error for opinion in opinions if opinion.error]
    unscored = sum(opinion.score is None for opinion in opinions)
    why = (
        f"{errors[0] if errors else 'no score'} (errors: {len(errors)}, verdicts without a "
        f"readable score: {unscored - len(errors)})"
    )
    told = f"{where}: {unscored} of {len(opinions)} completions are not judged: {why}"
    if errors and len(errors) == len(opinions):
        raise RecipeError(told)
    if unscored:
        logger.warning("%s", told)
