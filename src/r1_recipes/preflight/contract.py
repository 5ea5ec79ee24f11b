"""The contract: what the prompt asks for, what the model can end with, and what the rewards pay are one thing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.metrics.rows import reward_functions
from r1_recipes.models.tokenizer import load_tokenizer
from r1_recipes.preflight.data import plain_format, rendered
from r1_recipes.preflight.findings import Report, clip, listed, spread
from r1_recipes.prompts import FORMATS, ResponseFormat
from r1_recipes.recipe.load import Recipe
from r1_recipes.rewards.call import right_answer, score

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame

_SAMPLE = 16
_TAG = re.compile(r"<([A-Za-z_]\w*)>")
_BOX = "\\boxed"
_HAN = re.compile("[\u4e00-\u9fff]")
# Three visible steps and no phrase twice, so that rewards for steps and against repetition have nothing to object to.
_REASONING = {
    "en": "Step 1: Read the question.\nStep 2: Work through what it gives.\nStep 3: Write down the result.",
    "zh": "第一步：读懂题目。\n第二步：根据条件计算。\n第三步：得出结果。",
}
_WRONG = ("-17", "-30", "-8", "-4", "-26", "-59")
_SHAPELESS = {"en": "I do not know what to say here.", "zh": "我不知道。"}
# They look at length, repetition or language alone, so that they may pay right and wrong alike.
_BLIND = ("length", "soft_overlong_punishment", "repetition_penalty", "language_consistency", "reasoning_steps")
_SHAPE = ("format", "format_partial", "tag_count", "xml_soft_format", "xml_strict_format", "code_format")


_FULL = ["accuracy", "answer_contains", "countdown", "multiply", "format", "format_partial", "tag_count", "reasoning_steps"]
_FULL += ["code", "binary_code", "code_format", "xml_soft_format", "xml_strict_format"]
# What a right answer in the right shape gets of a rule; other rewards' best value is their author's to know.
_FULL_MARKS = dict.fromkeys(_FULL, 1.0) | {"repetition_penalty": 0.0}
_KINDS = ("right", "wrong", "shapeless")


def weights(recipe: Recipe) -> list[float]:
    """One weight per reward, as TRL has them."""
    return recipe.training.reward_weights or [1.0] * len(recipe.script.reward_funcs)


def read_tokenizer(report: Report, recipe: Recipe) -> tuple[Any, ResponseFormat]:
    """The tokenizer and the format as training will have them; without a tokenizer (``None``) the report says why."""
    from jinja2 import TemplateError

    with report.refusals("contract.tokenizer"):
        try:
            tokenizer, fmt = load_tokenizer(recipe)
            check_template(report, recipe, tokenizer, fmt)
            return tokenizer, fmt
        except TemplateError as error:
            raise RecipeError(f"chat_template: that of {recipe.model.model_name_or_path} cannot be used: {first_line(error)}") from error
    return None, plain_format(recipe)


def check_template(report: Report, recipe: Recipe, tokenizer: Any, fmt: ResponseFormat) -> None:
    """How the assistant's turn begins and ends."""
    model = recipe.model.model_name_or_path
    turn = tokenizer.generation_prompt(tokenizer)
    reasoning_tags = sorted({other.reasoning_tags[0] for other in FORMATS.values() if other.reasoning_tags})
    foreign = [tag for tag in reasoning_tags if tag in turn and tag not in (fmt.reasoning_tags or ())]
    if foreign and fmt.reasoning_tags:
        report.error(
            "contract.prefill",
            f"the chat template of {model} opens the assistant's turn with {foreign[0]!r}, but response_format {fmt.name!r} looks for "
            f"{fmt.reasoning_tags[0]!r}: completions start in the wrong block; write {_format_for(foreign, fmt)}, or set chat_template",
        )
    elif fmt.prefill and fmt.reasoning_tags and fmt.reasoning_tags[1] in fmt.prefill:
        report.error(
            "contract.prefill",
            f"the assistant's turn starts with {fmt.prefill!r}, a reasoning block that is closed before the model writes a word, so no "
            "completion can be in the format; set chat_template to one without it",
        )
    elif fmt.prefill:
        whose = "the recipe's prefill" if recipe.script.prefill else f"the chat template of {model} (so leave prefill out)"
        said = f"the turn is already opened with {fmt.prefill!r} by {whose}; the model does not write that again"
        own = [name for name in getattr(recipe.script, "reward_funcs", ()) if ":" in name]
        if own:
            report.warn("contract.prefill", f"{said}, and {listed(own)} must not look for it: completions come without it")
        else:
            report.ok("contract.prefill", f"{said}, and the rewards read completions with it in front")
    _check_end(report, recipe, tokenizer)


