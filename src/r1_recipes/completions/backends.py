"""Who generates completions: Transformers, vLLM in this process, or an OpenAI-compatible server. One call, one meaning of every setting."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from r1_recipes.common import processes
from r1_recipes.common.chat_client import PATIENCE, ChatServer, Reply
from r1_recipes.common.errors import RecipeError, first_line, install_hint
from r1_recipes.models.tokenizer import load_tokenizer
from r1_recipes.prompts import ResponseFormat, get_response_format

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from r1_recipes.recipe.load import Recipe

logger = logging.getLogger(__name__)

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Completion:
    """One generated text.

    Attributes:
        text: without the prefill and without the token that ends the turn.
        tokens: generated tokens, the ending one included.
        finish_reason: ``"stop"``, or ``"length"`` where ``max_completion_length`` cut it.
    """

    text: str
    tokens: int
    finish_reason: str


@dataclass(frozen=True)
class Request:
    """A prompt, by the index of its row."""

    index: int
    prompt: Messages


# A temperature (0 is greedy), and how many completions with it.
Way = tuple[float, int]
# Called once a request: its index, its completions, and why there are fewer than asked for (or None).
Sink = Callable[[int, list[Completion], str | None], None]


class Backend(Protocol):
    """Generates completions for requests."""

    def run(self, requests: Sequence[Request], sink: Sink, ways: Sequence[Way] | None = None) -> None:
        """Hand each request's completions to ``sink`` as they come in, in any order.

        Args:
            requests: what to complete.
            sink: gets a request's completions all at once, in the order of ``ways``.
            ways: temperatures, and how many completions of each request with them; ``None``: the recipe's ``temperature`` and
                ``num_generations``.

        Raises:
            RecipeError: nothing can be generated at all. What fails for one request is handed over as its error.
        """


def sample_seed(seed: int, index: int, sample: int) -> int:
    """A seed of its own for each completion, so that vLLM and servers give the same ones however often a run was interrupted.

    Transformers samples a batch at once: there the first row's seed stands for the batch, and an interrupted batch is drawn anew.

    Returns:
        0..2**31-1.
    """
    digest = hashlib.sha256(f"{seed}:{index}:{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def load_format(recipe: Recipe, name: str | None = None) -> tuple[PreTrainedTokenizerBase | None, ResponseFormat]:
    """The tokenizer (``None``: a server keeps its own) and the format as the backend's completions are read with.

    Args:
        recipe: whose model's tokenizer it is.
        name: in place of the recipe's ``backend``.

    Raises:
        RecipeError: as :func:`r1_recipes.models.tokenizer.load_tokenizer`.
    """
    script = recipe.script
    if (name or script.backend) == "openai":
        # The server writes the prefill, by its model's chat template; completions come without it and are read with it in front.
        return None, get_response_format(script.response_format, system_prompt=script.system_prompt, prefill=script.prefill)
    return load_tokenizer(recipe)


def get_backend(recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None, name: str | None = None) -> Backend:
    """A backend with the recipe's model loaded.

    Args:
        recipe: whose ``training`` are :class:`~r1_recipes.recipe.types.GenerationSettings`.
        tokenizer: from :func:`load_format`.
        name: in place of the recipe's ``backend``.

    Raises:
        RecipeError: a package, a GPU, the model or the server's address is missing.
    """
    name = name or recipe.script.backend
    if name == "openai":
        return OpenAIBackend(recipe)
    return (VLLMBackend if name == "vllm" else TransformersBackend)(recipe, tokenizer)


def load_model(recipe: Recipe) -> PreTrainedModel:
    """The recipe's model for generation, on the accelerator where there is one."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = recipe.model.dtype
    model = AutoModelForCausalLM.from_pretrained(
        recipe.model.model_name_or_path,
        dtype=dtype if dtype in (None, "auto") else getattr(torch, dtype),
        revision=recipe.model.model_revision,
        attn_implementation=recipe.model.attn_implementation,
        trust_remote_code=recipe.training.trust_remote_code,
    )
    if not recipe.training.use_cpu and torch.accelerator.is_available():
        model = model.to(processes.device() or torch.accelerator.current_accelerator())
    return model.eval()


