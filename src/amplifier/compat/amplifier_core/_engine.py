"""Names of the native module that published code and its tests reach for; nothing here is native."""

import json
import math
import types
from decimal import Decimal
from typing import Any, Final

from amplifier.compat._sessions.coordinator import RustCoordinator
from amplifier.compat._sessions.hooks import RustHookRegistry
from amplifier.compat._sessions.session import RustSession
from amplifier.kernel import CancellationToken as RustCancellationToken
from amplifier.models import ToolResult

from . import capabilities, events
from ._grpc_gen._chat import plain_block, request_json, response_bytes
from ._transports import resolve_module
from .capabilities import *  # noqa: F403  # the constants by their own names
from .events import *  # noqa: F403  # the constants by their own names
from .utils.retry import RetryConfig, compute_delay

__version__ = "2.0.2"
RUST_AVAILABLE = True
RustUnregisterFn = types.FunctionType

_NO_WASM: Final = "{}: modules in WebAssembly are not loaded by this kernel; use the published one for them"

_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}

_WORDS = (
    (("context length", "too many tokens", "maximum context"), "context_length"),
    (("rate limit", "too many requests", "429"), "rate_limit"),
    (("authentication", "api key", "unauthorized", "401"), "authentication"),
    (("not found", "404"), "not_found"),
    (("content filter", "safety", "blocked"), "content_filter"),
    (("timeout", "timed out"), "timeout"),
    (("unavailable", "overloaded", "503"), "provider_unavailable"),
)


class ProviderError:
    """What went wrong with a provider, as plain data; not an exception."""

    __slots__ = ("delay_multiplier", "error_type", "message", "model", "provider", "retry_after", "retryable")

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        model: str | None = None,
        retry_after: float | None = None,
        delay_multiplier: float | None = None,
        retryable: bool = False,
        error_type: str = "Other",
    ) -> None:
        self.message = message
        self.provider = provider
        self.model = model
        self.retry_after = retry_after
        self.delay_multiplier = delay_multiplier
        self.retryable = retryable
        self.error_type = error_type

    def __repr__(self) -> str:
        shown = [_quoted(self.message)]
        shown += [
            f"{name}={_quoted(text)}" for name in ("provider", "model") if (text := getattr(self, name)) is not None
        ]
        for name in ("retry_after", "delay_multiplier"):
            if (number := getattr(self, name)) is not None:
                shown.append(f"{name}={_number(number)}")
        if self.retryable:
            shown.append("retryable=True")
        return f"ProviderError({', '.join(shown)})"

    def __str__(self) -> str:
        return self.message


def _quoted(text: str) -> str:
    """A text as Rust shows it for debugging."""
    escaped = (_ESCAPES.get(char) or (char if char.isprintable() else f"\\u{{{ord(char):x}}}") for char in text)
    return f'"{"".join(escaped)}"'


def _number(number: float) -> str:
    """A float as Rust shows it: no exponent, and no fraction that is zero."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else repr(number)
    shown = format(Decimal(repr(number)), "f")
    return shown.removesuffix(".0")


def classify_error_message(message: str) -> str:
    """The category an error's text belongs to, ``unknown`` if it names none."""
    text = message.lower()
    return next((category for words, category in _WORDS if any(word in text for word in words)), "unknown")


def proto_chat_request_to_json(proto_bytes: bytes) -> str:
    """A request of the published wire format as JSON text.

    Raises:
        ValueError: The bytes are no request.
    """
    return request_json(proto_bytes)


def json_to_proto_chat_response(json_str: str) -> bytes:
    """A response in JSON text as bytes of the published wire format.

    Raises:
        ValueError: The text is no response.
    """
    return response_bytes(json_str)


def _normalize_tool_result_content(content_json: str) -> str | None:
    """Content of a tool result, checked and in its plain form; None when there is none.

    Raises:
        ValueError: It is not what a tool may return; what was given is not shown.
    """
    content = ToolResult(content=_parsed(content_json)).content
    return None if content is None else json.dumps([plain_block(block) for block in content], separators=(",", ":"))


def _tool_result_safe_hook_presentation(tool_result_json: str) -> str:
    """A tool result as hooks may see it, with every image replaced by a note."""
    shown = ToolResult(**json.loads(tool_result_json)).safe_hook_presentation()
    return json.dumps(shown, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError("invalid tool result content") from None


def load_wasm_from_path(path: str) -> dict[str, Any]:
    """Not here: WebAssembly needs the published kernel.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError(_NO_WASM.format(path))


def load_and_mount_wasm(coordinator: Any, path: str) -> dict[str, Any]:
    """Not here: WebAssembly needs the published kernel.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError(_NO_WASM.format(path))


class _Wasm:
    """A module in WebAssembly; there are none here."""

    def __init__(self, *_: Any) -> None:
        raise RuntimeError(_NO_WASM.format(type(self).__name__))


class WasmTool(_Wasm):
    """See `_Wasm`."""


class WasmProvider(_Wasm):
    """See `_Wasm`."""


class WasmHook(_Wasm):
    """See `_Wasm`."""


class WasmContext(_Wasm):
    """See `_Wasm`."""


class WasmOrchestrator(_Wasm):
    """See `_Wasm`."""


class WasmApproval(_Wasm):
    """See `_Wasm`."""


__all__ = [  # noqa: PLE0604 — the constants by their own names
    *events.__all__,
    *capabilities.__all__,
    "RUST_AVAILABLE",
    "ProviderError",
    "RetryConfig",
    "RustCancellationToken",
    "RustCoordinator",
    "RustHookRegistry",
    "RustSession",
    "RustUnregisterFn",
    "WasmApproval",
    "WasmContext",
    "WasmHook",
    "WasmOrchestrator",
    "WasmProvider",
    "WasmTool",
    "__version__",
    "_normalize_tool_result_content",
    "_tool_result_safe_hook_presentation",
    "classify_error_message",
    "compute_delay",
    "json_to_proto_chat_response",
    "load_and_mount_wasm",
    "load_wasm_from_path",
    "proto_chat_request_to_json",
    "resolve_module",
]
