"""The chat template of a saved checkpoint: a conversation without a system message gets the
beginning of training.

So `lm_eval`, `lighteval`, `vllm serve` and a chat window give the model the prompts that it was
trained on. A comment in front records what was added; our own code takes it out again, and there
the recipe says how a prompt begins.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from r1_recipes.prompts.formats import ResponseFormat

_MARK, _END = "{#- r1_recipes.prompts.served_template ", " #}\n"
# Parts where the conversation has parts: templates of vision-language models expect them
# everywhere, others nowhere.
_IF_NONE = (
    "{%- if messages and not (messages[0]['role'] in ['system', 'developer'] and "
    "messages[0]['content']) %}\n"
)
_SYSTEM = """\
{%- set r1_system = SYSTEM_PROMPT %}
{%- set r1_system = r1_system if messages[0]['content'] is string else [{'type': 'text', 'text': r1_system}] %}
{%- set r1_rest = messages[1:] if messages[0]['role'] == 'system' else messages %}
{%- set messages = [{'role': 'system', 'content': r1_system}] + r1_rest %}
{%- endif %}
"""  # noqa: E501 (Jinja, as it is saved)


@dataclass(frozen=True)
class Added:
    """What is added to a model's own chat template."""

    response_format: str = ""
    prefill: str = ""  # of this format
    system_prompt: str = ""  # for whoever sends none
    variables: dict[str, Any] = field(
        default_factory=dict
    )  # such as enable_thinking, for whoever sets none
    few_shot: list[dict[str, str]] = field(
        default_factory=list
    )  # the worked turns, for whoever sends no system message

    def around(self) -> tuple[str, str]:
        """Return the Jinja text before and after; white space at the template's edges keeps its
        meaning.
        """
        if not (self.prefill or self.system_prompt or self.variables or self.few_shot):
            return "", ""
        added = {
            key: value for key, value in asdict(self).items() if value or isinstance(value, str)
        }  # older checkpoints have no other
        # Not ASCII alone: Jinja would read an escaped surrogate pair as two characters.
        record, prefill, system_prompt = (
            json.dumps(v, ensure_ascii=False) for v in (added, self.prefill, self.system_prompt)
        )
        before = _MARK + record.replace("#", "\\u0023") + _END  # "#}" would end the comment
        for name, value in self.variables.items():
            before += (
                f"{{%- set {name} = {name} if {name} is defined else "
                f"{json.dumps(value, ensure_ascii=False)} %}}\n"
            )
        if self.few_shot:  # before the system prompt, which is put in front of them
            as_parts = [
                turn | {"content": [{"type": "text", "text": turn["content"]}]}
                for turn in self.few_shot
            ]
            text, parts = (
                json.dumps(turns, ensure_ascii=False) for turns in (self.few_shot, as_parts)
            )
            before += _IF_NONE + (
                "{%- set r1_rest = messages[1:] if messages[0]['role'] == 'system' else "
                "messages %}\n"
            )
            before += (
                f"{{%- set messages = ({text} if messages[0]['content'] is string else {parts}) "
                f"+ r1_rest %}}\n{{%- endif %}}\n"
            )
        before += (
            _IF_NONE + _SYSTEM.replace("SYSTEM_PROMPT", system_prompt) if self.system_prompt else ""
        )
        return (
            before,
            "{{ " + prefill + " if add_generation_prompt else '' }}" if self.prefill else "",
        )


def wrap(template: Any, **changes: Any) -> Any:
    """Return the chat template, or each of several by name, with these fields of :class:`Added` in
    place of what it has.
    """
    if isinstance(template, dict):
        return {name: wrap(text, **changes) for name, text in template.items()}
    own, added = unwrap(template)
    before, after = replace(added, **changes).around()
    body = own.removesuffix("\n")  # which Jinja drops at the end of a template, and only there
    return before + body + after + own[len(body) :]


def unwrap(template: Any) -> tuple[Any, Added]:
    """Return the model's own template, and what was added to it."""
    if isinstance(template, dict):
        return {name: unwrap(text)[0] for name, text in template.items()}, unwrap(
            template.get("default")
        )[1]
    if not template or not template.startswith(_MARK):
        return template, Added()
    try:
        added = Added(**json.loads(template[len(_MARK) :].partition(_END)[0]))
        before, after = added.around()
    except (AttributeError, TypeError, ValueError, RecursionError):
        return template, Added()
    body = template.removesuffix("\n")
    if not (
        isinstance(added.prefill, str) and body.startswith(before) and body.endswith(after)
    ):  # somebody has changed it
        return template, Added()
    return body[len(before) : len(body) - len(after)] + template[len(body) :], added


def asked_with(fmt: ResponseFormat, rows: Any, few_shot: Sequence[Any] | None) -> dict[str, Any]:
    """Return what training prompts open with: the format's system prompt, the worked turns; nothing
    for conversations taken as they are.
    """
    prompts = [
        prompt
        for prompt in rows.select_columns("prompt")[:: max(1, len(rows) // 256)]["prompt"]
        if isinstance(prompt, list)
    ]
    asked = any(prompt[0]["content"] == fmt.system_prompt for prompt in prompts if prompt)
    turns = [
        [
            {key: turn[key] for key in ("role", "content")}
            for turn in prompt[:-1]
            if turn["role"] != "system"
        ]
        for prompt in prompts
    ]
    worked = turns[0] if few_shot and turns and all(each == turns[0] for each in turns) else []
    return {"system_prompt": fmt.system_prompt if asked else "", "few_shot": worked}


def serve(processing_class: Any, opening: dict[str, Any]) -> None:
    """Give a tokenizer or processor the template that adds what :func:`asked_with` returned;
    ``{}``: the one for training.
    """
    processing_class.chat_template = wrap(
        processing_class.chat_template, **{"system_prompt": "", "few_shot": [], **opening}
    )
