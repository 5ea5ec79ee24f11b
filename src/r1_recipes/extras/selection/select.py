"""Go through generated completions and say of each whether it is kept, and why not.

A record is a prompt with its completions: ``{"index", "question", "prompt": messages, "columns":
{"solution", "scorer", …}, "completions": [{"text", "tokens", "finish_reason"}], "error"}``.
Importing this imports neither torch nor datasets.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.extras.selection.duplicates import Decontaminator, Deduplicator
from r1_recipes.extras.selection.rules import KeepRules
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.language import LanguageConsistencyReward
from r1_recipes.rewards.text import RepetitionPenaltyReward

# Rewards are called with about so many completions: enough to keep verification's workers busy, at
# 16k tokens each some 150 MB.
_CHUNK_COMPLETIONS = 2048
# Not "```x = 3``` is", which is a phrase.
_FENCE = re.compile(r"^[ \t]*+`{3,}+[ \t]*+([^\s`]*+)[^`\n]*+$", re.MULTILINE)
# Fences that hold formulas or words.
_NOT_CODE = {
    "math",
    "latex",
    "tex",
    "katex",
    "asciimath",
    "text",
    "txt",
    "plaintext",
    "plain",
    "markdown",
    "md",
}
# Columns of the dataset that are not the source's.
_MADE = ("text", "tokens", "finish_reason")  # of a completion; an episode has turns besides
_OWN_COLUMNS = (
    "question",
    "response",
    "chosen",
    "rejected",
    "solution",
    "pass_rate",
    "tokens",
    "scores",
)

# Why a completion is dropped, in the order in which it is asked; the first that applies is the one
# counted.
_OF_ONE = (
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
    *_OF_ONE,
    "duplicate completion",
    "pass rate",
    "contaminated",
    "not among the best",
    "not in a pair",
    "duplicate question",
)

_RANK = {True: 0, None: 1, False: 2}
Record = dict[str, Any]


@dataclass
class Candidate:
    index: int  # its record's
    sample: int
    text: str
    tokens: int
    finish_reason: str | None
    scores: dict[str, float | None] = field(
        default_factory=dict
    )  # by reward; None: not judged. Empty for a failed row
    correct: bool | None = None
    total: float = 0.0  # of all rewards, weighted
    readability: float = 0.0  # of all but the first
    reason: str | None = None  # one of REASONS; None: kept

    def verdict(self) -> dict[str, Any]:
        """What ``verdicts.jsonl`` says of it."""
        return {name: getattr(self, name) for name in ("index", "sample", "reason", "scores")} | {
            "kept": self.reason is None
        }


def _drop_equal_texts(group: list[Candidate]) -> None:
    seen = set()
    for candidate in left(group):
        if candidate.text in seen:
            candidate.reason = "duplicate completion"
        seen.add(candidate.text)


def left(candidates: Iterable[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.reason is None]


def drop(candidates: Iterable[Candidate], reason: str) -> None:
    for candidate in left(candidates):
        candidate.reason = reason


@dataclass
class YieldReport:
    """Completions and prompts by what became of them ("generated", a reason, "kept"); a prompt
    counts under each reason it lost one for.
    """

    completions: Counter[str] = field(default_factory=Counter)
    prompts: Counter[str] = field(default_factory=Counter)
    unjudged: int = 0  # neither right nor wrong
    contaminated: Counter[str] = field(default_factory=Counter)  # prompts by evaluation set

    def count(self, record: Record, group: list[Candidate]) -> None:
        outcomes = Counter(candidate.reason or "kept" for candidate in group)
        if record["error"] is not None:
            outcomes["failed row"] += 0  # counts as a prompt even without a completion
        outcomes["generated"] = len(group)
        self.completions.update(outcomes)
        self.prompts.update(outcomes.keys())

    def table(self) -> str:
        """A Markdown table, and a line each for what it cannot show."""
        rows = ["| | completions | prompts |", "|---|---:|---:|"]
        shown = [what for what in ("generated", *REASONS, "kept") if what in self.prompts]
        rows += [f"| {what} | {self.completions[what]} | {self.prompts[what]} |" for what in shown]
        if self.unjudged:
            rows.append(f"\n{self.unjudged} completions could not be judged right or wrong.")
        if self.contaminated:
            rows.append(
                f"\nOverlap by evaluation set: "
                f"{', '.join(f'{name} {count}' for name, count in self.contaminated.items())}."
            )
        return "\n".join(rows)


def has_code(text: str) -> bool:
    """Whether a text holds a fenced block, closed or not, that is not marked as formulas
    or text.
    """
    opening = _FENCE.findall(text)[::2]
    return any(language.lower().strip("{}.") not in _NOT_CODE for language in opening)


class Selection:
    """Each record's candidates and dataset rows, in order; iterating goes through them once and
    holds some thousand at a time.

    Rewards are called as TRL calls them, but ``completion_ids`` are right in length alone. The
    first says what is correct: 1 or more; the others, weighted, what "best" means. A value that is
    not finite counts as ``None``.
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
        self._duplicates = Deduplicator(rules.deduplicate) if rules.deduplicate else None
        self._overlap = Decontaminator(rules.decontaminate, hub) if rules.decontaminate else None
        self.report = YieldReport()

    def __iter__(self) -> Iterator[tuple[list[Candidate], list[dict[str, Any]]]]:
        from tqdm.auto import tqdm

        chunk: list[tuple[Record, list[Candidate]]] = []
        for record in tqdm(self._records, desc="selecting", unit="prompt"):
            made = enumerate(record["completions"])
            chunk.append(
                (
                    record,
                    [
                        Candidate(record["index"], sample, *map(one.get, _MADE))
                        for sample, one in made
                    ],
                )
            )
            if sum(len(group) for _, group in chunk) >= _CHUNK_COMPLETIONS:
                yield from self._take(chunk)
                chunk = []
        yield from self._take(chunk)

    def _take(
        self, chunk: list[tuple[Record, list[Candidate]]]
    ) -> Iterator[tuple[list[Candidate], list[dict[str, Any]]]]:
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
        """Why a completion is dropped, whatever the others of its prompt are."""
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
        """Drop equal texts, all completions of a prompt that a rule drops, and those that are not
        among the best.
        """
        _drop_equal_texts(group)  # before the best are picked: best_of: 2 gives two different ones
        if self._rules.pass_rate is not None:
            low, high = self._rules.pass_rate
            rate = _pass_rate(group)
            if rate is None or not low <= rate <= high:
                drop(group, "pass rate")
        sources = self._overlap.sources(record["question"]) if self._overlap and left(group) else []
        if sources:
            self.report.contaminated.update(sources)
            drop(group, "contaminated")
        if self._rules.best_of is not None:
            # Right before not judged before wrong; sorting is stable.
            best = sorted(
                left(group), key=lambda one: (_RANK[one.correct], -one.readability, one.tokens)
            )
            drop(best[self._rules.best_of :], "not among the best")
        if self._rules.output == "pairs":
            pair = _pair(left(group), self._rules.margin)
            drop([one for one in group if one not in pair], "not in a pair")
        if self._duplicates and left(group) and not self._duplicates.add(record["question"]):
            drop(group, "duplicate question")

    def _rows(self, record: Record, group: list[Candidate]) -> list[dict[str, Any]]:
        """The dataset's rows, one per completion, or one per prompt or pair; a source column of one
        of our names gives way.
        """
        kept, columns = left(group), record["columns"]
        question = {"question": record["question"]}
        rest = {
            "solution": columns.get("solution"),
            **{name: value for name, value in columns.items() if name not in _OWN_COLUMNS},
        }
        rest["pass_rate"] = _pass_rate(group)
        if columns.get("scorer") is None:
            rest.pop("scorer", None)
        if self._rules.output == "prompts":
            return [question | rest] if kept else []
        if self._rules.output == "pairs":
            pair = dict(zip(("chosen", "rejected"), _pair(kept, self._rules.margin), strict=False))
            turns = {
                key: [{"role": "assistant", "content": self._fmt.full_text(one.text)}]
                for key, one in pair.items()
            }
            scores = json.dumps({key: one.scores for key, one in pair.items()}, ensure_ascii=False)
            return (
                [{**question, "prompt": record["prompt"], **turns, **rest, "scores": scores}]
                if pair
                else []
            )
        made = [
            (self._fmt.full_text(one.text), one.tokens, json.dumps(one.scores, ensure_ascii=False))
            for one in kept
        ]
        return [
            {**question, "response": text, **rest, "tokens": tokens, "scores": scores}
            for text, tokens, scores in made
        ]


