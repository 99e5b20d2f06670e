"""An agent in a web service: `uvicorn web_service:app`, or `hypercorn -k trio web_service:app`."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from amplifier import AmplifierError, ApprovalQuestion, agent, tool
from amplifier.models import TextDelta, ToolStarted


@tool(read_only=True)
def balance() -> int:
    """The balance of the account."""
    return 100


def transfer(amount: int, to: str) -> str:
    """Transfer money."""
    return f"{amount} sent to {to}"


class Turn(Response):
    """One turn as server-sent events. It stops when its client leaves."""

    def __init__(self, model: Any, conversation: str, prompt: str, turns: dict[str, "Turn"]) -> None:
        self.conversation, self.prompt, self.turns, self.background = conversation, prompt, turns, None
        self.questions: list[tuple[anyio.Event, list[bool]]] = []
        where: dict[str, Any] = {"memory": "conversations", "session_id": conversation}
        self.session = agent(model, tools=[balance, transfer], approve=self.ask, approval_timeout=120, **where)
        turns[conversation] = self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self.run, send, group.cancel_scope)
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()
        finally:
            del self.turns[self.conversation]

    async def run(self, send: Send, request: anyio.CancelScope) -> None:
        async def show(kind: str, data: Any) -> None:
            await send({"type": "http.response.body", "body": f"data: {json.dumps([kind, data])}\n\n".encode(), "more_body": True})

        self.show = show
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with self.session, self.session.stream(self.prompt) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        await show("text", event.text)
                    elif isinstance(event, ToolStarted):
                        await show("tool", event.tool_name)
            await show("done", events.result)
        except AmplifierError as error:  # a missing key, a failing model, a budget that is used up
            await show("error", str(error))
        await send({"type": "http.response.body", "body": b""})
        request.cancel()

    async def ask(self, question: ApprovalQuestion) -> bool:
        answered, answers = anyio.Event(), list[bool]()
        self.questions.append((answered, answers))
        await self.show("approval", {"id": len(self.questions) - 1, "text": str(question)})
        await answered.wait()
        return answers[0]


class Prompt(BaseModel):
    prompt: str


class Decision(BaseModel):
    allow: bool


def make_app(model: Any) -> FastAPI:
    app, turns = FastAPI(), dict[str, Turn]()

    @app.get("/")
    async def page() -> FileResponse: ...

    return app


app = make_app(os.environ.get("MODEL", "anthropic:claude-sonnet-4-5"))
