"""A caller that is called back when its turn has ended, by whichever worker is there then."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from amplifier.durable import TurnStatus, _reporting
from tests.durable.agents import ENGINES, agent, answering, eventually, open_engine, working

KINDS = pytest.mark.parametrize("kind", ENGINES)


class Handler(BaseHTTPRequestHandler):
    """Writes no log."""

    def log_message(self, *_):
        pass


@contextmanager
def serving(handler: type[Handler], is_over: threading.Event) -> Iterator[str]:
    """The address of a server, until the block is left; then the handlers that wait are told that it is over."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/ended"
        finally:
            is_over.set()
            server.shutdown()
            thread.join()


class Receiver:
    """Takes notices; the first ones get these answers, and those that are None get none at all."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)
        self.taken: list[dict] = []
        self.is_over = threading.Event()
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator[None]:
        class Taking(Handler):
            def do_POST(handler):
                self.taken.append(
                    json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                )
                answer = self.answers.pop(0) if self.answers else 204
                if answer is None:
                    self.is_over.wait()
                    return
                handler.send_response(answer)
                handler.end_headers()

        with serving(Taking, self.is_over) as self.url:
            yield

    async def has(self, count: int) -> bool:
        return len(self.taken) >= count


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(_reporting, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(_reporting, "POST_SECONDS", 0.5)


@contextmanager
def answering_with(status: int, location: str, *, is_endless: bool) -> Iterator[str]:
    """A server that sends a caller elsewhere, or whose headers never end; asked there, it is content."""
    is_over = threading.Event()

    class Answering(Handler):
        def do_POST(handler):
            handler.rfile.read(int(handler.headers["Content-Length"]))
            handler.send_response(status)
            handler.send_header("Location", location)
            handler.flush_headers()
            while is_endless and not is_over.wait(0.1):
                handler.wfile.write(b"X-More: yes\r\n")
            handler.end_headers()

        def do_GET(handler):
            handler.send_response(200)
            handler.end_headers()

    with serving(Answering, is_over) as url:
        yield url


async def test_redirected_notice_counts_as_refused():
    status = TurnStatus(turn_id="t", session_id="s", state="completed", attempt=1)
    with (
        answering_with(302, "/elsewhere", is_endless=False) as url,
        pytest.raises(OSError, match="302"),
    ):
        await _reporting.post(url, status)


async def test_notice_with_endless_answer_is_abandoned():
    status = TurnStatus(turn_id="t", session_id="s", state="completed", attempt=1)
    with answering_with(200, "/", is_endless=True) as url, pytest.raises(TimeoutError):
        await _reporting.post(url, status)


@KINDS
async def test_notice_repeats_until_accepted(kind, place):
    receiver = Receiver(500, None, 301)
    with receiver.serving():
        async with open_engine(kind, place) as engine, working(engine, agent(answering("Yes."))):
            turn = await engine.start("s", "is it open?", notify=receiver.url)
            assert await engine.result(turn) == "Yes."
            await eventually(lambda: receiver.has(4))
            status = await engine.status(turn)
    assert [(each["turn_id"], each["state"], each["answer"]) for each in receiver.taken] == [
        (turn, "completed", "Yes.")
    ] * 4
    assert receiver.taken[0]["ended"] == status.ended


@KINDS
async def test_end_of_unclaimed_turn_is_notified(kind, place):
    receiver = Receiver()
    with receiver.serving():
        async with open_engine(kind, place) as engine:
            turn = await engine.start("s", "go", delay=3600, notify=receiver.url)
            await engine.stop(turn)
        async with open_engine(kind, place) as engine, working(engine, agent(answering())):
            await eventually(lambda: receiver.has(1))
    assert [(each["turn_id"], each["state"]) for each in receiver.taken] == [(turn, "stopped")]


@KINDS
async def test_leftover_notice_is_sent_by_next_worker(kind, place):
    receiver = Receiver(None)
    with receiver.serving():
        async with open_engine(kind, place) as engine:
            turn = await engine.start("s", "go", notify=receiver.url)
            async with working(engine, agent(answering("Yes."))):
                await eventually(lambda: receiver.has(1))
            async with working(engine, agent(answering())):
                await eventually(lambda: receiver.has(2))
    assert [each["turn_id"] for each in receiver.taken] == [turn, turn]


async def test_refused_notice_is_given_up(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("amplifier.durable._worker.MAX_TRIES", 2)
    receiver = Receiver(*[500] * 9)
    with receiver.serving():
        async with (
            open_engine("sqlite", tmp_path) as engine,
            working(engine, agent(answering("Yes."))),
        ):
            turn = await engine.start("s", "go", notify=receiver.url)

            async def is_given_up() -> bool:
                return "after 2 tries" in caplog.text

            await eventually(is_given_up)
            assert (await engine.status(turn)).state == "completed"
    assert len(receiver.taken) == 2


@pytest.mark.parametrize(
    "address", ["ftp://host/x", "host", "http://", "file:///etc/passwd", "http://a b"]
)
async def test_invalid_address_is_refused(tmp_path, address):
    async with open_engine("sqlite", tmp_path) as engine:
        with pytest.raises(ValueError, match="begins with http:// or https://"):
            await engine.start("s", "go", notify=address)
        assert await engine.list() == []
