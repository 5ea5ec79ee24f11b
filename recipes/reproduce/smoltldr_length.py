"""The reward of smoltldr_length_05b.yaml: a reward of one's own, with a key of its own."""


def target_length(completions, completion_ids, *, target_length: int = 64, **columns):
    """Return how far a completion is from ``target_length`` tokens, as a negative share of it.

    Range: -1..0; 0.0 for exactly so many tokens, -1.0 for an empty completion and from twice as
    many on. Source: ``calculate_length_reward`` of smolcluster (commit a63a7e2), which goes on
    falling.
    """
    return [-min(1.0, abs(len(ids) - target_length) / target_length) for ids in completion_ids]
