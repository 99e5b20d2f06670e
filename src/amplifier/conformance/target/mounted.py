"""Mount the module under test in a real session with private directories."""

from __future__ import annotations

import inspect
import itertools
import math
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import anyio.lowlevel
import attrs

from amplifier.conformance.inputs.server_process import SERVICE, SERVICE_HOST, service_address
from amplifier.conformance.target.calls import (
    CALL_SECONDS,
    Budget,
    Outcome,
    call_with_deadline,
    count_mount,
    machine_load,
    turns,
    waiting_seconds,
    when_stuck,
    worked_time,
)
from amplifier.conformance.target.locate import LoadedTarget
from amplifier.conformance.target.process import PROCESS_EXIT_SECONDS
from amplifier.conformance.target.resolver_samples import install_samples, resolver_of
from amplifier.contracts import CONTRACTS, clauses_for
from amplifier.kernel import AmplifierSession
from amplifier.loading import ModuleLoader
from amplifier.models import ChatResponse, HookResult, ToolResult
from amplifier.testing import (
    CancelledAt,
    EventRecorder,
    MockApprovalSystem,
    MockContextManager,
    MockDisplaySystem,
    cancel_at,
)

# Every check that runs the module mounts it anew, so that no check depends on another. The module
# is mounted by hand, because the kit is stricter than the kernel and has to see violations that
# the kernel would tolerate.

DECLINED = "mount declined (it returned None and mounted nothing); give the configuration it needs"
"""Note about a module that declined to mount, so that only its mount could be examined."""


class Unexamined(Exception):
    """Raised by a static check that cannot decide. The text has the reason."""


@attrs.define(kw_only=True)
class StepCoverage:
    """The extent of one step's examination.

    Attributes:
        backends: The backends on which the module was examined.
        mount_attempted: True once the step has tried to mount the module.
        instance_seen: True once the module has mounted or registered anything.
        succeeded: True once a call of the module has succeeded.
        cut_short: The reason if the step was not completed.
        answers: Name, input and result of each call, to be compared with another process.
    """

    backends: list[str] = attrs.field(factory=list)
    mount_attempted: bool = False
    instance_seen: bool = False
    succeeded: bool = False
    cut_short: str | None = None
    answers: list[tuple[str, Any, str | None]] = attrs.field(factory=list)


CANARY = "canary.txt"
"""A user's file in the working directory, which has to stay unchanged to the end."""
_CANARY_TEXT = "this file belongs to the user\n" + "naïve e\u0301 漢字 👩\u200d👧\n" * 30


@contextmanager
def private_directories(shared_root: Path | None = None) -> Iterator[tuple[Path, Path]]:
    """Create a working directory with the canary, a home and a temporary directory.

    They are removed at the end. Temporary files get the same names every time, so that the
    contents of two directories can be compared.

    Args:
        shared_root: The parent of another module's directories. Its home and temporary directory
            are used.
    """
    before = Path.cwd()
    saved = {name: os.environ.get(name) for name in ("HOME", "TMPDIR")}
    with tempfile.TemporaryDirectory(prefix="module-", ignore_cleanup_errors=True) as root:
        directory, home, temporary = Path(root, "work"), Path(root, "home"), Path(root, "tmp")
        for folder in (directory, home, temporary):
            folder.mkdir()
        (directory / CANARY).write_text(_CANARY_TEXT, encoding="utf-8")
        if shared_root is not None:
            home, temporary = shared_root / "home", shared_root / "tmp"
        os.environ["HOME"], os.environ["TMPDIR"] = str(home), str(temporary)
        # This makes `tempfile` read TMPDIR again. Its private sequence is the only way to names
        # that are the same every time.
        tempfile.tempdir = None
        names = tempfile._name_sequence  # type: ignore[attr-defined]
        tempfile._name_sequence = map("{:08d}".format, itertools.count())  # type: ignore[attr-defined]
        os.chdir(directory)
        try:
            yield directory, temporary
        finally:
            os.chdir(before)
            for name, value in saved.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            tempfile.tempdir = None
            tempfile._name_sequence = names  # type: ignore[attr-defined]


def fill_placeholders(config: Any, directory: Path) -> Any:
    """Replace ``{directory}``, ``{service}`` and ``{service_host}`` in a configuration."""
    if isinstance(config, str):
        served = config.replace(SERVICE, service_address()) if SERVICE in config else config
        if SERVICE_HOST in config:
            served = served.replace(SERVICE_HOST, service_address().partition("//")[2])
        return served.replace("{directory}", str(directory))
    if isinstance(config, dict):
        return {key: fill_placeholders(value, directory) for key, value in config.items()}
    if isinstance(config, list):
        return [fill_placeholders(value, directory) for value in config]
    return config


