"""language_consistency: shares worked by hand for scripts, the detector for languages that share
one, and what does not count.
"""

import logging
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.prompts import FORMATS
from r1_recipes.rewards.language import LANGUAGES, LanguageConsistencyReward
from tests.support.rewards import HOSTILE, seconds

FMT = FORMATS["think_answer"]
# Two sentences each, written for these tests.
TEXTS = {
    "en": "First we compute the sum of both numbers. Then we subtract this value from the result.",
    "fr": "D'abord nous calculons la somme des deux nombres. Ensuite nous soustrayons cette valeur "
    "du résultat.",
    "de": "Zuerst berechnen wir die Summe der beiden Zahlen. Danach ziehen wir diesen Wert vom "
    "Ergebnis ab.",
    "es": "Primero calculamos la suma de los dos números. Luego restamos este valor del resultado.",
    "it": "Prima calcoliamo la somma dei due numeri. Poi sottraiamo questo valore dal risultato.",
    "nl": "Eerst berekenen we de som van de twee getallen. Daarna trekken we deze waarde van het "
    "resultaat af.",
    "vi": "Đầu tiên chúng ta tính tổng của hai số. Sau đó trừ giá trị này khỏi kết quả.",
    "ru": "Сначала мы вычислим сумму двух чисел. Затем вычтем это значение из общего результата.",
    "uk": "Спочатку ми обчислимо суму двох чисел. Потім віднімемо це значення від загального "
    "результату.",
    "ar": "أولاً نحسب مجموع العددين معاً ثم نطرح هذه القيمة من الناتج",
    "hi": "पहले हम दोनों संख्याओं का योग निकालते हैं और फिर घटाते हैं",
    "ja": "まず、二つの数の合計を計算します。次に、結果から値を引きます。",
    "zh": "首先计算两个数的和。然后从结果中减去这个值。",
    "ko": "먼저 두 수의 합을 계산합니다. 그런 다음 결과에서 값을 뺍니다.",
    "th": "ก่อนอื่นเราคำนวณผลรวมของตัวเลขสองตัว",
}


def wrap(reasoning):
    return f"<think>\n{reasoning}\n</think>\n<answer>\n72\n</answer>"


def score(completion, target=None, prompt="", fmt=FMT, **columns):
    [value] = LanguageConsistencyReward(fmt, target)(
        completions=[completion], prompts=[prompt], trainer_state=None, **columns
    )
    return value


@pytest.mark.parametrize("target", TEXTS)
def test_own_language_is_1_and_every_other_0(target):
    assert score(wrap(TEXTS[target]), target) == 1.0
    others = {code: score(wrap(text), target) for code, text in TEXTS.items() if code != target}
    assert not {code: value for code, value in others.items() if value > 0.0}


@pytest.mark.parametrize(
    ("reasoning", "target", "expected"),
    [
        # 4 English words; 8 Han characters are worth 4 words
        ("we add both numbers，我们把它们全相加", "en", 0.5),
        ("we add both numbers，我们把它们全相加", "zh", 0.5),
        # 1 Latin name; 6 Han characters are worth 3 words
        ("Natalia 卖出四十八个", "zh", 0.75),
        # 6 Russian words of 8; "и" is one letter and does not count
        ("Сначала сложим числа и затем вычтем это total value", "ru", 6 / 8),
        # 9 English words and 6 French ones, a sentence each
        (
            "First we compute the sum of all three numbers. Ensuite nous soustrayons cette "
            "petite valeur.",
            "en",
            9 / 15,
        ),
        # 3 Korean words of 4
        ("먼저 합을 계산합니다 okay", "ko", 0.75),
        ("আমরা যোগ করি।", "hi", 0.0),  # the full stop is of several scripts, and no word
        ("コンピューター・メモリー", "ja", 1.0),  # nor are these marks of another script
        ("計算", "ja", 1.0),  # Han alone, too short to be told from Chinese
    ],
)
def test_shares(reasoning, target, expected):
    assert score(wrap(reasoning), target) == pytest.approx(expected)


