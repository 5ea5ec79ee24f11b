"""What this package writes around a model's chat template, and how it finds the template again.

In training, the template gets the recipe's variables and prefill. A saved checkpoint's template has
the prefill and the system prompt of training, so that ``vllm serve``, ``lm_eval`` or a chat window
give the model the prompts that it was trained on. A later run takes both off again, because its own
recipe says how a prompt starts; a recipe that says nothing of ``prefill`` keeps that one. Worked
examples and variables are not saved.
"""

import json
from typing import Any

from r1_recipes.prompts.formats import ResponseFormat

# Comments mark what is ours. They leave the white space of the template as it is: "{#+" keeps what
# stands before it, and Transformers' Jinja drops the line break after "#}".
_START, _END = "{#- r1_recipes: added to the chat template #}\n", "{#- r1_recipes: end #}\n"
_AFTER = "{#+ r1_recipes: the prefill #}"


def own_template(template: str) -> str:
    """Return a chat template without what this package added."""
    own = template.partition(_END)[2] if template.startswith(_START) else template
    body, added, prefill = own.rpartition(_AFTER)
    return body + "\n" * prefill.endswith("\n") if added else own


def saved_prefill(template: str) -> str:
    """Return the prefill that an earlier run added to a chat template."""
    added = template.rpartition(f"{_AFTER}{{{{ ")[2] if _AFTER in template else '""'
    return str(json.JSONDecoder().raw_decode(added)[0])


def with_opening(template: str, opening: str) -> str:
    """Return a chat template that starts with some Jinja; ``""`` takes it off."""
    own = template.partition(_END)[2] if template.startswith(_START) else template
    return f"{_START}{opening}{_END}{own}" if opening else own


def with_prefill(template: str, prefill: str) -> str:
    """Return a chat template that ends a prompt with the start of the answer."""
    body = template.removesuffix("\n")  # Jinja drops one line break at a template's end
    text = f"{{{{ {_literal(prefill)} if add_generation_prompt else '' }}}}"
    return body + _AFTER + text + template[len(body) :]


def add_system_prompt(processing_class: Any, text: str) -> None:
    """Let a tokenizer or processor put a system message before a conversation that has none.

    The variables of training go.
    """
    opening = f"""\
{{%- set r1_is_told = messages and messages[0]['role'] in ['system', 'developer'] %}}
{{%- if messages and not (r1_is_told and messages[0]['content']) %}}
{{%- set r1_text = {_literal(text)} %}}
{{%- set r1_part = [{{'type': 'text', 'text': r1_text}}] %}}
{{%- set r1_text = r1_text if messages[0]['content'] is string else r1_part %}}
{{%- set r1_rest = messages[1:] if messages[0]['role'] == 'system' else messages %}}
{{%- set messages = [{{'role': 'system', 'content': r1_text}}] + r1_rest %}}
{{%- endif %}}
"""
    template = with_opening(processing_class.chat_template, opening if text else "")
    processing_class.chat_template = template


def trained_system_prompt(fmt: ResponseFormat, rows: Any) -> str:
    """Return the system prompt that training prompts start with, or "" if rows bring their own."""
    sample = rows.select_columns("prompt")[:: max(1, len(rows) // 256)]["prompt"]
    found = any(prompt[0]["content"] == fmt.system_prompt for prompt in sample)
    return fmt.system_prompt if found else ""


def default_variables(variables: dict[str, Any]) -> str:
    """Return Jinja that gives a template's variables values, such as ``enable_thinking``."""
    return "".join(
        f"{{%- set {name} = {name} if {name} is defined else {_literal(value)} %}}\n"
        for name, value in variables.items()
    )


# Repairs of templates, which stay in a saved checkpoint.
# Gemma's first templates, among others, raise an error for a system message. Google's advice is to
# write it at the start of the user's.
SYSTEM_BEFORE_USER = (
    "{%- if messages|length > 1 and messages[0]['role'] == 'system' %}"
    "{%- set r1_text = messages[0]['content'] + '\\n\\n' + messages[1]['content'] %}"
    "{%- set messages = [{'role': messages[1]['role'], 'content': r1_text}] + messages[2:] %}"
    "{%- endif %}"
)

# Qwen3.8's template reads the reasoning of a message from a field alone, and writes an empty block
# before one that stands in the text.
REASONING_IN_FIELD = (
    "{%- set r1 = namespace(messages=[]) %}{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' and '</think>' in (message['content'] or '') %}"
    "{%- set r1_parts = message['content'].split('</think>') %}"
    "{%- set message = dict(message, content=r1_parts[1:]|join('</think>')|trim, "
    "reasoning_content=r1_parts[0].split('<think>')[-1]|trim) %}{%- endif %}"
    "{%- set r1.messages = r1.messages + [message] %}{%- endfor %}"
    "{%- set messages = r1.messages %}"
)


def _literal(value: Any) -> str:
    # Keep characters beyond ASCII, since Jinja would read an escaped surrogate pair as two. "#}"
    # and "%}" stand inside a string, where Jinja does not look for the end of a tag.
    return json.dumps(value, ensure_ascii=False)
