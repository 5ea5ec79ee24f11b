"""Train reasoning models the DeepSeek-R1 way: one YAML file is one run, on Hugging Face TRL.

Importing this imports no torch.
"""

import os
import sys

# So `python -m r1_recipes…` is called while it looks for the module. It puts the working directory
# first, where a trl.py or json.py would be imported in place of the library.
_STARTS_A_COMMAND = sys.argv[:1] == ["-m"]
if _STARTS_A_COMMAND and sys.path[:1] in ([""], [os.getcwd()]):
    sys.path.append(sys.path.pop(0))

from importlib.metadata import PackageNotFoundError, version  # noqa: E402
from importlib.util import find_spec  # noqa: E402

try:
    __version__ = version("r1-recipes")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

if _STARTS_A_COMMAND and (
    absent := [name for name in ("yaml", "torch", "trl") if find_spec(name) is None]
):
    sys.stderr.write(
        f"error: {sys.executable} lacks {', '.join(absent)}, which r1-recipes needs. Fix: in "
        f"the clone, make install, then its "
        ".venv/bin/python; or pip install -c constraints.txt -e .\n"
    )
    raise SystemExit(2)