def sampling(settings: Any, temperature: float | None = None) -> dict[str, Any]:
    """Transformers' generation arguments for a recipe's sampling keys.

    Args:
        settings: ``GRPOConfig`` or ``GenerationSettings``.
        temperature: replaces the recipe's; 0 is greedy.
    """
    temperature = settings.temperature if temperature is None else temperature
    if temperature == 0:
        # None, not the defaults: Transformers warns about a temperature that greedy decoding does not use.
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "repetition_penalty": settings.repetition_penalty}
    # Transformers' own default is top_k 50; training samples from everything unless the recipe says otherwise.
    names = ("top_p", "top_k", "min_p", "repetition_penalty")
    return {"do_sample": True, "temperature": temperature, **{name: getattr(settings, name) for name in names}}


def complete(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Messages],
    ways: Sequence[tuple[dict[str, Any], int]],
    max_new_tokens: int,
) -> list[list[list[Completion]]]:
    """Complete a batch of prompts in several ways, reading each prompt once: the cache that it leaves serves all its completions.

    Args:
        model: in evaluation mode.
        tokenizer: of the model, with the chat template.
        prompts: conversations that end in the user's turn.
        ways: generation arguments (:func:`sampling`), and how many completions a prompt with them.
        max_new_tokens: limit of one completion.

    Returns:
        ``result[way][prompt]``: list of completions.
    """
    import torch
    from transformers import DynamicCache

    texts = [tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) for prompt in prompts]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False).to(model.device)
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    ends = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    results = []
    with torch.inference_mode():
        cache = DynamicCache(config=model.config)
        positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        # All but the last token, which generate() reads itself.
        model(
            input_ids=batch["input_ids"][:, :-1],
            attention_mask=batch["attention_mask"][:, :-1],
            position_ids=positions[:, :-1],
            past_key_values=cache,
            logits_to_keep=1,
        )
        for number, (settings, copies) in enumerate(ways, start=1):
            own = cache if number == len(ways) else copy.deepcopy(cache)
            if copies > 1:
                own.batch_repeat_interleave(copies)
            inputs = {name: tensor.repeat_interleave(copies, dim=0) for name, tensor in batch.items()}
            output = model.generate(
                **inputs,
                **settings,
                max_new_tokens=max_new_tokens,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=sorted(ends),
                past_key_values=own,
            )
            done = [_completion(tokenizer, ids, ends) for ids in output[:, inputs["input_ids"].shape[1] :].tolist()]
            results.append([done[i : i + copies] for i in range(0, len(done), copies)])
    return results


def _completion(tokenizer: PreTrainedTokenizerBase, ids: list[int], ends: set[int]) -> Completion:
    end = next((position for position, token in enumerate(ids) if token in ends), None)
    text = tokenizer.decode(ids[:end], skip_special_tokens=True)
    return Completion(text, len(ids) if end is None else end + 1, "length" if end is None else "stop")


