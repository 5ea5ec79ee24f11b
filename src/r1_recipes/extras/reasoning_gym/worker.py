"""Run a task's own scorer of reasoning-gym; imported in worker processes only."""

import functools
import json
import sys

from r1_recipes.common.errors import install_hint

try:
    import reasoning_gym
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}; the column 'scorer' needs it: {install_hint('demo')}"
    ) from error

_RUNS_TEXT = frozenset(
    ("compile", "exec", "import", "open", "os.system", "pickle.find_class", "subprocess.Popen")
)
_scorer = functools.cache(reasoning_gym.get_score_answer_fn)
_scoring = False


def _refuse_code(event: str, arguments: tuple) -> None:
    if _scoring and event in _RUNS_TEXT:
        raise RuntimeError(f"a scorer wanted to {event}")


sys.addaudithook(
    _refuse_code
)  # No scorer can run a text as code, in whatever version reasoning-gym is installed.


def score(spec: str, answer: str) -> bool | str:
    """Whether the task's scorer gives full marks; a text: what is wrong with the spec."""
    global _scoring
    parsed = json.loads(spec)
    try:
        scorer = _scorer(parsed["reasoning_gym"])
    except ValueError as error:
        return f"scorer: {error}"
    _scoring = True
    try:
        return bool(scorer(answer=answer, entry=parsed["entry"]) >= 1.0 - 1e-9)
    except Exception:  # A scorer that chokes on the text has not found it right.
        return False
    finally:
        _scoring = False
