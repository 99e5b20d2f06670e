"""The turns of a durable engine as a page: listed with their states, counts and ages; shown, stopped, resumed and released."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from amplifier.errors import AmplifierError

from .._access import LOOPBACK_HOSTS
from ._guard import guarded
from ._page import file_route
from ._problems import Problem, handlers, problem_of

TURNS_PAGE: Final = "/turns"
_MOST: Final = 200
_FILES: Final = {
    TURNS_PAGE: ("turns.html", "text/html; charset=utf-8"),
    "/turns.js": ("turns.js", "text/javascript; charset=utf-8"),
    "/chat.css": ("chat.css", "text/css; charset=utf-8"),
}


def turns_application(engine: Any, token: str) -> ASGIApp:
    """The page and what it asks for, on this machine.

    Args:
        engine: A `DurableEngine`.
        token: That every request but the first has to carry; the address of the page has it behind ``#``.
    """

    async def send_list(request: Request) -> Response:
        try:
            found = await engine.list(state=request.query_params.get("state") or None, limit=_MOST)
        except ValueError as error:
            raise Problem(400, str(error), code="invalid_request", param="state") from error
        counts = attrs.asdict(await engine.counts())
        return JSONResponse({"turns": [attrs.asdict(each) for each in found], "counts": counts, "now": time.time()})

    async def send_turn(request: Request) -> Response:
        return JSONResponse(attrs.asdict(await engine.status(request.path_params["turn_id"])))

    def acting(do: Callable[[str], Awaitable[None]]) -> Callable[[Request], Awaitable[Response]]:
        async def act(request: Request) -> Response:
            await do(request.path_params["turn_id"])
            return await send_turn(request)

        return act

    async def refuse(request: Request, error: Exception) -> Response:
        is_unknown = isinstance(error, LookupError)
        problem = Problem(404, str(error), code="turn_not_found") if is_unknown else problem_of(error)
        return problem.response()

    routes = [
        *(file_route(path, *file) for path, file in _FILES.items()),
        Route("/api/turns", send_list, methods=["GET"]),
        Route("/api/turns/{turn_id}", send_turn, methods=["GET"]),
        Route("/api/turns/{turn_id}/stop", acting(engine.stop), methods=["POST"]),
        Route("/api/turns/{turn_id}/resume", acting(engine.resume), methods=["POST"]),
        Route("/api/turns/{turn_id}/release", acting(engine.release), methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={**handlers, AmplifierError: refuse})
    return guarded(app, token=token, hosts=LOOPBACK_HOSTS, free_paths=tuple(_FILES))
