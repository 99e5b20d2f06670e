"""Functions in a process of their own, which ends with everything that it started: when the function has answered, or is no longer awaited.

The program starts a supervisor (`supervise`), which forks the process that imports the program and calls the function. The pipe to the
supervisor's standard input stays open for as long as the program waits, so everything ends with the program, too.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import anyio

from ._supervisor import adopt_orphans, end_everything

_Result = TypeVar("_Result")

_LAST_SECONDS = 12.0
"""Longer than the supervisor itself takes to give up."""
_SIZE = 8
_SIGNALLED = 128
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop()); from amplifier._isolated import supervise; supervise()"
_WHERE = "define it at the top of a module"


def why_not_isolated(function: Any) -> str | None:
    """Why another process cannot import a function; None if it can."""
    if getattr(function, "__module__", None) == "__main__":
        main = sys.modules["__main__"]
        if getattr(main, "__spec__", None) is None and not os.path.isfile(getattr(main, "__file__", None) or ""):  # noqa: PTH113 — it may be no path
            return "it was defined in a notebook, at a prompt or by python -c; write it into a file and import it from there"
    try:
        pickle.dumps(function)
    except Exception as error:  # noqa: BLE001 — pickle raises many kinds
        return f"{error}; {_WHERE}"
    return None


async def call_in_process(call: Callable[[], _Result], name: str) -> _Result:
    """Call a function in a new process.

    Raises:
        Exception: What the function raised, or why it could not be called.
    """
    from multiprocessing.spawn import get_preparation_data  # noqa: PLC0415 — for those who use it

    try:
        preparation = {key: value for key, value in get_preparation_data(name).items() if key != "authkey"}
        payload = pickle.dumps((preparation, pickle.dumps(call)))
    except Exception as error:
        raise TypeError(f"tool {name!r} cannot be sent to a worker process: {error}; {_WHERE}") from error
    # -P: the working directory may hold what an agent has written; what the program may import is in the preparation.
    command = [sys.executable, "-P", "-c", _BOOT, str(Path(__file__).parent.parent)]
    process = await anyio.open_process(command, stderr=None, start_new_session=True)
    answer = b""
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(anyio.BrokenResourceError):  # it has ended
            await process.stdin.send(payload)
            # Not to the end of the stream, which other processes may hold.
            async for piece in process.stdout:
                answer += piece
                if len(answer) >= _SIZE and len(answer) == _SIZE + int.from_bytes(answer[:_SIZE]):
                    break
            else:
                answer = b""
    finally:
        with anyio.move_on_after(_LAST_SECONDS, shield=True):
            await process.aclose()  # the end of its input ends it
    if not answer:
        raise RuntimeError(f"the process of tool {name!r} ended with {process.returncode} before it had answered")
    is_value, pickled, shown = pickle.loads(answer[_SIZE:])
    try:
        value = pickle.loads(pickled)
    except Exception as error:
        raise RuntimeError(f"{shown} cannot be sent between processes: {error}" if is_value else shown) from error
    if is_value:
        return value  # type: ignore[no-any-return]
    raise value


# ── in the other processes ───────────────────────────────────────────────────────────────────────


def supervise() -> NoReturn:
    """Fork the process that calls the function, and end everything when it or our standard input has ended."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what the function prints goes to standard error
    preparation, call = pickle.load(sys.stdin.buffer)
    adopt_orphans()
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    worker = os.fork()
    if worker == 0:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            written = _answer(preparation, call)
            with open(answers, "wb") as file:  # noqa: PTH123 — a descriptor
                file.write(len(written).to_bytes(_SIZE) + written)
        finally:
            os._exit(1)  # threads of the function are not waited for
    ended, status = 0, 0  # `answers` stays open: its end comes after the exit code is known
    while not ended and 0 not in select.select([0, woken], [], [])[0]:
        os.read(woken, 4096)
        ended, status = os.waitpid(worker, os.WNOHANG)
    for kill in (os.killpg, os.kill) if not ended else (os.killpg,):
        with contextlib.suppress(OSError):
            kill(worker, signal.SIGKILL)
    end_everything()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else _SIGNALLED - code)


def _answer(preparation: dict[str, Any], call: bytes) -> bytes:
    """Call the function; whether it returned, what it returned or raised, and that as text for those who cannot read it."""
    try:
        _prepare(preparation)
        try:
            function = pickle.loads(call)
        except Exception as error:
            raise RuntimeError(f"its process cannot import it: {error}; {_WHERE}") from error
        answer = True, function()
    except Exception as error:  # noqa: BLE001 — raised by the program
        answer = False, error
    except BaseException as error:  # noqa: BLE001 — it ends this process, not the program
        answer = False, RuntimeError(f"it raised {type(error).__name__}: {error}")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    is_value, found = answer
    shown = f"{found!r:.500}" if is_value else f"{type(found).__name__}: {found}"
    try:
        pickled = pickle.dumps(found)
    except Exception as error:  # noqa: BLE001 — pickle raises many kinds
        text = f"{shown} cannot be sent between processes: {error}" if is_value else shown
        is_value, pickled = False, pickle.dumps(RuntimeError(text))
    return pickle.dumps((is_value, pickled, shown))


def _prepare(preparation: dict[str, Any]) -> None:
    """Import the program; one that would run its agent once more is refused, since it would call the model a second time."""
    import asyncio  # noqa: PLC0415, TID251 — to refuse its use
    from multiprocessing.spawn import prepare  # noqa: PLC0415

    def refuse(*_given: Any, **_more: Any) -> NoReturn:
        raise RuntimeError(
            "the process of an isolated tool imports this program; put what runs it below `if __name__ == '__main__':`"
        )

    runs = anyio.run, asyncio.run
    anyio.run = asyncio.run = refuse  # type: ignore[assignment]
    try:
        prepare(preparation)
    finally:
        anyio.run, asyncio.run = runs
