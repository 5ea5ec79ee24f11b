"""Each mapper's documented schema against the published set: ``R1_TEST_HUB=1 pytest
tests/core/data/test_hub.py``, with a network.
"""

import os
from collections.abc import Iterable
from itertools import islice
from typing import Any

import datasets
import pytest

from r1_recipes.data import MAPPERS, SkipRow, get_mapper
from tests.support.needs import by_mapper

# A set whose columns fit more than one mapper, and which the recipe therefore names one for.
BY_NAME = {("summary", "mlabonne/smoltldr"), ("reverse_text", "PrimeIntellect/Reverse-Text-RL")}
# The published sets of each family, as (id, configuration); a configuration that ends in / is a
# folder.
HUB: dict[str, list[tuple[str, str | None]]] = {
    "conversations": [
        ("open-r1/Mixture-of-Thoughts", "all"),
        ("NovaSky-AI/Sky-T1_data_17k", None),
        ("open-thoughts/OpenThoughts-114k", "default"),
        ("bespokelabs/Bespoke-Stratos-17k", None),
    ],
    "verifiable_code": [("open-r1/verifiable-coding-problems-python", None)],
    "reasoning_columns": [
        ("FreedomIntelligence/medical-o1-reasoning-SFT", config)
        for config in ("en", "zh", "en_mix", "zh_mix")
    ],
    "countdown": [("Jiayi-Pan/Countdown-Tasks-3to4", None)],
    "reverse_text": [("PrimeIntellect/Reverse-Text-RL", None)],
    "openthoughts": [("open-thoughts/OpenThoughts-114k", "metadata")],
    "r1_distill_sft": [("ServiceNow-AI/R1-Distill-SFT", "v1")],
    "image_question": [("lmms-lab/multimodal-open-r1-8k-verified", None)],
    "gsm8k": [("openai/gsm8k", "main"), ("openai/gsm8k", "socratic")],
    "math": [
        ("DigitalLearningGmbH/MATH-lighteval", "default"),
        ("HuggingFaceH4/MATH-500", "default"),
        ("AI-MO/NuminaMath-TIR", "default"),
        ("HuggingFaceH4/aime_2024", None),
        ("MathArena/aime_2025", None),
    ],
    "openr1_math": [
        ("open-r1/OpenR1-Math-220k", "default"),
        ("open-r1/OpenR1-Math-220k", "extended"),
    ],
    "simplerl": [
        ("hkust-nlp/SimpleRL-Zoo-Data", f"{config}/")
        for config in ("simplelr_qwen_level3to5", "simplelr_abel_level1to4")
    ],
    "dapo": [("open-r1/DAPO-Math-17k-Processed", "all")],
    "multiple_choice": [("allenai/ai2_arc", "ARC-Challenge"), ("tau/commonsense_qa", None)],
    "medical_verifiable": [("FreedomIntelligence/medical-o1-verifiable-problem", None)],
    "summary": [("mlabonne/smoltldr", None)],
    "preference": [("trl-lib/ultrafeedback_binarized", None)],
    "safe_rlhf": [("PKU-Alignment/PKU-SafeRLHF", "default")],
    "verl": [("BytedTsinghua-SIA/DAPO-Math-17k", None)],
}
PUBLISHED = [(name, dataset, config) for name, sets in HUB.items() for dataset, config in sets]


def check_schema(name: str, rows: Iterable[dict[str, Any]], *, auto: bool = True) -> None:
    """The columns that the mapper needs are there, ``auto`` finds it by them, and of the first rows
    at least half can be used.
    """
    first = list(islice(rows, 20))
    columns = list(first[0])
    mapper = get_mapper(name)
    assert mapper.missing(columns) == [], f"{name}: the set has {columns}"
    if auto:
        assert get_mapper("auto", columns).name == name, columns
    reasons = []
    for row in first:
        try:
            assert mapper(row)["question"]
        except SkipRow as reason:
            reasons.append(str(reason))
    assert len(reasons) <= len(first) / 2, reasons


@pytest.mark.skipif(
    not os.environ.get("R1_TEST_HUB"), reason="set R1_TEST_HUB=1 to ask the Hugging Face hub"
)
@pytest.mark.parametrize(("name", "dataset", "config"), PUBLISHED)
def test_the_documented_columns_are_the_hub_s(name, dataset, config):
    options = (
        {"data_dir": config.rstrip("/")} if config and config.endswith("/") else {"name": config}
    )
    splits = datasets.load_dataset(dataset, **options, streaming=True)
    check_schema(name, iter(next(iter(splits.values()))), auto=(name, dataset) not in BY_NAME)


@pytest.mark.parametrize("name", by_mapper(HUB))
def test_the_check_itself(name):
    """On the invented rows it passes, and on rows with a renamed column it does not."""
    auto = name not in ("summary", "reverse_text")
    check_schema(name, iter(MAPPERS[name].examples[:1] * 3), auto=auto)
    needed = {
        "conversations": "messages",
        "summary": "prompt",
        "dapo": "prompt",
        "reverse_text": "prompt",
    }.get(name) or MAPPERS[name].columns[0]
    renamed = [
        {
            (f"{key}_v2" if key == needed else key): value
            for key, value in MAPPERS[name].examples[0].items()
        }
    ]
    with pytest.raises(AssertionError):
        check_schema(name, iter(renamed), auto=auto)


def test_rows_that_cannot_be_used_fail_the_check():
    row = MAPPERS["gsm8k"].examples[0]
    with pytest.raises(AssertionError, match="no '#### NUMBER'"):
        check_schema("gsm8k", iter([{**row, "answer": "12"}] * 4))


def test_every_family_that_is_published_is_checked():
    without = {
        "arithmetic",
        "environment",
        "generated",
        "prompt_solution",
        "reasoning_gym",
        "verifiers",
    }  # ours, generated, or any columns
    assert set(MAPPERS) - set(HUB) == without & set(MAPPERS)