def _check_end(report: Report, recipe: Recipe, tokenizer: Any) -> None:
    from jinja2 import TemplateError

    from r1_recipes.models.tokenizer import turn_end

    model = recipe.model.model_name_or_path
    if tokenizer.eos_token is None:
        report.error("contract.eos", f"the tokenizer of {model} has no eos_token, so nothing ends a completion; set it in the checkpoint")
        return
    # Of GRPO, which generates with what is there, the run does not fail by this.
    say = report.error if recipe.method == "sft" else report.warn
    try:
        end = turn_end(model, tokenizer, getattr(recipe.training, "eos_token", None))
    except (RecipeError, TemplateError) as error:
        say("contract.eos", f"the chat template of {model} cannot write an assistant's turn: {error}")
        return
    stops = _stop_tokens(recipe, tokenizer)
    if end in stops:
        report.ok("contract.eos", f"the chat template ends a turn in {end!r}, and generation stops there")
    elif recipe.method == "sft":
        report.ok("contract.eos", f"the chat template ends a turn in {end!r}; SFT makes it the eos_token (now {tokenizer.eos_token!r})")
    else:
        report.warn(
            "contract.eos",
            f"the chat template ends a turn in {end!r}, but generation stops at {listed(sorted(map(repr, stops)))} only: completions may "
            f"run on to max_completion_length; set eos_token_id to {tokenizer.convert_tokens_to_ids(end)} in the checkpoint's "
            "generation_config.json, or start from a checkpoint of our SFT, which has it",
        )


