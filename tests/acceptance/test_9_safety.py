"""Safety: rows, answers and files of others run no code, secrets are not written, and code of one's own fails in one line."""

import os
import shutil

import pytest
import yaml

from conftest import PYTHON, read, recipe, write_rows

SECRET = "hf_" + "q7XmZ2LkP9aWd4RtYb6NcEv8"
BWRAP = shutil.which("bwrap")


@pytest.mark.quick
def test_an_answer_runs_nothing(ask, tmp_path):
    code = f"__import__('os').system('touch {tmp_path / 'ran'}')"
    graded, paid = ask(
        """
        from r1_recipes.rewards import get_reward_funcs
        from r1_recipes.verification import grade
        (reward,) = get_reward_funcs(["countdown"], "boxed")
        answer = [grade(["72", data], [data, "72"]), reward(completions=["\\\\boxed{" + data + "}"], nums=[[1, 2]], target=[3])]""",
        code,
    )
    assert graded[0] is False and paid == [pytest.approx(0.1)]
    assert not (tmp_path / "ran").exists()


@pytest.mark.quick
def test_texts_that_break_parsers_are_scored(ask):
    """No reward raises, and none pays, for what a model may write."""
    texts = [
        "",
        "\x00" * 100,
        " \n" * 5000,
        "<think>" * 2000,
        "</answer>" * 2000,
        "\ud83d",
        "{" * 5000,
        "$" * 10001,
        "\\[" * 2000,
        "\u0661\u0662",
        "1/0",
        "((1)))/0",
        "<answer>\n" + "9" * 50000 + "\n</answer>",
    ]
    names = [
        "accuracy",
        "format",
        "tag_count",
        "reasoning_steps",
        "cosine",
        "length",
        "repetition_penalty",
        "language_consistency",
        "xml_count",
        "countdown",
        "answer_match",
    ]
    scores = ask(
        """
        from r1_recipes.rewards import get_reward_funcs
        (texts, names), columns = data, {"solution": "42", "nums": [1, 2], "target": 3, "completion_ids": [1] * 9}
        columns["prompts"] = [{"role": "user", "content": "What is 6*7?"}]
        rows = {name: [value] * len(texts) for name, value in columns.items()}
        said = [[{"role": "assistant", "content": text}] for text in texts]
        answer = {name: get_reward_funcs([name])[0](completions=said, **rows) for name in names}""",
        [texts, names],
    )
    assert all(len(scores[name]) == len(texts) for name in names)
    assert not any(score and score > 0.5 for name in ("accuracy", "format", "countdown", "answer_match") for score in scores[name])


