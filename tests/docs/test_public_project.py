"""What a public project has: a workflow, forms for issues and a short README."""

from __future__ import annotations

import re
import tomllib

import yaml

from tests._support.tree import ROOT

GITHUB = ROOT / ".github"


def test_workflow_runs_on_every_supported_python():
    jobs = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "classifiers"
    ]
    supported = [
        found[1]
        for line in classifiers
        if (found := re.fullmatch(r".* :: Python :: (3\.\d+)", line))
    ]
    assert (
        jobs["test"]["strategy"]["matrix"]["python"]
        == supported
        == ["3.11", "3.12", "3.13", "3.14"]
    )
    assert jobs["test"]["steps"][-1] == {"run": ".ci/run"}
    assert any(
        "--resolution lowest-direct" in step.get("run", "")
        for step in jobs["lowest-versions"]["steps"]
    )


def test_issue_forms_are_complete():
    for name in ("bug.yml", "feature.yml"):
        form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert fields
        assert all(part["id"] and part["attributes"]["label"] for part in fields)
    assert (GITHUB / "pull_request_template.md").is_file()


def test_readme_is_short_and_in_order():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    first, program, why, commands, links = (
        text.index(part)
        for part in (
            "structured concurrency",
            "```python",
            "## Why",
            "## Two commands",
            "## Where to go",
        )
    )
    assert first < program < why < commands < links
