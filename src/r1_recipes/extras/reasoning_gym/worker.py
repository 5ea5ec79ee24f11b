"""Run the scorer of a reasoning-gym task. Only worker processes import this module."""

import functools
import json
import sys

from r1_recipes.common.errors import install_hint

try:
    import reasoning_gym
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}, which the column 'scorer' needs. Fix: {install_hint('demo')}"
    ) from error

_RUNS_TEXT = frozenset(
    ("compile", "exec", "import", "open", "os.system", "pickle.find_class", "subprocess.Popen")
)
_scorer = functools.cache(reasoning_gym.get_score_answer_fn)
_scoring = False


def _refuse_code(event: str, arguments: tuple) -> None:
    if _scoring and event in _RUNS_TEXT:
        raise RuntimeError(f"a scorer tried to run {event}")


# No scorer can run text as code, in any version of reasoning-gym.
sys.addaudithook(_refuse_code)


def score(spec: str, answer: str) -> bool | str:
    """Return whether the scorer gives full marks, or text that says what is wrong with the spec."""
    global _scoring
    parsed = json.loads(spec)
    try:
        scorer = _scorer(parsed["reasoning_gym"])
    except ValueError as error:
        return f"scorer: {error}"
    _scoring = True
    try:
        return bool(scorer(answer=answer, entry=parsed["entry"]) >= 1.0 - 1e-9)
    except Exception:  # The answer is wrong if the scorer fails on it.
        return False
    finally:
        _scoring = False
