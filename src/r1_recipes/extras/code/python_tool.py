"""The tool ``python`` runs a program of the model in the sandbox of the reward ``code``."""

from r1_recipes.extras.agents.registry import register_tool
from r1_recipes.extras.code.sandbox import Call
from r1_recipes.extras.code.sandbox.bubblewrap import Bubblewrap

_OUTPUT_BYTES, _CPU_SECONDS, _MEMORY_MB = 1 << 16, 5, 512


@register_tool("python")
def python(code: str) -> str:
    """
    Run a Python program and read what it prints.

    Args:
        code: The whole program. It has no files, no network and no input, five seconds and 512 MB.

    Returns:
        What it printed.
    """
    outcome = Bubblewrap().run(
        code, Call(b"", _OUTPUT_BYTES, cpu_seconds=_CPU_SECONDS, memory_mb=_MEMORY_MB)
    )
    printed = outcome.output.decode("utf-8", "replace")
    if outcome.status != "ok":
        raise RuntimeError(" ".join(filter(None, (outcome.status, outcome.detail, printed))))
    return printed or "(printed nothing)"


python.check_start = Bubblewrap().check  # type: ignore[attr-defined]
