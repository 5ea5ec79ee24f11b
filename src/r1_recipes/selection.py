"""Rejection sampling: which generated completions become a dataset, and why the others do not (DeepSeek-R1, section 2.3.3).

The second half of ``python -m r1_recipes.generate``. :func:`select` reads records, one a prompt, in the order given:
``{"index", "question", "prompt": messages, "columns": {"solution", "scorer", …}, "completions": [{"text", "tokens",
"finish_reason"}], "error"}``. Importing this imports neither torch nor datasets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from r1_recipes.common.chat_client import PATIENCE, ChatServer, Reply
from r1_recipes.common.errors import RecipeError, first_line, nearest, unknown_name
from r1_recipes.decontaminate import Decontaminator, Deduplicator, EvaluationSet
from r1_recipes.prompts.formats import ParsedResponse, ResponseFormat
from r1_recipes.rewards.language import LANGUAGES, LanguageConsistencyReward, language_code
from r1_recipes.rewards.text import RepetitionPenaltyReward

logger = logging.getLogger(__name__)

REASONS = (
    "failed row",
    "malformed",
    "truncated",
    "overlong",
    "repetitive",
    "mixed_language",
    "code",
    "wrong",
    "duplicate completion",
    "pass rate",
    "contaminated",
    "judge gave no score",
    "judge",
    "not among the best",
    "duplicate question",
)
"""Why a completion is dropped, in the order in which it is asked; the first that applies is the one counted.

What costs least comes first: a judge reads only what everything before it would keep. ``failed row``, ``pass rate``, ``contaminated``
and ``duplicate question`` are a prompt's, and drop all of its completions that got so far. Equal texts are dropped before the best
are picked, so that ``best_of: 2`` gives two different ones where there are.
"""

# Rewards are called with about so many completions: enough to keep verification's workers busy, at 16k tokens each some 150 MB.
_CHUNK_COMPLETIONS = 2048
_AGAIN = "What is not judged is not rejected: the selection is not finished, and the same command goes on with it"


@dataclass(frozen=True)
class Filters:
    """The recipe's ``keep: filters:``; a completion that one of them finds is dropped.

    Attributes:
        malformed: drop what the response format does not read as well formed.
        truncated: drop what reached the length limit (``finish_reason`` "length").
        max_tokens: of ``overlong: {max_tokens}``: drop what has more.
        max_share: of ``repetitive: {max_share, n_grams}``: drop where more than this share of the n-grams (0..1) is a repeat.
        n_grams: units of those n-grams; see :class:`~r1_recipes.rewards.text.RepetitionPenaltyReward`.
        min_consistency: of ``mixed_language: {min_consistency, target}``: drop where a smaller share of the reasoning (0..1) is in the
            target language. Where the language cannot be told, the completion stays.
        target: that language; ``None``: the row's ``language`` column, else the question's language.
        code: drop where :func:`has_code` finds program text in the reasoning.
    """

    malformed: bool = False
    truncated: bool = False
    max_tokens: int | None = None
    max_share: float | None = None
    n_grams: int = 3
    min_consistency: float | None = None
    target: str | None = None
    code: bool = False


@dataclass(frozen=True)
class Deduplicate:
    """The recipe's ``keep: deduplicate:``, of questions; see :class:`~r1_recipes.decontaminate.Deduplicator`.

    Attributes:
        exact: drop questions that differ from a kept one in white space alone.
        near: drop those at least this similar (over 0, at most 1) to a kept one.
        n_grams: words and signs of an n-gram.
    """

    exact: bool = True
    near: float | None = None
    n_grams: int = 5


@dataclass(frozen=True)
class Decontaminate:
    """The recipe's ``keep: decontaminate:``; see :class:`~r1_recipes.decontaminate.Decontaminator`.

    Attributes:
        datasets: the evaluation sets.
        n_grams: words in a row that may not be shared.
    """

    datasets: tuple[EvaluationSet, ...]
    n_grams: int = 8


_SLOTS = ("question", "solution", "reasoning", "answer", "completion")
_SLOT = re.compile(r"\{([A-Za-z_]+)\}")
_NUMBER = r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)"
_OF = r"(?:\s*(?:/|out\sof)\s*[0-9]{1,9})?"
# "Score: 8", "**Score:** 8/10.", "<score>8</score>"; not "Score: 7-8", which says two things.
_SCORE = re.compile(
    rf"<score>\s*{_NUMBER}{_OF}\s*</score>|\bscore\b[*_`]{{0,3}}\s*[:：=]\s*[*_`]{{0,3}}\s*{_NUMBER}{_OF}[*_`.\s]*$", re.IGNORECASE
)
# A line of a verdict is short; a longer one is not searched, which bounds the time whatever the model wrote.
_MAX_LINE = 400


@dataclass(frozen=True)
class Judge:
    """The recipe's ``keep: judge:``: a model behind an OpenAI-compatible server (``OPENAI_BASE_URL``) rates completions.

    Attributes:
        model: the name that the server knows it by.
        prompt: the message it gets, with slots ``{question}``, ``{solution}`` (empty where there is none), ``{reasoning}`` (the whole
            text where no reasoning can be read), ``{answer}`` (empty where none can be read) and ``{completion}``. Other braces stay.
        min_score: what scores less is dropped.
        max_tokens: limit of one reply; ``None``: the server's.
        temperature: of the judge; ``None``: the server's.
        max_concurrency: requests under way at once.
    """

    model: str
    prompt: str
    min_score: float
    max_tokens: int | None = None
    temperature: float | None = None
    max_concurrency: int = 16

    def message(self, question: str, solution: str | None, completion: str, parsed: ParsedResponse) -> str:
        """The filled-in prompt. ``completion`` is the assistant's whole turn."""
        slots = {
            "question": question,
            "solution": solution or "",
            "reasoning": parsed.reasoning or completion,
            "answer": parsed.answer or "",
            "completion": completion,
        }
        return _SLOT.sub(lambda slot: _without_surrogates(slots.get(slot[1], slot[0])), self.prompt)

    @staticmethod
    def score(reply: str) -> float | None:
        """The number of the reply's last line ``Score: x`` (or ``x/10``, ``x out of 10``) or ``<score>x</score>``, else ``None``."""
        for line in reversed(reply.splitlines()):
            found = list(_SCORE.finditer(line)) if len(line) <= _MAX_LINE else []
            if found:
                return float(found[-1][1] or found[-1][2])
        return None


