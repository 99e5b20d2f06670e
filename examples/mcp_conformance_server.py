"""A server with everything that the official conformance suite of MCP asks a server for.

    python examples/mcp_conformance_server.py trio 8932
    npx @modelcontextprotocol/conformance@0.2.0-alpha.12 server \
        --url http://127.0.0.1:8932/mcp --requirements 2026-07-28

`amplifier mcp serve` offers one tool, `run`. The suite wants tools, resources and prompts of certain
names as well, so they are here: made with the official SDK, which the extra `mcp` brings, and served
by hypercorn on the event loop of your choice. `tests/suites` runs all required scenarios against both
servers.

Without arguments it listens on a free port, on asyncio. It prints its address once it listens.
"""

from __future__ import annotations

import base64
import json
import secrets
import socket
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import anyio
import hypercorn.asyncio
import hypercorn.config
import hypercorn.trio
from mcp.server import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer, RequestStateSecurity
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel, Field

# Revision 2025-11-25 has log messages and sampling. The SDK warns of them, because the next one hasn't.
warnings.simplefilter("ignore", MCPDeprecationWarning)

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGD4DwABBAEAX+XDSwAAAABJRU5ErkJggg=="
SILENCE = base64.b64encode(
    b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x40\x1f\x00\x00\x01\x00\x08\x00data\x00\x00\x00\x00"
).decode()

# The state of a request that waits for input goes through the client, so it is sealed with a key.
server = MCPServer(
    "conformance",
    version="1.0",
    request_state_security=RequestStateSecurity(keys=[secrets.token_bytes(32)]),
    log_level="ERROR",
)


def text_resource(uri: str, text: str, kind: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=kind, text=text))


# ── content ──────────────────────────────────────────────────────────────────────────────────────


@server.tool()
def test_simple_text() -> str:
    """Return a text."""
    return "a simple text"


@server.tool()
def test_image_content() -> list[ImageContent]:
    """Return an image."""
    return [ImageContent(data=PIXEL, mime_type="image/png")]


@server.tool()
def test_audio_content() -> list[AudioContent]:
    """Return a sound."""
    return [AudioContent(data=SILENCE, mime_type="audio/wav")]


@server.tool()
def test_embedded_resource() -> list[EmbeddedResource]:
    """Return a resource."""
    return [text_resource("test://embedded-resource", "an embedded resource")]


@server.tool()
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Return a text, an image and a resource."""
    return [
        TextContent(text="several kinds of content"),
        ImageContent(data=PIXEL, mime_type="image/png"),
        text_resource(
            "test://mixed-content-resource", json.dumps({"test": "data"}), "application/json"
        ),
    ]


@server.tool()
def test_error_handling() -> str:
    """Fail."""
    raise RuntimeError("this tool always fails")


# ── during a call ────────────────────────────────────────────────────────────────────────────────


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Log three messages."""
    for step in ("started", "working", "finished"):
        await ctx.info(step)
    return "logged"


@server.tool()
async def test_logging_tool(ctx: Context) -> str:
    """Log one message, which reaches those clients only that have asked for it."""
    await ctx.info("a message")
    return "logged"


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress three times."""
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100, f"{done} of 100")
    return "done"


@server.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Ask the model of the client."""
    question = SamplingMessage(role="user", content=TextContent(text=prompt))
    answer = await ctx.session.create_message(
        [question], max_tokens=100, related_request_id=ctx.request_id
    )
    return f"the model said: {answer.content.text if isinstance(answer.content, TextContent) else answer.content}"


class Reply(BaseModel):
    response: str = Field(description="What the user says.")


