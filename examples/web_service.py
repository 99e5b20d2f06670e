"""An agent in a web service: `uvicorn web_service:app`, or `hypercorn -k trio web_service:app`."""

import json
import pathlib
from typing import Annotated, Any

import anyio
from fastapi import Body, FastAPI, HTTPException, Path
from fastapi.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from amplifier import AmplifierError, ApprovalQuestion, agent, tool
from amplifier.models import TextDelta


@tool(approve=lambda amount, to: amount > 10)
def transfer(amount: int, to: str) -> str:
    """Transfer money."""
    return f"{amount} sent to {to}"


class Turn(Response):
    """One turn as server-sent events. It stops when its client leaves."""

    def __init__(self, conversation: str, prompt: str) -> None:
        super().__init__()
        options: Any = {"approve": self.ask, "approval_timeout": 120, "memory": "conversations"}
        self.session = agent(app.state.model, tools=[transfer], session_id=conversation, **options)
        self.conversation, self.prompt = conversation, prompt
        self.questions, self.answers = dict[str, anyio.Event](), dict[str, bool]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.send = send
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self.run, group.cancel_scope)
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()
        finally:
            del turns[self.conversation]

    async def run(self, request: anyio.CancelScope) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with self.session, self.session.stream(self.prompt) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        await self.show("text", event.text)
            await self.show("done", events.result)
        # A missing key, a failing model, or a conversation that another process uses.
        except AmplifierError as error:
            await self.show("error", str(error))
        await self.send({"type": "http.response.body"})
        request.cancel()

    async def show(self, kind: str, data: Any) -> None:
        body = f"data: {json.dumps([kind, data])}\n\n".encode()
        await self.send({"type": "http.response.body", "body": body, "more_body": True})

    async def ask(self, question: ApprovalQuestion) -> bool:
        key, answered = str(len(self.answers)), anyio.Event()
        self.questions[key] = answered
        await self.show("approval", {"id": key, "text": str(question)})
        await answered.wait()
        return self.answers[key]


app = FastAPI()
app.add_api_route("/", lambda: FileResponse(pathlib.Path(__file__).with_suffix(".html")))
app.state.model = "anthropic:claude-sonnet-4-5"
turns: dict[str, Turn] = {}
Name = Annotated[str, Path(pattern=r"^[\w-]{1,80}$")]


@app.post("/conversations/{conversation}")
async def ask(conversation: Name, prompt: Annotated[str, Body(embed=True)]) -> Response:
    if conversation in turns:
        raise HTTPException(409, "this conversation has a turn at work")
    return turns.setdefault(conversation, Turn(conversation, prompt))


@app.post("/conversations/{conversation}/approvals/{key}", status_code=204)
async def answer(conversation: Name, key: str, allow: Annotated[bool, Body(embed=True)]) -> None:
    if conversation not in turns or key not in turns[conversation].questions:
        raise HTTPException(404, "no one waits for this answer")
    turns[conversation].answers[key] = allow
    turns[conversation].questions.pop(key).set()