@dataclass(frozen=True)
class KeepRules:
    """The recipe's ``keep:``, which completions become the dataset. Without any rule all do.

    Attributes:
        best_of: keep this many completions a prompt: right ones first, then those with the larger weighted sum of the rewards after
            the first, then those of fewer tokens, then the earlier. ``None``: all.
        correct: drop completions whose first reward is below 1. Where that reward is ``None`` (nothing to judge by) they stay.
        filters: what else drops a completion.
        pass_rate: keep prompts whose share of correct completions, of all that can be judged, is from the first to the second number;
            a prompt of which none can be judged is dropped.
        output: ``"completions"``: a row each, for SFT; ``"prompts"``: a row each prompt with a completion left, for RL.
        deduplicate: of questions.
        decontaminate: drop prompts that overlap with evaluation sets.
        judge: a model that rates what is left.
    """

    best_of: int | None = None
    correct: bool = False
    filters: Filters = Filters()
    pass_rate: tuple[float, float] | None = None
    output: str = "completions"
    deduplicate: Deduplicate | None = None
    decontaminate: Decontaminate | None = None
    judge: Judge | None = None

    @classmethod
    def parse(cls, mapping: Mapping[str, Any] | None) -> KeepRules:
        """Read the recipe's mapping; ``None`` is no rule.

        Raises:
            RecipeError: an unknown key, or a value that is not of its kind; the message says which and what would do.
        """
        keep = _Reader("keep", mapping or {}, [f.name for f in dataclasses.fields(cls)])
        rules = cls(
            best_of=keep.whole("best_of"),
            correct=keep.boolean("correct", False),
            filters=_filters(keep.inner("filters", ("malformed", "truncated", "overlong", "mixed_language", "repetitive", "code"))),
            pass_rate=_pass_rate(keep),
            output=keep.get("output", "completions"),
            deduplicate=_deduplicate(keep.inner("deduplicate", [f.name for f in dataclasses.fields(Deduplicate)])),
            decontaminate=_decontaminate(keep.inner("decontaminate", [f.name for f in dataclasses.fields(Decontaminate)])),
            judge=_judge(keep.inner("judge", [f.name for f in dataclasses.fields(Judge)])),
        )
        if rules.output not in ("completions", "prompts"):
            raise RecipeError(f"keep: output: found {rules.output!r}; 'completions' or 'prompts'")
        if rules.output == "prompts" and rules.best_of is not None:
            raise RecipeError("keep: best_of: output 'prompts' writes no completions; remove one of the two")
        return rules


@dataclass(frozen=True)
class _Reader:
    """One mapping of the recipe, whose keys are checked and whose values are read by kind. ``None`` is as good as not there."""

    where: str
    mapping: Mapping[str, Any]
    known: Sequence[str]

    def __post_init__(self) -> None:
        if not isinstance(self.mapping, Mapping):
            raise RecipeError(f"{self.where}: a mapping of {', '.join(self.known)}; found {self.mapping!r}")
        for key in self.mapping:
            if key not in self.known:
                raise RecipeError(f"{self.where}: " + unknown_name("key", key, self.known))

    def get(self, key: str, default: Any = None) -> Any:
        value = self.mapping.get(key)
        return default if value is None else value

    def refuse(self, key: str, wanted: str) -> RecipeError:
        return RecipeError(f"{self.where}: {key}: found {self.mapping.get(key)!r}; {wanted}")

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def whole(self, key: str, default: int | None = None) -> int | None:
        value = self.get(key, default)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise self.refuse(key, "a whole number, 1 or more")
        return value

    def number(self, key: str, wanted: str, accept: Callable[[float], bool] = math.isfinite) -> float | None:
        value = self.get(key)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or not accept(value)):
            raise self.refuse(key, wanted)
        return value

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.refuse(key, "some text")
        return value

    def needed(self, key: str, value: Any) -> Any:
        if value is None:
            raise RecipeError(f"{self.where}: {key}: missing")
        return value

    def inner(self, key: str, known: Sequence[str]) -> _Reader | None:
        value = self.get(key)
        return None if value is None else _Reader(f"{self.where}: {key}", value, known)


_SHARE = "a share from 0 to 1"


def _is_share(value: float) -> bool:
    return 0 <= value <= 1


