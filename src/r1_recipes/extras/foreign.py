"""Read YAML files of open-r1 unchanged, and the keys of TRL 0.12 to 0.18 by their current names.

A file of open-r1 leaves out what TRL 0.18 had as its default. Some of those defaults have changed
since (``beta`` was 0.04), so the file would train something else today. One warning names what is
set for it. The tables are in foreign.yaml.
"""

from pathlib import Path
from typing import Any

import yaml

from r1_recipes.common.errors import RecipeError

Keys = dict[str, Any]
TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SHORT: dict[str, str] = TABLE["short"]


def read(config: Keys, typed: Keys, method: str, source: str, warnings: list[str]) -> Keys:
    """Return a file's keys by their current names, with the defaults that it relied on.

    ``typed`` are the keys of the command line, which no default replaces.
    """
    for project, names in TABLE["projects"].items():
        found = [key for key in config if key.partition(".")[0] in names]
        if len(found) > 1:
            raise RecipeError(
                f"{source}: {', '.join(found)}: keys of {project}, whose files are not read. Fix: "
                "start from one of our recipes, and translate your keys with docs/migration.md"
            )
    older = {*TABLE["renamed"], *TABLE["obsolete"], *TABLE["refused"]}.intersection(config)
    keys = translate(config, source, warnings)
    if not older or method not in TABLE["then"] or config.keys() & TABLE["ours"]:
        return keys
    then = dict(TABLE["then"][method])
    if method == "grpo":
        then |= _task_defaults(then | keys | typed)
    defaults = {key: value for key, value in then.items() if key not in keys | typed}
    text = yaml.safe_dump(defaults, default_flow_style=True, sort_keys=False, width=10_000)[1:-2]
    warnings.append(
        f"{source}: read as a file of open-r1, with the defaults of TRL 0.18: {text}. Your own "
        "keys take precedence. What else may differ: docs/migration.md"
    )
    return defaults | keys


def _task_defaults(values: Keys) -> Keys:
    """Return the format in which a GRPO file expects an answer, and the mapper of its rows.

    open-r1's accuracy looks for a box anywhere, and its rewards for form read tags. So these
    rewards decide, unless the file's own prompt asks for something else.
    """
    prompt, rewards = str(values["system_prompt"]), values["reward_funcs"] or ()
    tagged = any(name in rewards for name in ("format", "tag_count", "code_format"))
    name = "think_answer" if tagged or "<answer>" in prompt else "boxed"
    if tagged and "<think>" in prompt and "<answer>" not in prompt:
        name = "think_boxed" if "\\boxed" in prompt else "think_prose"
    if "code" in rewards or "binary_code" in rewards:
        return {"response_format": name, "mapper": "verifiable_code"}
    return {"response_format": name}


def translate(values: Keys, source: str, warnings: list[str]) -> Keys:
    """Return keys of a file or of the command line by their current names.

    Each key that is renamed or ignored gets a warning.
    """
    result: Keys = {}
    for key, value in values.items():
        if key in TABLE["refused"]:
            raise RecipeError(f"{source}: {key}: {TABLE['refused'][key]}")
        if key in TABLE["obsolete"]:
            warnings.append(f"{source}: {key} is ignored: {TABLE['obsolete'][key]}")
            continue
        new = TABLE["renamed"].get(key, key)
        if new in result or (new != key and new in values):
            raise RecipeError(
                f"{source}: {key} is the old name of {new}, and both are set. Fix: keep only {new}"
            )
        new_value = TABLE["renamed_values"].get(key, {}).get(str(value), value)
        if new != key or new_value is not value:
            warnings.append(f"{source}: {key}: {value} is read as {new}: {new_value}")
        result[new] = new_value
    return result
