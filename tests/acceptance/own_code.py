"""A reward and a mapper as a user would write them, for the tests that train with them."""

import os
import time


def Quiz(row):
    return {"question": row["frage"], "solution": row["antwort"]}


def letters(completions, **columns):
    """Range 0..1: the share of letters, which differs between random completions. PAUSE leaves time to interrupt a step."""
    time.sleep(float(os.environ.get("PAUSE", 0)))
    texts = [messages[-1]["content"] for messages in completions]
    return [sum(map(str.isalpha, text)) / max(1, len(text)) for text in texts]


def stumbles(completions, **columns):
    return [1 / 0 for _ in completions]


def too_few(completions, **columns):
    return [1.0]