class TransformersBackend:
    """Transformers' ``generate``, batch by batch: slow, and it runs wherever PyTorch does."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        self._settings = recipe.training
        self._tokenizer = tokenizer
        self._model = load_model(recipe)

    def run(self, requests: Sequence[Request], sink: Sink, ways: Sequence[Way] | None = None) -> None:
        from transformers import set_seed

        settings = self._settings
        ways = ways or [(settings.temperature, settings.num_generations)]
        step = max(1, settings.generation_batch_size // max(copies for _, copies in ways))
        arguments = [(sampling(settings, temperature), copies) for temperature, copies in ways]
        # Prompts of like length together: padding is work. The longest first: memory runs out at once, or not at all.
        requests = sorted(requests, key=lambda request: (-sum(len(message["content"]) for message in request.prompt), request.index))
        for begin in range(0, len(requests), step):
            part = requests[begin : begin + step]
            set_seed(sample_seed(settings.seed, part[0].index, 0))
            done = complete(self._model, self._tokenizer, [r.prompt for r in part], arguments, settings.max_completion_length)
            for request, *groups in zip(part, *done, strict=True):
                sink(request.index, [completion for group in groups for completion in group], None)


class VLLMBackend:
    """vLLM in this process. Every completion is a request of its own, so rows are handed over as soon as they are whole."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise RecipeError(
                f"{recipe.path}: backend: vllm: vLLM is not installed; {install_hint('vllm')}, or run without it: --backend transformers"
            )
        if processes.world_size() > 1:
            raise RecipeError(
                f"{recipe.path}: backend: vllm: {processes.world_size()} processes were started; start one, and spread the model over GPUs "
                "with vllm_tensor_parallel_size, or run `vllm serve --data-parallel-size N` and take backend: openai"
            )
        from vllm import LLM

        model, settings = recipe.model, recipe.training
        self._settings = settings
        self._tokenizer = tokenizer
        try:
            self._llm = LLM(
                model.model_name_or_path,
                revision=model.model_revision,
                dtype=model.dtype or "auto",
                seed=settings.seed,
                tensor_parallel_size=settings.vllm_tensor_parallel_size,
                gpu_memory_utilization=settings.vllm_gpu_memory_utilization,
                max_model_len=settings.vllm_max_model_length,
                trust_remote_code=settings.trust_remote_code,
            )
        except Exception as error:  # no device, too little memory, a model it does not know: vLLM's own words
            raise RecipeError(
                f"{recipe.path}: backend: vllm: the engine does not start ({first_line(error)[:-1]}); without it: --backend transformers"
            ) from error

    def run(self, requests: Sequence[Request], sink: Sink, ways: Sequence[Way] | None = None) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings, engine, limit = self._settings, self._llm.llm_engine, self._llm.model_config.max_model_len
        ways = ways or [(settings.temperature, settings.num_generations)]
        temperatures = [temperature for temperature, copies in ways for _ in range(copies)]
        names = ("top_p", "top_k", "repetition_penalty")
        options = {name: getattr(settings, name) for name in names} | {"min_p": settings.min_p or 0.0}
        # One output a request, when it is done; otherwise every step builds one for each that is under way.
        options |= {"max_tokens": settings.max_completion_length, "output_kind": RequestOutputKind.FINAL_ONLY}
        done: dict[int, list[Completion | None]] = {}
        for request in requests:
            text = self._tokenizer.apply_chat_template(request.prompt, add_generation_prompt=True, tokenize=False)
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) >= limit:
                sink(request.index, [], f"the prompt has {len(ids)} tokens; the model takes fewer than {limit}")
                continue
            done[request.index] = [None] * len(temperatures)
            for sample, temperature in enumerate(temperatures):
                seed = sample_seed(settings.seed, request.index, sample)
                params = SamplingParams(**options, temperature=temperature, seed=seed)
                engine.add_request(f"{request.index}:{sample}", {"prompt_token_ids": ids}, params)
        # The engine's own steps, not LLM.generate: a row is stored when it is whole, not when all are.
        while engine.has_unfinished_requests():
            for output in engine.step():
                index, sample = map(int, output.request_id.split(":"))
                (answer,) = output.outputs
                done[index][sample] = Completion(answer.text, len(answer.token_ids), answer.finish_reason or "stop")
                if None not in done[index]:
                    sink(index, done.pop(index), None)


