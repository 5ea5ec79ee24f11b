"""Score completions with a reward model or a judge, for what rules cannot check.

A reward model is a sequence classifier. A judge is a chat model behind an OpenAI-compatible server,
whose reply ends in a line ``Score: x``. Both are entries of the recipe key ``reward_models``.
DeepSeek-R1 (arXiv:2501.12948, section 2.3.4) scores helpfulness by the summary, and harmlessness by
the whole completion.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from r1_recipes.common.chat_client import ChatServer, Reply
from r1_recipes.common.errors import RecipeError, from_mapping, limited, own_code, require
from r1_recipes.common.messages import (
    completion_texts,
    conversation_text,
    last_user_text,
    message_text,
    without_surrogates,
)
from r1_recipes.prompts import ResponseFormat
from r1_recipes.rewards import REWARDS
from r1_recipes.rewards.answers import Column, Log, Values, ignore

logger = logging.getLogger(__name__)

Conversation = list[dict[str, str]]
SERVED = "openai:"  # a judge behind a server, instead of a folder or hub id
# The whole last line, because a score inside a sentence may be quoted from the completion.
_SCORE = re.compile(
    r"[-#*_`\[(\s]*(?:(?:my|the|final|overall|total)\s+)*score[*_`\s]*[:：=][*_`\[\s]*"
    r"([+-]?\d{1,9}(?:\.\d{1,9})?)[\]*_`).。\s]*",
    re.IGNORECASE,
)
_CLASSIFIER = "the folder or hub id of a sequence classifier"
_SLOT = re.compile(r"\{([A-Za-z_]+)\}")


@dataclass(frozen=True)
class Entry:
    """An entry of ``reward_models``.

    Attributes:
        model: The folder or hub id of a classifier with one label, or ``openai:NAME``, a judge.
        scope: ``"summary"``: the model reads what follows the reasoning, without the system message
            of the response format. ``"full"``: the whole completion in its conversation.
        batch_size: How many conversations a classifier scores at once.
        activation: ``"sigmoid"``: a classifier's score is from 0 to 1.
        prompt: A judge's prompt, with ``{response}``, and if you like ``{prompt}``, ``{solution}``
            and any other column.
        range: A judge's lowest and highest score. Another number is no score.
    """

    model: str = limited(
        lambda name: name.removeprefix(SERVED), "a folder, a hub id or openai:NAME"
    )
    scope: str = limited(lambda name: name in ("summary", "full"), "summary or full", "summary")
    batch_size: int = limited(lambda value: value >= 1, "1 or more", 16)
    activation: str = limited(lambda name: name == "sigmoid", "sigmoid", "sigmoid")
    prompt: str | None = None
    range: tuple[float, ...] = limited(
        lambda bounds: len(bounds) == 2 and bounds[0] < bounds[1], "[lowest, highest]", (0.0, 1.0)
    )

    def __post_init__(self) -> None:
        if bool(self.prompt) != self.served or (self.prompt and "{response}" not in self.prompt):
            raise ValueError(
                "prompt: a judge (model: openai:NAME) needs text with {response} that asks for a "
                f"line 'Score: x', and a classifier reads none, got {self.prompt!r}"
            )

    @property
    def served(self) -> bool:
        """Return whether the model is a judge."""
        return self.model.startswith(SERVED)


def read_reward_models(entries: Mapping[str, Any], fmt: ResponseFormat) -> dict[str, ModelReward]:
    """Return the rewards of the key ``reward_models``, by name."""
    rewards = {}
    for name, entry in entries.items():
        require(
            name not in REWARDS and re.fullmatch(r"[A-Za-z]\w*", str(name)),
            "reward_models",
            "letters, digits and _, and not the name of another reward",
            name,
            "for example helpfulness",
        )
        settings = from_mapping(Entry, entry, f"reward_models: {name}")
        rewards[name] = ModelReward(name, settings, fmt)
    return rewards


@dataclass(frozen=True)
class ModelReward:
    """A reward model or a judge, as a reward with the name of its entry.

    Range: 0..1, or a judge's ``range``. With ``scope: summary``, a completion that never ends its
    reasoning gets the lowest score. Return ``None`` where a judge gives no score, and where the
    row lacks what its prompt names. If all requests of a batch fail, raise a RecipeError.
    """

    name: str
    entry: Entry
    fmt: ResponseFormat

    @property
    def __name__(self) -> str:
        return self.name

    def check_start(self) -> None:
        """Raise if the judge has no server address, or if the classifier does not exist."""
        if self.entry.served:
            ChatServer(self.entry.model).check()
        else:
            from transformers import AutoConfig

            with own_code(f"reward_models: loading {self.entry.model!r}", _CLASSIFIER):
                AutoConfig.from_pretrained(self.entry.model, trust_remote_code=False)

    def __call__(
        self, completions: Column, prompts: Column = (), log_metric: Log = ignore, **columns: Any
    ) -> Values:
        entry = self.entry
        read = shown_text if entry.scope == "summary" else ResponseFormat.full_text
        texts = [read(self.fmt, text) for text in completion_texts(completions)]
        finished = {row: text for row, text in enumerate(texts) if text is not None}
        contexts = [self._context(prompt) for prompt in prompts]
        if entry.served:
            found = self._ask(finished, contexts, columns)
        else:
            turns = [
                [*contexts[row], {"role": "assistant", "content": text}]
                for row, text in finished.items()
            ]
            found = dict(zip(finished, classify(entry.model, turns, entry.batch_size), strict=True))
        scores = [
            found.get(row) if row in finished else entry.range[0] for row in range(len(texts))
        ]
        log_metric(f"{self.name}/unfinished", float(len(texts) - len(finished)))
        log_metric(f"{self.name}/unscored", float(scores.count(None)))
        return scores

    def _context(self, prompt: Conversation) -> Conversation:
        hidden = self.fmt.system_prompt if self.entry.scope == "summary" else None
        return [
            {"role": turn["role"], "content": message_text(turn)}
            for turn in prompt
            if message_text(turn) != hidden
        ]

    def _ask(
        self, texts: dict[int, str], contexts: list[Conversation], columns: dict[str, Any]
    ) -> dict[int, float | None]:
        """Return the judge's scores: ``None`` if a reply has none, or if its request failed."""
        model, prompt = self.entry.model, self.entry.prompt or ""
        # Other words in braces stay: they may be an example of JSON.
        names = set(_SLOT.findall(prompt)) & {*columns, "solution"}
        asked: dict[int, Conversation] = {}
        for row, text in texts.items():
            slots = {name: columns[name][row] for name in names}
            if all(value is not None and str(value).strip() for value in slots.values()):
                said = contexts[row]
                slots["prompt"] = (
                    conversation_text(said, roles=True) if said[1:] else last_user_text(said)
                )
                content = fill(prompt, slots | {"response": text})
                asked[row] = [{"role": "user", "content": content}]
        answers = ChatServer(model.removeprefix(SERVED)).chat([*asked.values()])
        replies = dict(zip(asked, answers, strict=True))
        scores = {row: read_score(reply, *self.entry.range) for row, reply in replies.items()}
        errors = [reply.error for reply in answers if reply.error]
        # What the server refuses for its content may be the completion's fault.
        if answers and all(reply.error and not reply.refused for reply in answers):
            raise RecipeError(f"judge {model!r}: all {len(errors)} requests failed: {errors[0]}")
        if missing := [*scores.values()].count(None):
            cause = errors[0] if errors else "no last line 'Score: x' with x in its range"
            logger.warning("judge %r: %d of %d replies: %s", model, missing, len(answers), cause)
        return scores


