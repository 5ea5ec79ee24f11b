"""A game with several messages: find a number with hints."""

from dataclasses import dataclass
from random import Random
from typing import Any

from r1_recipes.extras.agents.registry import register_environment


@register_environment("guess_number")
@dataclass
class GuessNumber:
    """Find a hidden number. Every guess is answered with higher or lower.

    The reward is 1 if the model finds the number in time, else 0.
    """

    guess_number_tries: int = 6

    @classmethod  # Class methods are not tools.
    def draw(cls, rng: Random, width: int = 50, high: int = 1000) -> dict[str, Any]:
        """Return a row for :meth:`reset`, with one of ``width`` consecutive numbers up to ``high``.

        ``width`` and ``high`` are keys of ``task_config``.
        """
        low = rng.randint(1, high - width + 1)
        question = f"I think of a whole number from {low} to {low + width - 1}. Find it."
        return {"question": question, "number": rng.randint(low, low + width - 1)}

    def reset(self, number: int, **row: Any) -> None:
        self._number, self._left, self._found = number, self.guess_number_tries, False

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: Your guess.
        """
        if self._found or not self._left:
            return "The game is over."
        self._left -= 1
        self._found = number == self._number
        if self._found:
            return "Right."
        hint = "higher" if number < self._number else "lower"
        return f"It is {hint}; {self._left} guesses left."

    def get_reward(self) -> float:
        return float(self._found)
