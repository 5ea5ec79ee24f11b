"""``r1-recipes init``: what it makes of files of many shapes, what it refuses, and the guide,
command by command.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from r1_recipes.extras import init
from r1_recipes.extras.preflight import __main__ as preflight

pytestmark = pytest.mark.usefixtures("offline")
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
    "letters.csv": (
        lines("question,A,B,C,right answer", "Was ist @?,@,0@,1@,A"),
        columns(
            "question",
            "right answer",
            prompt_template="{question}\nA) {A}\nB) {B}\nC) {C}",
            response_format="boxed",
            reward_funcs=["choice_match"],
        ),
    ),
    "gsm8k.jsonl": (
        objects(question="@+1?", answer="One more.\n#### 7"),
        columns("question", "answer", number_locale=None),
    ),
    "worked.csv": (
        lines("question;explanation;result", "@ times 2.5?;We work it out.;@.5"),
        {"reasoning_column": "explanation", "solution_column": "result"},
    ),
    "chinese.csv": (lines("编号,问题,答案", "@,@加@等于几?,@"), columns("问题", "答案")),
    "my data (1).csv": (
        lines("question,answer", "@+1?,@"),
        {"dataset_name": "my data (1).csv", "output_dir": "outputs/my_data_1"},
    ),
    "prose.csv": (
        lines("question,answer", f'Why is @ odd?,"{WORDY}"'),
        {"mapper_config": {"whole": True}, "system_prompt": "", "reward_funcs": None},
    ),
    "deutsch.csv": (
        lines("Frage;Lösung;Rechenweg", "Was ist @ + 1?;@,5;@ + 1 = @,5."),
        {"prompt_column": "Frage", "solution_column": "Lösung", "number_locale": "de"},
    ),
    "alpaca.jsonl --method sft": (
        objects(instruction="@+1?", output="7"),
        {"mapper": "alpaca", "system_prompt": "", "response_format": None},
    ),
    "solved.csv --method sft": (
        lines("problem,solution,answer", r"@+1?,It is $\boxed{7}$.,7"),
        {"reasoning_column": "solution", "response_format": "boxed"},
    ),
    # MetaMathQA, BoolQ, verl's rows, ARC, DeepMath and medical-o1
    "metamath.jsonl": (
        objects(query="@+1?", response="One more.\n#### @1\nThe answer is: @1", type="GSM"),
        {"mapper": "alpaca", "reward_funcs": ["accuracy"]},
    ),
    "boolq.jsonl": (
        objects(question="is @ odd", passage="We say @.", answer=True),
        columns("question", "answer", prompt_template="{passage}\n\n{question}"),
    ),
    "verl.jsonl": (
        objects(
            data_source="x",
            prompt=[{"role": "user", "content": "@?"}],
            reward_model={"ground_truth": "@", "style": "rule"},
        ),
        {"mapper": "verl", "reward_funcs": ["accuracy"]},
    ),
    "arc.jsonl": (
        objects(
            question="@?", choices={"text": ["one", "two"], "label": ["A", "B"]}, answerKey="B"
        ),
        {"mapper": "multiple_choice", "reward_funcs": ["choice_match"]},
    ),
    "latex.csv": (
        lines("Frage;Lösung", "Was ist @ + 1/2?;$@{,}5$"),
        {"reward_funcs": ["accuracy"], "number_locale": "de"},
    ),
    "solved.jsonl": (
        objects(question="Ann has @. One more?", answer="Ann has @.\nSo the result is 7."),
        {"mapper_config": {"whole": True}, "reward_funcs": None},
    ),
    "openr1.jsonl --method grpo": (
        objects(problem="@+1?", answer="@", messages=[{"role": "user", "content": "@+1?"}]),
        {"prompt_column": "problem", "solution_column": "answer"},
    ),
    "deepmath.csv": (
        lines("question,final_answer,r1_solution_1,r1_solution_2", "@+1?,@,a,b"),
        columns("question", "final_answer", reward_funcs=["accuracy"]),
    ),
    "medical.jsonl --method sft": (
        objects(Question="Why @?", Complex_CoT="Let me see.", empty=None, Response="Flu"),
        columns("Question", "Response", reasoning_column="Complex_CoT"),
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
    Path(name.split(" --")[0]).write_text(text, encoding="utf-8")
    said, recipe = found(capsys, *re.split(" (?=--)|(?<=method) ", name))
    assert (
        said.index("\nnext\n")
        and said.partition("\nnext")[0].count("\n") < 10
        and "r1-recipes preflight " in said
    )
    assert {key: recipe.get(key) for key in wanted} == wanted
    assert Path(f"test_{Path(recipe['output_dir']).name}.py").exists() == bool(
        {"accuracy", "choice_match", "answer_match"} & {*recipe.get("reward_funcs", ())}
    )


def test_preflight_is_green(
    folder: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("letters.csv", "prose.csv", "hostile.csv"):
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


REFUSED = {
    "empty.csv": ("", "holds no rows"),
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
    "pregunta.csv": (
        lines("Pregunta;Respuesta", "@?;1"),
        "got 'Pregunta', 'Respuesta'. Fix: --question COLUMN --answer COLUMN",
    ),
    "pairs.jsonl": (objects(prompt="@?", chosen="a", rejected="b"), "not pairs or pictures"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    content, reason = REFUSED[name]
    Path(name).write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        init.main([name])
    error = capsys.readouterr().err.splitlines()[-1]
    assert stopped.value.code == 2 and "error: " in error and reason in error
    assert not [*folder.glob("*.yaml"), *folder.glob("*.py")]


def test_flags_decide_and_nothing_is_overwritten(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.csv").write_text(lines("a1,b1,c1", "@,@+1?,z"), encoding="utf-8")
    flags = ["x.csv", "--question", "b1", "--answer", "a1"]
    said, recipe = found(capsys, *flags, "--model", "my/model")
    assert (recipe["prompt_column"], recipe["solution_column"]) == ("b1", "a1")
    assert recipe["model_name_or_path"] == "my/model" and "left out: 'c1'" in said
    Path("chat.jsonl").write_text(FILES["chat.jsonl"][0], encoding="utf-8")
    for argv, reason in (
        (["x.csv", "--question", "b1", "--answer", "A1"], "'A1'"),
        (["chat.jsonl", "--method", "grpo"], "grpo needs reference answers"),
    ):
        with pytest.raises(SystemExit):
            init.main(argv)
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize("cpu", [True, False])
def test_the_path_from_sft_to_grpo(
    folder: Path, capsys: pytest.CaptureFixture[str], cpu: bool
) -> None:
    """SFT with LoRA, merge, GRPO from it; on a CPU there are no adapters to merge."""
    for name in ("worked.csv", "chat.jsonl"):
        Path(name).write_text(FILES[name][0], encoding="utf-8")
    device = ["--cpu"] * cpu
    said, recipe = found(capsys, "worked.csv", *device, "--method", "sft")
    assert recipe["output_dir"] == "outputs/worked_sft"
    assert recipe["model_name_or_path"].startswith("embedded:" if cpu else "Qwen/")
    assert (bool(recipe.get("use_cpu")), bool(recipe.get("use_peft"))) == (cpu, not cpu)
    trained = "outputs/worked_sft" if cpu else "outputs/worked_sft/merged"
    assert ("r1-recipes adapters outputs/worked_sft\n" in said) == (not cpu)
    assert said.rstrip().endswith(f"--method grpo --model {trained}")
    _, after = found(capsys, "worked.csv", *device, "--method", "grpo", "--model", trained)
    assert after["model_name_or_path"] == trained and after["num_generations"] == 8
    assert after.get("system_prompt") == recipe.get("system_prompt")
    assert "system_prompt" not in found(capsys, "chat.jsonl", *device)[1]
