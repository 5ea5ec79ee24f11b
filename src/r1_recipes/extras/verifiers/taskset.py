"""Score a completion with a task of ``verifiers.v1``, the only interface of verifiers 0.4."""

from __future__ import annotations

import copy
import inspect
from typing import Any


class Taskset:
    """A taskset that its package exports.

    Attributes:
        needs: What its reward may need besides a finished completion, and whether it does.
    """

    def __init__(self, name: str, module: Any, arguments: dict[str, Any]) -> None:
        import verifiers.v1 as vf

        config = {**arguments, "id": name}
        try:
            taskset = vf.load_taskset(vf.taskset_config_type(name).model_validate(config))
        except ValueError as error:  # Its first line does not name the key.
            raise ValueError(" ".join(str(error).split())) from error
        kind = taskset.task_type()
        self.needs = {
            "agents of its own": vf.environment_class(name) is not vf.SingleAgentEnv,
            "an end, for it has tasks without end": taskset.INFINITE,
            "a container": kind.NEEDS_CONTAINER,
            "setup": _overrides(kind, vf.Task, "setup"),
            "finalize": _overrides(kind, vf.Task, "finalize"),
            "tools": _overrides(kind, vf.Task, "toolsets"),
            "tools of all tasks": _overrides(type(taskset), vf.Taskset, "toolsets"),
        }
        self._tasks = [] if any(self.needs.values()) else list(taskset)
        for hook in self._tasks[0].hooks("reward") if self._tasks else ():
            runtime = inspect.signature(hook).parameters.get("runtime")
            needed = runtime is not None and runtime.default is runtime.empty
            self.needs[f"a runtime for {hook.__name__}"] = needed

    def splits(self) -> dict[str, Any]:
        """Return the rows of ``train``: a taskset has one list of tasks."""
        rows = []
        for task in self._tasks:
            data = task.data.model_dump(mode="json", exclude_none=True)
            prompt = data.get("prompt", [])
            if isinstance(prompt, str):
                prompt = [{"role": "user", "content": prompt}]
            if "system_prompt" in data:
                prompt = [{"role": "system", "content": data["system_prompt"]}, *prompt]
            rows.append({"prompt": prompt, "answer": data.get("answer"), "data": data})
        return {"train": rows}

    async def score(self, row: dict[str, Any], text: str) -> float:
        """Return the weighted sum of the task's rewards."""
        import verifiers.v1 as vf

        task = copy.copy(self._tasks[0])
        task.data = type(task.data).model_validate(row["data"])
        messages = [*row["prompt"], {"role": "assistant", "content": text}]
        nodes = [
            vf.MessageNode(parent=index - 1 if index else None, message=message)
            for index, message in enumerate(messages)
        ]
        nodes[-1].sampled = True
        trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            nodes=nodes,
            is_completed=True,
            ok=True,
        )
        await task.score(trace)
        return sum(reward.value for reward in trace.rewards.values())


def _overrides(kind: type, base: type, member: str) -> bool:
    return inspect.getattr_static(kind, member) is not inspect.getattr_static(base, member)
