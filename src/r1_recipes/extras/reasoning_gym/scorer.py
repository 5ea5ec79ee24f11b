"""Check answers with the scorers of reasoning-gym that have been reviewed and run no text."""

import json

from r1_recipes.verification.locate import MAX_ANSWER_CHARS
from r1_recipes.verification.pool import Task
from r1_recipes.verification.scorers import SCORERS, register_scorer

_READ = """
ab acre advanced_geometry aiw arc_1d base_conversion basic_arithmetic bf binary_alternation boxnet
caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio color_cube_rotation count_bits
count_primes course_schedule cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery
family_relationships figlet_font fraction_simplification futoshiki game_of_life gcd graph_color
group_anagrams isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm
leg_counting letter_counting letter_jumble list_functions mahjong_puzzle manipulate_matrix maze
mini_sudoku modulo_grid needle_haystack number_filtering number_format number_sequence
palindrome_generation palindrome_partitioning path_star polynomial_equations pool_matrix
power_function prime_factorization products quantum_lock ransom_note rectangle_count rotate_matrix
rotten_oranges rubiks_cube rush_hour self_reference sentence_reordering shortest_path
simple_equations simple_geometry sokoban spell_backward string_manipulation string_splitting
string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder
word_sequence_reversal word_sorting zebra_puzzles
"""
SCORED = frozenset(_READ.split())
"""Tasks of reasoning-gym 0.1.25 with safe scorers.

They evaluate no text, and give full marks to no wrong answer that is the same for every row.
"""

SAME_TEXT = frozenset(
    (
        "arc_agi",
        "binary_matrix",
        "game_of_life_halting",
        "rearc",
        "spiral_matrix",
        "string_insertion",
    )
)
"""Tasks with a single correct text, which is compared here.

Their scorers evaluate the answer, accept any answer, or reject every answer after the row has been
JSON.
"""


def check_task(task: str) -> None:
    """Raise ValueError for a task whose answers cannot be checked safely."""
    if task not in SCORED | SAME_TEXT | (SCORERS.keys() - {"reasoning_gym"}):
        raise ValueError(
            f"reasoning-gym's task {task!r}: its scorer runs text, accepts wrong answers, or "
            f"was not reviewed (docs/verification.md), so "
            "it is not used. Fix: remove its rows, or compare with their answer (mapper: "
            "prompt_solution, prompt_column: question, "
            "solution_column: answer)"
        )


@register_scorer("reasoning_gym")
def score(spec: str, answer: str | None) -> bool | Task:
    """Return whether an answer to a task is correct, or the call of a worker that decides it.

    A checker of this package takes precedence over the scorer of the task.
    """
    parsed = json.loads(spec)
    task, entry = parsed["reasoning_gym"], parsed.get("entry")
    if not isinstance(task, str) or not isinstance(entry, dict):
        raise ValueError(
            f'a scorer must be JSON {{"reasoning_gym": task name, "entry": {{…}}}}, got '
            f"{spec[:80]!r}"
        )
    check_task(task)
    if task in SCORERS:
        return SCORERS[task](spec, answer)
    if answer is None or len(answer) > 8 * MAX_ANSWER_CHARS:  # An answer may be a whole grid.
        return False
    solution = "" if entry.get("answer") is None else str(entry["answer"])
    if task in SAME_TEXT:
        return same_text(answer, solution)
    return "r1_recipes.extras.reasoning_gym.worker:score", spec, answer


def same_text(answer: str, solution: str) -> bool:
    """Return whether two texts differ only in white space inside and around their lines.

    An empty text equals no other text.
    """
    answer_lines, solution_lines = (
        [line.split() for line in text.strip().splitlines()] for text in (answer, solution)
    )
    return answer_lines == solution_lines != []
