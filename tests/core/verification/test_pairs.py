"""Answers that must not score, answers that must, and letters that no reading may lose.

``tricks.jsonl``: wrong answers that an attack on the rules tried, by class. ``honest.jsonl``: right
answers as models write them. Both were written for these rules, by hand; a line has ``gold`` and
``answer``.
"""

import json
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from r1_recipes.rewards import get_reward_funcs
from r1_recipes.verification import Refusal, grade, judge
from r1_recipes.verification.gold import read_gold
from r1_recipes.verification.question import asks_for_order, is_copied
from r1_recipes.verification.units import UNITS, units_of
from r1_recipes.verification.words import letters

HERE = Path(__file__).parent
PAIRS = HERE.parents[3] / "shared" / "data" / "verdicts" / "dev_pairs.jsonl"


def rows(name):
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def verdicts(pairs):
    found = []
    for start in range(0, len(pairs), 64):
        part = pairs[start : start + 64]
        found += judge([row["gold"] for row in part], [row["answer"] for row in part])
    return found


def test_no_trick_scores():
    tricks = rows("tricks.jsonl")
    paid = [
        (row["class"], row["gold"], row["answer"])
        for row, verdict in zip(tricks, verdicts(tricks), strict=True)
        if verdict.right
    ]
    assert paid == []
    assert len(tricks) > 1000


def test_honest_spellings_score():
    honest = rows("honest.jsonl")
    refused = [
        (row["gold"], row["answer"], v.refusal)
        for row, v in zip(honest, verdicts(honest), strict=True)
        if v.right is not True
    ]
    assert refused == []
    assert len(honest) > 500


# What scores here and math-verify refuses, or where a teacher may argue: by the convention of
# docs/verification.md that says so.
CONVENTIONS = {
    "a word beside a number": [
        ("72", "72 grand"),
        ("72", "the price of a shoe is 72"),
        ("-72", "size -72"),
    ],
    'the subject of "is"': [("n^2", "the sum of the first n odd numbers is n^2")],
    "one unit of two": [("60", "60 km/h"), ("5 kW", "5")],
    "a rounding": [("0.59", "0.5941"), ("125.663", r"40\pi")],
    "ends that are decimals": [("(-5.9, 3.9)", "[-5.90, 3.90]")],
    "a name": [("2x", "f'(x) = 2x"), ("2", "x_1 + x_2 = 2")],
    "words beside algebra": [("x+1", "the solution is x+1")],
    "the text of an option": [("C", "C) pears")],
    "yes or no": [("Yes", "Yes, the equilibrium is stable.")],
    "plus-minus": [(r"a \pm b", r"a \mp b")],
    "one variable in both cases": [("x+1", "X+1")],
    "a ratio": [(r"\frac34", "3 to 4")],
    "per cent": [("50%", "50"), ("50%", "0.5"), ("12.5%", "0.125"), ("12.5%", "12.5")],
    "a root or a power of digits without braces": [(r"\sqrt{12}", r"\sqrt12"), ("2^{10}", "2^10")],
    "simple arithmetic": [("1080", "540 + 540"), ("x^{12}", "(x^3)^4")],
    "a time of day": [("8:30 AM", "8:30"), ("8:30", "8:30 AM")],
    "a date in words": [("May 5", "the 5th of May")],
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_what_scores_by_convention(convention):
    golds, answers = zip(*CONVENTIONS[convention], strict=True)
    assert grade(golds, answers) == [True] * len(golds)


def test_the_page_and_these_tests_name_the_same_conventions():
    page = (HERE.parents[2] / "docs" / "verification.md").read_text(encoding="utf-8")
    section = page.partition("## Conventions")[2].partition("These spellings")[0]
    assert re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE) == list(CONVENTIONS)


FACTOR = st.sampled_from(
    [
        *"abcdehkmnpqrstuvxyzABGLMNPQRT",
        "2",
        "3",
        "10",
        r"\pi ",
        "(x+1)",
        "v^2",
        r"\sqrt{k}",
        r"\theta ",
    ]
)


