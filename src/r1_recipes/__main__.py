"""``python -m r1_recipes``: what the commands are."""

import sys

COMMANDS = {
    "grpo": "train with rewards",
    "sft": "train on worked answers",
    "distill": "train on a teacher's distribution",
    "reward": "train a reward model on pairs of answers",
    "generate": "make a data set from a model's answers",
    "evaluate": "judge checkpoints on rows held out",
    "pipeline": "several recipes in a row, and one table",
    "preflight": "what a run would do, before it starts",
    "report": "a run as one page",
    "adapters": "merge a run's adapters into its model",
    "vllm_server": "serve a recipe's model for GRPO",
}


def main() -> None:
    """List the commands; exit with 2 if one was asked for in this way."""
    lines = "\n".join(f"  {name:<15}{meaning}" for name, meaning in COMMANDS.items())
    usage = f"usage: python -m r1_recipes.COMMAND recipes/NAME.yaml [--key value ...]\n\n{lines}\n\n"
    sys.stdout.write(f"{usage}Each says more with --help; docs/recipes.md has every key.\n")
    raise SystemExit(0 if set(sys.argv[1:]) <= {"-h", "--help"} else 2)


if __name__ == "__main__":
    main()
