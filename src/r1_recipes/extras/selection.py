"""Select completions for a data set, by the rules of the recipe key ``keep``.

This is the rejection sampling of DeepSeek-R1 (arXiv:2501.12948, section 2.3.3): of the completions
that ``generate`` has stored, some become rows. Each completion that goes has one reason, the first
that applies.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import regex

from r1_recipes.common.errors import RecipeError, from_mapping, limited, require
from r1_recipes.common.messages import (
    UNSPACED,
    conversation_text,
    last_user_text,
    without_surrogates,
)
from r1_recipes.data.sources import load_rows
from r1_recipes.generation import Completion
from r1_recipes.prompts.formats import ParsedResponse, ResponseFormat
from r1_recipes.recipe.types import Recipe
from r1_recipes.rewards.call import score

Row = dict[str, Any]
HeldOut = dict[str, set[int]]  # hashes of the n-grams of each evaluation set
OWN_COLUMNS = ("question", "prompt", "response", "solution", "pass_rate", "tokens", "scores")
_WORDS = regex.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
# Not "```x = 3``` is", which is a formula in a sentence.
_FENCE = re.compile(r"^[ \t]*+`{3,}+[ \t]*+([^\s`]*+)[^`\n]*+$", re.MULTILINE)
_NOT_CODE = {"math", "latex", "tex", "text", "txt", "plaintext", "plain", "markdown", "md"}


@dataclass(frozen=True)
class Filters:
    """Drop completions by their form."""

    malformed: bool = False  # not in the response format
    truncated: bool = False  # cut at max_completion_length
    code: bool = False  # a block of program text in the reasoning
    max_tokens: int | None = limited(lambda n: n >= 1, "a whole number of 1 or more", None)


@dataclass(frozen=True)
class EvaluationSet:
    """A data set whose questions must not be in the result."""

    id: str  # as in dataset_name
    split: str = "test"
    config: str | None = None
    column: str = "question"  # text, or a conversation whose last user message is the question
    revision: str | None = None


@dataclass(frozen=True)
class Decontaminate:
    """Drop questions that share ``n_grams`` words in a row with an evaluation set.

    Eight are those of s1 (arXiv:2501.19393, section 2.1).
    """

    datasets: tuple[EvaluationSet, ...] = ()
    n_grams: int = limited(lambda n: n >= 1, "a whole number of 1 or more", 8)


@dataclass(frozen=True)
class Keep:
    """The rules of a recipe. A completion that the first reward does not score passes ``correct``.

    Attributes:
        correct: Drop completions whose first reward is below 1.
        best_of: How many completions of a prompt to keep: right ones first, then by the weighted
            sum of the other rewards, then shorter ones.
        at_least: The least score of each reward. A missing score is too low.
        filters: Drop completions by their form.
        pass_rate: The range of the share of right completions, of those with a score.
        output: ``"completions"`` for SFT, or ``"prompts"`` for RL.
        deduplicate: Drop questions that are equal to an earlier one.
        decontaminate: Drop questions of evaluation sets.
    """

    correct: bool = False
    best_of: int | None = limited(lambda n: n >= 1, "a whole number of 1 or more", None)
    at_least: dict[str, float] | None = None
    filters: Filters = Filters()
    pass_rate: tuple[float, float] | None = limited(
        lambda shares: len(shares) == 2 and 0 <= shares[0] <= shares[1] <= 1,
        "two shares from 0 to 1, such as [0.1, 0.9]",
        None,
    )
    output: str = limited(
        lambda name: name in ("completions", "prompts"), "completions or prompts", "completions"
    )
    deduplicate: bool = False
    decontaminate: Decontaminate = Decontaminate()

    @classmethod
    def parse(cls, mapping: Mapping[str, Any] | None) -> Keep:
        """Return the rules of the recipe's ``keep``. ``None`` means no rule."""
        return from_mapping(cls, mapping or {}, "keep")


def check_keep(recipe: Recipe) -> None:
    """Raise if ``keep`` does not fit the recipe's other keys."""
    script, keep = recipe.script, Keep.parse(recipe.script.keep)
    require(
        not (script.tools or script.environment),
        "keep",
        "absent with tools or an environment, because the dataset would lose the tool calls",
        script.keep,
    )
    names = [name.rpartition(":")[2] for name in script.reward_funcs or ()]
    require(
        set(keep.at_least or ()) <= set(names),
        "keep: at_least",
        f"scores of rewards in reward_funcs {names}",
        keep.at_least,
    )
    require(
        names or not (keep.correct or keep.pass_rate),
        "keep: correct, pass_rate",
        "used with reward_funcs, whose first reward decides what is correct",
        script.keep,
        "reward_funcs: [accuracy]",
    )


