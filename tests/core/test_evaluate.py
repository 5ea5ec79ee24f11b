"""The command evaluate, and the benchmarks: every expected value carries its working."""

import json

import pytest
import yaml

from r1_recipes import evaluate
from r1_recipes.metrics.run import judges_of, rows_to_judge
from r1_recipes.metrics.scores import judge
from tests.conftest import REPOSITORY
from tests.support.chat_server import chat_server, reply


def test_the_command_judges_two_models_on_rows_that_a_length_limit_would_drop(tmp_path, capsys):
    import pandas

    from r1_recipes.models.smoke import build_tiny_model

    model = str(build_tiny_model(tmp_path / "model", {}))
    rows = [
        {"prompt": "2 + 2?", "solution": "4"},
        {"prompt": "Why?", "solution": "Why?"},
        {"prompt": "3 + 3?", "solution": "6"},
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "judge.yaml"
    recipe.write_text(
        f"model_name_or_path: {model}\ndataset_name: {tmp_path / 'test.jsonl'}\nmapper: "
        f"prompt_solution\nreward_funcs: [accuracy]\n"
        "dataset_test_split: train\n"
        f"max_prompt_tokens: 1\nmax_completion_length: 4\nuse_cpu: true\nbf16: false\ndtype: "
        f"float32\noutput_dir: {tmp_path / 'run'}\n"
    )
    output = tmp_path / "scores"
    command = [
        str(recipe),
        "--model",
        model,
        "--model",
        model,
        "--num_samples",
        "2",
        "--output",
        str(output),
    ]
    evaluate.main(command)
    first, second = json.loads((output / "results.json").read_text())
    assert set(first["pass_at"]) == {"1", "2"} and first["num_samples"] == 2
    table = pandas.read_parquet(output / "2_model" / "completions.parquet")
    # two rows, one greedy and two sampled completions each
    assert list(table["sample"]) == [-1, 0, 1] * 2 and list(table["index"]) == [0, 0, 0, 1, 1, 1]
    # "Because." is not mathematics: nobody can be judged by it, so it is left out for both.
    assert len(first["greedy"]) == len(second["sampled"]) == 2
    printed = capsys.readouterr().out
    assert "greedy +0.0 points" in printed
    assert (
        f"Judged on 2 training rows (split 'train' of {tmp_path / 'test.jsonl'}), none of "
        f"them held out." in printed
    )

    # Again: nothing is generated anew, also where one row had been lost; other settings are
    # refused.
    shard = output / "1_model" / "completions" / "shard-00000.jsonl"
    lines = shard.read_bytes().splitlines(keepends=True)
    shard.write_bytes(lines[0])
    evaluate.main(command)
    assert (
        shard.read_bytes() == lines[0]
        and len(shard.with_name("shard-00001.jsonl").read_bytes().splitlines()) == 1
    )
    assert json.loads((output / "results.json").read_text())[1] == second
    with pytest.raises(SystemExit):
        evaluate.main([*command, "--temperature", "0.5"])
    assert "holds completions of other rows, settings or weights" in capsys.readouterr().err
    for changed in (["--prefill", "So"], ["--dtype", "bfloat16"]):
        with pytest.raises(SystemExit):
            evaluate.main([*command, *changed])
        assert "holds completions of other" in capsys.readouterr().err
    # So is a template whose file says something else now.
    template = tmp_path / "plain.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    command += ["--chat_template", str(template), "--output", str(tmp_path / "templated")]
    evaluate.main(command)
    template.write_text(f"Please: {template.read_text()}")
    with pytest.raises(SystemExit):
        evaluate.main(command)
    assert "holds completions of other" in capsys.readouterr().err

    evaluate.main([str(recipe), "--model", model, "--model", model, "--ask", "2 + 2?"])
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
    """Greedy right, sampled wrong; the second sum's greedy request fails for good the
    first time.
    """
    refusing = [True]

    def answer(body, before):
        question = body["messages"][-1]["content"]
        if refusing and question == "2+3?":
            return 400
        value = sum(map(int, question.removesuffix("?").split("+")))
        return reply(
            f"<think>\na\n</think>\n<answer>\n{value if body['temperature'] == 0 else -1}\n</answer>",
            tokens=7,
        )

    command = [
        benchmark(backend="openai"),
        "--model",
        "served",
        "--output",
        str(tmp_path / "scores"),
    ]
    with chat_server(answer) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        with pytest.raises(SystemExit):
            evaluate.main(command)
        assert "row 1 cannot be completed" in capsys.readouterr().err
        refusing.clear()
        evaluate.main(command)
        (scores,) = json.loads((tmp_path / "scores" / "results.json").read_text())
        assert (scores["greedy"], scores["sampled"], scores["mean_tokens"]) == (
            [1.0] * 3,
            [0.0] * 3,
            7.0,
        )
        assert scores["rewards"] == {} and {body["model"] for body in seen} == {"served"}
        # Each sample has a seed of its own, greedy requests none.
        assert {("seed" in body) for body in seen if body["temperature"] == 0} == {False}
        assert len({body["seed"] for body in seen if body["temperature"]}) == 6
        evaluate.main([*command[:3], "--backend", "openai", "--ask", "2+2?"])
        assert "=== served\n<think>" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            evaluate.main([benchmark(backend="openai", chat_template="x"), "--model", "served"])
        assert "chat_template: has no effect with backend openai" in capsys.readouterr().err


def test_a_reward_that_fails_costs_a_column_and_no_completion(
    benchmark, tiny_model, tmp_path, caplog
):
    path = benchmark(
        reward_funcs=["accuracy", "format", "tests.core.test_evaluate:fails_on_rubbish"]
    )
    evaluate.main(
        [
            path,
            "--model",
            str(tiny_model),
            "--num_samples",
            "0",
            "--output",
            str(tmp_path / "scores"),
        ]
    )
    (scores,) = json.loads((tmp_path / "scores" / "results.json").read_text())
    assert set(scores["rewards"]) == {"accuracy", "format"}
    assert "'tests.core.test_evaluate:fails_on_rubbish' fails: ValueError: rubbish" in caplog.text


def fails_on_rubbish(completions, **columns):
    if any(turn["content"] and "Let me see." not in turn["content"] for (turn,) in completions):
        raise ValueError("rubbish")
    return [0.0] * len(completions)


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
def test_a_shipped_benchmark_reads_its_set_and_judges_it(name, tmp_path, monkeypatch):
    from r1_recipes.completions.types import Completion
    from r1_recipes.prompts import FORMATS

    row, right, wrong = BENCHMARKS[name]
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps(row) + "\n")
    recipe = evaluate.load_benchmark(
        [str(REPOSITORY / "recipes" / "benchmarks" / f"{name}.yaml"), "--dataset_name", str(data)]
    )
    assert recipe.script.num_samples >= 1 and recipe.training.max_completion_length >= 1024
    rows = rows_to_judge(recipe)[0]
    fmt = FORMATS[recipe.script.response_format]
    texts = [
        fmt.render("It is so.", right),
        fmt.render("It is so.", wrong),
        f"So the answer is {right}",
    ]
    groups = [[Completion(text, 20, "stop") for text in texts]]
    scores, table = judge("m", fmt, rows, groups, judges_of(recipe, fmt), {}, None)
    assert (list(table["correct"]), list(table["lenient"])) == (
        [True, False, False],
        [True, False, True],
    )
    assert scores.greedy == [1.0] and scores.sampled == [0.0] and scores.sampled_lenient == [0.5]
