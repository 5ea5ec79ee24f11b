"""The run folder: which run it holds, what each start recorded, and whether the run is finished.

``run.json`` and ``recipe.yaml`` describe the first start. A start that resumes the run adds an
entry to ``continued`` in ``run.json``.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import write_whole
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import Settings
from r1_recipes.rewards import REWARDS, reward_parameters
from r1_recipes.runs import resume, sources
from r1_recipes.runs.digests import digest

RUN_FILE = "run.json"
RECIPE_FILE = "recipe.yaml"
METRICS_FILE = "metrics.jsonl"
# What the reading of an untrusted folder's JSON can raise.
UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
# Settings that stored completions depend on. Scoring and selection may change, because repeating
# them takes only minutes.
_GENERATED_BY = (
    "model_name_or_path model_revision dtype backend dataset_name dataset_config "
    "dataset_mixture response_format system_prompt prefill "
    "chat_template chat_template_kwargs few_shot prompt_template seed num_generations "
    "max_completion_length temperature top_p top_k min_p "
    "repetition_penalty tools environment max_tool_calling_iterations tool_timeout "
    "tool_output_chars task_config"
)
_PACKAGES = (
    "r1-recipes",
    "torch",
    "trl",
    "transformers",
    "datasets",
    "accelerate",
    "peft",
    "math-verify",
    "vllm",
)


@dataclass
class Run:
    recipe: Recipe
    output_dir: Path
    argv: list[str]  # without secrets
    resume_from: Path | None = None  # a checkpoint; None: a fresh start
    stop_requested: bool = False  # a signal asked to stop after the current step
    # Restores the state at the end of the last complete step.
    restore_state: Callable[[], None] | None = None
    system_prompt: str = ""  # of training; saved templates add it


def check_place(recipe: Recipe, output_dir: Path) -> None:
    """Refuse an output_dir that must not hold a run.

    That is a file, a broken link, or a folder with other files of the user.
    """
    where = f"{recipe.path}: output_dir: {output_dir}"
    fix = f"Fix: --output_dir outputs/{recipe.name}"
    if output_dir.is_symlink() and not output_dir.exists():
        raise RecipeError(
            f"{where} is a link to {os.readlink(output_dir)}, which does not exist. Fix: "
            f"create that folder, or remove the link"
        )
    if output_dir.exists() and not output_dir.is_dir():
        raise RecipeError(f"{where} is a file. {fix}")
    folder = output_dir.resolve()
    working_directory = Path.cwd().resolve()
    protected = {
        Path.home().resolve(): "your home folder",
        recipe.path.parent.resolve(): "the folder of the recipe",
        working_directory: "the working directory",
    }
    if folder in (*protected, *working_directory.parents) or (folder / ".git").exists():
        raise RecipeError(
            f"{where} is {protected.get(folder, 'a folder with other files')}, which a run would "
            f"fill with its files. {fix}"
        )


def check(recipe: Recipe, output_dir: Path) -> None:
    """Raise RecipeError unless the folder is free or holds this recipe's run.

    See docs/keys.md, "The run folder".
    """
    if not holds_steps(output_dir):
        return
    where = f"output_dir {output_dir}"
    remedy = f"Fix: choose another --output_dir, or delete {output_dir}"
    if recipe.script.smoke:
        raise RecipeError(f"{where} holds a run, but smoke: true needs an empty folder. {remedy}")
    if not (output_dir / RUN_FILE).is_file():
        raise RecipeError(
            f"{where} holds steps or checkpoints of a run without {RUN_FILE}. {remedy}"
        )
    entry = _read(output_dir)
    name = entry.get("recipe")
    method = entry.get("method")
    finished = "finished " if entry.get("finished") else ""
    message_start = f"{where} already holds a {finished}{method} run of recipe {name!r}"
    if name != recipe.name or method != recipe.method:
        raise RecipeError(
            f"{message_start}, not the {recipe.method} run of {recipe.name!r}. {remedy}"
        )
    now = made_from(recipe.settings, output_dir)
    inputs = sources.changed(last_made_from(output_dir), now)
    if inputs:
        raise RecipeError(
            f"{where} holds a run that started from {', '.join(inputs)}, which changed since. "
            f"{remedy}"
        )
    changed = changed_settings(recipe, output_dir)
    _check_push(recipe, output_dir, changed, message_start)
    if finished and method != "generate" and not _trains_further(recipe, output_dir):
        remedy += ", or raise max_steps or num_train_epochs to train this one further"
    else:
        changed = _identity_changes(changed, recipe, output_dir)
    if changed:
        before = recorded_settings(output_dir)
        parts = ", ".join(
            f"{key}: {before.get(key)!r} then, {recipe.settings.get(key)!r} now" for key in changed
        )
        raise RecipeError(f"{message_start} with different settings ({parts}). {remedy}")


def _check_push(
    recipe: Recipe, output_dir: Path, changed: Sequence[str], message_start: str
) -> None:
    """Refuse to train a finished run only to push it. The error has the command that uploads it."""
    only_push = all(key.startswith(("push_to_hub", "hub_")) for key in changed)
    if changed and only_push and is_finished(output_dir):
        repository = recipe.training.hub_model_id or f"NAME/{output_dir.name}"
        upload = shlex.join(["hf", "upload", repository, str(output_dir)])
        upload += " . --exclude '_*' --exclude 'checkpoint-*/*'"
        raise RecipeError(
            f"{message_start}, so there is nothing to train before a push. Fix: {upload}"
        )


def _identity_changes(changed: Sequence[str], recipe: Recipe, output_dir: Path) -> list[str]:
    """Return the changed keys that would make the recipe's run another run than the folder's."""
    if recipe.method == "generate":
        return [key for key in changed if key in _GENERATED_BY.split()]
    keys = [key for key in changed if resume.key_class(key) == "another run"]
    if not keys:
        return []
    before = recorded_settings(output_dir)
    then = last_made_from(output_dir)
    now = sources.digests(recipe.settings)
    return [
        key
        for key in keys
        if sources.by_content(before.get(key), then)
        != sources.by_content(recipe.settings.get(key), now)
    ]


def _trains_further(recipe: Recipe, output_dir: Path) -> bool:
    """Return whether the recipe trains further than the finished run in this folder."""
    with contextlib.suppress(*UNREADABLE):
        done = json.loads((output_dir / "trainer_state.json").read_text(encoding="utf-8"))
        if recipe.training.max_steps > 0:
            return recipe.training.max_steps > done["global_step"]
        # The recorded epoch is a fraction, so the last one can be slightly short.
        return recipe.training.num_train_epochs > done["epoch"] + 0.01
    return False


def holds_steps(output_dir: Path) -> bool:
    """Return whether something was trained or generated in this folder.

    Before that, any run may use the folder.
    """
    metrics = output_dir / METRICS_FILE
    return (
        is_finished(output_dir)
        or (metrics.is_file() and metrics.stat().st_size > 0)
        or any(output_dir.glob("checkpoint-*"))
        or any(output_dir.glob("completions/shard-*"))
    )


def claim(run: Run, step: int = 0) -> None:
    """Record this start in ``run.json``, on rank 0.

    It is the run's first start, or one that resumes from ``step``.
    """
    if processes.rank():
        return
    recipe = run.recipe
    output_dir = run.output_dir
    start: Settings = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": _versions(),
        "argv": run.argv,
        "made_from": made_from(recipe.settings, output_dir),
        "adapted_to_machine": recipe.adapted,
    }
    # If this process queried the GPU, vLLM's processes could not use it.
    if recipe.method != "generate":
        start["hardware"] = _hardware()
    start["made_from"] |= sources.digests(recipe.settings)
    if holds_steps(output_dir):
        entry = _read(output_dir)
        entry.pop("finished", None)
        changed = {key: recipe.settings.get(key) for key in changed_settings(recipe, output_dir)}
        entry.setdefault("continued", []).append({"step": step, "settings": changed, **start})
    else:
        settings = yaml.safe_dump(recipe.settings, sort_keys=False, allow_unicode=True)
        write_whole(
            output_dir / RECIPE_FILE,
            f"# {recipe.path} with its overrides, as {recipe.method} resolved it\n{settings}",
        )
        entry = {"recipe": recipe.name, "method": recipe.method, **start}
    _write(output_dir, entry)


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _hardware() -> Settings:
    import psutil
    import torch

    hardware: Settings = {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cpu_cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "processes": processes.world_size(),
    }
    if torch.cuda.is_available():
        hardware["accelerators"] = []
        for number in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(number)
            gib = device.total_memory / 2**30
            hardware["accelerators"].append(f"{device.name}, {gib:.0f} GiB")
        hardware["cuda"] = torch.version.cuda
    return hardware


def made_from(settings: Settings, output_dir: Path) -> sources.Checksums:
    """Return checksums of what a run starts from.

    These are a local model's weights, and ``run.json`` of every other finished run whose parts the
    settings name.
    """
    digests = {}
    model = settings.get("model_name_or_path")
    stamp = sources.weights_stamp(Path(model)) if model else None
    if stamp:
        digests[f"the weights in {model}"] = stamp
    for text in sources.texts(settings):
        with contextlib.suppress(OSError, ValueError):  # most texts are not paths
            for folder in [Path(text), *Path(text).parents][:3]:
                # A run that is still training changes its run.json. This run uses one of its
                # checkpoints, which stays the same.
                if is_finished(folder) and not folder.samefile(output_dir):
                    digests[str(folder)] = digest(folder / RUN_FILE)
    return digests


def recorded_settings(output_dir: Path) -> Settings:
    """Return the run's settings as of its last start.

    A key that a later start removed is ``None``.
    """
    settings = read_yaml(output_dir / RECIPE_FILE)
    for start in _starts(output_dir)[1:]:
        settings |= start["settings"]
    return settings


def changed_settings(recipe: Recipe, output_dir: Path) -> list[str]:
    """Return keys whose recorded value differs from the recipe's value.

    Keys of a single start or of one machine are left out.
    """
    before = recorded_settings(output_dir)
    now = recipe.settings
    skipped = {*recipe.adapted}
    for start in _starts(output_dir):
        skipped.update(start.get("adapted_to_machine", ()))
    defaults = _defaults(recipe)  # writing out a default is not a change
    changed = []
    for key in sorted({*now, *before} - skipped):
        default = defaults.get(key)
        is_default = now.get(key, default) == before.get(key, default)
        if not is_default and now.get(key) != before.get(key) and resume.key_class(key) != "start":
            changed.append(key)
    return changed


def _defaults(recipe: Recipe) -> Settings:
    fields = list(reward_parameters(REWARDS).values())
    for part in (recipe.script, recipe.training, recipe.model):
        fields += dataclasses.fields(part)
    return {
        f.name: json.loads(json.dumps(f.default, default=str))
        for f in fields
        if f.default is not dataclasses.MISSING
    }


def is_finished(output_dir: Path) -> bool:
    """Return whether this folder holds a run that reached its end and saved its model."""
    with contextlib.suppress(RecipeError):
        return bool(_read(output_dir).get("finished"))
    return False


def is_done(recipe: Recipe, output_dir: Path) -> bool:
    """Return whether this folder holds the finished run of this recipe, with today's settings."""
    return is_finished(output_dir) and not changed_settings(recipe, output_dir)


