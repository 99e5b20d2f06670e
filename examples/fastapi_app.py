"""An agent behind FastAPI: a request opens the session of its conversation, runs one turn and closes it.

uvicorn fastapi_app:app --timeout-graceful-shutdown 3
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from amplifier import (
    AmplifierError,
    AmplifierSession,
    ExecutionTimeout,
    LLMError,
    ModuleLoader,
    PlanError,
)
from amplifier.plan import PlanDict
from amplifier.store import SessionLockedError

PLAN: PlanDict = {
    "session": {
        "orchestrator": "loop-basic",
        "context": {"module": "context-persistent", "config": {"path": "conversations"}},
        "deadlines": {"turn": 600},
    },
    # It answers by fixed rules. provider-anthropic is a language model.
    "providers": ["provider-offline"],
    "tools": [{"module": "tool-filesystem", "config": {"read_only": True}}],
}


class Question(BaseModel):
    prompt: str


class Answer(BaseModel):
    text: str


def make_app(plan: PlanDict, modules: dict[str, Any] | None = None) -> FastAPI:
    """Create the application. ``modules`` maps ids that aren't installed to mount functions."""
    running: set[anyio.Event] = set()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        # The server has cancelled the turns. Give them time to unwind.
        with anyio.move_on_after(30):
            for over in list(running):
                await over.wait()

    async def open_session(conversation: str) -> AsyncIterator[AmplifierSession]:
        over = anyio.Event()
        running.add(over)
        session = None
        try:
            session = AmplifierSession(plan, ModuleLoader(modules=modules), session_id=conversation)
            async with session:
                yield session
        finally:
            running.discard(over)
            over.set()
            if session is not None:
                print(f"{conversation}: {session.status.status}", flush=True)

    # "function" closes the session before the answer is sent, so that the conversation is free
    # for the next request.
    Session = Annotated[AmplifierSession, Depends(open_session, scope="function")]
    app = FastAPI(lifespan=lifespan)

    @app.post("/conversations/{conversation}", response_model=Answer)
    async def ask(question: Question, session: Session, request: Request) -> Answer | JSONResponse:
        answer: Answer | JSONResponse = Answer(text="")
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_when_client_leaves, request, group.cancel_scope)
            try:
                answer = Answer(text=await session.execute(question.prompt))
            except AmplifierError as error:
                # Outside, the task group would have wrapped it in an ExceptionGroup.
                answer = await report(request, error)
            group.cancel_scope.cancel()
        return answer

    @app.get("/conversations/{conversation}")
    async def read(session: Session) -> list[dict[str, Any]]:
        context = session.coordinator.get("context")
        return await context.get_messages() if context else []

    app.add_exception_handler(AmplifierError, report)
    return app


async def cancel_when_client_leaves(request: Request, turn: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    turn.cancel()


async def report(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status_code=status_of(error))


def status_of(error: Exception) -> int:
    # SessionLockedError: the conversation is busy with another request.
    statuses = {SessionLockedError: 409, PlanError: 400, LLMError: 502, ExecutionTimeout: 504}
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), 503)


app = make_app(PLAN)
