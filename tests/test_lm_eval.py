"""lm-eval and evaluate judge the same completions alike, row by row; where they do not, it is written down here."""

import json
import random
from pathlib import Path

import pytest
import yaml

from r1_recipes import evaluate, lm_eval
from r1_recipes.common.errors import RecipeError
from r1_recipes.completions.backends import Completion
from r1_recipes.data.load import build_prompt
from r1_recipes.prompts.formats import FORMATS
from r1_recipes.rewards import get_reward_funcs
from tests.conftest import REPOSITORY

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -c constraints.txt -e '.[lm-eval]'")
pytestmark = pytest.mark.usefixtures("offline")


def dataset(fmt, golds):
    from datasets import Dataset

    prompts = [build_prompt(f"{{{{ {number} }}}} Give {gold}.", fmt) for number, gold in enumerate(golds)]
    return Dataset.from_dict({"prompt": prompts, "solution": golds})


def scripted(completions):
    """An lm-eval model that gives these, by the number that stands in the question, whatever it is asked to do."""
    from lm_eval.api.model import LM

    class Scripted(LM):
        tokenizer_name = "scripted"

        def apply_chat_template(self, chat_history, add_generation_prompt=True):
            return json.dumps(chat_history)

        def generate_until(self, requests):
            self.asked = [(json.loads(request.args[0]), request.args[1]) for request in requests]
            return [completions[int(messages[-1]["content"].split()[1])] for messages, _ in self.asked]

        def loglikelihood(self, requests):
            raise AssertionError("the task generates")

        loglikelihood_rolling = loglikelihood

    return Scripted()


def judged_by_both(tmp_path, fmt, rows):
    """``(completion, gold, ours strict, ours lenient, lm-eval's strict-match, lm-eval's flexible-extract)`` a row."""
    completions, golds = zip(*rows, strict=True)
    data = dataset(fmt, list(golds))
    judges = dict(zip(["accuracy"], get_reward_funcs(["accuracy"], fmt), strict=True))
    _, table = evaluate._judge("m", fmt, data, [[Completion(text, 9, "stop")] for text in completions], 0, judges, {}, None)
    task = lm_eval.write_task(data, fmt, tmp_path / "task", name="local", max_tokens=64)
    results = lm_eval.run_task(task, scripted(completions))
    theirs = [lm_eval.verdicts(results, "local", which) for which in (lm_eval.STRICT, lm_eval.FLEXIBLE)]
    assert [len(one) for one in theirs] == [len(rows)] * 2
    assert results["results"]["local"][f"exact_match,{lm_eval.STRICT}"] == pytest.approx(sum(theirs[0]) / len(rows))
    return [(*row, one["correct"], one["lenient"], *two) for row, one, two in zip(rows, table, zip(*theirs, strict=True), strict=True)]


def whole(answer, reasoning="8 * 9"):
    return f"<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>"


# completion, gold, strict, lenient: lm-eval and evaluate say the same.
NUMBERS = [
    (whole("72"), "72", True, True),
    (whole("71"), "72", False, False),
    (whole("$1,080."), "1080", True, True),
    (whole("1080.00"), "1080", True, True),
    (whole("-3"), "-3", True, True),
    (whole("3"), "-3", False, False),
    (whole("025"), "25", True, True),
    (whole("25"), "250", False, False),
    (whole("72 dollars"), "72", True, True),
    (whole("72", "I first thought 71.\nThen 8 * 9"), "72", True, True),
    (whole("72") + "\n", "72", True, True),
    ("<answer>72</answer>", "72", True, True),
    ("<think>\n8 * 9\n</think>\nThe answer is 72.", "72", False, True),
    ("<think>\n8 * 9\n</think>\n**72**", "72", False, True),
    ("So she makes $72 every day.", "72", False, True),
    ("8 * 9 = 72\n#### 72", "72", False, True),
    ("First 72, then 12 more: 84", "72", False, False),
    ("<think>\n72\n</think>\nI cannot say.", "72", False, False),
    ("<think>\n<answer>72</answer>\n</think>\nnothing", "72", False, False),
    ("72,000 in all", "72", False, False),
    ("nothing", "72", False, False),
    ("", "72", False, False),
    ("\x00\ud800<answer>", "72", False, False),
]


