"""The module under test, mounted in a real session with directories of its own, and what a check is given to work with.

Every check that runs the module mounts it anew, so that no check depends on another. The module is mounted by hand,
because the kit is stricter than the kernel: it has to see what the kernel would tolerate.
"""

from __future__ import annotations

import inspect
import itertools
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
from amplifier.conformance.target.process import PATIENCE
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

DECLINED = "mount declined (it returned None and mounted nothing); give the configuration it needs"
"""The note about a module that is not there, so that only its mount could be examined."""


class Unexamined(Exception):
    """Raised by a static check that cannot decide; the text states why."""


@attrs.define(kw_only=True)
class StepCoverage:
    """What one step got to see.

    Attributes:
        backends: Where the module was examined.
        mount_attempted: Whether the step mounted the module, or tried to.
        instance_seen: Whether at least once something of the module was mounted or registered.
        succeeded: Whether at least one call of the module did what it is for.
        cut_short: Why the step did not do all that it was to do, if so.
        answers: Calls, their name and input, and what they gave each time, for a comparison with another process.
    """

    backends: list[str] = attrs.field(factory=list)
    mount_attempted: bool = False
    instance_seen: bool = False
    succeeded: bool = False
    cut_short: str | None = None
    answers: list[tuple[str, Any, str | None]] = attrs.field(factory=list)


CANARY = "canary.txt"
"""A user's file in the working directory; it must be there, unchanged, to the end."""
_CANARY_TEXT = "this file belongs to the user\n" + "naïve e\u0301 漢字 👩\u200d👧\n" * 30


@contextmanager
def private_directories(shared_root: Path | None = None) -> Iterator[tuple[Path, Path]]:
    """Create a working directory with the canary in it, a home and a directory for temporary files; remove them at the end.

    Temporary files get the same names every time, so that the contents of two directories can be compared.

    Args:
        shared_root: The parent of another module's directories, whose home and temporary directory to use.
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
        tempfile.tempdir = None  # so that TMPDIR is read again
        names = tempfile._name_sequence  # type: ignore[attr-defined]  # there is no other way to name them
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
    """A configuration with ``{directory}``, ``{service}`` and ``{service_host}`` replaced by their values."""
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
"""Seconds after its cancellation at which a call counts as never ending."""

_PAUSE = 0.02
_THOROUGH_POINTS = 100
_MORE_WHEN_THOROUGH = 8
_hanging_cleanups: set[str] = set()
"""Modules whose cleanup did not end in time when a check closed them."""


@attrs.frozen(kw_only=True)
class Fault:
    """A broken clause as a check found it; the controller makes a `Finding` of it.

    Attributes:
        input: What the module was given.
        case: What to play again to see it: the case of the check, or ``{"listed": number}``.
        hint: How to fix it, where what was seen allows better advice than that of the clause.
    """

    clause: str
    what: str
    input: Any = None
    case: Any = None
    cancelled_at: str | None = None
    location: str | None = None
    hint: str | None = None


class MountFailed(Exception):
    """The module could not be mounted, so that nothing else can be examined."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"mount {outcome}")
        self.outcome = outcome