@dataclass
class Candidate:
    """A completion, its scores by reward, and why it is dropped (``None``: it is kept)."""

    made: Completion
    scores: dict[str, float | None] = field(default_factory=dict)
    reason: str | None = None

    @property
    def correct(self) -> bool | None:
        """Return whether the first reward is 1, or ``None`` if it does not score this."""
        first = next(iter(self.scores.values()), None)
        return None if first is None else first >= 1


Group = tuple[Row, list[Candidate]]


def select(
    rows: Sequence[Row],
    completions: Sequence[Sequence[Completion]],
    keep: Keep,
    fmt: ResponseFormat,
    rewards: Mapping[str, Callable],
    weights: Sequence[float] | None = None,
    held_out: HeldOut | None = None,
    tokenizer: Any = None,
) -> list[Group]:
    """Return each row with its completions. Those that are dropped have a reason.

    Args:
        rows: The rows of ``generate``: ``question``, ``prompt`` and the columns of the data.
        completions: Those of each row.
        keep: The rules.
        fmt: The response format.
        rewards: The recipe's rewards, by name.
        weights: Of the rewards. Default: 1 each.
        held_out: From :func:`evaluation_sets`.
        tokenizer: Counts tokens for the rewards of length.
    """
    groups = [
        (row, [Candidate(one) for one in made]) for row, made in zip(rows, completions, strict=True)
    ]
    every = [one for _, group in groups for one in group]
    texts, tokens = [one.made.text for one in every], [one.made.tokens for one in every]
    repeated = [row for row, group in groups for _ in group]
    for name, reward in rewards.items():
        values = score(name, reward, repeated, texts, tokenizer, tokens)
        for one, value in zip(every, values, strict=True):
            one.scores[name] = value
    weighted = dict(zip(rewards, weights or [1.0] * len(rewards), strict=True))
    seen: set[str] = set()
    for row, group in groups:
        for one in group:
            one.reason = reason_to_drop(one, fmt.parse(one.made.text), keep)
        if keep != Keep():  # without rules everything is kept
            _compare(group, keep, weighted)
            _compare_question(row, group, keep, held_out or {}, seen)
    return groups


def reason_to_drop(one: Candidate, parsed: ParsedResponse, keep: Keep) -> str | None:
    """Return why a completion is dropped by itself, or ``None``."""
    made, filters = one.made, keep.filters
    reasons = {
        "refused": not made.tokens and not made.text,  # by a server, for its content
        "malformed": filters.malformed and not parsed.well_formed,
        "truncated": filters.truncated and not made.finished,
        "too long": filters.max_tokens is not None and made.tokens > filters.max_tokens,
        "code": filters.code and has_code(parsed.reasoning or made.text),
        "wrong": keep.correct and one.correct is False,
    }
    for name, low in (keep.at_least or {}).items():
        score = one.scores[name]
        if score is None:  # as after an error of a judge
            reasons["not scored"] = True
        elif score < low:
            reasons["low score"] = True
    return next((reason for reason, applies in reasons.items() if applies), None)


def has_code(text: str) -> bool:
    """Return whether a text has a fenced block of code. Formulas and text do not count."""
    opening = _FENCE.findall(text)[::2]
    return any(language.lower().strip("{}.") not in _NOT_CODE for language in opening)


def _kept(group: Iterable[Candidate]) -> list[Candidate]:
    return [one for one in group if one.reason is None]


def _drop(group: Iterable[Candidate], reason: str) -> None:
    for one in _kept(group):
        one.reason = reason


def _compare(group: list[Candidate], keep: Keep, weights: dict[str, float]) -> None:
    """Drop completions by what the others of the prompt are."""
    first = {one.made.text: one for one in reversed(_kept(group))}
    _drop([one for one in group if first.get(one.made.text) is not one], "equal completion")
    rate = pass_rate(group)
    if keep.pass_rate and (rate is None or not keep.pass_rate[0] <= rate <= keep.pass_rate[1]):
        _drop(group, "pass rate")

    def rank(one: Candidate) -> tuple[int, float, int]:
        others = list(one.scores)[1:]
        total = sum(weights[name] * (one.scores[name] or 0.0) for name in others)
        return {True: 0, None: 1, False: 2}[one.correct], -total, one.made.tokens

    if keep.best_of:
        _drop(sorted(_kept(group), key=rank)[keep.best_of :], "not among the best")


def _compare_question(
    row: Row, group: list[Candidate], keep: Keep, held_out: HeldOut, seen: set[str]
) -> None:
    """Drop all completions of a question that an evaluation set or an earlier row has."""
    for name, known in held_out.items():
        if not known.isdisjoint(n_grams(row["question"], keep.decontaminate.n_grams)):
            _drop(group, f"in {name}")
    if keep.deduplicate and _kept(group):
        prompt = " ".join(conversation_text(row["prompt"]).split())
        if prompt in seen:
            _drop(group, "equal question")
        seen.add(prompt)


