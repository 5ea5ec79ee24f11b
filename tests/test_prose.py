"""README and guides are in plain words: short sentences, the field's terms, no words of the house."""

import re

import pytest

from tests.conftest import REPOSITORY

# A page is added here when it has been rewritten; of results, every experiment's is here.
PAGES = (
    "README.md",
    "AGENTS.md",
    "docs/api.md",
    "docs/faq.md",
    "docs/fidelity.md",
    "docs/first_hour.md",
    "docs/flat_reward.md",
    "docs/one_gpu.md",
    "docs/your_data.md",
    "docs/after_training.md",
    "docs/agents.md",
    "docs/architecture.md",
    "docs/report.md",
    "docs/how_grpo_works.md",
    "docs/recipes.md",
    "docs/results.md",
    "docs/migration.md",
    "docs/scaling.md",
    "docs/evaluation.md",
    "docs/preflight.md",
    "docs/losses.md",
    "docs/code_reward.md",
    "docs/security.md",
    "docs/index.md",
    "docs/verification.md",
    "docs/glossary.md",
    "docs/howto_async_grpo.md",
    "docs/howto_curriculum.md",
    "docs/howto_judges.md",
    "docs/howto_reward_model.md",
    *sorted(f"docs/results/{path.name}" for path in (REPOSITORY / "docs/results").glob("*.md")),
)
MAX_WORDS = 30
MAX_TOTAL = 30_000
EXPLAINS_HOUSE_WORDS = "docs/glossary.md"
# Each has a plain word of the field: reference answer, reward of 0, message, resumes.
HOUSE_WORDS = re.compile(
    r"\b(golds?|pays|is paid|are paid|goes on|told|one's own|whoever|somebody|nobody|in vain)\b",
    re.IGNORECASE,
)


def prose(text):
    """A page's paragraphs, list items and cells of tables, without code and addresses."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "CODE", text)
    parts = re.split(r"\n\s*\n|\n(?=[-*#>|]|\d+\. )|\|", text)
    return [" ".join(part.split()).lstrip("#->* ") for part in parts if part.strip(" |-\n:")]


def sentences(text):
    return [
        sentence
        for part in prose(text)
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z*C])", part)
        if sentence
    ]


def test_the_splitter_finds_long_sentences_and_no_code():
    long = "word " * 31
    text = f"# Title\n\n{long}.\n\n```bash\n{long}\n```\n| `{long}` | b |\n- [{long}](x)"
    found = [sentence for sentence in sentences(text) if len(sentence.split()) > MAX_WORDS]
    assert len(found) == 2


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short(page):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    assert [s for s in sentences(text) if len(s.split()) > MAX_WORDS] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != EXPLAINS_HOUSE_WORDS])
def test_words_are_those_of_the_field(page):
    text = " ".join(prose((REPOSITORY / page).read_text(encoding="utf-8")))
    assert HOUSE_WORDS.findall(text) == []


def test_the_pages_stay_short_together():
    """English pages, without fenced code, the comparison with originals and the pages that
    docstrings write. Before you raise the number, cut what another page says.
    """
    pages = {
        path: re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for path in (REPOSITORY / "docs").rglob("*.md")
        if "fidelity" not in path.as_posix() and not path.name.endswith((".zh.md", "api.md"))
    }
    assert len(pages) > 30
    assert sum(len(text.split()) for text in pages.values()) <= MAX_TOTAL
