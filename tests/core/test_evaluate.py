"""The command evaluate, and the benchmarks: every expected value carries its working."""

import json

import pytest
import yaml

from r1_recipes import evaluate
from r1_recipes.common.errors import RecipeError
from r1_recipes.metrics.run import _judgeable, judges_of, rows_to_judge
from r1_recipes.metrics.scores import judge, verdicts
from tests.conftest import RECIPES, REPOSITORY
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


@pytest.mark.parametrize(
    "changes, arguments, message",
    [
        ({"num_generations": 2}, [], "unknown key 'num_generations' for evaluate"),
        ({"num_samples": -1}, [], "num_samples: must be in [0, inf), got -1"),
        ({"backend": "sglang"}, [], "unknown value 'sglang'"),
        ({"temperature": 0}, [], "temperature: 0 gives 2 identical completions"),
        (
            {"temperature": 0, "num_samples": 0},
            ["--num_samples", "3"],
            "temperature 0 gives 3 identical samples per row",
        ),
        ({"use_peft": True}, [], "use_peft: no effect"),
        ({"reward_funcs": ["acuracy"]}, [], "Did you mean 'accuracy'"),
        ({}, ["--num_samples", "-1"], "--num_samples must be 0 or more"),
        ({}, [], "--model: missing"),
    ],
)
def test_a_benchmark_that_cannot_work_is_refused_before_anything_is_loaded(
    benchmark, changes, arguments, message, capsys, monkeypatch
):
    monkeypatch.setattr(
        evaluate, "rows_to_judge", lambda recipe: pytest.fail("nothing may be loaded")
    )
    model = [] if "missing" in message else ["--model", "nowhere"]
    with pytest.raises(SystemExit):
        evaluate.main([benchmark(**changes), *model, *arguments])
    assert message in capsys.readouterr().err


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


def test_rows_without_a_usable_reference_answer_are_counted_and_dropped(
    benchmark, tmp_path, caplog
):
    rows = [
        {"question": "2+2?", "answer": "#### 4", "scorer": None},
        {"question": "Why?", "answer": "#### why is it so?", "scorer": None},
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = evaluate.load_benchmark([benchmark(dataset_name=str(data), reward_funcs=["format"])])
    assert recipe.method == "evaluate"
    assert rows_to_judge(recipe)[0]["solution"] == ["4"]
    warning = (
        "1 of 2 rows cannot be scored by accuracy (first: row 1, reference answer 'why is it so?'"
    )
    assert warning in caplog.text
    data.write_text(json.dumps(rows[1]) + "\n")
    with pytest.raises(
        RecipeError, match=r"reward_funcs: 1 of 1 rows cannot be scored by accuracy .*'why is it so"
    ):
        rows_to_judge(
            evaluate.load_benchmark([benchmark(dataset_name=str(data), reward_funcs=["accuracy"])])
        )


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
    "aime24": (
        {
            "id": 0,
            "problem": "5*5?",
            "solution": "25.",
            "answer": "025",
            "url": "https://example.org",
            "year": "2024",
        },
        "25",
        "250",
    ),
    "aime25": ({"problem": "5*5?", "answer": "25", "id": "0"}, "025", "26"),
    "countdown": ({"target": 31, "nums": [7, 4, 3]}, "7 * 4 + 3", "7 * 4 + 4"),
}


def test_every_benchmark_has_a_row_here():
    assert set(BENCHMARKS) == {path.stem for path in RECIPES if path.parent.name == "benchmarks"}


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


def test_a_benchmark_prompts_as_deepseek_recommends(benchmark):
    template = r"{question} Please reason step by step, and put your final answer within \boxed{}."
    command = [
        benchmark(),
        "--response_format",
        "think_boxed",
        "--system_prompt",
        "",
        "--prompt_template",
        template,
    ]
    (first, *_), _ = rows_to_judge(evaluate.load_benchmark(command))
    assert first["prompt"] == [{"role": "user", "content": template.replace("{question}", "2+2?")}]


@pytest.fixture
def words(tmp_path, tiny_model):
    """A GRPO recipe whose golds are words; ``words(key=value)`` changes keys."""
    rows = [
        {"prompt": "Capital of France?", "solution": "Paris"},
        {"prompt": "Author of Ulysses?", "solution": "James Joyce"},
    ]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write(**changes):
        settings = {
            "model_name_or_path": str(tiny_model),
            "dataset_name": str(tmp_path / "words.jsonl"),
            "dataset_train_split": "train[:0]",
            "mapper": "prompt_solution",
            "response_format": "think_answer",
            "reward_funcs": ["format", "exact_match"],
            "max_completion_length": 4,
            "use_cpu": True,
            "bf16": False,
            "dtype": "float32",
            "output_dir": str(tmp_path / "run"),
        }
        path = tmp_path / "words.yaml"
        path.write_text(yaml.safe_dump({**settings, **changes}))
        return str(path)

    return write


def starts_alike(completions, solution, **columns):
    return [
        1.0 if gold[0] in turn["content"] else 0.0
        for gold, (turn,) in zip(solution, completions, strict=True)
    ]


