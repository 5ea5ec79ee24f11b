"""What a server's reply becomes."""

from types import SimpleNamespace

import pytest

from r1_recipes.common.chat_client import Reply
from r1_recipes.completions.openai import OpenAIBackend
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.recipe.types import RecipeArguments, SamplingSettings


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
