"""What every training entry point needs: errors, logging, the run directory, resume, trackers, tokenizer and format, saving.

torch and Transformers are imported inside functions, so that a worker process which re-imports ``__main__`` stays light.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import logging
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes import checkpoints, locks, processes, report, run_dir
from r1_recipes.errors import RecipeError, first_line, install_hint
from r1_recipes.formats import ResponseFormat, get_response_format, template_prefill
from r1_recipes.masking import masked, masked_text, masked_words
from r1_recipes.recipe import Recipe, load, read_yaml
from r1_recipes.run_dir import METRICS_FILE, Run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Trainer

logger = logging.getLogger(__name__)

LOG_FILE = "run.log"
# A launcher passes on, as a signal of its own, the Ctrl-C that its workers have already had from the terminal.
_SAME_REQUEST_SECONDS = 2.0
# torch's agent looks after its processes every tenth of a second; the next one's turn comes when that had time to end it.
_HELD_BACK_SECONDS = 2.0
# TensorBoard keeps what it is given in memory: completions a log entry, and characters of each.
_SHOWN_COMPLETIONS = 5
_SHOWN_CHARACTERS = 4_000
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Turn a :class:`RecipeError` into one line on stderr and exit status 2, and Ctrl-C into status 130.

    One line a host, not one a process: a host's other processes hold theirs back, and their launcher ends them meanwhile if another one of
    them has met the same. What only they have met is told a few seconds late.
    """
    try:
        yield
    except RecipeError as error:
        logger.debug("refused: %s", error)
        who = ""
        if processes.world_size() > 1:
            time.sleep(_HELD_BACK_SECONDS * int(os.environ.get("LOCAL_RANK", 0)))
            who = f"{socket.gethostname()}, rank {processes.rank()}: "
        # What a server or a file said may hold a terminal's control characters.
        text = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in masked_text(str(error)))
        said = f"error: {who}{text}"
        sys.stderr.write(said + "\n")
        if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):  # torch's launcher ends its own output with what stands there
            Path(file).write_text(json.dumps({"message": said, "timestamp": int(time.time())}), encoding="utf-8")
        raise SystemExit(2) from None
    except Exception:
        # The terminal may be gone by the time somebody asks; the run's own log is not.
        logger.exception("the run failed")
        raise
    except KeyboardInterrupt:
        if is_main_process():
            sys.stderr.write("stopped at once; the same command goes on from the newest checkpoint, or starts again where there is none\n")
        raise SystemExit(130) from None
    finally:
        _replace_handler(_LogFile, None)
        locks.release()


def say(text: str) -> None:
    """Write a result for the person at the terminal, on stdout, where it can be piped; the one place that does."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def is_main_process() -> bool:
    """Whether this is rank 0, by the launcher's environment, so that it can be asked before torch is loaded."""
    return processes.rank() == 0


def start(argv: Sequence[str] | None, method: str) -> Run:
    """Read the recipe and prepare its run directory.

    Args:
        argv: command line without the program; ``None``: this process's.
        method: ``"grpo"`` or ``"sft"``.

    Raises:
        RecipeError: anything that can be known before a model or data set is loaded.
    """
    if argv is None:
        argv = sys.argv[1:]
        sys.argv[1:] = masked_words(argv)  # which W&B keeps, with the run
    if {"-h", "--help"} & set(argv):
        say(usage(method))
        raise SystemExit(0)
    recipe = load(argv, method, check_files)
    set_up_logging(recipe)
    check_generation_backend(recipe)
    _check_rewards(recipe)
    run = Run(recipe, Path(recipe.training.output_dir), masked_words(argv))
    trains = recipe.method != "generate"
    if trains:
        _check_processes(recipe)
        check_trackers(recipe)
        check_push(recipe)
    if processes.first(lambda: _open_folder(run)):
        raise SystemExit(0)
    if trains:
        run.resume_from = processes.first(lambda: _claim(run))
        _check_one_folder(run.output_dir, run.resume_from)
    # From here on every line is in the run's own log too.
    logger.info("%s: %s -> %s", recipe.path, recipe.method, run.output_dir)
    for warning in dict.fromkeys(recipe.warnings):
        logger.warning(warning)
    if trains:
        _prepare_trackers(recipe)
    return run


def _open_folder(run: Run) -> bool:
    """Lock the run directory, and make sure that it is this recipe's; whether there is nothing left to do.

    Raises:
        RecipeError: another process or another run has it, or it cannot be written.
    """
    recipe, output_dir = run.recipe, run.output_dir
    locks.release(output_dir)  # an earlier run of this process
    locks.hold(output_dir)
    run_dir.check(recipe, output_dir)
    done = run_dir.is_finished(output_dir) and not run_dir.changed_settings(recipe, output_dir)
    if done and recipe.method != "generate" and not recipe.script.smoke:
        logger.info("already done: %s; remove it, or choose another --output_dir, to train again", output_dir)
        return True
    with _writing(output_dir):
        # What a start that came to nothing had to say is no part of this run.
        _replace_handler(_LogFile, _LogFile(output_dir / LOG_FILE, "a" if run_dir.holds_steps(output_dir) else "w"))
    return False


