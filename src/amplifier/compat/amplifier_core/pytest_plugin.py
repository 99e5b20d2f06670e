"""The fixtures that suites of published modules use; pytest finds this file by the alias's metadata.

The directory of a test file names the module under test: ``amplifier-module-<type>-<name>/`` with a package
``amplifier_module_<type>_<name>`` in it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .message_models import ChatResponse, TextBlock
from .models import ProviderInfo

__all__ = ["AmplifierModulePlugin"]

_DIRECTORY = re.compile(r"amplifier-module-(\w+)-")
_PACKAGE = re.compile(r"amplifier_module_(\w+?)_")
_TYPES = {
    "hooks": "hook",
    "hook": "hook",
    "loop": "orchestrator",
    "orchestrator": "orchestrator",
    "provider": "provider",
    "tool": "tool",
    "context": "context",
}
_BEHAVIORAL = "amplifier_core/validation/behavioral"


def _has_pytest_asyncio() -> bool:
    return importlib.util.find_spec("pytest_asyncio") is not None


def _async_fixture(function: Callable[..., Any]) -> Any:
    """An async fixture of pytest-asyncio where that is installed; otherwise one that the runner below drives."""
    if _has_pytest_asyncio():
        return importlib.import_module("pytest_asyncio").fixture(function)

    def driven(module_path: Path | None, coordinator: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
        runner, generator = _runner_of(request.node), function(module_path, coordinator)
        yield runner.run(anext(generator))
        runner.run(anext(generator, None))

    driven.__doc__ = function.__doc__
    return pytest.fixture(name=function.__name__)(driven)


_RUNNER = pytest.StashKey["asyncio.Runner"]()


def _runner_of(item: Any) -> asyncio.Runner:
    """The loop that one test and its fixtures share."""
    present: asyncio.Runner | None = item.stash.get(_RUNNER, None)
    if present is not None:
        return present
    runner = item.stash[_RUNNER] = asyncio.Runner()
    item.addfinalizer(runner.close)
    return runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests marked ``asyncio`` where pytest-asyncio is not installed: the inherited suites need no more than this."""
    if pyfuncitem.get_closest_marker("asyncio") is None or _has_pytest_asyncio():
        return None
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    _runner_of(pyfuncitem).run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


def _detect_module_info(start_path: Path) -> tuple[Path | None, str | None]:
    """The package and the raw type of the module a directory belongs to."""
    for directory in (start_path, *start_path.parents):
        found = _DIRECTORY.match(directory.name)
        if found:
            package = next((item for item in directory.iterdir() if item.is_dir() and _PACKAGE.match(item.name)), None)
            if package is not None:
                return package, found[1]
    if start_path.is_dir():
        for item in start_path.iterdir():
            named = _PACKAGE.match(item.name)
            if item.is_dir() and named:
                return item, named[1]
    return None, None


def _normalize_module_type(raw_type: str | None) -> str | None:
    """The one word for a type that has several."""
    return _TYPES.get(raw_type, raw_type) if raw_type else None


def _infer_type_from_name(name: str) -> str | None:
    """The type that a name contains."""
    return next(
        (_TYPES[word] for word in ("provider", "tool", "hook", "loop", "orchestrator", "context") if word in name), None
    )


class AmplifierModulePlugin:
    """The module under test of the whole run, if its directories name one."""

    def __init__(self) -> None:
        self.module_path: Path | None = None
        self.module_type: str | None = None
        self._detected = False

    def detect(self, config: Any) -> None:
        """Look at the working directory, the root and what pytest was given; once."""
        if self._detected:
            return
        self._detected = True
        given = [Path(argument) for argument in config.args]
        places = [Path.cwd(), Path(str(config.rootpath)), *(p if p.is_dir() else p.parent for p in given if p.exists())]
        for place in places:
            self.module_path, raw_type = _detect_module_info(place)
            if self.module_path is not None:
                self.module_type = _normalize_module_type(raw_type or _infer_type_from_name(str(self.module_path)))
                return


_plugin = AmplifierModulePlugin()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the module."""
    parser.addoption(
        "--module-path", action="store", default=None, help="Path to module directory for behavioral validation"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find out what the run is about."""
    _plugin.detect(config)
    config.addinivalue_line("markers", "module_validation: mark test as module validation test")
    if not _has_pytest_asyncio():
        config.addinivalue_line("markers", "asyncio: run this test on asyncio")


def pytest_collection_modifyitems(session: Any, config: Any, items: list[Any]) -> None:
    """Of the suites collected from the mirror itself, run only those of the module's own type."""
    expected = None if _plugin.module_type is None else f"test_{_plugin.module_type}.py"
    for item in items:
        path = Path(str(item.path))
        if _BEHAVIORAL not in path.as_posix():
            continue
        if _plugin.module_path is None:
            if "module_path" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="Not running in Amplifier module context"))
        elif expected is not None and path.name != expected:
            reason = f"Test for different module type (detected: {_plugin.module_type})"
            item.add_marker(pytest.mark.skip(reason=reason))


# ── the module ──


def _module_directory(file: Path) -> Path | None:
    return next((place for place in file.parents if place.name.startswith("amplifier-module-")), None)


