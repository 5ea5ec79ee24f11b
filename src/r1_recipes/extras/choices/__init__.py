"""Answers in words or option letters: rewards, and the mapper of multiple-choice questions."""
