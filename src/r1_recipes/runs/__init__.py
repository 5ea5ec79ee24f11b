"""Run folders: what a run recorded, its checkpoints, and what it resumes from."""
