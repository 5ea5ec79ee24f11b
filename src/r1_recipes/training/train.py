"""What all methods share: start a run, build the trainer's arguments, train or resume, save."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common import gpu, processes
from r1_recipes.common.console import LogFile, replace_handler, say, set_up_logging
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.masking import masked, masked_words
from r1_recipes.models.smoke import is_temporary, smoke_overrides
from r1_recipes.models.tokenizer import load_processor
from r1_recipes.models.weights import copy_processor, repair_generation_config
from r1_recipes.prompts import ResponseFormat, served
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.recipe.rules import longest_sequence
from r1_recipes.recipe.types import OWN_TYPES, namespace_value
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.training import run_folder
from r1_recipes.training.rows import Splits, nothing_held_out
from r1_recipes.training.run_folder import Run, open_run

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer

logger = logging.getLogger(__name__)


def start(argv: Sequence[str] | None, method: str) -> Run:
    """Read the recipe, refuse what would fail later, and open its run folder.

    Exit with 0 after ``--help``, or if the run is finished.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    sys.argv[1:] = masked_words(argv)  # run.json and W&B keep the command line
    if {"-h", "--help"} & set(argv):
        say(usage(method))
        raise SystemExit(0)
    # Before anything asks torch for its devices: TRL would spread the model over all GPUs.
    note = gpu.use_first_gpu() if method != "generate" else None
    recipe = load_recipe(argv, method, smoke=smoke_overrides)
    set_up_logging(recipe.training)
    if method != "generate":
        check_machine(recipe)
    check_rewards(recipe)
    run = open_run(recipe)
    if processes.is_main_process():
        # The log of a start that failed before its first checkpoint is not part of this run.
        log = LogFile(
            run.output_dir / "run.log", "a" if run.checkpoint or method == "generate" else "w"
        )
        replace_handler(LogFile, log)
    logger.info("%s: %s -> %s", recipe.path, method, run.output_dir)
    if note and not recipe.training.use_cpu:
        recipe.warnings.append(note)
    for warning in dict.fromkeys(recipe.warnings):
        logger.warning(warning)
    if method != "generate":
        prepare_wandb(recipe)
    return run


def usage(method: str) -> str:
    """Return what ``--help`` prints: the call, and every key of ours with its meaning."""
    parts = (*OWN_TYPES[method], "ModelConfig")
    theirs = " and ".join(f"trl.{part}" for part in parts if isinstance(part, str))
    lines = [
        f"usage: python -m r1_recipes.{method} recipes/NAME.yaml [--key value ...]\n",
        f"Keys are those of {theirs}, the parameters of the rewards (docs/keys.md), and:",
    ]
    for part in parts:
        for field in () if isinstance(part, str) else dataclasses.fields(part):
            lines.append(f"  --{field.name:<28} {field.metadata['help']}")
    return "\n".join(lines)


def check_machine(recipe: Recipe) -> None:
    """Refuse what would go wrong in silence, or only after the weights are loaded."""
    training, model, path = recipe.training, recipe.model, recipe.path
    if recipe.method in ("grpo", "distill") and training.temperature == 0:
        raise RecipeError(
            f"{path}: temperature: must be above 0 for training, got 0, because all completions "
            "of a prompt would be identical. Fix: temperature: 1.0"
        )
    wants_bf16 = training.bf16 or model.dtype == "bfloat16"
    if wants_bf16 and not training.use_cpu and gpu.lacks_bf16():
        raise RecipeError(
            f"{path}: bf16: this GPU only emulates it, many times slower (compute capability 8.0 "
            "has it). Fix: --fp16 true --bf16 false --dtype float32"
        )
    if recipe.method == "grpo" and (recipe.script.tools or recipe.script.environment):
        from r1_recipes.extras.agents.build import check_turns

        check_turns(recipe)
    if namespace_value(recipe, "use_vllm"):
        gpu.quiet_vllm()
        if model.use_dora:  # vllm_lora.py sends the low-rank product alone
            raise RecipeError(
                f"{path}: use_dora: must be false with use_vllm: true. Fix: use_rslora"
            )
    # With it, only one process of a host reads the weights. Transformers 5.17 fills those of the
    # others with zeros (modeling_utils.py:4718), and TRL 1.16 shards a reference model or teacher
    # without sending it the real ones (models/utils.py:292).
    zeros = os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "").lower() in ("true", "1")
    second = recipe.method == "distill" or (
        recipe.method == "grpo" and training.beta and not model.use_peft
    )
    if zeros and second:
        raise RecipeError(
            "fsdp_cpu_ram_efficient_loading: true leaves the reference model or teacher without "
            "weights. Fix: false in the accelerate config"
        )


