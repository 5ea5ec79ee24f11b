"""Published answers of a teacher, with the reasoning in a column of its own or inside the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, SkipRow, optional_text, register_mapper, required_text
from r1_recipes.data.mappers.chats import read_conversation, read_turns
from r1_recipes.data.mappers.maths import last_boxed


@register_mapper("openthoughts")
@dataclass(frozen=True)
class OpenThoughts(Mapper):
    """open-thoughts/OpenThoughts-114k, configuration ``metadata``: problem, DeepSeek-R1's reasoning and answer, and the gold, if known.

    The response format writes the target of reasoning and answer. The gold is the last box of ``ground_truth_solution``, else all of it,
    and empty for code. ``domain`` becomes the ``task``.

    Attributes:
        domains: the domains to keep (``code``, ``math``, ``science``, ``puzzle``); ``None``: all.
    """

    domains: list[str] | None = None
    columns = ("problem", "deepseek_reasoning", "deepseek_solution")
    optional = ("ground_truth_solution", "domain", "source", "test_cases", "starter_code")
    hub = (("open-thoughts/OpenThoughts-114k", "metadata"),)
    examples = tuple(
        {
            "problem": problem,
            "deepseek_reasoning": reasoning,
            "deepseek_solution": f"The result is $\\boxed{{{gold}}}$.",
            "ground_truth_solution": gold,
            "domain": "math",
            "source": "demo",
            "test_cases": None,
            "starter_code": None,
        }
        for problem, reasoning, gold in (
            ("What is $6\\cdot7$?", "Six sevens are 42.", "42"),
            ("What is $2^5$?", "Doubling: 2, 4, 8, 16, 32.", "32"),
        )
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        domain = optional_text(row, "domain")
        if self.domains is not None and domain not in self.domains:
            raise SkipRow(f"domain {domain!r} is not one of mapper_config's domains")
        gold = optional_text(row, "ground_truth_solution")
        return {
            "question": required_text(row, "problem"),
            "reasoning": required_text(row, "deepseek_reasoning"),
            "answer": required_text(row, "deepseek_solution"),
            "solution": last_boxed(gold) or gold,
            "task": domain,
        }


@register_mapper("r1_distill_sft")
@dataclass(frozen=True)
class R1DistillSFT(Mapper):
    """ServiceNow-AI/R1-Distill-SFT: the answer that was written anew, ``reannotated_assistant_content``, reasoning included.

    Configuration ``v0`` has the question in ``problem``; ``v1`` has it in ``reannotated_messages`` (its ``messages`` end in the old
    answer). Licence CC-BY-NC-SA-4.0: not for commercial use.
    """

    columns = ("reannotated_assistant_content",)
    optional = ("problem", "reannotated_messages", "messages", "solution", "source", "source_dataset")
    hub = (("ServiceNow-AI/R1-Distill-SFT", "v0"), ("ServiceNow-AI/R1-Distill-SFT", "v1"))
    examples = tuple(
        {
            "id": f"x{index}",
            "reannotated_assistant_content": answer,
            "source": "demo",
            "source_dataset": "demo",
            "reannotated_messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
            "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "42"}],
            "verified": None,
            "quality_metrics": None,
        }
        for index, (question, answer) in enumerate(
            (
                ("What is 6*7?", "<think>\nSix sevens are 42.\n</think>\n\nIt is 42."),
                ("What is 50-8?", "<think>\nEight off fifty leaves 42.\n</think>\n\nIt is **42**."),
            )
        )
    )

    def missing(self, columns: Any) -> list[str]:
        absent = super().missing(columns)
        return absent if {"problem", "reannotated_messages"} & set(columns) else [*absent, "reannotated_messages (or problem)"]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        response = required_text(row, "reannotated_assistant_content")
        problem = optional_text(row, "problem")
        if problem:
            return {"question": problem, "response": response, "solution": last_boxed(optional_text(row, "solution")) or ""}
        turns = read_turns(row.get("reannotated_messages"), "reannotated_messages")
        return {**read_conversation(turns), "response": response}
