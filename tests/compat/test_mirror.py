"""The published names are there, under the published addresses, and are ours."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

import amplifier
import amplifier.errors
import amplifier.events
from amplifier.models import Model

pytestmark = pytest.mark.usefixtures("alias")

NAMES = """
    AbortError AccessDeniedError AmplifierSession ApprovalProvider ApprovalRequest ApprovalResponse
    AuthenticationError CancellationState CancellationToken ChatRequest ChatResponse ConfigField ConfigurationError
    ContentBlock ContentBlockType ContentFilterError ContextInjection ContextLengthError ContextManager Degradation
    EventRecorder HookHandler HookRegistry HookResult ImageBlock InvalidRequestError InvalidToolCallError LLMError
    LLMTimeoutError Message MockContextManager MockCoordinator MockTool ModelInfo ModuleCoordinator ModuleInfo
    ModuleLoader ModuleValidationError NetworkError NotFoundError Orchestrator Pricing Provider ProviderInfo
    ProviderUnavailableError QuotaExceededError RUST_AVAILABLE RateLimitError ReasoningBlock RedactedThinkingBlock
    ResponseFormat ResponseFormatJson ResponseFormatJsonSchema ResponseFormatText RetryConfig RustCancellationToken
    RustCoordinator RustHookRegistry RustSession ScriptedOrchestrator SessionStatus StreamError TextBlock
    TextContent ThinkingBlock ThinkingContent Tool ToolCall ToolCallBlock ToolCallContent ToolResult ToolResultBlock
    ToolResultContent ToolSpec Usage capabilities classify_error_message create_test_coordinator retry_with_backoff
    wait_for
"""
TOP_LEVEL = NAMES.split()

BY_MODULE = {
    "approval": "ApprovalSystem ApprovalTimeoutError",
    "cancellation": "CancellationState CancellationToken",
    "capabilities": "ALL_WELL_KNOWN_CAPABILITIES BATCH STREAMING TOOLS VISION",
    "content_models": "ContentBlock ContentBlockType TextContent ThinkingContent ToolCallContent ToolResultContent",
    "coordinator": "ModuleCoordinator",
    "correlation": "REQUEST_ID_FIELD current_request_id new_request_id reset_request_id resolve_request_id",
    "display": "DisplaySystem",
    "events": "ALL_EVENTS ARTIFACT_WRITE CANCEL_COMPLETED CONTENT_BLOCK_END ORCHESTRATOR_COMPLETE PROVIDER_RETRY TOOL_PRE",
    "hooks": "ContextInjection HookRegistry HookResult",
    "interfaces": "ApprovalRequest ApprovalResponse ContextManager HookHandler Orchestrator Provider Tool",
    "llm_errors": "LLMError AccessDeniedError NetworkError RateLimitError StreamError",
    "loader": "ModuleLoader ModuleValidationError",
    "message_models": "ChatRequest ChatResponse ContentBlockUnion Message ResponseFormat TextBlock ToolCall ToolSpec Usage",
    "models": "ConfigField ContextInjection HookResult ModelInfo ModuleInfo Pricing ProviderInfo SessionStatus ToolResult",
    "module_sources": "FileSystemModuleSource ModuleLoadError ModuleNotFoundError ModuleSource ModuleSourceResolver",
    "session": "AmplifierSession",
    "testing": "EventRecorder MockContextManager MockCoordinator MockTool ScriptedOrchestrator wait_for",
    "utils": "RetryConfig SENSITIVE_KEYS classify_error_message redact_secrets retry_with_backoff truncate_values",
    "utils.retry": "RetryConfig classify_error_message retry_with_backoff",
    "utils.truncate": "SENSITIVE_KEYS redact_secrets truncate_values",
}


def core(name: str = "") -> Any:
    return importlib.import_module(f"amplifier_core.{name}" if name else "amplifier_core")


def test_top_level_has_published_names():
    assert [name for name in TOP_LEVEL if not hasattr(core(), name)] == []


@pytest.mark.parametrize("module", BY_MODULE)
def test_every_address_has_its_names(module):
    assert [name for name in BY_MODULE[module].split() if not hasattr(core(module), name)] == []
    assert core(module).__name__ == f"amplifier_core.{module}"


def test_model_is_one_class_everywhere():
    found: dict[str, set[int]] = {}
    for module in ["", *BY_MODULE]:
        for name, thing in vars(core(module)).items():
            if inspect.isclass(thing) and issubclass(thing, Model):
                found.setdefault(name, set()).add(id(thing))
                assert thing is getattr(amplifier.models, name)
    assert len(found) > 25
    assert {name for name, classes in found.items() if len(classes) > 1} == set()


def test_llm_error_is_one_class_everywhere():
    names = [
        name for name in TOP_LEVEL if name.endswith("Error") and hasattr(amplifier.errors, name)
    ]
    assert len(names) == 16
    assert [
        name
        for name in names
        if getattr(core("llm_errors"), name) is not getattr(amplifier.errors, name)
    ] == []
    assert [
        name for name in names if getattr(core(), name) is not getattr(amplifier.errors, name)
    ] == []


def test_event_names_match_catalogue():
    events = core("events")
    assert events.ALL_EVENTS == amplifier.events.ALL_EVENTS
    assert len(events.ALL_EVENTS) == 43
    for event in events.ALL_EVENTS:
        assert getattr(events, event.upper().replace(":", "_")) == event


def test_mirror_files_import_relatively():
    """By the long name they would be loaded twice, and a patched name would not be seen."""
    folder = Path(core().__file__).parent
    guilty = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            )
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            guilty += [
                f"{path.name}: {name}"
                for name in named
                if name.startswith("amplifier.compat.amplifier_core")
            ]
    assert guilty == []


def test_foundation_grpc_adapter_is_refused():
    with pytest.raises(
        ImportError, match="the amplifier_core alias has no gRPC; offer the module as an MCP server"
    ):
        from amplifier_core._grpc_gen import amplifier_module_pb2  # noqa: F401


# ── sources ──


def test_source_must_define_paths():
    sources = core("module_sources")

    class Here(sources.ModuleSource):
        def resolve(self) -> Path:
            return Path()

    assert Here().resolve() == Path()
    with pytest.raises(TypeError):
        sources.ModuleSource()


def test_source_of_folders_gives_copies():
    source = core("module_sources").FileSystemModuleSource(["a"])
    source.get_module_paths().append("b")
    source.get_mention_mappings()["x"] = "y"
    assert (source.get_module_paths(), source.get_mention_mappings()) == (["a"], {})


@pytest.mark.parametrize(
    "name", ["Tool", "Provider", "Orchestrator", "ContextManager", "HookHandler"]
)
def test_protocols_reject_isinstance(name):
    import amplifier_core

    protocol = getattr(amplifier_core, name)
    assert protocol is getattr(amplifier_core.interfaces, name)
    with pytest.raises(TypeError, match="runtime_checkable"):
        isinstance(object(), protocol)


def test_tool_inheriting_protocol_has_empty_schema():
    import amplifier_core

    class Old(amplifier_core.Tool):
        name = description = "old"

        async def execute(self, input): ...  # noqa: A002 — its published name

    assert Old().input_schema == {}