def check_rewards(recipe: Recipe) -> None:
    """Call ``check_start()`` of every reward that has it: a server or a sandbox must be there."""
    script = recipe.script
    names = getattr(script, "reward_funcs", None)
    if not names or script.smoke:  # a smoke run scores nothing real
        return
    for reward in get_reward_funcs(names, script.response_format, **recipe.reward_params):
        if check := getattr(reward, "check_start", None):
            check()


def prepare_wandb(recipe: Recipe) -> None:
    """Set the environment variables of W&B. Without an API key it logs offline."""
    environment = os.environ
    for key in ("wandb_entity", "wandb_project", "wandb_run_group"):
        if value := namespace_value(recipe, key):
            environment[key.upper()] = value
    netrc = Path(environment.get("NETRC", Path.home() / ".netrc"))
    known = "WANDB_API_KEY" in environment or (
        netrc.is_file() and "wandb" in netrc.read_text(errors="replace")
    )
    if "wandb" in recipe.training.report_to and not known and "WANDB_MODE" not in environment:
        environment["WANDB_MODE"] = "offline"
        logger.warning(
            "wandb has no API key, so this run is logged offline in ./wandb. Upload it later with "
            "wandb sync"
        )


def trainer_arguments(
    run: Run, fmt: ResponseFormat, tokenizer: Any, rows: Splits
) -> dict[str, Any]:
    """Return the keyword arguments that all TRL trainers take."""
    from trl import get_peft_config, get_quantization_config  # heavy

    recipe, model, training = run.recipe, run.recipe.model, run.recipe.training
    run_folder.warn_of_changed_rows(run, rows.train)
    if recipe.method != "reward":  # a reward model reads conversations as they are
        run.system_prompt = served.trained_system_prompt(fmt, rows.train)
    pictures = "image" in rows.train.column_names
    if getattr(training, "use_vllm", False):
        from r1_recipes.training import vllm_lora  # noqa: F401 (heavy; it repairs TRL's engine)

        if pictures and training.vllm_max_model_length == longest_sequence(recipe):
            training.vllm_max_model_length = None  # pictures add tokens
    adapters = get_peft_config(model)
    if adapters is not None and model.model_revision != "main":
        adapters.revision = model.model_revision  # for who loads or merges the adapters
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    return {
        "model": model.model_name_or_path,
        "args": training,
        "train_dataset": rows.train,
        "eval_dataset": rows.test,
        "processing_class": load_processor(recipe, tokenizer) if pictures else tokenizer,
        "quantization_config": get_quantization_config(model),
        "peft_config": adapters,
    }


def train(trainer: Trainer, run: Run) -> None:
    """Train, or resume from the run's checkpoint.

    After Ctrl-C, exit with status 130. After a reward that failed, raise RecipeError. Both leave a
    checkpoint, unless ``save_strategy`` is "no".
    """
    from r1_recipes.training import callbacks  # heavy

    prepare(trainer, run.recipe)
    stop = callbacks.SaveAndStop()
    trainer.add_callback(stop)
    trainer.add_callback(callbacks.Metrics(run.output_dir))
    if not trainer.args.disable_tqdm:
        trainer.remove_callback(callbacks.ProgressCallback)  # it prints every metric
        trainer.add_callback(callbacks.Table)
    if run.checkpoint:
        logger.info("resuming from %s", run.checkpoint)
        trainer.add_callback(callbacks.Resume(trainer))
    try:
        with processes.handled_by(stop.request), suppress(callbacks.AllStepsTrained):
            trainer.train(resume_from_checkpoint=str(run.checkpoint) if run.checkpoint else None)
    except callbacks.RewardFailed as error:
        if trainer.state.global_step and trainer.args.save_strategy != "no":
            trainer._save_checkpoint(trainer.model, trial=None)
            processes.wait()  # a launcher ends the others as soon as one has ended
        raise RecipeError(
            f"{error}. Training stopped after step {trainer.state.global_step}. After the fix, the "
            "same command resumes"
        ) from error
    finally:
        run_folder.refresh_page(run.output_dir)
    state = trainer.state
    if stop.requested and state.global_step < state.max_steps:
        logger.warning("stopped at step %d. The same command resumes", state.global_step)
        raise SystemExit(130)
    if not state.global_step:
        raise RecipeError(
            f"{run.recipe.path}: no step was trained, so nothing is saved: "
            f"{len(trainer.train_dataset)} rows do not fill a batch. Fix: more rows, or a lower "
            "per_device_train_batch_size"
        )


