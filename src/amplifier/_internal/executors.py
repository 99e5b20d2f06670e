"""Blocking functions away from the event loop: in daemon threads, and in processes of their own.

A cancelled call leaves its daemon thread behind, which blocks neither other calls nor the end of the program. AnyIO's own threads do both: asyncio's
are waited for when Python exits, and on trio an abandoned one keeps its place in the limiter. AnyIO has no public way to make a thread of ours
one of its own, so `anyio.from_thread.check_cancelled` does not work there, and a function asks `is_call_over`.

A process of its own ends with everything that it started: when the function has answered, or is no longer awaited. The program starts a supervisor
(`supervise`), which forks the process that imports the program and calls the function. The pipe to the supervisor's standard input stays open for
as long as the program waits, so everything ends with the program, too.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

from .supervisor import adopt_orphans, end_everything

_Result = TypeVar("_Result")

_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("amplifier-threads")


async def call_in_thread(call: Callable[[], _Result], name: str) -> _Result:
    """Call a function in a daemon thread; calls begin in the order in which this is awaited."""
    await anyio.lowlevel.checkpoint_if_cancelled()
    thread = _CallThread(call, name)
    limiter = _limiter.get(None)
    if limiter is None:
        _limiter.set(limiter := anyio.CapacityLimiter(40))
    try:  # without a wait where there is a place, so that nothing comes between this call and the next one
        limiter.acquire_on_behalf_of_nowait(thread)
    except anyio.WouldBlock:
        await limiter.acquire_on_behalf_of(thread)
    try:
        thread.start()
        thread.begun.acquire()
        await thread.ended.wait()
        return thread.outcome.result()
    finally:
        thread.left.set()
        limiter.release_on_behalf_of(thread)
        del thread  # which holds an error, whose traceback holds this frame


class _CallThread(threading.Thread, Generic[_Result]):
    """The thread of one call. Virtual clocks look for `is_awaited_on`."""

    def __init__(self, call: Callable[[], _Result], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._call = call
        self._context = contextvars.copy_context()
        if (
            sniffio := sys.modules.get("sniffio")
        ) is not None:  # the function may run an event loop of its own
            self._context.run(sniffio.current_async_library_cvar.set, None)
        self.left = threading.Event()
        self._context.run(_left.set, self.left)
        self._token = anyio.lowlevel.current_token()
        self.outcome = Future[_Result]()
        self.ended = anyio.Event()
        self.begun = threading.Lock()
        self.begun.acquire()

    def run(self) -> None:
        self.begun.release()
        try:
            self.outcome.set_result(self._context.run(self._call))
        except BaseException as error:  # noqa: BLE001 — raised in the task
            self.outcome.set_exception(error)
        if self.is_awaited():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                anyio.from_thread.run_sync(self.ended.set, token=self._token)

    def is_awaited(self) -> bool:
        return not self.left.is_set()

    def is_awaited_on(self, loop: object) -> bool:
        return self.is_awaited() and self._token.native_token is loop


_left: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar(
    "_left", default=None
)


def is_call_over() -> bool:
    """Return whether the function that asks is run by `call_in_thread` and no longer awaited."""
    left = _left.get()
    return left is not None and left.is_set()


# ── processes ─────────────────────────────────────────────────────────────────────────────────────


_LAST_SECONDS = 12.0  # longer than the supervisor itself takes to give up
_SIZE = 8
_BOOT = "import asyncio, sys; sys.path.insert(0, sys.argv.pop()); from amplifier._internal.executors import supervise; supervise()"
_AGAIN = "the process of an isolated tool imports this program; put what runs it below `if __name__ == '__main__':`"
_WHERE = "define it at the top of a module"


def why_not_isolated(function: Any) -> str | None:
    """Why another process cannot import a function; None if it can."""
    if getattr(function, "__module__", None) == "__main__":
        main = sys.modules["__main__"]
        # The name of a file may be no path.
        file = getattr(main, "__file__", None) or ""
        if getattr(main, "__spec__", None) is None and not os.path.isfile(file):  # noqa: PTH113
            return "it was defined in a notebook, at a prompt or by python -c; write it into a file and import it from there"
    try:
        pickle.dumps(function)
    except Exception as error:  # noqa: BLE001 — pickle raises many kinds
        return f"{error}; {_WHERE}"
    return None


async def call_in_process(call: Callable[[], Any], name: str) -> Any:
    """Call a function in a new process; raises what the function raised, or why it could not be called."""
    from multiprocessing.spawn import get_preparation_data  # noqa: PLC0415 — for those who use it

    preparation = {
        key: value for key, value in get_preparation_data(name).items() if key != "authkey"
    }
    payload = pickle.dumps((preparation, pickle.dumps(call)))
    # -P: the working directory may hold what an agent has written; what the program may import is in the preparation.
    command = [sys.executable, "-P", "-c", _BOOT, str(Path(__file__).parents[2])]
    process = await anyio.open_process(command, stderr=None, start_new_session=True)
    answer = bytearray()
    try:
        assert process.stdin
        assert process.stdout
        with contextlib.suppress(anyio.BrokenResourceError):  # it has ended
            await process.stdin.send(payload)
            # Not to the end of the stream, which other processes may hold.
            async for piece in process.stdout:
                answer += piece
                if len(answer) >= _SIZE and len(answer) == _SIZE + int.from_bytes(answer[:_SIZE]):
                    break
            else:
                answer.clear()
    finally:
        with anyio.move_on_after(_LAST_SECONDS, shield=True):
            await process.aclose()  # the end of its input ends it
    if not answer:
        raise RuntimeError(
            f"the process of tool {name!r} ended with {process.returncode} before it had answered"
        )
    is_value, value = pickle.loads(answer[_SIZE:])
    if is_value:
        return value
    raise value


# ── in the other processes ───────────────────────────────────────────────────────────────────────


def supervise() -> NoReturn:
    """Fork the process that calls the function, and end everything when it or our standard input has ended."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what the function prints goes to standard error
    preparation, call = pickle.load(sys.stdin.buffer)
    adopt_orphans()
    alive, held = os.pipe()  # readable when the worker has ended
    worker = os.fork()
    if worker == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            written = _answer(preparation, call)
            with open(answers, "wb") as file:  # noqa: PTH123 — a descriptor
                file.write(len(written).to_bytes(_SIZE) + written)
        finally:
            os._exit(1)  # threads of the function are not waited for
    with contextlib.suppress(OSError):  # it has ended
        os.setpgid(worker, worker)
    os.close(held)
    select.select([0, alive], [], [])
    with contextlib.suppress(OSError):
        os.killpg(worker, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    end_everything()
    os._exit(code if code >= 0 else 128 - code)  # only now `answers` ends for the program


def _answer(preparation: dict[str, Any], call: bytes) -> bytes:
    """Call the function; whether it returned, and what it returned or raised."""
    try:
        _prepare(preparation)
        try:
            function = pickle.loads(call)
        except Exception as error:
            raise RuntimeError(f"its process cannot import it: {error}; {_WHERE}") from error
        is_value, found = True, function()
    except Exception as error:  # noqa: BLE001 — raised by the program
        is_value, found = False, error
    except BaseException as error:  # noqa: BLE001 — it ends this process, not the program
        is_value, found = False, RuntimeError(f"it raised {type(error).__name__}: {error}")
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        written = pickle.dumps((is_value, found))
        if not is_value:
            pickle.loads(written)  # fails if it has to be made of other arguments than it keeps
    except Exception as error:  # noqa: BLE001 — pickle raises many kinds
        reason = f"{found!r:.500} cannot be sent between processes: {error}"
        written = pickle.dumps(
            (False, RuntimeError(reason if is_value else f"{type(found).__name__}: {found}"))
        )
    return written


def _prepare(preparation: dict[str, Any]) -> None:
    """Import the program; one that would run its agent once more is refused, since it would call the model a second time."""
    from multiprocessing.spawn import prepare  # noqa: PLC0415

    def refuse(*_given: Any, **_more: Any) -> NoReturn:
        raise RuntimeError(_AGAIN)

    loops: Any = anyio, sys.modules["asyncio"]
    runs = [loop.run for loop in loops]
    loops[0].run = loops[1].run = refuse
    try:
        prepare(preparation)
    finally:
        loops[0].run, loops[1].run = runs
