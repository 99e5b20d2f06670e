"""Names and addresses: what can be imported from where, and what is the same object."""

from __future__ import annotations

import importlib
import inspect
import logging
import pathlib
import subprocess
import sys

import amplifier_core
import pytest

MODULES = [
    "approval",
    "cancellation",
    "capabilities",
    "cli",
    "content_models",
    "coordinator",
    "correlation",
    "display",
    "events",
    "hooks",
    "interfaces",
    "llm_errors",
    "loader",
    "message_models",
    "models",
    "module_sources",
    "session",
    "testing",
    "utils",
    "utils.retry",
    "utils.truncate",
    "validation",
    "validation.base",
    "validation.behavioral",
    "validation.context",
    "validation.hook",
    "validation.mount_plan",
    "validation.orchestrator",
    "validation.proto_schema",
    "validation.provider",
    "validation.structural",
    "validation.tool",
    "_async_compat",
    "_collect_helper",
    "_engine",
    "_session_exec",
    "_session_init",
]


@pytest.mark.parametrize("name", MODULES)
def test_submodules_are_importable_and_have_files(name):
    module = importlib.import_module(f"amplifier_core.{name}")
    assert module.__name__ == f"amplifier_core.{name}"
    assert module.__file__
    assert sys.modules[f"amplifier_core.{name}"] is module


@pytest.mark.parametrize("name", ["_rust_wrappers", "_hooks_bridge", "loader_dispatch", "ids"])
def test_modules_that_are_gone_stay_gone(name):
    with pytest.raises(ImportError):
        importlib.import_module(f"amplifier_core.{name}")


def test_every_name_of_all_is_there():
    assert len(amplifier_core.__all__) == len(set(amplifier_core.__all__)) >= 80
    for name in amplifier_core.__all__:
        assert hasattr(amplifier_core, name), name


def test_star_import_gives_the_classes():
    space = {}
    exec("from amplifier_core import *", space)
    assert space["HookResult"] is amplifier_core.HookResult
    assert space["capabilities"] is amplifier_core.capabilities


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("HookResult", ("models", "hooks")),
        ("ContextInjection", ("models", "hooks")),
        ("ToolResult", ("models",)),
        ("ModelInfo", ("models",)),
        ("ProviderInfo", ("models",)),
        ("ConfigField", ("models",)),
        ("Pricing", ("models",)),
        ("SessionStatus", ("models",)),
        ("ToolCall", ("message_models",)),
        ("ChatRequest", ("message_models",)),
        ("ChatResponse", ("message_models",)),
        ("Message", ("message_models",)),
        ("Usage", ("message_models",)),
        ("TextContent", ("content_models",)),
        ("LLMError", ("llm_errors",)),
        ("HookRegistry", ("hooks",)),
        ("ModuleCoordinator", ("coordinator",)),
        ("CancellationToken", ("cancellation",)),
        ("CancellationState", ("cancellation",)),
        ("ModuleLoader", ("loader",)),
        ("ModuleValidationError", ("loader",)),
        ("Tool", ("interfaces",)),
        ("ApprovalRequest", ("interfaces",)),
        ("MockTool", ("testing",)),
        ("RetryConfig", ("utils.retry", "_engine")),
        ("retry_with_backoff", ("utils.retry",)),
    ],
)
def test_one_object_per_name(name, places):
    for place in places:
        assert getattr(importlib.import_module(f"amplifier_core.{place}"), name) is getattr(amplifier_core, name)


@pytest.mark.parametrize(
    ("name", "native"),
    [
        ("AmplifierSession", "RustSession"),
        ("HookRegistry", "RustHookRegistry"),
        ("CancellationToken", "RustCancellationToken"),
        ("ModuleCoordinator", "RustCoordinator"),
    ],
)
def test_the_top_level_classes_are_the_native_ones(name, native):
    from amplifier_core import _engine

    assert getattr(amplifier_core, name) is getattr(_engine, native) is getattr(amplifier_core, native)
    assert isinstance(getattr(amplifier_core, name), type)


@pytest.mark.parametrize("name", ["RustSession", "RustHookRegistry", "RustCoordinator"])
def test_the_native_classes_have_their_published_names(name):
    assert getattr(amplifier_core, name).__name__ == name


def test_there_are_two_session_classes():
    from amplifier_core.session import AmplifierSession

    assert AmplifierSession is not amplifier_core.AmplifierSession
    assert AmplifierSession.__module__ == "amplifier_core.session"


def test_sources_name_where_the_coordinator_comes_from():
    import amplifier_core.coordinator

    assert amplifier_core.coordinator.__all__ == ["ModuleCoordinator"]
    text = pathlib.Path(inspect.getfile(amplifier_core.coordinator)).read_text()
    assert "from amplifier_core._engine import RustCoordinator as ModuleCoordinator" in text
    assert "RustCoordinator as ModuleCoordinator" in pathlib.Path(inspect.getfile(amplifier_core)).read_text()


def test_hooks_exports_three_names():
    import amplifier_core.hooks

    assert set(amplifier_core.hooks.__all__) == {"HookRegistry", "ContextInjection", "HookResult"}


def test_versions_and_flags():
    from amplifier_core import _engine

    assert amplifier_core.__version__ == _engine.__version__ == "2.0.2"
    assert amplifier_core.RUST_AVAILABLE is _engine.RUST_AVAILABLE is True


