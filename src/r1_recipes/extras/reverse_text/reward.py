"""The reward for a text that resembles the reference answer."""

from difflib import SequenceMatcher

from r1_recipes.rewards.registry import AnswerReward, register_reward

# Comparing takes time with the cube of the length: half a second at most up to here.
MAX_CHARS = 300


@register_reward("text_similarity")
class TextSimilarity(AnswerReward):
    """Return how much of the answer and of the reference answer agree, character by character.

    Range: 0..1; 1.0 means equal. It is ``2 * matches / (both lengths)``, where the matches are the
    longest common block, and the same on both sides of it. Source: the environment reverse-text of
    PrimeIntellect-ai/verifiers (commit a60a606), which passes over frequent characters in texts of
    200 or more. This reward counts every character. Of an answer, only the first
    ``2 * len(gold)`` characters can match. Return ``None`` for a reference answer that is empty or
    has more than 300 characters.
    """

    graded = True

    def score(self, answer: str | None, gold: str) -> float | None:
        if not 0 < len(gold) <= MAX_CHARS:
            return None
        if answer is None:
            return 0.0
        # An endless answer must not take endless time. What is cut off still counts as length.
        read = answer[: 2 * len(gold)]
        matcher = SequenceMatcher(None, read, gold, autojunk=False)
        matches = sum(block.size for block in matcher.get_matching_blocks())
        return 2 * matches / (len(answer) + len(gold))
