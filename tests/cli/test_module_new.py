"""``amplifier module new``: what it writes can be read, named and found, and keeps its contract as it is."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest

import amplifier
from amplifier import AmplifierSession
from amplifier.cli import main
from amplifier.cli.commands.module import validate
from amplifier.conformance import Report, check_module
from amplifier.contracts import CONTRACTS


def examined(folder: Path, **options: Any) -> Report:
    async def run() -> Report:
        return await check_module(folder, **options)

    return anyio.run(run)


@pytest.mark.parametrize("kind", CONTRACTS)
def test_new_module_is_well_formed(kind, tmp_path, capsys):
    assert main(["module", "new", "word-count", "--type", kind, "--into", str(tmp_path)]) == 0
    [folder] = tmp_path.iterdir()
    assert str(folder) in capsys.readouterr().out
    report = examined(folder, static=True)
    assert (report.type, report.verdict, report.recommendations) == (kind, "conforms", [])
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    [(module_id, reference)] = project["entry-points"]["amplifier.modules"].items()
    assert module_id.endswith("-word-count")
    assert (folder / reference.partition(":")[0] / "__init__.py").is_file()
    for file in folder.rglob("*.py"):
        assert "$" not in file.read_text()
        ast.parse(file.read_text())


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "backends"),
    [
        (
            "orchestrator",
            ("trio",),
        ),  # the tool is examined in a tutorial, which `tests/docs/test_tutorials.py` runs
        *(pytest.param(kind, ("asyncio", "trio"), marks=pytest.mark.long) for kind in CONTRACTS),
    ],
)
def test_new_module_keeps_required_and_recommended_clauses(kind, backends, tmp_path):
    assert main(["module", "new", "words", "--type", kind, "--into", str(tmp_path)]) == 0
    [folder] = tmp_path.iterdir()
    report = examined(folder, backends=backends)
    assert report.ok, str(report)
    assert report.recommendations == [], str(report)


def test_new_loop_passes_tool_output_to_model(tmp_path, capsys):
    assert (
        main(["module", "new", "loop-mine", "--type", "orchestrator", "--into", str(tmp_path)]) == 0
    )
    call = {
        "name": "todo",
        "arguments": {"action": "create", "todos": [{"content": "milk", "status": "pending"}]},
    }
    contents = []
    for loop in (
        {"module": "loop-mine", "source": str(next(tmp_path.iterdir()))},
        {"module": "loop-basic"},
    ):
        plan = {
            "session": {"orchestrator": loop, "context": "context-simple"},
            "providers": [
                {
                    "module": "provider-mock",
                    "config": {"responses": [{"tool_calls": [call]}, "Done."]},
                }
            ],
            "tools": [{"module": "tool-todo"}],
        }
        contents.append(anyio.run(first_result, plan))
    assert contents[0] == contents[1]
    assert contents[0].startswith("{")


async def first_result(plan: dict[str, Any]) -> str:
    async with AmplifierSession(plan) as session:
        await session.execute("remember milk")
        messages = await session.coordinator.get("context").get_messages()
        return str(next(message["content"] for message in messages if message["role"] == "tool"))


def test_readme_names_ways_to_install_kernel(tmp_path):
    assert main(["module", "new", "tool-words", "--into", str(tmp_path)]) == 0
    readme = (tmp_path / "amplifier-module-tool-words" / "README.md").read_text()
    assert "pip install -e '../amplifier[testing,cli]'" in readme
    assert f"amplifier-{amplifier.__version__}-py3-none-any.whl" in readme
    assert "amplifier[testing,cli] @ git+https://" in readme


def test_readme_shows_report_and_ci_outputs(tmp_path):
    assert main(["module", "new", "words", "--type", "tool", "--into", str(tmp_path)]) == 0
    readme = (tmp_path / "amplifier-module-tool-words" / "README.md").read_text()
    known = {option for parameter in validate.params for option in parameter.opts}
    shown = {
        word
        for line in readme.splitlines()
        if "module validate" in line
        for word in line.split()
        if word[0] == "-"
    }
    assert {"--junit", "--html"} <= shown <= known


def denial_plan(loop: str, tool: str, hook: str) -> dict[str, Any]:
    call = {"name": "words", "arguments": {"text": "one two"}}
    return {
        "session": {
            "orchestrator": {"module": "loop-words", "source": loop},
            "context": "context-simple",
        },
        "providers": [
            {"module": "provider-mock", "config": {"responses": [{"tool_calls": [call]}, "Done."]}}
        ],
        "tools": [{"module": "tool-words", "source": tool}],
        "hooks": [{"module": "hooks-words", "source": hook, "config": {"denied": ["words"]}}],
    }


def test_new_hook_denial_reaches_model(tmp_path):
    for name in ("loop-words", "tool-words", "hooks-words"):
        assert main(["module", "new", name, "--into", str(tmp_path)]) == 0
    folders = [
        str(tmp_path / f"amplifier-module-{kind}-words") for kind in ("loop", "tool", "hooks")
    ]
    assert (
        anyio.run(first_result, denial_plan(*folders))
        == "Denied: the tool words is switched off here"
    )


def test_missing_type_error_lists_types(tmp_path, capsys):
    assert main(["module", "new", "words", "--into", str(tmp_path)]) == 2
    assert "--type is missing; expected one of orchestrator, " in capsys.readouterr().err
    assert main(["module", "new", "words", "--type", "tol", "--into", str(tmp_path)]) == 2
    assert "--type is 'tol'; expected one of orchestrator, " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_invalid_names_and_existing_folders_are_rejected(tmp_path, capsys):
    assert main(["module", "new", "Word Count", "--type", "tool", "--into", str(tmp_path)]) == 2
    assert main(["module", "new", "thing", "--into", str(tmp_path)]) == 2
    assert "expected one of" in capsys.readouterr().err
    for code in (0, 2):
        assert main(["module", "new", "tool-x", "--into", str(tmp_path)]) == code
    assert "already exists" in capsys.readouterr().err
