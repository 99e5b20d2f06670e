"""Faults F70–F78: hostile ids, hijacked names, modules that run code they should not, modules shared by sessions."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path

import pytest

from amplifier import AmplifierSession, ModuleLoader, ModuleLoadError, PlanError
from amplifier.errors import ModuleConflictError
from tests._support.child_process import run_child
from tests._support.small_agent import Loop, Memory, agent, heard, mounting, repeat_prompt
from tests.loading._forge import distribution, forget_imports, package, root

TOOL = """
import builtins
builtins.fault_log.append(("import", __file__))

class Tool:
    name = "probe"
    description = "Returns where it came from."
    async def execute(self, input):
        return __file__

async def mount(coordinator, config):
    builtins.fault_log.append(("mount", __file__))
    coordinator.register_cleanup(lambda: builtins.fault_log.append(("cleanup", __file__)))
    return Tool()
"""


@pytest.fixture(autouse=True)
def log(tmp_path, monkeypatch):
    """What modules on disk did, in order; afterwards their packages are forgotten."""
    monkeypatch.delenv("AMPLIFIER_MODULES", raising=False)
    entries: list[tuple[str, str]] = []
    monkeypatch.setattr(builtins, "fault_log", entries, raising=False)
    yield entries
    forget_imports(tmp_path)


def with_tool(module_id, source=None, search_paths=(), **session):
    """A session whose only tool comes from disk."""
    modules = {"loop-small": mounting(Loop(repeat_prompt)), "context-small": mounting(Memory())}
    plan = {
        "session": {"orchestrator": "loop-small", "context": "context-small", **session},
        "tools": [{"module": module_id, **({"source": str(source)} if source else {})}],
    }
    return AmplifierSession(plan, loader=ModuleLoader(search_paths=search_paths, modules=modules))


HOSTILE_MODULE_IDS = [
    *(
        "../evil",
        "/etc/passwd",
        "tool-ok.evil",
        ".",
        "..",
        "",
        " tool-x",
        "tool-x\n",
        "Tool-X",
        "tool-é",
    ),
    *("--help", "t" * 65, "tool\0x", "tool/x"),
]


@pytest.mark.parametrize("module_id", HOSTILE_MODULE_IDS)
async def test_f70_invalid_module_id_is_refused_first(module_id, tmp_path):
    class Resolver:
        def resolve(self, module_id, source_hint=None):
            pytest.fail(f"the resolver was asked for {module_id!r}")

    class Host:
        def get(self, point):
            return Resolver()

    assert len(HOSTILE_MODULE_IDS) == 14
    loaders = (ModuleLoader(search_paths=[tmp_path]), ModuleLoader(Host()))
    before = set(sys.modules), list(sys.path)
    for loader in loaders:
        with pytest.raises(ModuleLoadError, match="is not a module id"):
            await loader.load(module_id)
    with pytest.raises(PlanError, match=r"\$\.tools\[0\]\.module"):
        with_tool(module_id)
    assert (set(sys.modules), list(sys.path)) == before


_SHADOWING = """
before = list(sys.path)

async def main():
    session = agent()
    session.config["tools"] = [{"module": "tool-shadow", "source": sys.argv[2]}]
    async with session:
        print_line("failures", len(session.failures))
        print_line(await session.coordinator.get("tools", "shadow").execute({}))
        import colorsys
        print_line("colorsys is", "hijacked" if sys.argv[2] in colorsys.__file__ else "the library's")
    print_line("sys.path", "restored" if sys.path == before else sys.path)

anyio.run(main, backend=backend)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_f71_file_named_like_library_shadows_nothing(backend, tmp_path):
    """A root may be on sys.path, counted and behind everything else; one that would shadow the library never is."""
    body = """
        class Tool:
            name = description = "shadow"
            async def execute(self, input):
                return "the tool works"
        async def mount(coordinator, config):
            return Tool()
    """
    directory = root(tmp_path, "tool-shadow", body, colorsys="raise SystemExit('hijacked')\n")
    ended = run_child(_SHADOWING, backend, str(directory))
    assert ended.lines == [
        "failures 0",
        "the tool works",
        "colorsys is the library's",
        "sys.path restored",
    ]
    assert ended.code == 0


async def test_f72_loading_never_mounts(tmp_path, log):
    root(tmp_path, "tool-probe", TOOL)
    loader = ModuleLoader(search_paths=[tmp_path])
    loaded = await loader.load("tool-probe")
    assert [what for what, _ in log] == ["import"]
    assert loaded.module_type == "tool"
    async with with_tool("tool-probe", search_paths=[tmp_path]) as session:
        assert [what for what, _ in log] == ["import", "mount"]
        assert list(session.coordinator.get("tools")) == ["probe"]
    assert [what for what, _ in log] == ["import", "mount", "cleanup"]
    loader.cleanup()