class Person(BaseModel):
    """A form whose fields have defaults."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Annotated[str, Field(json_schema_extra={"enum": ["active", "inactive", "pending"]})] = (
        "active"
    )
    verified: bool = True


def choice(**schema: Any) -> Any:
    return Field(json_schema_extra=schema)


SIZES = [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]


class Choices(BaseModel):
    """A form with each of the ways to choose from a list."""

    untitledSingle: str = choice(enum=["s", "l"])
    titledSingle: str = choice(oneOf=SIZES)
    legacyEnum: str = choice(enum=["s", "l"], enumNames=["Small", "Large"])
    untitledMulti: list[str] = choice(items={"type": "string", "enum": ["s", "l"]})
    titledMulti: list[str] = choice(items={"anyOf": SIZES})


async def ask(ctx: Context, message: str, form: type[BaseModel]) -> str:
    answer = await ctx.elicit(message, form)
    content = answer.data.model_dump() if answer.action == "accept" else {}
    return f"action={answer.action}, content={json.dumps(content)}"


@server.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    """Ask the user."""
    return await ask(ctx, message, Reply)


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask the user with a form that is filled in already."""
    return await ask(ctx, "Is this right?", Person)


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask the user to choose."""
    return await ask(ctx, "Which ones?", Choices)


@server.tool()
async def test_missing_capability(ctx: Context) -> str:
    """Need a client that has a model."""
    declared = ctx.client_capabilities
    if declared is None or declared.sampling is None:
        needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY, "the client has to declare sampling", needed
        )
    return "the client has a model"


@server.tool()
async def test_streaming_elicitation(ctx: Context) -> InputRequiredResult | str:
    """Ask the user, by a result that ends this request."""
    return (
        "answered"
        if ctx.input_responses
        else InputRequiredResult(input_requests={"user_name": ask_name()})
    )


@server.tool()
async def test_reconnection(ctx: Context) -> str:
    """Close the stream of the response before its end."""
    await ctx.close_sse_stream()
    return "reconnected"


@server.tool()
def test_x_mcp_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Take an argument that is in a header of the request, too."""
    return f"region: {region}"


# ── input that ends a request, revision 2026-07-28 ───────────────────────────────────────────────


def ask_for(field: str, kind: str = "string", message: str = "") -> ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(
        params=ElicitRequestFormParams(
            message=message or f"What is the {field}?", requested_schema=schema
        )
    )


def ask_name() -> ElicitRequest:
    return ask_for("name", message="What is your name?")


def ask_model(prompt: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(text=prompt))
    return CreateMessageRequest(
        params=CreateMessageRequestParams(messages=[message], max_tokens=50)
    )


def said(ctx: Context, key: str, field: str) -> str | None:
    """What the user has put into a field of a form, if the answer is there and fits."""
    answer = (ctx.input_responses or {}).get(key)
    value = (answer.content or {}).get(field) if isinstance(answer, ElicitResult) else None
    return value if isinstance(value, str) else None


@server.tool()
async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Ask for a name."""
    name = said(ctx, "user_name", "name")
    return (
        f"Hello, {name}!" if name else InputRequiredResult(input_requests={"user_name": ask_name()})
    )


def asks_once(name: str, requests: dict[str, InputRequest], state: str | None = None) -> None:
    """Add a tool that needs the answers to some requests at once."""

    async def tool(ctx: Context) -> str | InputRequiredResult:
        if requests.keys() <= (ctx.input_responses or {}).keys() and (
            state is None or ctx.request_state == state
        ):
            return f"{name}: all is there; state-ok"
        return InputRequiredResult(input_requests=requests, request_state=state)

    server.add_tool(tool, name, description=f"Ask for {', '.join(requests)}.")


asks_once(
    "test_input_required_result_sampling",
    {"capital_question": ask_model("What is the capital of France?")},
)
asks_once("test_input_required_result_list_roots", {"client_roots": ListRootsRequest()})
asks_once(
    "test_input_required_result_request_state", {"confirm": ask_for("ok", "boolean")}, "asked"
)
asks_once(
    "test_input_required_result_tampered_state", {"confirm": ask_for("ok", "boolean")}, "asked"
)
asks_once(
    "test_input_required_result_multiple_inputs",
    {
        "user_name": ask_name(),
        "greeting": ask_model("Greet me."),
        "client_roots": ListRootsRequest(),
    },
    "asked",
)


@server.tool()
async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
    """Ask for a name, then for a color; what was said before is in the state."""
    before = json.loads(ctx.request_state or "{}")
    name = before.get("name") or said(ctx, "step1", "name")
    color = said(ctx, "step2", "color")
    if not name:
        state = json.dumps({"round": 1})
        return InputRequiredResult(input_requests={"step1": ask_name()}, request_state=state)
    if not color:
        state = json.dumps({"round": 2, "name": name})
        return InputRequiredResult(input_requests={"step2": ask_for("color")}, request_state=state)
    return f"{name} likes {color}."


@server.tool()
async def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
    """Ask for what the client can answer."""
    can = ctx.client_capabilities
    requests: dict[str, InputRequest] = {}
    if can is not None and can.sampling is not None:
        requests["greeting"] = ask_model("Greet me.")
    if can is not None and can.elicitation is not None:
        requests["user_name"] = ask_name()
    return InputRequiredResult(input_requests=requests, request_state="asked")


# ── lists that change ────────────────────────────────────────────────────────────────────────────


@server.tool()
async def test_trigger_tool_change(ctx: Context) -> str:
    """Add a tool and take it away."""
    server.add_tool(test_simple_text, "test_passing_tool")
    server.remove_tool("test_passing_tool")
    await ctx.notify_tools_changed()
    return "changed"


@server.tool()
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Add a prompt and take it away."""
    server.add_prompt(Prompt.from_function(test_simple_prompt, name="test_passing_prompt"))
    server.remove_prompt("test_passing_prompt")
    await ctx.notify_prompts_changed()
    return "changed"


