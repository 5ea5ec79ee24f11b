"""Rewards for golds in words and letters: what counts as the same, what hedging earns, and when a
judge is asked.
"""

import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.choices.rewards import (
    AnswerMatchReward,
    ChoiceMatchReward,
    ExactMatchReward,
    choice,
    words,
)
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.recipe.load import load_recipe
from r1_recipes.rewards import get_reward_funcs
from tests.conftest import REPOSITORY
from tests.support.chat_server import chat_server, reply
from tests.support.needs import needs
from tests.support.rewards import HOSTILE, seconds

FMT = FORMATS["think_answer"]
PROMPT = "Q: {question}\nGold: {solution}\nSaid: {answer}\nEnd with 'Score: x'."


def think(answer):
    return f"<think>\na\n</think>\n<answer>\n{answer}\n</answer>"


def score(reward, answer, gold, fmt=FMT):
    [value] = reward(fmt)(
        completions=[think(answer)], solution=[gold], prompts=["p"], trainer_state=None
    )
    return value


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("pancreas", "Pancreas", 1.0),
        ("The pancreas.", "Pancreas", 1.0),  # an article and a full stop
        ("**Pancreas**", "pancreas", 1.0),
        ("Ｐａｎｃｒｅａｓ", "Pancreas", 1.0),  # full width
        ("vitamin-C deficiency", "Vitamin C deficiency", 1.0),
        ("The answer is: pancreas", "Pancreas", 1.0),
        ("It makes insulin, so the answer is the pancreas.\n", "Pancreas", 1.0),
        ("\\boxed{pancreas}", "Pancreas", 1.0),
        ("胰腺。", "胰腺", 1.0),
        ("答案是：胰腺", "胰腺", 1.0),
        ("5.5 mg", "5.5 mg", 1.0),
        ("type-2 diabetes", "Type 2 diabetes", 1.0),  # a hyphen is no sign
        ("COVID 19", "COVID-19", 1.0),
        ("1200", "1,200", 1.0),
        ("0.5", ".5", 1.0),
        ("Ca²⁺", "Ca2+", 1.0),
        ("**The** `pancreas`", "_pancreas_", 1.0),
        ("A", "A", 1.0),  # a letter is no article
        ("the hepatitis A virus", "Hepatitis A virus", 1.0),
        # a sign that turns the meaning round
        ("↓ calcium", "↑ calcium", 0.0),
        ("PaO2 > 60 mmHg", "PaO2 < 60 mmHg", 0.0),
        ("x > 3", "x < 3", 0.0),
        ("5", ".5", 0.0),
        ("1:2", "1/2", 0.0),
        ("105", "10⁵", 0.0),
        ("2x-3", "2x+3", 0.0),
        ("B", "A, B", 0.0),
        ("hepatitis virus", "Hepatitis A virus", 0.0),
        # another value, word, order, or more than the gold
        ("5,5 mg", "5.5 mg", 0.0),
        ("HER2-", "HER2+", 0.0),
        ("-3", "3", 0.0),
        ("liver", "Pancreas", 0.0),
        ("pancreas or liver", "Pancreas", 0.0),
        ("deficiency vitamin C", "Vitamin C deficiency", 0.0),
        (
            "The answer is pancreas. No, the answer is liver.",
            "Pancreas",
            0.0,
        ),  # the last one counts
        ("\\boxed{pancreas} or \\boxed{liver}", "Pancreas", 0.0),
        ("", "Pancreas", 0.0),
        ("x" * 5000, "x" * 5000, 0.0),  # unread
        ("pancreas", "", None),
        ("pancreas", " . ", None),
        ("pancreas", None, None),
        ("7", 7, 1.0),
    ],
)
def test_exact_match(answer, gold, value):
    assert score(ExactMatchReward, answer, gold) == value


def test_a_completion_without_one_answer_matches_nothing():
    reward = ExactMatchReward(FMT)
    texts = ["pancreas", "<think>\npancreas", think("pancreas") + "<answer>\nliver\n</answer>"]
    assert reward(completions=texts, solution=["pancreas"] * 3) == [0.0, 0.0, 0.0]


