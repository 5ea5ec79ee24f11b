"""Texts to write backwards: rows, mapper and reward."""

PLUGIN = {
    "reward": {
        "text_similarity": "r1_recipes.extras.reverse_text.reward:TextSimilarity",
    },
    "mapper": {
        "reverse_text": "r1_recipes.extras.reverse_text.mapper:ReverseText",
    },
    "dataset": {
        "reverse_text": "r1_recipes.extras.reverse_text.rows:reverse_text_rows",
    },
}
