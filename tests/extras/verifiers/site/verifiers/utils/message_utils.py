from types import SimpleNamespace


def normalize_messages(messages):
    return [SimpleNamespace(**message) for message in messages]
