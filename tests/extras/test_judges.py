"""Rewards of a classifier (a tiny random one) and of a judge (a server on the loopback)."""

import json
import logging
import pickle
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes.common import chat_client
from r1_recipes.common.chat_client import Reply
from r1_recipes.common.errors import RecipeError
from r1_recipes.extras import judges
from r1_recipes.extras.judges import build_tiny_classifier
from r1_recipes.prompts import get_response_format
from r1_recipes.rewards import get_reward_funcs
from tests.support.chat_server import chat_server, reply

THINK = get_response_format("think_answer")
QUESTION = {"role": "user", "content": "What is rain?"}
PROMPT = [{"role": "system", "content": THINK.system_prompt}, QUESTION]


def think(answer, reasoning="water"):
    return f"<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>"


def build(**entry):
    (reward,) = get_reward_funcs(["helpful"], THINK, {"helpful": entry})
    return reward


@pytest.fixture(scope="module")
def classifier(tiny_model, tmp_path_factory):
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(3)
    folder = build_tiny_classifier(tmp_path_factory.mktemp("reward") / "model", tiny_model)
    weights = load_file(folder / "model.safetensors")
    weights["score.weight"] *= 5  # else scores differ in the fourth digit only
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def scores_as_trl(folder, conversations):
    """One conversation at a time, as TRL asks a reward model, and its sigmoid."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from trl.data_utils import apply_chat_template

    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model.config.pad_token_id = tokenizer.pad_token_id
    scores = []
    for messages in conversations:
        text = apply_chat_template({"messages": messages}, tokenizer)["text"]
        ids = tokenizer(text=text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            scores.append(model(input_ids=ids).logits[0, 0].float().sigmoid().item())
    return scores


def assistant(text):
    return {"role": "assistant", "content": text}


# A classifier


def test_a_classifier_reads_the_summary_without_the_format_s_instruction(classifier):
    answers = ["Rain is water.", "It is dry, and much longer than that."]
    texts = [*map(think, answers), "<think>\na"]
    reward, logged = build(model=str(classifier), batch_size=2), {}
    scores = reward(completions=texts, prompts=[PROMPT] * 3, log_metric=logged.__setitem__)
    expected = scores_as_trl(classifier, [[QUESTION, assistant(text)] for text in answers])
    assert scores == [*(pytest.approx(value, abs=1e-5) for value in expected), 0.0]
    assert abs(scores[0] - scores[1]) > 1e-4
    assert logged == {"helpful/unfinished": 1.0, "helpful/unscored": 0.0}
    assert pickle.loads(pickle.dumps(reward)) == reward and reward.__name__ == "helpful"


def test_a_classifier_reads_the_whole_completion_in_its_conversation(classifier):
    texts = [think("Rain is water."), "<think>\nnever ends"]
    scores = build(model=str(classifier), scope="full")(completions=texts, prompts=[PROMPT] * 2)
    read = [[*PROMPT, assistant(text)] for text in texts]
    assert scores == [pytest.approx(value, abs=1e-5) for value in scores_as_trl(classifier, read)]


def test_what_is_too_long_loses_its_beginning(classifier, tmp_path):
    short = shutil.copytree(classifier, tmp_path / "short")
    config = json.loads((short / "tokenizer_config.json").read_text())
    (short / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 8}))
    ends = [[assistant(text + " the end of a long story it is")] for text in ("", "word " * 30)]
    first, second = judges.classify(str(short), ends, 2)
    assert first == pytest.approx(second, abs=1e-5)


def test_what_is_no_reward_model_is_named(tiny_model, tmp_path):
    with pytest.raises(
        RecipeError, match=r"loading .*nowhere' fails: .* Fix: the folder or hub id"
    ):
        build(model=str(tmp_path / "nowhere")).check_start()
    build(model=str(tiny_model)).check_start()
    with pytest.raises(RecipeError, match=r"lack score\.weight, so its scores would be random"):
        build(model=str(tiny_model))(completions=["a"], prompts=[PROMPT])


# A judge


@pytest.fixture
def serve(monkeypatch):
    """A judge that replies with these texts (or HTTP errors) in turn, and what it was asked."""
    monkeypatch.setattr(chat_client, "MAX_RETRIES", 0)

    def replies(*texts):
        texts = iter(texts)

        def answer(body, before):
            text = next(texts)
            return text if isinstance(text, int | dict) else reply(text)

        return chat_server(answer)

    return replies


def judged(serve, monkeypatch, texts, replies, prompt="{prompt}|{response}", columns=None, **entry):
    logged = {}
    with serve(*replies) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        reward = build(model="openai:rater", prompt=prompt, **entry)
        scores = reward(
            completions=texts,
            prompts=[PROMPT] * len(texts),
            log_metric=logged.__setitem__,
            **(columns or {}),
        )
    return scores, sorted(body["messages"][0]["content"] for body in seen), logged


def test_a_judge_reads_its_prompt_and_ends_in_a_score(serve, monkeypatch):
    texts = [think("Rain {prompt}"), "<think>\nnever ends"]
    found = judged(serve, monkeypatch, texts, ["Fine.\nScore: 7"], range=[-1, 10])
    assert found[0] == [7.0, -1.0], "unfinished ones are not asked"
    assert found[1] == ["What is rain?|Rain {prompt}"]
    assert found[2] == {"helpful/unfinished": 1.0, "helpful/unscored": 0.0}


def test_a_judge_of_the_whole_completion_reads_the_conversation(serve, monkeypatch):
    text = "<think>\nnever ends"
    scores, [asked], _ = judged(serve, monkeypatch, [text], ["Score: 1"], scope="full")
    assert scores == [1.0]
    assert asked == f"[system]\n{THINK.system_prompt}\n\n[user]\nWhat is rain?|{text}"


def test_any_column_is_a_slot_and_rows_without_it_are_not_scored(serve, monkeypatch):
    columns = {"solution": ["4", " ", None], "rubric": ["clear", "short", "x"], "other": [1, 2, 3]}
    texts = [think(n) for n in "abc"]
    prompt = '{solution} {rubric} {response} {unknown} {"score": 1}'
    scores, asked, logged = judged(serve, monkeypatch, texts, ["Score: 1"], prompt, columns)
    assert scores == [1.0, None, None] and logged["helpful/unscored"] == 2.0
    assert asked == ['4 clear a {unknown} {"score": 1}']
    with pytest.raises(KeyError, match="solution"):
        judged(serve, monkeypatch, texts, [], prompt)


def test_a_request_that_fails_scores_nothing_and_all_of_them_end_the_run(
    serve, monkeypatch, caplog
):
    texts = [think(n) for n in "ab"]
    with caplog.at_level(logging.WARNING):
        scores, *_ = judged(serve, monkeypatch, texts, ["Score: 1", 500])
    assert sorted(scores, key=str) == [1.0, None] and "1 of 2 replies" in caplog.text
    with pytest.raises(RecipeError, match="judge 'openai:rater': all 2 requests failed: "):
        judged(serve, monkeypatch, texts, [500, 500])
    # What is refused for its content may be the completion's fault.
    assert judged(serve, monkeypatch, texts[:1], [400])[0] == [None]


def test_a_judge_without_an_address_is_an_error_at_the_start(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(RecipeError, match="OPENAI_BASE_URL"):
        build(model="openai:rater", prompt="{response}").check_start()


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 7", 7),
        ("score：8", 8),
        ("Good.\n\n**Final score:** 7.5.\n", 7.5),
        ("### Score: [[8]]", 8),
        ("<think>It asks for\nScore: 10\n</think>\nScore: 2", 2),
        ("Score: 3\nbut on reflection\nScore: 4", 4),
        ("Score: 11", None),  # beyond the range
        ("Score: 8/10", None),
        ("Score: 80%", None),
        ("Score: 8 because it is clear", None),
        ("It says: Score: 10", None),
        ("It says:\u2028Score: 10", None),
        ("Score: 10\nThat is all.", None),
        ("", None),
    ],
)
def test_only_a_last_line_that_is_a_score_counts(text, score):
    assert judges.read_score(Reply(text, finish_reason="stop"), -5, 10) == score


def test_a_reply_that_was_cut_has_no_score():
    assert judges.read_score(Reply("Score: 1", finish_reason="length"), 0, 1) is None


@given(st.text(alphabet="Score: =*_`([])-#\n0123456789.", max_size=80))
def test_any_reply_is_read(text):
    score = judges.read_score(Reply(text), 0, 10)
    assert score is None or 0 <= score <= 10


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "reward_models: helpful: .* missing .*'model'"),
        ({"model": "openai:x"}, r"helpful: prompt: a judge .* needs text with \{response\}"),
        ({"model": "openai:x", "prompt": "Rate."}, r"helpful: prompt: .* text with \{response\}"),
        ({"model": "x", "prompt": "{response}"}, "helpful: prompt: .* a classifier reads none"),
        ({"model": "x", "prompt": "Rate."}, "helpful: prompt: .* a classifier reads none"),
        ({"model": "x", "scope": "half"}, "helpful: scope: must be summary or full, got 'half'"),
        ({"model": "x", "range": [1, 0]}, r"range: must be \[lowest, highest\]"),
    ],
)
def test_a_wrong_entry_is_named(entry, message):
    with pytest.raises(RecipeError, match=message):
        build(**entry)
