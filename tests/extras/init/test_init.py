"""``r1-recipes init``: what it makes of files of many shapes, what it refuses, and the guide,
command by command.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from r1_recipes import __main__
from r1_recipes.data import load_dataset
from r1_recipes.extras.init import __main__ as init
from r1_recipes.extras.preflight import __main__ as preflight
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe import load_recipe
from r1_recipes.rewards import get_reward_funcs
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.usefixtures("offline")
MATHS = {"mapper": "prompt_solution", "reward_funcs": ["accuracy", "format", "tag_count"]}
WORDY = (
    "Because it leaves a rest when one divides it by two, and that is what the word means in "
    "every book; see also the lecture."
)


def lines(head: str, row: str, count: int = 20) -> str:
    return f"{head}\n" + "".join(
        row.replace("@", str(number)) + "\n" for number in range(2, count + 2)
    )


def objects(**row: Any) -> str:
    return "".join(json.dumps(row).replace("@", str(number)) + "\n" for number in range(2, 22))


def columns(question: str, answer: str, **more: Any) -> dict[str, Any]:
    return {"prompt_column": question, "solution_column": answer, "keep_columns": [], **more}


FILES = {
    "german.csv": (
        lines("nr;question;answer", "@;Wie viel ist @ + 0,5?;@,5"),
        MATHS | columns("question", "answer", number_locale="de"),
    ),
    "thousands.csv": (lines("question,answer", '@ thousand?,"@,000"'), {"number_locale": None}),
    "apart.csv": (lines("question;answer", "@ mal?;@ 234,50\u00a0€"), {"number_locale": "de"}),
    "letters.csv": (
        lines("question,A,B,C,right answer", "Was ist @?,@,0@,1@,A"),
        columns(
            "question",
            "right answer",
            prompt_template="{question}\nA) {A}\nB) {B}\nC) {C}",
            reward_funcs=["choice_match", "format", "tag_count"],
        ),
    ),
    "lower.csv": (
        lines("question,(a),(b),answer", "@?,x,y,b"),
        {"prompt_template": "{question}\nA) {(a)}\nB) {(b)}"},
    ),
    "beside.jsonl": (
        objects(problem="@+1?", answer="@", messages=[{"role": "user", "content": "@?"}]),
        columns("problem", "answer"),
    ),
    "order.csv": (
        lines("problem,B,A,answer", "@?,b@,a@,B") + "one?,a,b,\n",
        {"prompt_template": "{question}\nA) {A}\nB) {B}"},
    ),
    "spreadsheet.csv": (lines(",question,answer,,", "0,@+1?,@,,"), columns("question", "answer")),
    "inside.csv": (
        lines("question,answer", '"Which is @? A) @ B) 0",A'),
        {"reward_funcs": ["choice_match", "format", "tag_count"]},
    ),
    "gsm8k.jsonl": (
        objects(question="@+1?", answer="One more.\n#### 7"),
        columns("question", "answer", number_locale=None),
    ),
    "german_gsm8k.jsonl": (
        objects(question="@+0,5?", answer="Mehr.\n#### 3,5"),
        {"mapper": "prompt_solution", "number_locale": "de"},
    ),
    "latex.jsonl": (
        objects(problem="Half of @?", answer=r"\frac{@}{2}"),
        columns("problem", "answer"),
    ),
    "worked.csv": (
        lines("question;explanation;result", "@ times 2.5?;We work it out.;@.5"),
        {"reasoning_column": "explanation", "solution_column": "result"},
    ),
    "chinese.csv": (lines("编号,问题,答案", "@,@加@等于几?,@"), columns("问题", "答案")),
    "chinese_worked.csv": (
        lines("题目,解析,答案", "@加@等于几?,相加,@"),
        columns("题目", "答案", reasoning_column="解析"),
    ),
    "blanks.csv": (
        lines("My question ; The answer ", "What is @? ;@"),
        columns("My question ", " The answer "),
    ),
    "line_ends.csv": (
        lines("question\x85x,answer\u2028", "@+1?,@"),
        columns("question\x85x", "answer\u2028"),
    ),
    "my data (1).csv": (
        lines("question,answer", "@+1?,@"),
        {"dataset_name": "my data (1).csv", "output_dir": "outputs/my_data_1"},
    ),
    "words.csv": (
        lines("question,answer", "Capital @?,Paris"),
        {"reward_funcs": ["answer_match", "format", "tag_count"]},
    ),
    "mostly.csv": (
        lines("question,answer", "@?,@") + lines(f'Why one?,"{WORDY}"', f'Why @?,"{WORDY}"', 3),
        {"reward_funcs": ["answer_match", "format", "tag_count"]},
    ),
    "dates.csv": (
        lines("question;answer", "Wann war @?;@. März 2024", 10)
        + lines("Wann?;02.03.2024", "Wann, @?;May @", 8),
        {"reward_funcs": ["answer_match", "format", "tag_count"]},
    ),
    "prose.csv": (
        lines("question,answer", f'Why is @ odd?,"{WORDY}"'),
        {"mapper_config": {"whole": True}, "system_prompt": "", "reward_funcs": None},
    ),
    "chat.jsonl": (
        objects(
            messages=[{"role": "user", "content": "@?"}, {"role": "assistant", "content": "@."}]
        ),
        {"mapper": "auto", "reward_funcs": None},
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[str, dict[str, Any]]:
    """Return the printed text and the recipe."""
    init.main(list(argv))
    said = capsys.readouterr().out
    return said, yaml.safe_load(Path(re.search(r"wrote +(.*?\.yaml)", said)[1]).read_text("utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_what_becomes_of_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text, wanted = FILES[name]
    Path(name).write_text(text, encoding="utf-8")
    said, recipe = found(capsys, name)
    assert (
        said.index("\nnext\n")
        and said.partition("\nnext")[0].count("\n") < 10
        and "r1-recipes preflight " in said
    )
    if isinstance(wanted, str):
        assert wanted in said
    else:
        assert {key: recipe.get(key) for key in wanted} == wanted
    assert Path(f"test_{Path(recipe['output_dir']).name}.py").exists() == bool(
        {"accuracy", "choice_match", "answer_match"} & {*recipe.get("reward_funcs", ())}
    )


def run_test(path: str) -> None:
    """Run a test that init wrote, in this process: another takes ten seconds."""
    names = runpy.run_path(path)
    assert {score for *_, score in names["CASES"]} == {0.0, 1.0} and len(names["CASES"]) > 3
    names["test_the_scores_of_answers"]()


def test_the_tests_that_it_writes_pass(folder: Path) -> None:
    for name in (
        "german.csv",
        "apart.csv",
        "letters.csv",
        "german_gsm8k.jsonl",
        "words.csv",
        "latex.jsonl",
        "mostly.csv",
    ):
        Path(name).write_text(FILES[name][0], encoding="utf-8")
        init.main([name, "--output", "my own"])
        run_test(f"my own/test_{Path(name).stem}.py")


@pytest.mark.slow
def test_the_test_that_it_writes_runs_without_pytest(folder: Path) -> None:
    """An installed wheel has no pytest, and the test must still name a spelling with a wrong score."""
    Path("german.csv").write_text(FILES["german.csv"][0], encoding="utf-8")
    init.main(["german.csv"])
    none = (
        "import runpy, sys; sys.modules['pytest'] = None; runpy.run_path('test_german.py', "
        "run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", none], capture_output=True, text=True)
    assert done.returncode == 0 and "answers have the expected score" in done.stdout, done.stderr
    written = Path("test_german.py").read_text("utf-8")
    Path("test_german.py").write_text(
        written.replace("SPELLINGS = [", "SPELLINGS = [('1', '2', 1.0), "), encoding="utf-8"
    )
    with pytest.raises(AssertionError, match=r"'1', answer '2': must score 1\.0, got 0\.0"):
        run_test("test_german.py")


def test_preflight_is_green(
    folder: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("german.csv", "letters.csv", "prose.csv", "hostile.csv"):
        Path(name).write_text(FILES[name][0] if name in FILES else HOSTILE, encoding="utf-8")
        init.main([name, "--output", "out"])
        [path] = Path("out").glob(f"{Path(name).stem}*.yaml")
        preflight.main(
            [str(path), "--model_name_or_path", str(tiny_model), "--no-model", "--brief"]
        )
        assert "Ready" in capsys.readouterr().out


HOSTILE = lines(
    '"question: #x\n- !!python/object:os.system {a: b}","answer: \'""\n#: {x}$found"',
    '"what is: # @\n\'\'\' """" $found {x}",#',
)


