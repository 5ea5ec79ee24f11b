"""What the documents point to is there, and what they list is what the code has."""

import dataclasses
import re

import pytest
import yaml

from r1_recipes.prompts import FORMATS
from r1_recipes.rewards import REWARDS, reward_parameters
from tests.conftest import RECIPES, REPOSITORY, method_of

DOCUMENTS = sorted(
    [
        *REPOSITORY.glob("README*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "recipes").glob("README*.md"),
    ]
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_relative_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def anchors(document):
    """What a link to a document may name: its headings, as GitHub spells them, and `<a id>`."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings]
    return {*slugs, *re.findall(r'<a id="([^"]+)">', text)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_link_to_a_section_finds_it(document):
    links = re.findall(
        r"\]\(([^)#:]*\.md|)#([^)]+)\)", document.read_text(encoding="utf-8").replace("`", "")
    )
    missing = [
        (path, anchor)
        for path, anchor in links
        if anchor not in anchors(document.parent / path if path else document)
    ]
    assert missing == []


def test_the_index_names_every_page():
    docs = REPOSITORY / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    pages = [path.name for path in docs.glob("*.md") if path.name != "index.md"]
    assert [page for page in pages if f"]({page})" not in index] == []
    results = (docs / "results.md").read_text(encoding="utf-8")
    experiments = [f"results/{path.name}" for path in (docs / "results").glob("*.md")]
    assert [page for page in experiments if f"]({page})" not in results] == []


def code(document):
    """A document's fenced blocks, without comments."""
    blocks = re.findall(
        r"^```.*?^```", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return [[re.sub(r"(^|\s+)#.*", "", line) for line in block.splitlines()] for block in blocks]


@pytest.mark.parametrize(
    "chinese",
    [path for path in DOCUMENTS if path.name.endswith(".zh.md")],
    ids=lambda path: path.name,
)
def test_a_chinese_document_has_the_code_of_its_twin(chinese):
    assert code(chinese) == code(chinese.with_name(chinese.name.replace(".zh.md", ".md")))


def test_every_key_reward_and_format_is_documented():
    from r1_recipes.data import MAPPERS
    from r1_recipes.extras.judges.model import Settings
    from r1_recipes.extras.selection.rules import (
        Deduplicate,
        EvaluationSet,
        Filters,
        KeepRules,
        MixedLanguage,
        Overlong,
        Repetitive,
    )
    from r1_recipes.recipe.types import (
        EvaluateRecipeArguments,
        GenerateRecipeArguments,
        GenerationSettings,
        GRPORecipeArguments,
    )

    text = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")
    ours = (
        GRPORecipeArguments,
        EvaluateRecipeArguments,
        GenerateRecipeArguments,
        GenerationSettings,
        KeepRules,
    )
    keys = [f.name for kind in ours for f in dataclasses.fields(kind)] + list(MAPPERS)
    for name in (*keys, *REWARDS, *reward_parameters(REWARDS), *FORMATS):
        assert f"`{name}`" in text, name
    kinds = (Settings, Filters, Overlong, Repetitive, MixedLanguage, Deduplicate, EvaluationSet)
    inner = [f.name for kind in kinds for f in dataclasses.fields(kind)]
    assert [name for name in inner if not re.search(rf"\b{name}\b", text)] == []


def test_the_limits_of_verification_are_those_of_the_code():
    from r1_recipes.verification import pool, reading, worker

    text = (REPOSITORY / "docs" / "verification.md").read_text(encoding="utf-8")
    limits = [
        f"{pool.QUICK_SECONDS:g} s of its",
        f"{pool.TASK_SECONDS:g} s per worker",
        f"{worker.MEMORY_BYTES >> 30} GB of address space",
    ]
    limits += [
        f"{worker.RETIRE_TASKS:,} answers, or {worker.RETIRE_BYTES >> 20} MB",
        f"than {reading.MAX_ANSWER_CHARS:,} characters",
    ]
    assert [limit for limit in limits if limit not in text] == []


def test_the_example_of_verification_holds():
    exec(
        re.findall(
            r"```python\n(.*?)```",
            (REPOSITORY / "docs" / "verification.md").read_text(encoding="utf-8"),
            re.DOTALL,
        )[0],
        {},
    )


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_says_what_it_is_and_stands_in_the_menu(path):
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    for heading in ("Follows:", "Hardware:", "Run:", "Override:", "Expect:", "Arithmetic:"):
        assert heading in header, heading
    name = path.relative_to(REPOSITORY / "recipes").as_posix()
    assert f"recipes/{name}" in header
    assert f"({name})" in (REPOSITORY / "recipes" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_unsharded_recipes_keep_fp32_weights(path):
    """AdamW steps of 1e-6 vanish in bf16 weights; only ZeRO and FSDP keep an fp32 copy. A recipe
    says so if its original keeps none.
    """
    if method_of(path) in ("generate", "evaluate"):
        return  # nothing is stepped
    text = path.read_text(encoding="utf-8")
    recipe = yaml.safe_load(text)
    kept = re.search(r"accelerate_configs/(zero|fsdp)|without an fp32 copy, as theirs", text)
    assert kept or recipe.get("use_peft") or recipe["dtype"] == "float32"


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_mapper_of_the_readme_works(tmp_path, monkeypatch, name):
    from r1_recipes.data import get_mapper

    (source,) = (
        block
        for block in re.findall(
            r"```python\n(.*?)```", (REPOSITORY / name).read_text(encoding="utf-8"), re.DOTALL
        )
        if "Quiz" in block
    )
    module = f"quiz_of_{name.replace('.', '_')}"
    (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    mapper = get_mapper(f"{module}:Quiz")
    assert mapper({"frage": "3 + 4?", "antwort": "7"}) == {"question": "3 + 4?", "solution": "7"}
    assert (
        all(set(mapper.columns) == set(row) for row in mapper.examples)
        and len(mapper.examples) == 2
    )


def test_the_first_hour_s_commands_load_and_move_nothing_where_they_say_so():
    from r1_recipes.recipe import load_recipe

    text = (REPOSITORY / "docs" / "first_hour.md").read_text(encoding="utf-8")
    lines = re.findall(r"^accelerate launch (.*?)-m r1_recipes\.grpo (.*)$", text, re.MULTILINE)
    assert len(re.findall(r"```bash", text)) == 5 and len(lines) == 3
    for flags, words in lines:
        count = int(re.search(r"--num_processes (\d+)", flags)[1])
        training = load_recipe(words.split(), "grpo", world_size=count).training
        step = training.per_device_train_batch_size * training.gradient_accumulation_steps * count
        assert step == 64 or f"A step has {step} completions" in text
        assert (training.learning_rate == 0) == ("moves" not in words) and training.beta > 0
        for config in re.findall(r"--config_file (\S+)", flags):
            assert (REPOSITORY / config).is_file()
