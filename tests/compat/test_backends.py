"""On trio published modules run on an asyncio island; native modules declare their backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import sniffio

from amplifier import AmplifierSession
from amplifier.compat._adapting import adapt_mounted
from amplifier.errors import ModuleLoadError
from amplifier.loading import ModuleLoader
from amplifier.loading.importing import imports_alias
from amplifier.loading.loader import runs_on_island
from amplifier.testing import MockProvider

from .agent_play import Resolver
from .published_agent import AGENT, agent_plan, write_agent, write_package


@pytest.fixture
def directory(alias: None, tmp_path: Path) -> Path:
    write_agent(tmp_path)
    return tmp_path


@pytest.fixture
def loader(directory: Path) -> Iterator[ModuleLoader]:
    resolving = SimpleNamespace(get=lambda point: Resolver(directory))
    loader = ModuleLoader(resolving)
    yield loader
    loader.cleanup()


def package(directory: Path, name: str, source: str) -> str:
    """Write a module; gives the file."""
    where = directory / name
    where.mkdir()
    (where / "__init__.py").write_text(source, encoding="utf-8")
    return str(where / "__init__.py")


# ── published modules in native loaders and sessions ─────────────────────────────────────────────


@pytest.mark.parametrize("module_id", sorted(AGENT))
async def test_native_loader_loads_published_module(loader: ModuleLoader, module_id: str):
    assert (await loader.load(module_id)).module_id == module_id


def native_plan(directory: Path, tools: list[str]) -> tuple[dict[str, Any], ModuleLoader]:
    turns = [
        ("write_file", {"file_path": "b.txt", "content": "beta"}),
        ("grep", {"pattern": "bet"}),
        "found it",
    ]

    async def mount(coordinator: Any, config: Any) -> None:
        await coordinator.mount("providers", MockProvider(turns), name="scripted")

    plan = {
        "session": {
            "orchestrator": "loop-basic",
            "context": {"module": "context-simple", "source": str(directory)},
        },
        "providers": [{"module": "provider-own"}],
        "tools": [
            {"module": tool, "source": str(directory / f"amplifier-module-{tool}")}
            for tool in tools
        ],
        "hooks": [
            {"module": hook, "source": str(directory / f"amplifier-module-{hook}")}
            for hook in ("hooks-logging", "hooks-redaction", "hooks-status-context")
        ],
    }
    plan["session"]["context"]["source"] = str(directory / "amplifier-module-context-simple")  # type: ignore[index]
    return plan, ModuleLoader(modules={"provider-own": mount})


async def test_native_session_with_neutral_published_modules(
    directory: Path,
):
    plan, loader = native_plan(directory, ["tool-filesystem", "tool-search", "tool-todo"])
    session = AmplifierSession(plan, loader=loader)
    log: list[Any] = []
    session.coordinator.register_capability("session.working_dir", str(directory))
    session.coordinator.register_capability("test.log", log)

    async with session:
        answer = await session.execute("go")
        messages = await session.coordinator.get("context").get_messages()

    assert answer == "found it"
    assert (directory / "b.txt").read_text() == "beta"
    assert "beta" in messages[4]["content"]
    assert [event for event, _ in log][-1] == "session:end"
    assert "artifact:write" in [event for event, _ in log]


@pytest.mark.parametrize("place", ["orchestrator", "context"])
async def test_native_session_with_asyncio_loop_and_context(directory: Path, place: str):
    plan, loader = native_plan(directory, [])
    source = str(directory / "amplifier-module-loop-basic")
    if place == "orchestrator":
        plan["session"]["orchestrator"] = {"module": "loop-basic", "source": source}
    else:
        asyncio_context = AGENT["context-simple"].replace(
            "self.messages.append(message)",
            "await __import__('asyncio').sleep(0)\n        import asyncio; asyncio.Lock(); self.messages.append(message)",
        )
        package(directory, "amplifier_module_context_busy", asyncio_context)
        plan["session"]["context"] = {
            "module": "context-busy",
            "source": str(directory / "amplifier_module_context_busy"),
        }
    session = AmplifierSession(plan, loader=loader)
    session.coordinator.register_capability("test.log", [])
    async with session:
        answer = await session.execute("go")
        messages = await session.coordinator.get("context").get_messages()
    assert answer == "found it"
    assert [message["role"] for message in messages] == [
        "user",
        *["assistant", "tool"] * 2,
        "assistant",
    ]


def test_alias_import_inside_function_counts(tmp_path: Path):
    assert imports_alias(
        package(tmp_path, "one", "def f():\n    from amplifier_core.models import HookResult\n")
    )
    assert not imports_alias(package(tmp_path, "two", "import amplifier\nx = 'amplifier_core'\n"))


# ── modules of our own kind ──────────────────────────────────────────────────────────────────────


def own_module(**declared: Any) -> ModuleType:
    """A native module in this process."""

    async def mount(coordinator: Any, config: Any) -> None:
        await coordinator.mount("tools", SimpleNamespace(name="own"), name="own")

    module = ModuleType("native")
    vars(module).update(mount=mount, **declared)
    return module


def declaring(backends: Any) -> ModuleLoader:
    """A loader of a native module that declares these backends."""
    return ModuleLoader(modules={"tool-own": own_module(__amplifier_backends__=backends)})


@pytest.mark.parametrize("declared", ["asyncio", ("asyncio",), ["asyncio"], frozenset({"asyncio"})])
async def test_asyncio_only_module_is_loaded_on_both(declared: Any):
    assert (await declaring(declared).load("tool-own")).module_id == "tool-own"


@pytest.mark.parametrize("declared", ["trio", ("curio",)])
async def test_module_for_other_backend_is_refused(declared: Any, anyio_backend_name: str):
    loader = declaring(declared)
    if anyio_backend_name in declared:
        assert (await loader.load("tool-own")).module_id == "tool-own"
        return
    with pytest.raises(
        ModuleLoadError, match=r"cannot run on \w+: it declares __amplifier_backends__ = \('\w+',\)"
    ):
        await loader.load("tool-own")


async def test_module_for_both_backends_is_loaded(directory: Path):
    source = AGENT["tool-bash"].replace(
        "__amplifier_module_type__",
        '__amplifier_backends__ = ("asyncio", "trio")\n\n__amplifier_module_type__',
        1,
    )
    package(directory, "amplifier_module_tool_both", source)
    loader = ModuleLoader()
    loaded = await loader.load(
        "tool-both", source_hint=str(directory / "amplifier_module_tool_both")
    )
    loader.cleanup()
    assert loaded.module_id == "tool-both"


@pytest.mark.parametrize("declared", [5, (), ("asyncio", 5), {}])
async def test_declaration_without_backends_is_refused(declared: Any):
    loader = declaring(declared)
    with pytest.raises(ModuleLoadError, match="expected a tuple of names") as caught:
        await loader.load("tool-own")
    assert caught.value.reason_code == "invalid_module_metadata"


def test_nothing_is_refused_without_running_backend():
    loader = declaring(("trio",))
    assert loader.find("tool-own").mount is not None


STRUCTURED = """
from contextlib import asynccontextmanager

