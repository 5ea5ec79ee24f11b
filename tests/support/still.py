"""Run by each process of test_two_ranks.py: ``accelerate launch … -m tests.support.still
METHOD=RECIPE …``, one after the other.

In one process, because starting it takes most of the time. Nothing is asked of other processes
before the first trainer connects them.
"""

import importlib
import sys


def main() -> None:
    for word in sys.argv[1:]:
        method, _, recipe = word.partition("=")
        importlib.import_module(f"r1_recipes.{method}").main([recipe])


if __name__ == "__main__":
    main()
