"""The chat template of a saved checkpoint adds what training prompts had.

A conversation without a system message gets the system prompt of training. So `lm_eval`,
`lighteval`, `vllm serve` and a chat window give the model the prompts that it was trained on. A
comment at the start of the template records what was added. This package removes the additions
again, because its recipes say how a prompt starts.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from r1_recipes.prompts.formats import ResponseFormat

_MARK, _END = "{#- r1_recipes.prompts.served_template ", " #}\n"
# The content of a message is a list of parts if the conversation's content is. Templates of
# vision-language models expect lists, other templates expect text.
_IF_NONE = (
    "{%- if messages and not (messages[0]['role'] in ['system', 'developer'] and "
    "messages[0]['content']) %}\n"
)
_SYSTEM = """\
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
    system_prompt: str = ""  # for conversations without a system message
    # Defaults of variables such as enable_thinking.
    variables: dict[str, Any] = field(default_factory=dict)
    # Worked examples, for conversations without a system message.
    few_shot: list[dict[str, str]] = field(default_factory=list)

    def around(self) -> tuple[str, str]:
        """Return the Jinja text before and after the template.

        White space at the template's edges keeps its meaning.
        """
        if not (self.prefill or self.system_prompt or self.variables or self.few_shot):
            return "", ""
        # Older checkpoints have only fields of text, so other empty fields are left out.
        fields = asdict(self).items()
        added = {key: value for key, value in fields if value or isinstance(value, str)}
        record = _literal(added).replace("#", "\\u0023")  # "#}" would end the comment
        before = _MARK + record + _END
        for name, value in self.variables.items():
            default = _literal(value)
            before += f"{{%- set {name} = {name} if {name} is defined else {default} %}}\n"
        if self.few_shot:  # before the system prompt, whose text goes in front of them
            before += _IF_NONE + _few_shot(self.few_shot)
        if self.system_prompt:
            text = _literal(self.system_prompt)
            before += f"{_IF_NONE}{{%- set r1_system = {text} %}}\n{_SYSTEM}"
        after = ""
        if self.prefill:
            prefill = _literal(self.prefill)
            after = f"{{{{ {prefill} if add_generation_prompt else '' }}}}"
        return before, after


def _literal(value: Any) -> str:
    # Keep characters beyond ASCII: Jinja would read an escaped surrogate pair as two.
    return json.dumps(value, ensure_ascii=False)


def _few_shot(messages: list[dict[str, str]]) -> str:
    as_parts = [
        message | {"content": [{"type": "text", "text": message["content"]}]}
        for message in messages
    ]
    return (
        "{%- set r1_rest = messages[1:] if messages[0]['role'] == 'system' else messages %}\n"
        f"{{%- set messages = ({_literal(messages)} if messages[0]['content'] is string else "
        f"{_literal(as_parts)}) + r1_rest %}}\n{{%- endif %}}\n"
    )


def wrap(template: Any, **changes: Any) -> Any:
    """Return a chat template in which these fields of :class:`Added` replace the recorded ones.

    Several templates, by name, are each wrapped.
    """
    if isinstance(template, dict):
        return {name: wrap(text, **changes) for name, text in template.items()}
    unwrapped, added = unwrap(template)
    before, after = replace(added, **changes).around()
    body = unwrapped.removesuffix("\n")  # Jinja drops one line break at a template's end
    return before + body + after + unwrapped[len(body) :]


def unwrap(template: Any) -> tuple[Any, Added]:
    """Return the model's own template, and what was added to it."""
    if isinstance(template, dict):
        own = {name: unwrap(text)[0] for name, text in template.items()}
        return own, unwrap(template.get("default"))[1]
    if not template or not template.startswith(_MARK):
        return template, Added()
    record = template.removeprefix(_MARK).partition(_END)[0]
    try:
        added = Added(**json.loads(record))
        before, after = added.around()
    except (AttributeError, TypeError, ValueError, RecursionError):
        return template, Added()
    body = template.removesuffix("\n")
    # Another program has changed the template.
    if not (isinstance(added.prefill, str) and body.startswith(before) and body.endswith(after)):
        return template, Added()
    own = body.removeprefix(before).removesuffix(after)
    return own + template[len(body) :], added


def prompt_prefix(fmt: ResponseFormat, rows: Any, few_shot: Sequence[Any] | None) -> dict[str, Any]:
    """Return the system prompt and the worked examples that training prompts start with.

    Both are empty for conversations that the data brings with it.
    """
    step = max(1, len(rows) // 256)
    prompts = rows.select_columns("prompt")[::step]["prompt"]
    prefix: dict[str, Any] = {"system_prompt": "", "few_shot": []}
    examples = []
    for prompt in prompts:
        if not isinstance(prompt, list):
            continue
        if prompt and prompt[0]["content"] == fmt.system_prompt:
            prefix["system_prompt"] = fmt.system_prompt
        earlier = [message for message in prompt[:-1] if message["role"] != "system"]
        examples.append([{key: message[key] for key in ("role", "content")} for message in earlier])
    if few_shot and examples and all(messages == examples[0] for messages in examples):
        prefix["few_shot"] = examples[0]
    return prefix


def set_served_template(processing_class: Any, opening: dict[str, Any]) -> None:
    """Set the template that adds what :func:`prompt_prefix` returned to a tokenizer or processor.

    With ``{}``, set the template for training.
    """
    changes = {"system_prompt": "", "few_shot": [], **opening}
    processing_class.chat_template = wrap(processing_class.chat_template, **changes)
