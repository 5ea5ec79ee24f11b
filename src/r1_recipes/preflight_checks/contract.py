"""The contract: what the prompt asks for, what the model can end with, and what the rewards pay are one thing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.metrics.rows import reward_functions
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer
from r1_recipes.preflight_checks.data import rendered
from r1_recipes.preflight_checks.findings import Report, clip, listed, spread
from r1_recipes.preflight_checks.judging import FULL_MARKS, total, weights
from r1_recipes.prompts.formats import FORMATS, ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.rewards.call import right_answer, score

if TYPE_CHECKING:
    from datasets import Dataset

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


class Case(NamedTuple):
    """A row, and three completions for it."""

    row: dict[str, Any]
    right: str
    wrong: str
    shapeless: str


class Verdicts(NamedTuple):
    """One reward's scores of the three kinds of completions, one a case."""

    right: list[float | None]
    wrong: list[float | None]
    shapeless: list[float | None]


def load_tokenizer(report: Report, recipe: Recipe) -> tuple[Any, ResponseFormat] | None:
    """The tokenizer and the format as training will have them; ``None`` where they cannot be had, which is then in the report."""
    from jinja2 import TemplateError

    with report.refusals("contract.tokenizer"):
        try:
            return load_tokenizer(recipe)
        except TemplateError as error:
            raise RecipeError(f"chat_template: that of {recipe.model.model_name_or_path} cannot be used: {first_line(error)}") from error
    return None


def check_template(report: Report, recipe: Recipe, tokenizer: Any, fmt: ResponseFormat) -> None:
    """How the assistant's turn begins and ends."""
    model = recipe.model.model_name_or_path
    turn = generation_prompt(tokenizer)
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
    except RecipeError as error:
        say("contract.eos", str(error))
        return
    except TemplateError as error:
        say("contract.eos", f"chat_template: that of {model} cannot write an assistant's turn: {first_line(error)}")
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
    same = tokenizer.pad_token_id == tokenizer.eos_token_id
    report.ok("contract.pad", f"padding is {tokenizer.pad_token!r}, {'which also ends a turn' if same else 'which does not end a turn'}")


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
    functions = reward_functions(recipe, fmt, with_models=with_models)
    for name in [name for name, function in functions if function is None]:
        report.ok("contract.skipped", f"{name} asks a model of its own and is left out; --with-models has it judge too")
    cases = _cases(report, fmt, [rows[index] for index in spread(len(rows), _SAMPLE)])
    if not cases:
        return
    _check_room(report, recipe, fmt, cases, tokenizer)
    used = []
    facts = {}
    for (name, function), weight in zip(functions, weights(recipe), strict=True):
        if function is None:
            continue
        with report.refusals("contract.reward_fails"):
            judged = getattr(function, "judged", None)  # a routed reward's
            if judged and not judged({key: [case.row[key] for case in cases] for key in cases[0].row}):
                report.ok("contract.skipped", f"{name} judges tasks of which no sampled row has a gold to try it with")
                continue
            verdicts = _verdicts(name, function, cases, tokenizer)
            used.append((name, weight, verdicts))
            facts[name] = {kind: _mean(values) for kind, values in verdicts._asdict().items()}
            _check_reward(report, name, verdicts, cases)
    report.facts["contract"] = facts
    report.facts["contract_example"] = cases[0].right
    if used:
        _check_total(report, used)


def _cases(report: Report, fmt: ResponseFormat, rows: Sequence[dict[str, Any]]) -> list[Case]:
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
            cases.append(Case(row, right, wrong, _SHAPELESS[language]))
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


def _check_room(report: Report, recipe: Recipe, fmt: ResponseFormat, cases: Sequence[Case], tokenizer: Any) -> None:
    """That the shortest right answer there is, with a single sign of reasoning, is not cut."""
    limit = recipe.training.max_completion_length
    texts = [fmt.render_completion("1", right_answer(case.row["solution"])) for case in cases]
    # One more for the token that ends the turn.
    need = max(len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1 for text in texts)
    if need > limit and not recipe.script.smoke:
        report.error(
            "contract.room",
            f"max_completion_length {limit} has no room for an answer in response_format: without any reasoning, tags and gold take {need} "
            f"tokens; set max_completion_length to several times {need}",
        )


