"""Rejection sampling: which generated completions become a dataset (DeepSeek-R1, section 2.3.3)."""