OWNER = "target"
MOUNT_SECONDS = 20.0
CLEANUP_SECONDS = 10.0
"""The kernel's default deadline for one cleanup."""
CANCEL_GRACE = 4.0
"""Seconds after its cancellation at which a call counts as endless."""

_PAUSE = 0.02
_THOROUGH_POINTS = 100
_MORE_WHEN_THOROUGH = 8
_hanging_cleanups: set[str] = set()
"""Modules whose cleanup overran when a check closed them."""


@attrs.frozen(kw_only=True)
class Fault:
    """A violation as a check reports it. The controller makes a `Finding` of it.

    Attributes:
        clause: The id of the broken clause.
        what: The violation in a sentence.
        input: The input that the module received.
        case: The case to replay: that of the check, or ``{"listed": number}``.
        cancelled_at: The place at which the call was cancelled, if it was.
        location: The line of the module, ``file:line``, if it is known.
        hint: Advice that is more specific than the clause's own.
    """

    clause: str
    what: str
    input: Any = None
    case: Any = None
    cancelled_at: str | None = None
    location: str | None = None
    hint: str | None = None


class MountFailed(Exception):
    """Raised when the module cannot be mounted, so that nothing else can be examined."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"mount {outcome}")
        self.outcome = outcome


@attrs.define(kw_only=True, eq=False)
class MountedModule:
    """The module under test in a session.

    Attributes:
        ctx: The context of the check that mounted it. It collects the faults.
        session: The session around the module.
        coordinator: The module's view of the coordinator.
        directory: The private directory, which is the working directory while it is mounted.
        temporary: The directory for temporary files.
        events: All emitted events.
        returned: The result of mount, or the value that a structured mount yielded.
        is_structured: True if mount is an async context manager.
        is_awaited: True if the result of calling mount was awaited.
        is_cleaned: True once the cleanup that mount returned has been called.
        leave_mount: Exits a structured mount. None for any other.
        call_ids: The ids of the tool calls that a provider has returned.
    """

    ctx: CheckContext
    session: AmplifierSession
    coordinator: Any
    directory: Path
    temporary: Path
    events: EventRecorder
    returned: Any = None
    is_structured: bool = False
    is_awaited: bool = False
    is_cleaned: bool = False
    leave_mount: Callable[[], Any] | None = None
    call_ids: list[str] = attrs.field(factory=list)

    @property
    def loaded(self) -> LoadedTarget:
        """The loaded module."""
        return self.ctx.loaded

    async def mount(self, config: dict[str, Any]) -> None:
        """Call mount and keep its result.

        Raises:
            MountFailed: Mount raised, or overran its deadline.
        """
        settings = fill_placeholders(config, self.directory)
        outcome = await self.call(self._call_mount, settings, seconds=MOUNT_SECONDS)
        if not outcome.returned:
            raise MountFailed(outcome)

    async def _call_mount(self, config: dict[str, Any]) -> None:
        core = self.session.coordinator
        answer = self.loaded.on(self.ctx.backend).mount(self.coordinator, config)
        if hasattr(type(answer), "__aenter__") and hasattr(type(answer), "__aexit__"):
            self.is_structured = True
            host = await core.hosting.host(answer, name=OWNER, owner=OWNER)
            self.returned, self.leave_mount = host.value, host.leave
        else:
            self.is_awaited = inspect.isawaitable(answer)
            self.returned = await answer if self.is_awaited else answer
        # The type was checked when the module was loaded.
        contract = CONTRACTS[self.loaded.module_type]  # type: ignore[index]
        result = self.returned
        if (
            result is None
            or isinstance(result, type)
            or contract.module_type in ("hook", "resolver")
        ):
            return
        if isinstance(result, contract.protocol) and result not in self.instances.values():
            core.mounts.mount(contract.mount_point, result, None, OWNER)

    async def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        seconds: float = CALL_SECONDS,
        clause: str = "A8",
        **kwargs: Any,
    ) -> Outcome:
        """Call foreign code, sync or async, within a deadline.

        Only a cancellation from outside is raised. Code that ignores its cancellation or blocks the
        loop after the deadline ends the process, as a violation of ``clause``.
        """
        what = f"{_name_of(function, *args)}, cancelled at its deadline,"
        with self.ctx.watchdog(
            waiting_seconds(seconds) + waiting_seconds(CANCEL_GRACE), clause, what=what
        ):
            outcome = await call_with_deadline(function, *args, seconds=seconds, **kwargs)
        if outcome.overrun > CANCEL_GRACE and not any(
            fault.clause == "A8" for fault in self.ctx.faults
        ):
            self.ctx.fault(
                "A8", f"{what} had not ended when the check gave it up", given=self.ctx.case
            )
        self.note_success(outcome)
        return outcome

    def note_success(self, outcome: Outcome) -> None:
        """Note a successful call for the verdict, because many faults show only after one."""
        value = outcome.value.value if isinstance(outcome.value, CancelledAt) else outcome.value
        if outcome.returned and self._is_success(value):
            self.ctx.coverage.succeeded = True

    def _is_success(self, value: Any) -> bool:
        kind = self.loaded.module_type
        # A typical operation of a tool returns [success, output].
        if kind == "tool":
            return (isinstance(value, list) and value[:1] == [True]) or (
                isinstance(value, ToolResult) and value.success is True
            )
        return kind != "provider" or isinstance(value, ChatResponse)

    @property
    def instances(self) -> dict[str, Any]:
        """The instances that the module mounted at the mount point of its type, by name."""
        # The type was checked when the module was loaded.
        point = CONTRACTS[self.loaded.module_type].mount_point  # type: ignore[index]
        mounts = self.session.coordinator.mounts
        return {
            name or point: module for at, name, module in mounts.mounted_by(OWNER) if at == point
        }

    @property
    def instance(self) -> Any:
        """The first instance, or None if mount declined."""
        return next(iter(self.instances.values()), None)

    @property
    def mount_points(self) -> list[str]:
        """The mount points at which the module has mounted anything."""
        return sorted(
            {repr(point) for point, _, _ in self.session.coordinator.mounts.mounted_by(OWNER)}
        )

    @property
    def registrations(self) -> list[Any]:
        """The module's handlers that are registered now."""
        return self.session.coordinator.hooks.registrations_of(OWNER)

    @property
    def is_present(self) -> bool:
        """Whether the module has mounted or registered anything that its type requires."""
        if self.loaded.module_type == "resolver":
            return resolver_of(self) is not None
        return bool(self.registrations if self.loaded.module_type == "hook" else self.instances)

    @property
    def cleanup(self) -> Callable[..., Any] | None:
        """The cleanup that mount returned, or None if it returned none."""
        if self.returned is None or self.is_structured or self.returned in self.instances.values():
            return None
        return self.returned if callable(self.returned) else None

    @property
    def registered_cleanups(self) -> list[Any]:
        """The cleanups that the module registered with the coordinator."""
        entries = self.session.coordinator.cleanups.entries
        return [entry for entry in entries if entry.module == OWNER and entry.what == "cleanup"]

    def suspend_at(self, *events: str) -> None:
        """Register handlers that suspend, so that a concurrent call runs in between.

        A handler that writes a log may do the same.
        """

        async def suspend(event: str, data: dict[str, Any]) -> HookResult:
            await anyio.lowlevel.checkpoint()
            return HookResult(action="continue")

        for event in events:
            self.session.coordinator.hooks.register(event, suspend, name="suspend")

    def without_session(self, text: str) -> str:
        """Replace the session id and the private directories in a text with placeholders."""
        return text.replace(self.session.session_id, "<session>").replace(
            str(self.directory.parent), "<place>"
        )

    async def temporary_files_left(self) -> list[str]:
        """Return the names of temporary files that exist a moment after the module was closed."""
        give_up = time.monotonic() + PROCESS_EXIT_SECONDS
        while left := sorted(path.name for path in self.temporary.iterdir()):
            if time.monotonic() >= give_up:
                break
            await anyio.lowlevel.checkpoint()
            # Threads and processes need real time.
            time.sleep(_PAUSE)  # noqa: ASYNC251
        return left

    async def close(self) -> None:
        """Clean up the module as the kernel would, without a check."""
        cleanup, name = self.cleanup, self.loaded.target.reference
        if cleanup is not None and not self.is_cleaned and name not in _hanging_cleanups:
            self.is_cleaned = True
            outcome = await self.call(cleanup, clause="A12")
            # A hanging cleanup is not called again, since every check would wait for it.
            if outcome.kind == "late":
                _hanging_cleanups.add(name)
        await self.session.coordinator.undo(OWNER)