def _verdicts(name: str, function: Callable, cases: Sequence[Case], tokenizer: Any) -> Verdicts:
    rows = [case.row for case in cases]
    return Verdicts(*(score(name, function, rows, [case[kind] for case in cases], tokenizer) for kind in (1, 2, 3)))


def _check_reward(report: Report, name: str, verdicts: Verdicts, cases: Sequence[Case]) -> None:
    right = verdicts.right
    judged = [index for index, value in enumerate(right) if value is not None]
    if not judged:
        report.warn(
            "contract.unjudged",
            f"{name} judges none of {len(right)} sampled rows, whatever the answer: see what it needs of a row (docs/recipes.md), and "
            "task_rewards",
        )
        return
    full = FULL_MARKS.get(name)
    below = [index for index in judged if full is not None and right[index] < full - 1e-6]
    if below:
        case = cases[below[0]]
        report.error(
            "contract.right",
            f"{name} gives a right answer in the format's own words {right[below[0]]:g} instead of {full:g} ({len(below)} of {len(judged)} "
            f"sampled rows; gold {clip(str(case.row.get('solution')))}, completion {clip(case.right, 160)}): the model cannot earn it; "
            "check the golds that the mapper reads, and response_format",
        )
        return
    if name in _BLIND:
        report.ok("contract.reward", f"{name} does not look for a right answer; it gives one {_shown(right)}")
        return
    other, what = (verdicts.shapeless, "a text without the format") if name in _SHAPE else (verdicts.wrong, "a wrong answer")
    paid = [index for index in judged if other[index] is not None and other[index] >= right[index]]
    if not paid:
        report.ok("contract.reward", f"{name} gives a right answer {_shown(right)} and {what} {_shown(other)}")
    elif full is not None:
        report.error(
            "contract.wrong",
            f"{name} gives {what} as much as a right answer ({other[paid[0]]:g}) on {len(paid)} of {len(judged)} sampled rows: it cannot "
            "tell them apart; check the golds that the mapper reads",
        )
    elif any(other[index] > right[index] for index in paid):
        report.warn(
            "contract.wrong",
            f"{name} gives a wrong answer more than a right one on some of {len(judged)} sampled rows (on average {_shown(other)} and "
            f"{_shown(right)}); check its parameters",
        )
    elif _mean(verdicts.shapeless) is not None and _mean(verdicts.shapeless) < _mean(right):
        report.ok("contract.reward", f"{name} looks at the shape alone: right and wrong answers get {_shown(right)}, other text less")
    else:
        report.warn(
            "contract.alike",
            f"{name} gives right, wrong and shapeless text alike ({_shown(right)}): if it always does, no group has anything to compare",
        )


def _check_total(report: Report, used: Sequence[tuple[str, float, Verdicts]]) -> None:
    reward_weights = [weight for _, weight, _ in used]
    sums = []
    for kind in range(3):
        by_case = zip(*(verdicts[kind] for *_, verdicts in used), strict=True)
        sums.append(_mean([total(scores, reward_weights) for scores in by_case]))
    right, wrong, shapeless = sums
    if right is None or wrong is None:
        return
    numbers = f"right {right:.3g}, wrong {wrong:.3g}" + ("" if shapeless is None else f", without shape {shapeless:.3g}")
    if right > max(wrong, wrong if shapeless is None else shapeless):
        report.ok("contract.total", f"the weighted sum prefers a right answer: {numbers}")
        return
    judges = any(name in FULL_MARKS and name not in (*_SHAPE, *_BLIND) for name, *_ in used)
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


def _shown(values: Sequence[float | None]) -> str:
    mean = _mean(values)
    return "no score" if mean is None else f"{mean:.3g}"


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