def test_the_distribution_is_known():
    from importlib.metadata import distribution, version

    assert version("amplifier-core") == version("amplifier_core") == "2.0.2"
    entries = {(entry.group, entry.name, entry.value) for entry in distribution("amplifier-core").entry_points}
    assert ("pytest11", "amplifier_module", "amplifier_core.pytest_plugin") in entries
    assert ("console_scripts", "amplifier-core", "amplifier_core.cli:main") in entries


def test_suites_lie_beside_the_package():
    here = pathlib.Path(amplifier_core.__file__).parent / "validation"
    for kind in ("provider", "tool", "hook", "orchestrator", "context"):
        assert (here / "behavioral" / f"test_{kind}.py").is_file()
        assert (here / "structural" / f"test_{kind}.py").is_file()


def test_a_submodule_is_an_attribute_of_the_package():
    from amplifier_core import llm_errors, models

    assert amplifier_core.llm_errors is llm_errors
    assert amplifier_core.models is models


def test_session_shares_the_helper_of_its_neighbour():
    from amplifier_core import _session_init, session

    assert session._safe_exception_str is _session_init._safe_exception_str
    assert session.initialize_session is _session_init.initialize_session
    assert inspect.iscoroutinefunction(_session_init.initialize_session)


def test_text_of_exceptions_is_safe():
    from amplifier_core._session_init import _safe_exception_str

    class Odd(Exception):
        def __str__(self):
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")

    assert _safe_exception_str(ValueError("x")) == "x"
    assert "Odd" in _safe_exception_str(Odd())


def test_event_constants_and_their_list():
    from amplifier_core import _engine, events

    constants = {
        n: getattr(events, n) for n in dir(events) if n.isupper() and not n.startswith("_") and n != "ALL_EVENTS"
    }
    assert type(events.ALL_EVENTS) is list
    assert len(constants) == len(events.ALL_EVENTS) == 43
    assert set(constants.values()) == set(events.ALL_EVENTS)
    for name, value in constants.items():
        assert getattr(_engine, name) == value
        assert value.count(":") == 1
        assert name == value.replace(":", "_").upper()


@pytest.mark.parametrize("name", ["SESSION_START_DEBUG", "SESSION_START_RAW", "LLM_REQUEST_DEBUG", "LLM_RESPONSE_RAW"])
def test_removed_events_are_not_there(name):
    from amplifier_core import events

    assert not hasattr(events, name)


def test_capability_constants_and_their_list():
    from amplifier_core import _engine, capabilities

    names = [n for n in dir(capabilities) if n.isupper() and not n.startswith(("_", "ALL_"))]
    assert sorted(getattr(capabilities, n) for n in names) == sorted(capabilities.ALL_WELL_KNOWN_CAPABILITIES)
    assert len(names) == 16
    assert all(getattr(_engine, n) == getattr(capabilities, n) for n in names)
    assert capabilities.TOOLS == "tools"
    assert not hasattr(capabilities, "ALL_COST_TIERS")


def test_protocols_are_classes_with_the_published_methods():
    from amplifier_core import interfaces

    assert isinstance(interfaces.Tool, type)
    parameters = inspect.signature(interfaces.Orchestrator.execute).parameters
    assert list(parameters)[:6] == ["self", "prompt", "context", "providers", "tools", "hooks"]
    assert sum(p.kind is p.VAR_KEYWORD for p in parameters.values()) == 1
    assert inspect.iscoroutinefunction(interfaces.Provider.complete)
    assert not inspect.iscoroutinefunction(interfaces.Provider.parse_tool_calls)
    assert list(inspect.signature(interfaces.ContextManager.get_messages_for_request).parameters) == [
        *("self", "token_budget", "provider")
    ]


def test_loggers_have_the_names_of_the_files():
    import amplifier_core.loader
    import amplifier_core.session

    assert amplifier_core.loader.logger is logging.getLogger("amplifier_core.loader")
    assert amplifier_core.session.logger is logging.getLogger("amplifier_core.session")


@pytest.mark.parametrize(
    "text",
    [
        "from amplifier_core.validation import HookValidator, ToolValidator, ProviderValidator",
        "from amplifier_core.validation.base import check_on_session_ready",
        "import amplifier_core._session_init, amplifier_core.loader, amplifier_core.coordinator",
    ],
)
def test_a_new_process_imports_without_pytest(text):
    script = f"import sys; sys.modules['pytest'] = None; {text}; print('ok')"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "ok"), ran.stderr


def test_the_command_line(tmp_path, monkeypatch, capsys):
    from amplifier_core.cli import VALIDATORS, main

    def status(*arguments):
        monkeypatch.setattr("sys.argv", ["amplifier-core", *arguments])
        try:
            main()
        except SystemExit as ended:
            return ended.code
        return None

    (tmp_path / "empty_tool.py").write_text("x = 1\n")
    assert set(VALIDATORS) == {"provider", "tool", "hook", "orchestrator", "context"}
    assert not status("list-types")
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in VALIDATORS)
    assert status("validate", "tool", str(tmp_path / "empty_tool.py")) == 1
    assert "FAILED" in capsys.readouterr().out
    assert status("validate", "tool", str(tmp_path / "empty_tool.py"), "-q") == 1
    assert status("validate", "nonsense", str(tmp_path)) == 2
    assert status("validate", "tool", str(tmp_path / "absent")) == 2
    assert not status("--version")
    assert "1.0.0" in capsys.readouterr().out