def _filters(reader: _Reader | None) -> Filters:
    if reader is None:
        return Filters()
    overlong = reader.inner("overlong", ("max_tokens",))
    repetitive = reader.inner("repetitive", ("max_share", "n_grams"))
    language = reader.inner("mixed_language", ("min_consistency", "target"))
    target = language.text("target") if language else None
    if target is not None and language_code(target) is None:
        raise RecipeError(f"{language.where}: target: " + unknown_name("language", target, LANGUAGES))
    return Filters(
        malformed=reader.boolean("malformed", False),
        truncated=reader.boolean("truncated", False),
        max_tokens=overlong.needed("max_tokens", overlong.whole("max_tokens")) if overlong else None,
        max_share=repetitive.needed("max_share", repetitive.number("max_share", _SHARE, _is_share)) if repetitive else None,
        n_grams=repetitive.whole("n_grams", Filters.n_grams) if repetitive else Filters.n_grams,
        min_consistency=language.needed("min_consistency", language.number("min_consistency", _SHARE, _is_share)) if language else None,
        target=target,
        code=reader.boolean("code", False),
    )


def _pass_rate(keep: _Reader) -> tuple[float, float] | None:
    value = keep.get("pass_rate")
    if value is None:
        return None
    numbers = isinstance(value, list | tuple) and len(value) == 2 and all(type(bound) in (int, float) for bound in value)
    if not numbers or not 0 <= value[0] <= value[1] <= 1:
        raise keep.refuse("pass_rate", "two shares from 0 to 1, the smaller first, such as [0.1, 0.9]")
    return (value[0], value[1])


def _deduplicate(reader: _Reader | None) -> Deduplicate | None:
    if reader is None:
        return None
    near = reader.number("near", "a similarity over 0 and at most 1", lambda value: 0 < value <= 1)
    rules = Deduplicate(reader.boolean("exact", Deduplicate.exact), near, reader.whole("n_grams", Deduplicate.n_grams))
    if not rules.exact and near is None:
        raise RecipeError(f"{reader.where}: exact is false and near is not set, so that nothing would be looked for")
    return rules


def _decontaminate(reader: _Reader | None) -> Decontaminate | None:
    if reader is None:
        return None
    entries = reader.get("datasets")
    if not isinstance(entries, list) or not entries:
        raise reader.refuse("datasets", "a list of mappings with id, and split, config, column, revision where needed")
    sets = []
    for number, entry in enumerate(entries, start=1):
        one = _Reader(f"{reader.where}: dataset {number}", entry, [f.name for f in dataclasses.fields(EvaluationSet)])
        values = {key: one.text(key) for key in one.known}
        one.needed("id", values["id"])
        sets.append(EvaluationSet(**{key: value for key, value in values.items() if value is not None}))
    return Decontaminate(tuple(sets), reader.whole("n_grams", Decontaminate.n_grams))


def _judge(reader: _Reader | None) -> Judge | None:
    if reader is None:
        return None
    judge = Judge(
        model=reader.needed("model", reader.text("model")),
        prompt=reader.needed("prompt", reader.text("prompt")),
        min_score=reader.needed("min_score", reader.number("min_score", "a number")),
        max_tokens=reader.whole("max_tokens"),
        temperature=reader.number("temperature", "0 or more", lambda value: 0 <= value < math.inf),
        max_concurrency=reader.whole("max_concurrency", Judge.max_concurrency),
    )
    slots = set(_SLOT.findall(judge.prompt))
    for slot in sorted(slots.difference(_SLOTS)):
        if nearest(slot, _SLOTS):  # other braces may be LaTeX
            raise RecipeError(f"{reader.where}: prompt: " + unknown_name("slot", slot, _SLOTS))
    if slots.isdisjoint(("reasoning", "answer", "completion")):
        raise RecipeError(
            f"{reader.where}: prompt: shows the judge nothing of the completion; it takes {', '.join(f'{{{s}}}' for s in _SLOTS)}, "
            f"found {', '.join(f'{{{s}}}' for s in sorted(slots)) or 'none'}"
        )
    return judge


# Not "```x = 3``` is", which is a phrase.
_FENCE = re.compile(r"[ \t]*+(`{3,}+)[ \t]*+([^\s`]*+)[^`]*+$")
# Fences that hold formulas or words.
_NOT_CODE = {"math", "latex", "tex", "katex", "asciimath", "text", "txt", "plaintext", "plain", "markdown", "md"}
# Every one is tried on lines of at most _MAX_LINE characters, which bounds its backtracking.
_NAME = r"[A-Za-z_]\w*"
_CODE_LINE = re.compile(
    rf"""\s*(?:>>>[ ])?(?:
      (?:async[ ])?def[ ]{_NAME}[ ]?\(.*\)[ ]?(?:->[^:]+)?:
    | class[ ]{_NAME}\([\w., =]*\):
    | import[ ]{_NAME}(?:\.\w+)*(?:[ ]as[ ]{_NAME})?(?:,[ ]?{_NAME}(?:\.\w+)*(?:[ ]as[ ]{_NAME})?)*;?
    | from[ ]\.*{_NAME}(?:\.\w+)*[ ]import[ ](?:\*|\(?{_NAME}(?:[ ]as[ ]{_NAME})?(?:,[ ]?{_NAME}(?:[ ]as[ ]{_NAME})?)*\)?)
    | \#[ ]?include[ ]?[<"][\w./]+[>"]
    | (?:print|printf|println|console\.log|System\.out\.print(?:ln|f)?|fmt\.Print(?:ln|f)?)\(.*\);?
    | (?:std::)?cout[ ]?<<.*;
    | for[ ]{_NAME}(?:,[ ]?{_NAME})*[ ]in[ ](?:(?:range|enumerate|zip|sorted|reversed|list|map|filter)\(.*\)|{_NAME}\.\w+(?:\(.*\))?):.*
    | for[ ]?\((?:int|long|size_t|auto|let|var)[ ]{_NAME}[ ]?=[^;]*;[^;]*;[^;]*\)[ ]?\{{?.*
    | int[ ]main[ ]?\([^()]*\)[ ]?\{{?
    | (?:export[ ])?(?:async[ ])?function[ ]{_NAME}[ ]?\([^()]*\)[ ]?\{{.*
    | public[ ](?:static[ ])?[\w<>\[\]]+[ ]{_NAME}\([^()]*\)[ ]?\{{?
    | using[ ]namespace[ ]\w+;
    )\s*(?:(?:\#|//).*)?""",
    re.VERBOSE,
)


