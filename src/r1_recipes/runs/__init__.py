"""Run folders: what a run recorded, its checkpoints, and what it goes on from."""