def test_numbers_get_the_same_verdicts(tmp_path):
    judged = judged_by_both(tmp_path, FORMATS["think_answer"], [(text, gold) for text, gold, _, _ in NUMBERS])
    assert [row[2:4] for row in judged] == [row[2:] for row in NUMBERS]
    assert [row[4:] for row in judged] == [row[2:] for row in NUMBERS]


LATEX = [
    ("\\frac{3}{4}", "\\frac{3}{4}", True, True),
    ("\\dfrac34", "\\frac{3}{4}", True, True),
    ("\\frac{4}{3}", "\\frac{3}{4}", False, False),
    ("x = 5", "5", True, True),
    ("2\\sqrt{3}", "2\\sqrt3", True, True),
    ("\\left(1, 2\\right)", "(1,2)", True, True),
    ("(2, 1)", "(1,2)", False, False),
    ("50\\%", "50", True, True),
]


@pytest.mark.parametrize("name", ["think_answer", "think_boxed", "boxed"])
def test_latex_gets_the_same_verdicts(name, tmp_path):
    fmt = FORMATS[name]
    expected = [(fmt.render("It is so.", answer), *rest) for answer, *rest in LATEX]
    boxed = name != "think_answer"
    # a box where an answer block is asked for, and after reasoning where there is none
    expected.append(("<think>\nsqrt\n</think>\nIt is $\\boxed{\\sqrt{\\frac{1}{2}}}$.", "\\sqrt{\\frac{1}{2}}", boxed, True))
    expected.append(("So \\boxed{(1,2)}", "(1,2)", boxed, True))
    judged = judged_by_both(tmp_path, fmt, [row[:2] for row in expected])
    assert [row[2:4] for row in judged] == [tuple(row[2:]) for row in expected]
    assert [row[4:] for row in judged] == [tuple(row[2:]) for row in expected]


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if not fmt.prose])
def test_random_completions_get_the_same_verdicts(name, tmp_path):
    """Whole, broken, bare and cut completions, right and wrong, in each format that says where the answer stands."""
    fmt, rng = FORMATS[name], random.Random(name)
    rows = []
    for _ in range(80):
        gold = str(rng.choice([7, 18, 240, 1080, 25000, -4]))
        said = gold if rng.random() < 0.6 else str(rng.randrange(30, 99))
        said = rng.choice([said, f"{int(said):,}", f"${said}" if int(said) > 0 else said, f"{said}."])
        reasoning = rng.choice(["It is so.", "Two and two is 4.\n\nThen 4 * 4 = 16.", "x" * 300])
        text = fmt.render(reasoning, said)
        shapes = [text, text, text[: rng.randrange(len(text))]]
        if fmt.reasoning_tags:  # `boxed` takes a bare answer strictly, too; lm-eval's task wants the box
            shapes += [f"{reasoning}\nThe answer is {said}", f"{reasoning} {said}"]
        rows.append((rng.choice(shapes), gold))
    judged = judged_by_both(tmp_path, fmt, rows)
    assert [row for row in judged if row[2:4] != row[4:]] == []
    # and each verdict occurs, so that agreeing says something
    assert {row[2:4] for row in judged} >= {(True, True), (False, False)}


def test_where_they_differ(tmp_path):
    """Ours reads mathematics and refuses hedges; lm-eval reads text."""
    rows = [
        (whole("71 or 72"), "72"),  # theirs: the last number
        (whole("72") + "<answer>71</answer>", "72"),  # theirs: the first block; leniently the last number
        (whole("144/2"), "72"),  # theirs: 2
        ("It is \\boxed{72}, not 71", "72"),  # theirs: the last number
    ]
    judged = [row[2:] for row in judged_by_both(tmp_path, FORMATS["think_answer"], rows)]
    assert judged == [
        (False, True, True, True),
        (False, False, True, False),
        (True, True, False, False),
        (False, True, False, False),
    ]


