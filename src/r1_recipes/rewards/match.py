"""Rewards for an answer in words or an option's letter: golds that are not mathematics, a judge
where rules cannot tell.
"""

import re
import unicodedata
from typing import Any

from r1_recipes.common import extras
from r1_recipes.common.messages import completion_texts, last_user_text
from r1_recipes.prompts.formats import boxed_spans
from r1_recipes.rewards.accuracy import MathReward, correctness
from r1_recipes.rewards.registry import AnswerReward, Column, Log, Values, ignore, register_reward
from r1_recipes.verification import Refusal, Verdict
from r1_recipes.verification.lexicon import chosen
from r1_recipes.verification.reading import ANCHOR

# A number keeps its sign and its point, and what stands between two or compares them; a word keeps
# a sign at its end (HER2+ is not HER2-). A hyphen after a letter is no sign: Type-2 is Type 2.
_TOKEN = re.compile(
    r"(?:(?<!\w)-|\+)?(?:\d+(?:[.,]\d+)*|(?<![\w.])\.\d+)%?(?![^\W\d_])|"
    r"(?<=\d)\s*[/:]\s*(?=\d)|[<>≤≥≠±↑↓=^]|[^\W_]+(?:[-+](?!\w))?"
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_POWER = re.compile(r"(?<=\d)(?=[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻])")  # 10⁵ is not 105; Ca²⁺ is Ca2+
# An article stands before a word. A capital A elsewhere than at the beginning is a letter:
# hepatitis A virus.
_ARTICLE = re.compile(r"(?:\A\W*(?i:an?|the)|\b(?:an?|[Tt]he))\s+(?=\w)")
# Of a longer answer no part is known to be the one that is meant; a judge reads the beginning.
_MAX_CHARS = 4000


def candidates(answer: str) -> list[str]:
    """What of an answer may stand for all of it: the whole, what follows the last "answer is" on
    its line, what its one box holds.
    """
    texts = [answer]
    *_, anchor = [None, *ANCHOR.finditer(answer)]
    if anchor is not None:
        texts.append(
            next(
                (line for line in answer[anchor.end() :].splitlines() if line.strip(" \t*_:：")), ""
            )
        )
    boxes = {answer[start:end] for start, end in boxed_spans(answer)}
    if (
        len(boxes) == 1
        and len(texts) == 2
        and words(*boxes) != words(re.sub(r"\\boxed", "", texts[1]))
    ):
        return [answer]  # "\\boxed{Paris}. The answer is London"
    return [*texts, *boxes] if len(boxes) == 1 else texts


def words(text: str) -> list[str]:
    """The words and numbers of a text, as they are compared: case, width, articles, punctuation and
    emphasis do not count.
    """
    plain = unicodedata.normalize("NFKC", _POWER.sub("^", text)).replace("*", "").replace("`", "")
    plain = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), _ARTICLE.sub("", plain))
    tokens = [token[0].strip() for token in _TOKEN.finditer(plain.casefold())]
    return [f"0{token}" if token.startswith(".") else token for token in tokens]


def choice(text: str) -> tuple[str, list[str]] | None:
    """The one option's letter, A to J, that a text begins with, and the words after it; ``None`` if
    there is none, or two.
    """
    found = chosen(text)
    return found and (found[0], words(found[1]))


_DOUBT = re.compile(r"[?？]|\d\s*!|!\s*\d")  # a question, a factorial


def _says(answer: str | None, gold: str) -> bool:
    if answer and _DOUBT.search(answer) and not _DOUBT.search(gold):
        return False
    return (
        answer is not None
        and len(answer) <= _MAX_CHARS
        and words(gold) in map(words, candidates(answer))
    )


def _chooses(answer: str | None, gold: str) -> bool:
    """Whether the answer is the gold's letter, and no other words than the gold's follow it: E.
    coli is not E. histolytica.
    """
    wanted = choice(gold)
    if wanted is None or answer is None or len(answer) > _MAX_CHARS:
        return False
    letter, text = wanted
    found = [one for one in map(choice, candidates(answer)) if one is not None]
    return {one[0] for one in found} == {letter} and (
        not text or any(one[1] in ([], text) for one in found)
    )


def _other_unit(answer: str | None, gold: str) -> bool:
    """Whether the gold has a unit (or a variable) that the answer, though it is not a number alone,
    does not have.
    """
    if answer is None:  # found in the whole text, which `boxed` allows
        return False
    texts = (unicodedata.normalize("NFKC", text) for text in (gold, candidates(answer)[-1]))
    wanted, found = (
        set(re.findall(r"[^\W\d_]+|%", re.sub(r"\\[a-zA-Z]+", " ", text).casefold()))
        for text in texts
    )
    return bool(wanted and found and not wanted <= found)


@register_reward("exact_match")
class ExactMatchReward(AnswerReward):
    """1.0 if the answer says the column ``solution`` and nothing else, else 0.0; ``None`` if there
    is no gold.

    Range: {0, 1}. Compared are words and numbers: case, punctuation, articles and Markdown do not
    count, order and signs (``-``, ``<``, ``↑``) do. Of an answer in a sentence, what follows
    "answer is" or stands in a box is compared, too. Two names are not one.
    """

    def score(self, answer: str | None, gold: str) -> float | None:
        return float(_says(answer, gold)) if words(gold) else None


