"""What belongs to one task. Importing this registers the generated sets."""

from r1_recipes.tasks import generated as generated
