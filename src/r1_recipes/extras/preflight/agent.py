"""Check tools and environments: show their prompt, and play an episode without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common import extras
from r1_recipes.common.messages import transcript
from r1_recipes.completions.turns import written_prompt
from r1_recipes.completions.types import Completion, Request, SamplingPlan, Sink
from r1_recipes.extras.preflight.findings import OK, WARNING, Report
from r1_recipes.models.agent import agent
from r1_recipes.recipe import Recipe

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

_EXAMPLE_ARGUMENTS: dict[str, Any] = {
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
}


class _ScriptedBackend:
    """Calls every tool once with example arguments, then answers "Done."."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        [request] = requests
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        if request.tools and not self.requests:
            calls = [_example_call(tool) for tool in request.tools]
            message |= {"content": "", "tool_calls": calls}
        self.requests.append(request)
        completion = Completion(message["content"], 1, "stop", turns=[message])
        sink(request.index, [completion], None)


def _example_call(tool: Callable) -> dict[str, Any]:
    from transformers.utils import get_json_schema

    schema = get_json_schema(tool)["function"]["parameters"]
    arguments = {}
    for name in schema.get("required", ()):
        parameter = schema["properties"][name]
        example = _EXAMPLE_ARGUMENTS.get(str(parameter.get("type")), "1 + 1")
        arguments[name] = parameter.get("enum", [example])[0]
    return {"type": "function", "function": {"name": tool.__name__, "arguments": arguments}}


def check(
    report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, rows: Dataset
) -> None:
    """Show a prompt with its tools, and an episode of each environment.

    Report an error if an environment fails or the chat template cannot write tools.
    """
    with report.refusals("contract.tools", essential=True):
        tools, environments = agent(recipe, tokenizer, strict=True)
    if not tools and not environments:
        return
    agents = extras.needed("agents", "tools")
    kinds = agents.environment_kinds(recipe.script.environment)
    first_rows = {None: 0}  # Of each environment.
    if kinds and None not in kinds:
        names = list(rows["environment"])
        first_rows = {name: names.index(name) for name in dict.fromkeys(names)}
    made: list[Completion] = []
    for name, row in first_rows.items():
        made.clear()
        scripted = _ScriptedBackend()
        backend = agents.EpisodeBackend(scripted, tools, environments, rows, 1, 100)
        request = Request(row, rows[row]["prompt"])
        with report.refusals("contract.environment", essential=True):
            backend.run([request], lambda _, episodes, error: made.extend(episodes), [(0.0, 1)])
        which = f"; {name}" if name else ""
        request, episode = scripted.requests[0], made[-1]
        prompt = written_prompt(tokenizer, request)
        report.show("contract", f"A prompt with its tools, as the model reads it{which}:", prompt)
        title = f"An episode without a model, which calls each tool once{which}"
        if episode.reward is not None:
            title += f"; reward {episode.reward:g}"
        turns = episode.turns or ()
        report.show("contract", f"{title}:", transcript(turns))
        results = [turn for turn in turns if turn["role"] == "tool"]
        failed = [turn["name"] for turn in results if str(turn["content"]).startswith("{'error'")]
        level = OK
        shown = ", ".join(tool.__name__ for tool in request.tools)
        message = f"the prompt shows {shown}, and a call of each works{which}"
        if failed:
            level = WARNING
            message = f"{', '.join(failed)} returned an error for example arguments{which}. "
            message += "Fix: read the error in the episode above"
        report.add(level, "contract.tools", message)
