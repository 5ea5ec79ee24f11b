"""What all methods share: start a run, load rows, build the trainer's arguments, train, save."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common import processes
from r1_recipes.common.console import log_to, say, set_up_logging
from r1_recipes.common.errors import RecipeError, require
from r1_recipes.common.files import masked, masked_words, shipped
from r1_recipes.data.load import LoadReport, drop_overlap, load_dataset
from r1_recipes.data.sources import split_fix
from r1_recipes.models.load import copy_processor, repair_generation_config
from r1_recipes.models.smoke import is_temporary, smoke_overrides, smoke_rows
from r1_recipes.prompts import ResponseFormat, served
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.recipe.rules import longest_sequence
from r1_recipes.recipe.types import OWN_TYPES, namespace_value
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.training.run_folder import (
    Run,
    is_whole,
    note,
    open_run,
    refresh_page,
    warn_of_changed_rows,
)

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

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
    one_gpu = processes.use_first_gpu() if method != "generate" else ""
    recipe = load_recipe(argv, method, smoke=smoke_overrides)
    set_up_logging()
    if method != "generate":
        check_machine(recipe)
    check_rewards(recipe)
    run = open_run(recipe)
    if processes.rank() == 0:
        file = logging.FileHandler(run.output_dir / "run.log", encoding="utf-8", errors="replace")
        log_to(file, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    logger.info("%s: %s -> %s", recipe.path, method, run.output_dir)
    if one_gpu and not recipe.training.use_cpu:
        recipe.warnings.append(one_gpu)
    for warning in dict.fromkeys(recipe.warnings):
        logger.warning(warning)
    return run


def usage(method: str) -> str:
    """Return what ``--help`` prints: the call, and every key of ours with its meaning."""
    own = [dataclasses.fields(part) for part in OWN_TYPES[method] if not isinstance(part, str)]
    keys = [f"  --{field.name:<28} {field.metadata['help']}" for field in chain(*own)]
    return "\n".join(
        [
            f"usage: python -m r1_recipes.{method} recipes/NAME.yaml [--key value ...]\n",
            "Keys are TRL's and those of docs/keys.md, among them:",
            *keys,
        ]
    )


def check_machine(recipe: Recipe) -> None:
    """Refuse what would go wrong in silence, or only after the weights are loaded."""
    training, model, path = recipe.training, recipe.model, recipe.path
    # At 0, all completions of a prompt would be identical.
    if recipe.method in ("grpo", "distill"):
        require(training.temperature, f"{path}: temperature", "above 0", 0, "temperature: 1.0")
    wants_bf16 = training.bf16 or model.dtype == "bfloat16"
    if wants_bf16 and not training.use_cpu and processes.lacks_bf16():
        raise RecipeError(
            f"{path}: bf16: this GPU only emulates it, many times slower (compute capability 8.0 "
            "has it). Fix: --fp16 true --bf16 false --dtype float32"
        )
    if recipe.method == "grpo" and (recipe.script.tools or recipe.script.environment):
        from r1_recipes.extras.agents.build import check_turns

        check_turns(recipe)
    if namespace_value(recipe, "use_vllm"):
        processes.quiet_vllm()
        # vllm_lora.py sends the low-rank product alone.
        require(not model.use_dora, f"{path}: use_dora", "false with use_vllm", True, "use_rslora")
    # With it, Transformers 5.17 fills the weights with zeros in all processes of a host but one
    # (modeling_utils.py:4718). FSDP 2 sends the policy the real ones; a reference model (TRL 1.16,
    # models/utils.py:338) and a teacher (trainer/distillation_trainer.py:706) it does not.
    second = recipe.method == "distill" or (
        recipe.method == "grpo" and training.beta and not model.use_peft
    )
    if second and os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "").lower() in ("true", "1"):
        raise RecipeError(
            "fsdp_cpu_ram_efficient_loading: true leaves the reference model or teacher without "
            "weights. Fix: false in the accelerate config"
        )


def check_rewards(recipe: Recipe) -> None:
    """Call ``check_start()`` of every reward that has it: a server or a sandbox must be there."""
    script = recipe.script
    # A smoke run scores nothing real.
    if recipe.method in ("grpo", "generate") and not script.smoke:
        for reward in get_reward_funcs(
            script.reward_funcs, script.response_format, **recipe.reward_params
        ):
            if check := getattr(reward, "check_start", None):
                check()


@dataclasses.dataclass
class Splits:
    """A run's rows, and what became of those that were read."""

    train: Dataset
    train_report: LoadReport
    test: Dataset | None = None
    test_report: LoadReport | None = None


def load_splits(
    recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase | None
) -> Splits:
    """Return training rows, and evaluation rows unless ``eval_strategy`` is "no".

    With evaluation rows, no question of the test split is trained on.
    """
    script, method = recipe.script, recipe.method
    examples = smoke_rows(script, method) if script.smoke else None
    train, report = load_dataset(
        script, fmt, method, split="train", tokenizer=tokenizer, rows=examples
    )
    splits = Splits(train, report)
    logger.info("train: %s", report)
    if script.smoke:
        return splits
    if recipe.training.eval_strategy == "no":
        if nothing_held_out(recipe):
            logger.warning(
                "dataset_test_split: not set, and %s has no splits, so no row is held out for "
                "evaluate. Fix: %s",
                script.dataset_name,
                split_fix(report.read),
            )
        return splits
    # Whatever is evaluated during training, no row of the test split may be trained on.
    whole = dataclasses.replace(script, max_eval_samples=None)
    test, tested = load_dataset(whole, fmt, method, split="test", tokenizer=tokenizer)
    splits.train, overlap = drop_overlap(train, test)
    splits.test = test.select(range(min(len(test), script.max_eval_samples or len(test))))
    splits.test_report, tested.kept = tested, len(splits.test)
    logger.info("test: %s; %d training rows that ask the same are left out", tested, overlap)
    if not len(splits.train):
        raise RecipeError(
            f"{recipe.path}: dataset_test_split: the test split asks everything that the training "
            f"split asks, so no row is left to train on. Fix: {split_fix(report.read)}, or "
            "eval_strategy: 'no'"
        )
    return splits