def has_code(text: str) -> bool:
    """Whether a text holds program text: a fenced block, or a line that can be nothing else.

    Precision comes before recall: assignments, comparisons, calls and anything that a formula or a sentence might be (``x = 3``,
    ``f(x):``, ``for n in S:``, ``let x = 5;``, LaTeX with its commands and environments) are no sign of a program, so that code
    without a telling line is missed. Telling are ``def f(…):``, ``class A(…):``, ``import x``, ``from x import y``, ``#include``,
    ``print(…)`` and its like, ``for … in range(…):`` or ``in a.b:``, ``for (int i = 0; …)``, ``int main()``, ``function f() {``,
    each a whole line. A fence counts, closed or not, unless it is marked as formulas or text (``math``, ``latex``, ``text``).
    """
    fence = ""
    for line in text.splitlines():
        match = _FENCE.match(line)
        if fence:
            if match and match[1].startswith(fence) and not match[2]:
                fence = ""
            continue
        if match:
            if match[2].lower().strip("{}.") not in _NOT_CODE:
                return True
            fence = match[1]
        elif len(line) <= _MAX_LINE and _CODE_LINE.fullmatch(line):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one completion.

    Attributes:
        index: of its record.
        sample: its place among the record's completions, from 0.
        reason: one of :data:`REASONS`; ``None``: kept.
        scores: by reward, and ``judge``; ``None`` where that one does not judge it. Empty for a failed row.
    """

    index: int
    sample: int
    reason: str | None
    scores: dict[str, float | None]

    @property
    def kept(self) -> bool:
        return self.reason is None


@dataclass
class YieldReport:
    """What was generated, what is left, and where the rest went.

    Attributes:
        prompts: records read.
        failed_prompts: those whose generation failed for good.
        completions: completions read.
        unjudged: those, of rows that did not fail, of which the first reward could not say whether they are right.
        kept_prompts: prompts with a completion left.
        kept_completions: completions left.
        dropped: completions by reason, in the order of :data:`REASONS`.
        dropped_prompts: prompts that lost a completion for it, or failed, by reason.
        first_index: index of the first record of which a completion was dropped, by reason.
        tokens_generated: tokens of all completions.
        tokens_kept: tokens of those left.
        contaminated: prompts that overlap with it, by evaluation set.
    """

    prompts: int = 0
    failed_prompts: int = 0
    completions: int = 0
    unjudged: int = 0
    kept_prompts: int = 0
    kept_completions: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_prompts: dict[str, int] = field(default_factory=dict)
    first_index: dict[str, int] = field(default_factory=dict)
    tokens_generated: int = 0
    tokens_kept: int = 0
    contaminated: dict[str, int] = field(default_factory=dict)

    def table(self) -> str:
        """A Markdown table, and a line each for what it cannot show."""
        lines = [
            "| | completions | prompts | tokens | first row |",
            "|---|---:|---:|---:|---:|",
            f"| generated | {self.completions} | {self.prompts} | {self.tokens_generated} | |",
        ]
        lines += [
            f"| {reason} | {-self.dropped[reason]} | {self.dropped_prompts[reason]} | | {self.first_index[reason]} |"
            for reason in self.dropped
        ]
        share = f" ({100 * self.kept_completions / self.completions:.1f} %)" if self.completions else ""
        lines.append(f"| **kept** | {self.kept_completions}{share} | {self.kept_prompts} | {self.tokens_kept} | |")
        notes = []
        if self.unjudged:
            notes.append(f"{self.unjudged} completions could not be judged right or wrong.")
        if self.contaminated:
            notes.append("Overlap by evaluation set: " + ", ".join(f"{name} {count}" for name, count in self.contaminated.items()) + ".")
        return "\n".join([*lines, *(f"\n{note}" for note in notes)])

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them."""
        return dataclasses.asdict(self)


@dataclass
class Selection:
    """What :func:`select` kept.

    Attributes:
        rows: the dataset's rows, in the order of the records.
        verdicts: one a completion, in the order of the records.
        report: the counts.
    """

    rows: list[dict[str, Any]]
    verdicts: list[Verdict]
    report: YieldReport


