"""Rewards for programs, which run in a sandbox. The tool ``python`` needs the extra ``agents``."""
