"""The mappers of published systems: their schemas, what they leave out and why, and that a missing
column is named.
"""

import io
import time

import pytest
from datasets import Dataset, Features, Image
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import MAPPERS, SkipRow, get_mapper, load_dataset
from r1_recipes.data.render import LoadReport, Renderer, RowMapper
from r1_recipes.prompts import get_response_format
from tests.core.data.test_load import arguments
from tests.support.needs import needs

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


# Columns that tell a set from others, or that another one stands in for.
NULLABLE = {
    ("openr1_math", "answer"),
    ("openr1_math", "generations"),
    ("openr1_math", "correctness_math_verify"),
    ("math", "answer"),
    ("reasoning_gym", "answer"),
    ("arithmetic", "answer"),
    ("environment", "environment"),
}


@pytest.mark.parametrize(
    ("name", "column"),
    [(name, columns[0]) for name, columns, _ in LACKING if (name, columns[0]) not in NULLABLE],
)
def test_a_null_in_a_needed_column_leaves_the_row_out(name, column):
    with pytest.raises(SkipRow) as reason:
        get_mapper(name)({**MAPPERS[name].examples[0], column: None})
    assert str(reason.value)


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


def test_openthoughts_keeps_the_configured_domains():
    mapper = get_mapper("openthoughts", domains=["code", "math"])
    assert mapper(row("openthoughts"))["task"] == "math"
    with pytest.raises(SkipRow, match="domain 'puzzle' is not one of mapper_config's domains"):
        mapper(row("openthoughts", domain="puzzle"))


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


def test_a_dapo_prompt_with_many_blank_lines_is_read_at_once():
    asked = "a" + "\n" * 100_000 + "b"
    start = time.perf_counter()
    assert get_mapper("dapo")(row("dapo", prompt=asked))["question"] == asked
    assert time.perf_counter() - start < 1
    alone = "Remember to put your answer on its own line after all."
    assert get_mapper("dapo")(row("dapo", prompt=alone))["question"] == alone


def test_dapo_skips_what_it_cannot_read():
    for prompt in (
        None,
        [],
        [{"role": "assistant", "content": "x"}],
        [None],
        "Solve the following math problem step by step. X\n",
    ):
        with pytest.raises(SkipRow, match=r"column 'prompt' is (empty|not a list of messages)"):
            get_mapper("dapo")(row("dapo", prompt=prompt))


def test_r1_distill_sft_takes_the_answer_written_anew():
    mapped = get_mapper("r1_distill_sft")(row("r1_distill_sft"))
    assert mapped["response"] == "<think>\nSix sevens are 42.\n</think>\n\nIt is 42."
    assert mapped["messages"] == [{"role": "user", "content": "What is 6*7?"}]


def test_sft_on_r1_distill_sft_is_not_on_its_old_messages():
    rows = Dataset.from_list([row("r1_distill_sft")])
    dataset, report = load_dataset(
        arguments(), get_response_format("think_prose", system_prompt=""), "sft", rows=rows
    )
    assert report.kept == 1
    assert dataset[0]["completion"][0]["content"].endswith("</think>\n\nIt is 42.")


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


def test_mixture_of_thoughts_needs_no_exception_any_more():
    messages = [
        {"role": "user", "content": "Why is ice light?"},
        {"role": "assistant", "content": "<think>\nH2O.\n</think>\nIt is open."},
    ]
    args = arguments(mapper="conversations")
    good, cut = (
        {"messages": messages},
        {"messages": [messages[0], {"role": "assistant", "content": "<think>\nH2O, so"}]},
    )
    dataset, report = load_dataset(
        args,
        get_response_format("think_prose", system_prompt=""),
        "sft",
        rows=Dataset.from_list([good, cut]),
    )
    assert [line["completion"][0]["content"] for line in dataset] == [messages[1]["content"]]
    assert report.dropped == {"response is not in format 'think_prose'": 1}


@needs("code")
def test_code_keeps_its_test_cases():
    mapped = get_mapper("verifiable_code")(row("verifiable_code"))
    assert mapped["question"] == "Read n and print 2n."
    assert mapped["verification_info"]["test_cases"][0] == {
        "fn_name": None,
        "input": "4\n",
        "output": "8\n",
        "type": "stdin_stdout",
    }
    other = {
        "problem": "p",
        "verification_info": {"language": "python", "test_cases": [{"input": "", "output": "1"}]},
    }
    assert get_mapper("verifiable_code")(other)["question"] == "p"
    for info in (None, {}, {"test_cases": []}, "x", []):
        with pytest.raises(SkipRow, match="column 'verification_info' has no test_cases"):
            get_mapper("verifiable_code")(row("verifiable_code", verification_info=info))
    dataset, _ = load_dataset(
        arguments(mapper="verifiable_code"),
        get_response_format("think_answer"),
        "grpo",
        rows=Dataset.from_list(list(MAPPERS["verifiable_code"].examples)),
    )
    assert dataset[1]["verification_info"]["test_cases"][0]["output"] == "cba\n"


def picture(width=4, height=3, mode="RGB"):
    return Pillow.new(mode, (width, height))


@needs("images")
def test_a_photo_stands_upright_and_a_drawing_on_nothing_is_on_white():
    from PIL import Image

    photo, sink = picture(40, 20), io.BytesIO()
    exif = photo.getexif()
    exif[0x0112] = 6  # turn it by 90 degrees
    photo.save(sink, format="JPEG", exif=exif)
    drawing = Image.new("RGBA", (4, 3), (0, 0, 0, 0))
    drawing.putpixel((1, 1), (0, 0, 0, 255))
    read = get_mapper("image_question")
    given = {"bytes": sink.getvalue(), "path": None}
    assert read(row("image_question", image=given))["image"].size == (20, 40)
    drawn = read(row("image_question", image={"bytes": png(drawing), "path": None}))["image"]
    assert (drawn.getpixel((1, 1)), drawn.getpixel((0, 0))) == ((0, 0, 0), (255, 255, 255))


