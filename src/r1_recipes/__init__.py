"""Train reasoning models the DeepSeek-R1 way: one YAML file is one run, on Hugging Face TRL.

Importing this imports no torch.
"""

import os
import sys

# While `python -m r1_recipes…` looks for the module, sys.argv is ["-m"]. Python then has the
# working directory first on the path, so a trl.py or json.py there would hide the library.
_STARTS_A_COMMAND = sys.argv[:1] == ["-m"]
if _STARTS_A_COMMAND and sys.path[:1] in ([""], [os.getcwd()]):
    sys.path.append(sys.path.pop(0))

from importlib.metadata import PackageNotFoundError, version  # noqa: E402
from importlib.util import find_spec  # noqa: E402

try:
    __version__ = version("r1-recipes")
except PackageNotFoundError:  # the package is not installed, only its source is here
    __version__ = "0+unknown"

if _STARTS_A_COMMAND and (
    absent := [name for name in ("yaml", "torch", "trl") if find_spec(name) is None]
):
    sys.stderr.write(
        f"error: {sys.executable} lacks {', '.join(absent)}, which r1-recipes needs. Fix: run "
        "make install in the clone and use its .venv/bin/python, or run "
        "pip install -c constraints.txt -e .\n"
    )
    raise SystemExit(2)
