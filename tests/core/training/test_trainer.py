"""The trainer's additions: no padding, rewards that fail, evaluations apart; and what it says."""

import asyncio
import inspect
import json
import logging
import math
import re
from types import SimpleNamespace

import pandas
import pytest

pytest.importorskip("trl")

import torch
from transformers import TrainerState
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from r1_recipes import grpo
from r1_recipes.training.callbacks import Figures, LearnsNothing, Resume
from r1_recipes.training.trainer import RecipeTrainer, by_length, safe
from tests.conftest import letters, metrics
from tests.support.commands import launch
from tests.support.padded import gap, trained
from tests.support.same_run import assert_same_run

# Private names of TRL: an upgrade fails here first.

OVERRIDDEN = {
    "_generate": ["self", "prompts"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_get_per_token_logps_and_entropies": None,  # whatever TRL gives it is passed on
    "_prepare_inputs": ["self", "generation_batch"],
    "create_accelerator_and_postprocess": ["self"],
}


def overrides(trainer):
    """The methods of TRL's trainer that a subclass of ours defines anew."""
    own = {name for name, value in vars(trainer).items() if callable(value)}
    return {name for name in own if hasattr(GRPOTrainer, name)} - {"__init__", "evaluate"}


def test_every_private_override_has_the_parameters_of_trl():
    assert overrides(RecipeTrainer) == set(OVERRIDDEN)
    for name, pinned in OVERRIDDEN.items():
        for trainer in (GRPOTrainer, RecipeTrainer):
            found = list(inspect.signature(getattr(trainer, name)).parameters)
            assert pinned is None or found == pinned, (trainer, name)


def test_the_attributes_that_are_read_are_set_by_trl():
    source = inspect.getsource(GRPOTrainer)
    for line in (
        '"prompt": deque(maxlen=args.generation_batch_size)',
        'self._metrics = {"train"',
        "self.reward_funcs = reward_funcs",
        "self.reward_func_names = []",
        "self._buffered_inputs = [unsplit_pixel_values_by_grid(batch) for batch in generation_batches]",
        "inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]",
        'f"completions_{self.state.global_step:05d}.parquet"',
        "advantages = advantages / (std_rewards + 1e-4)",
    ):
        assert line in source, line


# Padding

LOSSES = ("grpo", "dapo", "dr_grpo", "cispo", "luspo", "sapo", "vespo", "bnpo")


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_gradient_is_that_of_trl(tiny_model, tmp_path, loss_type):
    keys = {"loss_type": loss_type, "beta": 0.04}
    theirs, whole = trained(tiny_model, tmp_path / "theirs", False, **keys)
    ours, cut = trained(tiny_model, tmp_path / "ours", True, **keys)
    assert gap(theirs, ours) < 1e-6
    assert len(cut) == len(whole) == 8
    if loss_type == "bnpo":  # rows keep their places
        assert sum(cut) < sum(whole)
    else:
        assert cut == sorted(cut, reverse=True) and sum(cut) < 0.75 * sum(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys", [{"num_iterations": 2}, {"steps_per_generation": 4}, {"top_entropy_quantile": 0.5}]
)
def test_the_gradient_is_that_of_trl_with_other_keys(tiny_model, tmp_path, keys):
    theirs, ours = (trained(tiny_model, tmp_path / str(on), on, **keys)[0] for on in (False, True))
    assert gap(theirs, ours) < 1e-6


@pytest.mark.e2e
def test_two_processes_have_the_gradient_of_trl(tiny_model, tmp_path):
    """Each sorts its own rows; the gradients that they average are the same."""
    words = ["--mixed_precision", "no", "-m", "tests.support.padded"]
    launch("ddp", *words, str(tiny_model), str(tmp_path))
    for rank in (0, 1):
        theirs, ours = (torch.load(tmp_path / f"{trims}_{rank}.pt") for trims in (False, True))
        assert gap(theirs["weights"], ours["weights"]) < 1e-6
        assert sum(ours["sizes"]) < 0.9 * sum(theirs["sizes"])


def test_rows_are_sorted_with_all_that_belongs_to_them():
    masks = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0]])
    batch = {"prompt_mask": torch.ones(4, 2), "completion_mask": masks, "ids": masks * 7}
    batch |= {"rewards": torch.tensor([1, 3, 2, 0]), "total": torch.tensor(6)}
    halves = [{k: v[i : i + 2] if v.ndim else v for k, v in batch.items()} for i in (0, 2)]
    first, second = by_length(halves)
    assert [*first["rewards"], *second["rewards"]] == [3, 2, 1, 0]
    assert first["ids"].tolist() == [[7, 7, 7], [7, 7, 0]] and second["total"] == 6


# Rewards