def test_secrets_are_not_written(commands, lab):
    env = {"HF_TOKEN": SECRET, "WANDB_API_KEY": SECRET + "w", "OPENAI_API_KEY": "sk-" + SECRET}
    keys = {"hub_token": SECRET, "log_completions": True, "max_steps": 1}
    typed = ["--hub_token", SECRET, "--output_dir", lab / "typed"]
    for arguments in ([recipe(lab, "secretive", **keys)], [recipe(lab, "typed", max_steps=1), *typed]):
        commands.process([PYTHON, "-m", "r1_recipes.grpo", *arguments], cwd=lab, env=env).ok()
    assert SECRET in read(lab / "secretive.yaml") and "***" in read(lab / "typed/run.json")
    assert not [path for run in ("secretive", "typed") for path in (lab / run).rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_reward_that_raises_is_named_with_its_line(commands, lab):
    line = next(number for number, text in enumerate(read(lab / "own_code.py").splitlines(), 1) if "1 / 0" in text)
    result = commands("grpo", recipe(lab, "stumbling", reward_funcs=["own_code:stumbles"]), cwd=lab)
    result.refused("own_code:stumbles", "ZeroDivisionError", f"own_code.py:{line}")


# Tools and the sandbox


def test_the_calculator_recipe_trains(commands, tmp_path):
    commands("grpo", "recipes/cpu/agent_2_grpo.yaml", "--smoke", "--output_dir", tmp_path / "run").ok()
    assert (tmp_path / "run/model.safetensors").exists()


GAME = '''
class HotOrCold:
    """A hidden letter; each guess is told how far off it is."""

    @classmethod
    def draw(cls, rng):
        return {"question": "I think of a letter from a to z. Find it.", "letter": rng.choice("abcdefghijklmnopqrstuvwxyz")}

    def reset(self, letter, **row):
        self.letter, self.found = letter, False

    def guess(self, letter: str) -> str:
        """
        Guess the letter.

        Args:
            letter: One letter from a to z.
        """
        self.found = self.found or letter == self.letter
        return "Right." if self.found else f"{abs(ord(letter) - ord(self.letter))} off."

    def get_reward(self):
        return float(self.found)
'''


def test_an_environment_of_ones_own(commands, tmp_path):
    """The example of README.md, on a tiny random model."""
    (tmp_path / "my_game.py").write_text(GAME)
    keys = {
        "model_name_or_path": "Qwen/Qwen3-1.7B",
        "environment": "my_game:HotOrCold",
        "dataset_name": "environment:my_game:HotOrCold",
        "task_config": {"train": {"size": 20, "seed": 1}, "test": {"size": 6, "seed": 2}},
        "num_generations": 8,
        "max_completion_length": 512,
        "max_tool_calling_iterations": 8,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-5,
        "output_dir": "outputs/my_game",
    }
    (tmp_path / "my_game.yaml").write_text(yaml.safe_dump(keys))
    commands("grpo", "my_game.yaml", "--smoke", cwd=tmp_path).ok()
    (tmp_path / "my_game.yaml").write_text(yaml.safe_dump(keys | {"environment": "my_game:HotOrColt"}))
    commands("grpo", "my_game.yaml", "--smoke", cwd=tmp_path).refused("HotOrColt", "HotOrCold")


CASE = {"language": "python", "test_cases": [{"fn_name": None, "input": "4\n", "output": "8\n", "type": "stdin_stdout"}]}
ESCAPES = """```python
import os, socket
for escape in (lambda: open('PRIVATE').read(), lambda: socket.create_connection(('127.0.0.1', 22)), os.fork, lambda: os.environ['HF_TOKEN']):
    try:
        escape()
    except Exception:
        continue
    print('escaped')
    break
else:
    print(8)
```"""


def code_run(commands, lab, name, env=()):
    write_rows(lab / "programs.jsonl", [{"problem_statement": f"Double n, {n}.", "verification_info": CASE} for n in range(4)])
    path = recipe(lab, name, dataset_name="programs.jsonl", mapper="verifiable_code", reward_funcs=["code"])
    return commands.python("grpo", path, cwd=lab, env=env)


def test_programs_run_in_a_sandbox_or_not_at_all(commands, lab):
    nowhere = {"PATH": os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if not os.path.exists(os.path.join(folder, "bwrap")))}
    code_run(commands, lab, "unsafe", nowhere).refused("code_provider")


@pytest.mark.skipif(not BWRAP, reason="bubblewrap is not installed")
def test_programs_in_bubblewrap_see_nothing(commands, lab, ask, tmp_path):
    code_run(commands, lab, "sandboxed").ok()
    (tmp_path / "private").write_text("8")
    completion = "<think>\nx\n</think>\n<answer>\n" + ESCAPES.replace("PRIVATE", str(tmp_path / "private")) + "\n</answer>"
    assert ask(
        """
        import os
        os.environ["HF_TOKEN"] = "hf_x"
        from r1_recipes.rewards import get_reward_funcs
        (reward,) = get_reward_funcs(["code"])
        answer = reward(completions=[data[0]], verification_info=[data[1]])""",
        [completion, CASE],
    ) == [1.0]
