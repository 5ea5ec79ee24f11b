"""The command line, against a client that notes it down. What an engine makes of it was tried by hand: docs/code_reward.md."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.rewards.sandbox import Container, container
from r1_recipes.rewards.sandbox.base import READY, RUNNER, Call, Outcome, payload
from tests.rewards.sandbox import ROOM, SHORT, command, run


class TestContainer:
    """The command line, against a client that notes it down. What an engine makes of it was tried by hand: docs/code_reward.md."""

    @pytest.fixture
    def engine(self, commands: Path) -> Path:
        notes = commands / "notes"
        command(
            commands,
            "docker",
            f"""
            import json, subprocess, sys, time
            with open({str(notes)!r}, "a") as sink:
                sink.write(json.dumps(sys.argv[1:]) + "\\n")
            if sys.argv[1] == "image":
                sys.exit("no such image" if sys.argv[3] == "absent" else 0)
            if sys.argv[1] == "run":
                sys.stdout.write("\\x06")
                sys.stdout.flush()
                if "asleep" in sys.argv:
                    time.sleep(1000)
                data = sys.stdin.buffer.read()
                print(len(data))
            """,
        )
        return notes

    @staticmethod
    def noted(notes: Path) -> list[list[str]]:
        return [json.loads(line) for line in notes.read_text().splitlines()]

    @pytest.mark.parametrize("name", ["docker", "podman"])
    def test_what_a_container_may(self, engine, name):
        engine.with_name(name).write_bytes(engine.with_name("docker").read_bytes())
        engine.with_name(name).chmod(0o755)
        box = Container(name, "python:3.12-slim")
        job = payload("print(1)", Call(b"in", 100, **ROOM))
        assert run(box, "print(1)", b"in", room=100) == Outcome("ok", f"{len(job)}\n".encode())
        (words,) = self.noted(engine)
        line = " ".join(words)
        for flag in (
            "run --rm --interactive",
            "--network none",
            "--ipc none",
            "--read-only",
            "--cap-drop ALL",
            "--security-opt no-new-privileges",
            "--user 65534:65534",
            "--memory 256m --memory-swap 256m",
            "--cpus 1",
            "--pids-limit 64",
            "--ulimit cpu=30:30",
            "--pull never",
        ):
            assert flag in line
        assert ("--read-only-tmpfs=false" in words) == (name == "podman")
        assert not {"--tmpfs", "--volume", "-v", "--privileged", "--env-file"} & set(words)
        # grace 10 s + twice 30 s
        assert words[-8:] == ["python:3.12-slim", "-s", "KILL", "70", "python3", "-s", "-B", "-c", RUNNER][-8:]
        assert words[words.index("--entrypoint") + 1] == "timeout"

    def test_another_language_has_a_command(self, engine):
        box = Container("docker", "gcc:14", "g++ -x c++ /tmp/solution -o /tmp/a && /tmp/a")
        source = base64.b64encode(b"int main() {}")
        assert run(box, "int main() {}", b"1 2\n").output == f"{len(source) + 1 + 4}\n".encode()
        (words,) = self.noted(engine)
        assert words[-3:-1] == ["sh", "-c"] and words[-1].endswith("&& g++ -x c++ /tmp/solution -o /tmp/a && /tmp/a")
        assert "--tmpfs" in words

    def test_the_shell_hands_program_and_input_over(self, tmp_path):
        """The line that a container's shell gets, in a shell of ours, with a path of ours and a command that does no harm."""
        solution = tmp_path / "solution"
        line = container._SHELL.format(command=f"cat {solution} -").replace("/tmp/solution", str(solution), 1)
        stdin = base64.b64encode(b"program\n") + b"\nfirst\nsecond"
        done = subprocess.run(["sh", "-c", line], input=stdin, capture_output=True, timeout=60)
        assert done.stdout == READY + b"program\nfirst\nsecond"

    def test_a_sleeper_is_killed_by_name(self, engine, monkeypatch):

        monkeypatch.setattr(container.base, "START_SECONDS", 4)
        assert run(Container("docker", "asleep"), "", limits=SHORT).status == "timeout"
        started, killed = self.noted(engine)
        assert killed == ["kill", "--signal", "KILL", started[started.index("--name") + 1]]

    def test_refusals(self, engine):
        with pytest.raises(RecipeError, match=r"'absent' is not here .*no such image.*docker pull absent"):
            Container("docker", "absent").check()
        with pytest.raises(RecipeError, match="no-such-engine is not installed"):
            Container("no-such-engine", "absent").check()
        with pytest.raises(RecipeError, match="docker: a program for a trial ended"):
            Container("docker", "python:3.12-slim").check()  # what it prints is no answer of the probe's

    def test_a_command_is_tried(self, engine):
        box = Container("docker", "gcc:14", "true")
        box.check()
        assert [words[0] for words in self.noted(engine)] == ["image", "run"]