OWN = "tests.core.training.test_trainer"
_fails_at: list[int] = []
_loops: set[asyncio.AbstractEventLoop] = set()


def own(completions, trainer_state, **columns):
    """Raise KeyError in the steps of ``_fails_at``."""
    if trainer_state.train_batch_size is not None and trainer_state.global_step in _fails_at:
        raise KeyError("gold")
    return letters(completions)


async def own_later(completions, trainer_state, **columns):
    _loops.add(asyncio.get_running_loop())  # to which a client belongs
    await asyncio.sleep(0)
    return own(completions, trainer_state, **columns)


def failed(path, capsys):
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        grpo.main([path])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in said, said
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own", "own_later"])
def test_a_reward_that_fails_is_named_and_its_last_step_is_saved(
    write_recipe, tmp_path, capsys, name
):
    path, run = write_recipe("grpo", reward_funcs=[f"{OWN}:{name}"], save_steps=2), tmp_path / "run"
    _fails_at[:] = [3]
    line = failed(path, capsys)
    place = rf"\({re.escape(__file__)}:\d+\)"
    assert re.search(rf"reward '{name}' fails: KeyError: 'gold' {place}.*after step 3\.", line), (
        line
    )
    assert (run / "checkpoint-3" / "trainer_state.json").is_file()
    _fails_at.clear()
    grpo.main([path])
    assert len(_loops) <= 1
    assert [entry["step"] for entry in metrics(run)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("result", [[1.0], [1.0, math.inf], ["a", "b"], 3, None])
def test_what_is_not_a_number_per_completion_is_an_error(result):
    errors = []
    paid = safe(lambda completions, **columns: result, errors)(completions=["a", "b"])
    assert paid == [0.0, 0.0] and len(errors) == 1 and f"{__file__}:" in errors[0]


def equal(completions, **columns):
    """In fp32 the mean of some rewards of 0.2 is not 0.2."""
    return [0.2] * len(completions)


@pytest.mark.slow
def test_equal_rewards_have_no_spread_and_train_nothing(write_recipe, tmp_path):
    """Adam makes a whole step of a gradient of any size."""
    keys = {"num_generations": 8, "per_device_train_batch_size": 8, "max_steps": 2}
    grpo.main([write_recipe("grpo", reward_funcs=[f"{OWN}:equal"], **keys)])
    for entry in metrics(tmp_path / "run"):
        assert entry["frac_reward_zero_std"] == 1.0 and entry["reward_std"] == 0.0
        assert entry["grad_norm"] == 0.0


# Evaluation


@pytest.mark.slow
def test_an_evaluation_is_written_whole_and_apart(write_recipe, tmp_path):
    keys = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2, "max_steps": 2}
    keys |= {"dataset_train_split": "train[3:]", "dataset_test_split": "train[:5]"}
    grpo.main([write_recipe("grpo", **keys, per_device_eval_batch_size=2, log_completions=True)])
    tables = {}
    for folder in ("completions", "eval_completions"):
        files = sorted((tmp_path / "run" / folder).iterdir())
        assert [f.name for f in files] == [f"completions_0000{step}.parquet" for step in (1, 2)]
        tables[folder] = pandas.concat(map(pandas.read_parquet, files))
    assert len(tables["eval_completions"]) == 2 * 5 * 2 and len(tables["completions"]) == 2 * 4
    asked = [set(table["prompt"].astype(str)) for table in tables.values()]
    assert asked[0].isdisjoint(asked[1])  # two rows are in both splits: they are not trained on


def seldom(completions, log_extra, **columns):
    """Log a column for the last row of the test split alone."""
    if any("row 4" in str(prompt) for prompt in columns["prompts"]):
        log_extra("seen", [1] * len(completions))
    return letters(completions)