class _Candidate:
    """One completion on its way through the rules."""

    __slots__ = ("_fmt", "_parsed", "correct", "finish_reason", "readability", "reason", "record", "sample", "scores", "text", "tokens")

    def __init__(self, record: dict[str, Any], sample: int, fmt: ResponseFormat) -> None:
        completion = record["completions"][sample]
        self.record, self.sample, self._fmt = record, sample, fmt
        self.text: str = completion["text"]
        self.tokens: int = completion["tokens"]
        self.finish_reason: str | None = completion["finish_reason"]
        self.scores: dict[str, float | None] = {}
        self.correct: bool | None = None
        self.readability = 0.0
        self.reason: str | None = None
        self._parsed: ParsedResponse | None = None

    @property
    def parsed(self) -> ParsedResponse:
        if self._parsed is None:
            self._parsed = self._fmt.parse(self.text)
        return self._parsed

    @property
    def rank(self) -> tuple:
        """Smaller is better: right before not judged before wrong."""
        return ({True: 0, None: 1, False: 2}[self.correct], -self.readability, self.tokens, self.sample)


def check_rules(
    rules: KeepRules, rewards: Sequence[Callable], weights: Sequence[float] | None = None, *, hub: str = "huggingface"
) -> tuple[Decontaminator | None, Deduplicator | None]:
    """Everything that can be known to fail before a completion is generated; reads the evaluation sets.

    Args:
        rules: what to keep.
        rewards: the reward functions, the one that says what is correct first.
        weights: one a reward, as ``reward_weights``; ``None``: 1 each.
        hub: where the evaluation sets come from.

    Returns:
        What finds contaminated and repeated questions, where the rules ask for it.

    Raises:
        RecipeError: a rule needs a reward and there is none, weights and rewards do not agree, a reward needs token ids, an evaluation
            set cannot be read, a package or the judge's address is missing.
    """
    if not rewards and (rules.correct or rules.pass_rate is not None):
        key = "correct" if rules.correct else "pass_rate"
        raise RecipeError(f"keep: {key}: needs reward_funcs, whose first says what is correct (accuracy, say); found none")
    if weights is not None and len(weights) != len(rewards):
        raise RecipeError(f"reward_weights: {len(weights)} for {len(rewards)} reward_funcs; one each")
    for reward in rewards:
        if isinstance(reward, RepetitionPenaltyReward) and reward.repetition_unit == "token":
            raise RecipeError("repetition_unit: 'token' needs the token ids, which generation does not keep; 'auto' counts words")
    if rules.judge:
        _server(rules.judge).check()
    duplicates = None
    if rules.deduplicate:
        duplicates = Deduplicator(exact=rules.deduplicate.exact, near=rules.deduplicate.near, n=rules.deduplicate.n_grams)
    overlap = None
    if rules.decontaminate:
        overlap = Decontaminator(rules.decontaminate.n_grams)
        for number, source in enumerate(rules.decontaminate.datasets, start=1):
            try:
                overlap.add(f"{source.id} ({source.split})", source.questions(hub))
            except RecipeError as error:
                raise RecipeError(f"keep: decontaminate: dataset {number}: {error}") from error
    return overlap, duplicates


def _server(judge: Judge) -> ChatServer:
    return ChatServer(judge.model, max_concurrency=judge.max_concurrency)


def select(
    records: Iterable[dict[str, Any]],
    rules: KeepRules,
    fmt: ResponseFormat,
    rewards: Sequence[Callable],
    weights: Sequence[float] | None = None,
    *,
    hub: str = "huggingface",
    progress: bool = True,
    judged: Path | None = None,
) -> Selection:
    """Score completions and keep those that the rules let through.

    Rewards are called as TRL calls them, with conversations, every column of the records as a list and, for ``completion_ids``,
    objects of the right length that hold no real ids. They are called with the completions of many prompts at once, those of one
    prompt always together. The first says what is correct: 1 or more. A value that is not finite counts as ``None``.

    A row for ``output: completions`` holds ``question``, ``response`` (the assistant's whole turn), ``solution``, the record's other
    columns, ``pass_rate`` (the prompt's share of correct completions, of those that can be judged; ``None`` where none can),
    ``tokens`` and ``scores`` (JSON text); for ``output: prompts`` ``question``, ``solution``, the other columns and ``pass_rate``. A
    source column of one of these names gives way. ``scorer`` is left out where no row has one.

    Args:
        records: see the module; in the order in which duplicates are to be looked for.
        rules: what to keep.
        fmt: reads the completions.
        rewards: reward functions; may be empty.
        weights: one a reward; ``None``: 1 each. Those after the first weigh what "best" means.
        hub: where the evaluation sets come from.
        progress: show a bar.
        judged: file to which the judge's scores are added as they come, and from which earlier ones are taken.

    Raises:
        RecipeError: as :func:`check_rules`, or a reward refuses the columns or returns another number of values, or the server
            refuses the judge's name or key, or a server that judges fails: what is not judged is not rejected.
    """
    from tqdm.auto import tqdm

    overlap, duplicates = check_rules(rules, rewards, weights, hub=hub)
    scores = _JudgeScores(judged)
    job = _Job(rules, fmt, list(rewards), list(weights) if weights is not None else [1.0] * len(rewards), overlap, duplicates, scores)
    total = len(records) if isinstance(records, Sized) else None
    with tqdm(desc="selecting", total=total, unit="prompt", disable=not progress) as bar:
        for chunk in _chunks(records):
            job.take(chunk)
            bar.update(len(chunk))
    return job.selection()


