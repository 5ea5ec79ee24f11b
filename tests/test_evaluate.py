"""Intervals, tables and benchmarks: every expected value carries its working."""

import dataclasses
import itertools
import json
import math
import random
from types import SimpleNamespace

import pytest
import yaml

from r1_recipes import evaluate
from r1_recipes.common.errors import RecipeError
from r1_recipes.metrics import rows
from r1_recipes.metrics.intervals import mean_interval, paired_difference
from r1_recipes.metrics.rows import rows_to_judge
from r1_recipes.metrics.scores import Scores, verdicts
from r1_recipes.metrics.tables import difference_line, markdown_table
from tests.chat_server import chat_server, reply
from tests.conftest import RECIPES, REPOSITORY


def test_wilson_interval_of_a_proportion():
    # n = 100, p = 0.5, z = 1.96: centre (0.5 + 3.8415/200) / (1 + 3.8415/100) = 0.5;
    # half width 1.96/1.038415 * sqrt(0.25/100 + 3.8415/40000) = 1.8875 * 0.050951 = 0.0962
    mean, low, high = mean_interval([1.0] * 50 + [0.0] * 50)
    assert (mean, round(low, 4), round(high, 4)) == (0.5, 0.4038, 0.5962)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_ends_keep_a_width(value):
    # p = 0, n = 10: the upper bound is z^2 / (n + z^2) = 3.8415 / 13.8415 = 0.2775
    mean, low, high = mean_interval([value] * 10)
    assert mean == value
    assert 0.0 <= low <= high <= 1.0
    assert high - low == pytest.approx(0.2775, abs=1e-4)


def test_interval_of_shares():
    # values 0.25, 0.5, 0.75, 0.5: mean 0.5, sample variance 0.125/3 = 0.041667, of the mean 0.010417: as of 0.25 / 0.010417 = 24
    # values that are 0 or 1. Wilson's with Student's t of 3 degrees, 3.182 (3.179 by the expansion), t^2/24 = 0.4211: half width
    # 3.179 / 1.4211 * sqrt(0.25/24 + 0.4211/(4*24)) = 2.2370 * 0.12165 = 0.2721
    mean, low, high = mean_interval([0.25, 0.5, 0.75, 0.5])
    assert (mean, round(high - mean, 3), round(mean - low, 3)) == (0.5, 0.272, 0.272)
    # one wrong sample among 400 leaves the bounds inside 0..1
    mean, low, high = mean_interval([1.0] * 99 + [0.75])
    assert 0.9 < low < mean < high < 1.0


def test_interval_of_values_that_are_no_shares():
    # -1, 0, 1, 2 (mean 0.5, sample variance 5/3): standard error sqrt(5/12) = 0.6455, times t of 3 degrees 3.179 = 2.052
    mean, low, high = mean_interval([-1.0, 0.0, 1.0, 2.0])
    assert (mean, round(high - mean, 2), round(mean - low, 2)) == (0.5, 2.05, 2.05)
    # one value says nothing about the spread, and equal ones have none
    assert mean_interval([0.5])[1:] == (-math.inf, math.inf)
    assert mean_interval([0.5, 0.5]) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("degrees, table", [(3, 3.182), (5, 2.571), (9, 2.262), (29, 2.045), (199, 1.972)])
def test_student_s_t_against_the_printed_table(degrees, table):
    from r1_recipes.evaluate import _student

    assert _student(degrees) == pytest.approx(table, abs=0.004)


def test_paired_difference_uses_the_pairs():
    # every row gains exactly 0.25: no spread, so no width, although each list alone varies
    before = [0.0, 0.25, 0.5, 0.75]
    assert paired_difference(before, [value + 0.25 for value in before]) == (0.25, 0.25, 0.25)
    with pytest.raises(ValueError):
        paired_difference([0.0], [0.0, 1.0])


