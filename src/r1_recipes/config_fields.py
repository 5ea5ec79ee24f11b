"""The keys of TRL's configurations by their installed source; importing TRL takes seconds, and a typing mistake shall not wait for it."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path
from typing import Any

_FILES = {
    "GRPOConfig": "trl/trainer/grpo_config.py",
    "SFTConfig": "trl/trainer/sft_config.py",
    "DistillationConfig": "trl/trainer/distillation_config.py",
    "ModelConfig": "trl/trainer/model_config.py",
    "_BaseConfig": "trl/trainer/base_config.py",
    "TrainingArguments": "transformers/training_args.py",
}


@functools.cache
def config_fields(name: str) -> dict[str, tuple[str, Any]]:
    """Return the annotation and the default of each field of a configuration class, those of its bases included, as written.

    Returns:
        A default that is no literal is ``None``.

    Raises:
        LookupError: the class is not where the tested versions have it.
    """
    package, _, inside = _FILES[name].partition("/")
    spec = importlib.util.find_spec(package)  # finds, does not import
    path = Path(spec.submodule_search_locations[0]) / inside if spec else None
    if path is None or not path.is_file():
        raise LookupError(name)
    classes = {node.name: node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ClassDef)}
    fields: dict[str, tuple[str, Any]] = {}
    for base in classes[name].bases:
        fields |= config_fields(ast.unparse(base))
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields[node.target.id] = (ast.unparse(node.annotation), _default(node.value))
    return fields


def _default(value: ast.expr | None) -> Any:
    if isinstance(value, ast.Call):  # field(default=…)
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
    try:
        return ast.literal_eval(value) if value is not None else None
    except ValueError:
        return None