@pytest.mark.parametrize(
    "span",
    [
        "12 + 34,500 = 7.5%",
        "$a + b = total$, $$some words$$",
        "\\(alpha beta\\) \\[gamma\\]",
        "\\begin{align*} left &= right \\end{align*}",
        "\\frac{foo}{bar} \\boxed{done}",
        "$$ \\operatorname{rate} \\times \\text{}$$, $5\\text{km}$",
        "https://example.org/some/path",
        "x, y, ABC, x_1, 5km, sin, cos, α",
        "🙂 → ≤ …",
    ],
)
def test_what_does_not_count(span):
    assert score(wrap(f"首先计算{span}，然后相加"), "zh") == 1.0
    assert score(wrap(span), "zh") == 1.0  # text, and no word of it in another language


FRENCH, CHINESE = "Ensuite nous soustrayons cette petite valeur du total", "然后从结果中减去这个值"


@pytest.mark.parametrize("hidden", [FRENCH, CHINESE])
@pytest.mark.parametrize(
    "around",
    [
        *("`{}`", "```\n{}\n```", "```\n# {}\n```"),
        *(
            "\\text{{{}}}",
            "$\\text{{{}}}$",
            "\\[x = \\textbf{{ {{{}}}}}\\]",
            "$${}$$",
            "\\({}\\)",
            "\\begin{{quote}} {}. \\end{{quote}}",
        ),
        "\\frac{{{}}}{{2}}",
    ],
)
def test_another_language_hides_nowhere(around, hidden):
    assert score(wrap(f"We add. {around.format(hidden)}"), "en") < 0.5
    assert score(wrap(f"We add. {around.format(hidden)}"), "fr") == pytest.approx(
        1.0 if hidden == FRENCH else 2 / 7.5
    )


@pytest.mark.parametrize("glue", ["1", "_", "42"])
def test_digits_glued_on_hide_no_word(glue):
    assert score(wrap(" ".join(word + glue for word in FRENCH.split())), "en") == 0.0
    assert score(wrap(glue.join(FRENCH.split())), "en") == 0.0
    assert score(wrap("首先 then2 计算5km和x_1，然后相加"), "zh") == pytest.approx(
        4.5 / 5.5
    )  # 9 Han characters, one word


@pytest.mark.parametrize(
    "text",
    [
        "首先 ``` we add all numbers",  # a fence that never closes
        "首先 \\[ we add all numbers",
        "首先 $ we add all numbers",
        "首先 costs $5 and they pay $6 together",  # prices are no maths
        "首先 (https://a.org) we add all numbers",  # what follows an address
    ],
)
def test_what_does_not_close_hides_nothing(text):
    assert score(wrap(text), "zh") < 0.5


def test_prose_in_a_price_list_counts():
    # Pandoc's rule: no maths from "$2" to "$18", so the French between is seen.
    assert score(wrap("Elle vend les pommes pour $2 et elle reçoit ainsi $18"), "en") == 0.0


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("", 0.0),
        ("<think>\n\n</think>\n<answer>\n72\n</answer>", 0.0),  # an empty block
        ("<think></think> The answer is here, as everyone can see <answer>72</answer>", 0.0),
        ("<answer>\nthe final answer\n</answer>", 0.0),  # no reasoning at all
        ("72", 0.0),  # no block and no words
        ("<think>\n12 * 6 = 72\n</think>\n<answer>\n72\n</answer>", 1.0),  # maths alone
        ("<think>\nWe add both numbers, which", 1.0),  # cut short: judged as it is
        (
            "We add both numbers.\n<answer>\n七十二\n</answer>",
            1.0,
        ),  # no tags: what stands before the answer
        ("<think>\n我们把它们相加", 0.0),
        (
            "<think>\nWe add both numbers.\n</think>\n<answer>\n七十二\n</answer>",
            1.0,
        ),  # the answer is not reasoning
    ],
)
def test_reasoning_that_is_missing_empty_or_cut(completion, expected):
    assert score(completion, "en") == expected


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name):
    fmt = FORMATS[name]
    text = fmt.render_completion(TEXTS["zh"], "4")
    assert score(text, "zh", fmt=fmt) == 1.0
    assert score(text, "en", fmt=fmt) == 0.0
    empty = fmt.layout.replace("{reasoning}", "").replace("{answer}", "4")
    assert score(empty, "en", fmt=fmt) == 0.0


