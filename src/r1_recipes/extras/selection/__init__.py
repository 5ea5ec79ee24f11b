"""Rejection sampling: select completions for a data set with the rules of the key ``keep``."""
