"""docs/fidelity/ and docs/data/fidelity.yaml: ours is what the recipe resolves to, theirs has its
source and its value in both, and each difference stands in the recipe's header.
"""

import re
from functools import cache

import pytest
import yaml

from benchmarks.originals import DATA, place, states
from r1_recipes.recipe.load import load_recipe
from r1_recipes.recipe.types import namespace_value
from r1_recipes.recipe.values import to_builtin
from r1_recipes.rewards import REWARDS
from tests.conftest import RECIPES, REPOSITORY, method_of

INDEX = (REPOSITORY / "docs" / "fidelity.md").read_text(encoding="utf-8")
PAGES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((REPOSITORY / "docs" / "fidelity").glob("*.md"))
}
DOCUMENT = "\n".join(PAGES.values())
NAMES = {
    path.relative_to(REPOSITORY / "recipes").with_suffix("").as_posix(): path for path in RECIPES
}
# Keys that change where a run goes, how it is watched and how fast it is, but not what is learnt.
RUN_KEYS = (
    "attn_implementation backend bf16 code_batch_seconds code_memory_mb code_provider "
    "eval_strategy eval_steps generation_batch_size_eval "
    "gradient_checkpointing gradient_checkpointing_kwargs hub keep_columns log_completions "
    "logging_steps num_completions_to_print "
    "output_dir per_device_eval_batch_size report_to request_retries request_timeout "
    "save_steps save_strategy "
    "save_total_limit seed teacher_model_init_kwargs use_cpu use_liger_kernel use_vllm "
    "vllm_enable_sleep_mode vllm_gpu_memory_utilization "
    "vllm_max_model_length vllm_mode vllm_server_host vllm_server_port "
    "vllm_tensor_parallel_size dataset_num_proc"
)
# What a table must name even where the recipe leaves it to TRL's default.
OPTIMIZER = (
    "model_name_or_path dtype learning_rate lr_scheduler_type warmup_steps weight_decay "
    "max_grad_norm num_train_epochs"
)
BATCH = "per_device_train_batch_size gradient_accumulation_steps"
DECISIVE = {
    "grpo": f"{OPTIMIZER} {BATCH} response_format reward_funcs num_iterations num_generations beta "
    f"epsilon loss_type scale_rewards "
    "mask_truncated_completions max_completion_length temperature top_p",
    "sft": f"{OPTIMIZER} {BATCH} response_format max_length packing completion_only_loss",
}
ORIGINALS = yaml.safe_load(DATA.read_text(encoding="utf-8"))
PAPER = re.compile(r"arXiv:\d{4}\.\d{5}(v\d)?, (section|appendi|supplement).*")
# How a cell says where theirs stands: a file and its line, a section, a cell of the notebook, a
# release whose default it is, a page.
REFERENCE = re.compile(
    r":\d|\(\d\)|\(T\)|\bB\.\d|\d\.\d|\.(py|yaml|md|sh|json)\b|README|card|default|https?://|"
    r"chapter|section"
)
NUMBERS = {"once": "1", "one": "1", "two": "2", "three times": "3", "all tokens": "1"}
VERDICT = re.compile(r"(same|not said|differs): .+|same|not said")


@cache
def sections():
    """By recipe, the rows ``(setting, theirs, here, verdict)`` of its table."""
    found = {}
    for name, body in re.findall(
        r"^## (\S+)\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL
    ):
        rows = [
            line
            for line in body.splitlines()
            if line.startswith("| ") and not line.startswith("| setting")
        ]
        found[name] = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in rows
        ]
    return found


def ours(cell):
    """``(key, value)`` of each `key: value` in a cell; ``…`` stands for a text that is too long for
    a table.
    """
    return [(key, value) for key, value in re.findall(r"`([a-z][a-z0-9_]*): ([^`]+)`", cell)]


@cache
def resolved(name):
    path = NAMES[name]
    return load_recipe([str(path)], method_of(path), world_size=8)


def differs(path):
    """The paragraph `Differs:` of a header, as one line."""
    header = path.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    inside, words = False, []
    for line in header:
        if re.match(r"# \S+:\s", line):
            inside = line.startswith("# Differs:")
        if inside:
            words.append(line.removeprefix("# Differs:").removeprefix("#").strip())
    return " ".join(words)


def test_every_recipe_has_a_table_or_is_our_own():
    own = re.search(r"^Our own, without an original: (.*?)\n\n", INDEX, re.M | re.DOTALL)[1]
    listed = re.findall(r"`([\w/]+)`", own)
    assert sorted([*sections(), *listed]) == sorted(NAMES)


def test_the_index_links_each_recipe_to_its_table():
    linked = re.findall(r"\[(\S+)\]\(fidelity/(\w+)\.md#", INDEX)
    headings = [
        (name, page)
        for page, text in PAGES.items()
        for name in re.findall(r"^## (\S+)$", text, re.MULTILINE)
    ]
    assert sorted(linked) == sorted(headings)


