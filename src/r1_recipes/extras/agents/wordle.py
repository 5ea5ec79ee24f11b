"""Wordle: find a word of five letters by what each guess has in common with it."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from r1_recipes.extras.agents.registry import register_environment

_WORDS = Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split()
# ASCII only. re.IGNORECASE and str.lower also take the Kelvin sign for a k.
_FIVE_LETTERS = re.compile("[A-Za-z]{5}")
_QUESTION = (
    "Find the hidden English word of five letters. The answer to a guess has a sign for each of "
    "its letters: G if the letter is in the right place, Y if the word has it elsewhere, X if the "
    "word does not have it or not as often. Think before each guess."
)


@register_environment("wordle")
@dataclass
class Wordle:
    """Find a hidden word of five letters. Each guess is answered letter by letter.

    The reward for the word is 1 + 1 / (number of guesses). Without it, the last valid guess scores
    0.2 per G and 0.1 per Y. Range: 0..2; 1 or more if the word was found. Source: the rubric of
    wordle in PrimeIntellect-ai/verifiers (commit 8d4b332), without its reward for the format.

    A guess that is not five letters from a to z, or was made before, uses no try, but counts for
    the reward. The second one in a row ends the game, as in TextArena's Wordle (commit 0ce4609).
    """

    wordle_tries: int = 6

    def __post_init__(self) -> None:
        if self.wordle_tries < 1:
            raise ValueError("wordle_tries: must be at least 1")

    @classmethod
    def draw(cls, rng: Random) -> dict[str, Any]:
        """Return a row for :meth:`reset`, with one of the words in ``words.txt``."""
        return {"question": _QUESTION, "word": rng.choice(_WORDS)}

    def reset(self, word: str, **row: Any) -> str:
        if not _is_word(word):
            raise ValueError(f"word: must be five letters from a to z, got {word!r}")
        self._word, self._over = word.lower(), False
        self._valid: list[str] = []
        self._invalid = 0
        self._warned = False
        return f" You have {self.wordle_tries} guesses."

    def guess(self, word: str) -> str:
        """
        Guess the word.

        Args:
            word: Five letters from a to z.
        """
        if self._over:
            return "The game is over."
        if not _is_word(word):
            return self._reject("A guess must be five letters from a to z.")
        if word.lower() in self._valid:
            return self._reject("You have made this guess before.")
        self._warned = False
        return self._answer(word.lower())

    def get_reward(self) -> float:
        if not self._valid:
            return 0.0
        signs = _signs(self._valid[-1], self._word)
        if signs == "GGGGG":
            return 1 + 1 / (len(self._valid) + self._invalid)
        return (2 * signs.count("G") + signs.count("Y")) / 10

    def _reject(self, reason: str) -> str:
        """Answer an invalid guess. The second one in a row ends the game."""
        self._invalid += 1
        self._over, self._warned = self._warned, True
        return f"{reason} {'The game is over.' if self._over else 'Guess again.'}"

    def _answer(self, guess: str) -> str:
        self._valid.append(guess)
        left = self.wordle_tries - len(self._valid)
        self._over = guess == self._word or left < 1
        if guess == self._word:
            return "Right. The game is over."
        signs = f"{' '.join(guess.upper())}\n{' '.join(_signs(guess, self._word))}\n"
        return signs + (f"The word was {self._word}." if self._over else f"Guesses left: {left}.")


def _is_word(word: object) -> bool:
    return isinstance(word, str) and _FIVE_LETTERS.fullmatch(word) is not None


def _signs(guess: str, word: str) -> str:
    """Return a sign per letter of a guess: G right place, Y elsewhere in the word, X neither.

    Letters in the right place come first. What the word has left of a letter is Y, from the left.
    """
    pairs = list(zip(guess, word, strict=True))
    left = Counter(right for letter, right in pairs if letter != right)
    signs = ""
    for letter, right in pairs:
        if letter == right:
            signs += "G"
        elif left[letter]:
            left[letter] -= 1
            signs += "Y"
        else:
            signs += "X"
    return signs
