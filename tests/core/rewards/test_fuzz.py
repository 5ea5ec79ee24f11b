"""Random and hostile completions through every parser and every reward: none raises, none leaves
its documented range, the same batch gets the same rewards, and the order of a batch does not
matter.

A case is one completion read by one response format or judged by one reward.
``R1_FUZZ_CASES=5000000`` runs more than the default of 3,000. What fails is named with its
completion; hypothesis prints the seed to run it again.
"""

import os
import re
from fractions import Fraction
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from r1_recipes.common.messages import completion_texts
from r1_recipes.prompts import FORMATS
from r1_recipes.rewards import REWARDS, get_reward_funcs, reward_parameters
from r1_recipes.rewards.answers import parsed_answer

pytestmark = pytest.mark.slow

CASES = int(os.environ.get("R1_FUZZ_CASES", 3_000))
BATCH = 64

# These run a model, or the completion's code as a program; their own tests are hostile enough.
NEEDS_MORE = {"code", "binary_code"}
NAMES = sorted(name for name in REWARDS if name not in NEEDS_MORE and ":" not in name)

TAGS = sorted(
    {
        tag
        for fmt in FORMATS.values()
        for tags in (fmt.reasoning_tags, fmt.answer_tags)
        for tag in tags or ()
    }
)
WORDS = r"""
    \boxed{ { } ( ) [ ] $ $$ \( \) \ , . ; : ? ^ _ = < | ! x and or not 我们先算一下。 คำตอบคือ ответ 🦆 é ﷽ Ω
    0 7 72 -3 1,080 1080.00 .5 1e9 ٣ ½ 50% 3/4 \frac{3}{4} \sqrt{2} \pi x^2 A (B) B. 9**9**9 9^{9^{9}}
    \cup \begin{pmatrix}1\\2\end{pmatrix} [1,2) \{1,2\} y=2x+3 1\le90^\circ 2+3i \infty __import__('os')
"""
PIECES = [
    *TAGS,
    *WORDS.split(),
    *("\n", "\n\n", " ", "\t", "\0", "\u202e", "\u200b", "\ud800", "\udfff", "e\u0301"),
    *("the answer is", "Answer:", "####", "#### 72", "Step 1:", "First,", "1. ", "- "),
    *("```python\nprint(1)\n```", "The duck crossed the road. ", r"5\text{ cm}"),
    *("44 + 19 - 35", "7 * 4 + 3", "(7+4)*3 = 33", "44 / 0"),
]
GOLD_WORDS = r"72 1,080 0.5 50% \frac{3}{4} 2\sqrt{3} (1,2) \{1,2\} y=2x+3 x^2+2x+1 B Pancreas"
GOLDS = [*GOLD_WORDS.split(), r"\text{Evelyn}", None, "", 72]
PUZZLES = [([44, 19, 35], 28), ([7, 4, 3], 31)]


def completion(rng):
    """A text in some format, near one, or in none."""
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(PIECES) * rng.choice((0, 1, 2, 50, 3000))
    text = "".join(rng.choices(PIECES, k=rng.randint(0, 12)))
    if kind < 0.3:
        return text
    fmt = rng.choice(list(FORMATS.values()))
    answer = rng.choice(PIECES) if rng.random() < 0.7 else "".join(rng.choices(PIECES, k=3))
    text = fmt.layout.replace("{reasoning}", text).replace("{answer}", answer)
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice(PIECES) + text[at + rng.randint(0, 3) :]
    return text


def as_trl_has_it(text, rng):
    """A plain completion, or the conversation that a chat model's is."""
    message = {"role": "assistant", "content": text}
    return rng.choice(
        (
            text,
            text,
            [message],
            [message],
            [{**message, "content": [{"type": "text", "text": text}]}],
            [],
        )
    )


def batch_of(rng, texts):
    rows = []
    while len(rows) < BATCH:
        prompt = [{"role": "user", "content": f"What is {rng.randint(1, 5)} * 7?"}]
        gold, puzzle = rng.choice(GOLDS), rng.choice(PUZZLES)
        for _ in range(4):  # a group of one prompt
            text = texts.pop() if texts else completion(rng)
            rows.append(
                {
                    "prompts": prompt,
                    "completions": as_trl_has_it(text, rng),
                    "completion_ids": [1] * rng.choice((0, 1, 5, 400, 20_000)),
                    "solution": gold,
                    "puzzle": puzzle,
                    "language": rng.choice(("en", "zh", None)),
                }
            )
    return rows


def columns(rows, name):
    found = {key: [row[key] for row in rows] for key in rows[0] if key != "puzzle"}
    if name == "countdown":
        found["nums"] = [row["puzzle"][0] for row in rows]
        found["target"] = [row["puzzle"][1] for row in rows]
    return found


def documented_range(name):
    """Lower and upper bound, and the allowed values where the docstring lists them; a parameter's
    name stands for its default.
    """
    said = REWARDS[name].__doc__ + "\n\n"
    sentence = re.search(r"Range: (.*?)(?:\.\s|;|\n\n)", said, re.DOTALL)[1]
    defaults = {key: p.default for key, p in reward_parameters([name]).items()}

    def number(text):
        text = text.strip(" `\n")
        return float(defaults[text]) if text in defaults else float(Fraction(text))

    listed = re.match(r"\{([^}]*)\}", sentence)
    if listed:
        values = [number(text) for text in listed[1].split(",")]
        return min(values), max(values), values
    bound = r"(``\w+``|-?\d+(?:\.\d+)?)"
    bounds = re.search(rf"{bound}\.\.{bound}", sentence)
    if bounds:
        return number(bounds[1]), number(bounds[2]), None
    most = re.search(r"at most (-?[\d.]+)", sentence)
    return (float("-inf"), number(most[1]), None) if most else None


RANGES = {name: documented_range(name) for name in NAMES}
NAMES = [name for name in NAMES if RANGES[name]]  # of the others nothing is promised


def check_reward(name, func, rows, order):
    first = func(**columns(rows, name))
    low, high, listed = RANGES[name]
    assert len(first) == len(rows), name
    for row, reward in zip(rows, first, strict=True):
        fits = reward is None or (
            low - 1e-9 <= reward <= high + 1e-9
            and (listed is None or min(abs(reward - x) for x in listed) < 1e-9)
        )
        assert fits, (
            f"{name} gave {reward!r}, which is not in its range, for {row['completions']!r}"
        )
    again = func(**columns([rows[index] for index in order], name))
    for position, index in enumerate(order):
        assert again[position] == first[index], (
            f"{name}: {first[index]!r}, then {again[position]!r} for {rows[index]['completions']!r}"
        )


def test_fuzz():
    per_batch = BATCH * (len(NAMES) + len(FORMATS))
    done = 0

    @seed(int(os.environ.get("R1_FUZZ_SEED", 1)))
    @settings(
        max_examples=-(-CASES // per_batch),
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a seed does not shrink
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.integers(0, 2**63),
        st.lists(st.text(max_size=60), max_size=6),
        st.sampled_from(sorted(FORMATS)),
    )
    def fuzz(number, texts, format_name):
        nonlocal done
        rng = Random(number)
        rows = batch_of(rng, list(texts))
        order = rng.sample(range(len(rows)), len(rows))
        for fmt in FORMATS.values():
            texts = completion_texts([row["completions"] for row in rows])
            assert all(isinstance(parsed_answer(fmt, text), str | None) for text in texts)
        for name in NAMES:
            check_reward(name, get_reward_funcs([name], format_name)[0], rows, order)
        done += per_batch

    fuzz()
    assert done >= CASES
