"""What a server's reply becomes."""

from types import SimpleNamespace

import pytest

from r1_recipes.common.chat_client import Reply
from r1_recipes.completions.openai import OpenAIBackend
from r1_recipes.completions.types import Request
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.recipe.types import RecipeArguments, SamplingSettings
from tests.support.chat_server import chat_server, reply


@pytest.mark.parametrize("prefilled", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, fmt in FORMATS.items()
        if fmt.reasoning_tags and not fmt.answer_tags and not fmt.boxed
    ],
)
def test_reasoning_that_the_server_moved_out_is_put_back_in_front(name, prefilled, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    prefill = FORMATS[name].tags[0] if prefilled else ""
    fmt = get_response_format(name, prefill=prefill)
    model = SimpleNamespace(model_name_or_path="m")
    script = RecipeArguments(dataset_name="d", response_format=name, prefill=prefill)
    backend = OpenAIBackend(
        SimpleNamespace(model=model, script=script, training=SamplingSettings())
    )
    said = "Summary: 4" if name == "special_token" else "4"
    parsed = fmt.parse(
        backend._completion(Reply(said, reasoning="2 and 2\n", tokens=3, finish_reason="stop")).text
    )
    assert (parsed.reasoning, parsed.answer, parsed.well_formed) == ("2 and 2", "4", True)


@pytest.mark.parametrize(
    ("owner", "sends"), [("vllm", True), ("sglang", True), ("somebody", False), (None, False)]
)
def test_sampling_that_changes_nothing_is_sent_to_servers_that_would_choose_their_own(
    owner, sends, monkeypatch
):
    """vLLM takes a model's generation_config.json, with a top_p and a penalty, for unset keys."""
    model, script = (
        SimpleNamespace(model_name_or_path="m"),
        RecipeArguments(dataset_name="d", response_format="boxed"),
    )
    with chat_server(lambda body, before: reply("1"), owner) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        recipe = SimpleNamespace(
            model=model, script=script, training=SamplingSettings(temperature=0.5, top_p=0.9)
        )
        request = Request(0, [{"role": "user", "content": "1?"}])
        OpenAIBackend(recipe).run([request], lambda *row: None, [(0.0, 1)])
    (body,) = seen
    assert body["top_p"] == 0.9
    neutral = {"top_k": 0, "repetition_penalty": 1.0}
    assert {key: body[key] for key in neutral if key in body} == (neutral if sends else {})