def fill(prompt: str, slots: Mapping[str, Any]) -> str:
    """Replace each ``{name}`` of a prompt that is in ``slots``, but none in what is inserted."""
    return without_surrogates(_SLOT.sub(lambda slot: str(slots.get(slot[1], slot[0])), prompt))


def read_score(reply: Reply, lowest: float, highest: float) -> float | None:
    """Return the score in the last line of a reply, or ``None``."""
    match = _SCORE.fullmatch(reply.text.strip().split("\n")[-1])
    if match is None or reply.error or reply.finish_reason == "length":
        return None
    score = float(match[1])
    return score if lowest <= score <= highest else None


def classify(name: str, conversations: Sequence[Conversation], batch_size: int) -> list[float]:
    """Return the score (0..1) of each conversation by a sequence classifier.

    TRL takes a classifier as a reward function, too, but reads neither summaries nor completions
    outside of training. A conversation that is too long loses its beginning.
    """
    import torch

    model, tokenizer = _load(name)
    scores: list[float] = []
    for start in range(0, len(conversations), batch_size):
        batch = tokenizer.apply_chat_template(
            conversations[start : start + batch_size],
            padding=True,
            truncation=True,
            return_dict=True,
            return_tensors="pt",
        ).to(model.device)
        with torch.inference_mode():
            scores += model(**batch).logits[:, 0].float().sigmoid().tolist()
    return scores


@functools.cache  # one copy per process, which entries with the same model share
def _load(name: str) -> tuple[Any, Any]:
    """Return a classifier and its tokenizer."""
    from accelerate import PartialState
    from accelerate.utils import patch_environment
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.integrations import deepspeed

    # No trainer prepares this model, so ZeRO-3 must not shard it, and FSDP must not fill it later.
    unsharded = mock.patch.object(deepspeed, "_hf_deepspeed_config_weak_ref", None)
    unfilled = patch_environment(FSDP_CPU_RAM_EFFICIENT_LOADING="false")
    with own_code(f"reward_models: loading {name!r}", _CLASSIFIER), unsharded, unfilled:
        tokenizer = AutoTokenizer.from_pretrained(
            name, padding_side="right", truncation_side="left", trust_remote_code=False
        )
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            name, num_labels=1, dtype="auto", output_loading_info=True, trust_remote_code=False
        )
    if missing := ", ".join(sorted(loading["missing_keys"])[:3]):
        raise RecipeError(
            f"reward_models: the weights of {name!r} lack {missing}, so its scores would be "
            f"random. Fix: a model trained as a sequence classifier"
        )
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    # The model reads the score at the last token that is not padding.
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model.to(PartialState().device).eval(), tokenizer


def shown_text(fmt: ResponseFormat, completion: str) -> str | None:
    """Return the text after the reasoning, stripped and without answer tags.

    Return ``None`` if the reasoning is not closed or nothing follows it.
    """
    body = fmt.full_text(completion)
    if fmt.reasoning_tags:
        opening, closing = fmt.reasoning_tags
        before, closed, body = body.rpartition(closing)
        if opening in body or (opening == closing and closed and opening not in before):
            return None
    for tag in fmt.answer_tags or ():
        body = body.replace(tag, "")
    return body.strip() or None


def build_tiny_classifier(folder: Path, model: str) -> Path:
    """Save a random reward model with the configuration and tokenizer of the tiny ``model``."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    AutoModelForSequenceClassification.from_config(
        AutoConfig.from_pretrained(model, num_labels=1)
    ).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder
