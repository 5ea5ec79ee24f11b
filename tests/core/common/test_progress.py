"""What a person sees of something that takes its time."""

from __future__ import annotations

import io
import logging
import re
import sys
import time

import pytest

from r1_recipes.common import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def test_the_remaining_time_is_that_of_whole_batches(monkeypatch, clock):
    """Batches of 128 completions take 52 s: 2 of 400 finished together with 126 others."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.progress(384, "model", 128) as count:
        clock[0] += 52
        for _ in range(64):
            count(2)
    shown = sys.stderr.getvalue().split("\r")
    assert {
        re.search(r"<(.*)\]", text)[1]
        for text in shown
        if re.search(r" [1-9]\d*/384", text) and " 128/384" not in text
    } == {"…"}
    assert "128/384 [00:52<01:44]" in shown[-1]


def test_a_file_gets_a_line_a_minute(capsys, caplog, clock):
    caplog.set_level("INFO", "r1_recipes")
    with console.progress(384, "model", 128) as count:
        for _ in range(3):
            clock[0] += 52
            for _ in range(64):
                count(2)
    assert [re.sub(r" *\|.*\|", "", line) for line in caplog.messages] == [
        "model:  67% 256/384 [01:44<00:52]"
    ]
    assert "\r" not in capsys.readouterr().err


def test_a_log_line_is_printed_above_the_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.bar(4, "steps"):
        console.Terminal().handle(
            console.logging.makeLogRecord({"msg": "saved", "levelname": "INFO"})
        )
    assert re.search(r"\rINFO: saved\n\r?steps: ", re.sub(r"\r +\r", "\r", sys.stderr.getvalue()))


def test_no_text_of_a_model_acts_in_the_terminal_or_in_the_log(capsys, tmp_path):
    hostile, kept = (
        "\x1b]0;me\x07\r\x9b2J\u202e\ud800",
        "人\u3000面 1\u202f250\u00a0€ می\u200cخواهم \U0001f469\u200d\U0001f680\n\tnext",
    )
    record = console.logging.makeLogRecord({"msg": hostile + kept, "levelname": "INFO"})
    console.say(hostile + kept)
    console.Terminal().handle(record)
    log = console.LogFile(tmp_path / "run.log")
    log.handle(record)
    log.close()
    for text in (*capsys.readouterr(), (tmp_path / "run.log").read_text("utf-8")):
        assert text.endswith("\ufffd]0;me\ufffd\ufffd\ufffd2J\ufffd\ufffd" + kept + "\n")


def test_a_line_of_the_hub_s_client_comes_once(capsys):
    import huggingface_hub  # noqa: F401  # gives its logger a handler

    console.set_up_logging(None)
    logging.getLogger("huggingface_hub.utils").warning("Retrying in 8s")
    assert capsys.readouterr().err.count("Retrying") == 1
