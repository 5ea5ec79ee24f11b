"""The words that Wordle draws, the signs of a guess, what a guess costs and what a game scores."""

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from r1_recipes.extras.agents.guard import Limits
from r1_recipes.extras.agents.registry import ENVIRONMENTS, build_environments
from r1_recipes.extras.agents.rows import environment_rows
from r1_recipes.extras.agents.wordle import _WORDS, _signs

# Few letters, so that most words repeat some.
WORDS = st.text("abc", min_size=5, max_size=5)
CONFIG = {"train": {"size": 1200, "seed": 1}, "test": {"size": 100, "seed": 2}}


def start(word="crane", tries=6):
    game = build_environments("wordle", {"wordle_tries": tries}, Limits())[None]()
    game.said = game.reset(word=word, question="?", environment="wordle")
    return game


def play(*guesses, word="crane", tries=6):
    game = start(word, tries)
    return [game.guess(guess) for guess in guesses], game.get_reward()


def oracle(guess, word):
    """The rule, position by position, without the bookkeeping of the code.

    A letter in the wrong place is Y if fewer of its kind were Y before it than the word has outside
    its right places.
    """
    wrong = [i for i in range(5) if guess[i] != word[i]]
    signs = []
    for i in range(5):
        spare = sum(word[j] == guess[i] for j in wrong)
        earlier = sum(guess[j] == guess[i] for j in wrong if j < i)
        signs.append("G" if i not in wrong else "Y" if earlier < spare else "X")
    return "".join(signs)


@given(guess=WORDS, word=WORDS)
@example("abbey", "kebab")
def test_signs_are_those_of_the_rule(guess, word):
    signs = _signs(guess, word)
    assert signs == oracle(guess, word)
    for letter in set(guess):
        shown = sum(sign != "X" for sign, its in zip(signs, guess, strict=True) if its == letter)
        assert shown == min(guess.count(letter), word.count(letter))


@pytest.mark.parametrize(
    ("guess", "word", "signs"),
    [
        ("crane", "crane", "GGGGG"),
        ("nacre", "crane", "YYYYG"),
        ("moist", "crane", "XXXXX"),
        ("speed", "abide", "XXYXY"),  # one e in the word: the first is Y, the second X
        ("eerie", "crane", "XXYXG"),  # its e is in the right place, none is left
        ("allay", "llama", "YGYYX"),
        ("abbey", "kebab", "YYGYX"),
    ],
)
def test_signs_of_words_with_repeated_letters(guess, word, signs):
    assert _signs(guess, word) == oracle(guess, word) == signs


def test_a_guess_is_answered_letter_by_letter_in_any_case():
    said, _ = play("NaCre", "crane")
    assert said == ["N A C R E\nY Y Y Y G\nGuesses left: 5.", "Right. The game is over."]
    assert play("NaCre", word="CRANE")[0] == said[:1]


def test_the_prompt_names_the_tries_and_the_last_answer_the_word():
    assert start(tries=2).said == " You have 2 guesses."
    said, _ = play("moist", "nacre", tries=2)
    assert "The word was crane." in said[1] and "crane" not in said[0]


@pytest.mark.parametrize("before", range(6))
def test_the_word_scores_1_and_1_by_the_number_of_guesses(before):
    wrong = ["moist", "light", "dough", "pluck", "buddy"][:before]
    assert play(*wrong, "crane")[1] == 1 + 1 / (before + 1)


def test_who_knows_the_word_gets_2():
    for seed in range(20):
        row = ENVIRONMENTS["wordle"].draw(Random(seed))
        game = build_environments("wordle", {}, Limits())[None]()
        game.reset(**row)
        assert game.guess(row["word"]).startswith("Right")
        assert game.get_reward() == 2.0


@pytest.mark.parametrize(
    ("guesses", "reward"),
    [
        ([], 0.0),
        (["moist"], 0.0),
        (["nacre"], 0.6),
        (["crate"], 0.8),
        (["crate", "moist"], 0.0),  # the last guess counts, not the best
        (["crate", "later"], 0.3),
        (["crate", "no"], 0.8),  # the last valid one
        (["no", "no"], 0.0),
    ],
)
def test_without_the_word_the_last_valid_guess_scores_by_its_signs(guesses, reward):
    assert play(*guesses)[1] == reward


