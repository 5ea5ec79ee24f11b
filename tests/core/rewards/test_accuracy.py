"""The accuracy reward, on labelled real solutions and on everything that must not score."""

import json
import os
import pickle
import re
import time
from pathlib import Path

import pytest
from trl.rewards import accuracy_reward

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts
from r1_recipes.extras.choices.rewards import AnswerMatchReward
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.accuracy import (
    AccuracyReward,
    AnswerContainsReward,
    correctness,
    parsed_answer,
)
from r1_recipes.rewards.length import CosineReward
from r1_recipes.verification import STATS, Refusal, Verdict
from tests.support.needs import needs

BESIDE = Path(__file__).parents[3].parent / "shared" / "data" / "verdicts" / "gsm8k_6b.jsonl"
VERDICTS = Path(os.environ.get("R1_VERDICTS") or BESIDE)
RIGHT = {
    2638: 801,
    5276: 2001,
}  # by the number of solutions: the 6B models', and the 175B models' with them

THINK = get_response_format("think_answer")
BOXED = get_response_format("boxed")


def reward(fmt=THINK):
    return AccuracyReward(response_format=fmt)


def think(answer, reasoning="48 + 24"):
    return f"<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>"


def rendered(fmt, solution):
    """A labelled solution as a completion: steps without calculator marks, then what
    follows "A:".
    """
    steps, found, answer = re.sub(r"<<.*?>>", "", solution).rpartition("A:")
    if found and steps.strip() and answer.strip():
        return fmt.render(steps, answer)
    # render() refuses a blank part. Four solutions ran into their token limit before the "A:": what
    # a model that is cut off leaves is a reasoning block that never closes.
    return f"{fmt.reasoning_tags[0]}\n{solution}"


@pytest.mark.skipif(
    not VERDICTS.exists(),
    reason="set R1_VERDICTS to a file of labelled solutions (docs/results/verdicts.md)",
)
@pytest.mark.parametrize("name", ["think_answer", "reasoning_answer", "think_boxed"])
def test_labelled_solutions(name):
    rows = [json.loads(line) for line in VERDICTS.read_text(encoding="utf-8").splitlines()]
    fmt = get_response_format(name)
    completions = [rendered(fmt, row["solution"]) for row in rows]
    rewards = reward(fmt)(completions=completions, solution=[row["gold"] for row in rows])
    disagreements = [
        index
        for index, (row, got) in enumerate(zip(rows, rewards, strict=True))
        if got != float(row["is_correct"])
    ]
    # None: every labelled answer is a number (two exceptions, "-1.8 billion" and "1/5", are wrong
    # for golds 2 and 2), and those without an answer (four of the 6B models', six of the others')
    # are labelled wrong.
    assert disagreements == []
    assert sum(rewards) == sum(row["is_correct"] for row in rows) == RIGHT[len(rows)]
    # README cites these two: of an answer in tags TRL's own reward reads nothing, since it looks
    # for LaTeX; in a box it reads all.
    messages = [[{"role": "assistant", "content": text}] for text in completions]
    assert sum(accuracy_reward(messages, [row["gold"] for row in rows])) == (
        RIGHT[len(rows)] if name == "think_boxed" else 0
    )


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("72", "72", 1.0),  # not only LaTeX
        ("$72$", "72", 1.0),
        (r"\boxed{72}", "72", 1.0),
        ("$1,080", "1080", 1.0),
        ("1080.00", "1,080", 1.0),
        ("18 eggs", "18", 1.0),
        ("50%", "50%", 1.0),
        (r"\frac{1}{2}", "0.5", 1.0),
        ("[1,2]", "(1,2)", 0.0),  # math-verify: a closed interval is not an open one
        (r"\boxed{1=2=3=72}", "72", 0.0),
        ("71 or 72", "72", 0.0),
        ("no idea", "72", 0.0),
        ("72", "Pancreas", 0.0),  # words are compared as words
        ("Pancreas.", "Pancreas", 1.0),
        ("72", "It is " + "very " * 12 + "long.", None),
        ("72", None, None),
        ("72", 72, 1.0),  # a numeric column
        ("0.5", 0.5, 1.0),
    ],
)
def test_answers(answer, gold, expected):
    assert reward()(completions=[think(answer)], solution=[gold]) == [expected]