def _stop_tokens(recipe: Recipe, tokenizer: Any) -> set[str]:
    """Where TRL's generation stops: the tokenizer's end token and those of the model's generation config."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(recipe.model.model_name_or_path, revision=recipe.model.model_revision).eos_token_id
    except OSError:  # the checkpoint has none
        ends = None
    ids = ends if isinstance(ends, list) else [ends]
    return {tokenizer.eos_token, *(tokenizer.convert_ids_to_tokens(token) for token in ids if token is not None)}


def _marks(fmt: ResponseFormat) -> list[str]:
    """What a prompt names when it asks for this format."""
    return [tags[0] for tags in (fmt.reasoning_tags, fmt.answer_tags) if tags] + [_BOX] * fmt.boxed


def check_prompt(report: Report, recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> None:
    """The shape that the prompt asks for is the one that the rewards (GRPO) or the targets (SFT) have."""
    sample = [rows[index] for index in spread(len(rows), _SAMPLE)]
    wanted = _marks(fmt)
    if recipe.method == "sft":  # rows that are taken as they are need not be in the format
        targets = [_text(row["completion"]) for row in sample]
        wanted = [mark for mark in wanted if all(mark in target for target in targets)]
    whose = "which the targets have" if recipe.method == "sft" else "by which completions are judged"
    conflicts = []
    for row in sample:
        text, first = _text(row["prompt"]), row["prompt"][0]
        instruction = first["content"] if isinstance(first, dict) and first["role"] == "system" else ""
        # What the turn starts with need not be asked for.
        missing = [mark for mark in wanted if mark not in text and mark not in fmt.prefill]
        asked = [mark for mark in _asked(text, instruction) if mark not in wanted]
        if missing and asked:
            conflicts.append((asked, missing))
    if conflicts:
        asked, missing = conflicts[0]
        # A GRPO format without tags searches the whole completion, so another shape may be paid too.
        searched = recipe.method == "grpo" and not (fmt.reasoning_tags or fmt.answer_tags or fmt.delimited)
        paid = "only if its text gives a final answer" if searched else "nothing for it"
        (report.error if 2 * len(conflicts) >= len(sample) and not searched else report.warn)(
            "contract.prompt",
            f"the prompt asks for {' and '.join(asked)}, but response_format {fmt.name!r}, {whose}, wants {' and '.join(missing)} "
            f"({len(conflicts)} of {len(sample)} sampled rows): who does as asked is paid {paid}; write "
            f"{_format_for(asked, fmt)}, or leave system_prompt out",
        )
        return
    silent = [mark for mark in wanted if all(mark not in _text(row["prompt"]) and mark not in fmt.prefill for row in sample)]
    if not silent:
        if wanted:
            report.ok("contract.prompt", f"the prompt asks for {' and '.join(wanted)}, as response_format {fmt.name!r} has it")
    elif recipe.method == "sft":
        report.ok("contract.prompt", f"the targets have {' and '.join(silent)} without being asked; SFT teaches it")
    else:
        report.warn(
            "contract.prompt",
            f"nothing in the prompt asks for {' and '.join(silent)}, which response_format {fmt.name!r} wants: only a model trained on "
            "that shape gives it; leave system_prompt out to have the format's own instruction",
        )


def _text(turns: str | Sequence[dict[str, str]]) -> str:
    return turns if isinstance(turns, str) else "\n".join(message["content"] for message in turns)


def _asked(text: str, instruction: str) -> list[str]:
    """Marks of a shape: those of any format in the whole prompt, and other tags in its instruction that are opened and closed."""
    known = [mark for mark in dict.fromkeys(mark for fmt in FORMATS.values() for mark in _marks(fmt)) if mark in text]
    others = [f"<{name}>" for name in dict.fromkeys(_TAG.findall(instruction)) if f"</{name}>" in instruction]
    return list(dict.fromkeys([*known, *others]))


def _format_for(marks: Sequence[str], present: ResponseFormat) -> str:
    """The recipe key that would agree with these marks."""
    fitting = [fmt.name for fmt in FORMATS.values() if set(marks) <= set(_marks(fmt)) and fmt.name != present.name]
    return f"response_format: {fitting[0]}" if fitting else "a system_prompt that asks for what is wanted"


def check_rewards(report: Report, recipe: Recipe, fmt: ResponseFormat, rows: Dataset, tokenizer: Any, *, with_models: bool) -> None:
    """A right answer in the format's own words gets full marks of every reward, a wrong one does not, and the sum prefers the first."""
    from pandas import DataFrame

    functions = reward_functions(recipe, fmt, with_models=with_models)
    for name in [name for name, function in functions if function is None]:
        report.ok("contract.skipped", f"{name} asks a model of its own and is left out; --with-models has it judge too")
    cases = _cases(report, fmt, [rows[index] for index in spread(len(rows), _SAMPLE)])
    if not cases:
        return
    _check_room(report, recipe, fmt, cases, tokenizer)
    sampled = [case["row"] for case in cases]
    tables, used = {}, []
    for (name, function), weight in zip(functions, weights(recipe), strict=True):
        if function is None:
            continue
        with report.refusals("contract.reward_fails"):
            judged = getattr(function, "judged", None)  # a routed reward's
            if judged and not judged({key: [row[key] for row in sampled] for key in sampled[0]}):
                report.ok("contract.skipped", f"{name} judges tasks of which no sampled row has a gold to try it with")
                continue
            scores = {kind: score(name, function, sampled, [case[kind] for case in cases], tokenizer) for kind in _KINDS}
            tables[name] = DataFrame(scores, dtype=float)
            used.append(weight)
            _check_reward(report, name, tables[name], cases)
    means = {name: table.mean().astype(object) for name, table in tables.items()}
    report.facts["contract"] = {name: mean.where(mean.notna(), None).to_dict() for name, mean in means.items()}
    report.facts["contract_example"] = cases[0]["right"]
    if tables:
        _check_total(report, tables, used)