def _pair(group: list[Candidate], margin: float) -> list[Candidate]:
    """The completions of the highest and the lowest total, of those that all rewards judge which
    judge any; none if too little apart.
    """
    group = [one for one in group if one.text.strip()]  # no turn is empty
    judging = {name for one in group for name, score in one.scores.items() if score is not None}
    ranked = sorted(
        (one for one in group if all(one.scores[name] is not None for name in judging)),
        key=lambda one: -one.total,
    )
    return [ranked[0], ranked[-1]] if ranked and ranked[0].total - ranked[-1].total > margin else []


def _call(
    reward: Callable, name: str, sound: list[tuple[Record, Candidate]]
) -> Sequence[float | None]:
    names = dict.fromkeys(column for record, _ in sound for column in record["columns"])
    metrics: dict[str, float] = {}
    values = reward(
        prompts=[record["prompt"] for record, _ in sound],
        completions=[[{"role": "assistant", "content": candidate.text}] for _, candidate in sound],
        completion_ids=[
            range(candidate.tokens) for _, candidate in sound
        ],  # only lengths are looked at
        trainer_state=None,
        log_extra=lambda column, values: None,
        log_metric=metrics.__setitem__,
        **{column: [record["columns"].get(column) for record, _ in sound] for column in names},
    )
    failed = sum(value for key, value in metrics.items() if key.endswith("/failed"))
    if failed:
        span = f"{sound[0][1].index} to {sound[-1][1].index}"
        raise RecipeError(
            f"reward {name!r}, records {span}: its server failed {failed:.0f} times; the "
            f"same command selects again"
        )
    return values


def _pass_rate(group: list[Candidate]) -> float | None:
    judged = [candidate.correct for candidate in group if candidate.correct is not None]
    return sum(judged) / len(judged) if judged else None