def _claim(run: Run) -> Path | None:
    """Put this start on record; the checkpoint that it goes on from."""
    resume_from = checkpoints.resume_point(run.recipe, run.output_dir)
    with _writing(run.output_dir):
        if not run.recipe.script.smoke:
            checkpoints.set_aside(run.output_dir, resume_from)
        run_dir.claim(run, checkpoints.step_of(resume_from))
    return resume_from


@contextlib.contextmanager
def _writing(output_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecipeError(
            f"output_dir {output_dir}: cannot be written: {error.strerror} ({error.filename or 'a file in it'}); make room, or choose "
            "another folder (--output_dir …)"
        ) from error


def _check_processes(recipe: Recipe) -> None:
    """Make sure that the processes which the launcher started are one run.

    Raises:
        RecipeError: each of them would train alone, into the same folder.
    """
    training, started = recipe.training, processes.world_size()
    meant = int(os.environ.get("R1_RECIPES_PROCESSES", started))  # by launch/common.sh
    if meant != started:
        raise RecipeError(
            f"{recipe.path}: this was launched as a run of {meant} processes, and accelerate started {started}; use an accelerate config "
            "for several (ddp, zero2, zero3, fsdp2), or launch one process"
        )
    if started == 1:
        return
    if training.world_size != started:
        raise RecipeError(
            f"{recipe.path}: {started} processes were started, and this one sees {training.world_size}; on CPUs start them with torchrun "
            "--nproc-per-node N and use_cpu: true"
        )
    processes.name_cpu_plainly(training)


def _check_one_folder(output_dir: Path, resume_from: Path | None) -> None:
    """Make sure that all processes see the checkpoint that they go on from; on hosts that share no disk some would begin anew.

    Raises:
        RecipeError: some do not.
    """
    seen = processes.gather([resume_from is None or resume_from.is_dir()])
    if not all(seen):
        raise RecipeError(
            f"output_dir {output_dir}: rank {seen.index(False)} does not see {resume_from}; it must be one folder on a disk that all hosts "
            "share"
        )


def usage(method: str) -> str:
    """What ``--help`` prints: the call, and every key of ours with its meaning."""
    from r1_recipes import recipe

    kinds = recipe.own_types(method)
    ours = [f for kind in kinds if not isinstance(kind, str) for f in dataclasses.fields(kind)]
    theirs = [f"trl.{name}" for name in (*(kind for kind in kinds if isinstance(kind, str)), "ModelConfig")]
    return "\n".join(
        [
            f"usage: python -m r1_recipes.{method} recipes/NAME.yaml [--key value ...]",
            "",
            f"Keys are those of {' and '.join(theirs)}, the parameters of the rewards (docs/recipes.md), and:",
            *(f"  --{f.name:<22}{f.metadata['help']}" for f in ours),
        ]
    )


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message."""

    converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%SZ"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked_text(record.getMessage()),
        }
        if record.exc_info:
            entry["exception"] = masked_text(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


class _MaskedFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return masked_text(super().format(record))


class _LogFile(logging.FileHandler):
    """The run's own log, ``run.log``."""

    def __init__(self, path: Path, mode: str = "a") -> None:
        super().__init__(path, mode, encoding="utf-8")
        self.setFormatter(_JsonFormatter())


class _Terminal(logging.StreamHandler):
    """Our lines on stderr, for people."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_MaskedFormatter("%(levelname)s %(name)s: %(message)s"))

    def filter(self, record: logging.LogRecord) -> bool:
        # A library with a handler of its own has said it already.
        return super().filter(record) and not logging.getLogger(record.name.partition(".")[0]).handlers


def _replace_handler(kind: type[logging.Handler], handler: logging.Handler | None) -> None:
    """Several runs in one process must not write into each other's logs; the handlers of others stay."""
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, kind)]:
        root.removeHandler(old)
        old.close()
    if handler is not None:
        root.addHandler(handler)


def set_up_logging(recipe: Recipe) -> None:
    """Log to stderr; ours at level info on rank 0, errors only elsewhere; Transformers' as the recipe's ``log_level`` says."""
    level = logging.INFO if is_main_process() else logging.ERROR
    terminal = any(isinstance(h, logging.StreamHandler) and h.stream is sys.stderr for h in logging.getLogger().handlers)
    if not terminal:
        _replace_handler(_Terminal, _Terminal())
    logging.getLogger("r1_recipes").setLevel(level)
    # "passive" is Transformers' word for: as the application has it.
    if getattr(recipe.training, "log_level", "passive") != "passive":
        import transformers

        transformers.utils.logging.set_verbosity(recipe.training.get_process_log_level())