@attrs.define(kw_only=True, eq=False)
class MountedModule:
    """The module under test in a session.

    Attributes:
        ctx: The check that mounted it; faults are reported there.
        session: The session around it.
        coordinator: The coordinator as the module sees it.
        returned: What mount returned; for a structured mount what it yielded.
        is_structured: Whether mount is an async context manager.
        is_awaited: Whether what mount returned had to be awaited.
        directory: Its private directory; the working directory while it is mounted.
        temporary: Where temporary files go.
        events: All emitted events.
        is_cleaned: The cleanup that mount returned has been called.
        leave_mount: Leaves a structured mount.
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
        """Call mount and keep what it returns.

        Raises:
            MountFailed: It raised, or did not end in time.
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
        contract = CONTRACTS[self.loaded.module_type]  # type: ignore[index]  # checked when it was loaded
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
        """Call foreign code, sync or async, for a limited time; raises only when it is cancelled from outside.

        Code that goes on after that time, ignoring its cancellation or blocking the loop, ends the process. ``clause`` is
        what it breaks then.
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
        """Note for the verdict that a call did what the module is for: much shows only then."""
        value = outcome.value.value if isinstance(outcome.value, CancelledAt) else outcome.value
        if outcome.returned and self._is_success(value):
            self.ctx.coverage.succeeded = True

    def _is_success(self, value: Any) -> bool:
        kind = self.loaded.module_type
        if kind == "tool":  # a typical operation returns [success, output]
            return (isinstance(value, list) and value[:1] == [True]) or (
                isinstance(value, ToolResult) and value.success is True
            )
        return kind != "provider" or isinstance(value, ChatResponse)

    @property
    def instances(self) -> dict[str, Any]:
        """What the module mounted at the mount point of its type, by name."""
        point = CONTRACTS[self.loaded.module_type].mount_point  # type: ignore[index]  # checked when it was loaded
        mounts = self.session.coordinator.mounts
        return {
            name or point: module for at, name, module in mounts.mounted_by(OWNER) if at == point
        }

    @property
    def instance(self) -> Any:
        """The first instance; None if mount declined."""
        return next(iter(self.instances.values()), None)

    @property
    def mount_points(self) -> list[str]:
        """The mount points at which the module has mounted anything."""
        return sorted(
            {repr(point) for point, _, _ in self.session.coordinator.mounts.mounted_by(OWNER)}
        )

    @property
    def registrations(self) -> list[Any]:
        """The handlers that the module has registered and not removed."""
        return self.session.coordinator.hooks.registrations_of(OWNER)

    @property
    def is_present(self) -> bool:
        """Whether the module has mounted or registered what its type requires."""
        if self.loaded.module_type == "resolver":
            return resolver_of(self) is not None
        return bool(self.registrations if self.loaded.module_type == "hook" else self.instances)

    @property
    def cleanup(self) -> Callable[..., Any] | None:
        """What mount returned, if that is a cleanup."""
        if self.returned is None or self.is_structured or self.returned in self.instances.values():
            return None
        return self.returned if callable(self.returned) else None

    @property
    def registered_cleanups(self) -> list[Any]:
        """The cleanups that the module registered with the coordinator."""
        entries = self.session.coordinator.cleanups.entries
        return [entry for entry in entries if entry.module == OWNER and entry.what == "cleanup"]

    def suspend_at(self, *events: str) -> None:
        """Register handlers that suspend, as one that writes a log may: a concurrent call then runs in between."""

        async def suspend(event: str, data: dict[str, Any]) -> HookResult:
            await anyio.lowlevel.checkpoint()
            return HookResult(action="continue")

        for event in events:
            self.session.coordinator.hooks.register(event, suspend, name="suspend")

    def without_session(self, text: str) -> str:
        """A text in which placeholders replace the session id and the private directories."""
        return text.replace(self.session.session_id, "<session>").replace(
            str(self.directory.parent), "<place>"
        )

    async def temporary_files_left(self) -> list[str]:
        """The names of temporary files that still exist a moment after the module was closed."""
        give_up = time.monotonic() + PATIENCE
        while left := sorted(path.name for path in self.temporary.iterdir()):
            if time.monotonic() >= give_up:
                break
            await anyio.lowlevel.checkpoint()
            time.sleep(_PAUSE)  # noqa: ASYNC251 — for threads and processes, in real time
        return left

    async def close(self) -> None:
        """Clean the module up as the kernel would, without checking anything."""
        cleanup, name = self.cleanup, self.loaded.target.reference
        if cleanup is not None and not self.is_cleaned and name not in _hanging_cleanups:
            self.is_cleaned = True
            outcome = await self.call(cleanup, clause="A12")
            if outcome.kind == "late":
                _hanging_cleanups.add(name)  # or every check would wait for it
        await self.session.coordinator.undo(OWNER)


@attrs.define(kw_only=True, eq=False)
class CheckContext:
    """What a check is given: it mounts the module and collects faults.

    Attributes:
        loaded: The module under test.
        backend: The async backend.
        seed: Seeds every random choice.
        points: How many suspension points of a call are tried at most.
        case: The JSON case of the check, if it has cases.
        token: What to replay it by: the case itself, or the number of a listed one.
        faults: The faults found so far.
        notes: What limits the result.
        abort: Called with a fault when the module cannot be stopped and the process has to end.
        before_call: Called before every call of the module, which may be the last one that this process makes.
        coverage: What the check has looked at; contexts derived from this one share it.
        locates: Whether to find the lines of the module that call a double, which takes time.
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

    def budget(self, calls: float) -> Budget:
        """The work that the check may ask of the module: so many calls in the quick profile, more in the thorough one."""
        return Budget(calls * (_MORE_WHEN_THOROUGH if self.is_thorough else 1))

    def cut_short(self, reason: str) -> None:
        """Report that the check did not do all that it was to do; its clauses then count as not examined."""
        self.coverage.cut_short = self.coverage.cut_short or reason

    def fresh(self) -> CheckContext:
        """The same context without faults and notes, for a trial whose faults may not count."""
        return attrs.evolve(self, faults=[], notes=[])

    @property
    def has_violations(self) -> bool:
        """Whether a required clause was found broken; a broken recommendation is no reason to stop looking."""
        clauses = clauses_for(self.loaded.module_type)  # type: ignore[arg-type]
        required = {clause.id for clause in clauses if clause.level == "required"}
        return any(fault.clause in required for fault in self.faults)

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The guessed settings and, if the module can be mounted with them, the given ones.

        A module may handle files well where the settings name the place, and badly where it chooses the place itself.
        """
        loaded = self.loaded
        return [loaded.config, loaded.given] if loaded.given != loaded.config else [loaded.config]

    @property
    def is_on_island(self) -> bool:
        """Whether the module runs on an asyncio island."""
        return self.backend == "trio" and self.loaded.needs_island

    @property
    def cancel_modes(self) -> tuple[bool, ...]:
        """Whether to cancel by ``Task.cancel()``: False for by scope, and on asyncio also True."""
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
        """Mount the module in a session of its own; close it and remove its directories at the end.

        Args:
            config: The settings; those it was loaded with by default.
            ready: Whether to call its on_session_ready.
            beside: A mounted module whose directories to share, as a second session of the same user does.
            neighbour: A mounted module whose home to share, as a session of the same user elsewhere does.

        Raises:
            MountFailed: Mount raised, or did not end in time.
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
        """Report a broken clause; an error that the module raised gives the location."""
        cancelled_at = cancelled_at or None
        if location is None and error is not None:
            location = self.location_of(error)
        if clause == "A7" and error is not None:
            what_to_do = "Where you handle cancellation, end the block with a bare `raise`; in cleanup, catch Exception around what may fail."
            hint = f"The {type(error).__name__} raised at {location} replaces the cancellation. {what_to_do}"
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
        """Set the input of those faults that have none yet."""
        self.faults[:] = [
            attrs.evolve(each, input=given) if each.input is None else each for each in self.faults
        ]

    def location_of(self, error: BaseException) -> str | None:
        """The innermost line of the module in a traceback."""
        return self.loaded.target.location_of(error)

    def line_of(self, frame: FrameType | None) -> str | None:
        """The innermost line of the module on a call stack."""
        return None if frame is None else self.loaded.target.first_line(traceback.walk_stack(frame))

    @contextmanager
    def watchdog(
        self,
        seconds: float = CALL_SECONDS + CANCEL_GRACE,
        clause: str = "A8",
        what: str = "a cancelled call",
    ) -> Iterator[None]:
        """End the process if the body takes longer: code that ignores its cancellation cannot be ended otherwise.

        The clause that is reported is A17 when the module blocks the loop, and the one given when the loop still turns.
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
            if is_over:  # another call, made at the same time, ended later and set this one again
                return
            line = self.line_of(frame)
            # What the module waits for takes longer on a busy machine; what it does itself is timed without that.
            most = seconds * machine_load() if line is None else seconds
            left = most - (worked_time() - started)
            if left > 0:
                signal.setitimer(signal.ITIMER_REAL, min(max(left, 0.1), 1.0))
                return
            has_turned, seen = turns() > seen, turns()
            if line is not None and has_turned and not is_spinning:  # perhaps it is blocked since
                is_spinning = True
                signal.setitimer(signal.ITIMER_REAL, 1.0)
                return
            if line is None or has_turned:
                stop()
            blocked = f"the event loop was blocked for good in {what.partition(',')[0]}"
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
            signal.setitimer(signal.ITIMER_REAL, left)  # an outer watchdog goes on, a little later
            signal.signal(signal.SIGALRM, previous)


def _name_of(function: Any, *args: Any) -> str:
    """The name of a call for reports."""
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
