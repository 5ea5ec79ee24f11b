"""Summaries that are short and keep the facts: mapper and rewards."""

PLUGIN = {
    "reward": {
        "summary_facts": "r1_recipes.extras.summary.rewards:SummaryFactsReward",
        "summary_compression": "r1_recipes.extras.summary.rewards:SummaryCompressionReward",
    },
    "mapper": {
        "summary": "r1_recipes.extras.summary.mapper:Summary",
    },
}