def test_the_task_asks_what_the_recipe_asks(tmp_path):
    fmt = FORMATS["boxed"]  # its instruction holds braces
    rows = dataset(fmt, ["4", "5"])
    task = lm_eval.write_task(rows, fmt, tmp_path, name="local", max_tokens=77, repetition_penalty=1.1)
    model = scripted(["4", "5"])
    lm_eval.run_task(task, model)
    assert [messages for messages, _ in model.asked] == list(rows["prompt"])
    for _, settings in model.asked:
        assert settings["max_gen_toks"] == 77 and settings["repetition_penalty"] == 1.1
        assert settings["do_sample"] is False and settings["until"] == []


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"scorer": ['{"countdown": {"numbers": [2, 5], "target": 10}}']}, "a scorer of their own"),
        ({"solution": [""]}, "or none"),
        ({"prompt": [build_prompt("?", FORMATS["boxed"], [{"question": "1+1?", "reasoning": "It is so.", "answer": "2"}])]}, "4 turns"),
    ],
)
def test_rows_that_lm_eval_cannot_judge_are_refused(columns, message, tmp_path):
    from datasets import Dataset

    rows = {"prompt": [build_prompt("?", FORMATS["boxed"])], "solution": ["2"], **columns}
    with pytest.raises(RecipeError, match=message):
        lm_eval.write_task(Dataset.from_dict(rows), FORMATS["boxed"], tmp_path, name="local", max_tokens=8)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_gives_lm_eval_the_completions_that_it_gives_us(tmp_path, tiny_model, sums, capsys):
    import pandas

    settings = {
        "dataset_name": str(sums),
        "dataset_test_split": "train",
        "mapper": "gsm8k",
        "response_format": "think_answer",
        "prefill": "<think>\n",
        "num_samples": 0,
        "temperature": 0.0,
        "max_completion_length": 24,
        "generation_batch_size": 8,
        "use_cpu": True,
        "dtype": "float32",
    }
    recipe = tmp_path / "bench.yaml"
    recipe.write_text(yaml.safe_dump(settings))
    call = [str(recipe), "--model", str(tiny_model)]
    evaluate.main([*call, "--output", str(tmp_path / "ours")])
    capsys.readouterr()
    lm_eval.main([*call, "--output", str(tmp_path / "theirs")])
    assert "strict-match" in capsys.readouterr().out
    ours = pandas.read_parquet(tmp_path / "ours" / "1_model" / "completions.parquet")
    (samples,) = json.loads((tmp_path / "theirs" / "samples.json").read_text()).values()
    theirs = {sample["doc"]["question"]: sample for sample in samples if sample["filter"] == lm_eval.STRICT}
    assert len(theirs) == len(ours) == 8
    for question, completion in zip(ours["question"], ours["completion"], strict=True):
        assert theirs[question]["resps"] == [[completion]]
        assert theirs[question]["arguments"][0][0].endswith("<|im_start|>assistant\n<think>\n")


def test_an_answer_that_has_no_room_is_refused_and_one_that_has_little_is_cut(tmp_path, tiny_model, caplog):
    def room(longest):
        recipe = evaluate.load_recipe([str(REPOSITORY / "recipes" / "benchmarks" / "gsm8k.yaml"), "--model_name_or_path", str(tiny_model)])
        return lm_eval._room(recipe, longest)

    # the tiny model's window has 4,096 tokens, the benchmark asks for 1,024
    assert room(3072) == 1024 and caplog.text == ""
    assert room(3073) == 1023 and "1023 tokens at most, not 1024" in caplog.text
    with pytest.raises(RecipeError, match="no room for an answer"):
        room(4096)


def test_an_adapter_is_loaded_over_its_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/base"}))
    recipe = evaluate.load_recipe([str(REPOSITORY / "recipes" / "benchmarks" / "gsm8k.yaml"), "--model_name_or_path", str(tmp_path)])
    kind, arguments = lm_eval._model_arguments(recipe, Path("t"), "transformers", 100)
    assert (kind, arguments["pretrained"], arguments["peft"], arguments["max_length"]) == ("hf", "some/base", str(tmp_path), 100)
    kind, arguments = lm_eval._model_arguments(recipe, Path("t"), "vllm", 100)
    assert (kind, arguments["lora_local_path"]) == ("vllm", str(tmp_path)) and "max_length" not in arguments


def test_without_lm_eval_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        lm_eval.main(["recipes/benchmarks/gsm8k.yaml", "--model", "x"])
    assert "pip install -c constraints.txt -e '.[lm-eval]'" in capsys.readouterr().err
