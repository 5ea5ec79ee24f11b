"""A reward model's or a judge's opinion of each completion: what rules cannot check (helpfulness,
harmlessness).

A judge is a model behind an OpenAI-compatible server. The last line of its reply is the score,
``Score: x`` or ``<score>x</score>``, and nothing else; docs/howto_judges.md has a table. With
``{rubric}`` in its prompt it says yes or no to each criterion of the row.
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
    Opinion,
    Shown,
    as_text,
    ask,
    report_unjudged,
    within,
)
from r1_recipes.extras.judges.rubric import Rubric, numbered, read_rubric
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import REWARDS, Column, Log, Reward, Values, ignore
from r1_recipes.rewards.summary import summary

logger = logging.getLogger(__name__)


def _is_range(value: Sequence[Any]) -> bool:
    return (
        len(value) == 2
        and all(type(bound) in (int, float) and math.isfinite(bound) for bound in value)
        and value[0] < value[1]
    )


@dataclass(frozen=True)
class Settings:
    model: str = limited(
        lambda value: bool(value.removeprefix(SERVED)),
        "a sequence classifier's folder or hub id, or 'openai:NAME' for a judge behind a server",
    )
    scope: str = limited(lambda value: value in ("summary", "full"), "summary or full", "summary")
    batch_size: int = limited(lambda value: value >= 1, "1 or more", 16)
    activation: str = limited(lambda value: value in ("none", "sigmoid"), "none or sigmoid", "none")
    prompt: str | None = None
    range: tuple[float, ...] | None = limited(
        lambda value: _is_range(value), "[lowest, highest]", None
    )
    max_completion_length: int | None = limited(lambda value: value >= 1, "1 or more", None)
    request_timeout: float = limited(lambda value: value > 0, "over 0", ChatServer.timeout)

    def __post_init__(self) -> None:
        if not self.served and self.prompt is not None:
            raise ValueError(
                "prompt: must be left out for a sequence classifier; a judge's model is "
                "'openai:NAME'"
            )
        if self.served and "{response}" not in (self.prompt or ""):
            asks = "asks for a line 'Score: x', or with {rubric} for lines '1: yes'"
            raise ValueError(
                f"prompt: must be a text with {{response}} that {asks}, got {self.prompt!r}"
            )
        if self.range and (not self.served or "{rubric}" in (self.prompt or "")):
            raise ValueError(
                "range: must be left out for a sequence classifier and for a rubric, whose "
                "score is 0 to 1"
            )

    @property
    def served(self) -> bool:
        return self.model.startswith(SERVED)


def read_reward_models(entries: Mapping[str, Any], fmt: ResponseFormat) -> dict[str, ModelReward]:
    for name in (
        name for name in entries if name in REWARDS or not re.fullmatch(r"[A-Za-z]\w*", str(name))
    ):
        raise RecipeError(
            f"reward_models: {name!r}: must be letters, digits and _, and no other reward's "
            f"name. Fix: helpfulness"
        )
    return {
        name: ModelReward(fmt, name, from_mapping(Settings, entry, f"reward_models: {name}"))
        for name, entry in entries.items()
    }


@dataclass(frozen=True)
class ModelReward(Reward):
    """The score that a reward model, or a judge behind a server, gives each completion; ``None`` if
    it gives none.

    Range: the model's own; 0..1 with ``activation: sigmoid`` or a rubric. ``model`` is the folder
    or hub id of a sequence classifier with one label (entries of one model share its copy), or
    ``openai:NAME``, a judge that gets ``prompt`` with ``{response}``, ``{prompt}`` and
    ``{solution}``, the gold; a row without one is then not judged. With ``{rubric}`` it answers
    each criterion of the column ``rubric`` (a list of ``{criterion, weight}``, or its JSON); the
    score is the weights of those met over the positive weights. A judge's score outside ``range``
    is none.

    ``scope: summary`` judges what follows the reasoning, without the format's own system message.
    ``full`` judges the whole turn, in the conversation as the model had it. A completion without a
    summary, and in training one that got no score, gets the lowest score of its prompt's in this
    batch.

    A conversation that is too long for the classifier loses its beginning. Metrics, rows of this
    batch: ``NAME/unscored``, ``…/failed`` (by the server), ``…/unfinished`` (no summary). A batch
    of which nothing can be judged is an error. Source: DeepSeek-R1 (arXiv:2501.12948, section
    2.3.4), which judges helpfulness by the summary and harmlessness by the whole.
    """

    name: str  # type: ignore[misc]  # each entry has its own
    settings: Settings

    def check_start(self) -> None:
        """Refuse a judge without a server's address, and a classifier that is not there."""
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
        contexts = [self._context(prompt) for prompt in prompts]
        read = summary if self.settings.scope == "summary" else ResponseFormat.full_text
        turns = [read(self.response_format, text) for text in completion_texts(completions)]
        prompt = self.settings.prompt or ""
        golds: list[str | None] = [""] * len(turns)
        if "{solution}" in prompt:
            golds = [
                gold if gold and gold.strip() else None for gold in self.golds(solution, columns)
            ]
        rubrics: list[Rubric | None] = [()] * len(turns)
        if "{rubric}" in prompt:
            if "rubric" not in columns:
                raise self.missing("a column 'rubric' with the criteria", columns)
            rubrics = [read_rubric(value) for value in columns["rubric"]]
        seen = zip(contexts, (turn or "" for turn in turns), golds, rubrics, strict=True)
        shown: dict[int, Any] = {row: one for row, one in enumerate(seen) if None not in one}
        judge = self._ask if self.settings.served else self._classify
        judged = dict(zip(shown, judge(list(shown.values())), strict=True))
        report_unjudged(
            f"reward {self.name!r}, model {self.settings.model!r}", list(judged.values())
        )
        opinions = [judged.get(row, Opinion()) for row in range(len(turns))]
        scores = [opinion.score for opinion in opinions]
        # What cannot be judged must not pay: None adds 0, more than a negative score. Selection,
        # without a trainer's state, keeps None.
        for row in shown:
            if turns[row] is None or (
                opinions[row].score is None and columns.get("trainer_state", True) is not None
            ):
                known = [
                    opinion.score
                    for context, opinion in zip(contexts, opinions, strict=True)
                    if context == contexts[row]
                ]
                scores[row] = min((score for score in known if score is not None), default=None)
        log_metric(
            f"{self.name}/unscored", float(sum(opinion.score is None for opinion in opinions))
        )
        log_metric(f"{self.name}/failed", float(sum(opinion.failed for opinion in opinions)))
        log_metric(f"{self.name}/unfinished", float(turns.count(None)))
        if self.settings.activation == "none":
            return scores
        return [
            None if score is None else 0.5 * (1.0 + math.tanh(0.5 * score)) for score in scores
        ]  # sigmoid that cannot overflow

    def _context(self, prompt: Any) -> Conversation:
        """The conversation before the turn that is judged."""
        if isinstance(prompt, str):
            return [{"role": "user", "content": prompt}]
        messages = [
            {"role": message["role"], "content": message_text(message)} for message in prompt
        ]
        instruction = {"role": "system", "content": self.response_format.system_prompt}
        return (
            messages[1:]
            if self.settings.scope == "summary" and messages[:1] == [instruction]
            else messages
        )

    def _ask(self, shown: Sequence[Shown]) -> list[Opinion]:
        slots = []
        for context, turn, gold, rubric in shown:
            texts = [
                message["content"]
                if len(context) == 1
                else f"{message['role']}: {message['content']}"
                for message in context
            ]
            slots.append(
                {
                    "prompt": "\n\n".join(texts),
                    "response": as_text(turn),
                    "solution": gold,
                    "rubric": numbered(rubric),
                }
            )
        limits = self.settings.request_timeout, self.settings.max_completion_length
        opinions = ask(
            self.settings.model,
            self.settings.prompt or "",
            slots,
            [rubric for *_, rubric in shown],
            *limits,
        )
        return [within(self.settings.range, opinion) for opinion in opinions]

    def _classify(self, shown: Sequence[Shown]) -> list[Opinion]:
        classifier = _Classifier(self.settings.model)
        if self.settings.scope == "full":
            classifier.check_shows_reasoning(self.response_format)
        conversations = [
            [*context, {"role": "assistant", "content": classifier.as_words(turn)}]
            for context, turn, *_ in shown
        ]
        return classifier.score(conversations, self.settings.batch_size)


