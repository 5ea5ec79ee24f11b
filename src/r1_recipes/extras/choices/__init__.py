"""Multiple-choice questions."""

PLUGIN = {
    "mapper": {
        "multiple_choice": "r1_recipes.extras.choices.mapper:MultipleChoice",
    },
}