@given(text=st.text(max_size=40))
def test_words_do_not_change_with_case_or_space(text):
    assert words(text) == words(f"  {text}\n") and words(text.casefold()) == words(
        text.casefold().casefold()
    )


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        (" (B) ", "B"),
        ("B.", "B"),
        ("B) pancreas", "B"),
        ("B. pancreas", "B"),
        ("**B**: pancreas", "B"),
        ("$B$", "B"),
        ("Ｂ", "B"),
        ("Option B", "B"),
        ("choice (C)", "C"),
        (r"\text{B}", "B"),
        (r"\textbf{(B)} pancreas", "B"),
        ("b", "B"),
        ("[B]", "B"),
        ("B。", "B"),
        ("选B", "B"),
        ("The correct option is B", "B"),
        # no letter of an option, or two
        ("Both", None),
        ("B. C", None),
        ("B) A, D", None),
        ("B or C", None),
        ("(A) or (B)", None),
        ("A. liver B. pancreas", None),
        ("K", None),
        ("42", None),
        ("A big one", None),
        ("", None),
    ],
)
def test_choice(text, letter):
    found = choice(text)
    assert (found and found[0]) == letter


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("B", "B", 1.0),
        ("(B) pancreas", "B", 1.0),
        ("The answer is B.", "(B)", 1.0),
        ("It is an exocrine gland, so the answer is (B)", "B. pancreas", 1.0),
        ("C", "B", 0.0),
        ("B or C", "B", 0.0),
        ("The answer is B or C", "B", 0.0),
        ("B\nThe answer is C", "B", 0.0),  # two choices
        ("pancreas", "B", 0.0),
        ("B. liver", "B. pancreas", 0.0),
        ("B. pancreas", "B. Pancreas", 1.0),
        ("E. histolytica", "E. coli", 0.0),
        ("E. coli", "E. coli", 1.0),
        ("B", "pancreas", None),
        ("B", "42", None),
        ("B", None, None),
    ],
)
def test_choice_match(answer, gold, value):
    assert score(ChoiceMatchReward, answer, gold) == value


def test_answer_match_takes_the_rule_that_the_gold_asks_for():
    logged = {}
    reward = AnswerMatchReward(FMT)
    answers = ["(B)", "0.75", "The pancreas", "liver", "B", ""]
    golds = ["B", "\\frac{3}{4}", "Pancreas", "Pancreas", "", "B"]
    values = reward(
        completions=[think(a) for a in answers], solution=golds, log_extra=logged.__setitem__
    )
    assert values == [1.0, 1.0, 1.0, 0.0, None, 0.0]
    assert logged.pop("matched_by") == ["choice", "mathematics", "words", "", "", ""]
    assert logged == {"answer_parsed": answers, "solution": golds}


@pytest.mark.parametrize("letter", "ABCDEFGHIJ")
def test_every_letter_is_an_option_and_no_article(letter):
    other = "A" if letter == "J" else "J"
    for gold in (letter, f"({letter})", f"{letter}."):
        assert [
            score(AnswerMatchReward, answer, gold)
            for answer in (letter, f"The answer is ({letter}).", other)
        ] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("C. perfringens", "C. difficile", 0.0),
        ("H. influenzae", "H. pylori", 0.0),
        # equal numbers, another unit
        ("10 g", "10 mg", 0.0),
        ("The dose is 10 g", "10 mg", 0.0),
        ("5 km", "5 m", 0.0),
        ("$5\\text{ km}$", "5 m", 0.0),
        ("10 mg", "10 mg", 1.0),
        ("10", "10 mg", 1.0),
        ("\\boxed{10\\text{ mg}}", "10 mg", 1.0),
        ("18 dollars", "18", 1.0),
        ("\\frac{1}{2}", "0.5", 1.0),
        ("2x + 1", "1 + 2x", 1.0),
    ],
)
def test_answer_match_scores_another_genus_or_unit_0(answer, gold, value):
    assert score(AnswerMatchReward, answer, gold) == value


def test_an_answer_outside_the_box_is_found_as_accuracy_finds_it():
    assert AnswerMatchReward(FORMATS["boxed"])(
        completions=["So the answer is 72."], solution=["72"]
    ) == [1.0]


@needs("judges")
def test_a_judge_is_asked_only_what_the_rules_do_not_accept(monkeypatch):
    asked, metrics, logged = [], {}, {}

    def answer(body, before):
        [message] = body["messages"]
        asked.append(message["content"])
        return reply(
            "Same thing.\nScore: 1"
            if "gland behind the stomach" in message["content"]
            else "Score: 0"
        )

    answers = ["Pancreas", "the gland behind the stomach", "liver", "the gland behind the stomach"]
    texts = [*map(think, answers), "<think>\nnothing more"]
    with chat_server(answer) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        reward = AnswerMatchReward(FMT, match_judge="openai:tiny", match_judge_prompt=PROMPT)
        values = reward(
            completions=texts,
            solution=["Pancreas"] * 5,
            prompts=[
                [{"role": "system", "content": "s"}, {"role": "user", "content": "Which organ?"}]
            ]
            * 5,
            log_extra=logged.__setitem__,
            log_metric=metrics.__setitem__,
        )
    # No answer is 0 without a question; equal questions are asked once.
    assert values == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert sorted(asked) == [
        "Q: Which organ?\nGold: Pancreas\nSaid: liver\nEnd with 'Score: x'.",
        "Q: Which organ?\nGold: Pancreas\nSaid: the gland behind the stomach\nEnd with 'Score: x'.",
    ]
    assert logged["matched_by"] == ["words", "judge", "", "judge", ""]
    assert metrics == {
        "answer_match/asked": 3.0,
        "answer_match/unscored": 0.0,
        "answer_match/failed": 0.0,
    }


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Score: 7", None),
        ("Score: -2", None),
        ("Score: 1", 1.0),
        ("Score: 0.5", 0.5),
        ("I cannot say.", None),
    ],
)
@needs("judges")
def test_a_judge_s_score_is_cut_to_a_share(monkeypatch, said, value):
    with chat_server(lambda body, before: reply(said)) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        reward = AnswerMatchReward(FMT, match_judge="openai:tiny", match_judge_prompt=PROMPT)
        assert reward(completions=[think("liver")], solution=["Pancreas"], prompts=["q"]) == [value]


