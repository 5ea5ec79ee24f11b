"""Select generated completions, with the reason for each that is dropped.

A record is a prompt with its completions: ``{"index", "question", "prompt": messages, "columns":
{"solution", "scorer", …}, "completions": [{"text", "tokens", "finish_reason"}], "error"}``.
Importing this module imports neither torch nor datasets.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.extras.selection.duplicates import Decontaminator
from r1_recipes.extras.selection.rules import KeepRules, pass_rate
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.call import numbers
from r1_recipes.rewards.language import LanguageConsistencyReward
from r1_recipes.rewards.text import RepetitionPenaltyReward

# Completions per call of a reward: enough to keep the workers of the verification busy. With 16k
# tokens each, they take about 150 MB.
_CHUNK_COMPLETIONS = 2048
# This must not match "```x = 3``` is", which is inline text.
_FENCE = re.compile(r"^[ \t]*+`{3,}+[ \t]*+([^\s`]*+)[^`\n]*+$", re.MULTILINE)
# Languages of fences that contain formulas or text instead of code.
_NOT_CODE_NAMES = "math latex tex katex asciimath text txt plaintext plain markdown md"
_NOT_CODE = frozenset(_NOT_CODE_NAMES.split())
_COMPLETION_KEYS = ("text", "tokens", "finish_reason")
# Columns of the dataset that do not come from the source.
_OWN_COLUMNS = (
    "question",
    "response",
    "solution",
    "pass_rate",
    "tokens",
    "scores",
)

# The reasons for dropping a completion, in the order of the checks. The first that applies counts.
_REASONS_OF_COMPLETION = (
    "failed row",
    "malformed",
    "truncated",
    "overlong",
    "repetitive",
    "mixed_language",
    "code",
    "wrong",
    "low score",
)
REASONS = (
    *_REASONS_OF_COMPLETION,
    "duplicate completion",
    "pass rate",
    "contaminated",
    "not among the best",
    "duplicate question",
)

_RANK = {True: 0, None: 1, False: 2}
Record = dict[str, Any]
_Chunk = list[tuple[Record, list["Candidate"]]]  # questions, each with its completions


@dataclass
class Candidate:
    """A completion, its scores, and whether it is kept."""

    index: int  # The index of its record.
    sample: int
    text: str
    tokens: int
    finish_reason: str | None
    # By reward; None means no score. Empty for a failed row.
    scores: dict[str, float | None] = field(default_factory=dict)
    correct: bool | None = None
    total: float = 0.0  # The weighted sum of all rewards.
    readability: float = 0.0  # The weighted sum of all rewards except the first.
    reason: str | None = None  # One of REASONS, or None if it is kept.

    def verdict(self) -> dict[str, Any]:
        """Return its entry in ``verdicts.jsonl``."""
        return {name: getattr(self, name) for name in ("index", "sample", "reason", "scores")} | {
            "kept": self.reason is None
        }


def _drop_equal_texts(group: list[Candidate]) -> None:
    seen = set()
    for candidate in remaining(group):
        if candidate.text in seen:
            candidate.reason = "duplicate completion"
        seen.add(candidate.text)


def remaining(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that have not been dropped."""
    return [candidate for candidate in candidates if candidate.reason is None]


def drop(candidates: Iterable[Candidate], reason: str) -> None:
    """Drop the remaining candidates for a reason."""
    for candidate in remaining(candidates):
        candidate.reason = reason


@dataclass
class YieldReport:
    """Counts completions and prompts by outcome: "generated", a reason, or "kept".

    A prompt counts under each reason for which it lost a completion.
    """

    completions: Counter[str] = field(default_factory=Counter)
    prompts: Counter[str] = field(default_factory=Counter)
    unjudged: int = 0  # Completions without a score of the first reward.
    contaminated: Counter[str] = field(default_factory=Counter)  # Prompts by evaluation set.

    def count(self, record: Record, group: list[Candidate]) -> None:
        """Count the completions of a prompt."""
        outcomes = Counter(candidate.reason or "kept" for candidate in group)
        if record["error"] is not None:
            outcomes["failed row"] += 0  # Count the prompt even without completions.
        outcomes["generated"] = len(group)
        self.completions.update(outcomes)
        self.prompts.update(outcomes.keys())

    def table(self) -> str:
        """Return a Markdown table, followed by lines for the other counts."""
        rows = ["| | completions | prompts |", "|---|---:|---:|"]
        shown = [name for name in ("generated", *REASONS, "kept") if name in self.prompts]
        rows += [f"| {name} | {self.completions[name]} | {self.prompts[name]} |" for name in shown]
        if self.unjudged:
            rows.append(f"\n{self.unjudged} completions have no score for their answer.")
        if self.contaminated:
            rows.append(
                f"\nOverlap by evaluation set: "
                f"{', '.join(f'{name} {count}' for name, count in self.contaminated.items())}."
            )
        return "\n".join(rows)