def prepare(trainer: Trainer, recipe: Recipe) -> None:
    """Change the model that TRL loaded, before it has an optimizer."""
    from transformers import set_seed  # heavy

    training, model = trainer.args, trainer.model
    if training.hub_token:  # a push reads it from there
        os.environ["HF_TOKEN"], training.hub_token = training.hub_token, None
    for field in dataclasses.fields(training):  # training_args.bin and trackers keep them
        setattr(training, field.name, masked(getattr(training, field.name), field.name))
    if recipe.model.load_in_4bit or recipe.model.load_in_8bit:
        for parameter in model.parameters():
            if parameter.requires_grad:
                # TRL 1.16 makes adapters bf16 (grpo_trainer.py:541), in which RL's small AdamW
                # steps vanish.
                parameter.data = parameter.data.float()
    repair_generation_config(model)
    freeze_parameters(model, recipe.script.unfrozen_parameters)
    if getattr(training, "use_vllm", False) and training.vllm_mode == "colocate":
        set_seed(seed_of_sampling(training))
    processes.destroy_process_group_at_exit()


def seed_of_sampling(training: Any) -> int:
    """Return a seed that differs by the recipe's seed and by the ranks that share an engine.

    vLLM samples with this process's global generators, which it has just seeded with the number of
    the group (TRL 1.16: vllm_generation.py:357). All seeds of recipes would sample alike.
    """
    size = training.vllm_tensor_parallel_size
    groups, group = training.world_size // size, training.process_index // size
    return int((training.seed * groups + group) % 2**32)


def freeze_parameters(model: PreTrainedModel, patterns: Sequence[str] | None) -> None:
    """Leave only parameters trainable whose name matches one of ``patterns``."""
    if not patterns:
        return
    names = list(dict(model.named_parameters()))
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise RecipeError(
                f"unfrozen_parameters: {pattern!r} matches none of the {len(names)} parameters "
                f"(for example {names[-1]!r})"
            )
    for name, parameter in model.named_parameters():
        parameter.requires_grad = any(re.search(pattern, name) for pattern in patterns)
    counts = model.num_parameters(only_trainable=True), model.num_parameters()
    logger.info("training %s of %s parameters", *(f"{count:,}" for count in counts))


def save(trainer: Trainer, run: Run) -> None:
    """Save model, tokenizer, state and card, and push them if the recipe says so.

    The saved chat template adds the system prompt of training.
    """
    recipe, folder, model = run.recipe, run.output_dir, trainer.model
    name = recipe.script.dataset_name
    on_hub = name and ":" not in name and not os.path.exists(os.path.expanduser(name))
    card = {"dataset_name": name if on_hub else None, "tags": ["r1-recipes", recipe.method]}
    trainer.save_state()
    model.config.use_cache = True  # training switches it off
    served.add_system_prompt(trainer.processing_class, run.system_prompt)
    if trainer.is_world_process_zero():
        if not hasattr(trainer.processing_class, "tokenizer"):  # a processor saves itself
            copy_processor(model.config, folder)
        if getattr(model, "generation_config", None) is not None:
            # An adapter's folder would lack it, and so the token that ends a turn.
            model.generation_config.save_pretrained(folder)
    if recipe.training.push_to_hub:
        trainer.push_to_hub(**card)  # it saves first
    else:
        trainer.save_model(str(folder))
        trainer.create_model_card(folder.name, **card)
    if trainer.is_world_process_zero():
        run_folder.mark_finished(folder)
    run_folder.refresh_page(folder)
    if is_temporary(folder):
        logger.info("the smoke run passed. Its folder is removed")
        return
    logger.info("saved to %s", folder)
    logger.info("report: %s", folder / "report.html")
    if recipe.method == "grpo" and not recipe.script.smoke:
        split = (
            []
            if not nothing_held_out(recipe, len(trainer.train_dataset))
            else ["--dataset_test_split", "train"]
        )
        words = ["python", "-m", "r1_recipes.evaluate", str(recipe.path), *split]
        words += ["--model", str(recipe.model.model_name_or_path), "--model", str(folder)]
        logger.info("next: %s --output %s/evaluation", shlex.join(words), folder)
