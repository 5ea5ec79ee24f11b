"""Tools that a model may call, and environments that it plays in, in the format of TRL.

Importing this package does not import torch.
"""