@functools.cache  # one copy per process; the reward pickles without it
class _Classifier:
    """A sequence classifier and its tokenizer, asked as by GRPOTrainer, which knows no summary and
    no ``evaluate``.
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
        if missing := ", ".join(sorted(loading["missing_keys"])[:3]):
            raise RecipeError(
                f"reward_models: the weights of {name!r} lack {missing}, so its scores would "
                f"be random; it is no reward model"
            )
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        config = self.model.config.get_text_config()
        config.pad_token_id = (
            self.tokenizer.pad_token_id
        )  # the score is read at the last token that is not padding
        self.model.to(PartialState().device).eval()
        # A tokenizer that knows no limit says 10**30.
        self.limit = min(
            self.tokenizer.model_max_length,
            getattr(config, "max_position_embeddings", None) or 10**30,
        )

    def check_shows_reasoning(self, fmt: ResponseFormat) -> None:
        """Refuse a chat template that drops the reasoning of a finished turn, as many do."""
        turn = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": fmt.render("first-part", "second-part")},
        ]
        if fmt.reasoning_tags and "first-part" not in self.tokenizer.apply_chat_template(
            turn, tokenize=False
        ):
            told = (
                f"reward_models: the chat template of {self.name!r} leaves the reasoning out of "
                f"a turn"
            )
            raise RecipeError(
                f"{told}. Fix: another chat template in a local copy of the model, or scope: "
                f"summary"
            )

    def as_words(self, turn: str) -> str:
        """Break special tokens, with which a completion would end its turn and go on as somebody
        else, by a space of no width.
        """
        special = [
            token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special
        ]
        return functools.reduce(
            lambda text, token: text.replace(token, f"{token[0]}\u200b{token[1:]}"), special, turn
        )

    def score(self, conversations: Sequence[Conversation], batch_size: int) -> list[Opinion]:
        import jinja2
        import torch
        from transformers import DataCollatorWithPadding

        pad = DataCollatorWithPadding(self.tokenizer)
        opinions = [Opinion()] * len(conversations)
        tokens: dict[int, list[int]] = {}
        for row, conversation in enumerate(conversations):
            try:
                text = self.tokenizer.apply_chat_template(conversation, tokenize=False)
                tokens[row] = self.tokenizer(text, add_special_tokens=False, verbose=False)[
                    "input_ids"
                ]
            except (
                jinja2.TemplateError,
                TypeError,
                ValueError,
            ) as error:  # no template, or one that refuses a role
                opinions[row] = Opinion(
                    error=(
                        f"the chat template of the reward model refuses the conversation: "
                        f"{first_line(error)}"
                    )
                )
        # Like lengths together, to pad little; the longest first, so that a lack of memory shows at
        # once.
        order = sorted(tokens, key=lambda row: -len(tokens[row]))
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            inputs = pad([{"input_ids": tokens[row][-self.limit :]} for row in part]).to(
                self.model.device
            )
            with torch.inference_mode():
                logits = self.model(**inputs).logits[:, 0].tolist()
            for row, logit in zip(part, logits, strict=True):
                opinions[row] = (
                    Opinion(logit)
                    if math.isfinite(logit)
                    else Opinion(error="its score is not finite")
                )
        return opinions


@contextlib.contextmanager
def _loading(name: str) -> Iterator[None]:
    try:
        yield
    except (
        Exception
    ) as error:  # offline, gated, misspelt, not a reward model: Transformers' own words say which
        raise RecipeError(
            f"reward_models: {name!r} cannot be loaded: {first_line(error)}"
        ) from error


@contextlib.contextmanager
def _whole_model() -> Iterator[None]:
    """Load all weights in each process: no trainer prepares this model, so ZeRO-3 must not split
    it, nor FSDP fill it later.
    """
    from accelerate.utils import patch_environment
    from transformers.integrations import deepspeed

    zero3, deepspeed._hf_deepspeed_config_weak_ref = deepspeed._hf_deepspeed_config_weak_ref, None
    try:
        with patch_environment(FSDP_CPU_RAM_EFFICIENT_LOADING="false"):
            yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = zero3