def test_a_paired_difference_of_verdicts_keeps_a_width():
    # 10 rows, none changed: Bonett and Price add one row of each kind, (0+1)/12 each way: half width 1.96 * sqrt((2/12)/12) = 0.2310
    difference, low, high = paired_difference([1.0] * 10, [1.0] * 10)
    assert (difference, round(low, 4), round(high, 4)) == (0.0, -0.231, 0.231)
    # 3 won, 1 lost of 10: 4/12 and 2/12: centre 0.1667, half width 1.96 * sqrt((0.5 - 0.0278)/12) = 0.3888
    before, after = [0.0] * 3 + [1.0] * 7, [1.0] * 9 + [0.0]
    difference, low, high = paired_difference(before, after)
    assert (round(difference, 4), round(low, 4), round(high, 4)) == (0.2, -0.2221, 0.5555)
    assert paired_difference([0.0] * 3, [1.0] * 3)[2] == 1.0  # no more than everything


def greedy_verdicts(rng, rows):
    """0/1. Of one probability n values give n + 1 intervals, which cover it in jumps; over many it evens out."""
    p = rng.uniform(0.1, 0.9)
    return mean_interval([float(rng.random() < p) for _ in range(rows)]), p


def shares_of_samples(rng, rows, n=8, a=0.3, b=0.7):
    """Problems that are mostly easy or hard: a row's probability is drawn from Beta(a, b), its share from n samples."""
    return mean_interval([rights(rng, n, rng.betavariate(a, b)) / n for _ in range(rows)]), a / (a + b)


def hard_problems(rng, rows):
    return shares_of_samples(rng, rows, a=0.1, b=0.9)


def pass_at_2_of_8(rng, rows):
    """Beta(1, 2): the truth is 1 - E[(1-p)^2] = 1 - (2*3)/(3*4) = 0.5."""
    scores = make_scores([0.0] * rows, [rights(rng, 8, rng.betavariate(1, 2)) / 8 for _ in range(rows)], 8)
    return mean_interval(scores.pass_at(2)), 0.5


def paired_verdicts(rng, rows):
    """One in ten rows is won, one in twenty lost."""
    before, after = [], []
    for _ in range(rows):
        drawn = rng.random()
        before.append(float(0.1 <= drawn < 0.6))
        after.append(float(drawn < 0.55))
    return paired_difference(before, after), 0.05


def verdicts_that_only_rise(rng, rows):
    """One in twenty rows is won, none is lost: the plain interval would hold the truth in 78 of 100 with 30 rows."""
    drawn = [rng.random() for _ in range(rows)]
    return paired_difference([float(x < 0.5) for x in drawn], [float(x < 0.55) for x in drawn]), 0.05


def paired_shares(rng, rows):
    """A tenth of what is missing is gained, on every row: E[(1-p)/10] of Beta(1, 1)."""
    before, after = [], []
    for _ in range(rows):
        p = rng.random()
        before.append(rights(rng, 4, p) / 4)
        after.append(rights(rng, 4, p + (1 - p) / 10) / 4)
    return paired_difference(before, after), 0.05


def rights(rng, n, p):
    return sum(rng.random() < p for _ in range(n))


# Too few of them would promise too much, all of them would say nothing: what is rare in few rows may be covered more often than 95 %.
@pytest.mark.parametrize(
    "experiment, rows, most",
    [
        (greedy_verdicts, 30, 0.975),
        (greedy_verdicts, 200, 0.975),
        (shares_of_samples, 30, 0.975),
        (hard_problems, 150, 0.975),
        (pass_at_2_of_8, 60, 0.975),
        (paired_verdicts, 30, 0.995),
        (paired_verdicts, 200, 0.975),
        (verdicts_that_only_rise, 100, 0.985),
        (paired_shares, 30, 0.975),
    ],
)
def test_intervals_hold_the_truth_as_often_as_they_say(experiment, rows, most):
    # 1,500 experiments at 95 %: 4 standard deviations of the share are 4 * sqrt(.95*.05/1500) = 0.023
    rng = random.Random(0)
    held = 0
    for _ in range(1500):
        (_, low, high), truth = experiment(rng, rows)
        held += low <= truth <= high
    assert 0.927 < held / 1500 < most


def make_scores(greedy, sampled, n=2, **changes):
    """Scores in which lenient is strict and the majority is right where most samples are."""
    values = {
        "model": "m",
        "greedy": greedy,
        "sampled": sampled,
        "greedy_lenient": greedy,
        "sampled_lenient": sampled,
        "majority": [float(share > 0.5) for share in sampled],
        "num_samples": n,
        "greedy_format": 1.0,
        "sampled_format": 1.0,
        "language": 1.0,
        "mean_tokens": 20.0,
        "truncated": 0.0,
    }
    return Scores(**{**values, **changes})