class OpenAIBackend:
    """An OpenAI-compatible server at ``OPENAI_BASE_URL``. Each completion is a request of its own, retried by itself."""

    # Requests handed to the client at once, in units of those under way: the server waits for stragglers only between slices.
    _SLICE = 64
    _PATIENCE = PATIENCE

    def __init__(self, recipe: Recipe) -> None:
        settings = recipe.training
        self._settings = settings
        self._format = get_response_format(recipe.script.response_format)
        self._told = False
        self._server = ChatServer(
            recipe.model.model_name_or_path,
            max_concurrency=settings.generation_batch_size,
            timeout=settings.request_timeout,
            max_retries=settings.request_retries,
        )
        self._server.check()

    def run(self, requests: Sequence[Request], sink: Sink, ways: Sequence[Way] | None = None) -> None:
        settings = self._settings
        ways = ways or [(settings.temperature, settings.num_generations)]
        copies = sum(count for _, count in ways)
        options: dict[str, Any] = {"max_tokens": settings.max_completion_length}
        # What stands at its neutral value is not sent: not every server takes these.
        neutral = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
        options |= {name: getattr(settings, name) for name, value in neutral.items() if getattr(settings, name) != value}
        # Failed rows wait for one that is answered: then their failure was their own.
        failed: list[tuple[int, list[Completion], str | None]] = []

        def hand_over() -> None:
            while failed:
                sink(*failed.pop(0))

        def finish(index: int, replies: list[Reply]) -> None:
            failures = [r.error for r in replies if r.error]
            failed.append((index, [self._completion(r) for r in replies if not r.error], failures[0] if failures else None))
            if not failures:
                hand_over()
            elif len(failed) >= max(self._PATIENCE, settings.generation_batch_size):
                raise RecipeError(
                    f"{len(failed)} rows failed one after the other, so this stops here; the last: {failures[0]} "
                    "The same command goes on from what is stored"
                )

        step = max(1, self._SLICE * settings.generation_batch_size // copies)
        for begin in range(0, len(requests), step):
            part = requests[begin : begin + step]
            arrived: dict[int, list[Reply]] = {request.index: [] for request in part}
            for temperature, count in ways:
                # A row that has failed is done; the ways that are left do not ask for it.
                self._ask([request for request in part if request.index in arrived], temperature, count, copies, options, arrived, finish)
        hand_over()

    def _ask(
        self,
        part: Sequence[Request],
        temperature: float,
        count: int,
        copies: int,
        options: dict[str, Any],
        arrived: dict[int, list[Reply]],
        finish: Callable[[int, list[Reply]], None],
    ) -> None:
        """Complete each request ``count`` times at one temperature; one that has all its ``copies``, or a failure, is finished."""
        waiting: dict[int, list[Reply | None]] = {request.index: [None] * count for request in part}
        seeds = None
        if temperature and self._settings.seed is not None:  # not every server takes one
            first = {request.index: len(arrived[request.index]) for request in part}
            asked = [(request.index, sample) for request in part for sample in range(count)]
            seeds = [sample_seed(self._settings.seed, index, first[index] + sample) for index, sample in asked]

        def on_reply(number: int, reply: Reply) -> None:
            index = part[number // count].index
            waiting[index][number % count] = reply
            if None in waiting[index]:
                return
            replies = arrived[index] + waiting.pop(index)
            arrived[index] = replies
            if len(replies) == copies or any(r.error for r in replies):
                finish(index, arrived.pop(index))

        self._server.chat(
            [request.prompt for request in part for _ in range(count)], seeds=seeds, on_reply=on_reply, temperature=temperature, **options
        )

    def _completion(self, reply: Reply) -> Completion:
        text = reply.text
        if reply.reasoning:
            # The server took the reasoning out of the text; it belongs in front again, as the model wrote it.
            opening, closing = self._format.reasoning_tags or ("", "")
            text = f"{opening}\n{reply.reasoning.strip()}\n{closing}\n{text.lstrip()}".strip()
        if reply.tokens is None and not self._told:
            self._told = True
            logger.warning("the server reports no token counts (usage): lengths are 0 wherever they are shown or compared")
        return Completion(text, reply.tokens or 0, reply.finish_reason or "stop")