from amplifier_core import ToolResult


@asynccontextmanager
async def mount(coordinator, config=None):
    yield
"""
PUBLISHED = AGENT["tool-bash"]


@pytest.mark.parametrize(
    ("source", "is_on_island"),
    [
        (PUBLISHED, True),
        (f'{PUBLISHED}\n__amplifier_backends__ = ("asyncio", "trio")\n', False),
        (f'{PUBLISHED}\n__amplifier_backends__ = ("asyncio",)\n', True),
        (STRUCTURED, False),
    ],
)
async def test_commands_name_modules_on_islands(
    source: str, is_on_island: bool, directory: Path, anyio_backend_name: str
):
    package(directory, "amplifier_module_tool_any", source)
    loader = ModuleLoader()
    loaded = await loader.load("tool-any", source_hint=str(directory / "amplifier_module_tool_any"))
    assert loaded.is_on_island is (is_on_island and anyio_backend_name == "trio")
    assert runs_on_island(loaded) is is_on_island
    loader.cleanup()


# ── loops in native sessions ─────────────────────────────────────────────────────────────────────


async def test_only_published_mount_is_changed(loader: ModuleLoader):
    own = own_module()
    own.mount.__module__ = "amplifier.modules.loop.basic"  # this file imports the alias, so it would count as published
    native = ModuleLoader(modules={"tool-own": own})
    assert (await native.load("tool-own")).mount is own.mount
    published = await loader.load("context-simple")
    assert published.mount.__name__ == "mount"
    assert published.mount.__module__ == "amplifier_module_context_simple"
    assert hasattr(published.mount, "__wrapped__")


async def test_loop_is_changed_once_keeping_signature(directory: Path):
    import inspect

    class Loop:
        async def execute(self, prompt: str, *, coordinator: Any = None) -> str:
            return prompt

    loop = Loop()
    adapt_mounted("orchestrator", loop)
    adapt_mounted("orchestrator", loop)
    assert list(inspect.signature(loop.execute).parameters) == ["prompt", "coordinator"]
    assert not hasattr(loop.execute.__wrapped__, "__wrapped__")  # type: ignore[attr-defined]
    assert await loop.execute("hello") == "hello"


async def test_structured_mount_is_unchanged(directory: Path):
    def mount(coordinator: Any, config: Any) -> Any:
        raise AssertionError("must not be mounted")

    loader = ModuleLoader(modules={"tool-x": mount})
    assert (await loader.load("tool-x")).mount is mount


# ── what shows only when it is called ────────────────────────────────────────────────────────────

LAZY = """
from amplifier_core import HookResult, ModuleCoordinator, ToolResult


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("tools", Lazy(), name="lazy")
    coordinator.hooks.register("tool:pre", watch, name="watcher")


