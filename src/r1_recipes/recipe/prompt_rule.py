"""Warn of a prompt that does not ask for the format that the rewards read."""

from r1_recipes.prompts import get_response_format
from r1_recipes.recipe.types import Recipe
from r1_recipes.rewards import REWARDS
from r1_recipes.rewards.registry import declared


def prompt_fits_format(recipe: Recipe) -> None:
    """Warn of tags that rewards read and ``system_prompt`` does not name."""
    script = recipe.script
    names = script.reward_funcs or ["accuracy"]
    judged = [declared(REWARDS[name], "judges") for name in names if name in REWARDS]
    fmt = get_response_format(script.response_format, prefill=script.prefill)
    # Worked examples show the format. Without an instruction, the data or the model know it.
    if not script.system_prompt or script.few_shot or all(part == "style" for part in judged):
        return
    prompt = f"{script.system_prompt}\n{script.prompt_template or ''}\n{fmt.prefill}"
    lacking = [tag for tag in fmt.tags if tag.rstrip("{") not in prompt]
    if lacking:
        recipe.warnings.append(
            f"{recipe.path}: system_prompt does not name {' and '.join(lacking)}, which "
            f"response_format {fmt.name} reads"
        )
