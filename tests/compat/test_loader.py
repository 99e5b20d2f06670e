"""The published loader: where it looks, what it gives, whom it refuses; and which modules need asyncio on trio."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from amplifier.compat._modules.asyncio_use import first_asyncio_call, needs_island
from amplifier.errors import ModuleLoadError
from tests.loading._forge import distribution, package

NEUTRAL = """
from amplifier_core import HookResult
ready = []
async def mount(coordinator, config=None):
    coordinator.hooks.register("e", seen, name="seen")
    coordinator.register_capability("config", config)
async def seen(event, data):
    return HookResult(action="modify", data={**data, "seen": True})
async def on_session_ready(coordinator):
    ready.append(coordinator.get_capability("config"))
"""
ASYNCIO = "import asyncio\nasync def mount(coordinator, config=None):\n    await asyncio.gather()\n"


@pytest.fixture
def loading(alias: None) -> Iterator[ModuleType]:
    """The mirror's ``loader``; modules and paths are forgotten afterwards."""
    import amplifier_core.loader  # type: ignore[import-not-found]

    before, path = set(sys.modules), list(sys.path)
    yield amplifier_core.loader
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith("amplifier_module_"):
            del sys.modules[name]


def write(directory: Path, module_id: str, source: str) -> Path:
    name = f"amplifier_module_{module_id.replace('-', '_')}"
    package = directory / f"amplifier-module-{module_id}" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source, encoding="utf-8")
    return package.parent