class Lazy:
    name = "lazy"
    description = "Calls something that needs asyncio."
    input_schema = {"type": "object", "properties": {}}

    async def execute(self, input):
        from amplifier_lazy_helper import work

        return ToolResult(success=True, output=await work())


async def watch(event, data):
    from amplifier_lazy_helper import work

    return HookResult(action="modify", data={**data, "seen": await work()})
"""

HELPER = """
import asyncio


async def work():
    async with asyncio.timeout(60):
        await asyncio.sleep(0)
    return "worked"
"""


async def test_hidden_asyncio_call_works_on_both(directory: Path, monkeypatch: pytest.MonkeyPatch):
    root = write_package(directory, "tool-lazy", LAZY)
    (directory / "amplifier_lazy_helper.py").write_text(HELPER, encoding="utf-8")
    monkeypatch.syspath_prepend(str(directory))
    plan = agent_plan("loop-basic", ["ok"])
    plan["tools"] = [{"module": "tool-lazy", "source": str(root)}]
    session = AmplifierSession(plan)
    await session.coordinator.mount("module-source-resolver", Resolver(directory))

    async with session:
        result = await session.coordinator.get("tools")["lazy"].execute({})
        merged = await session.coordinator.hooks.emit("tool:pre", {"tool_name": "lazy"})

    assert (result.output, merged.data["seen"]) == ("worked", "worked")


ASKING = """
import asyncio

from amplifier_core import ModuleCoordinator, ToolResult


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("tools", Asking(coordinator), name="asking")


class Asking:
    name = "asking"
    description = "Uses the session through its coordinator."
    input_schema = {"type": "object", "properties": {}}

    def __init__(self, coordinator):
        self.coordinator = coordinator

    async def execute(self, input):
        await asyncio.sleep(0)
        session = self.coordinator.session
        result = await session.coordinator.hooks.emit("asking:seen", {"b": (1, 2), "a": None})
        return ToolResult(success=True, output=[session.session_id, result.data])
"""


async def test_published_module_uses_its_session(directory: Path):
    import amplifier_core  # type: ignore[import-not-found]

    write_package(directory, "tool-asking", ASKING)
    plan = agent_plan("loop-basic", ["ok"])
    plan["tools"] = [{"module": "tool-asking"}]
    session = amplifier_core.AmplifierSession(plan, session_id="s")
    await session.coordinator.mount("module-source-resolver", Resolver(directory))

    async with session:
        result = await session.coordinator.get("tools")["asking"].execute({})

    assert result.output == ["s", {"a": None, "b": [1, 2]}]


async def test_session_calls_of_module_run_on_backend(directory: Path, anyio_backend_name: str):
    """On trio the module runs on an island, and its session doesn't."""
    import amplifier_core

    write_package(directory, "tool-asking", ASKING)
    plan = agent_plan("loop-basic", ["ok"])
    plan["tools"] = [{"module": "tool-asking"}]
    session = amplifier_core.AmplifierSession(plan, session_id="s")
    await session.coordinator.mount("module-source-resolver", Resolver(directory))
    libraries: list[str] = []

    def handler(event: str, data: dict[str, Any]) -> None:
        libraries.append(sniffio.current_async_library())

    session.coordinator.hooks.register("asking:seen", handler)
    async with session:
        await session.coordinator.get("tools")["asking"].execute({})

    assert libraries == [anyio_backend_name]
