"""A game with several messages: find a hidden number with hints.

# guess_number.yaml, for accelerate launch -q -m r1_recipes.grpo guess_number.yaml
model_name_or_path: Qwen/Qwen3-1.7B
dataset_name: environment:examples/guess_number.py:GuessNumber
task_config: {train: {size: 2000, seed: 1}, test: {size: 100, seed: 2}}
mapper: environment
environment: examples/guess_number.py:GuessNumber
chat_template_kwargs: {enable_thinking: false}
num_generations: 8
per_device_train_batch_size: 8
output_dir: outputs/guess_number
"""

from random import Random


class GuessNumber:
    """Each guess is answered with higher or lower. The reward is 1 if six tries find the number."""

    @classmethod  # Class methods are not tools.
    def draw(cls, rng: Random) -> dict:
        """Return a row: the question, and what reset takes."""
        low = rng.randint(1, 950)
        question = f"I think of a whole number from {low} to {low + 49}. Find it."
        return {"question": question, "number": rng.randint(low, low + 49)}

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
        hint = "higher" if number < self._number else "lower"
        return f"It is {hint}; {self._left} guesses left."

    def get_reward(self) -> float:
        return float(self._found)
