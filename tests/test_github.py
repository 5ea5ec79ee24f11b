"""What strangers see first: workflows, forms and images name only what exists."""

import re

import pytest
import yaml

from tests.conftest import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
IMAGES = sorted(REPOSITORY.glob("Dockerfile*"))


def steps(path):
    """The shell lines of a workflow."""
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return [
        line
        for job in jobs.values()
        for step in job["steps"]
        for line in step.get("run", "").splitlines()
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_and_files_that_exist(path):
    targets = set(re.findall(r"^([a-z][\w-]*):", (REPOSITORY / "Makefile").read_text(), re.M))
    lines = steps(path)
    assert lines
    for line in lines:
        assert set(re.findall(r"\bmake ([a-z][\w-]*)", line)) <= targets, line
        for name in re.findall(
            r"\b(?:tests/[\w/]+(?:\.py)?|constraints\.txt|pyproject\.toml)", line
        ):
            assert (REPOSITORY / name).exists(), line


def test_the_workflows_may_write_nothing_but_a_release():
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
        assert ("id-token: write" in text) == (path.stem == "release")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_what_a_command_prints(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    fields = [field for field in form.get("body", []) if field["type"] != "checkboxes"]
    assert "body" not in form or any(field["validations"]["required"] for field in fields[:1])
    assert len({field["id"] for field in fields}) == len(fields)


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_an_image_copies_what_the_package_links_to(path):
    """src/r1_recipes/shipped has links to recipes/ and accelerate_configs/."""
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"^COPY (.*) \S+$", text, re.M):
        assert all((REPOSITORY / part).exists() for part in name.split())
    assert {"recipes", "accelerate_configs", "src"} <= set(re.findall(r"^COPY (\w+) ", text, re.M))
    extras = re.search(r"-e '\.\[([\w,]+)\]'", text)[1].split(",")
    assert all(f"\n{extra} = [" in (REPOSITORY / "pyproject.toml").read_text() for extra in extras)
