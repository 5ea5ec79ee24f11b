"""A task of several messages: keep a growing list of names in alphabetical order."""

from dataclasses import dataclass
from difflib import SequenceMatcher
from random import Random
from typing import Any

from r1_recipes.extras.agents.registry import register_environment

_BEGINNINGS = ("Al", "Bo", "Cor", "Del", "En", "Fa", "Gar", "Hol", "Is", "Jun", "Kel", "Lor")
_ENDINGS = ("an", "bert", "da", "eth", "fin", "gor", "ia", "ken", "lis", "mar", "nor", "vin")
_NEW = " // new name!"
# A longer list is no attempt: comparing takes time with the product of the lengths.
_MAX_CHARS = 4000


@register_environment("alphabet_sort")
@dataclass
class AlphabetSort:
    """Sort names by first or last name, then sort the list again each time names are added.

    Names that are new to the list are marked. The reward is the mean likeness of the submitted
    lists and the right ones, to the power ``alphabet_sort_power``. Range: 0..1; 1 if every list is
    right. Source: the environment alphabet-sort of PrimeIntellect-ai/verifiers (commit a60a606).
    """

    alphabet_sort_power: int = 4

    def __post_init__(self) -> None:
        if self.alphabet_sort_power < 1:  # 0 would give an empty episode the full reward
            raise ValueError("alphabet_sort_power: must be at least 1")

    @classmethod
    def draw(
        cls, rng: Random, min_turns: int = 3, max_turns: int = 5, max_names: int = 5
    ) -> dict[str, Any]:
        """Return a row for :meth:`reset`: names for ``min_turns`` to ``max_turns`` lists.

        Each list adds 1 to ``max_names`` names, which are invented. The arguments are keys of
        ``task_config``.
        """
        every = [beginning + ending for beginning in _BEGINNINGS for ending in _ENDINGS]
        if not (1 <= min_turns <= max_turns and 1 <= max_names <= len(every) // max_turns):
            raise ValueError(
                f"min_turns and max_turns must be ordered numbers of at least 1, and max_turns x "
                f"max_names at most {len(every)}"
            )
        counts = [rng.randint(1, max_names) for _ in range(rng.randint(min_turns, max_turns))]
        # No first name and no last name twice, so that there is one right order.
        names = zip(rng.sample(every, sum(counts)), rng.sample(every, sum(counts)), strict=True)
        added = [[f"{first} {last}" for first, last in _take(names, count)] for count in counts]
        by = rng.choice(["first", "last"])
        question = (
            f"Sort these names in alphabetical order by {by} name, and submit the list: "
            f"{', '.join(added[0])}"
        )
        return {"question": question, "by": by, "added": added}

    def reset(self, by: str, added: list[list[str]], **row: Any) -> None:
        self._by, self._added = by, added
        self._scores: list[float] = []

    def submit(self, names: list[str]) -> str:
        """
        Give your sorted list.

        Args:
            names: The names in order, one per entry.
        """
        if not isinstance(names, list):  # a text would be read letter by letter, and lose the turn
            raise TypeError("names must be a list of names")
        turn = len(self._scores)
        if turn == len(self._added):
            return "All lists are in."
        self._scores.append(_likeness(names, self._right(turn)))
        if turn + 1 == len(self._added):
            return "All lists are in. Say so."
        return (
            f"Now sort ALL names by {self._by} name, those of the list and these: "
            f"{', '.join(self._added[turn + 1])}. Write {_NEW.strip()!r} after each name that is "
            f"new, and submit the list."
        )

    def get_reward(self) -> float:
        return (sum(self._scores) / len(self._added)) ** self.alphabet_sort_power

    def _right(self, turn: int) -> list[str]:
        """Return the right list of a turn. In the first list, no name is marked."""
        names = [name for added in self._added[: turn + 1] for name in added]
        part = 0 if self._by == "first" else 1
        new = self._added[turn] if turn else []
        ordered = sorted(names, key=lambda name: name.split(" ")[part])
        return [name + _NEW if name in new else name for name in ordered]


def _take(names: Any, count: int) -> list[tuple[str, str]]:
    return [next(names) for _ in range(count)]


def _likeness(submitted: list[str], right: list[str]) -> float:
    """Return difflib's ratio of two lists, written one name per line in lower case."""
    one, other = (
        "\n".join(str(name).strip().lower() for name in names) for names in (submitted, right)
    )
    if len(one) > _MAX_CHARS:
        return 0.0
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