def check_generation_backend(recipe: Recipe) -> None:
    """Refuse ``use_vllm: true`` if it cannot work, in one line that says why and what runs without.

    Raises:
        RecipeError: vLLM is not installed, or (colocated, as typed on the command line) there is no accelerator.
    """
    training = recipe.training
    if recipe.method in ("grpo", "distill") and training.temperature == 0:
        raise RecipeError(f"{recipe.path}: temperature: must be over 0 to train, got 0: a prompt's completions would be equal. Fix: 1.0")
    if not getattr(training, "use_vllm", False):
        return
    import torch

    without = "run without it: --use_vllm false (completions are then generated by Transformers, slower)"
    if training.vllm_mode == "colocate" and (training.use_cpu or not torch.accelerator.is_available()):
        raise RecipeError(f"{recipe.path}: use_vllm: no GPU is visible to this process; {without}")
    if importlib.util.find_spec("vllm") is None:
        raise RecipeError(f"{recipe.path}: use_vllm: vLLM is not installed; {install_hint('vllm')}, or {without}")


def check_starts(recipe: Recipe) -> None:
    """Refuse a recipe that starts from what is not there yet, or whose rewards lack what they need of the machine.

    Raises:
        RecipeError: as :func:`check_files`, or says what to install.
    """
    _check_rewards(recipe)
    check_files(recipe.path, recipe.settings)


def check_files(path: Path, settings: dict[str, Any]) -> None:
    """Refuse keys of a recipe that start from another one's run which is not there yet.

    Raises:
        RecipeError: names the recipe beside this one that has to run first.
    """
    starts = [(key, settings.get(key)) for key in ("model_name_or_path", "dataset_name", "teacher_model_name_or_path")]
    mixture = settings.get("dataset_mixture")
    parts = mixture.get("datasets") if isinstance(mixture, dict) else None
    starts += [("dataset_mixture", part.get("id")) for part in parts or () if isinstance(part, dict)]
    missing = [(key, str(name)) for key, name in starts if name and not Path(str(name)).expanduser().exists()]
    if not missing or settings.get("smoke"):
        return
    for sibling in sorted(path.parent.glob("*.yaml")):
        leaves = None
        with contextlib.suppress(RecipeError):
            leaves = read_yaml(sibling).get("output_dir")
        for key, name in missing:
            if leaves and Path(name).is_relative_to(str(leaves)):
                raise RecipeError(f"{path}: {key}: {name} is not here yet; it is what {sibling} leaves, so run that first")


def _check_rewards(recipe: Recipe) -> None:
    """A reward may have a ``check_start()``; a smoke run's model says nothing that it would have to judge."""
    script = recipe.script
    if script.smoke or not getattr(script, "reward_funcs", None):
        return
    from r1_recipes.rewards import get_reward_funcs

    for reward in get_reward_funcs(script.reward_funcs, script.response_format, **recipe.reward_params):
        if hasattr(reward, "check_start"):
            try:
                reward.check_start()
            except RecipeError as error:
                raise RecipeError(f"{recipe.path}: {error}") from error


def check_trackers(recipe: Recipe) -> None:
    """Refuse a tracker in ``report_to`` that is not installed.

    Raises:
        RecipeError: names the extra that brings it.
    """
    for tracker in recipe.training.report_to:
        if tracker in ("wandb", "tensorboard", "trackio") and importlib.util.find_spec(tracker) is None:
            raise RecipeError(f"{recipe.path}: report_to: {tracker} is not installed; {install_hint(tracker)}, or --report_to none")


def check_push(recipe: Recipe) -> None:
    """Refuse ``push_to_hub`` where nothing could be pushed after hours of training.

    Raises:
        RecipeError: the hub is switched off, or there is no token for it.
    """
    if not recipe.training.push_to_hub:
        return
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise RecipeError(f"{recipe.path}: push_to_hub: HF_HUB_OFFLINE is set. Fix: unset it, or --push_to_hub false")
    if not (recipe.training.hub_token or huggingface_hub.get_token()):
        raise RecipeError(f"{recipe.path}: push_to_hub: no token for the hub. Fix: hf auth login, or HF_TOKEN, or --push_to_hub false")


def _prepare_trackers(recipe: Recipe) -> None:
    for key, variable in (
        ("wandb_entity", "WANDB_ENTITY"),
        ("wandb_project", "WANDB_PROJECT"),
        ("wandb_run_group", "WANDB_RUN_GROUP"),
    ):
        value = getattr(recipe.script, key)
        if value:
            os.environ[variable] = value
    if "wandb" in recipe.training.report_to and "WANDB_MODE" not in os.environ and not _wandb_has_key():
        os.environ["WANDB_MODE"] = "offline"
        logger.warning("wandb has no API key: this run is logged offline under ./wandb; upload it later with `wandb sync`")


def _wandb_has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    return netrc.is_file() and "wandb" in netrc.read_text(errors="replace")


