"""Code that must finish, or unwind undisturbed, run where nothing cuts it off.

What would cut it off, and what is done about it:

- On asyncio a ``CancelScope(shield=True)`` does not stop a native ``Task.cancel()`` (``asyncio.wait_for``, Ctrl-C, web servers, the end
  of ``asyncio.run``). `run_section` therefore runs a section in a child task that only its caller knows. Native cancels hit the waiting caller,
  which decides about each of them.
- On asyncio the second Ctrl-C, and with other signal handlers the first one, raises KeyboardInterrupt at whatever line is running. Inside a
  section it is carried to the caller; the caller itself never stops waiting for its section. Nothing can be protected there, so claims are made
  inside the ``try`` that takes them back, and closing can be called again where it was interrupted. Whoever does that to raise the interrupt at
  the end holds further ones off meanwhile (`interrupts`), or one at the very moment of catching the first would get through: they still stop
  foreign code and the waiting of the loop, and are dropped at a line of the kernel.
- On trio Ctrl-C is raised at a line, too, unless trio is told to protect the code: all code of the kernel and AnyIO's scopes are protected (`protect_kernel`), and what
  calls foreign code is not (`interruptible`), so that a blocking tool can be stopped. A protected main task still gets it at its waits, shielded or
  not; what must not be cut off there runs in a child task, which Ctrl-C does not reach.

CPython looks for signals when a function is entered, after a call and before a loop goes round, not between plain assignments. Where two
changes must go together, they are assignments beside each other.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, cast

from amplifier.contracts._cancellation import cancel_scope, running_asyncio_loop

from .backend import choose_hold

T = TypeVar("T")
Fn = TypeVar("Fn", bound=Callable[..., Any])


async def run_section(
    fn: Callable[..., Awaitable[T]],
    *args: Any,
    name: str,
    shield: bool = False,
    isolate: bool = False,
    is_unwinding: Callable[[], bool] | None = None,
    on_held: Callable[[], None] | None = None,
    on_wait: Callable[[], None] | None = None,
) -> T:
    """Run ``fn(*args)`` to its end, keeping away from it what would cut it off; returns only when it has finished.

    Args:
        fn: What to run; everything foreign in it must have a deadline of its own if ``shield`` is set.
        args: Its arguments.
        name: The name of its task, for reports.
        shield: Hold every cancellation of the caller back until the section has finished, then deliver it. Otherwise the
            first one is passed on in its own kind: a native ``Task.cancel()`` as one, a cancelled scope as a level-triggered scope.
            From the second native one on the section's scope is cancelled, so that code which swallowed the first cannot go on for
            ever; what is shielded in the unwinding of the section stays protected.
        isolate: Give the section a copy of the caller's context variables, so that the caller does not see what it sets, and on trio a
            task of its own. Otherwise both share one context.
        is_unwinding: Whether the section is being cancelled already, for a reason of its own: then the first native cancel waits.
        on_held: Called when a native cancel is held back for the first time.
        on_wait: On trio, for an isolated section, called when it has to wait: what takes a task there can be started now.
    """
    if running_asyncio_loop() is not None:
        from .asyncio_sections import Section  # noqa: PLC0415 — imports asyncio

        value: T = await Section(fn, args, name, shield, isolate, is_unwinding, on_held).run()
    elif isolate:
        value = await _in_child_on_trio(fn, args, name, shield, on_wait)
    else:
        with cancel_scope(shield=shield):
            value = await fn(*args)
    return value


# ── Ctrl-C on trio ───────────────────────────────────────────────────────────────────────────────


_interruptible: set[types.CodeType] = set()
_protected: list[Any] = []  # keeps the code that is marked: trio knows it by its identity


def interruptible(fn: Fn) -> Fn:
    """Mark a function that calls foreign code: on trio Ctrl-C may be raised in it, unlike in the rest of the kernel."""
    _interruptible.add(cast(Any, fn).__code__)
    return fn


def protect_kernel() -> None:
    """Keep Ctrl-C on trio from being raised at a line of the kernel, or of what it calls, instead of at a wait.

    On asyncio only from the second one on; see `interrupts`.
    """
    choose_hold()
    if _protected or running_asyncio_loop() is not None:
        return
    trio = sys.modules["trio"]
    scope = type(cancel_scope())  # AnyIO's for trio; trio protects its own in the same way
    _protected.extend(map(trio.lowlevel.enable_ki_protection, (scope.__enter__, scope.__exit__)))
    for name, module in list(sys.modules.items()):
        if name.startswith("amplifier.kernel."):
            for code in _code_in(vars(module).values(), name):
                marked = types.SimpleNamespace(__code__=code)
                mark = (
                    trio.lowlevel.disable_ki_protection
                    if code in _interruptible
                    else trio.lowlevel.enable_ki_protection
                )
                _protected.append(mark(marked))


def _code_in(values: Any, module: str) -> Iterator[types.CodeType]:
    """The code of all functions and methods of a module, those inside of functions included."""
    for value in list(values):
        if isinstance(value, types.CodeType):
            yield value
            yield from _code_in(value.co_consts, module)
        elif isinstance(value, property):
            yield from _code_in((value.fget, value.fset), module)
        elif isinstance(value, staticmethod | classmethod | functools.partial):
            yield from _code_in((getattr(value, "__func__", None),), module)
        elif isinstance(value, types.FunctionType) and value.__module__ == module:
            yield from _code_in((value.__code__,), module)
        elif isinstance(value, type) and value.__module__ == module:
            yield from _code_in(vars(value).values(), module)


async def _in_child_on_trio(
    fn: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    name: str,
    shield: bool,
    on_wait: Callable[[], None] | None,
) -> Any:
    """Run something in a child task and carry its outcome over as if it had run here; Ctrl-C is raised in the caller afterwards.

    Trio raises KeyboardInterrupt in the main task, at whatever it waits for, whether that is protected or not.
    """
    trio = sys.modules["trio"]
    outcome: list[Any] = []
    errors: list[BaseException] = []

    async def child() -> None:
        try:
            if shield:
                with cancel_scope(shield=True):
                    outcome.append(await fn(*args))
            else:
                outcome.append(await fn(*args))
        except BaseException as exc:  # noqa: BLE001 — raised in the caller, unwrapped
            errors.append(exc)

    try:
        # Waiting for a nursery's child is not cut short by a cancellation, so the wait itself needs no shield.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child, name=name)
            if on_wait is not None:
                for _ in range(2):  # after which the child has made its first step
                    if not outcome and not errors:
                        await trio.lowlevel.cancel_shielded_checkpoint()
                if not outcome and not errors:
                    on_wait()
    except BaseExceptionGroup as interrupted:  # the child's own errors do not come this way
        raise interrupted.exceptions[0] from (errors[0] if errors else None)
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()
    if not shield:  # a quick section has met no cancellation, and leaving a nursery raises none
        await trio.lowlevel.checkpoint_if_cancelled()
    return outcome[0]
