"""Streamed turns, in process and behind a server, against bare Starlette and other agent libraries: processor time of one turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from benchmarks.duel import fight, fight_for_more
from benchmarks.streams import AG_UI, CHAT, MORE_PIECES, PIECES, Server, turns
from benchmarks.worker import Worker

RIVALS = {"openai-agents": "openai_agents", "pydantic-ai": "pydantic_ai"}
BACKENDS = ["asyncio", "trio"]
CLIENTS, MORE_CLIENTS = 10, 200
ROUNDS = 3
SECONDS = 0.001
"""A sample of a server is one turn of each client, which takes as long as its pauses."""


@pytest.fixture(scope="module")
def stream_of() -> Iterator[Callable[[str, int], Worker]]:
    """Streamed turns of another library, with so many pieces."""
    with ExitStack() as stack:

        @cache
        def start(rival: str, pieces: int) -> Worker:
            return stack.enter_context(
                Worker(f"benchmarks.rivals.{RIVALS[rival]}_turn:prepare_stream:{pieces}")
            )

        yield start


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[..., Server]]:
    """A server by its kind and backend, which is started once."""
    with ExitStack() as stack:

        @cache
        def start(kind: str, backend: str = "asyncio") -> Server:
            return stack.enter_context(Server(kind, backend))

        yield start


# ── in process ──


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rival", RIVALS)
def test_streamed_text_on_another_library(board, stream_of, rival, backend):
    bout = fight(stream_of(rival, PIECES), turns(backend, "text"), rounds=ROUNDS)
    board.score(f"stream_text, {backend}", bout, rival=rival)


@pytest.mark.parametrize("rival", RIVALS)
def test_each_further_piece_on_another_library(board, stream_of, rival):
    few, many = [
        (stream_of(rival, pieces), turns("asyncio", "text", pieces))
        for pieces in (PIECES, MORE_PIECES)
    ]
    bout = fight_for_more(few, many, MORE_PIECES - PIECES, rounds=ROUNDS)
    board.score("each further piece", bout, rival=rival)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["text", "events"])
def test_streamed_turn_and_the_same_turn_without_a_stream(board, how, backend):
    base, ours = turns(backend, "execute"), turns(backend, how)
    board.duel(f"streamed {how}, {backend}", base, ours, rival="execute", rounds=ROUNDS)


# ── behind a server ──


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kind", "path"),
    [("serve", CHAT), ("serve", AG_UI), ("embedded", CHAT)],
    ids=["chat", "ag-ui", "embedded"],
)
def test_server_and_bare_starlette(board, server, kind, path, backend):
    bare, ours = (
        server("starlette", backend).turns(CLIENTS),
        server(kind, backend).turns(CLIENTS, path),
    )
    name = f"{'stream_text in a route' if kind == 'embedded' else f'amplifier serve {path}'}, {backend}"
    board.duel(name, bare, ours, rival="bare Starlette", rounds=ROUNDS, seconds=SECONDS)


@pytest.mark.parametrize("rival", RIVALS)
def test_server_and_another_library_in_a_route(board, server, rival):
    theirs, ours = server(RIVALS[rival]).turns(CLIENTS), server("serve").turns(CLIENTS)
    board.score(
        f"amplifier serve {CHAT}", fight(theirs, ours, rounds=ROUNDS, seconds=SECONDS), rival=rival
    )


RIVAL_SERVERS = {"bare Starlette": "starlette", **RIVALS}


@pytest.mark.parametrize("rival", RIVAL_SERVERS)
def test_server_with_many_pieces(board, server, rival):
    theirs, ours = (
        server(kind).turns(CLIENTS, pieces=MORE_PIECES) for kind in (RIVAL_SERVERS[rival], "serve")
    )
    work = f"amplifier serve {CHAT}, {MORE_PIECES} pieces"
    board.duel(work, theirs, ours, rival=rival, rounds=ROUNDS, seconds=SECONDS)


@pytest.mark.parametrize("rival", RIVAL_SERVERS)
def test_server_with_many_clients(board, server, rival):
    theirs, ours = (
        server(kind).turns(MORE_CLIENTS, pause=0.05) for kind in (RIVAL_SERVERS[rival], "serve")
    )
    work = f"amplifier serve {CHAT}, {MORE_CLIENTS} clients"
    board.duel(work, theirs, ours, rival=rival, rounds=ROUNDS, seconds=SECONDS)