def load_tokenizer(recipe: Recipe) -> tuple[PreTrainedTokenizerBase, ResponseFormat]:
    """The tokenizer with the recipe's chat template and prefill, and the format as it will see completions.

    A model without a chat template gets the format's own, or ChatML (SFT, where its tokenizer has ChatML's tokens). A prefill becomes
    part of the generation prompt, so that training, vLLM and a served checkpoint all start the assistant's turn alike. A template that
    already opens the reasoning (DeepSeek's distilled models) counts as the prefill.

    Raises:
        RecipeError: the model cannot be found, has no chat template and the format brings none, or opens the turn otherwise than the
            recipe's ``prefill`` says.
    """
    from transformers import AutoTokenizer

    from r1_recipes.embedded import model_path

    script, model = recipe.script, recipe.model
    fmt = get_response_format(script.response_format, system_prompt=script.system_prompt, prefill=script.prefill)
    model.model_name_or_path = model_path(model.model_name_or_path, script.hub, model.model_revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model.model_name_or_path, revision=model.model_revision, trust_remote_code=recipe.training.trust_remote_code
        )
    except Exception as error:  # offline, gated, misspelt, not a checkpoint: Transformers' own words say which
        raise RecipeError(
            f"{recipe.path}: model_name_or_path: {model.model_name_or_path!r} cannot be loaded ({first_line(error)[:-1]}); a local "
            "checkpoint folder works too: --model_name_or_path PATH. On ModelScope: --hub modelscope"
        ) from error
    if script.chat_template:
        tokenizer.chat_template = _chat_template(recipe)
    elif fmt.chat_template:
        tokenizer.chat_template = fmt.chat_template
    elif tokenizer.chat_template is None:
        if recipe.method != "sft":
            raise RecipeError(
                f"{recipe.path}: {model.model_name_or_path} has no chat template; use response_format: r1_zero (plain text, for base "
                "models), set chat_template, or start from an SFT checkpoint"
            )
        absent = [token for token in ("<|im_start|>", "<|im_end|>") if token not in tokenizer.get_vocab()]
        if absent:  # as plain text they would end no turn, and new tokens start untrained, under LoRA for good
            raise RecipeError(
                f"{recipe.path}: {model.model_name_or_path} has no chat template, and for ChatML its tokenizer lacks "
                f"{' and '.join(absent)}; use response_format: r1_zero (plain text, turns end in {tokenizer.eos_token!r}), or set "
                "chat_template to one made of tokens that it has"
            )
        tokenizer.chat_template = CHATML
        logger.warning("%s has no chat template; it is trained on ChatML", model.model_name_or_path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    turn = generation_prompt(tokenizer)
    opened = template_prefill(turn, fmt)
    if fmt.prefill and turn.endswith(fmt.prefill):
        return tokenizer, fmt  # a checkpoint of an earlier run with this prefill
    if opened and fmt.prefill:
        raise RecipeError(
            f"{recipe.path}: prefill: the chat template of {model.model_name_or_path} already opens the turn with {opened!r}; leave "
            "prefill out"
        )
    if opened:
        logger.info("the chat template opens the assistant's turn with %r; rewards read completions with it in front", opened)
        fmt = replace(fmt, prefill=opened)
    elif fmt.prefill:
        tokenizer.chat_template += "{% if add_generation_prompt %}{{ " + json.dumps(fmt.prefill, ensure_ascii=False) + " }}{% endif %}"
    return tokenizer, fmt


def load_processor(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Any:
    """What turns words and pictures into a vision-language model's input, with this tokenizer and its chat template.

    Raises:
        RecipeError: the model has no such processor, a package that it needs is not installed, or the chat template has no place for a
            picture.
    """
    from transformers import AutoProcessor, ProcessorMixin

    model = recipe.model
    where = f"{recipe.path}: model_name_or_path: {model.model_name_or_path!r}"
    try:
        processor = AutoProcessor.from_pretrained(
            model.model_name_or_path, revision=model.model_revision, trust_remote_code=recipe.training.trust_remote_code
        )
    except Exception as error:  # offline, not a checkpoint, or a package for pictures or videos that is not there
        raise RecipeError(f"{where}: the data have pictures, and its processor cannot be loaded: {first_line(error)}") from error
    if not isinstance(processor, ProcessorMixin):
        raise RecipeError(f"{where}: the data have pictures, and this is no vision-language model")
    tokenizer.padding_side = "left"  # pictures are counted from the end of the prompt
    processor.tokenizer, processor.chat_template = tokenizer, tokenizer.chat_template
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    if processor.image_token not in processor.apply_chat_template(turn, tokenize=False):
        raise RecipeError(
            f"{where}: its chat template has no place for a picture; set chat_template to one that writes {processor.image_token!r}"
        )
    return processor


def _chat_template(recipe: Recipe) -> str:
    text = recipe.script.chat_template
    if "{" in text:
        return text
    try:
        return Path(text).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{recipe.path}: chat_template: {text!r} is neither Jinja text nor a file that can be read") from error


def generation_prompt(tokenizer: PreTrainedTokenizerBase) -> str:
    """What the chat template adds for the assistant's turn to come."""
    messages = [{"role": "user", "content": "?"}]
    bare = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    prompted = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return prompted.removeprefix(bare)


def model_arguments(recipe: Recipe) -> dict[str, Any]:
    """Keyword arguments for a TRL trainer that come from ``ModelConfig``: the model's name, quantization and PEFT."""
    from trl import get_peft_config, get_quantization_config

    model, training = recipe.model, recipe.training
    adapters = get_peft_config(model)
    if adapters is not None and model.model_revision != "main":
        adapters.revision = model.model_revision  # into adapter_config.json, for whoever loads or merges them
    options = {"revision": model.model_revision, "attn_implementation": model.attn_implementation, "dtype": model.dtype}
    training.model_init_kwargs = {**options, **(training.model_init_kwargs or {})}
    return {
        "model": model.model_name_or_path,
        "quantization_config": get_quantization_config(model),
        "peft_config": adapters,
    }


def freeze_parameters(trainer: Trainer, patterns: Sequence[str] | None) -> None:
    """Leave only the parameters trainable whose name matches one of ``patterns``; call it before training starts.

    Raises:
        RecipeError: a pattern is no regular expression, or matches nothing.
    """
    if not patterns:
        return
    try:
        compiled = {pattern: re.compile(pattern) for pattern in patterns}
    except re.error as error:
        raise RecipeError(f"unfrozen_parameters: {error.pattern!r} is no regular expression: {error}") from error
    names = [name for name, _ in trainer.model.named_parameters()]
    for pattern, expression in compiled.items():
        if not any(expression.search(name) for name in names):
            raise RecipeError(f"unfrozen_parameters: {pattern!r} matches none of the {len(names)} parameters (such as {names[-1]!r})")
    trainable = 0
    for name, parameter in trainer.model.named_parameters():
        parameter.requires_grad = any(expression.search(name) for expression in compiled.values())
        trainable += parameter.numel() * parameter.requires_grad
    logger.info("training %s of %s parameters", f"{trainable:,}", f"{sum(p.numel() for p in trainer.model.parameters()):,}")


def show_progress(trainer: Trainer) -> None:
    """One short line a log entry beside the progress bar, instead of every metric there is; ``metrics.jsonl`` has them all."""
    from transformers import ProgressCallback

    class Progress(ProgressCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
            line = progress_line(logs or {})
            if line and self.training_bar is not None:
                self.training_bar.write(f"step {state.global_step}: {line}", file=sys.stderr)

    if not trainer.args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(Progress)


def show_completions(trainer: Trainer) -> None:
    """Give TensorBoard some completions with every log entry, as ``train/completions`` and ``eval/completions``.

    With ``log_completions`` TRL hands W&B and Trackio a table of all of them, and TensorBoard nothing.
    """
    from transformers import TrainerCallback
    from transformers.integrations import TensorBoardCallback

    board = next((one for one in trainer.callback_handler.callbacks if isinstance(one, TensorBoardCallback)), None)
    if board is None or not getattr(trainer.args, "log_completions", False):
        return
    weights = getattr(trainer, "reward_weights", None)

    class Completions(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
            # The summary at the end of training is neither, and comes with the last step's completions again.
            kind = "train" if "loss" in logs else "eval" if any(key.startswith("eval_") for key in logs) else None
            if kind and board.tb_writer is not None and trainer._logs["completion"]:
                text = completions_text(trainer._logs, None if weights is None else weights.tolist())
                board.tb_writer.add_text(f"{kind}/completions", text, state.global_step)

    trainer.add_callback(Completions())


def completions_text(logs: Mapping[str, Any], reward_weights: Sequence[float] | None) -> str:
    """Five of a trainer's last completions from the lowest weighted reward to the highest, as Markdown.

    Args:
        logs: TRL's, one value a completion: ``prompt``, ``completion``, and where there are rewards ``rewards`` (by name), ``advantages``.
        reward_weights: one a reward; ``None``: there are no rewards.
    """
    scores = dict(zip(logs["rewards"], reward_weights, strict=True)) if reward_weights else {}
    totals = []
    for i in range(len(logs["completion"])):
        judged = {name: weight * logs["rewards"][name][i] for name, weight in scores.items()}
        totals.append(sum(value for value in judged.values() if not math.isnan(value)))
    order = sorted(range(len(totals)), key=totals.__getitem__)
    last = len(order) - 1
    parts = []
    for i in dict.fromkeys(order[place * last // (_SHOWN_COMPLETIONS - 1)] for place in range(_SHOWN_COMPLETIONS)):
        head = [f"**reward {totals[i]:.4g}**", *(f"{name} {logs['rewards'][name][i]:.4g}" for name in scores)]
        head += [f"advantage {logs['advantages'][i]:.3g}"] if scores else []
        texts = (report.words(logs["prompt"][i], roles=True), report.words(logs["completion"][i]))
        # An indented block shows a text as it is, whatever marks it contains.
        blocks = ["\n".join(f"    {line}" for line in report.clip(text, _SHOWN_CHARACTERS).splitlines()) for text in texts]
        parts.append("\n\n".join([", ".join(head)] * bool(scores) + ["prompt:", blocks[0], "completion:", blocks[1]]))
    return "\n\n---\n\n".join(parts)


def progress_line(logs: dict[str, Any]) -> str:
    """What a person watches: the reward and its parts, length, what was cut, groups without a signal, entropy; or the loss."""
    shown = {"reward": logs.get("reward")}
    shown |= {key.split("/")[1]: value for key, value in logs.items() if re.fullmatch(r"rewards/[^/]+/mean", key)}
    shown |= {
        "tokens": logs.get("completions/mean_length"),
        "truncated": logs.get("completions/clipped_ratio"),
        "zero-std groups": logs.get("frac_reward_zero_std"),
        "loss": None if "reward" in logs else logs.get("loss"),
        "token accuracy": logs.get("mean_token_accuracy"),
        "entropy": logs.get("entropy"),
        "grad norm": logs.get("grad_norm"),
    }
    # TRL gives numbers, Transformers writes some of its own as text.
    numbers = {}
    for name, value in shown.items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = float(value)
    return ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())


class _Trained(Exception):
    """A run goes on from a checkpoint that has all its steps."""


def callbacks(run: Run) -> list[Any]:
    """Trainer callbacks of every run: the metrics file, a stop that saves first, and the order of the rows after a resume."""
    from transformers import TrainerCallback
    from trl.trainer.utils import RepeatSampler

    class MetricsFile(TrainerCallback):
        """Appends every log entry to ``metrics.jsonl``; entries past the step that a resumed run goes on from are dropped first."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            path = run.output_dir / METRICS_FILE
            if not state.is_world_process_zero or not path.exists():
                return
            kept = []
            for line in path.read_text(encoding="utf-8").splitlines():
                # A line that was being written when the machine went down is not whole.
                with contextlib.suppress(ValueError, KeyError):
                    if json.loads(line)["step"] <= state.global_step and state.global_step:
                        kept.append(line)
            run_dir.write_whole(path, "".join(line + "\n" for line in kept))

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
            if state.is_world_process_zero and logs:
                values = {"step": state.global_step, **{k: v for k, v in logs.items() if isinstance(v, int | float)}}
                with (run.output_dir / METRICS_FILE).open("a", encoding="utf-8") as sink:
                    sink.write(json.dumps(values) + "\n")

    class StopAndSave(TrainerCallback):
        """When asked to, ends training after the step, with a checkpoint; at once where the checkpoint has all steps already.

        Transformers looks for the last step only after one more.
        """

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step >= state.max_steps:
                raise _Trained

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if self._any_rank_requested(args):
                run.stop_requested = True
                control.should_training_stop = True
                control.should_save = control.should_save or args.save_strategy != "no"
            return control

        def _any_rank_requested(self, args: Any) -> bool:
            # Ranks get the signal at different moments; one that left alone would hang the others.
            if args.world_size == 1:
                return run.stop_requested
            import torch
            import torch.distributed

            flag = torch.tensor(int(run.stop_requested), device=args.device)
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
            return bool(flag.item())

    class RowOrder(TrainerCallback):
        """GRPO's sampler draws one order an epoch from a generator that no checkpoint holds: draw again those already used up."""

        def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
            batches = getattr(train_dataloader, "batch_sampler", None)
            while hasattr(batches, "batch_sampler"):  # accelerate wraps it, once for each kind of sharding
                batches = batches.batch_sampler
            sampler = getattr(batches, "sampler", None)
            if isinstance(sampler, RepeatSampler) and sampler.shuffle:
                import torch

                for _ in range(int(state.epoch or 0)):
                    torch.randperm(sampler.num_samples, generator=sampler.generator)

    return [MetricsFile(), StopAndSave(), RowOrder(), checkpoints.callback(), report.callback(run.output_dir)]


def stop_signals() -> list[int]:
    """The signals that ask for a stop; a hang-up too, unless ``nohup`` has it ignored."""
    return [signal.SIGINT, signal.SIGTERM, *([] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP])]


@contextlib.contextmanager
def _stop_signals(run: Run) -> Iterator[None]:
    """While training, the first SIGINT, SIGTERM or SIGHUP asks for a stop with a checkpoint; the second stops at once."""
    saves = run.recipe.training.save_strategy != "no"
    promise = "with a checkpoint" if saves else "without a checkpoint, since save_strategy is 'no'"

    asked = None

    def request(number: int, frame: Any) -> None:
        nonlocal asked
        if asked is not None:
            if time.monotonic() - asked < _SAME_REQUEST_SECONDS:
                return
            raise KeyboardInterrupt
        asked = time.monotonic()
        run.stop_requested = True
        if is_main_process():
            # Not through sys.stderr: the signal may have come in the middle of a write to it.
            os.write(2, f"\nstopping after this step, {promise}; once more to stop at once\n".encode())

    previous = {}
    with contextlib.suppress(ValueError):  # not the main thread: the caller owns the signals
        previous = {number: signal.signal(number, request) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def train_and_save(run: Run, trainer: Trainer, tokenizer: PreTrainedTokenizerBase) -> None:
    """Train (or go on), then save model, tokenizer, state and model card in the run directory.

    Raises:
        RecipeError: the data made not one step, or the saved run could not be merged or pushed; the same command tries that again.
        SystemExit: 130, after a checkpoint, where the run was asked to stop.
    """
    recipe = run.recipe
    if run.resume_from:
        logger.info("going on from %s", run.resume_from)
    freeze_parameters(trainer, recipe.script.unfrozen_parameters)
    show_progress(trainer)
    show_completions(trainer)
    metrics = None
    with _stop_signals(run), contextlib.suppress(_Trained):
        metrics = trainer.train(resume_from_checkpoint=str(run.resume_from) if run.resume_from else None).metrics
    if run.stop_requested and trainer.state.global_step < trainer.state.max_steps:
        step = trainer.state.global_step
        again = "goes on from there" if (run.output_dir / f"checkpoint-{step}").is_dir() else "starts from its last checkpoint, if any"
        logger.warning("stopped at step %d; the same command %s", step, again)
        raise SystemExit(130)
    if trainer.state.global_step == 0:
        raise RecipeError(
            f"{recipe.path}: not one step was trained, so nothing is saved: {len(trainer.train_dataset)} rows make no whole batch; bring "
            "more rows, or lower per_device_train_batch_size"
        )
    if metrics is not None:
        trainer.log_metrics("train", {key: value for key, value in metrics.items() if value is not None})
    trainer.save_state()
    # Generation that follows needs the cache that training switches off.
    trainer.model.config.use_cache = True
    trainer.save_model(str(run.output_dir), _internal_call=True)  # it would push at once, half of what is to come
    if trainer.accelerator.is_main_process:
        if trainer.model.generation_config is not None:  # which an adapter's folder would otherwise lack, and so not know where a turn ends
            trainer.model.generation_config.save_pretrained(run.output_dir)
        tokenizer.save_pretrained(run.output_dir)
        trainer.create_model_card(dataset_name=_hub_dataset(recipe), tags=["r1-recipes", recipe.method])
        _name_in_card(run)
        if recipe.script.merge_adapters:
            _merge_adapters(run.output_dir, recipe.training)
    if recipe.training.push_to_hub:
        try:
            trainer.push_to_hub(dataset_name=_hub_dataset(recipe))
        except Exception as error:  # the network, a token, a quota: the hub's own words
            raise RecipeError(
                f"push_to_hub: the model is saved in {run.output_dir}, not pushed: {first_line(error)} {_again(recipe.training)}"
                f"hf upload {recipe.training.hub_model_id or 'NAME'} {run.output_dir}"
            ) from error
    if trainer.accelerator.is_main_process:
        run_dir.mark_finished(run.output_dir)
    logger.info("saved to %s", run.output_dir)


def _again(training: Any) -> str:
    """What tries again what failed after the last step, in words that a command follows."""
    if training.save_strategy == "no" or training.save_only_model:
        return "There is no checkpoint to go on from (save_strategy, save_only_model), so only this tries again: "
    return "The same command goes on from the newest checkpoint and tries again; or: "


def _merge_adapters(folder: Path, training: Any) -> None:
    """In a process of its own: under ZeRO-3, Transformers would load the base model in parts, of which all processes have one each.

    Raises:
        RecipeError: it fails; the run itself is saved.
    """
    launcher = ("ACCELERATE_", "FSDP_", "MASTER_", "TORCHELASTIC_", "PET_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(launcher)} | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-m", "r1_recipes.adapters", str(folder)], env=env, capture_output=True, text=True)
    if done.returncode:
        raise RecipeError(
            f"merge_adapters: the run is saved, its adapters are not merged: {done.stderr.strip()[-2000:]} {_again(training)}"
            f"python -m r1_recipes.adapters {folder}"
        )
    logger.info("merged: %s", done.stdout.strip().rpartition("\n")[2])


def _hub_dataset(recipe: Recipe) -> str | None:
    """The data set as a model card may link it; a local path or a generated task has no page."""
    name = recipe.script.dataset_name
    on_hub = name and ":" not in name and recipe.script.hub == "huggingface" and not Path(name).expanduser().exists()
    return name if on_hub else None


def _name_in_card(run: Run) -> None:
    """TRL's card writes None for what has no id on the hub: this model, and a base model that is a local folder."""
    card = run.output_dir / "README.md"
    text = card.read_text(encoding="utf-8")
    base = masked(run.recipe.model.model_name_or_path)
    text = text.replace("[None](https://huggingface.co/None)", f"`{base}`").replace('model="None"', f'model="{run.output_dir}"')
    run_dir.write_whole(card, text.replace("# Model Card for None", f"# Model Card for {run.output_dir.name}"))


def run_recipe(
    argv: Sequence[str] | None, method: str, build: Callable[[Recipe, ResponseFormat, PreTrainedTokenizerBase, dict[str, Any]], Trainer]
) -> None:
    """What every training entry point does; ``build`` makes the trainer.

    Args:
        argv: command line without the program; ``None``: this process's.
        method: ``"grpo"`` or ``"sft"``.
        build: called with the recipe, the response format, the tokenizer, and the keyword arguments that all TRL trainers take.

    Raises:
        SystemExit: 2 where the recipe or its data cannot be used, 130 where the run was stopped.
    """
    with reported_errors():
        run = start(argv, method)
        tokenizer, fmt = load_tokenizer(run.recipe)
        train, held_out = datasets_for(run, fmt, tokenizer)
        _check_steps(run.recipe, len(train))
        arguments = {
            **model_arguments(run.recipe),
            "args": run.recipe.training,
            "train_dataset": train,
            "eval_dataset": held_out,
            "processing_class": tokenizer,
            "callbacks": callbacks(run),
        }
        if "image" in train.column_names:
            arguments["processing_class"] = load_processor(run.recipe, tokenizer)
        trainer = build(run.recipe, fmt, tokenizer, arguments)
        _hide_secrets(trainer.args)
        _keep_adapters_in_fp32(run.recipe, trainer)
        _mend_generation_config(trainer.model)
        try:
            train_and_save(run, trainer, tokenizer)
        finally:  # finished, stopped or failed: that is when somebody looks
            if is_main_process():
                report.refresh(run.output_dir)
        processes.leave_at_exit()


def _hide_secrets(training: Any) -> None:
    """Keep secrets out of ``training_args.bin``, which Transformers pickles, and out of trackers; all that needs them is made by now."""
    if training.hub_token:
        os.environ["HF_TOKEN"] = training.hub_token  # which pushing takes where there is no other
        training.hub_token = None
    for field in dataclasses.fields(training):
        value = getattr(training, field.name)
        hidden = masked(value, field.name)
        if hidden != value:
            setattr(training, field.name, hidden)


def _mend_generation_config(model: Any) -> None:
    """Transformers refuses to save sampling values beside ``do_sample: false``, with the whole run's weights still to be written."""
    config = getattr(model, "generation_config", None)
    if config is None:
        return
    try:
        config.validate(strict=True)
    except ValueError as error:
        config.do_sample = True
        logger.warning(
            "the model's generation_config.json contradicts itself (%s); it is saved with do_sample: true", first_line(error)[:-1]
        )


def _keep_adapters_in_fp32(recipe: Recipe, trainer: Trainer) -> None:
    """TRL makes the adapters of a packed base bf16; at the rates of RL most of AdamW's steps are smaller than that can hold."""
    if recipe.model.load_in_4bit or recipe.model.load_in_8bit:
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()


def _check_steps(recipe: Recipe, rows: int) -> None:
    """Refuse fewer rows than one batch of prompts: TRL's sampler would drop them all, and train no step.

    Raises:
        RecipeError: names the keys.
    """
    training = recipe.training
    prompts = training.generation_batch_size // training.num_generations if hasattr(training, "num_generations") else 1
    if rows < prompts:
        raise RecipeError(
            f"{recipe.path}: {rows} training rows for {prompts} prompts a batch (generation_batch_size {training.generation_batch_size} / "
            f"num_generations {training.num_generations}), so not one step would be trained. Fix: more rows, or a smaller "
            "per_device_train_batch_size or gradient_accumulation_steps"
        )


def datasets_for(run: Run, fmt: ResponseFormat, tokenizer: Any) -> tuple[Any, Any]:
    """Training and evaluation split (``None`` where ``eval_strategy`` is "no"), disjoint by question."""
    from r1_recipes.data.load import drop_overlap, load_dataset

    recipe = run.recipe
    if recipe.script.smoke:
        from r1_recipes.smoke import example_rows

        rows = example_rows(recipe.script, recipe.method)
        return load_dataset(recipe.script, fmt, recipe.method, tokenizer=tokenizer, rows=rows)[0], None
    train, report = load_dataset(recipe.script, fmt, recipe.method, split="train", tokenizer=tokenizer)
    logger.info("train: %s", report)
    if recipe.training.eval_strategy == "no":
        return train, None
    held_out, report = load_dataset(recipe.script, fmt, recipe.method, split="test", tokenizer=tokenizer)
    logger.info("test: %s", report)
    train, dropped = drop_overlap(train, held_out)
    if not len(train):
        raise RecipeError(
            f"{recipe.path}: dataset_test_split: the test split asks everything that the training split asks, so no row is left to train "
            "on. Fix: dataset_train_split: 'train[:-128]' and dataset_test_split: 'train[-128:]', or eval_strategy: 'no'"
        )
    if dropped:
        logger.warning("%d training rows ask what the test split asks; they are left out", dropped)
    return train, held_out
