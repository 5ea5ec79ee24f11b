"""Tools and environments: how the prompt shows them, and one episode played by hand before a model
plays any.
"""

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

_PLAIN: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}


class _ByHand:
    """Calls every tool once, with plain arguments, then says a word."""

    asked: Request | None = None

    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        from transformers.utils import get_json_schema

        [request] = requests
        calls = []
        for tool in request.tools if self.asked is None else ():
            wanted = get_json_schema(tool)["function"]["parameters"]
            kinds = {name: wanted["properties"][name] for name in wanted.get("required", ())}
            given = {
                name: kind.get("enum", [_PLAIN.get(str(kind.get("type")), "1 + 1")])[0]
                for name, kind in kinds.items()
            }
            calls.append(
                {"type": "function", "function": {"name": tool.__name__, "arguments": given}}
            )
        self.asked = self.asked or request
        said = {"role": "assistant", "content": "" if calls else "Done."}
        sink(
            request.index,
            [
                Completion(
                    said["content"],
                    1,
                    "stop",
                    turns=[said | ({"tool_calls": calls} if calls else {})],
                )
            ],
            None,
        )


def check(
    report: Report, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, rows: Dataset
) -> None:
    """Show a prompt with its tools and an episode; a run whose environment fails, or whose template
    cannot write tools, is an error.
    """
    with report.refusals("contract.tools", essential=True):
        tools, environments = agent(recipe, tokenizer, strict=True)
    if not tools and not environments:
        return
    agents = extras.needed("agents", "tools")
    kinds = agents.environment_kinds(recipe.script.environment)
    done: dict[int, Completion] = {}
    names = [None] * len(rows) if not kinds or None in kinds else rows["environment"]
    for name in dict.fromkeys(names):  # the first row of each environment
        hand = _ByHand()
        backend, row = (
            agents.EpisodeBackend(hand, tools, environments, rows, 1, 100),
            names.index(name),
        )
        with report.refusals("contract.environment", essential=True):
            backend.run(
                [Request(row, rows[row]["prompt"])],
                lambda row, made, error: done.update({row: made[0]}),
                [(0.0, 1)],
            )
        assert hand.asked
        episode = done[row]
        which = f"; {name}" if name else ""
        report.show(
            "contract",
            f"A prompt with its tools, as the model reads it{which}:",
            written_prompt(tokenizer, hand.asked),
        )
        paid = f"; the environment pays {episode.reward:g}" if episode.reward is not None else ""
        report.show(
            "contract",
            f"An episode played by hand, each tool called once{which}{paid}:",
            transcript(episode.turns or ()),
        )
        shown = ", ".join(tool.__name__ for tool in hand.asked.tools)
        failed = [
            turn["name"]
            for turn in episode.turns or ()
            if turn["role"] == "tool" and str(turn["content"]).startswith("{'error'")
        ]
        if failed:
            report.add(
                WARNING,
                "contract.tools",
                f"{', '.join(failed)} answered plain arguments with an error{which}: read it above",
            )
        else:
            report.add(
                OK, "contract.tools", f"the prompt shows {shown}, and each answered a call{which}"
            )
