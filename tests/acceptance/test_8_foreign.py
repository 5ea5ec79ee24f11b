"""Files of open-r1 run unchanged, with the values that that project trained with (docs/migration.md)."""

import pytest

from conftest import HERE, TINY, metrics, read, recipe, resolved, write_rows

# Each key is in docs/migration.md: renamed, or set as in the TRL that it pinned.
FILES = {
    "open_r1_grpo": {
        "beta": 0.04,
        "loss_type": "bnpo",
        "temperature": 1.0,
        "max_prompt_tokens": 512,
        "use_bias_correction_kl": False,
        "prompt_column": "problem",
        "warmup_steps": 0.2,
        "response_format": "think_answer",
        "reward_weights": [1.0, 0.5, 0.5],
        "max_completion_length": 12,
        "learning_rate": 3e-5,
        "seed": 7,
    },
    "open_r1_sft": {
        "max_length": 512,
        "warmup_steps": 0.05,
        "mapper": "conversations",
        "mapper_config": {"whole": True},
        "completion_only_loss": False,
        "lr_scheduler_type": "cosine_with_min_lr",
        "learning_rate": 5e-5,
    },
}


@pytest.fixture(scope="module")
def ran(commands, lab):
    solved = [{"problem": f"What is {n} + 1?", "solution": f"It is $\\boxed{{{n + 1}}}$.", "answer": str(n + 1)} for n in range(8)]
    write_rows(lab / "problems.jsonl", solved)
    chats = [[{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"It is {n}."}] for n in range(8)]
    write_rows(lab / "chats.jsonl", [{"messages": messages} for messages in chats])
    calls = []
    for name in FILES:
        (lab / f"{name}.yaml").write_text(read(HERE / f"foreign/{name}.yaml").replace("TINY", str(TINY)).replace("OUT", str(lab / name)))
        calls.append(("sft" if name.endswith("sft") else "grpo", lab / f"{name}.yaml", {"cwd": lab}))
    return dict(zip(FILES, commands.each(calls), strict=True))


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_project(ran, lab, name):
    ran[name].ok()
    ours = resolved(lab / name)
    for key, value in FILES[name].items():
        assert (value.items() <= ours[key].items()) if isinstance(value, dict) else ours.get(key) == value, key
    assert len(metrics(lab / name)) == 1


def test_what_is_set_for_it_is_said(ran):
    ran["open_r1_grpo"].ok().says("beta", "loss_type", "bnpo", "warmup_ratio")


REFUSED = {
    "the datasets of TRL": ("sft", {"datasets": [{"path": "rows.jsonl"}], "dataset_name": None}, ["datasets", "dataset_mixture"]),
    "the filter of open-r1": ("grpo", {"pass_rate_min": 0.1, "torch_dtype": "float32"}, ["pass_rate_min", "pass_rate"]),
    "keys of veRL": ("grpo", {"data": {"train_files": "x"}, "actor_rollout_ref": {"model": {}}}, ["data"]),
}


@pytest.mark.parametrize("method, changes, said", REFUSED.values(), ids=REFUSED)
def test_what_has_no_counterpart_is_refused(commands, lab, method, changes, said):
    commands(method, recipe(lab, "foreign", method, **changes), cwd=lab).refused(*said)
