"""The run folder: whose run it holds, what each of its starts recorded, and whether it is finished.

``run.json`` and ``recipe.yaml`` say what the first start was. A start that goes on adds an entry to ``continued`` in ``run.json``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import digest, write_whole
from r1_recipes.common.masking import masked
from r1_recipes.recipe.load import Recipe, namespace_value
from r1_recipes.recipe.text import read_yaml

RUN_FILE = "run.json"
RECIPE_FILE = "recipe.yaml"
METRICS_FILE = "metrics.jsonl"
_RESUME = "resume_from_checkpoint"
# Settings that make a run another experiment; a folder never mixes two.
_IDENTITY = "model_name_or_path dataset_name dataset_config dataset_mixture response_format reward_funcs seed teacher_model_name_or_path"
# Settings that stored completions were made with. How they are judged and selected may change; that costs minutes.
_GENERATED_BY = (
    "model_name_or_path model_revision dtype backend dataset_name dataset_config dataset_mixture response_format system_prompt prefill "
    "chat_template few_shot prompt_template seed num_generations max_completion_length temperature top_p top_k min_p repetition_penalty"
)
_PACKAGES = ("r1-recipes", "torch", "trl", "transformers", "datasets", "accelerate", "peft", "math-verify", "vllm")


@dataclass
class Run:
    """One run: a recipe, where it writes, and where it goes on from.

    Attributes:
        recipe: the resolved recipe.
        output_dir: the run directory.
        argv: the command line as it may be recorded, without secrets.
        resume_from: newest whole checkpoint, or ``None`` for a fresh start.
        stop_requested: a signal asked the run to stop after the step it is in.
        claimed: this start is on record.
    """

    recipe: Recipe
    output_dir: Path
    argv: list[str]
    resume_from: Path | None = None
    stop_requested: bool = False
    claimed: bool = False


def check(recipe: Recipe, output_dir: Path) -> None:
    """Make sure that the directory is free, or holds this recipe's run.

    A start that failed before its first step left a claim and no run; the next one may take its place.

    Raises:
        RecipeError: the directory holds another recipe's run, a run of this recipe on other data or another model, a run that
            started from another one which was made again since, a finished one that other settings would train no further, or steps of
            unknown origin.
    """
    identity = _identity(recipe)
    remedy = f"choose another folder (--output_dir …) or remove {output_dir}"
    if not (output_dir / RUN_FILE).is_file():
        if holds_steps(output_dir):
            raise RecipeError(f"output_dir {output_dir} holds steps or checkpoints of a run that left no {RUN_FILE}; {remedy}")
        return
    try:
        earlier = _read(output_dir)
        name, method, before = earlier["recipe"], earlier["method"], earlier["identity"]
        if not isinstance(before, dict):
            raise TypeError(f"identity is {type(before).__name__}")
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"output_dir {output_dir}: its {RUN_FILE} cannot be read ({error!r}); {remedy}") from error
    if not holds_steps(output_dir):
        return
    if (name, method) != (recipe.name, recipe.method):
        raise RecipeError(
            f"output_dir {output_dir} holds the {method} run of recipe {name!r}, not the {recipe.method} run of {recipe.name!r}; {remedy}"
        )
    now = json.loads(json.dumps(identity))  # as JSON keeps it: a tuple comes back as a list
    _refuse_changes(
        output_dir, f"a run of {name!r}", before, now, [key for key in {**before, **now} if before.get(key) != now.get(key)], remedy
    )
    others = made_from_others(recipe, output_dir)
    if others and not recipe.script.smoke:
        raise RecipeError(f"output_dir {output_dir} was made before the run in {', '.join(others)} changed; {remedy}")
    if is_finished(output_dir) and method != "generate" and not recipe.script.smoke:
        changed = changed_settings(recipe, output_dir)
        if _RESUME not in changed and not wants_more(recipe, output_dir):
            more = "choose another folder (--output_dir …), or raise max_steps or num_train_epochs to train this one further"
            _refuse_changes(output_dir, "a finished run", recorded_settings(output_dir), recipe.settings, changed, more)


def _refuse_changes(output_dir: Path, held: str, before: dict[str, Any], now: dict[str, Any], changed: Sequence[str], remedy: str) -> None:
    if changed:
        parts = ", ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in changed)
        raise RecipeError(f"output_dir {output_dir} holds {held} with other settings: {parts}; {remedy}")


def wants_more(recipe: Recipe, folder: Path) -> bool:
    """Whether the recipe trains further than the state in a run's or a checkpoint's folder; not where it cannot be read."""
    try:
        done = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        if recipe.training.max_steps > 0:
            return recipe.training.max_steps > done["global_step"]
        return recipe.training.num_train_epochs > done["epoch"] + 0.01  # an epoch is counted in parts
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _identity(recipe: Recipe) -> dict[str, Any]:
    """What makes a run another experiment, by key."""
    if recipe.script.smoke:
        return {"smoke": True}  # its model is another temporary one each time
    if recipe.method != "generate":
        return {key: value for key in _IDENTITY.split() if (value := recipe.settings.get(key)) is not None}
    # Resolved values: a default that is written out is still the default.
    identity = {key: masked(value, key) for key in _GENERATED_BY.split() if (value := namespace_value(recipe, key)) is not None}
    stamp = weights_stamp(Path(recipe.model.model_name_or_path))
    return identity | ({"weights": stamp} if stamp else {})


def holds_steps(output_dir: Path) -> bool:
    """Whether something was trained or generated here; before that a folder is nobody's."""
    metrics = output_dir / METRICS_FILE
    return (
        is_finished(output_dir)
        or (metrics.is_file() and metrics.stat().st_size > 0)
        or any(output_dir.glob("checkpoint-*"))
        or any(output_dir.glob("completions/shard-*"))
    )


