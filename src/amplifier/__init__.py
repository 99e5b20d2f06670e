"""The Amplifier agent kernel on structured concurrency: the same on asyncio and on trio.

    async with AmplifierSession(plan) as session:
        text = await session.execute("Hello")

Layout, to be read top to bottom; an import may only point down:

    cli · pytest_plugin      entry points
    acp · serve              an agent in an editor · an agent behind HTTP
    compat                   published modules run unchanged
    conformance              is this a good module?
    testing                  doubles, virtual time, cancellation at every suspension
    modules                  built-in loops, contexts, providers, tools and hooks
    observability            what every task of a process is doing
    durable                  turns that survive the processes that run them
    tracing                  what a session did: from its event log to text and pages
    mcp                      an agent as an MCP server
    kernel                   the mechanism: session, coordinator, hooks, cancellation
    budget                   limits for tokens, cost, calls and time
    loading · plan           from module id to mount function · from dict to mount plan
    contracts                what a module must be and what it may expect
    models                   values that cross a boundary; stable JSON
    _json · _spelling        JSON helpers · names that were probably meant
    errors · events          error taxonomy · event catalogue

A name is imported when it is first used, so that ``import amplifier`` costs next to nothing.
"""

from amplifier._version import __version__

TYPE_CHECKING = False  # as type checkers know it; importing `typing` would take longer than all the rest of this file
if TYPE_CHECKING:
    from amplifier.contracts import (
        ApprovalProvider,
        ContextManager,
        HookHandler,
        Orchestrator,
        Provider,
        Tool,
    )
    from amplifier.errors import (
        AbortError,
        AccessDeniedError,
        AmplifierError,
        AuthenticationError,
        BudgetError,
        BudgetExceeded,
        ConfigurationError,
        ContentFilterError,
        ContextLengthError,
        ContractError,
        ExecutionCancelled,
        ExecutionDenied,
        ExecutionTimeout,
        InvalidRequestError,
        InvalidToolCallError,
        LLMError,
        LLMTimeoutError,
        ModelError,
        ModuleLoadError,
        ModuleNotFoundError,
        NetworkError,
        NotFoundError,
        PlanError,
        ProviderUnavailableError,
        QuotaExceededError,
        RateLimitError,
        ResultError,
        SessionBusyError,
        SessionStateError,
        StreamError,
    )
    from amplifier.kernel import (
        AmplifierSession,
        CancellationState,
        CancellationToken,
        HookRegistry,
        ModuleCoordinator,
    )
    from amplifier.loading import ModuleLoader
    from amplifier.models import (
        ApprovalGate,
        ApprovalRequest,
        ApprovalResponse,
        ChatRequest,
        ChatResponse,
        ConfigField,
        ContentBlock,
        ContentBlockType,
        ContextInjection,
        Degradation,
        HookResult,
        ImageBlock,
        Message,
        ModelInfo,
        ModuleInfo,
        Pricing,
        ProviderInfo,
        ReasoningBlock,
        RedactedThinkingBlock,
        ResponseFormat,
        ResponseFormatJson,
        ResponseFormatJsonSchema,
        ResponseFormatText,
        SessionStatus,
        TextBlock,
        TextContent,
        ThinkingBlock,
        ThinkingContent,
        ToolCall,
        ToolCallBlock,
        ToolCallContent,
        ToolResult,
        ToolResultBlock,
        ToolResultContent,
        ToolSpec,
        UnknownBlock,
        Usage,
        from_dict,
        from_json,
        to_dict,
        to_json,
    )
else:  # not for type checkers, which would accept every attribute
    from amplifier._facade import import_name as __getattr__  # noqa: F401  # Python calls it
    from amplifier._facade import names as __dir__  # noqa: F401  # the same

__all__ = [
    "AbortError",
    "AccessDeniedError",
    "AmplifierError",
    "AmplifierSession",
    "ApprovalGate",
    "ApprovalProvider",
    "ApprovalRequest",
    "ApprovalResponse",
    "AuthenticationError",
    "BudgetError",
    "BudgetExceeded",
    "CancellationState",
    "CancellationToken",
    "ChatRequest",
    "ChatResponse",
    "ConfigField",
    "ConfigurationError",
    "ContentBlock",
    "ContentBlockType",
    "ContentFilterError",
    "ContextInjection",
    "ContextLengthError",
    "ContextManager",
    "ContractError",
    "Degradation",
    "ExecutionCancelled",
    "ExecutionDenied",
    "ExecutionTimeout",
    "HookHandler",
    "HookRegistry",
    "HookResult",
    "ImageBlock",
    "InvalidRequestError",
    "InvalidToolCallError",
    "LLMError",
    "LLMTimeoutError",
    "Message",
    "ModelError",
    "ModelInfo",
    "ModuleCoordinator",
    "ModuleInfo",
    "ModuleLoadError",
    "ModuleLoader",
    "ModuleNotFoundError",
    "NetworkError",
    "NotFoundError",
    "Orchestrator",
    "PlanError",
    "Pricing",
    "Provider",
    "ProviderInfo",
    "ProviderUnavailableError",
    "QuotaExceededError",
    "RateLimitError",
    "ReasoningBlock",
    "RedactedThinkingBlock",
    "ResponseFormat",
    "ResponseFormatJson",
    "ResponseFormatJsonSchema",
    "ResponseFormatText",
    "ResultError",
    "SessionBusyError",
    "SessionStateError",
    "SessionStatus",
    "StreamError",
    "TextBlock",
    "TextContent",
    "ThinkingBlock",
    "ThinkingContent",
    "Tool",
    "ToolCall",
    "ToolCallBlock",
    "ToolCallContent",
    "ToolResult",
    "ToolResultBlock",
    "ToolResultContent",
    "ToolSpec",
    "UnknownBlock",
    "Usage",
    "__version__",
    "from_dict",
    "from_json",
    "to_dict",
    "to_json",
]
