"""``python -m r1_recipes``: what the commands are."""

import sys

COMMANDS = {
    "grpo": "train with rewards",
    "sft": "train on worked answers",
    "distill": "train on a teacher's distribution",
    "generate": "make a data set from a model's answers",
    "evaluate": "judge checkpoints on rows held out",
    "pipeline": "several recipes in a row, and one table",
    "preflight": "what a run would do, before it starts",
    "report": "a run as one page",
    "adapters": "merge a run's adapters into its model",
    "vllm_server": "serve a recipe's model for GRPO",
}


def main() -> None:
    """List the commands; whatever else was asked for has another name.

    Raises:
        SystemExit: 0, or 2 after an argument that is not ``--help``.
    """
    asked = [word for word in sys.argv[1:] if word not in ("-h", "--help")]
    if asked:
        name = asked[0] if asked[0] in COMMANDS else "COMMAND"
        sys.stderr.write(f"error: write python -m r1_recipes.{name} {' '.join(asked[name in COMMANDS :])}\n")
    lines = [f"  {name:<15}{meaning}" for name, meaning in COMMANDS.items()]
    usage = "\n".join(["usage: python -m r1_recipes.COMMAND recipes/NAME.yaml [--key value ...]", "", *lines])
    sys.stdout.write(f"{usage}\n\nEach says more with --help; docs/recipes.md has every key.\n")
    raise SystemExit(2 if asked else 0)


if __name__ == "__main__":
    main()
