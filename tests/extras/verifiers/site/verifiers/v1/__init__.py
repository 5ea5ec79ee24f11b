"""A substitute for verifiers.v1: tasks, a taskset, and the trace that a task scores."""

import importlib
import inspect
from types import SimpleNamespace
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class TaskData(BaseModel):
    model_config = ConfigDict(frozen=True)
    idx: int | None = None
    prompt: str | list | None = None
    system_prompt: str | None = None


class TasksetConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: str = ""


def reward(weight=1.0):
    def mark(function):
        function.weight = weight
        return function

    return mark


class Task:
    def __class_getitem__(cls, data):
        return cls

    NEEDS_CONTAINER: ClassVar[bool] = False

    def __init__(self, data):
        self.data = data

    async def setup(self, trace, runtime):
        return None

    async def finalize(self, trace, runtime):
        return None

    @classmethod
    def toolsets(cls, config):
        return []

    def hooks(self, attr):
        members = inspect.getmembers(self, inspect.ismethod)
        return [member for _, member in members if hasattr(member, "weight")]

    async def score(self, trace):
        for hook in self.hooks("reward"):
            trace.rewards[hook.__name__] = None
        for hook in self.hooks("reward"):
            value = hook.weight * await hook(trace)
            trace.rewards[hook.__name__] = SimpleNamespace(value=value)


class Taskset:
    INFINITE = False

    def __class_getitem__(cls, kinds):
        return type(cls.__name__, (cls,), dict(zip(("task", "config_type"), kinds, strict=True)))

    def __init__(self, config):
        self.config = config

    def __iter__(self):
        return iter(self.load())

    @classmethod
    def task_type(cls):
        return cls.task

    @classmethod
    def toolsets(cls, config):
        return []


class SingleAgentEnv:
    pass


def _exported(name, base):
    module = importlib.import_module(name.replace("-", "_"))
    found = [getattr(module, each) for each in module.__all__]
    return next((kind for kind in found if issubclass(kind, base) and kind is not base), None)


def taskset_config_type(name):
    return _exported(name, Taskset).config_type


def load_taskset(config):
    return _exported(config.id, Taskset)(config)


def environment_class(name):
    return _exported(name, SingleAgentEnv) or SingleAgentEnv


class MessageNode(SimpleNamespace):
    def __init__(self, parent, message, sampled=False):
        super().__init__(parent=parent, message=message, sampled=sampled)


def TraceTask(**values):
    return SimpleNamespace(**values)


def AgentConfig():
    return SimpleNamespace()


def AgentInfo(config):
    return SimpleNamespace(config=config)


class Trace(SimpleNamespace):
    def __init__(self, **values):
        super().__init__(**values, rewards={})

    @property
    def last_reply(self):
        return [node.message["content"] for node in self.nodes if node.sampled][-1]