def pass_rate(group: Iterable[Candidate]) -> float | None:
    """Return the share of right completions among those that the first reward scores."""
    verdicts = [one.correct for one in group if one.correct is not None]
    return sum(verdicts) / len(verdicts) if verdicts else None


def n_grams(text: str, n: int) -> set[int]:
    """Return a hash of every ``n`` words in a row, or of all words if there are fewer.

    A word is a run of letters and digits, or a character of a script without spaces. Case,
    invisible characters and compatible forms of Unicode do not count.
    """
    plain = unicodedata.normalize("NFKC", regex.sub(r"\p{Cf}", "", text)).casefold()
    parts = _WORDS.findall(plain)
    return {hash(tuple(parts[at : at + n])) for at in range(max(1, len(parts) - n + 1)) if parts}


def evaluation_sets(rule: Decontaminate, hub: str) -> HeldOut:
    """Return the n-grams of each evaluation set."""
    held_out = {}
    for source in rule.datasets:
        rows = load_rows(
            source.id, source.split, config=source.config, revision=source.revision, hub=hub
        )
        require(
            source.column in rows.column_names,
            f"keep: decontaminate: {source.id}: column",
            f"the column of the question, one of {', '.join(rows.column_names)}",
            source.column,
        )
        questions = map(last_user_text, rows[source.column])
        grams = [n_grams(question, rule.n_grams) for question in questions]
        held_out[f"{source.id} ({source.split})"] = set[int]().union(*grams)
    return held_out


def write(
    groups: Sequence[Group],
    fmt: ResponseFormat,
    output: str,
    folder: Path,
    *,
    title: str,
    settings: Mapping[str, Any],
) -> str:
    """Write what :func:`select` returns as a data set. Return a table of what became of all.

    The folder gets ``train.jsonl`` and ``README.md``. ``verdicts.jsonl`` beside it has a line for
    each completion, also if none is kept, which is an error.
    """
    verdicts = [
        {"index": index, "sample": sample, "reason": one.reason, "scores": one.scores}
        for index, (_, group) in enumerate(groups)
        for sample, one in enumerate(group)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    _write_lines(folder.parent / "verdicts.jsonl", verdicts)
    table = _table([[one.reason or "kept" for one in group] for _, group in groups])
    if all(verdict["reason"] for verdict in verdicts):
        raise RecipeError(f"keep: all {len(verdicts)} completions were dropped:\n{table}")
    _write_lines(folder / "train.jsonl", chain(*(_rows(*group, fmt, output) for group in groups)))
    recipe = json.dumps(dict(settings), indent=2, ensure_ascii=False, default=str)
    card = CARD.format(title=title, table=table, recipe=recipe)
    (folder / "README.md").write_text(without_surrogates(card), encoding="utf-8")
    return table


CARD = """# {title}

Generated and selected by `python -m r1_recipes.generate`. The licence of the source data and the
terms of the model that wrote the completions apply.

{table}

A completion counts under the first reason that applies, a prompt under each reason for which it
lost one. `pass_rate` is the share of right completions of the question, of those with a score.

~~~~~~json
{recipe}
~~~~~~
"""


def _rows(row: Row, group: list[Candidate], fmt: ResponseFormat, output: str) -> list[Row]:
    """Return the rows of a prompt: one for each completion that is kept, or one for the prompt."""
    columns = {
        "question": row["question"],
        "solution": row.get("solution"),
        **{name: value for name, value in row.items() if name not in OWN_COLUMNS},
        "pass_rate": pass_rate(group),
    }
    kept = _kept(group)
    if output == "prompts":
        return [columns] if kept else []
    return [
        {
            **columns,
            "response": fmt.full_text(one.made.text),
            "tokens": one.made.tokens,
            "scores": json.dumps(one.scores, ensure_ascii=False),
        }
        for one in kept
    ]


def _table(results: Sequence[Sequence[str]]) -> str:
    completions, prompts = Counter(chain(*results)), Counter(chain(*map(set, results)))
    lines = ["| | completions | prompts |", "|---|---:|---:|"]
    lines.append(f"| generated | {completions.total()} | {len(results)} |")
    for name in [*sorted(completions.keys() - {"kept"}), "kept"]:
        lines.append(f"| {name} | {completions[name]} | {prompts[name]} |")
    return "\n".join(lines)


def _write_lines(path: Path, rows: Iterable[Any]) -> None:
    lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    path.write_text("".join(map(without_surrogates, lines)), encoding="utf-8")
