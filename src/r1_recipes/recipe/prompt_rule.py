"""Check that a prompt asks for the format that the rewards read."""

import re

from r1_recipes.common.errors import RecipeError
from r1_recipes.prompts import (
    FORMATS,
    ResponseFormat,
    fitting_format,
    get_response_format,
    named_marks,
)
from r1_recipes.recipe.types import Recipe
from r1_recipes.rewards import REWARDS
from r1_recipes.rewards.registry import declared

# What a prompt forbids, from the negation to the end of the sentence.
_NEGATED = re.compile(
    r"(\b(not|never|without|cannot)\b|n['’]t\b|不要|无需|(?<![分个特区])别)((?![.!?;](\s|$)|[。！？；]).)*",
    re.IGNORECASE,
)
_REASONING_STARTS = {fmt.reasoning_tags[0] for fmt in FORMATS.values() if fmt.reasoning_tags}
_ANSWER_STARTS = {fmt.answer_tags[0] for fmt in FORMATS.values() if fmt.answer_tags}


def prompt_fits_format(recipe: Recipe) -> None:
    """Refuse a prompt that asks for another format, which no reward would read.

    Preflight warns about a prompt that asks for no format at all.
    """
    script = recipe.script
    names = script.reward_funcs or ["accuracy"]
    judged_parts = [declared(REWARDS[name], "judges") for name in names if name in REWARDS]
    # Worked examples show the format.
    if all(judged == "style" for judged in judged_parts) or script.few_shot:
        return
    parts = (script.dataset_mixture or {}).get("datasets") or [{}]
    prompts = [part.get("system_prompt") for part in parts if isinstance(part, dict)]
    for prompt in dict.fromkeys(prompts):
        fmt = get_response_format(
            script.response_format,
            system_prompt=script.system_prompt if prompt is None else prompt,
            prefill=script.prefill,
        )
        _check_prompt(fmt, script.prompt_template or "", "shape" in judged_parts)


def _check_prompt(fmt: ResponseFormat, template: str, shape_is_judged: bool) -> None:
    prompt = f"{fmt.system_prompt}\n{template}"
    affirmed = _NEGATED.sub("", prompt)
    own_marks = [mark for group in fmt.marks for mark in group]
    written = [mark for mark in own_marks if mark in affirmed]
    marks = list(dict.fromkeys([*named_marks(affirmed), *written]))
    foreign = set(marks).difference(own_marks)
    implied = _implied(fmt, marks, foreign, shape_is_judged)
    missing = [group[0] for group in fmt.lacking(prompt) if implied.isdisjoint(group)]
    other_block = not foreign.isdisjoint(_ANSWER_STARTS)
    if other_block and fmt.prose and not fmt.answer_tags and not missing:
        missing = ["no other answer block"]
    # A format without tags searches the whole text for the answer, but not inside the answer tags
    # of another format.
    searches_whole_text = not (fmt.reasoning_tags or fmt.answer_tags or fmt.delimited)
    if not marks or not missing or (searches_whole_text and not other_block):
        return
    key = "system_prompt" if fmt.system_prompt else "prompt_template"
    named = " and ".join(marks)
    fix = f"{fitting_format(marks, fmt)}, or remove {key}"
    misspelt = " and ".join(mark for mark in marks if mark in missing)
    if misspelt:
        named = f"{named} in other characters"
        fix = f"write {misspelt}, because a format is read character by character"
    wanted = f"{' and '.join(missing)}, which rewards read (response_format {fmt.name})"
    raise RecipeError(f"{key}: must ask for {wanted}, got a text that asks for {named}. Fix: {fix}")


def _implied(
    fmt: ResponseFormat, marks: list[str], foreign: set[str], shape_is_judged: bool
) -> set[str]:
    """Return marks that a prompt does not have to name."""
    implied = set()
    # An answer is found without the opening mark of the reasoning, unless the closing mark is the
    # same text.
    opening, end = fmt.reasoning_tags or ("", "")
    if opening != end and not shape_is_judged:
        implied.add(opening)
    # Reasoning models, or their chat templates, open <think> without being asked.
    if "<think>" not in marks and foreign.isdisjoint(_REASONING_STARTS):
        implied.add("<think>")
    # Questions in the data often ask for a box.
    if "\\boxed" not in marks and foreign <= _REASONING_STARTS:
        implied.add("\\boxed")
    return implied
