"""Every file in accelerate_configs/ is one that accelerate reads, and is said to be what it is.

What it trains with is in test_two_ranks.py and test_deepspeed.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from tests.conftest import REPOSITORY

FILES = sorted((REPOSITORY / "accelerate_configs").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_it(path: Path) -> None:
    found = load_config_from_file(str(path))  # an unknown key is an error
    kinds = {"fsdp": "FSDP", "zero": "DEEPSPEED", "ddp": "MULTI_GPU"}
    kind = next((kind for name, kind in kinds.items() if path.stem.startswith(name)), "NO")
    assert found.distributed_type.value == kind
    assert found.mixed_precision == ("no" if path.stem == "cpu" else "bf16")
