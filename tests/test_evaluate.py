"""Intervals and tables: every expected value carries its working."""

import dataclasses
import itertools
import math
import random
from types import SimpleNamespace

import pytest

from r1_recipes.evaluate import Scores, difference_line, markdown_table, mean_interval, paired_difference


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


def test_normal_interval_of_shares():
    # values 0, 0.5, 1 (mean 0.5, sample variance 0.25): standard error sqrt(0.25/3) = 0.2887, times 1.96 = 0.5658
    mean, low, high = mean_interval([0.0, 0.5, 1.0])
    assert (mean, round(high - mean, 4), round(mean - low, 4)) == (0.5, 0.5658, 0.5658)


def test_paired_difference_uses_the_pairs():
    # every row gains exactly 0.25: no spread, so no width, although each list alone varies
    before = [0.0, 0.25, 0.5, 0.75]
    assert paired_difference(before, [value + 0.25 for value in before]) == (0.25, 0.25, 0.25)
    with pytest.raises(ValueError):
        paired_difference([0.0], [0.0, 1.0])


def test_intervals_cover_the_truth_as_often_as_they_say():
    # 2,000 experiments at 95 %: about 1,900 hold the truth; 3 standard deviations of that count are 3 * sqrt(2000*.95*.05) = 29
    rng = random.Random(0)
    covered = 0
    for _ in range(2000):
        low, high = mean_interval([float(rng.random() < 0.3) for _ in range(200)])[1:]
        covered += low <= 0.3 <= high
    assert abs(covered - 1900) < 60


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
    from r1_recipes.evaluate import lenient_verdicts
    from r1_recipes.formats import FORMATS
    from r1_recipes.rewards import get_reward_funcs

    (accuracy,) = get_reward_funcs(["accuracy"], "think_answer")
    strict = [bool(value) for value in accuracy(completions=[text], solution=[gold])]
    assert lenient_verdicts(FORMATS["think_answer"], [text], strict, [gold]) == [expected]


def test_lenient_verdicts_ask_a_row_s_own_scorer():
    from r1_recipes.evaluate import lenient_verdicts
    from r1_recipes.formats import FORMATS

    scorer = '{"countdown": {"numbers": [2, 5], "target": 10}}'
    texts = ["The answer is 2 * 5", "The answer is 10", "7"]
    verdicts = lenient_verdicts(FORMATS["think_answer"], texts, [False] * 3, [None, None, "7"], [scorer, scorer, None])
    assert verdicts == [True, False, True]


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

    from r1_recipes.backends import complete, sampling
    from r1_recipes.smoke import build_tiny_model

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
    import json

    import pandas

    from r1_recipes import evaluate
    from r1_recipes.smoke import build_tiny_model

    model = str(build_tiny_model(tmp_path / "model", {}))
    rows = [{"prompt": "2 + 2?", "solution": "4"}, {"prompt": "Why?", "solution": "Because."}, {"prompt": "3 + 3?", "solution": "6"}]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "judge.yaml"
    recipe.write_text(
        f"model_name_or_path: {model}\ndataset_name: {tmp_path / 'test.jsonl'}\nmapper: prompt_solution\nreward_funcs: [accuracy]\n"
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
    assert "greedy +0.0 points" in capsys.readouterr().out

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
    with pytest.raises(SystemExit):
        evaluate.main([str(recipe), "--model", model, "--num_samples", "0"])
    assert "1 or more" in capsys.readouterr().err
