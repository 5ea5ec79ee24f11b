"""language_consistency: shares worked by hand for scripts, the detector for languages that share
one, and what does not count.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.prompts import FORMATS
from r1_recipes.rewards.language import LANGUAGES, language_consistency

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
    columns |= {"completions": [completion], "prompts": [prompt], "trainer_state": None}
    [value] = language_consistency(**columns, fmt=fmt, language_consistency_target=target)
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


def test_column_before_parameter_before_prompt():
    text = wrap(TEXTS["zh"])
    assert score(text, "en", TEXTS["en"], language=["zh"]) == 1.0
    assert score(text, "zh", TEXTS["en"], language=[""]) == 1.0
    assert score(text, "zh", TEXTS["en"], language=[None]) == 1.0
    assert score(text, None, TEXTS["en"]) == 0.0
    assert score(text, None, TEXTS["en"], language=["zh-CN"]) == 1.0


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