class Source:
    """A directory, as resolvers give it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resolve(self) -> Path:
        return self.path


class Resolver:
    """Knows some directories."""

    def __init__(self, **places: Path) -> None:
        self.places = {name.replace("_", "-"): place for name, place in places.items()}

    async def async_resolve(self, module_id: str, source_hint: Any = None, profile_hint: Any = None) -> Source:
        return Source(self.places[module_id])


def coordinator_with(resolver: Any) -> Any:
    from amplifier_core import ModuleCoordinator

    coordinator = ModuleCoordinator()
    coordinator.mount("module-source-resolver", resolver)
    return coordinator


async def test_a_module_without_a_resolver_is_an_importable_package(loading: Any, tmp_path: Path):
    sys.path.insert(0, str(write(tmp_path, "hooks-direct", NEUTRAL)))
    coordinator = coordinator_with(None)
    loader = loading.ModuleLoader(coordinator)

    mount = await loader.load("hooks-direct", {"a": 1})
    await loader.initialize(mount, coordinator)

    assert coordinator.get_capability("config") == {"a": 1}
    assert mount.__on_session_ready__[0] == "hooks-direct"


async def test_an_unknown_module_is_a_value_error_with_a_reason(loading: Any):
    with pytest.raises(ValueError, match="not found via entry points or filesystem") as caught:
        await loading.ModuleLoader().load("tool-nowhere")

    assert loading.module_failure_reason(caught.value) == "missing_source"


async def test_a_resolved_module_is_validated_and_its_path_given_back(loading: Any, tmp_path: Path):
    place = write(tmp_path, "hooks-resolved", NEUTRAL)
    coordinator = coordinator_with(Resolver(hooks_resolved=place))
    loader = loading.ModuleLoader(coordinator)

    mount = await loader.load("hooks-resolved", coordinator=coordinator)
    await mount(coordinator)
    held = str(place) in sys.path
    loader.cleanup()

    assert held
    assert str(place) not in sys.path
    assert (await coordinator.hooks.emit("e", {})).data["seen"] is True


async def test_a_second_source_for_a_loaded_module_is_refused(loading: Any, tmp_path: Path):
    first, second = write(tmp_path / "1", "hooks-twice", NEUTRAL), write(tmp_path / "2", "hooks-twice", NEUTRAL)
    resolver = Resolver(hooks_twice=first)
    loader = loading.ModuleLoader(coordinator_with(resolver))
    await loader.load("hooks-twice")
    resolver.places["hooks-twice"] = second

    with pytest.raises(ImportError, match="Refusing to load 'hooks-twice'"):
        await loader.load("hooks-twice")


async def test_a_resolved_directory_that_is_no_module_is_refused_with_a_reason(loading: Any, tmp_path: Path):
    broken = write(tmp_path, "tool-broken", "x = 1")
    coordinator = coordinator_with(Resolver(tool_broken=broken, tool_empty=tmp_path))
    loader = loading.ModuleLoader(coordinator)
    reasons = []
    for module_id in ("tool-broken", "tool-empty"):
        with pytest.raises(loading.ModuleValidationError) as caught:
            await loader.load(module_id)
        reasons.append(loading.module_failure_reason(caught.value))
    loader.cleanup()

    assert reasons == ["invalid_entry_point", "invalid_package_layout"]


@pytest.mark.parametrize(
    ("module_id", "kind"),
    [
        ("loop-x", "orchestrator"),
        ("hooks-tool-x", "tool"),
        ("hooks-x", "hook"),
        ("x", "tool"),
        ("my-context", "context"),
    ],
)
def test_a_type_is_guessed_as_published(loading: Any, module_id: str, kind: str):
    assert loading.ModuleLoader()._guess_from_naming(module_id)[0] == kind


async def test_directories_are_discovered(loading: Any, tmp_path: Path):
    write(tmp_path, "hooks-found", NEUTRAL + '__amplifier_module_type__ = "hook"\n')

    found = {info.id: info for info in await loading.ModuleLoader(search_paths=[tmp_path]).discover()}

    assert (found["hooks-found"].type, found["hooks-found"].name) == ("hook", "Hooks Found")


def test_the_queue_of_on_session_ready_functions_belongs_to_the_loader(loading: Any):
    loader = loading.ModuleLoader()
    loader.enqueue_on_session_ready("m", print)

    queue = loader.get_on_session_ready_queue()
    loader.clear_on_session_ready_queue()

    assert queue == [("m", print)]
    assert loader.get_on_session_ready_queue() == []


async def test_a_module_that_calls_asyncio_is_loaded_on_trio_and_needs_an_island_there(
    loading: Any, tmp_path: Path, anyio_backend_name: str
):
    sys.path.insert(0, str(write(tmp_path, "tool-gathers", ASYNCIO)))
    loader = loading.ModuleLoader()

    assert callable(await loader.load("tool-gathers"))
    assert needs_island("amplifier_module_tool_gathers") is (anyio_backend_name == "trio")


def test_types_and_questions_of_asyncio_are_no_calls(tmp_path: Path):
    file = tmp_path / "x.py"
    file.write_text(
        "import asyncio as a\ntry: ...\nexcept a.CancelledError: ...\nfrom asyncio import sleep\n", encoding="utf-8"
    )

    assert first_asyncio_call(str(file)) == "asyncio.sleep (x.py, line 4)"


# ── ids that built-in modules have as well ───────────────────────────────────────────────────────


@pytest.fixture
def published_todo(alias, tmp_path, monkeypatch):
    """A published tool-todo, installed."""
    distribution(tmp_path, "amplifier_module_tool_todo", {"tool-todo": "amplifier_module_tool_todo:mount"}, "1.2")
    package(tmp_path, "amplifier_module_tool_todo")
    monkeypatch.syspath_prepend(tmp_path)
    yield "amplifier_module_tool_todo"
    sys.modules.pop("amplifier_module_tool_todo", None)


async def mounted_from(source: Any = None, resolver: Any = None) -> str:
    from amplifier_core.loader import ModuleLoader as Published  # type: ignore[import-not-found]

    coordinator = None if resolver is None else SimpleNamespace(get=lambda point: resolver)
    mount = await Published(coordinator).load("tool-todo", source_hint=source)
    (cell,) = [c.cell_contents for c in mount.__closure__ or () if callable(c.cell_contents)]
    return str(cell.__module__)


async def test_a_published_session_uses_the_installed_module_and_logs_it_once(published_todo: str, caplog):
    with caplog.at_level("INFO"):
        assert await mounted_from() == published_todo
    lines = [record.getMessage() for record in caplog.records if "not the built-in one" in record.getMessage()]
    assert len(lines) == 1
    assert published_todo in lines[0]


async def test_a_published_session_takes_ours_where_there_is_no_other_or_it_is_pinned(published_todo: str, monkeypatch):
    assert await mounted_from("builtin") == "amplifier.modules.tool_todo"
    assert await mounted_from({"distribution": published_todo}) == published_todo
    monkeypatch.undo()
    sys.modules.pop(published_todo, None)
    assert await mounted_from() == "amplifier.modules.tool_todo"


async def test_a_pin_is_no_question_for_the_resolver(published_todo: str):
    class Resolver:
        def resolve(self, module_id: str, **_: Any) -> Any:
            raise AssertionError(f"asked about {module_id}")

    assert await mounted_from("builtin", Resolver()) == "amplifier.modules.tool_todo"


async def test_a_pin_that_fits_nothing_is_an_error(alias: None):
    with pytest.raises(ModuleLoadError, match="does not provide it"):
        await mounted_from({"distribution": "absent"})
