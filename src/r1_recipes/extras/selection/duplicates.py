"""Find questions that occur in an evaluation set.

Case and compatible forms of Unicode count as equal. A **word** is a run of letters, digits and
their marks, or a character of a script without spaces.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence

import regex

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import UNSPACED, last_user_text
from r1_recipes.data.sources import load_rows
from r1_recipes.extras.selection.rules import Decontaminate, EvaluationSet

# Accents, points and vowel signs (\p{M}) may be in the middle of a word.
_WORD = rf"[{UNSPACED}]|[^\W_{UNSPACED}]+"
_WORDS = regex.compile(_WORD)
# Zero-width characters and soft hyphens are invisible, and would split a word.
_UNSEEN = regex.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")


def _normalise(text: str) -> str:
    return unicodedata.normalize("NFKC", _UNSEEN.sub("", text)).casefold()


def words(text: str) -> list[str]:
    """Return the normalised words of a text.

    ``"Tom's 2,500 x²"`` gives ``tom``, ``s``, ``2``, ``500``, ``x2``.
    """
    return _WORDS.findall(_normalise(text))


def n_gram_hashes(sequence: Sequence[str], n: int) -> set[int]:
    """Return a 64-bit hash of every run of ``n`` entries, or of all entries if there are fewer."""
    return (
        {_hash(sequence[i : i + n]) for i in range(max(1, len(sequence) - n + 1))}
        if sequence
        else set()
    )


def _hash(sequence: Sequence[str]) -> int:
    # Text of models and of the web contains lone surrogates, which UTF-8 cannot encode.
    data = "\0".join(sequence).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def evaluation_questions(source: EvaluationSet, hub: str = "huggingface") -> list[str]:
    """Return the questions of an evaluation set."""
    rows = load_rows(
        source.id, source.split, config=source.config, revision=source.revision, hub=hub
    )
    if source.column not in rows.column_names:
        columns = ", ".join(rows.column_names)
        raise RecipeError(
            f"keep: decontaminate: {source.id}: column: must name the column of the "
            f"question, one of {columns}, got {source.column!r}"
        )
    return [last_user_text(value) for value in rows[source.column]]


class Decontaminator:
    """Finds questions that share ``n`` words in a row with an evaluation set.

    A shorter question must share all its words. s1 (arXiv:2501.19393, section 2.1) uses n = 8.
    """

    def __init__(self, rules: Decontaminate, hub: str = "huggingface") -> None:
        self._n = rules.n_grams
        self._known: dict[str, set[int]] = {}
        for source in rules.datasets:
            self.add(f"{source.id} ({source.split})", evaluation_questions(source, hub))

    def add(self, name: str, questions: Iterable[str]) -> None:
        """Add the questions of an evaluation set."""
        self._known.setdefault(name, set()).update(
            *(n_gram_hashes(words(question), self._n) for question in questions)
        )

    def sources(self, question: str) -> list[str]:
        """Return the names of the evaluation sets that ``question`` overlaps with."""
        hashes = n_gram_hashes(words(question), self._n)
        return [name for name, known in self._known.items() if not hashes.isdisjoint(known)]
