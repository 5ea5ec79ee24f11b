"""Questions compared by their words: which occur in an evaluation set, and which were there before.

Case and Unicode's compatible forms count as equal. A **word** is a run of letters, digits and the
marks that belong to them, or one character of a script that is written without spaces. A **sign**
is any other character but white space and ordinary punctuation: brackets and operators are signs,
while commas, full stops, colons, quotation marks, ``$`` and ``\\`` are not.
"""

import hashlib
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence

import regex

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import UNSPACED, last_user_text
from r1_recipes.data.sources import load_rows
from r1_recipes.extras.selection.rules import Decontaminate, Deduplicate, EvaluationSet

# Accents, points and vowel signs (\p{M}) stand in the middle of a word.
_WORD = rf"[{UNSPACED}]|[^\W_{UNSPACED}]+"
_WORDS = regex.compile(_WORD)
_UNITS = regex.compile(rf"""{_WORD}|[^\w\s,.;:?'"`$\\،؟、。।॥„“”‘’«»—]""")
# Zero-width characters and soft hyphens: they are not seen, and would cut a word in two.
_UNSEEN = regex.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")


def _normalise(text: str) -> str:
    return unicodedata.normalize("NFKC", _UNSEEN.sub("", text)).casefold()


def words(text: str) -> list[str]:
    """The words of a text, normalised: ``"Tom's 2,500 x²"`` gives ``tom``, ``s``, ``2``, ``500``,
    ``x2``.
    """
    return _WORDS.findall(_normalise(text))


def units(text: str) -> list[str]:
    """The words and signs of a text, normalised."""
    return _UNITS.findall(_normalise(text))


def n_gram_hashes(sequence: Sequence[str], n: int) -> set[int]:
    """A 64-bit hash of every run of ``n`` entries; if there are fewer, of them all."""
    return (
        {_hash(sequence[i : i + n]) for i in range(max(1, len(sequence) - n + 1))}
        if sequence
        else set()
    )


def _hash(sequence: Sequence[str]) -> int:
    # Model-made and web text holds lone surrogates, which plain UTF-8 refuses.
    data = "\0".join(sequence).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def evaluation_questions(source: EvaluationSet, hub: str = "huggingface") -> list[str]:
    rows = load_rows(
        source.id, source.split, config=source.config, revision=source.revision, hub=hub
    )
    if source.column not in rows.column_names:
        columns = ", ".join(rows.column_names)
        raise RecipeError(
            f"keep: decontaminate: {source.id}: column: must be the question's, one of "
            f"{columns}, got {source.column!r}"
        )
    return [last_user_text(value) for value in rows[source.column]]


class Decontaminator:
    """Which questions share ``n`` words in a row (shorter ones: all) with an evaluation set; s1
    (arXiv:2501.19393, section 2.1): n = 8.
    """

    def __init__(self, rules: Decontaminate, hub: str = "huggingface") -> None:
        self._n = rules.n_grams
        self._known: dict[str, set[int]] = {}
        for source in rules.datasets:
            self.add(f"{source.id} ({source.split})", evaluation_questions(source, hub))

    def add(self, name: str, questions: Iterable[str]) -> None:
        self._known.setdefault(name, set()).update(
            *(n_gram_hashes(words(question), self._n) for question in questions)
        )

    def sources(self, question: str) -> list[str]:
        """The names of the evaluation sets that ``question`` overlaps with."""
        hashes = n_gram_hashes(words(question), self._n)
        return [name for name, known in self._known.items() if not hashes.isdisjoint(known)]


class Deduplicator:
    """Which questions were there before. Each is compared with those that were kept, so the first
    of a kind stays.

    ``exact`` refuses a question that differs from a kept one in white space alone; ``near`` one
    whose n-grams of words and signs have at least this Jaccard similarity with those of a kept one.
    """

    def __init__(self, rules: Deduplicate) -> None:
        self._rules = rules
        self._texts: set[int] = set()
        self._n_grams: list[array[int]] = []  # of each kept question
        self._with: dict[int, list[int]] = defaultdict(list)  # kept questions by n-gram

    def add(self, question: str) -> bool:
        """Remember a question. ``False``: it was there before, and is not remembered."""
        key = _hash(question.split())
        if self._rules.exact and key in self._texts:
            return False
        if self._rules.near is not None and not self._add_n_grams(
            n_gram_hashes(units(question), self._rules.n_grams), self._rules.near
        ):
            return False
        self._texts.add(key)
        return True

    def _add_n_grams(self, n_grams: set[int], near: float) -> bool:
        # Near questions share near * len(n_grams) of them at least, so they share one of these; the
        # rarest lead to the fewest questions.
        rarest = sorted(n_grams, key=lambda n_gram: len(self._with.get(n_gram, ())))[
            : len(n_grams) - int(near * len(n_grams)) + 1
        ]
        for number in {number for n_gram in rarest for number in self._with.get(n_gram, ())}:
            known = self._n_grams[number]
            shared = sum(n_gram in n_grams for n_gram in known)
            # A quotient is rounded to the number that a recipe's 0.55 is; 0.55 * 20 is above 11.
            if shared / (len(n_grams) + len(known) - shared) >= near:
                return False
        for n_gram in n_grams:
            self._with[n_gram].append(len(self._n_grams))
        self._n_grams.append(array("Q", n_grams))
        return True