@pytest.mark.parametrize(
    "completion",
    [
        think("no idea", reasoning=r"it is \boxed{72}"),  # right only inside the reasoning
        think(
            "71", reasoning="<answer>72</answer>"
        ),  # right answer block inside the reasoning, wrong one after it
        think("71") + "<answer>72</answer>",  # contradicting blocks
        "<answer>72</answer>" + think("71"),
        "<think>72</think>",
        "<think>so <answer>72</answer>",  # the reasoning never ends
        think("72").removesuffix("</answer>"),
        "The answer is 72.",  # a format with tags wants them
        "",
    ],
)
def test_nothing_but_the_final_answer_counts(completion):
    assert reward()(completions=[completion], solution=["72"]) == [0.0]


def test_format_without_tags_falls_back_to_the_whole_completion():
    texts = [
        r"48+24 \boxed{72}",
        "The answer is 72.",
        "#### 72",
        r"\boxed{71} \boxed{72}",
        r"\boxed{1=2=72}",
        "maybe 72",
    ]
    assert reward(BOXED)(completions=texts, solution=["72"] * 6) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    # think_boxed has reasoning tags: no fallback
    assert reward(get_response_format("think_boxed"))(
        completions=["<think>x</think>The answer is 72"], solution=["72"]
    ) == [0.0]


def test_prefill_and_conversations():
    fmt = get_response_format("think_answer", prefill="<think>\n")
    completion = think("72").removeprefix("<think>\n")
    assert reward(fmt)(
        completions=[[{"role": "assistant", "content": completion}]], solution=["72"]
    ) == [1.0]


def test_missing_column_names_those_there_are():
    with pytest.raises(RecipeError, match=r"accuracy.*'solution'.*here are: target"):
        reward()(
            completions=["x"],
            prompts=["p"],
            completion_ids=[[1]],
            target=["72"],
            trainer_state=None,
        )


def test_logging():
    extra, metrics = {}, {}
    reward()(
        completions=[think("18 eggs"), "nothing"],
        solution=[18, "18"],
        log_extra=extra.__setitem__,
        log_metric=metrics.__setitem__,
    )
    assert extra == {
        "answer_parsed": ["18 eggs", ""],
        "solution": ["18", "18"],
        "refused": ["", "no answer in the format"],
    }
    assert metrics["verification/timeouts"] == 0.0
    assert metrics["verification/seconds"] >= 0.0


@needs("reasoning_gym")
def test_scorer_column_decides_its_rows():
    reasoning_gym = pytest.importorskip("reasoning_gym")
    entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=5)[0]
    spec = json.dumps({"reasoning_gym": "chain_sum", "entry": entry})
    right = think(entry["answer"])
    completions = [right, think("x"), "nothing", think("72"), think("72")]
    solution = [None, entry["answer"], entry["answer"], "72", None]
    rewards = reward()(
        completions=completions, solution=solution, scorer=[spec, spec, spec, "", None]
    )
    assert rewards == [1.0, 0.0, 0.0, 1.0, None]
    assert reward()(completions=[right], scorer=[spec]) == [
        1.0
    ]  # every row has its scorer: no gold needed
    with pytest.raises(RecipeError, match="solution"):
        reward()(completions=[right, right], scorer=[spec, None])


def test_an_answer_without_time_is_neither_rewarded_nor_punished_and_never_selected(monkeypatch):
    monkeypatch.setattr(
        verification, "_ask", lambda tasks: [verification.Lost.HURRIED] * len(tasks)
    )
    rows = {
        "completions": ["<think>a</think><answer>\\sqrt{4567}</answer>"] * 2,
        "solution": ["3\\sqrt{13}", "3\\sqrt{17}"],
    }
    for reward in (
        AccuracyReward(FORMATS["think_answer"]),
        AnswerMatchReward(FORMATS["think_answer"]),
    ):
        assert reward(**rows) == [None, None]
        assert reward(**rows, trainer_state=None) == [
            0.0,
            0.0,
        ]  # Selection keeps what cannot be judged.
    assert CosineReward(FORMATS["think_answer"])(**rows, completion_ids=[[1], [1]]) == [None, None]


