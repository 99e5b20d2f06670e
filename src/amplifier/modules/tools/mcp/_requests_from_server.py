"""What a server may ask of its client: roots, an answer of the session's model (sampling), input of the user (elicitation).

A server may ask only while a call of it is running, on behalf of the session that called last. When the last call ends, so do its
requests: a stopped turn leaves neither a question nor a model call behind.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
from mcp.client.session import ClientRequestContext
from mcp_types import (
    INVALID_REQUEST,
    AudioContent,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ImageContent,
    ListRootsResult,
    Root,
    SamplingMessage,
    TextContent,
)
from pydantic import FileUrl

from amplifier._internal.json import redact_text, visible_text
from amplifier.contracts import Coordinator, UserInput
from amplifier.errors import NoOneToAskError
from amplifier.models import ChatRequest, ChatResponse, HookResult, ImageBlock, Message, TextBlock

from ..._shared.session import working_directory
from ._options import MODULE, ServerOptions

logger = logging.getLogger("amplifier.modules.tool-mcp")

SAMPLING, ELICITATION = "mcp:sampling", "mcp:elicitation"

_ASKING = 300.0
"""Seconds to wait for the user."""
_MOST_SHOWN = 100_000
"""Characters of a question; a longer one is refused, because all of it has to be seen."""
_OPTIONS = ["Allow once", "Allow always", "Deny"]
_ACCEPT, _DECLINE = "Allow", "Deny"

_Answer = TypeVar("_Answer")


class RequestsFromServer:
    """Answers the requests of one server.

    Args:
        options: The server's.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._calls: dict[object, Coordinator] = {}
        self._running: set[anyio.CancelScope] = set()

    @contextmanager
    def during_call(self, coordinator: Coordinator) -> Iterator[None]:
        """Let the server ask while the block runs."""
        call = object()
        self._calls[call] = coordinator
        try:
            yield
        finally:
            del self._calls[call]
            if not self._calls:
                for scope in self._running:
                    scope.cancel()

    async def _answer(
        self, what: str, answer: Callable[[Coordinator], Awaitable[_Answer]]
    ) -> _Answer | ErrorData:
        """Answer on behalf of the session that called last, until its call ends."""
        if not self._calls:
            logger.info(
                "server %r asked for %s outside of a call: refused", self._options.name, what
            )
            return _refusal(f"{what} is available only during a call")
        coordinator = list(self._calls.values())[-1]
        with anyio.CancelScope() as scope:
            self._running.add(scope)
            try:
                return await answer(coordinator)
            finally:
                self._running.discard(scope)
        return _refusal("the call has ended")

    # ── roots ──

    async def list_roots(self, context: ClientRequestContext) -> ListRootsResult | ErrorData:
        """The directories of the plan; relative ones are below the working directory of the calling session."""
        return ListRootsResult(
            roots=[
                Root(uri=FileUrl(folder.as_uri()), name=folder.name or "/")
                for folder in self._folders()
            ]
        )

    def _folders(self) -> list[Path]:
        base = Path.cwd()
        for coordinator in list(self._calls.values())[-1:]:
            base = working_directory(coordinator, base)
        return [
            Path(os.path.normpath(base / Path(root).expanduser()))
            for root in self._options.roots or ()
        ]

    # ── sampling ──

    async def sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Have the session's model answer, if the user allows it."""
        return await self._answer("sampling", lambda coordinator: self._sample(coordinator, params))

    async def _sample(
        self, coordinator: Coordinator, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        if self._options.sampling == "ask" and not await self._is_allowed(coordinator, params):
            return _refusal("the user does not allow it")
        provider = next(iter(coordinator.get("providers").values()), None)
        if provider is None:
            return _refusal("the session has no model")
        request = ChatRequest(
            messages=_messages(params),
            max_output_tokens=max(1, params.max_tokens),
            temperature=params.temperature,
            stop=params.stop_sequences,
        )
        try:
            with anyio.fail_after(self._options.call_timeout):
                response = await provider.complete(request)
        except Exception as error:  # noqa: BLE001 - a provider is foreign code; its failure is an answer to the server
            logger.warning(
                "server %r asked the model, which failed: %s",
                self._options.name,
                redact_text(str(error)),
            )
            return _refusal(f"the model failed: {type(error).__name__}")
        await coordinator.hooks.emit(
            SAMPLING, {"server": self._options.name, "max_tokens": params.max_tokens}
        )
        return CreateMessageResult(
            role="assistant",
            content=TextContent(type="text", text=_text(response)),
            model=str(response.extra.get("model") or provider.name),
            stop_reason="maxTokens"
            if response.finish_reason in ("length", "max_tokens")
            else "endTurn",
        )

    async def _is_allowed(
        self, coordinator: Coordinator, params: CreateMessageRequestParams
    ) -> bool:
        prompt = _sampling_prompt(self._options.name, params)
        if len(prompt) > _MOST_SHOWN:
            logger.warning(
                "server %r asks for a sampling that is too long to be shown: refused",
                self._options.name,
            )
            return False
        question = HookResult(
            action="ask_user",
            approval_prompt=prompt,
            approval_options=list(_OPTIONS),
            approval_timeout=_ASKING,
            approval_default="deny",
        )
        try:
            decided = await coordinator.process_hook_result(question, SAMPLING, MODULE)
        except NoOneToAskError:
            return False
        return decided.action != "deny"

    # ── elicitation ──

    async def elicit(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        """Ask the user; declined if no one can be asked, or not in this form."""
        return await self._answer(
            "elicitation", lambda coordinator: self._elicit(coordinator, params)
        )

    async def _elicit(self, coordinator: Coordinator, params: ElicitRequestParams) -> ElicitResult:
        prompt = f"The MCP server {self._options.name!r} asks:\n{_quoted(params.message)}"
        system = coordinator.approval_system
        result = ElicitResult(action="decline")
        try:
            with anyio.move_on_after(_ASKING):
                if len(prompt) > _MOST_SHOWN:
                    logger.warning(
                        "server %r asks a question that is too long to be shown: declined",
                        self._options.name,
                    )
                elif system is None:
                    logger.info(
                        "server %r asks the user, but no one can be asked: declined",
                        self._options.name,
                    )
                elif not isinstance(params, ElicitRequestFormParams) and not _is_web_page(
                    params.url
                ):
                    logger.warning(
                        "server %r asks to open %r, expected an address with http or https: declined",
                        self._options.name,
                        params.url[:200],
                    )
                elif not isinstance(params, ElicitRequestFormParams):
                    page = (
                        f"{prompt}\nIt asks you to open this page yourself:\n{_quoted(params.url)}"
                    )
                    if await _confirmed(system, page):
                        result = ElicitResult(action="accept")
                elif not params.requested_schema.get("properties"):
                    if await _confirmed(system, prompt):
                        result = ElicitResult(action="accept", content={})
                elif isinstance(system, UserInput):
                    given = await system.request_input(
                        prompt, dict(params.requested_schema), _ASKING
                    )
                    if given is not None:
                        result = ElicitResult(action="accept", content=given)
                else:
                    logger.info(
                        "server %r asks for a form, which this application cannot show",
                        self._options.name,
                    )
        except Exception:  # the application's code; a failure declines
            logger.exception(
                "the question of server %r to the user failed: declined", self._options.name
            )
            result = ElicitResult(action="decline")
        await coordinator.hooks.emit(
            ELICITATION, {"server": self._options.name, "action": result.action}
        )
        return result


async def _confirmed(system: Any, prompt: str) -> bool:
    answer = await system.request_approval(prompt, [_ACCEPT, _DECLINE], _ASKING, "deny")
    return isinstance(answer, str) and answer.lower() == _ACCEPT.lower()


def _is_web_page(address: str) -> bool:
    """Check that an address leads to a web server: an application may open it as it is."""
    try:
        parts = urlsplit(address)
        # What the function leaves out, such as control characters, another program may not.
        is_plain = address.isprintable() and " " not in address
        return is_plain and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _refusal(message: str) -> ErrorData:
    return ErrorData(code=INVALID_REQUEST, message=message)


def _quoted(text: str) -> str:
    """Text of a server for a person: nothing in it can move the cursor or pass for a line of ours."""
    lines = visible_text(text, strict=True).splitlines() or [""]
    return "\n".join(f"  {line}" for line in lines)


def _sampling_prompt(server: str, params: CreateMessageRequestParams) -> str:
    lines = [
        f"Let the MCP server {server!r} ask the model of this session? (at most {params.max_tokens} tokens)"
    ]
    if params.system_prompt:
        lines.append(f"system:\n{_quoted(params.system_prompt)}")
    for message in params.messages:
        words = "\n".join(
            block.text if isinstance(block, TextBlock) else "(an image)"
            for block in _blocks(message)
        )
        lines.append(f"{message.role}:\n{_quoted(words)}")
    return "\n".join(lines)


def _messages(params: CreateMessageRequestParams) -> list[Message]:
    system = [Message(role="system", content=params.system_prompt)] if params.system_prompt else []
    return [
        *system,
        *(
            Message(role=message.role, content=list(_blocks(message)))
            for message in params.messages
        ),
    ]


def _blocks(message: SamplingMessage) -> list[TextBlock | ImageBlock]:
    content = message.content if isinstance(message.content, list) else [message.content]
    blocks: list[TextBlock | ImageBlock] = []
    for block in content:
        if isinstance(block, TextContent):
            blocks.append(TextBlock(text=block.text))
        elif isinstance(block, ImageContent):
            source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
            blocks.append(ImageBlock(source=source))
        else:
            kind = "audio" if isinstance(block, AudioContent) else block.type
            blocks.append(TextBlock(text=f"[{kind} left out]"))
    return blocks


def _text(response: ChatResponse) -> str:
    return "".join(block.text for block in response.content if isinstance(block, TextBlock))
