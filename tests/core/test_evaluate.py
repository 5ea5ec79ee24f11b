"""The command evaluate, and the benchmarks: every expected value carries its working."""

import json

import pytest
import yaml

from r1_recipes import evaluate
from r1_recipes.generation import Completion
from r1_recipes.prompts import FORMATS
from r1_recipes.scoring import score_table, summarize
from tests.conftest import REPOSITORY
from tests.support.chat_server import chat_server, reply


@pytest.fixture
def benchmark(tmp_path, tiny_model, sums):
    """A benchmark of three sums, two samples each; ``benchmark(key=value)`` changes keys."""

    def write(**changes):
        settings = {
            "dataset_name": str(sums),
            "dataset_test_split": "train",
            "max_eval_samples": 3,
            "mapper": "gsm8k",
            "response_format": "think_answer",
            "num_samples": 2,
            "temperature": 1.0,
            "max_completion_length": 4,
            "generation_batch_size": 8,
            "seed": 3,
            "reward_funcs": ["accuracy", "format", "tests.conftest:letters"],
            "use_cpu": True,
            "dtype": "float32",
        }
        path = tmp_path / "bench.yaml"
        path.write_text(yaml.safe_dump(settings | changes))
        return str(path)

    return write


def test_a_benchmark_defines_its_evaluation(benchmark, tiny_model, tmp_path):
    import pandas

    model, output = str(tiny_model), tmp_path / "scores"
    evaluate.main([benchmark(), "--model", model, "--model", model, "--output", str(output)])
    first, second = json.loads((output / "results.json").read_text())
    # nothing changed on three rows: 1/5 each way, half width 1.96 * sqrt((2/5)/5) = 0.5544
    expected = pytest.approx([0.0, -0.5544, 0.5544], abs=1e-4)
    assert second["difference"]["greedy_lenient"] == expected
    table = pandas.read_parquet(output / "2_model" / "completions.parquet")
    scores = table["reward tests.conftest:letters"]
    letters = [sum("a" <= c <= "z" or c.isdigit() for c in text) for text in table["completion"]]
    assert list(scores) == letters
    # a row's mean is that of its samples, not of the greedy completion
    mean = scores[table["sample"] >= 0].groupby(table["index"]).mean()
    assert first["rewards"]["tests.conftest:letters"] == list(mean)
    # the command line wins; the greedy completions are the same without samples
    output = tmp_path / "greedy"
    evaluate.main([benchmark(), "--model", model, "--num_samples=0", "--output", str(output)])
    (greedy,) = json.loads((output / "results.json").read_text())
    assert greedy["sampled"] == greedy["majority"] == [] and greedy["pass_at"] == {}
    greedy_table = pandas.read_parquet(output / "1_model" / "completions.parquet")
    assert list(greedy_table["completion"]) == list(table[table["sample"] == -1]["completion"])


def test_a_model_behind_a_server_is_judged_like_any_other(benchmark, tmp_path, capsys, monkeypatch):
    """Greedy right, sampled wrong; the server refuses the second sum's greedy request."""

    def answer(body, before):
        question, greedy = body["messages"][-1]["content"], body["temperature"] == 0
        if question == "2+3?" and greedy:
            return 400
        value = sum(map(int, question.removesuffix("?").split("+"))) if greedy else -1
        return reply(f"<think>\na\n</think>\n<answer>\n{value}\n</answer>", tokens=7)

    output = tmp_path / "scores"
    command = [benchmark(backend="openai"), "--model", "served", "--output", str(output)]
    with chat_server(answer) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        evaluate.main(command)
        (scores,) = json.loads((output / "results.json").read_text())
        assert (scores["greedy"], scores["sampled"]) == ([1.0, 0.0, 1.0], [0.0] * 3)
        assert scores["mean_tokens"] == 7.0 and set(scores["rewards"]) >= {"accuracy", "format"}
        assert {body["model"] for body in seen} == {"served"}
        # Each sample has a seed of its own, greedy requests none.
        assert {("seed" in body) for body in seen if body["temperature"] == 0} == {False}
        assert len({body["seed"] for body in seen if body["temperature"]}) == 6
        evaluate.main([*command[:3], "--backend", "openai", "--ask", "2+2?"])
        assert "=== served\n<think>" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            evaluate.main([benchmark(backend="openai", chat_template="x"), "--model", "served"])
        assert "chat_template: has no effect with backend openai" in capsys.readouterr().err


def test_a_reward_of_ones_own_that_fails_is_named_before_anything_is_generated(
    benchmark, tiny_model, capsys
):
    path = benchmark(reward_funcs=["accuracy", "tests.core.test_evaluate:fails"])
    with pytest.raises(SystemExit):
        evaluate.main([path, "--model", str(tiny_model)])
    assert "'tests.core.test_evaluate:fails' fails: ValueError: no" in capsys.readouterr().err


def test_what_nothing_can_judge_is_refused_before_anything_is_generated(
    benchmark, tiny_model, tmp_path, capsys
):
    rows = tmp_path / "prose.jsonl"
    rows.write_text('{"prompt": "Say it."}\n' * 4)
    path = benchmark(dataset_name=str(rows), mapper="auto", reward_funcs=["format"])
    with pytest.raises(SystemExit):
        evaluate.main([path, "--model", str(tiny_model), "--number_locale", "de"])
    said = capsys.readouterr().err
    assert "reward_funcs: must be one that judges answers, got ['format']" in said
    assert "number_locale is ignored" in said  # as in training


def fails(completions, **columns):
    raise ValueError("no")


# A row of each set in its true columns (invented), a right answer, and a wrong one.
NUTS = "600*2=<<600*2=1200>>1200\n#### 1,200"
QUARTERS = {"problem": "$1/2+1/4$?", "solution": "\\boxed{\\frac{3}{4}}", "answer": "\\frac{3}{4}"}
BENCHMARKS = {
    "gsm8k": ({"question": "A box holds 1,200 nuts?", "answer": NUTS}, "1200", "120"),
    "math500": (QUARTERS | {"subject": "Prealgebra", "level": 1, "unique_id": "0"}, "3/4", "4/3"),
    "aime25": ({"problem": "5*5?", "answer": "25", "id": "0"}, "025", "26"),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_shipped_benchmark_reads_its_set_and_judges_it(name, tmp_path):
    row, right, wrong = BENCHMARKS[name]
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps(row) + "\n")
    recipe = evaluate.load_benchmark(
        [str(REPOSITORY / "recipes" / "benchmarks" / f"{name}.yaml"), "--dataset_name", str(data)]
    )
    assert recipe.script.num_samples >= 1 and recipe.training.max_completion_length >= 1024
    rows = evaluate.held_out_rows(recipe)[0]
    fmt = FORMATS[recipe.script.response_format]
    texts = [fmt.render("So.", right), fmt.render("So.", wrong), f"So the answer is {right}"]
    groups = [[Completion(text, 20, True) for text in texts]]
    table = score_table(recipe, fmt, rows, groups, None)
    assert list(table["correct"]) == [True, False, False]
    assert list(table["lenient"]) == [True, False, True]
    scores = summarize(table)
    assert (scores["greedy"], scores["sampled"]) == ([1.0], [0.0])
    assert scores["sampled_lenient"] == [0.5]
