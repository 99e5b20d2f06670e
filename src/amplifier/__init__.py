"""The Amplifier agent kernel on structured concurrency: the same on asyncio and on trio.

    async with AmplifierSession(plan) as session:
        text = await session.execute("Hello")

Layout, to be read top to bottom; an import may only point down:

    cli · pytest_plugin      entry points
    servers · durable        an agent behind a protocol · turns that survive their processes
    compat                   published modules run unchanged
    conformance              is this a good module?
    shared_sessions          open sessions that several callers use: questions, event log
    testing                  doubles, virtual time, cancellation at every suspension
    tracing                  traces of sessions, and the running tasks of a process
    agents                   agent(): an agent in ten lines; it builds a plan
    modules                  built-in loops, contexts, providers, tools and hooks
    store                    conversations, the steps of a turn and the index of sessions in SQLite
    kernel                   the mechanism: session, coordinator, hooks, cancellation
    budget                   limits for tokens, cost, calls and time
    loading                  from module id to mount function, also for asyncio modules on trio
    plan                     from dict to mount plan
    functions                functions as tools and hooks
    contracts                the duties of a module, and its rights
    models                   values with a stable JSON form, typed answers, events of a turn
    _internal                code that packages share: JSON, foreign input, threads, processes
    events · errors          event catalogue and payloads · error taxonomy

The everyday names are here. Others are in `amplifier.errors`, `amplifier.models`,
`amplifier.contracts`, `amplifier.plan`, `amplifier.events` and `amplifier.events.payloads`. A name
is imported when it is first used, so that ``import amplifier`` costs next to nothing.
"""

from amplifier._internal.facade import __version__

# Type checkers take it for True. Importing `typing` would take longer than the rest of this file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from amplifier.agents import agent, run, run_sync
    from amplifier.contracts import (
        ApprovalQuestion,
        ContextManager,
        HookHandler,
        Orchestrator,
        Provider,
        Tool,
    )
    from amplifier.errors import (
        AmplifierError,
        BudgetExceeded,
        ContractError,
        ExecutionCancelled,
        ExecutionTimeout,
        LLMError,
        ModelError,
        ModuleLoadError,
        ModuleNotFoundError,
        PlanError,
        RateLimitError,
        ResultError,
        SessionBusyError,
        SessionStateError,
    )
    from amplifier.functions import on, tool
    from amplifier.kernel import (
        AmplifierSession,
        CancellationState,
        CancellationToken,
        HookRegistry,
        ModuleCoordinator,
    )
    from amplifier.loading import ModuleLoader
    from amplifier.models import (
        ChatRequest,
        ChatResponse,
        HookResult,
        Message,
        ModelInfo,
        ProviderInfo,
        TextBlock,
        ThinkingBlock,
        ToolCall,
        ToolCallBlock,
        ToolResult,
        ToolResultBlock,
        ToolSpec,
        Usage,
        file,
        from_dict,
        from_json,
        to_dict,
        to_json,
    )
else:  # not for type checkers, which would accept every attribute
    from amplifier._internal.facade import import_name as __getattr__  # noqa: F401  # Python calls it
    from amplifier._internal.facade import names as __dir__  # noqa: F401  # the same

__all__ = [
    "AmplifierError",
    "AmplifierSession",
    "ApprovalQuestion",
    "BudgetExceeded",
    "CancellationState",
    "CancellationToken",
    "ChatRequest",
    "ChatResponse",
    "ContextManager",
    "ContractError",
    "ExecutionCancelled",
    "ExecutionTimeout",
    "HookHandler",
    "HookRegistry",
    "HookResult",
    "LLMError",
    "Message",
    "ModelError",
    "ModelInfo",
    "ModuleCoordinator",
    "ModuleLoadError",
    "ModuleLoader",
    "ModuleNotFoundError",
    "Orchestrator",
    "PlanError",
    "Provider",
    "ProviderInfo",
    "RateLimitError",
    "ResultError",
    "SessionBusyError",
    "SessionStateError",
    "TextBlock",
    "ThinkingBlock",
    "Tool",
    "ToolCall",
    "ToolCallBlock",
    "ToolResult",
    "ToolResultBlock",
    "ToolSpec",
    "Usage",
    "__version__",
    "agent",
    "file",
    "from_dict",
    "from_json",
    "on",
    "run",
    "run_sync",
    "to_dict",
    "to_json",
    "tool",
]
