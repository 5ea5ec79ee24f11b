"""What every reward must survive: completions made to break it, and a clock."""

import time
from contextlib import contextmanager

N = 200_000
HOSTILE = [
    "",
    " " * N,
    "\n" * N,
    "a" * N,
    "7" * N,
    "中" * N,
    "\\" * N,
    "$" * N,
    "`" * N,
    "-" * N,
    "a " * (N // 2),
    "Step " * (N // 5),
    "1. " * (N // 3),
    "<think>" * 20_000,
    "</think>" * 20_000,
    "<answer>" * 20_000,
    "</think><answer>" * 10_000,
    "<think>\na\n</think>\n<answer>\n" * 10_000,
    "|special_token|" * 20_000,
    "\\boxed{" * 20_000,
    "\\[" * 20_000 + "\\(" * 20_000 + "\\begin{" * 20_000,
    "\\text{" * 20_000 + "$a " * 20_000,
    "```\n" * 20_001,
    "http://" * 20_000,
    "\ud800 \udfff \ud83d",  # lone surrogates
    "<think>\n\ud800 so the total \udc80 is found here\n</think>\n<answer>\n\ud800\n</answer>",
    "\0" * 1000 + "<think>\0the total cost is then found\0</think>",
    "9**9**9**9",
    [],
    [{"role": "assistant", "content": None}],
    [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}],
]


@contextmanager
def seconds(limit):
    """Fail if the block takes longer than this."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < limit
