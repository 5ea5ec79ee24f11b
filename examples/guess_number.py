"""A game with several messages: find a hidden number with hints.

r1-recipes grpo recipes/agents/calculator_qwen3_17b.yaml --environment examples/guess_number.py:GuessNumber \
    --dataset_name environment:examples/guess_number.py:GuessNumber --mapper environment --tools none --reward_funcs none \
    --task_config '{"train": {"size": 2000, "seed": 1}, "test": {"size": 100, "seed": 2}}' --output_dir outputs/guess_number
"""

from random import Random


class GuessNumber:
    """Every guess is answered with higher or lower. The reward is 1 if the number is found in six tries, else 0."""

    @classmethod  # Class methods are not tools.
    def draw(cls, rng: Random) -> dict:
        """Return a row: the question, and what reset takes."""
        low = rng.randint(1, 950)
        return {"question": f"I think of a whole number from {low} to {low + 49}. Find it.", "number": rng.randint(low, low + 49)}

    def reset(self, number: int, **row) -> None:
        self._number, self._left, self._found = number, 6, False

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
        return f"It is {'higher' if number < self._number else 'lower'}; {self._left} guesses left."

    def get_reward(self) -> float:
        return float(self._found)
