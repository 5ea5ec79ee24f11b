"""The mappers of published systems: their schemas, what they leave out and why, and that a missing
column is named.
"""

import io

import pytest
from datasets import Dataset
from PIL import Image as Pillow

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import MAPPERS, SkipRow, get_mapper, load_dataset
from r1_recipes.prompts import get_response_format
from tests.core.data.test_load import arguments

# What each mapper cannot work without: its own columns but for one, and what the error calls that
# one.
LACKING = [
    (name, alternatives, alternatives[0] + "".join(f" (or {other})" for other in alternatives[1:]))
    for name, mapper in MAPPERS.items()
    for alternatives in (
        (need,) if isinstance(need, str) else need for need in mapper.needs or mapper.columns
    )
]


@pytest.mark.parametrize(("name", "alternatives", "said"), LACKING)
def test_a_missing_column_is_refused_by_name(name, alternatives, said):
    row = {
        key: value for key, value in MAPPERS[name].examples[0].items() if key not in alternatives
    }
    with pytest.raises(RecipeError) as error:
        load_dataset(
            arguments(mapper=name),
            get_response_format("think_answer"),
            "grpo",
            rows=Dataset.from_list([row]),
        )
    assert str(error.value) == (
        f"dataset rows: mapper {name!r} needs column {said!r}; the source has the columns "
        f"{', '.join(row)}"
    )


def row(name, **changes):
    return {**MAPPERS[name].examples[0], **changes}


@pytest.mark.parametrize(
    ("name", "changes", "mapped"),
    [
        (
            "simplerl",
            {"gt_answer": 81, "answer": "9"},
            {"question": "Find $3^4$.", "solution": "81"},
        ),
        (
            "medical_verifiable",
            {},
            {"question": "Which organ makes insulin?", "solution": "Pancreas"},
        ),
        (
            "openthoughts",
            {"ground_truth_solution": "So \\boxed{42}.", "domain": "math"},
            {
                "question": "What is $6\\cdot7$?",
                "reasoning": "Six sevens are 42.",
                "answer": "The result is $\\boxed{42}$.",
                "solution": "42",
                "task": "math",
            },
        ),
        (
            "openthoughts",
            {"ground_truth_solution": None, "domain": None},
            {
                "question": "What is $6\\cdot7$?",
                "reasoning": "Six sevens are 42.",
                "answer": "The result is $\\boxed{42}$.",
                "solution": "",
                "task": "",
            },
        ),
    ],
)
def test_what_a_row_becomes(name, changes, mapped):
    assert get_mapper(name)(row(name, **changes)) == mapped


@pytest.mark.parametrize(
    "prompt",
    [
        "Find the least prime above 20.",
        # The set's own wrapping, with the sentence after the problem in either of its places.
        "Solve the following math problem step by step. The last line is the answer.\n\nFind "
        "the least prime above 20.\n\nRemember to put "
        'your answer on its own line after "Answer:".',
        "\nSolve the following math problem step by step. Whatever.\nFind the least prime "
        "above 20.  ",
        [
            {
                "role": "user",
                "content": "Solve the following math problem step by step.\n\nFind the least prime "
                "above 20.",
            }
        ],
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "Find the least prime above 20."},
        ],
    ],
)
def test_dapo_loses_the_instruction_around_the_problem(prompt):
    assert get_mapper("dapo")(row("dapo", prompt=prompt)) == {
        "question": "Find the least prime above 20.",
        "solution": "23",
    }


SKY = {
    "system": "First <|begin_of_thought|>, then the rest.",
    "conversations": [
        {"from": "user", "value": "6*7?"},
        {
            "from": "assistant",
            "value": "<|begin_of_thought|>\n\n42\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\nIt "
            "is 42.\n\n<|end_of_solution|>",
        },
    ],
}


def test_sky_t1_s_markers_are_a_format():
    """The row's own system message, which asks for them, stands; the target is the row's text,
    character for character.
    """
    fmt = get_response_format("thought_solution", system_prompt="")
    args = arguments(mapper="conversations", mapper_config={"wrappers": "keep"})
    dataset, _ = load_dataset(args, fmt, "sft", rows=Dataset.from_list([SKY]))
    assert dataset[0]["prompt"] == [
        {"role": "system", "content": SKY["system"]},
        {"role": "user", "content": "6*7?"},
    ]
    assert dataset[0]["completion"][0]["content"] == SKY["conversations"][1]["value"]
    # The default writes them as <think>, for the format that has it, and leaves the system message
    # out.
    dataset, _ = load_dataset(
        arguments(mapper="conversations"),
        get_response_format("think_prose", system_prompt=""),
        "sft",
        rows=Dataset.from_list([SKY]),
    )
    assert dataset[0]["prompt"] == [{"role": "user", "content": "6*7?"}]
    assert dataset[0]["completion"][0]["content"] == "<think>\n42\n</think>\nIt is 42."
    with pytest.raises(
        RecipeError, match=r"mapper_config: unknown wrappers 'kep'\. Did you mean 'keep'"
    ):
        get_mapper("conversations", wrappers="kep")


def picture(width=4, height=3, mode="RGB"):
    return Pillow.new(mode, (width, height))


def png(image):
    sink = io.BytesIO()
    image.save(sink, format="PNG")
    return sink.getvalue()


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (None, "column 'image' is empty"),
        ("a path", "column 'image' is not a picture"),
        ({"bytes": None, "path": "x.png"}, "column 'image' is not a picture"),
        ({"bytes": b"not a picture", "path": None}, "the picture in column 'image' cannot be read"),
        (
            {"bytes": png(picture(64, 64))[:60], "path": None},
            "the picture in column 'image' cannot be read",
        ),
        (picture(801, 4), "the picture in column 'image' is more than 200 times as long as wide"),
    ],
)
def test_a_picture_that_cannot_be_used_says_why(image, reason):
    with pytest.raises(SkipRow) as skipped:
        get_mapper("image_question")(row("image_question", image=image))
    assert str(skipped.value) == reason
