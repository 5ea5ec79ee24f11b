"""Checkers of rows that have a ``scorer`` column instead of a gold: the table of tasks, and reasoning-gym's tasks in it.

Data names a key of the table; it cannot name a module. To a scorer of reasoning-gym the answer is hostile, and so is a row of a file:
only those that were read judge here.
"""

import functools
import json
from collections.abc import Callable

from r1_recipes.common.plugins import register
from r1_recipes.verification.pool import Task
from r1_recipes.verification.reading import MAX_ANSWER_CHARS

Scorer = Callable[[str, str | None], bool | Task]
"""Judge an answer (``None``: there is none) by a row's scorer column, or name the function that judges it in a worker.

Raise ``ValueError`` if the column is wrong, whatever the answer; such a function returns a text for it.
"""

SCORERS: dict[str, Scorer] = {}


def register_scorer(key: str) -> Callable[[Scorer], Scorer]:
    """Register the checker of scorer columns ``{"key": …}``, when its module is imported."""
    return functools.partial(register, SCORERS, "scorer", key)


@functools.lru_cache(4096)
def scorer_of(spec: str) -> Scorer:
    """Return the checker that a scorer column names; ``ValueError``: it is no JSON object, or names none."""
    try:
        parsed = json.loads(spec)
    except (ValueError, TypeError, RecursionError):
        parsed = None
    key = next((key for key in SCORERS if key in parsed), None) if isinstance(parsed, dict) else None
    if key is None:
        raise ValueError(f"scorer: a scorer must be JSON {{one of {sorted(SCORERS)}: …}}, got {spec[:80]!r}")
    return SCORERS[key]


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
"""Tasks of reasoning-gym 0.1.25 whose scorers evaluate no text and give full marks to no wrong answer that is the same for every row."""

SAME_TEXT = frozenset(("arc_agi", "binary_matrix", "game_of_life_halting", "rearc", "spiral_matrix", "string_insertion"))
"""Tasks with one right text, which is compared here: their scorers evaluate the answer, pay any, or pay none once the row has been JSON."""


def check_task(task: str) -> None:
    """Refuse, by ``ValueError``, a task that cannot be judged here."""
    if task not in SCORED | SAME_TEXT | (SCORERS.keys() - {"reasoning_gym"}):
        raise ValueError(
            f"reasoning-gym's task {task!r}: its scorer runs texts, pays wrong answers, or was not checked (docs/verification.md), so "
            "it is not used. Fix: leave its rows out, or compare with their answer (mapper: prompt_solution, prompt_column: question, "
            "solution_column: answer)"
        )


@register_scorer("reasoning_gym")
def score(spec: str, answer: str | None) -> bool | Task:
    """Judge an answer to a task of reasoning-gym; a checker of our own goes before the task's."""
    parsed = json.loads(spec)
    task, entry = parsed["reasoning_gym"], parsed.get("entry")
    if not isinstance(task, str) or not isinstance(entry, dict):
        raise ValueError(f'a scorer must be JSON {{"reasoning_gym": task name, "entry": {{…}}}}, got {spec[:80]!r}')
    check_task(task)
    if task in SCORERS:
        return SCORERS[task](spec, answer)
    if answer is None or len(answer) > 8 * MAX_ANSWER_CHARS:  # A task may ask for a whole grid.
        return False
    gold = "" if entry.get("answer") is None else str(entry["answer"])
    if task in SAME_TEXT:
        return same_text(answer, gold)
    return "r1_recipes.verification.gym_worker:score", spec, answer


def same_text(answer: str, gold: str) -> bool:
    """Whether two texts are alike but for white space inside and around their lines; nothing is like an empty one."""
    found, wanted = ([line.split() for line in text.strip().splitlines()] for text in (answer, gold))
    return found == wanted != []