INVALID = [
    "",
    "cat",
    "cranes",
    "cran e",
    "crane\n",
    "12345",
    "١٢٣٤٥",
    "ｃｒａｎｅ",
    "crıne",
    "naïve",
    "\N{KELVIN SIGN}oala",
    "\N{LATIN SMALL LETTER LONG S}mart",
    "\ud800bcde",
    "a" * 10_000_000,
    7,
    12345,
    1.5,
    True,
    None,
    ["c", "r", "a", "n", "e"],
    {"word": "crane"},
]


@pytest.mark.parametrize("guess", INVALID, ids=lambda guess: repr(guess)[:20])
def test_an_invalid_guess_uses_no_try_and_counts_for_the_reward(guess):
    said, reward = play(guess, "crane", tries=1)
    assert "five letters" in said[0] and len(said[0]) < 100
    assert reward == 1.5
    said, _ = play("moist", guess, "light")
    assert said[2].endswith("Guesses left: 4.")


def test_a_guess_made_before_is_invalid():
    said, reward = play("moist", "MOIST", "crane")
    assert "before" in said[1] and reward == 1 + 1 / 3


def test_two_invalid_guesses_in_a_row_end_the_game():
    said, reward = play("crate", "no", "moist", "no", "no", "crane")
    assert said[1].endswith("Guess again.") and "Guesses left: 4" in said[2]
    assert said[3].endswith("Guess again.") and said[4].endswith("The game is over.")
    assert said[5] == "The game is over." and reward == 0.0


@pytest.mark.parametrize("tries", [1, 6])
def test_every_game_ends(tries):
    game = start("zebra", tries)
    guesses = ["no", "moist", "no", "light", "no", "dough", "no", "pluck", "no", "funny"]
    said = [game.guess(guess) for guess in [*guesses, "no", "chomp", "crane"]]
    assert said[-1] == "The game is over."


@pytest.mark.parametrize(
    "guesses",
    [["crane"], ["moist", "light", "dough", "pluck", "buddy", "crate"], ["crate", "no", "no"]],
)
def test_guesses_after_the_end_change_nothing(guesses):
    game = start()
    for guess in guesses:
        game.guess(guess)
    reward = game.get_reward()
    for guess in ("crane", "moist", "", None, "crane"):
        assert game.guess(guess) == "The game is over."
        assert game.get_reward() == reward


# Guesses that are no words, to learn the letters: allowed, and of no use without the word.
ALPHABET = ["abcde", "fghij", "klmno", "pqrst", "uvwxy", "zzzzz"]


@settings(deadline=None, max_examples=50)  # each call of a tool starts a thread
@given(word=WORDS | st.sampled_from(_WORDS), last=WORDS | st.sampled_from(ALPHABET))
def test_no_game_without_the_word_scores_as_much_as_a_game_with_it(word, last):
    wins = 1 + 1 / 12  # the word at the last of six tries, with an invalid guess before each
    for guesses in (ALPHABET, [*ALPHABET[:5], last], [last], [word[::-1]], [word[:4] + "z"]):
        _, reward = play(*guesses, word=word)
        won = word in guesses[:6]
        assert reward >= wins if won else 0.0 <= reward <= 0.8
    slow = [guess for wrong in ALPHABET[:5] for guess in ("", wrong)]
    if word not in slow:
        assert play(*slow, "", word, word=word)[1] == wins


def test_a_new_game_forgets_the_last_one():
    game = start()
    for guess in ("moist", "no", "no"):
        game.guess(guess)
    game.reset(word="moist")
    assert game.get_reward() == 0.0
    assert game.guess("moist").startswith("Right") and game.get_reward() == 2.0


@pytest.mark.parametrize("word", ["", "seven7", "naïve", "word", None])
def test_a_row_without_a_word_of_five_letters_is_named(word, caplog):
    game = start(word)
    assert "five letters" in caplog.text and game.get_reward() is None


def test_the_words_are_different_and_of_five_letters():
    assert len(_WORDS) == len(set(_WORDS)) >= 900
    assert all(len(word) == 5 and set(word) <= set("abcdefghijklmnopqrstuvwxyz") for word in _WORDS)
    assert sorted(_WORDS) == _WORDS


def test_rows_are_drawn_anew_and_no_word_is_trained_on_and_tested():
    draw = ENVIRONMENTS["wordle"].draw
    assert draw(Random(5)) == draw(Random(5)) != draw(Random(6))
    train, test = (environment_rows("wordle", split, CONFIG) for split in ("train", "test"))
    assert (len(train), len(test)) == (1200, 100)
    assert len({*train["word"], *test["word"]}) == 1300
    assert [*train["word"]] == [*environment_rows("wordle", "train", CONFIG)["word"]]
