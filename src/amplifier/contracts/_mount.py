"""The contract of every module: how it is found, mounted, cancelled and cleaned up.

A module is a package with ``mount`` and, optionally, ``on_session_ready``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from ._clause import constructors, numbered
from ._coordinator import Coordinator

SimpleMount: TypeAlias = Callable[[Coordinator, dict[str, Any]], Awaitable[Any]]
"""``async def mount(coordinator, config)``.

It returns a cleanup, an instance or None. The kernel calls the cleanup on closing. An instance that
keeps the contract of the module's type is mounted under its own name, unless the module has mounted
it.
"""

StructuredMount: TypeAlias = Callable[
    [Coordinator, dict[str, Any]],
    AbstractAsyncContextManager[Any],
]
"""``mount`` as an async context manager factory (``@asynccontextmanager``).

The kernel keeps it open in a separate task, so the module may hold task groups and cancel scopes
open.
"""

MountFunction: TypeAlias = SimpleMount | StructuredMount
"""The entry point of a module in either form. Both forms are equally correct."""

OnSessionReady: TypeAlias = Callable[[Coordinator], Awaitable[None]]
"""``async def on_session_ready(coordinator)``: called in mount order, once all are mounted."""


required, clarified, recommended, advised = constructors("module contracts", "every module")

# The texts are wrapped at 100 columns. The formatter would join them to longer lines.
# fmt: off
CLAUSES = numbered(
    A1=required(
        "The package declares an entry point of the group 'amplifier.modules', and it can be "
        "imported.",
        hint='Write your-module-id = "your_package:mount" under '
        '[project.entry-points."amplifier.modules"] in pyproject.toml, and let every file of the '
        "package be valid Python.",
    ),
    A2=required(
        "Its name is lower-case letters, digits, '-' and '_', starts with a letter and has at "
        "most 64 characters.",
        hint="Rename the entry point, for example to tool-my-name.",
    ),
    A3=required(
        "The entry point is mount(coordinator, config): an async function or an async context "
        "manager factory.",
        hint="Write async def mount(coordinator, config), or decorate an async generator with "
        "@asynccontextmanager.",
        look_at=("mount",),
    ),
    A4=advised(
        "mount returns a cleanup, an instance that keeps the contract of the module's type, or "
        "None.",
        hint="Return a function that cleans up, the instance itself, or None.",
        look_at=("mount",),
    ),
    A5=required(
        "A mount that fails or is cancelled leaves no task, thread, process or open file behind.",
        law="L1",
        source="L1",
        hint="Start resources inside try/finally or async with, so that they end if mount does "
        "not reach its last line.",
        look_at=("mount",),
    ),
    # The kernel does not call any other form, so the module would never be ready.
    A6=clarified(
        "on_session_ready, if there is one, is async and takes the coordinator alone.",
        hint="Write async def on_session_ready(coordinator).",
        look_at=("on_session_ready",),
    ),
    A7=clarified(
        "Cancellation leaves every call as cancellation, neither swallowed nor turned into "
        "another error.",
        law="L2",
        hint="Let cancellation propagate: catch Exception rather than BaseException, raise it "
        "again after your cleanup, and raise no other error in its place.",
    ),
    A8=clarified(
        "A cancelled call ends within one second.",
        law="L2",
        hint="Put a deadline on the work after a cancellation, and do not shield a wait for the "
        "outside world.",
    ),
    A9=clarified(
        "A cancelled call leaves the module usable: no lock held, no slot lost, no state half "
        "written.",
        law="L5",
        hint="Use async with for locks and limiters, and change state only once nothing can "
        "interrupt the change.",
    ),
    A10=clarified(
        "A cancelled call leaves no partly written file.",
        law="L5",
        hint="Write to a temporary file beside the target and replace the target with os.replace "
        "when it is complete.",
    ),
    A11=clarified(
        "Cleanup may run twice.",
        law="L1",
        hint="Let cleanup remember that it has run, and do nothing the second time.",
        look_at=("cleanup", "close", "aclose"),
    ),
    A12=clarified(
        "Cleanup ends within its deadline.",
        law="L3",
        hint="Put a deadline on every wait in cleanup, and abandon whatever does not answer.",
        look_at=("cleanup", "close", "aclose"),
    ),
    A13=clarified(
        "Cleanup raises nothing.",
        law="L4",
        hint="Catch and log the errors of your cleanup.",
        look_at=("cleanup", "close", "aclose"),
    ),
    A14=clarified(
        "After cleanup no task, thread, process, open or temporary file or handler remains.",
        law="L1",
        hint="End in cleanup everything that mount and later calls began: close files, stop "
        "threads and processes, delete temporary files, unregister handlers. Start tasks through "
        "coordinator.start_soon or in a structured mount.",
        look_at=("cleanup", "close", "aclose"),
    ),
    A15=clarified(
        "Cleanup never deletes files or folders that the user configured.",
        hint="Delete only files that your module created and the user did not name.",
        look_at=("cleanup", "close", "aclose"),
    ),
    A16=clarified(
        "Sessions share no state through globals, classes or default paths.",
        law="L8",
        hint="Keep state on the instance that mount makes, and put files under a path that "
        "contains the session's id.",
    ),
    A17=clarified(
        "No call blocks the event loop for more than 100 ms.",
        law="L3",
        hint="Move blocking work to anyio.to_thread.run_sync, wait with anyio.sleep, and let "
        "every loop end.",
    ),
    A18=required(
        "The module behaves the same on asyncio and trio, or declares its backends as "
        "__amplifier_backends__.",
        law="L10",
        source="L10",
        hint='Use AnyIO instead of asyncio, or declare __amplifier_backends__ = ("asyncio",).',
    ),
    A19=recommended(
        "The module announces its own events on the channel 'observability.events'.",
        hint='Call coordinator.register_contributor("observability.events", name, lambda: [...]) '
        "in mount.",
        look_at=("mount",),
    ),
    A20=advised(
        "The module declares its type as __amplifier_module_type__.",
        hint="Set __amplifier_module_type__ beside mount to the type of the module, such as "
        '"tool" or "hook".',
        look_at=("mount",),
    ),
    A21=advised(
        "mount needs no other module: work that needs one is left to on_session_ready or to the "
        "first call.",
        hint="Look other modules up in on_session_ready, or when they are needed.",
        look_at=("mount",),
    ),
    # Traces, logs and transcripts are kept and shared.
    A22=clarified(
        "Configured keys appear in no event, no log and no error.",
        hint="Leave keys out of payloads, log records and messages, and out of the repr of "
        "objects that appear there.",
    ),
    A23=advised(
        "A module closes the files and streams that it opens: equal calls do not leave more and "
        "more descriptors open until cleanup, and the garbage collector has no stream or file to "
        "close.",
        hint="Open a file with a with statement in the call, or once for the session. Close "
        "streams in cleanup.",
    ),
    A24=clarified(
        "State that a process shares, such as environment, working directory, random seed and "
        "signal handlers, is left unchanged.",
        law="L8",
        hint="Give a child process its own env and cwd, use random.Random(seed) and "
        "decimal.localcontext(), and undo in cleanup everything that mount installed.",
    ),
    A25=clarified(
        "Results depend neither on the local time zone nor on the locale, unless the module's "
        "description or documentation names them, nor on the hashes of texts, which differ in "
        "each process.",
        law="L10",
        hint='Use datetime.now(timezone.utc) and encoding="utf-8". Take the zone or the language '
        "as a setting, and name it. Sort the items of a set.",
    ),
    A26=clarified(
        "A plain call never meets a bug in the module's own code: no AttributeError, NameError or "
        "TypeError that no handler expects by its name, whether it leaves the call or is caught.",
        law="L4",
        hint="Fix the line. If such an error is possible, test the value first, or catch the "
        "error by its name close to the line.",
    ),
)
# fmt: on
