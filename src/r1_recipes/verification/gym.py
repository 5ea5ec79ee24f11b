"""Which scorers of reasoning-gym judge here. Each was read, in 0.1.25: to a scorer the answer is hostile, and so is a row of a file."""

from __future__ import annotations

import json

from r1_recipes.verification.reading import MAX_ANSWER_CHARS
from r1_recipes.verification.scorers import SCORERS, Compare, Run, register_scorer

_READ = """
ab acre advanced_geometry aiw arc_1d base_conversion basic_arithmetic bf binary_alternation boxnet caesar_cipher calendar_arithmetic
chain_sum circuit_logic codeio color_cube_rotation count_bits count_primes course_schedule cryptarithm decimal_arithmetic
decimal_chain_sum dice emoji_mystery family_relationships figlet_font fraction_simplification futoshiki game_of_life gcd graph_color
group_anagrams isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm leg_counting
letter_counting letter_jumble list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid needle_haystack
number_filtering number_format number_sequence palindrome_generation palindrome_partitioning path_star polynomial_equations
pool_matrix power_function prime_factorization products quantum_lock ransom_note rectangle_count rotate_matrix rotten_oranges
rubiks_cube rush_hour self_reference sentence_reordering shortest_path simple_equations simple_geometry sokoban spell_backward
string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder
word_sequence_reversal word_sorting zebra_puzzles
"""
SCORED = frozenset(_READ.split())
"""Evaluate no text, and give full marks to no wrong answer that is the same for every row."""

SAME_TEXT = frozenset(("arc_agi", "binary_matrix", "game_of_life_halting", "rearc", "spiral_matrix", "string_insertion"))
"""Have one right text, which is compared here: their scorers evaluate the answer, pay any, or pay none once the row has been JSON."""

GRADED = frozenset(("coin_flip", "gsm_symbolic"))
"""Have a number for an answer, which math-verify compares: their scorers pay 0, or a text that holds the number."""

REFUSED = {
    "evaluates the answer or the row as Python": (
        *("bitwise_arithmetic", "composite", "intermediate_integration", "n_queens", "number_sorting", "polynomial_multiplication"),
        *("puzzle24", "simple_integration"),
    ),
    "gives full marks to the answer nan": ("complex_arithmetic",),
    "gives full marks to a premise that is copied from the question": ("propositional_logic",),
}


def check_task(task: str) -> None:
    """Refuse a task that cannot be judged here.

    Raises:
        ValueError: names the task, why, and what to do.
    """
    if task in SCORERS or task in SCORED | SAME_TEXT | GRADED:
        return
    reason = next((reason for reason, tasks in REFUSED.items() if task in tasks), "is not one that was checked")
    raise ValueError(
        f"reasoning-gym's task {task!r}: its scorer {reason}, so it is not used. Fix: leave its rows out, or compare with their answer "
        "(mapper: prompt_solution, prompt_column: question, solution_column: answer)"
    )


@register_scorer("reasoning_gym")
def score(spec: str, answer: str | None) -> bool | Compare | Run:
    """Judge an answer to a task of reasoning-gym; a checker of our own goes before the task's."""
    try:
        parsed = json.loads(spec)
        task, entry = parsed["reasoning_gym"], parsed["entry"]
    except KeyError:
        task = entry = None
    if not isinstance(task, str) or not isinstance(entry, dict):
        raise ValueError(f'a scorer must be JSON {{"reasoning_gym": task name, "entry": {{…}}}}, got {spec[:80]!r}')
    check_task(task)
    if task in SCORERS:
        return SCORERS[task](spec, answer)
    if answer is None or len(answer) > 8 * MAX_ANSWER_CHARS:  # A task may ask for a whole grid.
        return False
    gold = "" if entry.get("answer") is None else str(entry["answer"])
    if task in GRADED:
        return Compare(gold)
    if task in SAME_TEXT:
        return same_text(answer, gold)
    return Run("r1_recipes.verification.gym_worker:score", (spec, answer))


def same_text(answer: str, gold: str) -> bool:
    """Whether two texts are alike but for white space inside and around their lines; nothing is like an empty one."""
    found, wanted = ([line.split() for line in text.strip().splitlines()] for text in (answer, gold))
    return found == wanted != []
