"""Mappers of single data sets whose rows have a schema of their own."""

from typing import Any

from r1_recipes.data.mappers import MappedRow, SkipRow, conversations, register_mapper, text
from r1_recipes.data.messages import as_prompt, parsed, read_messages
from r1_recipes.prompts.formats import boxes


@register_mapper("verl", "data_source", "prompt", "reward_model")
def verl(row: dict[str, Any]) -> MappedRow:
    """Map Parquet files of veRL and TinyZero: ``data_source``, ``prompt`` and ``reward_model``.

    The prompt stays as it is, even a whole template that ends in an open ``<think>``.
    ``data_source`` becomes the ``task``. A ``ground_truth`` with ``numbers`` and ``target`` is a
    Countdown puzzle: ``nums`` and ``target``. Search-R1 writes its answers as a ``target``.
    """
    mapped = as_prompt(row, read_messages(row, "prompt", "user"))
    mapped["task"] = text(row, "data_source")
    rule = row["reward_model"]
    rule = parsed(rule) if isinstance(rule, str) else rule
    truth = (rule or {}).get("ground_truth")
    if isinstance(truth, dict) and truth.get("numbers"):
        puzzle = {"nums": truth["numbers"], "target": truth.get("target")}
        return {**mapped, "solution": "", **puzzle}
    target = truth.get("target") if isinstance(truth, dict) else truth
    return {**mapped, "solution": text({"ground_truth": target}, "ground_truth")}


@register_mapper("openthoughts", "problem", "deepseek_reasoning", "deepseek_solution")
def openthoughts(row: dict[str, Any], domains: list[str] | None = None) -> MappedRow:
    """Map open-thoughts/OpenThoughts-114k, ``metadata``: problems with answers of DeepSeek-R1.

    The reference answer is the last box of ``ground_truth_solution``, or the entire text without a
    box. It is empty for code. ``domain`` becomes the ``task``. ``domains`` are the domains to keep
    (``code``, ``math``, ``science``, ``puzzle``), by default all.
    """
    domain = text(row, "domain", needed=False)
    if domains is not None and domain not in domains:
        raise SkipRow(f"domain {domain!r} is not one of mapper_config's domains")
    solution = text(row, "ground_truth_solution", needed=False)
    return {
        "question": text(row, "problem"),
        "reasoning": text(row, "deepseek_reasoning"),
        "answer": text(row, "deepseek_solution"),
        "solution": next(filter(None, boxes(solution)[::-1]), solution),
        "task": domain,
    }


@register_mapper("r1_distill_sft", "reannotated_assistant_content", "reannotated_messages")
def r1_distill_sft(row: dict[str, Any]) -> MappedRow:
    """Map ServiceNow-AI/R1-Distill-SFT, ``v1``: the rewritten answer, not the old in ``messages``.

    Its licence allows only non-commercial use.
    """
    mapped = conversations({"messages": row["reannotated_messages"]})
    return {**mapped, "response": text(row, "reannotated_assistant_content")}


@register_mapper("safe_rlhf", "prompt", "response_0", "response_1", "safer_response_id")
def safe_rlhf(row: dict[str, Any]) -> MappedRow:
    """Map PKU-Alignment/PKU-SafeRLHF: the safer of two responses is the chosen one.

    Its licence allows only non-commercial use.
    """
    safer = int(text(row, "safer_response_id"))
    chosen, rejected = text(row, f"response_{safer}"), text(row, f"response_{1 - safer}")
    return {"question": text(row, "prompt"), "response": chosen, "rejected": rejected}