def claim(run: Run, step: int = 0) -> None:
    """Put this start on record, once: as the run's first, or as one that goes on with what :func:`check` found there.

    Args:
        run: of which rank 0 writes.
        step: that it goes on from.
    """
    recipe, output_dir = run.recipe, run.output_dir
    if run.claimed or processes.rank():
        return
    run.claimed = True
    start = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {name: _version(name) for name in _PACKAGES},
        "argv": run.argv,
        "made_from": made_from(recipe.settings, output_dir),
        "adapted_to_machine": recipe.adapted,
    }
    if holds_steps(output_dir) and not recipe.script.smoke:
        entry = _read(output_dir)
        entry.pop("finished", None)
        changed = {key: recipe.settings.get(key) for key in changed_settings(recipe, output_dir)}
        if not _names_checkpoint(recipe.settings) and _names_checkpoint(recorded_settings(output_dir)):
            changed[_RESUME] = None  # so that naming it once more goes back once more
        entry.setdefault("continued", []).append({"step": step, "settings": changed, **start})
        _write_entry(output_dir, entry)
        return
    settings = yaml.safe_dump(recipe.settings, sort_keys=False, allow_unicode=True)
    write_whole(output_dir / RECIPE_FILE, f"# {recipe.path} with its overrides, as {recipe.method} resolved it\n{settings}")
    _write_entry(output_dir, {"recipe": recipe.name, "method": recipe.method, "identity": _identity(recipe), **start})


def made_from(settings: Any, output_dir: Path) -> dict[str, str]:
    """Digests of the ``run.json`` of every other finished run that settings name a model, a data set or a checkpoint of, by folder."""
    found = {}
    for text in _texts(settings):
        with contextlib.suppress(OSError, ValueError):  # most texts are no paths
            for folder in [Path(text), *Path(text).parents][:3]:
                # One that still trains changes its record; what is taken of it is a checkpoint, which stays.
                if is_finished(folder) and not folder.samefile(output_dir):
                    found[str(folder)] = digest(folder / RUN_FILE)
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def made_from_others(recipe: Recipe, output_dir: Path) -> list[str]:
    """Folders of runs that this run's last start started from and that hold another run today."""
    before = _starts(output_dir)[-1].get("made_from", {})
    now = made_from(recipe.settings, output_dir)
    return [folder for folder in before if folder in now and now[folder] != before[folder]]


def recorded_settings(output_dir: Path) -> dict[str, Any]:
    """The run's settings as of its last start; a key that a later start left out is ``None``.

    Raises:
        RecipeError: ``recipe.yaml`` cannot be read.
    """
    settings = read_yaml(output_dir / RECIPE_FILE)
    for start in _starts(output_dir)[1:]:
        settings |= start["settings"]
    return settings


def changed_settings(recipe: Recipe, output_dir: Path) -> list[str]:
    """Keys whose recorded value is not the recipe's today."""
    kept, now = recorded_settings(output_dir), recipe.settings
    # Whether failed rows are asked for again is a call's matter, not the run's; and a folder may be moved, also to another machine.
    calls = {"retry_failed", "output_dir", *recipe.adapted}.union(*(start.get("adapted_to_machine", ()) for start in _starts(output_dir)))
    if not _names_checkpoint(now):
        calls.add(_RESUME)
    return sorted(key for key in {*now, *kept} - calls if now.get(key) != kept.get(key))


def _names_checkpoint(settings: dict[str, Any]) -> bool:
    return str(settings.get(_RESUME) or "false").lower() not in ("true", "false")


def last_processes(output_dir: Path) -> int | None:
    """How many processes the run had when it last trained."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        noted = [start["hardware"]["processes"] for start in _starts(output_dir) if "hardware" in start]
        return noted[-1] if noted else None
    return None


def is_finished(output_dir: Path) -> bool:
    """Whether this directory holds a run that went through to its end and saved its model."""
    try:
        return bool(_read(output_dir).get("finished"))
    except (OSError, ValueError, AttributeError):
        return False


def mark_finished(output_dir: Path) -> None:
    """Note in ``run.json`` that the run went through to its end."""
    _write_entry(output_dir, {**_read(output_dir), "finished": True})


def note_hardware(output_dir: Path, found: dict[str, Any]) -> None:
    """Note in ``run.json`` what the last start runs on; a trainer outside a run directory has none."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        entry = _read(output_dir)
        [entry, *entry.get("continued", ())][-1]["hardware"] = found
        _write_entry(output_dir, entry)


def _read(output_dir: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((output_dir / RUN_FILE).read_text(encoding="utf-8")))
    except (RecursionError, TypeError) as error:
        raise ValueError(f"no mapping, or one without end: {type(error).__name__}") from error


def _starts(output_dir: Path) -> list[dict[str, Any]]:
    """What ``run.json`` records of each start, the first one's first."""
    entry = _read(output_dir)
    return [entry, *entry.get("continued", ())]


def _write_entry(output_dir: Path, entry: dict[str, Any]) -> None:
    write_whole(output_dir / RUN_FILE, json.dumps(entry, indent=2, ensure_ascii=False) + "\n")


def weights_stamp(folder: Path) -> str | None:
    """A digest of the weights and the tokenizer in a checkpoint folder, by content; ``None`` if it is no local folder.

    A model that was trained again has other weights under the same name.
    """
    files = sorted(path for pattern in ("*.safetensors", "*.bin", "tokenizer*", "chat_template*") for path in folder.glob(pattern))
    entries = [(path.name, digest(path)) for path in files if path.is_file() and path.name != "training_args.bin"]
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16] if entries else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