def png(image):
    sink = io.BytesIO()
    image.save(sink, format="PNG")
    return sink.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "LA", "CMYK"])
@needs("images")
def test_pictures_become_rgb(mode):
    mapped = get_mapper("image_question")(row("image_question", image=picture(mode=mode)))
    assert (mapped["image"].mode, mapped["image"].size) == ("RGB", (4, 3))


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        ("<answer>40</answer>", "40"),
        ("40", "40"),
        ("<answer> $\\boxed{40}$ </answer>", "40"),
        ("<answer>B</answer>", "B"),
    ],
)
@needs("images")
def test_the_gold_of_a_picture_loses_its_wrapping(solution, gold):
    assert (
        get_mapper("image_question")(row("image_question", solution=solution))["solution"] == gold
    )


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
@needs("images")
def test_a_picture_that_cannot_be_used_says_why(image, reason):
    with pytest.raises(SkipRow) as skipped:
        get_mapper("image_question")(row("image_question", image=image))
    assert str(skipped.value) == reason


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("max_pixels", [None, 100])
@needs("images")
def test_a_picture_that_stands_for_gigabytes_is_not_decoded(monkeypatch, max_pixels):
    monkeypatch.setattr(Pillow.Image, "convert", lambda *arguments: pytest.fail("decoded"))
    with pytest.raises(SkipRow, match="more than 25,000,000 pixels"):
        get_mapper("image_question", max_pixels=max_pixels)(
            row("image_question", image={"bytes": b"P5 5001 5000 255\n"})
        )


@needs("images")
def test_only_formats_of_pictures_are_read_and_few_scans():
    file = io.BytesIO()
    Pillow.new("RGB", (8, 8)).save(file, "EPS")
    postscript = file.getvalue()
    with pytest.raises(SkipRow, match="cannot be read"):
        get_mapper("image_question")(row("image_question", image={"bytes": postscript}))
    file = io.BytesIO()
    Pillow.new("RGB", (8, 8)).save(file, "JPEG", progressive=True)
    assert get_mapper("image_question")(row("image_question", image={"bytes": file.getvalue()}))[
        "image"
    ].size == (8, 8)
    with pytest.raises(SkipRow, match="more than 100 scans"):
        get_mapper("image_question")(
            row("image_question", image={"bytes": file.getvalue()[:-2] + b"\xff\xda\0\x02" * 101})
        )


@needs("images")
def test_few_pictures_are_decoded_at_a_time(monkeypatch):
    """Rows are mapped in batches, whose pictures are held until the batch is written."""
    given = []
    monkeypatch.setattr(RowMapper, "_render_row", lambda self, row, place: row)

    def all_over(self, results):
        given.append(len(results))
        return dict.fromkeys(range(len(results)), "over")

    monkeypatch.setattr(Renderer, "over_limits", all_over)
    renderer = Renderer(arguments(), get_response_format("think_answer"), "grpo", None)
    mapper = RowMapper(get_mapper("image_question"), renderer, [], LoadReport())
    rows = Dataset.from_dict({"image": ["x"] * 10})
    assert list(mapper._batches(rows, None, Features())) == [] and given == [4, 4, 2]


@settings(deadline=None)
@given(
    data=st.binary(max_size=200)
    | st.binary(max_size=60).map(lambda tail: png(picture())[:40] + tail)
)
@needs("images")
def test_bytes_are_a_picture_or_a_reason(data):
    try:
        assert (
            get_mapper("image_question")(row("image_question", image={"bytes": data}))["image"].mode
            == "RGB"
        )
    except SkipRow as reason:
        assert str(reason)


@needs("images")
def test_large_pictures_are_made_smaller():
    mapped = get_mapper("image_question", max_pixels=100)(
        row("image_question", image=picture(40, 10))
    )
    assert mapped["image"].size == (20, 5)  # the square root of 100/400 is a half
    assert get_mapper("image_question", max_pixels=400)(
        row("image_question", image=picture(40, 10))
    )["image"].size == (40, 10)
    with pytest.raises(RecipeError, match="max_pixels: must be 1 or more, got 0"):
        get_mapper("image_question", max_pixels=0)


@needs("images")
def test_a_picture_s_question_stands_in_the_recipe_s_template():
    mapped = get_mapper("image_question", template="{question}  In {tags}.")(
        row("image_question", problem="Why?")
    )
    assert mapped["question"] == "Why?  In {tags}."
    with pytest.raises(RecipeError, match=r"template: must contain {question}, got 'Why\?'"):
        get_mapper("image_question", template="Why?")


@needs("images")
def test_a_picture_stays_one_in_the_dataset_and_is_for_grpo_alone():
    rows = Dataset.from_list(
        [{"image": png(picture()), "problem": "p", "solution": "1"}] * 2
    ).cast_column("image", Image())
    args = arguments(mapper="image_question", keep_columns=[])
    dataset, _ = load_dataset(args, get_response_format("think_answer"), "grpo", rows=rows)
    assert dataset[0]["image"].size == (4, 3)
    assert dataset[0]["prompt"][-1] == {"role": "user", "content": "p"}
    for method in ("sft", "generate", "distill"):
        with pytest.raises(
            RecipeError, match=f"'image_question' gives pictures, which {method} does not support"
        ):
            load_dataset(args, get_response_format("think_answer"), method, rows=rows)