@pytest.fixture
def module_path(request: pytest.FixtureRequest) -> Path | None:
    """The package of the module that the test file belongs to."""
    named = request.config.getoption("--module-path", default=None)
    if named:
        return Path(str(named))
    directory = _module_directory(Path(str(request.path)))
    if directory is not None:
        for item in directory.iterdir():
            if item.is_dir() and item.name.startswith("amplifier_") and (item / "__init__.py").exists():
                return item
    return _plugin.module_path


@pytest.fixture
def module_type(request: pytest.FixtureRequest) -> str | None:
    """The type of the module that the test file belongs to."""
    directory = _module_directory(Path(str(request.path)))
    if directory is None:
        return _plugin.module_type
    word = directory.name.removeprefix("amplifier-module-").partition("-")[0]
    return {"provider": "provider", "tool": "tool", "hooks": "hook", "loop": "orchestrator", "context": "context"}.get(
        word
    )


@pytest.fixture
def is_module_context() -> bool:
    """Whether the run is about a module at all."""
    return _plugin.module_path is not None


@pytest.fixture
def coordinator() -> Any:
    """A coordinator to mount into."""
    from .testing import MockCoordinator  # noqa: PLC0415 — tests patch the name there

    return MockCoordinator()


@pytest.fixture
def mock_deps(coordinator: Any) -> tuple[Any, dict[str, Any], dict[str, Any], Any]:
    """What an orchestrator's execute needs: context, providers, tools, hooks."""
    from .testing import EventRecorder, MockContextManager, MockTool  # noqa: PLC0415 — as above

    tool = MockTool(name="test_tool", output="test result")
    return MockContextManager(), {"default": _TalkingProvider()}, {"test_tool": tool}, EventRecorder()


class _TalkingProvider:
    """Returns one text and calls no tools."""

    name = "mock"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="mock", display_name="Mock Provider")

    async def list_models(self) -> list[Any]:
        return []

    async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
        return ChatResponse(content=[TextBlock(text="Mock response")])

    def parse_tool_calls(self, response: Any) -> list[Any]:
        return []


# ── the module, mounted ──


def _import_file(path: Path) -> Any:
    """A module from its file, apart from sys.modules: each test gets a fresh one."""
    source = path / "__init__.py" if path.is_dir() else path
    if not source.exists():
        raise FileNotFoundError(f"Module path not found: {source}")
    spec = importlib.util.spec_from_file_location(path.name if path.is_dir() else path.stem, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"Could not load spec for {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def _load_module(module_path: Path, coordinator: Any, config: dict[str, Any] | None = None) -> Any:
    """Load a module from its file, mount it, and return its cleanup.

    Raises:
        FileNotFoundError: There is no such module.
        ImportError: Python cannot load it.
        AttributeError: It has no mount.
    """
    module = _import_file(Path(module_path))
    if not hasattr(module, "mount"):
        raise AttributeError("Module has no mount() function")
    cleanup = await module.mount(coordinator, config or {})
    return cleanup if callable(cleanup) else None


async def _mounted(module_path: Path | None, coordinator: Any, point: str | None, words: str) -> Any:
    """Mount the module under test; gives what it mounted and its cleanup."""
    if module_path is None:
        pytest.skip("No module path detected")
    cleanup = await _load_module(module_path, coordinator)
    if point is None:
        return SimpleNamespace(instance=cleanup, cleanup=cleanup)
    found = coordinator.mount_points.get(point)
    if isinstance(found, dict):
        found = next(iter(found.values()), None)
    if found is None:
        pytest.fail(f"No {words} was mounted")
    return SimpleNamespace(instance=found, cleanup=cleanup)


async def _clean_up(cleanup: Any) -> None:
    if cleanup:
        answer = cleanup()
        if inspect.isawaitable(answer):
            await answer


@_async_fixture
async def provider_module(module_path: Path | None, coordinator: Any) -> AsyncIterator[Any]:
    """The first provider that the module mounts."""
    mounted = await _mounted(module_path, coordinator, "providers", "provider")
    yield mounted.instance
    await _clean_up(mounted.cleanup)


@_async_fixture
async def tool_module(module_path: Path | None, coordinator: Any) -> AsyncIterator[Any]:
    """The first tool that the module mounts."""
    mounted = await _mounted(module_path, coordinator, "tools", "tool")
    yield mounted.instance
    await _clean_up(mounted.cleanup)


@_async_fixture
async def hook_cleanup(module_path: Path | None, coordinator: Any) -> AsyncIterator[Any]:
    """The cleanup of a mounted hook module, if it gave one."""
    mounted = await _mounted(module_path, coordinator, None, "hook")
    yield mounted.cleanup
    await _clean_up(mounted.cleanup)


@_async_fixture
async def orchestrator_module(module_path: Path | None, coordinator: Any) -> AsyncIterator[Any]:
    """The orchestrator that the module mounts."""
    mounted = await _mounted(module_path, coordinator, "orchestrator", "orchestrator")
    yield mounted.instance
    await _clean_up(mounted.cleanup)


@_async_fixture
async def context_module(module_path: Path | None, coordinator: Any) -> AsyncIterator[Any]:
    """The context manager that the module mounts."""
    mounted = await _mounted(module_path, coordinator, "context", "context manager")
    yield mounted.instance
    await _clean_up(mounted.cleanup)