@pytest.mark.parametrize("n", [1, 4, 7])
def test_pass_at_k_is_the_closed_form(n):
    # with c right of n samples: the share of k-subsets that hold a right one, counted one by one
    for c in range(n + 1):
        scores = make_scores([0.0], [c / n], n)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(range(n), k))
            expected = sum(any(sample < c for sample in subset) for subset in subsets) / len(subsets)
            assert scores.pass_at(k) == [pytest.approx(expected)]
        assert scores.pass_at(1) == [pytest.approx(c / n)]
    with pytest.raises(ValueError, match=f"there are {n}"):
        scores.pass_at(n + 1)


def test_pass_at_k_is_unbiased():
    # 4,000 rows with p = 0.3 and n = 6: pass@3 is 1 - 0.7**3 = 0.657; its spread over rows is below 0.5, so 4 standard errors are 0.032
    rng = random.Random(1)
    shares = [sum(rng.random() < 0.3 for _ in range(6)) / 6 for _ in range(4000)]
    values = make_scores(shares, shares, 6).pass_at(3)
    assert sum(values) / len(values) == pytest.approx(0.657, abs=0.032)


@pytest.mark.parametrize(
    "answers, right, expected",
    [
        (["7", "8", "7"], [True, False, True], 1.0),
        (["7", "8", "8"], [True, False, False], 0.0),
        (["1,000", "1000", "5"], [True, True, False], 1.0),  # one answer, written in two ways
        ([None, None, "7"], [False, False, True], 1.0),  # giving none is no vote
        ([None, None], [False, False], 0.0),
        (["8", "7"], [False, True], 0.0),  # of equally frequent ones the first
    ],
)
def test_majority(answers, right, expected):
    from r1_recipes.evaluate import _majority

    assert _majority([{"answer": a, "correct": r} for a, r in zip(answers, right, strict=True)]) == expected


@pytest.mark.parametrize(
    "text, gold, expected",
    [
        ("<think>\n6*12\n</think>\n<answer>\n72\n</answer>", "72", True),
        ("<think>\n6*12\n</think>\nThe answer is 72.", "72", True),  # no answer block
        ("So she makes $72 every day.", "72", True),  # the last number, as a flexible extraction has it
        ("It is \\boxed{72}", "72", True),
        ("<think>\n72\n</think>\nI cannot say.", "72", False),  # only inside the reasoning
        ("First 72, then 12 more: 84", "72", False),
        ("72,000 in all", "72", False),
        ("72,000 in all", "72000", True),
        ("nothing", "72", False),
        ("\x00" * 50, "72", False),
    ],
)
def test_lenient_verdicts(text, gold, expected):
    from r1_recipes.metrics.scores import verdicts
    from r1_recipes.prompts import FORMATS
    from r1_recipes.rewards import get_reward_funcs

    (accuracy,) = get_reward_funcs(["accuracy"], "think_answer")
    row = {"prompt": "?", "solution": gold}
    assert verdicts(FORMATS["think_answer"], {"accuracy": accuracy}, [row], [text])[1] == [expected]


def test_lenient_verdicts_ask_a_row_s_own_scorer():
    from r1_recipes.metrics.scores import verdicts
    from r1_recipes.prompts import FORMATS
    from r1_recipes.rewards import get_reward_funcs

    scorer = '{"countdown": {"numbers": [2, 5], "target": 10}}'
    texts = ["The answer is 2 * 5", "The answer is 10", "7"]
    rows = [{"prompt": "?", "solution": gold, "scorer": own} for gold, own in [(None, scorer), (None, scorer), ("7", None)]]
    judges = dict(zip(["accuracy"], get_reward_funcs(["accuracy"], "think_answer"), strict=True))
    assert verdicts(FORMATS["think_answer"], judges, rows, texts) == ([False] * 3, [True, False, True])