@pytest.mark.parametrize(
    ("changes", "strict", "lenient"),
    [
        # 1 of 2 stands where the format wants it, the other one after "the answer is"
        ({}, [True, False, False], [True, True, False]),
        ({"reward_funcs": ["answer_match"]}, [True, False, False], [True, True, False]),
        # a function of one's own does not say how it reads an answer: strict alone
        (
            {"reward_funcs": ["tests.core.test_evaluate:starts_alike"]},
            [True, True, False],
            [True, True, False],
        ),
        # each row's own task's reward
        (
            {
                "reward_funcs": ["tests.core.test_evaluate:starts_alike", "exact_match"],
                "task_rewards": {
                    "Paris": ["exact_match"],
                    "James Joyce": ["tests.core.test_evaluate:starts_alike"],
                },
                "task_column": "solution",
            },
            [True, True, False],
            [True, True, False],
        ),
    ],
    ids=["exact_match", "answer_match", "own", "routed"],
)
def test_reference_answers_in_words_are_scored_by_the_first_reward_that_reads_them(
    words, changes, strict, lenient
):
    from r1_recipes.prompts import FORMATS

    recipe = evaluate.load_benchmark([words(**changes)])
    fmt = FORMATS["think_answer"]
    rows = [{"prompt": "?", "solution": gold} for gold in ("Paris", "James Joyce", "James Joyce")]
    texts = [fmt.render("So.", "Paris."), "The answer is James Joyce", "I do not know"]
    assert verdicts(fmt, judges_of(recipe, fmt), rows, texts) == (strict, lenient)


def test_the_command_scores_reference_answers_in_words(words, tmp_path, capsys):
    evaluate.main(
        [
            words(),
            "--num_samples",
            "1",
            "--dataset_train_split",
            "train[:1]",
            "--dataset_test_split",
            "train[1:]",
        ]
    )
    printed = capsys.readouterr().out
    assert "| reward format | reward exact_match |" in printed
    assert (
        f"Judged on 1 held-out rows (split 'train[1:]' of {tmp_path / 'words.jsonl'})." in printed
    )


def test_rows_of_two_tasks_are_judged_by_task_rewards(words):
    own = "tests.core.test_evaluate:starts_alike"
    tasks = {
        "task_rewards": {"Paris": ["exact_match"], "James Joyce": [own]},
        "task_column": "solution",
    }
    recipe = evaluate.load_benchmark(
        [
            words(
                reward_funcs=["exact_match", own],
                dataset_train_split="train",
                dataset_test_split="train",
                **tasks,
            )
        ]
    )
    assert rows_to_judge(recipe)[0]["solution"][:] == ["Paris", "James Joyce"]


def test_what_can_be_judged_is_found_without_decoding_pictures(words):
    from datasets import Dataset, Image

    from r1_recipes.prompts import FORMATS

    row = {
        "prompt": [{"role": "user", "content": "?"}],
        "solution": "4",
        "image": {"bytes": b"no picture", "path": None},
    }
    rows = Dataset.from_list([row]).cast_column("image", Image())
    assert len(_judgeable(evaluate.load_benchmark([words()]), FORMATS["think_answer"], rows)) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # A single file is every split, so "test" is what was trained on.
        (
            {"dataset_train_split": "train"},
            "2 of 2 rows in split 'test' of .*'train\\[:-1\\]'.*--dataset_test_split train",
        ),
        (
            {"dataset_train_split": "train", "dataset_test_split": "train[-1:]"},
            "dataset_test_split: 1 of 1 rows in",
        ),
        ({"dataset_train_split": "train", "dataset_test_split": "train"}, None),
        ({"dataset_train_split": "train[:1]", "dataset_test_split": "train[1:]"}, None),
    ],
)
def test_training_rows_are_not_called_held_out(words, changes, said):
    recipe = evaluate.load_benchmark([words(**changes)])
    if said:
        with pytest.raises(RecipeError, match=said):
            rows_to_judge(recipe)
        return
    _, what = rows_to_judge(recipe)
    assert ("held-out" in what) == (changes["dataset_train_split"] != "train") and (
        "training rows" in what
    ) == ("held-out" not in what)


class SimpleTokenizer:
    pad_token_id = 0

    def __call__(self, text, **options):
        return {"input_ids": [*map(ord, text)]}


def counts(completions, completion_ids, **columns):
    counts.calls += 1
    return [len(ids) / 3 for ids in completion_ids]  # 1 for three tokens


def test_a_user_s_reward_gets_tokens_and_is_called_once(words):
    from r1_recipes.prompts import FORMATS
    from r1_recipes.rewards.call import score

    recipe = evaluate.load_benchmark([words(reward_funcs=["tests.core.test_evaluate:counts"])])
    judges = judges_of(recipe, FORMATS["think_answer"])
    ((name, judge),) = judges.items()
    counts.calls = 0
    rows = [{"prompt": "?", "solution": "x"}] * 2
    tokenizer = SimpleTokenizer()
    given = {name: score(name, judge, rows, ["ab", ""], tokenizer, [3, 2])}
    assert (
        verdicts(FORMATS["think_answer"], judges, rows, ["ab", ""], given)[0] == [True, False]
        and counts.calls == 1
    )


def test_a_link_in_the_output_is_not_written_through(tmp_path, tiny_model, benchmark, capsys):
    (tmp_path / "victim").mkdir()
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "1_model").symlink_to(tmp_path / "victim")
    with pytest.raises(SystemExit) as ended:
        evaluate.main(
            [benchmark(), "--model", str(tmp_path / "model"), "--output", str(tmp_path / "scores")]
        )
    assert ended.value.code == 2 and "1_model: is a link to" in capsys.readouterr().err
    assert not list((tmp_path / "victim").iterdir())