@attrs.define(kw_only=True, eq=False)
class CheckContext:
    """The argument of every check: mounts the module and collects faults.

    Attributes:
        loaded: The module under test.
        backend: The async backend.
        seed: Seed of every random choice.
        points: Maximum number of suspension points of a call that are tried.
        case: The JSON case of the check, if it has cases.
        token: The key for a replay: the case itself, or the number of a listed one.
        faults: The faults found so far.
        notes: The limits of the result.
        abort: Called with a fault when the module cannot be stopped and the process has to end.
        before_call: Called before every call of the module, which may be the last of this process.
        coverage: The extent of the examination, which derived contexts share.
        locates: True to find the lines of the module that call a double, which takes time.
    """

    loaded: LoadedTarget
    backend: str
    seed: int = 0
    points: int = 25
    case: Any = None
    token: Any = None
    faults: list[Fault] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    abort: Callable[[Fault], NoReturn] | None = None
    before_call: Callable[[], None] = lambda: None
    coverage: StepCoverage = attrs.field(factory=StepCoverage)
    locates: bool = False

    @property
    def is_thorough(self) -> bool:
        """Whether the profile is the thorough one."""
        return self.points >= _THOROUGH_POINTS

    def budget(self, calls: float, seconds: float = math.inf) -> Budget:
        """Return a budget for the check, which is larger in the thorough profile."""
        more = _MORE_WHEN_THOROUGH if self.is_thorough else 1
        return Budget(calls * more, seconds * more)

    def cut_short(self, reason: str) -> None:
        """Report an incomplete check, whose clauses count as not examined."""
        self.coverage.cut_short = self.coverage.cut_short or reason

    def fresh(self) -> CheckContext:
        """Return the same context without faults and notes, for a trial that may not count."""
        return attrs.evolve(self, faults=[], notes=[])

    @property
    def has_violations(self) -> bool:
        """True if a required clause was violated. A recommendation doesn't stop the check."""
        clauses = clauses_for(self.loaded.module_type)  # type: ignore[arg-type]
        required = {clause.id for clause in clauses if clause.level == "required"}
        return any(fault.clause in required for fault in self.faults)

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The guessed settings and, if the module can be mounted with them, the given ones.

        A module may handle files well in a folder that the settings name, and badly in the folder
        that it chooses itself.
        """
        loaded = self.loaded
        return [loaded.config, loaded.given] if loaded.given != loaded.config else [loaded.config]

    @property
    def is_on_island(self) -> bool:
        """Whether the module runs on an asyncio island."""
        return self.backend == "trio" and self.loaded.needs_island

    @property
    def cancel_modes(self) -> tuple[bool, ...]:
        """The ways to cancel: False for a scope and, on asyncio, True for ``Task.cancel()``."""
        return (False, True) if self.backend == "asyncio" else (False,)

    @asynccontextmanager
    async def mount(
        self,
        *,
        config: dict[str, Any] | None = None,
        ready: bool = True,
        beside: MountedModule | None = None,
        neighbour: MountedModule | None = None,
    ) -> AsyncIterator[MountedModule]:
        """Mount the module in a new session, and close it and remove its directories at the end.

        Args:
            config: The settings. By default those that the module was loaded with.
            ready: True to call its on_session_ready.
            beside: A mounted module whose directories are shared, as by a second session of the
                same user in the same folder.
            neighbour: A mounted module whose home is shared, as by a session of the same user in
                another folder.

        Raises:
            MountFailed: Mount raised, or overran its deadline.
        """
        if beside is not None:
            directories: Any = nullcontext((beside.directory, beside.temporary))
        else:
            directories = private_directories(
                None if neighbour is None else neighbour.directory.parent
            )
        with ExitStack() as closing, directories as (directory, temporary):
            session = AmplifierSession(
                {
                    **self.loaded.plan,
                    "session": {"orchestrator": "loop-stand-in", "context": "context-stand-in"},
                },
                loader=ModuleLoader(
                    modules={"loop-stand-in": _mount_no_loop, "context-stand-in": _mount_context}
                ),
                approval_system=MockApprovalSystem(),
                display_system=MockDisplaySystem(),
            )
            if self.loaded.module_type == "resolver":
                install_samples(directory, self.loaded.target)
            async with session:
                mounted = MountedModule(
                    ctx=self,
                    session=session,
                    coordinator=session.coordinator.view_for(OWNER),
                    directory=directory,
                    temporary=temporary,
                    events=EventRecorder(),
                )
                mounted.events.listen(session.coordinator.hooks)
                self.coverage.mount_attempted = True
                count_mount()
                await mounted.mount(self.loaded.config if config is None else config)
                on_session_ready = self.loaded.on(self.backend).on_session_ready if ready else None
                if on_session_ready is not None:
                    await mounted.call(on_session_ready, mounted.coordinator)
                self.coverage.instance_seen |= mounted.is_present
                try:
                    yield mounted
                finally:
                    closing.enter_context(
                        self.watchdog(CLEANUP_SECONDS * 2, "A12", "closing the session")
                    )
                    await mounted.close()

    def fault(
        self,
        clause: str,
        what: str,
        *,
        given: Any = None,
        cancelled_at: str | None = None,
        location: str | None = None,
        error: BaseException | None = None,
        hint: str | None = None,
    ) -> None:
        """Report a violation. The location comes from the error if the module raised one."""
        cancelled_at = cancelled_at or None
        if location is None and error is not None:
            location = self.location_of(error)
        if clause == "A7" and error is not None:
            hint = (
                f"The {type(error).__name__} raised at {location} replaces the cancellation. End a "
                "block that handles cancellation with a bare `raise`; in cleanup, catch Exception "
                "around calls that may fail."
            )
        self.faults.append(
            Fault(
                clause=clause,
                what=what,
                input=given,
                cancelled_at=cancelled_at,
                location=location,
                hint=hint,
            )
        )

    def expect(self, condition: object, clause: str, what: str, **details: Any) -> bool:
        """Report a fault unless the condition holds."""
        if not condition:
            self.fault(clause, what, **details)
        return bool(condition)

    def fill_input(self, given: Any) -> None:
        """Set the input of the faults that have none yet."""
        self.faults[:] = [
            attrs.evolve(fault, input=given) if fault.input is None else fault
            for fault in self.faults
        ]

    def location_of(self, error: BaseException) -> str | None:
        """Return the innermost line of the module in a traceback."""
        return self.loaded.target.location_of(error)

    def line_of(self, frame: FrameType | None) -> str | None:
        """Return the innermost line of the module on a call stack."""
        return None if frame is None else self.loaded.target.first_line(traceback.walk_stack(frame))

    @contextmanager
    def watchdog(
        self,
        seconds: float = CALL_SECONDS + CANCEL_GRACE,
        clause: str = "A8",
        what: str = "a cancelled call",
    ) -> Iterator[None]:
        """End the process if the body overruns, since nothing else ends uncancellable code.

        A module that blocks the loop is reported under A17, any other under the given clause.
        """
        if self.abort is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        self.before_call()
        abort, started = self.abort, worked_time()

        def stop() -> None:
            abort(
                Fault(
                    clause=clause,
                    what=f"{what} had not ended when the check gave it up",
                    input=self.case,
                    case=self.token,
                )
            )

        is_over = is_spinning = False
        seen = turns()

        def ring(signum: int, frame: FrameType | None) -> None:
            nonlocal is_spinning, seen
            # A concurrent call that ended later has set this alarm again.
            if is_over:
                return
            line = self.line_of(frame)
            # Waiting takes longer on a busy machine. The module's own work is timed without that.
            limit = seconds * machine_load() if line is None else seconds
            left = limit - (worked_time() - started)
            if left > 0:
                signal.setitimer(signal.ITIMER_REAL, min(max(left, 0.1), 1.0))
                return
            has_turned, seen = turns() > seen, turns()
            # The loop has turned, but may have been blocked since then, so check once more.
            if line is not None and has_turned and not is_spinning:
                is_spinning = True
                signal.setitimer(signal.ITIMER_REAL, 1.0)
                return
            if line is None or has_turned:
                stop()
            blocked = f"the event loop was blocked indefinitely in {what.partition(',')[0]}"
            abort(
                Fault(clause="A17", what=blocked, input=self.case, case=self.token, location=line)
            )

        previous = signal.signal(signal.SIGALRM, ring)
        left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            with when_stuck(stop):
                yield
        finally:
            is_over = True
            # An outer watchdog continues, with a small delay.
            signal.setitimer(signal.ITIMER_REAL, left)
            signal.signal(signal.SIGALRM, previous)


def _name_of(function: Any, *args: Any) -> str:
    """Return the name of a call for reports."""
    while isinstance(function, partial) or function is cancel_at:
        function = function.func if isinstance(function, partial) else args[1]
    return str(getattr(function, "__name__", "a call")).lstrip("_")


async def _mount_no_loop(coordinator: Any, config: dict[str, Any]) -> None:
    coordinator.mount("orchestrator", _NoLoop())


class _NoLoop:
    async def execute(self, prompt: str, **given: Any) -> str:
        return ""


async def _mount_context(coordinator: Any, config: dict[str, Any]) -> None:
    coordinator.mount("context", MockContextManager())