def test_the_table_shows_each_model_and_the_difference():
    first, second = make_scores([0.0, 0.0, 1.0, 0.0], [0.0, 0.5, 0.5, 0.0]), make_scores([1.0, 0.0, 1.0, 1.0], [0.5, 1.0, 0.5, 1.0])
    first = dataclasses.replace(first, greedy_format=0.5, sampled_format=0.25, language=0.9, mean_tokens=12.4)
    table = markdown_table([("raw", first, None), ("tuned", second, None)]).splitlines()
    assert len(table) == 4 and len({line.count("|") for line in table}) == 1
    assert table[2].startswith("| raw | 25.0 % (") and table[2].endswith("| 50 % / 25 % | 0.90 | 12 |")
    assert table[3].startswith("| tuned | 75.0 % (")
    # a stage that made data has a yield instead: 30 of 40 is 75 %
    made = markdown_table([("raw", first, None), ("data", None, {"kept_completions": 30, "completions": 40})]).splitlines()
    assert made[3] == "| data |  |  |  |  |  | 30 of 40 (75%) |" and len({line.count("|") for line in made}) == 1
    # greedy: (1 + 0 + 0 + 1) / 4 = +50 points; sampled: (0.5 + 0.5 + 0 + 1) / 4 = +50 points
    line = difference_line(first, second, "tuned over raw")
    assert "greedy +50.0 points" in line and "sampled +50.0 points" in line and "same 4 problems" in line
    assert not math.isnan(first.mean_tokens)