def _cases(report: Report, fmt: ResponseFormat, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that have a gold, each with its right answer, a wrong one, and words without any shape."""
    cases, refused = [], []
    for row in rows:
        gold = right_answer(row.get("solution"))
        if gold is None:
            continue
        prompt = _text(row["prompt"][-1:])
        language = "zh" if len(_HAN.findall(prompt)) > len(prompt) / 4 else "en"
        wrong = next((answer for answer in _WRONG if gold not in answer), _WRONG[0])
        try:
            right, wrong = (fmt.render_completion(_REASONING[language], answer) for answer in (gold, wrong))
        except ValueError as error:
            refused.append(str(error))
        else:
            cases.append({"row": row, "right": right, "wrong": wrong, "shapeless": _SHAPELESS[language]})
    if refused:
        (report.warn if cases else report.error)(
            "contract.render",
            f"{len(refused)} of {len(rows)} sampled golds cannot be written as an answer, so no completion is right there: {refused[0]}",
        )
    elif not cases:
        report.warn(
            "contract.no_golds", f"none of {len(rows)} sampled rows has a gold, so what a right answer scores is not known before a run"
        )
    return cases


def _check_room(report: Report, recipe: Recipe, fmt: ResponseFormat, cases: Sequence[dict[str, Any]], tokenizer: Any) -> None:
    """That the shortest right answer there is, with a single sign of reasoning, is not cut."""
    limit = recipe.training.max_completion_length
    texts = [fmt.render_completion("1", right_answer(case["row"]["solution"])) for case in cases]
    # One more for the token that ends the turn.
    need = max(len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1 for text in texts)
    if need > limit and not recipe.script.smoke:
        report.error(
            "contract.room",
            f"max_completion_length {limit} has no room for an answer in response_format: without any reasoning, tags and gold take {need} "
            f"tokens; set max_completion_length to several times {need}",
        )


def _check_reward(report: Report, name: str, scores: DataFrame, cases: Sequence[dict[str, Any]]) -> None:
    judged = scores[scores.right.notna()]
    if judged.empty:
        report.warn(
            "contract.unjudged",
            f"{name} judges none of {len(scores)} sampled rows, whatever the answer: see what it needs of a row (docs/recipes.md), and "
            "task_rewards",
        )
        return
    full = _FULL_MARKS.get(name)
    below = [] if full is None else judged.index[judged.right < full - 1e-6]
    if len(below):
        case = cases[below[0]]
        report.error(
            "contract.right",
            f"{name} gives a right answer in the format's own words {judged.right[below[0]]:g} instead of {full:g} ({len(below)} of "
            f"{len(judged)} sampled rows; gold {clip(str(case['row'].get('solution')))}, completion {clip(case['right'], 160)}): the model "
            "cannot earn it; check the golds that the mapper reads, and response_format",
        )
        return
    if name in _BLIND:
        return
    other, what = (judged.shapeless, "a text without the format") if name in _SHAPE else (judged.wrong, "a wrong answer")
    paid = other[other >= judged.right]
    if paid.empty:
        return
    right, wrong, shapeless = judged.mean()
    if full is not None:
        report.error(
            "contract.wrong",
            f"{name} gives {what} as much as a right answer ({paid.iloc[0]:g}) on {len(paid)} of {len(judged)} sampled rows: it cannot "
            "tell them apart; check the golds that the mapper reads",
        )
    elif (other > judged.right).any():
        report.warn(
            "contract.wrong",
            f"{name} gives a wrong answer more than a right one on some of {len(judged)} sampled rows (on average {wrong:.3g} and "
            f"{right:.3g}); check its parameters",
        )
    elif not shapeless < right:
        report.warn(
            "contract.alike",
            f"{name} gives right, wrong and shapeless text alike ({right:.3g}): if it always does, no group has anything to compare",
        )


def _check_total(report: Report, tables: dict[str, DataFrame], used: Sequence[float]) -> None:
    from pandas import DataFrame

    weighted = [table * weight for table, weight in zip(tables.values(), used, strict=True)]
    # As TRL adds them: what is not judged adds nothing.
    by_kind = {kind: DataFrame([table[kind] for table in weighted]).sum(min_count=1).mean() for kind in _KINDS}
    right, wrong, shapeless = by_kind.values()
    if math.isnan(right) or math.isnan(wrong):
        return
    numbers = f"right {right:.3g}, wrong {wrong:.3g}, without shape {shapeless:.3g}"
    if right > wrong and not right <= shapeless:  # which is not a number if no reward judges it
        report.ok("contract.total", f"the weighted sum prefers a right answer: {numbers}")
        return
    judges = any(name in _FULL_MARKS and name not in (*_SHAPE, *_BLIND) for name in tables)
    (report.error if judges else report.warn)(
        "contract.total",
        f"the weighted sum of the rewards does not prefer a right answer: {numbers}; check reward_weights and the rewards' parameters",
    )


def check_targets(report: Report, recipe: Recipe, rows: Dataset, tokenizer: Any) -> None:
    """SFT: the chat template writes the target whole, right after the prompt that generation will be given."""
    from r1_recipes.models.tokenizer import check_target

    sample = [rows[index] for index in spread(len(rows), _SAMPLE)]
    if not isinstance(sample[0]["completion"], list):
        report.ok("contract.target", "prompts and completions are plain texts; no chat template comes in")
        return
    with report.refusals("contract.target"):
        for row in sample:
            rendered(tokenizer, row["prompt"])
            check_target(recipe.model.model_name_or_path, tokenizer, row)
        report.ok("contract.target", f"the chat template writes all {len(sample)} sampled targets whole, right after the prompt")