def nothing_held_out(recipe: Recipe) -> bool:
    """Return whether ``evaluate`` would be given the rows that GRPO trains on.

    A file without splits is every split.
    """
    one_file = shipped(Path(recipe.script.dataset_name or "")).is_file()
    named = "dataset_test_split" in recipe.settings or recipe.training.eval_strategy != "no"
    return one_file and recipe.method == "grpo" and not named


def trainer_arguments(
    run: Run, fmt: ResponseFormat, tokenizer: Any, rows: Splits
) -> dict[str, Any]:
    """Return the keyword arguments that all TRL trainers take."""
    from trl import get_peft_config, get_quantization_config  # heavy

    recipe, model, training = run.recipe, run.recipe.model, run.recipe.training
    for key in ("wandb_entity", "wandb_project", "wandb_run_group"):
        if value := namespace_value(recipe, key):
            os.environ[key.upper()] = value
    warn_of_changed_rows(run, rows.train)
    if recipe.method != "reward":  # a reward model reads conversations as they are
        run.system_prompt = served.trained_system_prompt(fmt, rows.train)
    pictures = "image" in rows.train.column_names
    if pictures:
        from r1_recipes.extras.images import load_processor

        tokenizer = load_processor(recipe, tokenizer)
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
        "processing_class": tokenizer,
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
        trainer.add_callback(callbacks.Figures)
    if run.checkpoint:
        logger.info("resuming from %s", run.checkpoint)
        trainer.add_callback(callbacks.Resume(trainer))
    try:
        with processes.handled_by(stop.request), suppress(callbacks.AllStepsTrained):
            trainer.train(resume_from_checkpoint=str(run.checkpoint) if run.checkpoint else None)
    except callbacks.RewardFailed as error:
        saves = trainer.state.global_step and trainer.args.save_strategy != "no"
        if saves and not is_whole(run.output_dir / f"checkpoint-{trainer.state.global_step}"):
            trainer._save_checkpoint(trainer.model, trial=None)
            # A launcher ends the others as soon as one has ended.
            trainer.accelerator.wait_for_everyone()
        raise RecipeError(
            f"{error}. Training stopped after step {trainer.state.global_step}. After the fix, the "
            "same command resumes"
        ) from error
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
    if trainer.is_fsdp_enabled:
        # Transformers 5.17 saves no model of a SHARDED_STATE_DICT (trainer.py:3951), Accelerate's
        # default for FSDP 2.
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")


def prepare(trainer: Trainer, recipe: Recipe) -> None:
    """Change the model that TRL loaded, before it has an optimizer."""
    from torch import distributed
    from transformers import set_seed  # heavy

    training, model = trainer.args, trainer.model
    if training.hub_token:  # a push reads it from the environment, and no file records it there
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
    if recipe.script.unfrozen_parameters:
        freeze_parameters(model, recipe.script.unfrozen_parameters)
    if getattr(training, "use_vllm", False) and training.vllm_mode == "colocate":
        # vLLM samples with this process's global generators, which it has just seeded with the
        # number of the engine that ranks share (TRL 1.16: vllm_generation.py:357). All seeds of
        # recipes would sample alike.
        engine = training.process_index // training.vllm_tensor_parallel_size
        set_seed(training.seed + 10_000 * engine)
    # An open group can crash the interpreter. A single process has one, too, if vLLM is in it.
    atexit.register(lambda: distributed.is_initialized() and distributed.destroy_process_group())


def freeze_parameters(model: PreTrainedModel, patterns: Sequence[str]) -> None:
    """Leave only parameters trainable whose name matches one of ``patterns``."""
    names = list(dict(model.named_parameters()))
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise RecipeError(
                f"unfrozen_parameters: {pattern!r} matches none of the {len(names)} parameters "
                f"(for example {names[-1]!r})"
            )
    for name, parameter in model.named_parameters():
        parameter.requires_grad = any(re.search(pattern, name) for pattern in patterns)
    trained, count = model.num_parameters(only_trainable=True), model.num_parameters()
    logger.info("training %s of %s parameters", f"{trained:,}", f"{count:,}")


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
            copy_processor(model.config, folder, model.config.name_or_path)
        if getattr(model, "generation_config", None) is not None:
            # An adapter's folder would lack it, and so the token that ends a turn.
            model.generation_config.save_pretrained(folder)
    if recipe.training.push_to_hub:
        trainer.push_to_hub(**card)  # it saves first
    else:
        trainer.save_model(str(folder))
        trainer.create_model_card(folder.name, **card)
    if trainer.is_world_process_zero():
        note(folder, finished=True)
    refresh_page(folder)
    if is_temporary(folder):
        logger.info("the smoke run passed. Its folder is removed")
        return
    logger.info("saved to %s, with report.html", folder)
    if recipe.method == "grpo" and not recipe.script.smoke:
        logger.info(
            "next: python -m r1_recipes.evaluate %s%s --model %s --model %s --output %s/evaluation",
            recipe.path,
            " --dataset_test_split train" if nothing_held_out(recipe) else "",
            recipe.model.model_name_or_path,
            folder,
            folder,
        )
