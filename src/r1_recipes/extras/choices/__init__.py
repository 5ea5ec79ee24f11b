"""Answers in words or option letters: rewards, and the mapper of multiple-choice questions."""

PLUGIN = {
    "mapper": {
        "multiple_choice": "r1_recipes.extras.choices.mapper:MultipleChoice",
    },
    "reward": {
        "exact_match": "r1_recipes.extras.choices.rewards:ExactMatchReward",
        "choice_match": "r1_recipes.extras.choices.rewards:ChoiceMatchReward",
        "answer_match": "r1_recipes.extras.choices.rewards:AnswerMatchReward",
    },
}
