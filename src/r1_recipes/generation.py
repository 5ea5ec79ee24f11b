"""Complete prompts: with Transformers, with vLLM in this process, or on a server.

A generator is called with rows, a temperature and a count, and returns so many completions of
each row's ``prompt``. :func:`complete` calls it for ``generate`` and ``evaluate``, and keeps the
completions in a file. For several GPUs, raise ``vllm_tensor_parallel_size``, or start
``vllm serve --data-parallel-size N`` and use ``backend: openai``.
"""

import gc
import importlib.util
import json
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from r1_recipes.common import processes
from r1_recipes.common.chat_client import ChatServer, Reply
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.load import (
    UNTHINNED,
    end_tokens,
    from_pretrained,
    load_tokenizer,
    recipe_format,
)
from r1_recipes.prompts import ResponseFormat
from r1_recipes.recipe.types import Recipe, namespace_value

logger = logging.getLogger(__name__)

# None instead of the defaults: Transformers warns about values that greedy decoding does not use.
_GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
# Values that change nothing. vLLM and SGLang get them too, because they would take others from the
# model's generation_config.json. Not every other server accepts these keys.
_NEUTRAL = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
# Settings that a completion depends on, beside its prompt, its plan, the weights and the template.
SHAPING = [
    "model_name_or_path", "model_revision", "dtype", "tools", "environment", "seed", "prefill",
    "max_tool_calling_iterations", "max_completion_length", "top_p", "top_k", "min_p",
    "repetition_penalty", "generation_kwargs", "chat_template_kwargs",
]  # fmt: skip
# An engine refills its batch by itself, and waits for the longest completion only at the end of a
# part. So it gets this many batches at once.
_BATCHES_OF_ENGINES = 8


@dataclass(frozen=True)
class Completion:
    """A completion of a prompt.

    Attributes:
        text: Without the prefill and the token that ends the turn. In an episode with tools, the
            last message.
        tokens: The number of generated tokens, including the token that ends the turn.
        finished: False if ``max_completion_length`` cut it.
        turns: In an episode, all messages after the prompt.
        reward: In an episode, the environment's reward.
    """

    text: str
    tokens: int
    finished: bool
    turns: list[dict[str, Any]] | None = None
    reward: float | None = None


def load_format(recipe: Recipe, backend: str) -> tuple[Any, ResponseFormat]:
    """Return the tokenizer and the format that reads the backend's completions.

    A server has the tokenizer (``None``). Its chat template writes the prefill, and completions
    come without it.
    """
    return (None, recipe_format(recipe)) if backend == "openai" else load_tokenizer(recipe)


