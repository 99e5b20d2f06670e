"""Names and addresses: what can be imported from where, and what is the same object."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import subprocess
import sys

import amplifier_core
import pytest


@pytest.mark.parametrize("name", ["_rust_wrappers", "_hooks_bridge", "loader_dispatch", "ids"])
def test_removed_modules_stay_removed(name):
    with pytest.raises(ImportError):
        importlib.import_module(f"amplifier_core.{name}")


def test_star_import_gives_classes():
    space = {}
    exec("from amplifier_core import *", space)
    assert space["HookResult"] is amplifier_core.HookResult
    assert space["capabilities"] is amplifier_core.capabilities


def test_suites_lie_beside_package():
    here = pathlib.Path(amplifier_core.__file__).parent / "validation"
    for kind in ("provider", "tool", "hook", "orchestrator", "context"):
        assert (here / "behavioral" / f"test_{kind}.py").is_file()


def test_submodule_is_attribute_of_package():
    from amplifier_core import llm_errors, models

    assert amplifier_core.llm_errors is llm_errors
    assert amplifier_core.models is models


@pytest.mark.parametrize(
    "name", ["SESSION_START_DEBUG", "SESSION_START_RAW", "LLM_REQUEST_DEBUG", "LLM_RESPONSE_RAW"]
)
def test_removed_events_are_not_there(name):
    from amplifier_core import events

    assert not hasattr(events, name)


def test_capability_constants_and_their_list():
    from amplifier_core import capabilities

    names = [n for n in dir(capabilities) if n.isupper() and not n.startswith(("_", "ALL_"))]
    assert sorted(getattr(capabilities, n) for n in names) == sorted(
        capabilities.ALL_WELL_KNOWN_CAPABILITIES
    )
    assert len(names) == 16
    assert capabilities.TOOLS == "tools"
    assert not hasattr(capabilities, "ALL_COST_TIERS")


def test_protocols_have_published_methods():
    from amplifier_core import interfaces

    assert isinstance(interfaces.Tool, type)
    parameters = inspect.signature(interfaces.Orchestrator.execute).parameters
    assert list(parameters)[:6] == ["self", "prompt", "context", "providers", "tools", "hooks"]
    assert sum(p.kind is p.VAR_KEYWORD for p in parameters.values()) == 1
    assert inspect.iscoroutinefunction(interfaces.Provider.complete)
    assert not inspect.iscoroutinefunction(interfaces.Provider.parse_tool_calls)
    assert list(
        inspect.signature(interfaces.ContextManager.get_messages_for_request).parameters
    ) == [*("self", "token_budget", "provider")]


@pytest.mark.parametrize(
    "text",
    [
        "from amplifier_core.validation import HookValidator, ToolValidator, ProviderValidator",
        "import amplifier_core.session, amplifier_core.loader, amplifier_core.coordinator",
    ],
)
def test_new_process_imports_without_pytest(text):
    script = f"import sys; sys.modules['pytest'] = None; {text}; print('ok')"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "ok"), ran.stderr
