"""Language consistency: is the reasoning in the language that it should be in?

Scripts are told apart by their characters. Languages that share a script are told apart sentence by sentence by lingua, which is
imported on the first such text only (its model loads in about 0.2 s and 35 MB).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import unknown_name
from r1_recipes.common.messages import completion_texts, last_user_text
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import Reward, register_reward

if TYPE_CHECKING:
    from lingua import LanguageDetector

logger = logging.getLogger(__name__)

# ISO 639-1 code -> name and script. Languages of one script are what the detector chooses between: few and large on purpose, since
# each further one costs accuracy on short sentences.
LANGUAGES: dict[str, tuple[str, str]] = {
    "en": ("English", "latin"),
    "fr": ("French", "latin"),
    "de": ("German", "latin"),
    "es": ("Spanish", "latin"),
    "pt": ("Portuguese", "latin"),
    "it": ("Italian", "latin"),
    "nl": ("Dutch", "latin"),
    "sv": ("Swedish", "latin"),
    "pl": ("Polish", "latin"),
    "cs": ("Czech", "latin"),
    "ro": ("Romanian", "latin"),
    "tr": ("Turkish", "latin"),
    "id": ("Indonesian", "latin"),
    "vi": ("Vietnamese", "latin"),
    "ru": ("Russian", "cyrillic"),
    "uk": ("Ukrainian", "cyrillic"),
    "bg": ("Bulgarian", "cyrillic"),
    "ar": ("Arabic", "arabic"),
    "fa": ("Persian", "arabic"),
    "ur": ("Urdu", "arabic"),
    "hi": ("Hindi", "devanagari"),
    "mr": ("Marathi", "devanagari"),
    "zh": ("Chinese", "han"),
    "ja": ("Japanese", "kana"),
    "ko": ("Korean", "hangul"),
    "th": ("Thai", "thai"),
    "el": ("Greek", "greek"),
    "he": ("Hebrew", "hebrew"),
    "hy": ("Armenian", "armenian"),
    "ka": ("Georgian", "georgian"),
    "bn": ("Bengali", "bengali"),
    "ta": ("Tamil", "tamil"),
    "te": ("Telugu", "telugu"),
}
_SCRIPT_LANGUAGES = {script: [code for code in LANGUAGES if LANGUAGES[code][1] == script] for _, script in LANGUAGES.values()}

_LATIN = "A-Za-zªºÀ-ÖØ-öø-ɏ\u0300-\u036fḀ-ỿ"
_CHARACTERS = {
    # Digits and underscores belong to the run, so that "2x", "5km" and "x_1" are seen whole and left out.
    "latin": rf"[{_LATIN}0-9_]+(?:['’][{_LATIN}]+)*",
    "cyrillic": "[\u0400-\u052f]+",
    "arabic": "[\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufefc]+",
    "devanagari": "[\u0900-\u097f]+",
    "han": "[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+",
    "kana": "[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]+",
    "hangul": "[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]+",
    "thai": "[\u0e00-\u0e7f]+",
    "greek": "[\u0370-\u03ff\u1f00-\u1fff]+",
    "hebrew": "[\u0590-\u05ff]+",
    "armenian": "[\u0531-\u0587]+",
    "georgian": "[\u10a0-\u10ff\u1c90-\u1cbf]+",
    "bengali": "[\u0980-\u09ff]+",
    "tamil": "[\u0b80-\u0bff]+",
    "telugu": "[\u0c00-\u0c7f]+",
    "other": r"[^\W\d_]+",
}
_WORD = re.compile("|".join(f"(?P<{script}>{pattern})" for script, pattern in _CHARACTERS.items()))
# How many characters make about as much text as one word of a spaced script.
_CHARACTERS_PER_WORD = {"han": 2, "kana": 2, "thai": 4}
# One letter of these is a variable, not a word.
_VARIABLE_SCRIPTS = {"latin", "greek", "cyrillic"}
_NOT_A_WORD = re.compile(r"[\d_]|^[A-Z]{1,3}$")  # 5km, x_1; the triangle ABC
_MATHS_WORD = re.compile(
    r"sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|lg|exp|lim|max|min|sup|inf|gcd|lcm|mod"
    r"|det|dim|ker|deg|arg|sqrt|frac|cdot|times|pi|mm|cm|dm|km|mg|kg|ml|kw|kj|hz"
)

_SENTENCE_END = re.compile(r"[.!?;:。！？；：\n]+")
# Spans that belong to no language. Each opener is paired with the next closer; one that never closes hides nothing.
_SPANS = tuple(
    (re.compile(opening), re.compile(closing))
    for opening, closing in (
        (r"```", r"```"),
        (r"\$\$", r"\$\$"),
        (r"\\\[", r"\\\]"),
        (r"\\\(", r"\\\)"),
        (r"\\begin\{", r"\\end\{[^{}\n]{0,40}\}"),
    )
)
_NO_LANGUAGE = re.compile(
    r"`[^`\n]+`"
    r"|https?://[!-~]+|www\.[!-~]+"
    # Pandoc's rule for inline maths, which leaves "$2 each, so $18" alone.
    r"|\$(?=[^\s$])[^$\n]*(?<=[^\s$])\$(?!\d)"
    r"|\\[A-Za-z]+\*?(?:\{[^{}\n]*\})*"
)

# On GSM8K's sentences the detector's first choice is wrong for every second one of 1 or 2 words, for 1 of 6 at 5 words and for 1
# of 60 from 12 up.
_MIN_WORDS = 5
# A sentence is foreign where the detector gives the target less than this. On 1,500 worked solutions of GSM8K with English as the
# target the mean is 0.996; taking its first choice at its word would call 4.5 % of the words foreign. With French, German or
# Spanish as the target the same solutions score 0.06 to 0.14.
_FOREIGN_BELOW = 0.005
# The detector takes about 0.1 ms a sentence: of a long text this many, evenly spread, stand for all.
_MAX_CHUNKS = 200
_MAX_CHUNK_WORDS = 60


@register_reward("language_consistency")
@dataclass(frozen=True)
class LanguageConsistencyReward(Reward):
    """Share of the reasoning that is in the target language.

    Range: 0..1, in words; two Han or kana characters, or four Thai ones, count as a word. The target is the row's ``language``
    column where that is not empty, else ``language_consistency_target``, else the language of the prompt's last user message.
    ``None`` where the column holds a language that is not supported, or the prompt has too few words to tell.

    Maths, code, numbers, single letters, LaTeX commands, addresses and the format's tags do not count. A reasoning that holds
    nothing else scores 1.0 (no word is in the wrong language). Where the text has no reasoning block (cut short, say), all of it
    before the answer is judged; an empty block, or no block and no words, scores 0.0. In a script that several languages share, a
    sentence counts as foreign when the detector all but excludes the target. On fewer than 5 words it guesses, so short sentences
    are judged together, and a text of fewer words than that counts as the target. Proper names in another script count against.

    Source: DeepSeek-R1 (arXiv:2501.12948, section 2.3.2), "the proportion of target language words in the CoT".

    Raises:
        ValueError: ``language_consistency_target`` is no supported code (or English name); the message lists them.
    """

    language_consistency_target: str | None = None

    def __post_init__(self) -> None:
        target = self.language_consistency_target
        if target is not None and language_code(target) is None:
            raise ValueError(unknown_name("language_consistency_target", target, LANGUAGES))

    def __call__(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Any] | None = None,
        language: Sequence[str | None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        texts = completion_texts(completions)
        prompts = prompts if prompts is not None else [""] * len(texts)
        languages = language if language is not None else [None] * len(texts)
        return [self._score(text, prompt, row_language) for text, prompt, row_language in zip(texts, prompts, languages, strict=True)]

    def _score(self, text: str, prompt: Any, row_language: str | None) -> float | None:
        target = self._target(prompt, row_language)
        if target is None:
            return None
        reasoning, is_block = _reasoning(self.response_format, text)
        share = _share(reasoning, target)
        return float(is_block) if share is None else share

    def _target(self, prompt: Any, row_language: str | None) -> str | None:
        if isinstance(row_language, str) and row_language.strip():
            code = language_code(row_language)
            if code is None:
                _warn_once(row_language)
            return code
        if self.language_consistency_target is not None:
            return language_code(self.language_consistency_target)
        return _text_language(last_user_text(prompt))


def language_code(name: str) -> str | None:
    """The key of :data:`LANGUAGES` for a code with or without region (``zh-CN``) or an English name; ``None`` if there is none."""
    name = name.strip().lower()
    code = re.split("[-_]", name, maxsplit=1)[0]
    return code if code in LANGUAGES else next((key for key, (known, _) in LANGUAGES.items() if known.lower() == name), None)


@lru_cache(maxsize=256)
def _warn_once(language: str) -> None:
    message = unknown_name("value in column 'language'", language, LANGUAGES)
    logger.warning("%s Such rows get no language_consistency reward.", message)


def _reasoning(fmt: ResponseFormat, completion: str) -> tuple[str, bool]:
    """The text to judge, and whether it is a reasoning block."""
    parsed = fmt.parse(completion)
    if parsed.reasoning is not None:
        return parsed.reasoning, True
    if fmt.reasoning_tags:
        opening, closing = fmt.reasoning_tags
        full = fmt.full_text(completion)
        _, closed, after = full.rpartition(closing)
        if (full.count(closing) > 1) if opening == closing else (closed and opening not in after):
            return "", False  # a block that closes and yet holds nothing
    if fmt.answer_tags:
        completion = completion.partition(fmt.answer_tags[0])[0]
    for tag in (*(fmt.reasoning_tags or ()), *(fmt.answer_tags or ())):
        completion = completion.replace(tag, " ")
    return completion, False


def _words(text: str) -> list[list[tuple[str, str]]]:
    """The countable words of each sentence, with their scripts."""
    for opening, closing in _SPANS:
        text = _without_spans(text, opening, closing)
    sentences = []
    for sentence in _SENTENCE_END.split(_NO_LANGUAGE.sub(" ", text)):
        words = []
        for match in _WORD.finditer(sentence):
            script, word = match.lastgroup, match[0]
            if script in _VARIABLE_SCRIPTS and (len(word) < 2 or _NOT_A_WORD.search(word) or _MATHS_WORD.fullmatch(word.lower())):
                continue
            words.append((script, word))
        if words:
            sentences.append(words)
    return sentences


def _without_spans(text: str, opening: re.Pattern, closing: re.Pattern) -> str:
    kept, cursor = [], 0
    # Stopping at the first opener without a closer keeps this one pass: no later opener can have one.
    while (start := opening.search(text, cursor)) and (end := closing.search(text, start.end())):
        kept.append(text[cursor : start.start()])
        cursor = end.end()
    kept.append(text[cursor:])
    return " ".join(kept)


def _size(script: str, word: str) -> float:
    return len(word) / _CHARACTERS_PER_WORD[script] if script in _CHARACTERS_PER_WORD else 1.0


def _script_sizes(words: Sequence[tuple[str, str]]) -> Counter[str]:
    """Amount of text in each script of one sentence; the Han characters of a Japanese sentence are Japanese."""
    sizes: Counter[str] = Counter()
    for script, word in words:
        sizes[script] += _size(script, word)
    # Japanese prose is about half kana; a lone kana in Chinese is a name or a quotation.
    if sizes["kana"] * 5 >= sizes["han"]:
        sizes["kana"] += sizes.pop("han", 0)
    return sizes


def _share(text: str, target: str) -> float | None:
    """Share of ``text`` in ``target``; ``None`` where nothing counts."""
    script = LANGUAGES[target][1]
    sentences = _words(text)
    total = in_script = 0.0
    for words in sentences:
        sizes = _script_sizes(words)
        total += sum(sizes.values())
        in_script += sizes[script]
        # "計算結果" alone may be either language; six characters of Japanese hold a kana.
        if target == "ja" and sizes["han"] < 3:
            in_script += sizes["han"]
    if not total:
        return None
    if len(_SCRIPT_LANGUAGES[script]) > 1:
        in_script *= 1.0 - _foreign_share(sentences, script, target)
    return min(1.0, in_script / total)


def _foreign_share(sentences: Sequence[Sequence[tuple[str, str]]], script: str, target: str) -> float:
    """Share of the words of ``script`` that stand in sentences of another language of that script."""
    chunks = _chunks([[word for word_script, word in words if word_script == script] for words in sentences])
    if len(chunks) > _MAX_CHUNKS:
        step = len(chunks) / _MAX_CHUNKS
        chunks = [chunks[int(i * step)] for i in range(_MAX_CHUNKS)]
    foreign = 0
    for words in chunks:
        confidences = _confidences(script, words)
        # Words that fit none of its languages leave every one at 0.
        if any(confidences.values()) and confidences[target] < _FOREIGN_BELOW:
            foreign += len(words)
    return foreign / sum(map(len, chunks)) if chunks else 0.0


def _chunks(sentences: Sequence[list[str]]) -> list[list[str]]:
    """Sentences long enough to be judged; consecutive short ones are put together. A short rest is left out."""
    chunks, short = [], []
    for words in sentences:
        if len(words) >= _MIN_WORDS:
            chunks.append(words)
        else:
            short.extend(words)
            if len(short) >= _MIN_WORDS:
                chunks.append(short)
                short = []
    return chunks


def _text_language(text: str) -> str | None:
    """The language most of ``text`` is in; ``None`` where there are too few words to tell."""
    sentences = _words(text)
    sizes: Counter[str] = Counter()
    for words in sentences:
        sizes.update(_script_sizes(words))
    if not sizes:
        return None
    script = sizes.most_common(1)[0][0]
    codes = _SCRIPT_LANGUAGES.get(script, [])
    if len(codes) < 2:
        return codes[0] if codes else None
    words = [word for words in sentences for word_script, word in words if word_script == script]
    if len(words) < _MIN_WORDS:
        return None
    confidences = _confidences(script, words)
    best = max(confidences, key=confidences.get)
    return best if confidences[best] > 0.5 else None


def _confidences(script: str, words: Sequence[str]) -> dict[str, float]:
    # Words past a sentence's length, and letters past a word's, are hostile input or a list; neither needs to be read in full.
    text = " ".join(word[:40] for word in words[:_MAX_CHUNK_WORDS])
    values = _detector(script).compute_language_confidence_values(text)
    return {value.language.iso_code_639_1.name.lower(): value.value for value in values}


@lru_cache
def _detector(script: str) -> LanguageDetector:
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    codes = (getattr(IsoCode639_1, code.upper()) for code in _SCRIPT_LANGUAGES[script])
    # The full mode takes 380 MB and 3 s to load and twice the time a text, for a mean of 0.9997 where this one has 0.996.
    return LanguageDetectorBuilder.from_iso_codes_639_1(*codes).with_low_accuracy_mode().build()
