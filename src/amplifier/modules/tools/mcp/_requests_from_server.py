"""Requests from a server to its client: roots, sampling by the model, and elicitation."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
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
from amplifier.contracts import ApprovalSystem, Coordinator, UserInput
from amplifier.errors import NoOneToAskError
from amplifier.models import ChatRequest, ChatResponse, HookResult, ImageBlock, Message, TextBlock

from ..._shared.session import working_directory
from ._options import MODULE, ServerOptions

logger = logging.getLogger("amplifier.modules.tool-mcp")

SAMPLING, ELICITATION = "mcp:sampling", "mcp:elicitation"

_QUESTION_SECONDS = 300.0
"""Seconds to wait for the user's answer."""
_MAX_QUESTION = 100_000
"""Maximum number of characters in a question. A longer one is refused, as no one would read it."""
_OPTIONS = ["Allow once", "Allow always", "Deny"]
_ACCEPT, _DECLINE = "Allow", "Deny"

_Answer = TypeVar("_Answer")


# A request is allowed only during a call to the server, and belongs to the session that called
# last. The end of the last call ends all requests, so that a stopped turn leaves behind no question
# and no model call.


class RequestsFromServer:
    """Answers the requests of one server.

    Args:
        options: The options of the server.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._calls: dict[object, Coordinator] = {}
        self._running: set[anyio.CancelScope] = set()

    @contextmanager
    def during_call(self, coordinator: Coordinator) -> Iterator[None]:
        """Allow requests from the server while the block runs."""
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
        self, kind: str, answer: Callable[[Coordinator], Awaitable[_Answer]]
    ) -> _Answer | ErrorData:
        """Answer for the session that called last, until its call ends."""
        if not self._calls:
            logger.info(
                "server %r asked for %s outside of a call: refused", self._options.name, kind
            )
            return _refusal(f"{kind} is available only during a call")
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
        """Return the roots of the plan.

        Relative roots are below the working directory of the calling session.
        """
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
        """Call the session's model, if the user allows it."""
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
        except Exception as error:  # noqa: BLE001 — a provider's error is reported to the server
            logger.warning(
                "server %r called the model, which failed: %s",
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
        if len(prompt) > _MAX_QUESTION:
            logger.warning(
                "server %r asks for a sampling that is too long to be shown: refused",
                self._options.name,
            )
            return False
        question = HookResult(
            action="ask_user",
            approval_prompt=prompt,
            approval_options=list(_OPTIONS),
            approval_timeout=_QUESTION_SECONDS,
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
        """Ask the user. Decline if there is no one to ask, or the form can't be shown."""
        return await self._answer(
            "elicitation", lambda coordinator: self._elicit(coordinator, params)
        )

    async def _elicit(self, coordinator: Coordinator, params: ElicitRequestParams) -> ElicitResult:
        prompt = f"The MCP server {self._options.name!r} asks:\n{_quoted(params.message)}"
        system = coordinator.approval_system
        result = ElicitResult(action="decline")
        try:
            with anyio.move_on_after(_QUESTION_SECONDS):
                if len(prompt) > _MAX_QUESTION:
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
                        "server %r asks to open %r, expected an address with http or https: "
                        "declined",
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
                    content = await system.request_input(
                        prompt, dict(params.requested_schema), _QUESTION_SECONDS
                    )
                    if content is not None:
                        result = ElicitResult(action="accept", content=content)
                else:
                    logger.info(
                        "server %r asks for a form, which this application cannot show",
                        self._options.name,
                    )
        except Exception:
            # The approval system is code of the application.
            logger.exception(
                "the question of server %r to the user failed: declined", self._options.name
            )
            result = ElicitResult(action="decline")
        await coordinator.hooks.emit(
            ELICITATION, {"server": self._options.name, "action": result.action}
        )
        return result


async def _confirmed(system: ApprovalSystem, prompt: str) -> bool:
    options = [_ACCEPT, _DECLINE]
    answer: object = await system.request_approval(prompt, options, _QUESTION_SECONDS, "deny")
    return isinstance(answer, str) and answer.lower() == _ACCEPT.lower()


def _is_web_page(address: str) -> bool:
    """Return whether an address is that of a web page. An application may open the address."""
    try:
        parts = urlsplit(address)
        # urlsplit() removes characters, such as control characters, that other programs keep.
        is_plain = address.isprintable() and " " not in address
        return is_plain and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _refusal(message: str) -> ErrorData:
    return ErrorData(code=INVALID_REQUEST, message=message)


def _quoted(text: str) -> str:
    """Quote text from a server, so that it can't move the cursor or pass for a line of ours."""
    lines = visible_text(text, strict=True).splitlines() or [""]
    return "\n".join(f"  {line}" for line in lines)


def _sampling_prompt(server: str, params: CreateMessageRequestParams) -> str:
    limit = f"at most {params.max_tokens} tokens"
    lines = [f"Let the MCP server {server!r} ask the model of this session? ({limit})"]
    if params.system_prompt:
        lines.append(f"system:\n{_quoted(params.system_prompt)}")
    for message in params.messages:
        text = "\n".join(
            block.text if isinstance(block, TextBlock) else "(an image)"
            for block in _blocks(message)
        )
        lines.append(f"{message.role}:\n{_quoted(text)}")
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
