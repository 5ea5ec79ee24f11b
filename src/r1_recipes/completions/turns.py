"""One message of a conversation with tools: its prompt, and the calls that the model wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from r1_recipes.completions.types import Completion, Request

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def written_prompt(tokenizer: PreTrainedTokenizerBase, request: Request) -> str:
    """Return the text that the model continues, with its tools as the chat template writes them."""
    tools = list(request.tools) or None
    messages = [
        _with_reasoning_fields(message) if message.get("tool_calls") else message
        for message in request.prompt
    ]
    # If the template does not write these fields, use the unchanged messages: training keeps the
    # model's text too.
    for conversation in (messages, request.prompt):
        text = tokenizer.apply_chat_template(
            conversation, tools=tools, tokenize=False, add_generation_prompt=True
        )
        if all(message.get("thinking", "") in text for message in conversation):
            break
    return text


def _with_reasoning_fields(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its reasoning moved to separate fields.

    Some templates read the reasoning only from these fields.
    """
    reasoning, _, rest = message["content"].rpartition("</think>")
    reasoning = reasoning.replace("<think>", "").strip()
    if not reasoning:
        return message
    fields = {"content": rest.strip(), "reasoning_content": reasoning, "thinking": reasoning}
    return message | fields


def read_completion(
    tokenizer: PreTrainedTokenizerBase,
    request: Request,
    ids: list[int],
    tokens: int,
    finish_reason: str,
) -> Completion:
    """Return the completion of ``ids``, which end before the token that ends the turn.

    With tools, it is read as TRL's trainer reads it.
    """
    # Transformers reads an empty list of ids as an empty list of messages.
    if not request.tools or not ids:
        return Completion(tokenizer.decode(ids, skip_special_tokens=True), tokens, finish_reason)
    from trl.chat_template_utils import parse_response

    prompt = tokenizer(written_prompt(tokenizer, request), add_special_tokens=False)["input_ids"]
    message = parse_response(tokenizer, ids, prefix=prompt, tools=list(request.tools))
    return Completion(message["content"], tokens, finish_reason, turns=[message])
