"""Go through generated completions and say of each whether it is kept, and why not.

A record is a prompt with its completions: ``{"index", "question", "prompt": messages, "columns": {"solution", "scorer", …},
"completions": [{"text", "tokens", "finish_reason"}], "error"}``. Importing this imports neither torch nor datasets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.language import LanguageConsistencyReward
from r1_recipes.rewards.text import RepetitionPenaltyReward
from r1_recipes.selection.duplicates import Decontaminator, Deduplicator
from r1_recipes.selection.outcomes import Candidate, YieldReport, drop, left
from r1_recipes.selection.rules import KeepRules

# Rewards are called with about so many completions: enough to keep verification's workers busy, at 16k tokens each some 150 MB.
_CHUNK_COMPLETIONS = 2048
# Not "```x = 3``` is", which is a phrase.
_FENCE = re.compile(r"^[ \t]*+`{3,}+[ \t]*+([^\s`]*+)[^`\n]*+$", re.MULTILINE)
# Fences that hold formulas or words.
_NOT_CODE = {"math", "latex", "tex", "katex", "asciimath", "text", "txt", "plaintext", "plain", "markdown", "md"}

Record = dict[str, Any]


def has_code(text: str) -> bool:
    """Whether a text holds a fenced block, closed or not, that is not marked as formulas or text."""
    opening = _FENCE.findall(text)[::2]
    return any(language.lower().strip("{}.") not in _NOT_CODE for language in opening)


class Selection:
    """Each record's candidates and dataset rows, in order; iterating goes through them once and holds some thousand at a time.

    Rewards are called as TRL calls them, but ``completion_ids`` are right in length alone. The first says what is correct: 1 or more;
    the others, weighted, what "best" means. A value that is not finite counts as ``None``. Evaluation sets come from ``hub``.

    Raises:
        RecipeError: ``at_least`` names none of the rewards, an evaluation set cannot be read, or a package is missing; while iterating, a
            server that judges fails.
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
                raise RecipeError("keep: at_least: " + unknown_name("reward in reward_funcs", name, names))
        self._duplicates = Deduplicator(rules.deduplicate) if rules.deduplicate else None
        self._overlap = Decontaminator(rules.decontaminate, hub) if rules.decontaminate else None
        self.report = YieldReport()

    def __iter__(self) -> Iterator[tuple[list[Candidate], list[dict[str, Any]]]]:
        from tqdm.auto import tqdm

        chunk: list[tuple[Record, list[Candidate]]] = []
        waiting = 0
        for record in tqdm(self._records, desc="selecting", unit="prompt"):
            chunk.append((record, [Candidate(record, sample, self._fmt) for sample in range(len(record["completions"]))]))
            waiting += len(record["completions"])
            if waiting >= _CHUNK_COMPLETIONS:
                yield from self._take(chunk)
                chunk, waiting = [], 0
        yield from self._take(chunk)

    def _take(self, chunk: list[tuple[Record, list[Candidate]]]) -> Iterator[tuple[list[Candidate], list[dict[str, Any]]]]:
        for record, group in chunk:
            if record["error"] is not None:
                drop(group, "failed row")
        sound = left(candidate for _, group in chunk for candidate in group)
        if sound:
            self._score(sound)
        for candidate in sound:
            candidate.reason = self._find_reason(candidate)
        for record, group in chunk:
            self._compare(record, group)
        for record, group in chunk:
            if self._rules.best_of is not None:
                drop(sorted(left(group), key=lambda candidate: candidate.rank)[self._rules.best_of :], "not among the best")
            if left(group) and self._duplicates and not self._duplicates.add(record["question"]):
                drop(group, "duplicate question")
            self.report.count(record, group)
            yield group, self._rows(record, group)

    def _score(self, candidates: list[Candidate]) -> None:
        """Call every reward once with all candidates."""
        for position, (name, reward, weight) in enumerate(self._rewards):
            for candidate, value in zip(candidates, _call(reward, name, candidates), strict=True):
                score = None if value is None or not math.isfinite(value) else float(value)
                candidate.scores[name] = score
                if position == 0:
                    candidate.correct = None if score is None else score >= 1
                    self.report.unjudged += score is None
                else:
                    candidate.readability += weight * (score or 0.0)

    def _find_reason(self, candidate: Candidate) -> str | None:
        """Why a completion is dropped, whatever the others of its prompt are."""
        filters, columns = self._rules.filters, candidate.record["columns"]
        if filters.malformed and not candidate.parsed.well_formed:
            return "malformed"
        if filters.truncated and candidate.truncated:
            return "truncated"
        if filters.overlong and candidate.tokens > filters.overlong.max_tokens:
            return "overlong"
        if filters.repetitive:
            [penalty] = RepetitionPenaltyReward(self._fmt, repetition_n_grams=filters.repetitive.n_grams)([candidate.text])
            if -(penalty or 0.0) > filters.repetitive.max_share:
                return "repetitive"
        if filters.mixed_language:
            reward = LanguageConsistencyReward(self._fmt, language_consistency_target=filters.mixed_language.target)
            [share] = reward([candidate.text], prompts=[candidate.record["prompt"]], language=[columns.get("language")])
            if share is not None and share < filters.mixed_language.min_consistency:
                return "mixed_language"
        if filters.code and has_code(candidate.parsed.reasoning or candidate.text):
            return "code"
        if self._rules.correct and candidate.correct is False:
            return "wrong"
        for name, least in (self._rules.at_least or {}).items():
            score = candidate.scores[name]
            if score is None or score < least:
                return "low score"
        return None

    def _compare(self, record: Record, group: list[Candidate]) -> None:
        """Drop equal texts, then all completions if their prompt is too easy, too hard or contaminated."""
        seen = set()
        for candidate in left(group):
            if candidate.text in seen:  # before the best are picked, so that best_of: 2 gives two different ones
                candidate.reason = "duplicate completion"
            seen.add(candidate.text)
        if self._rules.pass_rate is not None:
            low, high = self._rules.pass_rate
            rate = _pass_rate(group)
            if rate is None or not low <= rate <= high:
                drop(group, "pass rate")
        if self._overlap and left(group):
            sources = self._overlap.sources(record["question"])
            if sources:
                self.report.contaminated.update(sources)
                drop(group, "contaminated")

    def _rows(self, record: Record, group: list[Candidate]) -> list[dict[str, Any]]:
        """The dataset's rows, one per completion or one per prompt; a source column of one of our names gives way."""
        kept = left(group)
        own = ("question", "response", "solution", "pass_rate", "tokens", "scores")
        rest = {"solution": record["columns"].get("solution")}
        rest |= {name: value for name, value in record["columns"].items() if name not in own}
        rest["pass_rate"] = _pass_rate(group)
        question = {"question": record["question"]}
        if self._rules.output == "prompts":
            return [question | rest] if kept else []
        rows = []
        for candidate in kept:
            scores = json.dumps(candidate.scores, ensure_ascii=False)
            response = self._fmt.full_text(candidate.text)
            rows.append({**question, "response": response, **rest, "tokens": candidate.tokens, "scores": scores})
        return rows


def _call(reward: Callable, name: str, candidates: list[Candidate]) -> Sequence[float | None]:
    names = dict.fromkeys(column for candidate in candidates for column in candidate.record["columns"])
    metrics: dict[str, float] = {}
    values = reward(
        prompts=[candidate.record["prompt"] for candidate in candidates],
        completions=[[{"role": "assistant", "content": candidate.text}] for candidate in candidates],
        completion_ids=[range(candidate.tokens) for candidate in candidates],  # only lengths are looked at
        trainer_state=None,
        log_extra=lambda column, values: None,
        log_metric=metrics.__setitem__,
        **{column: [candidate.record["columns"].get(column) for candidate in candidates] for column in names},
    )
    failed = sum(value for key, value in metrics.items() if key.endswith("/failed"))
    if failed:
        span = f"{candidates[0].record['index']} to {candidates[-1].record['index']}"
        raise RecipeError(f"reward {name!r}, records {span}: its server failed {failed:.0f} times; the same command selects again")
    return values


def _pass_rate(group: list[Candidate]) -> float | None:
    judged = [candidate.correct for candidate in group if candidate.correct is not None]
    return sum(judged) / len(judged) if judged else None