def test_names_and_cells_are_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil'''\n- x: $found.csv").write_text(HOSTILE, encoding="utf-8")
    _, recipe = found(capsys, "evil'''\n- x: $found.csv")
    assert (
        recipe["dataset_name"] == "evil'''\n- x: $found.csv"
        and recipe["output_dir"] == "outputs/evil_x_found"
    )
    assert recipe["prompt_column"] == "question: #x\n- !!python/object:os.system {a: b}"
    assert set(recipe) >= {"mapper", "solution_column", "seed"} and "x" not in recipe


REFUSED = {
    "empty.csv": ("", "holds no rows"),
    "header.csv": ("question,answer\n", "holds no rows"),
    "ragged.csv": (
        "a,b\n1,2\n1,2,3\n",
        "the header 2: ['1', '2', '3']. Fix: put cells that contain ',' in double quotes",
    ),
    "twice.csv": (
        "question,answer,answer\na,b,c\n",
        "the header has a column twice: 'answer'. Fix: rename one of the columns",
    ),
    "one.csv": (
        "text\nhello\n",
        "do not show the question and the answer, got 'text'. Fix: "
        "--question COLUMN --answer COLUMN",
    ),
    "programs.jsonl": (
        objects(
            problem_statement="Print @",
            verification_info={"language": "python", "test_cases": [{"input": "", "output": "@"}]},
        ),
        "not tests of programs",
    ),
    "worded.csv": (
        lines("question,A,B,answer", "Was ist @?,Haus @,Hut @,Hut @"),
        "answers must be the letters of the options, got 'Hut 2'",
    ),
    "listed.jsonl": (
        objects(question="Which is @?", choices=["x", "@"], answer=1),
        "got 'choices'",
    ),
    "options.csv": (lines("question;Option 1;Option 2;answer", "@?;a;b;2"), "got 'Option 1'"),
    "frage.csv": (
        lines("Frage;Antwort", "@?;1"),
        "got 'Frage', 'Antwort'. Fix: --question COLUMN --answer COLUMN",
    ),
    "unclear.csv": (
        "a1,b1,c1\n1,2,3\n",
        "got 'a1', 'b1', 'c1'. Fix: --question COLUMN --answer COLUMN",
    ),
    "half.csv": ("question,b1,c1\n1,2,3\n", "Fix: --answer COLUMN"),
    "headless.csv": (
        "What is 1 + 1?,2\nWhat is 1 + 2?,3\n",
        "the first line is a row: 'What is 1 + 1?', '2'",
    ),
    "numbered.csv": (
        "1,What is the result of 1+1?,2\n2,What is it of 1+2?,3\n",
        "Fix: write a first line such as question,answer",
    ),
    "chinese.csv": ("1加1等于几?,2\n1加2等于几?,3\n", "the first line is a row: "),
    "empty_but_one.csv": ("question,answer\na?,1\nb?,\nc?,\n", "must have at least 2 usable rows"),
    "row.csv": ("question,answer\nhow?,3\n", "must have at least 2 usable rows"),
    "blank.csv": (
        "question,answer,n\nhow?,,1\nwho?,,1\n",
        "all rows would be dropped: 2 rows: column 'answer' is empty",
    ),
    "latin.csv": ("Frage;Lösung\nWie?;1\n".encode("cp1252"), "iconv -f cp1252 -t utf-8"),
    "utf16.csv": ("Frage;Lösung\nWie?;1\n".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
    "pairs.jsonl": (objects(prompt="@?", chosen="a", rejected="b"), "not pairs or pictures"),
    "humaneval.jsonl": (
        objects(prompt="def f@():", canonical_solution="return @", test="assert f()"),
        "not tests of programs",
    ),
    "nested.jsonl": (
        objects(question={"text": "@?"}, answer="@"),
        "got None in column 'question'. Fix: rename the role, or",
    ),
    "bot.jsonl": (
        objects(messages=[{"role": "user", "content": "@?"}, {"role": "bot", "content": "@"}]),
        "got 'bot' in column 'messages'. Fix: rename the role",
    ),
    ".": (None, "is the working directory"),
    "nowhere.csv": (None, "no such file or folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    content, reason = REFUSED[name]
    if content is not None:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SystemExit) as stopped:
        init.main([name])
    error = capsys.readouterr().err
    assert (
        stopped.value.code == 2
        and error.startswith("error: ")
        and reason in error
        and error.count("\n") == 1
    )
    assert not [*folder.glob("*.yaml"), *folder.glob("*.py")]


def test_empty_cells_are_not_counted_and_a_usable_row_is_held_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("gaps.csv").write_text(
        "question,answer\n" + "".join(f"{n}+1?,{n + 1 if n < 9 else ''}\n" for n in range(11)),
        "utf-8",
    )
    said, recipe = found(capsys, "gaps.csv")
    assert "8 for training; 1 held out" in said and "2 rows: column 'answer' is empty" in said
    assert (recipe["dataset_train_split"], recipe["dataset_test_split"]) == (
        "train[:-3]",
        "train[-3:]",
    )
    run_test("test_gaps.py")


def test_a_question_with_two_golds_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("two.csv").write_text(lines("question,answer", "@+1?,@") + "2+1?,3\n 2+1?,4\n", "utf-8")
    assert (
        "doubt     1 of 20 questions have several reference answers: '2+1?' has '2' and '3'"
        in found(capsys, "two.csv")[0]
    )


def test_flags_decide_and_nothing_is_overwritten(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.csv").write_text(lines("a1,b1,c1", "@,@+1?,z"), encoding="utf-8")
    _, recipe = found(capsys, "x.csv", "--question", "b1", "--answer", "a1", "--model", "my/model")
    Path("link").mkdir()
    Path("link/x.yaml").symlink_to(folder / "elsewhere.yaml")
    assert (recipe["prompt_column"], recipe["solution_column"], recipe["model_name_or_path"]) == (
        "b1",
        "a1",
        "my/model",
    )
    for argv, reason in (
        (["--question", "b1", "--answer", "a1"], "x.yaml, test_x.py: already exists"),
        (["--answer", "A1"], "unknown column 'A1'"),
        (
            ["--question", "b1", "--answer", "a1", "--output", "x.csv"],
            "--output: x.csv: cannot write",
        ),
        (["--question", "b1", "--answer", "a1", "--output", "link"], "link/x.yaml: already exists"),
    ):
        with pytest.raises(SystemExit):
            init.main(["x.csv", *argv])
        assert reason in capsys.readouterr().err


def test_flags_name_every_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.csv").write_text(lines("Frage;Rechenweg;Lösung", "@+1?;@ + 1;@"), encoding="utf-8")
    flags = ["--question", "Frage", "--answer", "Lösung", "--reasoning", "Rechenweg"]
    wanted = columns("Frage", "Lösung", reasoning_column="Rechenweg")
    assert wanted.items() <= found(capsys, "x.csv", *flags)[1].items()


def test_a_folder_has_its_own_test_split(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    for name in ("train", "test"):
        Path("data", f"{name}.jsonl").write_text(
            objects(question=f"{name} @?", answer="@"), encoding="utf-8"
        )
    said, recipe = found(capsys, "data")
    assert (
        recipe["dataset_test_split"] == "test"
        and "dataset_train_split" not in recipe
        and "20 held out, the split test" in said
    )


def test_after_sft_comes_grpo_from_that_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.csv").write_text(FILES["words.csv"][0], encoding="utf-8")
    assert (
        "--method grpo --model outputs/x_sft"
        in found(capsys, "x.csv", "--cpu", "--method", "sft")[0]
    )


def test_on_a_cpu_upper_layers_are_trained(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.csv").write_text(FILES["words.csv"][0], encoding="utf-8")
    for method, first in (("grpo", 20), ("sft", 15)):
        layers = "|".join(map(str, range(first, 30)))
        recipe = found(capsys, "x.csv", "--cpu", "--method", method)[1]
        assert recipe["unfrozen_parameters"] == [f"layers\\.({layers})\\.", r"model\.norm\."]


def test_a_dangling_link_is_called_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.csv").symlink_to("nowhere.csv")
    with pytest.raises(SystemExit):
        init.main(["x.csv"])
    assert "x.csv: is a link to nowhere.csv, which does not exist" in capsys.readouterr().err


def test_many_rows_take_seconds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("big.csv").write_text(
        lines("id,question,answer", "@,What is @ + @?,@", 100_000), encoding="utf-8"
    )
    started = time.perf_counter()
    said, _ = found(capsys, "big.csv")
    assert "99800 for training; 200 held out" in said and time.perf_counter() - started < 60


def test_prose_can_be_judged_and_worked_solutions_be_learnt(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("prose.csv", "worked.csv"):
        Path(name).write_text(FILES[name][0], encoding="utf-8")
    said, recipe = found(capsys, "prose.csv", "--method", "grpo")
    assert (
        recipe["reward_funcs"][0] == "judge"
        and "OPENAI_BASE_URL" in said
        and "accuracy" not in recipe["reward_funcs"]
    )
    _, recipe = found(capsys, "worked.csv", "--method", "sft")
    assert recipe["reasoning_column"] == "explanation" and "mapper_config" not in recipe


def guide() -> list[tuple[str, str, str]]:
    text = (REPOSITORY / "docs" / "your_data.md").read_text(encoding="utf-8")
    return re.findall(r"```(\w+) ?(\S*)\n(.*?)```", text, re.DOTALL)


def test_every_command_of_the_guide(
    folder: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = (
        "--max_steps 1 --max_completion_length 8 --num_generations 2 "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 1"
    )
    ran = []
    for kind, name, text in guide():
        if kind == "csv":
            Path(name).write_text(text, encoding="utf-8")
        elif kind == "yaml":  # what the guide shows of a file stands there
            assert set(text.splitlines()) <= {*Path(name).read_text("utf-8").splitlines()}
        commands = (
            [
                line.removeprefix("$ ").strip()
                for line in text.splitlines()
                if re.match(r"(\$|  )", line)
            ]
            if kind == "console"
            else []
        )
        for command in commands:
            program, *words = shlex.split(
                command.replace("Qwen/Qwen2.5-1.5B-Instruct", str(tiny_model))
            )
            if program == "python":
                run_test(words[0])
            else:
                words += (
                    ["--model_name_or_path", str(tiny_model)] if words[0] == "preflight" else []
                )
                words += (
                    ["--no-model"]
                    if words[0] == "preflight"
                    else ["--num_samples", "0"]
                    if words[0] == "evaluate"
                    else []
                )
                if words[0] == "grpo" and "--smoke" not in words:
                    words += ["--model_name_or_path", str(tiny_model), *small.split()]
                words += ["--max_completion_length", "8"] if words[0] == "evaluate" else []
                words += (
                    ["--model_name_or_path", str(tiny_model), "--max_steps", "1"]
                    if words[0] == "sft"
                    else []
                )
                words += (
                    ["--unfrozen_parameters", "norm"]
                    if words[1] in ("sums_sft.yaml", "sums.yaml") and words[0] != "evaluate"
                    else []
                )
                monkeypatch.setattr(sys, "argv", ["r1-recipes", *words])
                try:
                    __main__.main()
                except SystemExit as end:
                    assert not end.code, command
                said = capsys.readouterr().out
                if words == ["init", "zahlen.csv"]:
                    assert (
                        said.rstrip().replace(str(tiny_model), "Qwen/Qwen2.5-1.5B-Instruct")
                        == text.removeprefix("$ r1-recipes init zahlen.csv\n").rstrip()
                    )
                if words[0] == "preflight":
                    assert "Ready" in said
            ran.append(command)
    assert len(ran) == 14 and Path("outputs/zahlen/report.html").is_file()


def test_for_two_cores(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("worked.csv", "chat.jsonl"):
        Path(name).write_text(FILES[name][0], encoding="utf-8")
    said, recipe = found(capsys, "worked.csv", "--cpu", "--method", "sft")
    assert (
        recipe["model_name_or_path"] == "embedded:SmolLM2-135M-Instruct"
        and recipe["use_cpu"]
        and "use_peft" not in recipe
    )
    assert (
        recipe["output_dir"] == "outputs/worked_sft"
        and "--method grpo --model outputs/worked_sft" in said
    )
    short = recipe["system_prompt"]
    _, recipe = found(capsys, "worked.csv", "--cpu", "--model", "outputs/worked_sft")
    assert (
        recipe["model_name_or_path"] == "outputs/worked_sft"
        and recipe["system_prompt"] == short
        and recipe["num_generations"] == 8
    )
    assert "system_prompt" not in found(capsys, "chat.jsonl", "--cpu")[1]


ANSWERS_ALONE = {
    "sums.csv": lines("question;answer", "Wie viel ist @ + 0,5?;@,5"),
    "letters.csv": FILES["letters.csv"][0],
    "latex.jsonl": FILES["latex.jsonl"][0],
    "duplicates.csv": lines("question,answer", "@+1?,@") + "2+1?,2\n2+1?,3\n,5\n7?,\n ü?, 1.5 \n",
}


@pytest.mark.parametrize("name", ANSWERS_ALONE)
def test_without_worked_solutions_a_cold_start_teaches_what_grpo_reads(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    Path(name).write_text(ANSWERS_ALONE[name], encoding="utf-8")
    said, taught = found(capsys, name, "--cpu", "--method", "sft")
    assert (
        "(reasoning, explanation)" in said
        and f"--method grpo --model outputs/{Path(name).stem}_sft" in said
    )
    assert taught["system_prompt"] and "mapper_config" not in taught
    _, asked = found(capsys, name, "--cpu", "--model", f"outputs/{Path(name).stem}_sft")
    scripts = [
        load_recipe([str(path), "--max_prompt_tokens", "none"], method)
        for path, method in (
            (f"{Path(name).stem}_sft.yaml", "sft"),
            (f"{Path(name).stem}.yaml", "grpo"),
        )
    ]
    (sft, _), (grpo, _) = (
        load_dataset(
            recipe.script,
            get_response_format(
                recipe.script.response_format, system_prompt=recipe.script.system_prompt
            ),
            recipe.method,
        )
        for recipe in scripts
    )
    assert len(sft) == len(grpo) > 10 and sft["prompt"] == grpo["prompt"]
    fmt = get_response_format(asked["response_format"])
    rewards = get_reward_funcs(scripts[1].script.reward_funcs, fmt, **scripts[1].reward_params)
    targets = [turns[-1]["content"] for turns in sft["completion"]]
    assert all(
        reward(completions=targets, solution=grpo["solution"]) == [1.0] * len(grpo)
        for reward in rewards
    )


def test_answers_alone_lead_to_no_circle(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("sums.csv").write_text(ANSWERS_ALONE["sums.csv"], encoding="utf-8")
    said, recipe = found(capsys, "sums.csv", "--method", "sft")  # a model for a GPU
    assert (
        recipe["mapper_config"] == {"whole": True}
        and "--method grpo --model" not in said
        and "start GRPO from the original model" in said
    )
    assert "run --cpu --method sft first" in found(capsys, "sums.csv", "--cpu")[0]


def test_after_sft_the_printed_command_writes_a_recipe_of_the_same_kind(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command without ``--cpu`` and the columns wrote one for a GPU, or was refused."""
    Path("sums.csv").write_text(lines("Frage,weg,Antwort", "@+1?,@+1=@,@"), encoding="utf-8")
    typed = [
        "--question",
        "Frage",
        "--answer",
        "Antwort",
        "--reasoning",
        "weg",
        "--cpu",
        "--output",
        "of",
    ]
    said, _ = found(capsys, "sums.csv", "--method", "sft", *typed)
    (command,) = (line for line in said.splitlines() if "r1-recipes init" in line)
    program, name, *words = shlex.split(command)
    assert (program, name, words[-1]) == ("r1-recipes", "init", "outputs/sums_sft")
    said, recipe = found(capsys, *words)
    assert (recipe["use_cpu"], recipe["model_name_or_path"]) == (True, "outputs/sums_sft")
    assert "--method sft" not in said


def test_conversations_have_no_worked_solution(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    Path("chats.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 3, encoding="utf-8")
    said, _ = found(capsys, "chats.jsonl")
    assert "worked solution" not in said and "decimal comma" not in said


def test_held_out_rows_with_training_questions_are_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("twice.csv").write_text(
        lines("question,answer", "@+1?,@") + " 2+1?,2\n3+1?,3\n", encoding="utf-8"
    )
    assert "2 held-out rows are also training questions" in found(capsys, "twice.csv")[0]
    Path("once.csv").write_text(lines("question,answer", "@+1?,@"), encoding="utf-8")
    assert "training questions" not in found(capsys, "once.csv")[0]
