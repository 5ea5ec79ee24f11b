"""Check tools and environments: show their prompt, and play an episode without a model."""

from __future__ import annotations

from collections.abc import Sequence
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

    first_request: Request | None = None

    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        from transformers.utils import get_json_schema

        [request] = requests
        calls = []
        for tool in request.tools if self.first_request is None else ():
            schema = get_json_schema(tool)["function"]["parameters"]
            required = {name: schema["properties"][name] for name in schema.get("required", ())}
            arguments = {
                name: parameter.get(
                    "enum", [_EXAMPLE_ARGUMENTS.get(str(parameter.get("type")), "1 + 1")]
                )[0]
                for name, parameter in required.items()
            }
            calls.append(
                {"type": "function", "function": {"name": tool.__name__, "arguments": arguments}}
            )
        self.first_request = self.first_request or request
        message = {"role": "assistant", "content": "" if calls else "Done."}
        sink(
            request.index,
            [
                Completion(
                    message["content"],
                    1,
                    "stop",
                    turns=[message | ({"tool_calls": calls} if calls else {})],
                )
            ],
            None,
        )


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
    done: dict[int, Completion] = {}
    names = [None] * len(rows) if not kinds or None in kinds else rows["environment"]
    for name in dict.fromkeys(names):  # The first row of each environment.
        scripted = _ScriptedBackend()
        backend, row = (
            agents.EpisodeBackend(scripted, tools, environments, rows, 1, 100),
            names.index(name),
        )
        with report.refusals("contract.environment", essential=True):
            backend.run(
                [Request(row, rows[row]["prompt"])],
                lambda row, made, error: done.update({row: made[0]}),
                [(0.0, 1)],
            )
        assert scripted.first_request
        episode = done[row]
        which = f"; {name}" if name else ""
        report.show(
            "contract",
            f"A prompt with its tools, as the model reads it{which}:",
            written_prompt(tokenizer, scripted.first_request),
        )
        reward = f"; reward {episode.reward:g}" if episode.reward is not None else ""
        report.show(
            "contract",
            f"An episode without a model, which calls each tool once{which}{reward}:",
            transcript(episode.turns or ()),
        )
        shown = ", ".join(tool.__name__ for tool in scripted.first_request.tools)
        failed = [
            turn["name"]
            for turn in episode.turns or ()
            if turn["role"] == "tool" and str(turn["content"]).startswith("{'error'")
        ]
        if failed:
            report.add(
                WARNING,
                "contract.tools",
                f"{', '.join(failed)} returned an error for example arguments{which}. "
                f"Fix: read the error in the episode above",
            )
        else:
            report.add(
                OK, "contract.tools", f"the prompt shows {shown}, and a call of each works{which}"
            )
