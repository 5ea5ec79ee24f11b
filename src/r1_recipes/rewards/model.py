"""A reward model's or a judge's opinion of each completion: what rules cannot check (helpfulness, harmlessness)."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.chat_client import ChatServer
from r1_recipes.common.errors import RecipeError, first_line, unknown_name
from r1_recipes.common.messages import completion_texts, message_text
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import Reward, register_reward

logger = logging.getLogger(__name__)

_SCOPES = ("summary", "full")
_ACTIVATIONS = ("none", "sigmoid")
_JUDGE = "openai:"
_SLOT = re.compile(r"\{(prompt|response)\}")
_NUMBER = r"([-+]?(?:\d+(?:\.\d+)?|\.\d+))"
_SCORE = re.compile(rf"<score>\s*{_NUMBER}\s*</score>|\bscore[*_\s]{{0,4}}[:=][*_\s]{{0,4}}{_NUMBER}", re.IGNORECASE)

Conversation = list[dict[str, str]]


@register_reward("reward_model")
@dataclass(frozen=True)
class ModelReward(Reward):
    """The score that a reward model, or a model asked as a judge, gives each completion; ``None`` where it gives none.

    Range: the model's own (a reward model's is unbounded); 0..1 with ``reward_model_activation: sigmoid``.

    ``reward_model`` is a folder or hub id of a sequence classifier with one label. It reads the conversation through its own chat
    template, as TRL reads a reward model's input, on this process's device, loaded once at the first call; every process holds a
    whole copy. Or it is ``openai:NAME``, a judge behind an OpenAI-compatible server (``OPENAI_BASE_URL``), which gets
    ``reward_model_prompt`` as a user's message and samples as the server is set to; the last ``Score: x`` or ``<score>x</score>`` of
    its reply counts, whatever number it is.

    ``reward_model_scope`` says what is judged:

    - ``summary``: what follows the reasoning, without the answer tags; DeepSeek-R1's way to judge helpfulness. The format's own
      system message, which asks for reasoning that is not shown, is left out. A completion whose reasoning never closes, or that
      says nothing after it, has no summary. Leaving it out of the sum would pay a model for never finishing, so it gets the score
      of the empty answer, or that of the worst finished answer to the same prompt in this process's batch if that is lower.
    - ``full``: the whole turn, finished or not, in the conversation as the model had it; DeepSeek-R1's way to judge harmlessness.

    For a classifier: ``reward_model_batch_size`` conversations at once; longer than ``reward_model_max_length`` tokens (default: the
    model's own limit), they lose their beginning, since the verdict is read at the end of the turn; ``reward_model_revision`` of the
    hub model. For a judge: ``reward_model_batch_size`` requests at once, and ``reward_model_prompt``, with ``{response}`` and
    ``{prompt}`` (the user's message, or the turns with their roles where there are several).

    Metrics, rows of this batch: ``reward_model/unscored`` (no score: a failed request, a reply without one, a conversation that the
    chat template refuses, NaN), ``reward_model/failed`` (of these, the server's fault), ``reward_model/truncated``,
    ``reward_model/unfinished`` (no summary).

    Source: DeepSeek-R1 (arXiv:2501.12948, section 2.3.4).

    Raises:
        ValueError: no model, an unknown scope or activation, a batch size or length below 1, or a parameter that the other kind of
            model has. On a call: the model cannot be loaded, has not one label or no trained head; no address of a judge; or all
            conversations of a batch fail (the message has the first one's error).
    """

    reward_model: str = ""
    reward_model_scope: str = "summary"
    reward_model_batch_size: int = 16
    reward_model_max_length: int | None = None
    reward_model_activation: str = "none"
    reward_model_prompt: str | None = None
    reward_model_revision: str | None = None

    def __post_init__(self) -> None:
        if not self.reward_model.removeprefix(_JUDGE):
            raise RecipeError(
                "reward_model: missing; a sequence classifier's folder or hub id, or 'openai:NAME' for a judge behind a server"
            )
        for key, choices in (("reward_model_scope", _SCOPES), ("reward_model_activation", _ACTIVATIONS)):
            if getattr(self, key) not in choices:
                raise RecipeError(f"{key}: " + unknown_name("value", getattr(self, key), choices))
        for key in ("reward_model_batch_size", "reward_model_max_length"):
            if (value := getattr(self, key)) is not None and value < 1:
                raise RecipeError(f"{key}: found {value}; 1 or more")
        if self._is_judge and "{response}" not in (self.reward_model_prompt or ""):
            raise RecipeError(
                f"reward_model_prompt: found {self.reward_model_prompt!r}; a judge needs a text with {{response}} (and {{prompt}}) that "
                "asks for a line 'Score: x'"
            )
        foreign = ("reward_model_max_length", "reward_model_revision") if self._is_judge else ("reward_model_prompt",)
        for key in foreign:
            if getattr(self, key) is not None:
                kind = "a judge behind a server" if self._is_judge else "a sequence classifier"
                raise RecipeError(f"{key}: reward_model {self.reward_model!r} is {kind}, which has no such parameter")

    def __call__(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Any],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        contexts = [self._context(prompt) for prompt in prompts]
        turns = [self._turn(text) for text in completion_texts(completions)]
        groups = [json.dumps(context) for context in contexts]
        # Equal completions are common (the empty one above all) and cost as much as others.
        keys = list(zip(groups, turns, strict=True))
        distinct = dict(zip(keys, contexts, strict=True))
        conversations = [[*context, {"role": "assistant", "content": turn or ""}] for (_, turn), context in distinct.items()]
        judge = self._ask if self._is_judge else self._classify
        by_key = dict(zip(distinct, judge(conversations), strict=True))
        verdicts = [by_key[key] for key in keys]
        self._report(verdicts)
        worst: dict[str, float] = {}
        for group, turn, verdict in zip(groups, turns, verdicts, strict=True):
            if turn is not None and verdict.score is not None:
                worst[group] = min(verdict.score, worst.get(group, math.inf))
        scores = [
            verdict.score if turn is not None else min((s for s in (verdict.score, worst.get(group)) if s is not None), default=None)
            for group, turn, verdict in zip(groups, turns, verdicts, strict=True)
        ]
        if log_metric is not None:
            log_metric("reward_model/unscored", float(scores.count(None)))
            log_metric("reward_model/failed", float(sum(verdict.failed for verdict in verdicts)))
            log_metric("reward_model/truncated", float(sum(verdict.truncated for verdict in verdicts)))
            log_metric("reward_model/unfinished", float(turns.count(None)))
        return [None if score is None else self._activate(score) for score in scores]

    @property
    def _is_judge(self) -> bool:
        return self.reward_model.startswith(_JUDGE)

    def _context(self, prompt: Any) -> Conversation:
        """The conversation before the turn that is judged."""
        if isinstance(prompt, str):
            return [{"role": "user", "content": prompt}]
        messages = [{"role": message["role"], "content": message_text(message)} for message in prompt]
        instruction = {"role": "system", "content": self.response_format.system_prompt}
        return messages[1:] if self.reward_model_scope == "summary" and messages[:1] == [instruction] else messages

    def _turn(self, completion: str) -> str | None:
        """What is judged of a completion; ``None``: it has no summary."""
        return (
            summary(self.response_format, completion)
            if self.reward_model_scope == "summary"
            else self.response_format.full_text(completion)
        )

    def _activate(self, score: float) -> float:
        # The logistic function, without the overflow of exp.
        return 0.5 * (1.0 + math.tanh(0.5 * score)) if self.reward_model_activation == "sigmoid" else score

    def _classify(self, conversations: list[Conversation]) -> list[_Verdict]:
        classifier = _classifier(self.reward_model, self.reward_model_revision)
        if self.reward_model_scope == "full":
            classifier.check_shows_reasoning(self.response_format)
        return classifier.score(conversations, self.reward_model_batch_size, self.reward_model_max_length)

    def _ask(self, conversations: list[Conversation]) -> list[_Verdict]:
        def written(*context: dict[str, str], response: str) -> str:
            turns = [message["content"] if len(context) == 1 else f"{message['role']}: {message['content']}" for message in context]
            values = {"prompt": "\n\n".join(turns), "response": response}
            return _SLOT.sub(lambda slot: values[slot[1]], self.reward_model_prompt)

        server = ChatServer(self.reward_model.removeprefix(_JUDGE), max_concurrency=self.reward_model_batch_size)
        requests = [[{"role": "user", "content": written(*context, response=turn["content"])}] for *context, turn in conversations]
        return [
            _Verdict(error=reply.error, failed=not reply.refused) if reply.error else _Verdict(read_score(reply.text))
            for reply in server.chat(requests)
        ]

    def _report(self, verdicts: Sequence[_Verdict]) -> None:
        """One warning for what failed in a batch.

        Raises:
            RecipeError: everything did.
        """
        failed = [row for row, verdict in enumerate(verdicts) if verdict.error]
        unread = [row for row, verdict in enumerate(verdicts) if verdict.score is None and not verdict.error]
        if failed:
            text = f"{len(failed)} of {len(verdicts)} completions are not judged; the first, row {failed[0]}: {verdicts[failed[0]].error}"
            if len(failed) == len(verdicts):
                raise RecipeError(f"reward {self.name!r}, reward_model {self.reward_model!r}: {text}")
            logger.warning("%s: %s", self.reward_model, text)
        if unread:
            logger.warning(
                "%s: %d of %d verdicts hold no score; the first is row %d", self.reward_model, len(unread), len(verdicts), unread[0]
            )


def summary(fmt: ResponseFormat, completion: str) -> str | None:
    """What a completion says after its reasoning, without answer tags, stripped; ``None`` where the reasoning is open or nothing follows.

    Without any reasoning tags in it, or in the format, all of the completion is what it says.
    """
    body = fmt.full_text(completion)
    if fmt.reasoning_tags:
        opening, closing = fmt.reasoning_tags
        markers = body.count(closing)
        body = body.rpartition(closing)[2]
        if opening in body or (opening == closing and markers == 1):
            return None
    for tag in fmt.answer_tags or ():
        body = body.replace(tag, "")
    return body.strip() or None


def read_score(reply: str) -> float | None:
    """The last ``Score: x`` or ``<score>x</score>`` of a judge's reply; ``None`` where there is none, or it is no finite number."""
    found = _SCORE.findall(reply)
    score = float("".join(found[-1])) if found else math.nan  # one of the two groups is empty
    return score if math.isfinite(score) else None


@dataclass(frozen=True)
class _Verdict:
    """Of one conversation: its score (``None``: none could be read), whether it was cut, why it was not judged, and whether a server
    that may yet judge it failed."""

    score: float | None = None
    truncated: bool = False
    error: str | None = None
    failed: bool = False


@functools.cache
def _classifier(name: str, revision: str | None) -> _Classifier:
    """The process's one copy of a reward model. It lives here, not in the reward, which therefore pickles without it."""
    return _Classifier(name, revision)


class _Classifier:
    """A sequence classifier with one label, and its tokenizer.

    Raises:
        RecipeError: it cannot be loaded, has not one label, no trained head, or no chat template.
    """

    def __init__(self, name: str, revision: str | None) -> None:
        from accelerate import PartialState
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        self.name = name
        try:
            config = AutoConfig.from_pretrained(name, revision=revision)
            self.tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
        except Exception as error:  # offline, gated, misspelt, not a checkpoint: Transformers' own words say which
            raise RecipeError(f"reward_model: {name!r} cannot be loaded: {first_line(error)}") from error
        if config.num_labels != 1:
            raise RecipeError(f"reward_model: {name!r} has {config.num_labels} labels; a reward model is a sequence classifier with one")
        if not self.tokenizer.chat_template:
            raise RecipeError(f"reward_model: the tokenizer of {name!r} has no chat template; save one into a local copy of the model")
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        # The score is read at the last token that is not padding.
        config.get_text_config().pad_token_id = self.tokenizer.pad_token_id
        try:
            with _whole_model():
                model, loading = AutoModelForSequenceClassification.from_pretrained(
                    name, revision=revision, config=config, dtype="auto", output_loading_info=True
                )
        except Exception as error:
            raise RecipeError(f"reward_model: {name!r} cannot be loaded: {first_line(error)}") from error
        if loading["missing_keys"]:
            missing = ", ".join(sorted(loading["missing_keys"])[:3])
            raise RecipeError(f"reward_model: the weights of {name!r} lack {missing}, so its scores would be random; it is no reward model")
        self.model = model.to(PartialState().device).eval()
        limits = (self.tokenizer.model_max_length, getattr(config.get_text_config(), "max_position_embeddings", None))
        # A tokenizer that knows no limit says 10**30.
        self.limit = min((limit for limit in limits if limit and limit < 10**9), default=None)

    def render(self, conversation: Conversation) -> str:
        return self.tokenizer.apply_chat_template(conversation, tokenize=False)

    def check_shows_reasoning(self, fmt: ResponseFormat) -> None:
        """Many chat templates of reasoning models drop the reasoning of a finished turn.

        Raises:
            RecipeError: this one does.
        """
        if fmt.reasoning_tags is None:
            return
        turn = f"{fmt.reasoning_tags[0]}\nfirst-part\n{fmt.reasoning_tags[1]}\nsecond-part"
        text = self.render([{"role": "user", "content": "question"}, {"role": "assistant", "content": turn}])
        if "first-part" not in text:
            raise RecipeError(
                f"reward_model: the chat template of {self.name!r} leaves the reasoning out of a turn, so reward_model_scope: full would "
                "not judge it; save another chat template into a local copy of the model, or set reward_model_scope: summary"
            )

    def score(self, conversations: Sequence[Conversation], batch_size: int, max_length: int | None) -> list[_Verdict]:
        """One verdict a conversation, in order.

        Raises:
            RecipeError: ``max_length`` is more than the model takes.
        """
        import jinja2
        import torch

        if max_length is not None and self.limit is not None and max_length > self.limit:
            raise RecipeError(f"reward_model_max_length: found {max_length}; {self.name!r} takes {self.limit} tokens at most")
        limit = max_length or self.limit
        verdicts: list[_Verdict | None] = [None] * len(conversations)
        rows: list[tuple[int, list[int]]] = []
        for index, conversation in enumerate(conversations):
            try:
                text = self.render(conversation)
            except (jinja2.TemplateError, TypeError) as error:  # a template may refuse a role, or an order of roles
                verdicts[index] = _Verdict(error=f"the chat template of the reward model refuses the conversation: {first_line(error)}")
            else:
                rows.append((index, self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]))
        # Like lengths together, to pad little; the longest first, so that a lack of memory shows at once.
        rows.sort(key=lambda row: -len(row[1]))
        for start in range(0, len(rows), batch_size):
            part = rows[start : start + batch_size]
            ids = [torch.tensor(tokens[-limit:] if limit else tokens) for _, tokens in part]
            masks = [torch.ones_like(tokens) for tokens in ids]
            pad = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
            inputs = {"input_ids": pad(ids, padding_value=self.tokenizer.pad_token_id), "attention_mask": pad(masks)}
            with torch.inference_mode():
                logits = self.model(**{key: value.to(self.model.device) for key, value in inputs.items()}).logits[:, 0]
            for (index, tokens), logit in zip(part, logits.tolist(), strict=True):
                cut = limit is not None and len(tokens) > limit
                verdicts[index] = _Verdict(logit if math.isfinite(logit) else None, cut)
        return verdicts


@contextlib.contextmanager
def _whole_model() -> Iterator[None]:
    """Each process loads all weights: no trainer prepares this model, so neither ZeRO-3 may split it nor FSDP fill it from rank 0 later."""
    from transformers.integrations import deepspeed

    switch = "FSDP_CPU_RAM_EFFICIENT_LOADING"
    zero3, fsdp = deepspeed._hf_deepspeed_config_weak_ref, os.environ.get(switch)
    deepspeed._hf_deepspeed_config_weak_ref = None
    os.environ[switch] = "false"
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = zero3
        if fsdp is None:
            del os.environ[switch]
        else:
            os.environ[switch] = fsdp
