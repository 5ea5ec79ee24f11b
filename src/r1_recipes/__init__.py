"""r1-recipes: reasoning models the DeepSeek-R1 way, one YAML a run, on Hugging Face TRL. Importing this imports no torch."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("r1-recipes")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

from r1_recipes import tasks as tasks