# ── resources ────────────────────────────────────────────────────────────────────────────────────


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "the text of a resource"


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return base64.b64decode(PIXEL)


@server.resource("test://template/{id}/data", mime_type="application/json")
def from_template(id: str) -> str:  # noqa: A002 - the suite's name
    """Data with an id."""
    return json.dumps({"id": id, "data": f"the data of {id}"})


@server.resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    """A text to subscribe to."""
    return "it does not change"


# ── prompts ──────────────────────────────────────────────────────────────────────────────────────


@server.prompt()
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "a simple prompt"


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments."""
    return f"arg1={arg1}, arg2={arg2}"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
    """A prompt with a resource."""
    return [
        UserMessage(text_resource(resourceUri, "the resource")),
        UserMessage("Read the resource above."),
    ]


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """A prompt with an image."""
    return [
        UserMessage(ImageContent(data=PIXEL, mime_type="image/png")),
        UserMessage("Look at the image above."),
    ]


@server.prompt()
async def test_input_required_result_prompt(ctx: Context) -> str | InputRequiredResult:
    """A prompt that asks for what it is about."""
    context = said(ctx, "user_context", "context")
    if context:
        return f"Use this: {context}"
    return InputRequiredResult(input_requests={"user_context": ask_for("context")})


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def complete(ref: Any, argument: Any, context: Any) -> Completion:
    """Complete an argument from a few words."""
    words = [word for word in ("paris", "park", "party") if word.startswith(argument.value)]
    return Completion(values=words, total=len(words), has_more=False)


# ── requests of revision 2025-11-25 ──────────────────────────────────────────────────────────────


async def accept(context: ServerRequestContext[Any], params: Any) -> EmptyResult:
    """Accept a level for log messages, or a subscription to a resource that never changes."""
    return EmptyResult()


# `MCPServer` has no public place for requests that the newest revision has not.
for method, kind in (
    ("logging/setLevel", SetLevelRequestParams),
    ("resources/subscribe", SubscribeRequestParams),
    ("resources/unsubscribe", UnsubscribeRequestParams),
):
    server._lowlevel_server.add_request_handler(method, kind, accept)


async def main(backend: str, port: int) -> None:
    config = hypercorn.config.Config()
    with socket.create_server(("127.0.0.1", port)) as listening:
        config.bind = [f"fd://{listening.fileno()}"]
        config.loglevel = "ERROR"
        serve: Callable[..., Awaitable[None]] = (
            hypercorn.trio.serve if backend == "trio" else hypercorn.asyncio.serve
        )
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
        await serve(server.streamable_http_app(), config, shutdown_trigger=anyio.sleep_forever)


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "asyncio"
    anyio.run(main, name, int(sys.argv[2]) if len(sys.argv) > 2 else 0, backend=name)
