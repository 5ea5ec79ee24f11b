"""Score completions with a reward model or a judge, for what rules cannot check.

A reward model is a sequence classifier. A judge is a chat model behind an OpenAI-compatible server,
whose reply ends in a line ``Score: x``. Both are entries of the recipe key ``reward_models``.
DeepSeek-R1 (arXiv:2501.12948, section 2.3.4) scores helpfulness by the summary, and harmlessness by
the whole completion.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.chat_client import ChatServer, Reply
from r1_recipes.common.errors import RecipeError, first_line, from_mapping, limited
from r1_recipes.common.messages import completion_texts, message_text, without_surrogates
from r1_recipes.prompts import ResponseFormat
from r1_recipes.rewards import REWARDS
from r1_recipes.rewards.answers import Column, Log, Values, ignore
from r1_recipes.rewards.form import shown_text

logger = logging.getLogger(__name__)

Conversation = list[dict[str, str]]
SERVED = "openai:"  # a judge behind a server, instead of a folder or hub id
# The whole last line, because a score inside a sentence may be quoted from the completion.
_SCORE = re.compile(
    r"[-#*_`\[(\s]*(?:(?:my|the|final|overall|total)\s+)*score[*_`\s]*[:：=][*_`\[\s]*"
    r"([+-]?\d{1,9}(?:\.\d{1,9})?)[\]*_`).。\s]*",
    re.IGNORECASE,
)
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
        if self.served and "{response}" not in (self.prompt or ""):
            raise ValueError(
                f"prompt: must be text with {{response}} that asks for a line 'Score: x', got "
                f"{self.prompt!r}"
            )
        if self.prompt and not self.served:
            raise ValueError("prompt: only a judge reads it. Fix: model: openai:NAME, or no prompt")

    @property
    def served(self) -> bool:
        """Return whether the model is a judge."""
        return self.model.startswith(SERVED)


def read_reward_models(entries: Mapping[str, Any], fmt: ResponseFormat) -> dict[str, ModelReward]:
    """Return the rewards of the key ``reward_models``, by name."""
    rewards = {}
    for name, entry in entries.items():
        if name in REWARDS or not re.fullmatch(r"[A-Za-z]\w*", str(name)):
            raise RecipeError(
                f"reward_models: {name!r}: must be letters, digits and _, and not the name of "
                f"another reward. Fix: for example helpfulness"
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
            return
        from transformers import AutoConfig

        with _loading(self.entry.model):
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
        lowest = entry.range[0]
        scores = [found.get(row) if row in finished else lowest for row in range(len(texts))]
        log_metric(f"{self.name}/unfinished", float(len(texts) - len(finished)))
        log_metric(f"{self.name}/unscored", float(scores.count(None)))
        return scores

    def _context(self, prompt: Conversation) -> Conversation:
        messages = [{"role": turn["role"], "content": message_text(turn)} for turn in prompt]
        instruction = {"role": "system", "content": self.fmt.system_prompt}
        hidden = self.entry.scope == "summary" and messages[:1] == [instruction]
        return messages[1:] if hidden else messages

    def _ask(
        self, texts: dict[int, str], contexts: list[Conversation], columns: dict[str, Any]
    ) -> dict[int, float | None]:
        prompt = self.entry.prompt or ""
        names = (set(_SLOT.findall(prompt)) & columns.keys()) - {"prompt", "response"}
        if "{solution}" in prompt and "solution" not in columns:
            raise RecipeError("reward_models: prompt names {solution}, and there is no such column")
        asked: dict[int, str] = {}
        for row, text in texts.items():
            slots = {name: columns[name][row] for name in names}
            if any(value is None or not str(value).strip() for value in slots.values()):
                continue
            said = [f"{turn['role']}: {turn['content']}" for turn in contexts[row]]
            slots["prompt"] = "\n\n".join(said) if said[1:] else contexts[row][0]["content"]
            asked[row] = fill(prompt, slots | {"response": text})
        scores = ask(self.entry.model, [*asked.values()], *self.entry.range)
        return dict(zip(asked, scores, strict=True))


def fill(prompt: str, slots: Mapping[str, Any]) -> str:
    """Replace each ``{name}`` of a prompt that is in ``slots``, but none in what is inserted."""
    text = _SLOT.sub(lambda slot: str(slots.get(slot[1], slot[0])), prompt)
    return without_surrogates(text)


def ask(model: str, prompts: Sequence[str], lowest: float, highest: float) -> list[float | None]:
    """Ask the judge ``openai:NAME`` at ``OPENAI_BASE_URL``. Equal prompts are asked once.

    Args:
        model: The judge.
        prompts: What it reads, each as a conversation of its own.
        lowest: The lowest score.
        highest: The highest score.

    Returns:
        The score in the last line of each reply (``Score: x``). ``None`` if it is not there, not a
        number between the two, or if the request failed.

    Raises:
        RecipeError: There is no server, or all requests failed.
    """
    distinct = list(dict.fromkeys(prompts))
    messages = [[{"role": "user", "content": prompt}] for prompt in distinct]
    replies = ChatServer(model.removeprefix(SERVED)).chat(messages)
    errors = [reply.error for reply in replies if reply.error]
    # What the server refuses for its content may be the completion's fault.
    if errors and len(errors) == len(replies) and not all(reply.refused for reply in replies):
        raise RecipeError(f"judge {model!r}: all {len(errors)} requests failed: {errors[0]}")
    scores = {
        prompt: read_score(reply, lowest, highest)
        for prompt, reply in zip(distinct, replies, strict=True)
    }
    if missing := list(scores.values()).count(None):
        cause = errors[0] if errors else f"no last line 'Score: x' from {lowest:g} to {highest:g}"
        logger.warning("judge %r: %d of %d replies: %s", model, missing, len(replies), cause)
    return [scores[prompt] for prompt in prompts]


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
    from transformers import DataCollatorWithPadding

    model, tokenizer, limit = _load(name)
    texts = [tokenizer.apply_chat_template(turns, tokenize=False) for turns in conversations]
    tokens = [tokenizer(text, add_special_tokens=False)["input_ids"][-limit:] for text in texts]
    scores = [0.0] * len(tokens)
    # The longest first, so that a lack of memory shows at once. Equal lengths need no padding.
    order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row]))
    for start in range(0, len(order), batch_size):
        part = order[start : start + batch_size]
        batch = DataCollatorWithPadding(tokenizer)([{"input_ids": tokens[row]} for row in part])
        with torch.inference_mode():
            logits = model(**batch.to(model.device)).logits[:, 0]
        for row, score in zip(part, logits.float().sigmoid().tolist(), strict=True):
            scores[row] = score
    return scores


@functools.cache  # one copy per process, which entries with the same model share
def _load(name: str) -> tuple[Any, Any, int]:
    """Return a classifier, its tokenizer and the number of tokens that it reads."""
    from accelerate import PartialState
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with _loading(name), _whole_model():
        tokenizer = AutoTokenizer.from_pretrained(
            name, padding_side="right", trust_remote_code=False
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
    config = model.config.get_text_config()
    # The model reads the score at the last token that is not padding.
    config.pad_token_id = tokenizer.pad_token_id
    # A tokenizer without a limit has 10**30.
    window = getattr(config, "max_position_embeddings", None) or math.inf
    limit = min(tokenizer.model_max_length, window)
    return model.to(PartialState().device).eval(), tokenizer, limit


@contextlib.contextmanager
def _loading(name: str) -> Iterator[None]:
    try:
        yield
    # Offline, gated, misspelt or not a reward model: the message of Transformers says which.
    except Exception as error:
        raise RecipeError(f"reward_models: cannot load {name!r}: {first_line(error)}") from error


@contextlib.contextmanager
def _whole_model() -> Iterator[None]:
    """Load all weights in each process.

    No trainer prepares this model, so ZeRO-3 must not shard it, and FSDP must not fill it later.
    """
    from accelerate.utils import patch_environment
    from transformers.integrations import deepspeed

    zero3, deepspeed._hf_deepspeed_config_weak_ref = deepspeed._hf_deepspeed_config_weak_ref, None
    try:
        with patch_environment(FSDP_CPU_RAM_EFFICIENT_LOADING="false"):
            yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = zero3