async def test_f73_inspection_runs_no_module_code(tmp_path, log, monkeypatch):
    """`discover` reads syntax trees and metadata. What runs a module (the conformance kit) runs it only when asked."""
    root(tmp_path, "tool-probe", TOOL)
    site = tmp_path / "site"
    package(site, "evil_package", TOOL)
    distribution(site, "evil", {"tool-evil": "evil_package:mount"})
    monkeypatch.syspath_prepend(site)
    found = {info.id for info in await ModuleLoader(search_paths=[tmp_path]).discover()}
    assert {"tool-probe", "tool-evil"} <= found
    assert log == []
    assert "evil_package" not in sys.modules
    assert "amplifier_module_tool_probe" not in sys.modules


_FAILING_IMPORT = """
async def main():
    session = agent()
    session.config["tools"] = [{"module": "tool-bad", "source": sys.argv[2]}]
    async with session:
        [failure] = session.failures
        print_line(failure.module_id, type(failure.error.__cause__).__name__)
        print_line(await session.execute("the session works"))

anyio.run(main, backend=backend)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("import sys\nsys.exit(5)\n", "SystemExit"),
        ("import no_such_package_anywhere\n", "ModuleNotFoundError"),
        ("def f():\n    f()\nf()\n", "RecursionError"),
        ("syntax error\n", "SyntaxError"),
    ],
    ids=["exit", "missing", "recursion", "syntax"],
)
def test_f74_exit_at_import_is_module_failure(backend, body, cause, tmp_path):
    directory = root(tmp_path, "tool-bad", body)
    ended = run_child(_FAILING_IMPORT, backend, str(directory))
    assert ended.lines == [f"tool-bad {cause}", "the session works"]
    assert ended.code == 0


async def test_f75_second_source_of_module_is_refused(tmp_path, log):
    """Without ``strict`` the session opens and reports it; no session ever gets the other session's code."""
    here, there = root(tmp_path / "a", "tool-probe", TOOL), root(tmp_path / "b", "tool-probe", TOOL)
    async with with_tool("tool-probe", here) as first, with_tool("tool-probe", there) as second:
        assert list(first.coordinator.get("tools")) == ["probe"]
        assert list(second.coordinator.get("tools")) == []
        [failure] = second.failures
        assert isinstance(failure.error, ModuleConflictError)
        assert failure.reason_code == "conflict"
        assert str(here) in str(failure.error)
        assert str(there) in str(failure.error)
        assert second.status.last_error is not None
        assert {Path(file).parents[1] for _, file in log} == {here}


async def test_f76_sessions_share_code_only(
    tmp_path,
):
    """One Python module object per process is Python's rule and documented; state below it is each session's own."""
    seen = []

    async def mount(coordinator, config):
        coordinator.session_state["secret"] = config["secret"]
        coordinator.register_capability("secret", config["secret"])
        coordinator.note = config["secret"]
        coordinator.register_contributor("secrets", "s", lambda: config["secret"])
        coordinator.hooks.register(
            "x", lambda event, data: seen.append((config["secret"], data["session_id"]))
        )
        config["changed"] = True

    def session(secret):
        made = agent(hooks={"hooks-shared": mount}, session_id=secret)
        made.config["hooks"][0]["config"] = {"secret": secret}
        return made

    async with session("one") as one, session("two") as two:
        for own, other in ((one, "two"), (two, "one")):
            coordinator = own.coordinator
            assert coordinator.session_state == {"secret": own.session_id}
            assert coordinator.get_capability("secret") == coordinator.note == own.session_id
            assert await coordinator.collect_contributions("secrets") == [own.session_id]
            assert other not in repr(coordinator.to_dict()) + repr(own.config)
            assert own.config["hooks"][0]["config"] == {"secret": own.session_id}
            await coordinator.hooks.emit("x", {})
    assert seen == [("one", "one"), ("two", "two")]


async def test_f77_contested_module_id_is_refused(tmp_path, log, monkeypatch):
    site = tmp_path / "site"
    for name in ("honest", "hijacker"):
        package(site, f"{name}_package", TOOL)
        distribution(site, name, {"tool-probe": f"{name}_package:mount"})
    monkeypatch.syspath_prepend(site)
    async with with_tool("tool-probe") as session:
        [failure] = session.failures
        assert isinstance(failure.error, ModuleConflictError)
        assert "honest 1.0" in str(failure.error)
        assert "hijacker 1.0" in str(failure.error)
    assert log == []


HOSTILE_SESSION_IDS = [
    *(
        "../../../escaped",
        "/etc/passwd",
        "a/b",
        "a\\b",
        ".",
        "..",
        "",
        "a b",
        "a\n",
        "\x1b[31m",
        "s" * 201,
        "é",
    ),
]


@pytest.mark.parametrize("session_id", HOSTILE_SESSION_IDS)
async def test_f78_hostile_session_id_is_refused(session_id):
    assert len(HOSTILE_SESSION_IDS) == 12
    for name in ("session_id", "parent_id"):
        with pytest.raises(PlanError, match="invalid session id"):
            agent(**{name: session_id})
    async with agent() as parent:
        events = heard(parent)
        with pytest.raises(PlanError, match="invalid session id"):
            parent.fork(session_id=session_id)
        assert events == []