@pytest.mark.parametrize("name", sorted(sections()))
def test_what_stands_as_ours_is_what_the_recipe_resolves_to(name, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    recipe, named = resolved(name), set()
    for row in sections()[name]:
        assert len(row) == 4 and VERDICT.fullmatch(row[3]), row
        for key, value in ours(row[2]):
            found = to_builtin(namespace_value(recipe, key))
            if value == "…":
                assert len(str(found)) > 60, f"{key} fits into the table"
            else:
                wanted = yaml.safe_load(value)
                if isinstance(found, float):
                    wanted = float(wanted)
                assert wanted == found, f"{key}: the table says {value}, the recipe has {found!r}"
            named.add(key)
    decisive = set(recipe.settings) - set(RUN_KEYS.split())
    if namespace_value(recipe, "train_with") != "sdpo":  # which has no policy gradient
        decisive |= set(DECISIVE.get(recipe.method, "").split())
        if recipe.method == "grpo" and recipe.training.beta:
            decisive.add("use_bias_correction_kl")
        if getattr(recipe.training, "use_vllm", False) or "use_vllm" in recipe.adapted:
            decisive.add("vllm_importance_sampling_correction")
    assert decisive - named == set()


@pytest.mark.parametrize("name", sorted(sections()))
def test_every_difference_stands_in_the_header(name):
    said = differs(NAMES[name])
    for setting, _, here, verdict in sections()[name]:
        if verdict.startswith("differs"):
            words = [setting, *(key for key, _ in ours(here))]
            assert any(re.search(rf"\b{re.escape(word)}\b", said) for word in words), (
                f"none of {words} in Differs: {said}"
            )


def spelled(cell):
    """A cell with the numbers that it has in words or in percent."""
    cell = re.sub(r"(\d+) ?%", lambda found: str(int(found[1]) / 100), cell)
    return re.sub(rf"\b({'|'.join(NUMBERS)})\b", lambda found: NUMBERS[found[1]], cell)


def cited(cell):
    """First and last line of each reference in a cell: `:2-4`, `script:20, 24`."""
    chains = re.findall(r":(\d[\d, :-]*)", cell)
    return [
        (int(first), int(last or first))
        for chain in chains
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", chain)
    ]


def test_every_table_has_a_source():
    assert sorted(ORIGINALS) == sorted(sections())
    for name, its in ORIGINALS.items():
        assert PAPER.fullmatch(its["source"]) or place(its["source"], 1), name


@pytest.mark.parametrize("name", sorted(sections()))
def test_what_stands_as_theirs_is_the_original_s(name, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    source, keys = ORIGINALS[name]["source"], dict(ORIGINALS[name].get("keys", {}))
    for setting, theirs, here, verdict in sections()[name]:
        for key, _ in ours(here):
            if (entry := keys.pop(key, None)) is None:
                continue
            repository, commit, path, line, _ = place(source, entry["at"])
            stated = any(first <= line <= last for first, last in cited(theirs))
            by_release = repository not in source and commit.removeprefix("v") in theirs
            assert stated or by_release or path.endswith(".ipynb"), (
                f"{setting}: {key}: does not name {path}:{line}"
            )
            value, found = entry["theirs"], to_builtin(namespace_value(resolved(name), key))
            if isinstance(value, int | float) and value not in (0, False, True):
                assert states(spelled(theirs), value), (
                    f"{setting}: {key}: {value} is not in {theirs!r}"
                )
            assert found == entry.get("ours", value) or (found, value) == ("bfloat16", "bf16"), key
            assert "ours" not in entry or (verdict != "same" and entry["ours"] != value), (
                f"{setting}: {key}: the verdict is {verdict!r}"
            )
    assert not keys, "keys that no row names"


@pytest.mark.parametrize("name", sorted(sections()))
def test_every_row_says_where_theirs_stands(name):
    if not PAPER.fullmatch(ORIGINALS[name]["source"]):
        for setting, theirs, _, verdict in sections()[name]:
            assert (
                verdict == "not said" or theirs.startswith(("no", "-")) or REFERENCE.search(theirs)
            ), f"{setting}: {theirs}"


def test_the_page_of_coverage_names_only_what_exists():
    """Each thing that a tutorial names has a recipe, a reward, a key or a page, or a reason."""
    texts = [path.read_text(encoding="utf-8") for path in NAMES.values()]
    known = {"metrics.jsonl", "evaluate --ask", "HF_ENDPOINT", "trl dpo", *REWARDS}
    known |= {key for text in texts for key in yaml.safe_load(text)}
    rows = re.findall(r"^\| (?!what|---)(.*) \| (.*) \|$", PAGES["coverage"], re.MULTILINE)
    linked = re.findall(r"\[([\w/]+)\]\(\.\./\.\./recipes/\1\.yaml\)", PAGES["coverage"])
    assert len(rows) > 40 and set(linked) <= set(NAMES)
    for named, here in rows:
        names = [name.partition(":")[0] for name in re.findall(r"`([^`]+)`", here)]
        assert named and (names or "](" in here or here.startswith("not here: ")), named
        for name in names:
            assert name in known, name


def test_every_reward_is_used_by_a_recipe():
    used = {
        name
        for path in NAMES.values()
        for name in yaml.safe_load(path.read_text(encoding="utf-8")).get("reward_funcs") or []
    }
    # The recipe of docs/howto_elsewhere.md needs an environment, which no recipe here can have.
    assert set(REWARDS) - {"verifiers"} <= used