def complete(
    recipe: Recipe,
    tokenizer: Any,
    fmt: ResponseFormat,
    backend: str,
    rows: Any,
    plans: Sequence[tuple[float, int]],
    path: Path | None = None,
) -> list[list[Completion]]:
    """Complete every row by every plan, and keep the completions in a file.

    The file is JSON lines: first what made the completions, then a record per row. A run that was
    killed resumes: it loses a part, and generates no other row again. No model is loaded if all
    rows are in the file.

    Args:
        recipe: Model and sampling. ``generation_batch_size`` completions are one batch.
        tokenizer, fmt: From :func:`load_format`.
        backend: What generates.
        rows: A dataset with a column ``prompt``.
        plans: A temperature (0 is greedy) and a count each, in the order of the completions.
        path: The file. ``None`` keeps nothing.

    Raises:
        RecipeError: The file holds completions of other rows, settings or weights.
    """
    from tqdm.auto import tqdm
    from transformers import set_seed

    if processes.world_size() > 1:  # each would do everything, and write into one file
        raise RecipeError(
            "generate and evaluate are one process. Fix: start it with python -m; for several GPUs "
            "vllm_tensor_parallel_size, or `vllm serve --data-parallel-size N` and backend: openai"
        )
    prompts, settings = rows["prompt"], recipe.training
    if recipe.script.environment:  # equal questions may have other hidden states
        prompts = [json.loads(json.dumps(row, default=str)) for row in rows]
    done = _stored(path, _made_by(recipe, tokenizer, backend, plans), prompts) if path else {}
    # The longest first, so that a lack of memory shows at once. Similar lengths share a batch,
    # because padding costs time.
    pending = sorted(set(range(len(rows))) - done.keys(), key=lambda i: (-len(str(prompts[i])), i))
    generate: Any = get_generator(recipe, tokenizer, fmt, backend, rows) if pending else None
    size = max(1, settings.generation_batch_size // max(count for _, count in plans))
    if not isinstance(generate, TransformersGenerator):
        size *= _BATCHES_OF_ENGINES
    with tqdm(
        total=len(pending),
        desc=Path(str(recipe.model.model_name_or_path)).name,
        disable=None,  # on a terminal alone
        smoothing=0,
        delay=0,
    ) as shown:
        for start in range(0, len(pending), size):
            part = pending[start : start + size]
            # Of its place, so that with transformers a resumed run draws what the whole run would
            # have drawn.
            set_seed((settings.seed or 0) + len(done))
            groups = [generate(rows.select(part), *plan) for plan in plans]
            for index, *made in zip(part, *groups, strict=True):
                done[index] = [*chain(*made)]
            if path:
                records = [
                    {"index": i, "prompt": prompts[i], "completions": [*map(asdict, done[i])]}
                    for i in part
                ]
                _append(path, records)
            shown.update(len(part))
    if isinstance(generate, VLLMGenerator):
        # End the engine's process, so that its memory is free for the next model.
        generate.llm.llm_engine.engine_core.shutdown()
    del generate
    gc.collect()  # TRL's trainer, which plays episodes, holds itself and so its model
    return [done[index] for index in range(len(rows))]


def _made_by(
    recipe: Recipe, tokenizer: Any, backend: str, plans: Sequence[tuple[float, int]]
) -> dict[str, Any]:
    weights = Path(str(recipe.model.model_name_or_path)).glob("*.safetensors")
    facts = {
        **{name: namespace_value(recipe, name) for name in SHAPING},
        "weights": max((path.stat().st_mtime_ns for path in weights), default=None),
        "chat_template": tokenizer and zlib.crc32(tokenizer.chat_template.encode()),
        "backend": backend,
        "plans": plans,
    }
    return json.loads(json.dumps(facts, default=str))


def _append(path: Path, records: Sequence[dict[str, Any]]) -> None:
    # ASCII escapes can hold lone surrogates and control characters, which UTF-8 cannot.
    with path.open("a", encoding="ascii") as file:
        file.write("".join(json.dumps(record, default=str) + "\n" for record in records))


def _stored(
    path: Path, facts: dict[str, Any], prompts: Sequence[list[dict[str, Any]]]
) -> dict[int, list[Completion]]:
    """Return the completions in a file by their row. Create the file if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith(b"\n"):  # the process ended while it wrote this line
        os.truncate(path, sum(map(len, lines[:-1])))
        del lines[-1]
    if not lines:
        _append(path, [{"made_by": facts}])
        return {}
    head, *records = map(json.loads, lines)
    then, fix = head["made_by"], "Fix: choose another output folder, or delete the file"
    for key, value in facts.items():
        if then.get(key) != value:
            raise RecipeError(
                f"{path}: holds completions of other settings or weights: {key}: "
                f"{then.get(key)!r} then, {value!r} now. {fix}"
            )
    records = [record for record in records if record["index"] < len(prompts)]
    for record in records:
        if record["prompt"] != prompts[record["index"]]:
            raise RecipeError(f"{path}: holds completions of other rows. {fix}")
    return {one["index"]: [Completion(**made) for made in one["completions"]] for one in records}


def get_generator(
    recipe: Recipe, tokenizer: Any, fmt: ResponseFormat, backend: str, rows: Any
) -> Any:
    """Load the recipe's model, or find its server. vLLM has to hold the longest of all ``rows``."""
    where, name = f"{recipe.path}: backend: vllm:", str(recipe.model.model_name_or_path)
    if recipe.model.load_in_4bit or recipe.model.load_in_8bit:
        logger.warning(
            "load_in_4bit, load_in_8bit: only training reads them; here weights are whole"
        )
    if backend == "vllm" and importlib.util.find_spec("vllm") is None:
        raise RecipeError(
            f"{where} vLLM is not installed. Fix: pip install -c constraints.txt -e '.[vllm]', or "
            "--backend transformers"
        )
    if backend == "vllm" and Path(name, "adapter_config.json").is_file():
        raise RecipeError(
            f"{where} {name} contains only adapters. Fix: python -m r1_recipes.adapters "
            f"{name}, then use {name}/merged"
        )
    if recipe.script.tools or recipe.script.environment:
        from r1_recipes.extras.agents.episodes import EpisodeGenerator

        return EpisodeGenerator(recipe, tokenizer, backend, rows)
    if backend == "openai":
        return ServerGenerator(recipe, fmt)
    if backend == "vllm":
        return VLLMGenerator(recipe, tokenizer)
    return TransformersGenerator(recipe, tokenizer)


def load_model(recipe: Recipe) -> Any:
    """Return the recipe's model for generation, on the accelerator if there is one."""
    from accelerate import PartialState

    options = {key: getattr(recipe.model, key) for key in ("dtype", "attn_implementation")}
    model = from_pretrained("AutoModelForCausalLM", recipe, **options)
    return (model if recipe.training.use_cpu else model.to(PartialState().device)).eval()


class TransformersGenerator:
    """Transformers' ``generate``. It is slow, but runs wherever PyTorch does."""

    def __init__(self, recipe: Recipe, tokenizer: Any) -> None:
        self.settings, self.tokenizer, self.model = recipe.training, tokenizer, load_model(recipe)
        self.further = dict(recipe.training.generation_kwargs or {})
        self.ends = {
            *end_tokens(self.model.generation_config, tokenizer),
            *self.further.pop("stop_token_ids", ()),  # vLLM's name
        }

    def __call__(self, rows: Any, temperature: float, count: int) -> list[list[Completion]]:
        import torch

        settings = self.settings
        if len(rows) * count > settings.generation_batch_size and count > 1:
            halves = [self(rows, temperature, part) for part in (count // 2, count - count // 2)]
            return [[*first, *second] for first, second in zip(*halves, strict=True)]
        # Transformers' default is top_k 50. Training samples from all tokens, unless the recipe
        # sets another top_k.
        options = {
            **UNTHINNED,
            "do_sample": True,
            "temperature": temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "min_p": settings.min_p,
            "repetition_penalty": settings.repetition_penalty,
            "max_new_tokens": settings.max_completion_length,
            **self.further,  # as in TRL, they win
        }
        inputs = self.tokenizer.apply_chat_template(
            list(rows["prompt"]),
            add_generation_prompt=True,
            padding=True,
            tokenizer_kwargs={"padding_side": "left"},
            return_dict=True,
            return_tensors="pt",
        ).to(self.model.device)
        with torch.inference_mode():
            output = self.model.generate(
                inputs["input_ids"].repeat_interleave(count, 0),
                attention_mask=inputs["attention_mask"].repeat_interleave(count, 0),
                pad_token_id=self.tokenizer.pad_token_id,
                eos_token_id=sorted(self.ends),
                **(options | ({} if temperature else _GREEDY)),
            )
        made = [self.read(ids) for ids in output[:, inputs["input_ids"].shape[1] :].tolist()]
        return [made[start : start + count] for start in range(0, len(made), count)]

    def read(self, ids: list[int]) -> Completion:
        """Return the completion of generated ids, which may go on after its end."""
        end = next((place for place, token in enumerate(ids) if token in self.ends), None)
        text = self.tokenizer.decode(ids[:end], skip_special_tokens=True)
        return Completion(text, len(ids) if end is None else end + 1, end is not None)


class VLLMGenerator:
    def __init__(self, recipe: Recipe, tokenizer: Any) -> None:
        processes.quiet_vllm()
        from vllm import LLM

        self.settings, self.tokenizer = recipe.training, tokenizer
        settings = self.settings
        self.llm = LLM(
            str(recipe.model.model_name_or_path),
            revision=recipe.model.model_revision,
            dtype="auto"
            if recipe.method in ("generate", "evaluate") and "dtype" not in recipe.settings
            else recipe.model.dtype or "auto",
            seed=settings.seed,
            tensor_parallel_size=settings.vllm_tensor_parallel_size,
            gpu_memory_utilization=settings.vllm_gpu_memory_utilization,
            # -1: the model's context, or as much of it as the memory holds
            max_model_len=settings.vllm_max_model_length or -1,
            trust_remote_code=settings.trust_remote_code,
        )

    def __call__(self, rows: Any, temperature: float, count: int) -> list[list[Completion]]:
        from vllm import SamplingParams

        # No seed of its own: all prompts would share it, and the engine has the recipe's.
        params = SamplingParams(
            n=count,
            temperature=temperature,
            **{
                "top_p": self.settings.top_p,
                "top_k": self.settings.top_k,
                "min_p": self.settings.min_p or 0.0,
                "repetition_penalty": self.settings.repetition_penalty,
                "max_tokens": self.settings.max_completion_length,
                **(self.settings.generation_kwargs or {}),
            },
        )
        # The tokens of training: vLLM's own chat() would render the template itself.
        encoded = self.tokenizer.apply_chat_template(
            list(rows["prompt"]), add_generation_prompt=True, return_dict=True
        )
        prompts = [{"prompt_token_ids": ids} for ids in encoded["input_ids"]]
        return [
            [
                Completion(made.text, len(made.token_ids), made.finish_reason != "length")
                for made in result.outputs
            ]
            for result in self.llm.generate(prompts, params, use_tqdm=False)
        ]


class ServerGenerator:
    """The server at ``OPENAI_BASE_URL``. Its client tries again what may work later."""

    def __init__(self, recipe: Recipe, fmt: ResponseFormat) -> None:
        self.settings, self.fmt = recipe.training, fmt
        self.server = ChatServer(
            str(recipe.model.model_name_or_path), self.settings.generation_batch_size
        )
        self.options = {name: getattr(self.settings, name) or off for name, off in _NEUTRAL.items()}
        if not self.server.takes_vllms_keys():
            self.options = {k: v for k, v in self.options.items() if v != _NEUTRAL[k]}
        self.options["max_tokens"] = self.settings.max_completion_length
        self.options["chat_template_kwargs"] = self.settings.chat_template_kwargs
        self.options |= self.settings.generation_kwargs or {}

    def __call__(self, rows: Any, temperature: float, count: int) -> list[list[Completion]]:
        prompts, seed = rows["prompt"], self.settings.seed
        asked = [prompt for prompt in prompts for _ in range(count)]
        sends_seed = temperature and seed is not None  # not every server accepts a seed
        seeds = range(seed, seed + len(asked)) if sends_seed else None
        replies = self.server.chat(
            asked, seeds=seeds, strict=True, **(self.options | {"temperature": temperature})
        )
        # One row that a filter refuses must not stop the others. All of them are a mistake.
        if refused := [reply.error for reply in replies if reply.error]:
            message = f"the server refuses {len(refused)} of {len(replies)} requests: {refused[0]}"
            if len(refused) == len(replies) and len(prompts) > 8:
                raise RecipeError(f"{message} Fix: correct the cause, then run it again")
            logger.warning("%s Their completions are empty", message)
        made = list(map(self.read, replies))
        return [made[start : start + count] for start in range(0, len(made), count)]

    def read(self, reply: Reply) -> Completion:
        """Return a reply as the model wrote it, with the reasoning that the server moved out."""
        text = reply.text
        if reply.reasoning:
            opening, closing = self.fmt.tags[:2] if self.fmt.reasoning_tags else ("", "\n\n")
            if self.fmt.prefill.rstrip().endswith(opening.strip()):
                opening = ""
            text = f"{opening}{reply.reasoning.strip()}{closing}{text.lstrip()}".strip()
        finished = not reply.error and reply.finish_reason != "length"
        return Completion(text, reply.tokens or 0, finished)