def _chunks(records: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    chunk, completions = [], 0
    for record in records:
        chunk.append(record)
        completions += len(record["completions"])
        if completions >= _CHUNK_COMPLETIONS:
            yield chunk
            chunk, completions = [], 0
    if chunk:
        yield chunk


class _JudgeScores:
    """What a judge said of each request, by its digest; on disk too where there is a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.known: dict[str, float | None] = {}
        if path is None or not path.is_file():
            return
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # cut off when the process was killed
                entry = json.loads(line)
                self.known[entry["request"]] = None if entry["score"] is None else float(entry["score"])

    def add(self, request: str, score: float | None) -> None:
        self.known[request] = score
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps({"request": request, "score": score}))  # the line before it may have no end


@dataclass
class _Job:
    """The rules of one selection, and what they have let through so far."""

    rules: KeepRules
    fmt: ResponseFormat
    rewards: list[Callable]
    weights: list[float]
    overlap: Decontaminator | None
    duplicates: Deduplicator | None
    scores: _JudgeScores
    rows: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    report: YieldReport = field(default_factory=YieldReport)
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_prompts: Counter[str] = field(default_factory=Counter)
    contaminated: Counter[str] = field(default_factory=Counter)

    def take(self, records: list[dict[str, Any]]) -> None:
        groups = [[_Candidate(record, sample, self.fmt) for sample in range(len(record["completions"]))] for record in records]
        sound = []
        for record, group in zip(records, groups, strict=True):
            if record["error"] is not None:
                _drop(group, "failed row")
            else:
                sound += group
        self._score(sound)
        self._filter(sound)
        for record, group in zip(records, groups, strict=True):
            _drop_equal_texts(group)
            self._judge_prompt(record, group)
        if self.rules.judge:
            self._ask_judge([candidate for candidate in sound if candidate.reason is None], self.rules.judge)
        for record, group in zip(records, groups, strict=True):
            left = _left(group)
            if self.rules.best_of is not None:
                _drop(sorted(left, key=lambda candidate: candidate.rank)[self.rules.best_of :], "not among the best")
            if left and self.duplicates and not self.duplicates.add(record["question"]):
                _drop(group, "duplicate question")
            self._write(record, group)

    def _score(self, candidates: list[_Candidate]) -> None:
        """Call every reward once with all candidates."""
        for position, reward in enumerate(self.rewards):
            name = getattr(reward, "__name__", type(reward).__name__)
            for candidate, value in zip(candidates, self._call(reward, name, candidates), strict=True):
                score = None if value is None or not math.isfinite(value) else float(value)
                candidate.scores[name] = score
                if position == 0:
                    candidate.correct = None if score is None else score >= 1
                    self.report.unjudged += score is None
                else:
                    candidate.readability += self.weights[position] * (score or 0.0)

    def _call(self, reward: Callable, name: str, candidates: list[_Candidate]) -> Sequence[float | None]:
        if not candidates:
            return []
        names = dict.fromkeys(column for candidate in candidates for column in candidate.record["columns"])
        columns = {column: [candidate.record["columns"].get(column) for candidate in candidates] for column in names}
        metrics: dict[str, float] = {}
        try:
            values = reward(
                prompts=[candidate.record["prompt"] for candidate in candidates],
                completions=[[{"role": "assistant", "content": candidate.text}] for candidate in candidates],
                # Only lengths are looked at, and these cost nothing.
                completion_ids=[range(candidate.tokens) for candidate in candidates],
                trainer_state=None,
                log_extra=_ignore,
                log_metric=lambda name, value: metrics.update({name: value}),
                **columns,
            )
        except RecipeError:
            raise
        except ValueError as error:  # a column that the reward cannot use; completions do not raise
            raise RecipeError(f"reward {name!r}, records {_span(candidates)}: {first_line(error)}") from error
        if len(values) != len(candidates):
            raise RecipeError(f"reward {name!r} returned {len(values)} values for {len(candidates)} completions; one each")
        failed = sum(value for key, value in metrics.items() if key.endswith("/failed"))
        if failed:
            raise RecipeError(f"reward {name!r}, records {_span(candidates)}: its server failed {failed:.0f} times. {_AGAIN}")
        return values

    def _filter(self, candidates: list[_Candidate]) -> None:
        filters = self.rules.filters
        for candidate in candidates:
            if filters.malformed and not candidate.parsed.well_formed:
                candidate.reason = "malformed"
            elif filters.truncated and candidate.finish_reason == "length":
                candidate.reason = "truncated"
            elif filters.max_tokens is not None and candidate.tokens > filters.max_tokens:
                candidate.reason = "overlong"
        if filters.max_share is not None:
            penalty = RepetitionPenaltyReward(self.fmt, repetition_n_grams=filters.n_grams)
            left = _left(candidates)
            for candidate, value in zip(left, self._call(penalty, "repetitive", left), strict=True):
                if -value > filters.max_share:
                    candidate.reason = "repetitive"
        if filters.min_consistency is not None:
            consistency = LanguageConsistencyReward(self.fmt, language_consistency_target=filters.target)
            left = _left(candidates)
            for candidate, value in zip(left, self._call(consistency, "mixed_language", left), strict=True):
                if value is not None and value < filters.min_consistency:
                    candidate.reason = "mixed_language"
        for candidate in _left(candidates):
            if filters.code and has_code(candidate.parsed.reasoning or candidate.text):
                candidate.reason = "code"
            elif self.rules.correct and candidate.correct is False:
                candidate.reason = "wrong"

    def _judge_prompt(self, record: dict[str, Any], group: list[_Candidate]) -> None:
        if not _left(group):
            return
        if self.rules.pass_rate is not None:
            rate = _rate(group)
            if rate is None or not self.rules.pass_rate[0] <= rate <= self.rules.pass_rate[1]:
                _drop(group, "pass rate")
                return
        sources = self.overlap.sources(record["question"]) if self.overlap else []
        if sources:
            self.contaminated.update(sources)
            _drop(group, "contaminated")

    def _ask_judge(self, candidates: list[_Candidate], judge: Judge) -> None:
        if not candidates:
            return
        messages = []
        for candidate in candidates:
            record, completion = candidate.record, self.fmt.full_text(candidate.text)
            messages.append(judge.message(record["question"], record["columns"].get("solution"), completion, candidate.parsed))
        sampled = [judge.model, judge.max_tokens, judge.temperature]
        digests = [hashlib.sha256(json.dumps([*sampled, message]).encode()).hexdigest()[:32] for message in messages]
        asked = [number for number, digest in enumerate(digests) if digest not in self.scores.known]
        failed: dict[int, str] = {}
        in_a_row = 0

        def on_reply(number: int, reply: Reply) -> None:
            nonlocal in_a_row
            if reply.error is None:
                in_a_row = 0
                self.scores.add(digests[asked[number]], judge.score(reply.text))
                return
            in_a_row += 1
            if not reply.refused:
                failed[asked[number]] = reply.error
            if in_a_row >= max(PATIENCE, judge.max_concurrency):
                raise RecipeError(f"keep: judge: {in_a_row} requests failed one after the other; the last: {reply.error} {_AGAIN}")

        replies = _server(judge).chat(
            [[{"role": "user", "content": messages[number]}] for number in asked],
            max_tokens=judge.max_tokens,
            temperature=judge.temperature,
            on_reply=on_reply,
        )
        if failed:
            first = min(failed)
            raise RecipeError(
                f"keep: judge: {len(failed)} of {len(candidates)} completions are not judged, the first of row "
                f"{candidates[first].record['index']}: {failed[first]} {_AGAIN}"
            )
        refused = [reply.error for reply in replies if reply.error is not None]
        if refused:
            logger.warning("judge: %d of %d requests are refused, the first with: %s", len(refused), len(replies), refused[0])
        for candidate, digest in zip(candidates, digests, strict=True):
            score = candidate.scores["judge"] = self.scores.known.get(digest)
            if score is None:
                candidate.reason = "judge gave no score"
            elif score < judge.min_score:
                candidate.reason = "judge"

    def _write(self, record: dict[str, Any], group: list[_Candidate]) -> None:
        index, report = record["index"], self.report
        report.prompts += 1
        report.failed_prompts += record["error"] is not None
        report.completions += len(group)
        report.tokens_generated += sum(candidate.tokens for candidate in group)
        self.verdicts += [Verdict(index, candidate.sample, candidate.reason, candidate.scores) for candidate in group]
        reasons = Counter(candidate.reason for candidate in group if candidate.reason is not None)
        self.dropped.update(reasons)
        for reason in {*reasons, *(["failed row"] if record["error"] is not None else [])}:
            self.dropped_prompts[reason] += 1
            report.first_index.setdefault(reason, index)
        kept = _left(group)
        if not kept:
            return
        report.kept_prompts += 1
        report.kept_completions += len(kept)
        report.tokens_kept += sum(candidate.tokens for candidate in kept)
        columns = {name: value for name, value in record["columns"].items() if name not in _OWN_TYPES}
        head, solution, rate = {"question": record["question"]}, {"solution": record["columns"].get("solution")}, _rate(group)
        if self.rules.output == "prompts":
            self.rows.append({**head, **solution, **columns, "pass_rate": rate})
            return
        for candidate in kept:
            own = {"pass_rate": rate, "tokens": candidate.tokens, "scores": json.dumps(candidate.scores, ensure_ascii=False)}
            self.rows.append({**head, "response": self.fmt.full_text(candidate.text), **solution, **columns, **own})

    def selection(self) -> Selection:
        if not any(row.get("scorer") for row in self.rows):
            for row in self.rows:
                row.pop("scorer", None)
        report = self.report
        reasons = [reason for reason in REASONS if self.dropped_prompts[reason]]
        report.dropped = {reason: self.dropped[reason] for reason in reasons}
        report.dropped_prompts = {reason: self.dropped_prompts[reason] for reason in reasons}
        report.first_index = {reason: report.first_index[reason] for reason in reasons}
        report.contaminated = dict(self.contaminated)
        return Selection(self.rows, self.verdicts, report)


def _ignore(*values: Any) -> None:
    """What a reward sends to a trainer's logs."""


def _left(candidates: Iterable[_Candidate]) -> list[_Candidate]:
    return [candidate for candidate in candidates if candidate.reason is None]


def _drop(candidates: Iterable[_Candidate], reason: str) -> None:
    for candidate in _left(candidates):
        candidate.reason = reason


def _drop_equal_texts(group: list[_Candidate]) -> None:
    seen = set()
    for candidate in _left(group):
        if candidate.text in seen:
            candidate.reason = "duplicate completion"
        seen.add(candidate.text)


def _rate(group: list[_Candidate]) -> float | None:
    judged = [candidate.correct for candidate in group if candidate.correct is not None]
    return sum(judged) / len(judged) if judged else None


def _span(candidates: list[_Candidate]) -> str:
    return f"{candidates[0].record['index']} to {candidates[-1].record['index']}"


_COLUMNS = {
    "question": "the question",
    "response": "the assistant's whole turn",
    "solution": "the reference answer",
    "scorer": "the task's own scorer, JSON text",
    "pass_rate": "share of the question's completions that are correct, of those that can be judged",
    "tokens": "generated tokens",
    "scores": "rewards by name, JSON text",
}
_OWN_TYPES = {
    "question": "string",
    "response": "string",
    "solution": "string",
    "pass_rate": "float64",
    "tokens": "int64",
    "scores": "string",
}


def write_dataset(selection: Selection, folder: str | Path, *, recipe_settings: Mapping[str, Any], title: str) -> Path:
    """Write what was kept as a dataset that ``datasets.load_dataset(folder)`` and the Hub read.

    ``folder`` gets ``train.jsonl``, ``README.md`` (the dataset card) and ``yield.json``, all of them or none; a dataset that an earlier
    selection left there is replaced. ``verdicts.jsonl``, of all completions, goes beside it. Lone surrogates, which UTF-8 has no bytes
    for, become U+FFFD; NULs stay.

    Args:
        selection: what to write.
        folder: the dataset's folder.
        recipe_settings: the resolved recipe, for the card.
        title: the card's heading.

    Returns:
        The folder.

    Raises:
        RecipeError: nothing was kept (the verdicts are written all the same), the folder holds something else, or the values of a
            column are not of one kind.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    verdicts = ({**dataclasses.asdict(verdict), "kept": verdict.kept} for verdict in selection.verdicts)
    part = folder.parent / "verdicts.jsonl.part"
    _write_lines(part, verdicts)
    if not selection.rows:
        part.replace(folder.parent / "verdicts.jsonl")
        raise RecipeError(f"keep: no completion is left of {selection.report.completions}:\n{selection.report.table()}")
    if folder.exists() and not (folder / "yield.json").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecipeError(f"{folder}: holds something that is no dataset of an earlier selection; move it, or choose another output_dir")
    building, old = (folder.with_name(f".{folder.name}.{state}") for state in ("new", "old"))
    for leftover in (building, old):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    building.mkdir()
    _write_lines(building / "train.jsonl", selection.rows)
    with (building / "train.jsonl").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    (building / "README.md").write_text(_card(selection, recipe_settings, title, digest), encoding="utf-8")
    (building / "yield.json").write_text(json.dumps(selection.report.as_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if folder.exists():
        folder.replace(old)
    building.replace(folder)
    shutil.rmtree(old, ignore_errors=True)
    part.replace(folder.parent / "verdicts.jsonl")
    return folder


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(_without_surrogates(json.dumps(row, ensure_ascii=False, default=str)) + "\n")


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _card(selection: Selection, recipe_settings: Mapping[str, Any], title: str, digest: str) -> str:
    config = {"config_name": "default", "data_files": [{"split": "train", "path": "train.jsonl"}]}
    # Where a card names the files, datasets (5.2) knows its cached copy by the folder's last name and this header alone: without
    # the digest it would give back the rows of an earlier selection, or those of another run.
    config["description"] = f"sha256 {digest}"
    # Types are said outright, since a reader of JSON takes text such as 2024-01-01 for a time.
    header = {"pretty_name": title, "configs": [config], "dataset_info": {"features": _features(selection.rows)}}
    settings = yaml.safe_dump(json.loads(json.dumps(dict(recipe_settings), default=str)), sort_keys=False, allow_unicode=True)
    # A judge's prompt may hold a fence itself.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", settings)), default=0))
    columns = [f"| `{name}` | {_COLUMNS.get(name, 'from the source dataset')} |" for name in selection.rows[0]]
    return _without_surrogates(
        "\n".join(
            [
                f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---\n",
                f"# {title}\n",
                f"{len(selection.rows)} rows, generated and selected by `python -m r1_recipes.generate` (rejection sampling as in "
                "DeepSeek-R1, arXiv:2501.12948, section 2.3.3). The source dataset's licence and the terms of the model that wrote the "
                "completions apply.\n",
                f"## Yield\n\n{selection.report.table()}\n",
                "A completion is counted under the first reason that applies; prompts are those that lost one for it.\n",
                "\n".join(["## Columns\n", "| column | what it holds |", "|---|---|", *columns, ""]),
                f"## Recipe\n\n{fence}yaml\n{settings}{fence}\n",
            ]
        )
    )


def _features(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns' types, as a dataset card names them."""
    import pyarrow as pa
    from datasets import DatasetInfo, Features
    from datasets.info import DatasetInfosDict
    from huggingface_hub import DatasetCardData

    types = []
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            # As they will be read back.
            values = [] if name in _OWN_TYPES else [json.loads(json.dumps(row.get(name), default=str)) for row in rows]
            kind = pa.type_for_alias(_OWN_TYPES[name]) if name in _OWN_TYPES else pa.array(values).type
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise RecipeError(f"column {name!r}: {first_line(error)} Leave it out: keep_columns names those to keep.") from error
        types.append(pa.field(name, kind))
    card = DatasetCardData()
    info = DatasetInfo(features=Features.from_arrow_schema(pa.schema(types)))
    DatasetInfosDict({"default": info}).to_dataset_card_data(card)
    return card.to_dict()["dataset_info"]["features"]
