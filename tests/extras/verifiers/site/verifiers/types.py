from types import SimpleNamespace


def ClientConfig(**values):
    return SimpleNamespace(**values)
