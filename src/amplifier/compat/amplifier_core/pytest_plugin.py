"""The fixtures that suites of published modules use.

The module under test is the package ``amplifier_module_<type>_<name>`` next to the test file's
directory, or above it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .message_models import ChatResponse, TextBlock
from .models import ProviderInfo
from .testing import EventRecorder, MockContextManager, MockCoordinator, MockTool

__all__: list[str] = []

_TYPES = {
    "hooks": "hook",
    "loop": "orchestrator",
    "provider": "provider",
    "tool": "tool",
    "context": "context",
}


def _has_pytest_asyncio() -> bool:
    return importlib.util.find_spec("pytest_asyncio") is not None


def _async_fixture(function: Callable[..., Any]) -> Any:
    """Return an async fixture for pytest-asyncio, or for the runner below without it."""
    if _has_pytest_asyncio():
        return importlib.import_module("pytest_asyncio").fixture(function)

    def driven(
        module_path: Path | None, coordinator: MockCoordinator, request: pytest.FixtureRequest
    ) -> Iterator[object]:
        runner, generator = _runner_of(request.node), function(module_path, coordinator)
        yield runner.run(anext(generator))
        runner.run(anext(generator, None))

    driven.__doc__ = function.__doc__
    return pytest.fixture(name=function.__name__)(driven)


_RUNNER = pytest.StashKey["asyncio.Runner"]()


def _runner_of(item: Any) -> asyncio.Runner:
    """Return the event loop that a test and its fixtures share."""
    present: asyncio.Runner | None = item.stash.get(_RUNNER, None)
    if present is not None:
        return present
    runner = item.stash[_RUNNER] = asyncio.Runner()
    item.addfinalizer(runner.close)
    return runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests marked ``asyncio`` without pytest-asyncio, as far as the inherited suites need."""
    if pyfuncitem.get_closest_marker("asyncio") is None or _has_pytest_asyncio():
        return None
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    _runner_of(pyfuncitem).run(
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    )
    return True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the module."""
    parser.addoption(
        "--module-path",
        action="store",
        default=None,
        help="Path to module directory for behavioral validation",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks."""
    config.addinivalue_line("markers", "module_validation: mark test as module validation test")
    if not _has_pytest_asyncio():
        config.addinivalue_line("markers", "asyncio: run this test on asyncio")


# ── the module ──


@pytest.fixture
def module_path(request: pytest.FixtureRequest) -> Path | None:
    """Return the package of the module under test.

    The option names it. The default is the package next to the nearest directory of tests.
    """
    option = request.config.getoption("--module-path", default=None)
    if option:
        return Path(str(option))
    for directory in (*Path(str(request.path)).parents, Path(str(request.config.rootpath))):
        for item in sorted(directory.iterdir()):
            if item.name.startswith("amplifier_module_") and (item / "__init__.py").exists():
                return item
    return None


@pytest.fixture
def module_type(module_path: Path | None) -> str | None:
    """Return the type of the module under test, which its name contains."""
    if module_path is None:
        return None
    return _TYPES.get(module_path.name.removeprefix("amplifier_module_").partition("_")[0])


@pytest.fixture
def coordinator() -> MockCoordinator:
    """Return a coordinator for the module under test."""
    return MockCoordinator()


@pytest.fixture
def mock_deps(
    coordinator: MockCoordinator,
) -> tuple[MockContextManager, dict[str, object], dict[str, MockTool], EventRecorder]:
    """Return a context, providers, tools and hooks for an orchestrator."""
    tool = MockTool(name="test_tool", output="test result")
    return (
        MockContextManager(),
        {"default": _TalkingProvider()},
        {"test_tool": tool},
        EventRecorder(),
    )


class _TalkingProvider:
    """Returns one text and calls no tools."""

    name = "mock"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="mock", display_name="Mock Provider")

    async def list_models(self) -> list[object]:
        return []

    async def complete(self, request: object, **kwargs: object) -> ChatResponse:
        return ChatResponse(content=[TextBlock(text="Mock response")])

    def parse_tool_calls(self, response: object) -> list[object]:
        return []


# ── the module, mounted ──


async def _mount_fresh(
    module_path: Path | None, coordinator: MockCoordinator
) -> Callable[[], object] | None:
    """Load and mount the module under test, outside sys.modules, and return its cleanup."""
    if module_path is None:
        pytest.skip("No module path detected")
    spec = importlib.util.spec_from_file_location(module_path.name, module_path / "__init__.py")
    assert spec is not None, f"{module_path} is not a package"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cleanup = await module.mount(coordinator, {})
    return cleanup if callable(cleanup) else None


def _mounted_at(point: str, name: str) -> Any:
    """Return a fixture with the first object that the module under test mounts at a point."""

    async def mounted(
        module_path: Path | None, coordinator: MockCoordinator
    ) -> AsyncIterator[object]:
        cleanup = await _mount_fresh(module_path, coordinator)
        instance = coordinator.mount_points.get(point)
        if isinstance(instance, dict):
            instance = next(iter(instance.values()), None)
        if instance is None:
            pytest.fail(f"The module mounted nothing at {point!r}")
        yield instance
        await _clean_up(cleanup)

    mounted.__name__ = name
    return _async_fixture(mounted)


async def _clean_up(cleanup: Callable[[], object] | None) -> None:
    if cleanup:
        answer = cleanup()
        if inspect.isawaitable(answer):
            await answer


provider_module: Any = _mounted_at("providers", "provider_module")
tool_module: Any = _mounted_at("tools", "tool_module")
orchestrator_module: Any = _mounted_at("orchestrator", "orchestrator_module")
context_module: Any = _mounted_at("context", "context_module")


@_async_fixture
async def hook_cleanup(
    module_path: Path | None, coordinator: MockCoordinator
) -> AsyncIterator[Callable[[], object] | None]:
    """Mount a hook module and return its cleanup, if it has one."""
    cleanup = await _mount_fresh(module_path, coordinator)
    yield cleanup
    await _clean_up(cleanup)