@pytest.mark.parametrize("code", TEXTS)
def test_the_prompt_s_own_language(code):
    prompt = [
        {"role": "system", "content": TEXTS["en" if code != "en" else "zh"]},
        {"role": "user", "content": TEXTS["ko" if code != "ko" else "th"]},
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": TEXTS[code]},
    ]
    assert score(wrap(TEXTS[code]), prompt=prompt) == 1.0
    assert score(wrap(TEXTS["zh" if code != "zh" else "en"]), prompt=prompt) == 0.0
    assert score(wrap(TEXTS[code]), prompt=TEXTS[code]) == 1.0


def test_column_before_parameter_before_prompt():
    text = wrap(TEXTS["zh"])
    assert score(text, "en", TEXTS["en"], language=["zh"]) == 1.0
    assert score(text, "zh", TEXTS["en"], language=[""]) == 1.0
    assert score(text, "zh", TEXTS["en"], language=[None]) == 1.0
    assert score(text, None, TEXTS["en"]) == 0.0
    assert score(text, None, TEXTS["en"], language=["zh-CN"]) == 1.0
    assert score(text, "Chinese", TEXTS["en"]) == 1.0


@pytest.mark.parametrize(
    "prompt", ["", "1 + 1 = ?", "Compute $x$", [], [{"role": "user", "content": None}], None]
)
def test_a_prompt_in_no_language_is_not_judged(prompt):
    assert score(wrap(TEXTS["en"]), prompt=prompt) is None


def test_a_language_column_it_does_not_know_is_not_judged_and_logged_once(caplog):
    with caplog.at_level(logging.WARNING):
        values = LanguageConsistencyReward(FMT)(
            completions=[wrap(TEXTS["en"])] * 2, prompts=["", ""], language=["tlh", "tlh"]
        )
    assert values == [None, None]
    assert [record.getMessage().count("'tlh'") for record in caplog.records] == [1]


def test_an_unknown_target_is_refused_with_the_list():
    with pytest.raises(ValueError, match="language_consistency_target 'xx'") as error:
        LanguageConsistencyReward(FMT, "xx")
    assert all(code in str(error.value) for code in LANGUAGES)


WORDS = st.sampled_from(
    [
        *" ".join(TEXTS.values()).split(),
        "$",
        "```",
        "\\[",
        "\\frac{",
        "<think>",
        "</think>",
        "<answer>",
        "\n",
        "7",
    ]
)


@settings(deadline=None)
@given(
    text=st.one_of(st.text(), st.lists(WORDS, max_size=40).map(" ".join)),
    target=st.sampled_from(sorted(LANGUAGES)),
)
def test_range(text, target):
    for completion in (text, wrap(text)):
        assert 0.0 <= score(completion, target) <= 1.0


@pytest.mark.parametrize("target", ["en", "zh", "ja", "ru", None])
def test_hostile_completions(target):
    reward = LanguageConsistencyReward(FMT, target)
    with seconds(10):
        assert (
            len(reward(completions=[*HOSTILE, TEXTS["fr"] * 2000], prompts=[*HOSTILE, "p"]))
            == len(HOSTILE) + 1
        )


def test_a_long_text_is_judged_along_its_whole_length():
    # 500 English sentences, then 500 French ones: the sentences that are looked at are spread
    # evenly.
    text = TEXTS["en"] * 250 + " " + TEXTS["fr"] * 250
    assert score(wrap(text), "en") == pytest.approx(0.5, abs=0.1)


def test_pickles():
    reward = LanguageConsistencyReward(FMT, "en")
    score(wrap(TEXTS["en"]), "en")  # the detector is loaded
    assert pickle.loads(pickle.dumps(reward)) == reward
    assert reward.__name__ == "language_consistency"
