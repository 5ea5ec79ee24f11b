"""Completions: who generates them, and where they are stored."""