def has_code(text: str) -> bool:
    """Return whether a text has a fenced block of code. Formulas and text do not count."""
    opening = _FENCE.findall(text)[::2]
    return any(language.lower().strip("{}.") not in _NOT_CODE for language in opening)


class Selection:
    """Yields the candidates and dataset rows of each record, in order.

    It can be iterated only once, and holds a few thousand completions at a time. Rewards are called
    as TRL calls them, but ``completion_ids`` have only the right length. A completion is correct if
    the first reward is 1 or more. The other rewards, weighted, decide which completions are best. A
    score that is not finite counts as ``None``.
    """

    def __init__(
        self,
        records: Iterable[Record],
        rules: KeepRules,
        fmt: ResponseFormat,
        rewards: Sequence[Callable],
        weights: Sequence[float] | None = None,
        *,
        hub: str = "huggingface",
    ) -> None:
        self._records, self._rules, self._fmt = records, rules, fmt
        names = [getattr(reward, "__name__", type(reward).__name__) for reward in rewards]
        self._rewards = list(zip(names, rewards, weights or [1.0] * len(rewards), strict=True))
        for name in rules.at_least or ():
            if name not in names:
                raise RecipeError(
                    "keep: at_least: " + unknown_name("reward in reward_funcs", name, names)
                )
        self._seen: set[str] | None = set() if rules.deduplicate else None
        self._overlap = Decontaminator(rules.decontaminate, hub) if rules.decontaminate else None
        self.report = YieldReport()

    def __iter__(self) -> Iterator[tuple[list[Candidate], list[Record]]]:
        from tqdm.auto import tqdm

        chunk: _Chunk = []
        for record in tqdm(self._records, desc="selecting", unit="prompt"):
            chunk.append(
                (
                    record,
                    [
                        Candidate(record["index"], sample, *map(completion.get, _COMPLETION_KEYS))
                        for sample, completion in enumerate(record["completions"])
                    ],
                )
            )
            if sum(len(group) for _, group in chunk) >= _CHUNK_COMPLETIONS:
                yield from self._take(chunk)
                chunk = []
        yield from self._take(chunk)

    def _take(self, chunk: _Chunk) -> Iterator[tuple[list[Candidate], list[Record]]]:
        sound = [
            (record, candidate)
            for record, group in chunk
            if record["error"] is None
            for candidate in group
        ]
        if sound:
            self._score(sound)
        for record, candidate in sound:
            candidate.reason = self._find_reason(record, candidate)
        for record, group in chunk:
            if record["error"] is not None:
                drop(group, "failed row")
            self._compare(record, group)
            self.report.count(record, group)
            yield group, self._rows(record, group)

    def _score(self, sound: list[tuple[Record, Candidate]]) -> None:
        for position, (name, reward, weight) in enumerate(self._rewards):
            for (_, candidate), value in zip(sound, _call(reward, name, sound), strict=True):
                score = None if value is None or not math.isfinite(value) else float(value)
                candidate.scores[name] = score
                candidate.total += weight * (score or 0.0)
                if position == 0:
                    candidate.correct = None if score is None else score >= 1
                    self.report.unjudged += score is None
                else:
                    candidate.readability += weight * (score or 0.0)

    def _find_reason(self, record: Record, candidate: Candidate) -> str | None:
        """Return why a completion is dropped on its own, or ``None``."""
        filters, parsed = self._rules.filters, self._fmt.parse(candidate.text)
        if filters.malformed and not parsed.well_formed:
            return "malformed"
        if filters.truncated and candidate.finish_reason == "length":
            return "truncated"
        if filters.overlong and candidate.tokens > filters.overlong.max_tokens:
            return "overlong"
        if self._is_repetitive(candidate.text):
            return "repetitive"
        if self._mixes_languages(record, candidate.text):
            return "mixed_language"
        if filters.code and has_code(parsed.reasoning or candidate.text):
            return "code"
        return self._reason_of_scores(candidate)

    def _is_repetitive(self, text: str) -> bool:
        rule = self._rules.filters.repetitive
        if not rule:
            return False
        [penalty] = RepetitionPenaltyReward(self._fmt, repetition_n_grams=rule.n_grams)([text])
        return -(penalty or 0.0) > rule.max_share

    def _mixes_languages(self, record: Record, text: str) -> bool:
        rule = self._rules.filters.mixed_language
        if not rule:
            return False
        reward = LanguageConsistencyReward(self._fmt, language_consistency_target=rule.target)
        language = record["columns"].get("language")
        [share] = reward([text], prompts=[record["prompt"]], language=[language])
        return share is not None and share < rule.min_consistency

    def _reason_of_scores(self, candidate: Candidate) -> str | None:
        if self._rules.correct and candidate.correct is False:
            return "wrong"
        for name, least in (self._rules.at_least or {}).items():
            score = candidate.scores[name]
            if score is None or score < least:
                return "low score"
        return None

    def _compare(self, record: Record, group: list[Candidate]) -> None:
        """Drop completions by the rules that compare all completions of a prompt."""
        # Drop equal texts first, so that best_of: 2 keeps two different texts.
        _drop_equal_texts(group)
        if self._rules.pass_rate is not None:
            low, high = self._rules.pass_rate
            rate = pass_rate([candidate.correct for candidate in group])
            if rate is None or not low <= rate <= high:
                drop(group, "pass rate")
        overlap = self._overlap if remaining(group) else None
        sources = overlap.sources(record["question"]) if overlap else []
        if sources:
            self.report.contaminated.update(sources)
            drop(group, "contaminated")
        if self._rules.best_of is not None:
            # First correct completions, then those without a score, then wrong ones.
            best = sorted(
                remaining(group),
                key=lambda item: (_RANK[item.correct], -item.readability, item.tokens),
            )
            drop(best[self._rules.best_of :], "not among the best")
        if self._seen is not None and remaining(group):
            question = " ".join(_asked(record).split())
            if question in self._seen:
                drop(group, "duplicate question")
            self._seen.add(question)

    def _rows(self, record: Record, group: list[Candidate]) -> list[dict[str, Any]]:
        """Return the dataset rows: one per completion, or one per prompt.

        Columns of the dataset replace source columns with the same name.
        """
        kept, columns = remaining(group), record["columns"]
        question = {"question": record["question"]}
        rest = {
            "solution": columns.get("solution"),
            **{name: value for name, value in columns.items() if name not in _OWN_COLUMNS},
        }
        rest["pass_rate"] = pass_rate([candidate.correct for candidate in group])
        if columns.get("scorer") is None:
            rest.pop("scorer", None)
        if self._rules.output == "prompts":
            return [question | rest] if kept else []
        return [
            {
                **question,
                "response": self._fmt.full_text(candidate.text),
                **rest,
                "tokens": candidate.tokens,
                "scores": json.dumps(candidate.scores, ensure_ascii=False),
            }
            for candidate in kept
        ]


