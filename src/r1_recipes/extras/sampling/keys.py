"""What a recipe with ``curriculum`` or ``dynamic_sampling`` may say."""

from r1_recipes.common.errors import RecipeError, require, unknown_name
from r1_recipes.recipe.types import GRPORecipe


def check_recipe(recipe: GRPORecipe) -> None:
    """Raise RecipeError if a key cannot be used; the message names the key."""
    _curriculum_has_steps(recipe)
    _curriculum_is_evaluated(recipe)
    _dynamic_sampling_is_bounded(recipe)


def _curriculum_has_steps(recipe: GRPORecipe) -> None:
    """Refuse a curriculum with one task, or with a repeated task."""
    tasks = recipe.script.curriculum
    if tasks is not None and not recipe.script.smoke:
        usable = len(tasks) > 1 and len(set(tasks)) == len(tasks)
        require(usable, "curriculum", "two or more different tasks, easiest first", tasks)


def _curriculum_is_evaluated(recipe: GRPORecipe) -> None:
    """Refuse a curriculum without evaluation, or with a best checkpoint.

    The best checkpoint would be the easiest task's.
    """
    training = recipe.training
    if recipe.script.curriculum is None or recipe.script.smoke:
        return
    if (
        training.eval_strategy != "steps"
        or training.load_best_model_at_end
        or training.save_strategy == "best"
    ):
        raise RecipeError(
            "curriculum: needs eval_strategy: steps and no best checkpoint, got "
            f"{training.eval_strategy.value}"
        )


def _dynamic_sampling_is_bounded(recipe: GRPORecipe) -> None:
    """Refuse rounds without effect, an unknown reward, and a curriculum, which chooses rows too."""
    script = recipe.script
    settings = script.dynamic_sampling
    if settings is None:
        return
    keys = ("max_rounds", "reward")
    for key in settings:
        if key not in keys:
            raise RecipeError("dynamic_sampling: " + unknown_name("key", key, keys))
    rounds = settings.get("max_rounds")
    usable = type(rounds) is int and rounds >= 2
    require(usable, "dynamic_sampling: max_rounds", "a whole number of at least 2", rounds)
    reward = settings.get("reward")
    usable = reward is None or reward in script.reward_funcs
    require(usable, "dynamic_sampling: reward", f"one of {script.reward_funcs}", reward)
    if script.curriculum is not None:
        raise RecipeError(
            "dynamic_sampling: cannot be combined with curriculum, because both choose the rows. "
            "Fix: remove one of them"
        )