@needs("judges")
def test_an_answer_cannot_fill_in_the_judge_s_form():
    from r1_recipes.extras.judges.ask import fill

    slots = {"question": "{solution}", "solution": "{answer}", "answer": "{question}"}
    assert (
        fill(PROMPT, slots)
        == "Q: {solution}\nGold: {answer}\nSaid: {question}\nEnd with 'Score: x'."
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"match_judge": "tiny"}, "match_judge: must be 'openai:NAME'"),
        ({"match_judge": "openai:"}, "or '', got 'openai:'"),
        (
            {"match_judge": "openai:tiny", "match_judge_prompt": "{answer}"},
            "match_judge_prompt: must be a text with {solution}",
        ),
        (
            {"match_judge": "openai:tiny"},
            "match_judge_prompt: must be a text with {solution} and {answer}",
        ),
    ],
)
@needs("judges")
def test_a_judge_that_cannot_be_asked_is_refused_when_built(params, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        get_reward_funcs(["answer_match"], **params)


@pytest.mark.parametrize("cls", [ExactMatchReward, ChoiceMatchReward, AnswerMatchReward])
def test_data_without_golds_are_refused(cls):
    with pytest.raises(RecipeError, match="needs a column 'solution'"):
        cls(FMT)(completions=[think("x")], prompts=["p"])


@pytest.mark.parametrize(
    ("completion", "paid"),
    [
        ("## Thinking\n\na\n\n## Final Response\n\nPancreas", 1.0),
        ("## Thinking\n\na\n\n## Final Response\n\nLiver", 0.1),
        ("a\n\n## Final Response\n\nPancreas", 0.0),
        ("## Thinking\n\na\n\n## Thinking\n\nb\n\n## Final Response\n\nPancreas", 0.0),
        ("## Thinking\n\na\n\n## Final Response\n\nPancreas\n\n## Final Response\n\nPancreas", 0.0),
        ("## Thinking\n\na\n\n## Final Response\nPancreas", 0.0),
    ],
)
def test_huatuo_s_reward_is_0_unless_each_heading_stands_once(completion, paid):
    """The values are those of HuatuoGPT-o1 at 2c8d7fc, ppo_utils/ppo_trainer_medo1.py:103-133, with
    a verifier that is right.
    """
    recipe = load_recipe(
        [str(REPOSITORY / "recipes/reproduce/huatuo_2_grpo.yaml"), "--match_judge", ""], "grpo"
    )
    rewards = get_reward_funcs(recipe.script.reward_funcs, recipe.script.response_format)
    values = [
        reward(completions=[completion], solution=["Pancreas"], prompts=["p"])[0]
        for reward in rewards
    ]
    assert sum(
        weight * value for weight, value in zip(recipe.training.reward_weights, values, strict=True)
    ) == pytest.approx(paid)


@settings(deadline=None, max_examples=50)
@given(text=st.text(max_size=60), gold=st.text(max_size=20))
@pytest.mark.parametrize("cls", [ExactMatchReward, ChoiceMatchReward])
def test_ranges(cls, text, gold):
    assert cls(FMT)(completions=[think(text)], solution=[gold])[0] in (None, 0.0, 1.0)


@pytest.mark.parametrize("cls", [ExactMatchReward, ChoiceMatchReward, AnswerMatchReward])
@pytest.mark.parametrize("name", ["think_answer", "boxed", "thinking_response"])
def test_hostile_completions(cls, name):
    reward = cls(get_response_format(name))
    with seconds(20):
        assert len(
            reward(completions=[*HOSTILE, *map(think, HOSTILE)], solution=["B"] * 2 * len(HOSTILE))
        ) == 2 * len(HOSTILE)


@needs("judges")
def test_pickles():
    reward = AnswerMatchReward(FMT, match_judge="openai:tiny", match_judge_prompt=PROMPT)
    assert pickle.loads(pickle.dumps(reward)) == reward
    assert reward.__name__ == "answer_match"
