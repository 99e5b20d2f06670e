"""The contract of every module, whatever its kind: how it is found, mounted, cancelled and cleaned up.

A module is a package with ``mount`` and, if it wants, ``on_session_ready`` beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from ._clause import Clause, recommended, required
from ._host import Coordinator

SimpleMount: TypeAlias = Callable[[Coordinator, dict[str, Any]], Awaitable[Any]]
"""``async def mount(coordinator, config)``.

It returns a cleanup, which the kernel calls on closing; or an instance that keeps the contract of the module's type,
which the kernel mounts under its own name unless that was done already; or None.
"""

StructuredMount: TypeAlias = Callable[[Coordinator, dict[str, Any]], AbstractAsyncContextManager[Any]]
"""``mount`` as an async context manager factory (``@asynccontextmanager``).

The kernel keeps it open in a task of its own, so that the module may hold task groups and cancel scopes open.
"""

MountFunction: TypeAlias = SimpleMount | StructuredMount
"""Either lifetime form; both are correct modules."""

OnSessionReady: TypeAlias = Callable[[Coordinator], Awaitable[None]]
"""``async def on_session_ready(coordinator)``: called once, in mount order, when every module is mounted."""


CLAUSES: tuple[Clause, ...] = (
    required("A1", "The package declares an entry point of the group 'amplifier.modules', and it can be imported."),
    required(
        "A2", "Its name is lower-case letters, digits, '-' and '_', starts with a letter and has at most 64 characters."
    ),
    required(
        "A3", "The entry point is mount(coordinator, config): an async function or an async context manager factory."
    ),
    required("A4", "mount returns a cleanup, an instance that keeps the contract of the module's type, or None."),
    required("A5", "A mount that fails or is cancelled leaves no task, thread, process or open file behind.", law="L1"),
    required("A6", "on_session_ready, if there is one, is async and takes the coordinator alone."),
    required(
        "A7", "Cancellation leaves every call as cancellation: not swallowed, not turned into another error.", law="L2"
    ),
    required("A8", "A cancelled call ends within one second.", law="L2"),
    required(
        "A9", "A cancelled call leaves the module whole: no lock held, no slot lost, no state half written.", law="L5"
    ),
    required("A10", "A cancelled call leaves no file torn.", law="L5"),
    required("A11", "Cleanup may run twice.", law="L1"),
    required("A12", "Cleanup ends within its deadline.", law="L3"),
    required("A13", "Cleanup raises nothing.", law="L4"),
    required("A14", "After cleanup no task, thread, process, open or temporary file or handler remains.", law="L1"),
    required("A15", "Cleanup never deletes what the user configured."),
    required("A16", "Sessions share no state through globals, classes or default paths.", law="L8"),
    required("A17", "No call blocks the event loop for more than 100 ms.", law="L3"),
    required(
        "A18",
        "The module behaves the same on asyncio and trio, or declares as __amplifier_backends__ what it runs on.",
        law="L10",
    ),
    recommended("A19", "Events of the module's own are announced on the channel 'observability.events'."),
    recommended("A20", "The module declares its type as __amplifier_module_type__."),
    recommended("A21", "mount needs no other module; what does is left to on_session_ready or to the first call."),
    required("A22", "Keys that the module is given appear in no event, no log and no error."),
)