def mark_finished(output_dir: Path) -> None:
    _write(output_dir, {**_read(output_dir), "finished": True})


def refresh_page(output_dir: Path) -> None:
    """Write the report page on rank 0."""
    if processes.is_main_process():
        from r1_recipes.extras import report

        report.refresh(output_dir)


def _read(output_dir: Path) -> Settings:
    try:
        entry = {**json.loads((output_dir / RUN_FILE).read_text(encoding="utf-8"))}
        later = entry.get("continued", ())
        mappings = [start["settings"] for start in later]
        for start in (entry, *later):
            mappings += [start.get("made_from", {}), start.get("adapted_to_machine", {})]
        for value in mappings:
            if not isinstance(value, dict):
                raise TypeError(f"{value!r:.40} is not a mapping")
        return entry
    except UNREADABLE as error:
        raise RecipeError(
            f"output_dir {output_dir}: its {RUN_FILE} cannot be read: {first_line(error)} "
            f"Fix: choose another folder (--output_dir …)"
        ) from error


def _starts(output_dir: Path) -> list[Settings]:
    """Return the records of all starts in ``run.json``, the first start first."""
    entry = _read(output_dir)
    return [entry, *entry.get("continued", ())]


def last_made_from(output_dir: Path) -> sources.Checksums:
    """Return what the run's last start was made from, by place.

    See :func:`made_from` and :func:`sources.digests`.
    """
    return _starts(output_dir)[-1].get("made_from", {})


def _write(output_dir: Path, entry: Settings) -> None:
    write_whole(output_dir / RUN_FILE, json.dumps(entry, indent=2, ensure_ascii=False) + "\n")
