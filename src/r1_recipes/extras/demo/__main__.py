"""Train the demo on two CPU cores: ``r1-recipes demo``, the same as ``make demo``."""

import os
import sys

# glibc returns large blocks to the kernel at every free, and faults them in again. On CPUs that
# doubles the time of a step. A process reads these variables as it starts.
_ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}


def main() -> None:
    """Replace this process by the pipeline of the demo. Its options are the pipeline's."""
    command = [sys.executable, "-m", "r1_recipes.pipeline", "pipelines/demo", *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, **_ALLOCATOR})


if __name__ == "__main__":
    main()
