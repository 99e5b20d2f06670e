"""Files that the agent starts or imports when it begins are protected like the programs that it runs from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from amplifier.modules._shared.protected_places import ProtectedPlaces, protected_places
from amplifier.modules._shared.started_places import started_places
from amplifier.modules.tools import bash as tool_bash
from amplifier.modules.tools import filesystem as tool_filesystem
from amplifier.testing import TestCoordinator
from tests.modules.tools.test_tool_bash_sandbox import (
    SANDBOXES,
    _bubblewrap_on_the_path,
    run,
)

__all__ = ["_bubblewrap_on_the_path"]


def places(tmp_path: Path, config: dict[str, Any]) -> ProtectedPlaces:
    return ProtectedPlaces(started=started_places(config, str(tmp_path)))


def server(command: str, *args: str, **more: Any) -> dict[str, Any]:
    servers = {"servers": {"x": {"command": command, "args": [*args], **more}}}
    return {"tools": [{"module": "tool-mcp", "config": servers}]}


STARTED = {
    "a script": (server("python3", "tools/s.py"), "tools/s.py"),
    "a script without an ending": (server("/usr/bin/python3", "tools/serve"), "tools/serve"),
    "a program of the folder": (server("./bin/server"), "bin/server"),
    "in a shell": (server("bash", "-c", "exec node build/index.js --x"), "build/index.js"),
    "a module": (server("python3", "-m", "our.server"), "our/server.py"),
    "by uv": (server("uv", "run", "server"), "server"),
    "another folder": (server("node", "x.js", cwd="sub"), "sub/x.js"),
    "a package of the folder": (server("npx", "-y", "a-server", "."), "node_modules/.bin/a-server"),
    "with a scope": (server("npx", "@a/b@1.2"), "node_modules/@a/b/index.js"),
    "a module of the plan": (
        {"hooks": [{"module": "hooks-x", "source": "{folder}/src"}]},
        "src/amplifier_module_hooks_x/__init__.py",
    ),
    "the loop, from the folder": (
        {"session": {"orchestrator": {"module": "loop-x", "source": "{folder}"}}},
        "amplifier_module_loop_x/__init__.py",
    ),
    "of a child": (
        {"agents": {"a": {"tools": [{"module": "tool-x", "source": "file://{folder}/s"}]}}},
        "s/amplifier_module_tool_x/__init__.py",
    ),
}
NOT_STARTED = {
    "data of a server": (server("a-server", "--db", "data.sqlite"), "data.sqlite"),
    "a folder of a server": (server("npx", "-y", "a-server", "./docs"), "docs/readme.md"),
    "a file beside the package": (
        {"hooks": [{"module": "hooks-x", "source": "{folder}"}]},
        "main.py",
    ),
    "a pinned module": ({"hooks": [{"module": "hooks-x", "source": "builtin"}]}, "builtin/x"),
}


def with_folder(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: with_folder(each, folder) for key, each in value.items()}
    if isinstance(value, list):
        return [with_folder(each, folder) for each in value]
    return value.replace("{folder}", str(folder)) if isinstance(value, str) else value


@pytest.mark.parametrize(("config", "path"), STARTED.values(), ids=STARTED)
def test_place_that_agent_starts(config: dict[str, Any], path: str, tmp_path: Path) -> None:
    protected = places(tmp_path, with_folder(config, tmp_path))
    assert protected.judge(f"{tmp_path}/{path}", root=str(tmp_path)).verdict == "ask"


@pytest.mark.parametrize(("config", "path"), NOT_STARTED.values(), ids=NOT_STARTED)
def test_place_that_agent_does_not_start(config: dict[str, Any], path: str, tmp_path: Path) -> None:
    protected = places(tmp_path, with_folder(config, tmp_path))
    assert protected.judge(f"{tmp_path}/{path}", root=str(tmp_path)).verdict == "none"


def test_plan_may_allow_started_place(tmp_path: Path) -> None:
    config = {
        "session": {"protected_places": {"allow": ["tools/s.py"]}},
        **server("node", "tools/s.py"),
    }
    coordinator = TestCoordinator(config=config)
    coordinator.register_capability("session.working_dir", str(tmp_path))
    judged = protected_places(coordinator).judge(f"{tmp_path}/tools/s.py", root=str(tmp_path))
    assert judged.verdict == "none"


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_tools_leave_started_places(sandbox: str, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    os.mkdir(folder)
    (folder / "s.py").write_text("good")
    coordinator = TestCoordinator(config=server("npx", "tsx", "s.py"))
    coordinator.register_capability("session.working_dir", str(folder))
    await tool_bash.mount(coordinator, {"working_dir": str(folder), "sandbox": sandbox})
    await tool_filesystem.mount(coordinator, {})
    result = await run(
        coordinator,
        "echo evil > s.py; mkdir -p node_modules/.bin; echo evil > node_modules/.bin/tsx",
    )
    assert "node_modules/.bin/tsx is not allowed" in str(result.output["protected"]), result
    write = coordinator.get("tools", "write_file")
    result = await write.execute({"file_path": "s.py", "content": "evil"})
    assert not result.success
    assert (folder / "s.py").read_text() == "good"
    assert not (folder / "node_modules" / ".bin" / "tsx").exists()