@pytest.mark.slow
def test_a_column_that_a_reward_logs_in_some_batches_stands_in_their_rows(write_recipe, tmp_path):
    rows = [{"question": f"row {i}", "solution": "1"} for i in range(10)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {"dataset_name": str(data), "mapper": "prompt_solution", "prompt_column": "question"}
    keys |= {"dataset_train_split": "train[5:]", "dataset_test_split": "train[3:5]", "max_steps": 1}
    keys |= {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2}
    keys |= {"per_device_eval_batch_size": 2, "log_completions": True}
    grpo.main([write_recipe("grpo", reward_funcs=[f"{OWN}:seldom"], **keys)])
    (file,) = (tmp_path / "run" / "eval_completions").iterdir()
    table = pandas.read_parquet(file)
    assert len(table) == 4
    assert list(table["seen"] == 1) == ["row 4" in str(prompt) for prompt in table["prompt"]]


# What the run says


def said(weights, *entries, every=1):
    """What is said of log entries, each every so many steps."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("r1_recipes.training.callbacks")
    logger.addHandler(handler)
    callback, state = LearnsNothing(weights), TrainerState(logging_steps=every)
    args = SimpleNamespace(num_generations=8, max_completion_length=512)
    for number, entry in enumerate(entries, start=1):
        state.global_step = number * every
        callback.on_log(args, state, None, logs={"loss": 0.0, **entry})
        callback.on_log(args, state, None, logs={"eval_loss": 0.0})
    logger.removeHandler(handler)
    return lines


FLAT, FINE = {"frac_reward_zero_std": 1.0}, {"frac_reward_zero_std": 0.5}
CUT = {"completions/clipped_ratio": 1.0, "frac_reward_zero_std": 1.0}


def test_a_run_that_learns_nothing_says_so_once_for_each_cause():
    both = {"accuracy": 1.0, "format": 1.0}
    assert said(both, *[FLAT] * 9, FINE, *[FLAT] * 9) == []
    (line,) = said(both, *[FLAT] * 30)
    assert line.startswith("steps up to 10: all completions of a prompt got the same reward")
    assert "num_generations (8)" in line
    assert len(said(both, *[{"reward_std": 0.0}] * 10)) == 1
    assert len(said(both, *[{"reward_std": None, **FINE}] * 10)) == 1  # no reward at all
    assert len(said(both, FLAT, FLAT, every=5)) == 1 and said(both, FLAT, every=5) == []
    assert "max_completion_length (512)" in said(both, *[CUT] * 12)[0]


def test_a_run_that_learns_the_wrong_reward_says_so():
    def spread(accuracy, form):
        return [{"rewards/accuracy/std": accuracy, "rewards/form/std": form}] * 10

    weights = {"accuracy": 1.0, "form": 2.0, "repetition": -1.0}
    (line,) = said(weights, *spread(0.3, 0.2))
    assert "the run learns form (weight 2)" in line and "reward_weights" in line
    assert said(weights, *spread(0.5, 0.2)) == []  # an answer's reward may lead
    assert said({"form": 1.0, "other": 1.0}, *spread(0.0, 0.2)) == []  # nothing judges answers


LOGGED = {"reward": 0.5, "rewards/accuracy/mean": 0.25, "rewards/accuracy/std": 0.4}
LOGGED |= {"rewards/language_consistency/mean": float("nan"), "completions/mean_length": 37.25}
LOGGED |= {"loss": 0.1, "completions/clipped_ratio": 1.0, "entropy": "0.0004", "kl": -0.125}
LOGGED |= {"num_tokens": 3e6, "grad_norm": 1234.5, "step_time": 12.5}


def test_a_line_shows_what_a_person_watches(capsys):
    line, state = Figures(), TrainerState(max_steps=10, is_world_process_zero=True)
    line.on_train_begin(None, state, None)
    state.global_step = 1
    line.on_log(None, state, None, logs=LOGGED)
    line.on_log(None, state, None, logs={"eval_loss": 0.0, "eval_reward": 0.75, "eval_kl": None})
    line.on_log(None, state, None, logs={"train_loss": 0.1})
    line.on_train_end(None, state, None)
    said = capsys.readouterr().err.splitlines()
    trained, evaluated = [text for text in said if text.strip() and "%" not in text]
    assert trained.split("  ") == [
        *("step 1/10", "reward 0.5", "accuracy 0.25", "language_consistency nan", "loss 0.1"),
        *("length 37.2", "cut 1", "KL -0.125", "grad 1.23e+03", "s/step 12.5", "ETA 0:00:00"),
    ]
    assert evaluated == "eval  reward 0.75  loss 0  ETA 0:00:00"


@pytest.mark.slow
def test_one_seed_is_one_run(write_recipe, tmp_path):
    path = write_recipe("grpo", max_steps=3, save_strategy="no")
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        grpo.main([path, "--output_dir", str(tmp_path / name), "--seed", str(seed)])
    assert_same_run(tmp_path / "again", tmp_path / "first")
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "other", tmp_path / "first")


def test_a_resumed_run_counts_its_micro_batches_over_all_epochs():
    """By this number dynamic sampling draws further prompts."""
    sampler = RepeatSampler(range(8), mini_repeat_count=2, batch_size=2, shuffle=True, seed=0)

    class Loader(list):
        batch_sampler = SimpleNamespace(sampler=sampler)

    trainer = SimpleNamespace(_step=0)
    state = TrainerState(global_step=6, max_steps=20, epoch=1.5)
    state.compute_steps = lambda args, steps: None
    args = SimpleNamespace(gradient_accumulation_steps=2, learning_rate=1.0)
    Resume(trainer).on_train_begin(args, state, None, train_dataloader=Loader(range(8)))
    assert trainer._step == 12  # eight in the first epoch, four in the second