@given(
    st.lists(st.lists(FACTOR, min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["+", " + ", "-", " - "]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_gold_keeps_every_letter_of_its_algebra(terms, sign, spaced):
    gold = sign.join((" " if spaced else "").join(term) for term in terms)
    assume(
        letters(gold) and len(gold) > 1 and not re.search(r"\de[-+]?\d", gold)
    )  # 2e3 is a number
    # 2 s and 2cm are a number with its unit.
    assume(not re.fullmatch(rf"\d+ [A-Za-z]|\d+\s*(?:{UNITS})", gold))
    read = read_gold(gold)
    assert read is not None
    # What is no expression is its own text, whole.
    kept = letters(read.text) if read.text is not None else letters(read.raw)
    assert {letter.lower() for letter in letters(gold)} <= {letter.lower() for letter in kept}, (
        gold,
        read,
    )


@pytest.mark.parametrize(
    ("gold", "wrong"),
    [
        (r"1-\frac{1}{2^{100}}", ["1-2^{-99}", "1.0", "1"]),
        ("2^{-2006}", ["2^{-2005}", "0.0", "0", r"\frac{1}{2004!}"]),
        (r"\binom{2024}{1012}", [r"1.0\cdot\binom{2024}{1012}+3"]),
        ("123456789012345678", ["123456789012345678+0.1", "123456789012345680"]),
        ("10^{20}+1", ["10^{20.0}", "1e20"]),
    ],
)
def test_between_exact_numbers_nothing_is_rounded(gold, wrong):
    assert grade([gold] * (len(wrong) + 1), [gold, *wrong]) == [True] + [False] * len(wrong)


def test_an_answer_that_stands_in_the_question_is_no_answer():
    question = [
        {"role": "user", "content": r"What is $56.78-43.6$? Is it $\frac{3}{4}$ of something?"}
    ]
    says = [
        {"role": "assistant", "content": "<think>\nx\n</think>\n<answer>\n56.78 - 43.6\n</answer>"}
    ]
    for switch, reward in (({}, 0.0), ({"reads_question": False}, 1.0)):
        (accuracy,) = get_reward_funcs(["accuracy"], "think_answer", **switch)
        assert accuracy(prompts=[question], completions=[says], solution=["13.18"]) == [reward]
    # What the gold itself says, a value and a name may stand there.
    assert not is_copied("2x+3", read_gold("y = 2x+3"), "Draw the line $2x+3$.")
    assert not is_copied("7", read_gold("7"), "Is it 7 or 8?")
    assert (
        judge(["13.18"], ["56.78-43.6"], questions=["What is 56.78-43.6?"])[0].refusal
        is Refusal.COPIED
    )


def test_a_list_has_an_order_where_the_question_asks_for_one():
    asked = "Order the letters from least to greatest."
    assert asks_for_order(asked) and not asks_for_order("Name the letters in any way.")
    for gold, other in (("1, 2, 3", "3, 2, 1"), ("A, B, C", "C, B, A")):
        assert [v.right for v in judge([gold] * 2, [gold, other], questions=[asked] * 2)] == [
            True,
            False,
        ]
        assert judge([gold], [other], questions=["Name them."])[0].right is True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5 m/s", r"5 \text{ m s}^{-1}"),
        (r"12 \mathrm{~N} \cdot \mathrm{m}", "12 N·m"),
        ("3 hours", "3 h"),
        ("60 mph", "60 mi/h"),
    ],
)
def test_a_unit_has_one_spelling(one, other):
    assert units_of(one) == units_of(other) != ()


def test_units_of_two_kinds_differ():
    golds = [r"72 \text{ km}", r"20^\circ\mathrm{C}", r"\$72", r"5 \mathrm{~mg}", "5 m/s"]
    others = [r"72 \text{ m}", r"20^\circ\mathrm{F}", "72 cents", "5 grams", "5 m/s^2"]
    assert grade(golds, others) == [False] * len(golds)


def other_golds_pairs(share):
    """Right answers beside other golds: of all such pairs the same share every time, whatever rows
    are added.
    """
    honest = rows("honest.jsonl")
    golds = dict.fromkeys(row["gold"] for row in honest)
    for gold in golds:
        for row in honest:
            if row["gold"] != gold and zlib.crc32(f"{gold}\0{row['answer']}".encode()) % share == 0:
                yield {"gold": gold, "answer": row["answer"]}


@pytest.mark.nightly
def test_what_scores_scores_in_math_verify_or_by_a_convention():
    from math_verify import parse, verify

    labelled = rows("tricks.jsonl")
    if PAIRS.is_file():
        for row in map(json.loads, PAIRS.read_text(encoding="utf-8").splitlines()):
            block = re.search(r"<answer>\n?(.*?)\n?</answer>", row["completion"], re.DOTALL)
            if row["expected"] == 0:
                labelled.append(
                    {"gold": row["gold"], "answer": block[1] if block else row["completion"]}
                )
    pairs = [*labelled, *other_golds_pairs(100)]
    listed = {(row["gold"], row["answer"]) for row in rows("conventions.jsonl")}
    ours_alone = [
        (row["gold"], row["answer"])
        for row, verdict in zip(pairs, verdicts(pairs), strict=True)
        if verdict.right
        and not verify(
            parse(f"${row['gold'].strip('$')}$"), parse(f"$\\boxed{{{row['answer'].strip('$')}}}$")
        )
    ]
    assert [pair for pair in ours_alone if pair not in listed] == []
    assert len(pairs) > 3500


def test_an_option_s_number_is_read_once_by_its_locale():
    answers = ["(C) 1,25", "1,25", "(C) 1250"]
    found = judge(["(C) 1,250"] * 3, answers, locale="de")
    assert [verdict.right for verdict in found] == [True, True, False]
