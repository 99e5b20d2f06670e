"""Blocking functions outside the event loop: in daemon threads and in worker processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

from .supervisor import adopt_orphans, end_everything

_Result = TypeVar("_Result")

_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("amplifier-threads")


# A cancelled call leaves its daemon thread behind, which blocks neither other calls nor the exit of
# the program. AnyIO's own threads block both: Python waits for those of asyncio when it exits, and
# on trio an abandoned thread keeps its place in the limiter. AnyIO cannot adopt our threads, so
# `anyio.from_thread.check_cancelled` does not work in them, and functions use `is_call_over`.


async def call_in_thread(call: Callable[[], _Result], name: str) -> _Result:
    """Call a function in a daemon thread. Calls start in the order in which they are awaited."""
    await anyio.lowlevel.checkpoint_if_cancelled()
    thread = _CallThread(call, name)
    limiter = _limiter.get(None)
    if limiter is None:
        _limiter.set(limiter := anyio.CapacityLimiter(40))
    # It is acquired without a checkpoint if possible, so that later calls cannot overtake this one.
    try:
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
        # The thread holds an error, whose traceback holds this frame.
        del thread


class _CallThread(threading.Thread, Generic[_Result]):
    """The thread of one call. Virtual clocks call `is_awaited_on`."""

    def __init__(self, call: Callable[[], _Result], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._call = call
        self._context = copy_context()
        # The function may run its own event loop.
        if (sniffio := sys.modules.get("sniffio")) is not None:
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
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                anyio.from_thread.run_sync(self.ended.set, token=self._token)

    def is_awaited(self) -> bool:
        return not self.left.is_set()

    def is_awaited_on(self, loop: object) -> bool:
        return self.is_awaited() and self._token.native_token is loop


_left: ContextVar[threading.Event | None] = ContextVar("_left", default=None)


def is_call_over() -> bool:
    """Return whether the calling function is run by `call_in_thread` and no longer awaited."""
    left = _left.get()
    return left is not None and left.is_set()


# ── processes ─────────────────────────────────────────────────────────────────────────────────────
# A worker process ends, with everything that it started, once the function has returned or is no
# longer awaited. The program starts a supervisor (`supervise`), which forks the worker. The worker
# imports the program and calls the function. The pipe to the supervisor's standard input stays open
# while the program waits, so everything ends with the program too.

# Longer than the supervisor takes to give up.
_CLOSE_SECONDS = 12.0
_SIZE = 8
_BOOT = (
    "import asyncio, sys; sys.path.insert(0, sys.argv.pop()); "
    "from amplifier._internal.executors import supervise; supervise()"
)
_AGAIN = (
    "the process of an isolated tool imports this program; "
    "put the code that runs it below `if __name__ == '__main__':`"
)
_WHERE = "define it at the top of a module"


def why_not_isolated(function: object) -> str | None:
    """Return the reason why another process cannot import a function, or None if it can."""
    if getattr(function, "__module__", None) == "__main__":
        main = sys.modules["__main__"]
        # The text need not be a valid path.
        file = getattr(main, "__file__", None) or ""
        if getattr(main, "__spec__", None) is None and not os.path.isfile(file):  # noqa: PTH113
            return (
                "it was defined in a notebook, at a prompt or by python -c; "
                "write it into a file and import it from there"
            )
    try:
        pickle.dumps(function)
    except Exception as error:  # noqa: BLE001 — pickle raises many kinds
        return f"{error}; {_WHERE}"
    return None


async def call_in_process(call: Callable[[], Any], name: str) -> Any:
    """Call a function in a new process.

    Raises:
        RuntimeError: The function could not be called, or its process ended early.
        Exception: The function's own exception.
    """
    from multiprocessing.spawn import get_preparation_data  # noqa: PLC0415 — rarely needed

    preparation = get_preparation_data(name)
    preparation.pop("authkey", None)
    payload = pickle.dumps((preparation, pickle.dumps(call)))
    # -P keeps files that an agent wrote into the working directory from being imported. The
    # program's own import path is in the preparation.
    command = [sys.executable, "-P", "-c", _BOOT, str(Path(__file__).parents[2])]
    process = await anyio.open_process(command, stderr=None, start_new_session=True)
    answer = bytearray()
    try:
        assert process.stdin
        assert process.stdout
        # The process may have ended.
        with contextlib.suppress(anyio.BrokenResourceError):
            await process.stdin.send(payload)
            # Reading to the end of the stream could hang, because other processes may hold it.
            async for piece in process.stdout:
                answer += piece
                if len(answer) >= _SIZE and len(answer) == _SIZE + int.from_bytes(answer[:_SIZE]):
                    break
            else:
                answer.clear()
    finally:
        # The process ends when its input is closed.
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await process.aclose()
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
    """Fork the worker, and end everything once it or our standard input has ended."""
    answers = os.dup(1)
    # Output of the function goes to standard error.
    os.dup2(2, 1)
    preparation, call = pickle.load(sys.stdin.buffer)
    adopt_orphans()
    # The pipe becomes readable once the worker ends.
    alive, held = os.pipe()
    worker = os.fork()
    if worker == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            answer = _answer(preparation, call)
            with open(answers, "wb") as file:  # noqa: PTH123 — a descriptor
                file.write(len(answer).to_bytes(_SIZE) + answer)
        finally:
            # Threads of the function are not waited for.
            os._exit(1)
    # The worker may have ended.
    with contextlib.suppress(OSError):
        os.setpgid(worker, worker)
    os.close(held)
    select.select([0, alive], [], [])
    with contextlib.suppress(OSError):
        os.killpg(worker, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    end_everything()
    # The program reaches the end of `answers` only when this process exits.
    os._exit(code if code >= 0 else 128 - code)


def _answer(preparation: dict[str, Any], call: bytes) -> bytes:
    """Call the function, and pickle whether it returned, with its result or exception."""
    try:
        _prepare(preparation)
        try:
            function = pickle.loads(call)
        except Exception as error:
            raise RuntimeError(f"its process cannot import it: {error}; {_WHERE}") from error
        is_value, outcome = True, function()
    except Exception as error:  # noqa: BLE001 — raised by the program
        is_value, outcome = False, error
    except BaseException as error:  # noqa: BLE001 — it ends this process, not the program
        is_value, outcome = False, RuntimeError(f"it raised {type(error).__name__}: {error}")
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        answer = pickle.dumps((is_value, outcome))
        # Loading fails for an exception whose constructor needs more than its ``args``.
        if not is_value:
            pickle.loads(answer)
    except Exception as error:  # noqa: BLE001 — pickle raises many kinds
        reason = f"{type(outcome).__name__}: {outcome}"
        if is_value:
            reason = f"{outcome!r:.500} cannot be sent between processes: {error}"
        answer = pickle.dumps((False, RuntimeError(reason)))
    return answer


def _prepare(preparation: dict[str, Any]) -> None:
    """Import the program, unless that would run its agent, and so call the model, again."""
    from multiprocessing.spawn import prepare  # noqa: PLC0415

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(_AGAIN)

    loops: Any = anyio, sys.modules["asyncio"]
    runs = [loop.run for loop in loops]
    loops[0].run = loops[1].run = refuse
    try:
        prepare(preparation)
    finally:
        loops[0].run, loops[1].run = runs