def test_reading_a_prompt_once_changes_no_completion(tmp_path):
    """The shared cache must give what plain generation gives, for prompts of different lengths in one padded batch."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from r1_recipes.completions.backends import complete, sampling
    from r1_recipes.models.tiny import build_tiny_model

    folder = build_tiny_model(tmp_path, {})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # A random model's logits are nearly flat; larger weights make its path sure of itself and dependent on the prompt.
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data *= 12
    prompts = [[{"role": "user", "content": text}] for text in ("x", "hello, you", "4 + 1")]
    settings = SimpleNamespace(temperature=1e-4, top_p=1.0, top_k=0, min_p=None, repetition_penalty=1.0)
    greedy, sampled = complete(model, tokenizer, prompts, [(sampling(settings, temperature=0), 1), (sampling(settings), 2)], 12)

    expected = []
    for prompt in prompts:
        inputs = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :].tolist()
        end = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
        expected.append(tokenizer.decode(ids[:end], skip_special_tokens=True))
    assert [[completion.text for completion in group] for group in greedy] == [[text] for text in expected]
    assert len(set(expected)) > 1
    # at a temperature next to zero sampling is greedy too; two samples a row, row by row
    assert [[completion.text for completion in group] for group in sampled] == [[text, text] for text in expected]
    for group in greedy + sampled:
        for completion in group:
            assert 0 < completion.tokens <= 12 and (completion.finish_reason == "length") <= (completion.tokens == 12)


def test_the_command_judges_two_models_on_rows_that_a_length_limit_would_drop(tmp_path, capsys):
    import pandas

    from r1_recipes.models.tiny import build_tiny_model

    model = str(build_tiny_model(tmp_path / "model", {}))
    rows = [{"prompt": "2 + 2?", "solution": "4"}, {"prompt": "Why?", "solution": "Because."}, {"prompt": "3 + 3?", "solution": "6"}]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "judge.yaml"
    recipe.write_text(
        f"model_name_or_path: {model}\ndataset_name: {tmp_path / 'test.jsonl'}\nmapper: prompt_solution\nreward_funcs: [accuracy]\n"
        "dataset_test_split: train\n"
        f"max_prompt_tokens: 1\nmax_completion_length: 4\nuse_cpu: true\nbf16: false\ndtype: float32\noutput_dir: {tmp_path / 'run'}\n"
    )
    output = tmp_path / "scores"
    command = [str(recipe), "--model", model, "--model", model, "--num_samples", "2", "--output", str(output)]
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
    assert f"Judged on 2 training rows (split 'train' of {tmp_path / 'test.jsonl'}), none of them held out." in printed

    # Again: nothing is generated anew, also where one row had been lost; other settings are refused.
    shard = output / "1_model" / "completions" / "shard-00000.jsonl"
    lines = shard.read_bytes().splitlines(keepends=True)
    shard.write_bytes(lines[0])
    evaluate.main(command)
    assert shard.read_bytes().startswith(lines[0]) and len(shard.read_bytes().splitlines()) == 2
    assert json.loads((output / "results.json").read_text())[1] == second
    with pytest.raises(SystemExit):
        evaluate.main([*command, "--temperature", "0.5"])
    assert "holds completions of other rows, settings or weights" in capsys.readouterr().err

    evaluate.main([str(recipe), "--model", model, "--model", model, "--ask", "2 + 2?"])
    assert capsys.readouterr().out.count(f"=== {model}") == 2
    assert not (tmp_path / "run").exists()


@pytest.fixture
def benchmark(tmp_path, tiny_model, sums):
    """A benchmark of three sums, two samples each; ``benchmark(key=value)`` changes keys, ``None`` leaves one out."""

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
        path.write_text(yaml.safe_dump({key: value for key, value in {**settings, **changes}.items() if value is not None}))
        return str(path)

    return write


def test_a_benchmark_says_how_it_is_judged(benchmark, tiny_model, tmp_path, capsys):
    import pandas

    model, output = str(tiny_model), tmp_path / "scores"
    evaluate.main([benchmark(), "--model", model, "--model", model, "--output", str(output)])
    first, second = json.loads((output / "results.json").read_text())
    # the recipe's samples, batch and seed: twice the same model, so twice the same
    assert first["num_samples"] == 2 and [len(first[key]) for key in ("greedy", "sampled", "majority")] == [3, 3, 3]
    assert first["intervals"]["greedy"] == [0.0, 0.0, pytest.approx(3.8415 / 6.8415, abs=1e-4)]  # Wilson: z^2 / (n + z^2)
    # nothing changed on three rows: 1/5 each way, half width 1.96 * sqrt((2/5)/5) = 0.5544
    assert second["difference"]["over"] == model
    assert second["difference"]["greedy_lenient"] == [0.0, pytest.approx(-0.5544, abs=1e-4), pytest.approx(0.5544, abs=1e-4)]
    table = pandas.read_parquet(output / "2_model" / "completions.parquet")
    letters = [sum("a" <= char <= "z" or char.isdigit() for char in text) for text in table["completion"]]
    assert list(table["reward tests.conftest:letters"]) == letters
    # a row's mean is that of its samples, not of the greedy completion
    mean = table[table["sample"] >= 0].groupby("index")["reward tests.conftest:letters"].mean()
    assert first["rewards"]["tests.conftest:letters"] == list(mean) and set(first["rewards"]["format"]) == {0.0}
    printed = capsys.readouterr().out
    assert (
        "maj@2" in printed
        and "| reward, mean | accuracy | format | tests.conftest:letters |" in printed
        and "lenient sampled +0.0 points" in printed
    )

    # the command line wins; greedy only: no column of samples
    evaluate.main([benchmark(), "--model", model, "--num_samples", "0", "--output", str(tmp_path / "greedy")])
    (greedy,) = json.loads((tmp_path / "greedy" / "results.json").read_text())
    assert greedy["greedy"] == first["greedy"] and greedy["sampled"] == greedy["majority"] == [] and greedy["pass_at"] == {}
    assert greedy["sampled_format"] is None and len(greedy["rewards"]["format"]) == 3
    printed = capsys.readouterr().out
    assert "maj@" not in printed and "sampled" not in printed.splitlines()[2]
    # the greedy completions are the same, with and without samples
    greedy_table = pandas.read_parquet(tmp_path / "greedy" / "1_model" / "completions.parquet")
    assert list(greedy_table["completion"]) == list(table[table["sample"] == -1]["completion"])


def test_a_model_behind_a_server_is_judged_like_any_other(benchmark, tmp_path, capsys, monkeypatch):
    """Greedy right, sampled wrong; the second sum's greedy request fails for good the first time."""
    refusing = [True]

    def answer(body, before):
        question = body["messages"][-1]["content"]
        if refusing and question == "2+3?":
            return 400
        value = sum(map(int, question.removesuffix("?").split("+")))
        return reply(f"<think>\na\n</think>\n<answer>\n{value if body['temperature'] == 0 else -1}\n</answer>", tokens=7)

    command = [benchmark(backend="openai"), "--model", "served", "--output", str(tmp_path / "scores")]
    with chat_server(answer) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        with pytest.raises(SystemExit):
            evaluate.main(command)
        assert "row 1 cannot be completed" in capsys.readouterr().err
        refusing.clear()
        evaluate.main(command)
        (scores,) = json.loads((tmp_path / "scores" / "results.json").read_text())
        assert (scores["greedy"], scores["sampled"], scores["mean_tokens"]) == ([1.0] * 3, [0.0] * 3, 7.0)
        assert scores["rewards"] == {} and {body["model"] for body in seen} == {"served"}
        # Each sample has a seed of its own, greedy requests none.
        assert {("seed" in body) for body in seen if body["temperature"] == 0} == {False}
        assert len({body["seed"] for body in seen if body["temperature"]}) == 6
        evaluate.main([*command[:3], "--backend", "openai", "--ask", "2+2?"])
        assert "=== served\n<think>" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            evaluate.main([benchmark(backend="openai", chat_template="x"), "--model", "served"])
        assert "the server has the chat template" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes, arguments, message",
    [
        ({"num_generations": 2}, [], "unknown key 'num_generations' for evaluate"),
        ({"num_samples": -1}, [], "num_samples: must be in [0, inf), got -1"),
        ({"backend": "sglang"}, [], "unknown backend 'sglang'"),
        ({"temperature": 0}, [], "temperature: 0 gives 2 equal samples a row"),
        ({"temperature": 0, "num_samples": 0}, ["--num_samples", "3"], "temperature 0 gives 3 equal samples a row"),
        ({"use_peft": True}, [], "use_peft: of no effect"),
        ({"reward_funcs": ["acuracy"]}, [], "Did you mean 'accuracy'"),
        ({}, ["--num_samples", "-1"], "--num_samples is 0 or more"),
        ({}, [], "--model: missing"),
    ],
)
def test_a_benchmark_that_cannot_work_is_refused_before_anything_is_loaded(benchmark, changes, arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(rows, "rows_to_judge", lambda recipe: pytest.fail("nothing may be loaded"))
    model = [] if "missing" in message else ["--model", "nowhere"]
    with pytest.raises(SystemExit):
        evaluate.main([benchmark(**changes), *model, *arguments])
    assert message in capsys.readouterr().err


def test_a_reward_that_fails_costs_a_column_and_no_completion(benchmark, tiny_model, tmp_path, caplog):
    path = benchmark(reward_funcs=["accuracy", "format", "tests.test_evaluate:fails_on_rubbish"])
    evaluate.main([path, "--model", str(tiny_model), "--num_samples", "0", "--output", str(tmp_path / "scores")])
    (scores,) = json.loads((tmp_path / "scores" / "results.json").read_text())
    assert set(scores["rewards"]) == {"accuracy", "format"}
    assert "'tests.test_evaluate:fails_on_rubbish' fails: ValueError: rubbish" in caplog.text


def fails_on_rubbish(completions, **columns):
    if any(turn["content"] and "Let me see." not in turn["content"] for (turn,) in completions):
        raise ValueError("rubbish")
    return [0.0] * len(completions)


def test_rows_that_nobody_can_judge_are_counted_and_left_out(benchmark, tmp_path, caplog):
    rows = [
        {"question": "2+2?", "answer": "#### 4", "scorer": None},
        {"question": "Why?", "answer": "#### because it is so", "scorer": None},
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = evaluate.load_recipe([benchmark(dataset_name=str(data), reward_funcs=["format"])])
    assert recipe.method == "evaluate"
    assert rows_to_judge(recipe)[0]["solution"] == ["4"]
    said = "1 of 2 rows are judged by none of accuracy and are left out; the first is row 1 (gold 'because it is so')"
    assert said in caplog.text
    data.write_text(json.dumps(rows[1]) + "\n")
    with pytest.raises(RecipeError, match=r"no row can be judged: accuracy .*'because it is so'"):
        rows_to_judge(evaluate.load_recipe([benchmark(dataset_name=str(data), reward_funcs=["accuracy"])]))


# A row of each set in its true columns (invented), a right answer, and a wrong one.
BENCHMARKS = {
    "gsm8k": ({"question": "A box holds 1,200 nuts?", "answer": "600*2=<<600*2=1200>>1200\n#### 1,200"}, "1200", "120"),
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
    "aime24": ({"id": 0, "problem": "5*5?", "solution": "25.", "answer": "025", "url": "https://example.org", "year": "2024"}, "25", "250"),
    "aime25": ({"problem": "5*5?", "answer": "25", "id": "0"}, "025", "26"),
    "countdown": ({"target": 31, "nums": [7, 4, 3]}, "7 * 4 + 3", "7 * 4 + 4"),
}


def test_every_benchmark_has_a_row_here():
    assert set(BENCHMARKS) == {path.stem for path in RECIPES if path.parent.name == "benchmarks"}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_shipped_benchmark_reads_its_set_and_judges_it(name, tmp_path, monkeypatch):
    from r1_recipes.completions.backends import Completion
    from r1_recipes.prompts import FORMATS

    row, right, wrong = BENCHMARKS[name]
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps(row) + "\n")
    recipe = evaluate.load_recipe([str(REPOSITORY / "recipes" / "benchmarks" / f"{name}.yaml"), "--dataset_name", str(data)])
    assert recipe.script.num_samples >= 1 and recipe.training.max_completion_length >= 1024
    rows = rows_to_judge(recipe)[0]
    fmt = FORMATS[recipe.script.response_format]
    texts = [fmt.render("It is so.", right), fmt.render("It is so.", wrong), f"So the answer is {right}"]
    groups = [[Completion(text, 20, "stop") for text in texts]]
    scores, table = evaluate._judge("m", fmt, rows, groups, 2, evaluate._judges(recipe, fmt), {}, None)
    assert [record["correct"] for record in table] == [True, False, False]
    assert [record["lenient"] for record in table] == [True, False, True]
    assert scores.greedy == [1.0] and scores.sampled == [0.0] and scores.sampled_lenient == [0.5]


@pytest.fixture
def words(tmp_path, tiny_model):
    """A GRPO recipe whose golds are words; ``words(key=value)`` changes keys."""
    rows = [{"prompt": "Capital of France?", "solution": "Paris"}, {"prompt": "Author of Ulysses?", "solution": "James Joyce"}]
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
    return [1.0 if gold[0] in turn["content"] else 0.0 for gold, (turn,) in zip(solution, completions, strict=True)]


@pytest.mark.parametrize(
    ("changes", "strict", "lenient"),
    [
        # 1 of 2 stands where the format wants it, the other one after "the answer is"
        ({}, [True, False, False], [True, True, False]),
        ({"reward_funcs": ["answer_match"]}, [True, False, False], [True, True, False]),
        # a function of one's own does not say how it reads an answer: strict alone
        ({"reward_funcs": ["tests.test_evaluate:starts_alike"]}, [True, True, False], [True, True, False]),
        # each row's own task's reward
        (
            {
                "reward_funcs": ["tests.test_evaluate:starts_alike", "exact_match"],
                "task_rewards": {"Paris": ["exact_match"], "James Joyce": ["tests.test_evaluate:starts_alike"]},
                "task_column": "solution",
            },
            [True, True, False],
            [True, True, False],
        ),
    ],
    ids=["exact_match", "answer_match", "own", "routed"],
)
def test_golds_in_words_are_judged_by_the_recipe_s_first_reward_that_judges_them(words, changes, strict, lenient):
    from r1_recipes.prompts import FORMATS

    recipe = evaluate.load_recipe([words(**changes)])
    fmt = FORMATS["think_answer"]
    rows = [{"prompt": "?", "solution": gold} for gold in ("Paris", "James Joyce", "James Joyce")]
    texts = [fmt.render("So.", "Paris."), "The answer is James Joyce", "I do not know"]
    assert verdicts(fmt, evaluate._judges(recipe, fmt), rows, texts) == (strict, lenient)


def test_the_command_judges_golds_in_words(words, tmp_path, capsys):
    evaluate.main([words(), "--num_samples", "1", "--dataset_train_split", "train[:1]", "--dataset_test_split", "train[1:]"])
    printed = capsys.readouterr().out
    assert "| reward, mean | format | exact_match |" in printed
    assert f"Judged on 1 held-out rows (split 'train[1:]' of {tmp_path / 'words.jsonl'})." in printed


def test_rows_of_two_tasks_are_judged_by_task_rewards(words):
    own = "tests.test_evaluate:starts_alike"
    tasks = {"task_rewards": {"Paris": ["exact_match"], "James Joyce": [own]}, "task_column": "solution"}
    recipe = evaluate.load_recipe([words(reward_funcs=["exact_match", own], **tasks)])
    assert rows_to_judge(recipe)[0]["solution"][:] == ["Paris", "James Joyce"]


def test_what_can_be_judged_is_found_without_decoding_pictures(words):
    from datasets import Dataset, Image

    from r1_recipes.prompts import FORMATS

    row = {"prompt": [{"role": "user", "content": "?"}], "solution": "4", "image": {"bytes": b"no picture", "path": None}}
    rows = Dataset.from_list([row]).cast_column("image", Image())
    assert len(evaluate._judgeable(evaluate.load_recipe([words()]), FORMATS["think_answer"], rows)) == 1


def test_rows_held_out_by_the_command_alone_are_said_to_be(words, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    recipe = evaluate.load_recipe([words(), "--dataset_train_split", "train[:1]", "--dataset_test_split", "train[1:]"])
    (run / "run.json").write_text("{}")
    kept = {"dataset_name": recipe.script.dataset_name, "dataset_train_split": "train"}
    (run / "recipe.yaml").write_text(yaml.safe_dump(kept))
    assert "was trained on split 'train'" in evaluate._trained_otherwise(recipe, str(run))
    assert "was trained on split 'train'" in evaluate._trained_otherwise(recipe, str(run / "checkpoint-1"))
    for other in ({**kept, "dataset_train_split": "train[:1]"}, {**kept, "dataset_name": "other"}):
        (run / "recipe.yaml").write_text(yaml.safe_dump(other))
        assert evaluate._trained_otherwise(recipe, str(run)) == ""
    assert evaluate._trained_otherwise(recipe, "some/model") == ""


def test_majority_of_words():
    samples = [{"answer": answer, "correct": "paris" in answer.lower()} for answer in ("Rome", "Paris", "paris.", "Rom")]
    assert evaluate._majority(samples) == 1.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # A single file is every split, so "test" is what was trained on.
        ({"dataset_train_split": "train"}, "split 'test' of .* has 2 of 2 rows that ask .*'train\\[:-1\\]'.*--dataset_test_split train"),
        (
            {"dataset_train_split": "train", "dataset_test_split": "train[-1:]"},
            "has 1 of 1 rows that ask .*the first asks 'Author of Ulysses",
        ),
        ({"dataset_train_split": "train", "dataset_test_split": "train"}, None),
        ({"dataset_train_split": "train[:1]", "dataset_test_split": "train[1:]"}, None),
    ],
)
def test_training_rows_are_not_called_held_out(words, changes, said):
    recipe = evaluate.load_recipe([words(**changes)])
    if said:
        with pytest.raises(RecipeError, match=said):
            rows_to_judge(recipe)
        return
    _, what = rows_to_judge(recipe)
    assert ("held-out" in what) == (changes["dataset_train_split"] != "train") and ("training rows" in what) == ("held-out" not in what)


class SimpleTokenizer:
    pad_token_id = 0

    def __call__(self, text, **options):
        return {"input_ids": [*map(ord, text)]}


def counts(completions, completion_ids, **columns):
    counts.calls += 1
    return [len(ids) / 3 for ids in completion_ids]  # 1 for three tokens


def test_a_reward_of_one_s_own_sees_tokens_and_is_asked_once(words):
    from r1_recipes.prompts import FORMATS
    from r1_recipes.rewards.call import score

    recipe = evaluate.load_recipe([words(reward_funcs=["tests.test_evaluate:counts"])])
    judges = evaluate._judges(recipe, FORMATS["think_answer"])
    ((name, judge),) = judges.items()
    counts.calls = 0
    rows = [{"prompt": "?", "solution": "x"}] * 2
    tokenizer = SimpleTokenizer()
    given = {name: score(name, judge, rows, ["ab", ""], tokenizer, [3, 2])}
    assert verdicts(FORMATS["think_answer"], judges, rows, ["ab", ""], given)[0] == [True, False] and counts.calls == 1
