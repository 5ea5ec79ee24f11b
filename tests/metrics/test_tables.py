"""Scores as tables."""

import dataclasses
import math

from r1_recipes.metrics.tables import difference_line, markdown_table
from tests.metrics.test_scores import make_scores


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
