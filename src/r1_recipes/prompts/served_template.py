"""The chat template of a saved checkpoint: a conversation without a system message gets the one of training, and its variables.

So `lm_eval`, `lighteval`, `vllm serve` and a chat window give the model the prompts that it was trained on. A comment in front records
what was added; our own code takes it out again, and there the recipe says how a prompt begins.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

    from r1_recipes.prompts.formats import ResponseFormat

_MARK, _END = "{#- r1_recipes.prompts.served_template ", " #}\n"
# Parts where the conversation has parts: templates of vision-language models expect them everywhere, others nowhere.
_SYSTEM = """\
{%- if messages and not (messages[0]['role'] in ['system', 'developer'] and messages[0]['content']) %}
{%- set r1_system = SYSTEM_PROMPT %}
{%- set r1_system = r1_system if messages[0]['content'] is string else [{'type': 'text', 'text': r1_system}] %}
{%- set r1_rest = messages[1:] if messages[0]['role'] == 'system' else messages %}
{%- set messages = [{'role': 'system', 'content': r1_system}] + r1_rest %}
{%- endif %}
"""


@dataclass(frozen=True)
class Added:
    """What is added to a model's own chat template."""

    response_format: str = ""
    prefill: str = ""  # of this format
    system_prompt: str = ""  # for whoever sends none
    variables: dict[str, Any] = field(default_factory=dict)  # such as enable_thinking, for whoever sets none

    def around(self) -> tuple[str, str]:
        """Return the Jinja text before and after; white space at the template's edges keeps its meaning."""
        if not (self.prefill or self.system_prompt or self.variables):
            return "", ""
        added = {key: value for key, value in asdict(self).items() if value or key != "variables"}  # older checkpoints have no such key
        # Not ASCII alone: Jinja would read an escaped surrogate pair as two characters.
        record, prefill, system_prompt = (json.dumps(v, ensure_ascii=False) for v in (added, self.prefill, self.system_prompt))
        before = _MARK + record.replace("#", "\\u0023") + _END  # "#}" would end the comment
        for name, value in self.variables.items():
            before += f"{{%- set {name} = {name} if {name} is defined else {json.dumps(value, ensure_ascii=False)} %}}\n"
        before += _SYSTEM.replace("SYSTEM_PROMPT", system_prompt) if self.system_prompt else ""
        return before, "{{ " + prefill + " if add_generation_prompt else '' }}" if self.prefill else ""


def wrap(template: Any, **changes: Any) -> Any:
    """Return the chat template, or each of several by name, with these fields of :class:`Added` in place of what it has."""
    if isinstance(template, dict):
        return {name: wrap(text, **changes) for name, text in template.items()}
    own, added = unwrap(template)
    before, after = replace(added, **changes).around()
    body = own.removesuffix("\n")  # which Jinja drops at the end of a template, and only there
    return before + body + after + own[len(body) :]


def unwrap(template: Any) -> tuple[Any, Added]:
    """Return the model's own template, and what was added to it."""
    if isinstance(template, dict):
        return {name: unwrap(text)[0] for name, text in template.items()}, unwrap(template.get("default"))[1]
    if not template or not template.startswith(_MARK):
        return template, Added()
    try:
        added = Added(**json.loads(template[len(_MARK) :].partition(_END)[0]))
        before, after = added.around()
    except (AttributeError, TypeError, ValueError, RecursionError):
        return template, Added()
    body = template.removesuffix("\n")
    if not (isinstance(added.prefill, str) and body.startswith(before) and body.endswith(after)):  # somebody has changed it
        return template, Added()
    return body[len(before) : len(body) - len(after)] + template[len(body) :], added


def asked_with(fmt: ResponseFormat, rows: Dataset) -> str:
    """Return the format's system prompt if training prompts open with it, else ``""`` (conversations that are taken as they are)."""
    prompts = rows.select_columns("prompt")[:: max(1, len(rows) // 256)]["prompt"]
    asked = any(prompt[0]["content"] == fmt.system_prompt for prompt in prompts if isinstance(prompt, list) and prompt)
    return fmt.system_prompt if asked else ""


def serve(processing_class: Any, system_prompt: str) -> None:
    """Give a tokenizer or processor the template that adds this system prompt; ``""``: the one for training."""
    processing_class.chat_template = wrap(processing_class.chat_template, system_prompt=system_prompt)
