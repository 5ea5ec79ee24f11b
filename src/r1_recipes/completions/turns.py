"""One turn of a conversation with tools: its prompt, and the calls in what a model wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from r1_recipes.completions.types import Completion, Request

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def written_prompt(tokenizer: PreTrainedTokenizerBase, request: Request) -> str:
    """Return the text that the model goes on from, with its tools as the chat template
    writes them.
    """
    options = {"tools": list(request.tools)} if request.tools else {}
    messages = [
        _thoughts_apart(message) if message.get("tool_calls") else message
        for message in request.prompt
    ]
    for turns in (
        messages,
        request.prompt,
    ):  # as they were, if the template writes those fields nowhere: training keeps what was written
        text = str(
            tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, **options
            )
        )
        if all(turn.get("thinking", "") in text for turn in turns):
            break
    return text


def _thoughts_apart(message: dict[str, Any]) -> dict[str, Any]:
    """Return a turn with its thoughts in the fields from which templates write them: some look
    nowhere else.
    """
    thoughts, _, rest = message["content"].rpartition("</think>")
    thoughts = thoughts.replace("<think>", "").strip()
    return (
        message | {"content": rest.strip(), "reasoning_content": thoughts, "thinking": thoughts}
        if thoughts
        else message
    )


def read_completion(
    tokenizer: PreTrainedTokenizerBase,
    request: Request,
    ids: list[int],
    tokens: int,
    finish_reason: str,
) -> Completion:
    """Return a completion of ``ids``, which end before the token that ends the turn; with tools, as
    TRL's trainer reads it.
    """
    if not (request.tools and ids):  # Transformers takes no ids for no messages
        return Completion(tokenizer.decode(ids, skip_special_tokens=True), tokens, finish_reason)
    from trl.chat_template_utils import parse_response

    prompt = tokenizer(written_prompt(tokenizer, request), add_special_tokens=False)["input_ids"]
    message = parse_response(tokenizer, ids, prefix=prompt, tools=list(request.tools))
    return Completion(message["content"], tokens, finish_reason, turns=[message])
