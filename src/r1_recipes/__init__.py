"""Train reasoning models the DeepSeek-R1 way: one YAML file is one run, on Hugging Face TRL.

Importing this imports no torch.
"""

from importlib.metadata import version

__version__ = version("r1-recipes")
