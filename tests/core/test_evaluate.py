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


def test_two_models_are_judged_and_an_evaluation_resumes(tmp_path, capsys, caplog):
    import pandas

    from r1_recipes.models.smoke import build_tiny_model

    model = str(build_tiny_model(tmp_path / "model", {}))
    rows = [("2 + 2?", "4"), ("Why?", "Why?"), ("3 + 3?", "6")]
    lines = [json.dumps({"prompt": prompt, "solution": gold}) + "\n" for prompt, gold in rows]
    (tmp_path / "test.jsonl").write_text("".join(lines))
    recipe = tmp_path / "judge.yaml"
    recipe.write_text(
        f"model_name_or_path: {model}\ndataset_name: {tmp_path / 'test.jsonl'}\n"
        "mapper: prompt_solution\nreward_funcs: [accuracy]\ndataset_test_split: train\n"
        "max_prompt_tokens: 1\nmax_completion_length: 4\nuse_cpu: true\nbf16: false\n"
        f"dtype: float32\noutput_dir: {tmp_path / 'run'}\n"
    )
    output = tmp_path / "scores"
    models = ["--model", model, "--model", model]
    command = [str(recipe), *models, "--num_samples", "2", "--output", str(output)]
    evaluate.main(command)
    first, second = json.loads((output / "results.json").read_text())
    assert set(first["pass_at"]) == {"1", "2"} and first["num_samples"] == 2
    # Rows that a training run's length limit would drop; three completions each.
    table = pandas.read_parquet(output / "2_model" / "completions.parquet")
    assert list(table["sample"]) == [-1, 0, 1] * 3 and list(table["index"])[::3] == [0, 1, 2]
    # "Why?" is not mathematics, so nobody can judge it: it counts as wrong, and a warning says so.
    assert len(first["greedy"]) == len(second["sampled"]) == 3
    assert "3 of 9 completions get no score from any of ['accuracy']" in caplog.text
    printed = capsys.readouterr().out
    assert "greedy +0.0 points" in printed
    assert f"3 rows of split 'train' of {tmp_path / 'test.jsonl'}, which are training" in printed

    # Again, with one row lost: only that row is generated anew.
    file = output / "1_model" / "completions.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]))
    evaluate.main(command)
    assert file.read_bytes().startswith(b"".join(lines[:3]))
    assert len(file.read_bytes().splitlines()) == len(lines) == 4
    assert json.loads((output / "results.json").read_text())[1] == second
    # Other settings are refused, and a template whose file says something else now.
    for changed in ("--temperature=0.5", "--prefill=So", "--dtype=bfloat16"):
        with pytest.raises(SystemExit):
            evaluate.main([*command, changed])
        assert "holds completions of other settings or weights" in capsys.readouterr().err
    template = tmp_path / "plain.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    command += ["--chat_template", str(template), "--output", str(tmp_path / "templated")]
    evaluate.main(command)
    template.write_text(f"Please: {template.read_text()}")
    with pytest.raises(SystemExit):
        evaluate.main(command)
    assert "chat_template: " in capsys.readouterr().err

    evaluate.main([str(recipe), *models, "--ask", "2 + 2?"])
    assert capsys.readouterr().out.count(f"=== {model}") == 2
    assert not (tmp_path / "run").exists()


@pytest.fixture
def benchmark(tmp_path, tiny_model, sums):
    """A benchmark of three sums, two samples each; ``benchmark(key=value)`` changes keys, ``None``
    leaves one out.
    """

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
        path.write_text(
            yaml.safe_dump(
                {key: value for key, value in {**settings, **changes}.items() if value is not None}
            )
        )
        return str(path)

    return write


def test_a_benchmark_defines_its_evaluation(benchmark, tiny_model, tmp_path, capsys):
    import pandas

    model, output = str(tiny_model), tmp_path / "scores"
    evaluate.main([benchmark(), "--model", model, "--model", model, "--output", str(output)])
    first, second = json.loads((output / "results.json").read_text())
    # the recipe's samples, batch and seed: twice the same model, so twice the same
    assert first["num_samples"] == 2 and [
        len(first[key]) for key in ("greedy", "sampled", "majority")
    ] == [3, 3, 3]
    assert first["intervals"]["greedy"] == [
        0.0,
        0.0,
        pytest.approx(3.8415 / 6.8415, abs=1e-4),
    ]  # Wilson: z^2 / (n + z^2)
    # nothing changed on three rows: 1/5 each way, half width 1.96 * sqrt((2/5)/5) = 0.5544
    assert second["difference"]["over"] == model
    assert second["difference"]["greedy_lenient"] == [
        0.0,
        pytest.approx(-0.5544, abs=1e-4),
        pytest.approx(0.5544, abs=1e-4),
    ]
    table = pandas.read_parquet(output / "2_model" / "completions.parquet")
    letters = [
        sum("a" <= char <= "z" or char.isdigit() for char in text) for text in table["completion"]
    ]
    assert list(table["reward tests.conftest:letters"]) == letters
    # a row's mean is that of its samples, not of the greedy completion
    mean = table[table["sample"] >= 0].groupby("index")["reward tests.conftest:letters"].mean()
    assert first["rewards"]["tests.conftest:letters"] == list(mean) and set(
        first["rewards"]["format"]
    ) == {0.0}
    printed = capsys.readouterr().out
    assert "maj@2" in printed and "lenient sampled +0.0 points" in printed
    assert "| reward accuracy | reward format | reward tests.conftest:letters |" in printed

    # the command line wins; greedy only: no column of samples
    evaluate.main(
        [benchmark(), "--model", model, "--num_samples", "0", "--output", str(tmp_path / "greedy")]
    )
    (greedy,) = json.loads((tmp_path / "greedy" / "results.json").read_text())
    assert (
        greedy["greedy"] == first["greedy"]
        and greedy["sampled"] == greedy["majority"] == []
        and greedy["pass_at"] == {}
    )
    assert greedy["sampled_format"] is None and len(greedy["rewards"]["format"]) == 3
    printed = capsys.readouterr().out
    assert "maj@" not in printed and "sampled" not in printed.splitlines()[2]
    # the greedy completions are the same, with and without samples
    greedy_table = pandas.read_parquet(tmp_path / "greedy" / "1_model" / "completions.parquet")
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


def fails(completions, **columns):
    raise ValueError("no")


# A row of each set in its true columns (invented), a right answer, and a wrong one.
BENCHMARKS = {
    "gsm8k": (
        {"question": "A box holds 1,200 nuts?", "answer": "600*2=<<600*2=1200>>1200\n#### 1,200"},
        "1200",
        "120",
    ),
    "math500": (
        {
            "problem": "Find $1/2+1/4$.",
            "solution": "$\\boxed{\\frac{3}{4}}$",
            "answer": "\\frac{3}{4}",
            "subject": "Prealgebra",
            "level": 1,
            "unique_id": "test/prealgebra/0.json",
        },
        "3/4",
        "4/3",
    ),
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