@register_reward("choice_match")
class ChoiceMatchReward(AnswerReward):
    """1.0 if the answer is the option's letter in the column ``solution``, else 0.0; ``None`` if
    the gold is no letter, A to J.

    Range: {0, 1}. ``B``, ``(B)``, ``B. pancreas`` and ``The answer is B`` are the same choice; two
    letters are none, and after a gold with words (``B. pancreas``) other words are another answer.
    Source: open-r1-multimodal.
    """

    def score(self, answer: str | None, gold: str) -> float | None:
        return None if choice(gold) is None else float(_chooses(answer, gold))


@register_reward("answer_match")
class AnswerMatchReward(MathReward, AnswerReward):
    """1.0 if ``choice_match``, ``accuracy`` or ``exact_match`` accepts the answer, as the gold
    asks; else what a judge says, or 0.0.

    Range: 0..1 ({0, 1} without a judge). ``None`` if there is no gold, or the judge gave no score.

    ``match_judge`` is ``openai:NAME``, a model behind an OpenAI-compatible server
    (``OPENAI_BASE_URL``), asked only about answers that the rules do not accept. It gets
    ``match_judge_prompt``, with ``{question}``, ``{solution}`` and ``{answer}``, and its last line,
    ``Score: x`` with 0 to 1, counts; another number does not. Metrics: ``answer_match/asked`` (rows
    of the batch), ``…/unscored``, ``…/failed``; ``matched_by`` in the completions table. A batch of
    which all requests fail is an error.

    Source: HuatuoGPT-o1 (arXiv:2412.18925), whose verifier is a model alone; here rules come first,
    which cannot be talked round.
    """

    match_judge: str = ""
    match_judge_prompt: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.match_judge:
            served = extras.needed("judges", "match_judge").SERVED
            named = self.match_judge.startswith(served) and self.match_judge != served
            self.require(
                named,
                "match_judge",
                "'openai:NAME', a model behind an OpenAI-compatible server, or ''",
            )
            asks = all(slot in self.match_judge_prompt for slot in ("{solution}", "{answer}"))
            self.require(
                asks,
                "match_judge_prompt",
                "a text with {solution} and {answer} that asks for a line 'Score: x'",
            )

    def __call__(
        self,
        completions: Column,
        *,
        solution: Column | None = None,
        log_extra: Log = ignore,
        prompts: Column = (),
        log_metric: Log = ignore,
        **columns: Any,
    ) -> Values:
        golds = [(gold or "").strip() for gold in self.golds(solution, columns)]
        answers = [self.answer(text) for text in completion_texts(completions)]
        _, verdicts = correctness(
            self,
            completions,
            golds,
            prompts=prompts or None,
            trainer_state=columns.get("trainer_state", True),
        )
        matched_by = [
            _rule(answer, gold, verdict.right)
            for answer, gold, verdict in zip(answers, golds, verdicts, strict=True)
        ]
        scores: Values = [
            float(rule != "") if words(gold) else None
            for rule, gold in zip(matched_by, golds, strict=True)
        ]
        for row, verdict in enumerate(verdicts):
            if verdict == Verdict(None, Refusal.HURRIED) and not matched_by[row]:
                scores[row] = None
        if self.match_judge:
            asked = {
                row: answer[:_MAX_CHARS]
                for row, answer in enumerate(answers)
                if answer and words(golds[row]) and not matched_by[row]
            }
            questions = {row: last_user_text(prompts[row]) if prompts else "" for row in asked}
            judges = extras.needed("judges", "match_judge")
            slots = [
                {
                    "question": questions[row],
                    "solution": golds[row],
                    "answer": judges.as_text(answer),
                }
                for row, answer in asked.items()
            ]
            opinions = [
                judges.within((0.0, 1.0), opinion)
                for opinion in judges.ask(self.match_judge, self.match_judge_prompt, slots)
            ]
            judges.report_unjudged(
                f"reward {self.name!r}, match_judge {self.match_judge!r}", opinions
            )
            for row, opinion in zip(asked, opinions, strict=True):
                scores[row] = opinion.score
                matched_by[row] = "judge" if scores[row] else ""
            log_metric("answer_match/asked", float(len(asked)))
            log_metric(
                "answer_match/unscored", float(sum(opinion.score is None for opinion in opinions))
            )
            log_metric("answer_match/failed", float(sum(opinion.failed for opinion in opinions)))
        self.log_answers(log_extra, answers, solution or ())
        log_extra("matched_by", matched_by)
        return scores


def _rule(answer: str | None, gold: str, equal: bool | None) -> str:
    """The rule that accepts the answer; ``""`` if none does. ``equal`` is the verdict of
    mathematics.
    """
    if _chooses(answer, gold):
        return "choice"
    # Of mathematics, words lose brackets and signs: [1,2] is not (1,2).
    if re.search(r"[^\W\d_]{2,}", re.sub(r"\\[a-zA-Z]+", " ", gold)) and _says(answer, gold):
        return "words"
    return "mathematics" if equal and not _other_unit(answer, gold) else ""
