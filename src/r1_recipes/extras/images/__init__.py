"""Questions about a picture."""

PLUGIN = {
    "mapper": {
        "image_question": "r1_recipes.extras.images.mapper:ImageQuestion",
    },
}