def test_being_slow_is_no_better_than_being_wrong(monkeypatch):
    """Cosine punishes a long wrong answer; one that spends the batch's time must not get
    out of it.
    """
    monkeypatch.setattr(
        verification,
        "_ask",
        lambda tasks: [
            verification.Lost.HURRIED if "4567" in str(task) else False for task in tasks
        ],
    )
    slow, wrong = (f"<think>a</think><answer>\\sqrt{{{n}}}</answer>" for n in (4567, 4568))
    rows = {
        "completions": [slow, wrong, slow],
        "solution": ["3\\sqrt{13}", "3\\sqrt{13}", "3\\sqrt{17}"],
    }
    assert AccuracyReward(FORMATS["think_answer"])(**rows) == [0.0, 0.0, None]
    punished, same, unjudged = CosineReward(FORMATS["think_answer"])(
        **rows, completion_ids=[[1] * 900] * 3
    )
    assert punished == same < 0 and unjudged is None


def test_correctness_is_computed_once_for_several_rewards():
    completions, solution = [think("22/77"), think("3/7")], ["2/7", "2/7"]
    assert reward()(completions=completions, solution=solution) == [1.0, 0.0]
    before = STATS.comparisons
    assert correctness(CosineReward(THINK), completions, solution) == (
        ("22/77", "3/7"),
        (Verdict(True), Verdict(False, Refusal.DIFFERENT)),
    )
    assert STATS.comparisons == before


def test_columns_of_differing_length():
    with pytest.raises(ValueError, match="shorter"):
        reward()(completions=["a", "b"], solution=["1"])


def test_answer_contains():
    contains = AnswerContainsReward(response_format=THINK)
    completions = [think("172 eggs"), think("71"), "72", think("72"), think("72")]
    # "172 eggs" holds "72"; "71" does not; no answer block; no gold; a numeric gold
    assert contains(completions=completions, solution=["72", "72", "72", None, 72]) == [
        1.0,
        0.0,
        0.0,
        None,
        1.0,
    ]
    with pytest.raises(RecipeError, match="answer_contains"):
        contains(completions=["x"])


def test_picklable_with_a_name():
    again = pickle.loads(pickle.dumps(reward()))
    assert again == reward()
    assert again.__name__ == "accuracy"


HOSTILE = [
    "9**9**9**9",
    r"\boxed{9^{9^{9^{9}}}}",
    r"\boxed{" * 3000,
    "1" * 200_000,
    "<think>" * 20_000,
    "<answer>" * 20_000,
    "</think><answer>" * 20_000,
    r"\frac{" * 2000,
    "(" * 50_000,
    "a" * 100_000,
    "\ud800\udfff" * 100,
    "\0" * 1000,
    "\u202e72",
    "",
]


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_completions(name):
    fmt = get_response_format(name)
    completions = [
        *HOSTILE,
        *(fmt.layout.replace("{reasoning}", "x").replace("{answer}", text) for text in HOSTILE),
    ]
    completions += [[], [{"role": "assistant", "content": None}]]
    started = time.monotonic()
    for gold in ("73", r"\frac{1}{7}"):
        assert set(reward(fmt)(completions=completions, solution=[gold] * len(completions))) == {
            0.0
        }
    assert all(
        isinstance(parsed_answer(fmt, text), str | None) for text in completion_texts(completions)
    )
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("name", ["boxed", "think_boxed", "boxed_only", "answer_or_boxed"])
def test_every_spelling_of_a_box_is_a_box(name):
    (accuracy,) = get_reward_funcs(["accuracy"], name)
    opening = "<think>\nHm.\n</think>\n" if name == "think_boxed" else ""
    boxes = [r"\boxed {72}", r"\fbox{72}", r"\boxed{72} \fbox{72}"]
    others = [r"\boxed{72} \fbox{71}", r"\fbox{71} \boxed{72}", r"\boxed {71} \boxed{72}"]
    completions = [opening + text for text in boxes + others]
    rewards = accuracy(
        prompts=["?"] * 6, completions=completions, completion_ids=[[1]] * 6, solution=["72"] * 6
    )
    assert rewards == [1.0] * 3 + [0.0] * 3
