"""Score completions with a reward model or a judge, for what rules cannot check.

A judge is a model behind an OpenAI-compatible server. The last line of its reply must be only the
score, ``Score: x`` or ``<score>x</score>``; see the table in docs/rewards.md.
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

from r1_recipes.common.chat_client import ChatServer
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.messages import completion_texts, message_text
from r1_recipes.common.settings import from_mapping, limited
from r1_recipes.extras.judges.ask import (
    SERVED,
    Conversation,
    JudgeInput,
    Opinion,
    as_text,
    ask,
    report_unjudged,
    within,
)
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import REWARDS, Column, Log, Reward, Values, ignore
from r1_recipes.rewards.text import shown_text

logger = logging.getLogger(__name__)


def _is_range(value: Sequence[Any]) -> bool:
    numbers = [bound for bound in value if type(bound) in (int, float)]
    return len(value) == len(numbers) == 2 and -math.inf < numbers[0] < numbers[1] < math.inf


@dataclass(frozen=True)
class Settings:
    """The settings of an entry of ``reward_models``."""

    model: str = limited(
        lambda value: bool(value.removeprefix(SERVED)),
        "the folder or hub id of a sequence classifier, or 'openai:NAME' for a judge",
    )
    scope: str = limited(lambda value: value in ("summary", "full"), "summary or full", "summary")
    batch_size: int = limited(lambda value: value >= 1, "1 or more", 16)
    activation: str = limited(lambda value: value in ("none", "sigmoid"), "none or sigmoid", "none")
    prompt: str | None = None
    range: tuple[float, ...] | None = limited(_is_range, "[lowest, highest]", None)
    max_completion_length: int | None = limited(lambda value: value >= 1, "1 or more", None)
    request_timeout: float = limited(lambda value: value > 0, "above 0", ChatServer.timeout)

    def __post_init__(self) -> None:
        if not self.served and self.prompt is not None:
            raise ValueError(
                "prompt: a sequence classifier does not use it. Fix: remove prompt, or for a judge "
                "set model: openai:NAME"
            )
        if self.served and "{response}" not in (self.prompt or ""):
            raise ValueError(
                f"prompt: must be text with {{response}} that asks for a line 'Score: x', got "
                f"{self.prompt!r}"
            )
        if self.range and not self.served:
            raise ValueError("range: a sequence classifier does not use it. Fix: remove range")

    @property
    def served(self) -> bool:
        """Return whether the model is a judge behind a server."""
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
        settings = from_mapping(Settings, entry, f"reward_models: {name}")
        rewards[name] = ModelReward(fmt, name, settings)
    return rewards


@dataclass(frozen=True)
class ModelReward(Reward):
    """Return the score of a reward model or a judge for each completion.

    Range: that of the model; 0..1 with ``activation: sigmoid``. Return ``None`` where
    the model gives no score.

    ``model`` is the folder or hub id of a sequence classifier with one label. Entries with the same
    model share it. Or it is ``openai:NAME``, a judge. The judge gets ``prompt`` with
    ``{response}``, ``{prompt}`` and ``{solution}``, the reference answer. If the prompt has
    ``{solution}``, a row without a reference answer gets no score. A score of a judge outside
    ``range`` does not count.

    With ``scope: summary``, the model reads the text after the reasoning, without the system
    message of the response format. With ``full``, it reads the whole completion in the
    conversation. A completion without a summary gets the lowest score of its prompt in this batch.
    In training, so does a completion without a score.

    A conversation that is too long for the classifier loses its beginning. Metrics, in rows of this
    batch: ``NAME/unscored``, ``…/failed`` (by the server) and ``…/unfinished`` (no summary). If the
    whole batch fails, raise an error. Source: DeepSeek-R1 (arXiv:2501.12948, section 2.3.4). It
    scores helpfulness by the summary and harmlessness by the whole completion.
    """

    name: str  # type: ignore[misc]  # each entry has its own name
    settings: Settings

    def check_start(self) -> None:
        """Raise if the judge has no server address, or if the classifier does not exist."""
        if self.settings.served:
            ChatServer(self.settings.model).check()
            return
        from transformers import AutoConfig

        with _loading(self.settings.model):
            AutoConfig.from_pretrained(self.settings.model, trust_remote_code=False)

    def __call__(
        self,
        completions: Column,
        prompts: Column = (),
        solution: Column | None = None,
        log_metric: Log = ignore,
        **columns: Any,
    ) -> Values:
        settings = self.settings
        contexts = [self._context(prompt) for prompt in prompts]
        read = shown_text if settings.scope == "summary" else ResponseFormat.full_text
        texts = [read(self.response_format, text) for text in completion_texts(completions)]
        prompt = settings.prompt or ""
        solutions: list[str | None] = [""] * len(texts)
        if "{solution}" in prompt:
            golds = self.golds(solution, columns)
            solutions = [gold if gold and gold.strip() else None for gold in golds]
        rows = zip(contexts, (text or "" for text in texts), solutions, strict=True)
        inputs: dict[int, Any] = {index: row for index, row in enumerate(rows) if None not in row}
        judge = self._ask if settings.served else self._classify
        judged = judge(list(inputs.values()))
        report_unjudged(f"reward {self.name!r}, model {settings.model!r}", judged)
        opinions = [Opinion()] * len(texts)
        for row, opinion in zip(inputs, judged, strict=True):
            opinions[row] = opinion
        scores = [opinion.score for opinion in opinions]
        # A missing score must not be an advantage: None adds 0, more than a negative score.
        # Selection has no trainer state and keeps None.
        training = columns.get("trainer_state", True) is not None
        for row in inputs:
            if texts[row] is None or (training and opinions[row].score is None):
                pairs = zip(contexts, opinions, strict=True)
                same = [opinion.score for context, opinion in pairs if context == contexts[row]]
                scores[row] = min((score for score in same if score is not None), default=None)
        unscored = sum(opinion.score is None for opinion in opinions)
        log_metric(f"{self.name}/unscored", float(unscored))
        log_metric(f"{self.name}/failed", float(sum(opinion.failed for opinion in opinions)))
        log_metric(f"{self.name}/unfinished", float(texts.count(None)))
        if settings.activation == "none":
            return scores
        # This form of the sigmoid cannot overflow.
        return [None if score is None else 0.5 * (1.0 + math.tanh(0.5 * score)) for score in scores]

    def _context(self, prompt: Any) -> Conversation:
        """Return the conversation before the completion."""
        if isinstance(prompt, str):
            return [{"role": "user", "content": prompt}]
        messages = [
            {"role": message["role"], "content": message_text(message)} for message in prompt
        ]
        instruction = {"role": "system", "content": self.response_format.system_prompt}
        if self.settings.scope == "summary" and messages[:1] == [instruction]:
            return messages[1:]
        return messages

    def _ask(self, inputs: Sequence[JudgeInput]) -> list[Opinion]:
        settings = self.settings
        slots = []
        for context, text, solution in inputs:
            prompt = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in context)
            if len(context) == 1:
                prompt = context[0]["content"]
            slots.append({"prompt": prompt, "response": as_text(text), "solution": solution})
        limits = settings.request_timeout, settings.max_completion_length
        opinions = ask(settings.model, settings.prompt or "", slots, *limits)
        return [within(settings.range, opinion) for opinion in opinions]

    def _classify(self, inputs: Sequence[JudgeInput]) -> list[Opinion]:
        classifier = _Classifier(self.settings.model)
        if self.settings.scope == "full":
            classifier.check_shows_reasoning(self.response_format)
        conversations = []
        for context, text, _ in inputs:
            answer = {"role": "assistant", "content": classifier.as_plain_text(text)}
            conversations.append([*context, answer])
        return classifier.score(conversations, self.settings.batch_size)


@functools.cache  # One copy per process. The reward can be pickled without it.
class _Classifier:
    """A sequence classifier and its tokenizer.

    It scores like GRPOTrainer, which supports neither summaries nor ``evaluate``.
    """

    def __init__(self, name: str) -> None:
        from accelerate import PartialState
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.name = name
        with _loading(name), _whole_model():
            self.tokenizer = AutoTokenizer.from_pretrained(
                name, padding_side="right", trust_remote_code=False
            )
            self.model, loading = AutoModelForSequenceClassification.from_pretrained(
                name, num_labels=1, dtype="auto", output_loading_info=True, trust_remote_code=False
            )
        missing = ", ".join(sorted(loading["missing_keys"])[:3])
        if missing:
            raise RecipeError(
                f"reward_models: the weights of {name!r} lack {missing}, so its scores would be "
                f"random. Fix: a model trained as a sequence classifier"
            )
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        config = self.model.config.get_text_config()
        # The model reads the score at the last token that is not padding.
        config.pad_token_id = self.tokenizer.pad_token_id
        self.model.to(PartialState().device).eval()
        # A tokenizer without a limit has 10**30.
        window = getattr(config, "max_position_embeddings", None) or 10**30
        self.limit = min(self.tokenizer.model_max_length, window)

    def check_shows_reasoning(self, fmt: ResponseFormat) -> None:
        """Raise if the chat template removes the reasoning of a finished message, as many do."""
        if not fmt.reasoning_tags:
            return
        conversation = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": fmt.render("first-part", "second-part")},
        ]
        text = self.tokenizer.apply_chat_template(conversation, tokenize=False)
        if "first-part" not in text:
            raise RecipeError(
                f"reward_models: the chat template of {self.name!r} removes the reasoning of a "
                f"message. Fix: another chat template in a local copy of the model, or scope: "
                f"summary"
            )

    def as_plain_text(self, completion: str) -> str:
        """Return a completion without special tokens, each broken by a zero-width space.

        With a special token, a completion could end its message and write another role's.
        """
        for token in self.tokenizer.added_tokens_decoder.values():
            if token.special:
                first, rest = token.content[0], token.content[1:]
                completion = completion.replace(token.content, f"{first}\u200b{rest}")
        return completion

    def score(self, conversations: Sequence[Conversation], batch_size: int) -> list[Opinion]:
        """Return the score of each conversation, or an error if the template rejects it."""
        import jinja2
        import torch
        from transformers import DataCollatorWithPadding

        pad = DataCollatorWithPadding(self.tokenizer)
        opinions = [Opinion()] * len(conversations)
        tokens: dict[int, list[int]] = {}
        for row, conversation in enumerate(conversations):
            try:
                text = self.tokenizer.apply_chat_template(conversation, tokenize=False)
                encoded = self.tokenizer(text, add_special_tokens=False, verbose=False)
                tokens[row] = encoded["input_ids"]
            # There is no template, or it rejects a role.
            except (jinja2.TemplateError, TypeError, ValueError) as error:
                problem = "the chat template of the reward model rejects the conversation"
                opinions[row] = Opinion(error=f"{problem}: {first_line(error)}", failed=True)
        # Sort by length to reduce padding. Start with the longest, so that a lack of memory shows
        # immediately.
        order = sorted(tokens, key=lambda row: -len(tokens[row]))
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            batch = pad([{"input_ids": tokens[row][-self.limit :]} for row in part])
            with torch.inference_mode():
                logits = self.model(**batch.to(self.model.device)).logits[:, 0].tolist()
            for row, logit in zip(part, logits, strict=True):
                opinions[row] = Opinion(logit)
                if not math.isfinite(logit):
                    opinions[row] = Opinion(error="its score is not finite", failed=True)
        return opinions


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