def _asked(record: Record) -> str:
    """Return a question with the conversation before it."""
    earlier = record["columns"].get("earlier_messages") or []
    return "\n".join([*(message["content"] for message in earlier), record["question"]])


def _call(
    reward: Callable, name: str, sound: list[tuple[Record, Candidate]]
) -> Sequence[float | None]:
    names = dict.fromkeys(column for record, _ in sound for column in record["columns"])
    metrics: dict[str, float] = {}
    columns = {column: [record["columns"].get(column) for record, _ in sound] for column in names}
    texts = [candidate.text for _, candidate in sound]
    with processes.alone():
        result = reward(
            prompts=[record["prompt"] for record, _ in sound],
            completions=[[{"role": "assistant", "content": text}] for text in texts],
            # Rewards use only the lengths.
            completion_ids=[range(candidate.tokens) for _, candidate in sound],
            trainer_state=None,
            log_extra=lambda column, values: None,
            log_metric=metrics.__setitem__,
            **columns,
        )
        values = numbers(name, reward, result, len(sound))
    failed = sum(value for key, value in metrics.items() if key.endswith("/failed"))
    if failed:
        span = f"{sound[0][1].index} to {sound[-1][1].index}"
        raise RecipeError(
            f"reward {name!r}, records {span}: its server failed {failed:.0f} times. Fix: run the "
            f"same command again"
        )
    return values
